"""A root file system and an image for tests in containers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import ENGINE


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system from programs of this machine: no image can be downloaded in tests."""
    if shutil.which("podman") is None or os.geteuid() != 0:
        pytest.skip("podman is not installed, or not run by root")
    root = tmp_path_factory.mktemp("rootfs")
    programs = ["sh", "cat", "sleep", "true", "echo", "id", "ls", "tar", "env", "/usr/bin/python3"]
    programs += ["cp", "mkdir", "rm", "chmod", "bash"]
    paths = [Path(str(shutil.which(each))).resolve() for each in programs]
    library = Path(f"/usr/lib/python3.{sys.version_info.minor}")
    wanted = {str(path) for path in paths}
    for path in paths:
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
        wanted |= {word for word in listed.split() if word.startswith("/")}
    for each in wanted:
        target = root / each.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(each, target)
    for name, path in zip(programs, paths, strict=True):
        link = root / "bin" / Path(name).name
        link.parent.mkdir(exist_ok=True)
        if not link.exists():
            shutil.copy2(path, link)
    if library.is_dir():
        ignore = shutil.ignore_patterns(
            "test", "__pycache__", "dist-packages", "idlelib", "tkinter"
        )
        shutil.copytree(library, root / str(library).lstrip("/"), ignore=ignore, symlinks=True)
    for name in ("tmp", "etc", "proc", "sys", "dev", "run"):
        (root / name).mkdir(exist_ok=True)
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    return root


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory, rootfs: Path) -> Iterator[str]:
    """The name of an image with that root file system."""
    name = f"localhost/proctor-test-{os.getpid()}:1"
    archive = tmp_path_factory.mktemp("image") / "root.tar"
    subprocess.run(["tar", "-C", rootfs, "-cf", archive, "."], check=True)
    podman = ["podman", *ENGINE]
    subprocess.run([*podman, "import", archive, name], check=True, capture_output=True)
    yield name
    subprocess.run([*podman, "rmi", "--force", name], check=False, capture_output=True)

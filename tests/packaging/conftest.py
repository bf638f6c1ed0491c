"""A wheel built from this tree, and a clean environment with it and without any extra."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest

Use = Callable[..., subprocess.CompletedProcess[str]]


class Built(NamedTuple):
    """The two files that are published."""

    wheel: Path
    sdist: Path


@pytest.fixture(scope="session")
def built(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Made by the build backend itself: nothing is downloaded for it."""
    place = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(place)],
        cwd=root,
        capture_output=True,
        check=True,
    )
    (wheel,), (sdist,) = place.glob("*.whl"), place.glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.fixture(scope="session")
def clean(root: Path, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment: the wheel, installed by pip, and what it depends on.

    What it depends on is linked to from the environment of these tests, package by package and
    nothing beside, which is the same as installing the pins but takes no network and no minute.
    """
    place = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    python = place / "bin" / "python"
    if not python.exists():
        pytest.skip("environments look otherwise here")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = place / "lib" / version / "site-packages"
    pins = (root / "constraints" / "core.txt").read_text(encoding="utf-8")
    for name in re.findall(r"^([A-Za-z0-9][\w.-]*)==", pins, re.MULTILINE):
        _link(name, packages)
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run(
        [*_pip(), "--python", python, "install", *quiet, built.wheel],
        capture_output=True,
        check=True,
    )
    return python


def _pip() -> list[str]:
    """A pip: that of this environment, or of the Python it was made with, as dev.py uses it."""
    for python in (sys.executable, sys._base_executable):
        pip = [python, "-m", "pip"]
        if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode == 0:
            return pip
    pytest.skip("no pip")


def _link(name: str, packages: Path) -> None:
    """Make the files of an installed package visible in another environment."""
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError:
        return  # a pin for another system
    for file in files:
        source, target = Path(str(file.locate())), packages / str(file)
        if ".." in file.parts or not source.is_file() or target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)


@pytest.fixture
def use(clean: Path, tmp_path: Path) -> Use:
    """Run `proctor` (or Python, with `python=True`) of the clean environment, from outside."""

    def run(
        *args: object, cwd: Path | None = None, python: bool = False, **env: str
    ) -> subprocess.CompletedProcess[str]:
        program = [str(clean)] if python else [str(clean.parent / "proctor")]
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("PYTHON", "PROCTOR_", "XDG_", "GITHUB_", "VIRTUAL_ENV"))
            and not k.endswith("_KEY")
        }
        home = {"HOME": str(tmp_path / "home"), "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"}
        return subprocess.run(
            [*program, *map(str, args)],
            cwd=cwd or tmp_path,
            env={**kept, **home, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    return run

"""What identifies a run: its id, and the code and machine it ran on."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import secrets
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any


def new_run_id(clock: Callable[[], int] = time.time_ns) -> str:
    """A UUID version 7: random, and in the order of time."""
    milliseconds = clock() // 1_000_000
    value = (milliseconds & (2**48 - 1)) << 80 | 0x7 << 76 | secrets.randbits(12) << 64
    return str(uuid.UUID(int=value | 0b10 << 62 | secrets.randbits(62)))


def provenance(folder: Path) -> dict[str, Any]:
    """Versions, commit and host, for the record; nothing secret, nothing looked up on a network."""
    return {
        "proctor": proctor_version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": host(),
        "user": user(),
        "git": git_state(folder),
        "packages": dict(package_versions()),
    }


@cache
def proctor_version() -> str:
    """The version of Proctor that is installed."""
    return metadata.version("proctor")


def host() -> str:
    """The name of this machine."""
    return socket.gethostname()


def user() -> str | None:
    """Who is logged in, as far as the environment says."""
    return os.environ.get("USER") or os.environ.get("USERNAME")


def who() -> str:
    """Who does something here, for the record."""
    with contextlib.suppress(KeyError, OSError, ImportError):  # no such account, or no accounts
        return getpass.getuser()
    return "unknown"


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit a folder is at and whether it has changes; None outside a repository."""
    here = folder.resolve()
    # To ask git takes longer than to see that there is nothing to ask about.
    if "GIT_DIR" not in os.environ and not any(
        os.path.lexists(f"{place}/.git") for place in (here, *here.parents)
    ):
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain"))}


def _git(folder: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 (our own words)
            ["git", "-C", str(folder), *args],  # noqa: S607 (the user's own git)
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@cache
def package_versions() -> Mapping[str, str]:
    """Installed versions of what Proctor can use: its dependencies and those of its extras.

    Read once, from the names of folders, which is what an installer leaves, since asking for each
    package takes milliseconds and a run should begin at once.
    """
    wanted = {_normal(_REST.sub("", text)) for text in metadata.requires("proctor") or ()}
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208 (names only)
        except OSError:
            continue
        for name in names:
            package, sign, version = name.removesuffix(".dist-info").partition("-")
            if sign and name.endswith(".dist-info") and _normal(package) in wanted:
                found.setdefault(_normal(package), version)
    return dict(sorted(found.items()))


_REST = re.compile(r"[^\w.-].*", re.DOTALL)
"""What follows the name in a requirement: extras, versions, markers."""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

"""Identity of a run: its id, and the code and machine it ran on."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
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

from proctor import __version__


def new_run_id(clock: Callable[[], int] = time.time_ns) -> str:
    """Return a UUID version 7: random and sortable by time."""
    # RFC 9562: 48 bits of milliseconds, the version, 12 random bits, the variant 0b10, 62 random.
    milliseconds = clock() // 1_000_000
    value = (milliseconds & (2**48 - 1)) << 80 | 0x7 << 76 | secrets.randbits(12) << 64
    return str(uuid.UUID(int=value | 0b10 << 62 | secrets.randbits(62)))


def provenance(folder: Path) -> dict[str, Any]:
    """Return versions, commit and host; nothing secret, no network access."""
    return {
        "proctor": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "user": os.environ.get("USER") or os.environ.get("USERNAME"),
        "git": git_state(folder),
        "packages": dict(package_versions()),
    }


def who() -> str:
    """Return the user for records."""
    with contextlib.suppress(KeyError, OSError, ImportError):  # no such account, or no accounts
        return getpass.getuser()
    return "unknown"


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit of a folder and its uncommitted changes; None outside a repository.

    `changes` is a short hash of the changes to tracked files: two runs of one commit with
    different changes are runs of different code.
    """
    here = folder.resolve()
    # Starting git takes longer than seeing that there is no repository. GIT_DIR may name one that
    # is elsewhere.
    if "GIT_DIR" not in os.environ and not any(
        os.path.lexists(f"{place}/.git") for place in (here, *here.parents)
    ):
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    if not _git(folder, "status", "--porcelain"):
        return {"commit": commit, "dirty": False}
    changes = _git(folder, "diff", "HEAD", "--no-ext-diff", "--no-color")
    hashed = hashlib.sha256(changes.encode(errors="replace")).hexdigest()[:8] if changes else None
    return {"commit": commit, "dirty": True, **({"changes": hashed} if hashed else {})}


def _git(folder: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 (our own arguments)
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
    """Return installed versions of Proctor's dependencies and extras.

    Read once, from the names of dist-info folders, since querying each package takes milliseconds
    and a run should start at once.
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
                # The first folder of sys.path is the one that is imported from.
                found.setdefault(_normal(package), version)
    return dict(sorted(found.items()))


_REST = re.compile(r"[^\w.-].*", re.DOTALL)
"""The rest of a requirement after the name: extras, versions, markers."""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

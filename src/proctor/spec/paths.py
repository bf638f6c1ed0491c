"""Paths as users write them into specs: what they lead to, and what else may have been meant."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath, PureWindowsPath

from proctor.errors import did_you_mean


def instead_of(path: Path) -> str | None:
    """What may have been meant by a path that is no file: a file of that folder, or a like name."""
    is_folder = path.is_dir()
    try:
        beside = sorted((path if is_folder else path.parent).iterdir())
    except OSError:
        return None
    files = [each for each in beside if each.suffix in (".yaml", ".yml", ".json")]
    if is_folder:
        return f"name a file of it: {', '.join(f.name for f in files[:5])}" if files else None
    near = [repr(each.name) for each in files if did_you_mean(path.stem, [each.stem])]
    return f"did you mean {' or '.join(near[:3])}?" if near else None


def real_path(path: Path) -> Path:
    """The path without links; one that cannot be followed is told of when it is opened."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return path.absolute()


def is_absolute(written: str) -> bool:
    """Whether a path is absolute on any system, whichever this one is."""
    windows = PureWindowsPath(written)
    return PurePosixPath(written).is_absolute() or bool(windows.drive or windows.root)


def shown_path(path: Path) -> str:
    """A path without steps back and forth."""
    return os.path.normpath(path)

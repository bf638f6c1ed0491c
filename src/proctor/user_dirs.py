"""Find the user's folders (XDG convention) and settings files; create the folders of a file.

A relative path in an XDG variable is ignored, as the convention requires: it would name another
folder in each working directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from proctor.errors import ProctorError

_HOMES = {
    "cache": ("XDG_CACHE_HOME", (".cache",)),
    "data": ("XDG_DATA_HOME", (".local", "share")),
    "state": ("XDG_STATE_HOME", (".local", "state")),
}


def user_folder(
    kind: Literal["cache", "data", "state"],
    *parts: str,
    environ: Mapping[str, str] | None = None,
) -> Path:
    """Return Proctor's folder in the user's cache, data or state folder; it may not exist."""
    variable, below_home = _HOMES[kind]
    base = (os.environ if environ is None else environ).get(variable, "")
    home = Path(base) if Path(base).is_absolute() else Path.home().joinpath(*below_home)
    return home.joinpath("proctor", *parts)


def user_settings_file(environ: Mapping[str, str]) -> Path | None:
    """Return the path of the user's own settings, whether or not the file exists."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if base and Path(base).is_absolute():
        return Path(base) / "proctor" / "config.yaml"
    # Not `Path.home()`: the caller's environment decides, and it may have no home.
    home = environ.get("HOME") or environ.get("USERPROFILE")
    return Path(home) / ".config" / "proctor" / "config.yaml" if home else None


def project_settings_files(start: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the two files that may hold a project's settings, from a folder upwards."""
    here = start.resolve()
    for folder in (here, *here.parents):
        yield folder / "proctor.yaml", folder / "pyproject.toml"


def settings_may_exist(start: Path, environ: Mapping[str, str]) -> bool:
    """Return whether any file or variable may hold a setting, without reading one."""
    user = user_settings_file(environ)
    return (
        any(name.startswith("PROCTOR_") for name in environ)
        or (user is not None and user.exists())
        or any(file.exists() for pair in project_settings_files(start) for file in pair)
    )


def with_folder(file: Path) -> Path:
    """Create the folders of a file that will be written, and return its path."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProctorError(f"cannot write: {error.strerror}", where=str(file)) from None
    return file

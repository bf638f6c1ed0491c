"""Folders of the user's own, where the XDG convention puts them; and room for a file to write.

A relative path in such a variable is ignored, as the convention asks: it would mean another
folder wherever a command is started.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
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
    """A folder of ours among the user's caches, data or state; it need not exist."""
    variable, below_home = _HOMES[kind]
    base = (os.environ if environ is None else environ).get(variable, "")
    home = Path(base) if Path(base).is_absolute() else Path.home().joinpath(*below_home)
    return home.joinpath("proctor", *parts)


def room_for(file: Path) -> Path:
    """The file, with the folders above it made: whoever names a file to write wants it there."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProctorError(f"cannot write: {error.strerror}", where=str(file)) from None
    return file

"""A new folder for a run, by a pattern such as `{experiment}/{date}_{seq}`.

Promise: two processes that claim at once get two folders, since making a directory is what
decides; nothing is made outside the root, links included; what cannot be had leaves nothing
behind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from proctor.errors import ProctorError

OUTPUT = "{experiment}/{date}_{seq}"
"""Where a run goes below the results folder."""

MAX_NAME = 80
"""Longest part of a path made from a user's words: leaves room under Windows' 260 characters."""

_UNSAFE = re.compile(r"[^\w.\-]+")
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")
_SEQ = "{seq}"


class RunFolderError(ProctorError):
    """A run folder that cannot be used as asked."""


def claim(root: Path, pattern: str, names: Mapping[str, str]) -> Path:
    """A directory of our own below `root`; `names` are what the tokens besides `{seq}` mean."""
    parts = [_filled(part, names) for part in pattern.split("/")]
    numbered = next((i for i, part in enumerate(parts) if _SEQ in part), len(parts) - 1)
    parent = root.joinpath(*parts[:numbered])
    if ".." in parts or not parent.resolve().is_relative_to(root.resolve()):
        raise RunFolderError(
            f"the output path {pattern!r} leads outside the results folder", where=str(root)
        )
    try:
        parent.mkdir(parents=True, exist_ok=True)
        path = _made(parent, parts[numbered], pattern)
        # Whatever comes after the number is ours alone.
        rest = [part.replace(_SEQ, _number_in(parts[numbered], path.name)) for part in parts]
        inner = path.joinpath(*rest[numbered + 1 :])
        inner.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"cannot create a run folder: {error.strerror}",
            where=str(error.filename or parent),
            hint="choose another place with --results",
        ) from None
    return inner


def earlier_folders(root: Path, pattern: str, experiment: str) -> list[Path]:
    """Folders that earlier runs of the pattern may have, whether they are runs or not."""
    names = {"experiment": safe_name(experiment), "date": "*"}
    glob = "/".join(_filled(part, names).replace(_SEQ, "*") for part in pattern.split("/"))
    return sorted(root.glob(glob), reverse=True) if root.is_dir() else []


def _filled(part: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        part = part.replace(f"{{{name}}}", value)
    return part


def _made(parent: Path, part: str, pattern: str) -> Path:
    """The directory of a part, made now: with the next free number where it has one."""
    if _SEQ not in part:
        path = parent / part
        try:
            path.mkdir()
        except FileExistsError:
            raise RunFolderError(
                "there is a run here already",
                where=str(path),
                hint=f"add {_SEQ} to the output path {pattern!r} to number runs",
            ) from None
        return path
    taken = [int(n) for p in parent.iterdir() if (n := _number_in(part, p.name))]
    number = max(taken, default=0) + 1
    while True:
        path = parent / part.replace(_SEQ, f"{number:03d}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def _number_in(part: str, name: str) -> str:
    """The number a folder's name has where the pattern has `{seq}`; empty when it is no such."""
    before, _, after = part.partition(_SEQ)
    found = re.fullmatch(rf"{re.escape(before)}(\d+){re.escape(after)}", name)
    return found[1] if found else ""


def safe_name(text: str) -> str:
    """A file name from a user's words that every file system takes, Windows included."""
    name = _UNSAFE.sub("-", text).strip("-. ")[:MAX_NAME].rstrip(". ") or "run"
    return f"_{name}" if _RESERVED.fullmatch(name) else name

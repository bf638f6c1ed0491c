"""`_manifest_.json`: what a run at a remote place consists of, file by file.

    {"format": 1, "run_id": "…", "name": "shop/2026-11-16_001", "state": "complete",
     "files": {"trials.jsonl": {"size": 812, "sha256": "…"}, …},
     "pieces": {"traces/000001.jsonl.zst": ["000000000000000-3f8a0b6c1d2e4f70", …]}}

Promise: it is written last, so a manifest that says `complete` lists files that are all there,
each as one object or as the pieces named; `running` means that pieces are still to come,
`replacing` that an upload was not finished. Names in it are believed only when they stay inside
the run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from proctor.errors import ProctorError

NAME = "_manifest_.json"
FORMAT = 2
"""Version of the manifest; a newer one is refused. What has no `pieces` is written as 1."""

SPEC, JOURNAL = "_spec_.yaml", "trials.jsonl"
ONLY_GROW = (JOURNAL, "notes.jsonl")
"""Files of which an earlier state must not replace a later one."""

PIECES = "_pieces_"
"""Below it are pieces of files that were growing when they were shipped."""

MOST_BYTES = 64 << 20
"""A manifest larger than this is not one of ours: some 500,000 files."""

_BLOCK = 1 << 20
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\:]")

State = Literal["complete", "running", "replacing"]


class RemoteError(ProctorError):
    """A run at a remote place that cannot be read, written or believed."""


class FileFacts(msgspec.Struct, frozen=True):
    """What a file must be."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A run at a remote place."""

    format: int = 1
    run_id: str
    name: str
    state: State
    files: dict[str, FileFacts] = {}
    pieces: dict[str, list[str]] = {}
    """Files that are there in pieces, with the names of these, in order."""

    def encode(self) -> bytes:
        """The manifest as it is kept."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


def decode(content: bytes, where: str) -> Manifest:
    """A manifest that may be believed, or an error that says why not."""
    try:
        found = msgspec.json.decode(content, type=Manifest)
    except msgspec.MsgspecError as error:
        raise RemoteError(f"the manifest cannot be read: {error}", where=where) from None
    if found.format > FORMAT:
        raise RemoteError(
            f"the manifest has format {found.format}, this version reads up to {FORMAT}",
            where=where,
            hint="upgrade proctor",
        )
    for name in (found.name, *found.files):
        if not is_inside(name):
            raise RemoteError(f"the manifest names a file outside the run: {name!r}", where=where)
    return found


def is_inside(name: str) -> bool:
    """Whether a relative name stays below the folder it is joined to, on every system."""
    parts = name.split("/")
    plain = all(part and not part.startswith(".") for part in parts)
    return plain and not _UNSAFE.search(name) and not PurePosixPath(name).is_absolute()


def run_files(run: Path) -> Iterator[tuple[str, Path]]:
    """The files of a run that travel: all but links and hidden ones (locks, files aside)."""
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        ours = name == NAME or name.startswith(f"{PIECES}/")
        if is_inside(name) and not ours and path.is_file() and not path.is_symlink():
            yield name, path


def facts_of(path: Path) -> FileFacts:
    """Size and checksum of a file, read once."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return FileFacts(size, digest.hexdigest())

"""Define `_manifest_.json`: the files of a run in an object store.

    {"format": 1, "run_id": "…", "name": "shop/2026-11-16_001", "state": "complete",
     "files": {"trials.jsonl": {"size": 812, "sha256": "…"}, …},
     "pieces": {"traces/000001.jsonl.zst": ["000000000000000-3f8a0b6c1d2e4f70", …]}}

Guarantees: it is written last, so a manifest with state `complete` lists files that are all
present, each as one object or as the named pieces; `running` means that more pieces follow,
`replacing` that an upload was not finished. Names in it are accepted only if they stay inside the
run.
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
"""Version of the manifest; a newer one is rejected. Without `pieces`, version 1 is written."""

SPEC, JOURNAL = "_spec_.yaml", "trials.jsonl"
ONLY_GROW = (JOURNAL, "notes.jsonl", "labels.jsonl")
"""Append-only files: an earlier state must not replace a later one."""

PIECES = "_pieces_"
"""Prefix of the pieces of files that were growing while they were uploaded."""

MAX_BYTES = 64 << 20
"""Maximum size of a manifest: enough for some 500,000 files."""

_BLOCK = 1 << 20
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\:]")

State = Literal["complete", "running", "replacing"]


class RemoteError(ProctorError):
    """A run in an object store cannot be read, written or trusted."""


class FileFacts(msgspec.Struct, frozen=True):
    """Expected size and checksum of a file."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A run in an object store."""

    format: int = 1
    run_id: str
    name: str
    state: State
    files: dict[str, FileFacts] = {}
    pieces: dict[str, list[str]] = {}
    """Files stored in pieces, with the names of the pieces in order."""

    def encode(self) -> bytes:
        """Encode the manifest for storage."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


def decode(content: bytes, where: str) -> Manifest:
    """Return a validated manifest, or raise with the reason."""
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
    """Return whether a relative name stays below its folder, on every operating system."""
    # Hidden files (locks, the destination) are of one machine, and `..` starts with a dot too.
    plain = all(part and not part.startswith(".") for part in name.split("/"))
    return plain and not _UNSAFE.search(name) and not PurePosixPath(name).is_absolute()


def run_files(run: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a run to transfer: all but links and hidden files."""
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        # A folder that serves as a store (file:///) has these; they are not files of the run.
        ours = name == NAME or name.startswith(f"{PIECES}/")
        if is_inside(name) and not ours and path.is_file() and not path.is_symlink():
            yield name, path


def facts_of_bytes(content: bytes) -> FileFacts:
    """Return size and checksum of a content in memory."""
    return FileFacts(len(content), hashlib.sha256(content).hexdigest())


def facts_of(path: Path) -> FileFacts:
    """Return size and checksum of a file, read once."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return FileFacts(size, digest.hexdigest())

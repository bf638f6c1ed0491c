"""Pieces of files that grow while a run goes on.

    <run>/_pieces_/trials.jsonl/000000000000000-3f8a0b6c1d2e4f70
    <run>/_pieces_/traces/000001.jsonl.zst/000000000065536-…

A piece is named by where it starts and by the beginning of its SHA-256. Promise: what is put
together has no gap and no byte that its name does not vouch for; what comes after a gap is left.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from proctor.runs.remote.bucket import Bucket
from proctor.runs.remote.manifest import PIECES, RemoteError, is_inside

MARK = 16
"""Hexadecimal digits of the checksum in a name: 64 bits tell damage, which is what they are for."""

_KEY = re.compile(rf"{PIECES}/(?P<file>.+)/(?P<start>\d{{15}})-(?P<mark>[0-9a-f]{{{MARK}}})")


class Piece(NamedTuple):
    """Bytes of a file, from `start` on."""

    start: int
    size: int
    key: str
    mark: str

    @property
    def end(self) -> int:
        """Where the next piece starts."""
        return self.start + self.size


def key_of(file: str, start: int, content: bytes) -> str:
    """The key of a piece, below its run."""
    return f"{PIECES}/{file}/{start:015d}-{hashlib.sha256(content).hexdigest()[:MARK]}"


def growing(listed: Mapping[str, int], where: str) -> dict[str, list[Piece]]:
    """Files of which there are pieces: those that join without a gap, from the start."""
    found: dict[str, list[Piece]] = {}
    for key, size in listed.items():
        if match := _KEY.fullmatch(key):
            file = match["file"]
            if not is_inside(file):
                raise RemoteError(f"a piece is of a file outside the run: {file!r}", where=where)
            found.setdefault(file, []).append(Piece(int(match["start"]), size, key, match["mark"]))
    return {file: _joined(all_of) for file, all_of in found.items()}


def _joined(found: list[Piece]) -> list[Piece]:
    chain: list[Piece] = []
    end = 0
    # Of two that start alike (an upload whose answer was lost) the longer has both.
    for piece in sorted(found, key=lambda piece: (piece.start, -piece.size)):
        if piece.start == end and piece.size:
            chain.append(piece)
            end = piece.end
    return chain


async def fetch(bucket: Bucket, chain: list[Piece], take: Callable[[bytes], object]) -> None:
    """Hand over a file's pieces in order, each checked first."""
    for piece in chain:
        content = await bucket.read(piece.key, piece.size)
        if content is None or hashlib.sha256(content).hexdigest()[:MARK] != piece.mark:
            raise RemoteError(
                "the piece is damaged: its checksum is wrong",
                where=bucket.at(piece.key),
                hint="delete it to bring back what came before it",
            )
        take(content)

"""Files that came in pieces, because they grew while they were shipped.

    <run>/_pieces_/trials.jsonl/000000000000000-3f8a0b6c1d2e4f70
    <run>/_pieces_/traces/000001.jsonl.zst/000000000065536-…

A piece is named by where it starts and by the beginning of its SHA-256, and never changes. Promise:
what is put together has no gap and no byte that its name does not vouch for; what comes after a
gap is left. The price: small pieces are sent once more, many as one, so that a long run does not
end as thousands of objects.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

from proctor.runs.remote.bucket import Bucket
from proctor.runs.remote.manifest import PIECES, RemoteError, is_inside

MARK = 16
"""Hexadecimal digits of the checksum in a name: 64 bits tell damage, which is what they are for."""

PIECE = 8 << 20
"""Bytes of a piece at most: it is held in memory while it is sent."""

SMALL = 1 << 20
"""Bytes below which a piece is small: requests for it cost more than its bytes."""

MANY, ENOUGH = 64, 4 << 20
"""Small neighbours are sent again as one when they are so many, or so many bytes in all: what has
been joined is then rarely joined again."""

_KEY = re.compile(rf"{PIECES}/(?P<file>.+)/(?P<start>\d{{15}})-(?P<mark>[0-9a-f]{{{MARK}}})")


class DamagedPieceError(RemoteError):
    """A piece is not what its name says."""


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

    @property
    def name(self) -> str:
        """What the piece is called beside the others of its file."""
        return self.key.rpartition("/")[2]


def piece_of(file: str, start: int, content: bytes) -> Piece:
    """The piece that a part of a file makes; its key is below its run."""
    mark = _mark(content)
    return Piece(start, len(content), f"{PIECES}/{file}/{start:015d}-{mark}", mark)


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


def named(file: str, names: Sequence[str], size: int, where: str) -> list[Piece]:
    """The pieces that a manifest names, which join to a file of that size."""
    found = [_KEY.fullmatch(f"{PIECES}/{file}/{name}") for name in names]
    keys = [match for match in found if match]
    starts = [int(match["start"]) for match in keys]
    sizes = [end - start for start, end in pairwise([*starts, size])]
    if len(keys) < len(found) or starts[:1] != [0] or not all(0 < s <= PIECE for s in sizes):
        raise RemoteError(f"the manifest's pieces of {file!r} do not join", where=where)
    rows = zip(starts, sizes, keys, strict=True)
    return [Piece(start, size, match[0], match["mark"]) for start, size, match in rows]


def that_are_of(path: Path, chain: Iterable[Piece]) -> list[Piece]:
    """The pieces that a file here begins with: what comes after them is not of this file."""
    good: list[Piece] = []
    for piece in chain:
        here = read_part(path, piece.start, piece.size)
        if len(here) < piece.size or _mark(here) != piece.mark:
            break
        good.append(piece)
    return good


async def that_are_whole(bucket: Bucket, chain: Iterable[Piece]) -> list[Piece]:
    """The pieces, read where they are, up to the first that is gone or damaged."""
    good: list[Piece] = []
    for piece in chain:
        content = await bucket.read(piece.key, piece.size)
        if content is None or _mark(content) != piece.mark:
            break
        good.append(piece)
    return good


async def lengthen(bucket: Bucket, file: str, path: Path, chain: list[Piece], end: int) -> None:
    """Send what a file has beyond its pieces; each is in the chain as soon as it is there."""
    start = chain[-1].end if chain else 0
    while start < end:
        content = await asyncio.to_thread(read_part, path, start, min(PIECE, end - start))
        if not content:  # it became shorter: whoever looks next sees it as it is
            return
        chain.append(await _put(bucket, piece_of(file, start, content), content))
        start = chain[-1].end


async def join_small(bucket: Bucket, file: str, path: Path, chain: list[Piece]) -> None:
    """Send the last pieces again as one where they are many and small.

    Those it stands for stay where they are, for whoever reads them now.
    """
    last = list(takewhile(lambda piece: piece.size < SMALL, reversed(chain)))
    size = sum(piece.size for piece in last)
    if len(last) < MANY and size < ENOUGH:
        return
    start = last[-1].start
    content = await asyncio.to_thread(read_part, path, start, size)
    if len(content) == size:
        joined = await _put(bucket, piece_of(file, start, content), content)
        chain[-len(last) :] = [joined]


async def _put(bucket: Bucket, piece: Piece, content: bytes) -> Piece:
    await bucket.put(piece.key, content, hashlib.sha256(content).hexdigest())
    return piece


async def fetch(bucket: Bucket, chain: list[Piece], take: Callable[[bytes], object]) -> None:
    """Hand over a file's pieces in order, each checked first."""
    for piece in chain:
        content = await bucket.read(piece.key, piece.size)
        if content is None:
            raise RemoteError(
                "the piece is gone",
                where=bucket.at(piece.key),
                hint="somebody may have sent the run meanwhile: try again",
            )
        if _mark(content) != piece.mark:
            raise DamagedPieceError(
                "the piece is damaged: its checksum is wrong",
                where=bucket.at(piece.key),
                hint="`proctor sync RUN ADDRESS --verify` sends it again from where the run is; of "
                "one that had not ended, delete the piece to bring back what came before it",
            )
        take(content)


def read_part(path: Path, start: int, size: int) -> bytes:
    """Bytes of a file; fewer, or none, where it does not have them."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(size)
    except FileNotFoundError:
        return b""


def _mark(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:MARK]

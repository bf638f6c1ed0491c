"""From what a caller points at to bytes: files, folders, globs, standard input, streams.

Promise: gzip and zstd are undone by their magic bytes, never by name; no more than a limit is
ever unpacked, so a bomb is refused; folders and globs give their files in a stable order.
"""

from __future__ import annotations

import glob
import io
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

Source = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[Any]
"""One thing traces can be read from."""

MAX_BYTES = 2 * 2**30
"""Most bytes one file may hold once unpacked: decoded JSON takes several times as much memory."""

_PIECE = 16 * 1024 * 1024
"""Bytes asked of a stream at a time: few calls for any real file, little memory for each."""

STDIN = "-"

_SUFFIXES = frozenset(
    {".json", ".jsonl", ".ndjson", ".pb", ".binpb", ".protobuf", ".otlp", ".trace"}
)
_PACKED_SUFFIXES = frozenset({".gz", ".gzip", ".zst", ".zstd"})

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"

_CHUNK = 1 << 20


class SourceError(Exception):
    """A source that gives no bytes; the message is one line without the name of the source."""


class Content(NamedTuple):
    """A named source whose bytes are read only when asked for."""

    name: str
    read: Callable[[int], bytes]


def expand(source: Source | Iterable[Source]) -> Iterator[Content | tuple[str, str]]:
    """Each thing to read, or (name, what is wrong) for one that leads nowhere."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        yield Content("<bytes>", partial(_within, bytes(source)))
    elif isinstance(source, (str, os.PathLike)):
        yield from _expand_path(source)
    elif hasattr(source, "read"):
        stream = cast(IO[Any], source)
        name = getattr(stream, "name", None)
        label = name if isinstance(name, str) else "<stream>"
        yield Content(label, partial(_read_stream, stream))
    else:
        for item in cast(Iterable[Source], source):
            yield from expand(item)


def _expand_path(source: str | os.PathLike[str]) -> Iterator[Content | tuple[str, str]]:
    name = os.fspath(source)
    if name == STDIN:
        yield Content("<stdin>", partial(_read_stream, sys.stdin.buffer))
        return
    path = Path(name)
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, ValueError) as error:
        yield name[:200], f"not a usable path: {error}"
        return
    if is_folder:
        yield from _expand_folder(path)
    elif exists:
        yield _file(path)
    elif any(mark in name for mark in "*?["):
        found = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 - the pattern may be absolute
        if not found:
            yield name, "no file matches"
        for match in found:
            yield from _expand_path(match)
    else:
        yield name, "no such file or folder"


RUN_SPEC, RUN_TRACES, RUN_LOG = "_spec_.yaml", "traces", "audit.jsonl"
"""A folder with the first is a run: its traces are in the second, and its other files are none.
The third stands beside runs."""


def _expand_folder(folder: Path) -> Iterator[Content | tuple[str, str]]:
    found = False
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        run = RUN_SPEC in files and RUN_TRACES in folders
        folders[:] = [RUN_TRACES] if run else folders
        for name in () if run else sorted(files):
            if not name.startswith(".") and name != RUN_LOG and _may_hold_traces(Path(name)):
                found = True
                yield _file(Path(parent, name))
    if not found:
        yield str(folder), f"no trace files in this folder (looked for {_known_suffixes()})"


def _may_hold_traces(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES | _PACKED_SUFFIXES


def _known_suffixes() -> str:
    return " ".join(sorted(_SUFFIXES | _PACKED_SUFFIXES))


def _file(path: Path) -> Content:
    return Content(str(path), partial(_read_file, path))


# -- bytes ------------------------------------------------------------------------------------


def _read_file(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as stream:
            return _read_stream(stream, limit)
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror or error}") from None


def _read_up_to(stream: IO[Any], most: int) -> Any:
    """At most so much of a stream; asking for all of it at once would reserve all of it."""
    parts: list[Any] = []
    held = 0
    while held < most and (part := stream.read(min(_PIECE, most - held))):
        parts.append(part)
        held += len(part)
    if len(parts) == 1:
        return parts[0]
    return "".join(parts) if parts and isinstance(parts[0], str) else b"".join(parts)


def _read_stream(stream: IO[Any], limit: int) -> bytes:
    try:
        data: Any = _read_up_to(stream, limit + 1)
    except UnicodeDecodeError as error:  # a text stream that is not text
        raise SourceError(f"cannot be read: {error}; open it in binary mode") from None
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot be read: {error}") from None
    if isinstance(data, str):
        data = data.encode("utf-8", "replace")
    return _within(bytes(data or b""), limit)


def _within(data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise SourceError(f"holds more than {_size(limit)}; split it, or raise max_bytes")
    if data.startswith(_GZIP):
        return _gunzip(data, limit)
    if data.startswith(_ZSTD):
        return _unzstd(data, limit)
    return data


def _gunzip(data: bytes, limit: int) -> bytes:
    """All members of a gzip file, in a row."""
    chunks: list[bytes] = []
    size = 0
    while data:
        member = zlib.decompressobj(wbits=31)
        while data and not member.eof:
            try:
                chunk = member.decompress(data, _CHUNK)
            except zlib.error as error:
                raise SourceError(f"gzip data is broken: {error}") from None
            chunks.append(chunk)
            size = _checked(size + len(chunk), limit)
            data = member.unconsumed_tail
            if not data and not chunk:
                break
        if not member.eof:
            raise SourceError("gzip data ends too early")
        data = member.unused_data.lstrip(b"\0")  # tape padding, which gzip allows
    return b"".join(chunks)


def _unzstd(data: bytes, limit: int) -> bytes:
    """All frames of a zstd file, in a row."""
    import zstandard

    chunks: list[bytes] = []
    size = 0
    unpacker = zstandard.ZstdDecompressor()
    try:
        with unpacker.stream_reader(io.BytesIO(data), read_across_frames=True) as stream:
            while chunk := stream.read(_CHUNK):
                chunks.append(chunk)
                size = _checked(size + len(chunk), limit)
    except zstandard.ZstdError as error:
        raise SourceError(f"zstd data is broken: {error}") from None
    return b"".join(chunks)


def _checked(size: int, limit: int) -> int:
    if size > limit:
        raise SourceError(f"unpacks to more than {_size(limit)}; refused (see max_bytes)")
    return size


def _size(count: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:g} {unit}"
    return f"{count} bytes"

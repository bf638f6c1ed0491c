"""Replace, lock, append to and decompress files: one implementation for the whole package.

- `replacing`, `write_atomic`: a reader finds the old content or the new, never a part.
- `lock_file`: one process at a time; the lock ends with the process that holds it.
- `append_line`, `read_lines`: a file of JSON lines that many processes may add to.
- `decompress`: gzip and zstd within a limit, so that a small bomb cannot fill the memory.
"""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from proctor.errors import ProctorError

if TYPE_CHECKING:
    import msgspec

Record = TypeVar("Record", bound="msgspec.Struct")

SHOWN_NAME = 50
"""Characters of the name that the temporary file keeps: at four bytes each still short enough."""

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

_GZIP_CHUNK = 1 << 20
_ZSTD_PIECE = 4096
"""Compressed bytes that are decompressed at once. One zstd block of 4 bytes can expand to 128 KiB,
so a hostile piece yields at most 128 MiB before the limit is checked."""


# -- replace -----------------------------------------------------------------------------------


@contextmanager
def replacing(path: Path, *, mode: int | None = None, sync: bool = True) -> Generator[Path]:
    """Yield a path to write to; it takes the place of `path` when the block ends without an error.

    The temporary file is hidden, ends in `.part` and is deleted when the block fails; a process
    that is killed leaves it behind, and nothing reads it. `mode` is the file mode before the
    umask; without one, the mode of the replaced file stays. Without `sync`, a power failure may
    lose the file: for content that can be computed again. Raises `OSError`.
    """
    aside = path.with_name(f".{path.name[:SHOWN_NAME]}.{secrets.token_hex(6)}.part")
    try:
        if mode is not None:
            os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        yield aside
        if sync:
            with aside.open("r+b") as file:
                os.fsync(file.fileno())
        if mode is None:
            with suppress(FileNotFoundError):
                aside.chmod(path.stat().st_mode & 0o777)
        aside.replace(path)
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Replace a file with `content`, completely or not at all; `mode` as in `replacing`."""
    try:
        with replacing(path, mode=mode) as aside:
            aside.write_bytes(content)
    except OSError as error:
        raise ProctorError(f"cannot write: {error.strerror}", where=str(path)) from None


# -- lock --------------------------------------------------------------------------------------


def lock_file(file: IO[bytes], *, wait: bool = True) -> bool:
    """Lock an open file for this process; False if another holds the lock and `wait` is off.

    The lock ends when the file is closed, also by the end of the process. A child process that
    inherits the file shares the lock.
    """
    try:
        import fcntl
    except ImportError:
        return _lock_on_windows(file, wait=wait)
    # `Any`: the stubs of this module are empty on Windows, those of `msvcrt` elsewhere.
    locker: Any = fcntl
    try:
        locker.flock(file.fileno(), locker.LOCK_EX | (0 if wait else locker.LOCK_NB))
    except OSError:
        if wait:
            raise
        return False
    return True


def _lock_on_windows(file: IO[bytes], *, wait: bool) -> bool:
    import msvcrt

    locker: Any = msvcrt
    try:
        # One byte far behind any content: a locked byte can be neither read nor written there.
        file.seek(1 << 40)
        locker.locking(file.fileno(), locker.LK_LOCK if wait else locker.LK_NBLCK, 1)
    except OSError:
        return False
    return True


# -- append ------------------------------------------------------------------------------------


def append_line(path: Path, record: msgspec.Struct) -> None:
    """Add a record as one line of JSON and fsync it; no writer overwrites another's line.

    A line that a crash tore is ended first, so it costs itself only.
    """
    from proctor.sanitize import json_bytes

    encoded = json_bytes(record)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as file:
            lock_file(file)
            end = file.seek(0, os.SEEK_END)
            torn = b""
            if end:
                file.seek(end - 1)
                torn = b"" if file.read(1) == b"\n" else b"\n"
            # One write without a buffer: a crash can tear this line, but mix it with no other.
            file.write(torn + encoded + b"\n")
            os.fsync(file.fileno())
    except OSError as error:
        raise ProctorError(f"cannot write: {error.strerror}", where=str(path)) from None


def read_lines(
    path: Path, kind: type[Record], problems: list[str] | None = None
) -> Iterator[Record]:
    """Yield every record in the order of the file; none if it does not exist.

    A line that cannot be read is skipped and added to `problems` with its place.
    """
    import msgspec

    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ProctorError(f"cannot read: {error.strerror}", where=str(path)) from None
    decoder = msgspec.json.Decoder(kind)
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            yield decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            if problems is not None:
                problems.append(f"{path}:{number}: {error}")


# -- decompress --------------------------------------------------------------------------------


class DecompressionError(Exception):
    """Data that cannot be decompressed within its limit; the message is a clause for people."""

    def __init__(
        self, message: str, *, too_large: bool = False, partial: bytes | None = None
    ) -> None:
        super().__init__(message)
        self.too_large = too_large
        self.partial = partial
        """What came before the data ended too early; None for other errors."""


def decompress(data: bytes, limit: int, encoding: str | None = None) -> bytes:
    """Decompress gzip or zstd data to at most `limit` bytes; other data is returned as it is.

    `encoding` is "gzip", "zstd" or "" (plain), as HTTP names them; None looks at the first bytes.
    Several gzip members or zstd frames in a row are one text, as the formats define.
    """
    if encoding is None:
        magics = ((GZIP_MAGIC, "gzip"), (ZSTD_MAGIC, "zstd"))
        encoding = next((name for magic, name in magics if data.startswith(magic)), "")
    if encoding == "gzip":
        chunks = _gunzip(data)
    elif encoding == "zstd":
        chunks = _unzstd(data)
    else:
        chunks = iter((data,))
    result = bytearray()
    for chunk in chunks:
        if chunk is None:
            raise DecompressionError(f"{encoding} data ends too early", partial=bytes(result))
        result += chunk
        if len(result) > limit:
            raise DecompressionError(f"it holds more than {limit:,} bytes", too_large=True)
    return bytes(result)


def _gunzip(data: bytes) -> Iterator[bytes | None]:
    """Yield the content in chunks of bounded size, then None if the data is cut off."""
    while data:
        member = zlib.decompressobj(wbits=31)
        while data and not member.eof:
            try:
                chunk = member.decompress(data, _GZIP_CHUNK)
            except zlib.error as error:
                raise DecompressionError(f"gzip data is broken: {error}") from None
            yield chunk
            data = member.unconsumed_tail
            if not data and not chunk:
                break
        if not member.eof:
            yield None
        data = member.unused_data.lstrip(b"\0")  # tape padding, which gzip allows


def _unzstd(data: bytes) -> Iterator[bytes | None]:
    import zstandard

    # The window is what a decoder must remember; 128 MiB is the most that zstd asks of everyone.
    decoder = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    frame, position, at_start = decoder.decompressobj(), 0, True
    try:
        while position < len(data):
            piece = data[position : position + _ZSTD_PIECE]
            yield frame.decompress(piece)
            position += len(piece)
            at_start = False
            if frame.eof:
                position -= len(frame.unused_data)
                frame, at_start = decoder.decompressobj(), True
    except zstandard.ZstdError as error:
        raise DecompressionError(f"zstd data is broken: {error}") from None
    if not at_start:
        yield None

"""Replace, lock, append to and decompress files: one implementation for the whole package.

- `replacing`, `write_atomic`: a reader finds the old content or the new, never a part.
- `remove_tree`: a folder that an agent has filled.
- `lock_file`: one process at a time; the lock ends with the process that holds it.
- `append_line`, `read_lines`: a file of JSON lines that many processes may add to.
- `add_checksum`, `checksum_ok`: a JSON object that shows whether it was changed.
- `unblocked`, `read_bounded`, `load_yaml`, `decompress`: files of unknown origin, so that a
  small bomb cannot fill the memory and a pipe cannot hold a command.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

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


FOLDER_MODE, FILE_MODE = (
    (0o770, 0o660) if os.environ.get("PROCTOR_SHARING") == "group" else (0o700, 0o600)
)
"""Modes of new run folders and stores: their owner only, or its group too, less the umask."""


def as_private(path: str | Path, flags: int) -> int:
    """Open a file; a new one is as private as its folder, since it may be moved. For `opener`."""
    folder = Path(path).parent.stat().st_mode
    return os.open(path, flags, 0o666 if folder & 0o007 else 0o666 & folder)


# -- replace -----------------------------------------------------------------------------------


@contextmanager
def replacing(path: Path, *, mode: int | None = None, sync: bool = True) -> Generator[Path]:
    """Yield a path to write to; it takes the place of `path` when the block ends without an error.

    The temporary file is hidden, ends in `.part` and is deleted when the block fails; a process
    that is killed leaves it behind, and nothing reads it. `mode` is the file mode before the
    umask; without one, the mode of the replaced file stays, and a new file is as private as its
    folder. Without `sync`, a power failure may lose the file: for content that can be computed
    again. Raises `OSError`.
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
            try:
                aside.chmod(path.stat().st_mode & 0o777)
            except FileNotFoundError:
                if not (folder := path.parent.stat().st_mode) & 0o007:
                    aside.chmod(aside.stat().st_mode & folder & 0o777)
        aside.replace(path)
        if sync:
            fsync_folder(path.parent)
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Replace a file with `content`, completely or not at all; `mode` as in `replacing`."""
    with writing(path, mode=mode) as file:
        file.write(content)


@contextmanager
def writing(path: Path, *, mode: int | None = None) -> Generator[IO[bytes]]:
    """Yield a file to write to, as `write_atomic` for content that is made bit by bit."""
    try:
        with replacing(path, mode=mode) as aside, aside.open("wb") as file:
            yield file
    except OSError as error:
        raise ProctorError(f"cannot write: {error.strerror}", where=str(path)) from None


def fsync_folder(folder: Path) -> None:
    """Fsync a folder, so that files created or renamed in it keep their names after a power cut."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # not our folder, or Windows, where NTFS journals its names
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot do it
            raise
    finally:
        os.close(descriptor)


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


# -- open files --------------------------------------------------------------------------------


def remove_tree(folder: Path) -> None:
    """Delete what an agent has left: of any depth, and parts that it made inaccessible.

    What cannot be deleted stays; nothing is raised, since the trial is over. A link is deleted,
    never what it points to: an agent may have replaced its folder by a link to any other.
    """
    if folder.is_symlink():
        with suppress(OSError):
            folder.unlink()
        return
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        # Folders are moved up before they are emptied, so that no path and no stack gets long.
        waiting = [folder]
        while waiting:
            place = waiting.pop()
            with suppress(OSError):
                if place.is_symlink():
                    continue
                place.chmod(0o700)
                for entry in list(os.scandir(place)):
                    with suppress(OSError):
                        if entry.is_dir(follow_symlinks=False):
                            moved = folder / f".{secrets.token_hex(8)}"
                            os.rename(entry.path, moved)  # noqa: PTH104
                            waiting.append(moved)
                        else:
                            os.unlink(entry.path)  # noqa: PTH108
            if place != folder:
                with suppress(OSError):
                    place.rmdir()
        with suppress(OSError):
            folder.rmdir()


def open_files_limit() -> int:
    """Raise the limit of open files as far as this process may, and return it."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return 1 << 20
    limits: Any = resource
    soft, hard = limits.getrlimit(limits.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        # More than this is never needed, and some programs loop over all possible files.
        wanted = 65_536 if hard == limits.RLIM_INFINITY else min(hard, 65_536)
        if 0 <= soft < wanted:
            limits.setrlimit(limits.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return soft if soft != limits.RLIM_INFINITY else 1 << 20


# -- append ------------------------------------------------------------------------------------


def append_line(path: Path, record: msgspec.Struct) -> None:
    """Add a record as one line of JSON and fsync it; no writer overwrites another's line.

    A line that a crash tore is ended first, so it costs itself only.
    """
    from proctor.sanitize import json_bytes

    encoded = add_checksum(json_bytes(record))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+b", buffering=0, opener=as_private) as file:
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


MAX_LINES_BYTES = 256 << 20
"""Maximum size of such a file: a million lines."""


def read_lines(
    path: Path, kind: type[Record], problems: list[str] | None = None, *, checked: bool = False
) -> Iterator[Record]:
    """Yield every record in the order of the file; none if it does not exist.

    A line that cannot be read, or is not as it was written, is skipped and added to `problems`
    with its place. `checked` says that every line must have a checksum: older ones have none.
    """
    import msgspec

    try:
        content = read_bounded(path, MAX_LINES_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ProctorError(f"cannot read: {error.strerror}", where=str(path)) from None
    decoder = msgspec.json.Decoder(kind)
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            matches = checksum_ok(line)
            if not matches and (checked or matches is not None):
                raise msgspec.DecodeError("the line is not as it was written")
            yield decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            if problems is not None:
                problems.append(f"{path}:{number}: {error}")


# -- checksums -----------------------------------------------------------------------------------

_CRC_AT = -len(b',"crc":"00000000"}')


def add_checksum(document: bytes) -> bytes:
    """Add the CRC-32 of a JSON object, braces excluded, to it as the last field, `crc`.

    CRC-32 finds every change of up to four adjacent bytes and misses one in 4 billion others. It
    protects against accidents, not against people.
    """
    body = document[:-1]
    return b'%b,"crc":"%08x"}' % (body, zlib.crc32(body))


def checksum_ok(document: bytes) -> bool | None:
    """Return whether a JSON object has the checksum it states; None where it states none."""
    if document[_CRC_AT : _CRC_AT + 8] != b',"crc":"':
        return None
    return b"%08x" % zlib.crc32(document[:_CRC_AT]) == document[_CRC_AT + 8 : -2]


# -- bounded reads -------------------------------------------------------------------------------


def unblocked(path: str, flags: int) -> int:
    """Open a file to read it; for `opener`.

    A pipe that nothing writes to is empty and not waited for. A device never ends: `OSError`.
    """
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a device", path)
    if stat.S_ISFIFO(mode):
        os.set_blocking(descriptor, True)
    return descriptor


def read_bounded(path: Path, limit: int) -> bytes:
    """Return the content of a file of at most `limit` bytes. Raises `ProctorError`, `OSError`."""
    with open(path, "rb", opener=unblocked) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ProctorError(f"it holds more than {limit:,} bytes", where=str(path))
    return content


MAX_YAML_BYTES = 64 << 20
"""Maximum size of a YAML document: some 100,000 cases."""

MAX_YAML_VALUES = 5_000_000
"""Maximum values of a YAML document, each use of an alias counted: about 1 GB of memory."""

MAX_YAML_DEPTH = 100
"""Maximum nesting: what reads the values recursively stays within the stack."""

_MERGE = object()


def load_yaml(content: bytes | str) -> Any:
    """Return the value of a YAML document, as PyYAML's safe loader does, within the bounds above.

    Built from the events of the parser: PyYAML's own loader recurses in C until the process
    crashes, and shares the values of aliases, which explode where they are written out. Raises
    `yaml.YAMLError`.
    """
    import yaml

    if len(content) > MAX_YAML_BYTES:
        raise yaml.YAMLError(f"it holds more than {MAX_YAML_BYTES:,} bytes")
    # The C version is several times faster, but PyYAML can be installed without it.
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(content)
    plain: dict[str, Any] = {}  # most plain scalars are repeated: keys, numbers, names
    anchors: dict[str, tuple[Any, int]] = {}
    open_values: list[tuple[Any, str | None, int]] = []  # a container, its anchor, values before it
    items: list[Any] = []  # the items of the innermost container
    count = documents = 0
    try:
        while True:
            event = loader.get_event()
            kind = cast("type[Any]", type(event))
            if kind is yaml.ScalarEvent:
                count += 1
                text = event.value
                if event.implicit[0]:
                    value = plain.get(text, plain)
                    if value is plain:
                        value = plain[text] = _scalar(loader, None, text)
                elif event.tag is None or event.tag == "!":
                    value = text
                else:
                    value = _scalar(loader, event.tag, text)
                if event.anchor:
                    anchors[event.anchor] = (value, 1)
                items.append(value)
            elif kind in (yaml.MappingStartEvent, yaml.SequenceStartEvent):
                if not event.implicit and event.tag not in (None, "!", _tag("map"), _tag("seq")):
                    raise yaml.YAMLError(f"the tag {event.tag} is not supported")
                open_values.append((items, event.anchor, count))
                if len(open_values) > MAX_YAML_DEPTH:
                    raise yaml.YAMLError(f"values are nested more than {MAX_YAML_DEPTH} deep")
                items = []
                count += 1
            elif kind in (yaml.MappingEndEvent, yaml.SequenceEndEvent):
                value = _mapping(items) if kind is yaml.MappingEndEvent else items
                items, anchor, before = open_values.pop()
                if anchor:
                    anchors[anchor] = (value, count - before)
                items.append(value)
            elif kind is yaml.AliasEvent:
                if event.anchor not in anchors:
                    raise yaml.YAMLError(f"the alias *{event.anchor} names no value before it")
                value, size = anchors[event.anchor]
                count += size
                items.append(value)
            elif kind is yaml.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    raise yaml.YAMLError("a second document begins in it")
            elif kind is yaml.StreamEndEvent:
                return items[0] if items else None
            if count > MAX_YAML_VALUES:
                raise yaml.YAMLError(f"it holds more than {MAX_YAML_VALUES:,} values")
    finally:
        loader.dispose()


def _tag(name: str) -> str:
    return f"tag:yaml.org,2002:{name}"


def _scalar(loader: Any, tag: str | None, text: str) -> Any:
    import yaml

    if tag is None:
        tag = cast(str, loader.resolve(yaml.ScalarNode, text, (True, False)))
    if tag == _tag("merge"):
        return _MERGE
    node: Any = yaml.ScalarNode(tag, text)
    try:
        return loader.construct_object(node)
    except (
        ValueError,
        TypeError,
        OverflowError,
    ) as error:  # an impossible date, or too many digits
        raise yaml.YAMLError(f"{text[:40]!r} is not a value: {error}") from None


def _mapping(items: list[Any]) -> dict[Any, Any]:
    """Return the mapping of keys and values in turn, with `<<` merged."""
    import yaml

    try:
        mapping = dict(zip(items[::2], items[1::2], strict=True))
    except TypeError:
        raise yaml.YAMLError("a key of a mapping is a list or a mapping") from None
    if _MERGE in mapping:
        merged = mapping.pop(_MERGE)
        for more in cast("list[Any]", merged if isinstance(merged, list) else [merged]):
            if not isinstance(more, dict):
                raise yaml.YAMLError("<< merges mappings only")
            mapping = {**cast("dict[Any, Any]", more), **mapping}
    return mapping


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

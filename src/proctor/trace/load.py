"""Load traces from files of any known format, compressed or not.

Guarantees: the format is detected from the content; a bad file, line or span is reported with its
location and never loses the good ones; bad input raises only `TraceLoadError`. Trade-off: a file is
read whole, so memory grows with the largest file, not with their number.

A file holds one JSON document, one per line, or several in a row. A valid file uses only the fast
decoder; input it refuses (NaN, lone surrogates, UTF-16, a torn line, junk between documents) is
read by a slower, tolerant one.
"""

from __future__ import annotations

import codecs
import glob
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import msgspec

from proctor.errors import ProctorError, did_you_mean
from proctor.files import ZSTD_MAGIC, DecompressionError, decompress, unblocked
from proctor.formatting import byte_size, plural
from proctor.sanitize import printable, without_surrogates
from proctor.trace import formats
from proctor.trace._fields import is_array, is_object, kind_of
from proctor.trace.assemble import Collector, LogPool, TraceProblem, assemble
from proctor.trace.formats import coding_sessions, otlp, transcript
from proctor.trace.model import Trace

_OPENINGS = (b"{", b"[")
_ENDINGS = (b"}", b"]")

_UTF16 = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}

_REFUSED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of the fast decoder; their messages lack a usable position."""

_NEXT_DOCUMENT = re.compile(r"^[{\[]", re.MULTILINE)
"""Resume point after an unreadable document: a line that opens another."""

_MAX_FAILURES = 1_000
"""Maximum broken documents in a file: searching on would cost more than it finds."""

_LINES_CHECKED = 4
"""Lines checked to distinguish a line file with torn lines from one broken document."""

_SPACE = re.compile(r"[\s,]*")


class Documents(NamedTuple):
    """The documents of a file with their locations, and whether each is on its own line."""

    found: Iterator[tuple[str, Any]]
    by_line: bool


def looks_like_json(data: bytes) -> bool:
    """Return whether bytes may be JSON, by their first character."""
    if data.startswith((codecs.BOM_UTF8, *_UTF16)):
        return True
    return data[:4096].lstrip()[:1] in _OPENINGS


def read_documents(data: bytes, out: Collector) -> Documents:
    """Return the documents of a file; report problems to the collector."""
    # PowerShell redirection writes UTF-16.
    for mark, encoding in _UTF16.items():
        if data.startswith(mark):
            data = data.decode(encoding, "replace").encode("utf-8", "replace")
    data = data.removeprefix(codecs.BOM_UTF8)
    start = len(data) - len(data.lstrip()) if data[:1].isspace() else 0
    end = data.find(b"\n", start)
    # A file of lines: the first is a whole document and another follows.
    if end >= 0 and data[end : end + 4096].strip() and _is_whole(data[start:end].strip()):
        return Documents(_lines(data, out), by_line=True)
    # One pretty-printed document: the most common export of a user interface.
    try:
        document = msgspec.json.decode(data)
    except _REFUSED:
        # A torn line in a file of lines: one of the others is a whole document.
        first_lines = data.split(b"\n", _LINES_CHECKED)[:_LINES_CHECKED]
        if any(_is_whole(line.strip()) for line in first_lines):
            return Documents(_lines(data, out), by_line=True)
        return Documents(_read_tolerantly(data, out), by_line=False)
    return Documents(iter([("", document)]), by_line=False)


def _is_whole(line: bytes) -> bool:
    if line[:1] not in _OPENINGS or line[-1:] not in _ENDINGS:
        return False
    try:
        msgspec.json.decode(line)
    except _REFUSED:
        return False
    return True


def _lines(data: bytes, out: Collector) -> Iterator[tuple[str, Any]]:
    start = number = 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        line = data[start:end].strip()
        number += 1
        if line:
            try:
                yield f"line {number}", msgspec.json.decode(line)
            except _REFUSED:
                yield from _read_tolerantly(line, out, first_line=number, first_byte=start)
        start = end + 1


def _read_tolerantly(
    data: bytes, out: Collector, *, first_line: int = 1, first_byte: int = 0
) -> Iterator[tuple[str, Any]]:
    """Yield consecutive documents; report the location of everything else."""
    out.place = ""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        out.problem(f"byte {first_byte + error.start}", "invalid UTF-8; replaced by U+FFFD")
        text = data.decode("utf-8", "replace")
    decoder = json.JSONDecoder()
    position = failures = 0
    line, counted = first_line, 0  # `line` is the line number of position `counted`
    # White space is skipped, and commas left over from a torn array.
    while (space := _SPACE.match(text, position)) and (position := space.end()) < len(text):
        line += text.count("\n", counted, position)
        counted = position
        try:
            document, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            out.place = ""
            out.problem(*_what_and_where(error, text, position, line))
            following = _NEXT_DOCUMENT.search(text, position + 1)
            failures += 1
            if following is None or failures >= _MAX_FAILURES:
                return
            position = following.start()
        else:
            yield f"line {line}", _clean(document)


def _clean(document: Any) -> Any:
    try:
        return without_surrogates(document)
    except RecursionError:
        return None


def _what_and_where(
    error: ValueError | RecursionError, text: str, start: int, line: int
) -> tuple[str, str]:
    if isinstance(error, json.JSONDecodeError):
        at = error.pos
        last = text.rfind("\n", 0, at)
        place = f"line {line + text.count(chr(10), start, at)} column {at - last}"
        cut_off = at >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        return place, "JSON ends too early" if cut_off else f"JSON is broken: {error.msg}"
    why = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:80]
    return f"line {line}", f"JSON cannot be read: {why}"


__all__ = [
    "LoadedTraces",
    "TraceLoadError",
    "TraceProblem",
    "iter_traces",
    "load_traces",
]


# Resolve sources to bytes: files, folders, globs, standard input, streams. gzip and zstd are
# detected by their magic bytes, never by name; unpacking stops at a limit, so that a decompression
# bomb is refused; folders and globs yield their files in a stable order.


Source = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[Any]
"""A source of traces."""

MAX_BYTES = 2 * 2**30
"""Maximum unpacked size of one file: decoded JSON takes several times as much memory."""

_CHUNK = 16 * 1024 * 1024
"""Bytes per read from a stream: few calls for a large file, little memory for each."""

STDIN = "-"

_SUFFIXES = frozenset(
    {".json", ".jsonl", ".ndjson", ".pb", ".binpb", ".protobuf", ".otlp", ".trace"}
)
_PACKED_SUFFIXES = frozenset({".gz", ".gzip", ".zst", ".zstd"})


class SourceError(Exception):
    """A source that cannot be read; the message is one line without the source's name."""


Report = Callable[[str, str], None]
"""Called with a place in a file and what is wrong there."""


class Content(NamedTuple):
    """A named source whose bytes are read on demand, within a limit."""

    name: str
    read: Callable[[int, Report], bytes]


def expand(source: Source | Iterable[Source]) -> Iterator[Content | tuple[str, str]]:
    """Yield each source, or (name, message) for one that does not exist."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        yield Content("<bytes>", partial(_unpacked, bytes(source)))
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
"""A folder with the first file is a run: only the second subfolder holds traces. The third is next
to runs.
"""


def _expand_folder(folder: Path) -> Iterator[Content | tuple[str, str]]:
    found = False
    suffixes = _SUFFIXES | _PACKED_SUFFIXES
    for parent, folders, files in os.walk(folder):
        # In place, which is how `os.walk` learns where to go and in which order.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        run = RUN_SPEC in files and RUN_TRACES in folders
        folders[:] = [RUN_TRACES] if run else folders
        for name in () if run else sorted(files):
            if (
                not name.startswith(".")
                and name != RUN_LOG
                and Path(name).suffix.lower() in suffixes
            ):
                found = True
                yield _file(Path(parent, name))
    if not found:
        looked_for = " ".join(sorted(suffixes))
        yield str(folder), f"no trace files in this folder (looked for {looked_for})"


def _file(path: Path) -> Content:
    return Content(str(path), partial(_read_file, path))


# -- bytes ------------------------------------------------------------------------------------


def _read_file(path: Path, limit: int, report: Report) -> bytes:
    try:
        with open(path, "rb", opener=unblocked) as stream:
            return _read_stream(stream, limit, report)
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror or error}") from None


def _read_up_to(stream: IO[Any], limit: int) -> Any:
    """Read at most `limit` bytes of a stream in chunks; one large read would reserve all of it."""
    parts: list[Any] = []
    size = 0
    while size < limit and (part := stream.read(min(_CHUNK, limit - size))):
        parts.append(part)
        size += len(part)
    if len(parts) == 1:
        return parts[0]
    return "".join(parts) if parts and isinstance(parts[0], str) else b"".join(parts)


def _read_stream(stream: IO[Any], limit: int, report: Report) -> bytes:
    try:
        # One byte more than allowed shows that the limit is exceeded.
        data: Any = _read_up_to(stream, limit + 1)
    except UnicodeDecodeError as error:  # a text stream over binary data
        raise SourceError(f"cannot be read: {error}; open it in binary mode") from None
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot be read: {error}") from None
    if isinstance(data, str):
        data = data.encode("utf-8", "replace")
    return _unpacked(bytes(data or b""), limit, report)


def _unpacked(data: bytes, limit: int, report: Report) -> bytes:
    if len(data) > limit:
        raise SourceError(f"holds more than {byte_size(limit)}; split it, or raise max_bytes")
    try:
        return decompress(data, limit)
    except DecompressionError as error:
        if error.too_large:
            raise SourceError(
                f"unpacks to more than {byte_size(limit)}; refused (see max_bytes)"
            ) from None
        if error.partial is not None and data.startswith(ZSTD_MAGIC):
            # A killed run leaves a torn last frame; the traces before it are good.
            return error.partial
        if data.startswith(ZSTD_MAGIC) and (rest := _good_frames(data, limit, report)):
            return rest
        raise SourceError(str(error)) from None


def _good_frames(data: bytes, limit: int, report: Report) -> bytes:
    """Return the content of the zstd frames that can be read: a run has one frame per trace."""
    good, bad = bytearray(), list[tuple[str, str]]()
    start = 0
    while start >= 0:
        following = end = data.find(ZSTD_MAGIC, start + 1)
        # The four bytes that begin a frame may also be inside one: then it is longer.
        for _ in range(3):
            try:
                stop = len(data) if end < 0 else end
                good += decompress(data[start:stop], limit - len(good))
                following = end
                break
            except DecompressionError as error:
                if error.too_large:
                    raise SourceError(f"unpacks to more than {byte_size(limit)}; refused") from None
                if end < 0 or error.partial is None:
                    bad.append((f"byte {start}", f"a trace cannot be read: {error}"))
                    break
                end = data.find(ZSTD_MAGIC, end + 1)
        else:
            bad.append((f"byte {start}", "a trace cannot be read: zstd data ends too early"))
        start = following
    if good:  # else the error of the whole file says it
        for place, what in bad:
            report(place, what)
    return bytes(good)


_MAX_KEYS_SHOWN = 6
"""Maximum keys of an unknown document in a message; enough to recognise it."""


class TraceLoadError(ProctorError):
    """No trace could be loaded; `problems` lists the reasons, one for each file or location."""

    def __init__(self, problems: list[TraceProblem]) -> None:
        first = problems[0]
        more = f" (and {plural(len(problems) - 1, 'more problem')})" if len(problems) > 1 else ""
        where = printable(", ".join(part for part in (first.file, first.place) if part))
        super().__init__(f"{first.message}{more}", where=where, hint=first.hint)
        self.problems = problems


class LoadedTraces(list[Trace]):
    """The loaded traces, in the order of their files, with the problems met.

    `files` names the file of each trace, in the same order. `problems` has one entry for each kind
    of problem in each file; an entry is `fatal` when its file yielded no trace at all.
    """

    def __init__(self, traces: Iterable[Trace] = (), problems: Iterable[TraceProblem] = ()) -> None:
        super().__init__(traces)
        self.problems: list[TraceProblem] = list(problems)
        self.files: list[str] = []


def load_traces(
    source: Source | Iterable[Source],
    *,
    format: str | None = None,  # noqa: A002 - the word users know
    max_bytes: int = MAX_BYTES,
) -> LoadedTraces:
    """Load every trace from paths, folders, globs, `-` (standard input), streams or bytes.

    `format` names a format instead of detecting it. `max_bytes` limits the unpacked size of one
    file. Log records join their spans across all files of the call.
    """
    problems: list[TraceProblem] = []
    collected = list(_collect(source, problems.append, format, max_bytes))
    pool = LogPool()
    # All log records first: their spans may be in an earlier file.
    for out in collected:
        pool.add(out.logs)
    loaded = LoadedTraces(problems=problems)
    for out in collected:
        traces = assemble(out, pool)
        loaded.extend(traces)
        loaded.files.extend([out.file] * len(traces))
        loaded.problems.extend(_final_problems(out))
    if pool.left:
        last = next(out.file for out in reversed(collected) if out.logs)
        loaded.problems.append(_unmatched_logs(pool, last))
    if not loaded and loaded.problems:
        raise TraceLoadError(loaded.problems)
    return loaded


def iter_traces(
    source: Source | Iterable[Source],
    on_problem: Callable[[TraceProblem], None],
    *,
    on_file: Callable[[str], None] | None = None,
) -> Iterator[Trace]:
    """Load file by file, holding one file at a time; each problem goes to `on_problem`.

    `on_file` is called with the name of a file before its traces are yielded.

    A log record joins its span when both are in one file or the record's file comes first.
    """
    pool = LogPool()
    last = ""
    for out in _collect(source, on_problem):
        pool.add(out.logs)
        traces = assemble(out, pool)
        for problem in _final_problems(out):
            on_problem(problem)
        last = out.file if out.logs else last
        if on_file is not None:
            on_file(out.file)
        yield from traces
    if pool.left:
        on_problem(_unmatched_logs(pool, last))


def _unmatched_logs(pool: LogPool, file: str) -> TraceProblem:
    return TraceProblem(file, f"{pool.left} log records belong to no span that was loaded")


def _final_problems(out: Collector) -> list[TraceProblem]:
    """Return the problems of a file; they are fatal when it yielded nothing."""
    if not out.is_empty:
        return out.problems
    if not out.problems:
        out.problem("", "holds no spans")
    return [msgspec.structs.replace(problem, fatal=True) for problem in out.problems]


# -- one file at a time -------------------------------------------------------------------------


def _collect(
    source: Source | Iterable[Source],
    on_problem: Callable[[TraceProblem], None],
    format_name: str | None = None,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Collector]:
    """Yield the collected content of each file, before assembly."""
    known = [*(each.NAME for each in formats.FORMATS), otlp.PROTOBUF_NAME]
    if format_name is not None and format_name not in known:
        raise ProctorError(
            f"unknown trace format {format_name!r}; known: {', '.join(known)}",
            hint=did_you_mean(format_name, known),
        )
    for item in expand(source):
        if not isinstance(item, Content):
            on_problem(TraceProblem(*item, fatal=True))
            continue
        out = Collector(item.name)
        try:
            data = item.read(max_bytes, out.problem)
        except SourceError as error:
            out.problem("", str(error))
        except MemoryError:
            out.problem("", "does not fit into memory; split it")
        else:
            _read_data(data, out, format_name)
        out.place = ""
        yield out


def _read_data(data: bytes, out: Collector, format_name: str | None) -> None:
    """Read the unpacked bytes of one file."""
    if not data[:1].strip() and not data.strip():
        out.problem("", "is empty")
        return
    is_text = format_name != otlp.PROTOBUF_NAME and looks_like_json(data)
    if is_text:
        _read_json(data, out, format_name)
    # A protobuf file may begin like JSON by chance: its length byte can be a brace.
    if out.is_empty and (read_protobuf := otlp.protobuf_reader(data)) is not None:
        out.forget_problems()
        read_protobuf(out)
    elif not is_text and format_name != otlp.PROTOBUF_NAME:
        out.problem("byte 0", f"neither JSON nor OTLP protobuf: begins with {data[:12]!r}")


def _read_json(data: bytes, out: Collector, format_name: str | None) -> None:
    selected = next((each for each in formats.FORMATS if format_name == each.NAME), None)
    documents = read_documents(data, out)
    messages: list[Any] = []
    sessions: dict[str, list[Any]] = {}
    for place, document in documents.found:
        out.place = place
        # Lines of a coding agent's session; lines of other kinds between them say nothing.
        if documents.by_line and selected in (None, coding_sessions):
            if (dialect := coding_sessions.dialect_of(document)) is not None:
                sessions.setdefault(dialect, []).append(document)
                continue
            if sessions and is_object(document):
                continue
        # A message per line is one conversation, so the lines are read together.
        if documents.by_line and transcript.is_message(document):
            messages.append(document)
            continue
        matching = (each for each in formats.FORMATS if each.matches(document))
        known = selected or next(matching, None)
        if known is None:
            about = "; ".join(each.ABOUT for each in formats.FORMATS)
            out.problem("", _unknown(document), hint=f"known formats: {about}")
            continue
        try:
            known.read(document, out)
        except RecursionError:
            out.problem("", "nested too deeply")
    out.place = "" if messages or sessions else out.place
    for lines in sessions.values():
        coding_sessions.read(lines, out)
    if messages:
        transcript.read(messages, out)


def _unknown(document: Any) -> str:
    item = document[0] if is_array(document) and document else document
    if is_object(item):
        shown = ", ".join(repr(key)[:40] for key in list(item)[:_MAX_KEYS_SHOWN])
        content = f"keys: {shown}{', …' if len(item) > _MAX_KEYS_SHOWN else ''}"
    else:
        content = f"it holds {kind_of(item)}"
    return f"not a trace format Proctor knows; {content}"

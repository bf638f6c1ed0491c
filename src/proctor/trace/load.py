"""Loading traces: from files of any known format, compressed or not, to `Trace` objects.

Promise: the format is found from the content; a bad file, line or span is counted with its
place and never loses the good ones; nothing but `TraceLoadError` is raised for bad input.
Trade-off: a file is read whole, so memory follows the largest file, not their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from proctor.errors import ProctorError, did_you_mean
from proctor.trace import formats
from proctor.trace.assemble import Collector, LogPool, Problem, assemble, one_line
from proctor.trace.formats import transcript
from proctor.trace.formats.documents import looks_like_json, read_documents
from proctor.trace.formats.wire import is_array, is_object, kind_of
from proctor.trace.model import Trace
from proctor.trace.sources import MAX_BYTES, Content, Source, SourceError, expand
from proctor.words import plural

__all__ = ["LoadedTraces", "Problem", "TraceLoadError", "iter_traces", "load_traces"]

_MOST_KEYS_SHOWN = 6
"""Keys of an unknown document that are named; enough to recognise it."""


class TraceLoadError(ProctorError):
    """Nothing could be loaded; `problems` says why, one for each file or place."""

    def __init__(self, problems: list[Problem]) -> None:
        first = problems[0]
        more = f" (and {plural(len(problems) - 1, 'more problem')})" if len(problems) > 1 else ""
        where = one_line(", ".join(part for part in (first.file, first.place) if part))
        super().__init__(f"{first.message}{more}", where=where, hint=first.hint)
        self.problems = problems


class LoadedTraces(list[Trace]):
    """Traces, in the order of their files, with what was wrong on the way.

    `files` names the file of each trace, in the same order.
    `problems` holds one entry for each kind of trouble in each file; an entry is `fatal` when
    its file gave no trace at all.
    """

    def __init__(self, traces: Iterable[Trace] = (), problems: Iterable[Problem] = ()) -> None:
        super().__init__(traces)
        self.problems: list[Problem] = list(problems)
        self.files: list[str] = []


def load_traces(
    source: Source | Iterable[Source],
    *,
    format: str | None = None,  # noqa: A002 - the word users know
    max_bytes: int = MAX_BYTES,
) -> LoadedTraces:
    """Load every trace from paths, folders, globs, `-` (standard input), streams or bytes.

    `format` names a format instead of finding it from the content. `max_bytes` bounds what one
    file may hold once unpacked. Log records join their spans across all files of the call.
    """
    problems: list[Problem] = []
    collected = list(_collect(source, problems.append, format, max_bytes))
    pool = LogPool()
    for out in collected:
        pool.add(out.logs)
    loaded = LoadedTraces(problems=problems)
    for out in collected:
        traces = assemble(out, pool)
        loaded.extend(traces)
        loaded.files.extend([out.file] * len(traces))
        loaded.problems.extend(_judged(out))
    if pool.left:
        loaded.problems.append(_homeless(pool, collected))
    if not loaded and loaded.problems:
        raise TraceLoadError(loaded.problems)
    return loaded


def iter_traces(
    source: Source | Iterable[Source],
    on_problem: Callable[[Problem], None],
    *,
    format: str | None = None,  # noqa: A002 - the word users know
    max_bytes: int = MAX_BYTES,
    on_file: Callable[[str], None] | None = None,
) -> Iterator[Trace]:
    """Load file by file, holding one file at a time; each problem goes to `on_problem`.

    `on_file` is told the name of a file before its traces come.

    A log record joins its span when both stand in one file or the record's file comes first.
    """
    pool = LogPool()
    last: list[Collector] = []
    for out in _collect(source, on_problem, format, max_bytes):
        pool.add(out.logs)
        traces = assemble(out, pool)
        for problem in _judged(out):
            on_problem(problem)
        if out.logs:
            last = [out]
        if on_file is not None:
            on_file(out.file)
        yield from traces
    if pool.left:
        on_problem(_homeless(pool, last))


def _homeless(pool: LogPool, collected: list[Collector]) -> Problem:
    file = next((out.file for out in reversed(collected) if out.logs), "")
    return Problem(file, f"{pool.left} log records belong to no span that was loaded")


def _judged(out: Collector) -> list[Problem]:
    """The problems of a file; they are fatal when it gave nothing."""
    if not out.is_empty:
        return out.problems
    if not out.problems:
        out.problem("", "holds no spans")
    return [msgspec.structs.replace(problem, fatal=True) for problem in out.problems]


# -- one file after the other -------------------------------------------------------------------


def _collect(
    source: Source | Iterable[Source],
    on_problem: Callable[[Problem], None],
    format_name: str | None,
    max_bytes: int,
) -> Iterator[Collector]:
    """What each file holds, before it is assembled."""
    chosen = None if format_name is None else _format_named(format_name)
    for item in expand(source):
        if not isinstance(item, Content):
            on_problem(Problem(*item, fatal=True))
            continue
        out = Collector(item.name)
        try:
            data = item.read(max_bytes)
        except SourceError as error:
            out.problem("", str(error))
        except MemoryError:
            out.problem("", "does not fit into memory; split it")
        else:
            _read_data(data, out, chosen)
        out.place = ""
        yield out


def _format_named(name: str) -> formats.JsonFormat | formats.BinaryFormat:
    for known in (*formats.JSON_FORMATS, *formats.BINARY_FORMATS):
        if name == known.NAME:
            return known
    raise ProctorError(
        f"unknown trace format {name!r}; known: {', '.join(formats.names())}",
        hint=did_you_mean(name, formats.names()),
    )


def _read_data(
    data: bytes, out: Collector, chosen: formats.JsonFormat | formats.BinaryFormat | None
) -> None:
    """Read the unpacked bytes of one file."""
    binary = chosen if chosen in formats.BINARY_FORMATS else None
    if not data[:1].strip() and not data.strip():
        out.problem("", "is empty")
    elif binary is not None:
        binary.read(data, out)
    elif looks_like_json(data):
        _read_json(data, out, chosen)
        # A protobuf file may begin like JSON by chance: its length byte can be a brace.
        if out.is_empty and (found := formats.detect_binary(data)) is not None:
            out.forget_problems()
            found.read(data, out)
    elif (found := formats.detect_binary(data)) is not None:
        found.read(data, out)
    else:
        out.problem("byte 0", f"neither JSON nor OTLP protobuf: begins with {data[:12]!r}")


def _read_json(data: bytes, out: Collector, chosen: Any) -> None:
    documents = read_documents(data, out)
    messages: list[Any] = []
    for place, document in documents.found:
        out.place = place
        if documents.by_line and transcript.is_message(document):
            messages.append(document)
            continue
        known: formats.JsonFormat | None = chosen or formats.detect(document)
        if known is None:
            out.problem("", _unknown(document), hint=_known_formats())
        else:
            _read_document(known, document, out)
    if messages:
        out.place = ""
        transcript.read(messages, out)


def _read_document(known: formats.JsonFormat, document: Any, out: Collector) -> None:
    try:
        known.read(document, out)
    except RecursionError:
        out.problem("", "nested too deeply")


def _known_formats() -> str:
    return f"known formats: {'; '.join(known.ABOUT for known in formats.JSON_FORMATS)}"


def _unknown(document: Any) -> str:
    item = document[0] if is_array(document) and document else document
    if is_object(item):
        shown = ", ".join(repr(key)[:40] for key in list(item)[:_MOST_KEYS_SHOWN])
        held = f"keys: {shown}{', …' if len(item) > _MOST_KEYS_SHOWN else ''}"
    else:
        held = f"it holds {kind_of(item)}"
    return f"not a trace format Proctor knows; {held}"

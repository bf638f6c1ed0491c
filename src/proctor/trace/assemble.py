"""Assemble the spans read from a file into finished traces.

Guarantees: spans are grouped by trace id, the last version of a span wins, placeholders are
dropped, log records are attached to their span, and anything malformed is reported as a problem
with its location instead of raised. Trade-off: a trace spread over several files is not merged, so
that files can be read one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from proctor.sanitize import printable
from proctor.trace import conventions
from proctor.trace.conventions import coding_cli
from proctor.trace.model import Event, Span, Trace

_PENDING = "pending_span"
"""Value of `logfire.span_type` on the zero-length placeholder sent when a span opens."""

MALFORMED = (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError)
"""Exceptions that malformed attributes can raise during normalisation."""

_REAL_TIME_NS = 10**17
"""Nanoseconds of a time in 1973: an earlier one is a counter, not a clock."""

_MAX_CYCLE_SHOWN = 5
"""Maximum span ids listed for a parent cycle; a cycle can be as long as the trace."""


class TraceProblem(msgspec.Struct, frozen=True):
    """A problem in a file: message, location, count, and whether the whole file was lost.

    `hint` suggests a fix that is the same for every file, so it is printed only once.
    """

    file: str
    message: str
    place: str = ""
    fatal: bool = False
    count: int = 1
    hint: str | None = None

    def __str__(self) -> str:
        where = f"{self.file}: {self.place}" if self.place else self.file
        times = f" (and {self.count - 1} more like it)" if self.count > 1 else ""
        return printable(f"{where}: {self.message}{times}")


class LogRecord(NamedTuple):
    """A log record attached to a span: some producers put message content only there."""

    trace_id: str
    span_id: str
    event: Event


class Collector:
    """Collect the traces, log records and problems read from one file.

    `place` is the reader's current position in the file (`line 3`) and prefixes the location of
    each problem. Problems with the same message are merged into the first, with a count.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.place = ""
        self.traces: dict[str, Trace] = {}
        self.finished: list[Trace] = []
        self.logs: list[LogRecord] = []
        # By message, so that a million bad spans make one entry with a count.
        self._problems: dict[str, TraceProblem] = {}

    def trace(self, trace_id: str) -> Trace:
        """Return the trace with this id, created on first use, to set trace-level fields on."""
        trace = self.traces.get(trace_id)
        if trace is None:
            trace = self.traces[trace_id] = Trace(trace_id=trace_id)
        return trace

    def add(self, span: Span) -> None:
        """Add a span; its conventions are read later, when the file is complete."""
        self.trace(span.trace_id).spans.append(span)

    def resource(self, trace_id: str, attributes: dict[str, Any]) -> None:
        """Set the resource attributes of a trace; the first ones received win."""
        if attributes:
            self.trace(trace_id).metadata.setdefault("resource", attributes)

    def problem(self, place: str, message: str, *, hint: str | None = None) -> None:
        """Record a problem at a location in this file."""
        where = printable(", ".join(part for part in (self.place, place) if part))
        message = printable(message)
        known = self._problems.get(message)
        if known is None:
            self._problems[message] = TraceProblem(self.file, message, where, hint=hint)
        else:
            self._problems[message] = msgspec.structs.replace(known, count=known.count + 1)

    def forget_problems(self) -> None:
        """Discard the problems: the file turned out to have another format."""
        self._problems.clear()

    @property
    def problems(self) -> list[TraceProblem]:
        """Return all problems in order of first occurrence."""
        return list(self._problems.values())

    @property
    def is_empty(self) -> bool:
        """Return whether the file yielded nothing at all."""
        return not (self.finished or self.logs or any(t.spans for t in self.traces.values()))


class LogPool:
    """Pending log records by span id, across the files of one call."""

    def __init__(self) -> None:
        self._events: dict[tuple[str, str], list[Event]] = {}

    def add(self, records: Iterable[LogRecord]) -> None:
        """Store records until their span arrives."""
        for record in records:
            self._events.setdefault((record.trace_id, record.span_id), []).append(record.event)

    def take(self, trace_id: str, span_id: str) -> list[Event]:
        """Remove and return the records of one span."""
        return self._events.pop((trace_id, span_id), [])

    @property
    def left(self) -> int:
        """Return the number of records without a span."""
        return sum(map(len, self._events.values()))


def assemble(out: Collector, logs: LogPool) -> list[Trace]:
    """Return the finished traces of one file, in order of first appearance."""
    traces = list(out.finished)
    if len(out.traces) > 1:
        _join_sessions(out)
    for trace in out.traces.values():
        # Only now is the file complete: an exporter may send a span several times as it grows.
        trace.spans = _distinct(trace.spans, out)
        if not trace.spans:
            continue
        _check_times(trace, out)
        for span in trace.spans:
            if events := logs.take(trace.trace_id, span.span_id):
                span.events = tuple(sorted((*span.events, *events), key=lambda e: e.time_ns))
            # One malformed span must not lose the rest of the file.
            try:
                conventions.normalise(span)
            except MALFORMED as error:
                out.problem(f"span {span.span_id}", f"attributes not understood: {_short(error)}")
        try:
            conventions.finish(trace)
        except MALFORMED as error:
            out.problem(f"trace {trace.trace_id}", f"content not understood: {_short(error)}")
        traces.append(trace)
    # Finished traces (Proctor JSONL) skip normalisation but may have cycles too.
    for trace in traces:
        _report_cycles(trace, out)
    return traces


def _join_sessions(out: Collector) -> None:
    """Make one trace of all turns of a coding agent's session: each turn is a trace of its own."""
    sessions: dict[str, Trace] = {}
    for trace_id, trace in list(out.traces.items()):
        session = coding_cli.session_of(trace.spans[0]) if trace.spans else None
        if session is None:
            continue
        first = sessions.setdefault(session, trace)
        if first is not trace:
            for span in trace.spans:
                span.trace_id = first.trace_id
            first.spans += trace.spans
            del out.traces[trace_id]


def _distinct(spans: list[Span], out: Collector) -> list[Span]:
    """Return one span per id: the last received, unless it is a placeholder or still open.

    A placeholder whose span never arrived becomes an open span: the agent was cut off there.
    """
    by_id: dict[str, Span] = {}
    pending: dict[str, Span] = {}
    for span in spans:
        if span.attributes.get("logfire.span_type") == _PENDING:
            # The placeholder has its own id and is a child of the span it announces.
            pending[span.span_id] = span
            continue
        known = by_id.get(span.span_id)
        if known is not None and known.end_ns is not None:
            if span.end_ns is None:
                continue
            out.problem(f"span {span.span_id}", "span id appears twice; the last is kept")
        by_id[span.span_id] = span
    for placeholder in pending.values():
        announced = placeholder.parent_id
        if announced is None or announced in by_id:
            continue
        parent = placeholder.attributes.get("logfire.pending_parent_id")
        # Logfire writes an id of zeros for the placeholder of a root.
        is_root = not isinstance(parent, str) or not parent.strip("0")
        placeholder.span_id = announced
        placeholder.parent_id = None if is_root else parent
        placeholder.end_ns = None
        by_id[announced] = placeholder
    return list(by_id.values())


def _check_times(trace: Trace, out: Collector) -> None:
    """Report spans that end before they start; place those without a start next to the others."""
    times = (time for span in trace.spans for time in (span.start_ns, span.end_ns) if time)
    earliest = min(times, default=0)
    for span in trace.spans:
        if span.end_ns is not None and span.end_ns < span.start_ns:
            out.problem(f"span {span.span_id}", "ends before it starts; its duration is unknown")
        # Hand-written traces count from 0; only next to real times is 0 a missing one.
        elif not span.start_ns and earliest > _REAL_TIME_NS:
            span.start_ns = span.end_ns or earliest
            out.problem(f"span {span.span_id}", "has no start time; its duration is unknown")


def _report_cycles(trace: Trace, out: Collector) -> None:
    for cycle in trace.index.cycles:
        shown = " → ".join(cycle[:_MAX_CYCLE_SHOWN])
        hidden = len(cycle) - _MAX_CYCLE_SHOWN
        more = f" and {hidden} more" if hidden > 0 else ""
        message = printable(f"parent cycle among spans {shown}{more}; broken at its earliest span")
        if message not in trace.problems:
            trace.problems.append(message)
        out.problem(f"trace {trace.trace_id}", message)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]

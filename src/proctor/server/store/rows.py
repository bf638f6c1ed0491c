"""From what was received to rows: spans normalised once, their wire form kept compressed.

Promise: what is kept is what came, before any convention was read, so that a better reader later
sees everything. Rows hold only what is counted and filtered by.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import msgspec
import zstandard

from proctor.llm.prices import PriceTable, price_span
from proctor.sanitize import valid_unicode
from proctor.trace import Event, Span, SpanKind, SpanStatus, Trace
from proctor.trace.assemble import Collector, LogPool, LogRecord, assemble
from proctor.trace.conventions import normalise, summarise
from proctor.trace.redact import Redactor
from proctor.trace.secret_patterns import secret_kind

# Every text of a request in one place, to be searched for secrets at once.
#
# Promise: what is found clean here is what redaction would leave as it is: each name, key and
# value is looked at, at any depth. What cannot be told apart cheaply (values of a foreign type,
# names that make a secret of what stands under them) is never called clean; the careful way
# decides then.


_ID_DIGITS = "0123456789abcdef"
_LONGEST_ID = 32
_WITHOUT_TEXT = frozenset({int, float, bool, type(None)})
# Deeper values are left to the careful way.
_DEEPEST = 32


class TextTable:
    """The texts and names of some traces, each once."""

    def __init__(self, parts: Iterable[tuple[Trace, Chunk]]) -> None:
        self._texts: set[str] = set()
        self._names: set[str] = set()
        self._odd = False
        for trace, chunk in parts:
            self._id(trace.trace_id)
            self._mapping(trace.metadata, 0)
            for span in trace.spans:
                self._id(span.span_id)
                self._id(span.parent_id)
                self._text(span.name)
                self._text(span.scope)
                self._text(span.error_message)
                self._mapping(span.attributes, 0)
                self._events(span.events)
            for log in chunk.logs:
                self._id(log.span_id)
                self._events((log.event,))

    def are_clean(self, redactor: Redactor) -> bool:
        """Whether a redactor would leave all of it as it is; False where it may not."""
        if self._odd or any(secret_kind(name) is not None for name in self._names):
            return False
        return redactor.are_clean(self._texts | self._names)

    def _events(self, events: Iterable[Event]) -> None:
        for event in events:
            self._text(event.name)
            self._mapping(event.attributes, 0)

    def _id(self, identity: str | None) -> None:
        if identity and (len(identity) > _LONGEST_ID or identity.strip(_ID_DIGITS)):
            self._texts.add(identity)

    def _text(self, text: str | None) -> None:
        if text:
            self._texts.add(text)

    def _mapping(self, mapping: Mapping[str, Any], depth: int) -> None:
        self._names.update(mapping)
        add = self._texts.add
        for value in mapping.values():
            kind = value.__class__
            if kind is str:
                add(value)
            elif kind not in _WITHOUT_TEXT:
                self._value(value, depth + 1)

    def _value(self, value: Any, depth: int) -> None:
        if depth > _DEEPEST:
            self._odd = True
        elif value.__class__ is str:
            self._texts.add(value)
        elif value.__class__ is dict:
            self._mapping(cast("dict[str, Any]", value), depth)
        elif value.__class__ is list or value.__class__ is tuple:
            for item in cast("list[Any]", value):
                self._value(item, depth + 1)
        elif value.__class__ not in _WITHOUT_TEXT:
            self._odd = True


# Characters of a query or response kept for lists; the whole of it stands in the payload.
MAX_FACT = 2000

ZSTD_LEVEL = 3
# Bytes one chunk may unpack to; a chunk is one request's spans of a trace, far below it.
MAX_CHUNK = 512 * 1024 * 1024

# The largest number both databases hold; what is beyond it cannot be a time or a count.
LARGEST = 2**63 - 1

# Value of `logfire.span_type` on the notice that a span began, which has an id of its own.
PENDING = "pending_span"

UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError)


class Log(msgspec.Struct, frozen=True):
    """A log record kept until its span is read."""

    span_id: str
    event: Event


class Chunk(msgspec.Struct, omit_defaults=True):
    """What one request brought of one trace."""

    spans: list[Span] = []
    logs: list[Log] = []
    resource: dict[str, Any] = {}


class TraceFacts(NamedTuple):
    """The columns of `FACT_COLUMNS`, after the trace's id."""

    trace_id: str
    service: str | None
    query: str | None
    response: str | None
    request_id: str | None
    session_id: str | None
    user_id: str | None


@dataclass(slots=True)
class Batch:
    """Rows to be written together, all or none."""

    spans: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    chunks: list[tuple[str, bytes, int]] = field(default_factory=list[tuple[str, bytes, int]])
    """Trace, what came of it, and how many log records are in it."""
    facts: list[TraceFacts] = field(default_factory=list[TraceFacts])
    touched: set[str] = field(default_factory=set[str])

    def extend(self, other: Batch) -> None:
        """Take another batch in."""
        self.spans += other.spans
        self.chunks += other.chunks
        self.facts += other.facts
        self.touched |= other.touched


_encoder = msgspec.json.Encoder(enc_hook=str)
_decoder = msgspec.json.Decoder(Chunk)
_local = threading.local()


def _compressed(data: bytes) -> bytes:
    # Making a compressor costs more than a small chunk takes; each belongs to one thread.
    compressor: zstandard.ZstdCompressor | None = getattr(_local, "compressor", None)
    if compressor is None:
        compressor = _local.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
    return compressor.compress(data)


def batch_of(
    collected: Collector, redactor: Redactor | None, prices: PriceTable | None = None
) -> Batch:
    """Return the rows of everything one request held."""
    batch = Batch()
    logs: dict[str, list[LogRecord]] = defaultdict(list)
    for record in collected.logs:
        logs[record.trace_id].append(record)
    traces = list(collected.traces.values())
    traces += [Trace(trace_id=trace_id) for trace_id in logs if trace_id not in collected.traces]
    parts = [(trace, _chunk(trace, logs.get(trace.trace_id, ()))) for trace in traces]
    # Mostly nothing is secret in the whole request, and one search says so.
    clean = redactor is None or TextTable(parts).are_clean(redactor)
    for trace, chunk in parts:
        if clean or redactor is None or TextTable([(trace, chunk)]).are_clean(redactor):
            _add(batch, trace, chunk, prices)
        else:
            redacted = redactor.trace(trace)
            kept = Chunk(redacted.spans, redactor.value(chunk.logs), _resource(redacted))
            _add(batch, redacted, kept, prices)
    return batch


def _chunk(trace: Trace, records: Iterable[LogRecord]) -> Chunk:
    return Chunk(trace.spans, [Log(r.span_id, r.event) for r in records], _resource(trace))


def _add(batch: Batch, trace: Trace, chunk: Chunk, prices: PriceTable | None) -> None:
    # Encoded before the conventions are read: the truth is what came.
    kept = _compressed(_encoder.encode(chunk))
    batch.chunks.append((trace.trace_id, kept, len(chunk.logs)))
    batch.touched.add(trace.trace_id)
    if trace.spans:
        for span in trace.spans:
            try:
                normalise(span)
                price_span(span, prices)
            except UNREADABLE:
                continue  # stored as received; the reader of the whole trace reports it
        batch.spans += [span_row(span) for span in trace.spans]
        batch.facts.append(facts_of(trace, chunk.resource))


def _resource(trace: Trace) -> dict[str, Any]:
    return trace.metadata.get("resource") or {}


def span_row(span: Span) -> tuple[Any, ...]:
    """The columns of `SPAN_COLUMNS`."""
    span_id, parent_id, end_ns = span.span_id, span.parent_id, span.end_ns
    if span.attributes.get("logfire.span_type") == PENDING and parent_id is not None:
        # The notice is a child of the span it announces: it is that span, still open.
        span_id, end_ns = parent_id, None
        parent_id = _real_id(span.attributes.get("logfire.pending_parent_id"))
    return (
        span.trace_id,
        span_id,
        parent_id,
        _text(span.name, 500) or "",
        span.kind.value,
        span.status.value,
        _number(span.start_ns) or 0,
        _number(end_ns),
        _text(span.tool_name, 200),
        _text(span.model, 200),
        _number(span.input_tokens),
        _number(span.output_tokens),
        span.cost_usd,
        _text(span.error_type, 200),
    )


def span_from(row: Sequence[Any]) -> Span:
    """A span with what its row holds."""
    return Span(
        trace_id=row[0],
        span_id=row[1],
        parent_id=row[2],
        name=row[3],
        kind=SpanKind(row[4]),
        status=SpanStatus(row[5]),
        start_ns=row[6],
        end_ns=row[7],
        tool_name=row[8],
        model=row[9],
        input_tokens=row[10],
        output_tokens=row[11],
        cost_usd=row[12],
        error_type=row[13],
    )


def _number(value: int | None) -> int | None:
    return value if value is None or -LARGEST <= value <= LARGEST else None


def _real_id(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip("0") else None


def facts_of(trace: Trace, resource: dict[str, Any]) -> TraceFacts:
    """What these spans say of their trace; another batch may know more."""
    with contextlib.suppress(*UNREADABLE):
        summarise(trace)
    service = resource.get("service.name")
    return TraceFacts(
        trace.trace_id,
        _text(service, 200),
        _text(trace.query, MAX_FACT),
        _text(trace.response, MAX_FACT),
        _text(trace.request_id, 200),
        _text(trace.session_id, 200),
        _text(trace.user_id, 200),
    )


def _text(value: Any, limit: int) -> str | None:
    if value is None:
        return None
    text = (value if isinstance(value, str) else _encoder.encode(value).decode())[:limit]
    if text.isascii() and "\0" not in text:
        return text
    # PostgreSQL takes neither NUL nor lone surrogates.
    return valid_unicode(text.replace("\0", "\ufffd"))


def trace_from(
    trace_id: str, chunks: Iterable[bytes], prices: PriceTable | None = None
) -> Trace | None:
    """Read the whole trace again from the requests as received; None without any span."""
    collected, pool = Collector("store"), LogPool()
    for body in chunks:
        chunk = _decoder.decode(
            zstandard.ZstdDecompressor().decompress(body, max_output_size=MAX_CHUNK)
        )
        for span in chunk.spans:
            collected.add(span)
        collected.resource(trace_id, chunk.resource)
        pool.add(LogRecord(trace_id, log.span_id, log.event) for log in chunk.logs)
    traces = assemble(collected, pool)
    for trace in traces:
        for span in trace.spans:
            price_span(span, prices)
    return traces[0] if traces else None


def facts_from(trace_id: str, chunks: Iterable[bytes]) -> TraceFacts | None:
    """What everything received so far says of a trace; None where it cannot be read."""
    try:
        trace = trace_from(trace_id, chunks)
    except (*UNREADABLE, msgspec.MsgspecError, zstandard.ZstdError):
        return None
    return None if trace is None else facts_of(trace, _resource(trace))

"""From received spans to rows: spans are normalised once, their wire form is stored compressed.

Guarantees: the payload holds spans as received, before any convention was applied, so that a better
reader improves old traces too. Rows hold only what is counted and filtered by.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
import zstandard

from proctor.llm.prices import PriceTable, price_span
from proctor.sanitize import valid_unicode
from proctor.server.store._schema import SPAN_COLUMNS, TraceFacts
from proctor.trace import Event, Span, SpanKind, SpanStatus, Trace
from proctor.trace.assemble import Collector, LogPool, LogRecord, assemble
from proctor.trace.conventions import normalise, summarise
from proctor.trace.redact import Redactor
from proctor.trace.secret_patterns import secret_kind

_ID_DIGITS = "0123456789abcdef"
_LONGEST_ID = 32
_WITHOUT_TEXT = frozenset({int, float, bool, type(None)})
# Deeper values are left to the redactor.
_DEEPEST = 32


class TextTable:
    """The texts and names of some traces, each once, to be searched for secrets in one pass.

    What `are_clean` accepts, redaction would not change: every name, key and value is included, at
    any depth. Where that is not cheap to decide (values of other types, names that make a secret of
    their value) it is not clean, and the redactor goes through the trace itself.
    """

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
        """Return whether a redactor would certainly change nothing."""
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


# Characters of a query or response stored for lists; the payload has the whole text.
MAX_FACT = 2000

ZSTD_LEVEL = 3
# Bytes a chunk may decompress to: far above one request's spans of a trace.
MAX_CHUNK = 512 * 1024 * 1024

# Larger numbers cannot be times (nanoseconds since 1970) or counts of tokens. Differences of such
# times, and the sums of such counts over a trace, fit into the 64 bits of both databases.
LATEST = 2**62 - 1
MOST_TOKENS = 2**40

# Value of `logfire.span_type` on the notice that a span started, which has an id of its own.
PENDING = "pending_span"

UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError)


class Log(msgspec.Struct, frozen=True):
    """A log record, stored until its span is read."""

    span_id: str
    event: Event


class Chunk(msgspec.Struct, omit_defaults=True):
    """The spans and log records of one trace in one request."""

    spans: list[Span] = []
    logs: list[Log] = []
    resource: dict[str, Any] = {}


class Batch(msgspec.Struct, array_like=True):
    """Rows that are written together, all or none."""

    spans: list[tuple[Any, ...]] = []
    chunks: list[tuple[str, bytes, int]] = []
    """Trace id, compressed chunk, number of log records in it."""
    facts: list[TraceFacts] = []

    @property
    def touched(self) -> set[str]:
        """The traces that get new spans or log records."""
        return {trace_id for trace_id, _, _ in self.chunks}

    def extend(self, other: Batch) -> None:
        """Add the rows of another batch."""
        self.spans += other.spans
        self.chunks += other.chunks
        self.facts += other.facts


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
    parts: list[tuple[Trace, Chunk]] = []
    for trace in traces:
        own = [Log(record.span_id, record.event) for record in logs.get(trace.trace_id, ())]
        parts.append((trace, Chunk(trace.spans, own, _resource(trace))))
    # Most requests hold no secret at all, and one search over all texts shows it.
    clean = redactor is None or TextTable(parts).are_clean(redactor)
    for trace, chunk in parts:
        if clean or redactor is None or TextTable([(trace, chunk)]).are_clean(redactor):
            _add(batch, trace, chunk, prices)
        else:
            redacted = redactor.trace(trace)
            kept = Chunk(redacted.spans, redactor.value(chunk.logs), _resource(redacted))
            _add(batch, redacted, kept, prices)
    return batch


def _add(batch: Batch, trace: Trace, chunk: Chunk, prices: PriceTable | None) -> None:
    # Encoded before the conventions are applied: the payload is what was received.
    kept = _compressed(_encoder.encode(chunk))
    batch.chunks.append((trace.trace_id, kept, len(chunk.logs)))
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
    """Return the row of a span; its columns are `SPAN_COLUMNS`."""
    span_id, parent_id, end_ns = span.span_id, span.parent_id, span.end_ns
    if span.attributes.get("logfire.span_type") == PENDING and parent_id is not None:
        # The notice is a child of the span it announces: it is that span, still open.
        span_id, end_ns = parent_id, None
        pending = span.attributes.get("logfire.pending_parent_id")
        # An id of zeros is OpenTelemetry's way to write "no parent".
        parent_id = pending if isinstance(pending, str) and pending.strip("0") else None
    return (
        span.trace_id,
        span_id,
        parent_id,
        _text(span.name, 500) or "",
        span.kind.value,
        span.status.value,
        _within(LATEST, span.start_ns) or 0,
        _within(LATEST, end_ns),
        _text(span.tool_name, 200),
        _text(span.model, 200),
        _within(MOST_TOKENS, span.input_tokens),
        _within(MOST_TOKENS, span.output_tokens),
        span.cost_usd,
        _text(span.error_type, 200),
    )


def span_from(row: Sequence[Any]) -> Span:
    """Return a span with the fields that its row has."""
    values = dict(zip(SPAN_COLUMNS, row, strict=True))
    values |= {"kind": SpanKind(values["kind"]), "status": SpanStatus(values["status"])}
    return Span(**values)


def _within(limit: int, value: int | None) -> int | None:
    return value if value is None or -limit <= value <= limit else None


def facts_of(trace: Trace, resource: dict[str, Any]) -> TraceFacts:
    """Return what these spans say about their trace; another batch may know more."""
    with contextlib.suppress(*UNREADABLE):
        summarise(trace)
    return TraceFacts(
        trace.trace_id,
        _text(resource.get("service.name"), 200),
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
    """Return the whole trace, read from its chunks; None without any span."""
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
    """Return the facts of a whole trace; None where it cannot be read."""
    try:
        trace = trace_from(trace_id, chunks)
    except (*UNREADABLE, msgspec.MsgspecError, zstandard.ZstdError):
        return None
    return None if trace is None else facts_of(trace, _resource(trace))

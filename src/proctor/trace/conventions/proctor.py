"""Write and read the `proctor.*` attributes, which hold the fields no shared convention has.

Guarantees: `from_attributes` exactly reverses `to_attributes`, for any span, and likewise for
traces. A span with `proctor.format` is complete: its missing fields are unknown and no other
dialect is consulted. Without it, single keys here only take precedence over others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from proctor.trace.conventions.values import (
    convert,
    count,
    decode_json,
    encode_json,
    is_list,
    is_mapping,
    number,
)
from proctor.trace.model import EVERYTHING, Document, Message, Span, SpanKind, SpanStatus, Trace

T = TypeVar("T")

# On every exported span; increment when the meaning of a key below changes.
FORMAT_KEY = "proctor.format"
FORMAT = 1

KIND_KEY = "proctor.kind"
STATUS_KEY = "proctor.status"


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _json(value: Any) -> Any:
    """Decode a JSON text of ours; values that are not text are returned unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return decode_json(value)
    except (ValueError, msgspec.DecodeError):
        return value


def _structs(kind: type[T]) -> Callable[[Any], tuple[T, ...] | None]:
    """Return a reader of structs, given as JSON text or as plain values."""
    return lambda value: convert(
        tuple[kind, ...], value if isinstance(value, str) else encode_json(value)
    )


_READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "proctor.tool.name": ("tool_name", _string),
    "proctor.tool.call.id": ("tool_call_id", _string),
    "proctor.model": ("model", _string),
    "proctor.error.type": ("error_type", _string),
    "proctor.error.message": ("error_message", _string),
    "proctor.agent.name": ("agent_name", _string),
    "proctor.handoff.to": ("handoff_to", _string),
    "proctor.usage.input_tokens": ("input_tokens", count),
    "proctor.usage.output_tokens": ("output_tokens", count),
    "proctor.cost_usd": ("cost_usd", number),
    "proctor.tool.input": ("tool_input", _json),
    "proctor.tool.output": ("tool_output", _json),
    "proctor.input": ("input", _json),
    "proctor.output": ("output", _json),
    "proctor.input.messages": ("input_messages", _structs(Message)),
    "proctor.output.messages": ("output_messages", _structs(Message)),
    "proctor.documents": ("documents", _structs(Document)),
}
"""Key → field of the span, and what reads the attribute; None leaves the field as it is."""

_PLAIN = (_string, count, number)
# Other values are encoded as JSON text, strings too: `"5"` and 5 stay distinct.

SPAN_KEYS = frozenset({FORMAT_KEY, KIND_KEY, STATUS_KEY, *_READERS})

TRACE_TEXT_FIELDS = {
    "proctor.trace.response": "response",
    "proctor.trace.request_id": "request_id",
    "proctor.trace.session_id": "session_id",
    "proctor.trace.user_id": "user_id",
}
# On one span of every exported trace: a missing field of the trace is unknown.
TRACE_FORMAT_KEY = "proctor.trace.format"
TRACE_QUERY_KEY = "proctor.trace.query"
TRACE_METADATA_KEY = "proctor.trace.metadata"
TRACE_OBSERVED_KEY = "proctor.trace.observed"
TRACE_KEYS = frozenset(
    {TRACE_FORMAT_KEY, TRACE_QUERY_KEY, TRACE_METADATA_KEY, TRACE_OBSERVED_KEY}
    | TRACE_TEXT_FIELDS.keys()
)

_KINDS = {kind.value: kind for kind in SpanKind}
_STATUSES = {status.value: status for status in SpanStatus}
_EMPTY = msgspec.structs.asdict(Span(span_id="", trace_id="", name=""))


def to_attributes(span: Span) -> dict[str, Any]:
    """Return the normalised fields of a span as attributes; unknown fields are omitted."""
    attributes: dict[str, Any] = {
        FORMAT_KEY: FORMAT,
        KIND_KEY: span.kind.value,
        STATUS_KEY: span.status.value,
    }
    for key, (field, read) in _READERS.items():
        value = getattr(span, field)
        # Messages and documents are never unknown, only empty.
        if value is not None and (_EMPTY[field] is None or value):
            attributes[key] = value if read in _PLAIN else encode_json(value)
    return attributes


def from_attributes(span: Span) -> bool:
    """Move our attributes of a span into its fields; return whether they are complete."""
    ours = SPAN_KEYS.intersection(span.attributes)
    if not ours:
        return False
    received = span.attributes
    # A new dictionary: the one received may be shared with the caller.
    span.attributes = {key: value for key, value in received.items() if key not in ours}
    if FORMAT_KEY in ours:
        # In a complete record a missing field is unknown.
        for field, _ in _READERS.values():
            setattr(span, field, _EMPTY[field])
    span.kind = _KINDS.get(str(received.get(KIND_KEY)), span.kind)
    span.status = _STATUSES.get(str(received.get(STATUS_KEY)), span.status)
    for key in ours & _READERS.keys():
        field, read = _READERS[key]
        value = read(received[key])
        if value is not None:
            setattr(span, field, value)
    return FORMAT_KEY in ours


def trace_to_attributes(trace: Trace) -> dict[str, Any]:
    """Return the trace-level fields as attributes for its first root span."""
    attributes: dict[str, Any] = {TRACE_FORMAT_KEY: FORMAT}
    if trace.query is not None:
        attributes[TRACE_QUERY_KEY] = encode_json(trace.query)
    for key, field in TRACE_TEXT_FIELDS.items():
        value = getattr(trace, field)
        if value is not None:
            attributes[key] = value
    if trace.metadata:
        attributes[TRACE_METADATA_KEY] = encode_json(trace.metadata)
    if trace.observed:
        attributes[TRACE_OBSERVED_KEY] = encode_json(trace.observed)
    return attributes


def trace_from_attributes(trace: Trace, span: Span) -> bool:
    """Move `proctor.trace.*` of a span into the trace; return whether they are complete."""
    received = span.attributes
    ours = TRACE_KEYS.intersection(received)
    span.attributes = {key: value for key, value in received.items() if key not in ours}
    for key, field in TRACE_TEXT_FIELDS.items():
        value = received.get(key)
        if isinstance(value, str):
            setattr(trace, field, value)
    if TRACE_QUERY_KEY in ours:
        trace.query = _json(received[TRACE_QUERY_KEY])
    metadata = _json(received.get(TRACE_METADATA_KEY))
    if is_mapping(metadata):
        trace.metadata = metadata
    observed = _json(received.get(TRACE_OBSERVED_KEY))
    if is_list(observed):
        trace.observe(*set(EVERYTHING).intersection(map(str, observed)))
    return TRACE_FORMAT_KEY in ours

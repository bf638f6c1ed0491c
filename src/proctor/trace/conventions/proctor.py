"""Write and read the `proctor.*` attributes, which hold the fields no shared convention has.

Guarantees: `from_attributes` exactly reverses `to_attributes`, for any span, and likewise for
traces. A span with `proctor.format` is complete: its missing fields are unknown and no other
dialect is consulted. Without it, single keys here only take precedence over others.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proctor.trace.conventions.values import (
    convert,
    count,
    decode_json,
    encode_json,
    is_mapping,
    number,
)
from proctor.trace.model import Document, Message, Span, SpanKind, SpanStatus, Trace

PREFIX = "proctor."
TRACE_PREFIX = "proctor.trace."

# On every exported span; increment when the meaning of a key below changes.
FORMAT_KEY = "proctor.format"
FORMAT = 1

KIND_KEY = "proctor.kind"
STATUS_KEY = "proctor.status"

TEXT_FIELDS = {
    "proctor.tool.name": "tool_name",
    "proctor.tool.call.id": "tool_call_id",
    "proctor.model": "model",
    "proctor.error.type": "error_type",
    "proctor.error.message": "error_message",
    "proctor.agent.name": "agent_name",
    "proctor.handoff.to": "handoff_to",
}
COUNT_FIELDS = {
    "proctor.usage.input_tokens": "input_tokens",
    "proctor.usage.output_tokens": "output_tokens",
}
COST_KEY = "proctor.cost_usd"
# Any JSON value, encoded as JSON text even for strings: `"5"` and 5 stay distinct.
JSON_FIELDS = {
    "proctor.tool.input": "tool_input",
    "proctor.tool.output": "tool_output",
    "proctor.input": "input",
    "proctor.output": "output",
}
MESSAGE_FIELDS = {
    "proctor.input.messages": "input_messages",
    "proctor.output.messages": "output_messages",
}
DOCUMENTS_KEY = "proctor.documents"

SPAN_KEYS = frozenset(
    {FORMAT_KEY, KIND_KEY, STATUS_KEY, COST_KEY, DOCUMENTS_KEY}
    | TEXT_FIELDS.keys()
    | COUNT_FIELDS.keys()
    | JSON_FIELDS.keys()
    | MESSAGE_FIELDS.keys()
)

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
TRACE_KEYS = frozenset(
    {TRACE_FORMAT_KEY, TRACE_QUERY_KEY, TRACE_METADATA_KEY} | TRACE_TEXT_FIELDS.keys()
)

_KINDS = {kind.value: kind for kind in SpanKind}
_STATUSES = {status.value: status for status in SpanStatus}


def to_attributes(span: Span) -> dict[str, Any]:
    """Return the normalised fields of a span as attributes; unknown fields are omitted."""
    attributes: dict[str, Any] = {
        FORMAT_KEY: FORMAT,
        KIND_KEY: span.kind.value,
        STATUS_KEY: span.status.value,
    }
    for key, field in (TEXT_FIELDS | COUNT_FIELDS).items():
        value = getattr(span, field)
        if value is not None:
            attributes[key] = value
    if span.cost_usd is not None:
        attributes[COST_KEY] = span.cost_usd
    for key, field in JSON_FIELDS.items():
        value = getattr(span, field)
        if value is not None:
            attributes[key] = encode_json(value)
    for key, field in MESSAGE_FIELDS.items():
        messages = getattr(span, field)
        if messages:
            attributes[key] = encode_json(messages)
    if span.documents:
        attributes[DOCUMENTS_KEY] = encode_json(span.documents)
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
        _clear_fields(span)
    span.kind = _KINDS.get(str(received.get(KIND_KEY)), span.kind)
    span.status = _STATUSES.get(str(received.get(STATUS_KEY)), span.status)
    for key in ours:
        _set_field(span, key, received[key])
    return FORMAT_KEY in ours


def _clear_fields(span: Span) -> None:
    """Clear the normalised fields: in a complete record a missing field is unknown."""
    for field in (*TEXT_FIELDS.values(), *COUNT_FIELDS.values(), *JSON_FIELDS.values()):
        setattr(span, field, None)
    span.cost_usd = None
    span.documents = span.input_messages = span.output_messages = ()


def _set_field(span: Span, key: str, value: Any) -> None:
    if key in TEXT_FIELDS:
        if isinstance(value, str):
            setattr(span, TEXT_FIELDS[key], value)
    elif key in COUNT_FIELDS:
        setattr(span, COUNT_FIELDS[key], count(value))
    elif key == COST_KEY:
        span.cost_usd = number(value)
    elif key in JSON_FIELDS:
        setattr(span, JSON_FIELDS[key], _json(value))
    elif key in MESSAGE_FIELDS:
        setattr(span, MESSAGE_FIELDS[key], convert(tuple[Message, ...], _encoded(value)) or ())
    elif key == DOCUMENTS_KEY:
        span.documents = convert(tuple[Document, ...], _encoded(value)) or ()


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
    return TRACE_FORMAT_KEY in ours


def _json(value: Any) -> Any:
    """Decode a JSON text of ours; values that are not text are returned unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return decode_json(value)
    except (ValueError, msgspec.DecodeError):
        return value


def _encoded(value: Any) -> str:
    """Return a value as JSON text, which it may already be."""
    return value if isinstance(value, str) else encode_json(value)

"""OTLP out: one trace as `ResourceSpans`, in JSON (hex ids, integer enums, int64 as text) or
protobuf.

Promise: any OpenTelemetry receiver takes it. Values OTLP has no room for (integers beyond 64
bits, deep nesting) are written as text; the fields we normalised stand in `proctor.*`, whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from proctor.trace.conventions.proctor import (
    TRACE_METADATA_KEY,
    to_attributes,
    trace_to_attributes,
)
from proctor.trace.conventions.values import encode_json, is_mapping
from proctor.trace.export_attributes import (
    Attributes,
    genai,
    genai_trace,
    openinference,
    openinference_trace,
)
from proctor.trace.export_ids import (
    PARENT_ID_KEY,
    SPAN_ID_KEY,
    TRACE_ID_KEY,
    wire_span_id,
    wire_trace_id,
)
from proctor.trace.formats.native import without_surrogates
from proctor.trace.model import Event, Span, SpanKind, SpanStatus, Trace

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

_INTERNAL, _CLIENT = 1, 3
_STATUS_CODES = {SpanStatus.OK: 1, SpanStatus.ERROR: 2, SpanStatus.TIMEOUT: 2}
_INT64 = range(-(2**63), 2**63)
_MAX_TIME = 2**64 - 1
# Receivers refuse messages nested about a hundred deep; one level of ours takes three of theirs.
_MAX_NESTING = 24


class Convention(NamedTuple):
    """The words an export speaks, for spans and for what belongs to the whole trace."""

    span: Callable[[Span], Attributes]
    trace: Callable[[Trace], Attributes]


GENAI = Convention(genai, genai_trace)
OPENINFERENCE = Convention(openinference, openinference_trace)


class WireSpan(NamedTuple):
    """A span as OTLP sees it, before it is JSON or protobuf."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    start: int
    end: int
    attributes: Attributes
    events: tuple[Event, ...]
    status: int
    message: str


def wire_spans(trace: Trace, convention: Convention) -> dict[str | None, list[WireSpan]]:
    """The spans of a trace by instrumentation scope; trace facts stand on the first root."""
    scopes: dict[str | None, list[WireSpan]] = {}
    roots = trace.roots
    first_root = roots[0].span if roots else None
    for span in trace.spans:
        extra: Attributes = {}
        if span is first_root:
            # Even an empty record of the trace says that there is nothing left to be guessed.
            extra = (
                convention.trace(trace) | {TRACE_METADATA_KEY: "{}"} | trace_to_attributes(trace)
            )
        scopes.setdefault(span.scope, []).append(_wire_span(span, convention, extra))
    return scopes


def _wire_span(span: Span, convention: Convention, extra: Attributes) -> WireSpan:
    trace_id, span_id = wire_trace_id(span.trace_id), wire_span_id(span.span_id)
    parent_id = "" if span.parent_id is None else wire_span_id(span.parent_id)
    originals = {
        TRACE_ID_KEY: span.trace_id if trace_id != span.trace_id else None,
        SPAN_ID_KEY: span.span_id if span_id != span.span_id else None,
        PARENT_ID_KEY: span.parent_id if parent_id != (span.parent_id or "") else None,
    }
    # As received wins over our words for it; our own record wins over both.
    attributes = convention.span(span) | span.attributes | extra | to_attributes(span)
    attributes.update((key, value) for key, value in originals.items() if value is not None)
    return WireSpan(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        name=span.name,
        kind=_CLIENT if span.kind == SpanKind.LLM else _INTERNAL,
        start=_time(span.start_ns),
        end=_time(span.end_ns or 0),
        attributes=attributes,
        events=span.events,
        status=_STATUS_CODES.get(span.status, 0),
        message=(span.error_message or "") if span.failed else "",
    )


def _time(nanoseconds: int) -> int:
    return min(max(nanoseconds, 0), _MAX_TIME)


def _resource(trace: Trace) -> Attributes:
    """What the producer said about itself, where the importer keeps it."""
    resource = trace.metadata.get("resource")
    return resource if is_mapping(resource) else {}


# -- JSON -------------------------------------------------------------------------------------


def encode_json_spans(trace: Trace, convention: Convention) -> bytes:
    """One trace as a `ResourceSpans` object; empty without spans."""
    if not trace.spans:
        return b""
    document = {
        "resource": {"attributes": _json_attributes(_resource(trace))},
        "scopeSpans": [
            {"scope": {"name": scope} if scope else {}, "spans": [_json_span(s) for s in spans]}
            for scope, spans in wire_spans(trace, convention).items()
        ],
    }
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        return msgspec.json.encode(without_surrogates(document))


def _json_span(span: WireSpan) -> dict[str, Any]:
    found: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start),
        "attributes": _json_attributes(span.attributes),
    }
    if span.parent_id:
        found["parentSpanId"] = span.parent_id
    if span.end:
        found["endTimeUnixNano"] = str(span.end)
    if span.events:
        found["events"] = [
            {
                "timeUnixNano": str(_time(event.time_ns)),
                "name": event.name,
                "attributes": _json_attributes(event.attributes),
            }
            for event in span.events
        ]
    status: dict[str, Any] = {"code": span.status} if span.status else {}
    if span.message:
        status["message"] = span.message
    found["status"] = status
    return found


def _json_attributes(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _json_value(value, 0)} for key, value in attributes.items()]


def _json_value(value: Any, depth: int) -> dict[str, Any]:
    """A value as OTLP's AnyValue in JSON."""
    if isinstance(value, str):
        return {"stringValue": value}
    if value is None:
        return {}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and value in _INT64:
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _not_finite(value)}
    if depth < _MAX_NESTING and isinstance(value, list | tuple):
        items = cast("Iterable[Any]", value)
        return {"arrayValue": {"values": [_json_value(item, depth + 1) for item in items]}}
    if depth < _MAX_NESTING and is_mapping(value):
        pairs = [
            {"key": str(key), "value": _json_value(item, depth + 1)} for key, item in value.items()
        ]
        return {"kvlistValue": {"values": pairs}}
    return {"stringValue": encode_json(value)}


def _not_finite(value: float) -> str:
    """How the JSON form of protobuf spells what JSON has no number for."""
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


# -- protobuf ---------------------------------------------------------------------------------


def encode_proto_spans(trace: Trace, convention: Convention) -> bytes:
    """One trace as the bytes of a `TracesData`; several of them in a row are one as well."""
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

    if not trace.spans:
        return b""
    data = TracesData()
    batch = data.resource_spans.add()
    _add_attributes(batch.resource.attributes, _resource(trace))
    for scope, spans in wire_spans(trace, convention).items():
        group = batch.scope_spans.add()
        if scope:
            group.scope.name = _utf8(scope)
        for span in spans:
            _add_span(group, span)
    return data.SerializeToString()


def _add_span(group: ScopeSpans, span: WireSpan) -> None:
    proto: ProtoSpan = group.spans.add()
    proto.trace_id = bytes.fromhex(span.trace_id)
    proto.span_id = bytes.fromhex(span.span_id)
    proto.parent_span_id = bytes.fromhex(span.parent_id)
    proto.name = _utf8(span.name)
    proto.kind = cast("Any", span.kind)
    proto.start_time_unix_nano = span.start
    proto.end_time_unix_nano = span.end
    _add_attributes(proto.attributes, span.attributes)
    for event in span.events:
        added = proto.events.add()
        added.name = _utf8(event.name)
        added.time_unix_nano = _time(event.time_ns)
        _add_attributes(added.attributes, event.attributes)
    if span.status:
        proto.status.code = cast("Any", span.status)
    if span.message:
        proto.status.message = _utf8(span.message)


def _add_attributes(target: Any, attributes: Mapping[str, Any]) -> None:
    for key, value in attributes.items():
        pair: KeyValue = target.add()
        pair.key = _utf8(str(key))
        _set_value(pair.value, value, 0)


def _set_value(target: AnyValue, value: Any, depth: int) -> None:
    """Write a value into an AnyValue; null leaves it empty."""
    if value is None:
        return
    if isinstance(value, str):
        target.string_value = _utf8(value)
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int) and value in _INT64:
        target.int_value = value
    elif isinstance(value, float):
        target.double_value = value
    elif depth < _MAX_NESTING and isinstance(value, list | tuple):
        target.array_value.SetInParent()
        for item in cast("Iterable[Any]", value):
            _set_value(target.array_value.values.add(), item, depth + 1)
    elif depth < _MAX_NESTING and is_mapping(value):
        target.kvlist_value.SetInParent()
        for key, item in value.items():
            pair = target.kvlist_value.values.add()
            pair.key = _utf8(str(key))
            _set_value(pair.value, item, depth + 1)
    else:
        target.string_value = _utf8(encode_json(value))


def _utf8(text: str) -> str:
    """Text that protobuf takes: lone surrogates are replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return without_surrogates(text)
    return text

"""Read OTLP: export requests for traces and logs as JSON or protobuf, and Tempo's shapes.

Guarantees: hex and base64 ids, enum names and integers, int64 as text or number, camel and snake
case, `batches` and `instrumentationLibrarySpans` all give the same spans, and protobuf the same as
JSON. Bytes stay base64 text. Trade-off: links, trace state and the RPC span kind (client,
server, …) are dropped.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from proctor.trace import _fields as wire
from proctor.trace.assemble import Collector, LogRecord
from proctor.trace.conventions.values import text
from proctor.trace.model import Event, Span, SpanStatus

# Imported when protobuf is read: the generated classes load slowly.
if TYPE_CHECKING:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord as WireLogRecord
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan

NAME = "otlp"
PROTOBUF_NAME = "otlp-protobuf"
ABOUT = "OTLP JSON (resourceSpans, resourceLogs; also Tempo's batches, Jaeger's API v3)"

_SPAN_KEYS = ("resourceSpans", "resource_spans", "batches")
_LOG_KEYS = ("resourceLogs", "resource_logs")
_SCOPE_SPAN_KEYS = (
    "scopeSpans",
    "scope_spans",
    "instrumentationLibrarySpans",
    "instrumentation_library_spans",
)
_SCOPE_LOG_KEYS = ("scopeLogs", "scope_logs", "instrumentationLibraryLogs")
_SCOPE_KEYS = ("scope", "instrumentationLibrary", "instrumentation_library")

_VALUE_KEYS = frozenset(
    f"{kind}Value" for kind in ("string", "bool", "bytes", "int", "double", "array", "kvlist")
)

BODY_KEY = "body"
"""Event attribute with the body of the original log record."""


def matches(document: Any) -> bool:
    """Return whether a document holds OTLP requests."""
    found = wire.first_object(document)
    return found is not None and any(key in _request(found) for key in (*_SPAN_KEYS, *_LOG_KEYS))


def read(document: Any, out: Collector) -> None:
    """Read one request, or a list of them."""
    for place, item in wire.objects(document, "export request", out):
        request = _request(item)
        dot = f"{place}." if place else ""
        for key in _SPAN_KEYS:
            for where, resource, group in _groups(request, key, _SCOPE_SPAN_KEYS, dot, out):
                _read_spans(where, resource, group, out)
        for key in _LOG_KEYS:
            for where, _, group in _groups(request, key, _SCOPE_LOG_KEYS, dot, out):
                _read_logs(where, group, out)


def _request(item: dict[str, Any]) -> dict[str, Any]:
    """Return the request itself; Tempo's responses wrap it in `trace`, Jaeger's v3 in `result`."""
    for key in ("trace", "result"):
        inner = item.get(key)
        if wire.is_object(inner) and any(key in inner for key in _SPAN_KEYS):
            return inner
    return item


def _groups(
    request: dict[str, Any], key: str, scope_keys: tuple[str, ...], dot: str, out: Collector
) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return (place, resource attributes, scope group) for each group below one key."""
    found: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    for where, batch in _objects(request.get(key), f"{dot}{key}", out):
        resource: Any = batch.get("resource")
        about = resource.get("attributes") if wire.is_object(resource) else None
        attributes = attributes_of(about, f"{where}.resource", out)
        for scope_key in scope_keys:
            for place, group in _objects(batch.get(scope_key), f"{where}.{scope_key}", out):
                found.append((place, attributes, group))
    return found


def _objects(value: Any, place: str, out: Collector) -> list[tuple[str, dict[str, Any]]]:
    """Return the objects of an array with their places; report other elements."""
    if value is None:
        return []
    if not wire.is_array(value):
        out.problem(place, f"not an array but {wire.kind_of(value)}")
        return []
    found: list[tuple[str, dict[str, Any]]] = []
    for position, item in enumerate(value):
        if wire.is_object(item):
            found.append((f"{place}[{position}]", item))
        else:
            out.problem(f"{place}[{position}]", f"not an object but {wire.kind_of(item)}")
    return found


# -- spans ------------------------------------------------------------------------------------


def _read_spans(
    place: str, resource: dict[str, Any], group: dict[str, Any], out: Collector
) -> None:
    scopes = (group[key] for key in _SCOPE_KEYS if wire.is_object(group.get(key)))
    scope = next((text(scope.get("name")) for scope in scopes), None)
    for where, raw in _objects(group.get("spans"), f"{place}.spans", out):
        span = wire.add_span(where, raw, partial(_span, scope, where, out), out)
        if span is not None:
            out.resource(span.trace_id, resource)


def _span(scope: str | None, place: str, out: Collector, raw: dict[str, Any]) -> Span:
    get = raw.get
    end = _either(raw, "endTimeUnixNano", "end_time_unix_nano")
    status, message = _status(get("status"), place, out)
    return Span(
        trace_id=wire.hex_id(_either(raw, "traceId", "trace_id"), "trace id"),
        span_id=wire.hex_id(_either(raw, "spanId", "span_id")),
        parent_id=wire.optional_id(_either(raw, "parentSpanId", "parent_span_id")),
        name=wire.name_of(get("name")),
        status=status,
        error_message=message,
        start_ns=wire.nanoseconds(_either(raw, "startTimeUnixNano", "start_time_unix_nano") or 0),
        end_ns=(wire.nanoseconds(end, "end time") or None) if end is not None else None,
        attributes=attributes_of(get("attributes"), place, out),
        events=_events(get("events"), place, out),
        scope=scope,
    )


def _either(raw: dict[str, Any], camel: str, snake: str) -> Any:
    value = raw.get(camel)
    return raw.get(snake) if value is None else value


def _status(status: Any, place: str, out: Collector) -> tuple[SpanStatus, str | None]:
    if not wire.is_object(status):
        return wire.status_or_unset(status, place, out), None
    code = wire.status_or_unset(status.get("code"), place, out)
    return code, text(status.get("message")) if code is SpanStatus.ERROR else None


def _events(value: Any, place: str, out: Collector) -> tuple[Event, ...]:
    if not value:
        return ()
    found: list[Event] = []
    for where, raw in _objects(value, f"{place}.events", out):
        try:
            time = _either(raw, "timeUnixNano", "time_unix_nano") or 0
            time_ns = wire.nanoseconds(time, "event time")
            attributes = attributes_of(raw.get("attributes"), where, out)
            found.append(Event(wire.name_of(raw.get("name")), time_ns, attributes))
        except wire.BadValue as error:
            out.problem(where, f"event skipped: {error}")
    return tuple(found)


# -- log records ------------------------------------------------------------------------------


def _read_logs(place: str, group: dict[str, Any], out: Collector) -> None:
    for key in ("logRecords", "log_records"):
        for where, raw in _objects(group.get(key), f"{place}.{key}", out):
            try:
                record = _log(raw, where, out)
            except wire.BadValue as error:
                out.problem(where, f"log record skipped: {error}")
                continue
            if record is not None:
                out.logs.append(record)


def _log(raw: dict[str, Any], place: str, out: Collector) -> LogRecord | None:
    """Return a span's log record; None for one outside any span."""
    span_id = wire.optional_id(_either(raw, "spanId", "span_id"), "span id")
    trace_id = wire.optional_id(_either(raw, "traceId", "trace_id"), "trace id")
    if span_id is None or trace_id is None:
        return None
    time = _either(raw, "timeUnixNano", "time_unix_nano")
    time = time or _either(raw, "observedTimeUnixNano", "observed_time_unix_nano") or 0
    time_ns = wire.nanoseconds(time, "time")
    attributes = attributes_of(raw.get("attributes"), place, out)
    name = text(_either(raw, "eventName", "event_name"))
    event = log_event(name, time_ns, attributes, any_value(raw.get("body")))
    return LogRecord(trace_id, span_id, event)


def log_event(name: str | None, time_ns: int, attributes: dict[str, Any], body: Any) -> Event:
    """Return a log record as a span event; its body is the attribute `body`."""
    if body is not None:
        attributes[BODY_KEY] = body
    return Event(name or text(attributes.get("event.name")) or "log", time_ns, attributes)


# -- attribute values -------------------------------------------------------------------------


def attributes_of(value: Any, place: str, out: Collector) -> dict[str, Any]:
    """Return a list of keys and values as a dict; report invalid entries."""
    if not value:
        return {}
    if wire.is_object(value):  # not OTLP, but unambiguous: already a mapping
        return {key: _unwrapped(held) for key, held in value.items()}
    if not wire.is_array(value):
        out.problem(f"{place}.attributes", f"attributes are not an array but {wire.kind_of(value)}")
        return {}
    found: dict[str, Any] = {}
    for position, entry in enumerate(value):
        try:
            key, wrapped = entry["key"], entry.get("value")
            # Class comparisons and the inlined string case: this loop runs for every attribute.
            if key.__class__ is not str:
                raise wire.BadValue(f"key is not a string but {wire.kind_of(key)}")
            string = wrapped.get("stringValue") if wrapped.__class__ is dict else None
            found[key] = string if string.__class__ is str else any_value(wrapped)
        except (TypeError, KeyError, AttributeError, wire.BadValue) as error:
            why = error if isinstance(error, wire.BadValue) else "not a key with a value"
            out.problem(f"{place}.attributes[{position}]", f"attribute skipped: {why}")
    return found


def _unwrapped(value: Any) -> Any:
    """Return the value in an AnyValue; anything else is itself the value."""
    if not wire.is_object(value) or len(value) != 1:
        return value
    (key,) = value
    return any_value(value) if key.replace("_v", "V") in _VALUE_KEYS else value


def any_value(value: Any) -> Any:
    """Return the value of an AnyValue; some producers write it without the object around it."""
    if not wire.is_object(value):
        return value
    for key, held in value.items():
        # `intValue` in JSON by the specification; some producers write `int_value`, as protobuf.
        match key.replace("_v", "V"):
            case "stringValue" | "boolValue" | "bytesValue":
                return held
            case "intValue" | "doubleValue" as name:
                try:  # text as well: 64-bit integers, "NaN" and "Infinity" are written so
                    return int(held) if name == "intValue" else float(held)
                except (TypeError, ValueError, OverflowError):
                    what = "an integer" if name == "intValue" else "a number"
                    raise wire.BadValue(f"{name} is not {what} but {wire.kind_of(held)}") from None
            case "arrayValue" | "kvlistValue" as name:
                entries = wire.array(held.get("values") if wire.is_object(held) else held, name)
                if name == "arrayValue":
                    return [any_value(entry) for entry in entries]
                if not all(wire.is_object(e) and isinstance(e.get("key"), str) for e in entries):
                    raise wire.BadValue("kvlistValue has an entry without a key")
                return {entry["key"]: any_value(entry.get("value")) for entry in entries}
            case _:
                continue
    if value:
        raise wire.BadValue(f"value of unknown type {next(iter(value))!r}"[:80])
    return None


# -- protobuf -----------------------------------------------------------------------------------


_PROTOBUF_START = b"\x0a"
"""Tag of field 1, length-delimited: `resource_spans` or `resource_logs`, the only field."""

_STATUS_BY_CODE = (SpanStatus.UNSET, SpanStatus.OK, SpanStatus.ERROR)

Signal = Literal["traces", "logs"]

_ID_SIZES = (16, 8)
"""Sizes of a trace id and a span id; others are invalid by the specification."""


def protobuf_reader(data: bytes) -> Callable[[Collector], None] | None:
    """Return what reads the bytes of a file into a collector; None if they are no OTLP request.

    Protobuf skips unknown fields, so a log request also parses as an empty trace request: only one
    in which some span or log record has ids of the right size counts.
    """
    # A cheap test before protobuf is imported and the whole file parsed.
    if not data.startswith(_PROTOBUF_START):
        return None
    if (traces := _request_in(data, "traces")) is not None:
        groups = (group for batch in traces.resource_spans for group in batch.scope_spans)
        if any(_has_valid_ids(span) for group in groups for span in group.spans):
            return partial(_read_span_request, traces)
    if (logs := _request_in(data, "logs")) is not None:
        groups = (group for batch in logs.resource_logs for group in batch.scope_logs)
        if any(_has_valid_ids(record) for group in groups for record in group.log_records):
            return partial(_read_log_request, logs)
    return None


def read_protobuf(data: bytes, signal: Signal, out: Collector) -> bool:
    """Read bytes as an export request of one signal; return whether they are one."""
    request = _request_in(data, signal)
    if request is not None:
        (_read_span_request if signal == "traces" else _read_log_request)(request, out)
    return request is not None


def _request_in(data: bytes, signal: Signal) -> Any:
    """Return the export request of one signal in these bytes; None if they are none."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    try:
        if signal == "traces":
            traces = ExportTraceServiceRequest.FromString(data)
            return traces if traces.resource_spans else None
        logs = ExportLogsServiceRequest.FromString(data)
        return logs if logs.resource_logs else None
    except DecodeError:
        return None


def _has_valid_ids(item: WireSpan | WireLogRecord) -> bool:
    return (len(item.trace_id), len(item.span_id)) == _ID_SIZES


def _read_span_request(request: ExportTraceServiceRequest, out: Collector) -> None:
    for r, batch in enumerate(request.resource_spans):
        resource = _protobuf_attributes(batch.resource.attributes)
        for g, group in enumerate(batch.scope_spans):
            scope = group.scope.name or None
            for s, raw in enumerate(group.spans):
                trace_id, span_id = raw.trace_id, raw.span_id
                if (len(trace_id), len(span_id)) != _ID_SIZES:
                    place = f"resourceSpans[{r}].scopeSpans[{g}].spans[{s}]"
                    out.problem(place, "span skipped: trace id or span id is missing")
                    continue
                span = _protobuf_span(raw, trace_id.hex(), span_id.hex(), scope)
                out.add(span)
                out.resource(span.trace_id, resource)


def _protobuf_span(raw: WireSpan, trace_id: str, span_id: str, scope: str | None) -> Span:
    wire_status = raw.status
    code = wire_status.code
    # Later protocol versions may add codes; protobuf passes unknown ones through.
    status = _STATUS_BY_CODE[code] if code < len(_STATUS_BY_CODE) else SpanStatus.UNSET
    parent = raw.parent_span_id.hex()
    events = [
        Event(event.name, event.time_unix_nano, _protobuf_attributes(event.attributes))
        for event in raw.events
    ]
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent if parent.strip("0") else None,
        name=raw.name,
        status=status,
        error_message=(wire_status.message or None) if status is SpanStatus.ERROR else None,
        start_ns=raw.start_time_unix_nano,
        end_ns=raw.end_time_unix_nano or None,
        attributes=_protobuf_attributes(raw.attributes),
        events=tuple(events),
        scope=scope,
    )


def _read_log_request(request: ExportLogsServiceRequest, out: Collector) -> None:
    for batch in request.resource_logs:
        for group in batch.scope_logs:
            out.logs.extend(_protobuf_log(raw) for raw in group.log_records if _has_valid_ids(raw))


def _protobuf_log(raw: WireLogRecord) -> LogRecord:
    attributes = _protobuf_attributes(raw.attributes)
    body = _protobuf_value(raw.body) if raw.HasField("body") else None
    # Field 12 is newer than our oldest supported bindings.
    name = getattr(raw, "event_name", "") or None
    time = raw.time_unix_nano or raw.observed_time_unix_nano
    return LogRecord(raw.trace_id.hex(), raw.span_id.hex(), log_event(name, time, attributes, body))


def _protobuf_attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        value = pair.value
        # Most values are strings: testing for one is faster than reading the type.
        found[pair.key] = value.string_value or _protobuf_value(value)
    return found


def _protobuf_value(value: AnyValue) -> Any:
    held = value.WhichOneof("value")
    if held is None:
        return None
    if held == "array_value":
        return [_protobuf_value(item) for item in value.array_value.values]
    if held == "kvlist_value":
        return _protobuf_attributes(value.kvlist_value.values)
    if held == "bytes_value":
        return base64.b64encode(value.bytes_value).decode("ascii")
    return getattr(value, held)

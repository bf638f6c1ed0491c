"""Read OTLP protobuf: the bytes of an export request for traces or logs, or of a `TracesData`.

Guarantees: the same spans as the JSON form of the same request; byte values become base64 text, as
in JSON. The generated classes are imported only when a file is not text.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from proctor.trace.assemble import Collector, LogRecord
from proctor.trace.formats.otlp import log_event
from proctor.trace.model import Event, Span, SpanStatus

if TYPE_CHECKING:
    from google.protobuf.message import Message as WireMessage
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
    )
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord as WireLogRecord
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan

NAME = "otlp-protobuf"
ABOUT = "OTLP protobuf (the bytes of an export request)"

_FIRST_BYTE = b"\x0a"
"""Tag of field 1, length-delimited: `resource_spans` or `resource_logs`, the only field."""

_Request = TypeVar("_Request", bound="WireMessage")

_STATUSES = (SpanStatus.UNSET, SpanStatus.OK, SpanStatus.ERROR)

_ID_SIZES = (16, 8)
"""Sizes of a trace id and a span id; others are invalid by the specification."""


def matches(data: bytes) -> bool:
    """Return whether bytes are an export request with at least one span or log record."""
    # A cheap test before protobuf is imported and the whole file parsed.
    if not data.startswith(_FIRST_BYTE):
        return False
    return _traces(data) is not None or _logs(data) is not None


def read(data: bytes, out: Collector) -> None:
    """Read one export request."""
    traces = _traces(data)
    if traces is not None:
        _read_traces(traces, out)
        return
    logs = _logs(data)
    if logs is not None:
        _read_logs(logs, out)


def read_spans(data: bytes, out: Collector) -> bool:
    """Read bytes as an export request of spans; return whether they are one."""
    request = _trace_request(data)
    if request is None or not request.resource_spans:
        return False
    _read_traces(request, out)
    return True


def read_logs(data: bytes, out: Collector) -> bool:
    """Read bytes as an export request of log records; return whether they are one."""
    request = _log_request(data)
    if request is None or not request.resource_logs:
        return False
    _read_logs(request, out)
    return True


def _traces(data: bytes) -> ExportTraceServiceRequest | None:
    """Return the request, if the bytes are one.

    Protobuf skips unknown fields, so a log request also parses as an empty trace request: only one
    in which some span has ids of the right size counts.
    """
    request = _trace_request(data)
    if request is None:
        return None
    spans = (s for r in request.resource_spans for g in r.scope_spans for s in g.spans)
    return request if any(_has_valid_ids(span) for span in spans) else None


def _logs(data: bytes) -> ExportLogsServiceRequest | None:
    request = _log_request(data)
    if request is None:
        return None
    records = (x for r in request.resource_logs for g in r.scope_logs for x in g.log_records)
    return request if any(_has_valid_ids(record) for record in records) else None


def _trace_request(data: bytes) -> ExportTraceServiceRequest | None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
    )

    return _parsed(data, ExportTraceServiceRequest)


def _log_request(data: bytes) -> ExportLogsServiceRequest | None:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

    return _parsed(data, ExportLogsServiceRequest)


def _parsed(data: bytes, kind: type[_Request]) -> _Request | None:
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(data)
    except DecodeError:
        return None


def _has_valid_ids(item: WireSpan | WireLogRecord) -> bool:
    return (len(item.trace_id), len(item.span_id)) == _ID_SIZES


def _read_traces(request: ExportTraceServiceRequest, out: Collector) -> None:
    for r, batch in enumerate(request.resource_spans):
        resource = _attributes(batch.resource.attributes)
        for g, group in enumerate(batch.scope_spans):
            scope = group.scope.name or None
            for s, raw in enumerate(group.spans):
                trace_id, span_id = raw.trace_id, raw.span_id
                if (len(trace_id), len(span_id)) != _ID_SIZES:
                    place = f"resourceSpans[{r}].scopeSpans[{g}].spans[{s}]"
                    out.problem(place, "span skipped: trace id or span id is missing")
                    continue
                span = _span(raw, trace_id.hex(), span_id.hex(), scope)
                out.add(span)
                out.resource(span.trace_id, resource)


def _span(raw: WireSpan, trace_id: str, span_id: str, scope: str | None) -> Span:
    wire_status = raw.status
    code = wire_status.code
    # Later protocol versions may add codes; protobuf passes unknown ones through.
    status = _STATUSES[code] if code < len(_STATUSES) else SpanStatus.UNSET
    parent = raw.parent_span_id.hex()
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent if parent.strip("0") else None,
        name=raw.name,
        status=status,
        error_message=(wire_status.message or None) if status is SpanStatus.ERROR else None,
        start_ns=raw.start_time_unix_nano,
        end_ns=raw.end_time_unix_nano or None,
        attributes=_attributes(raw.attributes),
        events=tuple(
            [
                Event(event.name, event.time_unix_nano, _attributes(event.attributes))
                for event in raw.events
            ]
        ),
        scope=scope,
    )


def _read_logs(request: ExportLogsServiceRequest, out: Collector) -> None:
    for batch in request.resource_logs:
        for group in batch.scope_logs:
            out.logs.extend(_log(raw) for raw in group.log_records if _has_valid_ids(raw))


def _log(raw: WireLogRecord) -> LogRecord:
    attributes = _attributes(raw.attributes)
    body = _value(raw.body) if raw.HasField("body") else None
    # Field 12 is newer than our oldest supported bindings.
    name = getattr(raw, "event_name", "") or None
    time = raw.time_unix_nano or raw.observed_time_unix_nano
    return LogRecord(raw.trace_id.hex(), raw.span_id.hex(), log_event(name, time, attributes, body))


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        value = pair.value
        # Most values are strings: testing for one is faster than reading the type.
        found[pair.key] = value.string_value or _value(value)
    return found


def _value(value: AnyValue) -> Any:
    held = value.WhichOneof("value")
    if held is None:
        return None
    if held == "array_value":
        return [_value(item) for item in value.array_value.values]
    if held == "kvlist_value":
        return _attributes(value.kvlist_value.values)
    if held == "bytes_value":
        return base64.b64encode(value.bytes_value).decode("ascii")
    return getattr(value, held)

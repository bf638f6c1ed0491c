"""Read Jaeger's JSON, from its UI and query API: `data[].spans[]`, or spans, with tags and logs.

Guarantees: microseconds become nanoseconds, tags attributes, logs events, `CHILD_OF` the parent;
the tags that hold OpenTelemetry's status and scope are mapped back.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from proctor.trace import _fields as wire
from proctor.trace.assemble import Collector
from proctor.trace.conventions.values import text
from proctor.trace.model import Event, Span, SpanStatus

NAME = "jaeger"
ABOUT = "Jaeger JSON (data[].spans[] with tags, or a list of such spans)"


def matches(document: Any) -> bool:
    """Return whether a document holds Jaeger traces."""
    found = wire.first_object(document)
    if found is None:
        return False
    trace = wire.first_object(found.get("data")) if "data" in found else found
    if trace is None:
        return False
    span = wire.first_object(trace.get("spans"))
    return _is_span(trace) or (span is not None and _is_span(span))


def _is_span(item: dict[str, Any]) -> bool:
    return "spanID" in item or "operationName" in item


def read(document: Any, out: Collector) -> None:
    """Read a response of the query API, one trace, or a list of either."""
    for place, item in wire.objects(document, "trace", out):
        if "data" in item:
            for inner, trace in wire.items(item["data"]):
                bare = wire.is_object(trace) and _is_span(trace)
                read_one = _read_span if bare else _read_trace
                read_one(f"{place}data{inner}", trace, out)
        elif _is_span(item):
            _read_span(place, item, out)
        else:
            _read_trace(place, item, out)


def _read_span(place: str, raw: Any, out: Collector) -> None:
    span = wire.add_span(place, raw, partial(_span, None), out)
    if span is not None:
        out.resource(span.trace_id, _process(None, raw))


def _read_trace(place: str, trace: Any, out: Collector) -> None:
    if not wire.is_object(trace) or not wire.is_array(trace.get("spans")):
        out.problem(place, "trace has no array of spans")
        return
    dot = f"{place}." if place else ""
    processes = trace.get("processes")
    read_span = partial(_span, trace.get("traceID"))
    for position, raw in enumerate(trace["spans"]):
        span = wire.add_span(f"{dot}spans[{position}]", raw, read_span, out)
        if span is not None:
            out.resource(span.trace_id, _process(processes, raw))


def _span(trace_id: Any, raw: dict[str, Any]) -> Span:
    start = microseconds(raw.get("startTime"), "start time")
    duration = raw.get("duration")
    attributes = _tags(raw.get("tags"))
    status, message = status_of_tags(attributes)
    scope = attributes.get("otel.scope.name") or attributes.get("otel.library.name")
    return Span(
        trace_id=wire.hex_id(raw.get("traceID") or trace_id, "trace id"),
        span_id=wire.hex_id(raw.get("spanID")),
        parent_id=_parent(raw),
        name=wire.name_of(raw.get("operationName")),
        status=status,
        error_message=message,
        start_ns=start,
        end_ns=None if duration is None else start + microseconds(duration, "duration"),
        attributes=attributes,
        events=tuple(_event(log) for log in wire.array(raw.get("logs"), "logs")),
        scope=text(scope),
    )


def microseconds(value: Any, what: str) -> int:
    """Return nanoseconds of a number of microseconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wire.BadValue(f"{what} is not a number of microseconds but {wire.kind_of(value)}")
    try:
        return wire.in_range(int(value * 1000), what)
    except (OverflowError, ValueError):
        raise wire.BadValue(f"{what} is out of range") from None


def _parent(raw: dict[str, Any]) -> str | None:
    """Return the parent: `CHILD_OF` before `FOLLOWS_FROM`; old files use parentSpanID."""
    references = [r for r in wire.array(raw.get("references"), "references") if wire.is_object(r)]
    references.sort(key=lambda reference: reference.get("refType") != "CHILD_OF")
    for reference in references:
        found = wire.optional_id(reference.get("spanID"))
        if found is not None:
            return found
    return wire.optional_id(raw.get("parentSpanID"))


def status_of_tags(attributes: dict[str, Any]) -> tuple[SpanStatus, str | None]:
    """Return the status and its message from OpenTelemetry's tags."""
    code = attributes.get("otel.status_code")
    status = wire.status_of(code) if isinstance(code, str) else SpanStatus.UNSET
    # Clients older than OpenTelemetry mark a failure only with this tag.
    if status is SpanStatus.UNSET and attributes.get("error") in (True, "true"):
        status = SpanStatus.ERROR
    message = text(attributes.get("otel.status_description"))
    return status, message if status is SpanStatus.ERROR else None


def _event(log: Any) -> Event:
    if not wire.is_object(log):
        raise wire.BadValue(f"log is not an object but {wire.kind_of(log)}")
    fields = _tags(log.get("fields"))
    name = fields.pop("event", None)
    time = log.get("timestamp")
    return Event(
        name=text(name) or "log",
        time_ns=0 if time is None else microseconds(time, "log time"),
        attributes=fields,
    )


def _tags(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for tag in wire.array(value, "tags"):
        if not wire.is_object(tag) or not isinstance(tag.get("key"), str):
            raise wire.BadValue("tag without a key")
        held = tag.get("value")
        # JavaScript cannot hold 64-bit integers, so Jaeger may write them as text.
        if tag.get("type") == "int64" and isinstance(held, str):
            held = int(held) if held.removeprefix("-").isdecimal() else held
        found[tag["key"]] = held
    return found


def _process(processes: Any, raw: dict[str, Any]) -> dict[str, Any]:
    """Return the process of a span as resource attributes."""
    process: Any = raw.get("process")
    name = raw.get("processID")
    if wire.is_object(processes) and isinstance(name, str):
        process = processes.get(name)
    if not wire.is_object(process):
        return {}
    # A bad process tag is not worth losing the span.
    try:
        tags = _tags(process.get("tags"))
    except wire.BadValue:
        tags = {}
    service = text(process.get("serviceName"))
    return {"service.name": service, **tags} if service else tags

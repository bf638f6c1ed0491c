"""Read Jaeger's JSON, from its UI and query API: `data[].spans[]` with tags and logs.

Guarantees: microseconds become nanoseconds, tags attributes, logs events, `CHILD_OF` the parent;
the tags that hold OpenTelemetry's status and scope are mapped back.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from proctor.trace._fields import (
    BadValue,
    add_span,
    array,
    first_object,
    hex_id,
    in_range,
    is_array,
    is_object,
    items,
    kind_of,
    name_of,
    objects,
    optional_id,
    status_of,
)
from proctor.trace.assemble import Collector
from proctor.trace.conventions.values import text
from proctor.trace.model import Event, Span, SpanStatus

NAME = "jaeger"
ABOUT = "Jaeger JSON (data[].spans[] with tags)"


def matches(document: Any) -> bool:
    """Return whether a document holds Jaeger traces."""
    found = first_object(document)
    if found is None:
        return False
    trace = first_object(found.get("data")) if "data" in found else found
    if trace is None:
        return False
    span = first_object(trace.get("spans"))
    return span is not None and any(key in span for key in ("spanID", "operationName"))


def read(document: Any, out: Collector) -> None:
    """Read a response of the query API, one trace, or a list of either."""
    for place, item in objects(document, "trace", out):
        if "data" in item:
            for inner, trace in items(item["data"]):
                _read_trace(f"{place}data{inner}", trace, out)
        else:
            _read_trace(place, item, out)


def _read_trace(place: str, trace: Any, out: Collector) -> None:
    if not is_object(trace) or not is_array(trace.get("spans")):
        out.problem(place, "trace has no array of spans")
        return
    dot = f"{place}." if place else ""
    processes = trace.get("processes")
    read_span = partial(_span, trace.get("traceID"))
    for position, raw in enumerate(trace["spans"]):
        span = add_span(f"{dot}spans[{position}]", raw, read_span, out)
        if span is not None:
            out.resource(span.trace_id, _process(processes, raw))


def _span(trace_id: Any, raw: dict[str, Any]) -> Span:
    start = _microseconds(raw.get("startTime"), "start time")
    duration = raw.get("duration")
    attributes = _tags(raw.get("tags"))
    status, message = _status(attributes)
    scope = attributes.get("otel.scope.name") or attributes.get("otel.library.name")
    return Span(
        trace_id=hex_id(raw.get("traceID") or trace_id, "trace id"),
        span_id=hex_id(raw.get("spanID")),
        parent_id=_parent(raw),
        name=name_of(raw.get("operationName")),
        status=status,
        error_message=message,
        start_ns=start,
        end_ns=None if duration is None else start + _microseconds(duration, "duration"),
        attributes=attributes,
        events=tuple(_event(log) for log in array(raw.get("logs"), "logs")),
        scope=text(scope),
    )


def _microseconds(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadValue(f"{what} is not a number of microseconds but {kind_of(value)}")
    try:
        return in_range(int(value * 1000), what)
    except (OverflowError, ValueError):
        raise BadValue(f"{what} is out of range") from None


def _parent(raw: dict[str, Any]) -> str | None:
    """Return the parent: `CHILD_OF` before `FOLLOWS_FROM`; old files use parentSpanID."""
    references = [r for r in array(raw.get("references"), "references") if is_object(r)]
    references.sort(key=lambda reference: reference.get("refType") != "CHILD_OF")
    for reference in references:
        found = optional_id(reference.get("spanID"))
        if found is not None:
            return found
    return optional_id(raw.get("parentSpanID"))


def _status(attributes: dict[str, Any]) -> tuple[SpanStatus, str | None]:
    code = attributes.get("otel.status_code")
    status = status_of(code) if isinstance(code, str) else SpanStatus.UNSET
    # Clients older than OpenTelemetry mark a failure only with this tag.
    if status is SpanStatus.UNSET and attributes.get("error") in (True, "true"):
        status = SpanStatus.ERROR
    message = text(attributes.get("otel.status_description"))
    return status, message if status is SpanStatus.ERROR else None


def _event(log: Any) -> Event:
    if not is_object(log):
        raise BadValue(f"log is not an object but {kind_of(log)}")
    fields = _tags(log.get("fields"))
    name = fields.pop("event", None)
    time = log.get("timestamp")
    return Event(
        name=text(name) or "log",
        time_ns=0 if time is None else _microseconds(time, "log time"),
        attributes=fields,
    )


def _tags(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for tag in array(value, "tags"):
        if not is_object(tag) or not isinstance(tag.get("key"), str):
            raise BadValue("tag without a key")
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
    if is_object(processes) and isinstance(name, str):
        process = processes.get(name)
    if not is_object(process):
        return {}
    # A bad process tag is not worth losing the span.
    try:
        tags = _tags(process.get("tags"))
    except BadValue:
        tags = {}
    service = text(process.get("serviceName"))
    return {"service.name": service, **tags} if service else tags

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
    span = wire.add_span(place, raw, partial(_span, None, place, out), out)
    if span is not None:
        out.resource(span.trace_id, _process(None, raw, place, out))


def _read_trace(place: str, trace: Any, out: Collector) -> None:
    if not wire.is_object(trace) or not wire.is_array(trace.get("spans")):
        out.problem(place, "trace has no array of spans")
        return
    dot = f"{place}." if place else ""
    processes = trace.get("processes")
    for position, raw in enumerate(trace["spans"]):
        where = f"{dot}spans[{position}]"
        read_span = partial(_span, trace.get("traceID"), where, out)
        span = wire.add_span(where, raw, read_span, out)
        if span is not None:
            out.resource(span.trace_id, _process(processes, raw, where, out))


def _span(trace_id: Any, place: str, out: Collector, raw: dict[str, Any]) -> Span:
    start = wire.microseconds(raw.get("startTime") or 0, "start time")
    duration = raw.get("duration")
    attributes = _tags(raw.get("tags"), place, out)
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
        end_ns=None if duration is None else start + wire.microseconds(duration, "duration"),
        attributes=attributes,
        events=_events(raw.get("logs"), place, out),
        scope=text(scope),
    )


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
    """Return the status and its message from OpenTelemetry's tags, which stay attributes."""
    try:
        status = wire.status_of(attributes.get("otel.status_code"))
    except wire.BadValue:
        status = SpanStatus.UNSET
    # Clients older than OpenTelemetry mark a failure only with this tag.
    if status is SpanStatus.UNSET and attributes.get("error") in (True, "true"):
        status = SpanStatus.ERROR
    message = text(attributes.get("otel.status_description"))
    return status, message if status is SpanStatus.ERROR else None


def _events(logs: Any, place: str, out: Collector) -> tuple[Event, ...]:
    found: list[Event] = []
    for where, log in wire.objects(wire.array(logs, "logs"), "log", out, f"{place}.logs"):
        fields = _tags(log.get("fields"), where, out)
        try:
            time_ns = wire.microseconds(log.get("timestamp") or 0, "log time")
        except wire.BadValue as error:
            out.problem(where, f"log without its time: {error}")
            time_ns = 0
        name = text(fields.pop("event", None))
        found.append(Event(name=name or "log", time_ns=time_ns, attributes=fields))
    return tuple(found)


def _tags(value: Any, place: str, out: Collector) -> dict[str, Any]:
    if wire.is_object(value):  # as Jaeger's stores keep them
        return dict(value)
    found: dict[str, Any] = {}
    for position, tag in enumerate(wire.array(value, "tags")):
        if not wire.is_object(tag) or not isinstance(tag.get("key"), str):
            out.problem(f"{place}.tags[{position}]", "tag skipped: it has no key")
            continue
        held = tag.get("value")
        # JavaScript cannot hold 64-bit integers, so Jaeger may write them as text.
        if tag.get("type") == "int64" and isinstance(held, str):
            held = int(held) if held.removeprefix("-").isdecimal() else held
        found[tag["key"]] = held
    return found


def _process(processes: Any, raw: dict[str, Any], place: str, out: Collector) -> dict[str, Any]:
    """Return the process of a span as resource attributes."""
    process: Any = raw.get("process")
    name = raw.get("processID")
    if wire.is_object(processes) and isinstance(name, str):
        process = processes.get(name)
    if not wire.is_object(process):
        return {}
    # A bad process tag is not worth losing the span.
    try:
        tags = _tags(process.get("tags"), f"{place}.process", out)
    except wire.BadValue:
        tags = {}
    service = text(process.get("serviceName"))
    return {"service.name": service, **tags} if service else tags

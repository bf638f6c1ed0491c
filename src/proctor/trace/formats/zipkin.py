"""Read Zipkin's JSON, versions 1 and 2: a list of spans, or of traces.

Guarantees: microseconds become nanoseconds, tags attributes, annotations events; the tags that hold
OpenTelemetry's status and scope are mapped back. Zipkin's tags are all text, and so stay text.
"""

from __future__ import annotations

from typing import Any

from proctor.trace import _fields as wire
from proctor.trace.assemble import Collector
from proctor.trace.conventions.values import text
from proctor.trace.formats.jaeger import status_of_tags
from proctor.trace.model import Event, Span

NAME = "zipkin"
ABOUT = "Zipkin JSON (spans with id, traceId and tags)"

_MARKS = ("localEndpoint", "timestamp", "tags", "annotations", "binaryAnnotations", "parentId")


def matches(document: Any) -> bool:
    """Return whether a document holds Zipkin spans."""
    if wire.is_array(document) and document and wire.is_array(document[0]):
        document = document[0]
    found = wire.first_object(document)
    # Langfuse's observations have both ids, too, and a type.
    return (
        found is not None
        and "traceId" in found
        and "id" in found
        and "type" not in found
        and "attributes" not in found
        and any(mark in found for mark in _MARKS)
    )


def read(document: Any, out: Collector) -> None:
    """Read one span, a list of spans, or a list of traces."""
    for place, item in wire.items(document):
        for inner, raw in wire.items(item):
            span = wire.add_span(f"{place}{inner}", raw, _span, out)
            if span is not None:
                endpoint: Any = raw.get("localEndpoint")
                service = text(endpoint.get("serviceName")) if wire.is_object(endpoint) else None
                out.resource(span.trace_id, {"service.name": service} if service else {})


def _span(raw: dict[str, Any]) -> Span:
    start = wire.microseconds(raw.get("timestamp") or 0, "timestamp")
    duration, tags = raw.get("duration"), raw.get("tags")
    if tags is not None and not wire.is_object(tags):
        raise wire.BadValue(f"tags is not an object but {wire.kind_of(tags)}")
    attributes = dict(tags or {})
    for tag in wire.array(raw.get("binaryAnnotations"), "binaryAnnotations"):  # version 1
        if wire.is_object(tag) and isinstance(tag.get("key"), str):
            attributes.setdefault(tag["key"], tag.get("value"))
    if "error" in attributes:  # its value is the message
        attributes = {"otel.status_description": attributes["error"], **attributes, "error": "true"}
    status, message = status_of_tags(attributes)
    events: list[Event] = []
    for note in wire.array(raw.get("annotations"), "annotations"):
        if wire.is_object(note):
            time = wire.microseconds(note.get("timestamp") or 0, "annotation time")
            events.append(Event(name=text(note.get("value")) or "annotation", time_ns=time))
    return Span(
        trace_id=wire.hex_id(raw.get("traceId"), "trace id"),
        span_id=wire.hex_id(raw.get("id")),
        parent_id=wire.optional_id(raw.get("parentId")),
        name=wire.name_of(raw.get("name")),
        status=status,
        error_message=message,
        start_ns=start,
        end_ns=None if duration is None else start + wire.microseconds(duration, "duration"),
        attributes=attributes,
        events=tuple(events),
        scope=text(attributes.get("otel.scope.name") or attributes.get("otel.library.name")),
    )

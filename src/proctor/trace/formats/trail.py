"""Read TRAIL: one trace per file, spans nested in `child_spans`, OpenInference attributes as text.

Guarantees: nested spans are read at any depth, with the parent they name (or are nested in); ISO
times and durations become nanoseconds; log records become events of their span.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from proctor.trace import _fields as wire
from proctor.trace.assemble import Collector
from proctor.trace.conventions.values import text
from proctor.trace.formats.otlp import log_event
from proctor.trace.model import Event, Span

NAME = "trail"
ABOUT = "TRAIL (spans nested in child_spans)"

_OWN_KEYS = ("child_spans", "span_attributes", "span_name")


def matches(document: Any) -> bool:
    """Return whether a document holds spans nested as in TRAIL."""
    trace = wire.first_object(document)
    span = wire.first_object(trace.get("spans")) if trace else None
    return span is not None and any(key in span for key in _OWN_KEYS)


def read(document: Any, out: Collector) -> None:
    """Read one trace or a list of them."""
    for place, trace in wire.objects(document, "trace", out):
        _read_trace(f"{place}." if place else "", trace, out)


def _read_trace(dot: str, trace: dict[str, Any], out: Collector) -> None:
    # A stack instead of recursion: the file decides how deep spans nest.
    waiting: list[tuple[str, Any, str | None]] = []
    _push(waiting, f"{dot}spans", trace.get("spans"), None, out)
    while waiting:
        place, raw, parent = waiting.pop()
        read_span = partial(_span, trace.get("trace_id"), parent, place, out)
        span = wire.add_span(place, raw, read_span, out)
        if not wire.is_object(raw):
            continue
        resource = raw.get("resource_attributes")
        if span is not None and wire.is_object(resource):
            out.resource(span.trace_id, resource)
        # Children of an unreadable span move up to its parent instead of being lost.
        below = parent if span is None else span.span_id
        _push(waiting, f"{place}.child_spans", raw.get("child_spans"), below, out)


def _push(
    waiting: list[tuple[str, Any, str | None]],
    place: str,
    children: Any,
    parent: str | None,
    out: Collector,
) -> None:
    """Push the spans of an array on the stack, so that the first is popped first."""
    try:
        found = wire.array(children, "child_spans")
    except wire.BadValue as error:
        out.problem(place, f"spans skipped: {error}")
        return
    waiting.extend(
        (f"{place}[{position}]", found[position], parent)
        for position in range(len(found) - 1, -1, -1)
    )


def _span(
    trace_id: Any, parent: str | None, place: str, out: Collector, raw: dict[str, Any]
) -> Span:
    get = raw.get
    # Traces written by hand have no times: their spans keep the order of the file.
    start = wire.moment(get("timestamp") or 0)
    end = None
    if start and (duration := get("duration")) is not None:
        end = wire.in_range(start + wire.iso_duration_ns(duration), "end time")
    attributes = get("span_attributes")
    if attributes is not None and not wire.is_object(attributes):
        raise wire.BadValue(f"span_attributes is not an object but {wire.kind_of(attributes)}")
    return Span(
        trace_id=wire.hex_id(get("trace_id") or trace_id, "trace id"),
        span_id=wire.hex_id(get("span_id")),
        parent_id=wire.optional_id(get("parent_span_id")) or parent,
        name=wire.name_of(get("span_name")),
        status=wire.status_or_unset(get("status_code"), place, out),
        error_message=text(get("status_message")),
        start_ns=start,
        end_ns=end,
        attributes=attributes or {},
        events=_events(get("events"), get("logs")),
        scope=text(get("scope_name")),
    )


def _events(events: Any, logs: Any) -> tuple[Event, ...]:
    if not events and not logs:
        return ()
    found: list[Event] = []
    for raw in wire.array(events, "events"):
        time_ns, attributes = _record(raw, "event", "Timestamp", "Attributes")
        found.append(Event(wire.name_of(raw.get("Name")), time_ns, attributes))
    for raw in wire.array(logs, "logs"):
        time_ns, attributes = _record(raw, "log", "timestamp", "log_attributes")
        found.append(log_event(None, time_ns, dict(attributes), raw.get("body")))
    return tuple(found)


def _record(raw: Any, what: str, time_key: str, attributes_key: str) -> tuple[int, dict[str, Any]]:
    if not wire.is_object(raw):
        raise wire.BadValue(f"{what} is not an object but {wire.kind_of(raw)}")
    time, attributes = raw.get(time_key), raw.get(attributes_key)
    time_ns = 0 if time is None else wire.iso_ns(time, f"{what} time")
    return time_ns, attributes if wire.is_object(attributes) else {}

"""Read TRAIL: one trace per file, spans nested in `child_spans`, OpenInference attributes as text.

Guarantees: nested spans are read at any depth, with the parent they name (or are nested in); ISO
times and durations become nanoseconds; log records become events of their span.
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
    is_object,
    iso_duration_ns,
    iso_ns,
    kind_of,
    name_of,
    objects,
    optional_id,
    status_of,
)
from proctor.trace.assemble import Collector
from proctor.trace.conventions.values import text
from proctor.trace.formats.otlp import log_event
from proctor.trace.model import Event, Span, SpanStatus

NAME = "trail"
ABOUT = "TRAIL (spans nested in child_spans)"

_OWN_KEYS = ("child_spans", "span_attributes", "span_name")


def matches(document: Any) -> bool:
    """Return whether a document holds spans nested as in TRAIL."""
    trace = first_object(document)
    span = first_object(trace.get("spans")) if trace else None
    return span is not None and any(key in span for key in _OWN_KEYS)


def read(document: Any, out: Collector) -> None:
    """Read one trace or a list of them."""
    for place, trace in objects(document, "trace", out):
        _read_trace(f"{place}." if place else "", trace, out)


def _read_trace(dot: str, trace: dict[str, Any], out: Collector) -> None:
    # A stack instead of recursion: the file decides how deep spans nest.
    waiting: list[tuple[str, Any, str | None]] = []
    _push(waiting, f"{dot}spans", trace.get("spans"), None, out)
    while waiting:
        place, raw, parent = waiting.pop()
        span = add_span(place, raw, partial(_span, trace.get("trace_id"), parent), out)
        if not is_object(raw):
            continue
        resource = raw.get("resource_attributes")
        if span is not None and is_object(resource):
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
        found = array(children, "child_spans")
    except BadValue as error:
        out.problem(place, f"spans skipped: {error}")
        return
    waiting.extend(
        (f"{place}[{position}]", found[position], parent)
        for position in range(len(found) - 1, -1, -1)
    )


def _span(trace_id: Any, parent: str | None, raw: dict[str, Any]) -> Span:
    get = raw.get
    start = iso_ns(get("timestamp"))
    duration = get("duration")
    attributes = get("span_attributes")
    if attributes is not None and not is_object(attributes):
        raise BadValue(f"span_attributes is not an object but {kind_of(attributes)}")
    status = status_of(get("status_code"))
    end = None if duration is None else in_range(start + iso_duration_ns(duration), "end time")
    return Span(
        trace_id=hex_id(get("trace_id") or trace_id, "trace id"),
        span_id=hex_id(get("span_id")),
        parent_id=optional_id(get("parent_span_id")) or parent,
        name=name_of(get("span_name")),
        status=status,
        error_message=text(get("status_message")) if status is SpanStatus.ERROR else None,
        start_ns=start,
        end_ns=end,
        attributes=attributes or {},
        events=_events(get("events"), get("logs")),
        scope=text(get("scope_name")),
    )


def _events(events: Any, logs: Any) -> tuple[Event, ...]:
    if not events and not logs:
        return ()
    found = [_event(raw) for raw in array(events, "events")]
    found.extend(_log(raw) for raw in array(logs, "logs"))
    return tuple(found)


def _event(raw: Any) -> Event:
    if not is_object(raw):
        raise BadValue(f"event is not an object but {kind_of(raw)}")
    time, attributes = raw.get("Timestamp"), raw.get("Attributes")
    return Event(
        name=name_of(raw.get("Name")),
        time_ns=0 if time is None else iso_ns(time, "event time"),
        attributes=attributes if is_object(attributes) else {},
    )


def _log(raw: Any) -> Event:
    if not is_object(raw):
        raise BadValue(f"log is not an object but {kind_of(raw)}")
    time, attributes = raw.get("timestamp"), raw.get("log_attributes")
    return log_event(
        None,
        0 if time is None else iso_ns(time, "log time"),
        dict(attributes) if is_object(attributes) else {},
        raw.get("body"),
    )

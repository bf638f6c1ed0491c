"""Read flat spans as SDKs and test tools dump them: a list, one object, or one per line.

Supports snake and camel case, `context` (Python SDK, Phoenix) and `spanContext` (JS SDK), times as
numbers of any unit, ISO text or [seconds, nanoseconds], attributes nested or with dots (also as
columns of Phoenix's data frames), bodies moved to `span_events` (ADOT), and the envelope
`{info, data: {spans}}` of MLflow. A bare bag of `gen_ai.*` or `openinference.*` attributes is a
trace of one span without times.
"""

from __future__ import annotations

from typing import Any

from proctor.trace import _fields as wire
from proctor.trace.assemble import Collector
from proctor.trace.conventions.values import first, parsed, text
from proctor.trace.formats.otlp import attributes_of, log_event
from proctor.trace.model import Event, Span, SpanStatus

NAME = "spans"
ABOUT = "flat spans (a list or one per line; Python and JS SDK dumps, Phoenix, MLflow, bags)"

_CONTEXTS = ("context", "spanContext", "span_context")
_SPAN_IDS = ("span_id", "spanId")
_TRACE_IDS = ("trace_id", "traceId")
_PARENT_IDS = ("parent_span_id", "parentSpanId", "parent_id", "parentId")
_STARTS = ("start_time", "startTime", "start_time_unix_nano", "startTimeUnixNano")
_ENDS = ("end_time", "endTime", "end_time_unix_nano", "endTimeUnixNano")
_EVENT_TIMES = ("timestamp", "time", "time_unix_nano", "timeUnixNano")
_SCOPES = ("scope", "instrumentation_scope", "instrumentationScope", "instrumentationLibrary")

_BAG_PREFIXES = (
    "gen_ai.",
    "openinference.",
    "llm.",
    "traceloop.",
    "langfuse.",
    "logfire.",
    "gcp.vertex.agent.",
    "ai.operationId",
    "mlflow.",
    "proctor.",
)
"""Attribute names that only an instrumented span has."""

_NESTED = frozenset(
    "gen_ai openinference llm input output tool retrieval reranker embedding agent session user "
    "message message_content tool_call document traceloop langfuse mlflow".split()
)
"""First segments of attributes that some exports nest: `{"llm": {"model_name": …}}`."""

_LEAVES = frozenset(
    "arguments result value parameters json_schema invocation_parameters metadata".split()
)
"""Last segments whose values may be objects or arrays themselves."""


def matches(document: Any) -> bool:
    """Return whether a document holds flat spans or the bare attributes of one."""
    item = wire.first_object(document)
    if item is None:
        return False
    wrapped = _wrapped(item)
    found = item if wrapped is None else wire.first_object(wrapped[1])
    return found is not None and (_is_span(found) or _is_bag(found))


def read(document: Any, out: Collector) -> None:
    """Read spans; each attribute bag becomes a separate trace."""
    found: list[tuple[str, Any]] = []
    for place, item in wire.items(document):
        wrapped = _wrapped(item) if wire.is_object(item) else None
        if wrapped is None:
            found.append((place, item))
            continue
        key, spans = wrapped
        dot = f"{place}." if place else ""
        outer = first(item, _TRACE_IDS)
        for inner, span in wire.items(spans):
            alone = wire.is_object(span) and _is_span(span) and first(span, _TRACE_IDS) is None
            found.append((f"{dot}{key}{inner}", {**span, "trace_id": outer} if alone else span))
    # Of one span alone it could not be said whether 1,700,000,000 are seconds or nanoseconds.
    starts = [first(span, _STARTS[:2]) for _, span in found if wire.is_object(span)]
    unit = 10**9 if starts and all(wire.is_seconds(start) for start in starts) else 1
    for place, span in found:
        _read_span(place, span, unit, out)


def _wrapped(item: dict[str, Any]) -> tuple[str, Any] | None:
    """Return the array of spans inside an object that is no span itself."""
    if not _is_span(item):
        inner: Any = parsed(item.get("data"))
        if wire.is_object(inner) and wire.is_array(inner.get("spans")):
            return "data.spans", inner["spans"]
        for key in ("spans", "data"):
            if isinstance(item.get(key), list):
                return key, item[key]
    return None


def _is_span(item: dict[str, Any]) -> bool:
    if any(key in item for key in (*_SPAN_IDS, *_TRACE_IDS)):
        return ("name" in item or "attributes" in item) and "spans" not in item
    if "context.span_id" in item:
        return True
    contexts = (item.get(key) for key in _CONTEXTS)
    return any(wire.is_object(each) and any(key in each for key in _SPAN_IDS) for each in contexts)


def _is_bag(item: dict[str, Any]) -> bool:
    return any(key.startswith(_BAG_PREFIXES) for key in item)


def _read_span(place: str, raw: Any, unit: int, out: Collector) -> None:
    def read_one(item: dict[str, Any]) -> Span:
        return _span(item, place, unit, out) if _is_span(item) else _bag(item, out)

    span = wire.add_span(place, raw, read_one, out)
    if span is not None:
        out.resource(span.trace_id, _resource(raw, place, out))


def _bag(raw: dict[str, Any], out: Collector) -> Span:
    if not _is_bag(raw):
        raise wire.BadValue("span id is missing")
    words = (
        raw.get("gen_ai.operation.name") or raw.get("openinference.span.kind"),
        raw.get("gen_ai.tool.name")
        or raw.get("tool.name")
        or raw.get("gen_ai.request.model")
        or raw.get("llm.model_name"),
    )
    name = " ".join(word for word in words if isinstance(word, str))
    # From the content, so that loading a file twice gives the same ids.
    trace_id = wire.content_id(raw, len(out.traces))
    return Span(trace_id=trace_id, span_id=trace_id[:16], name=name or "span", attributes=raw)


def _span(raw: dict[str, Any], place: str, unit: int, out: Collector) -> Span:
    def moment(value: Any, what: str) -> int:
        return wire.moment(
            int(value) * unit if unit > 1 and wire.is_seconds(value) else value, what
        )

    if "context.span_id" in raw:
        raw = _from_columns(raw)
    context = next((raw[key] for key in _CONTEXTS if wire.is_object(raw.get(key))), raw)
    parent = first(raw, _PARENT_IDS)
    if parent is None:
        outer: Any = raw.get("parentSpanContext")
        parent = first(outer, _SPAN_IDS) if wire.is_object(outer) else None
    end = first(raw, _ENDS)
    status, message = _status(raw, place, out)
    return Span(
        trace_id=wire.hex_id(first(context, _TRACE_IDS) or first(raw, _TRACE_IDS), "trace id"),
        span_id=wire.hex_id(first(context, _SPAN_IDS) or first(raw, _SPAN_IDS)),
        parent_id=wire.optional_id(parent),
        name=wire.name_of(raw.get("name")),
        status=status,
        error_message=message,
        start_ns=moment(first(raw, _STARTS) or 0, "start time"),
        end_ns=None if end is None else moment(end, "end time") or None,
        attributes=_attributes(raw, place, out),
        events=tuple(
            _event(event, place, out)
            for key in ("events", "span_events")
            for event in wire.array(raw.get(key), key)
        ),
        scope=_scope(raw),
    )


def _from_columns(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a span from a row of Phoenix's data frame, whose columns are paths with dots."""
    found: dict[str, Any] = {"context": {}, "attributes": {}}
    for key, value in raw.items():
        head, dot, rest = key.partition(".")
        if dot and head in ("context", "attributes"):
            # A data frame has a value for each column, also where the span has none.
            if value is not None:
                found[head][rest] = value
        else:
            found[key] = value
    return found


def _flattened(key: str, value: Any, found: dict[str, Any]) -> None:
    """Add an attribute by its name with dots; number arrays of objects, as OpenInference does."""
    if key.rpartition(".")[2] in _LEAVES:
        found[key] = value
    elif wire.is_object(value) and value:
        for inner, held in value.items():
            _flattened(f"{key}.{inner}", held, found)
    elif (
        wire.is_array(value)
        and not key.startswith("gen_ai.")
        and all(wire.is_object(item) for item in value)
    ):
        for position, held in enumerate(value):
            _flattened(f"{key}.{position}", held, found)
    else:
        found[key] = value


def _attributes(raw: dict[str, Any], place: str, out: Collector) -> dict[str, Any]:
    given = attributes_of(parsed(raw.get("attributes")), place, out)
    found: dict[str, Any] = {}
    for key, value in given.items():
        if isinstance(value, dict | list) and key.partition(".")[0] in _NESTED:
            _flattened(key, value, found)
        else:
            found[key] = value
    kind = text(raw.get("span_kind"))
    if kind and kind.isupper() and "openinference.span.kind" not in found:
        # Phoenix stores the OpenInference kind next to the attributes.
        return {**found, "openinference.span.kind": kind}
    return found


def _status(raw: dict[str, Any], place: str, out: Collector) -> tuple[SpanStatus, str | None]:
    status: Any = raw.get("status")
    if wire.is_object(status):
        code = first(status, ("code", "status_code", "statusCode"))
        message = first(status, ("message", "description", "status_message"))
    else:
        code = raw.get("status_code") if status is None else status
        message = raw.get("status_message")
    found = wire.status_or_unset(code, place, out)
    return found, text(message) if found is SpanStatus.ERROR else None


def _event(raw: Any, place: str, out: Collector) -> Event:
    if not wire.is_object(raw):
        raise wire.BadValue(f"event is not an object but {wire.kind_of(raw)}")
    attributes = dict(attributes_of(raw.get("attributes"), place, out))
    name = first(raw, ("name", "event_name", "eventName"))
    time = wire.moment(first(raw, _EVENT_TIMES) or 0, "event time")
    return log_event(text(name), time, attributes, raw.get("body"))


def _scope(raw: dict[str, Any]) -> str | None:
    scope = first(raw, _SCOPES)
    if wire.is_object(scope):
        return text(scope.get("name"))
    return text(scope) or text(raw.get("scope_name"))


def _resource(raw: dict[str, Any], place: str, out: Collector) -> dict[str, Any]:
    resource: Any = raw.get("resource")
    if wire.is_object(resource):
        return attributes_of(resource.get("attributes"), place, out)
    resource = raw.get("resource_attributes")
    return resource if wire.is_object(resource) else {}

"""Read Langfuse exports: a trace with its observations, from the UI or the public API.

Guarantees: `{trace, observations}`, observations nested in the trace, and lists of either give the
same result; JSON inside strings is decoded; scores stay in `metadata["scores"]`. An observation's
fields become `langfuse.observation.*` attributes, the names its SDK uses over OTLP, so that one
dialect reads both.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from proctor.trace import _fields as wire
from proctor.trace.assemble import Collector
from proctor.trace.conventions.values import parsed, text
from proctor.trace.model import Span, Trace

NAME = "langfuse"
ABOUT = "Langfuse exports (a trace with its observations)"

_OBSERVATION_KEYS = ("id", "traceId", "type", "startTime")

_CAMEL = re.compile(r"_([a-z])")

_USAGE = "langfuse.observation.usage_details"
_COST = "langfuse.observation.cost_details"

_AS_ATTRIBUTES = {
    "langfuse.observation.type": ("type",),
    "langfuse.observation.input": ("input",),
    "langfuse.observation.output": ("output",),
    "langfuse.observation.level": ("level",),
    "langfuse.observation.status_message": ("statusMessage",),
    "langfuse.observation.model.name": ("model", "providedModelName"),
    "langfuse.observation.model.parameters": ("modelParameters",),
    _USAGE: ("usageDetails", "usage"),
    _COST: ("costDetails",),
    "langfuse.observation.prompt.name": ("promptName",),
    "langfuse.observation.prompt.version": ("promptVersion",),
    "langfuse.observation.completion_start_time": ("completionStartTime",),
    "langfuse.version": ("version",),
    "langfuse.environment": ("environment",),
}
"""Attribute of Langfuse's SDK → equivalent fields of an observation."""

_USAGE_COLUMNS = {"input": "inputUsage", "output": "outputUsage", "total": "totalUsage"}
_OLD_USAGE_COLUMNS = {"input": "promptTokens", "output": "completionTokens", "total": "totalTokens"}

_TRACE_FACTS = ("name", "tags", "release", "version", "environment", "public", "bookmarked")


def matches(document: Any) -> bool:
    """Return whether a document holds Langfuse traces."""
    found = wire.first_object(document)
    if found is None:
        return False
    if wire.is_object(found.get("trace")) and "observations" in found:
        return True
    if wire.is_array(found.get("data")):
        found = wire.first_object(found["data"]) or found
    if not wire.is_array(found.get("observations")) or "id" not in found:
        return _is_observation(found)
    observation = wire.first_object(found["observations"])
    # Nested observations need not repeat the id of their trace.
    return observation is None or _is_observation({"traceId": None, **observation})


def _is_observation(item: dict[str, Any]) -> bool:
    item = _camel_case(item)
    return all(key in item for key in _OBSERVATION_KEYS)


def _camel_case(item: dict[str, Any]) -> dict[str, Any]:
    """Return the fields by the names of the API; Langfuse's Python objects have snake case."""
    if "start_time" not in item:
        return item
    return {_CAMEL.sub(lambda m: m[1].upper(), key): value for key, value in item.items()}


def read(document: Any, out: Collector) -> None:
    """Read traces with observations, or a list of observations alone."""
    for place, item in wire.objects(document, "trace", out):
        if wire.is_array(item.get("data")):
            for inner, entry in wire.objects(item["data"], "trace", out, f"{place}data"):
                _read_item(inner, entry, out)
        else:
            _read_item(place, item, out)


def _read_item(place: str, item: dict[str, Any], out: Collector) -> None:
    if _is_observation(item) and "observations" not in item:
        wire.add_span(place, item, partial(_span, None), out)
        return
    dot = f"{place}." if place else ""
    inner: Any = item.get("trace")
    trace: dict[str, Any] = inner if wire.is_object(inner) else item
    try:
        trace_id = wire.hex_id(trace.get("id"), "trace id")
        # Observations next to the trace are whole; those nested in it lack their content.
        observations = wire.array(item.get("observations"), "observations")
        observations = observations or wire.array(trace.get("observations"), "observations")
    except wire.BadValue as error:
        out.problem(place, f"trace skipped: {error}")
        return
    for position, raw in enumerate(observations):
        wire.add_span(f"{dot}observations[{position}]", raw, partial(_span, trace_id), out)
    _set_trace_fields(trace, out.trace(trace_id))


def _span(trace_id: str | None, raw: dict[str, Any]) -> Span:
    raw = _camel_case(raw)
    metadata = parsed(raw.get("metadata"))
    end = raw.get("endTime")
    start = wire.moment(raw.get("startTime") or 0)
    # Events have no end; without one they would look like open spans.
    is_event = raw.get("type") == "EVENT"
    return Span(
        trace_id=wire.hex_id(raw.get("traceId") or trace_id, "trace id"),
        span_id=wire.hex_id(raw.get("id"), "observation id"),
        parent_id=wire.optional_id(raw.get("parentObservationId"), "parent observation id"),
        name=wire.name_of(raw.get("name")),
        start_ns=start,
        end_ns=start if is_event else None if end is None else wire.moment(end, "end time"),
        attributes=_attributes(raw, metadata),
        scope=_scope(metadata),
    )


def _attributes(raw: dict[str, Any], metadata: Any) -> dict[str, Any]:
    """Return the original span's attributes, stored in metadata, then the observation's own."""
    found: dict[str, Any] = {}
    if wire.is_object(metadata):
        original = parsed(metadata.get("attributes"))
        if wire.is_object(original):
            found.update(original)
        for key, value in metadata.items():
            if key not in ("attributes", "scope", "resourceAttributes"):
                found[f"langfuse.observation.metadata.{key}"] = value
    elif metadata is not None:
        found["langfuse.observation.metadata"] = metadata
    for name, fields in _AS_ATTRIBUTES.items():
        value = next((raw[field] for field in fields if raw.get(field) not in (None, {})), None)
        if value is not None:
            found[name] = value
    # Columns of its database, new and old; 0 everywhere means that nothing was counted.
    for names in (_USAGE_COLUMNS, _OLD_USAGE_COLUMNS):
        counts = {side: raw.get(name) for side, name in names.items()}
        if any(counts.values()):
            found.setdefault(_USAGE, counts)
    total = raw.get("totalCost") or raw.get("calculatedTotalCost")
    if total and _COST not in found:  # Langfuse writes 0 for a call without a price
        found[_COST] = {"total": total}
    return found


def _scope(metadata: Any) -> str | None:
    scope: Any = metadata.get("scope") if wire.is_object(metadata) else None
    return text(scope.get("name")) if wire.is_object(scope) else None


def _set_trace_fields(raw: dict[str, Any], trace: Trace) -> None:
    """Set the trace-level fields."""
    if raw.get("input") is not None:
        # Twice, because the string in an export may itself be encoded JSON.
        trace.query = parsed(parsed(raw["input"]))
    output = parsed(parsed(raw.get("output")))
    if isinstance(output, str):
        trace.response = output
    trace.session_id = text(raw.get("sessionId"))
    trace.user_id = text(raw.get("userId"))
    for key in _TRACE_FACTS:
        value = raw.get(key)
        if value not in (None, [], "", False):
            trace.metadata[key] = value
    metadata = parsed(raw.get("metadata"))
    if wire.is_object(metadata):
        resource = metadata.pop("resourceAttributes", None)
        if wire.is_object(resource):
            trace.metadata["resource"] = resource
        if metadata:
            trace.metadata["metadata"] = metadata
    scores = raw.get("scores")
    if wire.is_array(scores) and scores:
        trace.metadata["scores"] = scores

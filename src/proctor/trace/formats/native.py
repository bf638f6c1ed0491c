"""Read and write Proctor JSONL: one trace per line, normalised fields included.

Guarantees: `encode_trace` writes one line and `read` returns an equal trace, for every value JSON
can represent. Other values are written as text; NaN and infinities as null.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proctor.sanitize import json_bytes
from proctor.trace import _fields as wire
from proctor.trace.assemble import Collector
from proctor.trace.model import Span, Trace

NAME = "native"
ABOUT = "Proctor JSONL (one trace per line)"

HEADER = "proctor_trace"
"""First key of every line; its value is the version of the format."""

VERSION = 1

_PREFIX = f'{{"{HEADER}":{VERSION},'.encode()


def encode_trace(trace: Trace) -> bytes:
    """Return a trace as one line of JSON, newline included."""
    return _PREFIX + json_bytes(trace)[1:] + b"\n"


def matches(document: Any) -> bool:
    """Return whether a document is a Proctor trace: by its first key, or as in run folders."""
    found = wire.first_object(document)
    return found is not None and (HEADER in found or _bare(found))


def _bare(found: dict[str, Any]) -> bool:
    """Return whether it is a line of a run folder's segment, which has no header."""
    spans = found.get("spans")
    first = spans[0] if wire.is_array(spans) and spans else None
    return "trace_id" in found and wire.is_object(first) and {"span_id", "start_ns"} <= first.keys()


def read(document: Any, out: Collector) -> None:
    """Read one trace or a list of them; they are complete and need no normalisation."""
    for place, item in wire.objects(document, "trace", out):
        # The segments of a run folder have no header.
        version = item.get(HEADER, VERSION if _bare(item) else None)
        if version != VERSION:
            out.problem(
                place,
                f"{HEADER} is {str(version)[:20]!r}; this Proctor reads {VERSION}: update it",
            )
            continue
        trace = _trace(place, item, out)
        if trace is not None:
            out.finished.append(trace)


def _trace(place: str, item: dict[str, Any], out: Collector) -> Trace | None:
    try:
        trace = msgspec.convert(item, Trace)
        for span in trace.spans:
            _check_times(span)
    except (msgspec.ValidationError, wire.BadValue, RecursionError):
        pass  # identify the invalid spans and load the others
    else:
        return trace
    spans = item.get("spans")
    try:
        trace = msgspec.convert({**item, "spans": []}, Trace)
    except msgspec.ValidationError as error:
        out.problem(place, f"trace skipped: {error}")
        return None
    if not wire.is_array(spans):
        out.problem(place, f"spans is not an array but {wire.kind_of(spans)}")
        return None
    dot = f"{place}." if place else ""
    for position, raw in enumerate(spans):
        try:
            span = msgspec.convert(raw, Span)
            _check_times(span)
        except (msgspec.ValidationError, wire.BadValue, RecursionError) as error:
            out.problem(f"{dot}spans[{position}]", f"span skipped: {error}")
        else:
            trace.spans.append(span)
    return trace


def _check_times(span: Span) -> None:
    wire.in_range(span.start_ns, "start time")
    if span.end_ns is not None:
        wire.in_range(span.end_ns, "end time")

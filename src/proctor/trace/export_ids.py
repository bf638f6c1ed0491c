"""Ids fit for OpenTelemetry: 16 and 8 bytes in hex, made from whatever id a trace came with.

Promise: an id that fits stays; any other becomes a hash of itself, the same every time, so that
parents still find their children; the original stands in a `proctor.*` attribute.
"""

from __future__ import annotations

import re
from hashlib import sha256

TRACE_ID_KEY = "proctor.trace_id"
SPAN_ID_KEY = "proctor.span_id"
PARENT_ID_KEY = "proctor.parent_id"

_TRACE_DIGITS = 32
_SPAN_DIGITS = 16
_HEX = re.compile(r"[0-9a-f]+")


def wire_trace_id(trace_id: str) -> str:
    """A trace id of 32 hex digits."""
    return _fitted(trace_id, _TRACE_DIGITS)


def wire_span_id(span_id: str) -> str:
    """A span id of 16 hex digits."""
    return _fitted(span_id, _SPAN_DIGITS)


def _fitted(original: str, digits: int) -> str:
    # All zeros is how OpenTelemetry writes "no id".
    if len(original) == digits and _HEX.fullmatch(original) and original.strip("0"):
        return original
    return sha256(original.encode("utf-8", "surrogatepass")).hexdigest()[:digits]

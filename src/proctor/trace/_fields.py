"""Parse the fields the wire formats share: ids, times, statuses and containers.

Guarantees: every function accepts any decoded JSON value and either returns a result or raises
`BadValue` with a readable one-line message; nothing here raises anything else.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any, TypeGuard

import msgspec

from proctor.trace.assemble import Collector
from proctor.trace.model import Span, SpanStatus

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

MAX_NS = 2**64 - 1
"""The largest time OTLP can carry (the year 2554)."""

_HEX = frozenset("0123456789abcdefABCDEF")

_DECIMAL = re.compile(r"[+-]?\d+(\.\d*)?")
_FRACTION = re.compile(r"[.,](\d+)")
_DURATION = re.compile(
    r"(-)?P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:[.,](\d+))?S)?)?"
)

_STATUSES: dict[Any, SpanStatus] = {
    0: SpanStatus.UNSET,
    1: SpanStatus.OK,
    2: SpanStatus.ERROR,
    "unset": SpanStatus.UNSET,
    "ok": SpanStatus.OK,
    "error": SpanStatus.ERROR,
    "timeout": SpanStatus.TIMEOUT,
    "": SpanStatus.UNSET,
    # Not OpenTelemetry, but what home-made exporters write.
    "none": SpanStatus.UNSET,
    "success": SpanStatus.OK,
    "succeeded": SpanStatus.OK,
    "completed": SpanStatus.OK,
    "err": SpanStatus.ERROR,
    "fail": SpanStatus.ERROR,
    "failed": SpanStatus.ERROR,
    "failure": SpanStatus.ERROR,
}

_UNITS = ((1e11, 1e9), (1e14, 1e6), (1e17, 1e3))
"""Upper bound of a time since the epoch → nanoseconds in its unit, for numbers with a fraction."""

_YEARS = (1.4e9, 2.2e9)
"""Seconds from 2014 to 2039: a whole number of them, in any unit, is a time of an agent."""


class BadValue(ValueError):
    """A value that is invalid for its field; the message fits on one line."""


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether a decoded JSON value is an object."""
    return isinstance(value, dict)


def is_array(value: Any) -> TypeGuard[list[Any]]:
    """Return whether a decoded JSON value is an array."""
    return isinstance(value, list)


def first_object(document: Any) -> dict[str, Any] | None:
    """Return the document itself, or the first object in it when it is an array."""
    if is_object(document):
        return document
    if is_array(document):
        return next((item for item in document if is_object(item)), None)
    return None


def items(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield the document with an empty place, or each element of an array with its place."""
    if is_array(document):
        for position, item in enumerate(document):
            yield f"[{position}]", item
    else:
        yield "", document


def objects(
    document: Any, what: str, out: Collector, before: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects among `items` with their places; report other values as no `what`."""
    for place, item in items(document):
        if is_object(item):
            yield f"{before}{place}", item
        else:
            out.problem(f"{before}{place}", f"{what} is not an object but {kind_of(item)}")


def add_span(
    place: str, raw: Any, read: Callable[[dict[str, Any]], Span], out: Collector
) -> Span | None:
    """Add the span that `read` returns for an object, and return it; report an invalid one."""
    if not is_object(raw):
        out.problem(place, f"not an object but {kind_of(raw)}")
        return None
    try:
        span = read(raw)
    except BadValue as error:
        out.problem(place, f"span skipped: {error}")
        return None
    out.add(span)
    return span


def array(value: Any, what: str) -> list[Any]:
    """Return an array; missing and null count as empty."""
    if value is None:
        return []
    if is_array(value):
        return value
    raise BadValue(f"{what} is not an array but {kind_of(value)}")


def kind_of(value: Any) -> str:
    """Return the JSON name of a value's type, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def name_of(value: Any) -> str:
    """Return a span name; missing is allowed and empty."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise BadValue(f"name is not a string but {kind_of(value)}")


# -- ids ------------------------------------------------------------------------------------


def hex_id(value: Any, what: str = "span id") -> str:
    """Return an id as lower-case hex if it is hex or base64 of 8 or 16 bytes, else unchanged."""
    found = optional_id(value, what)
    if found is None:
        raise BadValue(f"{what} is missing")
    return found


def optional_id(value: Any, what: str = "parent span id") -> str | None:
    """Return an optional id: null, empty and all zeros mean None."""
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise BadValue(f"{what} is not a string but {kind_of(value)}")
    if value.startswith("0x"):
        value = value[2:]
    elif len(value) in (12, 24) and value.endswith("="):
        # Protobuf's JSON writes ids as base64: 8 bytes in 12 characters, 16 in 24.
        try:
            raw = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        value = raw.hex() if len(raw) in (8, 16) else value
    if _HEX.issuperset(value):
        value = value.lower()
    return value if value.strip("0") else None


def content_id(document: Any, position: int) -> str:
    """Derive a trace id for a document without one: the same content gives the same id.

    The position distinguishes two equal documents of one file.
    """
    raw = msgspec.json.encode([position, document], enc_hook=repr)
    return blake2b(raw, digest_size=16).hexdigest()


# -- times ----------------------------------------------------------------------------------


def nanoseconds(value: Any, what: str = "start time") -> int:
    """Return nanoseconds since the epoch from a number or a decimal string.

    Numbers that can only be milliseconds or microseconds of our time are read as such; one with a
    fraction is in the unit that its size suggests.
    """
    value = _number(value, what)
    if isinstance(value, float):
        unit = next((unit for below, unit in _UNITS if value < below), 1)
        # `round` instead of a product of floats: that would lose nanoseconds of large numbers.
        return in_range(int(value) if unit == 1 else round(value * unit / 1e3) * 1000, what)
    for unit in (1_000_000, 1_000):
        if _YEARS[0] <= value * unit / 1e9 < _YEARS[1]:
            return value * unit
    return in_range(value, what)


def is_seconds(value: Any) -> bool:
    """Return whether a whole number may be a time in seconds; as nanoseconds it would be 1970."""
    digits = isinstance(value, str) and value.isdecimal()
    number = int(value) if digits and len(value) < 20 else value
    return type(number) is int and _YEARS[0] <= number < _YEARS[1]


def _number(value: Any, what: str) -> int | float:
    """Return a number, also when it is written as text."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                raise BadValue(f"{what} is not a number: {value[:40]!r}") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadValue(f"{what} is not a number but {kind_of(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadValue(f"{what} is out of range: {value}")
    return value


def microseconds(value: Any, what: str) -> int:
    """Return nanoseconds of a number of microseconds, also when it is written as text."""
    number = _number(value, what)
    return in_range(number * 1000 if isinstance(number, int) else int(number * 1000), what)


def in_range(value: int, what: str) -> int:
    """Return the value if it is a time that OTLP can represent."""
    if 0 <= value <= MAX_NS:
        return value
    raise BadValue(f"{what} is out of range: {str(value)[:40]}")


def moment(value: Any, what: str = "start time") -> int:
    """Return nanoseconds from a number, ISO 8601 text, or [seconds, nanoseconds]."""
    if is_array(value):
        parts = [_number(part, what) for part in value]
        if len(parts) == 2 and all(isinstance(part, int) for part in parts):
            return in_range(int(parts[0] * 1_000_000_000 + parts[1]), what)
        raise BadValue(f"{what} is not [seconds, nanoseconds]")
    if isinstance(value, str) and not _DECIMAL.fullmatch(value):
        return iso_ns(value, what)
    return nanoseconds(value, what)


def iso_ns(value: Any, what: str = "start time") -> int:
    """Return nanoseconds from ISO 8601 text; without a zone it is UTC, as in every producer."""
    if not isinstance(value, str):
        raise BadValue(f"{what} is not ISO 8601 text but {kind_of(value)}")
    try:
        when = datetime.fromisoformat(value)
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        ns = (when - _EPOCH) // _MICROSECOND * 1000
    except (ValueError, OverflowError):
        raise BadValue(f"{what} is not an ISO 8601 time: {value[:40]!r}") from None
    if len(value) > 27:  # more digits than microseconds, or a written-out zone
        digits = _FRACTION.search(value)
        ns += int(digits[1][6:9].ljust(3, "0")) if digits and len(digits[1]) > 6 else 0
    return in_range(ns, what)


def iso_duration_ns(value: Any) -> int:
    """Return nanoseconds of an ISO 8601 duration such as `PT1H2M3.4S`."""
    found = _DURATION.fullmatch(value) if isinstance(value, str) and len(value) < 64 else None
    if found is None or not any(found.groups()[1:]):
        raise BadValue(f"duration is not ISO 8601: {str(value)[:40]!r}")
    sign, weeks, days, hours, minutes, seconds, fraction = found.groups()
    whole = (int(weeks or 0) * 7 + int(days or 0)) * 86_400
    whole += int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    ns = whole * 1_000_000_000 + int((fraction or "")[:9].ljust(9, "0"))
    return -ns if sign else ns


# -- status -----------------------------------------------------------------------------------


def status_of(code: Any) -> SpanStatus:
    """Return a status from an OTLP integer or any spelling of its name (`STATUS_CODE_OK`, `Ok`)."""
    if code is None:
        return SpanStatus.UNSET
    if isinstance(code, str):
        code = code.lower().removeprefix("status_code_").removeprefix("statuscode.")
        code = int(code) if code in ("0", "1", "2") else code
    try:
        return _STATUSES[code]
    except (KeyError, TypeError):
        raise BadValue(f"status is unknown: {str(code)[:40]!r}") from None


def status_or_unset(code: Any, place: str, out: Collector) -> SpanStatus:
    """Return a status; report an unknown one, which is not worth losing the span."""
    try:
        return status_of(code)
    except BadValue as error:
        out.problem(place, f"{error}; read as unset")
        return SpanStatus.UNSET

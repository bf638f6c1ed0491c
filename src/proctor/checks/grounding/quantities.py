"""Numbers and days in a text, whatever way they are written.

Promise: 1,234.5, 1234.5 and 1.2345k are one number; 90 minutes and 1.5 hours one duration;
2024-03-15 and March 15, 2024 one day. A comma is never a decimal point, and signs are ignored
("fell by 5" says what "-5" says).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Quantity(NamedTuple):
    """A number as written: its value, what it counts, and how finely it was given.

    `raw` is the figure before its unit is taken into account, `value` the figure in the base
    unit of `dimension` ("" without a unit), `step` the weight of its last written digit.
    """

    start: int
    end: int
    raw: float
    value: float
    dimension: str
    step: float


class Date(NamedTuple):
    """A day, with its year when that was given."""

    start: int
    end: int
    year: int | None
    month: int
    day: int


# -- numbers --------------------------------------------------------------------------------

_NUMBER_FORMS = (
    # 2024-03-15
    r"(?P<year>\d{4})-\d{2}-(?P<day>\d{2})(?!\d)",
    # 14:30, 2:30 pm, 14:30:00.5
    (
        r"(?P<hour>\d{1,2}):(?P<minute>[0-5]\d)(?::\d{2}(?:\.\d+)?)?(?!\d)"
        r"(?:[ \u202f]?(?P<half>[APap])\.?[Mm]\b)?"
    ),
    # 2 pm
    r"(?P<oclock>\d{1,2})[ \u202f]?(?P<noon>[APap])\.?[Mm]\b",
    # 1,234.5, and a magnitude or a unit, attached or one space away, then a unit after that
    (
        r"(?P<figure>(?:\d{1,3}(?:[,_'\u2019\u00a0\u202f]\d{3})+|\d{1,18})(?:\.\d{1,18})?)(?![\d_])"
        r"(?:[ \u00a0\u202f-]?(?P<first>%|°\s?[CFcf]?|[A-Za-z\u00b5]{1,12})"
        r"(?:[ \u00a0-]?(?P<second>[A-Za-z]{1,12}))?)?"
    ),
)
# Not inside a word or an identifier, nor the tail of another number; an ISO time follows a T.
NUMBER = re.compile(rf"(?=\d)(?:(?<![\w.])|(?<=\dT))(?:{'|'.join(_NUMBER_FORMS)})")
# The name a value was given: `duration_minutes": 90`, `price_usd=12`.
_LABEL = re.compile(r"(?<![A-Za-z])([A-Za-z]{2,12})[\"']?[ ]?[:=][ ]?[\"']?\Z")
_LABEL_REACH = 20
_CURRENCIES = {"$": "usd", "€": "eur", "£": "gbp", "¥": "jpy", "₹": "inr"}
_MAGNITUDES = {
    "k": 1e3, "K": 1e3, "thousand": 1e3, "M": 1e6, "mn": 1e6, "million": 1e6, "millions": 1e6,
    "B": 1e9, "bn": 1e9, "billion": 1e9, "billions": 1e9, "tn": 1e12, "trillion": 1e12,
}  # fmt: skip
_APPROXIMATELY = re.compile(
    r"(?:about|around|roughly|approximately|approx\.?|nearly|almost|over|circa|some|~|≈)\s*\W?$",
    re.I,
)

# Times of day, in minutes; and days of a month that were part of a date. Neither is evidence for
# a count.
CLOCK, DAY = "clock", "day"

# Spelling → (dimension, size of one in the base unit of that dimension).
_UNITS: dict[str, tuple[str, float]] = {}
for _dimension, _table in {
    "percent": {"%": 1, "percent": 1, "pct": 1},
    "length": {
        "mm": 1e-3, "cm": 1e-2, "m": 1, "meter": 1, "meters": 1, "metre": 1, "metres": 1,
        "km": 1e3, "kilometer": 1e3, "kilometers": 1e3, "kilometre": 1e3, "kilometres": 1e3,
        "mile": 1609.344, "miles": 1609.344, "mi": 1609.344, "ft": 0.3048, "feet": 0.3048,
    },
    "mass": {"mg": 1e-6, "g": 1e-3, "gram": 1e-3, "grams": 1e-3, "kg": 1, "lb": 0.45359237,
             "lbs": 0.45359237, "pounds": 0.45359237, "tonnes": 1e3, "tonne": 1e3},
    "time": {
        "ns": 1e-9, "\u00b5s": 1e-6, "us": 1e-6, "ms": 1e-3, "millisecond": 1e-3,
        "milliseconds": 1e-3, "s": 1, "sec": 1, "secs": 1, "second": 1, "seconds": 1,
        "min": 60, "mins": 60, "minute": 60, "minutes": 60, "h": 3600, "hr": 3600, "hrs": 3600,
        "hour": 3600, "hours": 3600, "day": 86400, "days": 86400, "week": 604800,
        "weeks": 604800,
    },
    # Months and years have no fixed length, so they stand alone.
    "months": {"month": 1, "months": 1},
    "years": {"year": 1, "years": 1, "yr": 1, "yrs": 1},
    "ordinal": {"st": 1, "nd": 1, "rd": 1, "th": 1},
    "celsius": {"°c": 1, "celsius": 1}, "fahrenheit": {"°f": 1, "fahrenheit": 1},
    "degrees": {"°": 1, "degrees": 1},
    "bytes": {"bytes": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12},
    "usd": {"usd": 1, "dollar": 1, "dollars": 1}, "eur": {"eur": 1, "euro": 1, "euros": 1},
    "gbp": {"gbp": 1}, "jpy": {"jpy": 1, "yen": 1}, "inr": {"inr": 1, "rupees": 1},
}.items():  # fmt: skip
    _UNITS.update({spelling: (_dimension, float(size)) for spelling, size in _table.items()})

COUNTABLE = frozenset(dimension for dimension, _ in _UNITS.values()) | {""}
"""The dimensions whose figures may support a figure without a unit."""

NUMBER_WORDS = {
    word: float(value)
    for value, word in enumerate(
        """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
        fifteen sixteen seventeen eighteen nineteen twenty""".split()
    )
} | {"thirty": 30.0, "forty": 40.0, "fifty": 50.0, "sixty": 60.0, "hundred": 100.0}


def quantities(text: str) -> Iterator[Quantity]:
    """Every number of a text with its unit, in order."""
    for found in NUMBER.finditer(text):
        yield from read_quantities(text, found)


def read_quantities(text: str, found: re.Match[str]) -> Iterator[Quantity]:
    """One match of `NUMBER`, understood. A date is a year and the day of a month."""
    start, end = found.span()
    kind = found.lastgroup
    if found["figure"] is not None:
        yield _read_figure(text, found)
    elif kind == "day":
        yield Quantity(start, end, float(found["year"]), float(found["year"]), "", 1.0)
        yield Quantity(start, end, float(found["day"]), float(found["day"]), DAY, 1.0)
    else:
        half = found["half"] or found["noon"] or ""
        hour = int(found["hour"] or found["oclock"])
        hour = hour % 12 + (12 if half in "Pp" else 0) if half else hour
        minutes = float(hour * 60 + int(found["minute"] or 0))
        yield Quantity(start, end, minutes, minutes, CLOCK, 0.0)


def _read_figure(text: str, found: re.Match[str]) -> Quantity:
    """A figure with its grouping, magnitude, unit, or the currency before it."""
    start, end = found.span("figure")
    whole, _, fraction = found["figure"].partition(".")
    plain = "".join(digit for digit in whole if digit.isdigit())
    raw = float(f"{plain}.{fraction}" if fraction else plain)
    step = 10.0 ** -len(fraction)
    currency = _CURRENCIES.get(text[start - 1]) if start else None
    magnitude, unit = _suffix(found, currency=currency is not None)
    if magnitude is not None:
        raw, step, end = raw * magnitude, step * magnitude, found.end("first")
    if currency is not None:
        return Quantity(start - 1, end, raw, raw, currency, step)
    if unit is not None:
        end = found.end("first" if magnitude is None else "second")
    else:
        unit = _labelled(text, start)
    dimension, size = _UNITS[unit] if unit is not None else ("", 1.0)
    return Quantity(start, end, raw, raw * size, dimension, step)


def label_before(text: str, start: int) -> str:
    """The last word of the name that a value starting here was given, if it was given one."""
    if not start or text[start - 1] not in ":= \"'":
        return ""
    found = _LABEL.search(text, max(0, start - _LABEL_REACH), start)
    return found.group(1) if found else ""


def _labelled(text: str, start: int) -> str | None:
    label = label_before(text, start)
    return _unit(label) if label else None


def _suffix(found: re.Match[str], *, currency: bool) -> tuple[float | None, str | None]:
    """The magnitude and the unit that follow a figure, as far as there are such."""
    first = found["first"]
    if not first:
        return None, None
    magnitude = _MAGNITUDES.get(first) or _MAGNITUDES.get(first.lower() if len(first) > 1 else "")
    if magnitude is None and first == "m" and currency:
        magnitude = 1e6  # "$5m"; without a currency it is metres
    # One letter is a magnitude only when attached: "5 K" may be anything.
    if magnitude is not None and (len(first) > 1 or found.start("first") == found.end("figure")):
        second = found["second"]
        return magnitude, _unit(second) if second else None
    return None, _unit(first)


def _unit(spelling: str) -> str | None:
    lowered = "".join(spelling.lower().split())
    return lowered if lowered in _UNITS else None


def rounded_to(text: str, quantity: Quantity) -> float:
    """How far off a figure that this one stands for may be: half its last meaningful digit."""
    if not quantity.step:
        return 0.0
    if _APPROXIMATELY.search(text, max(0, quantity.start - 16), quantity.start):
        digits = f"{quantity.raw / quantity.step:.0f}"
        zeros = len(digits) - len(digits.rstrip("0"))
        return quantity.step * 10.0**zeros / 2
    # A small whole number is a count, and counts are not rounded.
    return quantity.step / 2 if quantity.step != 1 or quantity.raw >= 10 else 0.0


# -- dates ----------------------------------------------------------------------------------

_MONTHS = {
    name: number
    for number, names in enumerate(
        "january jan|february feb|march mar|april apr|may|june jun|july jul|august aug|"
        "september sep sept|october oct|november nov|december dec".split("|"),
        1,
    )
    for name in names.split()
}
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
# Looked for only where a word or a number starts, and only at letters that start a month.
_DATE = re.compile(
    r"(?=[\djfmasondJFMASOND])(?<![^\W_])(?:"
    r"(?P<y1>\d{4})-(?P<m1>\d{2})-(?P<d1>\d{2})(?!\d)"
    rf"|(?P<m2>(?i:{_MONTH}))\.? (?P<d2>\d{{1,2}})(?:st|nd|rd|th)?(?!\d)(?:,? (?P<y2>\d{{4}})\b)?"
    rf"|(?P<d3>\d{{1,2}})(?:st|nd|rd|th)?\.? (?P<m3>(?i:{_MONTH}))\b\.?(?:,? (?P<y3>\d{{4}})\b)?"
    r")"
)
CALENDAR = frozenset(_MONTHS) | frozenset(
    "monday tuesday wednesday thursday friday saturday sunday today tomorrow yesterday".split()
)


def dates(text: str) -> Iterator[Date]:
    """Every day a text names: 2024-03-15, March 15, 2024, 15 March."""
    for found in _DATE.finditer(text):
        kind = found.lastgroup or ""
        number = "1" if found["y1"] else "2" if found["m2"] else "3"
        month_text = found[f"m{number}"].lower()
        month = int(month_text) if month_text.isdigit() else _MONTHS[month_text]
        day, year = int(found[f"d{number}"]), found[f"y{number}"]
        if kind and 1 <= month <= 12 and 1 <= day <= 31:
            yield Date(found.start(), found.end(), int(year) if year else None, month, day)

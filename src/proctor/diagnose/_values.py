"""Values in requests, arguments and results: records, quantities with units, days, equations."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from typing import Any, NamedTuple, cast

from proctor.diagnose._steps import MAX_TEXT

# Levels of nested data that are read.
DEEPEST = 5

# Records of one list that are compared.
MAX_RECORDS = 200

_STEM = 5


def parsed(value: Any) -> Any:
    """Return a value as data, if it is data as text: JSON, or as Python prints it."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "[") and len(value) <= MAX_TEXT:
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            pass
        try:  # as Python prints it
            return ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return value
    return value


def entries_of(value: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the scalars of nested data, each with the nearest key above it."""
    value = parsed(value) if depth == 0 else value
    if depth > DEEPEST:
        return
    if isinstance(value, Mapping):
        for name, entry in cast("Mapping[Any, Any]", value).items():
            yield from entries_of(entry, str(name), depth + 1)
    elif isinstance(value, list):
        for entry in cast("list[Any]", value)[:MAX_RECORDS]:
            yield from entries_of(entry, key, depth + 1)
    elif value is not None and not isinstance(value, bool):
        yield key, value


def record_lists(value: Any, depth: int = 0) -> Iterator[list[dict[str, Any]]]:
    """Yield every list of at least two records in nested data."""
    value = parsed(value) if depth == 0 else value
    if depth > DEEPEST:
        return
    if isinstance(value, Mapping):
        for entry in cast("Mapping[Any, Any]", value).values():
            yield from record_lists(entry, depth + 1)
    elif isinstance(value, list):
        entries = cast("list[Any]", value)[:MAX_RECORDS]
        records = [cast("dict[str, Any]", entry) for entry in entries if isinstance(entry, dict)]
        if len(records) > 1:
            yield records


def stems(text: str) -> set[str]:
    """Return the words of a text or a name, each by its beginning."""
    return {stem(word) for word in words_of(text)}


def stem(word: str) -> str:
    """Return the beginning of a word, by which its forms are recognised."""
    word = word.lower()
    # Short plurals: a night is a night of two nights.
    return word[:-1] if len(word) <= _STEM + 1 and word.endswith("s") else word[:_STEM]


def words_of(text: str) -> list[str]:
    """Return the words of a text; names in code are split: `create_event`, `createEvent`."""
    return re.findall(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+|\d+", text)


# Verbs in the names of tools that change something: what such a call did is not undone by looking.
_CHANGING = frozenset(
    """add adjust apply approve archive assign award block book buy cancel change charge close
    commit configure confirm create credit delete deploy disable dispatch edit enable escalate
    exchange forward handoff hire insert install issue merge migrate modify move notify open
    order pause pay place post prescribe publish push put record refund register reject remove
    rename renew reply reschedule reserve reset restart restock resume return schedule sell send
    set ship sign submit subscribe swap sync transfer unlock update upgrade upload
    write""".split()
)
_READING = frozenset(
    """calculate check compute count describe fetch find get inspect is list load look lookup parse
    query read retrieve search show summarize view""".split()
)


def reads(name: str) -> bool:
    """Return whether a tool only looks something up, by the verb in its name."""
    words = {word.lower() for word in words_of(name)[:2]}
    return not _READING.isdisjoint(words) and _CHANGING.isdisjoint(words)


def changes(name: str) -> bool:
    """Return whether a tool changes something, by the verb in its name."""
    words = [word.lower() for word in words_of(name)[:2]]
    return not _READING.intersection(words[:1]) and not _CHANGING.isdisjoint(words)


_HANDS_OVER = re.compile(r"(?:transfer|handoff|hand_off)(?:_back)?_to_(.+)", re.IGNORECASE)


def hands_over(name: str) -> str:
    """Return to whom a tool hands over, as its name says it; empty for other tools."""
    found = _HANDS_OVER.fullmatch(name)
    return tool_name(found[1]) if found is not None else ""


def tool_name(agent: str) -> str:
    """Return the name of an agent as in the name of a tool."""
    return re.sub(r"\W+", "_", agent.lower())


NUMBER_WORDS = {
    word: number
    for number, word in enumerate("one two three four five six seven eight nine ten".split(), 1)
}

# -- quantities ----------------------------------------------------------------------------------


class Unit(NamedTuple):
    """A unit of measurement or a currency, and what it measures."""

    name: str
    measures: str


_UNITS = {
    "length": """m metre metres meter meters|km kilometre kilometres kilometer kilometers
        |cm centimetre centimetres centimeter centimeters|mm millimetre millimetres
        |mi mile miles|ft foot feet|in inch inches|yd yard yards""",
    "mass": """kg kilo kilos kilogram kilograms|g gram grams|mg milligram milligrams|lb lbs
        |oz ounce ounces|t tonne tonnes""",
    "time": """s sec secs second seconds|ms millisecond milliseconds|min mins minute minutes
        |h hr hrs hour hours|d day days|week weeks|month months|year years""",
    "volume": "l liter liters litre litres|ml milliliter millilitre|gal gallon gallons",
    "temperature": "c celsius °c|f fahrenheit °f|k kelvin",
    "data": "kb|mb|gb|tb",
    "money": """usd|eur euro euros €|gbp £|chf franc francs|jpy yen ¥|sek|nok|dkk|inr rupee rupees
        |cad|aud|pln|czk|brl|cny|cent cents""",
}
UNITS = {
    word: Unit(one.split()[0], measures)
    for measures, listed in _UNITS.items()
    for one in listed.split("|")
    for word in one.split()
}
# Letters that are names of variables as often as units.
_AMBIGUOUS = frozenset({"c", "f", "k", "d", "t", "in", "s", "h", "l"})

_NUMBER = r"\d[\d,]*(?:\.\d+)?"
_MEASURED = re.compile(
    rf"(?<![\w.,])(?:(?P<sign>[€£¥]|\b[A-Z]{{3}}) ?)?(?P<number>{_NUMBER})(?!\w*[-/]\d)"
    r"(?: ?(?P<unit>[€£¥]|°[CF]|[A-Za-z]+))?"
)
_KEY_UNITS = ("currency", "unit", "units", "uom")


def measured(text: str) -> Iterator[tuple[float, Unit, int]]:
    """Yield the quantities of a text that have a unit, with their places."""
    for found in _MEASURED.finditer(text[:MAX_TEXT]):
        number = _number(found["number"])
        for word in (found["sign"], found["unit"]):
            unit = UNITS.get((word or "").lower())
            if (
                unit is not None
                and number is not None
                and not (word or "").islower() * ((word or "") in _AMBIGUOUS)
            ):
                yield number, unit, found.start()


def measured_data(value: Any, depth: int = 0) -> Iterator[tuple[float, Unit]]:
    """Yield the quantities of nested data; units are in keys (`price_eur`), or beside numbers."""
    value = parsed(value) if depth == 0 else value
    if depth > DEEPEST:
        return
    if isinstance(value, str):
        yield from ((number, unit) for number, unit, _ in measured(value))
    elif isinstance(value, list):
        for entry in cast("list[Any]", value)[:MAX_RECORDS]:
            yield from measured_data(entry, depth + 1)
    elif isinstance(value, Mapping):
        entries = cast("Mapping[str, Any]", value)
        beside = next(
            (UNITS.get(str(entries.get(k)).lower()) for k in _KEY_UNITS if k in entries), None
        )
        numbers = [k for k, v in entries.items() if type(v) in (int, float)]
        for key, entry in entries.items():
            unit = key_unit(key) or (beside if len(numbers) == 1 or _is_amount(key) else None)
            if type(entry) in (int, float):
                if unit is not None:
                    yield float(entry), unit
            else:
                yield from measured_data(entry, depth + 1)


def key_unit(key: str) -> Unit | None:
    """Return the unit at the end of a key: `distance_m`, `price_eur`; of `days_per_year`, none."""
    head, _, tail = key.rpartition("_")
    return UNITS.get(tail.lower()) if head and not head.lower().endswith("per") else None


def _is_amount(key: str) -> bool:
    return bool(re.search(r"price|amount|total|cost|value|fee|sum|balance", key, re.IGNORECASE))


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


# -- days ----------------------------------------------------------------------------------------

_MONTHS = {
    name: number
    for number, names in enumerate(
        "january jan|february feb|march mar|april apr|may|june jun|july jul|august aug"
        "|september sep sept|october oct|november nov|december dec".split("|"),
        start=1,
    )
    for name in names.split()
}
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
ISO_DAY = re.compile(r"(?<!\d)(\d{4})-(\d{2})-(\d{2})(?!\d)")
_DAY_MONTH = re.compile(
    rf"\b(\d{{1,2}})(?:st|nd|rd|th)?\.? (?:of )?({_MONTH})\b\.?,?(?: (\d{{4}}))?", re.IGNORECASE
)
_MONTH_DAY = re.compile(
    rf"\b({_MONTH})\.? (\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? (\d{{4}}))?", re.IGNORECASE
)
_SLASHED = re.compile(r"(?<!\d)(\d{1,2})[/.](\d{1,2})[/.](\d{4})(?!\d)")


def days_in(text: str, years: set[int]) -> set[date]:
    """Return the days that a text names; those without a year are of each given one."""
    text = text[:MAX_TEXT]
    found: set[date] = set()

    def add(year: Any, month: Any, day: Any) -> None:
        for one in [int(year)] if year else years:
            try:
                found.add(date(one, int(month), int(day)))
            except ValueError:
                continue

    for year, month, day in ISO_DAY.findall(text):
        add(year, month, day)
    for day, month, year in _DAY_MONTH.findall(text):
        add(year, _MONTHS[month.lower()], day)
    for month, day, year in _MONTH_DAY.findall(text):
        add(year, _MONTHS[month.lower()], day)
    for one, other, year in _SLASHED.findall(text):
        add(year, one, other)
        add(year, other, one)
    return found


_TODAY = re.compile(
    r"\b(?:today(?:'s date)? is|current date(?: is|:)|today:|date:)[^\n]{0,20}?"
    r"(\d{4}-\d{2}-\d{2})",
    re.IGNORECASE,
)
_RELATIVE = {
    "day after tomorrow": 2,
    "tomorrow": 1,
    "tonight": 0,
    "today": 0,
    "day before yesterday": -2,
    "yesterday": -1,
}


def relative_days(text: str, given: str) -> set[date]:
    """Return the days that `tomorrow` and the like mean, where the trace says which day it is."""
    stated = _TODAY.search(given)
    if stated is None:
        return set()
    try:
        today = date.fromisoformat(stated[1])
    except ValueError:
        return set()
    # "Today is …" is no request for today.
    rest = _TODAY.sub(" ", text.lower())
    found: set[date] = set()
    for words, days in _RELATIVE.items():
        if re.search(rf"\b{words}\b", rest):
            found.add(today + timedelta(days=days))
            rest = rest.replace(words, " ")
    return found


# -- equations -----------------------------------------------------------------------------------

# Characters on the left of an equation; longer ones are lists of figures.
LONGEST_EQUATION = 200

_TERM = r"\(?\d[\d,]*(?:\.\d+)?\)?"
_LEFT_SIDE = re.compile(rf"(?<![\w.−-])({_TERM}(?:\s*[-+*/×·÷−]\s*{_TERM})+)\s*\Z")
_RIGHT_SIDE = re.compile(r"=\s*\$?(\d[\d,]*(?:\.\d+)?)(?![\w%]|\.\d|\s*[-+*/×·÷−^]\s*\d)")


def equations(text: str) -> list[tuple[str, str]]:
    """Return the two sides of each equation of numbers, of those that are not too long."""
    found: list[tuple[str, str]] = []
    for right in _RIGHT_SIDE.finditer(text):
        begin = max(0, right.start() - LONGEST_EQUATION)
        left = _LEFT_SIDE.search(text[begin : right.start()])
        # One that reaches the beginning may be the end of a longer one.
        if left is not None and (left.start() or not begin) and not ISO_DAY.search(left[1]):
            found.append((left[1], right[1]))
    return found


_OPERATORS = str.maketrans("×·÷−", "**/-", ",$")


def _calculated(expression: str) -> float | None:
    """Return the value of an expression of numbers, or None if it has none."""
    if ")" not in expression:
        # The parenthesis of the sentence around the equation.
        expression = expression.lstrip("(")

    def value(node: ast.expr) -> float:
        match node:
            case ast.Constant(value=int() | float() as number):
                return float(number)
            case ast.BinOp(left, operator, right):
                a, b = value(left), value(right)
                match operator:
                    case ast.Add():
                        return a + b
                    case ast.Sub():
                        return a - b
                    case ast.Mult():
                        return a * b
                    case _:
                        return a / b
            case _:
                raise ValueError(expression)

    try:
        return value(ast.parse(expression.translate(_OPERATORS).strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def holds(left: str, right: str) -> bool:
    """Return whether an equation is right, up to rounding."""
    value, given = _calculated(left), float(right.replace(",", ""))
    digits = len(right.partition(".")[2])
    return value is None or abs(value - given) <= 0.6 * 10**-digits + 0.005 * abs(value)

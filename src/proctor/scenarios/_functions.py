"""The functions that expressions may call.

Each takes values as they come, refuses those it cannot use, and gives what is bounded afterwards.
`FUNCTIONS`, with the draws and what the evaluator knows itself, is the whole list: the parser
refuses every other name, and a test holds the reference page against it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, cast

from proctor.scenarios import _randomness as randomness
from proctor.scenarios._randomness import Stream

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"
Number = int | float

MAX_BITS = 256
"""Size of whole numbers: seeds and digests fit, and arithmetic on them stays one step."""

MAX_TEXT = 20_000
"""Characters in a text; ten pages."""

MAX_ITEMS = 10_000
"""Items in a list that an expression makes."""

SLOW = 40
"""Steps that a function in many digits costs: it takes that much longer than a sum."""


class RefusedError(Exception):
    """A value that is not given; who knows the place adds it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Function(NamedTuple):
    """A function, how many values it takes, how it is written, and the steps a call costs."""

    run: Callable[..., Any]
    least: int
    most: int
    usage: str
    cost: int = 1


# -- values --------------------------------------------------------------------------------------


def bounded(value: Value) -> Value:
    """The value, if it is one that may be; numbers are finite, texts and lists have an end."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise RefusedError(f"the number has more than {MAX_BITS} bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise RefusedError("the result is not a finite number")
        return value + 0.0  # -0.0 + 0.0 is 0.0: no zero has a sign
    elif isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise RefusedError(f"the text has more than {MAX_TEXT:,} characters")
    elif len(value) > MAX_ITEMS:
        raise RefusedError(f"the list has more than {MAX_ITEMS:,} items")
    return value


def shown(value: Any) -> str:
    """What a value is, for a message."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"the number {value}" if abs(value) < 1e18 else "a large number"
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    return f"a list of {len(cast('list[Any]', value))}" if isinstance(value, list) else "a mapping"


def same_kind(value: Any) -> Value:
    """A value given from Python as the plain kinds a template knows: tuples become lists."""
    if isinstance(value, list | tuple):
        return [same_kind(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value)
        return {str(key): same_kind(item) for key, item in pairs.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise RefusedError(f"a {type(value).__name__} is no value of a template")


# -- what arguments are --------------------------------------------------------------------------


def number(value: Value) -> Number:
    """A number, which true and false are not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RefusedError(f"expected a number, got {shown(value)}")
    return value


def real(value: Value) -> float:
    """A number as a double."""
    try:
        return float(number(value))
    except OverflowError:
        raise RefusedError("the number is too large") from None


def whole(value: Value) -> int:
    """A whole number; 3.0 is one."""
    found = number(value)
    if isinstance(found, float) and not found.is_integer():
        raise RefusedError(f"expected a whole number, got {shown(value)}")
    return int(found)


def text(value: Value) -> str:
    """A text."""
    if not isinstance(value, str):
        raise RefusedError(f"expected a text, got {shown(value)}")
    return value


def items(value: Value) -> list[Value]:
    """A list."""
    if not isinstance(value, list):
        raise RefusedError(f"expected a list, got {shown(value)}")
    return value


def some(value: Value) -> list[Value]:
    """A list that is not empty."""
    if not (found := items(value)):
        raise RefusedError("the list is empty")
    return found


def size(value: Value, most: int = MAX_ITEMS) -> int:
    """How many, within bounds."""
    count = whole(value)
    if not 0 <= count <= most:
        raise RefusedError(f"expected 0 to {most:,}, got {shown(value)}")
    return count


def within(value: Value, low: float, high: float) -> float:
    """A number between two others, both allowed."""
    found = real(value)
    if not low <= found <= high:
        raise RefusedError(f"expected {low:g} to {high:g}, got {shown(value)}")
    return found


def positive(value: Value) -> float:
    """A number above zero."""
    found = real(value)
    if found <= 0:
        raise RefusedError(f"expected more than 0, got {shown(value)}")
    return found


# -- numbers -------------------------------------------------------------------------------------


def _spread(values: tuple[Value, ...]) -> list[Value]:
    return some(values[0]) if len(values) == 1 and isinstance(values[0], list) else list(values)


def _min(*values: Value) -> Number:
    return min(number(value) for value in _spread(values))


def _max(*values: Value) -> Number:
    return max(number(value) for value in _spread(values))


def _sum(values: Value) -> Number:
    found = [number(value) for value in items(values)]
    # Exactly rounded: the built-in sum of floats is not the same in every version of Python.
    return sum(found) if all(isinstance(x, int) for x in found) else math.fsum(found)


def _mean(values: Value) -> float:
    found = some(values)
    return float(_sum(found)) / len(found)


def _round(value: Value, digits: Value = None) -> Number:
    if digits is None:
        return round(number(value))
    return round(real(value), int(within(whole(digits), 0, 15)))


def _log(value: Value, base: Value = None) -> float:
    if base is None:
        return randomness.ln(positive(value))
    if (b := positive(base)) == 1:
        raise RefusedError("1 is no base of logarithms")
    return randomness.log(positive(value), b)


def _sqrt(value: Value) -> float:
    return randomness.sqrt(within(value, 0.0, math.inf))


def _clamp(value: Value, low: Value, high: Value) -> Number:
    if number(low) > number(high):
        raise RefusedError(f"the bounds {low} and {high} are the wrong way round")
    return max(number(low), min(number(high), number(value)))


def _int(value: Value) -> int:
    if isinstance(value, str):
        try:
            return int(value[:100])
        except ValueError:
            raise RefusedError(f"{value[:40]!r} is not a whole number") from None
    return int(value) if isinstance(value, bool) else int(number(value))


def _float(value: Value) -> float:
    if isinstance(value, str):
        try:
            return float(value[:100])
        except ValueError:
            raise RefusedError(f"{value[:40]!r} is not a number") from None
    return real(value)


def _abs(value: Value) -> Number:
    return abs(number(value))


def _ceil(value: Value) -> int:
    return math.ceil(number(value))


def _floor(value: Value) -> int:
    return math.floor(number(value))


def _exp(value: Value) -> float:
    return randomness.exp(real(value))


def _sin(value: Value) -> float:
    return randomness.sin(real(value))


def _cos(value: Value) -> float:
    return randomness.cos(real(value))


# -- texts ---------------------------------------------------------------------------------------


def as_text(value: Value) -> str:
    """A value as it is written in YAML; lists and mappings have no such form here."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        raise RefusedError(f"expected a number or a text, got {shown(value)}", "use join(list)")
    return str(value)


def _lower(value: Value) -> str:
    return text(value).lower()


def _upper(value: Value) -> str:
    return text(value).upper()


def _title(value: Value) -> str:
    return text(value)[:1].upper() + text(value)[1:]


def _fixed(value: Value, digits: Value) -> str:
    places = int(within(whole(digits), 0, 15))
    # The largest double has 309 digits, so the width is bounded as it stands.
    return f"{real(value):.{places}f}"


def _join(values: Value, between: Value = ", ") -> str:
    parts, sign = [as_text(value) for value in items(values)], text(between)
    if sum(map(len, parts)) + len(sign) * len(parts) > MAX_TEXT:
        raise RefusedError(f"the text has more than {MAX_TEXT:,} characters")
    return sign.join(parts)


def _replace(value: Value, old: Value, new: Value) -> str:
    whole_text, part, other = text(value), text(old), text(new)
    if not part:
        raise RefusedError("there is nothing to replace in an empty text")
    if len(whole_text) + whole_text.count(part) * len(other) > 2 * MAX_TEXT:
        raise RefusedError(f"the text has more than {MAX_TEXT:,} characters")
    return whole_text.replace(part, other)


def _split(value: Value, between: Value = None) -> list[Value]:
    found = text(value)
    if between is not None and not text(between):
        raise RefusedError("the text to split at is empty")
    return list(found.split(None if between is None else text(between)))


# -- lists ---------------------------------------------------------------------------------------


def _range(first: Value, last: Value = None, step: Value = 1) -> list[Value]:
    start, stop = (0, whole(first)) if last is None else (whole(first), whole(last))
    if not (by := whole(step)):
        raise RefusedError("a range cannot go in steps of 0")
    found = range(start, stop, by)
    # The length is asked of arithmetic: len() of a range beyond the machine's words is an error.
    if max(0, (stop - start + by - (1 if by > 0 else -1)) // by) > MAX_ITEMS:
        raise RefusedError(f"the range has more than {MAX_ITEMS:,} items")
    return list(found)


def _len(value: Value) -> int:
    if isinstance(value, str | list | dict):
        return len(value)
    raise RefusedError(f"expected a list, a mapping or a text, got {shown(value)}")


def _reversed(values: Value) -> list[Value]:
    return items(values)[::-1]


def _sorted(values: Value) -> list[Value]:
    found = items(values)
    if all(isinstance(value, str) for value in found):
        return sorted(found, key=text)
    return sorted(found, key=number)


def _unique(values: Value) -> list[Value]:
    seen: dict[tuple[str, Any], Value] = {}
    for value in items(values):
        if isinstance(value, list | dict):
            raise RefusedError(f"expected texts or numbers, got {shown(value)}")
        seen.setdefault((type(value).__name__, value), value)
    return list(seen.values())


def _zip(*lists: Value) -> list[Value]:
    found = [items(each) for each in lists]
    if len({len(each) for each in found}) > 1:
        raise RefusedError("the lists are not of one length")
    return [list(row) for row in zip(*found, strict=True)]


def _keys(value: Value) -> list[Value]:
    if not isinstance(value, dict):
        raise RefusedError(f"expected a mapping, got {shown(value)}")
    return list(value)


def _values(value: Value) -> list[Value]:
    if not isinstance(value, dict):
        raise RefusedError(f"expected a mapping, got {shown(value)}")
    return list(value.values())


def _linspace(low: Value, high: Value, count: Value) -> list[Value]:
    first, last, n = real(low), real(high), size(count)
    if n == 1:
        return [first]
    return [first + (last - first) * (position / (n - 1)) for position in range(n)]


FUNCTIONS: dict[str, Function] = {
    "abs": Function(_abs, 1, 1, "abs(x)"),
    "ceil": Function(_ceil, 1, 1, "ceil(x)"),
    "clamp": Function(_clamp, 3, 3, "clamp(x, low, high)"),
    "cos": Function(_cos, 1, 1, "cos(x)", SLOW),
    "exp": Function(_exp, 1, 1, "exp(x)", SLOW),
    "fixed": Function(_fixed, 2, 2, "fixed(x, digits)"),
    "float": Function(_float, 1, 1, "float(x)"),
    "floor": Function(_floor, 1, 1, "floor(x)"),
    "int": Function(_int, 1, 1, "int(x)"),
    "join": Function(_join, 1, 2, "join(list, between)"),
    "keys": Function(_keys, 1, 1, "keys(mapping)"),
    "len": Function(_len, 1, 1, "len(x)"),
    "linspace": Function(_linspace, 3, 3, "linspace(low, high, n)"),
    "log": Function(_log, 1, 2, "log(x, base)", SLOW),
    "lower": Function(_lower, 1, 1, "lower(text)"),
    "max": Function(_max, 1, 100, "max(a, b, …)"),
    "mean": Function(_mean, 1, 1, "mean(list)"),
    "min": Function(_min, 1, 100, "min(a, b, …)"),
    "range": Function(_range, 1, 3, "range(start, end, step)"),
    "replace": Function(_replace, 3, 3, "replace(text, old, new)"),
    "reversed": Function(_reversed, 1, 1, "reversed(list)"),
    "round": Function(_round, 1, 2, "round(x, digits)"),
    "sin": Function(_sin, 1, 1, "sin(x)", SLOW),
    "sorted": Function(_sorted, 1, 1, "sorted(list)"),
    "split": Function(_split, 1, 2, "split(text, at)"),
    "sqrt": Function(_sqrt, 1, 1, "sqrt(x)"),
    "str": Function(as_text, 1, 1, "str(x)"),
    "sum": Function(_sum, 1, 1, "sum(list)"),
    "title": Function(_title, 1, 1, "title(text)"),
    "unique": Function(_unique, 1, 1, "unique(list)"),
    "upper": Function(_upper, 1, 1, "upper(text)"),
    "values": Function(_values, 1, 1, "values(mapping)"),
    "zip": Function(_zip, 1, 8, "zip(list, list, …)"),
}
"""Functions that give the same for the same values."""

CONSTANTS: dict[str, float] = {"pi": math.pi, "tau": math.tau, "e": math.e}

OTHER = ("all", "any", "ref")
"""Functions that the evaluator itself knows: they need more than values."""


# The functions of expressions that draw at random, from the stream of their place.
#
# Each checks its values before it draws, and takes a bounded number of draws.


MAX_MEAN = 500.0
"""Of a Poisson draw, which is made one event at a time."""

MAX_TRIES = 1_000
"""Draws of a truncated distribution: what is hit less often than that is not meant."""


def _ordered(low: Value, high: Value) -> tuple[float, float]:
    first, last = real(low), real(high)
    if first > last:
        raise RefusedError(f"the bounds {shown(low)} and {shown(high)} are the wrong way round")
    return first, last


def _uniform(stream: Stream, low: Value, high: Value) -> float:
    return stream.uniform(*_ordered(low, high))


def _normal(stream: Stream, mean: Value, sd: Value) -> float:
    return stream.normal(real(mean), within(sd, 0.0, math.inf))


def _truncated(stream: Stream, mean: Value, sd: Value, low: Value, high: Value) -> float:
    first, last = _ordered(low, high)
    for _ in range(MAX_TRIES):
        if first <= (drawn := _normal(stream, mean, sd)) <= last:
            return drawn
    raise RefusedError("next to nothing of the distribution lies between the bounds")


def _lognormal(stream: Stream, mean: Value, sd: Value) -> float:
    return stream.lognormal(real(mean), within(sd, 0.0, math.inf))


def _exponential(stream: Stream, mean: Value) -> float:
    return stream.exponential(positive(mean))


def _triangular(stream: Stream, low: Value, high: Value, mode: Value) -> float:
    first, last = _ordered(low, high)
    return stream.triangular(first, last, within(mode, first, last))


def _poisson(stream: Stream, mean: Value) -> int:
    return stream.poisson(within(mean, 0.0, MAX_MEAN))


def _binomial(stream: Stream, n: Value, p: Value) -> int:
    return stream.binomial(size(n), within(p, 0.0, 1.0))


def _chance(stream: Stream, p: Value) -> bool:
    return stream.unit() < within(p, 0.0, 1.0)


def _randint(stream: Stream, low: Value, high: Value) -> int:
    first, last = whole(low), whole(high)
    if first > last:
        raise RefusedError(f"the bounds {shown(low)} and {shown(high)} are the wrong way round")
    return first + stream.below(last - first + 1)


def _weights(values: list[Value], weights: Value) -> list[float]:
    found = [within(weight, 0.0, math.inf) for weight in items(weights)]
    if len(found) != len(values):
        raise RefusedError(f"{len(values)} items have {len(found)} weights")
    if not any(found) or not math.isfinite(math.fsum(found)):
        raise RefusedError("the weights must add up to more than 0, and to a number")
    return found


def _choice(stream: Stream, values: Value, weights: Value = None) -> Value:
    found = some(values)
    if weights is None:
        return found[stream.below(len(found))]
    return cast("Value", stream.weighted(found, _weights(found, weights)))


def _choices(stream: Stream, values: Value, n: Value, weights: Value = None) -> list[Value]:
    return [_choice(stream, values, weights) for _ in range(size(n))]


def _sample(stream: Stream, values: Value, n: Value) -> list[Value]:
    found = items(values)
    if (count := size(n)) > len(found):
        raise RefusedError(f"{count} cannot be drawn from {len(found)}")
    return stream.sample(found, count)


def _shuffle(stream: Stream, values: Value) -> list[Value]:
    found = items(values)
    return stream.sample(found, len(found))


DRAWS: dict[str, Function] = {
    "binomial": Function(_binomial, 2, 2, "binomial(n, p)"),
    "chance": Function(_chance, 1, 1, "chance(p)"),
    "choice": Function(_choice, 1, 2, "choice(list, weights)"),
    "choices": Function(_choices, 2, 3, "choices(list, n, weights)"),
    "exponential": Function(_exponential, 1, 1, "exponential(mean)"),
    "lognormal": Function(_lognormal, 2, 2, "lognormal(mean, sd)"),
    "normal": Function(_normal, 2, 2, "normal(mean, sd)"),
    "poisson": Function(_poisson, 1, 1, "poisson(mean)"),
    "randint": Function(_randint, 2, 2, "randint(low, high)"),
    "sample": Function(_sample, 2, 2, "sample(list, n)"),
    "shuffle": Function(_shuffle, 1, 1, "shuffle(list)"),
    "triangular": Function(_triangular, 3, 3, "triangular(low, high, mode)"),
    "truncated_normal": Function(_truncated, 4, 4, "truncated_normal(mean, sd, low, high)"),
    "uniform": Function(_uniform, 2, 2, "uniform(low, high)"),
}
"""Functions that draw from the stream of their place."""

KNOWN = frozenset((*FUNCTIONS, *DRAWS, *OTHER))
"""Every function there is."""

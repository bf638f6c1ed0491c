"""Evaluate the expressions of a template within a budget.

Promise: only the nodes and functions of the language do anything, and no Python object other than
a plain value can be reached. Every step and every value comes out of one budget for the whole
build, so a build ends within seconds and some tens of megabytes, and many small expressions cannot
do what one large one may not. An error names the innermost part of the expression it is about.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from proctor.errors import did_you_mean
from proctor.scenarios import _randomness as randomness
from proctor.scenarios._expressions import LITERALS, ExpressionError, parse, place_of
from proctor.scenarios._randomness import Stream

# -- the functions that expressions may call -----------------------------------------------------
# Each checks its arguments and raises `RefusedError` for values it cannot use; the interpreter
# bounds the result. `FUNCTIONS`, `DRAWS` and `OTHER` together are the whole list: the parser
# rejects every other name, and a test compares the reference page with it.

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"
Number = int | float
_Bound = TypeVar("_Bound", int, float)
_Run = TypeVar("_Run", bound=Callable[..., Any])

MAX_BITS = 256
"""Size of whole numbers: seeds and digests fit, and arithmetic on them stays one step."""

MAX_TEXT = 20_000
"""Characters in a text; ten pages."""

MAX_ITEMS = 10_000
"""Items in a list that an expression makes."""

SLOW = 40
"""Steps that a function in many digits costs: it takes that much longer than a sum."""

MAX_MEAN = 500.0
"""Maximum mean of a Poisson draw, which is made one event at a time."""

MAX_TRIES = 1_000
"""Draws of a truncated distribution: rarer values are most likely a mistake in the bounds."""


class RefusedError(Exception):
    """A value that cannot be used; the caller adds the place."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Function(NamedTuple):
    """A function, its minimum and maximum number of arguments, its usage, and its cost in steps."""

    run: Callable[..., Any]
    least: int
    most: int
    usage: str
    cost: int = 1


# -- values --------------------------------------------------------------------------------------


def bounded(value: Value) -> Value:
    """Return the value if it is within bounds: a finite number, a text or list that is not huge."""
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
        check_length(len(value))
    elif len(value) > MAX_ITEMS:
        raise RefusedError(f"the list has more than {MAX_ITEMS:,} items")
    return value


def check_length(characters: int, limit: int = MAX_TEXT) -> None:
    """Raise `RefusedError` for a text of this length; called before a long text is made."""
    if characters > limit:
        raise RefusedError(f"the text has more than {MAX_TEXT:,} characters")


def shown(value: Any) -> str:
    """Describe a value for a message."""
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
    """Return a value from Python as the plain kinds a template knows: tuples become lists."""
    if isinstance(value, list | tuple):
        return [same_kind(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value)
        return {str(key): same_kind(item) for key, item in pairs.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise RefusedError(f"a {type(value).__name__} is no value of a template")


# -- kinds of arguments: each returns the value as that kind, or raises ---------------------------


def number(value: Value) -> Number:
    """Return a number; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RefusedError(f"expected a number, got {shown(value)}")
    return value


def real(value: Value) -> float:
    """Return a number as a double."""
    try:
        return float(number(value))
    except OverflowError:
        raise RefusedError("the number is too large") from None


def whole(value: Value) -> int:
    """Return a whole number; 3.0 is one."""
    found = number(value)
    if isinstance(found, float) and not found.is_integer():
        raise RefusedError(f"expected a whole number, got {shown(value)}")
    return int(found)


def text(value: Value) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise RefusedError(f"expected a text, got {shown(value)}")
    return value


def items(value: Value) -> list[Value]:
    """Return a list."""
    if not isinstance(value, list):
        raise RefusedError(f"expected a list, got {shown(value)}")
    return value


def truth(value: Value) -> bool:
    """Return a condition's value; only true and false are conditions."""
    if not isinstance(value, bool):
        hint = "compare it with something"
        raise RefusedError(f"expected true or false, got {shown(value)}", hint)
    return value


def _truths(value: Value) -> list[bool]:
    return [truth(item) for item in items(value)]


def some(value: Value) -> list[Value]:
    """Return a list that is not empty."""
    if not (found := items(value)):
        raise RefusedError("the list is empty")
    return found


def _mapping(value: Value) -> dict[str, Value]:
    if not isinstance(value, dict):
        raise RefusedError(f"expected a mapping, got {shown(value)}")
    return value


def size(value: Value) -> int:
    """Return a count within bounds."""
    count = whole(value)
    if not 0 <= count <= MAX_ITEMS:
        raise RefusedError(f"expected 0 to {MAX_ITEMS:,}, got {shown(value)}")
    return count


def within(value: Value, low: float, high: float) -> float:
    """Return a number between two others, both included."""
    found = real(value)
    if not low <= found <= high:
        raise RefusedError(f"expected {low:g} to {high:g}, got {shown(value)}")
    return found


_not_negative = partial(within, low=0.0, high=math.inf)
_probability = partial(within, low=0.0, high=1.0)


def positive(value: Value) -> float:
    """Return a number above zero."""
    found = real(value)
    if found <= 0:
        raise RefusedError(f"expected more than 0, got {shown(value)}")
    return found


def _digits(value: Value) -> int:
    # A double has no more significant digits.
    return int(within(whole(value), 0, 15))


def _ordered(low: Value, high: Value, kind: Callable[[Value], _Bound]) -> tuple[_Bound, _Bound]:
    first, last = kind(low), kind(high)
    if first > last:
        raise RefusedError(f"the bounds {shown(low)} and {shown(high)} are the wrong way round")
    return first, last


# -- functions -----------------------------------------------------------------------------------


def _of(
    usage: str, run: Callable[..., Any], *kinds: Callable[[Any], Any], cost: int = 1
) -> Function:
    """Return a function that takes arguments of these kinds; a draw gets its stream first."""

    def call(*values: Any) -> Any:
        stream = values[: len(values) - len(kinds)]
        given = zip(kinds, values[len(stream) :], strict=True)
        return run(*stream, *(kind(value) for kind, value in given))

    return Function(call, len(kinds), len(kinds), usage, cost)


def _over(choose: Callable[[Iterable[Number]], Number]) -> Callable[..., Number]:
    """Return `choose` for numbers given one by one or as one list."""

    def call(*values: Value) -> Number:
        listed = len(values) == 1 and isinstance(values[0], list)
        return choose([number(value) for value in (some(values[0]) if listed else values)])

    return call


FUNCTIONS: dict[str, Function] = {
    "abs": _of("abs(x)", abs, number),
    "all": _of("all(list)", all, _truths, cost=0),
    "any": _of("any(list)", any, _truths, cost=0),
    "ceil": _of("ceil(x)", math.ceil, number),
    "cos": _of("cos(x)", randomness.cos, real, cost=SLOW),
    "exp": _of("exp(x)", randomness.exp, real, cost=SLOW),
    "floor": _of("floor(x)", math.floor, number),
    "keys": _of("keys(mapping)", list, _mapping),
    "lower": _of("lower(text)", str.lower, text),
    "max": Function(_over(max), 1, 100, "max(a, b, …)"),
    "min": Function(_over(min), 1, 100, "min(a, b, …)"),
    "sin": _of("sin(x)", randomness.sin, real, cost=SLOW),
    "sqrt": _of("sqrt(x)", randomness.sqrt, _not_negative),
    "upper": _of("upper(text)", str.upper, text),
}
"""Functions that return the same for the same values; those below register themselves."""

DRAWS: dict[str, Function] = {
    "binomial": _of("binomial(n, p)", Stream.binomial, size, _probability),
    "exponential": _of("exponential(mean)", Stream.exponential, positive),
    "lognormal": _of("lognormal(mean, sd)", Stream.lognormal, real, _not_negative),
    "normal": _of("normal(mean, sd)", Stream.normal, real, _not_negative),
    "poisson": _of("poisson(mean)", Stream.poisson, partial(within, low=0.0, high=MAX_MEAN)),
}
"""Functions that draw from the stream of their place. Each checks its arguments before it draws,
and takes a bounded number of draws.
"""


def _function(
    usage: str,
    least: int,
    most: int | None = None,
    cost: int = 1,
    table: dict[str, Function] = FUNCTIONS,
) -> Callable[[_Run], _Run]:
    """Register a function under the name that its usage begins with."""

    def register(run: _Run) -> _Run:
        table[usage.partition("(")[0]] = Function(run, least, most or least, usage, cost)
        return run

    return register


_draw = partial(_function, table=DRAWS)


# -- numbers -------------------------------------------------------------------------------------


@_function("sum(list)", 1)
def _sum(values: Value) -> Number:
    found = [number(value) for value in items(values)]
    # Exactly rounded: the built-in sum of floats is not the same in every version of Python.
    return sum(found) if all(isinstance(x, int) for x in found) else math.fsum(found)


@_function("mean(list)", 1)
def _mean(values: Value) -> float:
    found = some(values)
    return float(_sum(found)) / len(found)


@_function("round(x, digits)", 1, 2)
def _round(value: Value, digits: Value = None) -> Number:
    return round(number(value)) if digits is None else round(real(value), _digits(digits))


@_function("log(x, base)", 1, 2, SLOW)
def _log(value: Value, base: Value = None) -> float:
    if base is None:
        return randomness.ln(positive(value))
    if (b := positive(base)) == 1:
        raise RefusedError("1 is no base of logarithms")
    return randomness.log(positive(value), b)


@_function("clamp(x, low, high)", 3)
def _clamp(value: Value, low: Value, high: Value) -> Number:
    if number(low) > number(high):
        raise RefusedError(f"the bounds {low} and {high} are the wrong way round")
    return max(number(low), min(number(high), number(value)))


@_function("int(x)", 1)
def _int(value: Value) -> int:
    if isinstance(value, str):
        # Cut: numbers of 100 digits are too large anyway, and long ones take long to parse.
        try:
            return int(value[:100])
        except ValueError:
            raise RefusedError(f"{value[:40]!r} is not a whole number") from None
    return int(value) if isinstance(value, bool) else int(number(value))


@_function("float(x)", 1)
def _float(value: Value) -> float:
    if isinstance(value, str):
        try:
            return float(value[:100])
        except ValueError:
            raise RefusedError(f"{value[:40]!r} is not a number") from None
    return real(value)


# -- texts ---------------------------------------------------------------------------------------


@_function("str(x)", 1)
def as_text(value: Value) -> str:
    """Return a value as YAML writes it; lists and mappings have no such form here."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        raise RefusedError(f"expected a number or a text, got {shown(value)}", "use join(list)")
    return str(value)


@_function("title(text)", 1)
def _title(value: Value) -> str:
    return text(value)[:1].upper() + text(value)[1:]


@_function("fixed(x, digits)", 2)
def _fixed(value: Value, digits: Value) -> str:
    places = _digits(digits)
    # The largest double has 309 digits, so the width needs no limit of its own.
    return f"{real(value):.{places}f}"


@_function("join(list, between)", 1, 2)
def _join(values: Value, between: Value = ", ") -> str:
    parts, sign = [as_text(value) for value in items(values)], text(between)
    check_length(sum(map(len, parts)) + len(sign) * len(parts))
    return sign.join(parts)


@_function("replace(text, old, new)", 3)
def _replace(value: Value, old: Value, new: Value) -> str:
    whole_text, part, other = text(value), text(old), text(new)
    if not part:
        raise RefusedError("there is nothing to replace in an empty text")
    # An upper limit, since the replaced parts are counted too; the result is checked exactly.
    check_length(len(whole_text) + whole_text.count(part) * len(other), 2 * MAX_TEXT)
    return whole_text.replace(part, other)


@_function("split(text, at)", 1, 2)
def _split(value: Value, between: Value = None) -> list[Value]:
    found = text(value)
    if between is not None and not text(between):
        raise RefusedError("the text to split at is empty")
    return list(found.split(None if between is None else text(between)))


# -- lists ---------------------------------------------------------------------------------------


@_function("range(start, end, step)", 1, 3)
def _range(first: Value, last: Value = None, step: Value = 1) -> list[Value]:
    start, stop = (0, whole(first)) if last is None else (whole(first), whole(last))
    if not (by := whole(step)):
        raise RefusedError("a range cannot go in steps of 0")
    # Computed: len() of a range that exceeds the machine's words is an error.
    if max(0, (stop - start + by - (1 if by > 0 else -1)) // by) > MAX_ITEMS:
        raise RefusedError(f"the range has more than {MAX_ITEMS:,} items")
    return list(range(start, stop, by))


@_function("len(x)", 1)
def _len(value: Value) -> int:
    if isinstance(value, str | list | dict):
        return len(value)
    raise RefusedError(f"expected a list, a mapping or a text, got {shown(value)}")


@_function("reversed(list)", 1)
def _reversed(values: Value) -> list[Value]:
    return items(values)[::-1]


@_function("sorted(list)", 1)
def _sorted(values: Value) -> list[Value]:
    found = items(values)
    # Texts or numbers; a mixture has no order, and `number` says so.
    return sorted(found, key=text if all(isinstance(value, str) for value in found) else number)


@_function("unique(list)", 1)
def _unique(values: Value) -> list[Value]:
    seen: dict[tuple[str, Any], Value] = {}
    for value in items(values):
        if isinstance(value, list | dict):
            raise RefusedError(f"expected texts or numbers, got {shown(value)}")
        # By type too: 1, 1.0 and true are equal in Python, but different values here.
        seen.setdefault((type(value).__name__, value), value)
    return list(seen.values())


@_function("zip(list, list, …)", 1, 8)
def _zip(*lists: Value) -> list[Value]:
    found = [items(each) for each in lists]
    if len({len(each) for each in found}) > 1:
        raise RefusedError("the lists are not of one length")
    return [list(row) for row in zip(*found, strict=True)]


@_function("values(mapping)", 1)
def _values(value: Value) -> list[Value]:
    return list(_mapping(value).values())


@_function("linspace(low, high, n)", 3)
def _linspace(low: Value, high: Value, count: Value) -> list[Value]:
    first, last, n = real(low), real(high), size(count)
    if n == 1:
        return [first]
    return [first + (last - first) * (position / (n - 1)) for position in range(n)]


# -- draws ---------------------------------------------------------------------------------------


@_draw("uniform(low, high)", 2)
def _uniform(stream: Stream, low: Value, high: Value) -> float:
    return stream.uniform(*_ordered(low, high, real))


@_draw("truncated_normal(mean, sd, low, high)", 4)
def _truncated(stream: Stream, mean: Value, sd: Value, low: Value, high: Value) -> float:
    first, last = _ordered(low, high, real)
    center, spread = real(mean), _not_negative(sd)
    for _ in range(MAX_TRIES):
        if first <= (drawn := stream.normal(center, spread)) <= last:
            return drawn
    raise RefusedError("next to nothing of the distribution lies between the bounds")


@_draw("triangular(low, high, mode)", 3)
def _triangular(stream: Stream, low: Value, high: Value, mode: Value) -> float:
    first, last = _ordered(low, high, real)
    return stream.triangular(first, last, within(mode, first, last))


@_draw("chance(p)", 1)
def _chance(stream: Stream, p: Value) -> bool:
    return stream.unit() < _probability(p)


@_draw("randint(low, high)", 2)
def _randint(stream: Stream, low: Value, high: Value) -> int:
    first, last = _ordered(low, high, whole)
    return first + stream.below(last - first + 1)


@_draw("choice(list, weights)", 1, 2)
def _choice(stream: Stream, values: Value, weights: Value = None) -> Value:
    found = some(values)
    if weights is None:
        return found[stream.below(len(found))]
    shares = [_not_negative(weight) for weight in items(weights)]
    if len(shares) != len(found):
        raise RefusedError(f"{len(found)} items have {len(shares)} weights")
    if not any(shares) or not math.isfinite(math.fsum(shares)):
        raise RefusedError("the weights must add up to more than 0, and to a number")
    return cast("Value", stream.weighted(found, shares))


@_draw("choices(list, n, weights)", 2, 3)
def _choices(stream: Stream, values: Value, n: Value, weights: Value = None) -> list[Value]:
    return [_choice(stream, values, weights) for _ in range(size(n))]


@_draw("sample(list, n)", 2)
def _sample(stream: Stream, values: Value, n: Value) -> list[Value]:
    found = items(values)
    if (count := size(n)) > len(found):
        raise RefusedError(f"{count} cannot be drawn from {len(found)}")
    return stream.sample(found, count)


@_draw("shuffle(list)", 1)
def _shuffle(stream: Stream, values: Value) -> list[Value]:
    found = items(values)
    return stream.sample(found, len(found))


CONSTANTS: dict[str, float] = {"pi": math.pi, "tau": math.tau, "e": math.e}

OTHER = ("ref",)
"""Functions of the interpreter itself: they need more than values."""

KNOWN = frozenset((*FUNCTIONS, *DRAWS, *OTHER))
"""Every function there is."""


MAX_STEPS = 200_000
"""Steps of a build: under a second of work, and hundreds of times what the shipped ones need."""

MAX_DEPTH = 60
"""Values within values, over all they refer to: at eight frames each still inside the stack."""

MAX_VALUE_NESTING = 32
"""Lists within lists of one value, so that the YAML reader can still read the built file."""

CHARACTERS_PER_STEP = 64
ITEMS_PER_STEP = 8
"""Long texts and lists are charged when they are made, at what that costs."""

STEPS_PER_WORD = 12
"""Steps that 64 random bits cost: drawing them takes about as long."""


class UnknownNameError(Exception):
    """A name without a value."""


class Budget:
    """The remaining steps of a build, and how deep it is nested."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self.left = steps
        self.depth = 0

    def charge(self, steps: int) -> None:
        """Take steps; raise `RefusedError` when none are left."""
        self.left -= steps
        if self.left < 0:
            raise RefusedError(
                f"the template takes more than {MAX_STEPS:,} steps to build",
                "make its lists and loops smaller",
            )

    def enter(self) -> None:
        """Go one level down; raise `RefusedError` at the bottom. The caller lowers `depth`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise RefusedError(
                f"values are nested more than {MAX_DEPTH} deep, with those they refer to"
            )

    def made(self, value: Value) -> Value:
        """Charge for making a text or a list, without its content, and return it."""
        if isinstance(value, str):
            self.charge(len(value) // CHARACTERS_PER_STEP)
        elif isinstance(value, list | dict):
            self.charge(len(value) // ITEMS_PER_STEP)
        return value

    def weigh(self, value: Value, level: int = 0) -> None:
        """Charge for a value with its content: one step for each part, more for long texts."""
        self.charge(1)
        if isinstance(value, str):
            self.charge(len(value) // CHARACTERS_PER_STEP)
        elif isinstance(value, list | dict):
            if level >= MAX_VALUE_NESTING:
                raise RefusedError(f"the value is nested more than {MAX_VALUE_NESTING} deep")
            for item in value.values() if isinstance(value, dict) else value:
                self.weigh(item, level + 1)


class Scope(NamedTuple):
    """What an expression can see.

    `names` returns a named value or raises `UnknownNameError`, `known` lists all names (for a
    hint), `ref` returns any other value of the template, `stream` the random numbers of this place.
    """

    names: Callable[[str], Value]
    known: Callable[[], list[str]]
    ref: Callable[[str], Value]
    stream: Callable[[], Stream]
    budget: Budget


def evaluate(expression: str, scope: Scope) -> Value:
    """Return the value of an expression; raise `ExpressionError` with the part at fault."""
    return _Interpreter(expression, scope).value(parse(expression, KNOWN))


class _Interpreter:
    def __init__(self, expression: str, scope: Scope) -> None:
        self.expression = expression
        self.scope = scope
        self.budget = scope.budget
        self.variables: dict[str, Value] = {}
        self.drawing: Stream | None = None

    def value(self, node: ast.expr) -> Value:
        try:
            self.budget.enter()
            self.budget.charge(1)
            return bounded(_RULES[type(node)](self, node))
        except (RefusedError, ArithmeticError) as error:
            message, hint = "the result is too large", None
            if isinstance(error, RefusedError):
                message, hint = error.message, error.hint
            elif isinstance(error, ZeroDivisionError):
                message = "division by zero"
            raise ExpressionError(message, *place_of(self.expression, node), hint) from None
        finally:
            self.budget.depth -= 1

    def constant(self, node: ast.Constant) -> Value:
        return cast("Value", node.value)

    def name(self, node: ast.Name) -> Value:
        if node.id in LITERALS:
            return LITERALS[node.id]
        if node.id in self.variables:
            return self.variables[node.id]
        # Constants come last: a template may have a value named `e` or `pi` of its own.
        try:
            return self.scope.names(node.id)
        except UnknownNameError:
            if node.id in CONSTANTS:
                return CONSTANTS[node.id]
        hint = did_you_mean(node.id, [*self.variables, *self.scope.known(), *CONSTANTS])
        if node.id in KNOWN:
            hint = f"{node.id} is a function: call it, {node.id}(…)"
        raise RefusedError(f"there is no value {node.id!r}", hint)

    def unary(self, node: ast.UnaryOp) -> Value:
        value = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return not truth(value)
        return -number(value) if isinstance(node.op, ast.USub) else number(value)

    def binary(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        match node.op:
            case ast.Add() if isinstance(left, str) and isinstance(right, str):
                return self.budget.made(left + right)
            case ast.Add() if isinstance(left, list) and isinstance(right, list):
                return self.budget.made([*left, *right])
            case ast.Mult() if isinstance(left, str | list):
                return self.budget.made(_repeated(left, whole(right)))
            case ast.Mult() if isinstance(right, str | list):
                return self.budget.made(_repeated(right, whole(left)))
            case ast.Add():
                return number(left) + number(right)
            case ast.Sub():
                return number(left) - number(right)
            case ast.Mult():
                return number(left) * number(right)
            case ast.Div():
                return number(left) / number(right)
            case ast.FloorDiv():
                return number(left) // number(right)
            case ast.Mod():
                return number(left) % number(right)
            case _:
                self.budget.charge(SLOW)
                return _power(number(left), number(right))

    def logic(self, node: ast.BoolOp) -> Value:
        decisive = isinstance(node.op, ast.Or)
        # The first value that decides ends it: the others are not evaluated.
        return decisive == any(truth(self.value(part)) == decisive for part in node.values)

    def comparison(self, node: ast.Compare) -> Value:
        left = self.value(node.left)
        for sign, other in zip(node.ops, node.comparators, strict=True):
            right = self.value(other)
            self.budget.weigh(right)  # comparing may read all of it
            if not _holds(sign, left, right):
                return False
            left = right
        return True

    def conditional(self, node: ast.IfExp) -> Value:
        return self.value(node.body if truth(self.value(node.test)) else node.orelse)

    def list(self, node: ast.List) -> Value:
        return [self.value(item) for item in node.elts]

    def mapping(self, node: ast.Dict) -> Value:
        pairs = zip(cast("list[ast.expr]", node.keys), node.values, strict=True)
        return {text(self.value(key)): self.value(value) for key, value in pairs}

    def list_comprehension(self, node: ast.ListComp) -> Value:
        made: list[Value] = []
        for _ in self.turns(node.generators):
            made.append(self.value(node.elt))
            if len(made) > MAX_ITEMS:  # here, not at the end: the list must not grow for long
                bounded(made)
        return made

    def mapping_comprehension(self, node: ast.DictComp) -> Value:
        made: dict[str, Value] = {}
        for _ in self.turns(node.generators):
            # The value is evaluated before its key; another order would change the random draws.
            made[text(self.value(node.key))] = self.value(node.value)
            if len(made) > MAX_ITEMS:
                bounded(made)
        return made

    def turns(self, loops: Sequence[ast.comprehension]) -> Generator[None]:
        """Set the variables of `for` for each turn; they are gone after the last."""
        outer = dict(self.variables)
        try:
            yield from self.nested_turns(loops)
        finally:
            self.variables = outer

    def nested_turns(self, loops: Sequence[ast.comprehension]) -> Generator[None]:
        if not loops:
            yield
            return
        loop = loops[0]
        targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
        names = [target.id for target in cast("list[ast.Name]", targets)]
        for item in items(self.value(loop.iter)):
            self.budget.charge(1)
            parts = [item] if len(names) == 1 else items(item)
            if len(parts) != len(names):
                raise RefusedError(f"{len(names)} variables cannot take {shown(item)}")
            self.variables = {**self.variables, **dict(zip(names, parts, strict=True))}
            if all(truth(self.value(condition)) for condition in loop.ifs):
                yield from self.nested_turns(loops[1:])

    def item(self, node: ast.Subscript) -> Value:
        value = self.value(node.value)
        if isinstance(node.slice, ast.Slice):
            first, last = (
                None if edge is None or (at := self.value(edge)) is None else whole(at)
                for edge in (node.slice.lower, node.slice.upper)
            )
            if not isinstance(value, str | list):
                raise RefusedError(f"expected a list or a text, got {shown(value)}")
            return self.budget.made(value[first:last])
        index = self.value(node.slice)
        if isinstance(value, dict):
            key = text(index)
            if key not in value:
                raise RefusedError(f"there is no key {key[:40]!r}", did_you_mean(key[:40], value))
            return value[key]
        if not isinstance(value, str | list):
            raise RefusedError(f"expected a list, a mapping or a text, got {shown(value)}")
        position = whole(index)
        if not -len(value) <= position < len(value):
            raise RefusedError(f"there is no item {position} in {shown(value)}")
        return value[position]

    def template(self, node: ast.JoinedStr) -> Value:
        parts = [
            as_text(self.value(part.value if isinstance(part, ast.FormattedValue) else part))
            for part in node.values
        ]
        check_length(sum(map(len, parts)))
        return self.budget.made("".join(parts))

    def call(self, node: ast.Call) -> Value:
        name = cast("ast.Name", node.func).id
        given = [self.value(argument) for argument in node.args]
        for value in given:
            self.budget.made(value)  # most functions read all of their arguments
        if name == "ref":
            _check_count("ref", given, 1, 1, "ref('section.key')")
            return self.scope.ref(text(given[0]))
        function = DRAWS[name] if name in DRAWS else FUNCTIONS[name]
        _check_count(name, given, function.least, function.most, function.usage)
        self.budget.charge(function.cost)
        if name not in DRAWS:
            return self.budget.made(cast("Value", function.run(*given)))
        if self.drawing is None:
            # One stream for the expression, so that two draws in it differ.
            self.drawing = self.scope.stream()
        before = self.drawing.drawn
        result = self.budget.made(cast("Value", function.run(self.drawing, *given)))
        # Known only afterwards: some draws are repeated until they succeed.
        self.budget.charge(STEPS_PER_WORD * (self.drawing.drawn - before))
        return result


_RULES: Mapping[type[ast.AST], Callable[[_Interpreter, Any], Value]] = {
    ast.Constant: _Interpreter.constant,
    ast.Name: _Interpreter.name,
    ast.UnaryOp: _Interpreter.unary,
    ast.BinOp: _Interpreter.binary,
    ast.BoolOp: _Interpreter.logic,
    ast.Compare: _Interpreter.comparison,
    ast.IfExp: _Interpreter.conditional,
    ast.List: _Interpreter.list,
    ast.Dict: _Interpreter.mapping,
    ast.ListComp: _Interpreter.list_comprehension,
    ast.DictComp: _Interpreter.mapping_comprehension,
    ast.Subscript: _Interpreter.item,
    ast.Call: _Interpreter.call,
    ast.JoinedStr: _Interpreter.template,
}


_ORDER: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _power(left: Number, right: Number) -> Value:
    if isinstance(left, int) and isinstance(right, int) and right >= 0:
        # Bits of the result are about bits × exponent; checked before any work is done.
        if abs(left) > 1 and (left.bit_length() - 1) * right > MAX_BITS:
            raise RefusedError(f"the number has more than {MAX_BITS} bits")
        # Powers of 0, 1 and -1 stay small, but the exponent may be huge: its parity is enough.
        return left**right if abs(left) > 1 else left ** (right % 2 if left < 0 else min(right, 1))
    try:
        return randomness.power(float(left), float(right))
    except ValueError as error:
        raise RefusedError(f"{error} is not a real number") from None


def _repeated(value: str | list[Value], times: int) -> Value:
    limit = MAX_TEXT if isinstance(value, str) else MAX_ITEMS
    if max(times, 0) * len(value) > limit:
        what = "text" if isinstance(value, str) else "list"
        raise RefusedError(f"the {what} would be longer than {limit:,}")
    return value * max(times, 0)


def _holds(sign: ast.cmpop, left: Value, right: Value) -> bool:
    match sign:
        case ast.Eq() | ast.NotEq():
            return _equal(left, right) == isinstance(sign, ast.Eq)
        case ast.In() | ast.NotIn():
            if isinstance(right, str):
                found = text(left) in right
            elif isinstance(right, dict):
                found = isinstance(left, str) and left in right
            else:
                found = any(_equal(item, left) for item in items(right))
            return found == isinstance(sign, ast.In)
        case _:
            if isinstance(left, str) and isinstance(right, str):
                return _ORDER[type(sign)](left, right)
            return _ORDER[type(sign)](number(left), number(right))


def _equal(left: Value, right: Value) -> bool:
    """Return whether two values are equal: 1 and 1.0 are, 1 and true are not."""
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def _check_count(name: str, given: list[Value], least: int, most: int, usage: str) -> None:
    if not least <= len(given) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise RefusedError(f"{name} takes {wanted} values, got {len(given)}", f"write {usage}")

"""What an expression is worth.

Promise: only the nodes and functions of the language do anything, each step is taken from the
build's budget, each result is bounded, and whatever is refused is told with the part of the
expression it is about. There is no way from here to a Python object that is not a plain value.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, cast

from proctor.errors import did_you_mean
from proctor.scenarios import portable
from proctor.scenarios.bounds import (
    MAX_BITS,
    MAX_ITEMS,
    MAX_TEXT,
    Budget,
    RefusedError,
    Value,
    bounded,
    shown,
)
from proctor.scenarios.draws import DRAWS, KNOWN
from proctor.scenarios.functions import (
    CONSTANTS,
    FUNCTIONS,
    SLOW,
    as_text,
    items,
    number,
    text,
    whole,
)
from proctor.scenarios.grammar import (
    Binary,
    Call,
    Comparison,
    Comprehension,
    Conditional,
    Constant,
    Item,
    Items,
    Logic,
    Loop,
    Name,
    Node,
    Pairs,
    Text,
    Unary,
    parse,
)
from proctor.scenarios.randomness import Stream
from proctor.scenarios.tokens import ExpressionError

STEPS_PER_WORD = 12
"""What 64 random bits cost: about the time of as many steps."""


class UnknownNameError(Exception):
    """A name that stands for nothing."""


class Scope(NamedTuple):
    """What an expression can see.

    `names` gives a named value or raises `UnknownNameError`, `known` are all names (for a hint),
    `ref` gives any other value of the template, `stream` the random numbers of this place.
    """

    names: Callable[[str], Value]
    known: Callable[[], list[str]]
    ref: Callable[[str], Value]
    stream: Callable[[], Stream]
    budget: Budget


def evaluate(expression: str, scope: Scope) -> Value:
    """The value of an expression; `ExpressionError` says what is refused, and which part."""
    return _Evaluator(scope).value(parse(expression, KNOWN))


class _Evaluator:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.budget = scope.budget
        self.variables: dict[str, Value] = {}
        self.drawing: Stream | None = None

    def value(self, node: Node) -> Value:
        """What a node is worth; a refusal inside is told with the innermost part it is about."""
        try:
            self.budget.enter()
            self.budget.charge(1)
            return bounded(_RULES[type(node)](self, node))
        except RefusedError as error:
            raise ExpressionError(error.message, *node.at, error.hint) from None
        except ZeroDivisionError:
            raise ExpressionError("division by zero", *node.at) from None
        except ArithmeticError:
            raise ExpressionError("the result is too large", *node.at) from None
        finally:
            self.budget.depth -= 1

    def constant(self, node: Constant) -> Value:
        return node.value

    def name(self, node: Name) -> Value:
        if node.name in self.variables:
            return self.variables[node.name]
        try:
            return self.scope.names(node.name)
        except UnknownNameError:
            if node.name in CONSTANTS:
                return CONSTANTS[node.name]
        known = [*self.variables, *self.scope.known(), *CONSTANTS]
        hint = did_you_mean(node.name, known)
        if node.name in KNOWN:
            hint = f"{node.name} is a function: call it, {node.name}(…)"
        raise RefusedError(f"there is no value {node.name!r}", hint)

    def unary(self, node: Unary) -> Value:
        value = self.value(node.value)
        if node.operator == "not":
            return not truth(value)
        return -number(value) if node.operator == "-" else number(value)

    def binary(self, node: Binary) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        if node.operator == "+" and isinstance(left, str) and isinstance(right, str):
            return self.budget.made(left + right)
        if node.operator == "+" and isinstance(left, list) and isinstance(right, list):
            return self.budget.made([*left, *right])
        if node.operator == "*" and isinstance(left, str | list):
            return self.budget.made(_repeated(left, whole(right)))
        if node.operator == "*" and isinstance(right, str | list):
            return self.budget.made(_repeated(right, whole(left)))
        if node.operator == "**":
            self.budget.charge(SLOW)
        return _arithmetic(node.operator, number(left), number(right))

    def logic(self, node: Logic) -> Value:
        left = truth(self.value(node.left))
        if left == (node.operator == "or"):
            return left
        return truth(self.value(node.right))

    def comparison(self, node: Comparison) -> Value:
        left = self.value(node.first)
        for operator, other in node.rest:
            right = self.value(other)
            self.budget.weigh(right)
            if not _compared(operator, left, right):
                return False
            left = right
        return True

    def conditional(self, node: Conditional) -> Value:
        return self.value(node.yes if truth(self.value(node.condition)) else node.no)

    def items(self, node: Items) -> Value:
        return [self.value(item) for item in node.items]

    def pairs(self, node: Pairs) -> Value:
        return {text(self.value(key)): self.value(value) for key, value in node.items}

    def comprehension(self, node: Comprehension) -> Value:
        outer = dict(self.variables)
        made: list[Value] = []
        pairs: dict[str, Value] = {}
        try:
            for _ in self.turns(node.loops, 0):
                if node.key is not None:
                    pairs[text(self.value(node.key))] = self.value(node.value)
                else:
                    made.append(self.value(node.value))
                if len(made) > MAX_ITEMS or len(pairs) > MAX_ITEMS:
                    raise RefusedError(f"the list has more than {MAX_ITEMS:,} items")
        finally:
            self.variables = outer
        return made if node.key is None else pairs

    def turns(self, loops: tuple[Loop, ...], level: int) -> Generator[None]:
        """Each turn of the loops, the variables set; the last loop turns fastest."""
        if level == len(loops):
            yield
            return
        loop = loops[level]
        for item in items(self.value(loop.source)):
            self.budget.charge(1)
            self.bind(loop.names, item)
            if all(truth(self.value(condition)) for condition in loop.conditions):
                yield from self.turns(loops, level + 1)

    def bind(self, names: tuple[str, ...], item: Value) -> None:
        parts = [item] if len(names) == 1 else items(item)
        if len(parts) != len(names):
            raise RefusedError(f"{len(names)} variables cannot take {shown(item)}")
        self.variables = {**self.variables, **dict(zip(names, parts, strict=True))}

    def item(self, node: Item) -> Value:
        value = self.value(node.value)
        start = None if node.start is None else self.value(node.start)
        if node.slice:
            end = None if node.end is None else self.value(node.end)
            first, last = (None if edge is None else whole(edge) for edge in (start, end))
            if not isinstance(value, str | list):
                raise RefusedError(f"expected a list or a text, got {shown(value)}")
            return self.budget.made(value[first:last])
        return _item(value, start)

    def text(self, node: Text) -> Value:
        parts = [as_text(self.value(part)) for part in node.parts]
        if sum(map(len, parts)) > MAX_TEXT:
            raise RefusedError(f"the text has more than {MAX_TEXT:,} characters")
        return self.budget.made("".join(parts))

    def call(self, node: Call) -> Value:
        given = [self.value(argument) for argument in node.arguments]
        for value in given:
            self.budget.made(value)  # most functions go through the whole of what they are given
        if node.function in ("any", "all"):
            _count(node.function, given, 1, 1, f"{node.function}(list)")
            found = [truth(value) for value in items(given[0])]
            return any(found) if node.function == "any" else all(found)
        if node.function == "ref":
            _count("ref", given, 1, 1, "ref('section.key')")
            return self.scope.ref(text(given[0]))
        draws = node.function in DRAWS
        function = (DRAWS if draws else FUNCTIONS)[node.function]
        _count(node.function, given, function.least, function.most, function.usage)
        self.budget.charge(function.cost)
        if not draws:
            return self.budget.made(cast("Value", function.run(*given)))
        stream = self.stream()
        before = stream.drawn
        result = self.budget.made(cast("Value", function.run(stream, *given)))
        self.budget.charge(STEPS_PER_WORD * (stream.drawn - before))
        return result

    def stream(self) -> Stream:
        if self.drawing is None:
            self.drawing = self.scope.stream()
        return self.drawing


_RULES: Mapping[type[Any], Callable[[_Evaluator, Any], Value]] = {
    Constant: _Evaluator.constant,
    Name: _Evaluator.name,
    Unary: _Evaluator.unary,
    Binary: _Evaluator.binary,
    Logic: _Evaluator.logic,
    Comparison: _Evaluator.comparison,
    Conditional: _Evaluator.conditional,
    Items: _Evaluator.items,
    Pairs: _Evaluator.pairs,
    Comprehension: _Evaluator.comprehension,
    Item: _Evaluator.item,
    Call: _Evaluator.call,
    Text: _Evaluator.text,
}


def truth(value: Value) -> bool:
    """A condition is true or false; nothing else is taken for either."""
    if not isinstance(value, bool):
        raise RefusedError(
            f"expected true or false, got {shown(value)}", "compare it with something"
        )
    return value


def _arithmetic(operator: str, left: int | float, right: int | float) -> Value:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case "//":
            return left // right
        case "%":
            return left % right
        case _:
            return _power(left, right)


def _power(left: int | float, right: int | float) -> Value:
    if isinstance(left, int) and isinstance(right, int) and right >= 0:
        # Bits of the result are about bits × exponent; looked at before any work is done.
        if abs(left) > 1 and (left.bit_length() - 1) * right > MAX_BITS:
            raise RefusedError(f"the number has more than {MAX_BITS} bits")
        return left**right if abs(left) > 1 else left ** (right % 2 if left < 0 else min(right, 1))
    try:
        return portable.power(float(left), float(right))
    except ValueError as error:
        raise RefusedError(f"{error} is not a real number") from None


def _repeated(value: str | list[Value], times: int) -> Value:
    limit = MAX_TEXT if isinstance(value, str) else MAX_ITEMS
    if max(times, 0) * len(value) > limit:
        what = "text" if isinstance(value, str) else "list"
        raise RefusedError(f"the {what} would be longer than {limit:,}")
    return value * max(times, 0)


def _compared(operator: str, left: Value, right: Value) -> bool:
    match operator:
        case "==":
            return _equal(left, right)
        case "!=":
            return not _equal(left, right)
        case "in":
            return _contains(right, left)
        case "not in":
            return not _contains(right, left)
        case _:
            return _less(operator, left, right)


def _less(operator: str, left: Value, right: Value) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        order = (left > right) - (left < right)
    else:
        first, second = number(left), number(right)
        order = (first > second) - (first < second)
    return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[operator]


def _equal(left: Value, right: Value) -> bool:
    """1 and 1.0 are equal; 1 and true are not."""
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def _contains(whole_value: Value, part: Value) -> bool:
    if isinstance(whole_value, str):
        return text(part) in whole_value
    if isinstance(whole_value, dict):
        return part in whole_value if isinstance(part, str) else False
    return any(_equal(item, part) for item in items(whole_value))


def _item(value: Value, index: Value) -> Value:
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


def _count(name: str, given: list[Value], least: int, most: int, usage: str) -> None:
    if not least <= len(given) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise RefusedError(f"{name} takes {wanted} values, got {len(given)}", f"write {usage}")

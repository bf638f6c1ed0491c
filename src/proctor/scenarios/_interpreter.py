"""Evaluate the expressions of a template within a budget.

Promise: only the nodes and functions of the language do anything, and no Python object other than
a plain value can be reached. Every step and every value comes out of one budget for the whole
build, so a build ends within seconds and some tens of megabytes, and many small expressions cannot
do what one large one may not. An error names the innermost part of the expression it is about.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from proctor.errors import did_you_mean
from proctor.scenarios import _randomness as randomness
from proctor.scenarios._expressions import LITERALS, ExpressionError, parse, place_of
from proctor.scenarios._functions import (
    CONSTANTS,
    DRAWS,
    FUNCTIONS,
    KNOWN,
    MAX_BITS,
    MAX_ITEMS,
    MAX_TEXT,
    SLOW,
    Number,
    RefusedError,
    Value,
    as_text,
    bounded,
    check_length,
    items,
    number,
    shown,
    text,
    whole,
)
from proctor.scenarios._randomness import Stream

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
        except RefusedError as error:
            place = place_of(self.expression, node)
            raise ExpressionError(error.message, *place, error.hint) from None
        except ZeroDivisionError:
            place = place_of(self.expression, node)
            raise ExpressionError("division by zero", *place) from None
        except ArithmeticError:
            place = place_of(self.expression, node)
            raise ExpressionError("the result is too large", *place) from None
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
        if name in ("any", "all"):
            _check_count(name, given, 1, 1, f"{name}(list)")
            found = [truth(value) for value in items(given[0])]
            return any(found) if name == "any" else all(found)
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


def truth(value: Value) -> bool:
    """Return a condition's value; only true and false are conditions."""
    if not isinstance(value, bool):
        raise RefusedError(
            f"expected true or false, got {shown(value)}", "compare it with something"
        )
    return value


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

"""From the text of an expression to a tree of what it means.

A parser of our own (operator precedence), because Python's grammar is larger than the language,
differs between versions, and may end the process on hostile depth. What is not in the language
cannot be parsed; nesting is bounded here, so that nothing after it can run out of stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from proctor.errors import did_you_mean
from proctor.scenarios.tokens import KEYWORDS, ExpressionError, Token, tokens, unescaped

MAX_NESTING = 30
"""Brackets within brackets: five are hard to read, and the stack holds hundreds."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that stands in the text."""

    value: int | float | str | bool | None
    at: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Name:
    """A parameter, a named value or the variable of a `for`."""

    name: str
    at: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Unary:
    """`-x`, `+x` or `not x`."""

    operator: str
    value: Node
    at: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Binary:
    """Arithmetic on two values."""

    operator: str
    left: Node
    right: Node
    at: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Logic:
    """`and` or `or`: the right side is worked out only if it decides."""

    operator: str
    left: Node
    right: Node
    at: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`a < b <= c`: all must hold."""

    first: Node
    rest: tuple[tuple[str, Node], ...]
    at: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Conditional:
    """`a if condition else b`."""

    condition: Node
    yes: Node
    no: Node
    at: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Items:
    """`[a, b]`."""

    items: tuple[Node, ...]
    at: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Pairs:
    """`{key: value}`."""

    items: tuple[tuple[Node, Node], ...]
    at: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Loop:
    """`for names in source if conditions`, one clause of a comprehension."""

    names: tuple[str, ...]
    source: Node
    conditions: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Comprehension:
    """`[value for …]`, or `{key: value for …}`."""

    key: Node | None
    value: Node
    loops: tuple[Loop, ...]
    at: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Item:
    """`x[i]`, or `x[start:end]` when `slice` is true."""

    value: Node
    start: Node | None
    end: Node | None
    slice: bool
    at: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the language."""

    function: str
    arguments: tuple[Node, ...]
    at: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Text:
    """`f"…{x}…"`."""

    parts: tuple[Node, ...]
    at: tuple[int, int]


Node: TypeAlias = (
    Constant
    | Name
    | Unary
    | Binary
    | Logic
    | Comparison
    | Conditional
    | Items
    | Pairs
    | Comprehension
    | Item
    | Call
    | Text
)

_COMPARISONS = frozenset(("==", "!=", "<", "<=", ">", ">=", "in", "not"))
_POWERS = {"or": 1, "and": 2, "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6, "**": 8}
_NOT, _COMPARE, _SIGN = 3, 4, 7
_LITERALS = {
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    "null": None,
    "None": None,
}


@lru_cache(maxsize=4_096)
def parse(text: str, functions: frozenset[str]) -> Node:
    """The tree of an expression that may call these functions; `ExpressionError` if it is none."""
    parser = _Parser(tokens(text), functions)
    node = parser.expression(0)
    parser.expect("end", "the expression goes on where it should end")
    return node


class _Parser:
    def __init__(self, words: Sequence[Token], functions: frozenset[str], depth: int = 0) -> None:
        self.words = words
        self.functions = functions
        self.position = 0
        self.depth = depth

    # -- words ----------------------------------------------------------------------------------

    @property
    def next(self) -> Token:
        return self.words[self.position]

    def take(self) -> Token:
        token = self.words[self.position]
        self.position += token.kind != "end"
        return token

    def accept(self, kind: str) -> bool:
        if self.next.kind != kind:
            return False
        self.take()
        return True

    def expect(self, kind: str, message: str) -> Token:
        if self.next.kind != kind:
            raise self.error(message)
        return self.take()

    def error(self, message: str, hint: str | None = None) -> ExpressionError:
        if self.next.kind == "end":
            hint = hint or "in {…} and […] of YAML a comma ends the text: put it in quotes"
        return ExpressionError(message, self.next.start, max(self.next.end, self.next.start), hint)

    def since(self, start: int) -> tuple[int, int]:
        return start, self.words[max(self.position - 1, 0)].end

    # -- expressions ----------------------------------------------------------------------------

    def expression(self, power: int) -> Node:
        """What stands here, as far as operators bind tighter than `power`."""
        start = self.next.start
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self.error(f"the expression is nested more than {MAX_NESTING} deep")
        left = self.operand()
        while True:
            kind = self.next.kind
            if kind in _COMPARISONS and power < _COMPARE:
                left = self.comparison(left, start)
            elif kind in _POWERS and power < _POWERS[kind]:
                operator = self.take().text
                # A power binds to the right, and lets a sign stand after it.
                right = self.expression(_SIGN if operator == "**" else _POWERS[operator])
                made = Logic if operator in ("and", "or") else Binary
                left = made(operator, left, right, self.since(start))
            elif kind == "if" and power == 0:
                left = self.conditional(left, start)
            else:
                break
        self.depth -= 1
        return left

    def conditional(self, yes: Node, start: int) -> Node:
        self.take()
        condition = self.expression(1)
        self.expect("else", "`if` in an expression needs an `else`")
        return Conditional(condition, yes, self.expression(0), self.since(start))

    def comparison(self, first: Node, start: int) -> Node:
        rest: list[tuple[str, Node]] = []
        while self.next.kind in _COMPARISONS:
            operator = self.take().text
            if operator == "not":
                self.expect("in", "`not` between two values must be `not in`")
                operator = "not in"
            rest.append((operator, self.expression(_COMPARE)))
        return Comparison(first, tuple(rest), self.since(start))

    def operand(self) -> Node:
        token = self.take()
        if token.kind in ("-", "+", "not"):
            value = self.expression(_NOT if token.kind == "not" else _SIGN)
            return Unary(token.kind, value, self.since(token.start))
        value = self.atom(token)
        while self.next.kind == "[":
            value = self.item(value, token.start)
        if self.next.kind == "(":
            raise self.error("only the functions of the language can be called")
        return value

    def atom(self, token: Token) -> Node:
        at = (token.start, token.end)
        if token.kind in _LITERALS:
            return Constant(_LITERALS[token.kind], at)
        match token.kind:
            case "number":
                return Constant(_number(token), at)
            case "text":
                return Constant(unescaped(token, token.text[1:-1]), at)
            case "template":
                return self.template(token)
            case "name":
                return self.call(token) if self.next.kind == "(" else Name(token.text, at)
            case "(":
                inner = self.expression(0)
                self.expect(")", "a closing `)` is missing")
                return inner
            case "[":
                return self.items(token.start)
            case "{":
                return self.pairs(token.start)
            case "end":
                raise ExpressionError("a value is missing at the end", *at)
            case _:
                raise ExpressionError(f"`{token.text}` cannot stand here", *at)

    def call(self, token: Token) -> Node:
        if token.text not in self.functions:
            raise ExpressionError(
                f"there is no function {token.text!r}",
                token.start,
                token.end,
                did_you_mean(token.text, self.functions),
            )
        self.take()
        return Call(token.text, tuple(self.several(")")), self.since(token.start))

    def several(self, closing: str) -> list[Node]:
        """Values between commas, up to a bracket."""
        found: list[Node] = []
        while not self.accept(closing):
            found.append(self.expression(0))
            if self.next.kind != closing:
                self.expect(",", f"a comma or a closing `{closing}` is missing")
        return found

    def items(self, start: int) -> Node:
        if self.accept("]"):
            return Items((), self.since(start))
        first = self.expression(0)
        if self.next.kind == "for":
            return self.comprehension(None, first, "]", start)
        if self.next.kind != "]":
            self.expect(",", "a comma or a closing `]` is missing")
        return Items((first, *self.several("]")), self.since(start))

    def pairs(self, start: int) -> Node:
        found: list[tuple[Node, Node]] = []
        while not self.accept("}"):
            key = self.expression(0)
            self.expect(":", "a colon is missing after the key")
            value = self.expression(0)
            if self.next.kind == "for" and not found:
                return self.comprehension(key, value, "}", start)
            found.append((key, value))
            if self.next.kind != "}":
                self.expect(",", "a comma or a closing `}` is missing")
        return Pairs(tuple(found), self.since(start))

    def comprehension(self, key: Node | None, value: Node, closing: str, start: int) -> Node:
        loops: list[Loop] = []
        while self.accept("for"):
            names = [self.variable()]
            while self.accept(","):
                names.append(self.variable())
            self.expect("in", "`for` needs an `in`")
            source = self.expression(1)
            conditions: list[Node] = []
            while self.accept("if"):
                conditions.append(self.expression(1))
            loops.append(Loop(tuple(names), source, tuple(conditions)))
        self.expect(closing, f"a closing `{closing}` is missing")
        return Comprehension(key, value, tuple(loops), self.since(start))

    def variable(self) -> str:
        token = self.expect("name", "the name of a variable is missing after `for`")
        return token.text

    def item(self, value: Node, start: int) -> Node:
        self.take()
        first = None if self.next.kind == ":" else self.expression(0)
        last: Node | None = None
        sliced = self.accept(":")
        if sliced and self.next.kind != "]":
            last = self.expression(0)
        self.expect("]", "a closing `]` is missing")
        return Item(value, first, last, sliced, self.since(start))

    def template(self, token: Token) -> Node:
        """`f"…{x}…"`; `{{` and `}}` are single braces."""
        inner, offset = token.text[2:-1], token.start + 2
        parts: list[Node] = []
        plain, position = "", 0
        while position < len(inner):
            sign = inner[position]
            if inner[position : position + 2] in ("{{", "}}"):
                plain, position = plain + sign, position + 2
            elif sign == "{":
                end = inner.find("}", position)
                if end < 0:
                    raise ExpressionError("a closing `}` is missing", token.start, token.end)
                parts.append(Constant(unescaped(token, plain), (token.start, token.end)))
                parts.append(self.placeholder(inner[position + 1 : end], offset + position + 1))
                plain, position = "", end + 1
            elif sign == "}":
                raise ExpressionError("a single `}` is written `}}`", token.start, token.end)
            else:
                plain, position = plain + sign, position + 1
        parts.append(Constant(unescaped(token, plain), (token.start, token.end)))
        return Text(tuple(parts), (token.start, token.end))

    def placeholder(self, text: str, offset: int) -> Node:
        try:
            words = [word._replace(start=word.start + offset) for word in tokens(text)]
        except ExpressionError as error:
            raise ExpressionError(
                error.message, offset + error.start, offset + error.end, error.hint
            ) from None
        inner = _Parser(words, self.functions, self.depth)
        node = inner.expression(0)
        if inner.next.kind == ":":
            raise inner.error("there are no formats in braces", "write fixed(x, 2)")
        inner.expect("end", "one value goes between braces")
        return node


def _number(token: Token) -> int | float:
    digits = token.text.replace("_", "")
    if digits.isdecimal() and digits.isascii():
        return int(digits)
    try:
        value = float(digits)
    except ValueError:
        raise ExpressionError(f"{token.text!r} is not a number", token.start, token.end) from None
    if value in (float("inf"), float("-inf")):
        raise ExpressionError("the number is too large", token.start, token.end)
    return value


def is_name(text: str) -> bool:
    """Whether an expression can name a value so."""
    try:
        found = tokens(text)
    except ExpressionError:
        return False
    return len(found) == 2 and found[0].kind == "name" and text not in KEYWORDS

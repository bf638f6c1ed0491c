"""The words of an expression.

Only what the language has is a word; whatever else stands in the text is told by its name and
position, so that someone who expected all of Python learns at once what there is instead.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_LENGTH = 4_000
"""Characters in an expression: a screenful. What is longer is a program."""

MAX_DIGITS = 100
"""Digits in a number, as the values below are bounded too."""


class ExpressionError(Exception):
    """An expression that is refused; `start` and `end` are where in its text, `hint` what to do."""

    def __init__(self, message: str, start: int, end: int, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.start = start
        self.end = end
        self.hint = hint


class Token(NamedTuple):
    """A word: `kind` is number, text, template (an f"…"), name, end, or the sign itself."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        """Where the next word may begin."""
        return self.start + len(self.text)


_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
      | (?P<number>(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?)
      | (?P<text>[fF]?"(?:[^"\\]|\\.)*"|[fF]?'(?:[^'\\]|\\.)*')
      | (?P<name>[^\W\d]\w*)
      | (?P<sign>\*\*|//|==|!=|<=|>=|[-+*/%<>()\[\]{},:])""",
    re.VERBOSE | re.DOTALL,
)

_REF_HINT = "another value of the template is ref('section.key')"
_REFUSED = (
    (re.compile(r"\.\s*[^\W\d]\w*"), "attribute access is not part of the language", _REF_HINT),
    (re.compile(r"<<|>>|[&|^~]"), "operations on bits are not part of the language", None),
    (re.compile(r":="), "assignment is not part of the language", "name a value under `values:`"),
    (
        re.compile(r"="),
        "`=` is not part of the language",
        "compare with ==; arguments have no name",
    ),
    (re.compile(r"""['"]"""), "the text that begins here does not end", None),
)

KEYWORDS = frozenset("and or not if else for in true false null True False None".split())

FORBIDDEN = frozenset(
    "lambda import from while def class return yield await async exec eval global nonlocal del "
    "with try except raise assert pass break continue is".split()
)
"""Words of Python that are told apart from unknown names."""


def tokens(text: str) -> list[Token]:
    """The words of a text, an `end` after the last."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(
            f"the expression has more than {MAX_LENGTH:,} characters",
            0,
            40,
            "name its parts under `values:`",
        )
    found: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or text.startswith((":=", "<<", ">>"), position):
            raise _refused(text, position)
        if match.lastgroup != "space":
            found.append(_token(match))
        position = match.end()
    found.append(Token("end", "", len(text)))
    return found


def _token(match: re.Match[str]) -> Token:
    kind, text = str(match.lastgroup), match.group()
    start, end = match.span()
    if kind == "number":
        if len(text) > MAX_DIGITS:
            raise ExpressionError(f"a number has at most {MAX_DIGITS} digits", start, end)
        if match.string[end : end + 1].isalpha():
            raise ExpressionError("a number runs into a name here", start, end + 1)
    elif kind == "text":
        kind = "template" if text[0] in "fF" else "text"
    elif kind == "name":
        if text.startswith("_"):
            raise ExpressionError("names do not begin with an underscore", start, end)
        if text in FORBIDDEN:
            raise ExpressionError(f"`{text}` is not part of the language", start, end)
        kind = text if text in KEYWORDS else "name"
    else:
        kind = text
    return Token(kind, text, start)


def _refused(text: str, position: int) -> ExpressionError:
    for pattern, message, hint in _REFUSED:
        if found := pattern.match(text, position):
            return ExpressionError(message, position, found.end(), hint)
    return ExpressionError(
        f"{text[position]!r} is not part of the language", position, position + 1
    )


_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"', "\n": ""}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)


def unescaped(token: Token, inner: str) -> str:
    r"""A quoted text as it is meant: \n \t \\ \' \" and \uXXXX are known."""

    def character(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) == 5:
            number = int(code[1:], 16)
            if not 0xD800 <= number <= 0xDFFF:
                return chr(number)
        elif code in _ESCAPES:
            return _ESCAPES[code]
        raise ExpressionError(
            f"{match.group()!r} is not an escape", token.start, token.end, r"for one \ write \\"
        )

    return _ESCAPE.sub(character, inner)

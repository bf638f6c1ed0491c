"""Parse the expressions of `!ev`: a small part of Python's expression syntax.

`ast.parse` reads a text of bounded length, and `_check` lets only the listed nodes through, so
nothing outside the language reaches the interpreter. `true`, `false` and `null` are plain names to
Python; the interpreter gives them their values.

Syntax errors differ between Python versions. The mistakes people make most (an attribute, `=`, an
unfinished text) are therefore found by `_source` before Python sees the text, with the same
message and place everywhere.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
import unicodedata
from functools import lru_cache

from proctor.errors import did_you_mean

MAX_LENGTH = 4_000
"""Characters in an expression: a screenful. `ast.parse` cannot exhaust the C stack with this."""

MAX_DIGITS = 100
"""Digits in a number; values are bounded too."""

MAX_NESTING = 30
"""Brackets within brackets: five are hard to read already."""

LITERALS = {"true": True, "false": False, "null": None}
"""Names that YAML spells differently from Python."""

_SPACE = " \t\r\n"
_WORDS = frozenset("and or not if else for in True False None".split()) | frozenset(LITERALS)
_FORBIDDEN = frozenset(keyword.kwlist) - _WORDS | {"exec", "eval"}

_NODES = (
    *(ast.Constant, ast.Name, ast.List, ast.Dict, ast.JoinedStr, ast.FormattedValue),
    *(ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call),
    *(ast.ListComp, ast.DictComp, ast.comprehension, ast.Subscript, ast.Slice),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.UAdd, ast.USub),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn),
    *(ast.And, ast.Or, ast.Not, ast.Load, ast.Store),
)

_PARTS = (ast.comprehension, ast.FormattedValue, ast.Slice)  # of what is around them

# The first alternative that matches counts: `==` is a comparison before `=` is refused.
_SCAN = re.compile(
    r"""(?P<text>"(?:[^"\\\r\n]|\\.)*"|'(?:[^'\\\r\n]|\\.)*')
      | (?P<number>(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?)(?P<tail>[^\W\d]?)
      | (?P<name>[^\W\d]\w*)
      | (?P<attribute>\.\s*[^\W\d]\w*)
      | (?P<assignment>:=)
      | (?P<comparison>[=!<>]=)
      | (?P<bits><<|>>|[&|^~])
      | (?P<equals>=)
      | (?P<unfinished>['"])
      | (?P<foreign>[^\w \t\r\n+\-*/%<>()\[\]{},:.])""",
    re.VERBOSE | re.DOTALL,
)
_REFUSED = {
    "attribute": (
        "attribute access is not part of the language",
        "another value of the template is ref('section.key')",
    ),
    "assignment": ("assignment is not part of the language", "name a value under `values:`"),
    "bits": ("operations on bits are not part of the language", None),
    "equals": ("`=` is not part of the language", "compare with ==; arguments have no name"),
    "unfinished": (
        "the text that begins here does not end",
        r"a text ends on its own line; write \n for a new one",
    ),
}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_FOREIGN = "this is not part of the language"
_UNFINISHED = "in {…} and […] of YAML a comma ends the text: put it in quotes"


class ExpressionError(Exception):
    """An invalid expression: `start` and `end` locate the part, `hint` says what to do."""

    def __init__(self, message: str, start: int, end: int, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.start = start
        self.end = end
        self.hint = hint


# Cached: a template is parsed when it is read, and again for every build.
@lru_cache(maxsize=4_096)
def parse(text: str, functions: frozenset[str]) -> ast.expr:
    """Parse an expression that may call these functions; raise `ExpressionError` if invalid."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(
            f"the expression has more than {MAX_LENGTH:,} characters",
            0,
            40,
            "name its parts under `values:`",
        )
    source = _source(text)
    try:
        # Python would take space at the start for an indentation error.
        node = ast.parse(source.lstrip(), mode="eval").body
    except (RecursionError, MemoryError):
        raise _too_deep(0, len(text)) from None
    except SyntaxError as error:
        raise _syntax_error(error, source) from None
    except ValueError:  # half of a surrogate pair cannot be encoded for the parser
        raise ExpressionError("a character cannot be read", 0, len(text)) from None
    _check(node, text, functions)
    return node


def place_of(text: str, node: ast.AST) -> tuple[int, int]:
    """Return where a node begins and ends in the expression, in characters."""
    start, end = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", None)
    indent = len(text) - len(text.lstrip(_SPACE))
    encoded = text.lstrip(_SPACE).encode("utf-8", "replace")  # offsets of nodes count bytes
    first = indent + len(encoded[:start].decode("utf-8", "ignore"))
    last = indent + len(encoded[:end].decode("utf-8", "ignore"))
    # Python 3.11 places what is inside an f-string only roughly.
    return min(first, last), last


def is_name(text: str) -> bool:
    """Return whether an expression can use this text as a name."""
    return (
        text.isidentifier()
        and not text.startswith("_")
        and text not in _WORDS | _FORBIDDEN
        # Python reads names in this form, so any other could never be found again.
        and unicodedata.normalize("NFKC", text) == text
    )


def _source(text: str) -> str:
    """Return the text on one line, without any character or escape the language does not have."""
    for match in _SCAN.finditer(text):
        kind, (start, end) = str(match.lastgroup), match.span()
        if kind in _REFUSED:
            message, hint = _REFUSED[kind]
            raise ExpressionError(message, start, end, hint)
        if kind == "foreign":
            raise ExpressionError(f"{match.group()!r} is not part of the language", start, end)
        if kind == "tail":
            if match["tail"]:  # hexadecimal and complex numbers, and `1if`, end here
                raise ExpressionError("a number runs into a name here", start, end)
            if end - start > MAX_DIGITS:
                raise ExpressionError(f"a number has at most {MAX_DIGITS} digits", start, end)
        if kind == "name":
            _check_name(match.group(), start, end)
            if text[end : end + 1] in ("'", '"') and match.group() not in ("f", "F"):
                raise ExpressionError("only `f` may stand before a text", start, end)
        if kind == "text":
            _check_text(match, text[max(start - 1, 0) : start] in ("f", "F"))
    return re.sub(r"[\r\n]", " ", text)  # line breaks are outside texts now


def _check_name(name: str, start: int, end: int) -> None:
    if name.startswith("_"):
        raise ExpressionError("names do not begin with an underscore", start, end)
    if name in _FORBIDDEN:
        raise ExpressionError(f"`{name}` is not part of the language", start, end)


def _check_text(match: re.Match[str], is_template: bool) -> None:
    r"""Check a quoted text: only \n \t \\ \' \" \uXXXX, and every brace of an f-string closed."""
    start, end = match.span()
    for escape in _ESCAPE.finditer(match.group()):
        code = escape[1]
        surrogate = len(code) == 5 and 0xD800 <= int(code[1:], 16) <= 0xDFFF
        if surrogate or (len(code) == 1 and code not in "nt\\'\""):
            raise ExpressionError(
                f"{escape.group()!r} is not an escape", start, end, r"for one \ write \\"
            )
    braces = match.group().replace("{{", "").replace("}}", "") if is_template else ""
    # Python 3.12 would read on behind the quotation mark, earlier versions would not.
    if braces.count("{") > braces.count("}"):
        raise ExpressionError("a closing `}` is missing", start, end)
    if braces.count("{") < braces.count("}"):
        raise ExpressionError("a single `}` is written `}}`", start, end)


def _syntax_error(error: SyntaxError, source: str) -> ExpressionError:
    """Return what Python says about a text in the words of this language."""
    indent = len(source) - len(source.lstrip())
    reason = error.msg.removeprefix("f-string: ")
    if reason.startswith("too many nested"):
        return _too_deep(0, len(source))
    if found := re.match(r"'([(\[{])' was never closed", reason):
        closing = {"(": ")", "[": "]", "{": "}"}[found[1]]
        message = f"a comma or a closing `{closing}` is missing"
        return ExpressionError(message, len(source), len(source), _UNFINISHED)
    start = indent + max((error.offset or 0) - 1, 0)
    word = re.compile(r"\w+|[=!<>]=|//|\*\*|\S?").match(source, start)
    end = word.end() if word else start
    if reason.startswith("expected 'else'"):
        return ExpressionError("`if` in an expression needs an `else`", start, len(source))
    if "forgot a comma" in reason:
        return ExpressionError("a comma or a closing bracket is missing", start, end)
    if not error.offset or start >= len(source.rstrip()):
        return ExpressionError(
            "a value is missing at the end", len(source), len(source), _UNFINISHED
        )
    try:
        ast.parse(source[indent:start], mode="eval")
    except (SyntaxError, RecursionError, MemoryError):
        return ExpressionError(f"`{source[start:end]}` cannot stand here", start, end)
    return ExpressionError("the expression goes on where it should end", start, end)


def _too_deep(start: int, end: int) -> ExpressionError:
    return ExpressionError(f"the expression is nested more than {MAX_NESTING} deep", start, end)


def _check(root: ast.expr, text: str, functions: frozenset[str]) -> None:
    """Raise `ExpressionError` for the first part that is not in the language."""
    # A list instead of recursion: a sum of a thousand terms is a thousand nodes deep.
    waiting: list[tuple[ast.AST, int]] = [(root, 1)]
    while waiting:
        node, nesting = waiting.pop()
        start, end = place_of(text, node)
        if nesting > MAX_NESTING:
            raise _too_deep(start, end)
        children = list(ast.iter_child_nodes(node))
        match node:
            case ast.Constant(value=value):
                if isinstance(value, float) and math.isinf(value):
                    raise ExpressionError("the number is too large", start, end)
                if not isinstance(value, int | float | str | None):
                    raise ExpressionError(_FOREIGN, start, end)
            case ast.Name(id=name):
                _check_name(name, start, end)  # again: Python normalises names first
            case ast.Call(func=function, args=arguments, keywords=named):
                opening = text.find("(", place_of(text, function)[1])
                if not isinstance(function, ast.Name) or text[opening - 1 : opening] == ")":
                    raise ExpressionError(
                        "only the functions of the language can be called", opening, opening + 1
                    )
                if not function.id.startswith("_") and function.id not in functions | _FORBIDDEN:
                    raise ExpressionError(
                        f"there is no function {function.id!r}",
                        *place_of(text, function),
                        did_you_mean(function.id, functions),
                    )
                children = [function, *arguments, *named]
            case ast.comprehension(target=target, iter=source, ifs=conditions):
                # The one place for a tuple: `for a, b in pairs`.
                names = [target]
                if isinstance(target, ast.Tuple) and len(target.elts) > 1:
                    names = target.elts
                for name in names:
                    if not isinstance(name, ast.Name) or name.id in LITERALS or node.is_async:
                        raise ExpressionError(
                            "`for` takes names of variables", *place_of(text, name)
                        )
                children = [*names, source, *conditions]
            case ast.FormattedValue(value=value) if node.format_spec or node.conversion != -1:
                colon = text.find(":", place_of(text, value)[1])
                raise ExpressionError(
                    "there are no formats in braces",
                    *((start, end) if colon < 0 else (colon, colon + 1)),
                    "write fixed(x, 2)",
                )
            case ast.Tuple(elts=[first, *_]):
                comma = text.find(",", place_of(text, first)[1])
                raise ExpressionError(
                    "the expression goes on where it should end",
                    *((start, end) if comma < 0 else (comma, comma + 1)),
                    "a list is written [a, b]",
                )
            case ast.Slice(step=ast.expr()):
                raise ExpressionError("a slice takes a start and an end", start, end)
            case ast.Dict(keys=keys) if None in keys:
                raise ExpressionError("`**` cannot stand here", start, end)
            case _ if not isinstance(node, _NODES):
                word = re.match(r"\w+", text[start:end])
                raise ExpressionError(
                    f"`{word.group()}` is not part of the language" if word else _FOREIGN,
                    start,
                    start + word.end() if word else end,
                )
            case _:
                pass
        for child in reversed(children):
            # What begins where its parent begins is its left side, which is not nested.
            left = getattr(child, "col_offset", None) == getattr(node, "col_offset", None)
            waiting.append((child, nesting + (not left and not isinstance(child, _PARTS))))

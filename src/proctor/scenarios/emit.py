"""YAML, the same to the byte wherever it is written.

Libraries differ in how they fold, quote and order, by version and by whether they are compiled. A
built scenario is compared by its bytes, so it is written here: block style, keys in the order
given, texts quoted whenever YAML 1.1 or 1.2 could read them as something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*")
_WORDS = frozenset("y n yes no on off true false null inf nan".split())
# What a reader may not print, or would take for a line of its own.
_ESCAPED = re.compile(
    "[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_BLOCK = re.compile(r"[^\s][^\r\t\x85\u2028\u2029]*")


def dump(value: Any) -> str:
    """A plain value as a YAML document."""
    if isinstance(value, dict | list) and value:
        return "".join(f"{line}\n" for line in _lines(value))
    return f"{_scalar(value)}\n"


def _lines(value: Any) -> Iterator[str]:
    """The lines of a mapping or a list that is not empty."""
    if isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            yield from _entry(f"{_text(str(key))}:", item, deeper="  ")
    else:
        for item in cast("list[Any]", value):
            if isinstance(item, dict | list) and item:
                inner = list(_lines(item))
                yield f"- {inner[0]}"
                yield from (f"  {line}" if line else "" for line in inner[1:])
            else:
                yield from _entry("-", item, deeper="  ")


def _entry(head: str, item: Any, *, deeper: str) -> Iterator[str]:
    if isinstance(item, dict | list) and item:
        yield head
        # A list stands under its key without being moved in, as people write it.
        yield from (f"{deeper}{line}" if line else "" for line in _lines(item))
    elif isinstance(item, str) and (block := _block(item)) is not None:
        sign, lines = block
        yield f"{head} {sign}"
        yield from (f"{deeper}{line}" if line else "" for line in lines)
    else:
        yield f"{head} {_scalar(item)}"


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return _text(value)
    return "{}" if isinstance(value, dict) else "[]"


def _float(value: float) -> str:
    """The shortest digits that give the number back; with a point, which YAML 1.1 insists on."""
    digits = repr(value)
    mantissa, sign, exponent = digits.partition("e")
    if not sign:
        return digits
    point = "" if "." in mantissa else ".0"
    return f"{mantissa}{point}e{exponent if exponent[0] in '+-' else '+' + exponent}"


def _text(value: str) -> str:
    if _PLAIN.fullmatch(value) and value.casefold() not in _WORDS and len(value) <= 200:
        return value
    return '"' + _ESCAPED.sub(_escape, value.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    return _NAMED.get(character) or (f"\\u{code:04X}" if code > 0xFF else f"\\x{code:02X}")


def _block(value: str) -> tuple[str, list[str]] | None:
    """A text of several lines as a block, where it reads back as it is."""
    if "\n" not in value or not _BLOCK.fullmatch(value):
        return None
    ends = value.endswith("\n")
    lines = value.removesuffix("\n").split("\n")
    if not lines[-1] or any(line != line.rstrip() or _ESCAPED.search(line) for line in lines):
        return None
    return ("|" if ends else "|-"), lines

"""Tables made small: a column a list, words that repeat written once.

    {"case": {"words": ["a", "b"], "at": [0, 0, 1]}, "score": [1, 0.5, null]}

Promise: `columns(rows)` loses nothing but digits nobody reads. The scripts of the page turn it
back into rows; any JSON reader can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

DIGITS = 4
"""Digits kept after the point of a number: scores to 0.0001, milliseconds to 0.1 µs."""


def columns(
    names: Sequence[str], rows: Sequence[Sequence[Any]], digits: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Rows as columns, by name."""
    kept = digits or {}
    return {
        name: _column([row[at] for row in rows], kept.get(name, DIGITS))
        for at, name in enumerate(names)
    }


def _column(values: list[Any], digits: int) -> Any:
    if any(isinstance(value, str) for value in values):
        words = {word: at for at, word in enumerate(dict.fromkeys(values))}
        return {"words": list(words), "at": [words[value] for value in values]}
    return [_short(value, digits) for value in values]


def _short(value: Any, digits: int) -> Any:
    if not isinstance(value, float):
        return value
    rounded = round(value, digits)
    return int(rounded) if rounded == int(rounded) else rounded


def data_block(name: str, value: Any) -> str:
    """JSON as a block of a page that no text in it can end.

    `<` never occurs: without it neither `</script>` nor `<!--` can be written.
    """
    text = msgspec.json.encode(value).decode()
    for sign, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(sign, code)
    text = text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json" id="data-{name}">{text}</script>'

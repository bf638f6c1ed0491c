"""How things are said to people: counts, money, shares, short lists of names, tables.

Promise: the same thing reads the same in every report, message and error. English only.
"""

import math
import shutil
import sys
import unicodedata
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")

SHOWN_NAMES = 3
"""Enough to know what is meant, few enough for a line that says more than the names."""

DASH = "–"
"""Not known, or not defined."""

MINUS = "−"

_NOTHING = 1e-9
"""What arithmetic leaves of an exact 0 or 1."""

_SMALLEST_IN_FULL = 1e-6
"""Below a millionth of a dollar, zeros after the point are harder to count than an exponent."""


LEAST_WIDTH = 12
"""Columns of a terminal that are left to a name however narrow the window: less says nothing."""

BRIEF = 24
"""Columns of a name in a row that is longer than the terminal whatever is cut."""

NAMES = frozenset({"case", "agent", "run"})
"""Heads of columns that hold names. Only those are cut to fit a terminal: half a figure is none."""


def plural(number: int, noun: str, several: str | None = None) -> str:
    """`1 case`, `2 cases`, `1,000 cases`; `several` is the plural that has more than an `s`."""
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"


def some(names: Sequence[str]) -> str:
    """`a, b, c, …`: the first few of them, by name."""
    return ", ".join([*names[:SHOWN_NAMES], *(["…"] if len(names) > SHOWN_NAMES else [])])


def and_more(items: Sequence[Item], most: int, say: Callable[[Item], str]) -> str:
    """`a, b and 7 more`: the first `most` of them in words, and how many are left."""
    shown = ", ".join(map(say, items[:most]))
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown


def clipped(text: str, most: int) -> str:
    """The text, or as much of it as fits into `most` characters with a mark that it was cut."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def dollars(amount: float) -> str:
    """`$1,234.50`, `$0.50`, `$0.0123`, `$0.000012`: cents, and of less than a dollar three digits.

    `inMoney` of the pages (report/html/core.js) writes the same.
    """
    sign, size = (MINUS if amount < 0 else ""), abs(amount)
    if size == 0 or not size < 1:
        return f"{sign}${size:,.2f}"
    if size < _SMALLEST_IN_FULL:
        return f"{sign}${size:.3g}".replace("e-0", "e-")
    places = 2 - math.floor(math.log10(size))
    whole, _, part = f"{size:.{places}f}".partition(".")
    return f"{sign}${whole}.{part.rstrip('0'):0<2}"


def money(usd: float | None, unpriced: int = 0) -> str:
    """A cost as told to people; a lower bound says so, an unknown one is not zero."""
    calls = f"{plural(unpriced, 'call')} unpriced"
    if usd is None:
        return f"unknown, {calls}" if unpriced else ""
    return f"{at_least(usd, unpriced)}, {calls}" if unpriced else dollars(usd)


def at_least(usd: float | None, unpriced: int) -> str:
    """A cost where there is room for a figure only: `≥` says that some calls have no price."""
    if usd is None:
        return ""
    return f"≥ {dollars(usd)}" if unpriced else dollars(usd)


def percent(share: float | None) -> str:
    """`83.3 %`, `80 %`: a share of one that was measured; what is not defined is a dash.

    Nearly none is not none, and nearly all is not all: `< 0.1 %`, `> 99.9 %`.
    """
    if share is None:
        return DASH
    told = _tenths(share)
    if told == "0" and share > _NOTHING:
        return "< 0.1 %"
    if told == "100" and share < 1 - _NOTHING:
        return "> 99.9 %"
    return f"{told} %"


def level_of(share: float) -> str:
    """`95 %`, `99.99 %`: a share that somebody chose, with the digits they gave it."""
    return f"{100 * share:g} %"


def points(difference: float | None) -> str:
    """`+3.3`, `−20`, `0`: a difference of shares in points, with its sign."""
    if difference is None:
        return DASH
    told = _tenths(difference)
    return told if told == "0" else f"+{told}" if difference > 0 else told.replace("-", MINUS)


def in_points(size: float | None) -> str:
    """`3.3 points`: the size of a difference of shares, without its sign where it has none."""
    return DASH if size is None else f"{_tenths(size).replace('-', MINUS)} points"


def p_text(value: float | None) -> str:
    """`0.043`, `0.0021`, `< 0.0001`: never 0, which no test can say."""
    if value is None:
        return DASH
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}" if value < 0.01 else f"{value:.3f}"


def _tenths(share: float) -> str:
    """Hundredths of one with a decimal, which is left out where it is 0."""
    return f"{100 * share:z.1f}".removesuffix(".0")


def columns(rows: Sequence[Sequence[str]], indent: int = 2) -> list[list[str]]:
    """The cells of each row, filled up to the widest of their column.

    The first row is the head. On a terminal, long names are cut in their middle so that a row and
    its indent fit a line, or nearly; a file or another program gets them whole.
    """
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    if sys.stdout.isatty():
        named = [place for place, word in enumerate(rows[0]) if word in NAMES]
        widths = _narrowed(widths, named, shutil.get_terminal_size().columns - indent)
    return [[_filled(word, wide) for word, wide in zip(row, widths, strict=True)] for row in rows]


def width(text: str) -> int:
    """Columns of a terminal that a text takes: two for each Chinese, Japanese or Korean sign."""
    if text.isascii():
        return len(text)
    return sum(_sign_width(sign) for sign in text)


def _sign_width(sign: str) -> int:
    if unicodedata.category(sign) in ("Mn", "Me", "Cf"):
        return 0  # drawn onto the sign before it, or not at all
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def _narrowed(widths: Sequence[int], named: Sequence[int], room: int) -> list[int]:
    """Widths with which a row fits, taken from the widest names; if none do, not much over it."""
    made = list(widths)
    while sum(made) + 2 * (len(made) - 1) > room:
        widest = max(named, key=made.__getitem__, default=None)
        if widest is None or made[widest] <= LEAST_WIDTH:
            return [min(wide, BRIEF) if at in named else wide for at, wide in enumerate(widths)]
        made[widest] -= 1
    return made


def _filled(word: str, wide: int) -> str:
    if width(word) > wide:
        word = _cut(word, wide)
    return word + " " * (wide - width(word))


def _cut(word: str, wide: int) -> str:
    """The beginning and the end, which tells names apart that begin alike."""
    end = _within(word[::-1], (wide - 1) // 3)[::-1]
    return f"{_within(word, wide - 1 - width(end))}…{end}"


def _within(text: str, wide: int) -> str:
    """As much of the beginning as fits."""
    taken = 0
    for place, sign in enumerate(text):
        taken += _sign_width(sign)
        if taken > wide:
            return text[:place]
    return text


def table(head: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Lines of columns as wide as their widest word; none where there are no rows."""
    every = columns([head, *rows], len(indent)) if rows else []
    return [(indent + "  ".join(row)).rstrip() for row in every]

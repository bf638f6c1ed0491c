"""How things are said to people: counts, money, shares, short lists of names.

Promise: the same thing reads the same in every report, message and error. English only.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
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


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Return the lines of a table; its cells are Markdown already."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join(' --- ' for _ in head)}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def tokens(sent: int | None, got: int | None) -> str | None:
    """Return `40 in, 9 out` for a model call; None where neither is known."""
    if sent is None and got is None:
        return None
    read, written = ("?" if count is None else f"{count:,}" for count in (sent, got))
    return f"{read} in, {written} out"


def seconds(milliseconds: float | None) -> str:
    """Return a duration for people."""
    if milliseconds is None:
        return ""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.1f} s"

"""Format numbers for people: counts, money, durations, percentages, short lists of names.

Guarantees: the same value has the same form in every report, message and error. English only.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")

SHOWN_NAMES = 3
"""Enough to recognise a list by, few enough for a line that says more than the names."""

DASH = "–"
"""Unknown or undefined."""

MINUS = "−"

_NOTHING = 1e-9
"""The rounding error of an exact 0 or 1."""

_SMALLEST_IN_FULL = 1e-6
"""Below a millionth of a dollar, zeros after the point are harder to count than an exponent."""


def plural(number: int, noun: str, several: str | None = None) -> str:
    """Return `1 case`, `2 cases`, `1,000 cases`; `several` is an irregular plural."""
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"


def some(names: Sequence[str]) -> str:
    """Return the first few names: `a, b, c, …`."""
    return ", ".join([*names[:SHOWN_NAMES], *(["…"] if len(names) > SHOWN_NAMES else [])])


def and_more(items: Sequence[Item], most: int, say: Callable[[Item], str]) -> str:
    """Return the first `most` items and the number of the others: `a, b and 7 more`."""
    shown = ", ".join(map(say, items[:most]))
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown


def clipped(text: str, most: int) -> str:
    """Return the text, cut to `most` characters with an ellipsis where it is longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def last_line(output: str) -> str:
    """Return the last line of a program's output, where errors are; empty without output."""
    return output.strip().rpartition("\n")[2]


def dollars(amount: float) -> str:
    """Return `$1,234.50`, `$0.50`, `$0.0123`, `$0.000012`: cents, or three digits below a dollar.

    `inMoney` of the pages (report/html/core.js) writes the same.
    """
    sign, size = (MINUS if amount < 0 else ""), abs(amount)
    if size == 0 or not size < 1:
        return f"{sign}${size:,.2f}"
    if size < _SMALLEST_IN_FULL:
        return f"{sign}${size:.3g}".replace("e-0", "e-")
    # Three significant digits, and never fewer than cents.
    places = 2 - math.floor(math.log10(size))
    whole, _, part = f"{size:.{places}f}".partition(".")
    return f"{sign}${whole}.{part.rstrip('0'):0<2}"


def money(usd: float | None, unpriced: int = 0) -> str:
    """Return a cost; a lower bound says so, and an unknown one is not zero."""
    calls = f"{plural(unpriced, 'call')} unpriced"
    if usd is None:
        return f"unknown, {calls}" if unpriced else ""
    return f"{at_least(usd, unpriced)}, {calls}" if unpriced else dollars(usd)


def at_least(usd: float | None, unpriced: int) -> str:
    """Return a cost in one figure: `≥` says that some calls have no known price."""
    if usd is None:
        return ""
    return f"≥ {dollars(usd)}" if unpriced else dollars(usd)


def percent(share: float | None) -> str:
    """Return a measured share of one: `83.3 %`, `80 %`; undefined is a dash.

    Nearly none is not none, and nearly all is not all: `< 0.1 %`, `> 99.9 %`.
    """
    if share is None:
        return DASH
    text = _tenths(share)
    if text == "0" and share > _NOTHING:
        return "< 0.1 %"
    if text == "100" and share < 1 - _NOTHING:
        return "> 99.9 %"
    return f"{text} %"


def level_of(share: float) -> str:
    """Return a share that was chosen, not measured: `95 %`, `99.99 %`, `98.33 %`."""
    text = f"{100 * share:.2f}".rstrip("0").rstrip(".")
    # Two decimals are enough, unless they would make 100 % of less or 0 % of more.
    return f"{100 * share:g} %" if text in ("0", "100") else f"{text} %"


def points(difference: float | None) -> str:
    """Return a difference of shares in points, with its sign: `+3.3`, `−20`, `0`."""
    if difference is None:
        return DASH
    text = _tenths(difference)
    return text if text == "0" else f"+{text}" if difference > 0 else text.replace("-", MINUS)


def in_points(size: float | None) -> str:
    """Return the size of a difference of shares: `3.3 points`."""
    return DASH if size is None else f"{_tenths(size).replace('-', MINUS)} points"


def p_text(value: float | None) -> str:
    """Return a p-value: `0.043`, `0.0021`, `< 0.0001`; never 0, which no test can show."""
    if value is None:
        return DASH
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}" if value < 0.01 else f"{value:.3f}"


def _tenths(share: float) -> str:
    """Return a share in hundredths with one decimal, left out where it is 0."""
    # `z` writes a negative number that rounds to zero without its sign.
    return f"{100 * share:z.1f}".removesuffix(".0")


def tokens(sent: int | None, got: int | None) -> str | None:
    """Return `40 in, 9 out` for a model call; None where neither is known."""
    if sent is None and got is None:
        return None
    read, written = ("?" if count is None else f"{count:,}" for count in (sent, got))
    return f"{read} in, {written} out"


def duration_ms(milliseconds: float | None) -> str:
    """Return a measured duration: `340 µs`, `3.4 ms`, `340 ms`, `3.4 s`, `2.5 min`, `2.5 h`.

    Unknown is empty. `inTime` of the pages (report/html/core.js) writes the same.
    """
    if milliseconds is None:
        return ""
    size = abs(milliseconds)
    if 0 < size < 1:
        return f"{milliseconds * 1000:.0f} µs"
    if size < 1000:
        return f"{milliseconds:.{1 if 0 < size < 10 else 0}f} ms"
    for unit, length, until in (("s", 1e3, 120e3), ("min", 60e3, 7200e3), ("h", 3600e3, math.inf)):
        if size < until:
            return f"{milliseconds / length:,.1f} {unit}"
    return "∞"


def rough_duration(seconds: float) -> str:
    """Return an estimated duration or an age, without false precision: `8 s`, `3 min`, `2.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def byte_size(count: int) -> str:
    """Return `900 bytes`, `1.5 kB`, `64.0 MB`, `2.1 GB`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return plural(count, "byte")

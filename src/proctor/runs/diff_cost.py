"""The third tier of a comparison: tokens, money and time.

Promise: over 1.5 times the baseline is a warning, over 2 times an error, unless the growth is
below a floor under which figures are noise. What one side does not know is told, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from proctor.checks.base import Layer
from proctor.runs.diff_model import Change, ChangeKind, Severity
from proctor.trace import Trace
from proctor.words import dollars

WARNING_RATIO, ERROR_RATIO = 1.5, 2.0
"""D4: a spike is over the first; over the second it fails the gate."""

TOLD_RATIO = 1.1
"""A figure that moved by less than a tenth is not worth a line."""

_ROUNDING = 1e-9
"""Exactly 1.5 times is not over it, whatever floating point makes of the product."""


class Figure(NamedTuple):
    """Something that is compared as a ratio. Growth below `floor` never warns."""

    kind: ChangeKind
    name: str
    floor: float
    text: Callable[[float], str]


def _tokens(count: float) -> str:
    return f"{count:,.0f} tokens"


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:,.0f} ms"


TOKENS = Figure(ChangeKind.TOKENS, "tokens", 100, _tokens)
"""Fewer than 100 tokens more is a sentence."""
COST = Figure(ChangeKind.COST, "cost", 0.0001, dollars)
"""A hundredth of a cent: the price of about a hundred tokens of a small model."""
LATENCY = Figure(ChangeKind.LATENCY, "latency", 100, _ms)
"""A tenth of a second: scheduling and networks move a fast agent by as much."""


def cost_changes(before: Trace, after: Trace) -> Iterator[Change]:
    """What moved in tokens, cost and latency."""
    old, new = before.usage, after.usage
    yield from ratio_change(TOKENS, old.total_tokens, new.total_tokens)
    yield from ratio_change(COST, old.cost_usd, new.cost_usd, (old.unpriced > 0, new.unpriced > 0))
    yield from ratio_change(LATENCY, _taken(before), _taken(after))


def ratio_change(
    figure: Figure,
    old: float | None,
    new: float | None,
    partial: tuple[bool, bool] = (False, False),
) -> Iterator[Change]:
    """The change of one figure, if there is one worth telling.

    `partial` names the sides whose figure is a lower bound. A baseline that is one proves no
    spike; a newer figure that is one and already too high does.
    """
    if old == new:
        return
    if old is None or new is None:
        what = "was not known" if old is None else "is no longer known"
        known = figure.text(new if new is not None else old if old is not None else 0)
        message = f"{figure.name} {what} ({'now' if old is None else 'was'} {known})"
        yield _change(figure, Severity.INFO, message, old, new)
        return
    severity = _severity(old, new, figure.floor)
    if severity == Severity.NONE:
        return
    least = ["at least " if side else "" for side in partial]
    told = f"{least[0]}{figure.text(old)} → {least[1]}{figure.text(new)}"
    ratio = f" ({new / old:.2f}×)" if old > 0 else ""
    note = ""
    if severity != Severity.INFO and partial[0]:
        severity, note = Severity.INFO, "; not all calls of the baseline have a known price"
    elif severity != Severity.INFO:
        limit = ERROR_RATIO if severity == Severity.ERROR else WARNING_RATIO
        note = f", over {limit:g}×"
    elif _over(old, new, WARNING_RATIO):
        note = f"; growth below {figure.text(figure.floor)} is not counted as a spike"
    yield _change(figure, severity, f"{figure.name}: {told}{ratio}{note}", old, new)


def _severity(old: float, new: float, floor: float) -> Severity:
    if new - old >= floor:
        if _over(old, new, ERROR_RATIO):
            return Severity.ERROR
        if _over(old, new, WARNING_RATIO):
            return Severity.WARNING
    moved = _over(old, new, TOLD_RATIO) or _over(new, old, TOLD_RATIO)
    return Severity.INFO if moved and abs(new - old) >= floor / 10 else Severity.NONE


def _over(old: float, new: float, ratio: float) -> bool:
    return new > old * ratio * (1 + _ROUNDING)


def _change(
    figure: Figure, severity: Severity, message: str, old: float | None, new: float | None
) -> Change:
    return Change(
        tier=Layer.COST,
        kind=figure.kind,
        severity=severity,
        message=message,
        before=old,
        after=new,
    )


def _taken(trace: Trace) -> float | None:
    return None if trace.duration is None else round(trace.duration * 1000, 3)

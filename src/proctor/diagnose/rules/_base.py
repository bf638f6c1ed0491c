"""A rule: a small detector of one kind of error that quotes its evidence.

A rule reads steps, never a wire format. Its confidence is its measured precision on TRAIL's GAIA
traces (or 0.5 where those show too few cases), so that findings can be ranked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from proctor.diagnose.finding import Impact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from proctor.diagnose._steps import Steps
    from proctor.diagnose.taxonomy import Category
    from proctor.trace import Span


class RuleHit(NamedTuple):
    """One match of a rule; `passages` are candidate quotes for the evidence."""

    span: Span
    description: str
    passages: tuple[str, ...] = ()
    category: Category | None = None
    """Category of this match, if the rule distinguishes several; otherwise the rule's own."""
    confidence: float | None = None
    impact: Impact | None = None
    causes: tuple[Span, ...] = ()
    """Earlier spans that led to it."""


class Rule(NamedTuple):
    """A detector that needs no training."""

    name: str
    category: Category
    impact: Impact
    confidence: float
    heard: bool
    """Whether the learned detector uses it; false where TRAIL has too few cases to learn from."""
    find: Callable[[Steps], Iterator[RuleHit]]
    """Returns every match of the rule, in order of time."""


def rule(
    category: Category, *, confidence: float, impact: Impact = Impact.MEDIUM, heard: bool = True
) -> Callable[[Callable[[Steps], Iterator[RuleHit]]], Rule]:
    """Make a rule of a function that finds its matches; its name is the rule's."""
    return lambda find: Rule(find.__name__, category, impact, confidence, heard, find)

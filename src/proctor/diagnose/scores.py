"""The four scores of a trace, 0 to 5, and why: each reason names the findings that bear on it.

Values come from the learned detector where it knows the trace; elsewhere from the findings alone,
by a fixed deduction for each. Neither has looked at the answer: a score says how a trace reads.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from proctor.words import plural

from .model import Impact, Score
from .taxonomy import Category, Group

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .model import Finding

BEST = 5.0

_PLANNING = frozenset(c for c in Category if c.group is Group.PLANNING)

BEARS_ON: Mapping[str, frozenset[Category]] = {
    "reliability": frozenset(Category),
    "security": frozenset({Category.AUTHENTICATION}),
    "instruction_adherence": frozenset(
        {
            Category.NON_COMPLIANCE,
            Category.FORMATTING,
            Category.GOAL_DEVIATION,
            Category.WRONG_PROBLEM,
        }
    ),
    "plan_opt": _PLANNING | {Category.TOOL_SELECTION, Category.POOR_RETRIEVAL},
}
"""The scores, in TRAIL's order and under its names, and the categories that speak of each."""

DEDUCTION = {Impact.HIGH: 1.0, Impact.MEDIUM: 0.5, Impact.LOW: 0.25}
"""Points a finding of each impact takes off where nothing was learned: an error that touches the
answer weighs as two of the process, and nobody is sure of more than that."""


def scores_of(
    findings: Sequence[Finding], values: Sequence[float] | None = None
) -> dict[str, Score]:
    """Every score with its reason; `values` are those of the learned detector, in order."""
    result: dict[str, Score] = {}
    for number, (name, categories) in enumerate(BEARS_ON.items()):
        bearing = [finding for finding in findings if finding.category in categories]
        value = values[number] if values is not None else _deducted(bearing)
        result[name] = Score(round(min(max(value, 0.0), BEST), 2), _reason(bearing))
    return result


def _deducted(findings: Iterable[Finding]) -> float:
    return BEST - sum(DEDUCTION[finding.impact] for finding in findings)


def _reason(findings: Sequence[Finding]) -> str:
    if not findings:
        return "No finding bears on it."
    counted = Counter(finding.category.value for finding in findings)
    named = ", ".join(f"{name} ({n})" if n > 1 else name for name, n in counted.most_common(4))
    rest = len(counted) - 4
    return f"{named} and {plural(rest, 'more kind')}." if rest > 0 else f"{named}."


def in_words(name: str) -> str:
    """A score's name as people say it."""
    return "plan optimality" if name == "plan_opt" else name.replace("_", " ")

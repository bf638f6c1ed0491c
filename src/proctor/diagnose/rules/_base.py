"""A rule: a small detector of one kind of error that quotes its evidence.

A rule reads steps, never a wire format. Its confidence is its measured precision on TRAIL's GAIA
traces (or 0.5 where those show too few cases), so that findings can be ranked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from proctor.diagnose.finding import Finding, Impact
from proctor.diagnose.quotes import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from proctor.diagnose.steps import Steps
    from proctor.diagnose.taxonomy import Category
    from proctor.trace import Span


class RuleHit(NamedTuple):
    """One match of a rule; `passages` are candidate quotes for the evidence."""

    span: Span
    description: str
    passages: tuple[str, ...] = ()
    category: Category | None = None
    """Category of this match, if the rule distinguishes several; otherwise the rule's own."""


class Rule(ABC):
    """A detector that needs no training."""

    name: ClassVar[str]
    category: ClassVar[Category]
    impact: ClassVar[Impact] = Impact.MEDIUM
    confidence: ClassVar[float] = 0.5
    heard: ClassVar[bool] = True
    """Whether the learned detector uses it; false where TRAIL has too few cases to learn from."""

    @abstractmethod
    def find(self, steps: Steps) -> Iterator[RuleHit]:
        """Return every match of the rule, in order of time."""


def apply_rules(steps: Steps, rules: Iterable[Rule]) -> list[Finding]:
    """Return the findings of every rule, the most confident per span and category."""
    best: dict[tuple[str, Category], Finding] = {}
    for rule in rules:
        for hit in rule.find(steps):
            category = hit.category or rule.category
            key = (hit.span.span_id, category)
            if key in best and best[key].confidence >= rule.confidence:
                continue
            evidence = quote(hit.span, *hit.passages)
            if not evidence:  # an empty span: nothing to point at
                continue
            best[key] = Finding(
                category=category,
                location=hit.span.span_id,
                evidence=evidence,
                description=hit.description,
                impact=rule.impact,
                confidence=rule.confidence,
                detector=f"rule:{rule.name}",
            )
    order = steps.trace.index.position
    return sorted(best.values(), key=lambda f: (order[f.location], f.category))

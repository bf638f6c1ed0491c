"""What a rule is: a small detector of one kind of error, that says what it saw.

A rule reads moves, never a wire format. Its confidence is its measured precision on TRAIL's
GAIA traces (or a plain 0.5 where those show too few cases), so that findings can be ranked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from proctor.diagnose.finding import Finding, Impact
from proctor.diagnose.quotes import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from proctor.diagnose.steps import Moves
    from proctor.diagnose.taxonomy import Category
    from proctor.trace import Span


class RuleHit(NamedTuple):
    """One place where a rule applies; `passages` are quotes to choose the evidence from."""

    span: Span
    description: str
    passages: tuple[str, ...] = ()
    category: Category | None = None
    """Where a rule tells several categories apart; its own otherwise."""


class Rule(ABC):
    """A detector without any training."""

    name: ClassVar[str]
    category: ClassVar[Category]
    impact: ClassVar[Impact] = Impact.MEDIUM
    confidence: ClassVar[float] = 0.5
    heard: ClassVar[bool] = True
    """Whether the learned detector goes by it; not where TRAIL has too few cases to learn from."""

    @abstractmethod
    def find(self, moves: Moves) -> Iterator[RuleHit]:
        """Every place where the rule applies, in order of time."""


def apply_rules(moves: Moves, rules: Iterable[Rule]) -> list[Finding]:
    """Findings of every rule; of two on one span and category the surer one stays."""
    best: dict[tuple[str, Category], Finding] = {}
    for rule in rules:
        for hit in rule.find(moves):
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
    order = moves.trace.index.position
    return sorted(best.values(), key=lambda f: (order[f.location], f.category))

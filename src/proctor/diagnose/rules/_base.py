"""A rule: a small detector of one kind of error that quotes its evidence.

A rule reads steps, never a wire format. Its confidence is its measured precision on TRAIL's GAIA
traces (or 0.5 where those show too few cases), so that findings can be ranked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from proctor.diagnose.finding import Impact

if TYPE_CHECKING:
    from collections.abc import Iterator

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

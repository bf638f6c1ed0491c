"""The rules that need no training, in the order of the taxonomy's groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import Hit, Rule, apply_rules
from .behaviour import (
    AnswerWithoutWork,
    RepeatedCall,
    ReportOverruled,
    ToolPassedOver,
    UnsupportedAnswer,
)
from .failures import (
    BrokenCode,
    EmptySearch,
    FailedCall,
    MalformedCall,
    MissingResource,
    SystemFault,
)
from .instructions import LimitExceeded, MissingTag

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proctor.diagnose.model import Finding

RULES: tuple[Rule, ...] = (
    UnsupportedAnswer(),
    ReportOverruled(),
    EmptySearch(),
    ToolPassedOver(),
    MalformedCall(),
    BrokenCode(),
    MissingTag(),
    LimitExceeded(),
    MissingResource(),
    SystemFault(),
    FailedCall(),
    RepeatedCall(),
    AnswerWithoutWork(),
)

_UNHEARD = frozenset(f"rule:{rule.name}" for rule in RULES if not rule.heard)


def heard(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that the learned detector goes by."""
    return [finding for finding in findings if finding.detector not in _UNHEARD]


__all__ = ["RULES", "Hit", "Rule", "apply_rules", "heard"]

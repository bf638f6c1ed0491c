"""The rules that need no training, in the order of the taxonomy's groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.diagnose.rules._base import Rule, RuleHit, apply_rules
from proctor.diagnose.rules.behaviour import (
    AnswerWithoutWork,
    LimitExceeded,
    MissingTag,
    RepeatedCall,
    ReportOverruled,
    ToolPassedOver,
    UnsupportedAnswer,
)
from proctor.diagnose.rules.failures import (
    BrokenCode,
    EmptySearch,
    FailedCall,
    MalformedCall,
    MissingResource,
    SystemFault,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proctor.diagnose.finding import Finding

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
    """Return the findings used by the learned detector."""
    return [finding for finding in findings if finding.detector not in _UNHEARD]


__all__ = ["RULES", "Rule", "RuleHit", "apply_rules", "heard"]

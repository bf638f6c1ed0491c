"""What a check says: an outcome with a reason, and its place in a trial.

Promise: every result can be acted on (reason, expected, actual, span ids) and there are three
endings, never two: it held, it did not, it could not be judged. A check function returns an
`Outcome`; the driver in `evaluate` adds who asked, in which layer, and how much it weighs.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec


class Layer(StrEnum):
    """The three layers, in the order they are judged."""

    CORRECTNESS = "correctness"
    PATH = "path"
    COST = "cost"


class CheckStatus(StrEnum):
    """How a check ended.

    `warn` is a failure that does not block. `skip` means there was nothing to judge (no baseline,
    an earlier check already decided). `unscored` means it should have been judged and could not
    be (the judge failed): infrastructure, never a verdict on the agent.
    """

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    UNSCORED = "unscored"


FAILED = (CheckStatus.WARN, CheckStatus.FAIL)
"""Statuses of checks that were judged and did not hold."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one check found. `score` is 0..1; None means not judged, and `unscored` says why not:
    False for nothing to judge (skip), True for could not be judged.
    """

    score: float | None
    reason: str
    passed: bool | None = None
    expected: Any = None
    actual: Any = None
    span_ids: tuple[str, ...] = ()
    method: str | None = None
    unscored: bool = False
    cost_usd: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the check held: as stated, else a full score."""
        return self.passed if self.passed is not None else self.score == 1.0


def held(reason: str, **details: Any) -> Outcome:
    """The check held."""
    return Outcome(score=1.0, passed=True, reason=reason, **details)


def broken(reason: str, *, score: float = 0.0, **details: Any) -> Outcome:
    """The check did not hold; `score` may give part of the credit."""
    return Outcome(score=score, passed=False, reason=reason, **details)


def skipped(reason: str, **details: Any) -> Outcome:
    """There was nothing to judge."""
    return Outcome(score=None, reason=reason, **details)


def unscored(reason: str, **details: Any) -> Outcome:
    """It should have been judged and could not be."""
    return Outcome(score=None, reason=reason, unscored=True, **details)


class CheckResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One check of one trial.

    `id` is stable across trials of a case (failures are ranked by it), `check` is the kind of
    check, `blocking` whether a failure makes the trial a hard failure.
    """

    id: str
    check: str
    layer: Layer
    status: CheckStatus
    reason: str
    score: float | None = None
    weight: float = 1.0
    blocking: bool = False
    expected: Any = None
    actual: Any = None
    span_ids: tuple[str, ...] = ()
    method: str | None = None
    cost_usd: float | None = None

    @property
    def failed(self) -> bool:
        """Whether the check was judged and did not hold, blocking or not."""
        return self.status in FAILED


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """All results of one trial, and what they come to."""

    results: tuple[CheckResult, ...]

    @property
    def score(self) -> float | None:
        """Sum of score times weight over sum of weights; None when nothing judged has weight."""
        total = weight = 0.0
        for result in self.results:
            if result.score is not None:
                weight += result.weight
                total += result.score * result.weight
        return total / weight if weight else None

    @property
    def hard_failures(self) -> list[CheckResult]:
        """Blocking failures, in the order they were judged."""
        return [r for r in self.results if r.status == CheckStatus.FAIL]

    @property
    def unscored(self) -> list[CheckResult]:
        """Checks that should have been judged and could not be."""
        return [r for r in self.results if r.status == CheckStatus.UNSCORED]

    def layer_status(self, layer: Layer) -> CheckStatus:
        """The worst status in a layer; skip when it has nothing to judge."""
        return worst(r.status for r in self.results if r.layer == layer)


_WORST_FIRST = (
    CheckStatus.FAIL,
    CheckStatus.UNSCORED,
    CheckStatus.WARN,
    CheckStatus.PASS,
    CheckStatus.SKIP,
)


def worst(statuses: Iterable[CheckStatus]) -> CheckStatus:
    """The status a person should hear of first; skip when there is none."""
    seen = set(statuses)
    return next((status for status in _WORST_FIRST if status in seen), CheckStatus.SKIP)

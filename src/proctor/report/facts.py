"""What there is to report: one entry per case and agent, with its checks and the place it stands.

Promise: every format tells these facts and no others, so that console, JSON and CI agree. The
exit code is decided here, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from proctor.checks.result import CheckResult, CheckStatus, Layer, worst
from proctor.runs.model import Trial, TrialStatus

EXIT_PASS, EXIT_FAIL, EXIT_CANNOT_JUDGE = 0, 1, 2


class CasePlace(NamedTuple):
    """Where a case is written."""

    file: str
    line: int | None = None
    column: int | None = None


class CaseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One trial of one case, as reported."""

    case: str
    agent: str
    status: TrialStatus
    score: float | None
    threshold: float
    results: tuple[CheckResult, ...]
    answer: str | None = None
    error: str | None = None
    place: CasePlace | None = None
    description: str | None = None
    trial: int = 0
    duration_ms: float | None = None
    cost_usd: float | None = None
    unpriced_calls: int = 0
    tokens: int | None = None
    llm_calls: int = 0
    tool_calls: int = 0
    trace_id: str | None = None

    @property
    def name(self) -> str:
        """The case, and the trial where there are several."""
        return f"{self.case} #{self.trial + 1}" if self.trial else self.case

    @property
    def layers(self) -> dict[Layer, CheckStatus]:
        """The worst status of each layer."""
        return {
            layer: worst(r.status for r in self.results if r.layer == layer) for layer in Layer
        }

    def with_status(self, *statuses: CheckStatus) -> list[CheckResult]:
        """Results of some statuses, in the order they were judged."""
        return [result for result in self.results if result.status in statuses]

    @property
    def reason(self) -> str:
        """In one line, why the case is not passed; empty when it is."""
        if self.status == TrialStatus.PASSED:
            return ""
        if self.error is not None:
            return self.error
        if hard := self.with_status(CheckStatus.FAIL):
            return f"{hard[0].id}: {hard[0].reason}"
        lost = [r for r in self.results if r.failed and r.weight]
        why = f": {lost[0].id}: {lost[0].reason}" if lost else ""
        return f"score {self.score:.2f} is below {self.threshold:g}{why}"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All cases of one suite."""

    title: str
    cases: tuple[CaseFacts, ...]
    suite: str | None = None
    started_ns: int = 0
    duration_ms: float = 0.0
    notes: tuple[str, ...] = ()

    def count(self, *statuses: TrialStatus) -> int:
        """How many cases ended in one of these."""
        return sum(case.status in statuses for case in self.cases)

    @property
    def warnings(self) -> int:
        """How many checks warn, over all cases."""
        return sum(len(case.with_status(CheckStatus.WARN)) for case in self.cases)

    @property
    def cost_usd(self) -> float | None:
        """Known cost of all cases; None when no call has a known price."""
        known = [case.cost_usd for case in self.cases if case.cost_usd is not None]
        return sum(known) if known else None

    @property
    def unpriced_calls(self) -> int:
        """Model calls without a known price: with any, the cost is a lower bound."""
        return sum(case.unpriced_calls for case in self.cases)

    @property
    def exit_code(self) -> int:
        """1 when a gate failed, else 2 when something could not be judged, else 0."""
        if self.count(TrialStatus.FAILED, TrialStatus.HARD_FAIL):
            return EXIT_FAIL
        judged = self.count(TrialStatus.PASSED)
        return EXIT_PASS if judged == len(self.cases) and self.cases else EXIT_CANNOT_JUDGE


def facts_of(
    trials: Iterable[Trial],
    *,
    thresholds: Mapping[str, float],
    places: Mapping[str, CasePlace] | None = None,
    descriptions: Mapping[str, str | None] | None = None,
) -> tuple[CaseFacts, ...]:
    """Trials as reported, in the order given."""
    return tuple(
        CaseFacts(
            case=trial.case,
            agent=trial.agent,
            status=trial.status,
            score=trial.score,
            threshold=thresholds[trial.case],
            results=trial.checks,
            answer=trial.answer,
            error=f"{trial.error.type}: {trial.error.message}" if trial.error else None,
            place=(places or {}).get(trial.case),
            description=(descriptions or {}).get(trial.case),
            trial=trial.index,
            duration_ms=trial.latency_ms,
            cost_usd=trial.cost_usd,
            unpriced_calls=trial.unpriced_calls,
            tokens=_tokens(trial),
            llm_calls=trial.llm_calls,
            tool_calls=trial.tool_calls,
            trace_id=trial.trace_id,
        )
        for trial in trials
    )


def _tokens(trial: Trial) -> int | None:
    if trial.input_tokens is None and trial.output_tokens is None:
        return None
    return (trial.input_tokens or 0) + (trial.output_tokens or 0)

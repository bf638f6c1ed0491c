"""What there is to report: one entry per case and agent, with its checks and the place it stands.

Promise: every format tells these facts and no others, so that console, JSON and CI agree. The
exit code is decided here, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from proctor.checks.base import CheckResult, CheckStatus, Layer, worst
from proctor.errors import EXIT_CANNOT_JUDGE, EXIT_FAIL, EXIT_PASS
from proctor.runs.trial import Trial, TrialStatus

TOLD = (CheckStatus.FAIL, CheckStatus.UNSCORED, CheckStatus.WARN)
"""Statuses of checks that every form tells; of the others only what a judge said."""

MOST_SPANS = 3
"""Span ids named per check; JSON has them all."""


class CasePlace(NamedTuple):
    """Where a case is written."""

    file: str
    line: int | None = None
    column: int | None = None


class CaseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One trial of one case, as reported."""

    case: str
    agent: str
    suite: str = ""
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
    source: str | None = None
    """The file that a recorded trace was read from."""

    @property
    def name(self) -> str:
        """The case, and the trial where there are several."""
        return f"{self.case} #{self.trial + 1}" if self.trial else self.case

    @property
    def layers(self) -> dict[Layer, CheckStatus]:
        """The worst status of each layer."""
        return {layer: worst(r.status for r in self.results if r.layer == layer) for layer in Layer}

    @property
    def layer_words(self) -> list[str]:
        """The status of each layer in a word; a dash where nothing was judged at all."""
        return [s.value.upper() if self.results else "–" for s in self.layers.values()]

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
        return f"score {self.score or 0.0:.2f} is below {self.threshold:g}{why}"

    @property
    def is_gate_failure(self) -> bool:
        """Whether the case was judged and did not pass."""
        return self.status in (TrialStatus.FAILED, TrialStatus.HARD_FAIL)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All cases that were tried, of one suite or several.

    `planned` is how many there should have been; `signal` is what ended the work before that.
    """

    title: str
    cases: tuple[CaseFacts, ...]
    planned: int | None = None
    started_ns: int = 0
    duration_ms: float = 0.0
    notes: tuple[str, ...] = ()
    signal: int | None = None

    def interrupted(self, signal: int) -> Report:
        """This report, ended by a signal."""
        return msgspec.structs.replace(self, signal=signal)

    def count(self, *statuses: TrialStatus) -> int:
        """How many cases ended in one of these."""
        return sum(case.status in statuses for case in self.cases)

    def count_checks(self, *statuses: CheckStatus) -> int:
        """How many checks of all cases ended in one of these."""
        return sum(len(case.with_status(*statuses)) for case in self.cases)

    @property
    def not_run(self) -> int:
        """How many planned cases never began."""
        return 0 if self.planned is None else max(0, self.planned - len(self.cases))

    @property
    def agents(self) -> tuple[str, ...]:
        """Every agent that was tried, in order."""
        return tuple(dict.fromkeys(case.agent for case in self.cases))

    @property
    def crossed(self) -> bool:
        """Whether some case was put to more than one agent."""
        pairs = {(case.suite, case.case, case.agent) for case in self.cases}
        return len({pair[:2] for pair in pairs}) < len(pairs)

    @property
    def suites(self) -> tuple[str, ...]:
        """Every suite that was tried, in order."""
        return tuple(dict.fromkeys(case.suite for case in self.cases))

    @property
    def warnings(self) -> int:
        """How many checks warn, over all cases."""
        return self.count_checks(CheckStatus.WARN)

    @property
    def cost_usd(self) -> float | None:
        """Known cost of all cases; None when no call has a known price."""
        return _sum_known(case.cost_usd for case in self.cases)

    @property
    def judge_cost_usd(self) -> float | None:
        """Known cost of judging, which is not part of the agents' cost."""
        return _sum_known(r.cost_usd for case in self.cases for r in case.results)

    @property
    def tokens(self) -> int | None:
        """Known tokens of all cases; None when no call was counted."""
        known = [case.tokens for case in self.cases if case.tokens is not None]
        return sum(known) if known else None

    @property
    def unpriced_calls(self) -> int:
        """Model calls without a known price: with any, the cost is a lower bound."""
        return sum(case.unpriced_calls for case in self.cases)

    @property
    def exit_code(self) -> int:
        """That of the signal, else 1 when a gate failed, 2 when something could not be judged, 0.

        What was left out without a failure before it (or nothing at all) could not be judged.
        """
        if self.signal is not None:
            return 128 + self.signal
        if self.count(TrialStatus.FAILED, TrialStatus.HARD_FAIL):
            return EXIT_FAIL
        judged = self.count(TrialStatus.PASSED)
        whole = judged == len(self.cases) and self.cases and not self.not_run
        return EXIT_PASS if whole else EXIT_CANNOT_JUDGE


def _sum_known(costs: Iterable[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None


def facts_of(
    trials: Iterable[Trial],
    *,
    thresholds: Mapping[str, float],
    suite: str = "",
    places: Mapping[str, CasePlace] | None = None,
    descriptions: Mapping[str, str | None] | None = None,
    sources: Mapping[tuple[str, int], str | None] | None = None,
) -> tuple[CaseFacts, ...]:
    """Trials as reported, in the order given."""
    return tuple(
        CaseFacts(
            case=trial.case,
            agent=trial.agent,
            suite=suite,
            status=trial.status,
            score=trial.score,
            threshold=thresholds[trial.case],
            results=trial.checks,
            answer=trial.answer,
            error=_error(trial),
            place=(places or {}).get(trial.case),
            description=(descriptions or {}).get(trial.case),
            trial=trial.index,
            duration_ms=trial.latency_ms,
            cost_usd=trial.cost_usd,
            unpriced_calls=trial.unpriced_calls,
            tokens=trial.tokens,
            llm_calls=trial.llm_calls,
            tool_calls=trial.tool_calls,
            trace_id=trial.trace_id,
            source=(sources or {}).get((trial.case, trial.index)),
        )
        for trial in trials
    )


def _error(trial: Trial) -> str | None:
    return None if trial.error is None else f"{trial.error.type}: {trial.error.message}"

"""What all trials of a run come to together, counted one by one.

Promise: unknown stays unknown. A cost is the sum of what is known, beside the number of calls
whose price is not; no call at all is a cost of None, not of zero. Every trial counts here, also
those a cell did not need: they were paid for.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from proctor.runs.model import Trial, TrialStatus


class Totals(msgspec.Struct, kw_only=True):
    """Counts and sums over trials; grows with `add`."""

    trials: int = 0
    passed: int = 0
    failed: int = 0
    hard_fail: int = 0
    infra_error: int = 0
    cancelled: int = 0
    llm_calls: int = 0
    tool_calls: int = 0
    unpriced_calls: int = 0
    cost_usd: float | None = None
    judge_cost_usd: float | None = None
    tokens: int | None = None
    retries: int = 0

    @classmethod
    def of(cls, trials: Iterable[Trial]) -> Totals:
        """The totals of some trials."""
        totals = cls()
        for trial in trials:
            totals.add(trial)
        return totals

    def add(self, trial: Trial) -> None:
        """Count one more."""
        self.trials += 1
        match trial.status:
            case TrialStatus.PASSED:
                self.passed += 1
            case TrialStatus.FAILED:
                self.failed += 1
            case TrialStatus.HARD_FAIL:
                self.hard_fail += 1
            case TrialStatus.INFRA_ERROR:
                self.infra_error += 1
            case TrialStatus.CANCELLED:
                self.cancelled += 1
        self.llm_calls += trial.llm_calls
        self.tool_calls += trial.tool_calls
        self.unpriced_calls += trial.unpriced_calls
        self.retries += trial.retries
        if trial.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + trial.cost_usd
        if trial.judge_cost_usd is not None:
            self.judge_cost_usd = (self.judge_cost_usd or 0.0) + trial.judge_cost_usd
        if (tokens := trial.tokens) is not None:
            self.tokens = (self.tokens or 0) + tokens

    @property
    def judged(self) -> int:
        """Trials that say something about the agent: the denominator of the pass rate."""
        return self.passed + self.failed + self.hard_fail

    @property
    def pass_rate(self) -> float | None:
        """Passed over judged; None before anything is judged."""
        return self.passed / self.judged if self.judged else None

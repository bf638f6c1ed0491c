"""Caps for a whole run: money, tokens, trials, time.

Promise: no trial starts once a cap is reached, so a cap is exceeded by at most the trials then
running. A cost that is unknown cannot be capped: with a money cap, the first unpriced call stops
the run and says so, rather than count it as nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from proctor.runs.trial import Trial
from proctor.words import dollars, plural

COST_REACHED, TOKENS_REACHED = "cost limit reached", "token limit reached"
"""How reasons begin that hold in the next sitting too, since earlier ones count."""


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Caps of a run; None does not bind. `timeout_s` is for one trial, the others for the run."""

    max_cost_usd: float | None = None
    max_tokens: int | None = None
    max_trials: int | None = None
    max_seconds: float | None = None
    timeout_s: float | None = None

    @property
    def bound(self) -> bool:
        """Whether anything caps the run as a whole."""
        return self != Limits(timeout_s=self.timeout_s)


class Spending:
    """What a run has used so far, and whether that is enough."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._began = clock()
        self.cost_usd = 0.0
        self.tokens = 0
        self.started = 0
        self.unpriced = 0
        self._bound = limits.bound

    def next_round(self) -> Spending:
        """For more trials of the same sitting: what trials cost is read from the journal again."""
        following = Spending(self.limits, self._clock)
        following._began, following.started = self._began, self.started
        return following

    def start(self) -> None:
        """A trial starts."""
        self.started += 1

    def add(self, trial: Trial) -> None:
        """A trial has finished."""
        self.cost_usd += (trial.cost_usd or 0.0) + (trial.judge_cost_usd or 0.0)
        self.tokens += trial.tokens or 0
        self.unpriced += trial.unpriced_calls

    def exhausted(self) -> str | None:
        """Why no further trial may start, or None."""
        if not self._bound:
            return None
        limits = self.limits
        if limits.max_trials is not None and self.started >= limits.max_trials:
            return f"trial limit reached: {self.started} started"
        if limits.max_seconds is not None and self._clock() - self._began >= limits.max_seconds:
            return f"time limit reached: {limits.max_seconds:g} s"
        if limits.max_tokens is not None and self.tokens >= limits.max_tokens:
            return f"{TOKENS_REACHED}: {self.tokens} of {limits.max_tokens}"
        if limits.max_cost_usd is not None:
            return self._money(limits.max_cost_usd)
        return None

    def _money(self, cap: float) -> str | None:
        if self.unpriced:
            return (
                f"{plural(self.unpriced, 'model call')} without a known price, so the cap of "
                f"{dollars(cap)} cannot be kept; give prices in the settings, or cap tokens instead"
            )
        if self.cost_usd >= cap:
            return f"{COST_REACHED}: {dollars(self.cost_usd)} of {dollars(cap)}"
        return None

"""Flakiness as a rate: how unsettled the agent, the judge and the infrastructure each are.

A case is called flaky when its Jeffreys posterior puts more than 0.9 on rates between 0.05 and
0.95; counts must come from runs of an unchanged agent. A few trials can show that a case is
flaky, but only many show that it is not, so "not flaky" is never claimed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from proctor.stats.distributions import beta_cdf
from proctor.stats.kinds import Estimand, checked

Source = Literal["agent", "judge", "infrastructure"]

SETTLED = (0.05, 0.95)
"""Rates outside these are as good as always failing and always passing."""

SURE = 0.9
"""The posterior mass at which a case is called flaky."""


@dataclass(frozen=True, slots=True)
class Flakiness:
    """One case. `rate` is the share of `n` that passed, erred or flipped, after `source`."""

    source: Source
    rate: float | None
    flaky: bool | None
    mass: float | None
    n: int
    left_out: int
    method: str
    estimand: Estimand = "suite"
    reason: str | None = None


def agent_flakiness(passes: int, trials: int, errors: int = 0) -> Flakiness:
    """Whether the agent sometimes passes and sometimes fails; errored trials are left out."""
    checked([(passes, trials, errors)])
    return _posterior("agent", passes, trials, errors)


def infrastructure_flakiness(trials: int, errors: int) -> Flakiness:
    """Whether trials sometimes cannot be judged at all; `trials` are those that could be."""
    checked([(0, trials, errors)])
    return _posterior("infrastructure", errors, trials + errors, 0)


def judge_flakiness(verdicts: Sequence[Sequence[bool]]) -> Flakiness:
    """How often two judgements of one and the same transcript disagree.

    `verdicts` holds, for each trial, what the judge said each time it was asked again. `n`
    counts trials asked at least twice, `left_out` the others.
    """
    again = [votes for votes in verdicts if len(votes) > 1]
    left_out = len(verdicts) - len(again)
    method = "share of pairs of judgements that disagree, mean over trials"
    if not again:
        why = "no transcript was judged twice"
        return Flakiness("judge", None, None, None, 0, left_out, method, reason=why)
    flips = 0.0
    for votes in again:
        passed, asked = sum(map(bool, votes)), len(votes)
        flips += 2 * passed * (asked - passed) / (asked * (asked - 1))
    rate = flips / len(again)
    return Flakiness("judge", rate, rate > SETTLED[0], None, len(again), left_out, method)


def _posterior(source: Source, hits: int, n: int, left_out: int) -> Flakiness:
    method = f"Jeffreys posterior, P({SETTLED[0]} < p < {SETTLED[1]}) > {SURE}"
    if n == 0:
        why = "no trial" if source == "infrastructure" else "no judged trial"
        return Flakiness(source, None, None, None, 0, left_out, method, reason=why)
    a, b = hits + 0.5, n - hits + 0.5
    mass = beta_cdf(SETTLED[1], a, b) - beta_cdf(SETTLED[0], a, b)
    return Flakiness(source, hits / n, mass > SURE, mass, n, left_out, method)

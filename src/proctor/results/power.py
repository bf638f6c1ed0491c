"""Plan how many cases and trials detect a difference of a given size.

Guarantees: every assumption is named. A quantity the run does not show (the variance between cases
needs two agents) is not made up: that part of the plan is left out with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from proctor.formatting import plural
from proctor.results.outcomes import AgentOutcomes, pair
from proctor.stats.power import (
    SampleSize,
    Variance,
    ZeroFailureClaim,
    detectable,
    difference_variance,
    passes_to_claim,
    plan_population,
    plan_suite,
    within_variance,
)
from proctor.tables import Tabular

# Typical within-case variance of one trial in suites where some cases always pass or fail.
_TYPICAL_NOISE = 0.10

# Largest possible variance of pass/fail: a case that passes half the time.
_LARGEST_NOISE = 0.25

# Default suite sizes of a plan.
_CASES = (10, 20, 30, 50, 100, 200)

# Default trials per case of a plan.
_TRIALS = (1, 3, 5, 10)

# Pass rates to verify.
_CLAIMS = (0.8, 0.9, 0.95, 0.99)


class Noise(NamedTuple):
    """A variance used by a plan, and its source."""

    value: float
    source: str


class PlanRow(msgspec.Struct, frozen=True, kw_only=True):
    """One sufficient size, and its cost where known."""

    plan: SampleSize
    noise: Noise
    cost_usd: float | None = None


class Planning(Tabular, msgspec.Struct, frozen=True, kw_only=True):
    """Sizes that detect the effect. `reasons` explain the parts that could not be planned."""

    effect: float
    alpha: float
    power: float
    suite: tuple[PlanRow, ...]
    population: tuple[PlanRow, ...]
    within: Variance | None
    between: Variance | None
    as_it_is: tuple[PlanRow, ...]
    """The smallest difference that the run could detect against another like it."""
    claims: tuple[ZeroFailureClaim, ...]
    cost_mean_usd: float | None
    reasons: tuple[str, ...]

    def records(self) -> list[dict[str, Any]]:
        """Return a row per size, for exactly these cases and for cases like these."""
        return [
            {
                "estimand": row.plan.estimand,
                "cases": row.plan.cases,
                "trials_first": row.plan.trials[0],
                "trials_second": row.plan.trials[1],
                "n": row.plan.n,
                "effect": row.plan.effect,
                "power": row.plan.power,
                "variance": row.noise.value,
                "variance_from": row.noise.source,
                "cost_usd": row.cost_usd,
            }
            for row in (*self.suite, *self.population)
        ]

    def _heading(self) -> str:
        return f"Sizes that detect {self.effect:g} with power {self.power:g}"


class PowerOptions(NamedTuple):
    """User settings besides the effect; None falls back to the run or a default."""

    cases: int | None = None
    trials: int | None = None
    sigma2: float | None = None
    omega2: float | None = None


def plan_experiment(
    effect: float,
    *,
    alpha: float = 0.05,
    power: float = 0.8,
    outcomes: Sequence[AgentOutcomes] = (),
    options: PowerOptions | None = None,
) -> Planning:
    """Return sizes that detect a difference of `effect` (0.1 is 10 points) with the given power."""
    options = options or PowerOptions()
    counts = [row for arm in outcomes for row in arm.counts]
    within = within_variance(counts) if outcomes else None
    between = _between(outcomes)
    noises = list(_noises(options, within))
    costs = [cost for arm in outcomes for case in arm.cases for cost in case.costs_usd]
    cost = math.fsum(costs) / len(costs) if costs else None
    sizes = _sizes(options.cases, _cases_of(outcomes), _CASES)
    suite = [
        _row(plan_suite(effect, cases=n, sigma2=noise.value, alpha=alpha, power=power), noise, cost)
        for noise in noises
        for n in sizes
    ]
    omega2 = options.omega2 if options.omega2 is not None else (between.value if between else None)
    population = [
        _row(
            plan_population(
                effect,
                omega2=omega2,
                sigma2=(noise.value, noise.value),
                trials=(k, k),
                alpha=alpha,
                power=power,
            ),
            noise,
            cost,
        )
        for noise in noises
        for k in _sizes(options.trials, None, _TRIALS)
        if omega2 is not None
    ]
    return Planning(
        effect=effect,
        alpha=alpha,
        power=power,
        suite=tuple(suite),
        population=tuple(population),
        within=within,
        between=between,
        as_it_is=tuple(_as_it_is(outcomes, noises, (alpha, power), cost)),
        claims=tuple(passes_to_claim(rate) for rate in _CLAIMS),
        cost_mean_usd=cost,
        reasons=tuple(_reasons(options, outcomes, within, between)),
    )


def _row(plan: SampleSize, noise: Noise, cost: float | None) -> PlanRow:
    return PlanRow(plan=plan, noise=noise, cost_usd=None if cost is None else cost * plan.n)


def _noises(options: PowerOptions, within: Variance | None) -> Iterator[Noise]:
    """Return the noise to plan for: given, observed or assumed."""
    if options.sigma2 is not None:
        yield Noise(options.sigma2, "as given")
    elif within is not None and within.value:
        yield Noise(
            within.value, f"seen in {plural(within.cases, 'case')}, {plural(within.n, 'trial')}"
        )
    else:
        yield Noise(_TYPICAL_NOISE, "assumed: typical")
        yield Noise(_LARGEST_NOISE, "assumed: the largest possible")


def _between(outcomes: Sequence[AgentOutcomes]) -> Variance | None:
    """Return the variance of true case differences: of two agents, or the largest over pairs."""
    variances: list[Variance] = []
    for place, first in enumerate(outcomes):
        for second in outcomes[place + 1 :]:
            sides = pair(first, second)
            variances.append(
                difference_variance(
                    [case.counts for case in sides.first], [case.counts for case in sides.second]
                )
            )
    # The largest is the safe choice: a plan for it is enough for the other pairs.
    return max(variances, key=lambda each: -1.0 if each.value is None else each.value, default=None)


def _as_it_is(
    outcomes: Sequence[AgentOutcomes],
    noises: Sequence[Noise],
    rates: tuple[float, float],
    cost: float | None,
) -> Iterator[PlanRow]:
    cases = _cases_of(outcomes)
    if not cases:
        return
    # The case with the fewest trials is the noisiest, so this is a lower bound of what is seen.
    fewest = min(row.trials for arm in outcomes for row in arm.counts if row.trials)
    for noise in noises:
        plan = detectable(cases, fewest, sigma2=noise.value, alpha=rates[0], power=rates[1])
        yield _row(plan, noise, cost)


def _cases_of(outcomes: Sequence[AgentOutcomes]) -> int | None:
    most = max((sum(bool(row.trials) for row in arm.counts) for arm in outcomes), default=0)
    return most or None


def _sizes(requested: int | None, seen: int | None, usual: Sequence[int]) -> list[int]:
    if requested is not None:
        return [requested]
    return sorted({*usual, *([] if seen is None else [seen])})


def _reasons(
    options: PowerOptions,
    outcomes: Sequence[AgentOutcomes],
    within: Variance | None,
    between: Variance | None,
) -> Iterator[str]:
    if options.sigma2 is None and within is not None and not within.value:
        why = within.reason or "no case varied"
        yield f"the noise of a trial is assumed: the run does not show it ({why})"
    if options.sigma2 is None and within is None:
        yield "the noise of a trial is assumed (no --from)"
    if options.omega2 is None and (between is None or between.value is None):
        why = "run two agents on the same cases, or set --omega2"
        if between is not None and between.reason:
            why = f"{between.reason}; set --omega2"
        yield f"no plan for a population: how much true differences vary by case is unknown ({why})"
    if any(case.stopped for arm in outcomes for case in arm.cases):
        yield "the run stopped cells early: its rates, and so this noise, are biased"

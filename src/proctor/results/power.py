"""Plan how many cases and trials detect a difference of a given size.

Guarantees: every assumption is named. A quantity the run does not show (the variance between cases
needs two agents) is not made up: that part of the plan is left out with the reason.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
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


def plan_experiment(
    effect: float,
    *,
    alpha: float = 0.05,
    power: float = 0.8,
    outcomes: Sequence[AgentOutcomes] = (),
    cases: int | None = None,
    trials: int | None = None,
    sigma2: float | None = None,
    omega2: float | None = None,
) -> Planning:
    """Return sizes that detect a difference of `effect` (0.1 is 10 points) with the given power.

    `sigma2` and `omega2` replace the variances that the outcomes show, `cases` and `trials` the
    usual sizes.
    """
    within = within_variance([row for arm in outcomes for row in arm.counts]) if outcomes else None
    between = _between(outcomes)
    reasons: list[str] = []
    if sigma2 is not None:
        noises = [Noise(sigma2, "as given")]
    elif within is not None and within.value:
        of = f" of {plural(len(outcomes), 'agent')}" if len(outcomes) > 1 else ""
        noises = [Noise(within.value, f"seen in {plural(within.n, 'trial')}{of}")]
    else:
        noises = [
            Noise(_TYPICAL_NOISE, "assumed: typical"),
            Noise(_LARGEST_NOISE, "assumed: the largest possible"),
        ]
        why = " (no --from)"
        if within is not None:
            why = f": the run does not show it ({within.reason or 'no case varied'})"
        reasons.append(f"the noise of a trial is assumed{why}")
    if omega2 is None and between is not None:
        omega2 = between.value
    if omega2 is None:
        why = "run two agents on the same cases, or set --omega2"
        if between is not None and between.reason:
            why = f"{between.reason}; set --omega2"
        reasons.append(
            f"no plan for a population: how much true differences vary by case is unknown ({why})"
        )
    if any(case.parts for arm in outcomes for case in arm.cases):
        reasons.append(
            "each seed of a case counts as a case here; other seeds say little about other cases"
        )
    if any(case.stopped for arm in outcomes for case in arm.cases):
        reasons.append("the run stopped cells early: its rates, and so this noise, are biased")
    costs = [cost for arm in outcomes for case in arm.cases for cost in case.costs_usd]
    cost = math.fsum(costs) / len(costs) if costs else None
    # The most cases that an agent has judged trials of.
    seen = max((sum(bool(row.trials) for row in arm.counts) for arm in outcomes), default=0)
    sizes = [cases] if cases is not None else sorted({*_CASES, seen} - {0})
    suite = [
        _row(plan_suite(effect, cases=n, sigma2=noise.value, alpha=alpha, power=power), noise, cost)
        for noise in noises
        for n in sizes
    ]
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
        for k in (_TRIALS if trials is None else [trials])
        if omega2 is not None
    ]
    as_it_is: list[PlanRow] = []
    if seen:
        # The case with the fewest trials is the noisiest, so this is a lower bound of what is seen.
        fewest = min(row.trials for arm in outcomes for row in arm.counts if row.trials)
        for noise in noises:
            plan = detectable(seen, fewest, sigma2=noise.value, alpha=alpha, power=power)
            as_it_is.append(_row(plan, noise, cost))
    return Planning(
        effect=effect,
        alpha=alpha,
        power=power,
        suite=tuple(suite),
        population=tuple(population),
        within=within,
        between=between,
        as_it_is=tuple(as_it_is),
        claims=tuple(passes_to_claim(rate) for rate in _CLAIMS),
        cost_mean_usd=cost,
        reasons=tuple(reasons),
    )


def _row(plan: SampleSize, noise: Noise, cost: float | None) -> PlanRow:
    return PlanRow(plan=plan, noise=noise, cost_usd=None if cost is None else cost * plan.n)


def _between(outcomes: Sequence[AgentOutcomes]) -> Variance | None:
    """Return the variance of true case differences: of two agents, or the largest over pairs."""
    variances: list[Variance] = []
    for sides in itertools.starmap(pair, itertools.combinations(outcomes, 2)):
        counts = [[case.counts for case in arm] for arm in (sides.first, sides.second)]
        variances.append(difference_variance(*counts))
    # The largest is the safe choice: a plan for it is enough for the other pairs.
    return max(variances, key=lambda each: -1.0 if each.value is None else each.value, default=None)

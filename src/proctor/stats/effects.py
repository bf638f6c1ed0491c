"""How large a difference is, apart from whether it is real.

The difference in points stands in every comparison; here are the sizes that can be set side by
side across suites. None of them says anything about noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from proctor.errors import ProctorError
from proctor.stats.compare import gaps_of, mean_and_deviation
from proctor.stats.kinds import Estimand, paired


@dataclass(frozen=True, slots=True)
class Effect:
    """A standardised difference, second minus first; `n` counts what it was computed from."""

    value: float | None
    method: str
    estimand: Estimand
    n: int
    cases: int
    left_out: int = 0
    reason: str | None = None


def cohen_h(first: Sequence[tuple[int, ...]], second: Sequence[tuple[int, ...]]) -> Effect:
    """Cohen's h of the mean rates: a difference counts the same near 0 and 1 as in the middle."""
    arms = paired(first, second)
    facts = ("Cohen's h", "suite", arms.n, len(arms.first), arms.left_out)
    if not arms.first:
        return Effect(None, *facts, reason="no case in both arms")
    before, after = (
        math.fsum(row.rate for row in arm) / len(arm) for arm in (arms.first, arms.second)
    )
    return Effect(h_of_rates(before, after), *facts)


def h_of_rates(first: float, second: float) -> float:
    """Cohen's h of two rates."""
    for rate in (first, second):
        if not 0 <= rate <= 1:
            raise ProctorError(f"{rate} is not a rate", hint="rates lie between 0 and 1")
    return 2 * math.asin(math.sqrt(second)) - 2 * math.asin(math.sqrt(first))


def cohen_dz(first: Sequence[float], second: Sequence[float]) -> Effect:
    """The mean difference of one value a case, in standard deviations of the differences."""
    gaps = gaps_of(first, second)
    facts = ("Cohen's d_z", "population", 2 * len(gaps), len(gaps))
    if len(gaps) < 2:
        return Effect(None, *facts, reason="d_z needs two cases")
    mean, deviation = mean_and_deviation(gaps)
    if not deviation:
        return Effect(None, *facts, reason="all differences are equal: there is no spread")
    return Effect(mean / deviation, *facts)

"""Describe a list of numbers: mean, spread and percentiles.

Percentiles interpolate linearly between order statistics (Hyndman and Fan's type 7). The standard
error assumes independent values: pass one value per case, not trials of several cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from proctor.errors import ProctorError
from proctor.stats._distributions import t_quantile
from proctor.stats.compare import gaps_of, mean_and_deviation, permutation_p
from proctor.stats.types import (
    LEVEL,
    RESAMPLES,
    TIES,
    Alternative,
    Estimand,
    Interval,
    finite,
    judged,
    paired,
    same_length,
    share,
)
from proctor.tables import Tabular

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


PERCENTILES = (50, 90, 95, 99)
"""The median, and the tails used to judge latency and cost."""


@dataclass(frozen=True, slots=True)
class Description:
    """`deviation` divides by n − 1; it and `error` are None below two values."""

    n: int
    mean: float | None
    deviation: float | None
    error: float | None
    low: float | None
    high: float | None
    percentiles: dict[float, float | None]
    method: str = "percentiles of type 7"
    estimand: Estimand = "population"
    reason: str | None = None


def describe(values: Iterable[float], percentiles: Iterable[float] = PERCENTILES) -> Description:
    """Describe a list of numbers."""
    ordered = sorted(finite(values, "values"))
    n = len(ordered)
    at = {q: percentile(ordered, q) for q in percentiles}
    if n == 0:
        return Description(0, None, None, None, None, None, at, reason="no value")
    if n == 1:
        (only,), why = ordered, "one value has no standard deviation"
        return Description(1, only, None, None, only, only, at, reason=why)
    mean, deviation = mean_and_deviation(ordered)
    error = deviation / math.sqrt(n)
    return Description(n, mean, deviation, error, ordered[0], ordered[-1], at)


def percentile(values: Iterable[float], q: float) -> float | None:
    """Return the q-th percentile (0 to 100) of values in any order; None without a value.

    percentile([1, 2, 3, 4], 50)  # 2.5
    """
    if not 0 <= q <= 100:
        raise ProctorError(f"invalid percentile {q}", hint="use a percentile from 0 to 100")
    ordered = sorted(values)
    if not ordered:
        return None
    place = q / 100 * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


# Effect sizes: how large a difference is, not whether it is real. Every comparison shows the
# difference in points; these sizes can be compared across suites. They say nothing about noise.


@dataclass(frozen=True, slots=True)
class Effect:
    """A standardised difference, second minus first; `n` counts the values it was computed from."""

    value: float | None
    method: str
    estimand: Estimand
    n: int
    cases: int
    left_out: int = 0
    reason: str | None = None


def cohen_h(first: Sequence[tuple[int, ...]], second: Sequence[tuple[int, ...]]) -> Effect:
    """Return Cohen's h of the mean rates: points count more near 0 and 1 than in the middle."""
    arms = paired(first, second)
    facts = ("Cohen's h", "suite", arms.n, len(arms.first), arms.left_out)
    if not arms.first:
        return Effect(None, *facts, reason="no case in both arms")
    before, after = (
        math.fsum(row.rate for row in arm) / len(arm) for arm in (arms.first, arms.second)
    )
    return Effect(h_of_rates(before, after), *facts)


def h_of_rates(first: float, second: float) -> float:
    """Return Cohen's h of two rates."""
    for rate in (first, second):
        if not 0 <= rate <= 1:
            raise ProctorError(f"{rate} is not a rate", hint="rates lie between 0 and 1")
    return 2 * math.asin(math.sqrt(second)) - 2 * math.asin(math.sqrt(first))


def cohen_dz(first: Sequence[float], second: Sequence[float]) -> Effect:
    """Return the mean difference of one value per case, in its standard deviations."""
    gaps = gaps_of(first, second)
    facts = ("Cohen's d_z", "population", 2 * len(gaps), len(gaps))
    if len(gaps) < 2:
        return Effect(None, *facts, reason="d_z needs two cases")
    mean, deviation = mean_and_deviation(gaps)
    if not deviation:
        return Effect(None, *facts, reason="all differences are equal: there is no spread")
    return Effect(mean / deviation, *facts)


# Correlation of a score with a property of the cases: Pearson or Spearman, with a permutation p.
# One pair of values per case: trials of one case share its property and would be counted as
# independent. A permutation makes no assumption on the distribution and handles ties.


LEAST_PAIRS = 10
"""Cases a correlation needs: with fewer, values of ±0.6 are common by chance alone."""

# Permuted values held in memory at a time: about 32 MB.
_CELLS_AT_ONCE = 4_000_000


@dataclass(frozen=True, slots=True)
class Correlation(Tabular):
    """A coefficient over `n` cases, with the p-value of a permutation test."""

    coefficient: float | None
    p_value: float | None
    n: int
    method: str
    alternative: Alternative
    resamples: int | None = None
    estimand: Estimand = "population"
    reason: str | None = None


_SHARES = 100
"""Steps of the grid on which the likelihood of an intraclass correlation is computed."""


def intraclass(counts: Sequence[tuple[int, ...]], *, level: float = LEVEL) -> Interval:
    """Return the intraclass correlation of pass or fail: the share of variance between cases.

    1: each case always passes or always fails. 0: all cases are alike and only chance varies.
    Maximum likelihood of the beta-binomial with a profile likelihood interval, whose cut is the t
    quantile for the number of cases. (The F interval of an analysis of variance covers only 72 %
    of the time where most cases pass.) Ends are on a grid of 0.01.
    """
    import numpy as np

    share(level, "level")
    rows = [row for row in judged(counts) if row.trials > 1]
    n, cases = sum(row.trials for row in rows), len(rows)
    facts = (level, "beta-binomial profile likelihood", "population", n, cases)
    left_out = len(counts) - cases

    def undefined(why: str) -> Interval:
        return Interval(None, None, None, *facts, left_out, reason=why)

    if cases < 2:
        return undefined("needs two cases with two judged trials each")
    if sum(row.passes for row in rows) in (0, n):
        return undefined("every trial has the same outcome, so nothing varies")
    # log B(a + x, b + k - x) - log B(a, b), as sums of logarithms over a grid of (share, mean).
    shares = np.linspace(0, 1, _SHARES + 1)
    shares[0], shares[-1] = 1e-6, 1 - 1e-6
    means = np.linspace(0.005, 0.995, 199)
    total = 1 / shares[:, None] - 1
    a, b = means[None, :] * total, (1 - means[None, :]) * total
    likelihood = np.zeros_like(a)
    for step in range(max(row.trials for row in rows)):
        # Each logarithm once, for all the cases that need it.
        likelihood += sum(row.passes > step for row in rows) * np.log(a + step)
        likelihood += sum(row.trials - row.passes > step for row in rows) * np.log(b + step)
        likelihood -= sum(row.trials > step for row in rows) * np.log(total + step)
    best = likelihood.max(axis=1)
    cut = best.max() - t_quantile(0.5 + level / 2, cases - 1) ** 2 / 2
    inside = np.flatnonzero(best >= cut)
    # Rounded outwards, to the next point of the grid.
    low, high = max(int(inside[0]) - 1, 0), min(int(inside[-1]) + 1, _SHARES)
    return Interval(int(best.argmax()) / _SHARES, low / _SHARES, high / _SHARES, *facts, left_out)


def trials_for_reliability(icc: float, reliability: float = 0.8) -> int | None:
    """Return the trials per case with which case rates have a reliability (Spearman and Brown).

    The reliability is the share of the variance of case rates that is not the chance of trials;
    None where cases do not differ.
    """
    if icc <= 0:
        return None
    return max(1, math.ceil(reliability * (1 - icc) / (icc * (1 - reliability)) - TIES))


def correlate(
    values: Sequence[float],
    scores: Sequence[float],
    *,
    method: Literal["pearson", "spearman"] = "spearman",
    alternative: Alternative = "two-sided",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Correlation:
    """Correlate a property of the cases with their mean scores."""
    import numpy as np

    same_length(values, scores)
    x = np.asarray(finite(values, "property"), dtype=np.float64)
    y = np.asarray(finite(scores, "scores"), dtype=np.float64)
    n = len(x)
    label = f"{method}, permutation p, seed {seed}"
    if n < LEAST_PAIRS:
        why = f"a correlation needs {LEAST_PAIRS} cases, there are {n}"
        return Correlation(None, None, n, label, alternative, reason=why)
    # A constant has no correlation with anything: its deviation would be a division by zero.
    for what, row in (("the property", x), ("the score", y)):
        if float(np.ptp(row)) == 0:
            why = f"{what} is the same in every case"
            return Correlation(None, None, n, label, alternative, reason=why)
    if method == "spearman":
        x, y = ranks(x), ranks(y)
    x, y = _standard(x), _standard(y)
    observed = float(x @ y)
    drawn = _permuted(x, y, resamples, seed)
    p_value = permutation_p(drawn, observed, alternative, exact=False)
    # The product of two unit vectors may exceed 1 by rounding.
    coefficient = min(1.0, max(-1.0, observed))
    return Correlation(coefficient, p_value, n, label, alternative, resamples)


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks from 1; ties share their mean rank."""
    import numpy as np

    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]


def _standard(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centre and normalise: the product of two such vectors is their correlation."""
    import numpy as np

    centred = values - values.mean()
    return centred / math.sqrt(float(np.sum(centred**2)))


def _permuted(
    x: NDArray[np.float64], y: NDArray[np.float64], resamples: int, seed: int
) -> NDArray[np.float64]:
    """Return the correlation for `resamples` orders of `y`."""
    import numpy as np

    rng = np.random.default_rng(seed)
    parts: list[NDArray[np.float64]] = []
    left, at_once = resamples, max(1, _CELLS_AT_ONCE // len(y))
    while left:
        now = min(left, at_once)
        parts.append(rng.permuted(np.tile(y, (now, 1)), axis=1) @ x)
        left -= now
    return np.concatenate(parts)

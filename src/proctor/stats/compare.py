"""Test whether two arms differ on the same cases, and by how much.

Suite (these cases): the exact stratified test, which conditions on each case's total. Population:
paired t, or sign flips below 30 cases. The stratified test's null is "no case changed": where gains
offset losses it can be significant at a difference of zero, so read it with the interval.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from proctor.stats._distributions import binomial_cdf, normal_quantile, t_cdf
from proctor.stats.types import (
    LEVEL,
    RESAMPLES,
    TIES,
    Alternative,
    CaseCounts,
    DifferenceTest,
    Interval,
    finite,
    paired,
    same_length,
    share,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FEW_CASES = 30
"""Below this number of cases the mean may not be normal, so signs are flipped instead of t."""

ENUMERATE_UP_TO = 2**14
"""Up to this number all arrangements are enumerated; beyond it they are sampled."""


def stratified(
    first: Sequence[tuple[int, ...]],
    second: Sequence[tuple[int, ...]],
    *,
    alternative: Alternative = "two-sided",
) -> DifferenceTest:
    """Return the exact stratified (Mantel–Haenszel) test of pass counts, mid-p.

    If no case changed, each case's passes fall on the two arms as a hypergeometric draw; the sum
    over cases is their convolution. With one trial per case it is McNemar's test.
    """
    import numpy as np

    arms = paired(first, second)
    method = "exact stratified (Mantel–Haenszel), mid-p"
    facts = (alternative, method, "suite", arms.n, len(arms.first), arms.left_out)
    informative = [
        (a, b)
        for a, b in zip(arms.first, arms.second, strict=True)
        if 0 < a.passes + b.passes < a.trials + b.trials
    ]
    if not informative:
        why = "no case in both arms" if not arms.first else "no case holds both passes and failures"
        return DifferenceTest(arms.difference, None, *facts, reason=why)
    chances, observed = np.ones(1), 0
    for a, b in informative:
        # Cases are independent, so the distribution of the sum is the convolution of theirs.
        lowest, pmf = _hypergeometric(a, b)
        chances = np.convolve(chances, pmf)
        observed += b.passes - lowest
    # Mid-p: half of the observed outcome counts on each side. The plain exact test is conservative.
    half = float(chances[observed]) / 2
    less, greater = float(chances[:observed].sum()), float(chances[observed + 1 :].sum())
    p_value = _by_side(less + half, greater + half, alternative)
    return DifferenceTest(arms.difference, p_value, *facts)


def _hypergeometric(a: CaseCounts, b: CaseCounts) -> tuple[int, list[float]]:
    """Return the fewest passes possible in the second arm, and the probability of each count."""
    total = a.passes + b.passes
    lowest, highest = max(0, total - a.trials), min(total, b.trials)
    ways = math.comb(a.trials + b.trials, total)
    return lowest, [
        math.comb(b.trials, x) * math.comb(a.trials, total - x) / ways
        for x in range(lowest, highest + 1)
    ]


def _by_side(less: float, greater: float, alternative: Alternative) -> float:
    """Return a p-value in [0, 1] from its two tails; two-sided is twice the smaller."""
    tails = {"less": less, "greater": greater, "two-sided": 2 * min(less, greater)}
    return min(1.0, max(0.0, tails[alternative]))


def mcnemar(
    first: Sequence[bool], second: Sequence[bool], *, alternative: Alternative = "two-sided"
) -> DifferenceTest:
    """Return McNemar's exact test of one trial per case: a binomial test of the changed cases."""
    same_length(first, second)
    gained = sum(b and not a for a, b in zip(first, second, strict=True))
    lost = sum(a and not b for a, b in zip(first, second, strict=True))
    cases, changed = len(first), gained + lost
    facts = (alternative, "McNemar exact", "suite", 2 * cases, cases)
    if not changed:
        why = "no case changed" if cases else "no case in both arms"
        return DifferenceTest(0.0 if cases else None, None, *facts, reason=why)
    less, greater = binomial_cdf(gained, changed), binomial_cdf(lost, changed)
    return DifferenceTest((gained - lost) / cases, _by_side(less, greater, alternative), *facts)


def paired_means(
    first: Sequence[float],
    second: Sequence[float],
    *,
    alternative: Alternative = "two-sided",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> DifferenceTest:
    """Test one mean per case for a population: sign flips below 30 cases, else paired t."""
    if len(first) >= FEW_CASES:
        found = paired_t(first, second, alternative=alternative)
        if found.p_value is not None:
            return found
    # Also where every case moved equally: no spread for t, but the strongest possible evidence.
    return sign_flip(first, second, alternative=alternative, resamples=resamples, seed=seed)


def paired_t(
    first: Sequence[float], second: Sequence[float], *, alternative: Alternative = "two-sided"
) -> DifferenceTest:
    """Return the paired t-test of the cases' differences."""
    gaps = gaps_of(first, second)
    cases = len(gaps)
    # One mean per case and arm: `n` counts means, not trials.
    facts = (alternative, "paired t", "population", 2 * cases, cases)
    if cases < 2:
        gap = gaps[0] if gaps else None
        return DifferenceTest(gap, None, *facts, reason="a paired t needs two cases")
    mean, deviation = mean_and_deviation(gaps)
    if deviation == 0:
        return DifferenceTest(
            mean, None, *facts, reason="all differences are equal: their spread is unknown"
        )
    t = mean / (deviation / math.sqrt(cases))
    p_value = _by_side(t_cdf(t, cases - 1), t_cdf(-t, cases - 1), alternative)
    return DifferenceTest(mean, p_value, *facts)


def sign_flip(
    first: Sequence[float],
    second: Sequence[float],
    *,
    alternative: Alternative = "two-sided",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> DifferenceTest:
    """Return the test that swaps the arms of each case; exact up to 14 changed cases."""
    import numpy as np

    gaps = gaps_of(first, second)
    cases = len(gaps)
    changed = np.asarray([gap for gap in gaps if gap], dtype=np.float64)
    exact = 2 ** len(changed) <= ENUMERATE_UP_TO
    method = "sign-flip permutation, " + ("exact" if exact else f"seed {seed}")
    facts = (alternative, method, "population", 2 * cases, cases)
    if not cases:
        return DifferenceTest(None, None, *facts, reason="no case in both arms")
    mean = math.fsum(gaps) / cases
    if not len(changed):
        return DifferenceTest(mean, None, *facts, reason="no case changed")
    if exact:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(changed))))
    else:
        rng = np.random.default_rng(seed)
        signs = rng.choice(np.array([1.0, -1.0]), size=(resamples, len(changed)))
    sums = signs @ changed
    p_value = permutation_p(sums, float(changed.sum()), alternative, exact=exact)
    return DifferenceTest(mean, p_value, *facts, resamples=None if exact else resamples)


def within_case(
    first: Sequence[Sequence[float]],
    second: Sequence[Sequence[float]],
    *,
    alternative: Alternative = "two-sided",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> DifferenceTest:
    """Test scores that are not pass or fail on a suite: labels permuted within each case."""
    import numpy as np

    same_length(first, second)
    rows = [
        (finite(a, "first arm"), finite(b, "second arm"))
        for a, b in zip(first, second, strict=True)
    ]
    both = [(a, b) for a, b in rows if a and b]
    arrangements = math.prod(math.comb(len(a) + len(b), len(b)) for a, b in both)
    exact = arrangements <= ENUMERATE_UP_TO
    method = "permutation within cases, " + ("exact" if exact else f"seed {seed}")
    n = sum(len(a) + len(b) for a, b in both)
    facts = (alternative, method, "suite", n, len(both), len(rows) - len(both))
    if not both:
        return DifferenceTest(None, None, *facts, reason="no case in both arms")
    observed = math.fsum(math.fsum(b) / len(b) - math.fsum(a) / len(a) for a, b in both)
    difference = observed / len(both)
    # Every arrangement then has the same sum: the permutations could not tell the arms apart.
    if all(len({*a, *b}) == 1 for a, b in both):
        return DifferenceTest(difference, None, *facts, reason="no score varies within a case")
    sums = np.zeros(1) if exact else np.zeros(resamples)
    rng = np.random.default_rng(seed)
    for a, b in both:
        if exact:
            # The difference of means for every assignment of the case's scores to the arms.
            total = math.fsum(a + b)
            chosen = [math.fsum(part) for part in itertools.combinations(a + b, len(b))]
            gaps = [part / len(b) - (total - part) / len(a) for part in chosen]
            sums = np.add.outer(sums, gaps).ravel()
        else:
            pool = rng.permuted(np.tile(np.asarray(a + b), (resamples, 1)), axis=1)
            sums = sums + pool[:, : len(b)].mean(axis=1) - pool[:, len(b) :].mean(axis=1)
    p_value = permutation_p(sums, observed, alternative, exact=exact)
    return DifferenceTest(difference, p_value, *facts, resamples=None if exact else resamples)


def permutation_p(
    drawn: NDArray[np.float64], observed: float, alternative: Alternative, *, exact: bool
) -> float:
    """Return the share of arrangements at least as extreme; samples include the observed one."""
    import numpy as np

    slack = TIES * max(1.0, float(np.abs(drawn).max()))
    # A sampled p-value of 0 would claim more than the samples show.
    extra = 0 if exact else 1
    less = (int((drawn <= observed + slack).sum()) + extra) / (len(drawn) + extra)
    greater = (int((drawn >= observed - slack).sum()) + extra) / (len(drawn) + extra)
    return _by_side(less, greater, alternative)


def gaps_of(first: Sequence[float], second: Sequence[float]) -> tuple[float, ...]:
    """Second minus first, case by case."""
    same_length(first, second)
    a, b = finite(first, "first arm"), finite(second, "second arm")
    return tuple(y - x for x, y in zip(a, b, strict=True))


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation (n − 1) of two or more values."""
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    deviation = math.sqrt(variance)
    # Equal differences of unequal rates (0.9 − 0.8, 0.6 − 0.5) differ by rounding only.
    scale = max(abs(value) for value in values)
    return mean, 0.0 if deviation <= TIES * max(scale, TIES) else deviation


def suite_difference(
    first: Sequence[tuple[int, ...]], second: Sequence[tuple[int, ...]], *, level: float = LEVEL
) -> Interval:
    """Return the mean difference on exactly these cases, second minus first, with its interval.

    Each arm's half-width is z times its standard error from within-case variances, and at least
    what cases without any variation leave open: 5 of 5 everywhere is not certainty.
    """
    share(level, "level")
    arms = paired(first, second)
    z = normal_quantile(0.5 + level / 2)
    single = sum(row.trials == 1 for row in arms.first + arms.second)
    method = "normal, within-case variances" + (
        f" ({single} of one trial taken at the largest possible, ¼)" if single else ""
    )
    facts = (level, method, "suite", arms.n, len(arms.first), arms.left_out)
    middle = arms.difference
    if middle is None:
        return Interval(None, None, None, *facts, reason="no case in both arms")
    # The arms are independent, so their half-widths add as squares. The difference is lowest where
    # the first arm is higher and the second lower than estimated.
    down = math.hypot(_reach(arms.first, z, up=True), _reach(arms.second, z, up=False))
    up = math.hypot(_reach(arms.first, z, up=False), _reach(arms.second, z, up=True))
    return Interval(middle, max(-1.0, middle - down), min(1.0, middle + up), *facts)


def arm_variance(rows: Sequence[CaseCounts]) -> float:
    """Return the variance of an arm's mean rate on exactly these cases."""
    variances = [
        # One trial shows no variance, so it counts with the largest possible.
        row.rate * (1 - row.rate) / (row.trials - 1) if row.trials > 1 else 0.25
        for row in rows
    ]
    return math.fsum(variances) / len(rows) ** 2


def _reach(rows: Sequence[CaseCounts], z: float, *, up: bool) -> float:
    """Return how far above (or below) its estimate an arm's true mean may be.

    The second term is Wilson's bound for cases that always failed (or always passed), z²/(n+z²), at
    their share of the suite.
    """
    settled = [row for row in rows if row.passes == (0 if up else row.trials)]
    trials = sum(row.trials for row in settled)
    open_end = len(settled) / len(rows) * z * z / (trials + z * z) if settled else 0.0
    # The larger of the two: within-case variances are zero where every case is settled.
    return max(z * math.sqrt(arm_variance(rows)), open_end)

"""Test whether two arms differ on the same instances, and by how much.

A row is one instance: a case, or a case under one seed. Suite (these instances): the exact
stratified test, which conditions on each row's total; with one trial each it is McNemar's test.
Seeds are draws: where the differences of one case's instances vary more than their trials explain
(as for agents that always repeat themselves), trials of an instance are not independent evidence,
and the test is over instances. Population: over cases, paired t or sign flips below 30. The
stratified null is "no instance changed": where gains offset losses it can be significant at a
difference of zero, so read it with the interval.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from proctor.stats._distributions import (
    binomial_cdf,
    boundary,
    f_tail,
    normal_cdf,
    normal_quantile,
    t_cdf,
    t_quantile,
)
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

VARIES = 0.10
"""Instances vary beyond trial noise if their variance ratio has a smaller p-value than this."""

# Beyond this many possible sums the exact distribution is normal to more digits than are printed.
_NORMAL_FROM = 20_000

# Resampled values of one test; beyond it the permutation distribution is normal, too.
_MAX_CELLS = 50_000_000

# Up to this many, listing the arrangements of a case once is faster than shuffling it each time.
_FEW_WAYS = 1_000


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
    support = sum(min(a.passes + b.passes, a.trials, b.trials) for a, b in informative)
    if support > _NORMAL_FROM:
        gap, variance = _gap(informative)
        below = normal_cdf(gap / math.sqrt(variance))
        p_value = _by_side(below, 1 - below, alternative)
        return DifferenceTest(arms.difference, p_value, *facts)
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


class ChangePoint(NamedTuple):
    """Where a pass rate changed: the first run after (from 0), and the rates around it.

    `p_value` is corrected for the places that were tried.
    """

    at: int
    p_value: float
    before: float
    after: float


def change_points(
    runs: Sequence[Mapping[str, CaseCounts]], *, alpha: float = 0.05
) -> list[ChangePoint]:
    """Return where the pass rate over runs changed, in order: binary segmentation.

    Each place in a segment splits it in two, which are compared over the cases of both. The p-value
    of the exact stratified test at the largest difference, times the number of places (Bonferroni),
    has to be at most `alpha`; then both parts are searched. Without any change, the probability of
    finding one is at most `alpha`.
    """
    found: list[ChangePoint] = []
    segments = [(0, len(runs))]
    while segments:
        start, end = segments.pop()
        best: tuple[float, int, list[CaseCounts], list[CaseCounts]] | None = None
        for place in range(start + 1, end):
            first, second = _pooled(runs[start:place]), _pooled(runs[place:end])
            shared = [case for case in first if case in second]
            before, after = [first[case] for case in shared], [second[case] for case in shared]
            # Chosen by the normal statistic, which is quick; only the chosen place is tested.
            gap, variance = _gap(list(zip(before, after, strict=True)))
            size = abs(gap) / math.sqrt(variance) if variance else 0.0
            if size and (best is None or size > best[0]):
                best = (size, place, before, after)
        if best is None:
            continue
        _, place, before, after = best
        p_value = stratified(before, after).p_value
        corrected = 1.0 if p_value is None else min(1.0, p_value * (end - start - 1))
        if corrected <= alpha:
            found.append(ChangePoint(place, corrected, _mean_rate(before), _mean_rate(after)))
            segments += [(start, place), (place, end)]
    return sorted(found)


def _pooled(runs: Sequence[Mapping[str, CaseCounts]]) -> dict[str, CaseCounts]:
    found: dict[str, CaseCounts] = {}
    for counts in runs:
        for case, each in counts.items():
            known = found.get(case, CaseCounts(0, 0))
            found[case] = CaseCounts(known.passes + each.passes, known.trials + each.trials)
    return {case: each for case, each in found.items() if each.trials}


def _mean_rate(counts: Sequence[CaseCounts]) -> float:
    return sum(each.rate for each in counts) / len(counts)


def _hypergeometric(a: CaseCounts, b: CaseCounts) -> tuple[int, NDArray[np.float64]]:
    """Return the fewest passes possible in the second arm, and the probability of each count."""
    import numpy as np

    total = a.passes + b.passes
    lowest, highest = max(0, total - a.trials), min(total, b.trials)
    x = np.arange(lowest, highest, dtype=np.float64)
    # Ratios of neighbours, in logarithms: binomials of 10,000 trials do not fit into a float.
    steps = np.log((b.trials - x) * (total - x)) - np.log((x + 1) * (a.trials - total + x + 1))
    logs = np.concatenate([np.zeros(1), np.cumsum(steps)])
    weights = np.exp(logs - logs.max())
    return lowest, weights / weights.sum()


def _gap(rows: Sequence[tuple[CaseCounts, CaseCounts]]) -> tuple[float, float]:
    """Return how far the passes of the second arm are from their mean, and their variance."""
    gap = variance = 0.0
    for a, b in rows:
        n, total = a.trials + b.trials, a.passes + b.passes
        gap += b.passes - total * b.trials / n
        variance += total * (n - total) * a.trials * b.trials / (n * n * (n - 1))
    return gap, variance


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
    sizes = np.abs(changed)
    # Flips of equal differences are coins: their number has a binomial distribution.
    coins = len(changed) > 0 and float(np.ptp(sizes)) <= TIES * float(sizes.max())
    exact = coins or 2 ** len(changed) <= ENUMERATE_UP_TO
    method = "sign-flip permutation, " + ("exact" if exact else f"seed {seed}")
    facts = (alternative, method, "population", 2 * cases, cases)
    if not cases:
        return DifferenceTest(None, None, *facts, reason="no case in both arms")
    mean = math.fsum(gaps) / cases
    if not len(changed):
        return DifferenceTest(mean, None, *facts, reason="no case changed")
    if coins:
        up, flips = int((changed > 0).sum()), len(changed)
        tails = (binomial_cdf(up, flips), binomial_cdf(flips - up, flips))
        return DifferenceTest(mean, _by_side(*tails, alternative), *facts)
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
    n = sum(len(a) + len(b) for a, b in both)
    # A case of n values has at least n arrangements: the product need not be computed for many.
    exact = n <= ENUMERATE_UP_TO and _arrangements(both) <= ENUMERATE_UP_TO
    normal = not exact and n * resamples > _MAX_CELLS
    how = "exact" if exact else "normal approximation" if normal else f"seed {seed}"
    method = f"permutation within cases, {how}"
    facts = (alternative, method, "suite", n, len(both), len(rows) - len(both))
    if not both:
        return DifferenceTest(None, None, *facts, reason="no case in both arms")
    observed = math.fsum(math.fsum(b) / len(b) - math.fsum(a) / len(a) for a, b in both)
    difference = observed / len(both)
    # Every arrangement then has the same sum: the permutations could not tell the arms apart.
    if all(len({*a, *b}) == 1 for a, b in both):
        return DifferenceTest(difference, None, *facts, reason="no score varies within a case")
    if normal:
        # The permutation distribution has mean 0 and exactly this variance.
        spread = math.fsum(
            mean_and_deviation(a + b)[1] ** 2 * (1 / len(a) + 1 / len(b)) for a, b in both
        )
        below = normal_cdf(observed / math.sqrt(spread))
        return DifferenceTest(difference, _by_side(below, 1 - below, alternative), *facts)
    sums = np.zeros(1) if exact else np.zeros(resamples)
    rng = np.random.default_rng(seed)
    for a, b in both:
        if exact or math.comb(len(a) + len(b), len(b)) <= _FEW_WAYS:
            # The difference of means for every assignment of the case's scores to the arms.
            total = math.fsum(a + b)
            chosen = [math.fsum(part) for part in itertools.combinations(a + b, len(b))]
            gaps = np.array([part / len(b) - (total - part) / len(a) for part in chosen])
            if exact:
                sums = np.add.outer(sums, gaps).ravel()
            else:
                sums = sums + gaps[rng.integers(0, len(gaps), resamples)]
        else:
            pool = rng.permuted(np.tile(np.asarray(a + b), (resamples, 1)), axis=1)
            sums = sums + pool[:, : len(b)].mean(axis=1) - pool[:, len(b) :].mean(axis=1)
    p_value = permutation_p(sums, observed, alternative, exact=exact)
    return DifferenceTest(difference, p_value, *facts, resamples=None if exact else resamples)


def _arrangements(rows: Sequence[tuple[Sequence[float], Sequence[float]]]) -> int:
    """Return the number of ways to assign scores to arms, or some number that is too large."""
    ways = 1
    for a, b in rows:
        if ways > ENUMERATE_UP_TO or len(a) + len(b) > ENUMERATE_UP_TO.bit_length() * 2:
            # Two values in one arm and many in the other are rare enough to be sampled.
            return ENUMERATE_UP_TO + 1
        ways *= math.comb(len(a) + len(b), len(b))
    return ways


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


class Repeats(NamedTuple):
    """One arm on one instance: how many values, their mean, and their variance (n − 1)."""

    n: int
    mean: float
    variance: float

    @classmethod
    def of_counts(cls, row: CaseCounts) -> Repeats:
        """Return passes as values of 0 and 1."""
        spread = row.rate * (1 - row.rate) * row.trials / (row.trials - 1) if row.trials > 1 else 0
        return cls(row.trials, row.rate, spread)

    @classmethod
    def of_values(cls, values: Sequence[float]) -> Repeats:
        """Return the moments of one or more values."""
        if len(values) < 2 or min(values) == max(values):
            return cls(len(values), values[0], 0.0)
        middle, deviation = mean_and_deviation(values)
        return cls(len(values), middle, deviation * deviation)


class Compared(NamedTuple):
    """A test of a difference and the interval that belongs to it."""

    test: DifferenceTest
    interval: Interval

    def counting(self, **counts: int) -> Compared:
        """Return both with these counts (`n`, `cases`, `left_out`)."""
        return Compared(replace(self.test, **counts), replace(self.interval, **counts))


def instances_vary(
    first: Sequence[Repeats], second: Sequence[Repeats], cases: Sequence[Hashable] | None
) -> bool:
    """Whether differences vary among the instances of a case more than their trials explain.

    Without seeds a case has one instance and nothing to vary. Otherwise the variance of the
    differences within cases is compared with the one expected from repeats that are independent.
    """
    rows: dict[Hashable, list[tuple[Repeats, Repeats]]] = defaultdict(list)
    for key, a, b in zip(cases or (), first, second, strict=bool(cases)):
        if a.n > 1 and b.n > 1:
            rows[key].append((a, b))
    repeated = [pairs for pairs in rows.values() if len(pairs) > 1]
    free = sum(len(pairs) - 1 for pairs in repeated)
    if not free:
        return False
    spread = noise = 0.0
    for pairs in repeated:
        gaps = [b.mean - a.mean for a, b in pairs]
        middle = math.fsum(gaps) / len(gaps)
        spread += math.fsum((gap - middle) ** 2 for gap in gaps)
        noise += math.fsum(a.variance / a.n + b.variance / b.n for a, b in pairs)
    spread /= free
    noise /= sum(len(pairs) for pairs in repeated)
    if noise <= TIES:
        return spread > TIES
    trials = sum(a.n + b.n - 2 for pairs in repeated for a, b in pairs)
    return f_tail(spread / noise, free, trials) < VARIES


def on_suite(
    first: Sequence[tuple[int, ...]],
    second: Sequence[tuple[int, ...]],
    *,
    cases: Sequence[Hashable] | None = None,
    alternative: Alternative = "two-sided",
    level: float = LEVEL,
) -> Compared:
    """Compare pass counts on exactly these instances; `cases` names the case of each row."""
    rows = [at for at, (a, b) in enumerate(zip(first, second, strict=True)) if a[1] and b[1]]
    arms = paired(first, second)
    keys = None if cases is None else [cases[at] for at in rows]
    a, b = map(Repeats.of_counts, arms.first), map(Repeats.of_counts, arms.second)
    moments = (list(a), list(b))
    if not instances_vary(*moments, keys):
        return Compared(
            stratified(first, second, alternative=alternative),
            suite_difference(first, second, level=level),
        )
    counted = {"n": arms.n, "left_out": arms.left_out}
    if all(row.variance == 0 for arm in moments for row in arm):
        # Each instance is one observation: the repeats are copies of it.
        once = [[(int(row.mean), 1) for row in arm] for arm in moments]
        test = stratified(*once, alternative=alternative)
        note = f"McNemar over {len(rows)} instances, mid-p: repeats never vary"
        interval = suite_difference(*once, level=level)
        interval = replace(interval, method=f"{interval.method}, over instances")
        return Compared(replace(test, method=note), interval).counting(**counted)
    found = _over_instances([[row.mean for row in arm] for arm in moments], alternative, level, 0)
    return found.counting(**counted)


def scores_on_suite(
    first: Sequence[Sequence[float]],
    second: Sequence[Sequence[float]],
    *,
    cases: Sequence[Hashable] | None = None,
    alternative: Alternative = "two-sided",
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Compared:
    """Compare scores between 0 and 1 on exactly these instances."""
    same_length(first, second)
    rows = [at for at, (a, b) in enumerate(zip(first, second, strict=True)) if a and b]
    keys = None if cases is None else [cases[at] for at in rows]
    before = [Repeats.of_values(finite(first[at], "first arm")) for at in rows]
    after = [Repeats.of_values(finite(second[at], "second arm")) for at in rows]
    n = sum(row.n for row in before + after)
    counted = {"n": n, "left_out": len(first) - len(rows)}
    single = all(row.n == 1 for row in before + after)
    means = [[row.mean for row in arm] for arm in (before, after)]
    if rows and instances_vary(before, after, keys):
        found = _over_instances(means, alternative, level, seed)
        return found.counting(**counted)
    if single and rows:
        # One score each: swapping two labels flips the sign of the difference.
        test = paired_means(*means, alternative=alternative, resamples=resamples, seed=seed)
        test = replace(test, estimand="suite")
    else:
        test = within_case(first, second, alternative=alternative, resamples=resamples, seed=seed)
    interval = _suite_interval(before, after, level)
    return Compared(test, interval).counting(**counted)


def _over_instances(
    means: Sequence[Sequence[float]], alternative: Alternative, level: float, seed: int
) -> Compared:
    """Compare one mean per instance: valid however the trials of an instance are related."""
    test = paired_means(*means, alternative=alternative, seed=seed)
    interval = _mean_gap(gaps_of(*means), level, "instance")
    method = f"{test.method}, over instances: they vary beyond trial noise"
    return Compared(
        replace(test, estimand="suite", method=method), replace(interval, estimand="suite")
    )


class Draws(NamedTuple):
    """One value per draw of a population and arm, and what a draw is."""

    first: list[float]
    second: list[float]
    unit: str


def draws_of(
    first: Sequence[float],
    second: Sequence[float],
    *,
    cases: Sequence[Hashable],
    clusters: Sequence[Hashable] | None = None,
) -> Draws:
    """Reduce one mean per instance to one value per draw: a case, or a cluster of cases.

    A case counts with the mean of its instances. With a single case the draws are its instances,
    and the claim is about instances of that case.
    """
    same_length(first, second)
    if len(set(cases)) < 2:
        return Draws(list(first), list(second), "instance of one case")
    groups = dict(zip(cases, cases if clusters is None else clusters, strict=True))
    # A cluster counts with the number of its cases, so that the mean stays that of the cases.
    weight = len(set(groups.values())) / len(groups)
    sums: list[list[float]] = []
    for arm in (first, second):
        instances: dict[Hashable, list[float]] = defaultdict(list)
        for case, value in zip(cases, arm, strict=True):
            instances[case].append(value)
        total: dict[Hashable, float] = defaultdict(float)
        for case, own in instances.items():
            total[groups[case]] += math.fsum(own) / len(own) * weight
        sums.append(list(total.values()))
    return Draws(sums[0], sums[1], "case" if weight == 1 else "cluster")


def on_population(
    first: Sequence[float],
    second: Sequence[float],
    *,
    cases: Sequence[Hashable],
    clusters: Sequence[Hashable] | None = None,
    alternative: Alternative = "two-sided",
    level: float = LEVEL,
    seed: int = 0,
) -> Compared:
    """Compare one mean between 0 and 1 per instance, for cases like these."""
    draws = draws_of(first, second, cases=cases, clusters=clusters)
    return Compared(
        compare_draws(draws, alternative=alternative, seed=seed),
        _mean_gap(gaps_of(draws.first, draws.second), level, draws.unit),
    )


def compare_draws(
    draws: Draws, *, alternative: Alternative = "two-sided", seed: int = 0
) -> DifferenceTest:
    """Test one value per draw; a single draw shows no variation between draws."""
    test = paired_means(draws.first, draws.second, alternative=alternative, seed=seed)
    method = test.method if draws.unit == "case" else f"{test.method}, clustered by {draws.unit}"
    if len(draws.first) == 1:
        why = f"one {draws.unit} shows no variation between draws"
        return replace(test, p_value=None, method=method, reason=why)
    return replace(test, method=method)


def _mean_gap(gaps: Sequence[float], level: float, unit: str) -> Interval:
    """Return the mean of one difference per draw, with its t interval."""
    share(level, "level")
    draws = len(gaps)
    facts = (level, f"paired t, clustered by {unit}", "population", 2 * draws, draws)
    if not draws:
        return Interval(None, None, None, *facts, reason="no case in both arms")
    if draws == 1:
        why = f"one {unit} shows no variation between draws"
        return Interval(gaps[0], None, None, *facts, reason=why)
    middle, deviation = mean_and_deviation(gaps)
    if deviation:
        reach = t_quantile(0.5 + level / 2, draws - 1) * deviation / math.sqrt(draws)
        return Interval(middle, max(-1.0, middle - reach), min(1.0, middle + reach), *facts)
    # All draws agree, so another kind has at most this share.
    unseen = _unseen(draws, level)
    low, high = middle - unseen * (1 + middle), middle + unseen * (1 - middle)
    return Interval(middle, low, high, *facts)


def _unseen(n: int, level: float) -> float:
    """Return the largest share, at a two-sided level, of what did not occur in n draws."""
    return 1 - ((1 - level) / 2) ** (1 / n)


def suite_difference(
    first: Sequence[tuple[int, ...]], second: Sequence[tuple[int, ...]], *, level: float = LEVEL
) -> Interval:
    """Return the mean difference on exactly these instances, second minus first, with its interval.

    One trial each: Tango's score interval of paired rates, which agrees with McNemar's test; an
    exact bound where no instance changed. Several: within-instance variances, and at least what
    instances without any variation leave open: 5 of 5 everywhere is not certainty.
    """
    share(level, "level")
    arms = paired(first, second)
    rows = arms.first + arms.second
    if rows and all(row.trials == 1 for row in rows):
        gained = sum(gap > 0 for gap in arms.differences)
        lost = sum(gap < 0 for gap in arms.differences)
        n = len(arms.first)
        method = "Tango's score interval of paired rates" if gained + lost else "exact, no change"
        low, high = _tango(gained, lost, n, level)
        facts = (level, method, "suite", arms.n, n, arms.left_out)
        return Interval((gained - lost) / n, low, high, *facts)
    interval = _suite_interval(
        [Repeats.of_counts(row) for row in arms.first],
        [Repeats.of_counts(row) for row in arms.second],
        level,
    )
    return replace(interval, left_out=arms.left_out)


def _tango(gained: int, lost: int, n: int, level: float) -> tuple[float, float]:
    """Return Tango's (1998) interval for the difference of paired rates."""
    if not gained + lost:
        return -_unseen(n, level), _unseen(n, level)
    middle, z = (gained - lost) / n, normal_quantile(0.5 + level / 2)

    def score(gap: float) -> float:
        # The maximum likelihood estimate of the losing probability, given the difference.
        b = (2 * n - gained + lost) * gap - gained - lost
        root = math.sqrt(max(0.0, b * b + 8 * n * lost * gap * (1 - gap)))
        losing = (root - b) / (4 * n)
        variance = n * (2 * losing + gap * (1 - gap))
        return (gained - lost - n * gap) / math.sqrt(variance) if variance > 0 else math.inf

    def inside(gap: float) -> bool:
        return abs(score(gap)) <= z

    low, high = (
        end if end == middle or inside(end) else boundary(middle, end, inside)
        for end in (-1.0, 1.0)
    )
    return low, high


def _suite_interval(first: Sequence[Repeats], second: Sequence[Repeats], level: float) -> Interval:
    """Return the mean difference of rows with repeats, or of scores."""
    pairs = list(zip(first, second, strict=True))
    rows = len(pairs)
    repeated = [(a, b) for a, b in pairs if a.n > 1 and b.n > 1]
    gaps = [b.mean - a.mean for a, b in pairs if a.n < 2 or b.n < 2]
    method = "normal, within-instance variances" + (
        f"; {len(gaps)} of one trial by their differences" if gaps else ""
    )
    facts = (level, method, "suite", sum(a.n + b.n for a, b in pairs), rows)
    if not pairs:
        return Interval(None, None, None, *facts, reason="no case in both arms")
    middle = math.fsum(b.mean - a.mean for a, b in pairs) / rows
    z = normal_quantile(0.5 + level / 2)
    before, after = [a for a, _ in repeated], [b for _, b in repeated]
    single = _single_reach(gaps, level) * len(gaps) / rows
    # The arms are independent, so their half-widths add as squares. The difference is lowest where
    # the first arm is higher and the second lower than estimated.
    down = math.hypot(_reach(before, rows, z, up=True), _reach(after, rows, z, up=False), single)
    up = math.hypot(_reach(before, rows, z, up=False), _reach(after, rows, z, up=True), single)
    return Interval(middle, max(-1.0, middle - down), min(1.0, middle + up), *facts)


def _single_reach(gaps: Sequence[float], level: float) -> float:
    """Return how far the mean of unrepeated differences may be off.

    Their spread contains the true differences of instances as well, so it is never too small.
    """
    if not gaps:
        return 0.0
    if len(gaps) == 1:
        # One trial in each arm shows no variance, so each counts with the largest possible, ¼.
        return normal_quantile(0.5 + level / 2) * math.sqrt(0.5)
    _, deviation = mean_and_deviation(gaps)
    if not deviation:
        return _unseen(len(gaps), level)
    return t_quantile(0.5 + level / 2, len(gaps) - 1) * deviation / math.sqrt(len(gaps))


def arm_variance(rows: Sequence[CaseCounts]) -> float:
    """Return the variance of an arm's mean rate on exactly these cases."""
    variances = [
        # One trial shows no variance, so it counts with the largest possible.
        row.rate * (1 - row.rate) / (row.trials - 1) if row.trials > 1 else 0.25
        for row in rows
    ]
    return math.fsum(variances) / len(rows) ** 2


def _reach(rows: Sequence[Repeats], of: int, z: float, *, up: bool) -> float:
    """Return how far above (or below) its estimate an arm's part of the mean may be.

    The second term is Wilson's bound for instances that never varied, z²/(n+z²), at their share of
    all `of` rows and at the distance that is left: 1 − mean above, mean below.
    """
    settled = [
        (row.n, left)
        for row in rows
        if row.variance == 0 and (left := 1 - row.mean if up else row.mean) > 0
    ]
    trials = sum(n for n, _ in settled)
    open_end = math.fsum(left for _, left in settled) / of * z * z / (trials + z * z)
    # The larger of the two: within-instance variances are zero where every row is settled.
    return max(z * math.sqrt(math.fsum(row.variance / row.n for row in rows)) / of, open_end)

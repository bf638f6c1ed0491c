"""Comparisons against scipy, brute force and simulation."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from proctor.errors import ProctorError
from proctor.stats.compare import (
    mcnemar,
    paired_means,
    paired_t,
    sign_flip,
    stratified,
    suite_difference,
    within_case,
)
from proctor.stats.describe import cohen_dz, cohen_h, h_of_rates

SIDES = ["less", "greater", "two-sided"]
row = st.integers(1, 6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
arms = st.lists(st.tuples(row, row), min_size=1, max_size=6)


def split(pairs):
    return [a for a, _ in pairs], [b for _, b in pairs]


def by_relabelling(first, second):
    """Mid-p tails from every assignment of every case's trials to the arms, one by one."""
    spreads = []
    for (x, k), (y, m) in zip(first, second, strict=True):
        trials = [1] * (x + y) + [0] * (k + m - x - y)
        spreads.append([sum(part) for part in itertools.combinations(trials, m)])
    observed = sum(y for y, _ in second)
    totals = [sum(parts) for parts in itertools.product(*spreads)]
    less = sum(t < observed for t in totals) + sum(t == observed for t in totals) / 2
    return less / len(totals), 1 - less / len(totals)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([(2, 2), (1, 2)], [(0, 2), (1, 2)]),
        ([(3, 3), (1, 2), (0, 1)], [(1, 3), (2, 2), (1, 1)]),
        ([(2, 4)], [(1, 3)]),
        ([(1, 1)] * 5, [(0, 1), (0, 1), (0, 1), (1, 1), (1, 1)]),
        ([(3, 3), (2, 3), (3, 3)], [(0, 3), (2, 3), (3, 3)]),
    ],
)
def test_stratified_is_what_relabelling_gives(first, second):
    """R-Q1: the exact stratified test is the enumeration of all relabellings within cases."""
    less, greater = by_relabelling(first, second)
    assert stratified(first, second, alternative="less").p_value == pytest.approx(less)
    assert stratified(first, second, alternative="greater").p_value == pytest.approx(greater)
    both = stratified(first, second)
    assert both.p_value == pytest.approx(min(1.0, 2 * min(less, greater)))
    assert both.estimand == "suite"


@pytest.mark.parametrize("trials", [(5, 5), (4, 9), (1, 30)])
def test_stratified_of_one_case_is_fishers_mid_p(trials):
    """R-Q1: with one case the test is Fisher's, whatever the numbers of trials."""
    k, m = trials
    for x, y in itertools.product(range(k + 1), range(m + 1)):
        if not 0 < x + y < k + m:
            continue
        law = stats.hypergeom(k + m, x + y, m)
        expected = law.cdf(y) - law.pmf(y) / 2
        found = stratified([(x, k)], [(y, m)], alternative="less").p_value
        assert found == pytest.approx(expected)


@given(arms)
def test_stratified_is_symmetric(pairs):
    """R-Q1: swapping the arms swaps the sides; the two mid-p tails add up to 1."""
    first, second = split(pairs)
    less = stratified(first, second, alternative="less")
    if less.p_value is None:
        assert less.reason == "no case holds both passes and failures"
        return
    assert 0 <= less.p_value <= 1
    swapped = stratified(second, first, alternative="greater").p_value
    assert less.p_value == pytest.approx(swapped)
    greater = stratified(first, second, alternative="greater").p_value
    assert less.p_value + greater == pytest.approx(1)
    flipped = [[(n - x, n) for x, n in arm] for arm in (first, second)]
    assert stratified(*flipped, alternative="greater").p_value == pytest.approx(less.p_value)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ([], [], "no case in both arms"),
        ([(0, 0)], [(1, 2)], "no case in both arms"),
        ([(5, 5)] * 3, [(5, 5)] * 3, "no case holds both"),
        ([(0, 5)], [(0, 2)], "no case holds both"),
    ],
)
def test_nothing_to_test_has_no_p(first, second, reason):
    """R-Q1: without anything that varies there is no p-value, and the reason is said."""
    found = stratified(first, second)
    assert found.p_value is None
    assert reason in found.reason
    if "both arms" in reason:
        assert suite_difference(first, second).value is None


def test_stratified_holds_at_size():
    """R-Q1: hundreds of cases stay exact: the tails agree with the normal limit."""
    rng = np.random.default_rng(5)
    first = [(int(x), 10) for x in rng.binomial(10, 0.7, 600)]
    second = [(int(x), 10) for x in rng.binomial(10, 0.68, 600)]
    totals = np.array([a + b for (a, _), (b, _) in zip(first, second, strict=True)])
    variance = np.sum(totals * (20 - totals) * 100 / (400 * 19))
    z = (sum(b for b, _ in second) - totals.sum() / 2) / math.sqrt(variance)
    found = stratified(first, second, alternative="less").p_value
    assert found == pytest.approx(stats.norm.cdf(z), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("trials", [1, 5])
def test_size_of_the_stratified_test(trials):
    """R-Q2: without a change the gate's test alarms at its stated rate, on unlike cases."""
    rng = np.random.default_rng(17)
    repeats, alarms = 3000, 0
    for _ in range(repeats):
        rates = rng.beta(1.2, 0.4, 30)
        first, second = ([(int(x), trials) for x in rng.binomial(trials, rates)] for _ in "ab")
        p_value = stratified(first, second, alternative="less").p_value
        alarms += p_value is not None and p_value <= 0.05
    # Mid-p is not strictly bounded by its level: simulated .055. Three errors more: 1.2 points.
    assert 0.025 < alarms / repeats < 0.067


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("changed", [(0, 1), (1, 4), (5, 2), (9, 9), (0, 12)])
def test_mcnemar_is_the_binomial_test(changed, side):
    """R-Q1: McNemar's exact test is a binomial test of the cases that changed."""
    gained, lost = changed
    first = [False] * gained + [True] * lost + [True, False]
    second = [True] * gained + [False] * lost + [True, False]
    found = mcnemar(first, second, alternative=side)
    expected = stats.binomtest(gained, gained + lost, alternative=side).pvalue
    assert found.p_value == pytest.approx(expected)
    assert found.difference == pytest.approx((gained - lost) / len(first))
    assert mcnemar([True], [True]).reason == "no case changed"
    assert mcnemar([], []).difference is None


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("size", [2, 5, 40])
def test_paired_t_agrees_with_scipy(size, side):
    """R-Q1: the paired t is that of an independent library."""
    rng = np.random.default_rng(size)
    first, second = rng.normal(0, 1, size), rng.normal(0.3, 1, size)
    expected = stats.ttest_rel(second, first, alternative=side).pvalue
    assert paired_t(first, second, alternative=side).p_value == pytest.approx(expected)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("size", [2, 3, 8])
def test_sign_flip_agrees_with_scipy(size, side):
    """R-Q1: few cases: all sign flips, ties included, as an independent library counts them."""
    rng = np.random.default_rng(size)
    first, second = rng.integers(0, 4, size) / 4, rng.integers(0, 5, size) / 4 + 0.25
    second[0] = first[0] + 0.5
    found = paired_means(first, second, alternative=side)
    expected = stats.permutation_test(
        (second, first),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        alternative=side,
        n_resamples=np.inf,
        vectorized=True,
    ).pvalue
    assert found.p_value == pytest.approx(expected)
    assert found.resamples is None


def test_sampled_flips_are_seeded_and_near_the_exact():
    """R-Q1: beyond enumeration the flips are sampled: repeatable, never p = 0, near the truth."""
    rng = np.random.default_rng(2)
    first = rng.normal(0, 1, 20)
    second = first + rng.normal(0.25, 0.5, 20)
    found = sign_flip(first, second, seed=4)
    assert found == sign_flip(first, second, seed=4)
    assert found.resamples == 9_999
    assert found.p_value == pytest.approx(paired_t(first, second).p_value, abs=0.02)
    certain = sign_flip(np.zeros(25), np.linspace(1, 2, 25), alternative="greater")
    assert certain.p_value == pytest.approx(1 / 10_000)
    # Equal differences are coins: exact for any number of cases.
    coins = sign_flip(np.zeros(25), np.ones(25), alternative="greater")
    assert coins.p_value == pytest.approx(2.0**-25)
    assert coins.resamples is None


def test_thirty_cases_turn_to_t():
    """R-Q1: sign flips below 30 cases, t from there on, flips again where t has no spread."""
    rng = np.random.default_rng(8)
    first, second = rng.random(30), rng.random(30)
    assert paired_means(first, second).method == "paired t"
    assert paired_means(first[:29], second[:29]).method.startswith("sign-flip")
    alike = paired_means([0.5] * 40, [0.75] * 40)
    assert alike.p_value < 0.001
    assert paired_t([0.5] * 40, [0.75] * 40).reason.startswith("all differences are equal")
    assert paired_t([0.9, 0.6], [0.8, 0.5]).p_value is None
    assert paired_t([1.0], [2.0]).p_value is None


@pytest.mark.parametrize("side", SIDES)
def test_within_case_permutation_of_passes_is_the_stratified_test(side):
    """R-Q1: on 0/1 scores and equal trials it gives the stratified tails, without the mid."""
    first, second = [[1, 1, 1], [1, 0, 1]], [[0, 1, 0], [1, 0, 0]]
    found = within_case(first, second, alternative=side)
    spreads = [
        [sum(part) for part in itertools.combinations(a + b, 3)]
        for a, b in zip(first, second, strict=True)
    ]
    totals = np.array([sum(parts) for parts in itertools.product(*spreads)])
    tails = {"less": np.mean(totals <= 2), "greater": np.mean(totals >= 2)}
    expected = tails[side] if side in tails else min(1, 2 * min(tails.values()))
    assert found.p_value == pytest.approx(expected)
    assert found.resamples is None


def test_within_case_of_one_case_agrees_with_scipy():
    """R-Q1: scores that are not pass or fail, unequal trials: scipy's independent permutations."""
    a, b = [0.1, 0.5, 0.5, 0.9], [0.4, 0.8, 1.0]
    expected = stats.permutation_test(
        (b, a),
        lambda x, y, axis: np.mean(x, axis=axis) - np.mean(y, axis=axis),
        alternative="greater",
        vectorized=True,
    ).pvalue
    assert within_case([a], [b], alternative="greater").p_value == pytest.approx(expected)


def test_sampled_permutations_are_seeded_and_leave_out_what_is_missing():
    """R-Q1: many cases: sampled with a seed; a case without scores in one arm is counted."""
    rng = np.random.default_rng(1)
    first = [list(rng.random(5)) for _ in range(12)]
    second = [list(rng.random(5) + 0.1) for _ in range(12)]
    found = within_case([*first, []], [*second, [0.5]], seed=3)
    assert found == within_case([*first, []], [*second, [0.5]], seed=3)
    assert (found.left_out, found.cases, found.n, found.resamples) == (1, 12, 120, 9_999)
    gaps = [np.mean(b) - np.mean(a) for a, b in zip(first, second, strict=True)]
    variance = sum(np.var([*a, *b], ddof=1) * 0.4 for a, b in zip(first, second, strict=True))
    limit = 2 * stats.norm.sf(abs(sum(gaps)) / math.sqrt(variance))
    assert found.p_value == pytest.approx(limit, abs=0.03)
    assert within_case([[1, 1]], [[1]]).reason == "no score varies within a case"
    assert within_case([[]], [[1]]).difference is None


@pytest.mark.parametrize("test", [paired_t, sign_flip, paired_means])
def test_arms_that_cannot_be_paired_are_refused(test):
    """R-Q1: unequal numbers of cases and NaN are errors."""
    with pytest.raises(ProctorError, match="2 and 1 cases"):
        test([0.1, 0.2], [0.3])
    with pytest.raises(ProctorError, match="second arm: value 2 is nan"):
        test([0.1, 0.2], [0.3, math.nan])
    with pytest.raises(ProctorError, match="not a number"):
        within_case([[math.nan]], [[1.0]])


repeated = st.integers(2, 8).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(st.lists(st.tuples(repeated, repeated), min_size=1, max_size=12), st.floats(0.6, 0.99))
@settings(max_examples=60)
def test_the_difference_interval_is_never_narrower_than_its_formula(pairs, level):
    """R-Q1: it holds the estimate, has width, and contains the textbook interval."""
    first, second = split(pairs)
    found = suite_difference(first, second, level=level)
    gaps = [y / m - x / k for (x, k), (y, m) in pairs]
    variance = sum((x / k) * (1 - x / k) / (k - 1) for x, k in [*first, *second])
    half = stats.norm.ppf(0.5 + level / 2) * math.sqrt(variance) / len(pairs)
    assert found.value == pytest.approx(np.mean(gaps))
    assert found.low <= max(-1, found.value - half) + 1e-12
    assert found.high >= min(1, found.value + half) - 1e-12
    assert -1 <= found.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.high <= 1
    assert found.low < found.high


def test_the_difference_interval_is_the_formula_where_cases_vary():
    """R-Q1: d̄ ± z·√(Σ[pA(1−pA)/(k−1) + pB(1−pB)/(k−1)])/S."""
    first, second = [(4, 5), (3, 5), (2, 4)], [(2, 5), (3, 5), (1, 6)]
    found = suite_difference(first, second)
    variance = 0.16 / 4 + 0.24 / 4 + 0.25 / 3 + 0.24 / 4 + 0.24 / 4 + (5 / 36) / 5
    half = 1.959963984540054 * math.sqrt(variance) / 3
    assert found.high - found.low == pytest.approx(2 * half)


def test_no_variation_is_not_certainty():
    """R-Q2: 2 of 2 against 2 of 2 leaves a large drop open; 150 of 150 only a small one."""
    few = suite_difference([(2, 2)], [(2, 2)], level=0.9)
    many = suite_difference([(5, 5)] * 30, [(5, 5)] * 30, level=0.9)
    assert few.low == pytest.approx(-(1.6448536**2) / (2 + 1.6448536**2))
    assert -0.02 < many.low < 0
    # Once each without a change: of n draws none differed, so at most 1 − 0.025^(1/n) do.
    single = suite_difference([(1, 1)], [(1, 1)])
    assert (single.low, single.high) == (pytest.approx(-0.975), pytest.approx(0.975))


def test_one_trial_each_is_paired():
    """R-Q1: Tango's interval: at its ends the score of the constrained likelihood is z."""
    for gained, lost, n, level in [(15, 1, 100, 0.95), (3, 9, 20, 0.9), (1, 0, 5, 0.95)]:
        first = [(0, 1)] * gained + [(1, 1)] * (n - gained)
        second = [(1, 1)] * gained + [(0, 1)] * lost + [(1, 1)] * (n - gained - lost)
        found = suite_difference(first, second, level=level)
        assert found.value == pytest.approx((gained - lost) / n)
        z = stats.norm.ppf(0.5 + level / 2)
        for end in (found.low, found.high):
            # The most likely chance of a loss when the difference is `end`, by search.
            chances = np.linspace(max(0, -end) + 1e-9, (1 - end) / 2 - 1e-9, 400_001)
            rest = np.log(np.maximum(1 - 2 * chances - end, 1e-300)) * (n - gained - lost)
            log = gained * np.log(chances + end) + lost * np.log(chances) + rest
            likeliest = chances[np.argmax(log)]
            error = math.sqrt(n * (2 * likeliest + end - end * end))
            assert abs(gained - lost - n * end) / error == pytest.approx(z, rel=1e-3)
    fifteen = suite_difference(
        [(0, 1)] * 15 + [(1, 1)] * 85, [(1, 1)] * 15 + [(0, 1)] + [(1, 1)] * 84
    )
    assert 0.05 < fifteen.low < fifteen.high < 0.25


def test_large_counts_have_an_exact_or_normal_test():
    """R-Q1: 10,000 trials a case neither overflow nor take long, and agree with scipy."""
    found = stratified([(9_000, 10_000)], [(8_900, 10_000)])
    table = stats.hypergeom(20_000, 17_900, 10_000)
    assert found.p_value == pytest.approx(2 * (table.cdf(8_899) + table.pmf(8_900) / 2), rel=1e-6)
    many = stratified([(9_000, 10_000)] * 30, [(8_990, 10_000)] * 30)
    error = math.sqrt(30 * 17_990 * 2_010 * 10_000 * 10_000 / (20_000**2 * 19_999))
    assert many.p_value == pytest.approx(2 * stats.norm.sf(150 / error), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cases", "a", "b", "least"), [(30, 1.2, 0.4, 0.93), (8, 2, 1, 0.93), (30, 30, 0.6, 0.91)]
)
def test_coverage_of_the_difference_interval(cases, a, b, least):
    """R-Q2: the one-sided 95 % bound on a drop holds on unlike cases; near 1, at 92 %."""
    rng = np.random.default_rng(23)
    repeats, covered = 2000, 0
    rates = rng.beta(a, b, cases)
    truth = -0.05 * np.mean(rates)
    for _ in range(repeats):
        first = [(int(x), 5) for x in rng.binomial(5, rates)]
        second = [(int(x), 5) for x in rng.binomial(5, rates * 0.95)]
        covered += suite_difference(first, second, level=0.9).low <= truth
    assert covered / repeats > least


def test_effect_sizes():
    """R-Q1: Cohen's h and d_z from their definitions; null where there is no spread."""
    assert h_of_rates(0.0, 1.0) == pytest.approx(math.pi)
    assert h_of_rates(0.5, 0.6) == pytest.approx(0.2013579)
    found = cohen_h([(1, 2), (0, 0)], [(3, 5), (1, 1)])
    assert (found.value, found.left_out) == (pytest.approx(0.2013579), 1)
    assert cohen_h([], []).value is None
    first, second = np.array([0.2, 0.5, 0.9, 0.4]), np.array([0.3, 0.9, 0.8, 0.6])
    gaps = second - first
    assert cohen_dz(first, second).value == pytest.approx(gaps.mean() / gaps.std(ddof=1))
    assert cohen_dz([0.9, 0.6], [0.8, 0.5]).value is None
    assert cohen_dz([1.0], [2.0]).reason == "d_z needs two cases"
    with pytest.raises(ProctorError, match="not a rate"):
        h_of_rates(0.5, 1.2)


def test_one_case_flips_both_ways():
    """R-Q1: one case has two arrangements: one half one-sided, 1 two-sided."""
    assert sign_flip([0.0], [1.0], alternative="greater").p_value == 0.5
    assert sign_flip([0.0], [1.0]).p_value == 1.0
    assert sign_flip([0.5], [0.5]).reason == "no case changed"
    assert sign_flip([], []).difference is None


@pytest.mark.parametrize("trials", [1, 2, 7, 40, 300, 2_000])
def test_the_exact_test_agrees_with_big_integers(trials: int) -> None:
    """R-Q2: logarithms of ratios lose nothing: within 1e-10 of binomials as whole numbers."""
    for before in {0, 1, trials // 3, trials - 1, trials}:
        for after in {0, trials // 2, trials}:
            total = before + after
            if not 0 < total < 2 * trials:
                continue
            ways = [math.comb(trials, x) * math.comb(trials, total - x) for x in range(total + 1)]
            below = Fraction(sum(ways[:after]), sum(ways)) + Fraction(ways[after], 2 * sum(ways))
            found = stratified([(before, trials)], [(after, trials)], alternative="less")
            assert found.p_value == pytest.approx(float(below), abs=1e-10)

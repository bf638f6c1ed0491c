"""Rank sets and correlations against scipy and by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from proctor.errors import ProctorError
from proctor.stats.describe import correlate
from proctor.stats.ranking import holm, rank_sets

SIDES = ["less", "greater", "two-sided"]


def board(**rows):
    return {agent: {f"c{at}": float(v) for at, v in enumerate(row)} for agent, row in rows.items()}


def test_rank_sets_tell_apart_what_the_tests_do():
    """R-Q1: two alike share places 1–2, the clearly worse one is third."""
    rng = np.random.default_rng(1)
    base = rng.random(40)
    found = rank_sets(
        board(
            worst=base - 0.5,
            good=base + rng.normal(0, 0.1, 40),
            also=base + rng.normal(0, 0.1, 40),
        )
    )
    places = {place.agent: (place.best, place.worst) for place in found.places}
    assert places == {"good": (1, 2), "also": (1, 2), "worst": (3, 3)}
    means = [place.mean or 0.0 for place in found.places]
    assert means == sorted(means, reverse=True)
    assert (found.cases, found.n, found.left_out) == (40, 120, ())


def test_pairs_are_corrected_by_holm():
    """R-Q1: each pair shows its test and its p-value after Holm over all pairs."""
    rng = np.random.default_rng(2)
    rows = board(**{name: rng.random(35) for name in "abcd"})
    found = rank_sets(rows)
    assert len(found.pairs) == 6
    raw = []
    for pair in found.pairs:
        a, b = (list(rows[name].values()) for name in (pair.first, pair.second))
        raw.append(stats.ttest_rel(b, a).pvalue)
        assert pair.test.p_value == pytest.approx(raw[-1])
    assert [pair.adjusted for pair in found.pairs] == pytest.approx(holm(raw))


def test_only_shared_cases_are_ranked():
    """R-Q1: a case that one agent lacks is left out for all, and named."""
    found = rank_sets({"a": {"x": 1.0, "y": 0.0}, "b": {"x": 0.0}})
    assert (found.cases, found.left_out) == (1, ("y",))
    assert [(p.agent, p.mean, p.best, p.worst) for p in found.places] == [
        ("a", 1.0, 1, 2),
        ("b", 0.0, 1, 2),
    ]
    apart = rank_sets({"a": {"x": 1.0}, "b": {"y": 0.0}})
    assert [place.mean for place in apart.places] == [None, None]
    assert apart.reason == "no case was run by every agent"
    assert rank_sets({}).places == ()
    same = rank_sets(board(a=[1, 0, 1], b=[1, 0, 1]))
    assert [(p.best, p.worst) for p in same.places] == [(1, 2), (1, 2)]
    assert same.pairs[0].adjusted is None
    with pytest.raises(ProctorError, match="agent b"):
        rank_sets({"a": {"x": 1.0}, "b": {"x": math.nan}})


@given(st.integers(1, 5), st.integers(1, 12), st.integers(0, 1000))
def test_rank_sets_hold_together(agents, cases, seed):
    """R-Q1: places lie in range, the best mean may be first, the last may be last."""
    rng = np.random.default_rng(seed)
    rows = {f"a{i}": rng.integers(0, 3, cases) / 2 + 0.2 * i for i in range(agents)}
    found = rank_sets(board(**rows), resamples=199)
    assert all(1 <= place.best <= place.worst <= agents for place in found.places)
    assert found.places[0].best == 1
    assert found.places[-1].worst == agents


@pytest.mark.parametrize("method", ["pearson", "spearman"])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("n", [10, 14])
def test_small_correlations_agree_with_scipy(method, side, n):
    """R-Q1: coefficient and permutation p are those of an independent library, ties too."""
    rng = np.random.default_rng(n)
    x, y = rng.integers(0, 4, n) + np.arange(n) // 2, rng.integers(0, 3, n) * 0.5
    x[0], y[0] = 9, 2.0
    found = correlate(x, y, method=method, alternative=side)
    reference = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}[method]
    assert found.coefficient == pytest.approx(reference(x, y).statistic)

    def statistic(order):
        return reference(order, y).statistic

    expected = stats.permutation_test(
        (x,), statistic, permutation_type="pairings", alternative=side, n_resamples=999, rng=0
    ).pvalue
    assert found.p_value == pytest.approx(expected, abs=0.06)
    assert found.n == n


@pytest.mark.parametrize("method", ["pearson", "spearman"])
def test_large_correlations_are_sampled_with_a_seed(method):
    """R-Q1: many cases: near the parametric p, repeatable, never 0."""
    rng = np.random.default_rng(6)
    x = rng.normal(0, 1, 60)
    y = 0.2 * x + rng.normal(0, 1, 60)
    xs, ys = x.tolist(), y.tolist()
    found = correlate(xs, ys, method=method, seed=5)
    assert found == correlate(xs, ys, method=method, seed=5)
    reference = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}[method](x, y)
    assert found.coefficient == pytest.approx(reference.statistic)
    assert found.p_value == pytest.approx(reference.pvalue, abs=0.02)
    certain = correlate(xs, (2 * x).tolist(), method=method)
    assert (certain.coefficient, certain.p_value) == (pytest.approx(1.0), 2 / 10_000)


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([], [], "needs 10 cases"),
        (range(9), range(9), "needs 10 cases, there are 9"),
        ([1] * 10, range(10), "the property is the same"),
        (range(10), [0.5] * 10, "the score is the same"),
    ],
)
def test_no_correlation_without_variation(x, y, reason):
    """R-Q1: undefined is null with a reason."""
    found = correlate(x, y)
    assert (found.coefficient, found.p_value) == (None, None)
    assert reason in found.reason


def test_bad_values_are_refused():
    """R-Q1: NaN and lists of unequal length are errors."""
    with pytest.raises(ProctorError, match="scores: value 3"):
        correlate([1, 2, 3], [1, 2, math.nan])
    with pytest.raises(ProctorError, match="3 and 2 cases"):
        correlate([1, 2, 3], [1, 2])

"""pass@k and pass^k by enumeration, Holm and BH against their definitions."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from proctor.errors import ProctorError
from proctor.stats.intervals import pass_at_k, pass_hat_k
from proctor.stats.ranking import benjamini_hochberg, holm


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_k_is_the_share_of_subsets(n):
    """R-Q1: pass@k and pass^k are what counting every subset of k trials gives."""
    for passes, k in itertools.product(range(n + 1), range(1, n + 1)):
        trials = [True] * passes + [False] * (n - passes)
        subsets = list(itertools.combinations(trials, k))
        any_pass = sum(map(any, subsets)) / len(subsets)
        all_pass = sum(map(all, subsets)) / len(subsets)
        assert pass_at_k([(passes, n)], k).value == pytest.approx(any_pass)
        assert pass_hat_k([(passes, n)], k).value == pytest.approx(all_pass)


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_pass_k_is_unbiased(rate):
    """R-Q1: their expectation over all outcomes is 1−(1−p)^k and p^k, with nothing added."""
    n, k = 6, 3
    weights = stats.binom.pmf(range(n + 1), n, rate)
    at = sum(w * pass_at_k([(c, n)], k).value for c, w in enumerate(weights))
    hat = sum(w * pass_hat_k([(c, n)], k).value for c, w in enumerate(weights))
    assert at == pytest.approx(1 - (1 - rate) ** k)
    assert hat == pytest.approx(rate**k)


def test_pass_k_averages_over_cases_and_counts_what_it_leaves_out():
    """R-Q1: unequal trials weigh by case; a case without trials is left out and counted."""
    found = pass_at_k([(1, 2), (4, 4), (0, 0)], 1)
    assert (found.value, found.n, found.cases, found.left_out) == (0.75, 6, 2, 1)
    empty = pass_hat_k([], 2)
    assert (empty.value, empty.reason) == (None, "no judged trial")


@pytest.mark.parametrize("estimate", [pass_at_k, pass_hat_k])
def test_k_beyond_the_trials_is_refused(estimate):
    """R-Q1: pass@5 of 3 trials is not extrapolated."""
    with pytest.raises(ProctorError, match="1 of 2 cases have fewer than 5") as refused:
        estimate([(3, 3), (5, 5)], 5)
    assert "k ≤ 3" in refused.value.hint
    with pytest.raises(ProctorError, match="k is 0"):
        estimate([(1, 1)], 0)


p_lists = st.lists(st.floats(0, 1), min_size=1, max_size=6)


@given(p_lists)
def test_holm_is_the_closed_bonferroni_test(p_values):
    """R-Q1: Holm's adjusted p is the worst Bonferroni p of all subsets that hold the test."""
    everyone = range(len(p_values))
    for at, found in enumerate(holm(p_values)):
        subsets = (
            subset
            for size in range(1, len(p_values) + 1)
            for subset in itertools.combinations(everyone, size)
            if at in subset
        )
        worst = max(min(1.0, len(s) * min(p_values[i] for i in s)) for s in subsets)
        assert found == pytest.approx(worst)


@given(p_lists)
def test_benjamini_hochberg_agrees_with_scipy(p_values):
    """R-Q1: BH is that of an independent library, ties and order included."""
    expected = stats.false_discovery_control(np.array(p_values))
    assert benjamini_hochberg(p_values) == pytest.approx(tuple(expected))


@pytest.mark.parametrize("adjust", [holm, benjamini_hochberg])
def test_no_and_impossible_p_values(adjust):
    """R-Q1: no test gives no p-value; NaN and numbers beyond 1 are refused."""
    assert adjust([]) == ()
    for bad in (math.nan, 1.5, -0.1):
        with pytest.raises(ProctorError):
            adjust([0.5, bad])

"""Planning against closed forms, its own inverse and simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from proctor.errors import ProctorError
from proctor.stats.compare import stratified
from proctor.stats.power import (
    detectable,
    detectable_between,
    difference_variance,
    passes_to_claim,
    plan_population,
    plan_suite,
    supported_rate,
    within_variance,
)


@pytest.mark.parametrize(
    ("total", "points"), [(50, 15.7), (150, 9.1), (300, 6.4), (500, 5.0), (1000, 3.5)]
)
def test_detectable_drop_of_the_table(total, points):
    """R-Q1: within-case variance 0.10, one-sided 5 %, power 80 %: the published table."""
    found = detectable(total // 5, 5, sigma2=0.10)
    assert found.effect * 100 == pytest.approx(points, abs=0.05)
    assert (found.n, found.estimand) == (2 * total, "suite")


@pytest.mark.parametrize("effect", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("cases", [1, 7, 200])
def test_a_suite_plan_is_the_smallest_that_detects(effect, cases):
    """R-Q1: the planned trials find the effect, one fewer does not."""
    plan = plan_suite(effect, cases=cases, sigma2=0.15, power=0.9)
    trials = plan.trials[0]
    reached = detectable(cases, trials, sigma2=0.15, power=0.9).effect
    assert reached is not None
    assert reached <= effect + 1e-9
    if trials > 1:
        fewer = detectable(cases, trials - 1, sigma2=0.15, power=0.9).effect
        assert fewer is None or fewer > effect


def test_a_population_plan_is_millers_formula():
    """R-Q1: S = (z+z)²(ω² + sA/kA + sB/kB)/δ², and says when trials cannot help."""
    plan = plan_population(0.1, omega2=0.01, sigma2=(0.1, 0.2), trials=(5, 10))
    z = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    assert plan.cases == math.ceil(z**2 * (0.01 + 0.02 + 0.02) / 0.01)
    assert (plan.n, plan.reason, plan.estimand) == (plan.cases * 15, None, "population")
    stuck = plan_population(0.1, omega2=0.05, sigma2=(0.1, 0.1), trials=(100, 100))
    assert stuck.cases >= math.ceil(z**2 * 0.05 / 0.01)
    assert "add cases" in stuck.reason


@pytest.mark.slow
def test_the_promised_power_is_had():
    """R-Q1: a suite of the planned size finds the drop as often as promised."""
    rates = np.linspace(0.3, 0.95, 30)
    sigma2 = float(np.mean(rates * (1 - rates)))
    plan = plan_suite(0.12, cases=30, sigma2=sigma2)
    rng, repeats, found = np.random.default_rng(3), 1000, 0
    trials = int(plan.trials[0])
    for _ in range(repeats):
        first = [(int(x), trials) for x in rng.binomial(trials, rates)]
        second = [(int(x), trials) for x in rng.binomial(trials, rates - 0.12)]
        found += stratified(first, second, alternative="less").p_value <= 0.05
    assert 0.74 < found / repeats < 0.88


def test_variances_are_unbiased():
    """R-Q1: σ² over all outcomes of a case is p(1−p); ω² is 0 where nothing changed."""
    weights = stats.binom.pmf(range(5), 4, 0.3)
    mean = sum(w * within_variance([(x, 4)]).value for x, w in enumerate(weights))
    assert mean == pytest.approx(0.21)
    rng = np.random.default_rng(9)
    rates = rng.random(4000)
    shift = np.where(rng.random(4000) < 0.5, 0.2, -0.2)
    first = [(int(x), 6) for x in rng.binomial(6, 0.3 + 0.4 * rates)]
    same = [(int(x), 9) for x in rng.binomial(9, 0.3 + 0.4 * rates)]
    moved = [(int(x), 6) for x in rng.binomial(6, 0.3 + 0.4 * rates + shift)]
    assert difference_variance(first, same).value == pytest.approx(0, abs=0.005)
    assert difference_variance(first, moved).value == pytest.approx(0.04, abs=0.006)


def test_variances_that_cannot_be_known():
    """R-Q1: one trial a case shows no variance; what was left out is counted."""
    none = within_variance([(1, 1), (0, 0)])
    assert (none.value, none.left_out) == (None, 2)
    assert within_variance([(1, 2), (1, 1)]).left_out == 1
    assert difference_variance([(1, 2), (1, 1)], [(1, 2), (1, 2)]).value is None


def test_what_arms_would_have_found():
    """R-Q2: from unequal trials too; null where nothing varied or nothing could be found."""
    first, second = [(3, 5), (4, 8)], [(2, 5), (1, 4)]
    variance = (0.24 / 4 + 0.25 / 7 + 0.24 / 4 + 0.1875 / 3) / 4
    z = stats.norm.ppf(0.95) + stats.norm.ppf(0.8)
    wide = detectable_between(first, second)
    assert z * math.sqrt(variance) < 1
    assert wide.effect == pytest.approx(z * math.sqrt(variance))
    assert (wide.n, wide.trials) == (22, (6.5, 4.5))
    still = detectable_between([(5, 5)] * 3, [(5, 5)] * 3)
    assert (still.effect, "no case varied" in still.reason) == (None, True)
    assert "always to never" in detectable_between([(1, 1)], [(0, 1)]).reason
    assert detectable_between([], []).reason == "no case in both arms"
    assert detectable(3, 5, sigma2=0.0).effect is None


def test_all_pass_claims():
    """R-Q1: 5 of 5 supports 55 %, 10 of 10 74 %; 90 % takes 29 passes in a row."""
    assert supported_rate(5).rate == pytest.approx(0.549, abs=0.001)
    assert supported_rate(10).rate == pytest.approx(0.741, abs=0.001)
    assert passes_to_claim(0.9).n == 29
    for n in (1, 4, 60):
        exact = stats.binomtest(n, n, alternative="greater").proportion_ci(0.95).low
        assert supported_rate(n).rate == pytest.approx(exact)
        assert passes_to_claim(exact).n == n
    assert supported_rate(0).reason == "no trial"


@pytest.mark.parametrize("bad", [{"effect": 0}, {"effect": math.nan}, {"power": 1.0}, {"alpha": 0}])
def test_impossible_plans_are_refused(bad):
    """R-Q1: a plan for no effect, certainty or NaN is an error."""
    with pytest.raises(ProctorError):
        plan_suite(**({"effect": 0.1, "cases": 3, "sigma2": 0.1} | bad))
    with pytest.raises(ProctorError):
        detectable(0, 5, sigma2=0.1)
    with pytest.raises(ProctorError):
        detectable(3, 5, sigma2=math.nan)

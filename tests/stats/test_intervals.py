"""Intervals against scipy, the closed form and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from proctor.errors import ProctorError
from proctor.stats._distributions import beta_cdf, beta_quantile, log_beta_mass_below
from proctor.stats.intervals import (
    bootstrap_over_cases,
    bounded_mean,
    case_rate,
    population_rate,
    suite_rate,
)

METHODS = ["wilson", "clopper-pearson", "jeffreys"]
counts = st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize("a", [0.5, 1, 3.5, 41, 1000, 20000])
def test_beta_agrees_with_scipy(a):
    """R-N13 R-Q1: the beta distribution, written out so that scipy need not be installed, agrees
    with scipy to nine digits, from one trial to twenty thousand and into the tails."""
    for b in (0.5, 1, 3.5, 41, 1000, 20000):
        for q in (1e-6, 0.005, 0.025, 0.05, 0.3, 0.5, 0.7, 0.95, 0.975, 0.999999):
            quantile = special.betaincinv(a, b, q)
            assert beta_quantile(q, a, b) == pytest.approx(quantile, rel=1e-9)
            # Not q: near 1, the float next to the quantile has another value.
            value = special.betainc(a, b, quantile)
            assert beta_cdf(quantile, a, b) == pytest.approx(value, rel=1e-9)
            mass = special.betaln(a, b) + math.log(value)
            assert log_beta_mass_below(quantile, a, b) == pytest.approx(mass, rel=1e-9)
        assert (beta_quantile(0, a, b), beta_quantile(1, a, b)) == (0, 1)
    assert math.isnan(beta_quantile(0.5, 0, 1))


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("n", [1, 2, 5, 10, 37, 400])
def test_wilson_and_exact_agree_with_scipy(n, level):
    """R-Q1: Wilson and exact intervals of one case are those of an independent library."""
    for passes in sorted({0, 1, n // 2, n - 1, n}):
        reference = stats.binomtest(passes, n)
        for ours, theirs in [("wilson", "wilson"), ("clopper-pearson", "exact")]:
            found = case_rate(passes, n, method=ours, level=level)
            expected = reference.proportion_ci(level, method=theirs)
            assert found.low == pytest.approx(expected.low, abs=1e-12)
            assert found.high == pytest.approx(expected.high, abs=1e-12)


def test_jeffreys_is_the_posterior_of_the_arcsine_prior():
    """R-Q1: Jeffreys' ends are where the posterior, integrated by hand, holds the tails."""
    from scipy.integrate import quad

    found = case_rate(3, 10, method="jeffreys")

    def density(q):
        return q**2.5 * (1 - q) ** 6.5

    whole = quad(density, 0, 1)[0]
    assert quad(density, 0, found.low)[0] / whole == pytest.approx(0.025, abs=1e-8)
    assert quad(density, found.high, 1)[0] / whole == pytest.approx(0.025, abs=1e-8)


@given(counts, st.sampled_from(METHODS), st.floats(0.5, 0.999))
def test_an_interval_holds_its_estimate_and_mirrors(row, method, level):
    """R-Q1: the estimate lies in its interval; passes and failures are treated alike."""
    passes, n = row
    found, mirror = (case_rate(x, n, method=method, level=level) for x in (passes, n - passes))
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.low < found.high
    assert found.low == pytest.approx(1 - mirror.high, abs=1e-9)


def test_no_trial_has_no_rate():
    """R-Q1: without a judged trial the rate is null, with a reason, never 0."""
    for found in (case_rate(0, 0), population_rate([]), population_rate([(0, 0), (0, 0)])):
        assert (found.value, found.low, found.high) == (None, None, None)
        assert found.reason == "no judged trial"
        assert found.n == 0
    assert population_rate([(0, 0), (0, 0)]).left_out == 2


@pytest.mark.parametrize("row", [(3, 2), (-1, 4), (0, 1, -1)])
def test_impossible_counts_are_refused(row):
    """R-Q1: more passes than trials is an error with the case's number, not a rate."""
    with pytest.raises(ProctorError, match="case 2"):
        population_rate([(1, 2), row])


def by_hand(rates, n, level=0.95):
    """The effective-n interval written from its definition."""
    mean, size = np.mean(rates), len(rates)
    variance = np.var(rates, ddof=1) / size
    tail = 0.5 + level / 2
    n_eff = float(size)
    if variance > 0:
        n_eff = mean * (1 - mean) / variance
        n_eff *= (stats.t.ppf(tail, n - 1) / stats.t.ppf(tail, size - 1)) ** 2
        n_eff = float(np.clip(n_eff, 1, n))
    # Wilson's ends are the roots of (p − mean)² = z²·p(1−p)/n_eff.
    z2 = stats.norm.ppf(tail) ** 2
    roots = np.roots([1 + z2 / n_eff, -(2 * mean + z2 / n_eff), mean**2])
    return n_eff, min(roots), max(roots)


@pytest.mark.parametrize(
    "rows",
    [
        [(5, 5), (0, 5)],
        [(5, 5), (4, 5), (1, 5), (0, 5)],
        [(1, 1), (3, 4), (7, 20), (9, 9)],
        [(3, 5)] * 6,
        [(1, 2), (2, 4), (3, 7)],
    ],
)
def test_population_interval_follows_its_definition(rows):
    """R-Q1: clustered by case: Wilson at the effective n, also with unequal trials."""
    found = population_rate(rows)
    n_eff, low, high = by_hand([x / n for x, n in rows], sum(n for _, n in rows))
    assert found.n_eff == pytest.approx(n_eff)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert found.value == pytest.approx(np.mean([x / n for x, n in rows]))
    assert (found.estimand, found.cases) == ("population", len(rows))


def test_all_pass_counts_cases_not_trials():
    """R-Q1: 10 cases × 100 trials without a failure are 10 observations of a population."""
    found = population_rate([(100, 100)] * 10)
    assert found.n_eff == 10
    assert found.high == 1.0
    assert found.low == pytest.approx(stats.binomtest(10, 10).proportion_ci(method="wilson").low)


def test_one_case_has_a_rate_and_no_interval():
    """R-Q1: one case cannot say how cases differ."""
    found = population_rate([(4, 5), (0, 0)])
    assert (found.value, found.low, found.high, found.left_out) == (0.8, None, None, 1)
    assert "one case gives no information" in found.reason


def test_a_coarser_cluster_widens_the_interval():
    """R-Q1: cases that share a fixture count as drawn together."""
    rows = [(5, 5)] * 6 + [(1, 5)] * 6
    apart = population_rate(rows)
    together = population_rate(rows, clusters=["x"] * 6 + ["y"] * 6)
    alone = population_rate(rows, clusters=list(range(12)))
    assert alone.n_eff == pytest.approx(apart.n_eff)
    assert together.low < apart.low < apart.high < together.high
    with pytest.raises(ProctorError, match="3 clusters for 12 cases"):
        population_rate(rows, clusters=["x", "y", "z"])


def studentised_by_hand(values, per, resamples, seed):
    """The bootstrap-t of a ratio, written as a loop over resamples."""
    values, per = np.asarray(values), np.asarray(per)
    rng, n = np.random.default_rng(seed), len(values)

    def ratio_and_error(x, m):
        ratio = x.sum() / m.sum()
        return ratio, np.std(x - ratio * m, ddof=1) / np.sqrt(n) / m.mean()

    ratio, error = ratio_and_error(values, per)
    steps = []
    for _ in range(resamples):
        at = rng.integers(0, n, n)
        found, own = ratio_and_error(values[at], per[at])
        steps.append((found - ratio) / own)
    low, high = np.quantile(steps, [0.025, 0.975])
    return ratio - high * error, ratio - low * error


def test_bootstrap_over_cases_is_studentised():
    """R-Q1: the bootstrap over cases is studentised, repeats with its seed, names its method."""
    rng = np.random.default_rng(3)
    values, passes = rng.exponential(2.0, 80), rng.integers(0, 6, 80)
    found = bootstrap_over_cases(values, seed=7)
    assert found == bootstrap_over_cases(values, seed=7)
    assert found != bootstrap_over_cases(values, seed=8)
    assert found.value == pytest.approx(values.mean())
    assert "seed 7" in found.method
    ratio = bootstrap_over_cases(values, per=passes.tolist())
    assert ratio.value == pytest.approx(values.sum() / passes.sum())
    for ours, per in ((found, np.ones(80)), (ratio, passes)):
        low, high = studentised_by_hand(values, per, 8_000, 1)
        assert ours.low == pytest.approx(low, rel=0.03)
        assert ours.high == pytest.approx(high, rel=0.03)


@pytest.mark.parametrize(
    ("values", "value"), [([], None), ([2.0], 2.0), ([3.0] * 60, 3.0), (range(59), 29.0)]
)
def test_bootstrap_without_spread_or_cases_has_no_interval(values, value):
    """R-Q1: nothing to resample, or too few cases to cover, gives no interval and says why."""
    found = bootstrap_over_cases(values)
    assert (found.value, found.low, found.high) == (value, None, None)
    assert found.reason


def test_bounded_means_are_those_of_rates():
    """R-Q1: scores of 0 and 1 get the interval of the pass rate; differences map to it."""
    rows = [(5, 5), (3, 5), (0, 5), (4, 5)]
    rate = population_rate(rows)
    means = [passes / trials for passes, trials in rows]
    found = bounded_mean(means, n=20)
    assert (found.low, found.high) == (pytest.approx(rate.low), pytest.approx(rate.high))
    wide = bounded_mean([2 * value - 1 for value in means], n=20, bounds=(-1.0, 1.0))
    assert wide.low == pytest.approx(2 * found.low - 1)
    assert bounded_mean([0.7]).low is None
    with pytest.raises(ProctorError, match="outside"):
        bounded_mean([1.2, 0.1])


def test_suite_rate_counts_only_the_noise_of_trials():
    """R-Q1: equal cases give Wilson's interval of the pooled trials, unlike ones a closer one."""
    equal = suite_rate([(4, 5)] * 8)
    pooled = case_rate(32, 40)
    assert (equal.low, equal.high) == (pytest.approx(pooled.low), pytest.approx(pooled.high))
    unlike = suite_rate([(10, 10)] * 4 + [(0, 10)] * 4)
    assert unlike.high - unlike.low < case_rate(40, 80).high - case_rate(40, 80).low
    assert suite_rate([(0, 0)]).reason == "no judged trial"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_is_refused(bad):
    """R-Q1: NaN among scores is an error that says where, never a silent gap."""
    with pytest.raises(ProctorError, match="value 2 is"):
        bootstrap_over_cases([1.0, bad])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cases", "trials", "a", "b"), [(20, 5, 0.4, 0.1), (50, 10, 0.45, 0.05), (20, 5, 400, 100)]
)
def test_nominal_coverage_on_nested_data(cases, trials, a, b):
    """R-Q1: on trials nested in unlike cases the interval holds 95 %; pooling does not."""
    rng = np.random.default_rng(11)
    truth, repeats, covered, pooled = a / (a + b), 1500, 0, 0
    for _ in range(repeats):
        passes = rng.binomial(trials, rng.beta(a, b, cases))
        found = population_rate([(int(x), trials) for x in passes])
        covered += found.low <= truth <= found.high
        flat = case_rate(int(passes.sum()), cases * trials)
        pooled += flat.low <= truth <= flat.high
    # Three standard errors of a simulated share at 95 %: 1.7 points.
    assert covered / repeats > 0.933
    if a < 1:
        assert pooled / repeats < 0.80


def test_the_mean_of_very_many_cases_needs_no_resampling(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-Q1: the normal interval of 5,000 skewed costs covers, and is close to the bootstrap's."""
    rng = np.random.default_rng(5)
    truth, replications = math.exp(0.5), 300
    hits = 0
    for _ in range(replications):
        found = bootstrap_over_cases(rng.lognormal(size=5_000).tolist())
        assert found.method == "normal"
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= truth <= found.high
    assert hits / replications >= 0.95 - 3 * (0.95 * 0.05 / replications) ** 0.5
    values, per = rng.lognormal(size=5_000).tolist(), rng.integers(1, 4, 5_000).tolist()
    normal = bootstrap_over_cases(values, per=per)
    monkeypatch.setattr("proctor.stats.intervals.MANY_CASES", 5_001)
    resampled = bootstrap_over_cases(values, per=per, resamples=999)
    assert normal.value == resampled.value
    width = resampled.high - resampled.low
    assert abs(normal.low - resampled.low) < 0.1 * width
    assert abs(normal.high - resampled.high) < 0.1 * width

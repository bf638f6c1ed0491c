"""Coverage of nominal 95 % intervals, simulated where cases are few (issue 17, item 5).

Each line of output has the number of replications. A rate fails only when it misses its bound by
more than three Monte Carlo standard errors. The figures are in docs/reference/statistics.md.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest

from proctor.stats.intervals import (
    LEAST_CASES,
    bootstrap_over_cases,
    bounded_mean,
    population_rate,
    suite_mean,
    suite_rate,
)
from proctor.stats.types import Interval

pytestmark = pytest.mark.slow

SIZES = (2, 3, 5, 8, 10, 15, 20, 50, 100)
TRIALS = 5
REPLICATIONS = 1_000
DIFFICULTIES = [(0.5, 0.125), (1.0, 1.0), (80.0, 20.0)]


def covers(interval: Interval, truth: float) -> bool:
    return (
        interval.low is not None and interval.high is not None
        # A bound that equals the truth up to rounding covers it.
    ) and interval.low - 1e-9 <= truth <= interval.high + 1e-9


def coverage(
    name: str, once: Callable[[np.random.Generator], bool], replications: int = REPLICATIONS
) -> float:
    rng = np.random.default_rng(17)
    found = sum(once(rng) for _ in range(replications)) / replications
    print(f"{name}: {found:.3f} of {replications} replications")
    return found


def assert_at_least(found: float, bound: float, replications: int = REPLICATIONS) -> None:
    error = math.sqrt(bound * (1 - bound) / replications)
    assert found >= bound - 3 * error


@pytest.mark.parametrize(("a", "b"), DIFFICULTIES)
@pytest.mark.parametrize("cases", SIZES)
def test_rates_of_a_population(a: float, b: float, cases: int) -> None:
    """Q1: the clustered interval of a pass rate covers 92 % or more at 2 to 100 cases."""

    def once(rng: np.random.Generator) -> bool:
        passes = rng.binomial(TRIALS, rng.beta(a, b, cases))
        return covers(population_rate([(int(x), TRIALS) for x in passes]), a / (a + b))

    assert_at_least(coverage(f"Beta({a:g}, {b:g}), {cases} cases", once), 0.92)


@pytest.mark.parametrize(("a", "b"), DIFFICULTIES)
@pytest.mark.parametrize("cases", SIZES)
def test_mean_scores_of_a_population(a: float, b: float, cases: int) -> None:
    """Q1: mean scores between 0 and 1 are covered as pass rates are."""

    def once(rng: np.random.Generator) -> bool:
        level = rng.beta(a, b, cases)
        # Scores vary around the case's own, within [0, 1] and without bias.
        room = np.minimum(level, 1 - level)
        scores = level[:, None] + room[:, None] * rng.uniform(-1, 1, (cases, TRIALS))
        found = bounded_mean(scores.mean(axis=1).tolist(), n=cases * TRIALS)
        return covers(found, a / (a + b))

    assert_at_least(coverage(f"scores, Beta({a:g}, {b:g}), {cases} cases", once), 0.92)


@pytest.mark.parametrize(("a", "b"), DIFFICULTIES)
@pytest.mark.parametrize("cases", SIZES)
def test_rates_of_a_suite(a: float, b: float, cases: int) -> None:
    """Q1: the suite interval covers the rate of exactly these cases."""

    def once(rng: np.random.Generator) -> bool:
        rates = rng.beta(a, b, cases)
        passes = rng.binomial(TRIALS, rates)
        return covers(suite_rate([(int(x), TRIALS) for x in passes]), float(rates.mean()))

    assert_at_least(coverage(f"suite, Beta({a:g}, {b:g}), {cases} cases", once), 0.92)


@pytest.mark.parametrize(("a", "b"), DIFFICULTIES)
@pytest.mark.parametrize("cases", SIZES)
def test_mean_scores_of_a_suite(a: float, b: float, cases: int) -> None:
    """Q1: the suite interval of fractional scores covers the mean of exactly these cases, whether
    scores vary within a case as little as they do around the middle or as much as 0 and 1."""

    def once(rng: np.random.Generator) -> bool:
        level = rng.beta(a, b, cases)
        room = np.minimum(level, 1 - level)
        scores = level[:, None] + room[:, None] * rng.uniform(-1, 1, (cases, TRIALS))
        ends = rng.random(cases) < 0.5
        scores[ends] = rng.random((int(ends.sum()), TRIALS)) < level[ends, None]
        return covers(suite_mean(scores.tolist()), float(level.mean()))

    assert_at_least(coverage(f"suite scores, Beta({a:g}, {b:g}), {cases} cases", once), 0.92)


@pytest.mark.parametrize("cases", [LEAST_CASES, 100])
def test_means_of_cost_and_latency(cases: int) -> None:
    """Q1: from the least number of cases on, log-normal means (sigma 1) are covered to 93 %."""

    def once(rng: np.random.Generator) -> bool:
        values = rng.lognormal(0.0, 1.0, cases).tolist()
        return covers(bootstrap_over_cases(values, resamples=999), math.exp(0.5))

    assert_at_least(coverage(f"log-normal, {cases} cases", once), 0.93)


def test_fewer_cases_would_cover_too_little() -> None:
    """Q1: below that number the interval would not cover, and there is none."""
    from proctor.stats import intervals

    least, cases = intervals.LEAST_CASES, 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "LEAST_CASES", 2)

        def once(rng: np.random.Generator) -> bool:
            values = rng.lognormal(0.0, 1.0, cases).tolist()
            return covers(bootstrap_over_cases(values, resamples=999), math.exp(0.5))

        found = coverage(f"log-normal, {cases} cases", once)
    error = math.sqrt(0.93 * 0.07 / REPLICATIONS)
    assert found < 0.93 - error
    assert bootstrap_over_cases([1.0, 2.0] * (least // 2 - 1)).low is None

"""Pass rates of a judge, corrected by labels: against ppi-python, and coverage by simulation.

Each line of output has the number of replications; a rate fails only when it misses its bound by
more than three Monte Carlo standard errors. The figures are in docs/reference/statistics.md.
"""

import math

import numpy as np
import pytest

from proctor.stats.intervals import (
    LEAST_LABELS,
    RatedTrial,
    corrected_difference,
    corrected_rate,
    suite_rate,
    wilson,
)
from proctor.stats.types import Interval

TRIALS, LABELS, TPR, FPR = 1_000, 50, 0.85, 0.3


def drawn(
    rng: np.random.Generator,
    rate: float,
    *,
    labels: int = LABELS,
    trials: int = TRIALS,
    cases: int = 1,
    spread: float = 0.0,
    judge: tuple[float, float] = (TPR, FPR),
) -> list[RatedTrial]:
    """Draw trials of cases around a true rate, a judge's verdicts, and random labels."""
    own = rng.beta(rate * spread, (1 - rate) * spread, cases) if spread else np.full(cases, rate)
    case = np.repeat(np.arange(cases), trials // cases)
    truth = rng.random(trials) < own[case]
    verdict = rng.random(trials) < np.where(truth, *judge)
    sample = set(rng.permutation(trials)[:labels].tolist())
    return [
        RatedTrial(float(verdict[at]), float(truth[at]) if at in sample else None, int(case[at]))
        for at in range(trials)
    ]


def covers(interval: Interval, truth: float) -> bool:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low <= truth <= interval.high


def simulated(rate: float, replications: int, **options) -> tuple[float, float, float, float]:
    """Return coverage of the corrected, of the naive interval, and mean widths of it and labels."""
    rng = np.random.default_rng(24)
    estimand = options.pop("estimand", "suite")
    hits = naive = 0
    widths = [0.0, 0.0]
    for _ in range(replications):
        found = corrected_rate(drawn(rng, rate, **options), estimand=estimand)
        hits += covers(found.rate, rate)
        low, high = wilson(found.naive or 0.0, found.trials)
        naive += low <= rate <= high
        for at, each in enumerate((found.rate, found.labels_only)):
            widths[at] += ((each.high or 0.0) - (each.low or 0.0)) / replications
    hit, miss = hits / replications, naive / replications
    print(
        f"rate {rate:g} {options}: {hit:.3f} corrected, {miss:.3f} naive, {replications} samples;"
    )
    print(f"  widths {widths[0]:.3f} corrected, {widths[1]:.3f} labels alone")
    return hit, miss, widths[0], widths[1]


def within(found: float, low: float, high: float, replications: int) -> bool:
    errors = [3 * math.sqrt(end * (1 - end) / replications) for end in (low, high)]
    return low - errors[0] <= found <= high + errors[1]


def test_corrected_rates_equal_ppi_python() -> None:
    """R-N11: on a grid of sizes and judges the estimate is ppi-python's, and its error close."""
    ppi = pytest.importorskip("ppi_py", reason="ppi-python is not installed")
    rng = np.random.default_rng(7)
    for labels, trials in ((20, 100), (50, 1_000), (200, 400)):
        for rate in (0.1, 0.5, 0.8):
            for judge in ((0.85, 0.3), (0.99, 0.01), (0.5, 0.5), (0.3, 0.7)):
                sample = drawn(rng, rate, labels=labels, trials=trials, judge=judge)
                of = [one for one in sample if one.label is not None]
                arrays = (
                    np.array([one.label for one in of]),
                    np.array([one.judge for one in of]),
                    np.array([one.judge for one in sample if one.label is None]),
                )
                found = corrected_rate(sample, estimand="suite")
                value = float(np.squeeze(ppi.ppi_mean_pointestimate(*arrays)))
                assert found.rate.value == pytest.approx(min(1, max(0, value)), abs=1e-9)
                low, high = (float(np.squeeze(e)) for e in ppi.ppi_mean_ci(*arrays, alpha=0.05))
                assert found.variance is not None
                ours = 2 * 1.96 * math.sqrt(found.variance)
                # Ours is wider: half a pseudo-label in each cell, and t for the normal.
                assert high - low <= ours * 1.001
                if labels >= 50 and judge == (0.85, 0.3) and rate == 0.5:
                    assert ours <= (high - low) * 1.08


def test_a_biased_judge_is_corrected_in_a_quick_simulation() -> None:
    """R-N11: 50 labels of 1,000 at a true rate of 0.5: 93 to 97 % covered, naive below 5 %."""
    hit, naive, width, alone = simulated(0.5, 300)
    assert within(hit, 0.93, 0.97, 300)
    assert naive < 0.05
    assert width < alone


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.2, 0.35, 0.5, 2 / 3, 0.8])
def test_coverage_over_true_rates(rate: float) -> None:
    """R-N11: true rates from 0.2 to 0.8 are covered to 92 %, also where the errors cancel."""
    hit, naive, width, alone = simulated(rate, 1_000)
    assert within(hit, 0.92, 0.985, 1_000)
    assert width < alone
    if rate == 0.5:
        assert within(hit, 0.93, 0.97, 1_000)
        assert naive < 0.05
    if rate == 2 / 3:  # 0.667 · 0.85 + 0.333 · 0.3 = 0.667
        assert naive > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("labels", [LEAST_LABELS, 10, 20])
@pytest.mark.parametrize("rate", [0.05, 0.5, 0.95])
def test_few_labels_still_cover(labels: int, rate: float) -> None:
    """R-N11: from the least number of labels on, and near 0 and 1, 92 % or more are covered."""
    for judge in ((0.85, 0.3), (1.0, 0.0)):
        hit, *_ = simulated(rate, 500, labels=labels, trials=200, judge=judge)
        assert within(hit, 0.92, 1.0, 500)


@pytest.mark.slow
@pytest.mark.parametrize("cases", [10, 40])
def test_trials_of_cases_are_clusters(cases: int) -> None:
    """R-N11: with cases of unlike difficulty, the rate of cases like these is covered to 92 %."""
    options = {"cases": cases, "spread": 2.0, "labels": 100}
    clustered, *_ = simulated(0.5, 500, estimand="population", **options)
    assert within(clustered, 0.92, 1.0, 500)
    if cases == 10:  # pooled, as if each trial were a case, it would not be
        pooled, *_ = simulated(0.5, 300, estimand="suite", **options)
        assert pooled < 0.92


def test_weights_give_every_case_the_same_weight() -> None:
    """R-N11: a case with ten times the trials counts as much as the others, as in pass rates."""
    counts = [(9, 10), (10, 100)]
    trials = [
        RatedTrial(float(at < passes), float(at < passes), case, 1 / of)
        for case, (passes, of) in enumerate(counts)
        for at in range(of)
    ]
    found = corrected_rate(trials)
    assert found.rate.value == pytest.approx(0.5)
    assert found.naive == pytest.approx(suite_rate(counts).value)


def test_rates_that_cannot_be_corrected_have_a_reason() -> None:
    """R-N11: too few labels, one case as a population and one-sided judges are no false figures."""
    few = corrected_rate([RatedTrial(1.0, 1.0)] * 4 + [RatedTrial(0.0)] * 6)
    assert few.rate.value is None
    assert "at least 5" in (few.rate.reason or "")
    assert (few.naive, few.labels, few.table) == (0.4, 4, (4, 0, 0, 0))
    one = corrected_rate(drawn(np.random.default_rng(1), 0.5), estimand="population")
    assert one.rate.value is not None
    assert one.rate.low is None
    assert "one case" in (one.rate.reason or "")
    constant = corrected_rate(
        [RatedTrial(1.0, float(at % 2)) for at in range(10)] + [RatedTrial(1.0)] * 50,
        estimand="suite",
    )
    assert constant.tuning == 0.0
    assert constant.rate.value == 0.5
    perfect = corrected_rate([RatedTrial(1.0, 1.0)] * 10 + [RatedTrial(1.0)] * 50, estimand="suite")
    assert perfect.rate.value == 1.0
    assert (perfect.rate.low or 0.0) < 0.95


def test_a_difference_of_corrected_rates_covers_and_tests() -> None:
    """R-N11: a difference is covered, no drop is rejected about as often as stated."""
    rng = np.random.default_rng(3)
    hits = alarms = 0
    for _ in range(300):
        arms = [
            corrected_rate(drawn(rng, 0.5, trials=400, judge=judge), estimand="suite")
            for judge in ((0.85, 0.3), (0.7, 0.1))  # two judges with different errors
        ]
        gap, p_value = corrected_difference(*arms)
        assert gap.low is not None
        assert gap.high is not None
        assert p_value is not None
        hits += gap.low <= 0 <= gap.high
        alarms += p_value <= 0.05
    print(f"covered {hits / 300:.3f}, false alarms {alarms / 300:.3f} of 300 samples")
    assert within(hits / 300, 0.93, 0.985, 300)
    assert within(alarms / 300, 0.0, 0.05, 300)
    known = corrected_rate(drawn(rng, 0.5), estimand="suite")
    missing, p_value = corrected_difference(known, corrected_rate([RatedTrial(1.0)]))
    assert missing.value is None
    assert "0 labels" in (missing.reason or "")
    assert p_value is None

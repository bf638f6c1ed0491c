"""Plans: the published sizes, what a run shows, and what it does not."""

import pytest
from outcome_parts import arm, suite

from proctor.results.power import plan_experiment


@pytest.mark.parametrize(
    ("per_arm", "points"), [(50, 15.7), (150, 9.1), (300, 6.4), (500, 5.0), (1000, 3.5)]
)
def test_the_published_sizes(per_arm, points):
    """R-Q1: at a noise of 0.10 and power 0.8, S·k trials an arm find these drops."""
    found = plan_experiment(points / 100, cases=10, sigma2=0.10)
    (row,) = found.suite
    assert row.plan.cases * row.plan.trials[0] == pytest.approx(per_arm, rel=0.05, abs=10)
    assert row.noise.source == "as given"


def test_without_a_run_every_assumption_is_named():
    """R-Q1: two assumed noises, no plan for a population, and the reasons."""
    found = plan_experiment(0.1)
    assert {row.noise.source for row in found.suite} == {
        "assumed: typical",
        "assumed: the largest possible",
    }
    assert found.population == ()
    assert found.as_it_is == ()
    assert found.within is None
    assert any("no plan for a population" in reason for reason in found.reasons)
    assert [claim.n for claim in found.claims] == [14, 29, 59, 299]


def test_a_run_of_two_agents_plans_both():
    """R-Q1: noise within cases and between them, as seen, with the cost of a trial."""
    outcomes = [
        arm("x", suite([(2, 4), (3, 4), (4, 4)]), costs_usd=(0.5, 0.7)),
        arm("y", suite([(1, 4), (2, 4), (0, 4)])),
    ]
    found = plan_experiment(0.2, outcomes=outcomes)
    within = sum(p * (1 - p) * 4 / 3 for p in (0.5, 0.75, 1, 0.25, 0.5, 0)) / 6
    assert found.within is not None
    assert found.within.value == pytest.approx(within)
    assert found.between is not None
    assert found.between.value is not None
    assert found.population
    assert 3 in {row.plan.cases for row in found.suite}
    assert found.cost_mean_usd == pytest.approx(0.6)
    for row in found.suite:
        assert row.cost_usd == pytest.approx(0.6 * row.plan.n)
    assert found.as_it_is[0].plan.trials == (4, 4)
    assert found.reasons == ()


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        ([], "no case has two judged trials"),
        ([(0, 0, 3)], "no case has two judged trials"),
        ([(1, 1), (0, 1)], "no case has two judged trials"),
        ([(5, 5), (5, 5)], "no case varied"),
        ([(0, 5)], "no case varied"),
    ],
)
def test_noise_that_a_run_does_not_show_is_assumed(counts, why):
    """R-Q1: n = 0, n = 1, all pass, all fail: an assumption by name, never a made-up figure."""
    found = plan_experiment(0.1, outcomes=[arm("x", suite(counts))])
    assert any(why in reason for reason in found.reasons)
    assert all(row.noise.source.startswith("assumed") for row in found.suite)
    assert found.population == ()


def test_only_more_cases_help_against_differences_between_cases():
    """R-Q1: where true differences outweigh trial noise, the plan says so."""
    found = plan_experiment(0.1, sigma2=0.05, omega2=0.2)
    by_trials = {row.plan.trials[0]: row.plan for row in found.population}
    assert by_trials[10].cases > 0.65 * by_trials[1].cases
    assert "add cases" in (by_trials[10].reason or "")

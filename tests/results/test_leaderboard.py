"""Leaderboards: places, ties, metrics where less is better, and agents without a value."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from outcome_parts import arm, case, made_run, suite

from proctor.errors import ProctorError
from proctor.report.console_results import render_leaderboard
from proctor.report.figures import leading
from proctor.results.compare import NamedGroup, compare_arms
from proctor.results.leaderboard import METRIC_VALUES, Entrant, entrants_of, leaderboard
from proctor.results.outcomes import AgentOutcomes
from proctor.runs.run import Run
from proctor.stats.intervals import case_rate, population_rate, suite_rate
from proctor.stats.types import STOPPED


def board(arms, **more):
    return leaderboard([Entrant(name, arm(name, rows)) for name, rows in arms.items()], **more)


def test_ties_by_significance_share_places():
    """R-Q3: what the tests do not tell apart shares places; what they do has its own."""
    found = board(
        {
            "best": suite([(10, 10)] * 12),
            "near": suite([(10, 10)] * 11 + [(9, 10)]),
            "last": suite([(2, 10)] * 12),
        }
    )
    places = {row.name: (row.best, row.worst) for row in found.rows}
    assert places == {"best": (1, 2), "near": (1, 2), "last": (3, 3)}
    assert [row.name for row in found.rows] == ["best", "near", "last"]


def test_intervals_are_of_the_estimand():
    """R-Q1: for exactly these cases only the noise of trials counts, also in scores; places,
    intervals and the line about them have one estimand."""
    rows = suite([(10, 10)] * 6 + [(0, 10)] * 6)
    found = board({"x": rows})
    (row,) = found.rows
    expected = suite_rate(list(rows.values()))
    assert (row.pass_rate.low, row.pass_rate.high) == (expected.low, expected.high)
    assert row.pass_rate.high is not None
    assert row.pass_rate.low is not None
    assert row.pass_rate.high - row.pass_rate.low < 0.1
    assert row.score.low == pytest.approx(row.pass_rate.low)
    assert (row.score.high, row.score.estimand) == (pytest.approx(row.pass_rate.high), "suite")
    shown = render_leaderboard(found)
    assert "estimand suite" in shown
    assert "intervals: suite, " in shown


def test_intervals_are_clustered_by_case():
    """R-Q1: the interval of a row is that of the cases, not of pooled trials."""
    rows = suite([(10, 10)] * 6 + [(0, 10)] * 6)
    (row,) = board({"x": rows}, estimand="population").rows
    expected = population_rate(list(rows.values()))
    assert (row.pass_rate.low, row.pass_rate.high) == (expected.low, expected.high)
    assert row.pass_rate.low is not None
    assert row.pass_rate.high is not None
    assert row.pass_rate.high - row.pass_rate.low > 0.4
    assert (row.trials, row.passes, row.cases) == (120, 60, 12)
    clustered = arm("x", rows, cluster="one fixture")
    (together,) = leaderboard([Entrant("x", clustered)], estimand="population").rows
    assert together.pass_rate.low is None
    assert "one cluster" in (together.pass_rate.reason or "")


def test_less_cost_is_better():
    """R-Q3: by cost the cheapest is first, and differences keep the sign of the cost itself."""
    dear, cheap, unknown = (
        AgentOutcomes(
            agent=name,
            params="",
            cases=tuple(
                case(f"c{at}", 1, 1, costs_usd=(cost + 0.01 * at,), unpriced_calls=unpriced)
                for at in range(8)
            ),
        )
        for name, cost, unpriced in (("dear", 1.0, 0), ("cheap", 0.1, 0), ("unknown", 0.01, 1))
    )
    found = leaderboard(
        [Entrant(arm.name, arm) for arm in (dear, cheap, unknown)], metric="cost_usd"
    )
    # A lower bound does not win: the agent is listed last, without a rank, a test or an interval.
    assert [(row.name, row.best) for row in found.rows] == [
        ("cheap", 1),
        ("dear", 2),
        ("unknown", None),
    ]
    assert len(found.pairs) == 1
    assert found.pairs[0].test.difference == pytest.approx(-0.9)
    assert found.rows[1].value.value == pytest.approx(1.035)
    assert found.rows[1].ranked == pytest.approx(1.035)
    assert found.rows[2].value.reason == "8 calls unpriced: a lower bound"
    assert any("it is not ranked by cost" in note for note in found.notes)


def test_an_agent_without_a_value_takes_no_place_and_no_case():
    """R-Q3: an agent that was never judged is listed, not counted as zero, and the others are
    still ranked on all their cases."""
    found = board({"x": suite([(5, 5)] * 4), "down": suite([(0, 0, 5)] * 4)})
    down = found.rows[-1]
    assert (down.name, down.best, down.worst) == ("down", None, None)
    assert down.pass_rate.value is None
    assert down.pass_rate.reason == "no judged trial"
    assert found.shared_cases == 4
    assert found.rows[0].best == found.rows[0].worst == 1
    assert "down has no value and no rank" in found.notes
    assert down.not_counted[0].startswith("20 trials: infrastructure error")


def test_edges_are_null_with_a_reason():
    """R-Q1: no agent, no shared case, one case, all pass, unequal trials."""
    assert board({}).rows == ()
    apart = board({"x": {"a": (1, 1)}, "y": {"b": (1, 1)}})
    assert apart.reason == "no case was run by every agent"
    assert {row.best for row in apart.rows} == {None}
    assert apart.left_out == {"a": "no value for y", "b": "no value for x"}
    (one,) = board({"x": {"a": (3, 5)}}).rows
    # Of one case alone the rate is its own, as `results` tells it.
    assert one.pass_rate == case_rate(3, 5)
    # Its own trials bound the score of exactly this case, and of no other.
    assert one.score.low == pytest.approx(one.pass_rate.low)
    (like,) = board({"x": {"a": (3, 5)}}, estimand="population").rows
    assert (like.score.reason or "").startswith("one case gives no")
    (full,) = board({"x": suite([(5, 5), (9, 9)])}, estimand="population").rows
    assert (full.pass_rate.value, full.pass_rate.high, full.pass_rate.n_eff) == (1.0, 1.0, 2.0)
    assert full.pass_hat_k.k == 5
    assert full.cost_usd is None
    assert full.cost_mean_usd.reason == "no value"


def test_early_stopped_agents_have_no_interval():
    """R-Q1: a rate after early stopping is shown without an interval, with the reason."""
    cases = (case("a", 3, 3, stopped="hard fail"), case("b", 2, 5))
    found = leaderboard([Entrant("x", AgentOutcomes(agent="x", params="", cases=cases))])
    assert found.rows[0].pass_rate.value == pytest.approx(0.7)
    assert found.rows[0].pass_rate.low is None
    assert any("stopped early" in note for note in found.notes)


def cut_short(name, counts):
    """An agent whose first case was stopped early."""
    whole = arm(name, counts)
    first = msgspec.structs.replace(whole.cases[0], stopped="out of reach")
    return msgspec.structs.replace(whole, cases=(first, *whole.cases[1:]))


def test_no_place_rests_on_a_test_after_early_stopping():
    """R-Q1 R-Q3: as in a comparison, no test is made; where that leaves none, there is no place."""
    good, bad = arm("good", suite([(10, 10)] * 12)), cut_short("bad", suite([(1, 10)] * 12))
    found = leaderboard([Entrant("good", good), Entrant("bad", bad)])
    assert [row.name for row in found.rows] == ["good", "bad"]
    assert {(row.best, row.worst) for row in found.rows} == {(None, None)}
    (pair,) = found.pairs
    assert (pair.test.p_value, pair.adjusted) == (None, None)
    assert pair.test.difference == pytest.approx(-0.9)
    assert pair.test.reason == found.reason == STOPPED
    compared = compare_arms(NamedGroup("good", good), NamedGroup("bad", bad))
    assert compared.overall.population.p_value is None
    assert found.notes == compared.notes
    assert f"no ranks: {STOPPED}" in render_leaderboard(found)
    assert leading(found) == f"No ranking: {STOPPED}."


def test_tests_between_agents_that_ran_on_still_hold():
    """R-Q1 R-Q3: a stopped agent may hold any place that the tests of the others leave it."""
    rows = {"good": suite([(10, 10)] * 12), "bad": suite([(1, 10)] * 12)}
    cut = Entrant("cut", cut_short("cut", suite([(5, 10)] * 12)))
    found = leaderboard([*(Entrant(name, arm(name, each)) for name, each in rows.items()), cut])
    places = {row.name: (row.best, row.worst) for row in found.rows}
    assert places == {"good": (1, 2), "bad": (2, 3), "cut": (1, 3)}
    tested = [pair for pair in found.pairs if pair.adjusted is not None]
    assert tested == list(board(rows).pairs)  # nothing is paid for tests that are not made


def test_agents_of_several_runs_get_different_labels(tmp_path):
    """R-Q3: one agent in two runs is two rows, named with their runs."""
    runs = [
        Run(made_run(tmp_path, {"x": suite([(n, 5)] * 3), "y" * n: suite([(1, 5)] * 3)}))
        for n in (1, 2)
    ]
    names = [entrant.name for entrant in entrants_of(runs)]
    assert sorted(names) == sorted(
        [f"x @ suite/{runs[0].path.name}", "y", f"x @ suite/{runs[1].path.name}", "yy"]
    )


def test_an_unknown_metric_is_refused():
    """R-Q3: with what was probably meant."""
    with pytest.raises(ProctorError) as error:
        board({}, metric="pass-rate")
    assert "pass_rate" in (error.value.hint or "")


rows = st.dictionaries(
    st.sampled_from("abcd"),
    st.integers(0, 4).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
)


@given(
    st.dictionaries(st.sampled_from(["x", "y", "z"]), rows), st.sampled_from(sorted(METRIC_VALUES))
)
def test_places_hold_together(arms, metric):
    """R-Q3: whatever the counts, places are sets within 1 … agents ranked, or none at all."""
    found = board(arms, metric=metric)
    ranked = [row for row in found.rows if row.best is not None]
    assert len(found.rows) == len(arms)
    for row in ranked:
        assert row.best is not None
        assert row.worst is not None
        assert 1 <= row.best <= row.worst <= len(ranked)
    for row in found.rows:
        if row.value.value is None:
            assert row.best is None
            assert row.value.reason

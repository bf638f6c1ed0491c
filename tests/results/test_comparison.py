"""Comparisons of arms: what is counted, what is left out, and what is not defined."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from outcome_parts import arm, case, made_run, suite
from scipy import stats

from proctor.errors import ProctorError
from proctor.results.compare import NamedGroup, compare_arms, compare_runs
from proctor.results.outcomes import AgentOutcomes
from proctor.runs.run import Run


def compared(first, second, **more):
    return compare_arms(
        NamedGroup("old", arm("a", first)), NamedGroup("new", arm("a", second)), **more
    )


def test_overall_and_case_by_case_on_what_both_have():
    """R-Q1: one case by hand: Fisher's mid-p, the difference, Cohen's h, every n."""
    found = compared({"a": (9, 10)}, {"a": (4, 10)})
    table = stats.hypergeom(20, 13, 10)
    tail = table.cdf(3) + table.pmf(4) / 2
    (one,) = found.cases
    assert one.test.p_value == pytest.approx(2 * tail)
    assert found.overall.suite.p_value == pytest.approx(2 * tail)
    assert found.overall.adjusted == found.overall.suite.p_value
    assert found.overall.interval.value == pytest.approx(-0.5)
    h = 2 * math.asin(math.sqrt(0.4)) - 2 * math.asin(math.sqrt(0.9))
    assert found.overall.effect.value == pytest.approx(h)
    assert (found.n, found.passes) == ((10, 10), (9, 4))
    assert (found.overall.suite.estimand, found.overall.population.estimand) == (
        "suite",
        "population",
    )


def test_case_p_values_are_corrected_over_all_cases():
    """R-Q1: Benjamini–Hochberg over every compared case, also those that never varied."""
    found = compared(suite([(10, 10)] * 8), suite([(1, 10), (7, 10)] + [(10, 10)] * 6))
    by_case = {each.case: each for each in found.cases}
    p = [by_case[f"case-{at:02}"].test.p_value for at in (0, 1)]
    expected = stats.false_discovery_control([*p, *[1.0] * 6], method="bh")
    assert by_case["case-00"].adjusted == pytest.approx(expected[0])
    assert by_case["case-01"].adjusted == pytest.approx(expected[1])
    assert by_case["case-00"].notable
    assert not by_case["case-01"].notable
    assert by_case["case-05"].adjusted is None
    assert found.cases[0].case == "case-00"


def test_beside_metrics_are_corrected_by_holm():
    """R-Q1: the pass rate is the planned test; score, cost and latency share theirs by Holm."""
    arms = [
        AgentOutcomes(
            agent=name,
            params="",
            cases=tuple(
                case(
                    f"c{at}",
                    *(5 - shift, 5),
                    scores=tuple(0.9 - 0.1 * shift - 0.01 * (at + n) for n in range(5)),
                    costs_usd=(1.0 + shift + 0.1 * at,),
                    latencies_ms=(10.0 + (shift if at % 3 else -shift),),
                )
                for at in range(8)
            ),
        )
        for name, shift in (("old", 0), ("new", 1))
    ]
    found = compare_arms(*(NamedGroup(each.agent, each) for each in arms))
    metrics = {each.metric: each for each in found.metrics}
    assert list(metrics) == ["pass_rate", "score", "cost_usd", "latency_ms"]
    assert metrics["pass_rate"].adjusted == metrics["pass_rate"].suite.p_value
    # All eight cases cost more: of the 2⁸ ways to swap their arms two are as extreme.
    assert metrics["cost_usd"].population.p_value == pytest.approx(2 / 2**8)
    beside = ["score", "cost_usd", "latency_ms"]
    p = [(metrics[name].suite or metrics[name].population).p_value for name in beside]
    expected, highest = {}, 0.0
    for rank, at in enumerate(sorted(range(3), key=p.__getitem__)):
        highest = max(highest, min(1.0, p[at] * (3 - rank)))
        expected[beside[at]] = highest
    assert {name: metrics[name].adjusted for name in beside} == pytest.approx(expected)


def test_scores_that_are_passes_have_the_test_of_passes():
    """R-Q1: the same data, the same p-value; scores between 0 and 1 are permuted instead."""
    found = compared(suite([(9, 10)] * 5), suite([(5, 10)] * 5))
    passes, score = found.metrics
    assert score.metric == "score"
    assert score.suite.p_value == passes.suite.p_value
    parts = AgentOutcomes(agent="a", params="", cases=(case("a", 1, 2, scores=(0.9, 0.4)),))
    between = compare_arms(NamedGroup("old", parts), NamedGroup("new", parts)).metrics[1]
    assert "permutation within cases" in between.suite.method


@pytest.mark.parametrize(
    ("first", "second", "p", "interval"),
    [
        ({}, {}, "no case in both arms", None),
        ({"a": (0, 0, 3)}, {"a": (1, 1)}, "no case in both arms", None),
        ({"a": (5, 5)}, {"a": (5, 5)}, "no case holds both passes and failures", 0.0),
        ({"a": (0, 5)}, {"a": (0, 5)}, "no case holds both passes and failures", 0.0),
        ({"a": (1, 1)}, {"a": (0, 1)}, None, -1.0),
        ({"a": (2, 3), "b": (4, 9)}, {"a": (2, 3), "b": (4, 9)}, None, 0.0),
    ],
)
def test_edges_are_null_with_a_reason(first, second, p, interval):
    """R-Q1: n = 0, n = 1, all pass, all fail, ties, one case: a figure or why there is none."""
    found = compared(first, second)
    test = found.overall.suite
    assert (test.p_value is None) == (p is not None)
    assert test.reason == p
    assert found.overall.interval.value == interval
    if interval is None:
        assert found.overall.interval.low is None
        assert found.overall.interval.reason == "no case in both arms"
        assert found.overall.effect.value is None
        assert found.cases == ()


counts = st.dictionaries(
    st.sampled_from("abcde"),
    st.integers(0, 5).flatmap(
        lambda n: st.tuples(st.integers(0, n), st.just(n), st.integers(0, 2))
    ),
)


@given(counts, counts, st.dictionaries(st.sampled_from("abcde"), st.just("the case changed")))
def test_every_case_is_compared_or_left_out_with_why(first, second, incomparable):
    """R-Q3: no case disappears, and every figure is in range or None with a reason."""
    found = compared(first, second, incomparable=incomparable)
    told = {each.case for each in found.cases}
    assert told | set(found.left_out) == first.keys() | second.keys()
    assert not told & set(found.left_out)
    for each in found.cases:
        assert -1 <= each.difference.low <= each.difference.value <= each.difference.high <= 1
        assert each.test.p_value is None or 0 <= each.test.p_value <= 1
        assert (each.test.p_value is None) == (each.test.reason is not None)
    for metric in found.metrics:
        tests = (metric.suite, metric.population, metric.interval, metric.effect)
        for figure in (each for each in tests if each is not None):
            value = getattr(figure, "p_value", getattr(figure, "low", getattr(figure, "value", 0)))
            assert value is not None or figure.reason


def test_early_stopping_leaves_no_fixed_n_figure():
    """R-Q1: after early stopping neither interval nor test is given, and that is said."""
    others = dict.fromkeys("bcdefgh", (9, 10))
    first = arm("a", {"a": (9, 10), **others})
    cut = case("a", 0, 3, stopped="out of reach")
    rest = (case(name, passed - at, of) for at, (name, (passed, of)) in enumerate(others.items()))
    stopped = AgentOutcomes(agent="a", params="", cases=(cut, *rest))
    found = compare_arms(NamedGroup("old", first), NamedGroup("new", stopped))
    by_case = {each.case: each for each in found.cases}
    assert found.overall.suite.p_value is None
    assert "stopped early" in found.overall.suite.reason
    assert found.overall.interval.low is None
    assert found.overall.interval.value == pytest.approx(-(0.9 + 2.1) / 8)
    for each in found.metrics:
        assert each.population.p_value is None
        assert "stopped early" in str(each.population.reason)
        assert each.adjusted is None
    assert by_case["a"].second.method.startswith("confidence sequence")
    assert by_case["b"].second.low is not None
    assert any("run without --early-stop" in note for note in found.notes)


def test_flaky_cases_are_named_by_arm_and_source():
    """R-Q2: what was unsettled, in which arm, and whether it was the agent or the machinery."""
    found = compared({"a": (10, 10), "b": (10, 10, 10)}, {"a": (5, 10), "b": (10, 10)})
    by_case = {each.case: each for each in found.cases}
    assert by_case["a"].flaky == ("second agent",)
    assert by_case["b"].flaky == ("first infrastructure",)


def test_two_runs_are_paired_by_agent_and_by_case(tmp_path):
    """R-Q3: the same agent in both runs; agents, cases and conditions without partner are named."""
    first = made_run(
        tmp_path, {"x": {"a": (3, 5), "b": (5, 5), "c": (5, 5)}, "y": {"a": (1, 5)}}, name="one"
    )
    second = made_run(
        tmp_path,
        {"x": {"a": (4, 5), "b": (5, 5), "d": (5, 5)}, "z": {"a": (1, 5)}},
        name="two",
        written={"b": {"input": "another question"}},
    )
    found = compare_runs(Run(first), Run(second))
    (pair,) = found.pairs
    assert pair.first.startswith("x @ one/")
    assert [each.case for each in pair.cases] == ["a"]
    assert pair.left_out["c"] == f"only in {pair.first}"
    assert pair.left_out["d"] == f"only in {pair.second}"
    assert pair.left_out["b"].startswith("the case changed (input)")
    assert (found.only_first, found.only_second) == (("y",), ("z",))


def test_two_agents_of_one_run_and_a_pattern_of_cases(tmp_path):
    """R-Q3: agents of the same run, on the cases asked for."""
    run = Run(made_run(tmp_path, {"x": suite([(3, 5)] * 3), "y": suite([(1, 5)] * 3)}))
    found = compare_runs(run, agents=("x", "y"), cases="*-0[01]")
    (pair,) = found.pairs
    assert (pair.first, pair.second, len(pair.cases)) == ("x", "y", 2)
    assert pair.overall.interval.value == pytest.approx(-0.4)
    for wrong, said in (
        ({"agents": ("x", "yy")}, "no trial of an agent named 'yy'"),
        ({"agents": ("x",)}, "1 agent named for 1 run"),
        ({"agents": ("x", "y"), "cases": "nothing*"}, "no case matches"),
    ):
        with pytest.raises(ProctorError, match=said):
            compare_runs(run, **wrong)
    assert len(compare_runs(run).pairs) == 1  # by default, the agents of the run


def test_rows_have_the_p_value_and_the_corrected_one(tmp_path):
    """R-Q1: as in the table of `proctor compare`: the test's own, and the one after Holm."""
    arms = {"x": suite([(9, 10)] * 6), "y": suite([(5, 10)] * 6)}
    found = compare_runs(Run(made_run(tmp_path, arms)))
    metrics = found.pairs[0].metrics
    rows = [(row["p"], row["p_adjusted"]) for row in found.records()]
    assert rows == [(metric.test.p_value, metric.adjusted) for metric in metrics]
    assert rows[1][0] < rows[1][1], "a secondary metric is corrected"

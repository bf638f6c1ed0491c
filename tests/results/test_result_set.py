"""Figures over a selection: right, with their denominators, and None where they are not defined."""

import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_parts import CASES, trial, write_run

from proctor.errors import ProctorError
from proctor.results import query
from proctor.results.result_set import ResultSet
from proctor.stats._distributions import t_cdf, t_quantile
from proctor.stats.intervals import (
    case_rate,
    pass_at_k,
    pass_hat_k,
    population_rate,
    suite_rate,
)

JUDGED = {"passed", "failed", "hard_fail"}

some_trials = st.lists(
    st.tuples(
        st.sampled_from(sorted(CASES)),
        st.sampled_from("ab"),
        st.sampled_from(["passed", "failed", "hard_fail", "infra_error", "cancelled"]),
        st.none() | st.floats(0, 1),
        st.none() | st.floats(0.1, 1e4),
    ),
    min_size=1,
    max_size=25,
)


def made(root: Path, facts) -> tuple[ResultSet, list]:
    """A run of these trials, and the trials."""
    seen: dict[tuple[str, str], int] = {}
    trials = []
    for case, agent, status, score, latency in facts:
        index = seen[case, agent] = seen.get((case, agent), -1) + 1
        judged = status in JUDGED
        trials.append(
            trial(
                case,
                agent,
                index,
                status,
                score=score if judged else None,
                latency_ms=latency if judged else None,
            )
        )
    write_run(root, trials)
    return query(results=root), trials


@settings(max_examples=40)
@given(facts=some_trials)
def test_figures_equal_plain_python(tmp_path_factory, facts) -> None:
    """R-Q1: mean, deviation, percentiles, pass rate and pass@k as the definitions have them."""
    found, trials = made(tmp_path_factory.mktemp("r"), facts)
    judged = [t for t in trials if t.status.judged]
    scores = [t.score for t in judged if t.score is not None]
    cells = {}
    for one in trials:
        cells.setdefault((one.agent, one.case), []).append(one)
    means = [
        statistics.fmean(values)
        for cell in cells.values()
        if (values := [t.score for t in cell if t.status.judged and t.score is not None])
    ]

    mean = found.mean()
    assert mean.value == (pytest.approx(statistics.fmean(means)) if means else None)
    assert (mean.n, mean.trials, mean.selected) == (len(means), len(scores), len(trials))
    assert mean.trials + sum(part.count for part in mean.left_out) == mean.selected
    assert (mean.value is None) == (mean.reason is not None)

    spread = found.std()
    expected = statistics.stdev(scores) if len(scores) > 1 else None
    assert spread.value == (pytest.approx(expected, abs=1e-12) if expected is not None else None)
    assert (spread.value is None) == (spread.reason is not None)

    latencies = [t.latency_ms for t in judged if t.latency_ms is not None]
    for q, value in found.percentiles("latency_ms", [0, 50, 95, 100]).values.items():
        expected = float(np.percentile(latencies, q)) if latencies else None
        assert value == (pytest.approx(expected) if expected is not None else None)

    counts = [
        (sum(t.passed for t in c), sum(t.status.judged for t in c))
        for _, c in sorted(cells.items())
    ]
    rate = found.pass_rate()
    of_judged = [row for row in counts if row[1]]
    # A single judged cell has its own interval, whatever else was planned or selected.
    if len(of_judged) == 1 or len(counts) == 1:
        whole = case_rate(*(of_judged or counts)[0])
    else:
        whole = suite_rate(counts)
        # A case counts with the mean of its agents, however many ran it.
        names = [case for _, case in sorted(cells)]
        like = population_rate(counts, cases=names, clusters=names)
        other = found.pass_rate(estimand="population")
        assert (other.value, other.low, other.high) == pytest.approx(
            (like.value, like.low, like.high)
        )
    assert (rate.value, rate.low, rate.high) == pytest.approx((whole.value, whole.low, whole.high))
    assert rate.n == len(judged)
    assert found.pass_at_k(1).value == pytest.approx(pass_at_k(counts, 1).value)
    assert found.pass_hat_k(1).value == pytest.approx(pass_hat_k(counts, 1).value)


def test_nothing_selected_is_none_with_a_reason(tmp_path: Path) -> None:
    """R-Q1: an undefined figure is null, never a plausible number."""
    write_run(tmp_path, [trial(status="infra_error"), trial(index=1, status="cancelled")])
    found = query(results=tmp_path)
    for figure in (found.mean(), found.std(), found.mean("cost_usd"), found.pass_rate()):
        assert figure.value is None
        assert figure.reason
    mean = found.mean()
    assert {part.why: part.count for part in mean.left_out} == {
        "infrastructure error": 1,
        "cancelled": 1,
    }
    with pytest.raises(ValueError, match="not defined"):
        float(mean)
    empty = found.where(agent="nobody")
    assert empty.pass_rate().reason == "no judged trial"
    assert empty.group_by("agent").rows == []
    assert empty.rows() == []
    assert empty.outcomes() == ()


def test_groups_by_anything_a_case_or_trial_has(tmp_path: Path) -> None:
    """R-D2: group and aggregate by agent, difficulty, a property, a parameter, a run."""
    trials = [
        trial(case, agent, i, "passed" if agent == "a" or i else "failed", params={"t": i})
        for case in CASES
        for agent in "ab"
        for i in range(2)
    ]
    write_run(tmp_path, trials)
    found = query(results=tmp_path)
    rows = found.group_by("difficulty", "agent").rows
    assert [(r.key["difficulty"], r.key["agent"], r.passed, r.judged) for r in rows] == [
        ("easy", "a", 2, 2),
        ("easy", "b", 1, 2),
        ("hard", "a", 2, 2),
        ("hard", "b", 1, 2),
        ("medium", "a", 2, 2),
        ("medium", "b", 1, 2),
    ]
    by_language = found.group_by("properties.lang")
    head, *lines = str(by_language).splitlines()
    assert head.split()[0] == "properties.lang"
    assert len(lines) == len(by_language)
    assert {row.key["properties.lang"]: row.trials for row in by_language} == {"de": 8, "en": 4}
    assert len(by_language["de"]) == 8
    assert by_language["de"].mean().value == pytest.approx(by_language.rows[0].score.value)
    assert {row.key["params.t"] for row in found.group_by("params.t")} == {"0", "1"}
    assert sum(row.trials for row in found.group_by("tags").rows) == 12
    with pytest.raises(ProctorError, match="no column") as wrong:
        found.group_by("dificulty")
    assert "'difficulty'" in str(wrong.value.hint)


def test_trials_after_an_early_stop_are_in_no_figure(tmp_path: Path) -> None:
    """R-R4: rows that ran on after a stop are shown, counted apart, and change nothing."""
    trials = [trial(index=i, status="hard_fail" if i == 1 else "passed") for i in range(5)]
    write_run(tmp_path, trials, early_stop=("hard_fail",))
    for found in (query(results=tmp_path), _from_journal(tmp_path)):
        assert [row["counted"] for row in found.rows(["counted"])] == [True] * 2 + [False] * 3
        rate = found.pass_rate()
        assert (rate.value, rate.n) == (0.5, 2)
        assert found.tally().after_stop == 3
        assert found.sql("select avg(passed::int) from trials where counted").rows == [(0.5,)]


def _from_journal(root: Path) -> ResultSet:
    for facts in root.rglob("facts.json"):
        facts.unlink()
    return query(results=root)


def test_compare_is_paired_by_case(tmp_path: Path) -> None:
    """R-Q1: two agents on the cases both have, with the difference, its interval and its p."""
    trials = [trial(c, "a", i) for c in CASES for i in range(8)]
    trials += [trial(c, "b", i, "failed" if i < 6 else "passed") for c in CASES for i in range(8)]
    trials += [trial("alone", "b")]
    write_run(tmp_path, trials)
    found = query(results=tmp_path).compare("a", "b")
    assert found.pass_rate.value == pytest.approx(-0.75)
    assert found.pass_rate.high is not None
    assert found.pass_rate.high < 0
    assert found.test.p_value is not None
    assert found.test.p_value < 1e-6
    assert found.score.difference == pytest.approx(-0.45)
    assert (found.cases, found.only_second) == (tuple(sorted(CASES)), ("alone",))
    assert [(part.what, part.count) for part in found.left_out] == [("cases", 1)]
    with pytest.raises(ProctorError, match="no trial has agent 'c'"):
        query(results=tmp_path).compare("a", "c")


def test_scores_are_correlated_with_properties_of_cases(tmp_path: Path) -> None:
    """R-Q1: one pair a case; text that is not a number is left out with a reason."""
    cases = {f"c{i}": {"properties": {"length": i, "word": "x"}} for i in range(10)}
    trials = [
        trial(case, index=j, score=1 - int(case[1:]) / 12) for case in cases for j in range(2)
    ]
    write_run(tmp_path, trials, cases=cases)
    found = query(results=tmp_path).correlate("properties.length")
    assert found.coefficient == pytest.approx(-1)
    assert (found.n, found.reason) == (10, None)
    assert found.p_value is not None
    assert found.p_value < 0.01
    words = query(results=tmp_path).correlate("properties.word")
    assert words.coefficient is None
    assert "10 of 10 cases left out" in str(words.reason)


def test_frames_hold_the_same_rows(tmp_path: Path) -> None:
    """R-D2: pandas, polars and pyarrow get every trial and every column."""
    write_run(tmp_path, [trial(c, a, i) for c in CASES for a in "ab" for i in range(2)])
    found = query(results=tmp_path)
    rows = found.rows()
    assert len(rows) == 12
    names = list(rows[0])
    pandas, polars, arrow = found.to_pandas(), found.to_polars(), found.to_arrow()
    assert list(pandas.columns) == polars.columns == arrow.column_names == names
    for name in ("case", "agent", "score", "started", "run"):
        values = [row[name] for row in rows]
        assert polars[name].to_list() == arrow[name].to_pylist() == values
        assert [v.to_pydatetime() if name == "started" else v for v in pandas[name]] == values
    assert found.to_polars(["agent", "properties.lang"]).columns == ["agent", "properties.lang"]
    assert rows[0]["checks"][0]["id"] == "exact"


def test_student_t_is_that_of_scipy() -> None:
    """R-Q1: the quantiles intervals rest on, against an independent implementation."""
    from scipy.special import stdtr, stdtrit

    for df in (1, 1.5, 2, 3, 5, 10, 29.5, 99, 1000, 1e5, 1e6):
        for q in (1e-6, 0.01, 0.025, 0.3, 0.5, 0.51, 0.9, 0.975, 0.995, 1 - 1e-6):
            assert t_quantile(q, df) == pytest.approx(float(stdtrit(df, q)), rel=1e-8, abs=1e-12)
        for x in (-1e3, -30, -2, -0.1, -1e-9, 0, 1e-9, 0.5, 3, 12, 400):
            assert t_cdf(x, df) == pytest.approx(float(stdtr(df, x)), rel=1e-8)
    assert math.isnan(t_quantile(0.0, 3))
    assert math.isnan(t_quantile(0.5, 0))

"""From trials to estimators: nothing is counted twice, nothing is lost."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_parts import trial, write_run

from proctor.errors import ProctorError
from proctor.results import query
from proctor.results.outcomes import Excluded, outcomes_of, pair, pick
from proctor.runs.run import Run

STATUSES = ["passed", "failed", "hard_fail", "infra_error", "cancelled"]


@given(
    statuses=st.lists(
        st.tuples(
            st.sampled_from(["greet", "refund"]), st.sampled_from("ab"), st.sampled_from(STATUSES)
        ),
        min_size=1,
        max_size=30,
    ),
    rules=st.sampled_from([(), ("hard_fail",), ("hard_fail", "out_of_reach")]),
)
def test_every_trial_is_counted_once(tmp_path_factory, statuses, rules) -> None:
    """R-Q1: judged, infra, cancelled and after a stop add up to what ran, as summaries have it."""
    seen: dict[tuple[str, str], int] = {}
    trials = []
    for case, agent, status in statuses:
        index = seen.setdefault((case, agent), 0)
        seen[case, agent] += 1
        trials.append(trial(case, agent, index, status))
    folder = write_run(tmp_path_factory.mktemp("r"), trials, early_stop=rules, finished=False)
    run = Run(folder.path)
    cells = {(cell.agent, cell.case): cell for cell in run.cells}
    found = {(a.agent, c.case): c for a in outcomes_of(run) for c in a.cases}
    assert found.keys() == cells.keys() == {(agent, case) for case, agent in seen}
    for (agent, case), outcome in found.items():
        cell = cells[agent, case]
        total = outcome.trials + outcome.infra + outcome.cancelled + outcome.after_stop
        assert total == seen[case, agent]
        assert (outcome.passes, outcome.infra) == (cell.passed, cell.infra_error)
        assert outcome.trials == cell.passed + cell.failed + cell.hard_fail
        assert outcome.pass_rate == cell.pass_rate
        assert outcome.mean_score == pytest.approx(cell.score_mean)
        assert outcome.stopped == cell.early_stop
    again = {(a.agent, c.case): c for a in query(results=folder.path).outcomes() for c in a.cases}
    for key, outcome in found.items():
        assert again[key].counts == outcome.counts
        assert again[key].scores == outcome.scores
        assert again[key].after_stop == outcome.after_stop


def test_a_planned_case_without_a_trial_is_included(tmp_path: Path) -> None:
    """R-Q1: what was never tried is left out by name, not by silence."""
    cells = [
        {"case": case, "agent": "a", "trials": 2, "threshold": 0.8} for case in ("greet", "refund")
    ]
    folder = write_run(tmp_path, [trial("greet")], finished=False, cells=cells)
    (outcomes,) = outcomes_of(Run(folder.path))
    assert [(c.case, c.trials, c.asked) for c in outcomes.cases] == [
        ("greet", 1, 2),
        ("refund", 0, 2),
    ]
    assert [(part.what, part.count) for part in outcomes.left_out] == [("cases", 1)]


def test_arms_are_paired_by_case(tmp_path: Path) -> None:
    """R-Q1: the same case at the same place, and cases of one arm alone are named."""
    folder = write_run(tmp_path, [trial("greet", "a"), trial("greet", "b"), trial("stock", "b")])
    run = Run(folder.path)
    found = pair(*(pick(outcomes_of(run), agent) for agent in "ab"))
    parts = (found.first, found.second, found.only_first, found.only_second)
    named = [[each.case for each in part] for part in parts]
    assert named == [["greet"], ["greet"], [], ["stock"]]


def test_a_seed_makes_an_instance(tmp_path: Path) -> None:
    """R-Q1: a case with seeds is the sum of its instances; arms are paired by case and seed."""
    trials = [
        trial("greet", agent, index, status, axis_seed=seed)
        for agent, seeds in (("a", (0, 1)), ("b", (1, 2)))
        for seed in seeds
        for index, status in enumerate(("passed", "passed" if seed else "failed"))
    ]
    run = Run(write_run(tmp_path, trials, cases={"greet": {}}).path)
    first, second = (pick(outcomes_of(run), agent) for agent in "ab")
    (case,) = first.cases
    assert (case.passes, case.trials, case.seed) == (3, 4, None)
    assert [(each.label, each.passes) for each in case.instances] == [
        ("greet [seed 0]", 1),
        ("greet [seed 1]", 2),
    ]
    found = pair(first, second)
    assert [each.seed for each in found.first] == [1]
    assert ([each.seed for each in found.only_first], [e.seed for e in found.only_second]) == (
        [0],
        [2],
    )
    queried = query(results=tmp_path).outcomes()
    assert [[each.label for each in arm.instances] for arm in queried] == [
        ["greet [seed 0]", "greet [seed 1]"],
        ["greet [seed 1]", "greet [seed 2]"],
    ]


def test_an_unknown_agent_gets_a_suggestion(tmp_path: Path) -> None:
    """R-Q3: a wrong name is an error that says which was probably meant."""
    run = Run(write_run(tmp_path, [trial(agent="careful"), trial(agent="hasty")]).path)
    with pytest.raises(ProctorError, match="carefull") as wrong:
        pick(outcomes_of(run), "carefull")
    assert "'careful'" in str(wrong.value.hint)
    with pytest.raises(ProctorError, match="select one"):
        pick(outcomes_of(run))


def test_cases_that_share_something_are_clustered(tmp_path: Path) -> None:
    """R-Q1: a property `cluster` is what intervals are clustered by, in a run and in a query."""
    cases = {
        name: {"properties": {"cluster": "one" if name != "stock" else "two"}}
        for name in ("greet", "refund", "stock")
    }
    trials = [
        trial(case, index=i, status="passed" if i or case == "stock" else "failed")
        for case in cases
        for i in range(3)
    ]
    folder = write_run(tmp_path, trials, cases=cases)
    (outcomes,) = outcomes_of(Run(folder.path))
    assert outcomes.clustering.keys == ("one", "one", "two")
    assert outcomes.clustering.unit == "cluster"
    from proctor.stats.intervals import population_rate

    asked = query(results=tmp_path).pass_rate(estimand="population")
    expected = population_rate(outcomes.counts, clusters=outcomes.clustering.keys)
    assert (asked.low, asked.high) == pytest.approx((expected.low, expected.high))
    assert asked.low != population_rate(outcomes.counts).low


@pytest.mark.parametrize(
    ("count", "text"), [(1, "1 case: none judged"), (2, "2 cases: none judged")]
)
def test_exclusions_are_formatted_with_their_count(count: int, text: str) -> None:
    """R-Q1: one of them is one."""
    assert str(Excluded("cases", count, "none judged")) == text

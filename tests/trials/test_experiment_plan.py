"""Plans of experiments: pure, complete, and the same whatever the order of what is written."""

import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_parts import write_suite

from proctor import Case, Experiment
from proctor.errors import ProctorError
from proctor.seeds import derive_seed
from proctor.trials.options import RunOptions
from proctor.trials.plan import Axes, Plan, axes_of, plan_trials
from proctor.trials.prepare import agents_by_name
from proctor.trials.resolve_experiment import (
    override,
    prepare_experiment,
    read_axes,
    read_set,
    run_options,
)


def experiment(**fields: Any) -> Experiment:
    return Experiment(**{"cases": "x", **fields})


def params(**fields: Any) -> tuple[dict[str, Any], ...]:
    made = experiment(**fields)
    return axes_of(made, made.params, {}).params


# -- axes ----------------------------------------------------------------------------------------


def test_a_grid_is_every_combination() -> None:
    """R-S3: each once, whatever the order of axes and values."""
    one = params(params={"b": [2, 1], "a": ["x", "y", "z"]})
    assert len(one) == 6
    assert one == params(params={"a": ["z", "x", "y"], "b": [1, 2]})
    assert {(p["a"], p["b"]) for p in one} == {(a, b) for a in "xyz" for b in (1, 2)}


@given(
    n=st.integers(1, 24),
    seed=st.integers(),
    order=st.randoms(use_true_random=False),
)
def test_a_sample_of_a_grid(n: int, seed: int, order: random.Random) -> None:
    """R-S3: as many as asked for, all different, all of the grid, the same for the same seed."""
    axes = {"a": [1, 2, 3, 4], "b": ["x", "y"], "c": [True, False, None]}
    shuffled = {name: order.sample(axes[name], len(axes[name])) for name in order.sample("abc", 3)}
    one = params(params=axes, sample={"n": n, "seed": seed})
    assert one == params(params=shuffled, sample={"n": n, "seed": seed})
    assert len({repr(sorted(p.items())) for p in one}) == n
    assert all(p[name] in axes[name] for p in one for name in axes)


@given(seed=st.integers(), n=st.integers(1, 20))
def test_draws_from_intervals(seed: int, n: int) -> None:
    """R-S3: within their ends, whole where asked; a new axis leaves the others as they were."""
    axes: dict[str, Any] = {
        "rate": {"low": 0.001, "high": 10.0, "log": True},
        "size": {"low": 3, "high": 1000, "integer": True},
        "kind": ["a", "b"],
    }
    found = params(params=axes, sample={"n": n, "seed": seed})
    assert len(found) == n
    for each in found:
        assert 0.001 <= each["rate"] <= 10
        assert isinstance(each["size"], int)
        assert 3 <= each["size"] <= 1000
        assert each["kind"] in ("a", "b")
    fewer = params(params={k: axes[k] for k in ("rate", "kind")}, sample={"n": n, "seed": seed})
    assert [p["rate"] for p in sorted(fewer, key=lambda p: p["rate"])] == sorted(
        p["rate"] for p in found
    )


def test_draws_spread_over_a_logarithmic_scale() -> None:
    """R-S3: each decade gets its share."""
    axes = {"rate": {"low": 0.01, "high": 100.0, "log": True}}
    found = [p["rate"] for p in params(params=axes, sample={"n": 400})]
    for low in (0.01, 0.1, 1.0, 10.0):
        share = sum(low <= rate < 10 * low for rate in found) / len(found)
        assert 0.18 < share < 0.32


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"params": {"a": [1, 2]}, "sample": {"n": 3}}, "the grid has 2"),
        ({"params": {"a": [1, "1"]}}, "occur twice"),
        ({"params": {"a": [1, 1]}}, "occur twice"),
        ({"params": {c: list(range(200)) for c in "abc"}}, "8,000,000 combinations"),
        (
            {"params": {"a": {"low": 1, "high": 2, "integer": True}}, "sample": {"n": 3}},
            "only 2 different",
        ),
    ],
)
def test_axes_that_cannot_be(fields: dict[str, Any], told: str) -> None:
    """R-S3: combinations that results could not tell apart, or that are not there, are refused."""
    with pytest.raises(ProctorError, match=told):
        params(**fields)


# -- plans ---------------------------------------------------------------------------------------

NAMES = st.lists(
    st.text("abcdefghij", min_size=1, max_size=4), min_size=1, max_size=5, unique_by=str.casefold
)


def planned(cases: list[str], agents: list[str], axes: Axes, trials: int) -> Plan:
    made = [Case(id=name, input="q", threshold=0.5) for name in cases]
    return plan_trials(made, agents, RunOptions(trials=trials), axes)


@settings(max_examples=60)
@given(
    cases=NAMES,
    agents=NAMES,
    seeds=st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True),
    trials=st.integers(1, 3),
    order=st.randoms(use_true_random=False),
)
def test_a_plan_does_not_depend_on_order(
    cases: list[str], agents: list[str], seeds: list[int], trials: int, order: random.Random
) -> None:
    """R-S3, R-R5: cases × agents × params × seeds × trials, each once, byte for byte the same."""
    axes = Axes(tuple(sorted(seeds)), ({"a": 1}, {"a": 2}))
    plan = planned(cases, agents, axes, trials)
    shuffled = planned(
        order.sample(cases, len(cases)), order.sample(agents, len(agents)), axes, trials
    )
    assert plan == shuffled
    assert plan.record() == shuffled.record()
    assert len(plan.trials) == len(cases) * len(agents) * 2 * len(seeds) * trials
    assert len({trial.key for trial in plan.trials}) == len(plan.trials)
    assert {c.trials for c in plan.cells.values()} == {len(seeds) * trials}


def test_seeds_come_from_seed_case_and_repeat_alone() -> None:
    """R-R5: agents and parameters are compared on the same draws; repeats are derived."""
    axes = Axes((4, 9), ({"a": 1}, {"a": 2}))
    plan = planned(["c", "d"], ["x", "y"], axes, 3)
    for trial in plan.trials:
        assert trial.axis_seed is not None
        assert trial.seed == derive_seed(trial.axis_seed, trial.case, trial.index)
    assert len({trial.seed for trial in plan.trials}) == 2 * 2 * 3
    fewer = planned(["d"], ["y"], Axes((9,), ({"a": 2},)), 1)
    assert fewer.trials[0] in plan.trials, "what else is planned changes nothing"


def test_ten_thousand_trials_are_all_there() -> None:
    """R-S3: a large plan holds what it says; benchmarks/planning.py says how long it takes."""
    axes = Axes(tuple(range(10)), tuple({"a": a} for a in range(5)))
    plan = planned([f"c{i}" for i in range(20)], [f"a{i}" for i in range(5)], axes, 2)
    assert len(plan.trials) == len({trial.key for trial in plan.trials}) == 10_000
    with pytest.raises(ProctorError, match="4,000,000 trials"):
        planned(["c"], ["a"], Axes(tuple(range(40))), 100_000)


# -- experiments over suites ---------------------------------------------------------------------


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return write_suite(tmp_path, cases=4)


def ready(
    folder: Path,
    asked: list[str] | None = None,
    changes: dict[str, Any] | None = None,
    **fields: Any,
) -> Any:
    made = experiment(**{"cases": [{"suite": "suite.yaml"}], **fields})
    made.came_from(folder)
    return prepare_experiment(
        override(made, **(changes or {})), agents=agents_by_name(agents=asked)
    )


def test_cases_are_selected_by_name_glob_and_exclusion(suite: Path) -> None:
    """R-S3: selectors add up, exclusions take away, filters narrow."""

    def chosen(**fields: Any) -> list[str]:
        return [case.id for case in ready(suite.parent, **fields).suite.cases]

    def of(text: str) -> dict[str, str]:
        return {"suite": "suite.yaml", "filter": text}

    assert chosen() == ["case-0", "case-1", "case-2", "case-3"]
    assert chosen(cases="suite.yaml") == chosen()  # short for {suite: suite.yaml}
    assert chosen(cases=[of("case-3"), of("case-1")]) == ["case-1", "case-3"]
    assert chosen(cases=[of("case-[01]"), of("case-1")]) == ["case-0", "case-1"]
    assert chosen(exclude=["case-1", "*-3"]) == ["case-0", "case-2"]
    assert chosen(filter="!case-0") == ["case-1", "case-2", "case-3"]
    for wrong, told in (
        ({"cases": [of("nothing*")]}, "none of 4 cases"),
        ({"exclude": "*"}, "all 4 selected cases are excluded"),
        ({"filter": "color:red"}, "no case has a property 'color'"),
    ):
        with pytest.raises(ProctorError, match=told):
            chosen(**wrong)


def test_agents_of_the_experiment_of_its_suites_and_of_a_command(suite: Path) -> None:
    """R-S3: what is asked for wins, then the experiment's own, then those of its suites."""

    def agents(asked: list[str] | None = None, **fields: Any) -> list[str]:
        return list(ready(suite.parent, asked, **fields).agents)

    assert agents() == ["bots:steady"]
    assert agents(agents={"mine": "bots:instant"}) == ["mine"]
    assert agents(agents=["random", "bots:instant"]) == ["random", "bots:instant"]
    assert agents(["random"], agents=["bots:instant"]) == ["random"]
    with pytest.raises(ProctorError, match="there is no agent 'rnadom'") as caught:
        agents(agents=["rnadom"])
    assert caught.value.hint == "did you mean 'random'?"


def test_two_suites_with_their_own_folders(tmp_path: Path) -> None:
    """R-S3: import paths of each suite start at its folder; equal ids are refused."""
    for name in ("one", "two"):
        path = write_suite(tmp_path / name, cases=1, agent="bots:steady")
        path.write_text(path.read_text().replace("case-0", f"{name}-case"))
        (tmp_path / name / "bots.py").write_text(f"def steady(input): return 'word0 {name}'")
    suites = [{"suite": "one/suite.yaml"}, {"suite": "two/suite.yaml"}]
    found = ready(tmp_path, cases=suites)
    folders = {
        case.id: prepared.case.folder
        for case, prepared in zip(found.suite.cases, found.cases.values(), strict=True)
    }
    assert folders == {f"{n}-case": (tmp_path / n).resolve() for n in ("one", "two")}
    (tmp_path / "two" / "suite.yaml").write_text((tmp_path / "one" / "suite.yaml").read_text())
    with pytest.raises(ProctorError, match=r"the case 'one-case' is in .*one.* and in .*two"):
        ready(tmp_path, cases=suites)


def test_the_sandbox_of_a_suite_holds_for_an_experiment(tmp_path: Path) -> None:
    """R-S3, R-N6: settings of suites are not lost when they are combined; two may not differ."""
    suites = [{"suite": "one/suite.yaml"}, {"suite": "two/suite.yaml"}]
    added = {"one": "sandbox: {kind: bwrap, network: none}\non_agent_error: infra\n", "two": ""}
    for name, more in added.items():
        path = write_suite(tmp_path / name, cases=1, agent="bots:steady")
        path.write_text(path.read_text().replace("case-0", f"{name}-case") + more)
        (tmp_path / name / "bots.py").write_text("def steady(input): return 'word0'")
    program = {"mine": {"kind": "command", "command": ["true"]}}
    for cases in (suites, suites[:1]):
        found = ready(tmp_path, cases=cases, agents=program)
        assert found.agents["mine"].sandbox.network == "none"
        assert found.options.on_agent_error.value == "infra"
    assert ready(tmp_path, cases=suites[1:], agents=program).agents["mine"].sandbox is None
    other = tmp_path / "two" / "suite.yaml"
    other.write_text(other.read_text() + "sandbox: bwrap\n")
    with pytest.raises(ProctorError, match="have a different `sandbox`"):
        ready(tmp_path, cases=suites, agents=program)


def test_what_is_set_reaches_every_case(suite: Path) -> None:
    """R-S3: case.FIELD overrides a field of every case; the rest of the case stays."""
    found = ready(
        suite.parent,
        set={"case.threshold": 0.25, "case.path.max_tool_calls": 9, "style": "short"},
    )
    for case in found.suite.cases:
        assert case.threshold == 0.25
        assert case.path.max_tool_calls == 9
        assert case.correctness.expected_in_answer
    assert {trial.params["style"] for trial in found.plan.trials} == {"short"}
    with pytest.raises(ProctorError, match="a case has no field 'treshold'"):
        ready(suite.parent, set={"case.treshold": 1})
    with pytest.raises(ProctorError, match="threshold must be at most 1"):
        ready(suite.parent, set={"case.threshold": 7})


def test_a_value_on_the_command_line_takes_the_place_of_an_axis(suite: Path) -> None:
    """R-S3: --set wins over `params` and over `set`; text is read as YAML reads it."""
    settings = read_set(["a=7", "b=x y", "case.threshold=0.5"])
    changes = {"settings": settings, "seeds": "5,6"}
    found = ready(suite.parent, changes=changes, params={"a": [1, 2]}, set={"b": "old"})
    assert found.design.axes.params == ({"b": "x y", "a": 7},)
    assert found.design.axes.seeds == (5, 6)
    assert read_axes(["a=1,2.5,x", 'b=["p,q", r]']) == {"a": [1, 2.5, "x"], "b": ["p,q", "r"]}
    for wrong in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(ProctorError):
            read_set(wrong)


def test_where_trials_run_is_the_experiments_unless_a_command_says(suite: Path) -> None:
    """R-S3, R-R12: `executor:` means what --executor, --address and --workers do, which win."""

    def where(said: Any, **options: Any) -> tuple[str, str | None, int | None]:
        made = Experiment(cases=[{"suite": str(suite)}], executor=said)  # type: ignore[arg-type]
        found = run_options(made, options)
        return str(found.executor), found.address, found.workers

    assert where(None) == ("local", None, None)
    assert where("ray") == ("ray", None, None)
    said = {"kind": "ray", "address": "auto", "workers": 4}
    assert where(said) == ("ray", "auto", 4)
    assert where(said, workers=2) == ("ray", "auto", 2)
    assert where(said, executor="local") == ("local", None, None)
    assert where("local", executor="ray", workers=3) == ("ray", None, 3)


def test_trials_are_one_for_each_seed_unless_somebody_says(suite: Path) -> None:
    """R-S3, R-R5: seeds are the repeats of an experiment."""
    assert len(ready(suite.parent, seeds=5).plan.trials) == 4 * 5
    assert len(ready(suite.parent, seeds=5, trials=3).plan.trials) == 4 * 5 * 3
    text = suite.read_text().replace("id: case-0", "id: case-0\n  trials: 2")
    suite.write_text(text)
    assert len(ready(suite.parent, seeds=5).plan.trials) == (3 + 2) * 5


@given(
    cases=NAMES,
    seeds=st.none() | st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True),
    trials=st.integers(1, 4),
    data=st.data(),
)
def test_a_plan_is_like_a_list_of_its_trials(
    cases: list[str], seeds: list[int] | None, trials: int, data: st.DataObject
) -> None:
    """R-S3: looked at anywhere, in any order, a plan holds the same trials."""
    axes = Axes(None if seeds is None else tuple(seeds), ({"a": 1}, {"a": 2}))
    found = planned(cases, ["x", "y"], axes, trials).trials
    places = st.integers(-len(found), len(found) - 1) | st.slices(len(found))
    looked_at = data.draw(st.lists(places, max_size=4))
    early = [found[place] for place in looked_at]
    plain = list(planned(cases, ["x", "y"], axes, trials).trials)
    assert early == [plain[place] for place in looked_at]
    assert (found, len(found), list(reversed(found))) == (plain, len(plain), plain[::-1])
    assert list(zip(found, found, strict=True)) == [(each, each) for each in plain]
    with pytest.raises(IndexError):
        found[len(plain)]


def test_the_first_trial_does_not_wait_for_the_seed_of_the_last() -> None:
    """R-S3: a large plan can be begun at once."""
    trials = planned(["c"], ["x"], Axes((7,)), 200_000).trials
    began = time.perf_counter()
    first = next(iter(trials))
    took = time.perf_counter() - began
    everything = list(trials)
    assert first.seed == derive_seed(7, "c", 0)
    assert everything[-1].seed == derive_seed(7, "c", 199_999)
    assert took < (time.perf_counter() - began) / 10

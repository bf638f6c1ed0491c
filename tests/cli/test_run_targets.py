"""`proctor run X`: what X may be, what comes of it, and what is refused before anything is made."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import proctor
from experiment_parts import write_experiment, write_project
from run_parts import only_run

import proctor as api
from proctor.errors import ProctorError
from proctor.runs.run import Run
from proctor.trace import Trace


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_project(tmp_path / "project")
    monkeypatch.chdir(folder)
    return folder


def command(project: Path, *args: Any) -> tuple[int, str, str]:
    done = proctor(*args, cwd=project)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def trials(run: Path) -> set[tuple[Any, ...]]:
    return {(t.case, t.agent, t.cell.params, t.axis_seed, t.index) for t in Run(run).trials()}


# -- what a target may be ------------------------------------------------------------------------


def test_one_scenario_one_agent_one_seed(project: Path) -> None:
    """R-S3, R-R5: one trial, with the seed that was asked for."""
    args = ("run", "arithmetic.sum", "--agent", "people:adder", "--seed", 7, "--quiet")
    code, out, err = command(project, *args)
    assert (code, err) == (0, "")
    assert "1 of 1 case passed" in out
    run = only_run(project / "results")
    assert run.parent.name == "arithmetic.sum"
    assert trials(run) == {("arithmetic.sum", "people:adder", "", 7, 0)}


def test_a_scope_is_every_scenario_in_it(project: Path) -> None:
    """R-S3: with every variant; a variant can be named."""
    assert command(project, "run", "arithmetic", "--agent", "adder")[0] == 0
    assert {t[0] for t in trials(only_run(project / "results"))} == {
        "arithmetic.sum@easy",
        "arithmetic.sum@hard",
    }
    code, out, _ = command(project, "run", "arithmetic/sum@hard", "--agent", "adder")
    assert code == 0
    assert "arithmetic.sum@hard" in out


def test_chance_acts_where_nobody_is_named(project: Path) -> None:
    """R-S3, R-A2: a scope by itself runs, with the random agent, unless the settings name one."""
    code, told, _ = command(project, "run", "luck", "--quiet", "--json")
    assert code in (0, 1)
    assert {cell["agent"] for cell in json.loads(told)["cells"]} == {"random"}


@pytest.mark.parametrize("path", ["catalog/arithmetic/sum", "catalog/arithmetic/sum/spec.yaml"])
def test_a_template_by_its_path(path: str, project: Path) -> None:
    """R-S3, R-S4: a shell completes paths; they mean the scenario that is there."""
    (trial,) = api.run(path, agent="adder").trials
    assert (trial.case, trial.passed) == ("arithmetic.sum", True)


def test_files_and_dotted_names_of_experiments(project: Path) -> None:
    """R-S3: a file runs every experiment in it; a name one of them. The worst exit code counts."""
    write_experiment(
        project,
        "maths",
        agents=["adder"],
        experiments={
            "right": {"cases": "arithmetic.*", "seeds": 2},
            "wrong": {"cases": "arithmetic.*", "agents": ["people:zero"]},
        },
    )
    code, out, _ = command(project, "run", "experiments/maths.yaml", "--quiet")
    assert code == 1
    assert {p.parent.name for p in (project / "results").glob("*/*")} == {
        "maths.right",
        "maths.wrong",
    }
    code, out, _ = command(project, "run", "experiments.maths.right", "--json")
    document = json.loads(out)
    assert (code, document["exit_code"], document["totals"]["passed"]) == (0, 0, 4)
    code, out, _ = command(project, "run", "experiments.maths", "--json")
    assert [run["name"] for run in json.loads(out)["runs"]] == ["maths.right", "maths.wrong"]


def test_what_is_asked_for_wins(project: Path) -> None:
    """R-S3: filter, seeds, agents and values of the command line."""
    write_experiment(
        project, cases=["arithmetic.*", "luck.*"], agents=["random"], seeds=9, params={"most": [1]}
    )
    refused, _, err = command(project, "run", "experiments.exp", "--quiet")
    assert (refused, "luck.coin has no parameter 'most'" in err) == (2, True)
    args = ("--filter", "difficulty:hard", "--seeds", "4..5", "--agents", "adder,people:zero")
    more = ("--set", "most=50", "--set", "case.threshold=0.1", "--quiet")
    write_experiment(project, cases=["arithmetic.*"], agents=["random"], params={"most": [1, 2]})
    assert command(project, "run", "experiments.exp", *args, *more)[0] == 1
    run = only_run(project / "results")
    assert trials(run) == {
        ("arithmetic.sum@hard", agent, "most=50", seed, 0)
        for agent in ("adder", "people:zero")
        for seed in (4, 5)
    }
    assert {cell.threshold for cell in Run(run).cells} == {0.1}


def test_values_are_what_scenarios_take_them_for(project: Path) -> None:
    """R-S3: text that means a number is that number, in the file and on the command line."""
    fields: dict[str, Any] = {"cases": ("arithmetic.sum",), "params": {"most": ["7", 8.0]}}
    experiment = api.Experiment(**fields)
    run = api.run(experiment, agent="adder", set={"level": "hard"})
    assert run.exit_code == 0
    assert {cell.params for cell in run.cells} == {"level=hard,most=7", "level=hard,most=8"}


def test_a_suite_stays_a_suite_unless_it_gets_axes(project: Path) -> None:
    """R-S3: --seeds and --set make an experiment of it, kept under the same name."""
    assert command(project, "run", "suite.yaml", "--trials", 1, "--quiet")[0] == 0
    run = only_run(project / "results")
    assert {t[3] for t in trials(run)} == {None}
    args = ("--seeds", 2, "--set", "tone=kind", "--results", "other", "--quiet")
    assert command(project, "run", "suite.yaml", *args)[0] == 0
    run = only_run(project / "other")
    assert run.parent.name == "suite"
    assert {(t[0], t[2], t[3]) for t in trials(run)} == {
        (f"case-{c}", "tone=kind", s) for c in (0, 1) for s in (0, 1)
    }


def test_smoke_is_one_trial_per_agent(project: Path) -> None:
    """R-R7: of the first case, seed and parameters; kept apart."""
    write_experiment(
        project, cases="arithmetic.*", agents=["adder", "random"], seeds=5, params={"most": [3, 4]}
    )
    command(project, "run", "experiments.exp", "--smoke", "--trials", 4, "--quiet")
    run = only_run(project / "results")
    assert run.parent.name == "exp-smoke"
    assert trials(run) == {
        ("arithmetic.sum@easy", agent, "most=3", 0, 0) for agent in ("adder", "random")
    }


def test_output_paths(project: Path) -> None:
    """R-S3: tokens are filled in; numbers go on; without {seq} a second run is refused."""
    write_experiment(
        project, cases="luck.coin", agents=["random"], output="{date}/{experiment}-{seq}/x"
    )
    for _ in range(2):
        command(project, "run", "experiments.exp", "--quiet")
    found = sorted(
        str(p.relative_to(project / "results")) for p in (project / "results").glob("*/*/x")
    )
    assert [re.sub(r"\d{4}-\d\d-\d\d", "DAY", each) for each in found] == [
        "DAY/exp-001/x",
        "DAY/exp-002/x",
    ]
    write_experiment(
        project, "once", cases="luck.coin", agents=["random"], output="fixed/{experiment}"
    )
    assert command(project, "run", "experiments.once", "--quiet")[0] in (0, 1)
    code, _, err = command(project, "run", "experiments.once", "--quiet")
    assert (code, "add {seq}" in err) == (2, True)


# -- dry runs ------------------------------------------------------------------------------------


def test_a_dry_run_tells_the_plan_and_makes_nothing(project: Path) -> None:
    """R-R7: cells, size, time and cost from earlier runs, what is cached."""
    write_experiment(
        project, cases="arithmetic.*", agents=["adder", "random"], seeds=3, params={"most": [5, 6]}
    )
    code, out, err = command(project, "run", "experiments.exp", "--dry-run")
    assert (code, err) == (0, "")
    assert not (project / "results").exists()
    assert "24 trials: 2 cases × 2 agents × 2 combinations × 3 seeds (0..2), 4 at a time" in out
    assert re.search(r"arithmetic\.sum@easy \[most=5\] +adder +3\b", out)
    assert "time: unknown (no earlier run)" in out
    assert "cached: 0 of 12 scenarios to be built" in out
    command(project, "run", "experiments.exp", "--seeds", 2, "--quiet")
    code, out, _ = command(project, "run", "experiments.exp", "--dry-run")
    assert re.search(r"time: about \d", out)
    assert "cached: 8 of 12 scenarios to be built" in out
    code, out, _ = command(project, "run", "experiments.exp", "--dry-run", "--json")
    document = json.loads(out)
    assert document["seeds"] == [0, 1, 2]
    assert document["params"] == [{"most": 5}, {"most": 6}]
    assert document["estimate"]["trials"] == 24
    assert len(document["cells"]) == 8


# -- what is refused -----------------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"agents": ["rnadom"]},
        r"exp\.yaml:\d+:\d+: there is no agent 'rnadom'.*did you mean 'random'",
    ),
    ({"cases": "arithmetik.*"}, r"exp\.yaml:1:8: no scenario is selected by 'arithmetik\.\*'"),
    ({"cases": ["arithmetic.sun"]}, r"no scenario is selected by .*did you mean 'arithmetic.sum'"),
    ({"cases": [{"suite": "../suite.yaml", "filter": "tag:none"}]}, "none of 2 cases"),
    ({"cases": [{"suite": "gone.yaml"}]}, r"gone\.yaml"),
    ({"filter": "difficulty:medium"}, "none of 2 cases is selected"),
    ({"exclude": ["arithmetic.sum"]}, "all 2 selected cases are excluded"),
    ({"seeds": 0}, r"exp\.yaml:\d+:8: at least one seed is needed, got 0"),
    ({"seeds": []}, "at least one seed is needed"),
    ({"experiments": [{"name": "a"}, {"name": "a"}]}, "the experiment 'a' is there twice"),
    ({"output": "../{seq}"}, "leads outside the results folder"),
    ({"output": "/tmp/{seq}"}, "leads outside the results folder"),
    ({"params": {"mots": [1]}}, r"has no parameter 'mots'.*did you mean 'most'"),
    ({"params": {"most": [5, 5000]}}, "most.*at most 1000, got 5000"),
    ({"params": {"most": ["many"]}}, "most.*whole number"),
    (
        {"params": {"most": {"low": 1, "high": 9}}, "sample": {"n": 2}},
        "most.*expected a whole number, got",
    ),
    ({"params": {"most": [7, "7"]}}, "'most=7' occur twice"),
    ({"set": {"level": "medium"}}, "level.*easy.*hard"),
    ({"set": {"case.treshold": 1}}, r"no field 'treshold'.*did you mean 'threshold'"),
    ({"set": {"case.threshold": 7}}, "threshold must be at most 1"),
    ({"limits": {"early_stop": ["hardfail"]}}, "early_stop.*hardfail"),
    ({"seeds": 1000, "trials": 1000000}, "at most 1,000,000 are planned"),
]


@pytest.mark.parametrize(("fields", "told"), BAD, ids=[told for _, told in BAD])
def test_bad_experiments_are_told_and_make_nothing(
    fields: dict[str, Any], told: str, project: Path
) -> None:
    """R-S3: clear, exit 2, nothing created; `proctor validate` says the same."""
    from proctor.cli.main import run

    write_experiment(project, **{"cases": "arithmetic.*", "agents": ["random"], **fields})
    before = sorted(path for path in project.rglob("*"))
    for verb in ("run", "validate"):
        if verb == "validate" and ("limits" in fields or "trials" in fields):
            continue  # found when it is planned
        code, said = _said(run, [verb, "experiments/exp.yaml"])
        assert code == 2, verb
        assert re.search(told, said.replace("\n", " ")), said
    after = sorted(path for path in project.rglob("*") if "__pycache__" not in path.parts)
    assert after == before


OPTIONS = [
    (("--set", "most"), "write it as KEY=VALUE"),
    (("--set", "mots=3"), r"has no parameter 'mots'.*did you mean 'most'"),
    (("--set", "most=many"), "most"),
    (("--seeds", "0"), "at least one seed"),
    (("--seeds", "x"), "a count such as 10"),
    (("--seeds", "3", "--seed", "1"), "one seed or several"),
    (("--agents", "nobody"), "there is no agent 'nobody'"),
    (("--filter", "tag:none"), "none of 2 cases"),
    (("--results", "taken"), "cannot create a run folder"),
]


@pytest.mark.parametrize(("args", "told"), OPTIONS, ids=[" ".join(a) for a, _ in OPTIONS])
def test_bad_options_are_told_and_make_nothing(
    args: tuple[str, ...], told: str, project: Path
) -> None:
    """R-S3, R-R8: the same of what is asked for on the way."""
    from proctor.cli.main import run

    write_experiment(project, cases="arithmetic.*", agents=["adder"])
    (project / "taken").write_text("a file")
    before = sorted(project.rglob("*"))
    code, said = _said(run, ["run", "experiments.exp", *args])
    assert code == 2
    assert re.search(told, said.replace("\n", " ")), said
    after = sorted(path for path in project.rglob("*") if "__pycache__" not in path.parts)
    assert after == before


def _said(run: Any, args: list[str]) -> tuple[int, str]:
    """The command in this process: what it prints to people who must mend something."""
    import contextlib
    import io

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(args)
    return code, err.getvalue()


def test_links_do_not_lead_out_of_the_results_folder(project: Path, tmp_path: Path) -> None:
    """R-S3: an output path through a link that leaves the root is refused."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (project / "results").mkdir()
    (project / "results" / "link").symlink_to(outside)
    write_experiment(project, cases="luck.coin", agents=["random"], output="link/{seq}")
    code, _, err = command(project, "run", "experiments.exp", "--quiet")
    assert (code, "leads outside the results folder" in err) == (2, True)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("arithmetic.sun", "arithmetic.sum"),
        ("arithmetics", "arithmetic"),
        ("experiments.expp", "experiments.exp"),
    ],
)
def test_a_target_that_is_none(name: str, near: str, project: Path) -> None:
    """R-S3: what comes nearest is said."""
    write_experiment(project, cases="luck.coin", agents=["random"])
    code, _, err = command(project, "run", name)
    assert code == 2
    assert f"no file, experiment, scenario or scope '{name}'" in err
    assert near in err


# -- Python --------------------------------------------------------------------------------------


def test_every_target_gives_a_run(project: Path) -> None:
    """R-S3: a scenario, a scope, an experiment and a suite are runs alike."""
    run = api.run("arithmetic.sum", agent="adder", seed=7)
    (trial,) = run.trials
    assert (trial.score, trial.passed, trial.case) == (1.0, True, "arithmetic.sum")
    trace = run.trace(trial)
    assert isinstance(trace, Trace)
    assert trace.response == trial.answer
    (again,) = api.run("arithmetic.sum", agent="adder", seed=7).trials
    assert again.answer == trial.answer
    scope = api.run("arithmetic", agent="adder")
    assert {trial.case: trial.passed for trial in scope.trials} == {
        "arithmetic.sum@easy": True,
        "arithmetic.sum@hard": True,
    }
    two = api.run("arithmetic.sum", agents=["adder", "random"], seeds=2)
    assert two.totals.trials == 4
    path = write_experiment(project, cases="luck.coin", agents=["random"], seeds=3)
    run = api.run(path)
    assert isinstance(run, Run)
    assert run.totals.trials == 3
    assert isinstance(api.run("suite.yaml", trials=1), Run)
    write_experiment(project, agents=["random"], cases="luck.coin", experiments={"a": {}, "b": {}})
    with pytest.raises(ProctorError, match=r"2 experiments here: exp\.a, exp\.b") as several:
        api.run("experiments.exp")
    assert "run_all" in str(several.value.hint)
    runs = api.api.run_all("experiments.exp")
    assert [*runs] == ["exp.a", "exp.b"]
    assert all(isinstance(run, Run) for run in runs.values())


def test_cases_agents_and_seeds_without_a_file(project: Path) -> None:
    """R-S3: cases × agents × seeds in one line."""
    run = api.run(cases="arithmetic/*", agents=["adder", "people:zero"], seeds=2, name="both")
    assert run.totals.trials == 2 * 2 * 2
    assert run.path.parent.name == "both"
    with pytest.raises(ProctorError, match="at least one seed"):
        api.run(cases="arithmetic/*", agent="adder", seeds=0)
    with pytest.raises(ProctorError, match="nothing to run"):
        api.run(agent="adder")


def test_cases_of_a_target_are_chosen_by_id(project: Path) -> None:
    """R-S3: with a target, `cases` are globs over the ids of its cases."""
    assert {t.case for t in api.run("arithmetic", cases="*hard", agent="adder").trials} == {
        "arithmetic.sum@hard"
    }
    with pytest.raises(ProctorError, match=r"id:.*nothing-\*"):
        api.run("suite.yaml", cases=["nothing-*"])


def test_several_agents_made_in_code(project: Path) -> None:
    """R-S3, R-A2: functions, names and a mapping of them are agents of one run."""

    def yes(_question: str) -> str:
        return "yes"

    run = api.run("suite.yaml", agents={"one": yes, "two": "people:zero"}, trials=1)
    assert {cell.agent for cell in run.cells} == {"one", "two"}
    run = api.run("suite.yaml", agents=[yes, "people:zero"], trials=1)
    assert {cell.agent for cell in run.cells} == {"yes", "people:zero"}
    with pytest.raises(ProctorError, match="two agents are called 'yes'"):
        api.run("suite.yaml", agents=[yes, yes])
    with pytest.raises(ProctorError, match="agent or agents"):
        api.run("suite.yaml", agent=yes, agents=["people:zero"])


@pytest.mark.parametrize("verb", ["run", "validate"])
def test_a_link_that_leads_to_itself_is_an_unreadable_file(project: Path, verb: str) -> None:
    """R-S1: the system's own words, and no hint to the same file."""
    (project / "loop.yaml").symlink_to("loop.yaml")
    code, out, err = command(project, verb, "loop.yaml")
    assert code == 2
    assert "loop.yaml: cannot be read: Too many levels of symbolic links" in out + err
    assert "hint" not in out + err

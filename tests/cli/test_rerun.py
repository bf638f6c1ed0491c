"""`proctor rerun`: the same again, or what is not the same."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import proctor
from experiment_parts import write_experiment, write_project
from run_parts import only_run, write_suite

from proctor.runs.run import Run
from proctor.runs.trial import Trial
from proctor.trials.resume import CIRCUMSTANCES, CLOCKS_AND_IDS, compare_trials


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_project(tmp_path / "project")


@pytest.fixture
def run(project: Path) -> Path:
    write_experiment(
        project, cases=["arithmetic.*", "luck.*"], agents=["adder", "random"], seeds=3, trials=2
    )
    assert proctor("run", "experiments.exp", "--quiet", cwd=project).returncode == 1
    return only_run(project / "results")


def rerun(project: Path, run: Path, *args: Any) -> Any:
    return proctor("rerun", run, "--quiet", *args, cwd=project)


def test_the_same_code_gives_the_same_results(project: Path, run: Path) -> None:
    """R-R5: identical, field by field, at another concurrency; kept beside the first."""
    done = rerun(project, run, "--concurrency", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "identical: 36 of 36 trials, ignoring timestamps and ids" in done.stdout
    second = run.parent / run.name.replace("_001", "_002")
    assert Run(second).spec["rerun_of"] == Run(run).run_id
    assert proctor("rerun", second, "--quiet", cwd=project).returncode == 0


def test_other_code_is_told_field_by_field(project: Path, run: Path) -> None:
    """R-R5: which trial, which field, what it was and is."""
    people = project / "people.py"
    people.write_text(people.read_text().replace("str(sum(", "str(1 + sum("))
    done = rerun(project, run)
    assert done.returncode == 1
    assert "changed since: the code or model of the agent adder has changed" in done.stdout
    assert "the agent random" not in done.stdout
    assert "arithmetic.sum@easy/adder/0/0: answer was" in done.stdout
    assert 'arithmetic.sum@easy/adder/0/0: status was "passed", is "hard_fail"' in done.stdout
    assert "/random/" not in done.stdout
    assert "not identical: 18 of 36 trials the same" in done.stdout
    document = json.loads(rerun(project, run, "--json").stdout)
    assert (document["identical"], document["compared"], document["differing"]) == (False, 36, 18)
    assert {d["field"] for d in document["differences"]} >= {"answer", "status", "score"}


def test_a_recorded_run_is_answered_from_its_recording(project: Path) -> None:
    """R-R5: a model is not asked again, and the recording stays as it was."""
    write_experiment(project, "talk", cases=[{"suite": "../suite.yaml"}], agents=["bots:steady"])
    proctor("run", "experiments.talk", "--record", "calls.jsonl", "--quiet", cwd=project)
    before = (project / "calls.jsonl").read_bytes()
    done = rerun(project, only_run(project / "results"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project / "calls.jsonl").read_bytes() == before
    spec = Run(sorted((project / "results" / "talk").iterdir())[-1]).spec
    assert spec["options"]["replay_from"] == "calls.jsonl"
    assert "record_to" not in spec["options"]


def test_a_run_that_was_cut_short(project: Path, run: Path) -> None:
    """R-R5, R-R7: what only one of the two has is said, not passed over."""
    args = ("run", "experiments.exp", "--max-trials", 5, "--results", "cut", "--quiet")
    assert proctor(*args, cwd=project).returncode == 2
    done = rerun(project, only_run(project / "cut"))
    assert done.returncode == 1
    assert "only now: 31 trials" in done.stdout


def test_what_cannot_be_repeated_is_2(project: Path, run: Path) -> None:
    """R-R5: no folder of a run, or code that is gone."""
    assert rerun(project, project).returncode == 2
    (project / "people.py").unlink()
    done = rerun(project, run)
    assert (done.returncode, "people" in done.stderr) == (2, True)
    assert len(list(run.parent.iterdir())) == 1, "nothing is made"


def test_every_field_of_a_trial_is_compared_or_named_as_left_out() -> None:
    """R-R5: a field added to trials tomorrow is compared unless it is said to be a clock or id."""
    base: dict[str, Any] = {"case": "c", "agent": "a", "index": 0, "seed": 1, "status": "passed"}
    other: dict[str, Any] = {
        "status": "failed",
        "category": "timeout",
        "seed": 2,
        "score": 0.5,
        "answer": "x",
        "error": {"type": "E", "message": "m"},
        "input_tokens": 1,
        "output_tokens": 1,
        "cost_usd": 0.1,
        "llm_calls": 1,
        "unpriced_calls": 1,
        "tool_calls": 1,
        "judge_cost_usd": 0.1,
        "checks": [
            {"id": "k", "check": "k", "layer": "path", "status": "pass", "reason": "r"},
        ],
    }
    import msgspec

    identity = {"case", "agent", "index", "params", "axis_seed"}
    fields = set(Trial.__struct_fields__)
    assert fields == identity | set(other) | CLOCKS_AND_IDS | CIRCUMSTANCES
    one = msgspec.convert(base, Trial)
    for name, value in other.items():
        two = msgspec.convert({**base, name: value}, Trial)
        same = compare_trials([one], [two])
        assert not same.identical, name
        assert same.differences[0].field.startswith(name)
    for name in CLOCKS_AND_IDS - {"trace", "trace_id", "workdir"}:
        assert compare_trials([one], [msgspec.convert({**base, name: 7}, Trial)]).identical


def test_a_run_by_its_name_or_the_latest(project: Path, run: Path) -> None:
    """R-R5, R-R6: a run to repeat or resume is named as everywhere; an unknown one is an error."""
    for name in ("latest", f"{run.parent.name}/{run.name}"):
        assert "identical: 36 of 36" in rerun(project, Path(name)).stdout
    done = proctor("run", "--resume", f"{run.parent.name}/{run.name}", "--quiet", cwd=project)
    assert str(Path("results", run.parent.name, run.name)) in done.stdout
    for args in (("rerun", "nope"), ("run", "--resume", "nope")):
        done = proctor(*args, cwd=project)
        assert done.returncode == 2
        assert "no run and no tag is called 'nope'" in done.stderr


def test_a_rerun_stands_beside_the_first_under_its_name(tmp_path: Path) -> None:
    """R-R5: also a suite's run, and one that was given a name."""
    write_suite(tmp_path, cases=1).rename(tmp_path / "checks.yaml")
    assert proctor("run", "checks.yaml", "--quiet", "--name", "mine", cwd=tmp_path).returncode == 0
    first = only_run(tmp_path / "results")
    assert proctor("rerun", first, "--quiet", cwd=tmp_path).returncode == 0
    (second,) = set(first.parent.iterdir()) - {first}
    assert first.parent.name == "mine"
    assert Run(second).spec["name"] == Run(first).spec["name"] == "checks"


def test_an_output_path_without_a_number(project: Path) -> None:
    """R-R5: the repeat would fall onto the run itself; the hint says where else it may go."""
    write_experiment(
        project, "one", cases=["luck.*"], agents=["random"], seeds=1, trials=1, output="here/only"
    )
    proctor("run", "experiments.one", "--quiet", cwd=project)
    run = project / "results" / "here" / "only"
    done = rerun(project, run)
    assert done.returncode == 2
    assert "the output path 'here/only' has no {seq}" in done.stderr
    assert "hint: write it to another folder: --results FOLDER" in done.stderr
    assert rerun(project, run, "--results", project / "again").returncode == 0
    assert (project / "again" / "here" / "only" / "_spec_.yaml").is_file()

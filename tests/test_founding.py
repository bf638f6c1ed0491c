"""Founding requirements through the command line and the public API."""

from pathlib import Path

import pytest
import yaml
from commands import proctor as command

import proctor
from proctor.agents.registry import PROFILES
from proctor.llm.prices import cost_usd

EXPERIMENT = """\
cases: mutualism.hidden_dependency@easy
agents: [scripted]
seeds: 2
trials: 1
output: "kept/{date}_{seq}"
"""


def runs_in(folder: Path) -> dict[str, int]:
    """Experiment → its number of runs."""
    return {
        each.name: sum(1 for run in each.iterdir() if (run / "_spec_.yaml").is_file())
        for each in (folder / "results").iterdir()
        if each.is_dir()
    }


@pytest.mark.slow
def test_names_and_smoke_runs_of_an_experiment_with_an_output_path(tmp_path):
    """R-S3 R-R7: `--name` is honoured, and a smoke run is never among the runs of `output:`."""
    (tmp_path / "e.yaml").write_text(EXPERIMENT)
    for options in ((), ("--name", "other"), ("--smoke",)):
        done = command("run", "e.yaml", "--quiet", *options, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert runs_in(tmp_path) == {"kept": 1, "other": 1, "e-smoke": 1}
    # The record of the run says where it is, so that a repeat finds the results folder.
    (run,) = (tmp_path / "results" / "e-smoke").iterdir()
    assert command("rerun", str(run), cwd=tmp_path).returncode == 0


def test_the_scripted_agent_of_a_built_scenario_and_its_outputs(tmp_path):
    """R-S4: `scripted` follows the solution; timeline, analysis and score are in the folder."""
    built = proctor.scenarios.build("mutualism.hidden_dependency@easy", seed=1)
    assert built.run(agent="scripted").score == built.run(agent="solution").score == 1.0
    outputs = {
        name: yaml.safe_load((built.path / f"{name}.yaml").read_text())
        for name in ("timeline", "analysis", "score")
    }
    operations = {name: output["operation"] for name, output in outputs.items()}
    assert operations == {"timeline": "simulate", "analysis": "analyze", "score": "score"}
    assert outputs["score"]["score"] == 1.0
    assert outputs["analysis"]["ended"] == "terminated"
    assert [step["step"] for step in outputs["timeline"]["steps"]][:2] == [1, 2]
    built.run(agent="random")
    assert yaml.safe_load((built.path / "score.yaml").read_text())["score"] == built.score()
    # Outputs are not a part of the scenario: it is stored, opened and compared without them.
    stored = proctor.scenarios.store("mine", built, root=tmp_path)
    assert not (stored / "score.yaml").exists()


def test_stats_of_results(tmp_path, monkeypatch):
    """R-D2 R-Q1: pass rate, mean, standard deviation, range and percentiles in one call."""
    case = proctor.Case(id="c", input="q", correctness={"expected_in_answer": "yes"})

    answers = iter(["yes", "no", "yes", "no"])

    def fickle(_: str) -> str:
        return next(answers)

    monkeypatch.chdir(tmp_path)
    suite = proctor.Suite(cases=(case,))
    run = proctor.run(suite, agent=fickle, trials=4)
    passed = sum(trial.status == "passed" for trial in run.trials)
    found = proctor.results.query().stats("score", by="agent")
    assert (found.trials, found.n, found.mean) == (4, 4, passed / 4)
    assert found.pass_rate == passed / 4
    assert set(found.percentiles) == {50, 90, 95, 99}
    (group,) = found.groups.values()
    assert (group.mean, group.n) == (found.mean, 4)


def test_profiles_of_current_models():
    """R-A1: families have a profile without a version, and every model has a known price."""
    for name in ("claude-opus", "claude-sonnet", "gpt-5", "gpt-5-mini", "gemini-pro", "gpt-4"):
        assert PROFILES[name]["kind"] == "chat"
    assert {"random", "scripted", "human"} <= set(PROFILES)
    models = [each["model"] for each in PROFILES.values() if each["kind"] == "chat"]
    unpriced = [
        model
        for provider, _, name in (model.partition(":") for model in models)
        if cost_usd(name, provider, input_tokens=1, output_tokens=1) is None
        for model in (f"{provider}:{name}",)
    ]
    assert unpriced == ["local:smollm2"]

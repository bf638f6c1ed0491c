"""Worlds in runs: through the command line, with models, people and the example's own files."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import commands
import pytest
from world_parts import Corridor, played

from proctor.checks.quality import score_trace
from proctor.diagnose.methods import diagnose
from proctor.llm import MockLLM
from proctor.scenarios.builder import build
from proctor.trace.capture import capture


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def proctor(folder: Path, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """The command, without a terminal."""
    given = {**os.environ, "NO_COLOR": "1"}
    return commands.proctor(*arguments, cwd=folder, env=given, input=typed, session=True)


async def test_a_chat_model_acts():
    """R-A2: a model behind an API plays a world: it sees the state and the past at each turn."""
    replies = ["right", "Action: right", '"right"', "```\nopen\n```"]
    with MockLLM(replies) as server:
        agent = {
            "kind": "chat",
            "model": "openai:gpt-4o-mini",
            "base_url": f"{server.url}/v1",
            "system": "Leave the house.",
        }
        outcome = await played(Corridor, agent, task="Find the door.")
        asked = [json.dumps(request.body) for request in server.requests]
    assert (outcome.score, outcome.trajectory.invalid_actions) == (1.0, 0)
    assert "Find the door." in asked[0]
    assert asked[3].count("history") == 1


async def test_quality_and_diagnosis_see_what_went_wrong_in_a_world():
    """R-S5: a model that repeats an invalid action is diagnosed at that step, and scored."""
    with MockLLM(["open the door"] * 4) as server, capture("q") as trace:
        agent = {"kind": "chat", "model": "openai:gpt-4o-mini", "base_url": f"{server.url}/v1"}
        outcome = await played(Corridor, agent)
        trace.response = outcome.answer
    assert outcome.ended == "no_valid_action"
    findings = diagnose(trace, "rules").findings
    # The first refusal is the finding; later ones, which only repeat it, are at low confidence.
    wrong = max(
        (f for f in findings if f.category == "Formatting Errors"), key=lambda f: f.confidence
    )
    (repeated,) = [f for f in findings if f.category == "Resource Abuse"]
    refused = [span for span in trace.spans if span.tool_name == "invalid_action"]
    assert (wrong.category, wrong.location) == ("Formatting Errors", refused[0].span_id)
    assert wrong.evidence == "open the door is not one of left, right"
    assert (repeated.category, repeated.evidence) == ("Resource Abuse", "invalid_action")
    assert repeated.location == refused[-1].span_id
    quality = {dimension.name: dimension.score for dimension in score_trace(trace).dimensions}
    assert quality["redundancy"] == 0.25
    assert quality["error_recovery"] == 0.0


def test_a_person_quits_a_run_and_goes_on(home):
    """R-A2: a trial that a person left is not scored, and resuming the run repeats it."""
    built = build("mutualism.hidden_dependency@easy", 0)
    cause = built.truth["cause"]
    left = proctor(
        home, "run", "mutualism.hidden_dependency@easy", "--agent", "human", "--quiet",
        typed="measure\nwait 2\n/quit\n",
    )  # fmt: skip
    assert left.returncode == 2, left.stderr
    runs = [path.parent for path in home.rglob("trials.jsonl")]
    assert len(runs) == 1, left.stderr
    (run,) = runs
    first = json.loads((run / "trials.jsonl").read_text().splitlines()[0])
    assert first["status"] == "infra_error"
    assert first["error"]["message"].startswith("the person quit at step 2 (the moves are saved: ")
    done = proctor(
        home, "run", "--retry-infra", str(run), "--quiet",
        typed=f"\nprotect {cause}\ndeclare {cause}\n",
    )  # fmt: skip
    assert "This trial was interrupted after 2 moves" in done.stderr
    assert done.returncode == 0, done.stderr
    last = json.loads((run / "trials.jsonl").read_text().splitlines()[-1])
    assert (last["status"], last["score"], last["tool_calls"]) == ("passed", 1.0, 4)


@pytest.mark.slow
def test_the_example_works_as_written(home, root):
    """R-S5: the example's experiment, its own agent and its own catalog."""
    copy = shutil.copytree(
        root / "examples" / "ecosystem",
        home / "ecosystem",
        ignore=shutil.ignore_patterns("results", "__pycache__"),
    )
    done = proctor(copy, "run", "experiments/levels.yaml", "--seeds", "5", "--json", "--quiet")
    assert done.returncode == 1, done.stderr
    cells = {(c["case"], c["agent"]): c for c in json.loads(done.stdout)["cells"]}
    assert len(cells) == 24
    for case in ("mutualism.competition@easy", "mutualism.hidden_dependency@easy"):
        assert cells[case, "keeper"]["verdict"] == "PASS"
        assert cells[case, "random"]["verdict"] != "PASS"
    for level in ("easy", "medium", "hard"):
        assert cells[f"mutualism.competition@{level}", "scripted"]["passed"] == 5
    checked = proctor(copy, "scenario", "check", "catalog", "--json")
    assert checked.returncode == 0, checked.stdout

"""Harbor: tasks run as cases with the same reward, and jobs are imported as runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import proctor
from containers import ENGINE

import proctor as package
from proctor.checks import CommandPasses
from proctor.results.exchange.importing import import_results
from proctor.runs.run import Run
from proctor.sandbox._bwrap import _capabilities
from proctor.sandbox.workspace import fingerprint

needs_bwrap = pytest.mark.skipif(not _capabilities().works, reason=_capabilities().reason)

TASK = """
schema_version = "1.1"
[task]
name = "demo/hello"
description = "Write a greeting"
keywords = ["files"]
[metadata]
difficulty = "easy"
[verifier]
timeout_sec = 120.0
[agent]
timeout_sec = 60.0
"""

# Half of the reward for a file, all of it for the right text. The exit code says nothing.
TEST = """#!/bin/bash
mkdir -p /logs/verifier
echo 0 > /logs/verifier/reward.txt
[ -f /app/hello.txt ] && echo 0.5 > /logs/verifier/reward.txt
bash /tests/check.sh && echo '{"reward": 1}' > /logs/verifier/reward.json
exit 3
"""

# An agent that does what its instruction says, in the places it names.
AGENT = r"""
import re, sys
where, name = re.search(r"file (\S+) that greets the name in (\S+) now", sys.argv[1]).groups()
text = "Hello, " + open(name).read() if sys.argv[2] == "good" else "Hi"
if sys.argv[2] != "idle":
    open(where, "w").write(text)
print("done")
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks" / "hello"
    for name, text in {
        "task.toml": TASK,
        "instruction.md": "Write the file /app/hello.txt that greets the name in "
        "/app/data/name.txt now; /apple stays.",
        "environment/Dockerfile": "FROM debian\nWORKDIR /app\nCOPY names /app/data/\nRUN true\n",
        "environment/names/name.txt": "World",
        "tests/test.sh": TEST,
        "tests/check.sh": '[ "$(cat /app/hello.txt)" = "Hello, World" ]',
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    several = tmp_path / "tasks" / "several"
    several.mkdir()
    (several / "task.toml").write_text('[[steps]]\nname = "one"\n')
    (tmp_path / "agent.py").write_text(AGENT)
    return tmp_path


def harbor_suite(folder: Path, how: str, sandbox: Any, *, built: bool = True) -> Any:
    """The imported suite, with an agent of ours."""
    done = proctor("import-suite", "tasks", "-o", f"{how}.yaml", "--agent", "x:y", cwd=folder)
    assert done.returncode == 0, done.stderr
    if built:
        assert "Dockerfile: RUN (only in a sandbox with `image: workspace`) (1)" in done.stderr
    assert "no equivalent: task: several steps (1)" in done.stderr
    assert "agent.timeout_sec (run with --timeout)" in done.stderr
    path = folder / f"{how}.yaml"
    document = yaml.safe_load(path.read_text())
    (case,) = document["cases"]
    assert (case["id"], case["tags"], case["difficulty"]) == ("hello", ["files"], "easy")
    python = "python3" if sandbox else sys.executable
    document["agent"] = {
        "kind": "command",
        "command": [python, str(folder / "agent.py"), "{input}", how],
        "protocol": "text",
        **({"sandbox": sandbox} if sandbox else {}),
    }
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", [None, pytest.param("bwrap", marks=needs_bwrap)])
def test_a_task_runs_as_a_case_with_the_same_reward(tasks: Path, sandbox: str | None) -> None:
    """R-N4: files, instruction and tests at their paths; the reward is the score."""
    for how, reward, status in (
        ("good", 1.0, "passed"),
        ("half", 0.5, "failed"),
        ("idle", 0.0, "failed"),
    ):
        run = package.run(harbor_suite(tasks, how, sandbox), trials=1, results=tasks / "results")
        (trial,) = run.trials()
        assert trial.score == reward, (how, trial)
        assert trial.status.value == status, trial
        trace = run.trace(trial)
        assert trace is not None
        changed = trace.metadata["workspace"]["paths"]
        assert changed == ({} if how == "idle" else {"hello.txt": "added"})


@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True])
def test_a_task_runs_in_its_image(tasks: Path, image: str, named: bool) -> None:
    """R-N4, R-N6: what RUN lines make is there, from the Dockerfile or from `docker_image`."""
    environment = tasks / "tasks" / "hello" / "environment"
    lines = [f"FROM {image}", "WORKDIR /app", "COPY names /app/data/", "RUN echo tool > /tool"]
    (environment / "Dockerfile").write_text("\n".join(lines))
    grade = tasks / "tasks" / "hello" / "tests" / "check.sh"
    grade.write_text('[ "$(cat /app/hello.txt) $(cat /tool)" = "Hello, World tool" ]')
    podman = ["podman", *ENGINE]
    name = f"localhost/proctor-build:{fingerprint(environment)}"
    if named:
        name = f"{image}-task"
        build = [*podman, "build", "--tag", name, str(environment)]
        subprocess.run(build, check=True, capture_output=True)
        (environment / "Dockerfile").unlink()
        settings = tasks / "tasks" / "hello" / "task.toml"
        settings.write_text(f'{TASK}\n[environment]\ndocker_image = "{name}"\n')
    sandbox = {"kind": "podman", "image": "workspace", "engine": ENGINE}
    try:
        suite = harbor_suite(tasks, "good", sandbox, built=not named)
        (trial,) = package.run(suite, trials=1, results=tasks / "results").trials
        assert (trial.score, trial.status.value) == (1.0, "passed"), trial
    finally:
        subprocess.run([*podman, "rmi", "--force", name], check=False, capture_output=True)


def test_a_reward_that_is_missing_or_wrong_is_no_verdict(tmp_path: Path) -> None:
    """R-N4: no reward, no number, or one out of range: infrastructure, with the reason."""
    for number, (write, reason) in enumerate(
        (
            ("true", "no reward was written"),
            ("echo x > /rewards/reward.txt", "cannot be read"),
            ("echo 7 > /rewards/reward.txt", "7 is not within 0 to 1"),
            ('echo \'{"a": "b"}\' > /rewards/reward.json', "cannot be read"),
        )
    ):
        case = package.Case(
            input="q",
            workspace={"files": {"a": "b"}},  # pyright: ignore[reportArgumentType]
            correctness={"command": {"run": write, "reward": "/rewards"}},  # pyright: ignore[reportArgumentType]
        )
        agent = {"kind": "command", "command": ["echo", "hi"], "protocol": "text"}
        suite = package.Suite(cases=(case,))
        run = package.run(suite, agent=agent, trials=1, results=tmp_path / f"r{number}")
        (trial,) = run.trials()
        assert trial.status.value == "infra_error"
        assert trial.error is not None
        assert reason in trial.error.message
    with pytest.raises(ValueError, match="reward alone"):
        CommandPasses("true", reward="/rewards", exit_code=1)
    with pytest.raises(ValueError, match="needs a folder"):
        CommandPasses("true", add_to="/tests")


def job(folder: Path) -> Path:
    """A job as harbor 0.24.0 writes it, with the fields that are read."""
    when = {"started_at": "2026-11-01T12:00:10Z", "finished_at": "2026-11-01T12:01:10Z"}
    timeout = {"exception_type": "AgentTimeoutError", "exception_message": "after 60 seconds"}
    usage = {"n_input_tokens": 1200, "n_cache_tokens": 200, "n_output_tokens": 340}
    for name, result in {
        "hello__a1": {
            "agent_result": {**usage, "cost_usd": 0.0125},
            "verifier_result": {"rewards": {"reward": 1.0}},
        },
        "hello__a2": {"agent_result": usage, "verifier_result": {"rewards": {"reward": 0.0}}},
        "bug__b1": {
            "verifier_result": {"rewards": {"tests": 1.0, "style": 0.5}},
            "exception_info": timeout,
        },
        "bug__b2": {"exception_info": {"exception_type": "Docker", "exception_message": "none"}},
    }.items():
        (folder / name).mkdir(parents=True)
        whole = {
            "task_name": name.partition("__")[0],
            "trial_name": name,
            "source": "demo",
            "agent_info": {
                "name": "codex",
                "version": "0.1",
                "model_info": {"name": "gpt-5", "provider": "openai"},
            },
            "started_at": "2026-11-01T12:00:00Z",
            "finished_at": "2026-11-01T12:01:30Z",
            "agent_execution": when,
            "step_results": None,
            **result,
        }
        (folder / name / "result.json").write_text(json.dumps(whole))
    trajectory = {
        "schema_version": "ATIF-v1.7",
        "session_id": "s",
        "agent": {"name": "codex", "version": "0.1", "model_name": "gpt-5"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "Create hello.txt"},
            {
                "step_id": 2,
                "source": "agent",
                "message": "done",
                "tool_calls": [
                    {"tool_call_id": "c", "function_name": "write", "arguments": {"path": "h"}}
                ],
            },
        ],
    }
    (folder / "hello__a1" / "agent").mkdir()
    (folder / "hello__a1" / "agent" / "trajectory.json").write_text(json.dumps(trajectory))
    whole = {"id": "1", "started_at": "2026-11-01T12:00:00Z", "n_total_trials": 5, "stats": {}}
    (folder / "result.json").write_text(json.dumps(whole))
    return folder


def test_a_job_is_imported_as_a_run(tmp_path: Path) -> None:
    """R-N4: rewards, exceptions, usage, times and trajectories; what is missing is said."""
    folder = job(tmp_path / "jobs" / "night")
    done = proctor("runs", "import", str(folder), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 trials, 1 of 3 judged passed, 1 could not be judged" in done.stdout
    assert "the job holds 4 of 5 trials" in done.stderr
    run = Run(next((tmp_path / "results" / "night").iterdir()))
    by_name = {(t.case, t.index): t for t in run.trials()}
    first, second = by_name["hello", 0], by_name["hello", 1]
    assert (first.score, first.cost_usd, first.input_tokens) == (1.0, 0.0125, 1200)
    assert (first.agent, first.latency_ms, first.duration_ms) == ("codex:gpt-5", 60_000, 90_000)
    trace = run.trace(first)
    assert trace is not None
    assert trace.tool_calls[0].arguments == {"path": "h"}
    assert (second.score, second.status.value, second.cost_usd) == (0.0, "failed", None)
    # Judged by its reward, though the agent ran out of time: as Harbor does.
    late, broken = by_name["bug", 0], by_name["bug", 1]
    assert (late.score, {c.id: c.score for c in late.checks}) == (
        0.75,
        {"tests": 1.0, "style": 0.5},
    )
    assert broken.error is not None
    assert (broken.status.value, broken.error.type) == ("infra_error", "Docker")
    # An unfinished job has no file of its own; a folder that is none is said to be none.
    (folder / "result.json").unlink()
    assert import_results(folder, root=tmp_path / "again").totals.trials == 4
    assert proctor("runs", "import", str(tmp_path), cwd=tmp_path).returncode == 2

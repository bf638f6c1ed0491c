"""Record the model calls of a run, then run it again without the model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import proctor
from proctor.cli.main import run as command
from proctor.llm import MockLLM

SCRIPT: list[dict[str, Any]] = [{"text": f"answer {number}: Paris"} for number in range(3)]


def suite(folder: Path, base_url: str) -> Path:
    path = folder / "suite.yaml"
    path.write_text(
        "version: 1\n"
        f"agent: {{kind: chat, model: 'openai:tiny', base_url: '{base_url}'}}\n"
        "cases:\n"
        "  - {id: capital, input: 'What is the capital of France?', trials: 3,\n"
        "     correctness: {expected_in_answer: [Paris]}}\n"
    )
    return path


def answers(folder: Path) -> list[str | None]:
    (path,) = folder.glob("*/*/_spec_.yaml")
    trials = sorted(proctor.Run(path.parent).trials(), key=lambda trial: trial.index)
    return [trial.answer for trial in trials]


def test_a_recorded_run_repeats_without_the_model(tmp_path: Path) -> None:
    """R-A5: N trials get their N recorded answers; a missing one is an infra error, named."""
    cassette = tmp_path / "calls.jsonl"
    options = ["--concurrency", "1", "--quiet"]
    with MockLLM(SCRIPT) as server:
        path = suite(tmp_path, server.base_url)
        first = ["--record", str(cassette), "--results", str(tmp_path / "live")]
        assert command(["run", str(path), *options, *first]) == 0
        assert len(server.requests) == 3
    again = ["--replay", str(cassette), "--results", str(tmp_path / "again")]
    assert command(["run", str(path), *options, *again]) == 0
    assert answers(tmp_path / "again") == answers(tmp_path / "live")
    assert len(set(answers(tmp_path / "live"))) == 3

    lines = cassette.read_text().splitlines()
    cassette.write_text("\n".join(line for line in lines if "answer 1" not in line) + "\n")
    missed = ["--replay", str(cassette), "--results", str(tmp_path / "missed")]
    assert command(["run", str(path), *options, *missed]) == 2
    (spec,) = (tmp_path / "missed").glob("*/*/_spec_.yaml")
    wrong = [t for t in proctor.Run(spec.parent).trials() if t.error is not None]
    assert len(wrong) == 1
    assert "chat/completions" in json.dumps(wrong[0].error.message if wrong[0].error else "")


AGENTS = {
    "openai": "{kind: chat, model: 'openai:gpt-4o-mini'}",
    "anthropic": "{kind: chat, model: 'anthropic:claude-haiku-4-5'}",
    "own key": "{kind: chat, model: 'openai:gpt-4o-mini', api_key_env: SHOP_KEY}",
    "pydantic-ai": "{kind: pydantic_ai, target: 'own_pydantic:agent'}",
    "openai-agents": "{kind: openai_agents, target: 'own_openai:agent'}",
    "process": "{kind: python, target: 'own_client:answer', isolation: process}",
}

MODULES = {
    "own_pydantic": "from pydantic_ai import Agent\nagent = Agent('openai:gpt-4o-mini')\n",
    "own_openai": "from agents import Agent\nagent = Agent(name='a', model='gpt-4o-mini')\n",
    "own_client": "import openai\n"
    "def answer(input):\n"
    "    asked = [{'role': 'user', 'content': input}]\n"
    "    reply = openai.OpenAI().chat.completions.create(model='m', messages=asked)\n"
    "    return reply.choices[0].message.content\n",
}


@pytest.mark.parametrize("agent", AGENTS)
def test_a_replay_needs_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str) -> None:
    """R-A5: what was recorded with a key runs where there is none, and leaves none behind."""
    for name, source in MODULES.items():
        (tmp_path / f"{name}.py").write_text(source)
    path = tmp_path / "suite.yaml"
    path.write_text(
        f"version: 1\nagent: {AGENTS[agent]}\n"
        "cases: [{id: c, input: 'Which city?', correctness: {expected_in_answer: [Paris]}}]\n"
    )
    options = ["--trials", "2", "--quiet"]
    with MockLLM(["Paris", "It is Paris."]) as server:
        for name, value in {**server.environment, "SHOP_KEY": "mock"}.items():
            monkeypatch.setenv(name, value)
        first = ["--record", str(tmp_path / "calls.jsonl"), "--results", str(tmp_path / "live")]
        assert command(["run", str(path), *options, *first]) == 0
    keys = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "SHOP_KEY")
    for name in keys:
        monkeypatch.delenv(name)
    again = ["--replay", str(tmp_path / "calls.jsonl"), "--results", str(tmp_path / "again")]
    assert command(["run", str(path), *options, *again]) == 0
    assert answers(tmp_path / "again") == answers(tmp_path / "live")
    assert not [name for name in keys if name in os.environ]


def test_more_trials_than_were_recorded_are_missed(tmp_path: Path) -> None:
    """R-A5: a trial that was not recorded is not given the answers of another."""
    cassette = tmp_path / "calls.jsonl"
    with MockLLM(SCRIPT) as server:
        path = suite(tmp_path, server.base_url)
        run = proctor.run(path, record_to=cassette, results=tmp_path / "live")
        assert run.exit_code == 0
    more = proctor.run(path, trials=4, replay_from=cassette, results=tmp_path / "again")
    assert (more.totals.passed, more.totals.infra_error) == (3, 1)
    (error,) = more.errors
    assert "was not recorded, although other trials of the case were" in error.error.message

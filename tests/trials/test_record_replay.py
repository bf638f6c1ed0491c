"""Record the model calls of a run, then run it again without the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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

"""Logs of group chats between agents."""

import json
from pathlib import Path
from typing import Any

import pytest

import proctor
from proctor.diagnose.methods import diagnose_offline

TEAM: list[dict[str, Any]] = [
    {"role": "human", "content": "How many albums did the band release before 1990?"},
    {"role": "Orchestrator (thought)", "content": "We need the list of albums of the band."},
    {"role": "Orchestrator (-> WebSurfer)", "content": "Find the albums of the band."},
    {"role": "WebSurfer", "content": "I assume that the band has 31 albums."},
    {"role": "Orchestrator (termination condition)", "content": "FINAL ANSWER: 31"},
]


@pytest.mark.parametrize("under", [None, "messages", "history", "conversation"])
def test_every_message_has_its_speaker(tmp_path: Path, under: str | None) -> None:
    """R-G8: bare, under `messages` or under `history`: speakers and unknown roles are kept, and the
    step of a diagnosis is the index in the list."""
    path = tmp_path / "log.json"
    path.write_text(json.dumps(TEAM if under is None else {under: TEAM, "question": "Albums?"}))
    (trace,) = proctor.load_traces(path)
    turns = trace.index.spans[1:]
    assert [(turn.agent_name, turn.attributes["message.index"]) for turn in turns] == [
        ("Orchestrator", 1),
        ("Orchestrator", 2),
        ("WebSurfer", 3),
        ("Orchestrator", 4),
    ]
    assert turns[1].handoff_to == "WebSurfer"
    assert trace.response == "FINAL ANSWER: 31"
    assert trace.query == (TEAM[0]["content"] if under is None else "Albums?")
    found = diagnose_offline(trace)
    assert found.decisive is not None
    assert (found.decisive.agent, found.decisive.step) == ("WebSurfer", 3)
    assert found.decisive.evidence in TEAM[3]["content"]


def test_names_win_over_roles_and_losses_are_noted(tmp_path: Path) -> None:
    """R-G8: speakers by name, whatever the role; what cannot be read is noted in the diagnosis."""
    log: list[Any] = [
        {"role": "user", "name": "Excel_Expert", "content": "You are given a task: add the rows."},
        {"role": "assistant", "name": "Excel_Expert", "content": "```python\nprint(1)\n```"},
        {"role": "user", "name": "Computer_terminal", "content": "exitcode: 0\nCode output: 412"},
        {"name": "Checker_Expert", "content": "The answer is 412. TERMINATE"},
        {"role": "assistant"},
    ]
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"history": log}))
    (trace,) = proctor.load_traces(path)
    names = [span.agent_name for span in trace.index.spans[1:]]
    assert names == ["Excel_Expert", "Excel_Expert", "Computer_terminal", "Checker_Expert"]
    found = diagnose_offline(trace)
    assert found.decisive is not None
    assert (found.decisive.agent, found.decisive.step) == ("Excel_Expert", 1)
    assert any("1 of 5 messages were not read" in note for note in found.notes)


def test_a_plain_conversation_is_none(tmp_path: Path) -> None:
    """R-T2: a user and an assistant with names, or with tools, are one agent as before."""
    log = [
        {"role": "user", "name": "alice", "content": "Hi"},
        {"role": "assistant", "name": "bot", "content": "Hello"},
        {"role": "user", "name": "alice", "content": "Bye"},
    ]
    path = tmp_path / "log.json"
    path.write_text(json.dumps(log))
    (trace,) = proctor.load_traces(path)
    assert [span.name for span in trace.index.spans] == ["agent", "chat"]

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


@pytest.mark.parametrize(
    "wrap",
    [
        lambda log: {"data": {"history": log}},
        lambda log: {"run": {"log": {"messages": log}}, "level": 2},
        lambda log: {"history": {"messages": log}},
        lambda log: {"history": [log]},
        lambda log: {"history": json.dumps(log)},
        lambda log: [{**m, "name": "assistant"} for m in log],
        lambda log: [{"source": m["role"], "content": m["content"]} for m in log],
    ],
)
def test_logs_inside_other_objects(tmp_path: Path, wrap: Any) -> None:
    """R-G8: a log is found below other keys, as text, and whatever its speakers are called; steps
    are indexes in the list all the same."""
    path = tmp_path / "log.json"
    path.write_text(json.dumps(wrap(TEAM)))
    (trace,) = proctor.load_traces(path)
    assert not trace.problems
    found = diagnose_offline(trace).decisive
    assert found is not None
    assert (found.agent, found.step) == ("WebSurfer", 3)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"page": "albums", "count": 31}, '{"page": "albums", "count": 31}'),
        (31, "31"),
        (True, "true"),
        (["I opened it.", "31 albums"], "I opened it.\n31 albums"),
        ([{"type": "text", "text": "31 albums"}, {"type": "image_url"}], "31 albums"),
        (None, ""),
    ],
)
def test_contents_of_any_type(tmp_path: Path, content: Any, text: str) -> None:
    """R-G8: a message whose content is no text is read, not dropped."""
    path = tmp_path / "log.json"
    path.write_text(json.dumps([*TEAM[:3], {"role": "WebSurfer", "content": content}, TEAM[4]]))
    (trace,) = proctor.load_traces(path)
    assert not trace.problems
    spoken = trace.index.spans[3]
    assert (spoken.agent_name, spoken.attributes["message.index"]) == ("WebSurfer", 3)
    said = spoken.output_messages[0].content or ""
    assert json.loads(said) == content if isinstance(content, dict) else said == text


def test_names_are_kept_as_they_are(tmp_path: Path) -> None:
    """R-G8: odd characters, numbers and parts in parentheses belong to a name, unless they are a
    remark; an expert and a terminal alone are a group chat."""
    log = [
        {"name": "Web/Surfer #1 (β)", "role": "assistant", "content": "I read that it is 13."},
        {"name": 7, "role": "assistant", "content": "I agree with this."},
        {"name": "Boss (thought)", "role": "assistant", "content": "Good."},
        {"name": "数据专家", "role": "assistant", "content": "The answer is 13."},
    ]
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"history": log}))
    (trace,) = proctor.load_traces(path)
    names = [span.agent_name for span in trace.index.spans[1:]]
    assert names == ["Web/Surfer #1 (β)", "7", "Boss", "数据专家"]
    pair = [
        {"name": "Data_Expert", "role": "assistant", "content": "```python\nprint(13)\n```"},
        {"name": "Computer_terminal", "role": "user", "content": "exitcode: 0\nCode output: 13"},
        {"name": "Data_Expert", "role": "assistant", "content": "The answer is 13."},
    ]
    path.write_text(json.dumps(pair))
    (trace,) = proctor.load_traces(path)
    found = diagnose_offline(trace).decisive
    assert found is not None
    assert (found.agent, found.step) == ("Data_Expert", 0)
    people = [
        {"name": "alice", "role": "user", "content": "Where is my order?"},
        {"name": "shop", "role": "assistant", "content": "It is on its way."},
    ]
    path.write_text(json.dumps(people))
    (trace,) = proctor.load_traces(path)
    assert len(trace.llm_calls) == 1, "a person with a name is no agent"

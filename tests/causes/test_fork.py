"""Forks: the prefix from the record, one change, the real agent from there on."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import proctor as command

import proctor
from proctor.background import run_sync
from proctor.causes.fork import checked_arm, edit_from, fork_result, prepare_fork, recorded_trace
from proctor.causes.why import run_why
from proctor.errors import ProctorError
from proctor.gateway.calls import _without_trial
from proctor.gateway.options import ForkArm, ForkEdit
from proctor.gateway.prefix import REPLAYED, Prefix
from proctor.llm import MockLLM
from proctor.llm.cassette import RecordedResponse
from proctor.llm.mock import ScriptRequest
from proctor.runs.folder import find_run
from proctor.runs.run import Run
from proctor.trace import Message, Span, SpanKind, Trace
from proctor.trials.session import run_session

TOOLS = '''
CALLS = []

def take(state, item: str) -> str:
    """Take an item out of the stock."""
    state["stock"][item] -= 1
    return f"{state['stock'][item]} left"

def price(item: str) -> str:
    """Return the price of an item."""
    CALLS.append(item)
    return f"{len(CALLS)} EUR"
'''


def clerk(request: ScriptRequest) -> Any:
    """A model that takes two bells, asks for the price, and answers by what it was shown."""
    said = [m.content or "" for m in request.messages if m.role == "user"]
    results = [m.content or "" for m in request.messages if m.role == "tool"]
    system = " ".join(m.content or "" for m in request.messages if m.role == "system")
    heat = request.body.get("temperature")
    if said[-1] == "And the price?":
        if len(results) < 3:
            return {"tool_calls": [{"name": "price", "arguments": {"item": "bell"}}]}
        return f"It costs {results[-1]} ({request.model}, {heat}, {system})."
    if len(results) < 2:
        return {"tool_calls": [{"name": "take", "arguments": {"item": "bell"}}]}
    hints = [text for text in said if text.startswith("Hint")]
    return f"Taken, {results[-1]}, {len(results)} results. {' '.join(hints)}"


def shop(folder: Path, server: MockLLM) -> Run:
    """One trial of a conversation with a stateful and a plain tool."""
    (folder / "shop_fork.py").write_text(TOOLS)
    tools = [{"python": "shop_fork:take"}, {"python": "shop_fork:price"}]
    agent = {"kind": "chat", "model": "openai:gpt-5", "base_url": server.base_url, "tools": tools}
    case = {
        "id": "buy",
        "turns": [{"user": "Take two bells."}, {"user": "And the price?"}],
        "state": {"document": {"stock": {"bell": 9}}},
        "correctness": {"expected_in_answer": ["100 EUR"]},
    }
    document = {"agents": {"clerk": {**agent, "system": "Sell."}}, "cases": [case]}
    (folder / "suite.yaml").write_text(yaml.safe_dump(document))
    return proctor.run(folder / "suite.yaml", trials=1, results=folder / "results")


def fork(run: Run, step: int, edit: ForkEdit | None = None, trials: int = 2) -> tuple[Run, Any]:
    """Continue the only trial of a run."""
    (trial, *_) = run.trials()
    arm = ForkArm(step=step, edit=edit)
    context, folder = prepare_fork(run, trial, {trial.agent: arm}, trials=trials)
    done = run_sync(run_session(context, folder), nested=True)
    return done, fork_result(done, run, trial, arm)


@pytest.mark.slow
def test_a_conversation_continues_from_the_record_with_one_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-G10: model answers and tool results are recorded ones, state is restored, edits arrive."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with MockLLM({"replies": [], "default": clerk}) as server:
        run = shop(tmp_path, server)
        (trial,) = run.trials()
        assert trial.answer == "It costs 1 EUR (gpt-5, None, Sell.)."
        first = len(server.requests)
        assert first == 5

        # Steps 1 and 2 take a bell, 3 answers, 4 asks for the price, 5 answers.
        done, found = fork(run, 4)
        assert (found.judged, found.diverged) == (2, 0), found.where
        assert (found.replayed_model_calls, found.replayed_tool_calls) == (3, 2)
        assert len(server.requests) == first + 4  # two live calls in each of two trials
        for one in done.trials():
            trace = recorded_trace(done, one)
            # The tools of the prefix ran again, because they change the state of their trial.
            assert trace.metadata["state"]["final"] == {"stock": {"bell": 7}}
            assert [bool(s.attributes.get(REPLAYED)) for s in trace.llm_calls] == [True] * 3 + [
                False
            ] * 2
            assert one.cost_usd == pytest.approx(sum(s.cost_usd or 0 for s in trace.llm_calls[3:]))
            same = [s.output_messages for s in recorded_trace(run, trial).llm_calls[:3]]
            assert [s.output_messages for s in trace.llm_calls[:3]] == same
        assert done.spec["fork_of"]["trial"] == trial.name
        assert done.spec["fork_of"]["run"] == run.run_id
        assert find_run("latest", tmp_path / "results") == run.path
        assert find_run("latest", done.path.parent) == done.path  # there are only forks

        def answer(step: int, edit: str) -> str:
            done, found = fork(run, step, edit_from(edit), trials=1)
            (one,) = done.trials()
            assert not found.diverged, found.where
            return f"{one.status} {one.answer}"

        assert answer(4, 'result="100 EUR"') == "passed It costs 100 EUR (gpt-5, None, Sell.)."
        assert answer(5, "answer=It costs 100 EUR.") == "passed It costs 100 EUR."
        assert "(gpt-5-mini, None" in answer(4, "model=openai:gpt-5-mini")
        assert "0.3, Sell.)" in answer(4, "temperature=0.3")
        assert "None, Give it away.)" in answer(4, "system=Give it away.")
        assert "It costs" in answer(4, 'call=price {"item": "horn"}')
        done, _ = fork(run, 3, edit_from("hint=Hint: be brief."), trials=1)
        (one,) = done.trials()
        turns = [s.output for s in recorded_trace(done, one).spans if s.name == "turn"]
        assert turns[0] == "Taken, 7 left, 2 results. Hint: be brief."
        done, _ = fork(run, 3, edit_from("remove=7 left"), trials=1)
        (one,) = done.trials()
        turns = [s.output for s in recorded_trace(done, one).spans if s.name == "turn"]
        assert turns[0] == "Taken, [removed], 2 results. "


@pytest.mark.slow
def test_a_trial_that_leaves_the_record_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-G10: an agent that changed since is not judged; impossible changes are errors."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with MockLLM({"replies": [], "default": clerk}) as server:
        run = shop(tmp_path, server)
        (trial,) = run.trials()
        spec = run.folder.read_spec()
        spec["suite"]["agents"]["clerk"]["system"] = "Sell more."
        run.folder.write_spec(spec)
        before = len(server.requests)
        _, found = fork(Run(run.path), 4)
        assert (found.judged, found.diverged) == (0, 2)
        assert "diverged at step 1: message 1 of the request" in found.where
        assert "recorded 'system: Sell.', now 'system: Sell more.'" in found.where
        assert len(server.requests) == before  # nothing was sent
        trace = recorded_trace(run, trial)
        for step, edit, why in (
            (9, None, "there is no step 9"),
            (3, "result=1", "calls no tool"),
            (6, "hint=x", "there is no step 6"),
            (3, "remove=9 left", "has the text to remove"),
        ):
            arm = ForkArm(step=step, edit=None if edit is None else edit_from(edit))
            with pytest.raises(ProctorError, match=why):
                checked_arm(trace, arm)
        with pytest.raises(ProctorError, match="there is no step 9") as wrong:
            run_why(run, trial, lambda *_: run, at=9)
        assert wrong.value.hint == "steps of the trial: 1 to 5"
    for text, why in (
        ("colour=red", "no change"),
        ("temperature=hot", "temperature: expected a number, got text"),
        ("hint=", "hint must not be empty"),
        ("call=read [1]", "arguments: expected a mapping, got a list"),
        ('call=read {"a"', "arguments: expected a mapping, got text"),
    ):
        with pytest.raises(ProctorError, match=why):
            edit_from(text)


PROGRAM = """
import json, os, pathlib, sys, urllib.request
question = json.load(sys.stdin)["input"]
folder = pathlib.Path(os.environ["WORK"])
messages = [{"role": "user", "content": question}]
while True:
    body = json.dumps({"model": "m", "max_tokens": 50, "messages": messages}).encode()
    request = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", body,
        {"content-type": "application/json", "x-api-key": os.environ["ANTHROPIC_API_KEY"]})
    content = json.load(urllib.request.urlopen(request))["content"]
    calls = [part for part in content if part["type"] == "tool_use"]
    messages.append({"role": "assistant", "content": content})
    if not calls:
        print(json.dumps({"answer": content[0]["text"]}))
        break
    for call in calls:
        with open(folder / "log.txt", "a") as log:
            log.write(call["input"]["text"] + "\\n")
        lines = (folder / "log.txt").read_text().split()
    messages.append({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": call["id"], "content": " ".join(lines)}]})
"""


def writer(request: ScriptRequest) -> Any:
    """A model that writes one and two, then repeats what the file holds."""
    results = [m.content or "" for m in request.messages if m.role == "tool"]
    hints = [m.content for m in request.messages if (m.content or "").startswith("Hint")]
    if len(results) < 2:
        text = ("one", "two")[len(results)]
        return {"tool_calls": [{"name": "write", "arguments": {"text": text}}]}
    return f"The file holds {results[-1]}. {hints}"


@pytest.mark.slow
def test_a_program_behind_the_gateway_continues(tmp_path: Path) -> None:
    """R-G10: its requests equal the recorded ones, its own tools restore the workspace."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "empty.txt").write_text("")
    with MockLLM({"replies": [], "default": writer}) as server:
        agent = {
            "kind": "command",
            "command": [sys.executable, str(tmp_path / "program.py")],
            "env": {"WORK": "{workspace}"},
            "gateway": {"upstream": {"anthropic": server.url}},
        }
        case = {
            "id": "write",
            "input": "go",
            "workspace": "files",
            "correctness": {"expected_in_answer": ["one two"]},
        }
        document = {"agents": {"program": agent}, "cases": [case]}
        (tmp_path / "suite.yaml").write_text(yaml.safe_dump(document))
        run = proctor.run(tmp_path / "suite.yaml", trials=1, results=tmp_path / "results")
        (trial,) = run.trials()
        assert trial.passed, trial.error
        assert len(server.requests) == 3
        done, found = fork(run, 3, trials=2)
        assert (found.passed, found.diverged, found.replayed_model_calls) == (2, 0, 2), found.where
        assert len(server.requests) == 5
        done, found = fork(run, 2, edit_from('call=write {"text": "three"}'), trials=1)
        (one,) = done.trials()
        assert one.answer == "The file holds one three. []", found.where
        done, found = fork(run, 2, edit_from("result=nothing"), trials=1)
        (one,) = done.trials()
        assert one.answer == "The file holds nothing. []", found.where
        done, found = fork(run, 3, edit_from("hint=Hint: count."), trials=1)
        (one,) = done.trials()
        assert one.answer == "The file holds one two. ['Hint: count.']", found.where
        # A program that behaves differently leaves the record.
        (tmp_path / "program.py").write_text(PROGRAM.replace('["text"] + ', '["text"] * 2 + '))
        _, found = fork(run, 3, trials=1)
        assert found.diverged == 1
        assert "diverged at step 2" in found.where
        assert "oneone" in found.where


@pytest.mark.slow
def test_a_world_continues_and_plain_code_is_tried_until_it_repeats_the_record(
    tmp_path: Path,
) -> None:
    """R-G10: actions before the step are the recorded ones, in the same world; chance is new."""
    run = proctor.run("mutualism.hidden_dependency", agent="random", trials=1, results=tmp_path)
    (trial,) = run.trials()
    acts = [(s.tool_name, s.tool_input) for s in recorded_trace(run, trial).spans if s.tool_name]
    done, found = fork(run, 4, edit_from('call=wait {"days": 10}'), trials=3)
    assert (found.judged, found.replayed_tool_calls) == (3, 3), found.where
    later: set[str] = set()
    for one in done.trials():
        mine = [(s.tool_name, s.tool_input) for s in recorded_trace(done, one).spans if s.tool_name]
        assert mine[:4] == [*acts[:3], ("wait", {"days": 10})]
        later.add(str(mine[4:]))
    assert len(later) == 3
    _, found = fork(run, 4, edit_from("call=fly"), trials=1)
    assert "the world does not offer call fly({})" in found.where

    # Plain code whose choices come from its seed: seeds are tried until the record is repeated.
    run = proctor.run(
        Path(proctor.__file__).parent / "demo" / "suite.yaml", agent="hasty", results=tmp_path
    )
    trial = next(t for t in run.trials() if t.case == "late-return" and not t.passed)
    arms = {"held": ForkArm(step=2), "again": ForkArm(step=1)}
    context, folder = prepare_fork(run, trial, arms, trials=12)
    done = run_sync(run_session(context, folder), nested=True)
    passed = {arm: [t.passed for t in done.trials() if t.agent == arm] for arm in arms}
    assert all(t.status.judged for t in done.trials())
    assert not any(passed["held"])
    assert 3 <= sum(passed["again"]) < 12
    read = {
        str(recorded_trace(done, t).tool_calls[0].arguments)
        for t in done.trials()
        if t.agent == "held"
    }
    assert read == {"{'name': 'shipping'}"}


def test_an_agent_that_ends_its_process_does_not_end_the_command(tmp_path: Path) -> None:
    """R-G10: a fork runs the agent in a worker, as `run` does: its exit is a failed trial."""
    (tmp_path / "agents.py").write_text(
        "import os\nfrom proctor import tool\n\n@tool\ndef look(x: str) -> str:\n    return x\n\n"
        "def answer(question: str) -> str:\n    look('a')\n"
        "    if os.environ.get('DIE'):\n        os._exit(0)\n    return 'no'\n"
    )
    case = {"id": "c", "input": "hi", "correctness": {"expected_in_answer": ["yes"]}}
    suite = {"agents": {"only": "agents:answer"}, "cases": [case]}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite))
    assert command("run", "suite.yaml", "--trials", "1", cwd=tmp_path).returncode == 1
    environ = {**os.environ, "DIE": "1"}
    done = command("fork", "c/only/0/0", "--at", "1", "--trials", "1", cwd=tmp_path, env=environ)
    assert "passed 0 of 1 judged trial" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("protocol", "url"),
    [
        ("ollama", "http://localhost:11434/api/chat"),
        ("bedrock", "https://bedrock-runtime.eu-west-1.amazonaws.com/model/m/converse"),
    ],
)
def test_a_protocol_that_cannot_be_replayed_says_what_to_do(protocol: Any, url: str) -> None:
    """R-G10: a fork of an agent that speaks Ollama's or Bedrock's own protocol is refused with a
    way out, not answered wrongly."""
    asked: dict[str, Any] = {"role": "user", "content": "Hi"}
    if protocol == "bedrock":
        asked["content"] = [{"text": "Hi"}]
    call = Span(
        span_id="a",
        trace_id="t",
        name="chat",
        kind=SpanKind.LLM,
        input_messages=(Message("user", "Hi"),),
        output_messages=(Message("assistant", "Hello"),),
    )
    trace = Trace(trace_id="t", spans=[call])
    prefix = Prefix(trace, {"a": 1}, ForkArm(step=2), str, 0, 1, in_process=True)
    reply = prefix.call(protocol, url, json.dumps({"model": "m", "messages": [asked]}).encode())
    assert isinstance(reply, RecordedResponse)
    assert b"cannot be replayed; use the endpoint" in reply.content
    assert prefix.diverged is not None


def test_the_folder_of_a_trial_is_the_same_wherever_it_ran() -> None:
    """R-G10: a trial recorded by a worker can be forked in process: its folder has a longer name
    there, which programs such as Codex write into every request."""
    texts = ["/tmp/proctor-0a1b2c3d4e5f-wjuliyb0/home/skills", "/tmp/proctor-d0qoay0j/home/skills"]
    assert len({_without_trial(text) for text in texts}) == 1

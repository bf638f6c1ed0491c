"""Turns: every kind of agent that can hold a session, checks of turns, saved values."""

import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from commands import proctor as command

import proctor
from proctor.agents.base import AgentRequest
from proctor.agents.registry import agent_config
from proctor.agents.session import AgentSession
from proctor.conversations import turn_of
from proctor.llm import MockLLM
from proctor.spec import SpecError, load_suite
from proctor.trace.render import tree_text

REMEMBERING = [
    {"when": "what is my name", "text": "Ada", "times": "forever"},
    {"text": "Hello!", "times": "forever"},
]


class Stateful:
    """One instance has a whole conversation."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, text: str) -> str:
        self.seen.append(text)
        return " / ".join(self.seen)


def with_history(text: str, history: list[dict[str, str]]) -> str:
    return " / ".join([*(m["content"] for m in history if m["role"] == "user"), text])


def two_turns(**more: Any) -> proctor.Case:
    turns = ["one", {"user": "two", "correctness": {"expected_in_answer": "one / two"}}]
    return proctor.Case.model_validate({"turns": turns, **more})


@pytest.mark.parametrize("agent", [Stateful, with_history])
def test_an_agent_in_python_has_its_history(agent: Any) -> None:
    """R-N8: an object keeps its state for one conversation; a function receives the history."""
    suite = proctor.Suite(cases=[two_turns(id="a"), two_turns(id="b")])
    run = proctor.evaluate(suite, agent=agent, concurrency=2)
    for trial in run.trials:
        assert trial.passed, trial.error
        assert [(check.id, check.status) for check in trial.checks] == [
            ("turn2.expected_in_answer", "pass")
        ]


def test_a_turn_is_checked_by_its_own_part_of_the_trace() -> None:
    """R-N8: any check may follow a turn; tool calls of other turns do not count for it."""

    def desk(text: str) -> str:
        with proctor.capture.tool_call("look_up" if "order" in text else "greet", {"q": text}):
            return f"answer to {text}"

    case = proctor.Case.model_validate(
        {
            "turns": [
                {"user": "hi", "path": {"expected_tools": ["greet"], "max_tool_calls": 1}},
                {
                    "user": "my order",
                    "path": {"forbidden_tools": ["greet"], "blocking": True},
                    "cost": {"max_latency_ms": 60_000},
                    "checks": [lambda ctx: ctx.answer == "answer to my order"],
                    "assertions": [{"type": "tool_called", "tool": "greet"}],
                },
            ],
            "correctness": {"expected_in_answer": "my order"},
        }
    )
    run = proctor.evaluate(proctor.Suite(cases=[case]), agent=desk)
    statuses = {check.id: check.status for check in run.trials[0].checks}
    assert statuses == {
        "expected_in_answer": "pass",
        "turn2.<lambda>": "pass",
        "turn2.tool_called:greet": "warn",
        "turn1.expected_tools": "pass",
        "turn1.max_tool_calls": "pass",
        "turn2.forbidden_tools": "pass",
        "turn2.max_latency_ms": "pass",
    }


def test_every_answer_of_a_conversation_can_be_judged() -> None:
    """R-N8: a leak in an earlier turn is found although the user decides how many there are."""
    script = {"start": {"say": "hi", "next": [{"to": "more"}]}, "more": {"say": "ok", "end": True}}
    leaks = {"path": "turns[?contains(answer, 'SECRET')]", "eq": []}
    case = proctor.Case.model_validate(
        {"user": {"script": script}, "correctness": {"jmespath": leaks}}
    )
    for first, status in (("the SECRET rule", "hard_fail"), ("hello", "passed")):

        def desk(text: str, first: str = first) -> str:
            return first if text == "hi" else "bye"

        (trial,) = proctor.evaluate(proctor.Suite(cases=[case]), agent=desk).trials
        assert trial.status == status, trial.checks


def test_a_judge_reads_the_conversation_and_the_turn_it_judges() -> None:
    """R-N8 R-C7: not the first message alone, which it would take for the question."""
    rule = {"llm_judge": "Is it kind?"}
    case = proctor.Case.model_validate(
        {"turns": ["one", {"user": "two", "correctness": rule}, "three"], "correctness": rule}
    )
    verdict = {"json": {"rationale": "fine", "score": 5}, "times": "forever"}
    with MockLLM([verdict]) as server:
        judge = {"model": "openai:gpt-4o-mini", "base_url": server.base_url, "cache": False}
        suite = proctor.Suite.model_validate({"judge": judge, "cases": [case]})
        (trial,) = proctor.evaluate(suite, agent=str.upper).trials
        read = [request.messages[-1].content for request in server.requests]
    assert trial.passed, trial.checks
    inputs = [text.split(">>>\n")[1].split("\n<<<")[0] for text in read]
    assert sorted(inputs) == ["User: one\nAgent: ONE\nUser: two\nAgent: TWO\nUser: three", "two"]


def test_values_of_earlier_answers_go_into_later_messages() -> None:
    """R-N8: a value that is missing ends the conversation, and says so in later turns."""

    def agent(text: str) -> str:
        return "your order is #4711" if text == "which order?" else f"you said {text}"

    turns = [
        {"user": "which order?", "save": {"order": r"#(\d+)"}},
        {"user": "cancel {order}", "correctness": {"expected_in_answer": "cancel 4711"}},
    ]
    suite = proctor.Suite.model_validate({"cases": [{"turns": turns}]})
    assert proctor.evaluate(suite, agent=agent).trials[0].passed
    (trial,) = proctor.evaluate(suite, agent=lambda text: "none").trials
    (check,) = trial.checks
    assert (
        check.reason == "the conversation ended before turn 2: the answer of turn 1 has no 'order'"
    )


def test_a_chat_agent_sends_the_whole_conversation() -> None:
    """R-N8 R-A2: later turns contain earlier messages, tool calls and results included."""
    script = [
        {"when": {"tool_result": "sunny"}, "text": "It is sunny."},
        {"when": "weather", "tool_calls": [{"name": "weather", "arguments": {}}]},
        {"text": "Bye."},
    ]
    with MockLLM(script) as server:
        chat = {
            "kind": "chat",
            "model": "openai:gpt-4o-mini",
            "base_url": server.base_url,
            "system": "Be brief.",
            "tools": [{"name": "weather", "reply": "sunny"}],
        }
        case = proctor.Case.model_validate({"turns": ["the weather?", "thanks"]})
        run = proctor.evaluate(proctor.Suite(cases=[case]), agents={"chat": agent_config(chat)})
        assert run.trials[0].answer == "Bye.", run.trials[0].error
        roles = [message.role for message in server.requests[-1].messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]


class Service(BaseHTTPRequestHandler):
    """A service with sessions."""

    seen: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append(body)
        sent = json.dumps({"answer": " / ".join(m["content"] for m in body["messages"])}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: Any) -> None:
        pass


def test_a_service_gets_a_session_id_and_the_messages() -> None:
    """R-N8 R-A2: one session id per conversation, also in a custom body."""
    handler = type("Handler", (Service,), {"seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        plain = {"kind": "http", "url": url}
        custom = {**plain, "body": {"messages": "{messages}", "key": "s-{session}"}}
        case = proctor.Case.model_validate({"turns": ["one", "two"]})
        for options in (plain, custom):
            run = proctor.evaluate(
                proctor.Suite(cases=[case]), agents={"service": agent_config(options)}
            )
            assert run.trials[0].answer == "one / one / two", run.trials[0].error
        server.shutdown()
    first, second, third, fourth = handler.seen
    assert first["session"] == second["session"]
    assert second["messages"][1] == {"role": "assistant", "content": "one"}
    assert third["key"] == fourth["key"] != f"s-{first['session']}"
    assert third["key"].startswith("s-")


LINES = """
import json, sys
seen = []
for line in sys.stdin:
    job = json.loads(line)
    seen.append(job["input"])
    print("some text")
    print(json.dumps({"answer": " / ".join(seen)}), flush=True)
"""
ONCE = """
import json
job = json.loads(input())
asked = [m["content"] for m in job["history"] if m["role"] == "user"]
print(json.dumps({"answer": " / ".join([*asked, job["input"]])}))
"""


@pytest.mark.parametrize("program", [LINES, ONCE, "import sys; sys.exit(3)"])
def test_a_program_gets_a_line_for_each_turn(tmp_path: Path, program: str) -> None:
    """R-N8 R-A2: one process has the whole conversation, or one for each turn with the history."""
    (tmp_path / "agent.py").write_text(program)
    config = agent_config(
        {"kind": "command", "command": [sys.executable, str(tmp_path / "agent.py")]}
    )
    (trial,) = proctor.evaluate(proctor.Suite(cases=[two_turns()]), agents={"a": config}).trials
    if "exit" in program:
        assert trial.category == "agent_error"
        assert "exited with code 3" in str(trial.error)
    else:
        assert trial.passed, trial.error


THROUGH_THE_GATEWAY = """
import json, os, sys, urllib.request
messages = []
for line in sys.stdin:
    messages.append({"role": "user", "content": json.loads(line)["input"]})
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "gpt-4o-mini", "messages": messages}).encode(),
        {"content-type": "application/json", "authorization": "Bearer k"},
    )
    messages.append(json.load(urllib.request.urlopen(request))["choices"][0]["message"])
    print(json.dumps({"answer": messages[-1]["content"]}), flush=True)
"""


def test_a_program_holds_a_conversation_through_the_gateway(tmp_path: Path) -> None:
    """R-N8 R-N2: one process, and one address at the gateway, for all turns of a conversation."""
    (tmp_path / "agent.py").write_text(THROUGH_THE_GATEWAY)
    command = [sys.executable, str(tmp_path / "agent.py")]
    turns = ["my name is Ada", "hm", {"user": "what is my name", "cost": {"max_llm_calls": 1}}]
    case = proctor.Case.model_validate(
        {"turns": turns, "correctness": {"exact_match": "Ada"}, "cost": {"max_llm_calls": 3}}
    )
    with MockLLM(REMEMBERING) as server:
        gateway = {"upstream": {"openai": server.base_url}}
        config = agent_config({"kind": "command", "command": command, "gateway": gateway})
        (trial,) = proctor.evaluate(proctor.Suite(cases=[case]), agents={"a": config}).trials
    assert trial.passed, trial.error
    assert {(check.id, check.status) for check in trial.checks} == {
        ("exact_match", "pass"),
        ("max_llm_calls", "pass"),
        ("turn3.max_llm_calls", "pass"),
    }


@pytest.mark.parametrize(
    ("agent", "named"),
    [
        ({"kind": "python", "target": "a:b", "isolation": "process"}, "`turns` and `state`"),
        ({"kind": "http", "url": "http://127.0.0.1:9/"}, "`state`"),
        ({"kind": "command", "command": sys.executable}, "`state`"),
    ],
)
def test_an_agent_that_cannot_use_a_part_of_a_case_is_refused(
    tmp_path: Path, agent: dict[str, Any], named: str
) -> None:
    """R-N8: it would fail for what it never gets, so neither `validate` nor `run` accepts it."""
    case = {"id": "c", "turns": ["one"], "state": {"document": {}, "expect": {"writes": {"x": 1}}}}
    path = tmp_path / "suite.yaml"
    path.write_text(json.dumps({"agents": {"a": agent}, "cases": [case]}))
    (tmp_path / "a.py").write_text("def b(text, state): state['x'] = 1; return text")
    expected = f"agent 'a' ({agent['kind']}) cannot use {named} of 'c'"
    with pytest.raises(proctor.ProctorError, match=re.escape(expected)):
        proctor.evaluate(path)
    checked = command("validate", str(path))
    assert checked.returncode == 2
    assert "suite.yaml:1:" in checked.stderr
    assert expected in checked.stderr


async def framework_turns(kind: str, target: Any) -> str:
    config = agent_config({"kind": kind, "target": "x:y"})
    config._object = target
    session = AgentSession("s")
    whole = AgentRequest("x", trace_id="t")
    reply = await config.create().run(whole.turn("my name is Ada", session, None))
    session.history += [
        {"role": "user", "content": "my name is Ada"},
        {"role": "assistant", "content": reply.answer},
    ]
    return (await config.create().run(whole.turn("what is my name", session, None))).answer


@pytest.mark.slow
async def test_frameworks_receive_their_own_messages() -> None:
    """R-N8: pydantic-ai, LangGraph and OpenAI Agents get native message lists, not JSON."""
    import agents as sdk
    from langchain_core.messages import AIMessage
    from langgraph.graph import START, MessagesState, StateGraph
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    with MockLLM(REMEMBERING) as server:
        provider = OpenAIProvider(base_url=server.base_url, api_key="k")
        agent = Agent(OpenAIChatModel("gpt-4o-mini", provider=provider))
        assert await framework_turns("pydantic_ai", agent) == "Ada"
        assert [m.role for m in server.requests[-1].messages] == ["user", "assistant", "user"]
        client = AsyncOpenAI(base_url=server.base_url, api_key="k")
        model = sdk.OpenAIChatCompletionsModel("gpt-4o-mini", client)
        assert await framework_turns("openai_agents", sdk.Agent("a", model=model)) == "Ada"
        assert [m.role for m in server.requests[-1].messages] == ["user", "assistant", "user"]
        await client.close()

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{len(state['messages'])} messages")]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    assert await framework_turns("langgraph", graph.compile()) == "3 messages"


def test_a_recorded_conversation_is_judged_like_a_live_one(tmp_path: Path) -> None:
    """R-N8 R-A2: checks of turns need the trace alone; a turn is a part of it."""
    suite = proctor.Suite(cases=[two_turns()])
    run = proctor.run(suite, agent=with_history, trials=1, results=tmp_path)
    (trace,) = proctor.load_traces(run.path / "traces")
    # What was said, and why it ended, is in `trace show`.
    assert "one → one" in tree_text(trace)
    assert "  ended    the last turn" in tree_text(trace)
    part = turn_of(trace, 2)
    assert part is not None
    assert (part.query, part.response) == ("two", "one / two")
    assert turn_of(trace, 3) is None
    results = proctor.check(trace, suite.cases[0])
    assert [(each.id, each.status) for each in results] == [("turn2.expected_in_answer", "pass")]


def test_conversations_in_yaml_have_located_errors(tmp_path: Path) -> None:
    """R-N8 R-S1: a case needs an input or a conversation, not two; bad patterns are refused."""
    path = tmp_path / "suite.yaml"
    path.write_text(
        "agent: a:b\ncases:\n"
        "  - turns: [{user: hi, save: {x: '('}}]\n"
        "  - {id: b, turns: [hi], user: {script: {a: {say: hi}}}}\n"
        "  - {id: c, user: {script: {a: {say: hi, next: [{to: nowhere}]}}}}\n"
        "  - {id: d, user: {goal: x}}\n"
        "  - {id: e, user: {script: {a: {say: hi, save: {x: '('}}}}}\n"
        "  - {id: f, user: {knows: {order: W1}, script: {a: {say: 'It is {ordre}, {x}.'}}}}\n"
        "  - {id: g, turns: [{user: hi, save: {date: '.'}}, 'On {dat}?']}\n"
    )
    with pytest.raises(SpecError) as caught:
        load_suite(path)
    text = "\n".join(str(problem) for problem in caught.value.problems)
    for line, message in (
        (3, "not a regular expression"),
        (4, "write `turns` or `user`, not both"),
        (5, "there is no state 'nowhere'"),
        (6, "either a `script` or a `model`"),
        (7, "x: not a regular expression"),
        (8, "no value is called 'ordre' (did you mean 'order'?)"),
        (9, "no value is called 'dat' (did you mean 'date'?)"),
    ):
        assert any(f":{line}:" in each and message in each for each in text.splitlines()), (
            line,
            text,
        )

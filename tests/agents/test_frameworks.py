"""Agents of pydantic-ai, LangGraph and the OpenAI Agents SDK: the real packages, offline."""

import asyncio
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

from proctor.agents.base import AgentError, AgentRequest
from proctor.agents.registry import agent_config
from proctor.errors import ProctorError
from proctor.llm import MockLLM
from proctor.llm.retry import transient
from proctor.trace import SpanStatus, Trace
from proctor.trace.capture import capture

HERE = Path(__file__).parent
_ids = itertools.count()


def call(name, **arguments):
    return {"tool_calls": [{"name": name, "arguments": arguments, "id": f"call_{next(_ids)}"}]}


@pytest.fixture(autouse=True)
def _no_server(monkeypatch):
    monkeypatch.setenv("MOCK_URL", "http://127.0.0.1:9/v1")


async def run(kind, target, question: Any = "How is Paris?", **options) -> tuple[Any, Trace]:
    config = agent_config(
        {"kind": kind, "target": f"framework_agents:{target}", "factory": True, **options},
        base_dir=HERE,
    )
    with capture(question) as trace:
        reply = await config.create().run(AgentRequest(question, case="c"))
        trace.response = reply.answer
    return reply, trace


def parent_name(trace: Trace, name: str) -> str:
    node = trace.first({"name_equals": name})
    assert node is not None
    assert node.parent is not None
    return node.parent.span.name


# -- pydantic-ai ---------------------------------------------------------------------------------


async def test_pydantic_ai(monkeypatch):
    """R-A2 R-T6: an agent runs as it is; its model and tool calls, and steps inside, are spans."""
    first = {**call("weather", city="Paris"), "usage": {"input": 30, "output": 6}}
    with MockLLM([first, {"text": "Sunny.", "usage": {"input": 50, "output": 2}}]) as server:
        monkeypatch.setenv("MOCK_URL", server.base_url)
        reply, trace = await run("pydantic_ai", "pydantic_agent")
    assert reply.answer == "Sunny."
    assert [(s.input_tokens, s.output_tokens) for s in trace.llm_calls] == [(30, 6), (50, 2)]
    (tool,) = trace.tool_calls
    assert (tool.name, tool.arguments, tool.result) == (
        "weather",
        {"city": "Paris"},
        "sunny in Paris",
    )
    step = trace.first({"name_equals": "look out of the window"})
    assert step is not None
    assert step.parent is not None
    assert step.parent.span.tool_name == "weather"
    assert trace.llm_calls[0].input_messages[-1].content == "How is Paris?"


async def test_pydantic_ai_dependencies_and_structured_output(monkeypatch):
    """R-A2: dependencies are made per trial; an output that is a model is answered as JSON."""
    answer = '{"name": "Paris", "people": 2000000}'
    structured = {"tool_calls": [{"name": "final_result", "arguments": answer, "id": "x"}]}
    with MockLLM([call("whoami"), "ok", structured]) as server:
        monkeypatch.setenv("MOCK_URL", server.base_url)
        _, trace = await run("pydantic_ai", "pydantic_agent", deps="framework_agents:user")
        reply, _ = await run("pydantic_ai", "structured_agent")
    assert trace.tool_calls[0].result == "you are Ada"
    assert reply.output == {"name": "Paris", "people": 2_000_000}
    assert reply.answer == '{"name":"Paris","people":2000000}'


@pytest.mark.parametrize(
    ("kind", "target"), [("pydantic_ai", "pydantic_agent"), ("openai_agents", "sdk_agent")]
)
async def test_a_provider_that_is_busy_is_worth_another_try(monkeypatch, kind, target):
    """R-R3: a 429 inside a framework is known for what it is."""
    with MockLLM([{"error": {"status": 429}, "times": "forever"}]) as server:
        monkeypatch.setenv("MOCK_URL", server.base_url)
        with pytest.raises(Exception, match="429") as raised:
            await run(kind, target)
    reason = transient(raised.value)
    assert reason is not None
    assert reason.rate_limited


# -- LangGraph -----------------------------------------------------------------------------------


async def test_langgraph():
    """R-A2 R-T6: nodes, model calls with messages and tokens, and tools are spans in one tree."""
    reply, trace = await run("langgraph", "weather_graph")
    assert reply.answer == "It is sunny in Paris."
    first, second = trace.llm_calls
    assert (first.input_tokens, first.output_tokens, first.model) == (20, 5, "gpt-4o-mini")
    assert second.input_tokens is None
    assert [m.role for m in second.input_messages] == ["user", "assistant", "tool"]
    assert first.output_messages[0].tool_calls[0].arguments == {"city": "Paris"}
    (tool,) = trace.tool_calls
    assert (tool.name, tool.arguments, tool.result) == (
        "weather",
        {"city": "Paris"},
        "sunny in Paris",
    )
    assert parent_name(trace, "weather") == "tools"
    assert parent_name(trace, "chat") == "think"
    assert all(span.end_ns is not None for span in trace.spans)


async def test_langgraph_tool_and_model_failures():
    """R-A2: a tool that failed is an error span though the graph went on; a model's is raised."""
    reply, trace = await run("langgraph", "failing_tool_graph")
    assert reply.answer == "I do not know that city."
    (tool,) = trace.tool_calls
    assert tool.status == SpanStatus.ERROR
    kept: list[Trace] = []
    config = {"kind": "langgraph", "target": "framework_agents:failing_model_graph"}
    agent = agent_config({**config, "factory": True}, base_dir=HERE).create()

    async def trial():
        with capture("q") as trace:
            kept.append(trace)
            await agent.run(AgentRequest("q"))

    with pytest.raises(RuntimeError):
        await trial()
    assert {s.name for s in kept[0].errors} >= {"chat", "think"}


async def test_langgraph_state():
    """R-A2: a mapping is the state itself, and the answer may stand anywhere in it."""
    state = {"messages": [{"role": "user", "content": "How is Paris?"}]}
    reply, _ = await run("langgraph", "weather_graph", state, output_key="verdict")
    assert reply.answer == "thought"
    with pytest.raises(AgentError, match="no 'verdikt'"):
        await run("langgraph", "weather_graph", state, output_key="verdikt")
    with pytest.raises(Exception, match=r"[Rr]ecursion"):
        await run("langgraph", "weather_graph", recursion_limit=1)


# -- OpenAI Agents -------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["sdk_agent", "sdk_responses_agent"])
async def test_openai_agents(monkeypatch, target):
    """R-A2 R-T6: the SDK's own spans become the trial's, with messages, tokens, tools, errors."""
    first = {**call("forecast", city="Paris"), "usage": {"input": 30, "output": 6}}
    script = [first, call("forecast", city="Atlantis"), {"text": "Rain."}]
    with MockLLM(script) as server:
        monkeypatch.setenv("MOCK_URL", server.base_url)
        reply, trace = await run("openai_agents", target)
    assert reply.answer == "Rain."
    assert len(trace.llm_calls) == 3
    one = trace.llm_calls[0]
    assert (one.model, one.input_tokens, one.output_tokens) == ("gpt-4o-mini", 30, 6)
    assert one.input_messages[-1].content == "How is Paris?"
    assert one.output_messages[0].tool_calls[0].name == "forecast"
    good, bad = trace.tool_calls
    assert (good.arguments, good.result) == ({"city": "Paris"}, "rain in Paris")
    assert bad.status == SpanStatus.ERROR
    assert parent_name(trace, "forecast") == "weatherman"


async def test_openai_agents_handoff(monkeypatch):
    """R-A2: a handoff is seen as one, with who hands over to whom."""
    with MockLLM([call("transfer_to_expert"), "Ask me anything."]) as server:
        monkeypatch.setenv("MOCK_URL", server.base_url)
        reply, trace = await run("openai_agents", "sdk_team")
    assert reply.answer == "Ask me anything."
    (handoff,) = trace.handoffs
    assert (handoff.agent_name, handoff.handoff_to) == ("desk", "expert")
    assert [s.agent_name for s in trace.of_kind("agent") if s.agent_name] == ["desk", "expert"]


async def test_openai_agents_leave_the_users_tracing_alone(monkeypatch):
    """R-A2: spans of a trial go to the trial only; the user's processors get all others."""
    import agents as sdk

    seen: list[str] = []

    class Users(sdk.TracingProcessor):
        def on_trace_start(self, trace): ...
        def on_trace_end(self, trace):
            seen.append(trace.name)

        def on_span_start(self, span): ...
        def on_span_end(self, span): ...
        def shutdown(self): ...
        def force_flush(self): ...

    sdk.set_trace_processors([Users()])
    with MockLLM(["one"]) as server:
        monkeypatch.setenv("MOCK_URL", server.base_url)
        await run("openai_agents", "sdk_agent")
        assert seen == []
        with sdk.trace("mine"):
            pass
    assert seen == ["mine"]


# -- all -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("pydantic_ai", "pydantic_agent"),
        ("openai_agents", "sdk_agent"),
        ("langgraph", "weather_graph"),
    ],
)
async def test_concurrent_trials_do_not_mix(monkeypatch, kind, target):
    """R-T6: forty concurrent trials have their own spans only."""
    reply = {**call("none"), "tool_calls": [], "text": "fine", "times": "forever"}
    with MockLLM([reply]) as server:
        monkeypatch.setenv("MOCK_URL", server.base_url)
        done = await asyncio.gather(*(run(kind, target, f"question {i}") for i in range(40)))
    for i, (_, trace) in enumerate(done):
        asked = [m.content for s in trace.llm_calls for m in s.input_messages if m.role == "user"]
        assert asked
        assert set(asked) == {f"question {i}"}
        assert {s.trace_id for s in trace.spans} == {trace.trace_id}


@pytest.mark.parametrize(
    ("kind", "package", "command"),
    [
        ("pydantic_ai", "pydantic_ai", 'pip install "pydantic-ai-slim>=1.0"'),
        ("langgraph", "langchain_core", 'pip install "langgraph>=1.0"'),
        ("openai_agents", "agents", 'pip install "openai-agents>=0.6"'),
    ],
)
async def test_a_framework_that_is_not_installed(monkeypatch, kind, package, command):
    """R-A2: one line with the pip command, before the user's module fails on the import."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(AgentError, match="not installed") as raised:
        await run(kind, "not_an_agent")
    assert raised.value.hint == command


@pytest.mark.parametrize("kind", ["pydantic_ai", "langgraph", "openai_agents"])
async def test_a_target_that_is_something_else(kind):
    """R-A2: what was found is said; a function is taken for a factory that was not marked."""
    with pytest.raises(ProctorError, match=r"is not an? .* but a dict"):
        await run(kind, "not_an_agent", factory=False)
    with pytest.raises(ProctorError) as raised:
        await run(kind, "weather_graph", factory=False)
    assert raised.value.hint == "set `factory: true` if it makes one"


async def test_a_graph_that_was_not_compiled():
    """R-A2: an uncompiled graph, the most common mistake with LangGraph, is named."""
    with pytest.raises(ProctorError, match="compile"):
        await run("langgraph", "uncompiled", factory=False)


# -- handed over ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"question": "How is it?"}, "How is it?"),
        ({"city": "Oslo", "day": 2}, '{"city":"Oslo","day":2}'),
        ({"messages": [{"role": "user", "content": "As it is"}]}, "As it is"),
        ({"messages": [], "question": "How is it?"}, "How is it?"),
        ([{"role": "user", "content": "First"}, {"role": "user", "content": "Then"}], "Then"),
    ],
)
async def test_an_input_reaches_the_model_of_a_graph(value, text):
    """R-A2: keys that a graph does not have are a message to its model, not dropped; a list of
    messages is the conversation.
    """
    from langgraph.graph import START, MessagesState, StateGraph

    from proctor.agents.frameworks._langgraph import LangGraphAgentConfig

    def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [{"role": "assistant", "content": state["messages"][-1].content}]}

    graph = StateGraph(MessagesState).add_node("say", node).add_edge(START, "say").compile()
    with capture(value):
        reply = await LangGraphAgentConfig.of(graph).run(AgentRequest(value, case="c"))
    assert reply.answer == text


async def test_a_graph_without_messages_refuses_other_keys():
    """R-A2: a mapping of which a graph knows nothing is an error that names its keys."""
    from typing import TypedDict

    from langgraph.graph import START, StateGraph

    from proctor.agents.frameworks._langgraph import LangGraphAgentConfig

    class State(TypedDict):
        city: str

    graph = StateGraph(State).add_node("n", lambda state: state).add_edge(START, "n").compile()
    agent = LangGraphAgentConfig.of(graph)
    with capture(None), pytest.raises(AgentError, match="no 'town' in its input") as caught:
        await agent.run(AgentRequest({"town": "Oslo"}, case="c"))
    assert "city" in (caught.value.hint or "")


async def test_objects_are_agents_as_they_are(monkeypatch):
    """R-A2: in Python an object of a framework is handed over without a word of its kind."""
    from framework_agents import pydantic_agent, sdk_agent, weather_graph

    with MockLLM(["Sunny.", "Sunny."]) as server:
        monkeypatch.setenv("MOCK_URL", server.base_url)
        kinds: list[Any] = []
        objects: list[Any] = [pydantic_agent(), sdk_agent(), weather_graph()]
        for made in objects:
            config = agent_config(made)
            with capture("How is Paris?"):
                reply = await config.create().run(AgentRequest("How is Paris?", case="c"))
            assert "sunny" in reply.answer.lower()
            kinds.append(config.kind)
    assert kinds == ["pydantic_ai", "openai_agents", "langgraph"]


def test_an_object_under_the_wrong_kind_is_told_its_own():
    """R-A2: `agent: module:object` of a framework says what to write instead."""
    config = agent_config({"target": "framework_agents:made"}, base_dir=HERE)
    with pytest.raises(ProctorError, match="is not a function but an object of type Agent") as told:
        config.create()
    assert told.value.hint == "write {kind: pydantic_ai, target: framework_agents:made}"
    with pytest.raises(ProctorError, match="an object of type int is not an agent"):
        agent_config(7)  # type: ignore[arg-type]

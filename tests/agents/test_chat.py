"""Chat agents: a real client library against the mock server."""

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proctor.agents.base import AgentError, AgentRequest
from proctor.agents.registry import UnknownAgentError, agent_config
from proctor.errors import ProctorError
from proctor.llm import MockLLM, ModelError
from proctor.llm.retry import transient
from proctor.trace import SpanStatus, Trace
from proctor.trace.capture import capture

SEARCH = {
    "name": "search",
    "description": "Search the shop.",
    "parameters": {
        "type": "object",
        "properties": {"q": {"type": "string"}},
        "required": ["q"],
    },
}


def calls(*pairs):
    return {
        "tool_calls": [
            {"name": name, "arguments": arguments, "id": f"call_{i}"}
            for i, (name, arguments) in enumerate(pairs)
        ]
    }


async def talk(server, question: Any = "hi", *, trials=1, params=None, seed=7, **options):
    """The replies and traces of some trials of one chat agent."""
    config = agent_config(
        {"kind": "chat", "model": "openai:gpt-4o-mini", "base_url": server.base_url, **options},
        base_dir=Path(__file__).parent,
    )
    done = []
    for index in range(trials):
        request = AgentRequest(question, case="c", index=index, seed=seed, params=params)
        with capture(question) as trace:
            reply = await config.create().run(request)
        done.append((reply, trace))
    return done if trials > 1 else done[0]


def tool_results(server: MockLLM) -> list[Any]:
    """Return the tool results in the last request to the model."""
    return [m.content for m in server.requests[-1].messages if m.role == "tool"]


async def test_a_conversation_with_a_tool_is_recorded():
    """R-A2 R-A4: system prompt, tools and settings go out; each call is a span with its facts."""
    first = {**calls(("search", {"q": "shoes"})), "usage": {"input": 40, "output": 9}}
    with MockLLM([first, {"text": "Red shoes.", "usage": {"input": 60, "output": 4}}]) as server:
        reply, trace = await talk(
            server,
            "find shoes",
            system="You sell shoes.",
            tools=[{**SEARCH, "reply": {"found": ["red"]}}],
            temperature=0.5,
            max_tokens=200,
        )
        asked = server.requests
    assert reply.answer == "Red shoes."
    assert [m.role for m in asked[0].messages] == ["system", "user"]
    assert asked[0].tools == ("search",)
    assert asked[0].body["temperature"] == 0.5
    assert asked[0].body["seed"] == 7
    assert 200 in (asked[0].body.get("max_tokens"), asked[0].body.get("max_completion_tokens"))
    assert [m.role for m in asked[1].messages] == ["system", "user", "assistant", "tool"]
    assert asked[1].messages[-1].content == '{"found":["red"]}'
    one, two = trace.llm_calls
    assert (one.input_tokens, one.output_tokens) == (40, 9)
    assert one.output_messages[0].tool_calls[0].name == "search"
    assert [m.role for m in two.input_messages] == ["system", "user", "assistant", "tool"]
    assert two.output_messages[0].content == "Red shoes."
    (tool,) = trace.tool_calls
    assert (tool.name, tool.arguments, tool.result) == (
        "search",
        {"q": "shoes"},
        {"found": ["red"]},
    )


async def test_an_endpoint_of_ones_own_has_no_price():
    """R-A4: the price of a model behind someone else's address is unknown, never the list price."""
    from proctor.llm.prices import price_trace

    with MockLLM([{"text": "hi", "usage": {"input": 1000, "output": 1000}}]) as server:
        _, trace = await talk(server)
    price_trace(trace)
    assert trace.usage.input_tokens == 1000
    assert trace.usage.cost_usd is None
    assert trace.usage.unpriced == 1


def test_a_model_without_its_provider_is_told_before_anything_runs():
    """R-R7: it is an error of the settings, not one of every trial."""
    with pytest.raises(UnknownAgentError, match="'gpt-4o-mini' is not a model name; write PROVIDE"):
        agent_config({"kind": "chat", "model": "gpt-4o-mini"})
    for name in ("openai:gpt-4o-mini", "litellm/openai/gpt-4o-mini", "local:smollm2"):
        assert agent_config({"kind": "chat", "model": name}).kind == "chat"


async def test_replies_in_order_start_anew_in_each_trial():
    """R-A2 R-A3: a list of replies is used up in order, the last stays, trials share nothing."""
    three = calls(*[("search", {"q": "x"})] * 3)
    tool = {**SEARCH, "replies": ["one", {"error": "gone"}]}
    with MockLLM([three, "ok", three, "ok"]) as server:
        done = await talk(server, tools=[tool], trials=2)
        assert tool_results(server) == ["one", "error: gone", "error: gone"]
    for _, trace in done:
        assert [c.result for c in trace.tool_calls] == ["one", None, None]
        assert [c.status for c in trace.tool_calls][1:] == [SpanStatus.ERROR] * 2


async def test_replies_by_arguments():
    """R-A2: the first entry whose arguments match answers; then the reply for all others."""
    asked = calls(
        ("search", {"q": "shoes", "page": 2}), ("search", {"q": "fire"}), ("search", {"q": "tea"})
    )
    tool = {
        "name": "search",
        "when": [
            {"arguments": {"q": "shoes"}, "reply": "red shoes"},
            {"arguments": {"q": "fire"}, "error": "not sold"},
        ],
        "reply": "nothing",
    }
    with MockLLM([asked, "ok"]) as server:
        await talk(server, tools=[tool])
        assert tool_results(server) == ["red shoes", "error: not sold", "nothing"]


async def test_python_functions_as_tools():
    """R-A2: a function's schema comes from its hints; its arguments are converted and checked."""
    asked = calls(
        ("add", {"a": "2", "b": 3}),
        ("add", {"a": 2}),
        ("convert", {"amount": 1.5, "currency": "EUR"}),
        ("convert", {"amount": 1.5, "currency": "GBP"}),
        ("broken", {"q": "x"}),
    )
    tools = [{"python": f"chat_tools_used:{name}"} for name in ("add", "convert", "broken")]
    with MockLLM([asked, "done"]) as server:
        _, trace = await talk(server, tools=tools)
        told = tool_results(server)
        offered = {t["function"]["name"]: t["function"] for t in server.requests[0].body["tools"]}
    assert offered["add"]["description"] == "Add two numbers."
    assert set(offered["add"]["parameters"]["properties"]) == {"a", "b"}
    assert offered["add"]["parameters"]["required"] == ["a"]
    assert told[0].startswith("error: invalid arguments: a:")
    assert told[1] == "3"
    assert told[2] == '{"amount":3.0,"currency":"EUR"}'
    assert told[3].startswith("error: invalid arguments: currency")
    assert told[4] == "error: RuntimeError: no route to x"
    assert [c.status == SpanStatus.ERROR for c in trace.tool_calls] == [
        True,
        False,
        False,
        True,
        True,
    ]


async def test_each_trial_has_its_own_tool_state():
    """R-A2: methods are tools of an instance that each trial makes; its tools share it."""
    replies = [calls(("add", {"item": "milk"})), calls(("count", {})), "done"] * 3
    tools = [{"python": "chat_tools_used:Cart.add"}, {"python": "chat_tools_used:Cart.count"}]
    with MockLLM(replies) as server:
        done = await talk(server, trials=3, tools=tools)
    for _, trace in done:
        assert [call.result for call in trace.tool_calls] == ["cart has 1", 1]
    assert server.requests[0].tools == ("add", "count")
    sent = server.requests[0].body["tools"][0]["function"]["parameters"]
    assert list(sent["properties"]) == ["item"]


async def test_a_function_that_records_itself_is_one_call():
    """R-A2 R-N1: a `@proctor.tool` function used as a chat tool is counted once."""
    with MockLLM([calls(("look", {"city": "Paris"})), "18"]) as server:
        tool = {"python": "chat_tools_used:weather", "name": "look"}
        _, trace = await talk(server, tools=[tool])
    (call,) = trace.tool_calls
    assert (call.name, call.arguments, call.result) == ("look", {"city": "Paris"}, "18 C in Paris")


PNG = "iVBORw0KGgo="


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "media_type": "image/png", "data": PNG},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        {"inlineData": {"mimeType": "image/png", "data": PNG}},
    ],
)
@pytest.mark.parametrize("whole", [True, False])
async def test_an_image_is_an_input(part, whole):
    """R-A2: an image in any provider's spelling reaches the model; the trace names its type.

    The input is a conversation, or the parts of one message.
    """
    parts = [{"type": "text", "text": "What is it?"}, part]
    question = {"messages": [{"role": "user", "content": parts}]} if whole else parts
    with MockLLM(["a cat"]) as server:
        reply, trace = await talk(server, question)
    assert reply.answer == "a cat"
    sent = server.requests[0].body["messages"][-1]["content"]
    assert sent[1]["image_url"]["url"] == f"data:image/png;base64,{PNG}"
    (call,) = trace.llm_calls
    assert (call.input_messages[0].content, call.input_messages[0].other) == (
        "What is it?",
        ("image/png",),
    )


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}, "is an address"),
        ({"type": "image", "media_type": "image/png", "data": "no base64!"}, "nor a file"),
        ({"type": "image", "data": PNG}, "nor a file"),
    ],
)
async def test_a_file_is_never_fetched(part, said):
    """R-A2: files come from the bytes of the case; anything else is an error before the call."""
    question = [{"role": "user", "content": [part]}]
    with MockLLM([]) as server:
        with pytest.raises(AgentError, match=said):
            await talk(server, question)
        assert server.requests == []


async def test_a_tool_that_does_not_exist():
    """R-A2: the model gets an error with a suggestion, and the call is an error span."""
    with MockLLM([calls(("serch", {"q": "x"})), "sorry"]) as server:
        reply, trace = await talk(server, tools=[{**SEARCH, "reply": "y"}])
        assert tool_results(server) == ["error: there is no tool 'serch'; did you mean 'search'?"]
    assert reply.answer == "sorry"
    (failed,) = trace.errors
    assert (failed.tool_name, failed.status) == ("serch", SpanStatus.ERROR)


async def test_arguments_are_held_against_the_schema():
    """R-A2: a mock tool refuses what its schema does, and text that is not JSON."""
    with MockLLM(
        [calls(("search", {"q": 3}), ("search", {}), ("search", "{broken")), "ok"]
    ) as server:
        await talk(server, tools=[{**SEARCH, "reply": "y"}])
        told = tool_results(server)
    assert told[0] == "error: invalid arguments: q: 3 is not of type 'string'"
    assert "'q' is a required property" in told[1]
    assert told[2].startswith("error: ")


async def test_running_out_of_turns_is_an_answer():
    """R-A2: an agent that goes in circles gives what it said last; a span says that it was cut."""
    again = {**calls(("search", {"q": "x"})), "text": "Let me look again.", "times": "forever"}
    with MockLLM([again]) as server:
        reply, trace = await talk(server, tools=[{**SEARCH, "reply": "y"}], max_turns=3)
    assert len(trace.llm_calls) == 3
    assert reply.answer == "Let me look again."
    assert reply.metadata["finish"] == "max_turns"
    assert [s.error_type for s in trace.errors] == ["MaxTurns"]


async def test_params_of_an_experiment_and_conversations_as_input():
    """R-A2: a trial's params set model, system prompt and settings; messages pass as they are."""
    conversation = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    params = {"temperature": 0.9, "system": "Rhyme.", "model": "openai:other", "unrelated": 1}
    with MockLLM(["a", "b"]) as server:
        await talk(server, {"messages": conversation}, params=params, temperature=0.1)
        await talk(server, {"city": "Paris"})
        first, second = server.requests
    assert first.body["temperature"] == 0.9
    assert first.model == "other"
    assert [m.content for m in first.messages] == ["Rhyme.", "one", "two", "three"]
    assert second.messages[0].content == '{"city":"Paris"}'


@pytest.mark.parametrize(("status", "passing"), [(429, True), (503, True), (400, False)])
async def test_failures_of_the_model_keep_what_retries_need(status, passing):
    """R-R3 R-A2: a failed model call is raised with status and wait, and recorded in its span."""
    with MockLLM([{"error": {"status": status, "retry_after": 2}}]) as server:
        with pytest.raises(ModelError) as raised:
            await talk(server)
        assert len(server.requests) == 1
    reason = transient(raised.value)
    assert (reason is not None) == passing
    if reason is not None:
        assert reason == (status, 2.0)


async def test_a_failed_call_is_an_error_span():
    """R-T6: the trace of a trial whose model failed says where."""
    config = {"kind": "chat", "model": "openai:m"}
    kept: list[Trace] = []
    with MockLLM([{"error": {"status": 500}}]) as server:
        agent = agent_config({**config, "base_url": server.base_url}).create()
        with contextlib.suppress(ModelError), capture("q") as trace:
            kept.append(trace)
            await agent.run(AgentRequest("q"))
    (call,) = kept[0].llm_calls
    assert call.status == SpanStatus.ERROR
    assert call.error_type == "ModelError"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tools": [{"name": "x"}]}, "a tool needs one of"),
        ({"tools": [{"name": "x", "reply": 1, "error": "e"}]}, "one kind of reply"),
        ({"tools": [{"name": "x", "python": "a:b", "reply": 1}]}, "one kind of reply"),
        ({"tools": [{"reply": 1}]}, "needs a name"),
        ({"tools": [{"name": "x y", "reply": 1}]}, "tools[0].name"),
        ({"tools": [{"name": "x", "reply": 1}, {"name": "x", "reply": 2}]}, "two tools"),
        ({"tools": [{"name": "x", "reply": 1, "parameters": {"type": 3}}]}, "JSON Schema"),
        ({"max_turns": 0}, "max_turns"),
        ({"api_key_env": "sk-abc123"}, "NAME of an environment variable"),
        ({"temprature": 1}, "temprature"),
    ],
)
def test_slips_in_the_options_are_said(options, said):
    """R-A1: what is wrong with an agent is known before it runs; a key is never repeated."""
    with pytest.raises(UnknownAgentError) as raised:
        agent_config({"kind": "chat", "model": "openai:m", **options})
    assert said in str(raised.value)
    assert "sk-abc123" not in str(raised.value)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("chat_tools_used:unhintable", "cannot derive a schema"),
        ("chat_tools_used:not_a_function", "cannot be called"),
        ("chat_tools_used:ad", "did you mean 'add'"),
    ],
)
async def test_functions_that_cannot_be_tools(path, said):
    """R-A2: an unusable function is an error that names it, not a model without the tool."""
    with MockLLM([], port=0) as server, pytest.raises(ProctorError) as raised:
        await talk(server, tools=[{"python": path}])
    assert said in f"{raised.value} {raised.value.hint}"


def test_options_cost_no_client_library():
    """R-A2: reading a chat agent's options imports no client."""
    program = (
        "import sys; from proctor.agents.registry import agent_config;"
        "agent_config({'kind': 'chat', 'model': 'openai:m'});"
        "print([m for m in ('openai', 'pydantic_ai', 'httpx', 'httpx2') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"

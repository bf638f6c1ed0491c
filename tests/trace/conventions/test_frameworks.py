"""Tool and model calls of agent frameworks, as their instrumentations record them today."""

import json
from typing import Any

import pytest

from proctor.trace import Event, Message, Span, SpanKind, ToolCall, Trace
from proctor.trace.conventions import finish, normalise
from proctor.trace.formats import langfuse
from proctor.trace.load import load_traces

WEATHER = ToolCall("get_weather", {"city": "Paris"}, "c1")
REPLY = (Message("assistant", tool_calls=(WEATHER,)),)
RESULT = Message("tool", "18 degrees", tool_call_id="c1")


def span(span_id: str, name: str, times: tuple[int, int] = (0, 10), **facts: Any) -> Span:
    attributes = {
        key: value if isinstance(value, str | int) else json.dumps(value)
        for key, value in facts.pop("attributes", {}).items()
    }
    start, end = times
    return Span(
        span_id=span_id,
        trace_id="t",
        name=name,
        start_ns=start,
        end_ns=end,
        attributes=attributes,
        **facts,
    )


def traced(*spans: Span) -> Trace:
    for each in spans:
        normalise(each)
    trace = Trace(trace_id="t", spans=list(spans), query="Weather?", response="18 degrees")
    finish(trace)
    trace.forget()
    return trace


def model(span_id: str, times: tuple[int, int], **facts: Any) -> Span:
    return span(span_id, "chat", times, kind=SpanKind.LLM, **facts)


def calls(trace: Trace) -> list[tuple[str, Any, Any]]:
    return [(call.name, call.arguments, call.result) for call in trace.tool_calls]


PARIS = {"city": "Paris"}
ONE_CALL = [("get_weather", PARIS, "18 degrees")]
OPENINFERENCE = "openinference.instrumentation."


def tool(span_id: str, name: str, scope: str, value: Any, **facts: Any) -> Span:
    attributes = {
        "openinference.span.kind": "TOOL",
        "input.value": value,
        "output.value": facts.pop("output", "18 degrees"),
        **({"tool.name": facts.pop("tool_name")} if "tool_name" in facts else {}),
    }
    return span(span_id, name, attributes=attributes, scope=OPENINFERENCE + scope, **facts)


def test_dspy_tools():
    """R-T7: DSPy's tools have their own names and arguments; its `finish` is no tool call."""
    trace = traced(
        tool("a", "get_weather.__call__", "dspy", {"kwargs": PARIS}),
        tool("b", "finish.__call__", "dspy", {"kwargs": {}}, output="Completed.", times=(11, 12)),
    )
    assert calls(trace) == ONE_CALL


def test_llama_index_tools_and_model_calls():
    """R-T7: LlamaIndex's keyword arguments and tool outputs are unwrapped; only calls count."""
    output = {
        "blocks": [{"text": "18 degrees"}],
        "tool_name": "get_weather",
        "raw_input": {"args": [], "kwargs": PARIS},
        "raw_output": "18 degrees",
        "is_error": False,
    }
    llm = {"openinference.span.kind": "LLM", "llm.model_name": "gpt-4o-mini"}
    scope = OPENINFERENCE + "llama_index"
    trace = traced(
        span("a", "OpenAI._prepare_chat_with_tools", attributes=llm, scope=scope),
        span(
            "b",
            "OpenAI.astream_chat",
            (1, 5),
            attributes={**llm, "output.value": "assistant: It is 18 degrees."},
            scope=scope,
        ),
        tool(
            "c",
            "FunctionTool.acall",
            "llama_index",
            {"kwargs": PARIS},
            output=output,
            tool_name="get_weather",
        ),
    )
    assert calls(trace) == ONE_CALL
    (call,) = trace.llm_calls
    assert [m.content for m in call.output_messages] == ["It is 18 degrees."]


@pytest.mark.parametrize("generation", ["events", "details"])
def test_strands_results_are_in_an_event(generation):
    """R-T7: the result of a Strands tool is in the event `gen_ai.choice`, or in message parts."""
    if generation == "events":
        events = (
            Event("gen_ai.tool.message", 1, {"role": "tool", "content": '{"city": "Paris"}'}),
            Event("gen_ai.choice", 2, {"message": '[{"text": "18 degrees"}]', "id": "c1"}),
        )
    else:
        asked = {"type": "tool_call", "name": "get_weather", "id": "c1", "arguments": PARIS}
        told = {"type": "tool_call_response", "id": "c1", "response": [{"text": "18 degrees"}]}
        sides = (("input", "tool", asked), ("output", "tool", told))
        events = tuple(
            Event(
                "gen_ai.client.inference.operation.details",
                time,
                {f"gen_ai.{side}.messages": json.dumps([{"role": role, "parts": [part]}])},
            )
            for time, (side, role, part) in enumerate(sides)
        )
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "get_weather"}
    trace = traced(span("a", "execute_tool get_weather", attributes=attributes, events=events))
    assert calls(trace) == ONE_CALL


def test_layers_of_one_tool_call_are_one_call():
    """R-T7: AutoGen, BeeAI and a function that records itself: one call, whoever saw it."""
    native = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "get_weather",
        "gen_ai.tool.call.id": "c1",
    }
    autogen = traced(
        tool("a", "FunctionTool", "autogen_agentchat", PARIS, tool_name="get_weather"),
        span("b", "execute_tool get_weather", (1, 9), parent_id="a", attributes=native),
    )
    assert calls(autogen) == ONE_CALL
    assert autogen.tool_calls[0].id == "c1"
    wrapped = {"input": PARIS, "options": None}
    beeai = traced(
        *(
            tool(
                name,
                "get_weather",
                "beeai",
                wrapped,
                times=(place, 20 - place),
                parent_id=above,
                tool_name="get_weather",
            )
            for place, (name, above) in enumerate([("a", None), ("b", "a"), ("c", "b")])
        )
    )
    assert calls(beeai) == ONE_CALL
    # A framework and the function it calls do not know each other's spans.
    own = {"kind": SpanKind.TOOL, "tool_name": "get_weather", "tool_output": "18 degrees"}
    function = span("b", "get_weather", (2, 8), tool_input={**PARIS, "units": "C"}, **own)
    framework = span("a", "get_weather", (1, 9), scope="framework", tool_input=PARIS, **own)
    assert calls(traced(framework, function)) == ONE_CALL


def test_equal_calls_stay_apart():
    """R-T7: calls side by side, one after the other, or with other arguments are all counted."""
    own = {"kind": SpanKind.TOOL, "tool_name": "get_weather", "scope": "one"}
    side_by_side = [span(name, "get_weather", tool_input=PARIS, **own) for name in "ab"]
    assert len(traced(*side_by_side).tool_calls) == 2
    outer = span("a", "get_weather", (0, 10), tool_input=PARIS, **own)
    inner = span("b", "get_weather", (1, 9), parent_id="a", tool_input={"city": "Oslo"}, **own)
    assert len(traced(outer, inner).tool_calls) == 2
    first = span("a", "get_weather", (0, 4), tool_input=PARIS, **own)
    second = span("b", "get_weather", (5, 9), tool_input=PARIS, **{**own, "scope": "two"})
    assert len(traced(first, second).tool_calls) == 2


def test_arguments_and_results_that_only_messages_have():
    """R-T7: ADK and AutoGen record neither; both are in the model's messages, by call id."""
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "get_weather",
        "gen_ai.tool.call.id": "c1",
    }
    merged = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "(merged tools)"}
    trace = traced(
        model("a", (0, 2), output_messages=REPLY),
        span("b", "execute_tool get_weather", (3, 4), attributes=attributes),
        span(
            "c",
            "execute_tool (merged)",
            (4, 5),
            attributes={**merged, "gcp.vertex.agent.tool_response": "<not serializable>"},
            scope="gcp.vertex.agent",
        ),
        model("d", (6, 8), input_messages=(*REPLY, RESULT)),
    )
    assert calls(trace) == ONE_CALL


def test_an_answer_is_no_tool_call():
    """R-T7: `final_answer` and `final_result` return the answer, also where only models show."""
    answer = ToolCall("final_answer", {"answer": "18 degrees"}, "c2")
    own = {"kind": SpanKind.TOOL, "tool_name": "final_answer"}
    assert traced(span("a", "FinalAnswerTool", **own)).tool_calls == []
    requested = traced(model("a", (0, 1), output_messages=(Message("assistant", None, (answer,)),)))
    assert requested.tool_calls == []


def test_output_functions_and_deferred_calls_of_pydantic_ai():
    """R-T7: an output function of any name and a call left to others are no tool calls."""
    tool_span = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.id": "c1"}
    output = {
        **tool_span,
        "gen_ai.tool.name": "send",
        "logfire.msg": "running output function: send",
    }
    deferred = {
        **tool_span,
        "gen_ai.tool.name": "get_weather",
        "logfire.msg": "running tool: get_weather",
        "pydantic_ai.tool.deferral.name": "CallDeferred",
    }
    agent = {"gen_ai.operation.name": "invoke_agent", "pydantic_ai.all_messages": []}
    for attributes in (output, deferred):
        trace = traced(
            span("a", "invoke_agent", attributes=agent),
            model("b", (1, 2), output_messages=REPLY),
            span("c", "execute_tool", (3, 4), attributes=attributes),
        )
        assert trace.tool_calls == []
    assert trace.shows("tool_calls")


def test_a_call_of_two_instrumentations_is_one_model_call():
    """R-T7: Anthropic's own span beside OpenInference's: one call, with the messages of either."""
    native = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "claude-sonnet-4-5",
        "gen_ai.usage.input_tokens": 40,
        "gen_ai.usage.output_tokens": 8,
    }
    other = {
        "openinference.span.kind": "LLM",
        "llm.model_name": "claude-sonnet-4-5",
        "llm.token_count.prompt": 40,
        "llm.token_count.completion": 8,
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": "Hi",
    }
    beside = span("b", "messages.create", (1, 9), attributes=native, scope="com.anthropic")
    around = span("a", "messages.stream", (0, 10), attributes=other, scope="openinference")
    trace = traced(around, beside)
    assert len(trace.llm_calls) == trace.usage.calls == 1
    assert (trace.usage.input_tokens, trace.usage.output_tokens) == (40, 8)
    # Two calls at once, each with its own reply, are two.
    second = {**other, "llm.output_messages.0.message.content": "Bye"}
    trace = traced(
        span("a", "x", (0, 10), attributes=other, scope="one"),
        span("b", "x", (1, 9), attributes=second, scope="two"),
    )
    assert len(trace.llm_calls) == 2


def test_koog_tools_and_usage_columns_of_langfuse(tmp_path):
    """R-T7: Koog's tools are Langfuse spans with a tool name; usage may be in three columns."""
    common = {
        "traceId": "t",
        "startTime": "2026-01-01T00:00:00Z",
        "endTime": "2026-01-01T00:00:01Z",
    }
    rows = [
        {
            **common,
            "id": "a",
            "type": "SPAN",
            "name": "tool.get_weather",
            "input": PARIS,
            "output": "18 degrees",
            "metadata": {"attributes": {"gen_ai.tool.name": "get_weather"}},
        },
        {
            **common,
            "id": "b",
            "type": "GENERATION",
            "name": "llm",
            "model": "gpt-4o-mini",
            "inputUsage": 40,
            "outputUsage": 8,
            "totalUsage": 48,
        },
    ]
    assert langfuse.matches(rows)
    path = tmp_path / "export.json"
    path.write_text(json.dumps({"trace": {"id": "t"}, "observations": rows}))
    (trace,) = load_traces(path)
    assert calls(trace) == ONE_CALL
    assert (trace.usage.input_tokens, trace.usage.output_tokens) == (40, 8)

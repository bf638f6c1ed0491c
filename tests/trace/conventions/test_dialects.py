"""Shapes that producers write and no sample file has, each as its source documents it."""

import json
from typing import Any

import pytest

from proctor.trace import Document, Event, Message, Span, ToolCall, Trace
from proctor.trace.conventions import finish, normalise


def span(
    name: str = "x", *, events: tuple[Event, ...] = (), scope: str | None = None, **facts: Any
):
    attributes = facts.pop("attributes")
    found = Span(
        span_id=facts.pop("span_id", "a"),
        trace_id="t",
        name=name,
        attributes={
            k: v if isinstance(v, str | int | float) else json.dumps(v)
            for k, v in attributes.items()
        },
        events=events,
        scope=scope,
        **facts,
    )
    normalise(found)
    return found


QUESTION = (Message("user", "Weather?"),)
CALL = (Message("assistant", tool_calls=(ToolCall("get_weather", {"city": "Paris"}, "c1"),)),)

OUTPUTS = {
    "GenAI parts": [
        {
            "role": "assistant",
            "parts": [
                {
                    "type": "tool_call",
                    "id": "c1",
                    "name": "get_weather",
                    "arguments": {"city": "Paris"},
                }
            ],
        }
    ],
    "OpenAI chat": {
        "choices": [
            {
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
                        }
                    ],
                }
            }
        ]
    },
    "OpenAI Responses": {
        "object": "response",
        "output": [
            {"type": "reasoning", "summary": []},
            {
                "type": "function_call",
                "id": "fc_9",
                "call_id": "c1",
                "name": "get_weather",
                "arguments": '{"city": "Paris"}',
            },
        ],
    },
    "Anthropic": {
        "role": "assistant",
        "content": [
            {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"city": "Paris"}}
        ],
    },
    "Gemini": {
        "candidates": [
            {
                "content": {
                    "role": "model",
                    "parts": [
                        {
                            "functionCall": {
                                "id": "c1",
                                "name": "get_weather",
                                "args": {"city": "Paris"},
                            }
                        }
                    ],
                }
            }
        ]
    },
    "Bedrock": {
        "role": "assistant",
        "content": [
            {"toolUse": {"toolUseId": "c1", "name": "get_weather", "input": {"city": "Paris"}}}
        ],
    },
    "Vercel": [{"toolCallId": "c1", "toolName": "get_weather", "input": '{"city": "Paris"}'}],
    "LangChain": {
        "generations": [
            [
                {
                    "text": "",
                    "message": {
                        "lc": 1,
                        "type": "constructor",
                        "id": ["langchain", "schema", "messages", "AIMessage"],
                        "kwargs": {
                            "tool_calls": [
                                {"name": "get_weather", "args": {"city": "Paris"}, "id": "c1"}
                            ]
                        },
                    },
                }
            ]
        ]
    },
}


@pytest.mark.parametrize("shape", OUTPUTS)
def test_one_tool_call_in_every_shape(shape: str):
    """R-T7: the same call, as every provider and framework writes it, is the same message."""
    found = span(
        attributes={"openinference.span.kind": "LLM", "output.value": OUTPUTS[shape]}
    ).output_messages
    assert found == CALL


INPUTS = {
    "text": "Weather?",
    "LangGraph pair": {"messages": [["user", "Weather?"]]},
    "LangChain dumps": {"messages": [[{"type": "human", "data": {"content": "Weather?"}}]]},
    "LangChain repr": {"messages": ["content='Weather?' additional_kwargs={}"]},
    "Responses": {"model": "m", "input": "Weather?"},
    "Gemini": {"model": "m", "contents": "Weather?"},
    "parts": [{"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}],
    "Vercel": {"prompt": "Weather?"},
}


@pytest.mark.parametrize("shape", INPUTS)
def test_one_question_in_every_shape(shape: str):
    """R-T7: the same question in every request body is the same message and the same query."""
    value = INPUTS[shape]
    found = span(attributes={"openinference.span.kind": "LLM", "input.value": value})
    assert found.input_messages == QUESTION
    chain = span(attributes={"openinference.span.kind": "CHAIN", "input.value": value})
    trace = Trace(trace_id="t", spans=[chain])
    finish(trace)
    assert trace.query == "Weather?"


@pytest.mark.parametrize("body", ["response", "result"])
@pytest.mark.parametrize("role", ["tool", "user"])
def test_tool_results_among_messages(role: str, body: str):
    """R-T7: results carry `response` or `result` and even the role `user`; several are split."""
    parts = [
        {"type": "tool_call_response", "id": "c1", body: "rainy"},
        {"type": "tool_call_response", "id": "c2", body: {"degrees": 3}},
    ]
    messages = [{"role": role, "parts": parts}]
    found = span(attributes={"gen_ai.operation.name": "chat", "gen_ai.input.messages": messages})
    assert found.input_messages == (
        Message("tool", "rainy", tool_call_id="c1"),
        Message("tool", '{"degrees":3}', tool_call_id="c2"),
    )


def test_reasoning_and_images_are_named_not_read():
    """R-T7: what is not text is named beside the text."""
    content = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "Hi"},
        {"type": "image_url", "image_url": {"url": "data:"}},
    ]
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.output.messages": [{"role": "assistant", "content": content}],
    }
    assert span(attributes=attributes).output_messages == (
        Message("assistant", "Hi", other=("reasoning", "image_url")),
    )


# -- generations of the GenAI conventions ----------------------------------------------------------


def g1_events(*, as_log: bool) -> tuple[Event, ...]:
    def event(name: str, body: dict[str, Any]) -> Event:
        return Event(name=name, attributes={"body": body} if as_log else body)

    return (
        event("gen_ai.system.message", {"content": "be brief"}),
        event("gen_ai.user.message", {"content": "Weather?"}),
        event(
            "gen_ai.choice",
            {
                "index": 0,
                "message": {
                    "tool_calls": [
                        {
                            "id": "c1",
                            "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
                        }
                    ]
                },
            },
        ),
    )


@pytest.mark.parametrize("as_log", [False, True])
def test_g1_messages_on_events_and_log_records(as_log: bool):
    """R-T7: conventions 1.28 to 1.36 put each message on an event, or on a log record."""
    found = span(
        attributes={"gen_ai.operation.name": "chat", "gen_ai.system": "openai"},
        events=g1_events(as_log=as_log),
    )
    assert found.input_messages == (Message("system", "be brief"), *QUESTION)
    assert found.output_messages == CALL


def test_g0_content_on_attributes_and_events():
    """R-T7: conventions up to 1.27 have the whole prompt as one text, and other token names."""
    usage = {"gen_ai.usage.prompt_tokens": "3", "gen_ai.usage.completion_tokens": 4.0}
    spoken = {
        "gen_ai.prompt": [{"role": "user", "content": "Weather?"}],
        "gen_ai.completion": "rainy",
    }
    plain = span(attributes={"gen_ai.request.model": "m", **usage, **spoken})
    events = (
        Event(
            "gen_ai.content.prompt",
            attributes={"gen_ai.prompt": json.dumps(spoken["gen_ai.prompt"])},
        ),
        Event("gen_ai.content.completion", attributes={"gen_ai.completion": "rainy"}),
    )
    on_events = span(attributes={"gen_ai.request.model": "m", **usage}, events=events)
    for found in (plain, on_events):
        assert found.kind == "llm"
        assert (found.input_tokens, found.output_tokens) == (3, 4)
        assert found.input_messages == QUESTION
        assert found.output_messages == (Message("assistant", "rainy"),)


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("text_completion", "llm"),
        ("generate_content", "llm"),
        ("embeddings", "other"),
        ("create_agent", "agent"),
        ("invoke_workflow", "chain"),
        ("plan", "planning"),
        ("search_memory", "other"),
    ],
)
def test_operations(operation: str, kind: str):
    """R-T2: operations of every generation have a kind; an embedding is no model turn."""
    assert span(attributes={"gen_ai.operation.name": operation}).kind == kind


def test_retrieval_without_texts():
    """R-T7: the convention requires no text of a retrieved document."""
    found = span(
        attributes={
            "gen_ai.operation.name": "retrieval",
            "gen_ai.retrieval.query.text": "rain",
            "gen_ai.retrieval.documents": [{"id": 7, "score": "0.5"}],
        }
    )
    assert (found.kind, found.input) == ("retrieval", "rain")
    assert found.documents == (Document(id="7", score=0.5),)


# -- vendors ---------------------------------------------------------------------------------------


def test_llm_keys_never_make_a_model_call():
    """R-T7: LangChain's chains carry `llm.input_messages`, and stay chains; so do unknown spans."""
    keys = {
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "hi",
    }
    assert span(attributes={**keys, "openinference.span.kind": "CHAIN"}).kind == "chain"
    assert span(attributes=keys).kind == "other"


def test_flat_messages_are_in_the_order_of_their_numbers():
    """R-T7: attributes come in any order, indexes have gaps, and 10 comes after 2."""
    attributes = {"openinference.span.kind": "LLM"}
    for number, role in ((10, "tool-response"), (2, "tool-call"), (0, "user")):
        attributes[f"llm.input_messages.{number}.message.content"] = str(number)
        attributes[f"llm.input_messages.{number}.message.role"] = role
    assert span(attributes=attributes).input_messages == (
        Message("user", "0"),
        Message("assistant", "2"),  # smolagents' names for the two sides of a call
        Message("tool", "10"),
    )


def test_arguments_in_tool_parameters():
    """R-T7: `tool.parameters` is the schema, except where claude_agent_sdk puts the arguments."""
    kind = {"openinference.span.kind": "TOOL", "tool.name": "ls"}
    assert span(attributes={**kind, "tool.parameters": {"path": "/tmp"}}).tool_input == {
        "path": "/tmp"
    }
    schema = {"properties": {"path": {"type": "string"}}}
    assert span(attributes={**kind, "tool.parameters": schema}).tool_input is None


def test_traceloop_langchain_tool():
    """R-T7: the record of a LangChain callback is taken apart into input, output and call id."""
    found = span(
        "get_weather.tool",
        attributes={
            "traceloop.span.kind": "tool",
            "traceloop.entity.name": "get_weather",
            "traceloop.entity.input": {
                "input_str": "{'city': 'Paris'}",
                "tags": [],
                "metadata": {},
                "inputs": {"city": "Paris"},
            },
            "traceloop.entity.output": {
                "output": {"lc": 1, "kwargs": {"content": "rainy", "tool_call_id": "c1"}},
                "kwargs": {"tags": []},
            },
        },
    )
    assert (found.kind, found.tool_name, found.tool_call_id) == ("tool", "get_weather", "c1")
    assert (found.tool_input, found.tool_output) == ({"city": "Paris"}, "rainy")


def test_traceloop_vector_store():
    """R-T7: vector stores put every hit on an event."""
    hit = {
        "db.query.result.id": "d1",
        "db.query.result.score": 0.5,
        "db.query.result.document": "rain",
    }
    found = span(
        attributes={"gen_ai.operation.name": "vector_db_retrieve"},
        events=(Event("db.query.result", attributes=hit),),
    )
    assert found.documents == (Document(id="d1", text="rain", score=0.5),)


def test_langfuse_counts_become_totals():
    """R-T7: cached and reasoning tokens are added where Langfuse left them out, only there."""

    def tokens(**usage: int) -> tuple[int | None, int | None]:
        found = span(
            attributes={
                "langfuse.observation.type": "generation",
                "langfuse.observation.usage_details": usage,
            }
        )
        return found.input_tokens, found.output_tokens

    apart = {"input": 10, "output": 5, "input_cached_tokens": 90, "output_reasoning_tokens": 20}
    assert tokens(**apart, total=125) == (100, 25)
    assert tokens(**apart) == (100, 25)
    assert tokens(input=100, output=25, total=125, input_cached_tokens=90) == (100, 25)
    assert tokens(output=5) == (None, 5)


def test_vercel_tool_call():
    """R-T7: `ai.toolCall` is a tool span with its arguments as JSON text."""
    found = span(
        "ai.toolCall",
        attributes={
            "ai.operationId": "ai.toolCall",
            "ai.toolCall.name": "get_weather",
            "ai.toolCall.id": "c1",
            "ai.toolCall.args": {"city": "Paris"},
            "ai.toolCall.result": {"sky": "grey"},
        },
    )
    assert (found.kind, found.tool_name, found.tool_call_id) == ("tool", "get_weather", "c1")
    assert (found.tool_input, found.tool_output) == ({"city": "Paris"}, {"sky": "grey"})


def test_adk_transfer_is_a_handoff():
    """R-T7: ADK's own tool for changing the agent is a handoff."""
    found = span(
        "execute_tool transfer_to_agent",
        scope="gcp.vertex.agent",
        attributes={
            "gen_ai.tool.name": "transfer_to_agent",
            "gcp.vertex.agent.tool_call_args": {"agent_name": "billing"},
        },
    )
    assert (found.kind, found.handoff_to) == ("handoff", "billing")


def test_tools_that_sound_like_transfers_stay_tools():
    """R-T7: only a transfer towards an agent that runs in the trace is a handoff."""

    def tool(name: str, span_id: str) -> Span:
        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
        return span(name, span_id=span_id, attributes=attributes)

    agent = span(
        span_id="z",
        attributes={"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "Billing Desk"},
    )
    swarm, human = tool("transfer_to_billing_desk", "b"), tool("transfer_to_human_agents", "c")
    trace = Trace(trace_id="t", spans=[agent, swarm, human])
    finish(trace)
    assert [(s.span_id, s.handoff_to) for s in trace.handoffs] == [("b", "Billing Desk")]
    assert trace.tool_sequence == ["transfer_to_human_agents"]


# -- lost names ------------------------------------------------------------------------------------


def requested(*calls: tuple[str | None, dict[str, Any]]) -> Span:
    parts = [{"type": "tool_call", "id": i, "name": "add", "arguments": a} for i, a in calls]
    messages = [{"role": "assistant", "parts": parts}]
    return span(
        span_id="llm",
        attributes={"gen_ai.operation.name": "chat", "gen_ai.output.messages": messages},
    )


def executed(value: Any, span_id: str) -> Span:
    attributes = {"openinference.span.kind": "TOOL", "tool.name": "add", "input.value": value}
    return span(span_id=span_id, attributes=attributes)


def test_argument_names_come_back_by_value_then_order():
    """R-T7: calls of one tool find their own request, in whatever order they ran."""
    spans = [
        requested(("c1", {"a": "1"}), ("c2", {"a": "2"}), ("c3", {"a": "1"})),
        executed("2", "x"),
        executed("1", "y"),
        executed({"args": ["1"], "kwargs": {}}, "z"),
        executed("3", "w"),
    ]
    trace = Trace(trace_id="t", spans=spans)
    finish(trace)
    assert [(call.id, call.arguments) for call in trace.tool_calls] == [
        ("c2", {"a": "2"}),
        ("c1", {"a": "1"}),
        ("c3", {"a": "1"}),
        (None, "3"),  # nobody asked for it
    ]


def test_given_arguments_are_never_replaced():
    """R-T7: a call that ran with other arguments than requested keeps those it ran with."""
    ran = executed({"a": 5}, "x")
    ran.tool_call_id = "c1"
    trace = Trace(trace_id="t", spans=[requested(("c1", {"a": 1})), ran])
    finish(trace)
    assert trace.tool_calls[0].arguments == {"a": 5}


def test_a_crash_leaves_no_answer():
    """R-T3: what an agent said on the way to an exception is not its response."""
    agent = span(
        attributes={"gen_ai.operation.name": "invoke_agent"},
        status="error",
        error_message="ValueError: no",
    )
    said = [{"role": "assistant", "parts": [{"type": "text", "content": "Let me see"}]}]
    llm = span(
        span_id="b",
        parent_id="a",
        attributes={"gen_ai.operation.name": "chat", "gen_ai.output.messages": said},
    )
    trace = Trace(trace_id="t", spans=[agent, llm])
    finish(trace)
    assert trace.response is None
    assert (agent.error_type, agent.error_message) == ("ValueError", "no")

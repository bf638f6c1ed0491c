"""Chat transcripts: what is made of messages, since no span was ever recorded."""

import json

from proctor.trace.load import load_traces
from proctor.trace.model import SpanKind

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather in Paris and Rome?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
            },
            {
                "id": "c2",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
            },
        ],
    },
    {"role": "tool", "tool_call_id": "c2", "content": "sunny"},
    {"role": "tool", "tool_call_id": "c1", "content": '{"sky": "grey"}'},
    {"role": "assistant", "content": "Grey in Paris, sunny in Rome."},
]


def load(document):
    return load_traces(json.dumps(document).encode())


def test_a_conversation_becomes_agent_model_and_tool_spans():
    """R-T7: an agent around two model calls and two tool calls, each with its own result."""
    (trace,) = load(TALK)
    assert [s.kind for s in trace.spans] == ["agent", "llm", "tool", "tool", "llm"]
    assert [root.span.kind for root in trace.roots] == [SpanKind.AGENT]
    assert all(s.parent_id == trace.spans[0].span_id for s in trace.spans[1:])
    calls = [(c.name, c.arguments, c.id, c.result) for c in trace.tool_calls]
    assert calls == [
        ("weather", {"city": "Paris"}, "c1", {"sky": "grey"}),
        ("weather", {"city": "Rome"}, "c2", "sunny"),
    ]
    assert trace.query == "Weather in Paris and Rome?"
    assert trace.response == "Grey in Paris, sunny in Rome."
    first, second = trace.llm_calls
    assert [m.role for m in first.input_messages] == ["system", "user"]
    assert [m.role for m in second.input_messages][-2:] == ["tool", "tool"]
    assert second.output_messages[0].content == "Grey in Paris, sunny in Rome."


def test_order_is_kept_and_times_are_counters():
    """R-T7: no times are known, so they count from 0 in the order of the messages."""
    (trace,) = load(TALK)
    starts = [s.start_ns for s in trace.spans]
    assert starts == sorted(set(starts))
    assert starts[0] == 0
    assert trace.spans[0].end_ns == max(s.end_ns or 0 for s in trace.spans)


def test_an_object_with_messages_and_what_else_it_says():
    """R-T7: model and ids beside the messages are used, the rest is metadata."""
    (trace,) = load({"messages": TALK, "model": "m-1", "id": "req-1", "label": "gold"})
    assert trace.llm_calls[0].model == "m-1"
    assert trace.request_id == "req-1"
    assert trace.metadata["label"] == "gold"
    assert load({"messages": TALK, "model": "m-1", "id": "req-1", "label": "gold"})[0].trace_id == (
        trace.trace_id
    )


def test_many_conversations_one_a_line_even_when_equal():
    """R-T7: each line is a trace of its own; equal ones stay apart."""
    data = "\n".join([json.dumps({"messages": TALK})] * 2 + [json.dumps(TALK)])
    loaded = load_traces(data.encode())
    assert len(loaded) == 3
    assert len({trace.trace_id for trace in loaded}) == 3
    assert [len(trace.spans) for trace in loaded] == [5, 5, 5]


def test_one_message_a_line_is_one_conversation():
    """R-T7: a log of messages, one a line."""
    (trace,) = load_traces("\n".join(map(json.dumps, TALK)).encode())
    assert len(trace.spans) == 5


def test_results_without_ids_go_by_name_and_order():
    """R-T7: the older function calls name no ids."""
    talk = [
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "add", "arguments": "[1, 2]"},
        },
        {"role": "function", "name": "add", "content": "3"},
        {"role": "tool", "tool_call_id": "zz", "name": "stray", "content": "late"},
    ]
    (trace,) = load(talk)
    assert [(c.name, c.arguments, c.result) for c in trace.tool_calls] == [
        ("add", [1, 2], "3"),
        ("stray", None, "late"),
    ]


def test_what_is_no_message_is_counted():
    """R-T7: junk between messages is reported with its place and loses nothing else."""
    loaded = load([*TALK, 7])
    assert [(p.place, p.fatal) for p in loaded.problems] == [("[6]", False)]
    assert len(loaded[0].spans) == 5

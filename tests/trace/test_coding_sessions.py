"""Sessions of coding agents and ATIF trajectories, with lines as the programs write them."""

import json

import pytest

import proctor
from proctor.trace.export import export_traces

CLAUDE_STREAM = [
    {"type": "system", "subtype": "init", "session_id": "s1", "model": "sonnet", "cwd": "/w"},
    {
        "type": "assistant",
        "session_id": "s1",
        "timestamp": "2026-11-18T08:24:08.741Z",
        "message": {
            "id": "msg_1",
            "role": "assistant",
            "model": "sonnet",
            "content": [{"type": "tool_use", "id": "t1", "name": "Task", "input": {"p": 1}}],
            "stop_reason": None,
            "usage": {"input_tokens": 9, "cache_read_input_tokens": 90, "output_tokens": 0},
        },
    },
    {
        "type": "assistant",
        "session_id": "s1",
        "parent_tool_use_id": "t1",
        "message": {
            "id": "msg_2",
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "t2", "name": "Bash", "input": {"command": "x"}}
            ],
            "usage": {"input_tokens": 5, "output_tokens": 2},
            "stop_reason": "tool_use",
        },
    },
    {
        "type": "user",
        "session_id": "s1",
        "parent_tool_use_id": "t1",
        "message": {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t2", "content": "boom", "is_error": True}
            ],
        },
    },
    {
        "type": "user",
        "session_id": "s1",
        "message": {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "fine"}],
        },
    },
    {"type": "rate_limit_event", "session_id": "s1"},
    {
        "type": "result",
        "subtype": "success",
        "session_id": "s1",
        "is_error": False,
        "result": "All done.",
        "total_cost_usd": 0.5,
        "num_turns": 2,
    },
]
CLAUDE_PROJECT = [
    {"type": "queue-operation", "operation": "enqueue", "sessionId": "s2", "content": "Do it"},
    {
        "type": "user",
        "sessionId": "s2",
        "uuid": "u1",
        "timestamp": "2026-11-18T08:24:08.600Z",
        "message": {"role": "user", "content": "Do it"},
    },
    {"type": "file-history-snapshot", "messageId": "m"},
    {
        "type": "assistant",
        "sessionId": "s2",
        "uuid": "u2",
        "timestamp": "2026-11-18T08:24:09.600Z",
        "message": {
            "id": "msg_1",
            "role": "assistant",
            "model": "sonnet",
            "content": [{"type": "text", "text": "Done"}],
            "usage": {"input_tokens": 3, "output_tokens": 4},
            "stop_reason": "end_turn",
        },
    },
]
CODEX_EXEC = [
    {"type": "thread.started", "thread_id": "s3"},
    {"type": "turn.started"},
    {
        "type": "item.started",
        "item": {"id": "item_1", "type": "command_execution", "command": "false"},
    },
    {
        "type": "item.completed",
        "item": {
            "id": "item_1",
            "type": "command_execution",
            "command": "false",
            "aggregated_output": "no\n",
            "exit_code": 1,
            "status": "failed",
        },
    },
    {"type": "item.completed", "item": {"id": "i2", "type": "agent_message", "text": "Done"}},
    {"type": "turn.completed", "usage": {"input_tokens": 70, "output_tokens": 8}},
]


def rollout(kind, **payload):
    return {"timestamp": "2026-11-18T08:27:01.755Z", "type": kind, "payload": payload}


def item(**payload):
    return rollout("response_item", **payload)


CODEX_ROLLOUT = [
    rollout("session_meta", id="s4", cwd="/w", cli_version="0.1"),
    rollout("turn_context", model="gpt-5"),
    item(type="message", role="user", content=[{"type": "input_text", "text": "<environment>"}]),
    item(type="message", role="user", content=[{"type": "input_text", "text": "Do it"}]),
    item(type="function_call", name="shell", arguments='{"cmd": "ls"}', call_id="c1"),
    rollout("token_usage_record", response_id="r1", usage={"input_tokens": 40, "output_tokens": 5}),
    item(type="function_call_output", call_id="c1", output="a.txt"),
    rollout("event_msg", type="token_count", info={"last_token_usage": {"input_tokens": 1}}),
    item(type="message", role="assistant", content=[{"type": "output_text", "text": "Done"}]),
    rollout("token_usage_record", response_id="r2", usage={"input_tokens": 50, "output_tokens": 6}),
    rollout("event_msg", type="task_complete", last_agent_message="Done"),
]
QWEN = [
    {
        "uuid": "1",
        "sessionId": "s5",
        "type": "user",
        "timestamp": "2026-11-18T08:27:07.066Z",
        "message": {"role": "user", "parts": [{"text": "Do it"}]},
    },
    {
        "uuid": "2",
        "sessionId": "s5",
        "type": "assistant",
        "model": "qwen3",
        "message": {
            "role": "model",
            "parts": [{"functionCall": {"id": "c1", "name": "ls", "args": {"d": "."}}}],
        },
        "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 2},
    },
    {
        "uuid": "3",
        "sessionId": "s5",
        "type": "tool_result",
        "message": {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "c1", "name": "ls", "response": {"output": "a"}}}
            ],
        },
    },
    {
        "uuid": "4",
        "sessionId": "s5",
        "type": "assistant",
        "model": "qwen3",
        "message": {"role": "model", "parts": [{"text": "Done"}]},
        "usageMetadata": {"promptTokenCount": 11, "candidatesTokenCount": 1},
    },
]
GEMINI = [
    {"type": "init", "timestamp": "2026-11-18T08:27:00Z", "session_id": "s6", "model": "flash"},
    {"type": "message", "timestamp": "2026-11-18T08:27:00Z", "role": "user", "content": "Do it"},
    {
        "type": "tool_use",
        "timestamp": "2026-11-18T08:27:01Z",
        "tool_name": "ls",
        "tool_id": "c1",
        "parameters": {"d": "."},
    },
    {
        "type": "tool_result",
        "timestamp": "2026-11-18T08:27:03Z",
        "tool_id": "c1",
        "status": "success",
        "output": "a",
    },
    {
        "type": "message",
        "timestamp": "2026-11-18T08:27:04Z",
        "role": "assistant",
        "content": "Do",
        "delta": True,
    },
    {
        "type": "message",
        "timestamp": "2026-11-18T08:27:04Z",
        "role": "assistant",
        "content": "ne",
        "delta": True,
    },
    {"type": "result", "timestamp": "2026-11-18T08:27:05Z", "status": "success", "stats": {}},
]
OPENCODE = [
    {"type": "step_start", "timestamp": 1794990464425, "sessionID": "s7", "part": {}},
    {
        "type": "tool_use",
        "timestamp": 1794990465386,
        "sessionID": "s7",
        "part": {
            "tool": "bash",
            "callID": "c1",
            "state": {
                "status": "completed",
                "input": {"command": "ls"},
                "output": "a",
                "time": {"start": 1794990464333, "end": 1794990465022},
            },
        },
    },
    {
        "type": "step_finish",
        "timestamp": 1794990465386,
        "sessionID": "s7",
        "part": {"tokens": {"input": 20, "output": 3, "cache": {"read": 4}}, "cost": 0.01},
    },
    {"type": "step_start", "timestamp": 1794990465847, "sessionID": "s7", "part": {}},
    {"type": "text", "timestamp": 1794990465847, "sessionID": "s7", "part": {"text": "Done"}},
]


def load(lines):
    (trace,) = proctor.load_traces("\n".join(map(json.dumps, lines)).encode() + b"\n")
    return trace


def facts(trace):
    llm = [(s.input_tokens, s.output_tokens) for s in trace.spans if s.kind == "llm"]
    tools = [
        (s.tool_name, s.tool_input, s.tool_output, s.status.value)
        for s in trace.spans
        if s.kind == "tool"
    ]
    return trace.session_id, trace.query, trace.response, llm, tools


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (CLAUDE_PROJECT, ("s2", "Do it", "Done", [(3, 4)], [])),
        (
            CODEX_EXEC,
            ("s3", None, "Done", [(70, 8)], [("shell", {"command": "false"}, "no\n", "error")]),
        ),
        (
            CODEX_ROLLOUT,
            ("s4", "Do it", "Done", [(40, 5), (50, 6)], [("shell", {"cmd": "ls"}, "a.txt", "ok")]),
        ),
        (
            QWEN,
            (
                "s5",
                "Do it",
                "Done",
                [(9, 2), (11, 1)],
                [("ls", {"d": "."}, '{"output":"a"}', "ok")],
            ),
        ),
        (GEMINI, ("s6", "Do it", "Done", [(None, None)], [("ls", {"d": "."}, "a", "ok")])),
        (
            OPENCODE,
            (
                "s7",
                None,
                "Done",
                [(24, 3), (None, None)],
                [("bash", {"command": "ls"}, "a", "ok")],
            ),
        ),
    ],
)
def test_sessions_of_each_agent(lines, expected):
    """R-N4: Claude Code, Codex, Qwen Code, Gemini CLI and OpenCode sessions become traces."""
    trace = load(lines)
    assert facts(trace) == expected
    assert trace.spans[0].kind == "agent"
    assert all(span.end_ns >= span.start_ns for span in trace.spans)
    # A torn last line and lines of unknown kinds lose nothing else.
    torn = "\n".join(map(json.dumps, [*lines, {"type": "new-kind", "x": 1}])) + '\n{"type": "us'
    (again,) = proctor.load_traces(torn.encode())
    assert facts(again) == expected


def test_claude_stream_with_a_sub_agent():
    """R-N4: calls of a sub-agent are below the call that started it; unknown counts stay so."""
    trace = load(CLAUDE_STREAM)
    by_name = {span.tool_name: span for span in trace.spans if span.tool_name}
    task, bash = by_name["Task"], by_name["Bash"]
    assert bash.parent_id == task.span_id
    assert (bash.status.value, bash.tool_output) == ("error", "boom")
    assert (task.status.value, task.tool_output) == ("ok", "fine")
    first, second = (span for span in trace.spans if span.kind == "llm")
    assert (first.input_tokens, first.output_tokens) == (99, None)
    assert first.attributes["gen_ai.response.id"] == "msg_1"
    assert (second.input_tokens, second.output_tokens) == (5, 2)
    assert (trace.response, trace.metadata["total_cost_usd"]) == ("All done.", 0.5)
    failed = load([*CLAUDE_STREAM[:-1], {**CLAUDE_STREAM[-1], "is_error": True, "result": "no"}])
    assert (failed.spans[0].status.value, failed.spans[0].error_message) == ("error", "no")


ATIF = {
    "schema_version": "ATIF-v1.7",
    "session_id": "s8",
    "agent": {"name": "terminus", "version": "2", "model_name": "m"},
    "steps": [
        {"step_id": 1, "source": "system", "message": "Be good"},
        {"step_id": 2, "source": "user", "message": "Do it"},
        {
            "step_id": 3,
            "source": "agent",
            "message": "",
            "timestamp": "2026-11-18T08:27:01Z",
            "tool_calls": [
                {"tool_call_id": "c1", "function_name": "ask", "arguments": {"q": 1}},
            ],
            "observation": {
                "results": [
                    {
                        "source_call_id": "c1",
                        "content": "42",
                        "subagent_trajectory_ref": [{"trajectory_id": "sub"}],
                    }
                ]
            },
            "metrics": {
                "prompt_tokens": 10,
                "completion_tokens": 3,
                "cached_tokens": 4,
                "cost_usd": 0.5,
            },
        },
        {
            "step_id": 4,
            "source": "agent",
            "message": [{"type": "text", "text": "It is 42"}],
            "metrics": {"prompt_tokens": 20, "completion_tokens": 2, "cost_usd": 0.25},
        },
    ],
    "subagent_trajectories": [
        {
            "schema_version": "ATIF-v1.7",
            "trajectory_id": "sub",
            "agent": {"name": "helper", "version": "1"},
            "steps": [{"step_id": 1, "source": "agent", "message": "six times seven"}],
        }
    ],
}


def test_atif_in_and_out():
    """R-N4: ATIF is read with its sub-agents, and what is written obeys the rules of ATIF."""
    (trace,) = proctor.load_traces(json.dumps(ATIF).encode())
    assert (trace.query, trace.response, trace.session_id) == ("Do it", "It is 42", "s8")
    llm = [span for span in trace.spans if span.kind == "llm"]
    assert [(s.model, s.input_tokens, s.cost_usd) for s in llm] == [
        ("m", 10, 0.5),
        (None, None, None),
        ("m", 20, 0.25),
    ]
    ask = next(span for span in trace.spans if span.tool_name == "ask")
    helper = next(span for span in trace.spans if span.name == "helper")
    assert helper.parent_id == ask.span_id
    for lines in (CLAUDE_STREAM, CODEX_EXEC, CODEX_ROLLOUT, QWEN, GEMINI, OPENCODE):
        source = load(lines)
        written = json.loads(export_traces(source, "atif"))
        steps = written["steps"]
        assert [step["step_id"] for step in steps] == list(range(1, len(steps) + 1))
        calls = []
        for step in steps:
            ids = [call["tool_call_id"] for call in step.get("tool_calls", ())]
            assert len(ids) == len(set(ids))
            results = step.get("observation", {}).get("results", ())
            assert {each["source_call_id"] for each in results} <= set(ids)
            if step["source"] != "agent":
                assert not step.keys() & {"tool_calls", "metrics", "model_name"}
            if step.get("llm_call_count") == 0:
                assert "metrics" not in step
            calls += ids
        assert len(calls) == sum(span.kind == "tool" for span in source.spans)
        (back,) = proctor.load_traces(json.dumps(written).encode())
        assert back.response == source.response
        tokens = [s.input_tokens for s in source.spans if s.kind == "llm"]
        assert [s.input_tokens for s in back.spans if s.kind == "llm"][: len(tokens)] == tokens


def test_telemetry_of_claude_code_is_one_trace_per_session():
    """R-N4: bare `span.type`, `input_tokens`, `tool_name`; the turns of a session are one trace."""

    def span(trace, number, parent=None, **attributes):
        values = {"session.id": "s9", **attributes}
        return {
            "traceId": trace * 32,
            "spanId": f"{number:016x}",
            **({"parentSpanId": f"{parent:016x}"} if parent else {}),
            "name": f"claude_code.{attributes['span.type']}",
            "startTimeUnixNano": str(number * 1000),
            "endTimeUnixNano": str(number * 1000 + 500),
            "attributes": [
                {
                    "key": key,
                    "value": {"intValue": value}
                    if isinstance(value, int)
                    else {"stringValue": value},
                }
                for key, value in values.items()
            ],
        }

    usage = {"model": "sonnet", "input_tokens": 5, "cache_read_tokens": 90, "output_tokens": 7}
    spans = [
        span("a", 1, **{"span.type": "interaction"}),
        span("a", 2, 1, **{"span.type": "llm_request", **usage}),
        span("a", 3, 1, **{"span.type": "tool", "tool_name": "Bash"}),
        span("b", 4, **{"span.type": "interaction"}),
        span("b", 5, 4, **{"span.type": "llm_request", **usage}),
    ]
    scope = {"name": "com.anthropic.claude_code.tracing"}
    document = {"resourceSpans": [{"scopeSpans": [{"scope": scope, "spans": spans}]}]}
    (trace,) = proctor.load_traces(json.dumps(document).encode())
    kinds = [span.kind.value for span in trace.spans]
    assert kinds == ["agent", "llm", "tool", "agent", "llm"]
    calls = [span for span in trace.spans if span.kind == "llm"]
    assert [(s.model, s.input_tokens, s.output_tokens) for s in calls] == [("sonnet", 95, 7)] * 2
    assert trace.spans[2].tool_name == "Bash"
    assert {span.trace_id for span in trace.spans} == {trace.trace_id}


def test_lines_without_a_time_are_just_before_the_first_one():
    """R-N4: Claude Code writes times with results of tools only; no span is from 1970."""
    lines = [dict(line) for line in CLAUDE_STREAM]
    del lines[1]["timestamp"]
    lines[3]["timestamp"] = "2026-11-18T08:24:09Z"
    (trace,) = proctor.load_traces("\n".join(map(json.dumps, lines)).encode())
    year = 2026 - 1970
    assert all(s.start_ns > year * 365 * 86400 * 10**9 for s in trace.spans)
    assert 0 <= trace.duration < 1
    assert [s.start_ns for s in trace.spans] == sorted(s.start_ns for s in trace.spans)

"""Documents as home-made exporters write them: read like the regular form, or reported."""

import json

import pytest

from proctor.trace.load import load_traces

START, END = 1_700_000_000_000_000_000, 1_700_000_001_500_000_000
MODEL = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "gpt-4o",
    "gen_ai.usage.input_tokens": 5,
    "gen_ai.usage.output_tokens": 2,
}
TOOL = {
    "gen_ai.operation.name": "execute_tool",
    "gen_ai.tool.name": "weather",
    "gen_ai.tool.call.arguments": '{"city": "Oslo"}',
    "gen_ai.tool.call.result": '{"degrees": 3}',
}


def load(document):
    """Load one document given as a value."""
    return load_traces(json.dumps(document).encode())


def flat(attributes, **changes):
    """One flat span."""
    span = {"trace_id": "a" * 32, "span_id": "b" * 16, "name": "x", "attributes": attributes}
    return {**span, "start_time": START, "end_time": END, **changes}


def otlp(attributes, **changes):
    """One OTLP request with one span."""
    span = {"traceId": "a" * 32, "spanId": "b" * 16, "name": "x", "attributes": attributes}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [{**span, **changes}]}]}]}


def jaeger(**changes):
    """One response of Jaeger's API with one model call."""
    tags = [{"key": key, "value": value} for key, value in MODEL.items()]
    span = {"traceID": "aa", "spanID": "01", "operationName": "x", "tags": tags}
    times = {"startTime": START // 1000, "duration": 1_500_000}
    return {"data": [{"traceID": "aa", "spans": [{**span, **times, **changes}]}]}


def langfuse(**changes):
    """One Langfuse export with one generation."""
    observation = {
        "id": "o1",
        "traceId": "t1",
        "type": "GENERATION",
        "name": "x",
        "startTime": "2023-11-14T22:13:20Z",
        "endTime": "2023-11-14T22:13:21.5Z",
        "model": "gpt-4o",
        "usageDetails": {"input": 5, "output": 2},
    }
    return {"trace": {"id": "t1"}, "observations": [{**observation, **changes}]}


ZIPKIN = {"traceId": "aa", "id": "01", "name": "x", "timestamp": START // 1000}

MODEL_CALLS = {
    "flat, milliseconds": [flat(MODEL, start_time=START // 10**6, end_time=END // 10**6)],
    "flat, microseconds": [flat(MODEL, start_time=START // 10**3, end_time=END // 10**3)],
    "flat, seconds with a fraction": [flat(MODEL, start_time=1.7e9, end_time=1_700_000_001.5)],
    "flat, seconds": [flat(MODEL, start_time=1_700_000_000, end_time="1700000001.5")],
    "flat, times as text": [flat(MODEL, start_time=str(START), end_time=str(END))],
    "flat, pairs as text": [
        flat(MODEL, start_time=["1700000000", "0"], end_time=["1700000001", "500000000"])
    ],
    "flat, ids as numbers": [flat(MODEL, trace_id=7, span_id=8)],
    "flat, trace id outside": {"trace_id": "aa", "spans": [flat(MODEL, trace_id=None)]},
    "flat, wrapped values": [flat({k: {"stringValue": str(v)} for k, v in MODEL.items()})],
    "flat, nested": [
        flat(
            {
                "gen_ai": {
                    "operation": {"name": "chat"},
                    "request": {"model": "gpt-4o"},
                    "usage": {"input_tokens": "5", "output_tokens": 2.0},
                }
            }
        )
    ],
    "Phoenix, nested": [
        flat(
            {
                "openinference": {"span": {"kind": "LLM"}},
                "llm": {"model_name": "gpt-4o", "token_count": {"prompt": 5, "completion": 2}},
            }
        )
    ],
    "Phoenix, columns": [
        {
            "context.trace_id": "aa",
            "context.span_id": "01",
            "name": "x",
            "start_time": "2023-11-14T22:13:20+00:00",
            "end_time": "2023-11-14T22:13:21.500+00:00",
            "attributes.openinference.span.kind": "LLM",
            "attributes.llm.model_name": "gpt-4o",
            "attributes.llm.token_count.prompt": 5.0,
            "attributes.llm.token_count.completion": 2.0,
            "attributes.tool.name": None,
        }
    ],
    "OTLP, values without their type": otlp(
        [{"key": key, "value": value} for key, value in MODEL.items()],
        startTimeUnixNano=START,
        endTimeUnixNano=END,
    ),
    "OTLP, milliseconds": otlp(
        MODEL, startTimeUnixNano=str(START // 10**6), endTimeUnixNano=str(END // 10**6)
    ),
    "Jaeger, times as text": jaeger(startTime=str(START // 1000), duration="1500000"),
    "Jaeger, tags as an object": jaeger(tags=MODEL),
    "Zipkin, times as text": [
        {**ZIPKIN, "timestamp": str(START // 1000), "duration": "1500000", "tags": MODEL}
    ],
    "Zipkin, version 1": [
        {
            **ZIPKIN,
            "duration": 1_500_000,
            "binaryAnnotations": [{"key": k, "value": str(v)} for k, v in MODEL.items()],
        }
    ],
    "Langfuse, old usage": langfuse(
        usageDetails=None, usage={"promptTokens": 5, "completionTokens": 2, "totalTokens": 7}
    ),
    "Langfuse, old columns": langfuse(
        usageDetails={}, promptTokens=5, completionTokens=2, totalTokens=7
    ),
    "Langfuse, usage of the provider": langfuse(
        usageDetails={"prompt_tokens": "5", "completion_tokens": 2}
    ),
    "Langfuse, milliseconds": langfuse(startTime=START // 10**6, endTime=END // 10**6),
    "Langfuse, snake case": [
        {
            "id": "o1",
            "trace_id": "t1",
            "type": "GENERATION",
            "start_time": "2023-11-14T22:13:20Z",
            "end_time": "2023-11-14T22:13:21.5Z",
            "model": "gpt-4o",
            "usage_details": {"input": 5, "output": 2},
        }
    ],
    "Langfuse, observations without the trace's id": {
        "id": "t1",
        "observations": [
            {k: v for k, v in langfuse()["observations"][0].items() if k != "traceId"}
        ],
    },
    "MLflow, data as text": {
        "info": {},
        "data": json.dumps(
            {
                "spans": [
                    flat(
                        {
                            "mlflow.spanType": '"CHAT_MODEL"',
                            "mlflow.llm.model": '"gpt-4o"',
                            "mlflow.chat.tokenUsage": '{"input_tokens": "5", "output_tokens": 2.0}',
                        }
                    )
                ]
            }
        ),
    },
}


@pytest.mark.parametrize("document", MODEL_CALLS.values(), ids=MODEL_CALLS)
def test_a_model_call_is_read_from_every_form(document):
    """R-T7: numbers as text, other units, other names and other nesting change nothing."""
    (trace,) = (loaded := load(document))
    (span,) = trace.spans
    assert (span.kind, span.model) == ("llm", "gpt-4o")
    assert (span.input_tokens, span.output_tokens) == (5, 2)
    assert (span.start_ns, span.duration) == (START, 1.5)
    assert loaded.problems == []


def test_counters_are_not_mistaken_for_seconds():
    """R-T2: of hand-written nanoseconds some may look like seconds of our time."""
    spans = [
        flat(TOOL, span_id=f"0{i}", start_time=i * 10**9 // 2, end_time=i * 10**9)
        for i in range(1, 6)
    ]
    assert [span.duration for span in load(spans)[0].spans] == [i / 2 for i in range(1, 6)]


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ('{"city": "Oslo"}', '{"degrees": 3}'),
        (json.dumps('{"city": "Oslo"}'), json.dumps('{"degrees": 3}')),
        ({"city": "Oslo"}, {"degrees": 3}),
    ],
)
def test_arguments_and_results_encoded_once_twice_or_not_at_all(arguments, result):
    """R-T2: a tool's arguments are a mapping however often they were encoded."""
    attributes = {
        **TOOL,
        "gen_ai.tool.call.arguments": arguments,
        "gen_ai.tool.call.result": result,
    }
    (span,) = load([flat(attributes)])[0].spans
    assert (span.tool_input, span.tool_output) == ({"city": "Oslo"}, {"degrees": 3})


def test_mlflow_values_are_json_even_when_bare():
    """R-T7: `null`, `7` and `true` in MLflow's attributes are values, not words."""
    attributes = {
        "mlflow.spanType": '"TOOL"',
        "mlflow.spanInputs": '{"x": 1}',
        "mlflow.spanOutputs": "7",
    }
    (span,) = load([flat(attributes)])[0].spans
    assert (span.kind, span.tool_input, span.tool_output) == ("tool", {"x": 1}, 7)
    (trace,) = load([flat({"mlflow.spanType": '"AGENT"', "mlflow.spanOutputs": "null"})])
    assert trace.response is None


@pytest.mark.parametrize(
    ("status", "read"),
    [
        ("2", "error"),
        ({"code": "1"}, "ok"),
        ("success", "ok"),
        ("Failed", "error"),
        ({"status_code": "STATUS_CODE_ERROR"}, "error"),
    ],
)
def test_statuses_in_other_words(status, read):
    """R-T2: a status as digits or in a plain word is that status."""
    loaded = load([flat(MODEL, status=status)])
    assert (loaded[0].spans[0].status, loaded.problems) == (read, [])


@pytest.mark.parametrize(
    "document",
    [
        [flat(MODEL, status="teleported")],
        otlp(MODEL, status={"code": "teleported"}),
        {"trace_id": "aa", "spans": [{"span_id": "01", "span_name": "x", "status_code": "tel"}]},
    ],
    ids=["flat", "otlp", "trail"],
)
def test_an_unknown_status_is_reported_and_costs_no_span(document):
    """R-T7: what the status was is said; the rest of the span is read."""
    loaded = load(document)
    assert loaded[0].spans[0].status == "unset"
    (problem,) = loaded.problems
    assert problem.message.startswith("status is unknown: 'tel")


def test_bad_tags_and_logs_of_jaeger_cost_only_themselves():
    """R-T7: each is reported with its place."""
    tags = [{"value": 1}, *({"key": key, "value": value} for key, value in MODEL.items())]
    loaded = load(jaeger(tags=tags, logs=[{"timestamp": "soon"}, 3]))
    assert loaded[0].spans[0].input_tokens == 5
    assert [problem.place for problem in loaded.problems] == [
        "data[0].spans[0].tags[0]",
        "data[0].spans[0].logs[0]",
        "data[0].spans[0].logs[1]",
    ]


def test_clocks_that_differ_give_no_duration():
    """R-T2: a span that ends before it starts has no duration; it is reported."""
    loaded = load([flat(MODEL, start_time=END, end_time=START)])
    (trace,) = loaded
    assert (trace.spans[0].duration, trace.duration) == (None, None)
    assert "ends before it starts" in loaded.problems[0].message


def test_a_span_without_a_start_does_not_stretch_its_trace():
    """R-T3: a missing start time is no time in 1970, and is reported."""
    loaded = load([flat(MODEL), flat(TOOL, span_id="c" * 16, start_time=None)])
    (trace,) = loaded
    assert trace.duration == 1.5
    assert loaded.problems[0].message == "has no start time; its duration is unknown"


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
TRANSCRIPTS = {
    "a role that no API has": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
        {"role": "critic", "content": "fine"},
        {"role": "assistant", "content": "seven"},
    ],
    "Responses API": [
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "7"},
        {"type": "message", "role": "assistant", "content": [{"text": "seven"}]},
    ],
    "LangChain": {
        "messages": [
            {"type": "human", "content": "hi"},
            {
                "type": "ai",
                "content": "",
                "tool_calls": [{"id": "c1", "name": "f", "args": {"x": 1}}],
            },
            {"type": "tool", "name": "f", "tool_call_id": "c1", "content": "7"},
            {"type": "ai", "content": "seven"},
        ]
    },
    "LangChain, in envelopes": [
        {"type": "human", "data": {"content": "hi"}},
        {
            "type": "ai",
            "data": {"content": "", "tool_calls": [{"id": "c1", "name": "f", "args": {"x": 1}}]},
        },
        {"type": "tool", "data": {"content": "7", "name": "f", "tool_call_id": "c1"}},
        {"type": "ai", "data": {"content": "seven"}},
    ],
    "Gemini": {
        "contents": [
            {"role": "user", "parts": [{"text": "hi"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"x": 1}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": "7"}}]},
            {"role": "model", "parts": [{"text": "seven"}]},
        ]
    },
    "arguments encoded twice": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "tool_calls": [{"id": 1, "function": {"name": "f", "arguments": '"{\\"x\\": 1}"'}}],
        },
        {"role": "tool", "tool_call_id": 1, "content": "7"},
        {"role": "assistant", "content": "seven"},
    ],
}


@pytest.mark.parametrize("document", TRANSCRIPTS.values(), ids=TRANSCRIPTS)
def test_one_tool_call_in_transcripts_of_every_library(document):
    """R-T7: the call, its arguments, its result and the answer."""
    loaded = load(document)
    (trace,) = loaded
    (call,) = trace.tool_calls
    assert (call.name, call.arguments, str(call.result)) == ("f", {"x": 1}, "7")
    assert (trace.query, trace.response, loaded.problems) == ("hi", "seven", [])


def test_steps_of_atif_without_times_do_not_stretch_the_trace():
    """R-N4: a step before the first time is no step in 1970; odd steps are reported."""
    call = {"tool_call_id": "c1", "function_name": "f", "arguments": '{"x": 1}'}
    steps = [
        {"source": "user", "message": "hi"},
        {"source": "agent", "message": "", "timestamp": START // 10**6, "tool_calls": [call]},
        {"source": "agent", "message": "seven", "timestamp": "2023-11-14T22:13:21.5Z"},
        None,
    ]
    document = {"schema_version": "ATIF-v1.7", "agent": {"name": "a"}, "steps": steps}
    loaded = load(document)
    (trace,) = loaded
    assert trace.duration == pytest.approx(1.5)
    assert [c.arguments for c in trace.tool_calls] == [{"x": 1}]
    assert [problem.message for problem in loaded.problems] == [
        "1 of 4 steps skipped: not an object"
    ]

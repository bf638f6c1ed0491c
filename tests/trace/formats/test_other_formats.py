"""Jaeger, TRAIL, span lists and Langfuse: facts a person can look up in the files."""

import base64
import json
from collections import Counter

import pytest

from proctor.trace.load import load_traces
from proctor.trace.model import SpanStatus

# -- Jaeger ---------------------------------------------------------------------------------------


def test_jaeger(shared):
    """R-T7: microseconds, tags, references and logs of Jaeger's JSON."""
    (trace,) = load_traces(shared / "traces/jaeger/helm.json")
    assert trace.trace_id == "3e289017fe03ffd7c4145316d2eb3d0d"
    assert len(trace.spans) == 96
    (root,) = trace.roots
    assert (root.span_id, root.name) == ("e3daa973379bbe3b", "POST /")
    assert root.span.start_ns == 1771237534567093000
    assert root.span.duration_ns == 4180457000
    assert root.span.attributes["http.status_code"] == 200
    assert root.span.scope == "opentelemetry.instrumentation.fastapi"
    child = trace.node("1f9762ca1e03e2d2")
    assert child is not None
    assert child.span.parent_id == "e3daa973379bbe3b"
    (failed,) = trace.errors
    assert failed.attributes["error"] is True
    cancelled = [s for s in trace.spans if s.events]
    assert {e.name for s in cancelled for e in s.events} == {"exception"}
    assert cancelled[0].events[0].attributes["exception.type"].endswith("CancelledError")
    assert trace.metadata["resource"]["service.name"] == "helm_agent"


def test_jaeger_parent_is_the_child_of_reference():
    """R-T7: CHILD_OF counts before FOLLOWS_FROM, and the `error` tag makes an error."""
    raw = {
        "traceID": "ABC",
        "spanID": "2",
        "operationName": "x",
        "startTime": 5,
        "duration": 1,
        "references": [
            {"refType": "FOLLOWS_FROM", "spanID": "8"},
            {"refType": "CHILD_OF", "spanID": "9"},
        ],
        "tags": [
            {"key": "error", "type": "bool", "value": True},
            {"key": "n", "type": "int64", "value": "12"},
        ],
    }
    document = {"data": [{"traceID": "ABC", "spans": [raw]}]}
    (trace,) = load_traces(json.dumps(document).encode())
    (span,) = trace.spans
    assert (span.parent_id, span.status, span.attributes["n"]) == ("9", SpanStatus.ERROR, 12)
    assert (span.trace_id, span.start_ns, span.end_ns) == ("abc", 5000, 6000)


# -- TRAIL ----------------------------------------------------------------------------------------


def test_trail(shared):
    """R-T7: nested spans, ISO times and durations, log bodies, of one GAIA trace."""
    file = shared / "trail/data/GAIA/0035f455b3ff2295167a844f04d85d34.json"
    (trace,) = load_traces(file)
    assert trace.trace_id == "0035f455b3ff2295167a844f04d85d34"
    assert len(trace.spans) == 11
    (root,) = trace.roots
    assert (root.name, root.span_id) == ("main", "77fb7128d6f04862")
    assert root.span.start.isoformat() == "2025-03-19T16:32:08.062589+00:00"
    assert root.span.duration_ns == 108_755_330_000
    assert (root.span.scope, root.span.status) == ("patronus.sdk", SpanStatus.UNSET)
    assert root.span.events[0].attributes["body"]["function.name"] == "main"
    assert [node.name for node in root.children] == [
        "get_examples_to_answer",
        "answer_single_question",
    ]


def test_trail_as_a_whole(shared):
    """R-T7: all of TRAIL loads: 97 traces, one span twice, one trace with orphans, 259 errors."""
    loaded = load_traces(shared / "trail/data")
    assert len(loaded) == 97
    assert sum(len(trace.spans) for trace in loaded) == 2728
    # 259 in the files; the span that stands there twice is not among them.
    assert sum(s.status is SpanStatus.ERROR for trace in loaded for s in trace.spans) == 259
    (twice,) = loaded.problems
    assert not twice.fatal
    assert twice.place == "span b14646a5fcac02fd"
    orphaned = next(t for t in loaded if t.trace_id.startswith("72822db6"))
    assert len(orphaned.roots) == 7


def test_trail_nested_deeper_than_the_stack():
    """R-T7: how deep spans nest is no limit of the reader but of JSON decoders."""
    spans: list[dict] = []
    for number in range(400, 0, -1):
        one = {"span_id": f"{number:016x}", "timestamp": "2025-01-01T00:00:00Z"}
        spans = [{**one, "duration": "PT0S", "span_name": "s", "child_spans": spans}]
    (trace,) = load_traces(json.dumps({"trace_id": "t1", "spans": spans}).encode())
    assert len(trace.spans) == 400
    assert trace.spans[399].parent_id == f"{399:016x}"


@pytest.mark.parametrize(
    ("duration", "ns"),
    [
        ("PT0.03179S", 31_790_000),
        ("PT1H2M3.4S", 3_723_400_000_000),
        ("P1DT1S", 86_401_000_000_000),
        ("PT0.123456789S", 123_456_789),
        ("PT2M", 120_000_000_000),
    ],
)
def test_iso_durations(duration, ns):
    """R-T7: ISO 8601 durations, exact to the nanosecond."""
    raw = {
        "span_id": "1",
        "span_name": "s",
        "timestamp": "2025-03-19T16:32:08.062589123Z",
        "duration": duration,
        "child_spans": [],
    }
    (trace,) = load_traces(json.dumps({"trace_id": "ab", "spans": [raw]}).encode())
    (span,) = trace.spans
    assert span.start_ns == 1742401928062589123
    assert span.duration_ns == ns


# -- flat spans -----------------------------------------------------------------------------------


def test_flat_snake_case_spans(shared):
    """R-T7: a flat list of 17 spans with integer times and scopes."""
    file = shared / "traces/openllmetry/strands_openai_agents_genai_live_spans.json"
    (trace,) = load_traces(file)
    assert trace.trace_id == "9fa516c6d3cd456d5b2bf8349dcfa39b"
    assert len(trace.spans) == 17
    assert len(trace.roots) == 1
    node = trace.node("d58d9a3defe5fd21")
    assert node is not None
    assert node.span.parent_id == "d72488b1a2d28f70"
    assert (node.span.start_ns, node.span.end_ns) == (1786724979550236000, 1786724982074023000)
    assert node.span.scope == "opentelemetry.instrumentation.openai_agents"
    assert node.span.status is SpanStatus.OK


def test_adot_bodies_stay_on_their_event(shared):
    """R-T7: bodies that ADOT moved to span events; ids that are no hex stay as they are."""
    first, second = load_traces(shared / "traces/adot_cloudwatch/openinference_adot_spans.json")
    assert (first.trace_id, len(first.spans), len(second.spans)) == ("adot-trace-1", 6, 2)
    node = first.node("adot-inf-1")
    assert node is not None
    (event,) = node.span.events
    assert event.name == "openinference.instrumentation.langchain"
    assert event.time_ns == 1700000000000000000
    asked = event.attributes["body"]["input"]["messages"][0]
    assert asked == {"content": "What is the weather in Alaska?", "role": "user"}


def test_js_sdk_spans(shared):
    """R-T7: spanContext and [seconds, nanoseconds]; two spans of two traces."""
    first, second = load_traces(shared / "traces/vercel_ai_sdk/ai-generateText-doGenerate.json")
    (span,) = first.spans
    assert (first.trace_id, span.span_id) == (
        "b3e700af9eab81e19f72f964d62a35af",
        "39d6e9b3ddec9996",
    )
    assert span.start_ns == 1770131992_242000000
    assert second.trace_id == "edff2fc5854be6170e8cccccec0c82cf"


def test_a_bare_bag_of_attributes_is_one_span(shared):
    """R-T7: attributes without a span around them; the id is the same on every load."""
    file = shared / "traces/otel_genai/otel_genai_client_span_tool_calls.json"
    (trace,) = load_traces(file)
    (span,) = trace.spans
    assert span.name == "chat gpt-4"
    assert (span.start_ns, span.end_ns) == (0, None)
    assert span.attributes["gen_ai.response.id"] == "chatcmpl-CQF10eCkoFphJZJQkzzN6EkTD0AVF"
    assert load_traces(file)[0].trace_id == trace.trace_id


def test_python_sdk_console_output():
    """R-T7: what the Python SDK prints: indented objects in a row, `0x` ids, ISO times."""

    def printed(span_id, parent):
        return json.dumps(
            {
                "name": "work",
                "context": {"trace_id": "0x" + "A" * 32, "span_id": span_id, "trace_state": "[]"},
                "kind": "SpanKind.INTERNAL",
                "parent_id": parent,
                "start_time": "2025-01-01T00:00:00.000001Z",
                "end_time": "2025-01-01T00:00:01.000001Z",
                "status": {"status_code": "ERROR", "description": "boom"},
                "attributes": {"n": 1},
                "events": [{"name": "e", "timestamp": "2025-01-01T00:00:00Z", "attributes": {}}],
                "links": [],
                "resource": {"attributes": {"service.name": "me"}, "schema_url": ""},
            },
            indent=4,
        )

    text = printed("0x" + "1" * 16, None) + "\n" + printed("0x" + "2" * 16, "0x" + "1" * 16)
    loaded = load_traces(text.encode())
    (trace,) = loaded
    assert loaded.problems == []
    assert trace.trace_id == "a" * 32
    assert trace.spans[1].parent_id == "1" * 16
    assert trace.spans[0].error_message == "boom"
    assert trace.spans[0].duration_ns == 1_000_000_000
    assert trace.spans[0].events[0].time_ns == 1735689600_000000000
    assert trace.metadata["resource"] == {"service.name": "me"}


def test_phoenix_spans():
    """R-T7: Phoenix keeps kind and status beside the attributes, in an object with `data`."""
    raw = {
        "id": "x",
        "name": "llm",
        "context": {"trace_id": "t" * 4, "span_id": "s" * 4},
        "span_kind": "LLM",
        "parent_id": None,
        "start_time": "2025-01-01T00:00:00+00:00",
        "end_time": "2025-01-01T00:00:01+00:00",
        "status_code": "ERROR",
        "status_message": "no",
        "attributes": {"llm.model_name": "m"},
        "events": [],
    }
    (trace,) = load_traces(json.dumps({"data": [raw], "next_cursor": None}).encode())
    (span,) = trace.spans
    assert (span.kind, span.status, span.error_message) == ("llm", SpanStatus.ERROR, "no")


# -- Langfuse -------------------------------------------------------------------------------------


def test_langfuse(shared):
    """R-T7: nine observations, their tree, the trace's own facts and its scores."""
    file = shared / "traces/langfuse/langgraph-python-2025-08-22.trace.json"
    (trace,) = load_traces(file)
    assert trace.trace_id == "e1fde3efec57ce8a69bafd3fb928a7eb"
    assert len(trace.spans) == 9
    assert [root.name for root in trace.roots] == ["LangGraph"]
    assert Counter(s.name for s in trace.spans)["should_continue"] == 2
    assert next(score["name"] for score in trace.metadata["scores"]) == "hallucination"
    assert {s.scope for s in trace.spans} == {"langfuse-sdk"}


def test_langfuse_trace_facts(shared):
    """R-T7: JSON kept in strings: question, answer, session and user of the trace."""
    (trace,) = load_traces(shared / "traces/langfuse/pydantic-ai-2025-06-06.trace.json")
    assert trace.query == "What is Langfuse?"
    assert trace.response is not None
    assert trace.response.startswith("Langfuse is a tool designed for observability")
    assert (trace.session_id, trace.user_id) == ("session_abc", "user_123")
    node = trace.node("5cb389a3bdd21a6e")
    assert node is not None
    assert node.span.start.isoformat() == "2025-06-06T14:40:28.562000+00:00"
    assert node.span.duration == pytest.approx(4.794)
    assert node.span.attributes["gen_ai.request.model"] == "gpt-4o"


def observation(**changes):
    return {
        "id": "o1",
        "traceId": "t1",
        "type": "SPAN",
        "name": "step",
        "startTime": "2025-01-01T00:00:00.000Z",
        "endTime": "2025-01-01T00:00:01.000Z",
        "level": "DEFAULT",
        **changes,
    }


def test_langfuse_api_form_and_errors():
    """R-T7: observations nested in the trace, alone or in a list; level ERROR is an error."""
    bad = observation(level="ERROR", statusMessage="no such file", input='{"a": 1}')
    trace = {"id": "t1", "input": {"q": 1}, "output": "done", "observations": [bad]}
    for document in (trace, [trace], {"data": [trace]}, {"trace": trace, "observations": [bad]}):
        (loaded,) = load_traces(json.dumps(document).encode())
        (span,) = loaded.spans
        assert (span.status, span.error_message) == (SpanStatus.ERROR, "no such file")
        assert (loaded.query, loaded.response) == ({"q": 1}, "done")


def test_langfuse_observations_alone():
    """R-T7: the API's list of observations, without their trace."""
    child = observation(id="o2", parentObservationId="o1")
    (trace,) = load_traces(json.dumps([observation(), child]).encode())
    assert [root.span_id for root in trace.roots] == ["o1"]
    assert len(trace.spans) == 2


# -- MLflow, Jaeger v3 and bare spans, Zipkin, shared call ids --------------------------------

TRACE_ID, ROOT, CHILD = "ab" * 16, "cd" * 8, "ef" * 8


def loaded(tmp_path, document):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    (trace,) = load_traces(path)
    return trace


def test_mlflow_traces(tmp_path):
    """R-T7: `trace.to_json()` and a list of its spans: types, inputs, outputs, usage and cost."""

    def span(span_id, parent, name, start, **attributes):
        return {
            "trace_id": base64.b64encode(bytes.fromhex(TRACE_ID)).decode(),
            "span_id": base64.b64encode(bytes.fromhex(span_id)).decode(),
            "parent_span_id": parent and base64.b64encode(bytes.fromhex(parent)).decode(),
            "name": name,
            "start_time_unix_nano": start,
            "end_time_unix_nano": start + 5,
            "events": [],
            "status": {"code": "STATUS_CODE_OK", "message": ""},
            "attributes": {f"mlflow.{key}": json.dumps(each) for key, each in attributes.items()},
        }

    said = {"role": "assistant", "content": "It is 18 degrees."}
    usage = {"input_tokens": 40, "output_tokens": 8, "total_tokens": 48}
    chat = {
        "llm.model": "gpt-4o-mini",
        "chat.tokenUsage": usage,
        "llm.cost": {"input_cost": 0.25, "output_cost": 0.5, "total_cost": 0.75},
        "spanInputs": {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Hi"}]},
        "spanOutputs": {"choices": [{"message": said}]},
    }
    spans = [
        span(ROOT, None, "answer", 1, spanType="AGENT", spanInputs={"question": "Weather?"},
             spanOutputs="It is 18 degrees."),
        span(CHILD, ROOT, "Completions", 2, spanType="CHAT_MODEL", **chat),
        span("01" * 8, ROOT, "get_weather", 3, spanType="TOOL", spanFunctionName="get_weather",
             spanInputs={"city": "Paris"}, spanOutputs="18 degrees"),
    ]  # fmt: skip
    whole = {"info": {"trace_id": "tr-1", "state": "OK"}, "data": {"spans": spans}}
    for document in (whole, spans):
        trace = loaded(tmp_path, document)
        assert (trace.query, trace.response) == ("Weather?", "It is 18 degrees.")
        (call,) = trace.llm_calls
        assert (call.model, call.input_tokens, call.output_tokens) == ("gpt-4o-mini", 40, 8)
        assert call.cost_usd == 0.75
        assert [m.content for m in call.input_messages] == ["Hi"]
        assert [m.content for m in call.output_messages] == ["It is 18 degrees."]
        (tool,) = trace.tool_calls
        assert (tool.name, tool.arguments, tool.result) == (
            "get_weather",
            {"city": "Paris"},
            "18 degrees",
        )


def test_jaeger_v3_and_bare_spans(tmp_path):
    """R-T7: Jaeger's API v3 wraps OTLP in `result`; its spans may also be a plain list."""
    tags = [{"key": "gen_ai.operation.name", "type": "string", "value": "execute_tool"}]
    bare = [
        {
            "traceID": TRACE_ID,
            "spanID": span_id,
            "operationName": name,
            "references": [{"refType": "CHILD_OF", "spanID": parent}] if parent else [],
            "startTime": 1_000,
            "duration": 5,
            "tags": tags if parent else [],
            "process": {"serviceName": "shop", "tags": []},
        }
        for span_id, parent, name in ((ROOT, None, "agent"), (CHILD, ROOT, "weather"))
    ]
    v3 = {
        "traceId": TRACE_ID,
        "spanId": CHILD,
        "parentSpanId": ROOT,
        "name": "weather",
        "startTimeUnixNano": "1000000",
        "endTimeUnixNano": "1005000",
        "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": "execute_tool"}}],
    }
    wrapped = {"result": {"resourceSpans": [{"scopeSpans": [{"spans": [v3]}]}]}}
    for document in (bare, {"data": bare}, wrapped):
        trace = loaded(tmp_path, document)
        assert trace.tool_sequence == ["weather"]
        span = next(span for span in trace.spans if span.name == "weather")
        assert (span.span_id, span.parent_id) == (CHILD, ROOT)
        assert (span.start_ns, span.end_ns) == (1_000_000, 1_005_000)
    assert loaded(tmp_path, bare).metadata["resource"] == {"service.name": "shop"}


def test_zipkin(tmp_path):
    """R-T7: Zipkin's spans: times, tags, annotations, errors; a list of traces, too."""
    spans = [
        {
            "traceId": TRACE_ID,
            "id": ROOT,
            "name": "agent",
            "timestamp": 1_000,
            "duration": 50,
            "localEndpoint": {"serviceName": "shop"},
            "tags": {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "clerk"},
        },
        {
            "traceId": TRACE_ID,
            "id": CHILD,
            "parentId": ROOT,
            "name": "weather",
            "timestamp": 1_010,
            "duration": 20,
            "annotations": [{"timestamp": 1_015, "value": "retry"}],
            "tags": {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.call.arguments": '{"city": "Paris"}',
                "error": "no such city",
            },
        },
    ]
    for document in (spans, [spans]):
        trace = loaded(tmp_path, document)
        assert trace.metadata["resource"] == {"service.name": "shop"}
        agent, tool = trace.index.spans
        assert (agent.agent_name, agent.start_ns, agent.end_ns) == ("clerk", 1_000_000, 1_050_000)
        assert (tool.tool_input, tool.parent_id) == ({"city": "Paris"}, ROOT)
        assert (tool.failed, tool.error_message) == (True, "no such city")
        assert [(event.name, event.time_ns) for event in tool.events] == [("retry", 1_015_000)]


def test_parallel_calls_with_one_id(tmp_path):
    """R-T7: two calls that a model gave one id are two calls, each with its result."""
    calls = [
        {"id": "call_0", "function": {"name": "weather", "arguments": json.dumps({"city": city})}}
        for city in ("Paris", "Oslo")
    ]
    transcript = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_0", "content": "18 degrees"},
        {"role": "tool", "tool_call_id": "call_0", "content": "4 degrees"},
        {"role": "assistant", "content": "18 and 4 degrees."},
    ]
    trace = loaded(tmp_path, transcript)
    assert [(call.arguments, call.result) for call in trace.tool_calls] == [
        ({"city": "Paris"}, "18 degrees"),
        ({"city": "Oslo"}, "4 degrees"),
    ]

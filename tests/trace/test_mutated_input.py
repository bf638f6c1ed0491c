"""Sound documents of every format, broken at random: nothing raises, nothing else is lost."""

import json
import random
from copy import deepcopy

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from proctor.trace.formats.native import encode_trace
from proctor.trace.load import TraceLoadError, load_traces
from proctor.trace.model import Span, Trace

GOOD = b'[{"trace_id": "900d", "span_id": "1", "name": "fine", "start_time": 1, "end_time": 2}]'
WITNESS = {"trace_id": "f" * 32, "span_id": "e" * 16, "name": "witness"}
JUNK = [None, True, -1, 1e400, 2**80, "", "x", "\ud800", [], {}, [[]], {"a": None}, [1], ["a", {}]]


def documents():
    """One sound document of each format, small enough to be mutated everywhere."""
    attribute = [{"key": "k", "value": {"arrayValue": {"values": [{"intValue": "1"}]}}}]
    span = {
        "traceId": "a" * 32,
        "spanId": "b" * 16,
        "parentSpanId": "c" * 16,
        "name": "n",
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "2",
        "attributes": attribute,
        "status": {"code": 2, "message": "m"},
        "events": [{"name": "e", "timeUnixNano": "1", "attributes": attribute}],
    }
    record = {"traceId": "a" * 32, "spanId": "b" * 16, "body": {"stringValue": "x"}}
    otlp = {
        "resourceSpans": [
            {
                "resource": {"attributes": attribute},
                "scopeSpans": [{"scope": {"name": "s"}, "spans": [span]}],
            }
        ],
        "resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}],
    }
    tag = [{"key": "k", "type": "int64", "value": 1}]
    jaeger = {
        "data": [
            {
                "traceID": "aa",
                "spans": [
                    {
                        "traceID": "aa",
                        "spanID": "1",
                        "operationName": "o",
                        "references": [{"refType": "CHILD_OF", "spanID": "2"}],
                        "startTime": 1,
                        "duration": 2,
                        "tags": tag,
                        "logs": [{"timestamp": 1, "fields": tag}],
                        "processID": "p1",
                    }
                ],
                "processes": {"p1": {"serviceName": "s", "tags": tag}},
            }
        ]
    }
    inner = {
        "span_id": "2",
        "span_name": "n",
        "timestamp": "2025-01-01T00:00:00Z",
        "duration": "PT1S",
        "span_attributes": {"openinference.span.kind": "TOOL", "input.value": '{"a": 1}'},
        "events": [{"Name": "e", "Timestamp": "2025-01-01T00:00:00Z", "Attributes": {}}],
        "logs": [{"timestamp": "2025-01-01T00:00:00Z", "body": {}, "log_attributes": {}}],
        "child_spans": [],
        "status_code": "Ok",
    }
    trail = {"trace_id": "aa", "spans": [{**inner, "span_id": "1", "child_spans": [inner]}]}
    flat = [
        {
            "context": {"trace_id": "0x" + "a" * 32, "span_id": "0x" + "b" * 16},
            "name": "n",
            "parent_id": None,
            "start_time": [1, 2],
            "end_time": "2025-01-01T00:00:00Z",
            "attributes": {
                "gen_ai.operation.name": "chat",
                "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text"}]}],
            },
            "status": {"code": "OK"},
            "span_events": [
                {"event_name": "e", "timestamp": 5, "body": {"input": {"messages": []}}}
            ],
            "scope": {"name": "s"},
        }
    ]
    langfuse = {
        "trace": {"id": "t", "input": "{}", "output": '"x"', "metadata": "{}", "scores": [{}]},
        "observations": [
            {
                "id": "o",
                "traceId": "t",
                "type": "GENERATION",
                "name": "g",
                "startTime": "2025-01-01T00:00:00Z",
                "endTime": None,
                "level": "ERROR",
                "metadata": '{"attributes": {"a": 1}, "scope": {"name": "s"}}',
                "input": [{"role": "user", "content": "x"}],
                "usageDetails": {"input": 1, "output": 2},
                "costDetails": {"total": 0.1},
            }
        ],
    }
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    talk = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "tool_calls": [call], "content": None, "usage": {}},
            {"role": "tool", "tool_call_id": "c", "content": "r"},
        ],
        "model": "m",
    }
    own = json.loads(
        encode_trace(
            Trace(trace_id="t", spans=[Span(span_id="1", trace_id="t", name="n", start_ns=1)])
        )
    )
    return [otlp, jaeger, trail, flat, langfuse, talk, own]


def places(value, path=()):
    """Every place inside a document."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in pairs:
        yield (*path, key)
        if isinstance(child, (dict, list)):
            yield from places(child, (*path, key))


def mutate(document, rng):
    """Drop something, or put something of another kind in its place."""
    found = list(places(document))
    if not found:
        return document
    *path, last = rng.choice(found)
    target = document
    for key in path:
        target = target[key]
    if rng.random() < 0.4:
        del target[last]
    else:
        target[last] = deepcopy(rng.choice(JUNK))
    return document


@settings(max_examples=400)
@given(st.sampled_from(range(7)), st.integers(0, 2**32), st.integers(1, 4))
def test_mutated_documents_never_raise_and_never_take_others_along(which, seed, times):
    """R-T7: whatever happens to one document, its neighbour in the same file loads."""
    rng = random.Random(seed)
    document = json.loads(json.dumps(documents()[which]))  # no part is shared with another
    for _ in range(times):
        document = mutate(document, rng)
    broken = json.dumps(document)
    loaded = load_traces(f"{json.dumps(WITNESS)}\n{broken}\n".encode())
    witness = [s for t in loaded for s in t.spans if s.name == "witness"]
    assert len(witness) == 1
    for trace in loaded:
        assert len(trace.nodes()) == len(trace.spans)
        assert (trace.started is None) == (not trace.spans)
    alone = _load_or_none(broken.encode())
    assert (0 if alone is None else len(alone)) == len(loaded) - 1


def _load_or_none(data):
    try:
        return load_traces(data)
    except TraceLoadError:
        return None


@settings(max_examples=300)
@given(st.sampled_from(range(7)), st.data())
def test_truncated_and_scrambled_bytes_never_raise(which, data):
    """R-T7: a file cut anywhere, or with bytes changed, gives traces or one clear error."""
    indent = data.draw(st.sampled_from([None, 1]))
    _check_scrambled(bytearray(json.dumps(documents()[which], indent=indent).encode()), data)


@settings(max_examples=200)
@given(st.data())
def test_scrambled_protobuf_never_raises(data):
    """R-T7: the same for protobuf."""
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id, span.span_id, span.name = b"a" * 16, b"b" * 8, "n"
    span.attributes.add(key="k").value.array_value.values.add().string_value = "v"
    _check_scrambled(bytearray(request.SerializeToString()), data)


def _check_scrambled(raw, data):
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    loaded = load_traces([cut, GOOD])
    assert loaded[-1].trace_id == "900d"
    if len(loaded) == 1:
        assert any(problem.fatal for problem in loaded.problems)

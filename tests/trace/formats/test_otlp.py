"""OTLP in its JSON and protobuf spellings, on files of real producers and on its corner cases."""

import base64
import json

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from proctor.trace.load import load_traces
from proctor.trace.model import SpanStatus

TRACE = "5b8efff798038103d269b633813fc60c"
SPAN = "eee19b7ec3c1b174"


def request(*spans, scope="lib", key="resourceSpans", group="scopeSpans"):
    return {
        key: [
            {
                "resource": {
                    "attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]
                },
                group: [{"scope": {"name": scope}, "spans": list(spans)}],
            }
        ]
    }


def span(**changes):
    return {
        "traceId": TRACE,
        "spanId": SPAN,
        "name": "work",
        "startTimeUnixNano": "1000",
        "endTimeUnixNano": "3000",
        **changes,
    }


def load(document):
    return load_traces(json.dumps(document).encode())


def test_the_example_of_the_specification(shared):
    """R-T7: upper-case hex ids, text times and a root whose parent is elsewhere."""
    (trace,) = load_traces(shared / "traces/otlp_json/proto_example_trace.json")
    (only,) = trace.spans
    assert trace.trace_id == TRACE
    assert (only.span_id, only.parent_id) == (SPAN, "eee19b7ec3c1b173")
    assert (only.name, only.scope) == ("I'm a server span", "my.library")
    assert (only.start_ns, only.end_ns) == (1544712660000000000, 1544712661000000000)
    assert only.attributes == {"my.span.attr": "some value"}
    assert trace.metadata["resource"] == {"service.name": "my.service"}


def test_base64_ids_and_enum_names_in_a_list_of_requests(shared):
    """R-T7: what protobuf's own JSON writes gives the same hex ids as the specification's."""
    (trace,) = load_traces(shared / "traces/otlp_json/prism_rag_earnings_agent.json")
    assert trace.trace_id == "b47d761fe79be88aee41342cdd527268"
    assert len(trace.spans) == 18
    assert [root.name for root in trace.roots] == ["main"]
    first = trace.node("ce2a6b26ab4bb25f")
    assert first is not None
    assert first.span.parent_id == "690cf3daabedaca6"
    assert first.span.status is SpanStatus.OK
    scopes = [s.scope for s in trace.spans]
    assert scopes.count("openinference.instrumentation.langchain") == 15
    assert scopes.count("quotientai.chroma") == 1
    assert scopes.count("quotient.sdk.python") == 2


def test_tempo_batches(shared):
    """R-T7: Tempo's batches, library spans and numeric times."""
    (trace,) = load_traces(shared / "traces/tempo/tempo_export_with_batches.json")
    assert len(trace.spans) == 1 + 18 + 67
    first = trace.node("21beb323d66610f7")
    assert first is not None
    assert (first.span.start_ns, first.span.end_ns) == (1777555053780274700, 1777555053781172000)
    assert first.span.scope == "go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"


def test_status_events_and_parents_of_a_real_run(shared):
    """R-T7: two traces of pydantic-ai, one of them crashed."""
    good, bad = load_traces(shared / "traces/produced/pydantic_ai_v5.otlp.json")
    assert (len(good.spans), len(bad.spans)) == (9, 3)
    retried = good.node("24c9572f5cc1f9d5")
    assert retried is not None
    assert retried.span.status is SpanStatus.ERROR
    assert [event.name for event in retried.span.events] == ["exception"]
    expert = good.node("870804be5cea43de")
    assert expert is not None
    assert expert.parent is not None
    assert expert.parent.name == "execute_tool ask_expert"
    message = bad.roots[0].span.error_message or ""
    assert message.endswith("tool exploded")


@pytest.mark.parametrize(
    "name",
    [
        "langfuse_sdk",
        "openinference_langgraph",
        "openinference_openai",
        "openinference_smolagents",
        "openllmetry_openai",
        "openllmetry_openai_legacy_0.47",
        "otel_genai_official_agents",
        "otel_genai_official_openai",
        "pydantic_ai_legacy_1.0_v1",
        "pydantic_ai_v5",
    ],
)
def test_protobuf_and_json_of_one_request_are_equal(shared, name):
    """R-T7: the same request gives the same traces in both spellings."""
    as_json = load_traces(shared / f"traces/produced/{name}.otlp.json")
    as_protobuf = load_traces(shared / f"traces/produced/{name}.otlp.pb")
    assert list(as_protobuf) == list(as_json)
    assert as_json.problems == as_protobuf.problems == []


def test_every_kind_of_value():
    """R-T7: int64 as text, nested lists and maps, bytes as base64, non-numbers as text."""
    values = {
        "text": {"stringValue": "x"},
        "integer": {"intValue": "-9007199254740993"},
        "plain": {"intValue": 7},
        "flag": {"boolValue": False},
        "real": {"doubleValue": 0.5},
        "endless": {"doubleValue": "Infinity"},
        "list": {"arrayValue": {"values": [{"intValue": "1"}, {"stringValue": "b"}]}},
        "map": {"kvlistValue": {"values": [{"key": "k", "value": {"boolValue": True}}]}},
        "bytes": {"bytesValue": "AAEC"},
        "nothing": {},
    }
    pairs = [{"key": key, "value": value} for key, value in values.items()]
    (trace,) = load(request(span(attributes=pairs)))
    assert trace.spans[0].attributes == {
        "text": "x",
        "integer": -9007199254740993,
        "plain": 7,
        "flag": False,
        "real": 0.5,
        "endless": float("inf"),
        "list": [1, "b"],
        "map": {"k": True},
        "bytes": "AAEC",
        "nothing": None,
    }


def test_values_are_the_same_in_protobuf():
    """R-T7: protobuf's values land as their JSON spelling does, bytes included."""
    message = ExportTraceServiceRequest()
    raw = message.resource_spans.add().scope_spans.add().spans.add()
    raw.trace_id, raw.span_id = bytes.fromhex(TRACE), bytes.fromhex(SPAN)
    raw.attributes.add(key="bytes").value.bytes_value = b"\x00\x01\x02"
    nested = raw.attributes.add(key="map").value.kvlist_value.values.add(key="list")
    nested.value.array_value.values.add().int_value = 5
    raw.attributes.add(key="nothing")
    (trace,) = load_traces(message.SerializeToString())
    assert trace.spans[0].attributes == {"bytes": "AAEC", "map": {"list": [5]}, "nothing": None}


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (2, SpanStatus.ERROR),
        ("STATUS_CODE_ERROR", SpanStatus.ERROR),
        ("Error", SpanStatus.ERROR),
        (1, SpanStatus.OK),
        ("STATUS_CODE_UNSET", SpanStatus.UNSET),
    ],
)
def test_status_by_number_and_by_name(code, status):
    """R-T7: enum integers and names mean the same."""
    (trace,) = load(request(span(status={"code": code, "message": "why"})))
    assert trace.spans[0].status is status
    assert trace.spans[0].error_message == ("why" if status is SpanStatus.ERROR else None)


def test_snake_case_and_lines_of_requests():
    """R-T7: requests one a line, spans of one trace spread over them, in snake case."""
    first = request(span())
    second = {
        "resource_spans": [
            {
                "scope_spans": [
                    {
                        "spans": [
                            {
                                "trace_id": base64.b64encode(bytes.fromhex(TRACE)).decode(),
                                "span_id": base64.b64encode(b"\0" * 7 + b"\1").decode(),
                                "parent_span_id": base64.b64encode(bytes.fromhex(SPAN)).decode(),
                                "name": "below",
                                "start_time_unix_nano": 2000,
                            }
                        ]
                    }
                ]
            }
        ]
    }
    data = "\n".join(map(json.dumps, (first, second, first | {"resourceSpans": []}))).encode()
    (trace,) = load_traces(data)
    below = trace.node("0000000000000001")
    assert below is not None
    assert below.parent is not None
    assert below.parent.span_id == SPAN
    assert below.span.end_ns is None


def logs(body, **changes):
    record = {"traceId": TRACE, "spanId": SPAN, "timeUnixNano": "1500", "body": body, **changes}
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}


BODY = {"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": "hello"}}]}}


def test_log_records_join_their_span_in_one_file_or_across_files(tmp_path):
    """R-T7: content that went to log records comes back to the span it belongs to."""
    record = logs(BODY, eventName="gen_ai.user.message")
    both = {**request(span()), **record}
    (tmp_path / "b_traces.json").write_text(json.dumps(request(span())))
    (tmp_path / "c_logs.json").write_text(json.dumps(record))
    for source in (json.dumps(both).encode(), tmp_path):
        (trace,) = load_traces(source)
        (event,) = trace.spans[0].events
        assert (event.name, event.time_ns) == ("gen_ai.user.message", 1500)
        assert event.attributes["body"] == {"content": "hello"}


def test_log_records_as_protobuf(tmp_path):
    """R-T7: a protobuf log request is distinguished from a trace request and joined."""
    message = ExportLogsServiceRequest()
    raw = message.resource_logs.add().scope_logs.add().log_records.add()
    raw.trace_id, raw.span_id = bytes.fromhex(TRACE), bytes.fromhex(SPAN)
    raw.time_unix_nano, raw.event_name = 1500, "gen_ai.choice"
    raw.body.string_value = "bye"
    (trace,) = load_traces([message.SerializeToString(), json.dumps(request(span())).encode()])
    (event,) = trace.spans[0].events
    assert (event.name, event.attributes) == ("gen_ai.choice", {"body": "bye"})


def test_log_records_without_their_span_are_counted():
    """R-T7: a record whose span is nowhere is reported, not lost in silence."""
    loaded = load_traces(json.dumps({**request(span()), **logs(BODY, spanId="aa" * 8)}).encode())
    assert [p.message for p in loaded.problems] == [
        "1 log records belong to no span that was loaded"
    ]


def test_logfire_placeholders_give_way_and_tell_of_what_never_ended():
    """R-T7: a pending placeholder is dropped, or kept if its span never arrived."""

    def placeholder(span_id, announced, parent):
        attributes = {"logfire.span_type": "pending_span", "logfire.pending_parent_id": parent}
        return span(
            spanId=span_id,
            parentSpanId=announced,
            attributes=[
                {"key": key, "value": {"stringValue": value}} for key, value in attributes.items()
            ],
        )

    lost = "bb" * 8
    (trace,) = load(
        request(placeholder("11" * 8, SPAN, "0" * 16), span(), placeholder("22" * 8, lost, SPAN))
    )
    assert {s.span_id for s in trace.spans} == {SPAN, lost}
    unfinished = trace.node(lost)
    assert unfinished is not None
    assert unfinished.span.end_ns is None
    assert unfinished.span.parent_id == SPAN

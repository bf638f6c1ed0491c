"""What is written out can be read back, by us and by OpenTelemetry's own classes."""

import gzip
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from spans import span, trace

from proctor.errors import ProctorError
from proctor.trace import Document, Event, Message, Span, SpanKind, SpanStatus, ToolCall, Trace
from proctor.trace.export import EXPORTERS, export_traces, save_traces, write_traces
from proctor.trace.load import load_traces

# ATIF has no place for most fields; tests/trace/test_coding_sessions.py says what it keeps.
FORMATS = sorted(EXPORTERS.keys() - {"atif"})
FIELDS = [field for field in Span.__struct_fields__ if field != "attributes"]
TRACE_FIELDS = ["trace_id", "query", "response", "request_id", "session_id", "user_id", "metadata"]

texts = st.text(max_size=12)
maybe_text = st.none() | texts
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
# Keys of our own are not "as received": they never stand in a span that was imported.
keys = texts.filter(lambda key: not key.startswith("proctor."))
objects = st.dictionaries(keys, values, max_size=3)
counts = st.none() | st.integers(0, 2**53)
money = st.none() | st.floats(0, 1e9)
# Between these, an hour and a week of 1970 are read as milliseconds and microseconds of our time.
times = st.integers(0, 10**12) | st.integers(10**16, 2**63)
calls = st.builds(ToolCall, name=texts, arguments=values, id=maybe_text)
messages = st.builds(
    Message,
    role=texts,
    content=maybe_text,
    tool_calls=st.lists(calls, max_size=2).map(tuple),
    tool_call_id=maybe_text,
    name=maybe_text,
    other=st.lists(texts, max_size=2).map(tuple),
)
conversations = st.lists(messages, max_size=2).map(tuple)
documents = st.builds(
    Document, id=maybe_text, text=maybe_text, score=st.none() | st.floats(-1, 1), metadata=objects
)
events = st.builds(Event, name=texts, time_ns=times, attributes=objects)


def hex_ids(digits: int) -> st.SearchStrategy[str]:
    return st.integers(1, 16**digits - 1).map(lambda number: f"{number:0{digits}x}")


WIRE_SPAN_IDS = hex_ids(16)


@st.composite
def traces(draw: st.DrawFn, span_ids: st.SearchStrategy[str] = WIRE_SPAN_IDS) -> Trace:
    trace_id = draw(hex_ids(32))
    ids = draw(st.lists(span_ids, min_size=1, max_size=4, unique=True))
    spans = [
        draw(
            st.builds(
                Span,
                span_id=st.just(one),
                trace_id=st.just(trace_id),
                parent_id=st.none() | st.sampled_from(ids) | hex_ids(16),
                name=texts,
                kind=st.sampled_from(SpanKind),
                status=st.sampled_from(SpanStatus),
                start_ns=times,
                end_ns=st.none() | st.integers(1, 2**63),
                attributes=objects,
                events=st.lists(events, max_size=2).map(tuple),
                scope=st.none() | st.text(min_size=1, max_size=5),
                **dict.fromkeys(
                    "tool_name tool_call_id model error_type error_message agent_name "
                    "handoff_to".split(),
                    maybe_text,
                ),
                **dict.fromkeys(["tool_input", "tool_output", "input", "output"], values),
                input_tokens=counts,
                output_tokens=counts,
                cost_usd=money,
                documents=st.lists(documents, max_size=2).map(tuple),
                input_messages=conversations,
                output_messages=conversations,
            )
        )
        for one in ids
    ]
    # Next to real times a start of 0 is a missing one and is replaced when the trace is read.
    given_times = [time for s in spans for time in (s.start_ns, s.end_ns) if time]
    assume(all(s.start_ns for s in spans) or min(given_times, default=0) <= 10**17)
    return Trace(
        trace_id=trace_id,
        spans=spans,
        query=draw(values),
        response=draw(maybe_text),
        request_id=draw(maybe_text),
        session_id=draw(maybe_text),
        user_id=draw(maybe_text),
        metadata=draw(objects),
    )


def facts(of: Trace) -> dict[str, Any]:
    """Everything normalised about a trace, its spans by id (exports group them by scope)."""
    return {
        **{field: getattr(of, field) for field in TRACE_FIELDS},
        "spans": {s.span_id: {field: getattr(s, field) for field in FIELDS} for s in of.spans},
    }


@settings(max_examples=60)
@given(traces())
def test_any_trace_comes_back_with_the_same_fields(original: Trace) -> None:
    """R-T8: export and import give back every normalised field, whatever it holds."""
    for name in FORMATS:
        (back,) = load_traces(export_traces(original, name, redact=False))
        assert facts(back) == facts(original), name
        for one in original.spans:
            received = next(s.attributes for s in back.spans if s.span_id == one.span_id)
            assert {key: received.get(key) for key in one.attributes} == one.attributes, name


@pytest.mark.parametrize("name", FORMATS)
def test_real_traces_come_back_with_the_same_fields(name: str, shared: Path) -> None:
    """R-T8: import, export, import is the identity on the traces of every producer we know."""
    files = [
        path
        for path in sorted((shared / "traces").rglob("*.json*"))
        if "golden" not in str(path) and path.stat().st_size < 3_000_000
    ]
    assert len(files) > 10
    compared = 0
    for path in files:
        try:
            originals = load_traces(path)
        except ProctorError:
            continue  # what loads is the business of other tests
        back = load_traces(export_traces(originals, name, redact=False))
        by_id = {one.trace_id: one for one in back}
        for original in originals:
            if name != "jsonl" and not _has_wire_ids(original):
                continue
            assert facts(by_id[original.trace_id]) == facts(original), path
            compared += 1
    assert compared > 10


def _has_wire_ids(of: Trace) -> bool:
    ids = [(of.trace_id, 32)] + [(s.span_id, 16) for s in of.spans]
    return all(re.fullmatch(f"[0-9a-f]{{{digits}}}", one) for one, digits in ids)


def test_otlp_json_keeps_to_the_specification() -> None:
    """R-T8: hex ids, integer enums, 64-bit integers as text, one request object."""
    original = trace(
        span("root", attributes={"big": 2**60, "yes": True, "half": 0.5, "list": [1, "a"]}),
        span("llm", "root", kind=SpanKind.LLM, status=SpanStatus.ERROR, error_message="no"),
    )
    document = json.loads(export_traces(original, "otlp-json"))
    root, llm = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert re.fullmatch("[0-9a-f]{32}", root["traceId"])
    assert re.fullmatch("[0-9a-f]{16}", root["spanId"])
    assert llm["parentSpanId"] == root["spanId"]
    assert "parentSpanId" not in root
    assert (root["kind"], llm["kind"]) == (1, 3)
    assert llm["status"] == {"code": 2, "message": "no"}
    assert root["startTimeUnixNano"] == "0"
    held = {pair["key"]: pair["value"] for pair in root["attributes"]}
    assert held["big"] == {"intValue": str(2**60)}
    assert held["yes"] == {"boolValue": True}
    assert held["half"] == {"doubleValue": 0.5}
    assert held["list"] == {"arrayValue": {"values": [{"intValue": "1"}, {"stringValue": "a"}]}}


def test_protobuf_of_several_traces_is_one_message() -> None:
    """R-T8: OpenTelemetry's own classes read what we write, all of it."""
    one = trace(span("a"), span("b", "a"))
    two = Trace(trace_id="other", spans=[Span(span_id="c", trace_id="other", name="c")])
    data = TracesData.FromString(export_traces([one, two], "otlp-proto"))
    names = [s.name for r in data.resource_spans for g in r.scope_spans for s in g.spans]
    assert names == ["a", "b", "c"]
    first = data.resource_spans[0].scope_spans[0].spans
    assert first[1].parent_span_id == first[0].span_id
    assert [len(first[0].trace_id), len(first[0].span_id)] == [16, 8]


@settings(max_examples=30)
@given(traces(span_ids=st.text(min_size=1, max_size=20)))
def test_ids_of_other_shapes_keep_the_tree_together(original: Trace) -> None:
    """R-T8: ids that OTLP cannot carry become hashes; parents still find their children."""
    for name in ("otlp-json", "otlp-proto", "openinference"):
        (back,) = load_traces(export_traces(original, name, redact=False))
        assert shape(back) == shape(original), name


def shape(of: Trace) -> dict[tuple[Any, ...], int]:
    """Count each (span, parent), identified by fields that an export does not change."""
    found: dict[tuple[Any, ...], int] = {}
    known = {s.span_id: s for s in of.spans}
    for one in of.spans:
        parent = known.get(one.parent_id or "")
        key = (*_identity(one), *(_identity(parent) if parent else ()))
        found[key] = found.get(key, 0) + 1
    return found


def _identity(one: Span) -> tuple[Any, ...]:
    return one.name, one.start_ns, one.kind, one.status, repr(one.input)


def test_the_original_id_is_kept() -> None:
    """R-T8: an id that was hashed can still be looked up."""
    document = json.loads(export_traces(trace(span("step-1")), "otlp-json"))
    written = document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"]
    held = {pair["key"]: pair["value"].get("stringValue") for pair in written}
    assert (held["proctor.span_id"], held["proctor.trace_id"]) == ("step-1", "trace")


def test_other_tools_find_the_names_of_their_convention() -> None:
    """R-T8: an export has GenAI or OpenInference attributes next to our own."""
    call = span(
        "t",
        kind=SpanKind.TOOL,
        tool_name="search",
        tool_input={"q": "x"},
        tool_output="y",
        tool_call_id="c1",
    )
    model = span(
        "m",
        kind=SpanKind.LLM,
        model="gpt",
        input_tokens=3,
        output_tokens=4,
        input_messages=(Message("user", "hi"),),
        output_messages=(Message("assistant", None, (ToolCall("search", {"q": "x"}, "c1"),)),),
    )
    found = load_attributes(trace(call, model, session_id="s"), "otlp-json")
    assert found["t"]["gen_ai.tool.name"] == "search"
    assert found["t"]["gen_ai.tool.call.arguments"] == '{"q":"x"}'
    assert found["t"]["gen_ai.conversation.id"] == "s"
    assert found["m"]["gen_ai.operation.name"] == "chat"
    assert json.loads(found["m"]["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "hi"}]}
    ]
    found = load_attributes(trace(call, model), "openinference")
    assert found["t"]["openinference.span.kind"] == "TOOL"
    assert found["t"]["input.value"] == '{"q":"x"}'
    assert found["m"]["llm.token_count.total"] == 7
    assert found["m"]["llm.input_messages.0.message.content"] == "hi"
    head = "llm.output_messages.0.message.tool_calls.0.tool_call.function"
    assert found["m"][f"{head}.name"] == "search"


def load_attributes(of: Trace, name: str) -> dict[str, dict[str, Any]]:
    (back,) = load_traces(export_traces(of, name))
    return {one.name: one.attributes for one in back.spans}


@pytest.mark.parametrize("name", FORMATS)
def test_values_without_a_place_in_the_format_do_not_stop_an_export(name: str) -> None:
    """R-T8: huge integers, NaN, deep nesting and lone surrogates do not fail an export."""
    deep: Any = "bottom"
    for _ in range(200):
        deep = {"in": [deep]}
    odd = {"huge": 2**64 - 1, "nan": math.nan, "deep": deep, "half": "\ud800x", "none": None}
    (back,) = load_traces(export_traces(trace(span("a", attributes=odd)), name))
    assert back.spans[0].name == "a"
    assert back.spans[0].attributes.keys() >= odd.keys()


@pytest.mark.parametrize("name", FORMATS)
def test_secrets_are_removed_unless_told_otherwise(name: str) -> None:
    """R-T9: an export holds no secret by default; switching that off is explicit."""
    secret = "sk-proj-" + "a1B2" * 10
    of = trace(span("a", kind=SpanKind.TOOL, tool_input={"key": secret}), query=f"use {secret}")
    assert secret.encode() not in export_traces(of, name)
    assert b"[redacted:openai_key]" in export_traces(of, name)
    assert secret.encode() in export_traces(of, name, redact=False)
    assert of.query == f"use {secret}", "the trace in memory stays as it is"


def test_an_unknown_format_is_named_with_a_suggestion() -> None:
    """R-T8: a misspelt format is an error before anything is written."""
    with pytest.raises(ProctorError, match="unknown export format 'otlp-jsn'") as caught:
        write_traces([], io.BytesIO(), "otlp-jsn")
    assert "otlp-json" in (caught.value.hint or "")


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    """R-T8: when an export fails half-way, the earlier file is untouched and nothing is left."""
    target = tmp_path / "out.jsonl"
    target.write_text("before")

    def failing() -> Any:
        yield trace(span("a"))
        raise RuntimeError("cut off")

    with pytest.raises(RuntimeError):
        save_traces(failing(), target, "jsonl")
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]
    assert save_traces(trace(span("a")), target, "jsonl") == 1
    assert load_traces(target)[0].spans[0].name == "a"


def test_names_that_end_in_gz_or_zst_are_compressed(tmp_path: Path) -> None:
    """R-T8: the suffix of the file selects the compression."""
    of = trace(span("a"))
    plain = export_traces(of, "jsonl")
    save_traces(of, tmp_path / "a.jsonl.gz", "jsonl")
    assert gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()) == plain
    save_traces(of, tmp_path / "a.jsonl.zst", "jsonl")
    unpacked = zstandard.ZstdDecompressor().stream_reader((tmp_path / "a.jsonl.zst").read_bytes())
    assert unpacked.read() == plain


def test_a_place_that_cannot_be_written_to_is_a_clear_error(tmp_path: Path) -> None:
    """R-T8: a write error has its path; missing folders are created."""
    save_traces(trace(span("a")), tmp_path / "new" / "out.jsonl", "jsonl")
    assert (tmp_path / "new" / "out.jsonl").is_file()
    (tmp_path / "file").write_text("")
    with pytest.raises(ProctorError, match=r"file/out.jsonl: cannot write: "):
        save_traces(trace(span("a")), tmp_path / "file" / "out.jsonl", "jsonl")

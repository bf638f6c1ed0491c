"""Loading: where traces may come from, and how their format is found."""

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.errors import ProctorError
from proctor.trace.formats.native import encode_trace
from proctor.trace.load import LoadedTraces, TraceLoadError, iter_traces, load_traces
from proctor.trace.model import (
    Document,
    Event,
    Message,
    Span,
    SpanKind,
    SpanStatus,
    ToolCall,
    Trace,
)


def spans(trace_id, count=2):
    """A list of flat spans, the first the parent of the others."""
    return [
        {
            "trace_id": trace_id,
            "span_id": f"{number:016x}",
            "parent_span_id": None if number == 1 else f"{1:016x}",
            "name": f"step {number}",
            "start_time": number,
            "end_time": number + 10,
            "attributes": {},
        }
        for number in range(1, count + 1)
    ]


def encoded(trace_id, count=2):
    return json.dumps(spans(trace_id, count)).encode()


def ids(loaded):
    return [trace.trace_id for trace in loaded]


# -- where from -----------------------------------------------------------------------------------


def test_paths_strings_bytes_streams_and_lists_of_them(tmp_path):
    """R-T7: anything that holds traces can be handed in, alone or in a list."""
    path = tmp_path / "a.json"
    path.write_bytes(encoded("aa"))
    sources = [path, str(path), encoded("bb"), io.BytesIO(encoded("cc")), io.StringIO("[]")]
    loaded = load_traces(sources)
    assert isinstance(loaded, LoadedTraces)
    assert ids(loaded) == ["aa", "aa", "bb", "cc"]
    assert [(p.file, p.fatal) for p in loaded.problems] == [("<stream>", True)]
    assert ids(load_traces(source for source in sources[:2])) == ["aa", "aa"]


def test_folders_are_read_through_and_globs_expanded(tmp_path):
    """R-T7: known suffixes at any depth, in order, hidden files left alone."""
    (tmp_path / "b" / "deep").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    for name, trace_id in [
        ("b/deep/2.jsonl", "22"),
        ("a.json", "11"),
        ("c.ndjson.gz", "33"),
        (".hidden.json", "44"),
        (".git/x.json", "55"),
        ("notes.md", "66"),
    ]:
        (tmp_path / name).write_bytes(encoded(trace_id))
    assert sorted(ids(load_traces(tmp_path))) == ["11", "22", "33"]
    assert ids(load_traces(str(tmp_path / "*.json"))) == ["11"]
    assert ids(load_traces(str(tmp_path / "**" / "*.jsonl"))) == ["22"]


def test_a_path_with_glob_characters_is_itself(tmp_path):
    """R-T7: an existing file is loaded even if its name looks like a glob."""
    path = tmp_path / "run[1].json"
    path.write_bytes(encoded("aa"))
    assert ids(load_traces(str(path))) == ["aa"]


def test_standard_input(tmp_path):
    """R-T7: `-` reads standard input, compressed or not."""
    code = "from proctor.trace.load import load_traces; print(load_traces('-')[0].trace_id)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        input=gzip.compress(encoded("aa")),
        capture_output=True,
        check=True,
    )
    assert run.stdout.strip() == b"aa"


def zstd(data):
    return zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_compression_is_found_by_content_over_many_members(tmp_path, pack):
    """R-T7: gzip and zstd whatever the name, frames one after the other as one file."""
    path = tmp_path / "traces.json"
    lines = [json.dumps(spans(name)).encode() + b"\n" for name in ("aa", "bb")]
    path.write_bytes(b"".join(pack(line) for line in lines))
    assert ids(load_traces(path)) == ["aa", "bb"]


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_a_bomb_is_refused(tmp_path, pack):
    """R-T7: a file that unpacks to more than the limit is refused, the others load."""
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(pack(b" " * 50_000_000))
    loaded = load_traces([bomb, encoded("aa")], max_bytes=10_000_000)
    assert ids(loaded) == ["aa"]
    (problem,) = loaded.problems
    assert problem.fatal
    assert "unpacks to more than 10.0 MB; refused" in str(problem)


def test_a_plain_file_over_the_limit_is_refused(tmp_path):
    """R-T7: the limit holds for plain files as well."""
    with pytest.raises(TraceLoadError, match=r"holds more than 1\.0 kB"):
        load_traces(encoded("aa", 100), max_bytes=1024)


def test_files_are_read_one_at_a_time(tmp_path):
    """R-T7: iterating opens a file only when the one before is used up."""
    for name in ("1", "2"):
        (tmp_path / f"{name}.json").write_bytes(encoded(name * 2))
    problems = []
    found = iter_traces([tmp_path / "1.json", tmp_path / "2.json"], problems.append)
    assert next(found).trace_id == "11"
    (tmp_path / "2.json").write_bytes(b"{")
    assert list(found) == []
    assert [p.file for p in problems] == [str(tmp_path / "2.json")]


# -- which format ---------------------------------------------------------------------------------


def test_every_trace_file_of_the_corpus_loads(shared):
    """R-T7: all files but the golden sets load, without a single problem."""
    golden = {"eval_set_helm.json", "evalset_k8s_2026-02-20.json"}
    loaded = load_traces(shared / "traces")
    troubled = {Path(problem.file).name for problem in loaded.problems}
    assert all(name in golden or name.endswith(".chatml.json") for name in troubled)
    assert len(troubled) == 5
    assert all(problem.fatal for problem in loaded.problems)
    # 56 data files, 5 of them golden sets; 8 files hold two traces.
    assert len(loaded) == 56 - 5 + 8
    assert sum(len(trace.spans) for trace in loaded) == 566
    assert all(trace.spans for trace in loaded)


def test_a_golden_set_is_no_trace(shared):
    """R-T7: what is JSON but no trace is named, with its keys and what could be read."""
    file = shared / "traces/jaeger/eval_set_helm.json"
    with pytest.raises(TraceLoadError) as caught:
        load_traces(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: not a trace format Proctor knows; keys: 'eval_set_id'")
    assert "OTLP JSON" in str(caught.value.hint)
    assert "\n" not in message


def test_a_format_can_be_named():
    """R-T7: a named format is not guessed at; a misspelt one gets a suggestion."""
    assert ids(load_traces(encoded("aa"), format="spans")) == ["aa"]
    with pytest.raises(TraceLoadError):
        load_traces(encoded("aa"), format="otlp")
    with pytest.raises(ProctorError) as caught:
        load_traces(encoded("aa"), format="jager")
    assert caught.value.hint == "did you mean 'jaeger'?"


def test_lines_of_several_formats_in_one_file():
    """R-T7: the format is detected for each line."""
    native = encode_trace(
        Trace(trace_id="own", spans=[Span(span_id="1", trace_id="own", name="x")])
    )
    talk = json.dumps({"messages": [{"role": "user", "content": "hi"}], "trace_id": "talk"})
    data = native + encoded("aa") + b"\n\n" + talk.encode() + b"\n"
    assert set(ids(load_traces(data))) == {"own", "aa", "talk"}


# -- our own format -------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | texts | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
times = st.integers(0, 2**64 - 1)
messages = st.builds(
    Message,
    role=texts,
    content=st.none() | texts,
    tool_calls=st.lists(st.builds(ToolCall, name=texts, arguments=json_values), max_size=2).map(
        tuple
    ),
)
attributes = st.dictionaries(texts, json_values, max_size=3)
any_span = st.builds(
    Span,
    span_id=texts,
    trace_id=texts,
    parent_id=st.none() | texts,
    name=texts,
    kind=st.sampled_from(SpanKind),
    status=st.sampled_from(SpanStatus),
    start_ns=times,
    end_ns=st.none() | times,
    attributes=attributes,
    events=st.lists(
        st.builds(Event, name=texts, time_ns=times, attributes=attributes), max_size=2
    ).map(tuple),
    tool_input=json_values,
    tool_output=json_values,
    input_tokens=st.none() | st.integers(0, 2**53),
    cost_usd=st.none() | st.floats(0, 1e6),
    documents=st.lists(
        st.builds(Document, id=st.none() | texts, score=st.none() | st.floats(-1, 1)), max_size=2
    ).map(tuple),
    input_messages=st.lists(messages, max_size=2).map(tuple),
    output=json_values,
)
any_trace = st.builds(
    Trace,
    trace_id=texts,
    spans=st.lists(any_span, max_size=4, unique_by=lambda span: span.span_id),
    query=json_values,
    response=st.none() | texts,
    metadata=attributes,
)


@settings(max_examples=40)
@given(st.lists(any_trace, min_size=1, max_size=3))
def test_our_own_lines_come_back_equal(traces):
    """R-T8: writing a trace and reading it gives the same trace, whatever it holds."""
    data = b"".join(map(encode_trace, traces))
    assert data.count(b"\n") == len(traces)
    loaded = load_traces(data)
    for trace in loaded:
        trace.problems = []  # a parent cycle is named on the way in
    assert list(loaded) == traces


def test_our_own_lines_hold_what_json_cannot():
    """R-T8: lone surrogates, byte strings and objects are written as text, not refused."""
    span = Span(
        span_id="1", trace_id="t", name="a\ud800b", attributes={"k\udfff": object, "b": b"x"}
    )
    (trace,) = load_traces(encode_trace(Trace(trace_id="t", spans=[span])))
    assert trace.spans[0].name == "a\ufffdb"
    assert trace.spans[0].attributes["k\ufffd"] == str(object)


def test_a_version_from_the_future_says_so():
    """R-T8: a line of a later version is refused with what to do."""
    with pytest.raises(TraceLoadError, match="this Proctor reads 1: update it"):
        load_traces(b'{"proctor_trace": 2, "trace_id": "x"}')

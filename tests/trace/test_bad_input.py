"""Bad input: each fault is one line with its file and place, and costs nothing but itself."""

import json
import os
import subprocess
import sys

import pytest

from proctor.trace.formats.native import encode_trace
from proctor.trace.load import LoadedTraces, TraceLoadError, load_traces

GOOD = json.dumps(
    [{"trace_id": "900d", "span_id": "1", "name": "fine", "start_time": 1, "end_time": 2}]
).encode()


def problems_of(bad, *, also_good=True):
    """The problems of a bad source; the good one beside it must have loaded."""
    if not also_good:
        with pytest.raises(TraceLoadError) as caught:
            load_traces(bad)
        return caught.value.problems
    loaded = load_traces([bad, GOOD])
    assert loaded[-1].trace_id == "900d"
    return loaded.problems


def only(problems):
    (problem,) = problems
    assert "\n" not in str(problem)
    return problem


@pytest.fixture
def file(tmp_path):
    """Write bytes to a file and give its path."""

    def write(data, name="bad.json"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


# -- whole files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "place", "message"),
    [
        (b'{"resourceSpans": [\n  {"scopeSpans": [', "line 2 column 19", "JSON ends too early"),
        (b'[{"name": "x",\n"span_id": "cut', "line 2 column 12", "JSON ends too early"),
        (b'{"a": 1,\n "b" 2}', "line 2 column 6", "JSON is broken: Expecting ':' delimiter"),
        (b"", "", "is empty"),
        (b" \n\t\n", "", "is empty"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "byte 0", "neither JSON nor OTLP protobuf"),
        (b"hello", "byte 0", "neither JSON nor OTLP protobuf"),
        (b"\x1f\x8b\x08\0\0", "", "gzip data ends too early"),
        (b"\x1f\x8bgarbage", "", "gzip data is broken"),
        (b"\x28\xb5\x2f\xfdgarbage!", "", "zstd data is broken"),
        (b"[" * 100_000, "line 1", "JSON cannot be read: nested too deeply"),
        (b'{"resourceSpans": []}', "", "holds no spans"),
        (b"[]", "", "not a trace format Proctor knows"),
        (b"[1, 2]", "", "not a trace format Proctor knows; it holds a number"),
    ],
)
def test_a_bad_file_is_one_line_with_its_place(file, data, place, message):
    """R-T7: what is wrong with a file, and where, beside good files and alone."""
    path = file(data)
    for problems in (problems_of(path), problems_of(path, also_good=False)):
        problem = only(problems)
        assert problem.file == str(path)
        assert message in problem.message
        assert problem.fatal
        assert problem.place == place


def test_paths_that_lead_nowhere(tmp_path):
    """R-T7: a missing file, a folder without traces, a glob without matches, an invalid name."""
    (tmp_path / "readme.md").write_text("x")
    for source, message in [
        (tmp_path / "gone.json", "no such file or folder"),
        (tmp_path, "no trace files in this folder (looked for .binpb .gz"),
        (str(tmp_path / "*.json"), "no file matches"),
        ("nul\0byte", "no such file or folder"),
        ("x" * 5000, "not a usable path"),
    ]:
        problem = only(problems_of(source))
        assert problem.fatal
        assert message in problem.message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such pipes")
def test_a_pipe_that_nothing_writes_to_is_empty(tmp_path):
    """R-T7: it is not waited for; a pipe with a writer, as of `<(command)`, is read."""
    os.mkfifo(pipe := tmp_path / "pipe.json")
    (problem,) = problems_of(pipe, also_good=False)
    assert problem.message == "is empty"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(file):
    """R-T7: a file without read permission is a problem with its reason."""
    path = file(GOOD)
    path.chmod(0)
    assert "Permission denied" in only(problems_of(path)).message


def test_the_error_names_the_first_fault_and_counts_the_others(file):
    """R-T7: an exception only when nothing loaded, with every problem in it."""
    with pytest.raises(TraceLoadError) as caught:
        load_traces([file(b"{", "a.json"), file(b"", "b.json")])
    assert len(caught.value.problems) == 2
    assert caught.value.exit_code == 2
    assert "a.json, line 1 column 2: JSON ends too early (and 1 more problem" in str(caught.value)
    assert load_traces([]) == LoadedTraces()


def test_no_traceback_in_a_program_of_its_own(file):
    """R-T7: what a script prints when it shows the error is one line."""
    code = (
        "import sys; from proctor.trace.load import *\n"
        "try: load_traces(sys.argv[1])\n"
        "except TraceLoadError as error: sys.exit(str(error))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(file(b'{"a": ['))], capture_output=True, check=False
    )
    assert run.stderr.decode().count("\n") == 1
    assert b"bad.json, line 1 column 8: JSON ends too early" in run.stderr


# -- inside a file --------------------------------------------------------------------------------


def test_invalid_utf8_is_replaced_and_reported_with_its_byte(file):
    """R-T7: one bad byte does not lose the file."""
    data = GOOD.replace(b"fine", b"fi\xffe")
    loaded = load_traces(file(data))
    problem = only(loaded.problems)
    assert (problem.place, problem.fatal) == (f"byte {data.index(0xFF)}", False)
    assert loaded[0].spans[0].name == "fi\ufffde"


def test_utf16_and_byte_order_marks(file):
    """R-T7: what other systems write when they redirect output."""
    text = GOOD.decode()
    for encoding in ("utf-16", "utf-8-sig"):
        assert load_traces(file(text.encode(encoding)))[0].trace_id == "900d"


def test_lone_surrogates_and_nan(file):
    """R-T7: JSON that strict decoders refuse and real producers write."""
    extra = b'"attributes": {"text": "a\\ud800b", "number": NaN, "big": -Infinity}, "name"'
    loaded = load_traces(file(GOOD.replace(b'"name"', extra)))
    attributes = loaded[0].spans[0].attributes
    assert attributes["text"] == "a\ufffdb"
    assert attributes["number"] != attributes["number"]
    assert loaded.problems == []
    encode_trace(loaded[0]).decode("utf-8")


def test_a_torn_line_costs_only_itself(file):
    """R-T7: bad lines at the start, in the middle and at the end of a JSONL file."""
    line = GOOD + b"\n"
    for data, place in [
        (b'{"torn": \n' + line + line, "line 1"),
        (line + b'[{"torn": }]\n' + line, "line 2 column 11"),
        (line + line + b'[{"trace_id": "t', "line 3 column 15"),
        (line + b"\xff\xfe{\n" + line, "byte "),
    ]:
        loaded = load_traces(file(data))
        assert [t.trace_id for t in loaded] == ["900d"], data
        torn = [p for p in loaded.problems if "twice" not in p.message]
        assert torn[0].place.startswith(place)
        assert not any(p.fatal for p in loaded.problems)


def test_wrong_types_cost_only_their_span():
    """R-T7: each unusable span is counted with its place, the others load."""
    good = {"traceId": "a" * 32, "spanId": "b" * 16, "name": "ok", "startTimeUnixNano": "1"}
    bad = [
        7,
        {**good, "spanId": None},
        {**good, "spanId": [12]},
        {**good, "traceId": "0" * 32},
        {**good, "startTimeUnixNano": "soon"},
        {**good, "startTimeUnixNano": -5},
        {**good, "startTimeUnixNano": 1e300},
        {**good, "name": ["x"]},
    ]
    document = {"resourceSpans": [{"scopeSpans": [{"spans": [*bad, good, None]}, 5]}, "x"]}
    loaded = load_traces(json.dumps(document).encode())
    assert [s.name for s in loaded[0].spans] == ["ok"]
    assert sum(p.count for p in loaded.problems) == len(bad) + 3
    assert "resourceSpans[0].scopeSpans[0].spans[1]" in {p.place for p in loaded.problems}
    assert not any(p.fatal for p in loaded.problems)


def test_a_bad_attribute_costs_only_itself():
    """R-T7: a span survives an attribute that makes no sense."""
    pairs = [
        {"key": "good", "value": {"intValue": "1"}},
        {"key": "bad", "value": {"intValue": "x"}},
        "junk",
        {"key": ["list"], "value": {"stringValue": "x"}},
        {"key": 5, "value": {"stringValue": "x"}},
        {"key": "strange", "value": {"newValue": 1}},
    ]
    span = {"traceId": "a" * 32, "spanId": "b" * 16, "name": "ok", "attributes": pairs}
    document = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    loaded = load_traces(json.dumps(document).encode())
    assert loaded[0].spans[0].attributes == {"good": 1}
    assert sum(p.count for p in loaded.problems) == 5


def test_the_same_fault_many_times_is_one_problem_with_a_count():
    """R-T7: a thousand bad spans do not make a thousand lines."""
    spans = [{"trace_id": "aa", "span_id": [5], "name": "x"}] * 1000
    problem = only(problems_of(json.dumps(spans).encode()))
    assert (problem.count, problem.place) == (1000, "[0]")
    assert "(and 999 more like it)" in str(problem)


def test_cyclic_parents_are_named_and_no_span_is_lost():
    """R-T3: a cycle is reported on the trace and among the problems, and broken."""
    spans = [
        {"trace_id": "aa", "span_id": me, "parent_span_id": parent, "name": me, "start_time": at}
        for at, (me, parent) in enumerate([("c1", "c3"), ("c2", "c1"), ("c3", "c2"), ("d", "d")])
    ]
    loaded = load_traces(json.dumps(spans).encode())
    (trace,) = loaded
    assert len(trace.nodes()) == 4
    assert [root.span_id for root in trace.roots] == ["c1", "d"]
    assert len(trace.problems) == 2
    assert "parent cycle among spans c1 → c2 → c3" in trace.problems[0]
    assert {p.place for p in loaded.problems} == {"trace aa"}


def test_duplicate_ids_last_one_wins_and_is_reported():
    """R-T7: an id that comes twice is one span; an unfinished copy never replaces a finished."""
    first = {"trace_id": "aa", "span_id": "1", "name": "old", "start_time": 1, "end_time": 2}
    again = {**first, "name": "new"}
    loaded = load_traces(json.dumps([first, again]).encode())
    assert [s.name for s in loaded[0].spans] == ["new"]
    assert only(loaded.problems).place == "span 1"
    unfinished = {**first, "name": "late snapshot", "end_time": None}
    loaded = load_traces(json.dumps([unfinished, first, unfinished]).encode())
    assert [s.name for s in loaded[0].spans] == ["old"]
    assert loaded.problems == []


def test_hostile_ids_and_names_stay_on_one_line(file):
    """R-T7: line breaks and terminal codes in ids and file names reach no message."""
    span = {"trace_id": "a\n\x1b[31mb", "span_id": "c\nd", "name": "x", "end_time": 5}
    looped = {**span, "parent_span_id": "c\nd"}
    path = file(json.dumps([looped, looped]).encode(), "ev\nil.json")
    loaded = load_traces(path)
    assert len(loaded.problems) == 2
    shown = [*map(str, loaded.problems), *loaded[0].problems]
    assert all(line.isprintable() for line in shown)
    with pytest.raises(TraceLoadError) as caught:
        load_traces(file(b"{", "ev\nil2.json"))
    assert str(caught.value).isprintable()


@pytest.mark.slow
def test_a_file_of_a_hundred_megabytes(tmp_path):
    """R-T7: a file of 100 MB loads without a problem."""
    path = tmp_path / "large.jsonl"
    filler = "x" * 10_000
    with path.open("w") as out:
        for number in range(10_000):
            span = {
                "trace_id": f"{1 + number // 1000:032x}",
                "span_id": f"{number + 1:016x}",
                "name": "step",
                "start_time": number + 1,
                "attributes": {"text": filler},
            }
            out.write(json.dumps(span) + "\n")
    assert path.stat().st_size > 100_000_000
    loaded = load_traces(path)
    assert sum(len(trace.spans) for trace in loaded) == 10_000
    assert loaded.problems == []

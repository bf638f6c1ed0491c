"""`proctor trace` as it is typed: standard output, standard error and exit codes."""

import gzip
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from importlib.resources import as_file
from pathlib import Path
from typing import NamedTuple

import commands
import pytest
import zstandard
from report_runs import make_run
from spans import span, trace

from proctor.checks.base import recorded_results
from proctor.data import example_trace
from proctor.trace import SpanKind, SpanStatus
from proctor.trace.export import EXPORTERS, export_traces
from proctor.trace.load import load_traces
from proctor.trace.model import EVALUATION, Event

SECRET = "sk-" + "aB3dE" * 9


class Done(NamedTuple):
    code: int
    out: str
    err: str


def proctor(*args: str | Path, stdin: bytes = b"", cwd: Path | None = None) -> Done:
    done = commands.proctor(*args, input=stdin, cwd=cwd)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    with as_file(example_trace()) as shipped:
        path.write_bytes(shipped.read_bytes())
    return path


def test_show_draws_the_tree(example: Path) -> None:
    """R-T5: what the agent did, at a glance."""
    done = proctor("trace", "show", example)
    assert (done.code, done.err) == (0, "")
    assert "query    Where is my order A-4711" in done.out
    assert "2 llm calls, 3 tool calls, 1,143→122 tokens, cost $0.000245, 1 error" in done.out
    assert "✗ tool execute_tool track_parcel  801 ms  (tracking=PX-20937)" in done.out
    assert "error: TimeoutError: carrier did not answer" in done.out
    shorter = proctor("trace", "show", example, "--max-spans", "3")
    assert shorter.out.splitlines()[-1] == "… 5 more spans not shown"


def test_list_has_a_line_for_each_trace(example: Path, tmp_path: Path) -> None:
    """R-T7: of a folder of traces, which is worth a look, and in which file it is."""
    asked = trace(span("a", kind=SpanKind.AGENT), query="Who?")
    (tmp_path / "other.jsonl").write_bytes(export_traces([asked], "jsonl"))
    done = proctor("trace", "list", example, tmp_path / "other.jsonl")
    assert (done.code, done.err) == (0, "2 traces\n")
    head, first, second = done.out.splitlines()
    assert head.split() == ["spans", "tools", "errors", "time", "cost", "query", "file"]
    assert first.startswith("8      3      1 ")
    assert "$0.000245  Where is my order A-4711" in first
    assert first.endswith(str(example))
    assert "  Who?  " in second
    document = json.loads(proctor("trace", "list", example, "--json").out)
    (listed,) = document["traces"]
    assert (listed["file"], listed["totals"]["spans"]) == (str(example), 8)
    assert "spans" not in listed


def test_traces_of_a_run_are_named_by_their_trials(tmp_path: Path) -> None:
    """R-T7: a run is shown by trials, one of them by its name, whatever colons it has."""
    run = tmp_path / "results/made/2026-01-01_001"
    make_run(run, agents=("agent:answer", "b"), cases=15, trials=1, case_id="is:{}".format)
    shown = proctor("trace", "show", "latest:is:3/agent:answer/0/0", cwd=tmp_path).out
    assert shown.count("\ntrace ") == 0
    assert shown.splitlines()[1] == "  trial    is:3/agent:answer/0/0"
    assert proctor("trace", "show", "is:3/agent:answer/0/0", cwd=tmp_path).out == shown
    listed = proctor("trace", "list", "latest", cwd=tmp_path).out.splitlines()
    assert listed[0].split()[-1] == "trial"
    assert listed[1].endswith("  is:0/agent:answer/0/0")
    many = proctor("trace", "show", "latest", cwd=tmp_path).out
    assert many.count("\n  trial    ") == 20
    assert "--max-traces" in many.splitlines()[-1]
    every = proctor("trace", "show", "latest", "--max-traces", "30", cwd=tmp_path).out
    assert "--max-traces" not in every
    one = "made/2026-01-01_001:is:3/b/0/0"
    found = json.loads(proctor("trace", "query", one, "{}", "--json", cwd=tmp_path).out)
    assert {each["trial"] for each in found["matches"]} == {"is:3/b/0/0"}
    # A trial is meant, and only its run is named.
    wrong = proctor("fork", "latest", "--at", "1", cwd=tmp_path)
    assert "latest is a run; name one of its trials\nhint: such as latest:is:" in wrong.err
    diagnosis = proctor("diagnose", "latest:is:3/b/0/0", cwd=tmp_path).out
    assert diagnosis.startswith("is:3/b/0/0 trace ")
    near = proctor("trace", "show", "latest:is:3/agent:anser/0/0", cwd=tmp_path)
    assert near.code == 2
    assert "did you mean 'is:3/agent:answer/0/0'" in near.err


def test_a_call_is_priced_as_in_trials(tmp_path: Path) -> None:
    """R-A4: show and list know the published prices, and those of the settings."""
    calls = [
        span("known", kind=SpanKind.LLM, model="gpt-4o-mini", input_tokens=10**6, output_tokens=0),
        span("own", kind=SpanKind.LLM, model="mine", input_tokens=10**6, output_tokens=0),
    ]
    (tmp_path / "run.jsonl").write_bytes(export_traces([trace(*calls)], "jsonl"))
    shown = proctor("trace", "show", "run.jsonl", cwd=tmp_path)
    assert "cost ≥ $0.15, 1 call unpriced" in shown.out
    (tmp_path / "proctor.yaml").write_text("prices: {mine: {input: 2, output: 0}}\n")
    shown = proctor("trace", "show", "run.jsonl", cwd=tmp_path)
    assert "$2.15, 0 errors" in shown.out


def test_show_as_json_is_one_document_with_every_span(example: Path) -> None:
    """R-T7: other programs get spans, totals and problems."""
    done = proctor("trace", "show", example, example.parent / "missing.json", "--json")
    document = json.loads(done.out)
    (shown,) = document["traces"]
    assert len(shown["spans"]) == shown["totals"]["spans"] == 8
    assert shown["totals"]["tool_sequence"] == ["get_order", "track_parcel", "track_parcel"]
    assert shown["totals"]["cost_usd"] == pytest.approx(0.00024465)
    (problem,) = document["problems"]
    assert problem["file"].endswith("missing.json")
    assert (problem["fatal"], done.code) == (True, 2)


def test_a_span_query_lists_the_spans_that_match(example: Path) -> None:
    """R-T4: by trace id, span id, name and duration."""
    done = proctor("trace", "query", example, "{kind: tool, has_status: error}")
    (line,) = done.out.splitlines()
    assert re.match(r"[0-9a-f]{32}  [0-9a-f]{16}  ✗ tool execute_tool track_parcel  801 ms", line)
    assert done.err == "1 of 8 spans in 1 trace match\n"
    assert done.code == 0
    nothing = proctor("trace", "query", example, '{"tool_name": "refund"}', "--json")
    assert json.loads(nothing.out) == {"matches": [], "problems": []}
    assert nothing.code == 0


def test_of_several_files_it_is_said_in_which(example: Path, tmp_path: Path) -> None:
    """R-T7: what is found in a folder can be found again; of one file nothing is repeated."""
    copy = tmp_path / "a folder" / "ein größerer Name.json"
    copy.parent.mkdir()
    shutil.copy(example, copy)
    failed = "{kind: tool, has_status: error}"
    assert example.name not in proctor("trace", "query", example, failed).out
    (line,) = proctor("trace", "query", copy.parent, failed).out.splitlines()
    assert line.endswith(f"  {copy}")
    (match,) = json.loads(proctor("trace", "query", example, failed, "--json").out)["matches"]
    assert match["file"] == str(example)
    holds = proctor("trace", "query", copy.parent, "any: {kind: tool}").out
    assert holds.splitlines()[0].endswith(f"  {copy}")
    assert f"  file     {copy}" in proctor("trace", "show", copy.parent).out
    assert proctor("trace", "score", copy.parent).out.splitlines()[0].endswith(f"  {copy}")
    (score,) = json.loads(proctor("trace", "score", copy.parent, "--json").out)["scores"]
    assert score["file"] == str(copy)


def test_a_trace_query_holds_or_does_not(example: Path, tmp_path: Path) -> None:
    """R-T4: quantifiers give exit code 0 or 1 and a reason."""
    order = "before: [{tool_name: get_order}, {tool_name: track_parcel}]"
    done = proctor("trace", "query", example, order)
    assert done.code == 0
    assert "  holds: " in done.out
    (tmp_path / "none.yaml").write_text("none:\n  has_status: error\n")
    done = proctor("trace", "query", example, f"@{tmp_path / 'none.yaml'}", "--json")
    assert done.code == 1
    (result,) = json.loads(done.out)["results"]
    assert result["holds"] is False
    assert "1 of 8 spans match" in result["reason"]
    assert len(result["span_ids"]) == 1


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("knd: tool", "unknown key 'knd'|unknown span query key 'knd'"),
        ("{kind: [tool", r"query:1:\d+: not YAML"),
        ("just words", "a query is a mapping, not 'just words'"),
        ("", "a query is a mapping, not nothing"),
        ("@nowhere.yaml", "nowhere.yaml: cannot read the query: No such file"),
        ("some_child_has: {naem_equals: x}", "some_child_has"),
        ("!!python/object/apply:os.system [true]", "not YAML"),
    ],
)
def test_a_query_that_cannot_be_read_is_one_line_and_exit_2(
    query: str, message: str, example: Path
) -> None:
    """R-T4: what is wrong and where, with a suggestion, never a traceback."""
    done = proctor("trace", "query", example, query)
    first = done.err.splitlines()[0]
    assert done.code == 2
    assert first.startswith("error: ")
    assert re.search(message, first), first
    assert len(done.err.splitlines()) <= 2
    assert done.out == ""


@pytest.mark.parametrize("name", sorted(EXPORTERS))
def test_convert_writes_what_show_can_read(name: str, example: Path, tmp_path: Path) -> None:
    """R-T8: every format goes through a file and back."""
    out = tmp_path / "out"
    done = proctor("trace", "convert", example, "--to", name, "-o", out)
    assert (done.code, done.out, done.err) == (0, "", f"{out}: 1 trace\n")
    again = proctor("trace", "show", out)
    assert again.code == 0
    if name != "atif":  # a trajectory has no place for most fields of a span
        assert again.out == proctor("trace", "show", example).out


def test_convert_goes_into_a_pipe_and_show_reads_from_one(example: Path) -> None:
    """R-T7: - is standard input, and standard output by default."""
    done = proctor("trace", "convert", "-", "--to", "jsonl", stdin=example.read_bytes())
    assert done.code == 0
    shown = proctor("trace", "show", "-", stdin=done.out.encode())
    assert shown.out == proctor("trace", "show", example).out


def test_files_folders_globs_and_compression(example: Path, tmp_path: Path) -> None:
    """R-T7: all of them, together, in one call."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.json.gz").write_bytes(gzip.compress(example.read_bytes()))
    (folder / "b.json.zst").write_bytes(zstandard.compress(example.read_bytes()))
    query = "{kind: agent}"
    done = proctor("trace", "query", example, folder, tmp_path / "fold*" / "*.zst", query)
    assert done.code == 0
    assert len(done.out.splitlines()) == 4
    assert "in 4 traces" in done.err


def test_a_bad_file_is_named_and_the_good_ones_are_shown(example: Path, tmp_path: Path) -> None:
    """R-T7: one line for each bad file, exit 2, nothing good is lost."""
    bad = tmp_path / "bad.json"
    bad.write_bytes(example.read_bytes()[:1000])
    done = proctor("trace", "show", bad, example, tmp_path / "none.json")
    assert done.code == 2
    assert "invoke_agent support" in done.out
    lines = done.err.splitlines()
    assert len([line for line in lines if line.startswith("error: ")]) == 2
    assert lines[-1] == "hint: did you mean 'run.json'?"
    assert str(bad) in lines[0]
    assert re.search(r"byte|line|char", lines[0])
    out = tmp_path / "out.jsonl"
    done = proctor("trace", "convert", bad, "--to", "jsonl", "-o", out)
    assert done.code == 2
    assert not out.exists(), "nothing to write, so nothing is written"


def test_what_could_be_read_is_said_once(tmp_path: Path) -> None:
    """R-T7: each file of no known format is named; the list of formats is printed only once."""
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps({"settings": name}))
    done = proctor("trace", "list", tmp_path)
    assert done.code == 2
    refused = [line for line in done.err.splitlines() if "not a trace format" in line]
    assert len(refused) == 2
    assert done.err.count("OTLP JSON") == 1
    assert "hint: known formats: " in done.err


def test_a_bad_span_is_a_warning(example: Path, tmp_path: Path) -> None:
    """R-T7: the others are kept, and the exit code says the file was readable."""
    document = json.loads(example.read_text())
    document["resourceSpans"][0]["scopeSpans"][0]["spans"][1]["spanId"] = {}
    example.write_text(json.dumps(document))
    done = proctor("trace", "show", example)
    assert done.code == 0
    assert "7 spans" in done.out
    (line,) = done.err.splitlines()
    assert line.startswith("warning: ")
    assert "spans[1]" in line


def test_secrets_are_not_written_unless_asked_for(tmp_path: Path) -> None:
    """R-T9: show, query and convert redact; --no-redact is the only way around it."""
    source = tmp_path / "in.jsonl"
    of = trace(
        span(
            f"call {SECRET}",
            kind=SpanKind.TOOL,
            tool_input={"password": "hunter2"},
            status=SpanStatus.ERROR,
            error_message=f"denied for {SECRET}, badge EMP-17",
        ),
        query=SECRET,
    )
    source.write_bytes(export_traces(of, "jsonl", redact=False))
    for args in (
        ["show", source],
        ["show", source, "--json"],
        ["query", source, "{kind: tool}"],
        ["convert", source, "--to", "otlp-json"],
    ):
        done = proctor("trace", *args)
        assert done.code == 0
        assert "hunter2" not in done.out
        assert SECRET not in done.out
        assert "[redacted:openai_key]" in done.out
    done = proctor("trace", "convert", source, "--to", "jsonl", "--no-redact")
    assert SECRET in done.out
    done = proctor("trace", "convert", source, "--to", "jsonl", "--redact-pattern", r"EMP-\d+")
    assert "EMP-17" not in done.out
    assert "[redacted:pattern-1]" in done.out


def test_patterns_of_the_settings_are_redacted_too(tmp_path: Path) -> None:
    """R-T9: `redaction.patterns` of proctor.yaml applies to every command that prints traces."""
    source = tmp_path / "in.jsonl"
    failed = span("look up EMP-17", kind=SpanKind.TOOL, status=SpanStatus.ERROR)
    source.write_bytes(export_traces(trace(failed, query="who is EMP-17?"), "jsonl"))
    (tmp_path / "proctor.yaml").write_text(r"redaction: {patterns: {badge: 'EMP-\d+'}}")
    for args in (
        ["trace", "show", source],
        ["trace", "query", source, "{kind: tool}", "--json"],
        ["trace", "convert", source, "--to", "jsonl"],
        ["trace", "score", source],
        ["diagnose", source],
    ):
        done = proctor(*args, cwd=tmp_path)
        assert "EMP-17" not in done.out, args
        assert "[redacted:badge]" in done.out, args


def test_contradictions_are_refused(example: Path) -> None:
    """R-T9: an option that would do nothing is an error."""
    pair = ["--redact-pattern", "x", "--no-redact"]
    assert proctor("trace", "convert", example, "--to", "jsonl", *pair).code == 2
    assert proctor("trace", "show", example, "--json", "--max-spans", "3").code == 2
    assert proctor("trace", "convert", example, "--to", "csv").code == 2


def on_terminal(example: Path, **environ: str) -> str:
    """What `trace show` writes when standard output is a terminal."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "proctor", "trace", "show", str(example)],
        stdout=follower,
        env={**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, **environ},
    )
    os.close(follower)
    out = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # how Linux says that the other end has gone
            break
        if not piece:
            break
        out += piece
    os.close(leader)
    assert process.wait() == 0
    return out.decode()


def test_colour_is_for_terminals_whose_users_want_it(example: Path) -> None:
    """R-T5: escapes on a terminal, none in a pipe, none under NO_COLOR."""
    assert "\x1b[" in on_terminal(example)
    assert "\x1b[" not in on_terminal(example, NO_COLOR="1")
    assert "\x1b[" not in proctor("trace", "show", example).out


def test_the_trace_in_memory_equals_the_one_converted(example: Path, tmp_path: Path) -> None:
    """R-T8: the command does what two lines of Python do."""
    proctor("trace", "convert", example, "--to", "jsonl", "-o", tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == export_traces(load_traces(example), "jsonl")


def test_runs_are_named_as_elsewhere(tmp_path: Path) -> None:
    """R-N13: `latest`, a tag or a run stands for its traces, also where no such file is."""
    assert proctor("init", cwd=tmp_path).code == 0
    assert proctor("run", "suite.yaml", "--trials", "1", "--quiet", cwd=tmp_path).code == 0
    assert proctor("runs", "tag", "latest", "main", cwd=tmp_path).code == 0
    for name in ("latest", "main"):
        done = proctor("trace", "show", name, cwd=tmp_path)
        assert done.code == 0, done.err
        assert done.out.count("search_handbook") == 3
    queried = proctor("trace", "query", "latest", "{kind: tool}", cwd=tmp_path)
    assert "3 of 6 spans in 3 traces match" in queried.err
    assert proctor("trace", "show", "none.json", cwd=tmp_path).code == 2
    (tmp_path / "empty").mkdir()
    nothing = proctor("trace", "show", "latest", cwd=tmp_path / "empty")
    assert nothing.code == 2
    assert "there are no runs" in nothing.err


def test_results_of_checks_are_events_of_converted_traces(tmp_path: Path) -> None:
    """R-T8: traces of a run carry their checks as `gen_ai.evaluation.result`, in every format;
    `diagnose` reads those of any program."""
    (tmp_path / "bot.py").write_text("def answer(input: str) -> str:\n    return 'Rome'\n")
    (tmp_path / "suite.yaml").write_text(
        "version: 1\nagent: bot:answer\ncases:\n"
        "  - {id: one, input: Capital of France?, correctness: {expected_in_answer: [Paris]}}\n"
    )
    assert proctor("run", "suite.yaml", "--trials", "1", "--quiet", cwd=tmp_path).code == 1
    for to in ("otlp-json", "otlp-proto", "openinference", "jsonl"):
        done = proctor("trace", "convert", "latest", "--to", to, "-o", "out", cwd=tmp_path)
        assert done.code == 0, done.err
        (read,) = load_traces(tmp_path / "out")
        (result,) = recorded_results(read)
        assert (result.id, result.status, result.score) == ("expected_in_answer", "fail", 0)
        assert "Paris" in result.reason
    found = proctor("diagnose", "out", cwd=tmp_path)
    assert "check expected_in_answer failed (recorded in the trace)" in found.out

    labels = {"relevant": "pass", "Not_Relevant": "fail", "incorrect": "fail", "B+": "metric"}
    for label, status in labels.items():
        attributes = {"gen_ai.evaluation.name": "x", "gen_ai.evaluation.score.label": label}
        read.spans[0].events = (Event(EVALUATION, 0, attributes),)
        assert [each.status for each in recorded_results(read)] == [status]

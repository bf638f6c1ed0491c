"""`diagnose`: one trace in, findings out, by rules, by the learned detector, or by both."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import proctor
from proctor.diagnose._steps import read_steps
from proctor.diagnose.finding import Diagnosis, contains_quote
from proctor.diagnose.learned.detector import MODEL_FILE, Judges, detectors, judged
from proctor.diagnose.learned.features import rows_of
from proctor.diagnose.methods import diagnose
from proctor.diagnose.rules import RULES, apply_rules
from proctor.errors import ProctorError
from proctor.trace import Message, Span, SpanKind, Trace
from proctor.trace.model import SpanStatus

METHODS = ("rules", "learned", "offline")


def holds(trace: Trace, diagnosis: Diagnosis) -> int:
    """How many findings there are, each of them on a span of the trace that holds its quote."""
    pairs = {(f.location, f.category) for f in diagnosis.findings}
    assert len(pairs) == len(diagnosis.findings)
    for finding in diagnosis.findings:
        node = trace.node(finding.location)
        assert node is not None
        assert contains_quote(node.span, finding.evidence)
        assert 0 < finding.confidence <= 1
    return len(pairs)


@pytest.mark.parametrize("method", METHODS)
def test_findings_hold(shared: Path, method: str) -> None:
    """R-G2: each finding names a span once, quotes its text, and survives a round trip."""
    paths = sorted((shared / "trail" / "data").rglob("*.json"))
    found = 0
    for number, path in enumerate(paths):
        (trace,) = proctor.load_traces(path)
        diagnosis = diagnose(trace, method)
        found += holds(trace, diagnosis)
        if number % 8 == 0:
            assert diagnosis.findings == diagnose(trace, method).findings
    assert found > len(paths)


words = st.text(max_size=40) | st.sampled_from(
    [
        "Error in code parsing: SyntaxError",
        "Now write your plan below.",
        "```py\nfinal_answer(3)\n```",
        "- web_search: looks it up",
        "\ud83d\ude00",
        "Traceback (most recent call last)\nTypeError: unexpected keyword argument 'x'",
    ]
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Any few model calls and tools under an agent, with any texts and failures."""
    spans = [Span(span_id="a", trace_id="t", name="agent", kind=SpanKind.AGENT, end_ns=99)]
    for number in range(draw(st.integers(0, 6))):
        tool, failed = draw(st.booleans()), draw(st.booleans())
        span = Span(
            span_id=f"s{number}",
            trace_id="t",
            name=draw(words),
            parent_id="a",
            kind=SpanKind.TOOL if tool else SpanKind.LLM,
            status=SpanStatus.ERROR if failed else SpanStatus.OK,
            start_ns=number + 1,
            end_ns=number + 2,
            error_message=draw(words) if failed else None,
        )
        if tool:
            span.tool_name = draw(st.sampled_from(["web_search", "final_answer"]))
            span.tool_output = draw(words)
        else:
            told = (Message(role="system", content=draw(words)),)
            span.input_messages = (*told, Message(role="user", content=draw(words)))
            span.output_messages = (Message(role="assistant", content=draw(words)),)
        spans.append(span)
    return Trace(trace_id="t", spans=spans)


@settings(max_examples=60, deadline=None)
@given(traces(), st.sampled_from(METHODS))
def test_findings_hold_in_any_trace(trace: Trace, method: str) -> None:
    """R-G2: evidence occurs in its span, whatever the spans contain, by every method."""
    holds(trace, diagnose(trace, method))


@settings(max_examples=60, deadline=None)
@given(traces())
def test_the_detector_itself_holds_in_any_trace(trace: Trace) -> None:
    """R-G2: the same when the detector is made to speak of traces it does not know."""
    steps = read_steps(trace)
    rows = rows_of(steps, apply_rules(steps, RULES))
    known = detectors()
    low = (replace(judge, threshold=np.array(0.01)) for judge in known.learned)
    bold = known._replace(learned=Judges(*low))
    found = judged(bold, bold.detector.read_rows(rows), rows, (), "learned")
    holds(trace, Diagnosis("t", "learned", tuple(found)))


def test_nothing_in_an_empty_trace() -> None:
    """R-G3: a trace without spans has no findings, and no score is made up."""
    for method in (*METHODS, "off"):
        diagnosis = diagnose(Trace(trace_id="t"), method)
        assert diagnosis.findings == ()
        assert diagnosis.overall is None
    # What really looked: the learned detector knows nothing like it.
    assert diagnose(Trace(trace_id="t"), "off").method == "rules"
    assert any("learned detector" in note for note in diagnose(Trace(trace_id="t"), "off").notes)


def test_something_else_than_a_trace() -> None:
    """R-D1: a path in place of a trace is answered with the call that reads it."""
    with pytest.raises(ProctorError, match="takes a trace, not str") as raised:
        proctor.diagnose("traces.json")
    assert "load_traces" in str(raised.value.hint)


def test_unknown_method() -> None:
    """R-G3: a wrong method is named, with the nearest right one."""
    with pytest.raises(ProctorError, match="rulez") as caught:
        diagnose(Trace(trace_id="t"), "rulez")
    assert "'rules'" in str(caught.value.hint)


def test_clean_runs_of_the_demo(tmp_path: Path) -> None:
    """R-G3: no method finds anything in 30 right traces of the demo's careful agent."""
    suite = Path(proctor.__file__).parent / "demo" / "suite.yaml"
    run = proctor.run(suite, agent="careful", results=tmp_path)
    held = [run.trace(trial) for trial in run.trials()]
    assert len(held) >= 30
    for trace in held:
        assert trace is not None
        assert [diagnose(trace, method).findings for method in METHODS] == [(), (), ()]


def of_other_frameworks(shared: Path) -> Iterator[tuple[str, Trace]]:
    """The traces of other frameworks, each with the beginning of its file's name."""
    for path in sorted((shared / "traces").rglob("*.json")):
        with suppress(ProctorError):  # some files there are no traces
            for trace in proctor.load_traces(path):
                yield path.name.split(".")[0], trace


def test_other_frameworks(shared: Path) -> None:
    """R-G3: on other frameworks' traces in which nothing failed no method finds anything."""
    clean = [trace for _, trace in of_other_frameworks(shared) if not trace.errors]
    for trace in clean:
        assert [diagnose(trace, method).findings for method in METHODS] == [(), (), ()]
    assert len(clean) >= 10


def test_failures_of_other_frameworks(shared: Path) -> None:
    """R-G3: on other frameworks' traces the detector keeps silent, failing steps or not, and
    `offline` is what the rules say: what failed, where."""
    told: set[tuple[str, str]] = set()
    for name, trace in of_other_frameworks(shared):
        assert diagnose(trace, "learned").findings == ()
        found = diagnose(trace, "offline").findings
        assert found == diagnose(trace, "rules").findings
        told |= {(name, finding.category.value) for finding in found}
    assert told >= {
        ("langfuse_sdk", "Formatting Errors"),
        ("openai_agents_openinference_adot_spans", "Task Orchestration"),
        ("openinference_smolagents", "Formatting Errors"),
        ("otel_genai_official_openai", "Service Errors"),
        ("pydantic_ai_v5", "Service Errors"),
        ("strands_otel_genai_convention_spans", "Timeout Issues"),
    }


def test_model_is_small_and_plain() -> None:
    """R-G3: the shipped model is at most 5 MB, and holds arrays of numbers and names only."""
    data = (files("proctor.diagnose.learned") / MODEL_FILE).read_bytes()
    assert len(data) <= 5_000_000
    with np.load(BytesIO(data), allow_pickle=False) as arrays:
        assert {arrays[name].dtype.kind for name in arrays.files} <= {"f", "U"}


def test_nothing_heavy_at_import() -> None:
    """R-G3: importing diagnosis does not load numpy; only the learned detector does."""
    code = "import sys, proctor.diagnose.methods; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_work_on_a_trace_grows_with_its_spans() -> None:
    """R-G2: ten times the spans take about ten times the steps of Python, not a hundred times."""

    def lines_run(spans: int) -> int:
        made = [Span(span_id="root", trace_id="t", name="a", kind=SpanKind.AGENT, start_ns=0)]
        for number in range(spans):
            tool = number % 2
            failed = SpanStatus.ERROR if number % 6 == 1 else SpanStatus.UNSET
            made.append(
                Span(
                    span_id=f"s{number}",
                    trace_id="t",
                    parent_id="root",
                    name="search" if tool else "chat",
                    kind=SpanKind.TOOL if tool else SpanKind.LLM,
                    start_ns=number + 1,
                    tool_name="search" if tool else None,
                    status=failed if tool else SpanStatus.UNSET,
                    error_message="it timed out" if tool and number % 6 == 1 else None,
                    output_messages=() if tool else (Message("assistant", f"look at {number}"),),
                )
            )
        trace, count = Trace(trace_id="t", spans=made), 0

        def tracer(_frame: object, _event: str, _arg: object) -> object:
            nonlocal count
            count += 1
            return tracer

        before = sys.gettrace()
        sys.settrace(tracer)  # type: ignore[arg-type]
        try:
            diagnose(trace)
        finally:
            sys.settrace(before)
        return count

    lines_run(10)  # the shipped model is loaded once
    # Beyond the 60 steps that a step is compared with.
    assert lines_run(4000) < 13 * lines_run(400)

"""A trace as a person sees it."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spans import MILLISECOND, span, trace

from proctor.sanitize import line
from proctor.trace import Document, Span, SpanKind, SpanStatus, Trace
from proctor.trace.render import MAX_INDENT, span_row, tree_text

# What a terminal obeys, or what makes text read as something it is not.
OBEYED = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def test_the_tree_says_what_happened() -> None:
    """R-T5: kinds, names, durations, tokens, cost, arguments and errors, in tree order."""
    of = trace(
        span("run", kind=SpanKind.AGENT, agent_name="helper", end=3000),
        span("plan", "run", start=1, kind=SpanKind.PLANNING, status=SpanStatus.OK),
        span(
            "chat",
            "run",
            start=20,
            end=1500,
            kind=SpanKind.LLM,
            model="gpt-4o",
            input_tokens=1200,
            output_tokens=34,
            cost_usd=0.0125,
        ),
        span(
            "search",
            "run",
            start=1600,
            kind=SpanKind.TOOL,
            tool_input={"q": "weather in Paris", "n": 3},
            status=SpanStatus.ERROR,
            error_type="HTTPError",
            error_message="503 from upstream",
        ),
        span("look", "search", start=1601, kind=SpanKind.RETRIEVAL, documents=(Document("d"),) * 2),
        query="Will it rain?",
        response="Yes.",
    )
    assert tree_text(of).splitlines() == [
        "trace trace",
        "  query    Will it rain?",
        "  response Yes.",
        (
            "  total    5 spans, 3.0 s, 1 llm call, 1 tool call, 1,200→34 tokens, cost $0.0125, "
            "1 error"
        ),
        "· agent run (helper)  3.0 s",
        "├─ ✓ planning plan  10 ms",
        "├─ · llm chat (gpt-4o)  1.5 s  1,200→34 tokens  $0.0125",
        "└─ ✗ tool search  10 ms  (q=weather in Paris, n=3)  error: HTTPError: 503 from upstream",
        "   └─ · retrieval look  10 ms  2 documents",
    ]
    assert of.tree() == tree_text(of)


def test_what_is_not_known_is_called_unknown() -> None:
    """R-T3: missing tokens, prices and ends are never shown as zero."""
    lines = tree_text(trace(span("a", end=None))).splitlines()
    assert "duration unknown" in lines[1]
    assert "tokens unknown, cost unknown" in lines[1]
    assert lines[2] == "· other a  open"
    priced = span("p", kind=SpanKind.LLM, cost_usd=0.5)
    half = tree_text(trace(priced, span("q", start=20, kind=SpanKind.LLM, input_tokens=7)))
    assert "cost ≥ $0.50, 1 call unpriced" in half
    assert "7→? tokens" in half


def test_spans_left_out_are_counted() -> None:
    """R-T5: a shortened tree says how much it leaves out."""
    of = trace(*(span(f"s{i}", start=i) for i in range(10)))
    lines = tree_text(of, max_spans=3).splitlines()
    assert lines[-1] == "… 7 more spans not shown"
    assert len(lines) == 2 + 3 + 1


def test_problems_of_a_trace_are_shown() -> None:
    """R-T3: the header names a broken parent cycle."""
    assert "problem  parent cycle" in tree_text(trace(span("a"), problems=["parent cycle a → b"]))


def chain(length: int) -> Trace:
    spans = [
        Span(
            span_id=str(i),
            trace_id="t",
            name="s",
            parent_id=str(i - 1) if i else None,
            start_ns=i,
            end_ns=i + MILLISECOND,
        )
        for i in range(length)
    ]
    return Trace(trace_id="t", spans=spans)


def test_a_deep_chain_stays_readable_and_linear() -> None:
    """R-T5: indentation is capped and replaced by the depth; 100,000 levels are no trouble."""
    text = tree_text(chain(100_000), max_spans=100_000)
    lines = text.splitlines()
    assert len(lines) == 100_002
    assert lines[-1].strip().startswith("[99999] ")
    assert max(map(len, lines[2:])) < 3 * MAX_INDENT + 40


def test_drawing_ten_times_the_chain_takes_about_ten_times_as_long() -> None:
    """R-T5: no quadratic growth with depth."""

    def seconds(length: int) -> float:
        of = chain(length)
        started = time.process_time()
        tree_text(of, max_spans=length)
        return time.process_time() - started

    small = min(seconds(3_000) for _ in range(3))
    assert min(seconds(30_000) for _ in range(2)) < 40 * small + 0.05


@given(
    st.text(alphabet=st.characters(), max_size=60) | st.text("\x1b[]0m;\x07\u202eab\n", max_size=30)
)
def test_nothing_a_terminal_obeys_is_left(hostile: str) -> None:
    """R-T5: names, messages and arguments of a hostile agent are shown, never interpreted."""
    shown = line(hostile, 40)
    assert not OBEYED.search(shown)
    assert "\n" not in shown
    assert len(shown) <= 40
    of = trace(
        span(
            "s",
            name=hostile,
            kind=SpanKind.TOOL,
            tool_name=hostile,
            tool_input={hostile: hostile},
            status=SpanStatus.ERROR,
            error_message=hostile,
        ),
        query=hostile,
        response=hostile,
    )
    text = tree_text(of)
    assert not OBEYED.search(text)
    assert text.count("\n") == 4
    assert "\n" not in span_row(of.spans[0])


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("a\x1b[31mred\x1b[0m", "ared"),
        ("a\x1b]0;new title\x07b", "ab"),
        ("a\x1b]8;;http://evil\x1b\\link", "alink"),
        ("two\nlines\tand  more ", "two lines and more"),
        ("user\u202etxt.exe", "usertxt.exe"),
        ("caf\u00e9 日本 👩‍🔬", "caf\u00e9 日本 👩‍🔬"),
        ("x" * 50, "x" * 19 + "…"),
        (42, "42"),
    ],
)
def test_escape_sequences_go_as_a_whole_and_letters_stay(raw: object, shown: str) -> None:
    """R-T5: what is left reads as the text would without its tricks."""
    assert line(raw, 20) == shown


def test_a_huge_value_is_cut_before_it_is_cleaned() -> None:
    """R-T5: 50 MB of escapes in a name cost no more than a line."""
    started = time.process_time()
    assert len(line("\x1b[31m" * 10_000_000, 80)) <= 80
    assert time.process_time() - started < 1

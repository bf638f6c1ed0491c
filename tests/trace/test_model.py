"""Span and Trace: times, totals and sequences that are derived, never stored."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from spans import span, trace

from proctor.trace import Document, Event, Message, Span, SpanKind, SpanStatus, ToolCall, Trace
from proctor.trace.query import CONDITIONS

LLM, TOOL, AGENT = SpanKind.LLM, SpanKind.TOOL, SpanKind.AGENT


def test_kinds_and_statuses_are_the_closed_lists():
    """R-T2: eleven kinds and four statuses, and a query accepts exactly these."""
    kinds = "agent planning llm tool retrieval handoff guardrail response chain error other"
    assert [str(kind) for kind in SpanKind] == kinds.split()
    assert [str(status) for status in SpanStatus] == ["unset", "ok", "error", "timeout"]
    for kind in SpanKind:
        assert trace(span("a", kind=kind)).count({"kind": str(kind)}) == 1
    for status in SpanStatus:
        assert trace(span("a", status=status)).count({"has_status": str(status)}) == 1
    assert {"kind", "has_status"} <= CONDITIONS.keys()


def test_a_span_carries_wire_fields_and_normalised_ones():
    """R-T1: one span for everything, and it survives its own JSON."""
    full = Span(
        span_id="a",
        trace_id="t",
        parent_id="p",
        name="search",
        kind=TOOL,
        status=SpanStatus.ERROR,
        start_ns=1,
        end_ns=3,
        attributes={"k": [1, {"x": None}]},
        events=(Event(name="exception", time_ns=2, attributes={"m": "no"}),),
        scope="lib",
        tool_name="search",
        tool_call_id="call",
        tool_input={"q": "x"},
        tool_output=["y"],
        model="m",
        input_tokens=1,
        output_tokens=2,
        cost_usd=0.5,
        error_type="E",
        error_message="no",
        agent_name="one",
        handoff_to="two",
        documents=(Document(id="d", score=0.5),),
        input_messages=(Message(role="user", content="hi"),),
        output_messages=(Message(role="assistant", tool_calls=(ToolCall(name="search"),)),),
    )
    assert msgspec.json.decode(msgspec.json.encode(full), type=Span) == full
    assert full.failed


def test_times_are_utc_and_exact_to_the_nanosecond_inside():
    """R-T2: times are UTC-aware; nanosecond integers inside."""
    when = datetime(2026, 11, 5, 12, 30, 0, 123456, tzinfo=UTC)
    start_ns = int(when.timestamp()) * 10**9 + 123456789
    one = Span(span_id="a", trace_id="t", name="a", start_ns=start_ns, end_ns=start_ns + 1)
    assert one.start == when
    assert one.start.tzinfo is UTC
    assert (one.end, one.duration_ns, one.duration) == (when, 1, 1e-9)
    still_open = Span(span_id="a", trace_id="t", name="a", start_ns=start_ns)
    assert (still_open.end, still_open.duration_ns, still_open.duration) == (None, None, None)


@pytest.mark.parametrize(
    ("status", "failed"), [("unset", False), ("ok", False), ("error", True), ("timeout", True)]
)
def test_errors_and_timeouts_are_failures(status, failed):
    """R-T3: a timeout is an error of the trace as well."""
    one = trace(span("a", status=SpanStatus(status)))
    assert one.spans[0].failed is failed
    assert len(one.errors) == failed


def test_a_trace_lasts_from_the_first_start_to_the_last_end():
    """R-T3: started, ended and duration; None where unknown, never 0."""
    some = trace(
        span("b", start=50, end=20), span("a", start=10, end=500), span("c", start=5, end=None)
    )
    assert some.started == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=5)
    assert some.ended == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=510)
    assert some.duration == pytest.approx(0.505)
    assert (trace().started, trace().ended, trace().duration) == (None, None, None)
    running = trace(span("a", end=None))
    assert running.started is not None
    assert (running.ended, running.duration) == (None, None)


def test_tool_calls_are_the_tool_spans_in_order():
    """R-T3: tool_calls, tool_sequence (repeats kept), tools_used (each once)."""
    used = trace(
        span(
            "3", start=3, kind=TOOL, tool_name="book", tool_input={"id": 1}, status=SpanStatus.ERROR
        ),
        span("1", start=1, kind=TOOL, tool_name="search", tool_call_id="c1", tool_output="found"),
        span("2", start=2, kind=TOOL, name="search"),
        span("0", start=0, kind=LLM, output_messages=(asked("other"),)),
    )
    assert used.tool_sequence == ["search", "search", "book"]
    assert used.tools_used == ["search", "book"]
    first, _, last = used.tool_calls
    assert (first.id, first.result, first.span_id) == ("c1", "found", "1")
    assert (last.arguments, last.status, last.span_id) == ({"id": 1}, "error", "3")


def asked(*names: str) -> Message:
    return Message(
        role="assistant", tool_calls=tuple(ToolCall(name=n, id=f"id-{n}") for n in names)
    )


def test_without_tool_spans_the_calls_that_models_asked_for_stand_in():
    """R-T3: a trace of the model client alone still has its tool sequence."""
    only_llm = trace(
        span("2", start=2, kind=LLM, output_messages=(asked("book"),)),
        span("1", start=1, kind=LLM, output_messages=(asked("search", "look"),)),
    )
    assert only_llm.tool_sequence == ["search", "look", "book"]
    first = only_llm.tool_calls[0]
    assert (first.id, first.span_id, first.result) == ("id-search", "1", None)


def test_a_model_span_around_a_model_span_is_one_call():
    """R-T3: llm_calls counts the call, not the layers that recorded it."""
    layered = trace(
        span("agent", kind=AGENT),
        span("gateway", "agent", start=1, kind=LLM),
        span("client", "gateway", start=2, kind=LLM),
        span("next", "agent", start=3, kind=LLM),
    )
    assert [s.span_id for s in layered.llm_calls] == ["client", "next"]
    assert [s.span_id for s in layered.of_kind("agent")] == ["agent"]


def test_handoffs_and_errors_come_by_start_time():
    """R-T3: handoffs and errors."""
    some = trace(
        span("b", start=2, kind=SpanKind.HANDOFF, handoff_to="billing", status=SpanStatus.TIMEOUT),
        span("a", start=1, kind=SpanKind.HANDOFF, handoff_to="sales", status=SpanStatus.ERROR),
        span("c", start=3, status=SpanStatus.OK),
    )
    assert [s.handoff_to for s in some.handoffs] == ["sales", "billing"]
    assert [s.span_id for s in some.errors] == ["a", "b"]


def used(span_id: str, parent: str | None, kind: SpanKind, tokens: tuple[int, int] | None, **more):
    reads, writes = tokens or (None, None)
    return span(span_id, parent, kind=kind, input_tokens=reads, output_tokens=writes, **more)


def test_agents_that_repeat_the_usage_of_their_calls_are_not_counted_again():
    """R-T3: smolagents and pydantic-ai write sums on the agent span."""
    repeated = trace(
        used("agent", None, AGENT, (300, 30)),
        used("one", "agent", LLM, (100, 10)),
        used("two", "agent", LLM, (200, 20)),
    )
    assert (repeated.usage.input_tokens, repeated.usage.output_tokens) == (300, 30)
    assert (repeated.total_tokens, repeated.usage.calls) == (330, 2)


def test_of_two_nested_model_spans_the_inner_one_counts():
    """R-T3: ADK nests generate_content in call_llm, both with usage, and the tool below them."""
    nested = trace(
        used("outer", None, LLM, (100, 10)),
        used("inner", "outer", LLM, (100, 10)),
        used("tool", "outer", TOOL, None),
    )
    assert (nested.total_tokens, nested.usage.calls) == (110, 1)
    outer_only = trace(used("outer", None, LLM, (100, 10)), used("inner", "outer", LLM, None))
    assert (outer_only.total_tokens, outer_only.usage.calls) == (110, 1)


def test_agent_totals_count_only_when_no_model_span_has_any():
    """R-T3: the fall-back is the outermost total, so nested agents count once."""
    agents = trace(
        used("outer", None, AGENT, (500, 50)),
        used("inner", "outer", AGENT, (200, 20)),
        used("llm", "inner", LLM, None),
    )
    assert agents.total_tokens == 550
    partial = trace(used("outer", None, AGENT, (500, 50)), used("llm", "outer", LLM, (1, 1)))
    assert partial.total_tokens == 2


def test_unknown_usage_is_none_and_half_known_usage_is_what_is_known():
    """R-T3: a number that cannot be computed is None, never 0."""
    unknown = trace(span("a", kind=LLM))
    assert (unknown.total_tokens, unknown.total_cost, unknown.usage.unpriced) == (None, None, 1)
    assert (trace().total_tokens, trace().total_cost, trace().usage.calls) == (None, None, 0)
    half = trace(span("a", kind=LLM, input_tokens=5))
    assert (half.usage.input_tokens, half.usage.output_tokens, half.total_tokens) == (5, None, 5)
    zero = trace(span("a", kind=LLM, input_tokens=0, output_tokens=0, cost_usd=0.0))
    assert (zero.total_tokens, zero.total_cost) == (0, 0.0)


def test_calls_without_a_price_are_counted_beside_the_cost():
    """R-T3: total_cost is a lower bound unless unpriced is 0."""
    some = trace(
        used("a", None, LLM, (1, 1), cost_usd=0.25),
        used("b", None, LLM, (1, 1), cost_usd=0.5),
        used("c", None, LLM, (1, 1)),
    )
    assert (some.total_cost, some.usage.unpriced, some.usage.calls) == (0.75, 1, 3)
    on_agent = trace(
        used("agent", None, AGENT, None, cost_usd=2.0), used("a", "agent", LLM, (1, 1))
    )
    assert (on_agent.total_cost, on_agent.usage.unpriced) == (2.0, 0)


def test_derived_values_follow_late_spans():
    """R-T3: derived values are computed again when spans arrive late."""
    late = trace(used("a", None, LLM, (1, 1)), span("t", kind=TOOL, tool_name="x"))
    assert (late.total_tokens, late.tool_sequence) == (2, ["x"])
    late.add([used("b", None, LLM, (10, 10)), span("u", start=1, kind=TOOL, tool_name="y")])
    assert (late.total_tokens, late.tool_sequence) == (22, ["x", "y"])


def test_traces_do_not_share_their_lists():
    """R-T3: an empty trace filled later leaves other empty traces empty."""
    one, other = Trace(trace_id="1"), Trace(trace_id="2")
    one.add([span("a")])
    one.metadata["k"] = one.problems
    one.problems.append("p")
    assert (other.spans, other.metadata, other.problems) == ([], {}, [])
    assert span("a").attributes is not span("b").attributes

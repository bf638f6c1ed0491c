"""Our own attributes carry everything a span and a trace say."""

from hypothesis import given
from hypothesis import strategies as st

from proctor.trace import Document, Message, Span, SpanKind, SpanStatus, ToolCall, Trace
from proctor.trace.conventions import finish, normalise
from proctor.trace.conventions.proctor import (
    SPAN_KEYS,
    from_attributes,
    to_attributes,
    trace_to_attributes,
)

text = st.text(max_size=20)
json_value = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
    | st.characters(categories=["Cs"]),  # half a character: not UTF-8, but a str
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
maybe_text = st.none() | text
tool_calls = st.builds(ToolCall, name=text, arguments=json_value, id=maybe_text)
messages = st.lists(
    st.builds(
        Message,
        role=text,
        content=maybe_text,
        tool_calls=st.lists(tool_calls, max_size=2).map(tuple),
        tool_call_id=maybe_text,
        name=maybe_text,
        other=st.lists(text, max_size=2).map(tuple),
    ),
    max_size=3,
).map(tuple)
documents = st.lists(
    st.builds(
        Document,
        id=maybe_text,
        text=maybe_text,
        score=st.none() | st.floats(allow_nan=False, allow_infinity=False),
        metadata=st.dictionaries(text, json_value, max_size=2),
    ),
    max_size=3,
).map(tuple)
counts = st.none() | st.integers(0, 2**63 - 1)
spans = st.builds(
    Span,
    span_id=st.just("a1"),
    trace_id=st.just("b2"),
    name=text,
    kind=st.sampled_from(SpanKind),
    status=st.sampled_from(SpanStatus),
    attributes=st.dictionaries(
        text | st.sampled_from(["gen_ai.tool.name", "openinference.span.kind", "input.value"]),
        json_value,
        max_size=3,
    ),
    tool_name=maybe_text,
    tool_call_id=maybe_text,
    tool_input=json_value,
    tool_output=json_value,
    model=maybe_text,
    input_tokens=counts,
    output_tokens=counts,
    cost_usd=st.none() | st.floats(0, 1e6),
    error_type=maybe_text,
    error_message=maybe_text,
    agent_name=maybe_text,
    handoff_to=maybe_text,
    documents=documents,
    input_messages=messages,
    output_messages=messages,
    input=json_value,
    output=json_value,
)


def bare(span: Span) -> Span:
    """The span as a wire format would hand it over: our attributes and nothing understood."""
    return Span(
        span_id=span.span_id,
        trace_id=span.trace_id,
        name=span.name,
        attributes={**span.attributes, **to_attributes(span)},
    )


@given(spans)
def test_attributes_and_back_is_the_identity(span: Span):
    """R-T8: a span read back from its own attributes is the same span, whatever it holds."""
    again = bare(span)
    assert from_attributes(again) is True
    assert again == span


@given(spans)
def test_no_dialect_adds_to_a_span_that_said_everything(span: Span):
    """R-T8: foreign attributes beside ours change nothing, not even fields that are unknown."""
    again = bare(span)
    normalise(again)
    assert again == span


@given(
    query=json_value,
    response=maybe_text,
    request_id=maybe_text,
    session_id=maybe_text,
    user_id=maybe_text,
    metadata=st.dictionaries(text, json_value, max_size=3),
)
def test_trace_facts_and_back_is_the_identity(**facts):
    """R-T8: what is known of a whole trace survives on its root span, and nothing is guessed."""
    trace = Trace(trace_id="b2", **facts)
    root = Span(span_id="a1", trace_id="b2", name="chat", kind=SpanKind.LLM)
    root.output_messages = (Message("assistant", "an answer nobody must take for the response"),)
    again = Trace(trace_id="b2", spans=[bare(root)])
    again.spans[0].attributes |= trace_to_attributes(trace)
    for span in again.spans:
        normalise(span)
    finish(again)
    assert again == Trace(trace_id="b2", spans=[root], **facts)


def test_single_attributes_win_and_the_rest_is_read_from_the_dialect():
    """R-T6: `proctor.agent.name` alone overrides the dialect and leaves its other fields."""
    span = Span(
        span_id="a1",
        trace_id="b2",
        name="x",
        attributes={
            "proctor.agent.name": "mine",
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "theirs",
            "gen_ai.usage.input_tokens": 7,
        },
    )
    normalise(span)
    assert (span.kind, span.agent_name, span.input_tokens) == ("agent", "mine", 7)
    assert not SPAN_KEYS.intersection(span.attributes)

"""Attributes of any shape are understood or left alone, never fatal."""

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from proctor.trace import Event, Span, SpanKind, SpanStatus, Trace
from proctor.trace.conventions import finish, normalise

KEYS = """
gen_ai.operation.name gen_ai.tool.name gen_ai.tool.call.id gen_ai.tool.call.arguments
gen_ai.tool.call.result gen_ai.request.model gen_ai.response.model gen_ai.usage.input_tokens
gen_ai.usage.output_tokens gen_ai.usage.prompt_tokens gen_ai.agent.name gen_ai.input.messages
gen_ai.output.messages gen_ai.system_instructions gen_ai.prompt gen_ai.completion
gen_ai.prompt.0.role gen_ai.prompt.0.content gen_ai.prompt.x.content
gen_ai.prompt.0.tool_calls.0.name
gen_ai.completion.0.content gen_ai.retrieval.documents gen_ai.retrieval.query.text
gen_ai.conversation.id gen_ai.task.input gen_ai.task.output gen_ai.task.status
gen_ai.aggregated_usage.input_tokens error.type input output
openinference.span.kind input.value output.value llm.model_name llm.token_count.prompt
llm.token_count.completion llm.cost.total llm.cost.prompt llm.invocation_parameters
llm.input_messages.0.message.role llm.input_messages.0.message.content
llm.input_messages.7.message.contents.0.message_content.text
llm.input_messages.7.message.contents.0.message_content.type
llm.output_messages.1.message.tool_calls.0.tool_call.function.name
llm.output_messages.1.message.tool_calls.0.tool_call.function.arguments
llm.output_messages.1.message.tool_call_id tool.name tool.parameters tool.id agent.name
graph.node.id retrieval.documents.0.document.content retrieval.documents.0.document.score
retrieval.documents.0.document.metadata reranker.output_documents.0.document.id session.id user.id
smolagents.managed_agents.0.name
traceloop.span.kind traceloop.entity.name traceloop.entity.input traceloop.entity.output
llm.request.type llm.usage.prompt_tokens langgraph.command.goto_node db.query.retrieved_documents
agent_name model_name final_result all_messages_events pydantic_ai.all_messages events
tool_arguments tool_response tools operation.cost request_data response_data logfire.msg
langfuse.observation.type langfuse.observation.input langfuse.observation.output
langfuse.observation.level langfuse.observation.status_message langfuse.observation.model.name
langfuse.observation.usage_details langfuse.observation.cost_details
ai.operationId ai.prompt ai.prompt.messages ai.response.text ai.response.toolCalls
ai.response.object ai.toolCall.name ai.toolCall.args ai.toolCall.result ai.usage.promptTokens
gcp.vertex.agent.llm_request gcp.vertex.agent.llm_response gcp.vertex.agent.tool_call_args
gcp.vertex.agent.tool_response gcp.vertex.agent.session_id
proctor.kind proctor.status proctor.format proctor.tool.input proctor.documents
proctor.input.messages proctor.usage.input_tokens proctor.cost_usd proctor.trace.query
proctor.trace.metadata proctor.trace.format proctor.trace.response
""".split()

# Words that lead the readers into every branch.
WORDS = """
chat execute_tool retrieval invoke_agent invoke_workflow LLM TOOL AGENT RETRIEVER CHAIN tool agent
workflow generation retriever span ERROR ai.toolCall ai.generateText ai.generateText.doGenerate
role content parts type text tool_call tool_call_response tool_use tool_result function_call
function_call_output function name arguments id messages generations choices candidates message
data kwargs args inputs output input documents metadata score document node toolName toolCallId
tool_calls additional_kwargs event.name gen_ai.choice gen_ai.user.message usage user assistant
system human ai lc constructor total transfer_to_agent task query answer prompt contents config
""".split()

word = st.sampled_from(WORDS) | st.text(max_size=5)
scalar = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | word
    | st.sampled_from(["{", "[", '"', "{'a': 1}", "{'", "content='x' additional_kwargs=", "nan"])
)
tangle = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(word, inner, max_size=4),
    max_leaves=12,
)
value = tangle | tangle.map(lambda found: msgspec.json.encode(found).decode())
attributes = st.dictionaries(st.sampled_from(KEYS), value, max_size=8)
events = st.lists(
    st.builds(
        Event,
        name=st.sampled_from(
            ["exception", "gen_ai.choice", "gen_ai.user.message", "gen_ai.content.prompt", "log"]
        ),
        attributes=st.dictionaries(
            st.sampled_from(["body", "content", "message", "gen_ai.prompt", "exception.type"]),
            value,
            max_size=3,
        ),
    ),
    max_size=2,
).map(tuple)
spans = st.builds(
    Span,
    span_id=st.sampled_from("abcd"),
    trace_id=st.just("t"),
    parent_id=st.none() | st.sampled_from("abcd"),
    name=st.sampled_from(["handoff to x", "CodeAgent.run", "running tools", "invocation", ""]),
    status=st.sampled_from(SpanStatus),
    attributes=attributes,
    events=events,
    scope=st.sampled_from([None, "patronus.sdk", "gcp.vertex.agent", "x.openai_agents"]),
)


@given(st.lists(spans, max_size=4))
@example([Span(span_id="a", trace_id="t", name="", attributes={"gen_ai.prompt": {"type": []}})])
@example(
    [
        Span(
            span_id="a",
            trace_id="t",
            name="",
            attributes={"langfuse.observation.output": "[" * 100_000, "input.value": '{"a":' * 999},
        )
    ]
)
def test_any_attributes_give_a_well_typed_span(found: list[Span]):
    """R-T7: wrong types under every known key lose nothing but themselves."""
    trace = Trace(trace_id="t", spans=list({span.span_id: span for span in found}.values()))
    for span in trace.spans:
        normalise(span)
    finish(trace)
    assert trace.query is None or trace.query != ""
    assert trace.response is None or isinstance(trace.response, str)
    for span in trace.spans:
        assert type(span.kind) is SpanKind
        # Every field has its declared type: the span survives our own format.
        again = msgspec.json.decode(msgspec.json.encode(_finite(span)), type=Span)
        assert again.span_id == span.span_id


def _finite(span: Span) -> Span:
    """Attributes as received may hold what JSON cannot; the fields may not."""
    free = {"attributes": {}, "events": (), "tool_input": None, "tool_output": None}
    return msgspec.structs.replace(span, **free, input=None, output=None)


@given(attributes)
def test_normalising_twice_changes_nothing(found):
    """R-T7: a foreign span that was normalised may be normalised again."""
    found = {key: value for key, value in found.items() if not key.startswith("proctor.")}
    span = Span(span_id="a", trace_id="t", name="x", attributes=found)
    normalise(span)
    before = msgspec.structs.asdict(span)
    normalise(span)
    assert repr(msgspec.structs.asdict(span)) == repr(before)

"""Read OpenTelemetry's GenAI conventions, all generations (G0 to G3), distinguished by keys.

The declared schema version is ignored: producers emit keys of other versions than they declare.
Embedding calls become `other`, because they are no model turns; their tokens are stored.
"""

from __future__ import annotations

from proctor.trace.conventions.messages import (
    documents_from,
    fill,
    fill_messages,
    fill_tool,
    fill_values,
    legacy_messages,
    messages_from,
)
from proctor.trace.conventions.values import (
    Attributes,
    count,
    first,
    identifier,
    is_mapping,
    parsed,
    text,
)
from proctor.trace.model import Event, Message, Span, SpanKind

HEADS = frozenset({"gen_ai"})

_OPERATIONS = {
    "chat": SpanKind.LLM,
    "completion": SpanKind.LLM,
    "text_completion": SpanKind.LLM,
    "generate_content": SpanKind.LLM,
    "responses": SpanKind.LLM,
    "embeddings": SpanKind.OTHER,
    "execute_tool": SpanKind.TOOL,
    "retrieval": SpanKind.RETRIEVAL,
    "vector_db_retrieve": SpanKind.RETRIEVAL,
    "invoke_agent": SpanKind.AGENT,
    "create_agent": SpanKind.AGENT,
    "invoke_workflow": SpanKind.CHAIN,
    "execute_task": SpanKind.CHAIN,
    "plan": SpanKind.PLANNING,
    "handoff": SpanKind.HANDOFF,
    "guardrail": SpanKind.GUARDRAIL,
}
_INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
# G0 put whole conversations on these two events.
_CONTENT_EVENTS = {
    "gen_ai.content.prompt": ("gen_ai.prompt", "user"),
    "gen_ai.content.completion": ("gen_ai.completion", "assistant"),
}


def kind(span: Span) -> SpanKind | None:
    """Return the operation's kind; None when no operation is named."""
    operation = span.attributes.get("gen_ai.operation.name")
    return _OPERATIONS.get(operation) if isinstance(operation, str) else None


def likely_kind(span: Span) -> SpanKind | None:
    """Guess the kind when no dialect names one: only model calls name a requested model."""
    attributes = span.attributes
    if "gen_ai.request.model" in attributes or "gen_ai.response.model" in attributes:
        return SpanKind.LLM
    return None


def read(span: Span) -> None:
    """Fill the fields from the `gen_ai.*` attributes and events."""
    attributes = span.attributes
    model = first(attributes, ("gen_ai.response.model", "gen_ai.request.model"))
    fill(span, "model", text(model))
    fill(span, "input_tokens", count(first(attributes, _INPUT_TOKENS)))
    fill(span, "output_tokens", count(first(attributes, _OUTPUT_TOKENS)))
    fill(span, "agent_name", text(attributes.get("gen_ai.agent.name")))
    if span.kind == SpanKind.TOOL:
        fill(span, "tool_name", text(attributes.get("gen_ai.tool.name")))
        fill(span, "tool_call_id", identifier(attributes.get("gen_ai.tool.call.id")))
        arguments = attributes.get("gen_ai.tool.call.arguments")
        fill_tool(span, arguments, attributes.get("gen_ai.tool.call.result"))
        if span.events and span.tool_output is None:
            _read_tool_events(span)
    elif span.kind == SpanKind.RETRIEVAL:
        fill(span, "input", attributes.get("gen_ai.retrieval.query.text"))
        if not span.documents:
            span.documents = documents_from(attributes.get("gen_ai.retrieval.documents"))
    if span.kind != SpanKind.TOOL:
        fill_messages(span, "input_messages", lambda: _input_messages(span))
        fill_messages(span, "output_messages", lambda: _output_messages(span))
    # Attribute bags without a span use a single value.
    fill_values(span, attributes.get("input"), attributes.get("output"))


def _read_tool_events(span: Span) -> None:
    """Read the arguments and the result that Strands records as messages of the tool span."""
    for event in span.events:
        if event.name == "gen_ai.tool.message":
            fill_tool(span, event.attributes.get("content"), None)
    for call in (c for m in _from_events(span, output=False) for c in m.tool_calls):
        fill_tool(span, call.arguments, None)
    for message in _from_events(span, output=True):
        fill_tool(span, None, message.content)
        fill(span, "tool_call_id", message.tool_call_id)


def _input_messages(span: Span) -> tuple[Message, ...]:
    attributes = span.attributes
    messages = messages_from(attributes.get("gen_ai.input.messages"), "user")
    if messages:
        return _with_instructions(attributes, messages)
    return (
        legacy_messages(attributes, "gen_ai.prompt", "user")
        or messages_from(attributes.get("gen_ai.prompt"), "user")
        or _with_instructions(attributes, _from_events(span, output=False))
    )


def _output_messages(span: Span) -> tuple[Message, ...]:
    attributes = span.attributes
    return (
        messages_from(attributes.get("gen_ai.output.messages"), "assistant")
        or legacy_messages(attributes, "gen_ai.completion", "assistant")
        or messages_from(attributes.get("gen_ai.completion"), "assistant")
        or _from_events(span, output=True)
    )


def _with_instructions(
    attributes: Attributes, messages: tuple[Message, ...]
) -> tuple[Message, ...]:
    instructions = messages_from(
        {"role": "system", "parts": parsed(attributes.get("gen_ai.system_instructions"))}
    )
    return tuple(message for message in instructions if message.content) + messages


def _from_events(span: Span, *, output: bool) -> tuple[Message, ...]:
    events = (event for event in span.events if event.name.startswith("gen_ai."))
    return tuple(m for event in events for m in _event_messages(event, output=output))


def _event_messages(event: Event, *, output: bool) -> tuple[Message, ...]:
    """Return the messages of one event, when it belongs to the wanted side."""
    fields = event.attributes
    body = parsed(fields.get("body"))
    if is_mapping(body):
        fields = {**fields, **body}
    if event.name in _CONTENT_EVENTS:
        key, role = _CONTENT_EVENTS[event.name]
        return messages_from(fields.get(key), role) if output == (role == "assistant") else ()
    side = "gen_ai.output.messages" if output else "gen_ai.input.messages"
    if side in fields:
        return messages_from(fields[side], "assistant" if output else "user")
    if output != (event.name == "gen_ai.choice"):
        return ()
    if not event.name.endswith((".message", ".choice")):
        return ()
    content = first(fields, ("gen_ai.event.content", "content", "message"))
    value: Attributes = {**fields, "event.name": event.name}
    inner = parsed(content)
    # This attribute holds the whole event as JSON rather than only its content.
    if "gen_ai.event.content" in fields and is_mapping(inner):
        value.update(inner)
    elif content is not None:
        value["message" if is_mapping(inner) else "content"] = inner
        value.pop("content" if is_mapping(inner) else "message", None)
    return messages_from(value)

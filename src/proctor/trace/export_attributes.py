"""The normalised fields of a span in the words of a convention: OTel GenAI or OpenInference.

Promise: other tools read our exports by names they know. What a convention has no word for is
left to the `proctor.*` attributes, which also hold everything else, so that we lose nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proctor.trace.conventions.values import encode_json, shown
from proctor.trace.model import Message, Span, SpanKind, ToolCall, Trace

Attributes = dict[str, Any]


def _known(attributes: Attributes) -> Attributes:
    return {key: value for key, value in attributes.items() if value is not None}


# -- OTel GenAI -------------------------------------------------------------------------------

_OPERATIONS = {
    SpanKind.LLM: "chat",
    SpanKind.TOOL: "execute_tool",
    SpanKind.AGENT: "invoke_agent",
    SpanKind.RETRIEVAL: "retrieval",
    SpanKind.PLANNING: "plan",
}


def genai(span: Span) -> Attributes:
    """A span's fields as `gen_ai.*` attributes."""
    found: Attributes = {
        "gen_ai.operation.name": _OPERATIONS.get(span.kind),
        "gen_ai.request.model": span.model,
        "gen_ai.usage.input_tokens": span.input_tokens,
        "gen_ai.usage.output_tokens": span.output_tokens,
        "gen_ai.agent.name": span.agent_name,
        "error.type": span.error_type,
    }
    if span.kind == SpanKind.TOOL:
        found["gen_ai.tool.name"] = span.tool_name
        found["gen_ai.tool.call.id"] = span.tool_call_id
        found["gen_ai.tool.call.arguments"] = shown(span.tool_input)
        found["gen_ai.tool.call.result"] = shown(span.tool_output)
    if span.input_messages:
        found["gen_ai.input.messages"] = encode_json([_parts(m) for m in span.input_messages])
    if span.output_messages:
        found["gen_ai.output.messages"] = encode_json(
            [
                {**_parts(m), "finish_reason": "tool_call" if m.tool_calls else "stop"}
                for m in span.output_messages
            ]
        )
    if span.documents:
        found["gen_ai.retrieval.documents"] = encode_json(
            [_known({"id": d.id, "score": d.score, "content": d.text}) for d in span.documents]
        )
        if isinstance(span.input, str):
            found["gen_ai.retrieval.query.text"] = span.input
    return _known(found)


def genai_trace(trace: Trace) -> Attributes:
    """What GenAI says about a whole conversation."""
    return _known({"gen_ai.conversation.id": trace.session_id, "user.id": trace.user_id})


def _parts(message: Message) -> Attributes:
    parts: list[Attributes] = []
    if message.role == "tool" and message.tool_call_id is not None:
        parts.append(
            {
                "type": "tool_call_response",
                "id": message.tool_call_id,
                "response": message.content,
            }
        )
    elif message.content is not None:
        parts.append({"type": "text", "content": message.content})
    parts += [
        {"type": "tool_call", **_known({"id": call.id, "name": call.name})}
        | {"arguments": call.arguments}
        for call in message.tool_calls
    ]
    return _known({"role": message.role, "name": message.name}) | {"parts": parts}


# -- OpenInference ----------------------------------------------------------------------------

_SPAN_KINDS = {
    SpanKind.LLM: "LLM",
    SpanKind.TOOL: "TOOL",
    SpanKind.AGENT: "AGENT",
    SpanKind.RETRIEVAL: "RETRIEVER",
    SpanKind.GUARDRAIL: "GUARDRAIL",
}


def openinference(span: Span) -> Attributes:
    """A span's fields as OpenInference attributes."""
    is_tool = span.kind == SpanKind.TOOL
    sent, received = span.input_tokens, span.output_tokens
    found: Attributes = {
        "openinference.span.kind": _SPAN_KINDS.get(span.kind, "CHAIN"),
        "llm.model_name": span.model,
        "llm.token_count.prompt": sent,
        "llm.token_count.completion": received,
        "llm.token_count.total": None if sent is None or received is None else sent + received,
        "llm.cost.total": span.cost_usd,
        "agent.name": span.agent_name,
        "tool.name": span.tool_name,
        "tool.id": span.tool_call_id,
    }
    found |= _value("input", span.tool_input if is_tool else span.input)
    found |= _value("output", span.tool_output if is_tool else span.output)
    found |= _flat_messages("llm.input_messages", span.input_messages)
    found |= _flat_messages("llm.output_messages", span.output_messages)
    for number, document in enumerate(span.documents):
        head = f"retrieval.documents.{number}.document"
        found[f"{head}.id"] = document.id
        found[f"{head}.content"] = document.text
        found[f"{head}.score"] = document.score
        if document.metadata:
            found[f"{head}.metadata"] = encode_json(document.metadata)
    return _known(found)


def openinference_trace(trace: Trace) -> Attributes:
    """What OpenInference says about a whole conversation."""
    return _known({"session.id": trace.session_id, "user.id": trace.user_id})


def _value(which: str, value: Any) -> Attributes:
    if value is None:
        return {}
    mime = "text/plain" if isinstance(value, str) else "application/json"
    return {f"{which}.value": shown(value), f"{which}.mime_type": mime}


def _flat_messages(prefix: str, messages: Sequence[Message]) -> Attributes:
    found: Attributes = {}
    for number, message in enumerate(messages):
        head = f"{prefix}.{number}.message"
        found[f"{head}.role"] = message.role
        found[f"{head}.content"] = message.content
        found[f"{head}.name"] = message.name
        found[f"{head}.tool_call_id"] = message.tool_call_id
        for index, call in enumerate(message.tool_calls):
            found |= _flat_call(f"{head}.tool_calls.{index}.tool_call", call)
    return found


def _flat_call(head: str, call: ToolCall) -> Attributes:
    return {
        f"{head}.id": call.id,
        f"{head}.function.name": call.name,
        f"{head}.function.arguments": shown(call.arguments),
    }

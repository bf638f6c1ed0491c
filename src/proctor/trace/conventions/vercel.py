"""Read Vercel's AI SDK: `ai.*`. The outer call runs the tool loop, the inner `do…` the model.

`ai.generateText` and `ai.streamText` are therefore agents, their object variants chains.
"""

from __future__ import annotations

from typing import Any

from proctor.trace.conventions.messages import (
    conversation,
    fill,
    fill_messages,
    fill_tool,
    messages_from,
)
from proctor.trace.conventions.values import count, first, identifier, is_list, parsed, shown, text
from proctor.trace.model import Message, Span, SpanKind

HEADS = frozenset({"ai"})

_INPUT_TOKENS = ("ai.usage.inputTokens", "ai.usage.promptTokens", "ai.usage.tokens")
_OUTPUT_TOKENS = ("ai.usage.outputTokens", "ai.usage.completionTokens")


def kind(span: Span) -> SpanKind | None:
    """Return the kind of an operation such as `ai.generateText.doGenerate`."""
    operation = span.attributes.get("ai.operationId")
    if not isinstance(operation, str) or not operation.startswith("ai."):
        return None
    name, _, step = operation.removeprefix("ai.").partition(".")
    if name == "toolCall":
        return SpanKind.TOOL
    if name.startswith("embed"):
        return SpanKind.OTHER
    if step.startswith("do"):
        return SpanKind.LLM
    return SpanKind.AGENT if name in ("generateText", "streamText") else SpanKind.CHAIN


def read(span: Span) -> None:
    """Fill the fields from the AI SDK's attributes."""
    attributes = span.attributes
    if span.kind == SpanKind.TOOL:
        fill(span, "tool_name", text(attributes.get("ai.toolCall.name")))
        fill(span, "tool_call_id", identifier(attributes.get("ai.toolCall.id")))
        fill_tool(span, attributes.get("ai.toolCall.args"), attributes.get("ai.toolCall.result"))
        return
    fill(span, "model", text(first(attributes, ("ai.response.model", "ai.model.id"))))
    fill(span, "input_tokens", count(first(attributes, _INPUT_TOKENS)))
    fill(span, "output_tokens", count(first(attributes, _OUTPUT_TOKENS)))
    if span.kind == SpanKind.AGENT:
        fill(span, "agent_name", text(attributes.get("ai.telemetry.functionId")))
    prompt = first(attributes, ("ai.prompt.messages", "ai.prompt"))
    if prompt is not None:
        fill_messages(span, "input_messages", lambda: conversation(prompt, "user"))
    fill_messages(span, "output_messages", lambda: _answer(span))
    if span.kind != SpanKind.LLM:
        fill(span, "input", prompt)
        fill(span, "output", first(attributes, ("ai.response.text", "ai.response.object")))


def _answer(span: Span) -> tuple[Message, ...]:
    content = shown(first(span.attributes, ("ai.response.text", "ai.response.object")))
    calls: Any = parsed(span.attributes.get("ai.response.toolCalls"))
    messages = messages_from(calls, "assistant") if is_list(calls) else ()
    requested = tuple(call for message in messages for call in message.tool_calls)
    return (Message("assistant", content, requested),) if content or requested else ()

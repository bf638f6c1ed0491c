"""Read AWS' OpenTelemetry distribution: content moved from attributes to log record bodies.

Its spans may carry nothing else; then only the shape of the output reveals the kind.
"""

from __future__ import annotations

from typing import Any

from proctor.trace.conventions.messages import conversation, fill_values, tool_result
from proctor.trace.conventions.values import is_list, is_mapping, parsed
from proctor.trace.model import Span, SpanKind

HEADS = frozenset({"body"})


def kind(span: Span) -> SpanKind | None:
    """Return the kind by the output's shape: LangChain generation, tool message, or chain."""
    result = parsed(_side(span, "output"))
    if result is None:
        return None
    if is_mapping(result):
        if "generations" in result:
            return SpanKind.LLM
        if tool_result(result).call_id is not None:
            return SpanKind.TOOL
    return SpanKind.CHAIN


def read(span: Span) -> None:
    """Fill the span's values from its log records, where attributes have none."""
    value, result = _side(span, "input"), _side(span, "output")
    if span.kind == SpanKind.LLM and not span.output_messages and result is not None:
        span.output_messages = conversation(result, "assistant")
    fill_values(span, value, result)


def _side(span: Span, side: str) -> Any:
    """Return the content of the last message of one side of a body."""
    for event in span.events:
        body = parsed(event.attributes.get("body"))
        messages: Any = body.get(side) if is_mapping(body) else None
        messages = messages.get("messages") if is_mapping(messages) else messages
        if is_list(messages) and messages and is_mapping(messages[-1]):
            return messages[-1].get("content")
    return None

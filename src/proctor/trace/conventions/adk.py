"""Read Google's Agent Development Kit: `gcp.vertex.agent.*` next to the GenAI conventions.

Its `call_llm` span may enclose another model span for the same call; both are model spans.
"""

from __future__ import annotations

from typing import Any

from proctor.trace.conventions.messages import conversation, fill, fill_messages, fill_tool
from proctor.trace.conventions.values import mapping, text
from proctor.trace.model import Span, SpanKind

HEADS = frozenset({"gcp"})

PREFIX = "gcp.vertex.agent."

_SCOPE = "gcp.vertex.agent"
_TRANSFER = "transfer_to_agent"
# ADK's placeholder for missing content.
_EMPTY = ("{}", "", "N/A", "<not serializable>")


def kind(span: Span) -> SpanKind | None:
    """Return the kind by the attributes present; a transfer to another agent is a handoff."""
    attributes = span.attributes
    if attributes.get("gen_ai.tool.name") == _TRANSFER:
        return SpanKind.HANDOFF
    if attributes.get(PREFIX + "llm_request", "{}") not in _EMPTY:
        return SpanKind.LLM
    if PREFIX + "tool_call_args" in attributes:
        return SpanKind.TOOL
    return SpanKind.CHAIN if span.scope == _SCOPE and span.name == "invocation" else None


def read(span: Span) -> None:
    """Fill the fields from ADK's attributes."""
    attributes = span.attributes
    if span.kind == SpanKind.HANDOFF:
        arguments = _content(attributes.get(PREFIX + "tool_call_args"))
        arguments = mapping(arguments or attributes.get("gen_ai.tool.call.arguments"))
        fill(span, "handoff_to", text(arguments.get("agent_name")))
    elif span.kind == SpanKind.TOOL and span.name.endswith("(merged)"):
        span.kind = SpanKind.CHAIN  # around the results of parallel calls, which have their own
    elif span.kind == SpanKind.TOOL:
        fill(span, "tool_name", text(attributes.get("gen_ai.tool.name")))
        result = _content(attributes.get(PREFIX + "tool_response"))
        fill_tool(span, attributes.get(PREFIX + "tool_call_args"), result)
    elif span.kind == SpanKind.LLM:
        request = _content(attributes.get(PREFIX + "llm_request"))
        response = _content(attributes.get(PREFIX + "llm_response"))
        fill_messages(span, "input_messages", lambda: conversation(request, "user"))
        answer = mapping(response).get("content")
        fill_messages(span, "output_messages", lambda: conversation(answer, "assistant"))


def _content(value: Any) -> Any:
    return None if value in _EMPTY else value

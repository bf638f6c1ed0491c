"""Read pydantic-ai and Logfire: formats 1 to 5, which place messages and arguments differently.

Format 1 names no operation on agent and tool spans; they are recognised by unique attributes.
"""

from __future__ import annotations

from proctor.trace.conventions.messages import (
    conversation,
    fill,
    fill_messages,
    fill_tool,
    messages_from,
)
from proctor.trace.conventions.values import count, first, is_list, is_mapping, number, parsed, text
from proctor.trace.model import Message, Span, SpanKind

HEADS = frozenset(
    "logfire pydantic_ai all_messages_events events agent_name model_name final_result "
    "tool_arguments tool_response operation request_data response_data".split()
)

ALL_MESSAGES = "pydantic_ai.all_messages"
"""On the span of an agent run; the tools it calls have spans of their own."""

_ALL_MESSAGES = (ALL_MESSAGES, "all_messages", "all_messages_events")
_CHOICE = "gen_ai.choice"


def kind(span: Span) -> SpanKind | None:
    """Return the kind of a format 1 span, or of Logfire's own model instrumentations."""
    attributes = span.attributes
    if "gen_ai.tool.name" in attributes:
        return SpanKind.TOOL
    if "agent_name" in attributes and (
        "model_name" in attributes or first(attributes, _ALL_MESSAGES) is not None
    ):
        return SpanKind.AGENT
    if "tools" in attributes and span.name.startswith("running"):
        return SpanKind.CHAIN
    if "request_data" in attributes and "response_data" in attributes:
        return SpanKind.LLM
    return None


def read(span: Span) -> None:
    """Fill the fields that pydantic-ai and Logfire add to the GenAI conventions."""
    attributes = span.attributes
    fill(span, "cost_usd", number(attributes.get("operation.cost")))
    if span.kind == SpanKind.TOOL:
        # Both look like tool calls: a function that returns the answer, a call left to others.
        if str(attributes.get("logfire.msg")).startswith("running output function"):
            span.kind = SpanKind.RESPONSE
        elif "pydantic_ai.tool.deferral.name" in attributes:
            span.kind = SpanKind.CHAIN
    if span.kind == SpanKind.TOOL:
        fill(span, "tool_name", text(attributes.get("gen_ai.tool.name")))
        fill_tool(span, attributes.get("tool_arguments"), attributes.get("tool_response"))
    elif span.kind == SpanKind.AGENT:
        _read_agent(span)
    else:
        fill_messages(span, "input_messages", lambda: _from_events(span, output=False))
        fill_messages(span, "output_messages", lambda: _from_events(span, output=True))
        if "request_data" in attributes and span.kind == SpanKind.LLM:
            # The bodies recorded by Logfire's OpenAI and Anthropic instrumentations.
            request, response = attributes["request_data"], attributes.get("response_data")
            fill_messages(span, "input_messages", lambda: conversation(request, "user"))
            fill_messages(span, "output_messages", lambda: conversation(response, "assistant"))


def _read_agent(span: Span) -> None:
    attributes = span.attributes
    fill(span, "agent_name", text(attributes.get("agent_name")))
    fill(span, "model", text(attributes.get("model_name")))
    fill(span, "output", attributes.get("final_result"))
    used = "gen_ai.aggregated_usage."
    fill(span, "input_tokens", count(attributes.get(used + "input_tokens")))
    fill(span, "output_tokens", count(attributes.get(used + "output_tokens")))
    if not span.input_messages and not span.output_messages:
        everything = messages_from(first(attributes, _ALL_MESSAGES))
        answered = bool(everything) and everything[-1].role == "assistant"
        cut = len(everything) - 1 if answered else len(everything)
        span.input_messages, span.output_messages = everything[:cut], everything[cut:]


def _from_events(span: Span, *, output: bool) -> tuple[Message, ...]:
    events = parsed(span.attributes.get("events"))
    if not is_list(events):
        return ()
    side = [e for e in events if is_mapping(e) and (e.get("event.name") == _CHOICE) == output]
    return messages_from(side, "assistant" if output else "user")

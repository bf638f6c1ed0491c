"""Read Langfuse attributes: sent by its SDK over OTLP, and written by our export reader.

Langfuse counts disjointly (`input` without cached tokens, `output` without reasoning) where its own
SDK counted, and copies totals from others; both become totals, as GenAI counts them.
"""

from __future__ import annotations

from typing import Any

from proctor.trace.conventions.messages import fill, fill_values, tool_result
from proctor.trace.conventions.values import count, first, mapping, span_kind, text, total_or_sum
from proctor.trace.model import Span, SpanKind, SpanStatus

HEADS = frozenset({"langfuse"})

PREFIX = "langfuse.observation."

_TOTALS = frozenset({"input", "output", "total"})
# In `usage` of old exports, and where a user passed the provider's counts on.
_OTHER_NAMES = {
    "input": ("promptTokens", "prompt_tokens"),
    "output": ("completionTokens", "completion_tokens"),
}


def kind(span: Span) -> SpanKind | None:
    """Return the kind of the observation; a span whose output is a tool message is a tool."""
    attributes = span.attributes
    observed = attributes.get(PREFIX + "type")
    if isinstance(observed, str) and observed.lower() == "span":
        # LangChain's callback handler had no tool type before 2025-09.
        output = mapping(attributes.get(PREFIX + "output"))
        if output.get("type") == "tool" and tool_result(output).call_id is not None:
            return SpanKind.TOOL
        if "gen_ai.tool.name" in attributes:  # Koog, whose spans name no operation
            return SpanKind.TOOL
    return span_kind(observed)


def read(span: Span) -> None:
    """Fill the fields from the observation's attributes."""
    attributes = span.attributes
    fill(span, "model", text(attributes.get(PREFIX + "model.name")))
    used = mapping(attributes.get(PREFIX + "usage_details"))
    if used:
        fill(span, "input_tokens", _total(used, "input"))
        fill(span, "output_tokens", _total(used, "output"))
    cost = mapping(attributes.get(PREFIX + "cost_details"))
    fill(span, "cost_usd", total_or_sum(cost.get("total"), cost.values()))
    if span.kind == SpanKind.TOOL:
        fill(span, "tool_name", text(attributes.get("gen_ai.tool.name")) or text(span.name))
    elif span.kind == SpanKind.AGENT:
        fill(span, "agent_name", text(span.name))
    fill_values(span, attributes.get(PREFIX + "input"), attributes.get(PREFIX + "output"))
    if str(attributes.get(PREFIX + "level")).upper() == "ERROR":
        # Langfuse reports failures only as a level, not as a span status.
        if span.status == SpanStatus.UNSET:
            span.status = SpanStatus.ERROR
        fill(span, "error_message", text(attributes.get(PREFIX + "status_message")))


def _total(used: dict[str, Any], side: str) -> int | None:
    """Return one side of the usage with its details, unless the total already includes them.

    Dotted names (`completion_details.reasoning`) come from OpenInference, where details are always
    part of the count.
    """
    plain = count(first(used, (side, *_OTHER_NAMES[side])))
    extra = sum(count(used[key]) or 0 for key in used if _side(key) == side)
    if not extra:
        return plain
    input_, output = (count(used.get(name)) or 0 for name in ("input", "output"))
    # A total equal to input plus output means that the details are already inside them.
    total = count(used.get("total"))
    return plain if total is not None and total == input_ + output else (plain or 0) + extra


def _side(key: str) -> str | None:
    if key in _TOTALS or "." in key:
        return None
    if key.startswith("output") or "reasoning" in key:
        return "output"
    return "input" if key.startswith(("input", "cache")) or "cache" in key else None

"""Read the OpenTelemetry of coding agents: Claude Code and Codex write bare attribute names.

Claude Code: `span.type` (interaction, llm_request, tool, …), `model`, `input_tokens`, `tool_name`.
Codex: spans of the scope `codex…` with the same bare names. Both start a new trace for each turn;
the session is what users know, so the traces of one session in a file are one trace.
"""

from __future__ import annotations

from proctor.trace.conventions.messages import fill
from proctor.trace.conventions.values import count, first, parsed, text
from proctor.trace.model import Span, SpanKind

HEADS = frozenset({"span", "input_tokens", "output_tokens", "tool_name"})

_KINDS = {
    "interaction": SpanKind.AGENT,
    "llm_request": SpanKind.LLM,
    "tool": SpanKind.TOOL,
    "tool.execution": SpanKind.CHAIN,
    "tool.blocked_on_user": SpanKind.CHAIN,
    "hook": SpanKind.CHAIN,
}
_SCOPES = ("com.anthropic.claude_code", "claude_code", "codex")


def kind(span: Span) -> SpanKind | None:
    """Return the kind by `span.type`, or by what only one kind has."""
    if (named := _KINDS.get(str(span.attributes.get("span.type")))) is not None:
        return named
    if not _is_ours(span):
        return None
    if "tool_name" in span.attributes:
        return SpanKind.TOOL
    return SpanKind.LLM if "input_tokens" in span.attributes else None


def read(span: Span) -> None:
    """Fill the fields from bare names; Claude counts cached tokens apart from the others."""
    attributes = span.attributes
    if not _is_ours(span) and "span.type" not in attributes:
        return
    if span.kind is SpanKind.LLM:
        fill(span, "model", text(first(attributes, ("model", "gen_ai.request.model"))))
        plain = count(attributes.get("input_tokens"))
        if plain is not None and span.input_tokens is None:
            cached = [attributes.get("cache_read_tokens"), attributes.get("cache_creation_tokens")]
            span.input_tokens = plain + sum(count(each) or 0 for each in cached)
        fill(span, "output_tokens", count(attributes.get("output_tokens")))
    elif span.kind is SpanKind.TOOL:
        fill(span, "tool_name", text(first(attributes, ("tool_name", "gen_ai.tool.name"))))
        identity = first(attributes, ("tool_use_id", "call_id", "gen_ai.tool.call.id"))
        fill(span, "tool_call_id", text(identity))
        fill(span, "tool_input", parsed(first(attributes, ("tool_input", "arguments"))))
        fill(span, "tool_output", first(attributes, ("tool_output", "output", "result")))


def session_of(span: Span) -> str | None:
    """Return the session that a span of a coding agent belongs to."""
    if not _is_ours(span):
        return None
    return text(first(span.attributes, ("session.id", "conversation.id", "thread_id")))


def _is_ours(span: Span) -> bool:
    return (span.scope or "").startswith(_SCOPES) or span.name.startswith(
        ("claude_code.", "codex.")
    )

"""What a trace says about how it went that no field of a span holds: the facts a diff compares.

Promise: None or empty where the trace does not say, never a guess. Every convention writes them
under attributes of its own, read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple, cast

from proctor.trace import Span, SpanKind, Trace
from proctor.trace.conventions.values import structure

_REASONS = (
    "gen_ai.response.finish_reasons",
    "gen_ai.completion.0.finish_reason",
    "ai.response.finishReason",
    "llm.finish_reason",
    "llm.response.finish_reason",
    "gen_ai.response.stop_reason",
    "finish_reason",
    "stop_reason",
)
"""Attributes that hold why a model stopped: OpenTelemetry, OpenLLMetry, Vercel, OpenInference."""

_MESSAGES = ("gen_ai.output.messages", "output.value")

_ONE_WORD = {
    "end_turn": "stop",
    "eos": "stop",
    "stop_sequence": "stop",
    "completed": "stop",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "tool_calls": "tool_call",
    "tool_use": "tool_call",
    "tool-calls": "tool_call",
    "function_call": "tool_call",
    "content-filter": "content_filter",
    "safety": "content_filter",
}
"""Providers' words for the same ending → the one used here."""

CUT_SHORT = frozenset({"length", "content_filter", "error"})
"""Endings of a model call after which its answer is not whole."""


class Guardrail(NamedTuple):
    """A guardrail that ran, and whether it stopped something."""

    name: str
    tripped: bool

    def __str__(self) -> str:
        return f"{self.name} (tripped)" if self.tripped else self.name


def stop_reason(trace: Trace) -> str | None:
    """Why the last model call stopped, in one vocabulary; None when the trace does not say."""
    calls = trace.llm_calls
    return _reason(calls[-1]) if calls else None


def guardrails(trace: Trace) -> list[Guardrail]:
    """The guardrails that ran, in order."""
    return [Guardrail(s.name, _tripped(s)) for s in trace.of_kind(SpanKind.GUARDRAIL)]


def routing(trace: Trace) -> list[str]:
    """The agents that did the work, in order; one that goes on working counts once."""
    names = [
        span.agent_name or (span.name if span.kind == SpanKind.AGENT and span.parent_id else None)
        for span in trace.index.spans
    ]
    return [name for name, _ in groupby(name for name in names if name)]


def error_lines(trace: Trace) -> list[str]:
    """The innermost errors: what failed, and with which type of error."""
    failed = trace.errors
    around = {span.parent_id for span in failed}
    return [
        f"{span.tool_name or span.name}: {span.error_type or span.status}"
        for span in failed
        if span.span_id not in around
    ]


def _reason(span: Span) -> str | None:
    for key in _REASONS:
        if found := _word(span.attributes.get(key)):
            return found
    for key in _MESSAGES:
        if found := _in_messages(structure(span.attributes.get(key))):
            return found
    return None


def _word(value: Any) -> str | None:
    value = structure(value)
    if isinstance(value, list | tuple) and value:
        value = cast("Any", value[-1])
    if not isinstance(value, str) or not value:
        return None
    plain = value.rpartition(".")[2].casefold()  # FinishReason.STOP
    return _ONE_WORD.get(plain, plain)


def _in_messages(value: Any) -> str | None:
    """A reason beside the last message: ours and OpenTelemetry's, or an OpenAI response."""
    if isinstance(value, Mapping):
        value = cast("Mapping[str, Any]", value).get("choices")
    if not isinstance(value, list) or not value:
        return None
    last: Any = cast("list[Any]", value)[-1]
    if not isinstance(last, Mapping):
        return None
    fields = cast("Mapping[str, Any]", last)
    return _word(fields.get("finish_reason")) or _word(fields.get("stop_reason"))


def _tripped(span: Span) -> bool:
    if span.failed:
        return True
    output = structure(span.output)
    sources: Iterable[Any] = (span.attributes, output)
    return any(
        str(key).endswith(("triggered", "tripped")) and value in (True, "true", "True")
        for source in sources
        if isinstance(source, Mapping)
        for key, value in cast("Mapping[Any, Any]", source).items()
    )

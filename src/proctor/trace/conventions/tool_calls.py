"""Executed tool calls matched with the calls their models asked for.

Promise: a match is by call id, or by the same tool and the same values in order; it adds the
argument names and the call id an instrumentation lost, and changes nothing else.
"""

from __future__ import annotations

from typing import Any

from proctor.trace.conventions.values import is_list, is_mapping
from proctor.trace.model import Span, SpanKind, ToolCall


def recover_arguments(spans: list[Span]) -> None:
    """Give tool spans the argument names and call ids that only the model's request has."""
    tools = [span for span in spans if span.kind == SpanKind.TOOL and _is_lossy(span)]
    if not tools:
        return
    by_id, by_name = _requested(spans)
    for span in tools:
        call = by_id.get(span.tool_call_id) if span.tool_call_id else None
        if call is None:
            waiting = by_name.get(span.tool_name or span.name, [])
            call = next((each for each in waiting if _same(span, each)), None)
            if call is not None:
                waiting.remove(call)
                span.tool_call_id = call.id
        if call is not None and not is_mapping(span.tool_input) and is_mapping(call.arguments):
            span.tool_input = call.arguments


def _is_lossy(span: Span) -> bool:
    return span.tool_call_id is None or not is_mapping(span.tool_input)


def _requested(spans: list[Span]) -> tuple[dict[str, ToolCall], dict[str, list[ToolCall]]]:
    """Calls by id and by tool name, each once: nested model spans repeat them."""
    by_id: dict[str, ToolCall] = {}
    by_name: dict[str, list[ToolCall]] = {}
    for span in spans:
        if span.kind != SpanKind.LLM:
            continue
        for message in span.output_messages:
            for call in message.tool_calls:
                if call.id is not None:
                    if call.id in by_id:
                        continue
                    by_id[call.id] = call
                by_name.setdefault(call.name, []).append(call)
    return by_id, by_name


def _same(span: Span, call: ToolCall) -> bool:
    """Whether a span was given the values of a call, with or without their names."""
    given, asked = span.tool_input, call.arguments
    if span.tool_call_id is not None and call.id not in (None, span.tool_call_id):
        return False
    if is_mapping(given) or not is_mapping(asked):
        return given is not None and given == asked
    values = list(asked.values())
    if is_list(given):
        return bool(values) and list(given) == values
    return len(values) == 1 and given is not None and _told(given) == _told(values[0])


def _told(value: Any) -> str:
    return value if isinstance(value, str) else str(value)

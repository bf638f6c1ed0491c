"""Spans of a trace as the page shows them: the tree, and what each step took and gave.

Parents are positions, times count from the start of the trace. Attributes that only repeat what
has a field of its own (messages, inputs, outputs) are left out.
"""

from __future__ import annotations

from typing import Any

from proctor.report.html.texts import ITEMS, Texts
from proctor.report.text import tokens
from proctor.trace import Span, Trace
from proctor.trace.model import Event, Message

MOST_SPANS = 500
"""Spans shown of one trace; more cannot be looked through by eye, and `proctor trace` has all."""

ATTRIBUTE = 300
"""Characters up to which an attribute is shown: longer ones are contents, shown elsewhere."""

ATTRIBUTES = 40


def span_facts(trace: Trace, texts: Texts) -> list[dict[str, Any]]:
    """Spans by start time; each parent stands before its children or is none."""
    spans = trace.index.spans
    at = {span.span_id: place for place, span in enumerate(spans)}
    first = spans[0].start_ns if spans else 0
    facts = [_span(span, at, first, texts) for span in spans[:MOST_SPANS]]
    if len(spans) > MOST_SPANS:
        facts.append({"name": f"… {len(spans) - MOST_SPANS:,} more spans", "kind": "other"})
    return facts


def _span(span: Span, at: dict[str, int], first: int, texts: Texts) -> dict[str, Any]:
    parent = None if span.parent_id is None else at.get(span.parent_id)
    facts: dict[str, Any] = {
        "parent": parent if parent is not None and parent < at[span.span_id] else None,
        "name": texts.word(span.tool_name or span.name),
        "kind": span.kind.value,
        "status": span.status.value if span.failed else None,
        "start": round((span.start_ns - first) / 1e6, 3),
        "ms": None if span.duration_ns is None else round(span.duration_ns / 1e6, 3),
        "model": None if span.model is None else texts.word(span.model),
        "tokens": tokens(span.input_tokens, span.output_tokens),
        "cost": span.cost_usd,
        "error": texts.said(_error(span)),
        "handoff": None if span.handoff_to is None else texts.word(span.handoff_to),
        "input": texts.value(span.tool_input if span.tool_input is not None else _input(span)),
        "output": texts.value(span.tool_output if span.tool_output is not None else _output(span)),
        "asked": _messages(span.input_messages, texts),
        "answered": _messages(span.output_messages, texts),
        "documents": [
            {"id": d.id and texts.word(d.id), "text": texts.said(d.text), "score": d.score}
            for d in span.documents[:ITEMS]
        ],
        "events": [_event(event, first, texts) for event in span.events[:ITEMS]],
        "attributes": _attributes(span.attributes, texts),
    }
    return {key: value for key, value in facts.items() if value not in (None, [], {})}


def _input(span: Span) -> Any:
    return None if span.input_messages else span.input


def _output(span: Span) -> Any:
    return None if span.output_messages else span.output


def _error(span: Span) -> str | None:
    said = ": ".join(part for part in (span.error_type, span.error_message) if part)
    return said or None


def _messages(messages: tuple[Message, ...], texts: Texts) -> list[dict[str, Any]]:
    return [_message(message, texts) for message in messages[:ITEMS]]


def _message(message: Message, texts: Texts) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "role": texts.word(message.role),
        "text": texts.said(message.content),
        "calls": [
            {"name": texts.word(call.name), "with": texts.value(call.arguments)}
            for call in message.tool_calls[:ITEMS]
        ],
        "other": [texts.word(part) for part in message.other[:ITEMS]],
    }
    return {key: value for key, value in facts.items() if value not in (None, [])}


def _event(event: Event, first: int, texts: Texts) -> dict[str, Any]:
    shown = _attributes(event.attributes, texts)
    at = round((event.time_ns - first) / 1e6, 3) if event.time_ns else None
    return {"name": texts.word(event.name), "at": at, "attributes": shown}


def _attributes(attributes: dict[str, Any], texts: Texts) -> dict[str, str]:
    shown: dict[str, str] = {}
    # All at once: a name may tell that its value is a secret.
    for name, value in texts.clean(attributes).items():
        text = texts.value(value)
        if text is not None and len(text) <= ATTRIBUTE:
            shown[texts.word(str(name))] = text
        if len(shown) >= ATTRIBUTES:
            break
    return shown

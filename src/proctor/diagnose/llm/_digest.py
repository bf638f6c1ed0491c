"""Render a trace as text that fits a prompt: every span by name, important ones in full.

Guarantees: never longer than its limit, deterministic, and an index of the spans comes first.
Failed spans are kept whole before ordinary ones get more than a few lines; messages that an earlier
model call was shown are not repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from proctor.trace import SpanKind
from proctor.trace.conventions.values import encode_json

if TYPE_CHECKING:
    from proctor.trace import Message, Span, Trace

# Characters, about 30,000 tokens: fits the context of every current hosted model with room for the
# instructions and the reply.
DEFAULT_LIMIT = 120_000

# Maximum fraction of the text for the index: a huge trace still shows bodies.
INDEX_SHARE = 0.4

# A shorter body is useless; its room goes to others.
MIN_BODY = 80

# Fraction of the room that the beginning of a truncated text gets; the rest shows its end.
_HEAD = 0.7

# Shares of the room by kind: spans of models and tools show errors, a failed span most of all.
_WEIGHT = {SpanKind.LLM: 3.0, SpanKind.TOOL: 3.0, SpanKind.RETRIEVAL: 2.0, SpanKind.ERROR: 6.0}
_FAILED_WEIGHT = 12.0


@dataclass(frozen=True, slots=True)
class Digest:
    """The text, and the number of spans it shows whole."""

    text: str
    whole: int


def digest(trace: Trace, limit: int = DEFAULT_LIMIT, spans: Sequence[Span] | None = None) -> Digest:
    """Render the trace, or some of its spans, in at most `limit` characters."""
    chosen = list(trace.index.spans if spans is None else spans)
    header = _header(trace, max(0, limit // 10))
    index = _index(chosen, int((limit - len(header)) * INDEX_SHARE))
    fixed = f"{header}## Spans (id kind name status)\n{index}\n## What they hold\n"
    shown: set[str] = set()
    bodies = [_body(span, shown) for span in chosen]
    room = limit - len(fixed)
    weights = [_FAILED_WEIGHT if s.failed else _WEIGHT.get(s.kind, 1.0) for s in chosen]
    given = _share_out([len(b) for b in bodies], weights, room)
    parts: list[str] = []
    whole = 0
    for body, size in zip(bodies, given, strict=True):
        if not body:
            continue
        if size >= len(body):
            whole += 1
            parts.append(body)
        elif size >= MIN_BODY:
            parts.append(shorten(body, size))
    return Digest((fixed + "".join(parts))[:limit], whole)


def shorten(text: str, size: int) -> str:
    """Return at most `size` characters: the beginning and the end, and how much is missing in
    between.
    """
    if len(text) <= size:
        return text
    mark = f"\n[… {len(text)} characters, cut …]\n"
    room = size - len(mark)
    if room <= 0:
        return text[: max(0, size)]
    head = int(room * _HEAD)
    tail = room - head
    return text[:head] + mark + (text[-tail:] if tail else "")


# -- parts ---------------------------------------------------------------------------------------


def _header(trace: Trace, size: int) -> str:
    task = shorten(_text(trace.query), size // 2) or "(not recorded)"
    answer = shorten(_text(trace.response), size // 2) or "(not recorded)"
    return f"## Task\n{task}\n## Final answer\n{answer}\n"


def _index(spans: Sequence[Span], size: int) -> str:
    """Return one line per span, in trace order; failed ones are dropped last when there are too
    many.
    """
    lines: dict[str, str] = {}
    for span in spans:
        failed = f" {span.status.value}" if span.failed else ""
        lines[span.span_id] = f"{span.span_id} {span.kind.value} {span.name[:60]}{failed}\n"
    kept: set[str] = set()
    used = 0
    # Failed spans first, so that they are the last to be dropped.
    for span in sorted(spans, key=lambda s: not s.failed):
        line = lines[span.span_id]
        if used + len(line) > size - 60:  # room for the line that says what is missing
            continue
        used += len(line)
        kept.add(span.span_id)
    text = "".join(lines[span.span_id] for span in spans if span.span_id in kept)
    missing = len(spans) - len(kept)
    return text + f"({missing} more spans not listed)\n" if missing else text


def _share_out(needs: Sequence[int], weights: Sequence[float], room: int) -> list[int]:
    """Distribute room by weight; what one part does not need goes to the others."""
    given = [0] * len(needs)
    open_ones = {i for i, need in enumerate(needs) if need}
    left = max(0, room)
    while open_ones:
        unit = left / sum(weights[i] for i in open_ones)
        # Parts that need less than their share get all they need; the rest is shared again.
        settled = {i for i in open_ones if needs[i] <= weights[i] * unit}
        if not settled:
            for i in open_ones:
                given[i] = int(weights[i] * unit)
            break
        for i in settled:
            given[i] = needs[i]
            left -= needs[i]
        open_ones -= settled
    return given


def _body(span: Span, shown: set[str]) -> str:
    """Return the text of a span: errors first, then output, then new input."""
    parts = [f"\n### {span.span_id} {span.kind.value} {span.name}\n"]
    if span.error_message or span.error_type:
        parts.append(f"error: {span.error_type or ''} {span.error_message or ''}\n")
    parts += [f"{event.name}: {_text(event.attributes)}\n" for event in span.events]
    if span.kind == SpanKind.LLM or span.output_messages:
        parts += [f"said: {_message(m)}\n" for m in span.output_messages]
        parts += [f"input ({m.role}): {_message(m)}\n" for m in _new(span.input_messages, shown)]
    else:
        parts += _new_lines("output", _text(span.tool_output or span.output), shown)
        parts += _new_lines("input", _text(span.tool_input or span.input), shown)
    return "".join(parts) if len(parts) > 1 else ""


def _new_lines(label: str, text: str, shown: set[str]) -> list[str]:
    if not text or text in shown:
        return []
    shown.add(text)
    return [f"{label}: {text}\n"]


def _new(messages: Sequence[Message], shown: set[str]) -> list[Message]:
    """Return messages that no earlier span was shown: a conversation appears once, not once per
    turn.
    """
    fresh: list[Message] = []
    for message in messages:
        text = _message(message)
        if text and text not in shown:
            shown.add(text)
            fresh.append(message)
    return fresh


def _message(message: Message) -> str:
    calls = "".join(f" [calls {c.name}({_text(c.arguments)})]" for c in message.tool_calls)
    return f"{message.content or ''}{calls}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else encode_json(value)

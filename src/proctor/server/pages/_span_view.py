"""A trace for the viewer: an outline of all spans, details of one span, two traces aligned.

The outline is columns, so that thousands of spans are one small document; the messages and values
of a span are loaded when the reader selects it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple, cast

import msgspec

from proctor.formatting import tokens
from proctor.runs.diff import WordChange, word_changes
from proctor.sanitize import line, visible
from proctor.trace import Span, SpanKind, Trace
from proctor.trace.conventions.values import encode_json
from proctor.trace.model import Message

# Characters shown of one text; the API returns all of it.
MAX_TEXT = 100_000

# Messages, documents or events shown of one span.
MAX_ITEMS = 500


def outline(
    trace: Trace,
    findings: Sequence[Mapping[str, Any]] = (),
    checks: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return every span in document order as columns; parents are positions, times start at 0.

    `findings` are those of the diagnosis; `checks` are failed checks with the same keys.
    """
    tree = trace.index
    order = _document_order(trace)
    place = {position: number for number, position in enumerate(order)}
    spans = [tree.spans[position] for position in order]
    first_ns = min((span.start_ns for span in spans), default=0)
    marked: dict[str, int] = {}
    for finding in (*findings, *checks):
        location = str(finding.get("location"))
        marked[location] = marked.get(location, 0) + 1
    return {
        "trace_id": trace.trace_id,
        "id": [span.span_id for span in spans],
        "parent": [place.get(tree.parent[position], -1) for position in order],
        "name": [line(span.tool_name or span.name, 200) for span in spans],
        "kind": [span.kind.value for span in spans],
        "failed": [int(span.failed) for span in spans],
        "start": [round((span.start_ns - first_ns) / 1e6, 3) for span in spans],
        "ms": [None if s.duration_ns is None else round(s.duration_ns / 1e6, 3) for s in spans],
        "found": [marked.get(span.span_id, 0) for span in spans],
        "findings": [_finding(finding) for finding in findings],
        "checks": [_finding(check) for check in checks],
    }


def _document_order(trace: Trace) -> list[int]:
    """Return positions with each span after its parent and before its parent's next child."""
    tree = trace.index
    children: dict[int, list[int]] = {}
    for position, parent in enumerate(tree.parent):
        children.setdefault(parent, []).append(position)
    stack = list(reversed(children.get(-1, [])))
    order: list[int] = []
    while stack:
        position = stack.pop()
        order.append(position)
        stack.extend(reversed(children.get(position, [])))
    return order


def _finding(finding: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("category", "location", "description", "evidence", "impact")
    texts = {key: visible(str(finding.get(key) or ""))[:2000] for key in keys}
    return {**texts, "confidence": finding.get("confidence")}


def shown_texts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with every text in them visible and of bounded length."""

    def shown(value: Any) -> Any:
        if isinstance(value, list):
            return [shown(each) for each in cast("list[Any]", value)]
        return visible(value)[:2000] if isinstance(value, str) else value

    return {key: shown(value) for key, value in values.items()}


def detail(span: Span) -> dict[str, Any]:
    """Return everything that the viewer shows of one span."""
    facts: dict[str, Any] = {
        "id": span.span_id,
        "name": line(span.name, 300),
        "kind": span.kind.value,
        "status": span.status.value,
        "ms": None if span.duration_ns is None else span.duration_ns / 1e6,
        "model": span.model,
        "tokens": tokens(span.input_tokens, span.output_tokens),
        "cost_usd": span.cost_usd,
        "tool": span.tool_name,
        "agent": span.agent_name,
        "handoff_to": span.handoff_to,
        "error": text_of(": ".join(p for p in (span.error_type, span.error_message) if p)),
        "input_messages": [message_of(message) for message in span.input_messages[:MAX_ITEMS]],
        "output_messages": [message_of(message) for message in span.output_messages[:MAX_ITEMS]],
        "input": None if span.input_messages else text_of(_first(span.tool_input, span.input)),
        "output": None if span.output_messages else text_of(_first(span.tool_output, span.output)),
        "documents": [
            {"id": d.id, "text": text_of(d.text), "score": d.score}
            for d in span.documents[:MAX_ITEMS]
        ],
        "events": [
            {"name": line(event.name, 200), "attributes": text_of(event.attributes)}
            for event in span.events[:MAX_ITEMS]
        ],
        "attributes": {line(k, 200): text_of(v) for k, v in sorted(span.attributes.items())},
    }
    return {key: value for key, value in facts.items() if value not in (None, "", [], {})}


def message_of(message: Message) -> dict[str, Any]:
    """Return a message with its tool calls."""
    return {
        "role": line(message.role, 60),
        "text": text_of(message.content),
        "calls": [
            {"name": line(call.name, 200), "arguments": text_of(call.arguments)}
            for call in message.tool_calls[:MAX_ITEMS]
        ],
    }


def text_of(value: Any, most: int = MAX_TEXT) -> str | None:
    """Return a value as text with every character visible, cut to `most` characters."""
    if value is None or value == "":
        return None
    text = value if isinstance(value, str) else encode_json(value)
    if len(text) <= MAX_TEXT and text[:1] in ("{", "["):
        # JSON is shown indented, any other text unchanged.
        with contextlib.suppress(msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            text = msgspec.json.format(text, indent=2)
    cut = f"\n… {len(text) - most:,} more characters" if len(text) > most else ""
    return visible(text[:most]) + cut


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


# Two traces side by side: the same steps on the same line, what only one did on its own.
#
# Steps are model calls, tool calls and the like. Two tool calls are the same when their tool is,
# two model calls whatever the model: otherwise no line of two models would match. Aligned by the
# longest common subsequence of all such pairs.


# Steps of each side that are compared: more cannot be read side by side.
MAX_STEPS = 400

# Characters of a step that are shown and compared word by word.
MAX_STEP_TEXT = 2_000

_SKIPPED = {SpanKind.AGENT, SpanKind.CHAIN, SpanKind.OTHER}


class AlignedStep(NamedTuple):
    """One step of one side."""

    kind: str
    name: str
    text: str
    failed: bool
    span_id: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What steps that belong on one line have in common."""
        return (self.kind, "" if self.kind == SpanKind.LLM.value else self.name)


class AlignedRow(NamedTuple):
    """A row of two aligned traces; None where one side has no such step."""

    left: AlignedStep | None
    right: AlignedStep | None

    @property
    def same(self) -> bool:
        """Whether both sides have the step."""
        return self.left is not None and self.right is not None

    @property
    def differs(self) -> bool:
        """Whether both sides have the step with different text, arguments or results."""
        if self.left is None or self.right is None:
            return False
        # Only the models of two calls may have other names, and both are shown.
        return (self.left.text, self.left.failed) != (self.right.text, self.right.failed)

    @property
    def words(self) -> tuple[WordChange, ...]:
        """The words that both texts share, and those of only one."""
        if self.left is None or self.right is None:
            return ()
        return word_changes(self.left.text, self.right.text)


def aligned(left: Trace, right: Trace) -> list[AlignedRow]:
    """Align two traces: the longest common subsequence of steps of the same kind and name."""
    a, b = _steps(left), _steps(right)
    keys_a, keys_b = ([step.key for step in side] for side in (a, b))
    lines: list[AlignedRow] = []
    matcher = SequenceMatcher(None, keys_a, keys_b, autojunk=False)
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal":
            lines += [AlignedRow(x, y) for x, y in zip(a[a0:a1], b[b0:b1], strict=True)]
        else:
            lines += [AlignedRow(step, None) for step in a[a0:a1]]
            lines += [AlignedRow(None, step) for step in b[b0:b1]]
    return lines


def _steps(trace: Trace) -> list[AlignedStep]:
    leaves = [span for span in trace.index.spans if span.kind not in _SKIPPED]
    return [
        AlignedStep(
            span.kind.value,
            line(span.tool_name or span.model or span.name, 100),
            _cut(_step_text(span)),
            span.failed,
            span.span_id,
        )
        for span in leaves[:MAX_STEPS]
    ]


def _cut(text: str) -> str:
    more = len(text) - MAX_STEP_TEXT
    return visible(text[:MAX_STEP_TEXT]) + (f" … {more:,} more characters" if more > 0 else "")


def _step_text(span: Span) -> str:
    if span.error_message:
        return span.error_message
    if span.output_messages:
        said = [message.content for message in span.output_messages if message.content]
        calls = [call for message in span.output_messages for call in message.tool_calls]
        return "\n".join([*said, *(f"{c.name} {encode_json(c.arguments)}" for c in calls)])
    shown = [
        value for value in (span.tool_input, span.tool_output, span.output) if value is not None
    ]
    return " → ".join(v if isinstance(v, str) else encode_json(v) for v in shown[:2])

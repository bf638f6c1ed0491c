"""Two traces side by side: the same steps on the same line, what only one did on its own.

Steps are model calls, tool calls and the like; two are the same when their kind and name are.
Aligned by the longest common subsequence of all such pairs.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import NamedTuple

from proctor.report.text import visible
from proctor.trace import Span, SpanKind, Trace
from proctor.trace.conventions.values import encode_json
from proctor.trace.text import safe

MAX_STEPS = 400
"""Steps of each side that are compared: more cannot be read side by side."""

_SKIPPED = {SpanKind.AGENT, SpanKind.CHAIN, SpanKind.OTHER}


class Step(NamedTuple):
    """One step of one side."""

    kind: str
    name: str
    text: str
    failed: bool


class Line(NamedTuple):
    """What stands beside each other; None where one side has nothing."""

    left: Step | None
    right: Step | None

    @property
    def same(self) -> bool:
        """Whether both did it."""
        return self.left is not None and self.right is not None

    @property
    def differs(self) -> bool:
        """Whether both did it, with other words, arguments or results."""
        return self.left is not None and self.right is not None and self.left != self.right


def aligned(left: Trace, right: Trace) -> list[Line]:
    """The lines of both traces."""
    a, b = _steps(left), _steps(right)
    keys_a, keys_b = ([(s.kind, s.name) for s in side] for side in (a, b))
    lines: list[Line] = []
    matcher = SequenceMatcher(None, keys_a, keys_b, autojunk=False)
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal":
            lines += [Line(x, y) for x, y in zip(a[a0:a1], b[b0:b1], strict=True)]
        else:
            lines += [Line(step, None) for step in a[a0:a1]]
            lines += [Line(None, step) for step in b[b0:b1]]
    return lines


def _steps(trace: Trace) -> list[Step]:
    leaves = [span for span in trace.index.spans if span.kind not in _SKIPPED]
    return [_step(span) for span in leaves[:MAX_STEPS]]


def _step(span: Span) -> Step:
    name = safe(span.tool_name or span.model or span.name, 100)
    return Step(span.kind.value, name, visible(_said(span))[:600], span.failed)


def _said(span: Span) -> str:
    if span.error_message:
        return span.error_message
    if span.output_messages:
        return "\n".join(message.content or "" for message in span.output_messages)
    shown = [
        value for value in (span.tool_input, span.tool_output, span.output) if value is not None
    ]
    return " → ".join(v if isinstance(v, str) else encode_json(v) for v in shown[:2])

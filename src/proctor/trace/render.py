"""Render a trace as readable text: question, result, and every step as a tree.

Guarantees: one line per span, safe for any terminal whatever the agent wrote, in time linear in the
spans shown: indentation stops growing at a depth and prints the depth instead. Unknown values are
shown as unknown, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, cast

import msgspec

from proctor.formatting import dollars, duration_ms, money, plural
from proctor.sanitize import ELLIPSIS, json_bytes, line
from proctor.trace.assemble import TraceProblem
from proctor.trace.model import CONVERSATION, TURN, Span, SpanKind, SpanStatus, Trace
from proctor.trace.tree import SpanTree

# Deeper than this, lines of a normal terminal would be all indentation.
MAX_INDENT = 16
MAX_NAME = 80
MAX_VALUE = 72
MAX_ERROR = 120
MAX_HEADER = 300

_MARKS = {
    SpanStatus.OK: "✓",
    SpanStatus.ERROR: "✗",
    SpanStatus.TIMEOUT: "⏱",
    SpanStatus.UNSET: "·",
}


class TreeLine(NamedTuple):
    """One line of a tree, in parts, so that a terminal may colour each."""

    indent: str
    mark: str
    kind: str
    name: str
    detail: str
    error: str

    def plain(self) -> str:
        """Return the line without colour."""
        name = f"{self.kind} {self.name}" if self.kind else self.name
        parts = (f"{self.indent}{self.mark} {name}".rstrip(), self.detail, self.error)
        return "  ".join(part for part in parts if part)


def tree_text(trace: Trace, max_spans: int = 1000) -> str:
    """Return header and tree of a trace as plain text."""
    return "\n".join([*header(trace), *(row.plain() for row in tree_lines(trace, max_spans))])


# -- header -----------------------------------------------------------------------------------


def header(trace: Trace) -> list[str]:
    """Return the header lines: subject and totals of the trace."""
    lines = [f"trace {line(trace.trace_id, MAX_NAME)}"]
    facts = {
        "query": trace.query,
        "response": trace.response,
        "session": trace.session_id,
        "user": trace.user_id,
        "request": trace.request_id,
    }
    lines += [
        f"  {label:<9}{_shown(value, MAX_HEADER)}"
        for label, value in facts.items()
        if value is not None
    ]
    about: Any = trace.metadata.get(CONVERSATION)
    if isinstance(about, dict) and "ended" in about:
        lines.append(f"  {'ended':<9}{_shown(about['ended'], MAX_HEADER)}")
    lines.append(f"  {'total':<9}{totals(trace)}")
    lines += [f"  {'problem':<9}{line(problem, MAX_HEADER)}" for problem in trace.problems]
    return lines


def totals(trace: Trace) -> str:
    """Return counts, time, tokens and cost of a trace in one line."""
    usage = trace.usage
    parts = [
        plural(len(trace.spans), "span"),
        _duration(trace.duration) or "duration unknown",
        plural(len(trace.llm_calls), "llm call"),
        plural(len(trace.tool_calls), "tool call"),
        _tokens(usage.input_tokens, usage.output_tokens) or "tokens unknown",
        f"cost {money(usage.cost_usd, usage.unpriced) or 'unknown'}",
        plural(len(trace.errors), "error"),
    ]
    return ", ".join(parts)


# -- tree -------------------------------------------------------------------------------------


def tree_lines(trace: Trace, max_spans: int = 1000) -> Iterator[TreeLine]:
    """Yield one line per span in document order, and one with the number of hidden spans."""
    tree = trace.index
    for shown, (position, indent) in enumerate(_indented(tree)):
        if shown >= max_spans:
            left = len(tree) - shown
            yield TreeLine("", ELLIPSIS, "", f"{plural(left, 'more span')} not shown", "", "")
            return
        yield span_line(tree.spans[position], indent)


def _indented(tree: SpanTree) -> Iterator[tuple[int, str]]:
    """Yield positions in document order with their branch prefixes."""
    roots = [position for position, parent in enumerate(tree.parent) if parent < 0]
    # A stack instead of recursion: traces can be deeper than Python's limit.
    stack = [(root, "", "", 0) for root in reversed(roots)]
    while stack:
        position, before, branch, depth = stack.pop()
        if depth > MAX_INDENT:
            yield position, f"{before}[{depth}] "
        else:
            yield position, before + branch
        # Below the limit all lines share one indentation string: memory stays linear.
        if depth >= MAX_INDENT:
            below = before
        else:
            below = before + {"├─ ": "│  ", "└─ ": "   "}.get(branch, "")
        children = tree.children[position]
        for child in reversed(children):
            last = child == children[-1]
            stack.append((child, below, "└─ " if last else "├─ ", depth + 1))


def span_line(span: Span, indent: str = "") -> TreeLine:
    """Return the line of one span."""
    details = [
        _duration(span.duration) or "open",
        _tokens(span.input_tokens, span.output_tokens),
        dollars(span.cost_usd) if span.cost_usd is not None else "",
    ]
    if span.kind == SpanKind.TOOL and span.tool_input is not None:
        details.append(_arguments(span.tool_input))
    elif span.kind == SpanKind.HANDOFF and span.handoff_to:
        details.append(f"→ {line(span.handoff_to, MAX_NAME)}")
    elif span.documents:
        details.append(plural(len(span.documents), "document"))
    elif TURN in span.attributes:
        half = MAX_VALUE // 2
        details.append(f"{_shown(span.input, half)} → {_shown(span.output or '', half)}")
    return TreeLine(
        indent=indent,
        mark=_MARKS[span.status],
        kind=span.kind.value,
        name=_name(span),
        detail="  ".join(part for part in details if part),
        error=error_text(span),
    )


def span_row(span: Span) -> str:
    """Return one span of a list of matches: trace, span id and description."""
    ids = f"{line(span.trace_id, MAX_NAME)}  {line(span.span_id, MAX_NAME)}"
    return f"{ids}  {span_line(span).plain()}"


def error_text(span: Span) -> str:
    """Return a short failure description; empty on success."""
    if not span.failed:
        return ""
    parts = [part for part in (span.error_type, span.error_message) if part]
    return line(": ".join([span.status.value, *parts]), MAX_ERROR)


def _name(span: Span) -> str:
    """Return the name, with the subject of the span when the name lacks it."""
    name = line(span.name, MAX_NAME) or "(no name)"
    about = {
        SpanKind.TOOL: span.tool_name,
        SpanKind.LLM: span.model,
        SpanKind.AGENT: span.agent_name,
    }.get(span.kind)
    extra = line(about, MAX_NAME) if about else ""
    return f"{name} ({extra})" if extra and extra not in name else name


def _arguments(value: Any) -> str:
    if isinstance(value, dict):
        # Enough for a line; an argument object may have thousands of entries.
        some = islice(cast("dict[Any, Any]", value).items(), 8)
        pairs = ", ".join(f"{line(key, 30)}={_shown(item, MAX_VALUE // 2)}" for key, item in some)
        return f"({line(pairs, MAX_VALUE)})"
    return f"({_shown(value, MAX_VALUE)})"


# -- values -----------------------------------------------------------------------------------


def _shown(value: Any, limit: int) -> str:
    if isinstance(value, str):
        return line(value, limit)
    try:
        return line(msgspec.json.encode(value, enc_hook=str).decode(), limit)
    except (TypeError, ValueError, RecursionError, msgspec.EncodeError):
        return line(f"({type(value).__name__})", limit)


def _duration(seconds: float | None) -> str:
    return duration_ms(None if seconds is None else seconds * 1000)


def _tokens(sent: int | None, received: int | None) -> str:
    if sent is None and received is None:
        return ""
    known = ["?" if count is None else f"{count:,}" for count in (sent, received)]
    return f"{known[0]}→{known[1]} tokens"


# Traces, matches and problems as one JSON document, for other programs. Exactly one document is
# written, trace by trace, so memory does not grow with its size. An unknown value is null.


def document(key: str, items: Iterable[Any], problems: list[TraceProblem]) -> Iterator[bytes]:
    """Yield `{key: […], "problems": […]}` in pieces; `problems` may grow while items are read."""
    yield b'{"' + key.encode() + b'":['
    for number, item in enumerate(items):
        yield (b",\n" if number else b"\n") + json_bytes(item)
    yield b'],\n"problems":' + json_bytes(problems) + b"}\n"


def described(trace: Trace) -> dict[str, Any]:
    """Return a trace with its totals and all its spans."""
    usage = trace.usage
    facts = msgspec.to_builtins(trace, enc_hook=str)
    spans = facts.pop("spans", [])
    facts["totals"] = {
        "spans": len(trace.spans),
        "duration_s": trace.duration,
        "llm_calls": len(trace.llm_calls),
        "tool_sequence": trace.tool_sequence,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "cost_usd": usage.cost_usd,
        "calls_without_price": usage.unpriced,
        "errors": len(trace.errors),
    }
    facts["spans"] = spans
    return facts


def described_span(span: Span) -> dict[str, Any]:
    """Return the JSON fields of a matching span."""
    return {
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "name": span.name,
        "kind": span.kind.value,
        "status": span.status.value,
        "duration_s": span.duration,
    }

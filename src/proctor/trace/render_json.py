"""Traces, matches and problems as one JSON document, for other programs.

Promise: exactly one document, whatever the traces hold; it is written trace by trace, so its
size does not matter. A figure that is not known is null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from proctor.trace.assemble import Problem
from proctor.trace.formats.native import without_surrogates
from proctor.trace.model import Span, Trace


def encoded(value: Any) -> bytes:
    """A value as JSON; lone surrogates, which JSON cannot carry, are replaced."""
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except UnicodeEncodeError:
        return msgspec.json.encode(without_surrogates(msgspec.to_builtins(value, enc_hook=str)))


def document(key: str, items: Iterable[Any], problems: list[Problem]) -> Iterator[bytes]:
    """`{key: [items…], "problems": […]}` in pieces; `problems` may grow while items are read."""
    yield b'{"' + key.encode() + b'":['
    for number, item in enumerate(items):
        yield (b",\n" if number else b"\n") + encoded(item)
    yield (
        b'],\n"problems":' + encoded([described_problem(problem) for problem in problems]) + b"}\n"
    )


def described(trace: Trace) -> dict[str, Any]:
    """A trace with its totals and all its spans."""
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
    """What a list of matches says about a span."""
    return {
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "name": span.name,
        "kind": span.kind.value,
        "status": span.status.value,
        "duration_s": span.duration,
    }


def described_problem(problem: Problem) -> dict[str, Any]:
    """A problem with all its parts."""
    return {
        "file": problem.file,
        "place": problem.place,
        "message": problem.message,
        "count": problem.count,
        "fatal": problem.fatal,
        "hint": problem.hint,
    }

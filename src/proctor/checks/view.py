"""What a trial looks like to expressions and to people: plain values out of a trace.

Promise: `document` has every key below for every trace (null where unknown), holds only JSON
values, and reads arguments and results that are JSON text. Changing a key breaks users' suites.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from proctor.checks.metrics.arguments import decoded
from proctor.checks.registry import CheckContext
from proctor.sanitize import json_value
from proctor.trace import SpanKind, Trace


class Handoff(NamedTuple):
    """One agent handing over to another; a side the trace does not name is None."""

    source: str | None
    target: str | None
    span_id: str


def handoffs_of(trace: Trace) -> list[Handoff]:
    """The handoffs of a trace, in order.

    Where spans of their own record them, only those count: an agent span may repeat the last.
    """
    spans = trace.handoffs or [span for span in trace.index.spans if span.handoff_to]
    return [
        Handoff(
            span.agent_name,
            span.handoff_to or (span.tool_name if span.kind == SpanKind.HANDOFF else None),
            span.span_id,
        )
        for span in spans
    ]


def milliseconds(seconds: float | None) -> float | None:
    """Seconds as milliseconds, to the microsecond; None stays None."""
    return None if seconds is None else round(seconds * 1000, 3)


def parsed_answer(answer: str) -> Any:
    """The answer as a JSON value; None when it is not JSON."""
    try:
        return msgspec.json.decode(answer)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def document(context: CheckContext) -> dict[str, Any]:
    """What JMESPath expressions run over: the answer, the calls, and what they took."""
    trace = context.trace
    usage = trace.usage
    return {
        "input": json_value(context.input),
        "response": context.answer,
        "response_json": parsed_answer(context.answer),
        "tool_calls": [
            {
                "name": call.name,
                "arguments": json_value(decoded(call.arguments)),
                "result": json_value(decoded(call.result) if call.result is not None else None),
                "status": str(call.status),
            }
            for call in trace.tool_calls
        ],
        "tool_sequence": trace.tool_sequence,
        "llm_calls": [
            {
                "model": span.model,
                "input_tokens": span.input_tokens,
                "output_tokens": span.output_tokens,
                "cost_usd": span.cost_usd,
                "duration_ms": milliseconds(span.duration),
                "status": str(span.status),
            }
            for span in trace.llm_calls
        ],
        "handoffs": [
            {"from": handoff.source, "to": handoff.target} for handoff in handoffs_of(trace)
        ],
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
            "cost_usd": usage.cost_usd,
        },
        "duration_ms": milliseconds(trace.duration),
        "metadata": json_value(trace.metadata),
    }

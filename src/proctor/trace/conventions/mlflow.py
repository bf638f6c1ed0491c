"""Read MLflow's attributes, each of which is a JSON document in a string."""

from __future__ import annotations

from typing import Any

from proctor.trace.conventions.messages import fill, fill_values
from proctor.trace.conventions.values import (
    count,
    decode_json,
    mapping,
    span_kind,
    text,
    total_or_sum,
)
from proctor.trace.model import Span, SpanKind

HEADS = frozenset({"mlflow"})


def kind(span: Span) -> SpanKind | None:
    """Return the kind in `mlflow.spanType`."""
    return span_kind(_value(span, "mlflow.spanType"))


def read(span: Span) -> None:
    """Fill the fields from MLflow's attributes."""
    attributes = span.attributes
    inputs = _value(span, "mlflow.spanInputs")
    named = _value(span, "mlflow.llm.model") or mapping(inputs).get("model")
    if span.kind == SpanKind.LLM:
        fill(span, "model", text(named))
        used = mapping(attributes.get("mlflow.chat.tokenUsage"))
        fill(span, "input_tokens", count(used.get("input_tokens")))
        fill(span, "output_tokens", count(used.get("output_tokens")))
        cost = mapping(attributes.get("mlflow.llm.cost"))
        parts = (cost.get("input_cost"), cost.get("output_cost"))
        fill(span, "cost_usd", total_or_sum(cost.get("total_cost"), parts))
    elif span.kind == SpanKind.TOOL:
        fill(span, "tool_name", text(_value(span, "mlflow.spanFunctionName")))
    elif span.kind == SpanKind.AGENT:
        fill(span, "agent_name", text(span.name))
    fill_values(span, inputs, _value(span, "mlflow.spanOutputs"))


def _value(span: Span, key: str) -> Any:
    """Return an attribute decoded, bare words and numbers too: `null` is no text here."""
    value = span.attributes.get(key)
    try:
        return decode_json(value) if isinstance(value, str) else value
    except ValueError:
        return value

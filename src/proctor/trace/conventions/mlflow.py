"""Read MLflow's attributes, each of which is a JSON document in a string."""

from __future__ import annotations

from proctor.trace.conventions.messages import fill, fill_values
from proctor.trace.conventions.values import count, mapping, parsed, text, total_or_sum
from proctor.trace.model import Span, SpanKind

HEADS = frozenset({"mlflow"})

_KINDS = {
    "AGENT": SpanKind.AGENT,
    "CHAT_MODEL": SpanKind.LLM,
    "LLM": SpanKind.LLM,
    "TOOL": SpanKind.TOOL,
    "RETRIEVER": SpanKind.RETRIEVAL,
    "RERANKER": SpanKind.RETRIEVAL,
    "CHAIN": SpanKind.CHAIN,
    "WORKFLOW": SpanKind.CHAIN,
    "TASK": SpanKind.CHAIN,
    "PARSER": SpanKind.CHAIN,
    "MEMORY": SpanKind.CHAIN,
    "GUARDRAIL": SpanKind.GUARDRAIL,
    "EMBEDDING": SpanKind.OTHER,
    "EVALUATOR": SpanKind.OTHER,
}


def kind(span: Span) -> SpanKind | None:
    """Return the kind in `mlflow.spanType`."""
    return _KINDS.get(str(parsed(span.attributes.get("mlflow.spanType"))))


def read(span: Span) -> None:
    """Fill the fields from MLflow's attributes."""
    attributes = span.attributes
    inputs = parsed(attributes.get("mlflow.spanInputs"))
    named = parsed(attributes.get("mlflow.llm.model")) or mapping(inputs).get("model")
    if span.kind == SpanKind.LLM:
        fill(span, "model", text(named))
        used = mapping(attributes.get("mlflow.chat.tokenUsage"))
        fill(span, "input_tokens", count(used.get("input_tokens")))
        fill(span, "output_tokens", count(used.get("output_tokens")))
        cost = mapping(attributes.get("mlflow.llm.cost"))
        parts = (cost.get("input_cost"), cost.get("output_cost"))
        fill(span, "cost_usd", total_or_sum(cost.get("total_cost"), parts))
    elif span.kind == SpanKind.TOOL:
        fill(span, "tool_name", text(parsed(attributes.get("mlflow.spanFunctionName"))))
    elif span.kind == SpanKind.AGENT:
        fill(span, "agent_name", text(span.name))
    fill_values(span, inputs, parsed(attributes.get("mlflow.spanOutputs")))

"""Read OpenLLMetry (Traceloop): `traceloop.*`, `gen_ai.task.*` and the older `llm.usage.*`.

Its current versions write the GenAI conventions too; this module adds its own attributes.
"""

from __future__ import annotations

from typing import Any

from proctor.trace.conventions.messages import document, documents_from, fill, fill_values
from proctor.trace.conventions.values import count, first, is_mapping, parsed, span_kind, text
from proctor.trace.model import Document, Span, SpanKind, SpanStatus

HEADS = frozenset({"traceloop", "gen_ai", "langgraph", "db"})

_REQUESTS = {
    "chat": SpanKind.LLM,
    "completion": SpanKind.LLM,
    "embedding": SpanKind.OTHER,
    "rerank": SpanKind.RETRIEVAL,
}
# Quotient's wrappers of vector stores.
_RETRIEVED = "db.query.retrieved_documents"
_RESULT_EVENTS = ("db.query.result", "db.search.result")


def kind(span: Span) -> SpanKind | None:
    """Return the span kind of the SDK's decorators; else the type of the model request."""
    attributes = span.attributes
    found = span_kind(attributes.get("traceloop.span.kind"))
    found = found or _REQUESTS.get(str(attributes.get("llm.request.type")))
    return SpanKind.RETRIEVAL if found is None and _RETRIEVED in attributes else found


def read(span: Span) -> None:
    """Fill the fields from Traceloop's attributes."""
    attributes = span.attributes
    fill(span, "input_tokens", count(attributes.get("llm.usage.prompt_tokens")))
    fill(span, "output_tokens", count(attributes.get("llm.usage.completion_tokens")))
    fill(span, "handoff_to", text(attributes.get("langgraph.command.goto_node")))
    entity = text(attributes.get("traceloop.entity.name"))
    if span.kind == SpanKind.TOOL:
        fill(span, "tool_name", entity)
    elif span.kind == SpanKind.AGENT:
        fill(span, "agent_name", entity)
    if span.kind == SpanKind.RETRIEVAL and not span.documents:
        span.documents = _documents(span)
    value = first(attributes, ("traceloop.entity.input", "gen_ai.task.input"))
    result = first(attributes, ("traceloop.entity.output", "gen_ai.task.output"))
    fill_values(span, _unwrapped(value, "inputs", span), _unwrapped(result, "outputs", span))
    failed = str(attributes.get("gen_ai.task.status")) in ("failure", "error")
    if failed and span.status == SpanStatus.UNSET:
        span.status = SpanStatus.ERROR


def _unwrapped(value: Any, key: str, span: Span) -> Any:
    """Return the value of a LangChain callback record, without its bookkeeping.

    Tools use the whole record: their envelope also holds the call id.
    """
    if value is None or span.kind == SpanKind.TOOL:
        return value
    found = parsed(value)
    return found[key] if is_mapping(found) and found.get(key) is not None else value


def _documents(span: Span) -> tuple[Document, ...]:
    """Return the documents that vector stores record as one event per hit."""
    found: list[Document] = []
    for event in span.events:
        if event.name in _RESULT_EVENTS:
            prefix = event.name + "."
            found.append(document({k.removeprefix(prefix): v for k, v in event.attributes.items()}))
    return tuple(found) or documents_from(span.attributes.get(_RETRIEVED))

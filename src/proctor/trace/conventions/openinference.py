"""Read OpenInference: Phoenix's conventions, also used by Arize, TRAIL (Patronus) and ADOT.

Its span kind is the only source of a kind: `llm.*` keys also appear on chains. Handoffs of
openai-agents arrive as tool spans named "handoff to X" and become handoffs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from proctor.trace.conventions.messages import (
    document,
    documents_from,
    fill,
    fill_messages,
    fill_tool,
    fill_values,
    flat_messages,
)
from proctor.trace.conventions.values import (
    Attributes,
    count,
    first,
    identifier,
    is_mapping,
    mapping,
    numbered,
    parsed,
    span_kind,
    text,
    total_or_sum,
)
from proctor.trace.model import Document, Span, SpanKind

HEADS = frozenset(
    "openinference llm input output tool retrieval reranker embedding agent graph patronus".split()
)

_HANDOFF = "handoff to "
_LLAMA_INDEX = "openinference.instrumentation.llama_index"
_LANGCHAIN = "openinference.instrumentation.langchain"
# DSPy names a tool span by method, and ends a loop with a tool of its own.
_CALL = ".__call__"
_DSPY_END = ("openinference.instrumentation.dspy", "finish.__call__")
_MODEL_KEYS = (
    "llm.model_name",
    "llm.response.model_name",
    "embedding.model_name",
    "reranker.model_name",
)
_PARAMETER_KEYS = ("llm.invocation_parameters", "embedding.invocation_parameters")


def kind(span: Span) -> SpanKind | None:
    """Return the kind in `openinference.span.kind`."""
    named = span.attributes.get("openinference.span.kind")
    if isinstance(named, str):
        known = span_kind(named)
        if known == SpanKind.TOOL and span.name.startswith(_HANDOFF):
            return SpanKind.HANDOFF
        if known == SpanKind.TOOL and (span.scope, span.name) == _DSPY_END:
            return SpanKind.RESPONSE
        # LlamaIndex marks every method of a model so; a private one only prepares the call.
        is_private = span.name.rpartition(".")[2].startswith("_")
        if known == SpanKind.LLM and is_private and not span.name.endswith(_CALL):
            return SpanKind.CHAIN
        return known
    # Patronus' own spans (functions it wraps) have no kind.
    return SpanKind.CHAIN if span.scope == "patronus.sdk" else None


def read(span: Span) -> None:
    """Fill the fields from the OpenInference attributes."""
    attributes = span.attributes
    if span.kind not in (SpanKind.TOOL, SpanKind.CHAIN) or "llm.token_count.prompt" in attributes:
        fill(span, "input_tokens", count(attributes.get("llm.token_count.prompt")))
        fill(span, "output_tokens", count(attributes.get("llm.token_count.completion")))
        cost = total_or_sum(
            attributes.get("llm.cost.total"),
            (attributes.get("llm.cost.prompt"), attributes.get("llm.cost.completion")),
        )
        fill(span, "cost_usd", cost)
        fill(span, "model", _model(span))
    fill(span, "agent_name", _agent_name(span))
    if span.kind == SpanKind.HANDOFF:
        fill(span, "agent_name", text(attributes.get("input.value")))
        to = text(attributes.get("output.value")) or text(span.name.removeprefix(_HANDOFF))
        fill(span, "handoff_to", to)
    elif span.kind == SpanKind.TOOL:
        _read_tool(span)
    else:
        for side in ("input_messages", "output_messages"):
            fill_messages(span, side, partial(flat_messages, attributes, f"llm.{side}"))
        if span.kind == SpanKind.RETRIEVAL and not span.documents:
            span.documents = _documents(attributes)
        fill_values(span, attributes.get("input.value"), _reply(span))


def _reply(span: Span) -> Any:
    """Return the output; LlamaIndex writes the role in front of a model's text."""
    value = span.attributes.get("output.value")
    if span.kind == SpanKind.LLM and span.scope == _LLAMA_INDEX and isinstance(value, str):
        return value.removeprefix("assistant: ") or None
    return value


def _read_tool(span: Span) -> None:
    attributes = span.attributes
    schema = attributes.get("tool.parameters")
    arguments = attributes.get("input.value")
    fields = mapping(schema) if arguments is None else {}
    # Some instrumentations write the arguments here, others the schema of the tool.
    is_schema = "properties" in fields or any(
        is_mapping(value) and ("type" in value or "description" in value)
        for value in fields.values()
    )
    if arguments is None and not is_schema:
        arguments = schema
    fill_tool(span, arguments, _result(span), schema)
    name = text(attributes.get("tool.name"))
    if name is None and span.name.endswith(_CALL):
        name = span.name.removesuffix(_CALL)
    fill(span, "tool_name", name)
    fill(span, "tool_call_id", identifier(first(attributes, ("tool.id", "tool_call.id"))))


def _result(span: Span) -> Any:
    """Return the output; the LangChain instrumentation wraps mappings once more."""
    value = span.attributes.get("output.value")
    if span.scope == _LANGCHAIN and (is_mapping(value) or str(value).startswith('{"output":')):
        wrapper = mapping(value)
        return wrapper["output"] if list(wrapper) == ["output"] else value
    return value


def _model(span: Span) -> str | None:
    name = text(first(span.attributes, _MODEL_KEYS))
    if name is None and span.model is None:
        # A failed call names no model, but records the requested one.
        parameters = first(span.attributes, _PARAMETER_KEYS)
        if parameters is not None:
            name = text(first(mapping(parameters), ("model", "model_name", "model_id")))
    return name


def _agent_name(span: Span) -> str | None:
    named = text(span.attributes.get("agent.name"))
    if named is None and span.kind == SpanKind.AGENT:
        named = text(span.attributes.get("graph.node.id"))
        if named is None and span.name.endswith(".run"):
            named = span.name.removesuffix(".run")  # smolagents
    return named


def _documents(attributes: Attributes) -> tuple[Document, ...]:
    documents: list[Document] = []
    for prefix in ("retrieval.documents", "reranker.output_documents"):
        documents.extend(
            document({key.removeprefix("document."): flat[key] for key in flat})
            for flat in numbered(attributes, prefix)
        )
    if documents and all(each.id is None for each in documents):
        # LangChain's instrumentation drops the ids, which its dump of the output still has.
        dumped = documents_from(parsed(attributes.get("output.value")))
        # Equal texts in equal order prove that both lists are the same documents.
        if [each.text for each in dumped] == [each.text for each in documents]:
            for each, whole in zip(documents, dumped, strict=True):
                each.id = whole.id
    return tuple(documents)

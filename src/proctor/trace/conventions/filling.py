"""How a dialect fills a span: the first value that is known stays.

Promise: a field that is set is never overwritten, so that the order of the dialects decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from proctor.trace.conventions.envelopes import conversation, tool_arguments, tool_result
from proctor.trace.conventions.values import first, is_list, is_mapping, number, parsed, text
from proctor.trace.model import Document, Message, Span, SpanKind

_TEXT_KEYS = ("content", "text", "page_content", "pageContent", "document", "body")
_ID_KEYS = ("id", "document_id", "doc_id", "id_")
_SCORE_KEYS = ("score", "relevance_score", "relevanceScore", "similarity", "_score")


def fill(span: Span, field: str, value: Any) -> None:
    """Set a field that is not known yet."""
    if value is not None and getattr(span, field) is None:
        setattr(span, field, value)


def fill_messages(span: Span, field: str, read: Callable[[], Iterable[Message]]) -> None:
    """Set messages that are not known yet; `read` runs only then, because it may be costly."""
    if not getattr(span, field):
        setattr(span, field, tuple(read()))


def fill_tool(span: Span, given: Any, result: Any, schema: Any = None) -> None:
    """What went into a tool and came out of it, out of their envelopes."""
    if given is not None and span.tool_input is None:
        span.tool_input = tool_arguments(given, schema)
    if result is not None and span.tool_output is None:
        found = tool_result(result)
        span.tool_output = found.value
        fill(span, "tool_call_id", found.call_id)
        fill(span, "tool_name", found.tool_name)


def fill_values(span: Span, given: Any, result: Any) -> None:
    """What went into a span and came out of it, for any kind of span.

    A model call with known messages keeps no second copy of them; other values stay as received,
    because parsing every large text would cost more than loading the file.
    """
    if span.kind == SpanKind.TOOL:
        fill_tool(span, given, result)
        return
    if span.kind == SpanKind.LLM:
        if given is not None:
            fill_messages(span, "input_messages", lambda: conversation(given, "user"))
        if result is not None:
            fill_messages(span, "output_messages", lambda: conversation(result, "assistant"))
    if span.kind == SpanKind.RETRIEVAL and result is not None and not span.documents:
        span.documents = documents_from(result)
    if not (span.kind == SpanKind.LLM and span.input_messages):
        fill(span, "input", given)
    if not (span.kind == SpanKind.LLM and span.output_messages):
        fill(span, "output", result)


def documents_from(value: Any) -> tuple[Document, ...]:
    """Documents from a list of them, or from an object that holds such a list."""
    found = parsed(value)
    if is_mapping(found):
        found = parsed(first(found, ("documents", "results", "nodes", "matches", "source_nodes")))
    if not is_list(found):
        return ()
    return tuple(document(item) for item in found if is_mapping(item) or isinstance(item, str))


def document(raw: Mapping[str, Any] | str) -> Document:
    """One document; its score may stand only in its metadata."""
    if isinstance(raw, str):
        return Document(text=raw)
    if "document.id" in raw or "document.content" in raw:
        raw = {key.removeprefix("document."): value for key, value in raw.items()}
    inner = raw.get("document") or raw.get("node")
    if is_mapping(inner):
        raw = {**inner, **{key: raw[key] for key in raw if key not in ("document", "node")}}
    metadata = parsed(raw.get("metadata"))
    facts: dict[str, Any] = metadata if is_mapping(metadata) else {}
    score = number(first(raw, _SCORE_KEYS))
    identity = first(raw, _ID_KEYS)
    return Document(
        id=None if identity is None else str(identity),
        text=text(first(raw, _TEXT_KEYS)),
        score=number(first(facts, _SCORE_KEYS)) if score is None else score,
        metadata=facts,
    )

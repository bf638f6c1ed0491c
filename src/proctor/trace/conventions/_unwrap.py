"""Unwrap library envelopes: request bodies, LangChain dumps, call arguments.

Guarantees: `conversation` returns the messages in a body, `question` and `answer` the readable
text, `tool_arguments` and `tool_result` the input and output of a tool. Values in no known envelope
are returned unchanged.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from proctor.trace.conventions.messages import messages_from
from proctor.trace.conventions.values import (
    first,
    identifier,
    is_list,
    is_mapping,
    number,
    parsed,
    shown,
    text,
)
from proctor.trace.model import Document, Message, Span, SpanKind

# Keys under which a body stores its messages, with the default role of each.
_MESSAGE_LISTS = (
    ("messages", "user"),
    ("contents", "user"),
    ("generations", "assistant"),
    ("choices", "assistant"),
    ("candidates", "assistant"),
)
_QUESTION_KEYS = ("question", "query", "task", "input", "prompt", "user_input", "request", "text")
_ANSWER_KEYS = ("answer", "final_answer", "final_output", "output", "response", "result", "text")
_SYSTEM_KEYS = ("system", "system_instruction", "instructions")
# Wrappers inside wrappers are real; deeper nesting than this is hostile input.
_DEEPEST = 6
# Text longer than this is not a tool's arguments written as a Python dict; parsing it is costly.
_LONGEST_LITERAL = 20_000


def conversation(value: Any, role: str = "user") -> tuple[Message, ...]:
    """Return the messages in a request or response body, or in a bare list of messages."""
    value = parsed(value)
    if is_mapping(value):
        found = _from_body(value, role)
        if found is not None:
            return found
    return messages_from(value, role)


def _from_body(body: dict[str, Any], role: str) -> tuple[Message, ...] | None:
    """Return the messages in an envelope; None when the object is no known one."""
    for key, default_role in _MESSAGE_LISTS:
        inner = parsed(body.get(key))
        if is_list(inner) or (key in ("contents", "messages") and isinstance(inner, str)):
            return (*_system(body), *messages_from(_flattened(inner), default_role))
    # OpenAI's Responses API returns its items in `output`, which elsewhere is an answer.
    if body.get("object") == "response" and is_list(body.get("output")):
        return messages_from(body["output"], "assistant")
    for key in ("prompt", "input"):
        inner = parsed(body.get(key))
        if inner and "role" not in body and (is_list(inner) or isinstance(inner, str)):
            return (*_system(body), *messages_from(inner, role))
    args = body.get("args")
    if is_list(args) and "role" not in body:
        return messages_from(args, role)
    return None


def _system(body: dict[str, Any]) -> tuple[Message, ...]:
    config = body.get("config")
    prompt = first(body, _SYSTEM_KEYS)
    if prompt is None and is_mapping(config):
        prompt = first(config, _SYSTEM_KEYS)
    return tuple(Message("system", m.content) for m in messages_from(prompt, "system"))


def _flattened(value: Any) -> Any:
    """Unwrap one more level around each message (LangChain generations, Gemini candidates)."""
    if not is_list(value):
        return value
    groups = (i if is_list(i) and i and is_mapping(i[0]) else (i,) for i in value)
    return [_generation(item) for group in groups for item in group]


def _generation(item: Any) -> Any:
    if is_mapping(item) and is_mapping(item.get("message")) and "role" not in item:
        message = item["message"]
        # A generation repeats its text next to a message that may hold only the calls.
        if text(item.get("text")) and not first(message, ("content", "kwargs", "data")):
            return {**message, "role": "assistant", "content": item["text"]}
        return message if "role" in message else {"role": "assistant", "message": message}
    if is_mapping(item) and is_mapping(item.get("content")) and "role" not in item:
        return item["content"]
    return item


# -- readable text -----------------------------------------------------------------------------


def question(value: Any) -> Any:
    """Return the question as text where possible, else the value itself."""
    return _plain(value, _QUESTION_KEYS, "user", _DEEPEST)


def answer(value: Any) -> str | None:
    """Return the answer as text; other values as JSON."""
    return shown(_plain(value, _ANSWER_KEYS, "assistant", _DEEPEST))


def _plain(value: Any, keys: tuple[str, ...], role: str, depth: int) -> Any:
    value = parsed(value)
    if depth == 0 or value is None or isinstance(value, str):
        return value
    if is_mapping(value):
        call = _positional(value)
        if call is not None:
            arguments = [*call[0], *call[1].values()]
            if len(arguments) != 1 or arguments[0] is None:
                return value
            return _plain(arguments[0], keys, role, depth - 1)
        inner = first(value, keys)
        if inner is not None and not any(key in value for key, _ in _MESSAGE_LISTS):
            if isinstance(inner, str):
                return inner if inner[:1] not in "{[" else _plain(inner, keys, role, depth - 1)
            if value.get("object") != "response":
                return _plain(inner, keys, role, depth - 1)
    if is_mapping(value) or (is_list(value) and value and not isinstance(value[0], str)):
        messages = conversation(value, role)
        content = last_text(messages, role)
        if content is not None:
            return content
        if role == "assistant" and any(message.tool_calls for message in messages):
            return None  # tool calls mean that the answer is still to come
    elif is_list(value) and len(value) == 1:
        return value[0]
    return value


def last_text(messages: tuple[Message, ...], role: str) -> str | None:
    """Return the last text of a role; an assistant message with tool calls is no answer yet."""
    found = (m.content for m in reversed(messages) if m.role == role and not m.tool_calls)
    return next(filter(None, found), None)


# -- tools -------------------------------------------------------------------------------------


def _positional(value: dict[str, Any]) -> tuple[list[Any], dict[str, Any]] | None:
    """Return the arguments of a Python call, as instrumentations record them."""
    args, kwargs = value.get("args"), value.get("kwargs")
    # More keys mean that `args` and `kwargs` are arguments themselves.
    if is_list(args) and is_mapping(kwargs) and len(value) <= 3:
        return list(args), kwargs
    return None


def tool_arguments(value: Any, schema: Any = None) -> Any:
    """Return the arguments of a tool: a mapping wherever names are known.

    `schema` gives the names of positional arguments, in order: smolagents records it.
    """
    value = _literal(parsed(value))
    if not is_mapping(value):
        return value
    call = _positional(value)
    if call is not None:
        args, kwargs = call
        names = _names(schema) if args else []
        # With fewer names than arguments any assignment would be a guess: they stay a list.
        if len(names) >= len(args):
            return dict(zip(names, args, strict=False)) | kwargs
        return {"args": args, **kwargs} if kwargs else args
    if len(value) == 1 and is_mapping(value.get("kwargs")) and "kwargs" not in _names(schema):
        return value["kwargs"]  # DSPy and LlamaIndex call tools by keyword only
    if set(value) == {"input", "options"} and is_mapping(value["input"]):
        return value["input"]  # BeeAI
    if "inputs" in value and "tags" in value and "metadata" in value:
        return _literal(parsed(value["inputs"]))  # a LangChain callback's own record
    if "input_str" in value and is_mapping(value.get("inputs")):
        return value["inputs"]
    if value.get("type") == "tool_call" and is_mapping(value.get("args")):
        return value["args"]  # a LangChain tool invoked with the call itself
    return value


def _names(schema: Any) -> list[str]:
    found = parsed(schema)
    if not is_mapping(found):
        return []
    properties = found.get("properties")
    return list(properties) if is_mapping(properties) else list(found)


def _literal(value: Any) -> Any:
    """Parse arguments that LangChain wrote as `str(dict)`, which is Python, not JSON."""
    if not isinstance(value, str) or value[:2] not in ("{'", "{}") or len(value) > _LONGEST_LITERAL:
        return value
    try:
        found: object = ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return value
    return found if is_mapping(found) else value


class ToolResult(NamedTuple):
    """The result of a tool and the metadata of its envelope."""

    value: Any
    call_id: str | None = None
    tool_name: str | None = None


def tool_result(value: Any) -> ToolResult:
    """Return a tool's result from the records of LangChain and LlamaIndex."""
    found = parsed(value)
    if not is_mapping(found):
        return ToolResult(found)
    if "raw_input" in found and "raw_output" in found:  # LlamaIndex's ToolOutput
        return ToolResult(found["raw_output"], None, text(found.get("tool_name")))
    if is_mapping(found.get("output")) and "kwargs" in found:
        found = found["output"]  # a LangChain callback's own record
    message = next((found[key] for key in ("data", "kwargs") if is_mapping(found.get(key))), found)
    if "content" in message and identifier(message.get("tool_call_id")):
        return ToolResult(
            parsed(message["content"]),
            identifier(message.get("tool_call_id")),
            text(message.get("name")),
        )
    return ToolResult(found)


# Fill the fields of a span from a dialect. A field that is set is never overwritten, so that the
# order of the dialects decides.


_TEXT_KEYS = ("content", "text", "page_content", "pageContent", "document", "body")
_ID_KEYS = ("id", "document_id", "doc_id", "id_")
_SCORE_KEYS = ("score", "relevance_score", "relevanceScore", "similarity", "_score")


def fill(span: Span, field: str, value: Any) -> None:
    """Set a field unless it is known."""
    if value is not None and getattr(span, field) is None:
        setattr(span, field, value)


def fill_messages(span: Span, field: str, read: Callable[[], Iterable[Message]]) -> None:
    """Set messages unless they are known; `read` may be costly, so it runs only if needed."""
    if not getattr(span, field):
        setattr(span, field, tuple(read()))


def fill_tool(span: Span, arguments: Any, result: Any, schema: Any = None) -> None:
    """Set the unwrapped input and output of a tool."""
    if arguments is not None and span.tool_input is None:
        span.tool_input = tool_arguments(arguments, schema)
    if result is not None and span.tool_output is None:
        unwrapped = tool_result(result)
        span.tool_output = unwrapped.value
        fill(span, "tool_call_id", unwrapped.call_id)
        fill(span, "tool_name", unwrapped.tool_name)


def fill_values(span: Span, value: Any, result: Any) -> None:
    """Set the input and output of a span of any kind.

    A model call with known messages gets no second copy of them; other values stay as received,
    because parsing every large text would cost more than loading the file.
    """
    if span.kind == SpanKind.TOOL:
        fill_tool(span, value, result)
        return
    if span.kind == SpanKind.LLM:
        if value is not None:
            fill_messages(span, "input_messages", lambda: conversation(value, "user"))
        if result is not None:
            fill_messages(span, "output_messages", lambda: conversation(result, "assistant"))
    if span.kind == SpanKind.RETRIEVAL and result is not None and not span.documents:
        span.documents = documents_from(result)
    if not (span.kind == SpanKind.LLM and span.input_messages):
        fill(span, "input", value)
    if not (span.kind == SpanKind.LLM and span.output_messages):
        fill(span, "output", result)


def documents_from(value: Any) -> tuple[Document, ...]:
    """Return documents from a list of them, or from an object that holds such a list."""
    found = parsed(value)
    if is_mapping(found):
        found = parsed(first(found, ("documents", "results", "nodes", "matches", "source_nodes")))
    if not is_list(found):
        return ()
    return tuple(document(item) for item in found if is_mapping(item) or isinstance(item, str))


def document(raw: Mapping[str, Any] | str) -> Document:
    """Return one document; its score may be only in its metadata."""
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

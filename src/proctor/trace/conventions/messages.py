"""Parse chat messages of every known shape into `Message`, and unwrap the envelopes of libraries.

Guarantees: any value yields the messages that can be recognised in it, in order, and never raises.
A message with several tool results becomes one message per result, as in chat APIs. Text parts are
joined; parts that are not text are listed in `other`.

Envelopes are request bodies, LangChain dumps and call arguments: `conversation` returns the
messages in a body, `question` and `answer` the readable text, `tool_arguments` and `tool_result`
the input and output of a tool. Values in no known envelope are returned unchanged.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from proctor.trace.conventions.values import (
    Attributes,
    encode_json,
    first,
    identifier,
    is_list,
    is_mapping,
    number,
    numbered,
    parsed,
    shown,
    structure,
    text,
)
from proctor.trace.model import Document, Message, Span, SpanKind, ToolCall

_ROLES = {
    "human": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "model": "assistant",
    "chat": "user",
    "function": "tool",
    "tool-call": "assistant",
    "tool-response": "tool",
    "toolResult": "tool",
}
# Constructor names of LangChain's serialised messages.
_CLASSES = {
    "HumanMessage": "user",
    "AIMessage": "assistant",
    "AIMessageChunk": "assistant",
    "SystemMessage": "system",
    "ToolMessage": "tool",
    "FunctionMessage": "tool",
}
_NAME_KEYS = ("name", "toolName", "tool_name")
_CALL_ID_KEYS = ("id", "call_id", "tool_call_id", "toolCallId", "tool_use_id", "toolUseId")
_RESULT_ID_KEYS = ("tool_call_id", "tool_use_id", "toolCallId", "toolUseId", "call_id", "id")
_ARGUMENT_KEYS = ("arguments", "args", "input")
_RESULT_KEYS = ("response", "result", "output", "content")
_TEXT_KEYS = ("text", "content", "refusal")
_TEXT_TYPES = frozenset({"text", "input_text", "output_text", "refusal"})
_CALL_TYPES = frozenset({"tool_call", "tool_use", "tool-call", "function_call", "function"})
_RESULT_TYPES = frozenset(
    {"tool_call_response", "tool_result", "tool-result", "function_call_output", "tool_response"}
)
_CALL_WRAPPERS = ("function_call", "functionCall", "toolUse", "tool_call")
_RESULT_WRAPPERS = ("function_response", "functionResponse", "toolResult")
# Part types that are not content of the conversation.
_REASONING_TYPES = frozenset({"thinking", "reasoning", "redacted_thinking"})
FAILED = "error"
"""Listed among the other parts of a tool's result that says that the call failed."""

_REPR_START, _REPR_END = "content=", " additional_kwargs="


def messages_from(value: Any, role: str = "user") -> tuple[Message, ...]:
    """Return messages from one value or a list; `role` is the default for those without one.

    Envelopes (request and response bodies) are handled by `conversation`, which calls this.
    """
    value = parsed(value)
    if isinstance(value, str):
        return (Message(role, value),) if value else ()
    if is_mapping(value):
        return tuple(_from_mapping(value, role))
    if not is_list(value):
        return ()
    # LangGraph's shorthand: `["user", "Weather in Paris?"]`.
    if (
        len(value) == 2
        and all(isinstance(part, str) for part in value)
        and _role(value[0], "") in ("user", "assistant", "system", "tool")
    ):
        return (Message(_role(value[0], role), value[1]),)
    messages: list[Message] = []
    for item in value:
        if is_list(item):  # LangChain batches prompts: a list of lists of messages.
            messages.extend(messages_from(item, role))
        elif is_mapping(item):
            content, named = item.get("content"), item.get("role")
            # By far the most common shape; every model call repeats its whole history.
            if len(item) == 2 and isinstance(content, str) and isinstance(named, str) and named:
                messages.append(Message(_ROLES.get(named, named), content))
            else:
                messages.extend(_from_mapping(item, role))
        elif isinstance(item, str) and (content := _from_repr(item)):
            messages.append(Message(role, content))
    return tuple(_joined_calls(messages))


def _from_repr(recorded: str) -> str:
    """Return the content of a message recorded as `str()`: `content='Hi' additional_kwargs={}`."""
    end = recorded.find(_REPR_END)
    if end < 0 or not recorded.startswith(_REPR_START):
        return recorded
    try:
        content = ast.literal_eval(recorded[len(_REPR_START) : end])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return recorded
    return content if isinstance(content, str) else recorded


def _role(value: Any, default: str) -> str:
    return _ROLES.get(value, value) if isinstance(value, str) and value else default


def _from_mapping(raw: dict[str, Any], role: str) -> list[Message]:
    """Return the messages in one object of any library."""
    for inner in ("message", "data", "kwargs"):
        # gen_ai.choice events, LangChain's `dumps` and its constructor form.
        if is_mapping(raw.get(inner)) and "content" not in raw and "parts" not in raw:
            path = raw.get("id")
            if inner == "data":
                named = _role(raw.get("type"), "")
            else:
                named = _CLASSES.get(str(path[-1]), "") if is_list(path) and path else ""
            return _from_mapping(raw[inner], named or _event_role(raw) or role)
    kind = text(raw.get("type")) or ""
    if kind in _REASONING_TYPES:
        return []
    if kind in _RESULT_TYPES and "role" not in raw:
        return [_result(raw)]
    if kind in ("function_call", "tool-call") or ("toolName" in raw and "role" not in raw):
        call = _call(raw)
        return [Message("assistant", tool_calls=(call,))] if call else []
    named = (
        raw.get("role") or _event_role(raw) or (kind if kind in _ROLES or kind == "tool" else "")
    )
    if kind in ("system", "developer") and not raw.get("role"):
        named = kind
    return _from_role(raw, _role(named, "" if named else role) or role)


def _event_role(raw: dict[str, Any]) -> str:
    """Return the role in an event name such as `gen_ai.user.message`."""
    name = raw.get("event.name")
    if not isinstance(name, str) or not name.startswith("gen_ai."):
        return ""
    if name == "gen_ai.choice":
        return "assistant"
    return name.removeprefix("gen_ai.").removesuffix(".message")


def _from_role(raw: dict[str, Any], role: str) -> list[Message]:
    """Parse a message with a role: sort its parts into text, calls, results and others."""
    definition = raw.get("content") if role == "tool" else None
    function = definition.get("function") if is_mapping(definition) else None
    if is_mapping(function) and "parameters" in function:
        return []  # Langfuse's LangChain handler lists tool definitions among the messages.
    parts = _Parts()
    parts.take(first(raw, ("parts", "content", "text", "contents", "output_text", "refusal")))
    calls = parsed(raw.get("tool_calls") or raw.get("toolCalls"))
    if not calls and is_mapping(raw.get("additional_kwargs")):
        calls = raw["additional_kwargs"].get("tool_calls")
    if not calls and is_mapping(raw.get("function_call")):
        calls = [raw["function_call"]]
    # LangChain lists the same calls in `content` and in `tool_calls`. Within one list, some local
    # models give parallel calls one id.
    known = tuple(parts.calls)
    for call in calls if is_list(calls) else ():
        parts.call(call, known)
    name = text(raw.get("name"))
    call_id = identifier(first(raw, ("tool_call_id", "tool_use_id", "toolCallId")))
    # Some libraries put the call id of a result into the message's own `id`.
    if call_id is None and role == "tool":
        call_id = identifier(raw.get("id")) if not parts.results else None
    content = parts.content
    if content is None and not parts.calls and parts.results:
        return parts.results
    if role == "assistant" or not parts.results:
        own = Message(role, content, tuple(parts.calls), call_id, name, tuple(parts.other))
        return [own, *parts.results]
    return [*parts.results, Message(role, content, tuple(parts.calls), call_id, name)]


class _Parts:
    """The parts of one message, sorted by type."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: list[ToolCall] = []
        self.results: list[Message] = []
        self.other: list[str] = []

    @property
    def content(self) -> str | None:
        return "\n".join(self.texts) if self.texts else None

    def take(self, content: Any) -> None:
        if isinstance(content, str):
            self.texts.append(content)
        elif is_mapping(content):
            nested = content.get("parts")
            if is_list(nested):
                self.take(nested)
            else:
                self._part(content)
        elif is_list(content):
            for part in content:
                if isinstance(part, str):
                    self.texts.append(part)
                elif is_mapping(part):
                    self._part(part)
        elif content is not None:  # a number or a truth value
            self.texts.append(encode_json(content))

    def call(self, raw: Any, known: Sequence[ToolCall] = ()) -> None:
        """Add a call, unless it is one of those that the content has shown."""
        call = _call(raw) if is_mapping(raw) else None
        if call is not None and not any(c.id and c.id == call.id for c in known):
            self.calls.append(call)

    def _part(self, part: dict[str, Any]) -> None:
        kind = text(part.get("type") or part.get("kind")) or ""
        for wrapper in _RESULT_WRAPPERS:
            if is_mapping(part.get(wrapper)):
                self.results.append(_result(part[wrapper]))
                return
        for wrapper in _CALL_WRAPPERS:
            if is_mapping(part.get(wrapper)):
                self.call(part[wrapper])
                return
        if kind in _RESULT_TYPES:
            self.results.append(_result(part))
        elif kind in _CALL_TYPES:
            self.call(part)
        elif kind in _REASONING_TYPES:
            self.other.append("reasoning")
        else:
            content = first(part, _TEXT_KEYS)
            if isinstance(content, str) and (kind in _TEXT_TYPES or not kind):
                self.texts.append(content)
            elif kind:
                self.other.append(kind)


def _call(raw: dict[str, Any]) -> ToolCall | None:
    function = raw.get("function")
    inner: dict[str, Any] = function if is_mapping(function) else raw
    name = text(first(inner, _NAME_KEYS))
    if name is None:
        return None
    return ToolCall(
        name=name,
        # Twice: some proxies encode the text of the arguments once more.
        arguments=structure(parsed(first(inner, _ARGUMENT_KEYS))),
        # The Responses API has an item id next to the call id; results refer to the call id.
        id=identifier(raw.get("call_id") or first(raw, _CALL_ID_KEYS)),
    )


def _result(raw: dict[str, Any]) -> Message:
    body = first(raw, _RESULT_KEYS)
    if is_list(body):
        parts = _Parts()
        parts.take(body)
        body = parts.content if parts.texts else body
    elif is_mapping(body) and body.get("type") in ("text", "json") and "value" in body:
        body = body["value"]
    elif is_mapping(body) and body.keys() == {"result"}:
        body = body["result"]  # Gemini wants an object, so clients wrap what a tool returned
    # As Anthropic, Bedrock and Gemini say that a call failed.
    failed = raw.get("is_error") is True or raw.get("status") == "error"
    failed = failed or (is_mapping(body) and body.keys() == {"error"})
    return Message(
        "tool",
        shown(body),
        tool_call_id=identifier(first(raw, _RESULT_ID_KEYS)),
        name=text(first(raw, _NAME_KEYS)),
        other=(FAILED,) if failed else (),
    )


def _joined_calls(messages: list[Message]) -> Iterable[Message]:
    """Join consecutive messages that only hold calls into one assistant turn."""
    turn: Message | None = None
    for message in messages:
        bare = message.role == "assistant" and message.content is None and message.tool_calls
        if bare and turn is not None:
            turn.tool_calls += message.tool_calls
            continue
        yield message
        turn = message if bare else None


# -- flat attributes ----------------------------------------------------------------------------


def flat_messages(attributes: Attributes, prefix: str) -> tuple[Message, ...]:
    """Parse OpenInference: `prefix.N.message.role`, `.content`, `.tool_calls.K…` and so on."""
    flat = numbered(attributes, prefix)
    return tuple(message for raw in flat for message in _openinference_message(raw))


def legacy_messages(attributes: Attributes, prefix: str, role: str) -> tuple[Message, ...]:
    """Parse OpenLLMetry before 0.6: `gen_ai.prompt.N.role`, `.content`, `.tool_calls.K.name`."""
    messages: list[Message] = []
    for raw in numbered(attributes, prefix):
        body = raw.get("content")
        is_part_list = isinstance(body, str) and body.startswith('[{"type"')
        parts = _Parts()
        parts.take(parsed(body) if is_part_list else shown(body))
        known = tuple(parts.calls)
        for call in numbered(raw, "tool_calls"):
            parts.call(call, known)
        messages += parts.results
        messages.append(
            Message(
                _role(raw.get("role"), role),
                parts.content,
                tuple(parts.calls),
                identifier(raw.get("tool_call_id")),
                other=tuple(parts.other),
            )
        )
    return tuple(messages)


def _openinference_message(raw: Attributes) -> list[Message]:
    content = raw.get("message.content")
    if len(raw) == 2 and isinstance(content, str):  # the most common shape by far
        return [Message(_role(raw.get("message.role"), "user"), content)]
    calls: list[ToolCall] = []
    other: list[str] = []
    if len(raw) > 1:
        texts: list[str] = []
        for part in numbered(raw, "message.contents"):
            words = part.get("message_content.text")
            kind = text(part.get("message_content.type")) or ""
            if isinstance(words, str) and kind not in _REASONING_TYPES:
                texts.append(words)
            elif kind:
                other.append(kind)
        if texts:
            content = "\n".join(texts)
        calls = _openinference_calls(raw)
    if content is not None and not isinstance(content, str):
        return list(messages_from({"role": raw.get("message.role"), "content": content}))
    return [
        Message(
            _role(raw.get("message.role"), "user"),
            content,
            tuple(calls),
            identifier(raw.get("message.tool_call_id")),
            text(raw.get("message.name")),
            tuple(other),
        )
    ]


def _openinference_calls(raw: Attributes) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for call in numbered(raw, "message.tool_calls"):
        name = text(call.get("tool_call.function.name"))
        if name is not None:
            arguments = parsed(call.get("tool_call.function.arguments"))
            calls.append(ToolCall(name, arguments, identifier(call.get("tool_call.id"))))
    legacy = text(raw.get("message.function_call_name"))
    if legacy is not None and not calls:
        calls.append(ToolCall(legacy, parsed(raw.get("message.function_call_arguments_json"))))
    return calls


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
    value = _literal(structure(parsed(value)))
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
    found = structure(parsed(value))
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


_ENVELOPE_KEYS = ("content", "text", "page_content", "pageContent", "document", "body")
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
        text=text(first(raw, _ENVELOPE_KEYS)),
        score=number(first(facts, _SCORE_KEYS)) if score is None else score,
        metadata=facts,
    )

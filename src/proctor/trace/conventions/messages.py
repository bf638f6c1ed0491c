"""Parse chat messages of every known shape into `Message`.

Guarantees: any value yields the messages that can be recognised in it, in order, and never raises.
A message with several tool results becomes one message per result, as in chat APIs. Text parts are
joined; parts that are not text are listed in `other`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any

from proctor.trace.conventions.values import (
    Attributes,
    first,
    identifier,
    is_list,
    is_mapping,
    numbered,
    parsed,
    shown,
    text,
)
from proctor.trace.model import Message, ToolCall

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
_REPR_START, _REPR_END = "content=", " additional_kwargs="


def messages_from(value: Any, role: str = "user") -> tuple[Message, ...]:
    """Return messages from one value or a list; `role` is the default for those without one.

    Envelopes (request and response bodies) are handled by `_unwrap.conversation`, which calls this.
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
    parts.take(first(raw, ("parts", "content", "text", "contents", "output_text")))
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
        arguments=parsed(first(inner, _ARGUMENT_KEYS)),
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
    return Message(
        "tool",
        shown(body),
        tool_call_id=identifier(first(raw, _RESULT_ID_KEYS)),
        name=text(first(raw, _NAME_KEYS)),
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

"""Read chat transcripts: conversations with tool calls in the shape of OpenAI's API, and logs of
group chats between several agents: lists of objects with `content` and a speaker (`name`, `role`,
`source` …), bare or below keys such as `messages` and `history`, also inside other objects.

Guarantees: one agent span around everything, a model span for each assistant message and a tool
span for each call, matched to its result by id, then by order. In a group chat every message of a
speaker who is no user is a model span of that agent, whatever its role is called, and
`message.index` is its index in the list. Transcripts have no times: spans are one nanosecond apart,
which preserves their order without looking like a duration.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from proctor.trace._fields import (
    content_id,
    first_object,
    is_array,
    is_object,
    items,
    kind_of,
)
from proctor.trace.assemble import MALFORMED, Collector
from proctor.trace.conventions.messages import messages_from
from proctor.trace.conventions.values import count, identifier, mapping, parsed, shown, text
from proctor.trace.model import Message, Span, SpanKind

NAME = "transcript"
ABOUT = "chat transcripts (OpenAI messages with tool calls, group chats)"

_ROLES = frozenset(
    {"system", "developer", "user", "assistant", "tool", "function", "human", "ai", "model"}
)

_CONTENT_KEYS = ("content", "parts", "tool_calls", "function_call", "refusal", "text")

_ITEMS = frozenset({"function_call", "function_call_output", "reasoning"})
"""Items of OpenAI's Responses API between the messages; they have a type and no role."""

_LIST_KEYS = ("messages", "conversation", "history", "chat_history", "contents")

_SPEAKER_KEYS = ("name", "role", "source", "speaker", "sender", "agent")

_DEEPEST = 4
"""Objects around a list of messages that are searched for it."""

_PROGRAM = re.compile(
    r"terminal|execut|interpreter|shell|console|agent|expert|proxy|assistant|bot\b", re.IGNORECASE
)
"""Names under the role of a user that are no person's."""

_PEOPLE = frozenset({"user", "human", "system", "developer"})
"""Roles of messages that no agent wrote, unless a name says otherwise."""

_SPEAKER = re.compile(r"^(?P<name>[^()]+?)\s*(?:\((?P<note>[^()]*)\))?$")
"""A speaker with a remark, as in `Orchestrator (-> WebSurfer)` or `Orchestrator (thought)`."""

_REMARK = re.compile(
    r"->|→|\b(?:thought|thinking|reasoning|to \w+|condition|final)\b", re.IGNORECASE
)

_ADDRESSEE = re.compile(r"(?:->|→|\bto\b)\s*(?P<name>[\w-]+)")

_TOOLS = frozenset({"tool", "function"})
"""Roles of results."""

MESSAGE_INDEX = "message.index"
"""Attribute of a group chat's spans: the index of the message in its list."""

_QUESTION_KEYS = ("question", "task", "query", "problem", "input")

_LONGEST_HISTORY = 1_000
"""Maximum input messages per model call: every call repeats the whole history, so a transcript
would otherwise grow quadratically.
"""

AGENT_NAME = "agent"


def is_message(item: Any) -> bool:
    """Return whether an object is one chat message."""
    if not is_object(item):
        return False
    item = _unwrapped(item)
    if "role" not in item and text(item.get("type")) in _ITEMS:
        return True
    return _role(item) in _ROLES and any(key in item for key in _CONTENT_KEYS)


def _role(item: dict[str, Any]) -> str | None:
    """Return the role of a message; LangChain writes it into `type`."""
    kind = text(item.get("type"))
    return text(item.get("role")) or (kind if kind in _ROLES else None)


def _unwrapped(item: dict[str, Any]) -> dict[str, Any]:
    """Return a message without LangChain's envelope, which has its fields in `data` or `kwargs`."""
    for key in ("data", "kwargs"):
        inner = item.get(key)
        if is_object(inner) and "content" in inner and "content" not in item:
            return {**inner, "type": inner.get("type") or item.get("type")}
    return item


def is_turn(item: Any) -> bool:
    """Return whether an object is a message of a group chat: it has content and a speaker."""
    return is_object(item) and "content" in item and bool(_speaker(item))


def _speaker(item: dict[str, Any]) -> str:
    """Return who wrote a message: the first of its names that says more than an API's role."""
    named = [name for key in _SPEAKER_KEYS if (name := identifier(item.get(key)))]
    named += [role for role in (_role(item),) if role]
    return next((name for name in named if name.lower() not in _ROLES), "".join(named[:1]))


def matches(document: Any) -> bool:
    """Return whether a document is a conversation, or holds some."""
    found = first_object(document)
    if found is None:
        return False
    return is_message(found) or is_turn(found) or _messages(found) is not None


def _is_group_chat(raw: list[Any]) -> bool:
    """Return whether several agents speak: a role that no API has, or several names."""
    turns = [item for item in raw if is_turn(item)]
    roles = {_role(item) for item in turns}
    names = {
        (role, name)
        for item in turns
        if (name := _speaker(item)) not in _ROLES and (role := _role(item)) not in _TOOLS
    }
    if any(role is not None and role not in _ROLES for role in roles):
        return True
    if any(role is None or (role == "user" and _PROGRAM.search(name)) for role, name in names):
        return True
    # One name per role is a user and an assistant who have names.
    return len({name for _, name in names}) > max(1, len({role for role, _ in names}))


def read(document: Any, out: Collector) -> None:
    """Read one conversation (a list of messages or an object with them) or a list of objects."""
    if is_object(document) and (is_message(document) or is_turn(document)):
        document = [document]
    if is_array(document) and any(is_message(item) or is_turn(item) for item in document):
        _read_conversation("", document, {}, out)
        return
    for place, item in items(document):
        messages = _messages(item) if is_object(item) else None
        if messages is None:
            out.problem(place, f"conversation has no messages: it is {kind_of(item)}")
        else:
            dot = f"{place}." if place else ""
            key, found = messages
            _read_conversation(f"{dot}{key}", found, _facts(item, key), out)


def _messages(item: dict[str, Any], depth: int = 0) -> tuple[str, list[Any]] | None:
    """Return the list of messages in an object, or in an object inside it, with its place."""
    for key in _LIST_KEYS:
        found = parsed(item.get(key))
        if is_array(found) and len(found) == 1 and is_array(found[0]):
            found = found[0]
        if is_array(found) and any(is_message(item) or is_turn(item) for item in found):
            return key, found
    if depth < _DEEPEST:
        for key, value in item.items():
            if is_object(value) and (inside := _messages(value, depth + 1)) is not None:
                return f"{key}.{inside[0]}", inside[1]
    return None


def _facts(item: dict[str, Any], place: str) -> dict[str, Any]:
    """Return what an object, and those between it and its messages, say besides them."""
    key, _, rest = place.partition(".")
    facts = {name: value for name, value in item.items() if name != key}
    return {**facts, **_facts(item[key], rest)} if rest else facts


def _read_conversation(place: str, raw: list[Any], facts: dict[str, Any], out: Collector) -> None:
    trace_id = text(facts.get("trace_id")) or content_id([raw, facts], len(out.traces))
    conversation = _Conversation(trace_id, text(facts.get("model")))
    raw = [_unwrapped(item) if is_object(item) else item for item in raw]
    chat = _is_group_chat(raw)
    if chat:
        conversation.speakers = _without_remarks({_speaker(item) for item in raw if is_turn(item)})
    dropped = 0
    for position, item in enumerate(raw):
        if not (is_message(item) or (chat and is_turn(item))):
            out.problem(f"{place}[{position}]", f"not a chat message but {kind_of(item)}")
            dropped += 1
            continue
        try:
            # A tool is no speaker: its results belong to the calls, in a group chat, too.
            if chat and is_turn(item) and _role(item) not in _TOOLS:
                conversation.add_turn(item, position)
            else:
                conversation.add(item)
        except MALFORMED as error:
            out.problem(f"{place}[{position}]", f"message not understood: {error}")
            dropped += 1
    trace = out.trace(trace_id)
    for span in conversation.finish():
        out.add(span)
    stated = next((facts[key] for key in _QUESTION_KEYS if text(facts.get(key))), None)
    trace.query = text(stated) if chat and stated is not None else conversation.root.input
    trace.response = conversation.answer
    if dropped:
        trace.problems.append(f"{dropped} of {len(raw)} messages were not read")
    trace.session_id = text(facts.get("session_id")) or text(facts.get("conversation_id"))
    trace.user_id = text(facts.get("user_id")) or text(facts.get("user"))
    trace.request_id = text(facts.get("request_id")) or text(facts.get("id"))
    known = ("trace_id", "model", "tools", "functions")
    trace.metadata.update({key: value for key, value in facts.items() if key not in known})


def _without_remarks(names: set[str]) -> dict[str, tuple[str, str]]:
    """Return the speaker and the remark of each name.

    `Orchestrator (thought)` is a remark if the speaker has others, or the remark is an address or a
    thought; `Planner (v2)` alone is a name.
    """
    split = {name: found for name in names if (found := _SPEAKER.match(name))}
    bare = Counter(found["name"].strip() for found in split.values())
    result = {name: (name.strip(), "") for name in names}
    for name, found in split.items():
        speaker, note = found["name"].strip(), found["note"] or ""
        if bare[speaker] > 1 or _REMARK.search(note):
            result[name] = (speaker, note)
    return result


def _with_calls(raw: dict[str, Any]) -> list[Message]:
    return [m for m in messages_from([{**raw, "role": "assistant"}]) if m.tool_calls]


class _Conversation:
    """Convert a conversation, message by message, into spans."""

    def __init__(self, trace_id: str, model: str | None) -> None:
        self.trace_id = trace_id
        self.model = model
        self.history: list[Message] = []
        self.answer: str | None = None
        self.clock = 0
        self.root = self._span(AGENT_NAME, SpanKind.AGENT, None)
        self.root.agent_name = AGENT_NAME
        self.spans: list[Span] = [self.root]
        self.open_calls: list[Span] = []
        self.speakers: dict[str, tuple[str, str]] = {}
        """Names as the log has them → the speaker and a remark about the message."""

    def add(self, raw: dict[str, Any]) -> None:
        """Add one raw message, which may hold several (results next to text)."""
        for message in messages_from([raw]):
            if message.role == "assistant":
                self._model_call(message, raw)
            elif message.role == "tool":
                self._tool_result(message)
            self.history.append(message)

    def add_turn(self, raw: dict[str, Any], index: int) -> None:
        """Add one message of a group chat: a span of its speaker, unless a user wrote it."""
        role = text(raw.get("role")) or ""
        speaker, note = self.speakers[_speaker(raw)]
        said = raw.get("content")
        if is_array(said) and all(isinstance(part, str) for part in said):
            said = "\n".join(said)
        if not is_array(said):
            # A number or an object is what the agent said, written as JSON.
            said = shown(said)
        content = "\n".join(
            m.content or "" for m in messages_from([{**raw, "role": "user", "content": said}])
        )
        if speaker.lower() in _PEOPLE:
            self.history.append(Message("system" if role == "system" else "user", content))
            return
        message = Message("assistant", content, name=speaker)
        for call in _with_calls(raw):
            message.tool_calls += call.tool_calls
        first = len(self.spans)
        self._model_call(message, raw)
        span = self.spans[first]
        span.agent_name, span.name = speaker, speaker
        span.attributes = {MESSAGE_INDEX: index, **({"role": role} if role else {})}
        to = _ADDRESSEE.search(note)
        span.handoff_to = to["name"] if to else None
        for tool in self.spans[first + 1 :]:
            tool.agent_name = speaker
        # To the next speaker this one is a user, as in the chat itself.
        self.history.append(Message("user", content, name=speaker))
        self.answer = content or self.answer

    def finish(self) -> list[Span]:
        """Return all spans; the agent span ends after the last of them."""
        self.root.end_ns = self.clock
        self.root.input = next(
            (m.content for m in self.history if m.role == "user" and m.name is None), None
        )
        self.root.output = self.answer
        return self.spans

    def _span(self, name: str, kind: SpanKind, parent: str | None) -> Span:
        span = Span(
            trace_id=self.trace_id,
            span_id=f"{self.clock + 1:016x}",
            parent_id=parent,
            name=name,
            kind=kind,
            start_ns=self.clock,
            end_ns=self.clock + 1,
        )
        self.clock += 1
        return span

    def _model_call(self, message: Message, raw: dict[str, Any]) -> None:
        response = mapping(raw.get("response_metadata"))  # LangChain
        model = text(raw.get("model")) or text(response.get("model_name")) or self.model
        span = self._span(f"chat {model}" if model else "chat", SpanKind.LLM, self.root.span_id)
        span.model = model
        span.input_messages = tuple(self.history[-_LONGEST_HISTORY:])
        span.output_messages = (message,)
        usage = raw.get("usage") or raw.get("usage_metadata")
        if is_object(usage):
            span.input_tokens = count(usage.get("prompt_tokens", usage.get("input_tokens")))
            span.output_tokens = count(usage.get("completion_tokens", usage.get("output_tokens")))
        self.spans.append(span)
        for call in message.tool_calls:
            tool = self._span(call.name, SpanKind.TOOL, self.root.span_id)
            tool.tool_name = call.name
            tool.tool_call_id = call.id
            tool.tool_input = call.arguments
            self.open_calls.append(tool)
            self.spans.append(tool)
        if message.content and not message.tool_calls:
            self.answer = message.content

    def _tool_result(self, message: Message) -> None:
        """Assign a result to the call it names, else to the first call without a result."""
        span = next((call for call in self.open_calls if _answers(message, call)), None)
        if span is None:
            # The transcript starts in the middle: its call is not part of it.
            span = self._span(message.name or "tool", SpanKind.TOOL, self.root.span_id)
            span.tool_name = message.name
            span.tool_call_id = message.tool_call_id
            self.spans.append(span)
        else:
            self.open_calls.remove(span)
        span.tool_output = parsed(message.content) if message.content is not None else ""


def _answers(result: Message, call: Span) -> bool:
    """Return whether a result fits a call: same id, or without ids the same name."""
    if result.tool_call_id is not None and call.tool_call_id is not None:
        return result.tool_call_id == call.tool_call_id
    return result.name is None or result.name == call.tool_name

"""What the metrics are told about: tool calls, and transcripts that hold them.

Promise: anything with `name`, `arguments` and `span_id` is a call, so traces, specs and plain
tuples all fit. Transcripts may be the chat messages models speak, as mappings or as objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard, cast

from proctor.errors import ProctorError


class CallLike(Protocol):
    """One tool call, whoever recorded it."""

    @property
    def name(self) -> str:
        """The tool."""
        ...

    @property
    def arguments(self) -> Any:
        """What it was called with: a mapping, or the JSON text of one."""
        ...

    @property
    def span_id(self) -> str | None:
        """Where it was seen; None when it was not recorded but written down."""
        ...


class Call(NamedTuple):
    """The plainest call: enough to be matched and to be found again."""

    name: str
    arguments: Any = None
    span_id: str | None = None


class Turn(NamedTuple):
    """One message of a transcript, as far as matching looks at it."""

    role: str
    calls: tuple[CallLike, ...]


# Frameworks name the same two speakers differently; the words on the right are the API's.
_ROLES = {"ai": "assistant", "human": "user", "model": "assistant", "function": "tool"}


def turns_of(messages: Iterable[Any]) -> list[Turn]:
    """The turns of a transcript: chat messages as mappings or as objects with those fields."""
    turns: list[Turn] = []
    for position, message in enumerate(messages):
        role, calls = _role_and_calls(message)
        if not isinstance(role, str):
            raise ProctorError(
                "a message of a transcript has a `role`",
                where=f"message {position + 1}",
                hint="give chat messages: {role: assistant, content: …, tool_calls: […]}",
            )
        found = tuple([_call(call, position) for call in calls]) if calls else ()
        turns.append(Turn(_ROLES.get(role, role), found))
    return turns


def calls_of(messages: Iterable[Any]) -> list[CallLike]:
    """Every tool call a transcript asks for, in order."""
    found: list[CallLike] = []
    for position, message in enumerate(messages):
        calls = _role_and_calls(message)[1]
        if calls:
            found += [_call(call, position) for call in calls]
    return found


def names_of(calls: Sequence[CallLike]) -> list[str]:
    """The tools called, in order, repeats kept."""
    return [call.name for call in calls]


def _role_and_calls(message: Any) -> tuple[Any, Iterable[Any] | None]:
    if _is_mapping(message):
        role = message.get("role") or message.get("type")
        calls, content = message.get("tool_calls"), message.get("content")
    else:
        role = getattr(message, "role", None) or getattr(message, "type", None)
        calls, content = getattr(message, "tool_calls", None), getattr(message, "content", None)
    return role, calls or (_blocks(cast("list[Any]", content)) if type(content) is list else None)


def _blocks(content: list[Any]) -> list[Any]:
    """The calls among the blocks of a message, as Anthropic writes them."""
    return [block for block in content if _is_mapping(block) and block.get("type") == "tool_use"]


def _is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, (dict, Mapping))  # the first is seen at once, the second searched


def _call(call: Any, position: int) -> CallLike:
    if not _is_mapping(call):
        return call
    source = call.get("function")
    if not _is_mapping(source):
        source = call
    name = source.get("name")
    if not isinstance(name, str):
        raise ProctorError("a tool call has a `name`", where=f"message {position + 1}")
    # OpenAI writes `arguments`, LangChain `args`, Anthropic `input`.
    arguments = source.get("arguments")
    if arguments is None:
        arguments = source.get("args", source.get("input"))
    return Call(name, arguments, call.get("span_id"))

"""Shared code of the four protocols: requests, token counts, stream chunks.

A protocol is a `Wire`: it writes a reply, plain or as server-sent events.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from proctor.llm.mock._script import Failure, Reply, ScriptedCall, ScriptRequest
from proctor.llm.protocols import mappings, request_messages
from proctor.trace import Message, ToolCall
from proctor.trace.conventions.values import parsed

CREATED = 1_700_000_000
"""Fixed timestamp of replies, so that two runs are equal byte for byte."""

# A common rule of thumb for English; only used where a script gives no usage.
_CHARS_PER_TOKEN = 4

_WORD = re.compile(r"\s*\S+|\s+$")


class ServerSentEvent(NamedTuple):
    """One server-sent event; `data` None is the end marker of OpenAI chat streams."""

    data: Mapping[str, Any] | None
    name: str | None = None

    def encoded(self, instead: str | None = None) -> bytes:
        """Return the encoded event, with other data if given."""
        head = f"event: {self.name}\n" if self.name else ""
        body = instead or ("[DONE]" if self.data is None else json.dumps(self.data))
        return f"{head}data: {body}\n\n".encode()


class Exchange(NamedTuple):
    """A request, its scripted reply, and its number, from which ids are made."""

    request: ScriptRequest
    reply: Reply
    serial: int

    @property
    def model(self) -> str:
        """Return the model that the reply names."""
        return self.reply.model or self.request.model

    @property
    def usage(self) -> tuple[int, int] | None:
        """Return the input and output tokens to report; None to report none."""
        reply = self.reply
        if reply.usage is False:
            return None
        if reply.usage is not None:
            return reply.usage.input, reply.usage.output
        calls = "".join(arguments_text(call.arguments) for call in reply.tool_calls)
        return estimate_tokens(self.request.text), estimate_tokens(reply.text + calls)

    def id(self, prefix: str) -> str:
        """Return an id that is the same on every run."""
        return f"{prefix}_mock{self.serial:06d}"

    @property
    def message(self) -> Message:
        """Return the reply as a message of the conversation."""
        calls = self.calls("call")
        return Message(
            "assistant",
            self.reply.text or None,
            tuple(ToolCall(c.name, parsed(c.arguments), call_id) for call_id, c in calls),
        )

    def calls(self, prefix: str) -> list[tuple[str, ScriptedCall]]:
        """Return the tool calls with their scripted ids, or ids derived from their positions."""
        calls = enumerate(self.reply.tool_calls)
        return [(call.id or f"{prefix}_{self.serial}_{index}", call) for index, call in calls]


class Wire(Protocol):
    """One protocol."""

    name: str

    def whole(self, exchange: Exchange) -> dict[str, Any]:
        """Return the reply as one JSON document."""
        ...

    def events(self, exchange: Exchange) -> Iterator[ServerSentEvent]:
        """Return the reply as a stream of events."""
        ...

    def error(self, failure: Failure) -> dict[str, Any]:
        """Return an error document of this protocol."""
        ...


def read(
    protocol: Wire, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> ScriptRequest:
    """A request in a common form."""
    # OpenAI chat completions nest a tool under its type, the other protocols do not.
    # Gemini lists several declarations in one.
    tools = [tool.get("function", tool) for tool in mappings(body.get("tools"))]
    declared = [
        each for tool in mappings(tools) for each in mappings(tool.get("functionDeclarations"))
    ]
    return ScriptRequest(
        protocol=protocol.name,
        path=path,
        model=str(body.get("model", "")),
        messages=request_messages(body),
        tools=tuple(str(tool.get("name", "")) for tool in declared or mappings(tools)),
        stream=bool(body.get("stream")),
        body=body,
        headers=headers,
    )


def estimate_tokens(text: str) -> int:
    """Return an estimated token count for replies without one: a quarter of the characters."""
    return -(-len(text) // _CHARS_PER_TOKEN)


def arguments_text(arguments: Any) -> str:
    """Return tool arguments as JSON text; a string is sent unchanged, valid or not."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def pieces(text: str) -> list[str]:
    """Split a text into stream chunks, one word each."""
    return _WORD.findall(text)


def embedding(text: str, dimensions: int) -> list[float]:
    """Return a unit vector that depends only on the text."""
    raw = b""
    for block in range(-(-dimensions // 32)):
        raw += hashlib.sha256(f"{block}:{text}".encode("utf-8", "surrogatepass")).digest()
    values = [byte / 127.5 - 1.0 for byte in raw[:dimensions]]
    norm = sum(value * value for value in values) ** 0.5 or 1.0
    return [value / norm for value in values]

"""The model protocol: one request in, one reply or one `ModelError` out.

Every provider is reduced to these few fields, so no other package depends on a client library.
Features outside of them (logprobs, provider options) are not supported.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from proctor.errors import ProctorError
from proctor.llm.retry import RATE_LIMITED, is_transient_status
from proctor.trace import Message, ToolCall

# Some gateways reply with a whole HTML page; an error should fit on one screen.
_MAX_ERROR_CHARS = 500


class Attachment(msgspec.Struct, frozen=True):
    """An image or another file that a message carries."""

    media_type: str
    data: bytes
    name: str = "file"

    @property
    def is_image(self) -> bool:
        """Return whether it is an image."""
        return self.media_type.startswith("image/")

    @property
    def data_url(self) -> str:
        """Return it as a `data:` URL."""
        return f"data:{self.media_type};base64,{base64.b64encode(self.data).decode('ascii')}"


class FileMessage(Message):
    """A message with files. Traces only name their types (`other`), because files may be large."""

    files: tuple[Attachment, ...] = ()

    @property
    def recorded(self) -> Message:
        """Return the message as a trace has it."""
        return Message(self.role, self.content, other=tuple(f.media_type for f in self.files))


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool the model may call; `schema` is the JSON Schema of its arguments."""

    name: str
    description: str = ""
    schema: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a model.

    `schema` requests a JSON object of that shape; models that cannot enforce one get it in the
    prompt, so callers still validate the text. `timeout` is in seconds for the whole call;
    `reasoning_effort` is minimal, low, medium or high, for models that reason.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    schema: dict[str, Any] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    timeout: float | None = 120.0
    reasoning_effort: str | None = None

    @classmethod
    def of(cls, text: str, *, system: str | None = None, **rest: Any) -> ChatRequest:
        """Return a request with one user message and an optional system message."""
        messages = (Message("user", text),)
        if system is not None:
            messages = (Message("system", system), *messages)
        return cls(messages=messages, **rest)


class TokenUsage(NamedTuple):
    """Tokens of one call, as the provider counted them. Unknown is None, never 0.

    `input_tokens` includes `cached_tokens` (read from a prompt cache) and `cache_write_tokens`.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class ChatReply(msgspec.Struct, frozen=True, kw_only=True):
    """Reply of a model. `cost_usd` is None if the price is unknown.

    `finish_reason` is `stop`, `length`, `tool_call`, `content_filter` or `error`.
    """

    text: str
    model: str
    tool_calls: tuple[ToolCall, ...] = ()
    usage: TokenUsage = TokenUsage()
    finish_reason: str | None = None
    cost_usd: float | None = None
    id: str | None = None


@runtime_checkable
class ChatModel(Protocol):
    """Protocol of a model.

    `name` is for display. `identity` identifies the model in caches: two models with the same
    identity are assumed to give the same answers.
    """

    @property
    def name(self) -> str:
        """Return the model name as the user wrote it."""
        ...

    @property
    def identity(self) -> str:
        """Return the model and its endpoint, stable between processes."""
        ...

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Make one call without retries; every failure is a `ModelError`."""
        ...


class ClosingModel:
    """Base of models that hold connections: `async with model:` closes them."""

    async def aclose(self) -> None:
        """Close the connections of the running event loop; the model can be used again."""

    async def __aenter__(self) -> ClosingModel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def parsed_arguments(value: Any) -> Any:
    """Return decoded JSON arguments of a tool call; a text that is not JSON stays as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


class ModelErrorKind(StrEnum):
    """Reason why a model call gave no usable reply."""

    RATE_LIMITED = "rate_limited"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    BAD_REPLY = "bad_reply"
    REFUSED = "refused"
    AUTH = "auth"
    SERVER = "server"


_PERMANENT_KINDS = (ModelErrorKind.BAD_REPLY, ModelErrorKind.REFUSED, ModelErrorKind.AUTH)


class ModelError(ProctorError):
    """Raised for a failed model call: an infrastructure error, never a verdict on an agent.

    `transient` says whether a retry may help, `retry_after` is the delay in seconds requested by
    the provider.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: ModelErrorKind,
        model: str | None = None,
        status: int | None = None,
        retry_after: float | None = None,
        transient: bool | None = None,
        hint: str | None = None,
    ) -> None:
        shown = " ".join(message.split())
        if len(shown) > _MAX_ERROR_CHARS:
            shown = shown[:_MAX_ERROR_CHARS] + "…"
        super().__init__(shown, where=model, hint=hint)
        self.kind = kind
        self.status = status
        self.retry_after = retry_after
        if transient is None:
            permanent = kind in _PERMANENT_KINDS
            transient = not permanent if status is None else is_transient_status(status)
        self.transient = transient


def kind_of_status(status: int) -> ModelErrorKind:
    """Return the kind of failure of an HTTP status."""
    if status in (401, 403):
        return ModelErrorKind.AUTH
    if status == RATE_LIMITED:
        return ModelErrorKind.RATE_LIMITED
    if status in (408, 504):
        return ModelErrorKind.TIMEOUT
    return ModelErrorKind.SERVER if status >= 500 else ModelErrorKind.REFUSED


# Usage of model calls, summed up.  An unknown sum is None and never 0; calls without a known price
# are counted next to the cost.


@dataclass(frozen=True, slots=True)
class ModelUse:
    """Usage of model calls. `unpriced` calls are not in `cost_usd`; unknown values are None.

    `calls` counts replies received, including repairs; `cached` replies cost nothing.
    """

    calls: int = 0
    cached: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    unpriced: int = 0

    @classmethod
    def of(cls, replies: Iterable[ChatReply]) -> ModelUse:
        """Return the usage of these replies."""
        total = NOTHING
        for reply in replies:
            total += cls(
                calls=1,
                input_tokens=reply.usage.input_tokens,
                output_tokens=reply.usage.output_tokens,
                cost_usd=reply.cost_usd,
                unpriced=int(reply.cost_usd is None),
            )
        return total

    def __add__(self, other: ModelUse) -> ModelUse:
        """Return the sum of both."""
        return ModelUse(
            self.calls + other.calls,
            self.cached + other.cached,
            _plus(self.input_tokens, other.input_tokens),
            _plus(self.output_tokens, other.output_tokens),
            _plus(self.cost_usd, other.cost_usd),
            self.unpriced + other.unpriced,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


NOTHING = ModelUse()
"""Usage without any model call."""


def _plus(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return a + b

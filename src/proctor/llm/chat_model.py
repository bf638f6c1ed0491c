"""What a language model is to Proctor: one request in, one reply or one `ModelError` out.

Every provider is reduced to these few fields, so nothing above this room knows a client library.
What does not fit (images, logprobs, provider options) is left out rather than passed through.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from proctor.errors import ProctorError
from proctor.llm.retry import RATE_LIMITED, is_transient_status
from proctor.trace import Message, ToolCall

MAX_ERROR_CHARS = 500
"""Some gateways answer with a whole HTML page; an error is read on one screen."""


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool the model may call; `schema` is the JSON Schema of its arguments."""

    name: str
    description: str = ""
    schema: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One question to a model.

    `schema` asks for a JSON object of that shape; models that cannot enforce one are told it in
    words, so callers still validate the text. `timeout` is in seconds for the whole call.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    schema: dict[str, Any] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    timeout: float | None = 120.0

    @classmethod
    def of(cls, text: str, *, system: str | None = None, **rest: Any) -> ChatRequest:
        """A request of one user message, with an optional system message before it."""
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
    """What a model answered. `cost_usd` is None when the price is not known.

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
    """Anything that answers a `ChatRequest`.

    `name` is for people. `identity` says which model answers, for caches: two models with the
    same identity are taken to give the same answers.
    """

    @property
    def name(self) -> str:
        """The model as the user wrote it."""
        ...

    @property
    def identity(self) -> str:
        """The model and where it runs, stable between processes."""
        ...

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Answer once, without retrying; whatever goes wrong is a `ModelError`."""
        ...


class ClosingModel:
    """Base of models that hold connections: `async with model:` closes them at the end."""

    async def aclose(self) -> None:
        """Close what is open in the running event loop; the model can be used again."""

    async def __aenter__(self) -> ClosingModel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class ModelErrorKind(StrEnum):
    """Why a model call gave no usable reply."""

    RATE_LIMITED = "rate_limited"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    BAD_REPLY = "bad_reply"
    REFUSED = "refused"
    AUTH = "auth"
    SERVER = "server"


_TRANSIENT_KINDS = frozenset(
    {
        ModelErrorKind.RATE_LIMITED,
        ModelErrorKind.TIMEOUT,
        ModelErrorKind.CONNECTION,
        ModelErrorKind.SERVER,
    }
)


class ModelError(ProctorError):
    """A model call that gave no usable reply: infrastructure, never a verdict on an agent.

    `transient` says whether the same call may work later, `retry_after` how many seconds the
    provider asked to wait.
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
        if len(shown) > MAX_ERROR_CHARS:
            shown = shown[:MAX_ERROR_CHARS] + "…"
        super().__init__(shown, where=model, hint=hint)
        self.kind = kind
        self.status = status
        self.retry_after = retry_after
        if transient is None:
            transient = kind in _TRANSIENT_KINDS if status is None else is_transient_status(status)
        self.transient = transient


def kind_of_status(status: int) -> ModelErrorKind:
    """The kind of failure that an HTTP status stands for."""
    if status in (401, 403):
        return ModelErrorKind.AUTH
    if status == RATE_LIMITED:
        return ModelErrorKind.RATE_LIMITED
    if status in (408, 504):
        return ModelErrorKind.TIMEOUT
    return ModelErrorKind.SERVER if status >= 500 else ModelErrorKind.REFUSED


# What asking models took, added up over calls.
#
# An unknown sum is None and never 0; calls without a known price are counted beside the cost.


@dataclass(frozen=True, slots=True)
class ModelUse:
    """What asking took. `unpriced` calls are not in `cost_usd`; what no reply told is None.

    `calls` counts replies received, repairs included; `cached` answers cost nothing now.
    """

    calls: int = 0
    cached: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    unpriced: int = 0

    @classmethod
    def of(cls, replies: Iterable[ChatReply]) -> ModelUse:
        """What these replies took."""
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
        """Both together."""
        return ModelUse(
            self.calls + other.calls,
            self.cached + other.cached,
            _plus(self.input_tokens, other.input_tokens),
            _plus(self.output_tokens, other.output_tokens),
            _plus(self.cost_usd, other.cost_usd),
            self.unpriced + other.unpriced,
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON keeps it."""
        return asdict(self)


NOTHING = ModelUse()
"""What an answer costs that nobody was asked about."""


def _plus(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return a + b

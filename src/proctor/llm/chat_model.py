"""The model protocol (one request in, one reply or one `ModelError` out), and a disk cache.

Every provider is reduced to these few fields, so no other package depends on a client library.
Features outside of them (logprobs, provider options) are not supported.

With the cache the same model call is paid for once. A file is complete or absent: it is written to
a temporary name, fsynced and renamed. An unreadable file is a miss, and the next result replaces
it. If the folder cannot be written, calls cost money again, but results stay correct.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

from proctor.errors import ProctorError
from proctor.files import replacing
from proctor.llm.retry import RATE_LIMITED, is_transient_status
from proctor.trace import Message, ToolCall
from proctor.user_dirs import user_folder

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

    def response_parts(self) -> list[dict[str, Any]]:
        """Return the content in the form of OpenAI's responses API."""
        parts: list[dict[str, Any]] = [{"type": "input_text", "text": self.content or ""}]
        for file in self.files:
            if file.is_image:
                parts.append({"type": "input_image", "image_url": file.data_url, "detail": "auto"})
            else:
                about = {"filename": file.name, "file_data": file.data_url}
                parts.append({"type": "input_file", **about})
        return parts

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


Thing = TypeVar("Thing")

# Prompts and answers are readable by this user only.
_PRIVATE = 0o600


class DiskCache(Generic[Thing]):
    """Cache of one type of value by the hash of its inputs.

    <folder>/
      3f/
        3f9a…64 hex digits….json
    """

    def __init__(self, folder: Path | str, kind: type[Thing]) -> None:
        self.folder = Path(folder)
        self._kind = kind

    def get(self, key: str) -> Thing | None:
        """Return the value of a key, or None if it is absent or unreadable."""
        try:
            return msgspec.json.decode(self._path(key).read_bytes(), type=self._kind)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def put(self, key: str, thing: Thing) -> None:
        """Store a value if the folder is writable."""
        path = self._path(key)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, mode=_PRIVATE) as aside:
                aside.write_bytes(msgspec.json.encode(thing))

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def request_key(identity: str, request: ChatRequest, prompt: object) -> str:
    """Return the SHA-256 of everything an answer depends on; the timeout is left out.

    `prompt` is the version of the prompt template.
    """
    # A field added here invalidates every cached answer.
    inputs: dict[str, Any] = {
        "prompt": prompt,
        "model": identity,
        "messages": request.messages,
        "schema": request.schema,
        "temperature": request.temperature,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
    }
    if request.reasoning_effort is not None:
        inputs["reasoning_effort"] = request.reasoning_effort
    return hashlib.sha256(msgspec.json.encode(inputs, order="deterministic")).hexdigest()


def cache_folder(name: str) -> Path:
    """Return the folder of one kind of values in the user's cache."""
    return user_folder("cache", name)

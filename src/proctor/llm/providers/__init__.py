"""Create a `ChatModel` for a model's name: over HTTP, or with litellm for `litellm/...`.

Both are imported at the first call; a missing litellm is reported in one line with the pip command.
Keys come from the environment only: options hold the name of a variable, never a value.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from proctor.errors import ProctorError
from proctor.llm.cassette import STAND_IN, replaying
from proctor.llm.chat_model import ChatReply, ClosingModel, ModelError, ModelErrorKind, TokenUsage
from proctor.llm.prices import cost_usd
from proctor.trace import Span, SpanKind, SpanStatus, ToolCall

if TYPE_CHECKING:
    from proctor.llm.chat_model import ChatModel, ChatRequest
    from proctor.llm.prices import PriceTable
    from proctor.llm.protocols import Protocol

__all__ = [
    "get_model",
]


LITELLM_PREFIX = "litellm/"


class ProviderOptions(NamedTuple):
    """Options of `get_model` besides the name."""

    base_url: str | None
    api_key_env: str | None
    prices: PriceTable | None
    identity: str | None


def is_model_name(name: str) -> bool:
    """Return whether a name has a provider and a model."""
    return name.startswith(LITELLM_PREFIX) or all(_provider_and_model(name))


def _provider_and_model(name: str) -> tuple[str, str]:
    """Split `openai:gpt-5` or, as other tools write it, `openai/gpt-5`; empty if it is neither."""
    # A colon first: names of models contain slashes (`openrouter:meta/llama`).
    mark = ":" if ":" in name else "/"
    provider, _, model = name.partition(mark)
    return provider, model


def get_model(
    name: str,
    *,
    base_url: str | None = None,
    api_key_env: str | None = None,
    prices: PriceTable | None = None,
    identity: str | None = None,
) -> ChatModel:
    """Return the model of a name such as `openai:gpt-4o-mini`, `anthropic:claude-sonnet-4-5`.

    With `base_url`, `openai:NAME` is any OpenAI-compatible chat completions endpoint; the
    provider's standard key is then not sent, because the endpoint may belong to a third party: name
    the variable of its key in `api_key_env`. `litellm/PROVIDER/NAME` uses litellm. `identity`
    overrides the model's identity in caches.
    """
    options = ProviderOptions(base_url, api_key_env, prices, identity)
    if name.startswith(LITELLM_PREFIX):
        from proctor.llm.providers._litellm import LiteModel

        return LiteModel(name.removeprefix(LITELLM_PREFIX), options)
    if not is_model_name(name):
        raise ProctorError(
            f"{name!r} is not a model name",
            hint="write PROVIDER:MODEL, such as openai:gpt-4o-mini or "
            "anthropic:claude-sonnet-4-5, or litellm/PROVIDER/MODEL",
        )
    from proctor.llm.providers._http import HttpModel

    return HttpModel(*_provider_and_model(name), options)


# API keys are read from the environment when needed and never stored.


def key_from(variable: str | None, model: str) -> str | None:
    """Return the key in an environment variable; None if no variable is named.

    Replayed calls need no key: see `STAND_IN`.
    """
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key and replaying():
        return STAND_IN
    if not key:
        raise ModelError(
            f"the environment variable {variable} is not set",
            kind=ModelErrorKind.AUTH,
            model=model,
            hint=f"export {variable}=... with the key of the model's provider",
        )
    return key


# Shared base of models: identity, errors and prices.  A subclass only calls its client library.


class NamedModel(ClosingModel):
    """A model by name, optionally at a custom endpoint."""

    def __init__(self, model: str, options: ProviderOptions) -> None:
        self._model = model
        self._base_url, self._api_key_env, self._prices, self._identity = options

    @property
    def name(self) -> str:
        """Return the model name as the user wrote it."""
        return self._model

    @property
    def identity(self) -> str:
        """Return the model and its endpoint, stable between processes."""
        if self._identity is not None:
            return self._identity
        return self.name if self._base_url is None else f"{self.name} at {self._base_url}"

    def check(self) -> None:
        """Raise if a call could not be made: no such provider, client library or key."""
        key_from(self._api_key_env, self.name)

    def _too_late(self, request: ChatRequest) -> ModelError:
        return ModelError(
            f"no reply within {request.timeout:g} s",
            kind=ModelErrorKind.TIMEOUT,
            model=self.name,
        )

    def _bad_reply(self, problem: str) -> ModelError:
        return ModelError(problem, kind=ModelErrorKind.BAD_REPLY, model=self.name)

    def _reply(
        self, protocol: Protocol, answered: dict[str, Any], provider: str | None, *names: str
    ) -> ChatReply:
        """Return a reply as its protocol writes it, priced by the model's names (see `_cost`)."""
        from proctor.llm.protocols import read_reply

        span = Span(span_id="", trace_id="", name="chat", kind=SpanKind.LLM, attributes={})
        read_reply(span, protocol, answered)
        if span.status is SpanStatus.ERROR:
            raise self._bad_reply(span.error_message or "an error instead of a reply")
        said = span.output_messages
        calls = [call for message in said for call in message.tool_calls]
        reasons: list[str] = span.attributes.get("gen_ai.response.finish_reasons", [])
        if not said and not reasons:
            raise self._bad_reply("the reply is empty, or has an unexpected shape")
        usage = TokenUsage()
        # Zero tokens mean that the provider reported none: unknown, not free.
        if span.input_tokens or span.output_tokens:
            cached = (
                span.attributes.get(f"gen_ai.usage.{kind}.input_tokens", 0)
                for kind in ("cache_read", "cache_creation")
            )
            usage = TokenUsage(span.input_tokens, span.output_tokens, *cached)
        finish = _FINISH.get(reasons[0].lower(), "error") if reasons else None
        if calls and finish in (None, "stop"):  # only some protocols report calls themselves
            finish = "tool_call"
        model = span.model or self._model
        return ChatReply(
            text="".join(message.content or "" for message in said),
            model=model,
            tool_calls=tuple(ToolCall(call.name, call.arguments or {}, call.id) for call in calls),
            usage=usage,
            finish_reason=finish,
            # A user's price is listed under the name in the suite, a published one under the dated
            # name of the reply.
            cost_usd=self._cost((*names, model), provider, usage),
            id=span.attributes.get("gen_ai.response.id"),
        )

    def _cost(self, names: Sequence[str], provider: str | None, usage: TokenUsage) -> float | None:
        """Return the dollars of a call; a user's price of any of the names wins, else the last."""
        own = next((n for n in names if self._prices and self._prices.find(n, provider)), None)
        # A third party's endpoint: its price is not the provider's.
        if own is None and self._base_url is not None:
            return None
        return cost_usd(own or names[-1], provider, **usage._asdict(), prices=self._prices)


# Why models stop, in the words of all protocols → ours.
_FINISH = {
    "stop": "stop", "end_turn": "stop", "stop_sequence": "stop", "completed": "stop",
    "length": "length", "max_tokens": "length", "max_output_tokens": "length",
    "tool_calls": "tool_call", "function_call": "tool_call", "tool_use": "tool_call",
    "content_filter": "content_filter", "refusal": "content_filter", "safety": "content_filter",
}  # fmt: skip

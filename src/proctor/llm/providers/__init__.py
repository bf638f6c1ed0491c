"""From a model's name to a `ChatModel`, through whichever client library is installed.

Client libraries are imported at the first call, not here, and their absence is one line with
the pip command. Keys come from the environment only: a name of a variable, never a value.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from proctor.errors import ProctorError
from proctor.llm.cassette import STAND_IN, replaying
from proctor.llm.chat_model import ClosingModel, ModelError, ModelErrorKind, TokenUsage
from proctor.llm.prices import cost_usd

if TYPE_CHECKING:
    from proctor.llm.chat_model import ChatModel, ChatRequest
    from proctor.llm.prices import PriceTable

__all__ = [
    "get_model",
]


LITELLM_PREFIX = "litellm/"


def is_model_name(name: str) -> bool:
    """Whether a name says whom to ask and for which model."""
    provider, colon, model = name.partition(":")
    return name.startswith(LITELLM_PREFIX) or bool(provider and colon and model)


def get_model(
    name: str,
    *,
    base_url: str | None = None,
    api_key_env: str | None = None,
    prices: PriceTable | None = None,
    identity: str | None = None,
) -> ChatModel:
    """The model of a name such as `openai:gpt-4o-mini`, `anthropic:claude-sonnet-4-5`.

    With `base_url`, `openai:NAME` is any endpoint that speaks OpenAI chat completions; the
    standard key of a provider is then not sent, since the endpoint may be someone else's: name
    the variable that holds its key in `api_key_env`. `litellm/PROVIDER/NAME` goes through
    litellm. `identity` overrides what caches take the model to be.
    """
    if name.startswith(LITELLM_PREFIX):
        from proctor.llm.providers.litellm import LiteModel

        return LiteModel(
            name.removeprefix(LITELLM_PREFIX),
            base_url=base_url,
            api_key_env=api_key_env,
            prices=prices,
            identity=identity,
        )
    if not is_model_name(name):
        raise ProctorError(
            f"{name!r} is not a model name",
            hint="write PROVIDER:MODEL, such as openai:gpt-4o-mini or "
            "anthropic:claude-sonnet-4-5, or litellm/PROVIDER/MODEL",
        )
    from proctor.llm.providers.pydantic_ai import DirectModel

    provider, _, model = name.partition(":")
    return DirectModel(
        provider,
        model,
        base_url=base_url,
        api_key_env=api_key_env,
        prices=prices,
        identity=identity,
    )


# API keys, read from the environment at the moment they are needed and kept nowhere.


def key_from(variable: str | None, model: str) -> str | None:
    """The key in an environment variable; None when no variable is named.

    Replayed calls do without: see `stand_in_keys`.
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


# What models behind every client library share: who they are, what failed, what a call costs.
#
# A subclass asks its library; how the answer is priced and how its troubles are called is here
# once.


UNREADABLE = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What client libraries run into when a gateway answers with some other JSON."""


class NamedModel(ClosingModel):
    """A model by its name, perhaps at an endpoint of the user's own."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key_env: str | None = None,
        prices: PriceTable | None = None,
        identity: str | None = None,
    ) -> None:
        self._model = model
        self._base_url = base_url
        self._api_key_env = api_key_env
        self._prices = prices
        self._identity = identity

    @property
    def name(self) -> str:
        """The model as the user wrote it."""
        return self._model

    @property
    def identity(self) -> str:
        """The model and where it runs, stable between processes."""
        if self._identity is not None:
            return self._identity
        return self.name if self._base_url is None else f"{self.name} at {self._base_url}"

    def _too_late(self, request: ChatRequest) -> ModelError:
        return ModelError(
            f"no reply within {request.timeout:g} s",
            kind=ModelErrorKind.TIMEOUT,
            model=self.name,
        )

    def _unreadable(self, error: Exception) -> ModelError:
        return ModelError(
            f"the reply has an unexpected shape ({type(error).__name__}: {error})",
            kind=ModelErrorKind.BAD_REPLY,
            model=self.name,
        )

    def _price(self, model: str, provider: str | None, usage: TokenUsage) -> float | None:
        return cost_usd(
            model,
            provider,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            prices=self._prices,
        )

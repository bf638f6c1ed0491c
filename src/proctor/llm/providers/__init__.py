"""From a model's name to a `ChatModel`, through whichever client library is installed.

Client libraries are imported at the first call, not here, and their absence is one line with
the pip command. Keys come from the environment only: a name of a variable, never a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.errors import ProctorError

if TYPE_CHECKING:
    from proctor.llm.base import ChatModel
    from proctor.llm.prices import PriceTable

__all__ = ["get_model"]

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
        from proctor.llm.providers.lite import LiteModel

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
    from proctor.llm.providers.direct import DirectModel

    provider, _, model = name.partition(":")
    return DirectModel(
        provider,
        model,
        base_url=base_url,
        api_key_env=api_key_env,
        prices=prices,
        identity=identity,
    )

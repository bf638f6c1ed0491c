"""What models behind every client library share: who they are, what failed, what a call costs.

A subclass asks its library; how the answer is priced and how its troubles are called is here once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.llm.base import ClosingModel, ModelError, ModelErrorKind, TokenUsage
from proctor.llm.prices import cost_usd

if TYPE_CHECKING:
    from proctor.llm.base import ChatRequest
    from proctor.llm.prices import PriceTable

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

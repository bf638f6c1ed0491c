"""What users write about the model gateway: upstream servers, limits of a trial, faults.

gateway:
  upstream: {openai: http://127.0.0.1:8000/v1}
  max_cost_usd: 0.50
  faults: {rate_limit: 0.1, slow: 0.2}
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from proctor.llm.retry import MAX_RETRIES
from proctor.strict import Strict

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Faults(Strict):
    """Shares of model calls that fail on purpose; drawn from the seed of the trial."""

    rate_limit: Share = 0.0
    """Answered with status 429 instead of being sent."""
    server_error: Share = 0.0
    """Answered with status 500 instead of being sent."""
    timeout: Share = 0.0
    """Held for `seconds`, then answered with status 504."""
    malformed: Share = 0.0
    """Sent, but only the first half of the response arrives, followed by what is not JSON."""
    slow: Share = 0.0
    """Sent after `seconds`."""
    seconds: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 5.0
    """How long slow calls and timeouts wait."""

    def shares(self) -> list[tuple[str, float]]:
        """Return the share of each fault, in the order in which they are drawn."""
        names = ("rate_limit", "server_error", "timeout", "malformed", "slow")
        return [(name, getattr(self, name)) for name in names]


class GatewayOptions(Strict):
    """How the model calls of an agent pass through the gateway."""

    upstream: dict[str, str] = Field(default_factory=dict[str, str])
    """Base URL of each provider: openai, anthropic, gemini, or any other name, which is then a part
    of the URL that the agent uses ({gateway}/NAME). By default the provider's own variable
    (OPENAI_BASE_URL, …), or else the provider's public address.
    """
    max_cost_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Dollars per trial. A call that might exceed it is not sent."""
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """Tokens per trial, input and output."""
    max_calls: Annotated[int, Field(ge=0)] | None = None
    """Model calls per trial."""
    retries: Annotated[int, Field(ge=0, le=10)] = MAX_RETRIES
    """How often a call is sent again after a rate limit, a server error or a lost connection."""
    faults: Faults | None = None

"""What users write about model calls: upstream servers, limits of a trial, faults, forks.

gateway:
  upstream: {openai: http://127.0.0.1:8000/v1}
  max_cost_usd: 0.50
  faults: {rate_limit: 0.1, slow: 0.2}
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from proctor.llm.retry import MAX_RETRIES
from proctor.sanitize import json_value
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


# -- forks: continue a recorded trial from a step -------------------------------------------------


class ForkCall(Strict):
    """A tool call that takes the place of the recorded one."""

    tool: str = Field(min_length=1)
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])


class ForkEdit(Strict):
    """What is different in a fork: one of these."""

    answer: str | None = None
    """Text that the model answers at the step."""
    call: ForkCall | None = None
    """Tool call that is made at the step."""
    result: Any = None
    """Result of the step's tool call."""
    hint: str | None = Field(default=None, min_length=1)
    """Message of the user that is added at the step."""
    remove: str | None = Field(default=None, min_length=1)
    """Text of a message that the model no longer sees from the step on."""
    system: str | None = None
    """System prompt from the step on."""
    model: str | None = Field(default=None, min_length=1)
    """Model from the step on."""
    temperature: float | None = Field(default=None, ge=0)
    """Temperature from the step on."""

    @model_validator(mode="after")
    def _one_change(self) -> Self:
        if len([name for name in type(self).model_fields if getattr(self, name) is not None]) != 1:
            raise ValueError("a fork changes one thing, to a value that is not null")
        return self

    @property
    def kind(self) -> str:
        """The name of what changes."""
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)

    def __str__(self) -> str:
        value = getattr(self, self.kind)
        if isinstance(value, ForkCall):
            return f"call {value.tool}({json.dumps(value.arguments, ensure_ascii=False)})"
        return f"{self.kind}: {value if isinstance(value, str) else json.dumps(json_value(value))}"


class ForkArm(Strict):
    """Where a fork begins, and what it changes."""

    step: int
    """The number of the first step that is not answered from the record, as diagnosis counts."""
    edit: ForkEdit | None = None


class ForkPoint(Strict):
    """The trial that a run continues, and the change of each of its agents."""

    run: str
    """Folder of the parent run."""
    trial: str
    """Name of the parent trial."""
    arms: dict[str, ForkArm]
    """By the name of the agent: the arms of a run are one agent under several names."""

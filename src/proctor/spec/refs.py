"""Who is under test and who judges, as a suite or the settings name them.

Short forms (a text, a function) become the long one before they are checked, so that the code
knows only one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from proctor.imports import IMPORT_PATH
from proctor.schema import Strict

if TYPE_CHECKING:
    from proctor.checks.judge import JudgeSettings


def _agent(value: Any) -> Any:
    if callable(value):
        return {"kind": "python", "target": f"{value.__module__}:{value.__qualname__}"}
    if not isinstance(value, str):
        return value
    if re.fullmatch(IMPORT_PATH, value):
        return {"kind": "python", "target": value}
    return {"name": value}


class AgentRef(Strict):
    """An agent under test: the name of a registered one, or a kind with its options.

    The options belong to the kind, and are held against it by whoever makes the agent.
    """

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(min_length=1)] | None = None
    """The name of an agent in the registry."""
    kind: Annotated[str, Field(min_length=1)] | None = None
    """How the agent is reached, such as `python`."""

    @model_validator(mode="after")
    def _one_way_to_find_it(self) -> AgentRef:
        if self.name is None and self.kind is None:
            raise ValueError("an agent is `package.module:name`, a registered name, or has a kind")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """What was written beside `kind` and `name`."""
        return dict(self.model_extra or {})

    def __str__(self) -> str:
        return self.name or str(
            self.options.get("target") or self.options.get("model") or self.kind
        )


Agent = Annotated[AgentRef, BeforeValidator(_agent, json_schema_input_type=str | AgentRef)]


def _judge(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


class JudgeConfig(Strict):
    """A language model that judges answers."""

    model_config = ConfigDict(protected_namespaces=())

    model: Annotated[str, Field(min_length=1)]
    """PROVIDER:MODEL, such as `openai:gpt-4o-mini`."""
    ensemble: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """More models that judge beside it; the majority decides."""
    votes: Annotated[int, Field(ge=1, le=99)] = 1
    """How often each model is asked; the median counts."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """0 for judgements that repeat; more only makes sense with several votes."""
    seed: int = 0
    """Votes differ by it."""
    max_tokens: Annotated[int, Field(ge=16)] = 2048
    """Room for one verdict."""
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 120.0
    """Seconds for one verdict."""
    retries: Annotated[int, Field(ge=0, le=20)] = 3
    """How often a failure that may pass is asked again."""
    base_url: str | None = None
    """An endpoint that speaks OpenAI chat completions."""
    api_key_env: str | None = None
    """The environment variable that holds the key of `base_url`."""
    cache: bool = True
    """Keep verdicts on disk, by content, and ask nothing twice."""

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that judges."""
        return (self.model, *self.ensemble)

    @property
    def settings(self) -> JudgeSettings:
        """How the models are asked."""
        from proctor.checks.judge import JudgeSettings

        return JudgeSettings(
            votes=self.votes,
            temperature=self.temperature,
            seed=self.seed,
            max_tokens=self.max_tokens,
            timeout=self.timeout,
            retries=self.retries,
        )


Judge = Annotated[JudgeConfig, BeforeValidator(_judge, json_schema_input_type=str | JudgeConfig)]

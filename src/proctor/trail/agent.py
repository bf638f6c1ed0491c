"""A detector as an agent under test: it is given a trace and answers with its diagnosis."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from pydantic import Field

from proctor.agents import threads
from proctor.agents.base import Agent, AgentConfig, AgentError, AgentReply, AgentRequest
from proctor.errors import ProctorError
from proctor.trace.capture import llm_call

if TYPE_CHECKING:
    from proctor.diagnose.llm.asked import Asking
    from proctor.diagnose.model import Diagnosis
    from proctor.llm.use import ModelUse
    from proctor.trace import Trace


class DiagnosisAgentConfig(AgentConfig):
    """Diagnoses the trace named in the case's input; answers in TRAIL's JSON."""

    kind: Literal["diagnosis"] = "diagnosis"
    method: str = "offline"
    """offline, rules, learned, single_pass or agentic."""
    model: str | None = None
    """PROVIDER:MODEL, for methods that ask one."""
    base_url: str | None = None
    """An endpoint that speaks the provider's protocol."""
    api_key_env: str | None = None
    """The environment variable that holds the key."""
    prompt_version: str = "v2"
    """The words a model is asked with."""
    evidence: Literal["strict", "off"] = "strict"
    """Whether a model's quotes must stand in their span."""
    limit: int = Field(default=120_000, ge=1000)
    """Characters of a trace in one prompt."""
    max_cost_usd: float | None = Field(default=None, gt=0)
    """Dollars for one trace at most."""

    def create(self) -> Agent:
        """A detector; the model's connections are shared."""
        return DiagnosisAgent(self)

    @cached_property
    def asking(self) -> Asking | None:
        """How a model is asked, for methods that ask one."""
        from proctor.diagnose.methods import asking, asks
        from proctor.llm.base import ChatReply
        from proctor.llm.kept import KeptFolder, cache_folder
        from proctor.llm.providers import get_model

        if not asks(self.method):
            return None
        model = self.model
        if model is not None:
            model = get_model(model, base_url=self.base_url, api_key_env=self.api_key_env)
        return asking(
            model,
            prompt_version=self.prompt_version,
            evidence=self.evidence,
            limit=self.limit,
            max_cost_usd=self.max_cost_usd,
            cache=KeptFolder(cache_folder("diagnose"), ChatReply),
        )

    @property
    def provider(self) -> str | None:
        """Whose rate limits its calls count against."""
        from proctor.llm.rates import provider_of

        return None if self.model is None else provider_of(self.model)

    def version(self) -> dict[str, Any]:
        """The method and, where one is asked, the model and its prompt."""
        asked = self.asking
        if asked is None:
            return {"method": self.method}
        return {
            "method": self.method,
            "model": asked.model.identity,
            "prompt_version": self.prompt_version,
        }


class DiagnosisAgent:
    """One look at one trace."""

    def __init__(self, config: DiagnosisAgentConfig) -> None:
        self._config = config

    async def run(self, request: AgentRequest) -> AgentReply:
        """Load the trace, diagnose it, answer with the findings."""
        from proctor.diagnose.methods import adiagnose, diagnose

        trace = await threads.shared.run(load_one, trace_path(request.input))
        if self._config.asking is None:
            # Pure computing: a thread keeps the loop free for the others.
            found: Diagnosis = await threads.shared.run(diagnose, trace, self._config.method)
        else:
            found = await adiagnose(trace, self._config.method, self._config.asking)
        if found.use is not None:
            _account(found.use, self._config.model)
        answer = msgspec.json.encode(found.to_dict()).decode()
        return AgentReply(answer=answer, output=found.to_dict())


def trace_path(value: Any) -> Path:
    """The file a case is about: its input, or the `trace` of its input."""
    path: Any = value.get("trace") if isinstance(value, dict) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    if not isinstance(path, str):
        raise AgentError("the case does not name a trace", hint="write `input: {trace: FILE}`")
    return Path(path)


def load_one(path: Path) -> Trace:
    """The only trace of a file."""
    from proctor.trace.load import load_traces

    try:
        traces = load_traces(path)
    except ProctorError as error:
        raise AgentError(error.message, where=error.where, hint=error.hint) from error
    if len(traces) != 1:
        raise AgentError(f"the file holds {len(traces)} traces, not one", where=str(path))
    return traces[0]


def _account(use: ModelUse, model: str | None) -> None:
    """One span for what the model was asked, so that the trial knows its tokens and its cost."""
    with llm_call(model, name="diagnose") as span:
        span.input_tokens, span.output_tokens = use.input_tokens, use.output_tokens
        span.cost_usd = use.cost_usd if not use.unpriced else None

"""Run pydantic-ai agents; their own instrumentation emits the spans through OpenTelemetry.

The agent itself is not changed: instrumentation with content is added to the one run.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, ClassVar, Literal

import msgspec

from proctor.agents._chat import opening
from proctor.agents.base import AgentReply, AgentRequest
from proctor.agents.frameworks import FrameworkAgentConfig, reply_of
from proctor.llm.chat_model import FileMessage


class PydanticAIAgentConfig(FrameworkAgentConfig):
    """A `pydantic_ai.Agent`."""

    kind: Literal["pydantic_ai"] = "pydantic_ai"
    deps: str | None = None
    """`module:name` of the run's dependencies; a class or function is called for each trial."""

    package: ClassVar[str] = "pydantic_ai"
    requirement: ClassVar[str] = "pydantic-ai-slim>=1.0"

    def instance(self) -> Any:
        """Return the agent for one trial."""
        agent = super().instance()
        framework: Any = importlib.import_module("pydantic_ai.agent")
        if not isinstance(agent, framework.AbstractAgent):
            raise self.refuse(agent, "a pydantic_ai.Agent")
        return agent

    def dependencies(self) -> Any:
        """Return the dependencies of the run."""
        if self.deps is None:
            return None
        from proctor.imports import load_object

        deps = load_object(self.deps, self.base_dir)
        return deps() if callable(deps) else deps

    async def run(self, request: AgentRequest) -> AgentReply:
        """Run the agent with spans enabled."""
        agent: Any = self.instance()
        value = request.input
        prompt: Any = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        messages = [] if isinstance(value, str) else opening(None, value)
        if len(messages) == 1 and isinstance(messages[0], FileMessage):
            from pydantic_ai import BinaryContent

            prompt = [messages[0].content or ""]
            prompt += [
                BinaryContent(file.data, media_type=file.media_type) for file in messages[0].files
            ]
        options: dict[str, Any] = _instrumented(agent)
        deps = self.dependencies()
        if deps is not None:
            options["deps"] = deps
        session = request.session
        if session is not None:
            options["message_history"] = session.memory.get(self.kind)
        result = await agent.run(prompt, **options)
        if session is not None:
            session.memory[self.kind] = result.all_messages()
        return reply_of(result.output)


def _instrumented(agent: Any) -> dict[str, Any]:
    """Return the run options that enable spans; versions before 2 have only a property."""
    if "capabilities" in inspect.signature(agent.run).parameters:
        from pydantic_ai.capabilities import Instrumentation

        return {"capabilities": [Instrumentation()]}
    if not agent.instrument:
        agent.instrument = True
    return {}

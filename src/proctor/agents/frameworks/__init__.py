"""Shared base of framework agents (an object by import path, a `SpanBook`), and pydantic-ai.

The object is used as it is, or created for each trial by a factory. Frameworks that emit
OpenTelemetry are captured that way, as pydantic-ai, whose instrumentation with content is added to
the one run; for the others `SpanBook` converts callbacks to spans. A missing framework is reported
in one line with the pip command.
"""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Hashable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, cast

from pydantic import Field, PrivateAttr

from proctor.agents._chat import opening
from proctor.agents.base import (
    AgentConfig,
    AgentError,
    AgentReply,
    AgentRequest,
    as_reply,
    as_text,
)
from proctor.errors import ProctorError
from proctor.imports import load_object
from proctor.llm.chat_model import FileMessage
from proctor.trace import Span, SpanKind, SpanStatus
from proctor.trace.capture import current_trace, new_span_id
from proctor.trace.model import EVERYTHING, Observable


class FrameworkAgentConfig(AgentConfig):
    """A framework object by import path."""

    target: str = Field(min_length=1)
    """`module:object`."""
    factory: bool = False
    """Call the target without arguments to create a new object for each trial."""
    base_dir: Path | None = Field(default=None, exclude=True)
    """Base folder of import paths: the suite's folder."""

    package: ClassVar[str] = ""
    """Name of the imported module."""
    requirement: ClassVar[str] = ""
    """Name of the installed package."""

    _object: Any = PrivateAttr(default=None)

    @classmethod
    def of(cls, target: Any, *, factory: bool = False) -> Self:
        """Wrap an existing object."""
        name = f"{type(target).__module__}:{type(target).__qualname__}"
        config = cls.model_validate({"target": name, "factory": factory})
        config._object = target  # noqa: SLF001 (our own)
        return config

    @property
    def unsupported(self) -> tuple[str, ...]:
        """Return what a framework does not pass to its tools."""
        return ("state", "approvals")

    @cached_property
    def loaded(self) -> Any:
        """Return the imported target, after checking that the framework is installed."""
        self.need_framework()
        if self._object is not None:
            return self._object
        return load_object(self.target, self.base_dir)

    @property
    def made_in_code(self) -> bool:
        """Return whether it wraps an existing object."""
        return self._object is not None

    @property
    def observes(self) -> tuple[Observable, ...]:
        """Return everything: the framework's own steps are captured."""
        return EVERYTHING

    def need_framework(self) -> None:
        """Raise an error with the pip command if the framework is missing."""
        try:
            importlib.import_module(self.package)
        except ImportError as error:
            raise AgentError(
                f"agents of kind {self.kind} need {self.requirement}, which is not installed",
                category="",
                hint=f'pip install "{self.requirement}"',
            ) from error

    def instance(self) -> Any:
        """Return the object for one trial."""
        return self.loaded() if self.factory else self.loaded

    def check(self) -> None:
        """Raise if the framework or the target is missing, or the target is of another type."""
        self.instance()

    def refuse(self, target: Any, wanted: str) -> ProctorError:
        """Return the error for a target of the wrong type."""
        hint = "set `factory: true` if it makes one" if callable(target) else None
        name = type(target).__name__
        article = "an" if name[:1].lower() in "aeiou" else "a"
        return ProctorError(f"{self.target} is not {wanted} but {article} {name}", hint=hint)

    def version(self) -> dict[str, Any]:
        """Return the import path and the version of the framework."""
        from importlib import metadata

        try:
            installed = metadata.version(self.requirement.partition(">")[0].partition("[")[0])
        except metadata.PackageNotFoundError:
            installed = None
        return {"target": self.target, self.package: installed}


def reply_of(output: Any) -> AgentReply:
    """Return the reply for a framework's output: text, a pydantic model, a dataclass, anything."""
    dump = getattr(output, "model_dump", None)
    if callable(dump) and not inspect.isclass(output):
        output = dump(mode="json")
    return as_reply(output)


class SpanBook:
    """Record a framework's steps as spans of the captured trace, by the framework's own ids.

    A step without a known parent is attached to the agent's span. Steps are recorded when they
    start, so that the trace of an interrupted trial shows how far it got.
    """

    def __init__(self) -> None:
        self._trace = current_trace()
        self._root = self._trace.spans[0].span_id if self._trace is not None else None
        self._spans: dict[Hashable, Span] = {}
        self._aliases: dict[Hashable, Hashable] = {}

    def skip(self, key: Hashable, parent: Hashable) -> None:
        """Skip a step: its children are attached to its parent."""
        self._aliases[key] = parent

    def begin(
        self, key: Hashable, parent: Hashable, name: str, kind: SpanKind, **fields: Any
    ) -> Span:
        """Start a step."""
        # A bound on the steps, because ids come from the framework and could form a cycle.
        for _ in range(len(self._aliases)):
            if parent not in self._aliases:
                break
            parent = self._aliases[parent]
        above = self._spans.get(parent)
        span = Span(
            span_id=new_span_id(),
            trace_id=self._trace.trace_id if self._trace is not None else "",
            parent_id=self._root if above is None else above.span_id,
            name=name,
            kind=kind,
            start_ns=time.time_ns(),
            **fields,
        )
        self._spans[key] = span
        if self._trace is not None:
            self._trace.spans.append(span)
        return span

    def end(self, key: Hashable) -> Span | None:
        """End a step; return the span for its result, or None if it was skipped."""
        span = self._spans.get(key)
        if span is not None:
            # The wall clock may be set back during a step.
            span.end_ns = max(time.time_ns(), span.start_ns)
        return span

    def fail(self, key: Hashable, kind: str, message: str) -> None:
        """End a step with an error."""
        span = self.end(key)
        if span is not None:
            span.status = SpanStatus.ERROR
            span.error_type = kind
            span.error_message = message


def token_count(value: Any) -> int | None:
    """Return a token count; None if it is not a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


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
        prompt: Any = as_text(value)
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

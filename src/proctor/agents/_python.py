"""Run a Python callable: `module:function`, a class, or the object itself.

The callable takes only the input or, by name, any of input, seed, workdir, workspace, params,
checkpoint, request, history, state, session; a first argument of any other name is the input. It
may be plain (run in a thread) or async. Of a class, each trial calls an instance of its own, or the
instance's method `run`. In a conversation it is called for each turn: a function
takes `history`, a class keeps its own state, since one instance has the whole conversation.
`isolation: process` gives every trial its own process.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec
from pydantic import Field, PrivateAttr

from proctor.agents.base import Agent, AgentConfig, AgentError, AgentReply, AgentRequest, as_reply
from proctor.background import threads
from proctor.errors import ProctorError
from proctor.imports import load_object
from proctor.trace.capture import records_tools
from proctor.trace.model import Observable

# Hex digits of a file's digest: enough to make a collision by chance practically impossible.
DIGEST = 16

_BY_NAME = (
    "input", "seed", "workdir", "workspace", "params", "checkpoint", "request", "history", "state",
    "session",
)  # fmt: skip


class PythonAgentConfig(AgentConfig):
    """A Python callable by import path."""

    kind: Literal["python"] = "python"
    target: str = Field(min_length=1)
    """`module:function`, `module:Class` or `module:factory` with `factory: true`."""
    factory: bool = False
    """Call the target without arguments to create a new agent for each trial."""
    isolation: Literal["none", "process"] = "none"
    """`process` runs each trial in its own process: a crash or a hang ends only that trial."""
    memory_mb: int | None = Field(default=None, ge=64)
    """Memory limit of a trial with `isolation: process`."""
    base_dir: Path | None = Field(default=None, exclude=True)
    """Base folder of import paths: the suite's folder."""

    has_process: ClassVar[bool] = True

    _callable: Any = PrivateAttr(default=None)

    def shown_in_sandbox(self) -> Sequence[Path]:
        """Return the agent's folder, and what Python and Proctor are made of."""
        import sys

        import proctor

        parts = [sys.prefix, sys.base_prefix, *map(Path, proctor.__path__), self.base_dir or "."]
        return [path for part in parts if (path := Path(part)).is_dir()]

    @classmethod
    def of(cls, function: Callable[..., Any], *, name: str | None = None) -> PythonAgentConfig:
        """Wrap an existing callable."""
        label = name or getattr(function, "__qualname__", type(function).__name__)
        module = getattr(function, "__module__", "__main__")
        config = cls(target=f"{module}:{label}")
        config._callable = function
        return config

    @cached_property
    def loaded(self) -> Any:
        """Return the target, imported once."""
        if self._callable is not None:
            return self._callable
        target = load_object(self.target, self.base_dir)
        if not callable(target):
            from proctor.agents.registry import kind_of_object

            kind = kind_of_object(target)
            raise ProctorError(
                f"{self.target} is not a function but an object of type {type(target).__name__}",
                hint=f"write {{kind: {kind}, target: {self.target}}}" if kind else None,
            )
        return target

    @property
    def unsupported(self) -> tuple[str, ...]:
        """Return what a process for a single turn cannot use."""
        own_process = self.isolation == "process" or self.sandbox
        return ("turns", "user", "state", "approvals") if own_process else ()

    @property
    def observes(self) -> tuple[Observable, ...]:
        """Return what is declared, and tool calls where its code records them."""
        # In a process of its own, the agent is not imported here; the child reports it.
        if self.isolation == "process" or self.sandbox or not records_tools(self.loaded):
            return self.observed
        return (*self.observed, "tool_calls", "arguments")

    @property
    def asynchronous(self) -> bool:
        """Return False for plain functions, which block their process."""
        return is_async(self.loaded)

    @property
    def made_in_code(self) -> bool:
        """Return whether it wraps an existing callable."""
        return self._callable is not None

    def create(self) -> Agent:
        """Create an agent; a class or factory target is called for a new instance."""
        return self._creator()

    @cached_property
    def _creator(self) -> Callable[[], Agent]:
        """Return the function behind `create`, resolved once."""
        if self.isolation == "process" or self.sandbox:
            from proctor.agents._process import ProcessAgent

            return partial(ProcessAgent, self)
        if self.factory or inspect.isclass(self.loaded):
            make = self.loaded

            def create_instance() -> Agent:
                function = _callable_of(make())
                return PythonAgent(function, _shape(function), is_async(function))

            return create_instance
        # The signature is read once: with 10,000 trials, `inspect` per trial is noticeable.
        return partial(PythonAgent, self.loaded, _shape(self.loaded), is_async(self.loaded))

    def version(self) -> dict[str, Any]:
        """Return the import path, the source file and its digest."""
        try:
            source = inspect.getsourcefile(self.loaded)
        except TypeError:
            source = None
        if source is None:
            return {"target": self.target, "source": None}
        try:
            digest = hashlib.sha256(Path(source).read_bytes()).hexdigest()[:DIGEST]
        except OSError:
            digest = None
        return {"target": self.target, "source": Path(source).name, "sha256": digest}


def _callable_of(instance: Any) -> Callable[..., Any]:
    """Return what to call of a new instance: itself, or its method `run`."""
    if callable(instance):
        return instance
    run = getattr(instance, "run", None)
    if not callable(run):
        raise AgentError(
            f"a {type(instance).__name__} cannot be called",
            hint="give its class a method `run` or `__call__` that takes the input",
        )
    return run


class _Shape(NamedTuple):
    """Signature of a callable: these parameters by name, and perhaps the input before them."""

    named: frozenset[str] = frozenset()
    input_first: bool = True


def _shape(function: Any) -> _Shape:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return _Shape()
    named = frozenset(name for name in parameters if name in _BY_NAME)
    if named and next(iter(parameters)) not in named and "input" not in named:
        return _Shape(named)
    return _Shape(named, input_first=False) if len(named) > 1 or "request" in named else _Shape()


class PythonAgent(msgspec.Struct, eq=False):
    """Agent that calls the callable once."""

    _function: Any
    _shape: _Shape
    _is_async: bool

    async def run(self, request: AgentRequest) -> AgentReply:
        """Call it: async callables here, plain ones in a thread."""
        function = self._function
        named, input_first = self._shape
        arguments = {name: _argument(name, request) for name in named} if named else {}
        first = (request.input,) if input_first else ()
        if self._is_async:
            value = await function(*first, **arguments)
        else:
            value = await threads.run(function, *first, **arguments)
        if isinstance(value, str):  # the common case, before the slower checks
            # Of a subclass, whose methods may do anything, only the text.
            return AgentReply(answer=str.__str__(value))
        if inspect.isawaitable(value):
            value = await value
        if inspect.isgenerator(value) or inspect.isasyncgen(value):
            raise AgentError("the agent returned a generator", hint="return the whole answer")
        return as_reply(value)


def is_async(function: Any) -> bool:
    """Return whether a function, or a callable object, is async."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (a bound __call__ may be async)
    )


def _argument(name: str, request: AgentRequest) -> Any:
    return request if name == "request" else getattr(request, name)

"""Tools of a chat agent: Python functions and mocks.

Guarantees: arguments are validated against the tool's schema before the call, and every failure in
a tool is a `ToolError` sent to the model, never the end of the trial. Mock calls are counted per
trial, so trials are independent.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import ArgsKwargs

from proctor.background import threads
from proctor.errors import ProctorError, did_you_mean
from proctor.imports import load_object
from proctor.llm.chat_model import ToolSpec
from proctor.seeds import derive_seed
from proctor.strict import Strict
from proctor.trace.capture import RECORDED, held_tool

if TYPE_CHECKING:
    from proctor.agents.session import AgentSession

NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}

STATE = "state"
"""Parameter of a tool that gets the data of its trial (`state:` of the case)."""

_ANSWERS = ("reply", "replies", "when", "error", "python")


class ToolError(Exception):
    """Raised for a failed tool call; the text is sent to the model."""


class ReplyWhen(Strict):
    """Mock reply to calls with certain arguments."""

    arguments: dict[str, Any]
    """Arguments that must be equal; a call may have others."""
    reply: Any = None
    """Result of the tool."""
    error: str | None = None
    """Error of the tool."""

    def matches(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether a call has these arguments."""
        return all(
            name in arguments and arguments[name] == value for name, value in self.arguments.items()
        )


class ToolConfig(Strict):
    """A tool the model may call."""

    model_config = ConfigDict(protected_namespaces=())

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,64}$")
    """Name shown to the model; default: the Python function's name."""
    description: str | None = None
    """Description shown to the model; default: the Python function's docstring."""
    parameters: dict[str, Any] | None = None
    """JSON Schema of the arguments; default: from the Python function's signature."""
    python: str | None = None
    """`module:function` to call, or `module:Class.method`: each trial has its own instance."""
    reply: Any = None
    """Result of a mock."""
    replies: list[Any] | None = Field(default=None, min_length=1)
    """Results of a mock's first, second, … call; the last one repeats. `{error: TEXT}` fails
    instead.
    """
    when: list[ReplyWhen] = Field(default_factory=list[ReplyWhen])
    """Replies by arguments; the first match wins, before any other reply."""
    error: str | None = None
    """Error of a mock."""
    approval: bool = False
    """Whether each call needs the approval of the case's approver (`approvals:`)."""
    faults: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    """Share of calls that fail on purpose, drawn from the seed of the trial."""

    @model_validator(mode="after")
    def _check_options(self) -> ToolConfig:
        # A record of all options has `when`, too, where it is empty.
        given = self.model_fields_set - (set[str]() if self.when else {"when"})
        set_keys = [key for key in _ANSWERS if key in given]
        if not set_keys:
            raise ValueError(f"a tool needs one of {', '.join(_ANSWERS)}")
        plain = [key for key in set_keys if key != "when"]
        if len(plain) > 1 or ("python" in set_keys and len(set_keys) > 1):
            raise ValueError(f"a tool has one kind of reply, not both {' and '.join(set_keys)}")
        if self.name is None and self.python is None:
            raise ValueError("a mock tool needs a name")
        if self.parameters is not None:
            from jsonschema import Draft202012Validator, SchemaError

            try:
                Draft202012Validator.check_schema(self.parameters)
            except SchemaError as error:
                raise ValueError(f"parameters is not a JSON Schema: {error.message}") from None
        return self

    def load(self, base_dir: Path | None) -> LoadedTool:
        """Return the tool with its function imported and its schema built."""
        if self.python is None:
            spec = ToolSpec(
                str(self.name), self.description or "", self.parameters or {**NO_ARGUMENTS}
            )
            return LoadedTool(spec, self, None)
        loaded = load_object(self.python, base_dir)
        if not callable(loaded):
            raise ProctorError(f"{self.python} cannot be called", where=self.python)
        # The agent records the call; a function that records itself would count it twice.
        function: Any = getattr(loaded, RECORDED, loaded)
        owner = _class_of_method(self.python, function, base_dir)
        # Without __init__, which is for the trials: only the signature is read here.
        called: Any = function
        if owner is not None:
            called = function.__get__(object.__new__(owner), owner)
        name = self.name or getattr(function, "__name__", "tool")
        described = self.description or inspect.getdoc(function) or ""
        schema = self.parameters or _schema_of(called, self.python)
        return LoadedTool(ToolSpec(name, described, schema), self, function, owner)


def _class_of_method(path: str, function: Any, base_dir: Path | None) -> type[Any] | None:
    """Return the class of a path such as `shop:Cart.add`; None for a function of its own."""
    above, dot, _ = path.rpartition(".")
    if not dot or ":" not in above or not inspect.isfunction(function):
        return None
    owner = load_object(above, base_dir)
    plain = inspect.isclass(owner) and not isinstance(
        inspect.getattr_static(owner, path.rpartition(".")[2]), staticmethod
    )
    return owner if plain else None


def _schema_of(function: Any, path: str) -> dict[str, Any]:
    try:
        schema = TypeAdapter(function).json_schema()
    except Exception as error:
        raise ProctorError(
            f"cannot derive a schema from its signature: {type(error).__name__}: {error}",
            where=path,
            hint="annotate its parameters with plain types, or write `parameters`",
        ) from error
    if schema.get("type") != "object":
        raise ProctorError(
            "a tool is called by parameter name, and this one has positional parameters only",
            where=path,
        )
    # Some providers reject an object schema without it.
    schema.setdefault("properties", {})
    # The trial's data is Proctor's to give, not the model's.
    if schema["properties"].pop(STATE, None) is not None and STATE in schema.get("required", ()):
        schema["required"].remove(STATE)
    return schema


class LoadedTool:
    """A loaded tool, shared between trials; it therefore holds no call counts."""

    def __init__(
        self, spec: ToolSpec, config: ToolConfig, function: Any, owner: type[Any] | None = None
    ) -> None:
        self.spec = spec
        self.config = config
        self.function = function
        self.owner = owner
        """The class of a method: each trial has an instance of its own."""

    @cached_property
    def _validator(self) -> Any:
        from jsonschema import Draft202012Validator

        return Draft202012Validator(self.spec.schema)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.function)

    @cached_property
    def takes_state(self) -> bool:
        """Return whether the function has a parameter for the data of its trial."""
        return self.function is not None and STATE in inspect.signature(self.function).parameters

    @property
    def owns_data(self) -> bool:
        """Return whether its calls change only what belongs to the trial: its data or instance."""
        return self.takes_state or self.owner is not None or self.function is None

    def accept(self, arguments: Any) -> dict[str, Any]:
        """Return the validated arguments of a call; raise `ToolError` if they are invalid."""
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            raise ToolError("the arguments are not a JSON object")
        first = next(iter(self._validator.iter_errors(arguments)), None)
        if first is not None:
            at = ".".join(str(step) for step in first.absolute_path)
            raise ToolError(f"invalid arguments: {at + ': ' if at else ''}{first.message}")
        return cast("dict[str, Any]", arguments)

    async def call(
        self, arguments: dict[str, Any], earlier: int, session: AgentSession | None
    ) -> Any:
        """Return the result of the tool after `earlier` calls in this trial."""
        if self.config.approval:
            asked = (False, "the case has no approver")
            if session is not None:
                asked = await session.approve(self.spec.name, arguments)
            if not asked[0]:
                raise ToolError(f"not approved: {asked[1]}" if asked[1] else "not approved")
        if self.function is not None:
            return await self._call_function(arguments, session)
        config = self.config
        for case in config.when:
            if case.matches(arguments):
                return _reply_or_error(case.reply, case.error)
        if config.replies is not None:
            reply = config.replies[min(earlier, len(config.replies) - 1)]
            fails = isinstance(reply, Mapping) and [*cast("dict[str, Any]", reply)] == ["error"]
            return _reply_or_error(reply, str(cast("Any", reply)["error"]) if fails else None)
        if "reply" not in config.model_fields_set and config.error is None:
            raise ToolError("no reply is defined for these arguments")
        return _reply_or_error(config.reply, config.error)

    async def _call_function(self, arguments: dict[str, Any], session: AgentSession | None) -> Any:
        validate = self._adapter.validate_python
        try:
            if self.takes_state:
                if session is None or session.state is None:
                    raise ToolError("the tool needs `state`, and the case has none")
                held = session.state

                def call_with_state() -> Any:
                    with held.opened() as state:
                        return validate(ArgsKwargs((), {**arguments, STATE: state}))

                if not inspect.iscoroutinefunction(self.function):
                    return await threads.run(call_with_state)
                with held.opened() as state:
                    return await validate(ArgsKwargs((), {**arguments, STATE: state}))
            call = ArgsKwargs((), arguments)
            # Async tools run on this loop, plain ones in a thread, where they may block.
            if inspect.iscoroutinefunction(self.function):
                return await validate(call)
            result = await threads.run(validate, call)
            return await result if inspect.isawaitable(result) else result
        except ToolError:
            raise
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            at = ".".join(str(step) for step in first["loc"])
            raise ToolError(f"invalid arguments: {at}: {first['msg']}") from error
        except Exception as error:
            raise ToolError(f"{type(error).__name__}: {error}") from error


def _reply_or_error(reply: Any, error: str | None) -> Any:
    if error is not None:
        raise ToolError(error)
    return reply


class ToolBox:
    """Tools of one trial, with the call count of each."""

    def __init__(
        self, tools: Sequence[LoadedTool], session: AgentSession | None = None, seed: int = 0
    ) -> None:
        self._session, self._seed = session, seed
        self.specs = tuple(tool.spec for tool in tools)
        """What the model is shown."""
        owners = dict.fromkeys(tool.owner for tool in tools if tool.owner is not None)
        instances = {owner: owner() for owner in owners}
        self._tools = {
            tool.spec.name: tool
            if tool.owner is None
            else LoadedTool(tool.spec, tool.config, tool.function.__get__(instances[tool.owner]))
            for tool in tools
        }
        self._calls: dict[str, int] = {}

    async def call(self, name: str, arguments: Any) -> Any:
        """Call a tool by name; every failure is a `ToolError`."""
        tool = self._tools.get(name)
        if tool is None:
            near = did_you_mean(name, self._tools)
            known = ", ".join(self._tools) or "none"
            raise ToolError(f"there is no tool {name!r}; {near or f'tools: {known}'}")
        # Counted before the arguments are validated: a rejected call is a call too.
        earlier = self._calls.get(name, 0)
        self._calls[name] = earlier + 1
        if (held := held_tool.get()) is not None:
            # A replayed trial: calls that change its own data are made again, to restore it.
            real: Any = held.output
            if tool.owns_data:
                with contextlib.suppress(ToolError):
                    real = await tool.call(tool.accept(arguments), earlier, self._session)
            elif tool.config.approval and self._session is not None:
                await self._session.approve(name, arguments)
            if held.error is not None:
                raise ToolError(held.error)
            return held.result(real)
        if tool.config.faults:
            draw = Random(derive_seed(self._seed, "fault", name, earlier)).random()  # noqa: S311
            if draw < tool.config.faults:
                raise ToolError("service unavailable")
        return await tool.call(tool.accept(arguments), earlier, self._session)

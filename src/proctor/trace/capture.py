"""Capture the steps of a block of Python code as a trace.

    with proctor.capture(query="…") as trace:
        trace.response = my_agent("…")

Guarantees: spans from the helpers here and from any OpenTelemetry instrumentation inside the block
form one tree; concurrent captures, in tasks or threads, never mix; an exception is recorded and
raised again. Our own spans are plain structs, not SDK spans, because they must cost microseconds;
the bridge in `otel` maintains both kinds in one context.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, copy_context
from pathlib import Path
from random import Random
from types import ModuleType, TracebackType
from typing import Any, NamedTuple, ParamSpec, TypedDict, TypeVar, Unpack, overload

import msgspec

from proctor.errors import refuse_unknown
from proctor.trace import otel
from proctor.trace.conventions import finish, normalise
from proctor.trace.model import Document, Message, Span, SpanKind, SpanStatus, Trace

P = ParamSpec("P")
R = TypeVar("R")
Clock = Callable[[], int]


# A private generator: agents seed the global one, which would make our ids repeat.
_ids = Random()  # noqa: S311 (ids need to differ, not to be secret)
# Forked workers would otherwise continue the same sequence of ids.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ids.seed)


def new_trace_id() -> str:
    """Return a random trace id in OpenTelemetry form: 32 hexadecimal digits."""
    return f"{_ids.getrandbits(128) or 1:032x}"


def new_span_id() -> str:
    """Return a random span id in OpenTelemetry form: 16 hexadecimal digits."""
    return f"{_ids.getrandbits(64) or 1:016x}"


class Recorder(otel.Sink):
    """A capture: a context manager with the trace it fills and the clock it reads.

    A class rather than a generator, which would cost 50 % more.
    """

    __slots__ = ("_name", "_tokens", "clock", "foreign", "root", "seen_error", "trace")

    def __init__(self, trace: Trace, name: str, clock: Clock) -> None:
        self.trace_ids = []
        self.trace = trace
        self.clock = clock
        self.foreign = False
        self.seen_error: BaseException | None = None
        self._name = name

    def add(self, span: Span) -> None:
        """Add a finished or open span; appending is atomic, so threads may share a capture."""
        self.trace.spans.append(span)

    def receive(self, span: Span) -> None:
        """Add a span received from an instrumentation to this capture."""
        # An instrumentation may start its own trace inside the capture; it becomes a subtree of
        # ours.
        if span.trace_id != self.trace.trace_id:
            span.trace_id = self.trace.trace_id
            span.parent_id = span.parent_id or self.root.span_id
        normalise(span)
        self.foreign = True
        self.add(span)

    def __enter__(self) -> Trace:
        trace = self.trace
        trace_id, span_id = trace.trace_id, new_span_id()
        self.root = Span(
            span_id=span_id,
            trace_id=trace_id,
            name=self._name,
            kind=SpanKind.AGENT,
            start_ns=self.clock(),
            input=trace.query,
        )
        trace.spans.append(self.root)
        otel.listen(trace_id, self)
        self._tokens = otel.enter(self, trace_id, span_id)
        return trace

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        root, trace = self.root, self.trace
        if error is not None:
            # A step that raised this error already carries it; a second span would count it twice.
            if self.seen_error is not error:
                _record_error(self, root, error)
            _fail(root, error)
        otel.leave(self._tokens)
        self.close()
        ended = self.clock()
        # Wall clocks can go back; a span never ends before it starts.
        root.end_ns = ended if ended > root.start_ns else root.start_ns
        if vars(trace):  # values cached while the block ran are out of date
            trace.forget()
        # Our own spans are already normalised; only foreign spans, or a missing answer, need a
        # pass.
        if self.foreign or trace.query is None or trace.response is None:
            finish(trace)
            trace.forget()
        if root.output is None:
            root.output = trace.response


def _current() -> tuple[Recorder, str] | None:
    """Return the current task's capture and the id of its current span."""
    place = otel.here.get()
    if place is None or not isinstance(place.sink, Recorder):
        return None
    return place.sink, place.span_id


class StepFields(TypedDict, total=False):
    """Span fields that every step can set from the start."""

    attributes: dict[str, Any]
    tool_name: str | None
    tool_call_id: str | None
    tool_input: Any
    tool_output: Any
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    agent_name: str | None
    handoff_to: str | None
    documents: tuple[Document, ...]
    input_messages: tuple[Message, ...]
    output_messages: tuple[Message, ...]
    input: Any
    output: Any


class SpanFields(StepFields, total=False):
    """Span fields; `Capture.llm_call` takes `model` as a separate parameter."""

    model: str | None


@contextmanager
def span(
    name: str, *, kind: SpanKind | str = SpanKind.CHAIN, **fields: Unpack[SpanFields]
) -> Generator[Span]:
    """Record a step of the current capture; set its results on the span it yields.

        with proctor.span("look up", input=question) as step:
            step.output = found = look_up(question)

    Outside any capture the block runs just the same and the span is dropped.
    """
    current = _current()
    recorder = None if current is None else current[0]
    clock = time.time_ns if recorder is None else recorder.clock
    step = Span(
        span_id=new_span_id(),
        trace_id=new_trace_id() if recorder is None else recorder.trace.trace_id,
        name=name,
        kind=SpanKind(kind),
        start_ns=clock(),
        **fields,
    )
    if current is None or recorder is None:
        yield step
        return
    # The innermost span may belong to an instrumentation rather than to us.
    step.parent_id = otel.innermost(step.trace_id) or current[1]
    # Added while open, so that a crash inside the step still leaves it in the trace.
    recorder.add(step)
    tokens = otel.enter(recorder, step.trace_id, step.span_id)
    try:
        yield step
    except BaseException as error:
        recorder.seen_error = error
        _fail(step, error)
        raise
    finally:
        otel.leave(tokens)
        step.end_ns = max(clock(), step.start_ns)


def _fail(step: Span, error: BaseException) -> None:
    step.status = SpanStatus.TIMEOUT if isinstance(error, TimeoutError) else SpanStatus.ERROR
    step.error_type = type(error).__name__
    step.error_message = str(error)


def _record_error(recorder: Recorder, parent: Span, error: BaseException) -> None:
    """Record an error that no step carries as its own span, so that it has a location."""
    now = recorder.clock()
    step = Span(
        span_id=new_span_id(),
        trace_id=parent.trace_id,
        parent_id=parent.span_id,
        name=type(error).__name__,
        kind=SpanKind.ERROR,
        start_ns=now,
        end_ns=now,
    )
    _fail(step, error)
    recorder.add(step)


# -- tool calls that a record answers -------------------------------------------------------------


class HeldTool(NamedTuple):
    """What takes the place of a tool call, or of its result, when a trial is replayed."""

    arguments: Mapping[str, Any] | None = None
    """Other arguments to call it with."""
    output: Any = None
    error: str | None = None
    settle: Callable[[Any], Any] | None = None
    """Returns the result to use, given the real one."""

    def result(self, live: Any) -> Any:
        """Return the result of a call that was made to restore what it changes."""
        return live if self.settle is None else self.settle(live)


ToolReplay = Callable[[str, Any], HeldTool | None]

tool_replay: ContextVar[ToolReplay | None] = ContextVar("proctor_tool_replay", default=None)
"""Takes the name and arguments of each tool call of a trial that is replayed."""

held_tool: ContextVar[HeldTool | None] = ContextVar("proctor_held_tool", default=None)
"""What the last tool call of this context is replaced by."""


# -- captures and their steps ------------------------------------------------------------------


class Capture:
    """Record a block of code as a trace, and the steps inside it (`proctor.capture`).

        with proctor.capture(query="…") as trace:
            with proctor.capture.llm_call("gpt-5", input_tokens=90) as step:
                step.output = trace.response = "…"

    Inside a trial Proctor has already opened the capture: agents only add steps. A step outside any
    capture runs its block and is dropped.
    """

    __slots__ = ("_around",)

    def __init__(
        self, around: Callable[[Trace], AbstractContextManager[None]] | None = None
    ) -> None:
        self._around = around
        """Observes the model calls of the block; it is entered first and left last."""

    def __call__(
        self,
        query: Any = None,
        *,
        name: str = "agent",
        trace_id: str | None = None,
        request_id: str | None = None,
        session_id: str | None = None,
        user_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        clock: Clock = time.time_ns,
    ) -> AbstractContextManager[Trace]:
        """Record everything done inside the block into the trace it yields.

        The trace grows while the block runs and is complete when it ends. Set `trace.response` to
        the final answer; by default it is derived from the last answer in the spans.
        """
        trace = Trace(
            trace_id=trace_id or new_trace_id(),
            query=query,
            request_id=request_id,
            session_id=session_id,
            user_id=user_id,
            metadata=dict(metadata) if metadata else {},
        )
        recorder = Recorder(trace, name, clock)
        return recorder if self._around is None else _observed(recorder, self._around)

    def tool_call(
        self, name: str, arguments: Any = None, *, call_id: str | None = None
    ) -> AbstractContextManager[Span]:
        """Record a tool call; set `tool_output` on the span it yields."""
        if (replay := tool_replay.get()) is not None:
            held_tool.set(held := replay(name, arguments))
            if held is not None and held.arguments is not None:
                arguments = {**held.arguments}
        step = span(
            name, kind=SpanKind.TOOL, tool_name=name, tool_input=arguments, tool_call_id=call_id
        )
        return _Step("tool_call", step)

    def llm_call(
        self, model: str | None = None, *, name: str = "chat", **fields: Unpack[StepFields]
    ) -> AbstractContextManager[Span]:
        """Record a model call; set `output_messages`, `input_tokens`, `output_tokens` on it."""
        return _Step("llm_call", span(name, kind=SpanKind.LLM, model=model, **fields))

    def retrieval(
        self,
        query: Any = None,
        *,
        name: str = "retrieve",
        documents: Iterable[str | Mapping[str, Any] | Document] | None = None,
        scores: Sequence[float] | None = None,
    ) -> AbstractContextManager[Span]:
        """Record a search for documents: give them here, or set `documents` on the span it yields.

        `scores` are their relevances, in the same order; they may be given without documents. A
        block that ends without documents found nothing.
        """
        return _Step("retrieval", _retrieval(name, query, _documents(documents, scores)))

    def handoff(self, to: str, *, from_agent: str | None = None) -> None:
        """Record a handoff from this agent to another."""
        with span(f"handoff to {to}", kind=SpanKind.HANDOFF, handoff_to=to, agent_name=from_agent):
            pass

    def planning(self, plan: Any) -> None:
        """Record the plan that the agent states."""
        with span("plan", kind=SpanKind.PLANNING, output=plan):
            pass


class _Step(AbstractContextManager[Span]):
    """A step of a capture, which warns where it was called without `with`: nothing is recorded."""

    __slots__ = ("_entered", "_name", "_span")

    def __init__(self, name: str, opened: AbstractContextManager[Span]) -> None:
        self._name, self._span, self._entered = name, opened, False

    def __enter__(self) -> Span:
        self._entered = True
        return self._span.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._span.__exit__(*error)

    def __del__(self) -> None:
        if not self._entered:
            message = f"nothing is recorded: write `with proctor.capture.{self._name}(…):`"
            warnings.warn(message, RuntimeWarning, stacklevel=2)


@contextmanager
def _observed(
    recorder: Recorder, around: Callable[[Trace], AbstractContextManager[None]]
) -> Generator[Trace]:
    with around(recorder.trace), recorder as trace:
        yield trace


@contextmanager
def _retrieval(name: str, query: Any, found: tuple[Document, ...]) -> Generator[Span]:
    with span(name, kind=SpanKind.RETRIEVAL, input=query, documents=found) as step:
        yield step
        # An empty list, which differs from "not recorded".
        if not step.documents and step.output is None:
            step.output = []


capture = Capture()


def _documents(
    given: Iterable[str | Mapping[str, Any] | Document] | None, scores: Sequence[float] | None
) -> tuple[Document, ...]:
    found = documents(given or ())
    if scores is None:
        return found
    if given is None:
        return tuple(Document(score=score) for score in scores)
    if len(found) != len(scores):
        raise ValueError(f"{len(scores)} scores for {len(found)} documents")
    return tuple(msgspec.structs.replace(d, score=s) for d, s in zip(found, scores, strict=True))


def documents(texts: Iterable[str | Mapping[str, Any] | Document]) -> tuple[Document, ...]:
    """Return documents from texts or mappings with id, text, score, metadata."""
    given = ({"text": item} if isinstance(item, str) else item for item in texts)
    found: list[Document] = []
    for item in given:
        if not isinstance(item, Document):
            refuse_unknown(item, Document.__struct_fields__, "documents")
            item = Document(**item)  # noqa: PLW2901 (the same document)
        found.append(item)
    return tuple(found)


@overload
def tool(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def tool(*, name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def tool(function: Any = None, /, *, name: str | None = None) -> Any:
    """Record every call of a function as a tool call: `@tool` or `@tool(name="search")`.

    Works on plain and async functions; arguments are recorded by parameter name. Agents of a
    module that defines or imports such functions count as observed: no call means none was made.
    """
    if function is None:
        return functools.partial(_as_tool, name=name)
    return _as_tool(function, name=name)


shared_state: ContextVar[Any] = ContextVar("proctor_shared_state", default=None)
"""The data that the tools of a trial share: handed to each call, so it is no argument of one."""

RECORDED = "__proctor_tool__"
"""Attribute of what `tool` returns: the plain function, for callers that record the call."""

_TOOL_MODULES: set[str] = set()
"""Modules that define tools with `tool`."""


def records_tools(target: Any) -> bool:
    """Return whether the module of a function or object defines or imports `tool` functions.

    Imports are followed within the package, or for a single file within its folder.
    """
    if not _TOOL_MODULES:
        return False
    while isinstance(target, functools.partial):
        target = target.func
    start = _module_of(target)
    if start is None:
        return False
    package, folder = start.__name__.partition(".")[0], _folder(start)
    seen, waiting = {start.__name__}, [start]
    while waiting:
        module = waiting.pop()
        if module.__name__ in _TOOL_MODULES:
            return True
        for value in list(vars(module).values()):
            other = value if isinstance(value, ModuleType) else _module_of(value)
            if other is None or other.__name__ in seen:
                continue
            seen.add(other.__name__)
            inside = other.__name__.partition(".")[0] == package
            if inside or (folder is not None and _folder(other) == folder):
                waiting.append(other)
    return False


def _module_of(value: Any) -> ModuleType | None:
    name = getattr(value, "__module__", None) or type(value).__module__
    return sys.modules.get(name) if isinstance(name, str) else None


def _folder(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).parent if isinstance(file, str) else None


def _as_tool(function: Callable[..., Any], *, name: str | None) -> Callable[..., Any]:
    called = name or getattr(function, "__name__", "tool")
    signature = inspect.signature(function)
    _TOOL_MODULES.add(function.__module__)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            # Outside a capture the decorator must cost next to nothing.
            if otel.here.get() is None:
                return await function(*args, **kwargs)
            with capture.tool_call(called, _arguments(signature, args, kwargs)) as step:
                if (held := held_tool.get()) is None:
                    step.tool_output = result = await function(*args, **kwargs)
                else:
                    args, kwargs = _replaced(held, signature, args, kwargs)
                    step.tool_output = result = held.result(await function(*args, **kwargs))
            return result

        setattr(call_async, RECORDED, function)
        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if otel.here.get() is None:
            return function(*args, **kwargs)
        with capture.tool_call(called, _arguments(signature, args, kwargs)) as step:
            if (held := held_tool.get()) is None:
                step.tool_output = result = function(*args, **kwargs)
            else:
                args, kwargs = _replaced(held, signature, args, kwargs)
                step.tool_output = result = held.result(function(*args, **kwargs))
        return result

    setattr(call, RECORDED, function)
    return call


def _replaced(
    held: HeldTool, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call, with those of the replay."""
    if held.arguments is None:
        return args, kwargs
    bound = signature.bind(*args, **kwargs)
    bound.arguments.update(held.arguments)
    return bound.args, bound.kwargs


def _arguments(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return arguments by parameter name; an invalid call is recorded as positional values."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return {"args": list(args), **kwargs}
    bound.apply_defaults()
    shared = shared_state.get()
    return {
        key: value
        for key, value in bound.arguments.items()
        if key != "self" and (value is None or value is not shared)
    }


def carry(function: Callable[P, R]) -> Callable[P, R]:
    """Bind a function to the current capture, to run it in another thread.

    `asyncio.to_thread` and tasks inherit the capture; a bare `Thread` or executor does not.
    """
    context = copy_context()

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # A context can be entered only once at a time, so each call needs its own copy.
        return context.copy().run(function, *args, **kwargs)

    return call


def current_trace() -> Trace | None:
    """Return the trace being captured, or None."""
    current = _current()
    return None if current is None else current[0].trace

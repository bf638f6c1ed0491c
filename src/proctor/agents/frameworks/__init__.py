"""What agents made with a framework have in common: an object by import path, and a span book.

The object is used as the user wrote it, or made afresh for each trial by a factory. Frameworks
that speak OpenTelemetry are captured by that; for the others `SpanBook` turns their callbacks into
spans. A framework that is not installed is one line with the pip command.
"""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from pydantic import Field, PrivateAttr

from proctor.agents.base import AgentConfig, AgentError, AgentReply, as_reply
from proctor.errors import ProctorError
from proctor.imports import load_object
from proctor.trace import Span, SpanKind, SpanStatus
from proctor.trace.capture import current_trace, new_span_id


class FrameworkAgentConfig(AgentConfig):
    """An object of a framework by import path."""

    target: str = Field(min_length=1)
    """`module:object`."""
    factory: bool = False
    """Call the target without arguments for a fresh object each trial."""
    base_dir: Path | None = Field(default=None, exclude=True)
    """Where import paths start from; the suite's folder."""

    package: ClassVar[str] = ""
    """What is imported."""
    requirement: ClassVar[str] = ""
    """What is installed."""

    _object: Any = PrivateAttr(default=None)

    @classmethod
    def of(cls, made: Any, *, factory: bool = False) -> Self:
        """An agent from an object at hand."""
        name = f"{type(made).__module__}:{type(made).__qualname__}"
        config = cls.model_validate({"target": name, "factory": factory})
        config._object = made  # noqa: SLF001 (our own)
        return config

    @cached_property
    def loaded(self) -> Any:
        """What the target names, once the framework is there."""
        self.need_framework()
        if self._object is not None:
            return self._object
        return load_object(self.target, self.base_dir)

    @property
    def made_in_code(self) -> bool:
        """Whether the object was at hand."""
        return self._object is not None

    def need_framework(self) -> None:
        """Raise the one line that says what to install."""
        try:
            importlib.import_module(self.package)
        except ImportError as error:
            raise AgentError(
                f"agents of kind {self.kind} need {self.requirement}, which is not installed",
                hint=f'pip install "{self.requirement}"',
            ) from error

    def instance(self) -> Any:
        """The object of one trial."""
        return self.loaded() if self.factory else self.loaded

    def refuse(self, found: Any, wanted: str) -> ProctorError:
        """What to say when the target is something else."""
        hint = "set `factory: true` if it makes one" if callable(found) else None
        return ProctorError(
            f"{self.target} is not {wanted} but {_a(type(found).__name__)}", hint=hint
        )

    def version(self) -> dict[str, Any]:
        """The import path and the version of the framework."""
        from importlib import metadata

        try:
            installed = metadata.version(self.requirement.partition(">")[0].partition("[")[0])
        except metadata.PackageNotFoundError:
            installed = None
        return {"target": self.target, self.package: installed}


def _a(word: str) -> str:
    return f"{'an' if word[:1].lower() in 'aeiou' else 'a'} {word}"


def reply_of(output: Any) -> AgentReply:
    """A reply from a framework's output: text, a pydantic model, a dataclass, anything."""
    dump = getattr(output, "model_dump", None)
    if callable(dump) and not inspect.isclass(output):
        output = dump(mode="json")
    return as_reply(output)


class SpanBook:
    """Spans of a framework's own steps, by the ids it gives them, in the trace being captured.

    A step without a known parent hangs where the agent runs. Steps are written down when they
    begin, so that a trial that is cut short shows how far it came.
    """

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._trace = current_trace()
        self._root = self._trace.spans[0].span_id if self._trace is not None else None
        self._spans: dict[Hashable, Span] = {}
        self._aliases: dict[Hashable, Hashable] = {}

    def skip(self, key: Hashable, parent: Hashable) -> None:
        """A step of no interest: what happens in it hangs from its parent."""
        self._aliases[key] = parent

    def begin(
        self, key: Hashable, parent: Hashable, name: str, kind: SpanKind, **fields: Any
    ) -> Span:
        """A step begins."""
        span = Span(
            span_id=new_span_id(),
            trace_id=self._trace.trace_id if self._trace is not None else "",
            parent_id=self._id_of(parent),
            name=name,
            kind=kind,
            start_ns=self._clock(),
            **fields,
        )
        self._spans[key] = span
        if self._trace is not None:
            self._trace.spans.append(span)
        return span

    def _id_of(self, key: Hashable) -> str | None:
        seen = 0
        while key in self._aliases and seen < len(self._aliases):
            key = self._aliases[key]
            seen += 1
        span = self._spans.get(key)
        return self._root if span is None else span.span_id

    def end(self, key: Hashable) -> Span | None:
        """A step ends; the span to write its result on, or None when it was skipped."""
        span = self._spans.get(key)
        if span is not None:
            span.end_ns = max(self._clock(), span.start_ns)
        return span

    def fail(self, key: Hashable, kind: str, message: str) -> None:
        """A step ends with an error."""
        span = self.end(key)
        if span is not None:
            span.status = SpanStatus.ERROR
            span.error_type = kind
            span.error_message = message


def token_count(value: Any) -> int | None:
    """A count of tokens as frameworks give it; what is not a whole number is not known."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_mapping(value: Any) -> Mapping[str, Any]:
    """A mapping, or an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}

"""Checks: the base class, the context a check gets, and the result it returns.

A check is a small frozen model with one method, `evaluate(ctx) -> CheckResult`. Every result has a
reason, the expected and actual values and span ids, and one of three outcomes: the check passed,
it failed, or it could not be judged.
"""

from __future__ import annotations

import operator
import re
from collections.abc import (
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from enum import StrEnum
from functools import lru_cache, partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, NamedTuple, Self, TypeVar, cast

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field

from proctor.checks.metrics.alignment import decoded
from proctor.errors import ProctorError, did_you_mean
from proctor.sanitize import json_value, printable
from proctor.strict import Strict, one_or_more
from proctor.tables import Tabular
from proctor.trace import Span, SpanKind, Trace
from proctor.trace.conventions.values import structure
from proctor.trace.model import EVALUATION, Event, Observable

if TYPE_CHECKING:
    from proctor.checks.judge import Judge  # noqa: TC004 (contexts are never read from JSON)
    from proctor.sandbox.place import TrialWorkspace  # noqa: TC004

OutputT = TypeVar("OutputT")


# -- results -------------------------------------------------------------------------------------


class Layer(StrEnum):
    """The three layers, in the order they are judged."""

    CORRECTNESS = "correctness"
    PATH = "path"
    COST = "cost"


class CheckStatus(StrEnum):
    """How a check ended.

    `warn` is a failure that does not block. `skip` means there was nothing to judge (no baseline,
    an earlier check already failed). `unscored` means it should have been judged and could not
    be (the judge failed): an infrastructure error, never a verdict on the agent. `not_judged`
    means the trace lacks what the check needs (`category` says what). `metric` is a number that
    is recorded and not judged.
    """

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    METRIC = "metric"
    UNSCORED = "unscored"
    NOT_JUDGED = "not_judged"


FAILED = (CheckStatus.WARN, CheckStatus.FAIL)
"""Statuses of checks that were judged and failed."""


class _ResultType(type(msgspec.Struct)):
    """Lets `CheckResult(passed=…)` be written without storing `passed` beside `status`.

    Journals store the status alone; two fields could contradict each other.
    """

    if not TYPE_CHECKING:  # type checkers read CheckResult.__init__ below

        def __call__(
            cls, *, passed: bool | None = None, status: CheckStatus | None = None, **fields: Any
        ) -> CheckResult:
            score = fields.get("score")
            if passed is None and score is not None:
                passed = score == 1.0
            if status is None and passed is not None:
                status = CheckStatus.PASS if passed else CheckStatus.FAIL
                fields["score"] = float(passed) if score is None else score
            fields = {**_UNNAMED, "reason": "", **fields}
            return super().__call__(**fields, status=status or CheckStatus.SKIP)


_UNNAMED: dict[str, Any] = {"id": "", "check": "", "layer": Layer.CORRECTNESS}
"""Fields that a check may leave out. They have no defaults, since a journal omits those."""


# omit_defaults: most fields of most results have defaults, and journal lines stay short. gc=False:
# there is a result for each check of each trial, and none is part of a reference cycle.
class CheckResult(
    msgspec.Struct, metaclass=_ResultType, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """One check of one trial.

    A check states `passed` (or a `score` from 0 to 1) and a `reason`; `evaluate` fills in `id`,
    `check` (the kind of check), `layer`, `weight` and `blocking` (whether a failure makes the
    trial a hard failure). `id` is stable across trials of a case: failures are ranked by it.

    Example: `CheckResult(passed="Paris" in ctx.output, reason="names the capital")`.
    """

    id: str
    check: str
    layer: Layer
    status: CheckStatus
    reason: str
    score: float | None = None
    weight: float = 1.0
    blocking: bool = False
    expected: Any = None
    actual: Any = None
    span_ids: tuple[str, ...] = ()
    method: str | None = None
    cost_usd: float | None = None
    category: str = ""
    """Why it was not judged: unobserved or unpriced."""

    if TYPE_CHECKING:

        def __init__(  # noqa: PLR0913 (one argument for each field)
            self,
            *,
            passed: bool | None = None,
            reason: str = "",
            score: float | None = None,
            id: str = "",  # noqa: A002
            check: str = "",
            layer: Layer = Layer.CORRECTNESS,
            status: CheckStatus | None = None,
            weight: float = 1.0,
            blocking: bool = False,
            expected: Any = None,
            actual: Any = None,
            span_ids: tuple[str, ...] = (),
            method: str | None = None,
            cost_usd: float | None = None,
            category: str = "",
        ) -> None: ...

    @property
    def passed(self) -> bool:
        """Whether the check was judged and passed."""
        return self.status == CheckStatus.PASS

    @property
    def failed(self) -> bool:
        """Whether the check was judged and failed, blocking or not."""
        return self.status in FAILED


# Nearly every check of every trial ends in one of the functions below; calling the struct's own
# constructor spares them `_ResultType.__call__`.
_construct: Any = type(msgspec.Struct).__call__


def passed(reason: str, **details: Any) -> CheckResult:
    """Return the result of a check that passed."""
    return _construct(
        CheckResult, **_UNNAMED, status=CheckStatus.PASS, score=1.0, reason=reason, **details
    )


def failed(reason: str, *, score: float = 0.0, **details: Any) -> CheckResult:
    """Return the result of a check that failed; `score` may give partial credit."""
    return _construct(
        CheckResult, **_UNNAMED, status=CheckStatus.FAIL, score=score, reason=reason, **details
    )


NOT_REACHED = "not judged:"
"""Start of the reason of a skipped check that an earlier failure made needless."""


def skipped(reason: str, **details: Any) -> CheckResult:
    """Return the result of a check that had nothing to judge."""
    return CheckResult(status=CheckStatus.SKIP, reason=reason, **details)


def unscored(reason: str, **details: Any) -> CheckResult:
    """Return the result of a check that should have been judged and could not be."""
    return CheckResult(status=CheckStatus.UNSCORED, reason=reason, **details)


def not_judged(category: str, reason: str, **details: Any) -> CheckResult:
    """Return the result of a check that lacks what it needs: it neither passed nor failed."""
    return CheckResult(status=CheckStatus.NOT_JUDGED, category=category, reason=reason, **details)


_HOW_TO_OBSERVE: dict[Observable, str] = {
    "model_calls": "model calls were not observed (instrument the model client, use"
    " proctor.capture.llm_call, or write `observed: [model_calls]` on an agent that makes none)",
    "tool_calls": "tool calls were not observed (record tools with @proctor.tool, instrument the"
    " agent, or write `observed: [tool_calls]` on an agent that makes none)",
    "arguments": "arguments of tool calls were not observed (let the instrumentation record the"
    " input of tools)",
}


def unobserved(trace: Trace, *needs: Observable) -> CheckResult | None:
    """Return the result of a check that needs what the trace does not show; None if it does."""
    missing: list[Observable] = [need for need in needs if not trace.shows(need)]
    return not_judged("unobserved", _HOW_TO_OBSERVE[missing[0]]) if missing else None


class Metric(msgspec.Struct, frozen=True):
    """A number that a check records without passing or failing.

    Example: `def words(ctx): return Metric(len(ctx.output.split()), unit="words")`; several:
    `return {"words": Metric(120), "links": Metric(3)}`.
    """

    value: float
    reason: str = ""
    unit: str = ""

    def result(self) -> CheckResult:
        """Return the metric as the result of a check: its value is `actual`, it has no score."""
        # Plain numbers only: numpy's scalars cannot be written to a journal.
        item: Any = getattr(self.value, "item", None)
        value: float = self.value if item is None else item()
        shown = f"{value:g} {self.unit}".rstrip()
        return CheckResult(
            status=CheckStatus.METRIC,
            reason=f"{shown}: {self.reason}" if self.reason else shown,
            actual=value,
        )


# A check that could not be judged makes the trial an infrastructure error; a warning does not.
_WORST_FIRST = (
    CheckStatus.FAIL,
    CheckStatus.UNSCORED,
    CheckStatus.NOT_JUDGED,
    CheckStatus.WARN,
    CheckStatus.PASS,
    CheckStatus.METRIC,
    CheckStatus.SKIP,
)


def worst(statuses: Iterable[CheckStatus]) -> CheckStatus:
    """Return the status to show first; skip when there is none."""
    seen = set(statuses)
    return next((status for status in _WORST_FIRST if status in seen), CheckStatus.SKIP)


class CheckResults(Tabular, tuple[CheckResult, ...]):
    """The results of one trial's checks, in the order they were judged."""

    __slots__ = ()

    def records(self) -> list[dict[str, Any]]:
        """Return a row per check."""
        names = ("id", "layer", "status", "score", "weight", "reason")
        return [{name: getattr(result, name) for name in names} for result in self]

    @property
    def score(self) -> float | None:
        """Sum of score times weight over sum of weights; None when nothing judged has weight."""
        total = weight = 0.0
        for result in self:
            # Only judged results have a score; the others take no part.
            if result.score is not None:
                weight += result.weight
                total += result.score * result.weight
        return total / weight if weight else None

    def with_status(self, *statuses: CheckStatus) -> list[CheckResult]:
        """Return the results with one of the statuses."""
        return [result for result in self if result.status in statuses]


# -- results in traces ---------------------------------------------------------------------------

_LAYER = "proctor.check.layer"
_PASSING = frozenset(("pass", "passed", "correct", "true", "yes", "relevant"))
_FAILING = frozenset(("fail", "failed", "incorrect", "false", "no", "irrelevant"))


def record_results(trace: Trace, results: Iterable[CheckResult]) -> None:
    """Add the results of checks to a trace as evaluation events.

    Each is an event of the first span that its check names, else of the root.
    """
    index = trace.index
    if not index.spans:
        return
    spans = {span.span_id: span for span in index.spans}
    for result in results:
        named = (spans[span_id] for span_id in result.span_ids if span_id in spans)
        span = next(named, None) or trace.roots[0].span
        value = result.actual if result.status is CheckStatus.METRIC else result.score
        attributes = {
            "gen_ai.evaluation.name": result.id,
            "gen_ai.evaluation.score.label": result.status.value,
            "gen_ai.evaluation.score.value": value,
            "gen_ai.evaluation.explanation": result.reason,
            "error.type": result.status.value if result.status is CheckStatus.UNSCORED else None,
            _LAYER: result.layer.value,
        }
        known = {key: value for key, value in attributes.items() if value is not None}
        time_ns = span.end_ns or span.start_ns or 0
        span.events = (*span.events, Event(EVALUATION, time_ns, known))


def recorded_results(trace: Trace) -> list[CheckResult]:
    """Return the evaluations that a trace records, whichever program wrote them.

    A label that is neither a pass nor a failure, or a value without a label, is a metric: only the
    evaluator knows which values are good.
    """
    results: list[CheckResult] = []
    for span in trace.index.spans:
        for event in span.events:
            get = event.attributes.get
            if event.name != EVALUATION or not (name := get("gen_ai.evaluation.name")):
                continue
            label = str(get("gen_ai.evaluation.score.label", ""))
            word = label.strip().casefold().replace("_", " ")
            if get("error.type"):
                status = CheckStatus.UNSCORED
            elif word in _PASSING:
                status = CheckStatus.PASS
            elif word in _FAILING or word.startswith("not "):
                status = CheckStatus.FAIL
            else:
                known = {each.value.replace("_", " "): each for each in CheckStatus}
                status = known.get(word, CheckStatus.METRIC)
            value = get("gen_ai.evaluation.score.value")
            number = value if isinstance(value, int | float) else None
            layer = get(_LAYER)
            results.append(
                CheckResult(
                    id=str(name),
                    check=str(name),
                    layer=Layer(layer) if layer in tuple(Layer) else Layer.CORRECTNESS,
                    status=status,
                    reason=str(get("gen_ai.evaluation.explanation") or label or value),
                    score=None if status is CheckStatus.METRIC else number,
                    actual=number if status is CheckStatus.METRIC else None,
                    span_ids=(span.span_id,) if span.parent_id else (),
                    method="recorded in the trace",
                )
            )
    return results


# -- the context of a check ----------------------------------------------------------------------


class CheckContext(msgspec.Struct, Generic[OutputT], eq=False):
    """The input of a check: the case, the agent's trace and answer, and the baseline.

    `case` is the `proctor.Case`; `answer` the text that is checked; `baseline` the trace saved
    for the case, if any; `judges` the configured LLM judges by name ("default" where a check
    names none); `value` the structured value behind the answer, if the agent returned one;
    `baseline_version` the version the baseline was saved as; `workspace` the files and the sandbox
    in which the agent worked, if it had any.

    Example: `def brief(ctx: CheckContext[str]) -> bool: return len(ctx.output) < 200`.
    """

    case: Any
    trace: Trace
    answer: str
    baseline: Trace | None = None
    judges: Mapping[str, Judge] = {}
    value: Any = None
    baseline_version: str = ""
    workspace: TrialWorkspace | None = None
    _document: dict[str, Any] | None = None

    @property
    def baseline_name(self) -> str:
        """The baseline with its version, for reasons: several versions may be saved."""
        version = self.baseline_version
        return f"baseline {version}" if version else "the baseline"

    @property
    def input(self) -> Any:
        """The input of the case."""
        return self.case.input

    @property
    def output(self) -> OutputT:
        """The agent's output: its structured value if it returned one, else the answer text."""
        return cast("OutputT", self.answer if self.value is None else self.value)

    @property
    def expected(self) -> Any:
        """The expected answer: the `expected` property of the case, else its `exact_match`."""
        properties: Mapping[str, Any] = getattr(self.case, "properties", {})
        if "expected" in properties:
            return properties["expected"]
        return getattr(getattr(self.case, "correctness", None), "exact_match", None)

    @property
    def span_tree(self) -> Trace:
        """The trace: `find`, `first`, `any`, `all` and `count` spans, `roots` with children."""
        return self.trace

    @property
    def document(self) -> dict[str, Any]:
        """The trial as JSON values, for JMESPath expressions; built once."""
        if self._document is None:
            self._document = _document_of(self)
        return self._document


# -- checks --------------------------------------------------------------------------------------

Results = CheckResult | Mapping[str, CheckResult]
"""One result, or several of one check, each under its own name."""


class Check(Strict):
    """A condition on a trial. Subclass it, declare fields, and write `evaluate`.

        class MaxWords(Check):
            most: int = Field(kw_only=False)

            def evaluate(self, ctx: CheckContext[str]) -> CheckResult:
                words = len(ctx.output.split())
                return CheckResult(passed=words <= self.most, reason=f"{words} words")

    `Case(input=…, checks=[MaxWords(50)])`. Fields with `kw_only=False` may be given by position.
    """

    name: ClassVar[str] = ""
    """The kind of check in results, and its id where none is given; the class name when empty."""
    layer: ClassVar[Layer] = Layer.CORRECTNESS
    quick: ClassVar[bool] = False
    """Whether it takes microseconds for a short answer; others run in a thread, because a check
    that holds up the event loop would add to the latency of the agents that run beside it."""
    always_blocks: ClassVar[bool] = False
    """Whether a failure blocks although its layer only warns."""

    id: str | None = None
    """Its name in results; made unique within the case."""
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """How much it counts in the score; when absent 1 in correctness or if it blocks, else 0."""
    required: bool | None = None
    """Whether a failure blocks; when absent, correctness blocks and path and cost warn."""
    kind: str = ""
    """The kind of check in results, where a YAML spelling has its own name for it."""

    if not TYPE_CHECKING:  # type checkers derive the signature from the fields

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if args:
                # pydantic itself takes keywords only; `Contains("Paris")` needs positions.
                fields = type(self).model_fields.items()
                positional = [name for name, field in fields if field.kw_only is False]
                if len(args) > len(positional):
                    raise TypeError(
                        f"{type(self).__name__} takes at most {len(positional)} positional "
                        f"arguments, not {len(args)}"
                    )
                given = dict(zip(positional, args, strict=False))
                if repeated := given.keys() & kwargs.keys():
                    raise TypeError(f"{type(self).__name__} got {repeated.pop()!r} twice")
                kwargs |= given
            super().__init__(**kwargs)

    def evaluate(self, ctx: CheckContext[Any], /) -> Results | Awaitable[Results]:
        """Judge one trial; may be `async`."""
        raise NotImplementedError(f"{type(self).__name__} has no evaluate(ctx)")

    def __call__(self, ctx: CheckContext[Any], /) -> Results | Awaitable[Results]:
        """Judge one trial: a check can be used wherever a check function can."""
        return self.evaluate(ctx)

    @property
    def judged(self) -> bool:
        """Whether it calls a model: such checks run last, and only while nothing has failed."""
        return False

    @property
    def needs(self) -> tuple[Observable, ...]:
        """What a trace must show for a verdict; without it the check is not judged."""
        return ()

    @property
    def check(self) -> str:
        """The kind of check in results."""
        return self.kind or self.name or type(self).__name__

    @property
    def blocking(self) -> bool:
        """Whether a failure makes the trial a hard failure."""
        if self.required is not None:
            return self.required
        return self.always_blocks or self.layer is Layer.CORRECTNESS

    @property
    def counted(self) -> float:
        """Its weight in the score."""
        if self.weight is not None:
            return self.weight
        # With a weight, a check that only warns could push the score below the threshold: a hidden
        # failure.
        return 1.0 if self.blocking or self.layer is Layer.CORRECTNESS else 0.0

    def with_(self, **changes: Any) -> Self:
        """Return a copy with another id, kind, weight or required."""
        return self.model_copy(update=changes)


class CheckGroup(Check):
    """Several checks written under one key, with a result each: `jmespath.first`, `jmespath.2`."""

    parts: dict[str, Check]

    @property
    def layer(self) -> Layer:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The layer of the parts, which is one for all."""
        return next(iter(self.parts.values())).layer

    @property
    def judged(self) -> bool:
        """Whether any part calls a model."""
        return any(part.judged for part in self.parts.values())

    def evaluate(self, ctx: CheckContext[Any], /) -> Results | Awaitable[Results]:
        """Judge the parts one after the other."""
        parts = self.parts.items()
        if not self.judged and not any(iscoroutinefunction(part.evaluate) for _, part in parts):
            return {
                name: unobserved(ctx.trace, *part.needs) or cast("CheckResult", part.evaluate(ctx))
                for name, part in parts
            }

        async def judge_parts() -> Results:
            return {name: await cast("Any", part.evaluate(ctx)) for name, part in parts}

        return judge_parts()


def grouped(checks: Sequence[Check], fallbacks: Sequence[str] = ()) -> Check:
    """Return one check for all of them: results are named by id, else by fallback or position.

    A single check without an id needs no name of its own.
    """
    if len(checks) == 1 and checks[0].id is None:
        return checks[0]
    fallbacks = fallbacks or [str(position) for position in range(1, len(checks) + 1)]
    names = [check.id or fallback for check, fallback in zip(checks, fallbacks, strict=True)]
    return CheckGroup(parts=dict(zip(unique(names), checks, strict=True)))


def unique(names: Iterable[str]) -> list[str]:
    """Return the names, a repeated one made unique by `#2`, `#3`, …"""
    seen: dict[str, int] = {}
    result: list[str] = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return result


# -- field types ---------------------------------------------------------------------------------
# Values that YAML silently converts (`yes`, a date, 1.50) are refused with the hint to quote them,
# and a limit that could never be met is refused where it is written.


@contextmanager
def refused() -> Generator[None]:
    """Turn a `ProctorError` into a `ValueError`, which a model reports with its place."""
    try:
        yield
    except ProctorError as error:
        raise ValueError(f"{error}{f' ({error.hint})' if error.hint else ''}") from error


def compile_expression(expression: str) -> Any:
    """Compile a JMESPath expression; raise `ProctorError` if it is not valid."""
    import jmespath
    from jmespath.exceptions import JMESPathError
    from jmespath.functions import Functions

    try:
        compiled = jmespath.compile(expression)
    except JMESPathError as error:
        reason = str(error).splitlines()[0]
        raise ProctorError(f"{expression!r} is not a JMESPath expression: {reason}") from None
    except RecursionError:
        raise ProctorError(f"{expression!r} is nested too deeply") from None
    # jmespath itself looks up functions only when it evaluates them, in the middle of a run.
    pending: list[Any] = [compiled.parsed]
    while pending:
        node = pending.pop()
        if not isinstance(node, dict):
            continue
        fields = cast("dict[str, Any]", node)
        pending.extend(fields.get("children", ()))
        name = fields.get("value")
        if fields.get("type") == "function_expression" and name not in Functions.FUNCTION_TABLE:
            raise ProctorError(
                f"{expression!r} calls an unknown function {name!r}",
                hint=did_you_mean(str(name), Functions.FUNCTION_TABLE),
            )
    return compiled


def checked_by(check: Callable[[Any], object]) -> AfterValidator:
    """Return a validator that runs a function which raises `ProctorError`."""

    def validate(value: Any) -> Any:
        with refused():
            check(value)
        return value

    return AfterValidator(validate)


def read_text(value: Any, *, may_be_empty: bool = True) -> str:
    """Return a text; a whole number becomes its digits, other YAML values are refused."""
    # The digits are what the user wrote. Not so for 1.50, which YAML reads as 1.5.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"should be text, not {_type_name(value)}; put it in quotes")
    if not may_be_empty and not value.strip():
        raise ValueError("should not be empty: an empty text is found in every answer")
    return value


def _type_name(value: Any) -> str:
    """Return the type of a YAML value in the words of a person who writes YAML."""
    kind = type(value).__name__
    names = {"bool": "true or false", "dict": "a mapping", "list": "a list", "NoneType": "nothing"}
    return names.get(kind, f"a {kind}")


def listed(read: Callable[[Any], Any] = lambda value: value) -> Callable[[Any], tuple[Any, ...]]:
    """Return a reader of one value or a list of them; an empty list is refused."""

    def read_all(value: Any) -> tuple[Any, ...]:
        many = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
        if not many:
            raise ValueError("should have at least one entry; leave the key out to check nothing")
        return tuple(read(item) for item in many)

    return read_all


# pydantic accepts `true` as the number 1, since bool is a subclass of int.
def _not_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("should be a number, not true or false")
    return value


Number = BeforeValidator(_not_bool)

YamlText = str | int
"""How a text may be written: YAML reads `42` as a number."""

Text = Annotated[str, BeforeValidator(read_text, json_schema_input_type=YamlText)]
Texts = Annotated[
    tuple[str, ...],
    BeforeValidator(
        listed(partial(read_text, may_be_empty=False)),
        json_schema_input_type=YamlText | list[YamlText],
    ),
]
Name = Annotated[str, Field(min_length=1)]
Names = Annotated[
    tuple[Name, ...],
    BeforeValidator(one_or_more, json_schema_input_type=str | list[str]),
]
if TYPE_CHECKING:  # `Contains("Paris")` and `Contains(["Paris", "France"])` are both fine
    OneOrMoreTexts = Sequence[str]
    OneOrMoreNames = Sequence[str]
else:
    OneOrMoreTexts, OneOrMoreNames = Texts, Names
Count = Annotated[int, Number, Field(ge=0)]
Positive = Annotated[int, Number, Field(ge=1)]
Limit = Annotated[float, Number, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Number, Field(ge=0, le=1, allow_inf_nan=False)]
Weight = Limit
PositiveNumber = Annotated[float, Number, Field(gt=0, allow_inf_nan=False)]


class NumericBound(NamedTuple):
    """A bound on a number, such as `>= 0.8`."""

    operator: str
    bound: float

    def holds(self, value: float) -> bool:
        """Return whether a number is within the bound."""
        return _OPERATORS[self.operator](value, self.bound)

    def __str__(self) -> str:
        return f"{self.operator} {self.bound:g}"


# Two characters first: `>= 1` also starts with `>`.
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


# Cached: the few bounds of a suite are parsed again for every trial.
@lru_cache(maxsize=256)
def parse_bound(text: str) -> NumericBound:
    """Parse a bound; a bare number is a minimum."""
    written = text.strip()
    sign = next((sign for sign in _OPERATORS if written.startswith(sign)), "")
    try:
        return NumericBound(sign or ">=", float(written.removeprefix(sign)))
    except ValueError:
        signs = ", ".join(_OPERATORS)
        raise ValueError(
            f"cannot read {text!r}: write a sign ({signs}) and a number, as in '>= 0.8'"
        ) from None


def _read_bound(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = f">= {value:g}"
    if not isinstance(value, str):
        raise ValueError(f"should be a comparison such as '>= 0.8', not {_type_name(value)}")
    bound = parse_bound(value)
    if not 0 <= bound.bound <= 1:
        raise ValueError(f"{bound.bound:g} is outside 0..1")
    return str(bound)


Bound = Annotated[str, BeforeValidator(_read_bound, json_schema_input_type=str | float)]
"""A bound on a number in 0..1, stored as its text."""


# -- values of a trace ---------------------------------------------------------------------------


class Handoff(NamedTuple):
    """One agent handing over to another; a side the trace does not name is None."""

    source: str | None
    target: str | None
    span_id: str


def handoffs_of(trace: Trace) -> list[Handoff]:
    """Return the handoffs of a trace, in order.

    Where handoff spans record them, only those count: an agent span may repeat the last one.
    """
    # Frameworks without handoff spans name the target on the span of the agent.
    spans = trace.handoffs or [span for span in trace.index.spans if span.handoff_to]
    return [
        Handoff(
            span.agent_name,
            span.handoff_to or (span.tool_name if span.kind == SpanKind.HANDOFF else None),
            span.span_id,
        )
        for span in spans
    ]


# -- what the models were offered ----------------------------------------------------------------
# None where the trace does not say (most instrumentations record definitions only on request),
# never an empty guess. Every convention has attributes of its own.

# gen_ai: OpenTelemetry; ai.prompt: Vercel; the last two: pydantic-ai and smolagents.
_OFFERED = (
    "gen_ai.tool.definitions",
    "ai.prompt.tools",
    "model_request_parameters",
    "smolagents.tools_names",
)
_OFFERED_ONE = re.compile(
    r"llm\.tools\.\d+\.tool\.json_schema|llm\.request\.functions\.\d+\.name"
    r"|gen_ai\.request\.tools\.\d+\.name"
)
_OFFERED_AGENT = re.compile(r"smolagents\.managed_agents\.\d+\.name|openai\.agent\.handoff\d+")
_TRANSFERS = ("transfer_to_", "handoff_to_", "transfer_back_to_", "delegate_to_")


def offered_handoffs(trace: Trace) -> list[str] | None:
    """Return the agents some model could hand over to; None when nothing is recorded.

    A transfer tool counts as its agent, in the spelling of the tool.
    """
    agents = [name for span in trace.index.spans for name in _agents(span)]
    tools = [name for span in trace.index.spans for name in offered_tools(span)]
    if not tools and not agents:
        return None
    # LangGraph, OpenAI Agents and others hand over by calling a tool named after the agent.
    for tool in tools:
        prefix = next((prefix for prefix in _TRANSFERS if tool.startswith(prefix)), None)
        if prefix is not None:
            agents.append(tool.removeprefix(prefix))
    return list(dict.fromkeys(agents))


def offered_tools(span: Span) -> Iterator[str]:
    """Yield the names of the tools a span says a model could call."""
    attributes = span.attributes
    for key in _OFFERED:
        if key in attributes:
            yield from _names(attributes[key])
    for key, value in attributes.items():
        if key.startswith(("llm.", "gen_ai.request.tools")) and _OFFERED_ONE.fullmatch(key):
            yield from _names(value) if key.endswith("json_schema") else [str(value)]


def _agents(span: Span) -> Iterator[str]:
    for key, value in span.attributes.items():
        # A plain prefix first: attributes are many, and few are about agents.
        if key.startswith(("smolagents.", "openai.")) and _OFFERED_AGENT.fullmatch(key):
            read = structure(value)
            yield from _names([read]) if isinstance(read, Mapping) else [str(value)]


def _names(value: Any) -> Iterator[str]:
    """Yield the names in definitions, in any of the shapes that providers use."""
    # Attributes hold definitions as JSON text or as values.
    value = structure(value)
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        inner = fields.get("function")
        if isinstance(fields.get("function_tools"), list):
            yield from _names(fields["function_tools"])
        elif isinstance(inner, Mapping):
            yield from _names(inner)
        elif isinstance(fields.get("name"), str):
            yield fields["name"]
    elif isinstance(value, list | tuple):
        for item in cast("Iterable[Any]", value):
            read = structure(item)
            if isinstance(read, str):
                yield read
            else:
                yield from _names(read)


def short_name(name: str) -> str:
    """Return a name for a reason: one line, not too long."""
    return printable(name[:80])


def milliseconds(seconds: float | None) -> float | None:
    """Convert seconds to milliseconds, to the microsecond; None stays None."""
    return None if seconds is None else round(seconds * 1000, 3)


def _document_of(ctx: CheckContext[Any]) -> dict[str, Any]:
    # Every trace has every key (null where unknown), since expressions in suites depend on them.
    trace, usage = ctx.trace, ctx.trace.usage
    try:
        # Answers are often JSON; others have null here.
        response_json = msgspec.json.decode(ctx.answer)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        response_json = None
    return {
        "input": json_value(ctx.input),
        "response": ctx.answer,
        "response_json": response_json,
        "turns": [
            {"user": json_value(turn.input), "answer": json_value(turn.output)}
            for turn in trace.turns
        ],
        "tool_calls": [
            {
                "name": call.name,
                "arguments": json_value(decoded(call.arguments)),
                "result": json_value(decoded(call.result) if call.result is not None else None),
                "status": str(call.status),
            }
            for call in trace.tool_calls
        ],
        "tool_sequence": trace.tool_sequence,
        "llm_calls": [
            {
                "model": span.model,
                "input_tokens": span.input_tokens,
                "output_tokens": span.output_tokens,
                "cost_usd": span.cost_usd,
                "duration_ms": milliseconds(span.duration),
                "status": str(span.status),
            }
            for span in trace.llm_calls
        ],
        "handoffs": [
            {"from": handoff.source, "to": handoff.target} for handoff in handoffs_of(trace)
        ],
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
            "cost_usd": usage.cost_usd,
        },
        "duration_ms": milliseconds(trace.duration),
        "metadata": json_value(trace.metadata),
    }

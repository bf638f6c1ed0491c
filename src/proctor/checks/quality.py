"""Quality of a trace: eight dimensions and the overall score.

`score_trace` is pure and needs no model; `score_trace_with` asks a judge as well, for reasoning.
A dimension is a score in 0..1, or None with the reason when there is nothing to score. None is
left out of the overall score, whose weights are then renormalised; 0.0 is a score. A judge that
fails leaves its dimension without a score and the rest as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, NamedTuple, Self

import msgspec
from pydantic import Field, field_validator, model_validator

from proctor.checks._answer import PatternTimeout, check_pattern, search, shown
from proctor.checks.base import CheckContext, Limit, Names, Number, Share, Weight, refused
from proctor.checks.judge import Judge, JudgeInput
from proctor.checks.judge_checks import DEFAULT_JUDGE, ground_trace
from proctor.checks.metrics.tool_usage import loops, redundancy
from proctor.errors import ProctorError, describe_error, did_you_mean, hint_among
from proctor.llm.chat_model import ClosingModel
from proctor.sanitize import json_value, printable
from proctor.strict import Strict
from proctor.trace import Span, SpanKind, Trace

DIMENSIONS = (
    "tool_selection",
    "sequence",
    "redundancy",
    "efficiency",
    "latency",
    "error_recovery",
    "retrieval",
    "reasoning",
)
"""The eight dimensions, in the order they are shown."""

DEFAULT_WEIGHTS: Mapping[str, float] = {
    "tool_selection": 0.25,
    "sequence": 0.15,
    "efficiency": 0.20,
    "latency": 0.20,
    "retrieval": 0.20,
}
"""The others are shown and do not count unless given a weight: redundancy is already in
efficiency, errors are rare, and reasoning needs a judge."""


class QualityLevel(StrEnum):
    """Where a figure stands: at its target, below its alert line, or between."""

    TARGET = "target"
    BETWEEN = "between"
    ALERT = "alert"


class Levels(NamedTuple):
    """A figure's target and alert lines; for some figures less is better."""

    target: float
    alert: float
    less_is_better: bool = False

    def of(self, figure: float) -> QualityLevel:
        """The level of a figure. The lines themselves belong to neither side."""
        sign = -1 if self.less_is_better else 1
        if sign * figure > sign * self.target:
            return QualityLevel.TARGET
        return QualityLevel.ALERT if sign * figure < sign * self.alert else QualityLevel.BETWEEN


AVERAGE = Levels(0.8, 0.6)
"""The lines of the overall score, and of dimensions without lines of their own."""

LEVELS: Mapping[str, Levels] = {
    "tool_selection": Levels(0.90, 0.80),
    "redundancy": Levels(0.05, 0.15, less_is_better=True),
    "error_recovery": Levels(0.80, 0.50),
    "latency": Levels(0.90, 0.70),
}
"""Lines of single dimensions. Redundancy is held to its share of repeated calls, latency to the
share of measured times within their target; the others to their score."""


class QueryRule(Strict):
    """Which tools a kind of question needs."""

    when: str = Field(min_length=1)
    """A regular expression, found in the question; case is ignored."""
    tools: Names = Field(min_length=1)
    """The tools such a question needs."""

    @field_validator("when")
    @classmethod
    def _pattern(cls, pattern: str) -> str:
        with refused():
            check_pattern(pattern)
        return pattern


class RedundantOrder(Strict):
    """A step that is needless after another."""

    first: str = Field(min_length=1)
    """A tool (`*` stands for any characters), or `retrieval` for any retrieval."""
    then: str = Field(min_length=1)
    """What is needless after it."""


class LatencyTargets(Strict):
    """The longest times that are fine, in milliseconds."""

    total: Annotated[float, Number, Field(gt=0)] = 5000.0
    """The whole trace."""
    tool: Annotated[float, Number, Field(gt=0)] = 1000.0
    """One tool call."""
    llm: Annotated[float, Number, Field(gt=0)] = 2000.0
    """One model call."""
    retrieval: Annotated[float, Number, Field(gt=0)] = 500.0
    """One retrieval."""


DEFAULT_ORDERS = (RedundantOrder(first="retrieval", then="*web*search*"),)


class QualityConfig(Strict):
    """How quality is scored; every part has a default."""

    expected_tools: Names | None = None
    """The tools the trace should use; without them they are inferred by `rules`."""
    rules: tuple[QueryRule, ...] = ()
    """Which tools a kind of question needs; all rules that match count together."""
    redundant_orders: tuple[RedundantOrder, ...] = DEFAULT_ORDERS
    """Steps that are needless after others."""
    repeat_penalty: Share = 0.2
    """Taken from sequence for each call directly after one of the same tool."""
    order_penalty: Share = 0.1
    """Taken from sequence for each redundant order that is seen."""
    efficiency_steps: tuple[tuple[Limit, Share], ...] = ((3, 1.0), (5, 0.8), (8, 0.6))
    """Up to so many calls, this score."""
    efficiency_beyond: Share = 0.4
    """The score of more calls than the last step."""
    redundant_call_penalty: Share = 0.15
    """Taken from efficiency for each call that repeats an earlier one with the same input."""
    latency: LatencyTargets = LatencyTargets()
    """The longest times that are fine."""
    latency_steps: tuple[tuple[Limit, Share], ...] = ((1.0, 1.0), (1.5, 0.8), (2.0, 0.6))
    """Up to so many times the target, this score."""
    latency_beyond: Share = 0.4
    """The score of a longer time than the last step."""
    weights: dict[str, Weight] = Field(default_factory=lambda: dict(DEFAULT_WEIGHTS))
    """How much each dimension counts in the overall score; what is not named counts nothing."""

    @field_validator("efficiency_steps", "latency_steps")
    @classmethod
    def _rising(cls, steps: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        bounds = [most for most, _ in steps]
        if bounds != sorted(set(bounds)):
            raise ValueError("the bounds of the steps must rise")
        return steps

    @model_validator(mode="after")
    def _weights(self) -> Self:
        for name in self.weights:
            if name not in DIMENSIONS:
                hint = hint_among(name, DIMENSIONS)
                raise ValueError(f"unknown quality dimension {name!r} in weights ({hint})")
        if not any(self.weights.values()):
            raise ValueError("at least one dimension needs a weight above 0")
        return self


class Dimension(msgspec.Struct, frozen=True, kw_only=True):
    """One dimension of one trace.

    `score` is None when there is nothing to score, `why` says so and `failed` whether something
    broke on the way. `figure` is what levels look at, where that is not the score.
    """

    name: str
    score: float | None
    why: str = ""
    level: QualityLevel | None = None
    figure: float | None = None
    issues: tuple[str, ...] = ()
    recommendations: tuple[str, ...] = ()
    span_ids: tuple[str, ...] = ()
    method: str | None = None
    failed: bool = False


class SpanLatency(msgspec.Struct, frozen=True, kw_only=True):
    """One measured time against its target, in milliseconds; the whole trace has no span id."""

    span_id: str | None
    name: str
    kind: str
    ms: float
    target_ms: float
    ratio: float
    score: float


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """The quality of one trace. `weights` are those used: renormalised over what was scored."""

    trace_id: str
    dimensions: tuple[Dimension, ...]
    overall: float | None
    level: QualityLevel | None
    weights: dict[str, float]
    latency_breakdown: tuple[SpanLatency, ...] = ()

    def dimension(self, name: str) -> Dimension:
        """One dimension by name; `overall` is one, too."""
        if name == "overall":
            return Dimension(
                name=name,
                score=self.overall,
                why="" if self.overall is not None else "no weighted dimension has a score",
                level=self.level,
                issues=self.issues,
            )
        found = next((each for each in self.dimensions if each.name == name), None)
        if found is None:
            raise ProctorError(
                f"no quality dimension {name!r}", hint=did_you_mean(name, (*DIMENSIONS, "overall"))
            )
        return found

    @property
    def issues(self) -> tuple[str, ...]:
        """What is wrong, over all dimensions."""
        return tuple(issue for each in self.dimensions for issue in each.issues)

    def to_dict(self) -> dict[str, Any]:
        """The quality as plain values for JSON."""
        return msgspec.to_builtins(self)


def combined(
    dimensions: tuple[Dimension, ...], weights: Mapping[str, float]
) -> tuple[float | None, dict[str, float]]:
    """The overall score and the weights it used: those of scored dimensions, made to sum to 1."""
    counted = {
        each.name: weights[each.name]
        for each in dimensions
        if each.score is not None and weights.get(each.name)
    }
    total = sum(counted.values())
    if not total:
        return None, {}
    used = {name: weight / total for name, weight in counted.items()}
    scores = {each.name: each.score or 0.0 for each in dimensions}
    return sum(scores[name] * weight for name, weight in used.items()), used


NO_CALLS = "the trace has no tool calls"


def tool_selection(trace: Trace, config: QualityConfig) -> Dimension:
    """2·|E∩U| / (|E|+|U|) of expected and used tools: 1 for exactly the expected ones."""
    name = "tool_selection"
    expected, why = _expected(trace, config)
    if expected is None:
        return Dimension(name=name, score=None, why=why)
    used = trace.tools_used
    if not expected and not used:
        return Dimension(name=name, score=1.0, why="no tool expected, none used")
    missing = [tool for tool in expected if tool not in used]
    needless = [tool for tool in used if tool not in expected]
    hits = len(expected) - len(missing)
    return Dimension(
        name=name,
        score=2 * hits / (len(expected) + len(used)),
        issues=(
            *(f"{_named(tool)} was expected and not used" for tool in missing),
            *(f"{_named(tool)} was used and not expected" for tool in needless),
        ),
        recommendations=(
            *((f"say in the instructions when to use {_names(missing)}",) if missing else ()),
            *((f"say when not to use {_names(needless)}, or do not offer it",) if needless else ()),
        ),
        span_ids=_call_ids(
            trace, [n for n, c in enumerate(trace.tool_calls) if c.name in needless]
        ),
    )


def _expected(trace: Trace, config: QualityConfig) -> tuple[list[str] | None, str]:
    """The tools a trace should use, each once; None and the reason when nothing says so."""
    if config.expected_tools is not None:
        return list(dict.fromkeys(config.expected_tools)), ""
    if not config.rules:
        return None, "no expected tools and no query rules are configured"
    query = trace.query if isinstance(trace.query, str) else str(json_value(trace.query) or "")
    found: list[str] = []
    for rule in config.rules:
        try:
            if search(rule.when, query) is not None:
                found.extend(rule.tools)
        except PatternTimeout as error:
            return None, str(error)
    return (list(dict.fromkeys(found)), "") if found else (None, "no query rule matches the query")


def sequence(trace: Trace, config: QualityConfig) -> Dimension:
    """1, less a penalty for each immediate repeat and for each redundant order that is seen."""
    calls = trace.tool_calls
    if not calls:
        return Dimension(name="sequence", score=None, why=NO_CALLS)
    found = loops([call.name for call in calls])
    orders = _redundant_orders(trace, config)
    score = 1.0 - config.repeat_penalty * found.repeats - config.order_penalty * len(orders)
    repeated = [n for run in found.runs for n in range(run.start + 1, run.start + run.length)]
    return Dimension(
        name="sequence",
        score=_clamped(score),
        issues=(
            *(f"{_named(run.tool)} called {run.length} times in a row" for run in found.runs),
            *(
                f"{_named(_label(then))} after {_named(_label(first))}, which is redundant"
                for first, then in orders
            ),
        ),
        recommendations=(
            *(("let one call do the work of several in a row",) if found.runs else ()),
            *(("answer from what the first step found before taking the next",) if orders else ()),
        ),
        span_ids=(*_call_ids(trace, repeated), *(then.span_id for _, then in orders)),
    )


def _redundant_orders(trace: Trace, config: QualityConfig) -> list[tuple[Span, Span]]:
    """The first place where each configured order is seen."""
    mask = [span.kind in (SpanKind.TOOL, SpanKind.RETRIEVAL) for span in trace.index.spans]
    # A retrieval inside a tool is the same step seen twice.
    steps = trace.index.outermost(mask)
    found: list[tuple[Span, Span]] = []
    for order in config.redundant_orders:
        left = iter(steps)
        first = next((span for span in left if _is(span, order.first)), None)
        then = next((span for span in left if _is(span, order.then)), None)
        if first is not None and then is not None:
            found.append((first, then))
    return found


def _is(span: Span, pattern: str) -> bool:
    if pattern == "retrieval" and span.kind == SpanKind.RETRIEVAL:
        return True
    return fnmatchcase(_label(span).casefold(), pattern.casefold())


def redundant_calls(trace: Trace, config: QualityConfig) -> Dimension:
    """1 less the share of calls that repeat an earlier one: same tool, same input."""
    del config
    calls = trace.tool_calls
    found = redundancy(calls)
    if found.share is None:
        return Dimension(name="redundancy", score=None, why=NO_CALLS)
    counts = Counter(repeat.tool for repeat in found.repeats)
    return Dimension(
        name="redundancy",
        score=1.0 - found.share,
        figure=found.share,
        issues=tuple(
            f"{_named(tool)} called again with the same input, {number} of {len(calls)} calls"
            for tool, number in counts.items()
        ),
        recommendations=(
            ("keep results of earlier calls in the agent's context, or cache the tool",)
            if counts
            else ()
        ),
        span_ids=_call_ids(trace, [repeat.position for repeat in found.repeats]),
    )


def efficiency(trace: Trace, config: QualityConfig) -> Dimension:
    """By the number of tool calls, less a penalty for each redundant one."""
    calls = trace.tool_calls
    score = _stepped(len(calls), config.efficiency_steps, config.efficiency_beyond)
    repeats = redundancy(calls).repeats
    fine = config.efficiency_steps[0][0] if config.efficiency_steps else 0
    issues: list[str] = []
    if score < 1.0:
        issues.append(f"{len(calls)} tool calls, {fine:g} or fewer are best")
    if repeats:
        issues.append(f"{len(repeats)} redundant calls")
    return Dimension(
        name="efficiency",
        score=_clamped(score - config.redundant_call_penalty * len(repeats)),
        issues=tuple(issues),
        recommendations=("combine calls, or give tools that answer more at once",)
        if issues
        else (),
        span_ids=_call_ids(trace, [repeat.position for repeat in repeats]),
    )


def latencies(trace: Trace, config: QualityConfig) -> tuple[SpanLatency, ...]:
    """Every measured time against its target: the whole trace first, then by start."""
    targets = config.latency
    found: list[SpanLatency] = []
    if trace.duration is not None:
        found.append(_latency(None, "total", "total", trace.duration, targets.total, config))
    calls = {id(span) for span in trace.llm_calls}
    for span in trace.index.spans:
        target = {
            SpanKind.TOOL: targets.tool,
            SpanKind.RETRIEVAL: targets.retrieval,
            SpanKind.LLM: targets.llm if id(span) in calls else None,
        }.get(span.kind)
        if target is not None and span.duration is not None:
            label, kind = _label(span), str(span.kind)
            found.append(_latency(span.span_id, label, kind, span.duration, target, config))
    return tuple(found)


def _latency(
    span_id: str | None,
    name: str,
    kind: str,
    seconds: float,
    target: float,
    config: QualityConfig,
) -> SpanLatency:
    taken = seconds * 1000
    return SpanLatency(
        span_id=span_id,
        name=name,
        kind=kind,
        ms=round(taken, 3),
        target_ms=target,
        ratio=taken / target,
        score=_stepped(taken / target, config.latency_steps, config.latency_beyond),
    )


def latency(breakdown: Sequence[SpanLatency]) -> Dimension:
    """The mean over the total and each kind of span, a kind being the mean over its spans."""
    if not breakdown:
        return Dimension(name="latency", score=None, why="no span of the trace has ended")
    kinds: dict[str, list[float]] = {}
    for each in breakdown:
        kinds.setdefault(each.kind, []).append(each.score)
    slow = [each for each in breakdown if each.ratio > 1]
    slowest = sorted(slow, key=lambda each: -each.ratio)
    return Dimension(
        name="latency",
        score=sum(sum(scores) / len(scores) for scores in kinds.values()) / len(kinds),
        figure=1 - len(slow) / len(breakdown),
        issues=tuple(
            f"{_named(each.name)} took {each.ms:,.0f} ms, {each.ratio:.1f} × its target"
            for each in slowest
        ),
        recommendations=tuple(
            _FASTER[kind] for kind in dict.fromkeys(each.kind for each in slowest)
        ),
        span_ids=tuple(each.span_id for each in slowest if each.span_id is not None),
    )


_FASTER = {
    "total": "run independent steps at the same time",
    "tool": "make slow tools faster, or give them a time limit",
    "llm": "use a smaller model or shorter prompts where that is enough",
    "retrieval": "index, cache or narrow slow retrievals",
}


def error_recovery(trace: Trace, config: QualityConfig) -> Dimension:
    """The share of errors after which the same kind of step (the same tool) later worked.

    An error that goes up through the spans around it is one error, counted where it arose.
    """
    del config
    spans = trace.index.spans
    errors = trace.index.innermost([span.failed for span in spans])
    if not errors:
        return Dimension(name="error_recovery", score=None, why="the trace has no errors")
    successes = _last_successes(spans)
    left = [error for error in errors if not _recovered(error, successes)]
    return Dimension(
        name="error_recovery",
        score=(len(errors) - len(left)) / len(errors),
        issues=tuple(
            f"{_named(_label(error))} failed ({_named(error.error_type or 'error')}) "
            "and never worked after that"
            for error in left
        ),
        recommendations=(
            ("let the agent see the error, and say in its instructions what to try then",)
            if left
            else ()
        ),
        span_ids=tuple(error.span_id for error in left),
    )


def _last_successes(spans: Iterable[Span]) -> dict[tuple[str, str], int]:
    """When each kind of step (each tool by itself) last began and worked."""
    last: dict[tuple[str, str], int] = {}
    for span in spans:
        if not span.failed and span.end_ns is not None:
            key = _step(span)
            last[key] = max(last.get(key, span.start_ns), span.start_ns)
    return last


def _recovered(error: Span, successes: dict[tuple[str, str], int]) -> bool:
    ended = error.end_ns if error.end_ns is not None else error.start_ns
    last = successes.get(_step(error))
    return last is not None and last >= ended


def _step(span: Span) -> tuple[str, str]:
    return span.kind, _label(span) if span.kind == SpanKind.TOOL else ""


def retrieval(trace: Trace, answer: str | None) -> Dimension:
    """The share of the answer's claims that retrieved or tool text supports."""
    text = answer if answer is not None else trace.response
    if not text:
        return Dimension(name="retrieval", score=None, why="the trace has no answer")
    found = ground_trace(trace, text, trace.query)
    method = f"grounding ({found.method})"
    if found.score is None:
        return Dimension(name="retrieval", score=None, why=found.reason, method=method)
    wrong = found.unsupported
    return Dimension(
        name="retrieval",
        score=found.score,
        why=found.reason,
        issues=tuple(
            f"{claim.kind} {shown(claim.text, 80)} is not supported: {claim.detail}"
            for claim in wrong
        ),
        recommendations=(
            ("have the agent answer only from what it read, or retrieve what it lacks",)
            if wrong
            else ()
        ),
        method=method,
    )


# -- scoring a trace ---

NO_JUDGE = "no judge is configured"
NOT_ASKED = "not asked for"


def score_trace(
    trace: Trace,
    config: QualityConfig | None = None,
    *,
    answer: str | None = None,
    dimensions: Collection[str] = DIMENSIONS,
) -> Quality:
    """The quality of a trace, without a judge; only the dimensions asked for are worked out.

    `answer` stands in for the trace's own response, `overall` among the dimensions for those
    with a weight.
    """
    config = config or QualityConfig()
    asked = _asked(dimensions, config)
    breakdown = latencies(trace, config) if "latency" in asked else ()
    work = {
        "tool_selection": lambda: tool_selection(trace, config),
        "sequence": lambda: sequence(trace, config),
        "redundancy": lambda: redundant_calls(trace, config),
        "efficiency": lambda: efficiency(trace, config),
        "latency": lambda: latency(breakdown),
        "error_recovery": lambda: error_recovery(trace, config),
        "retrieval": lambda: retrieval(trace, answer),
        "reasoning": lambda: Dimension(name="reasoning", score=None, why=NO_JUDGE),
    }
    found = tuple(
        work[name]() if name in asked else Dimension(name=name, score=None, why=NOT_ASKED)
        for name in DIMENSIONS
    )
    return _together(trace, found, config, breakdown)


async def score_trace_with(
    judge: Judge,
    trace: Trace,
    config: QualityConfig | None = None,
    *,
    answer: str | None = None,
    dimensions: Collection[str] = DIMENSIONS,
) -> Quality:
    """The quality of a trace, its reasoning judged too."""
    config = config or QualityConfig()
    scored = score_trace(trace, config, answer=answer, dimensions=dimensions)
    if "reasoning" not in _asked(dimensions, config):
        return scored
    judged = await reasoning(judge, trace, answer)
    found = tuple(judged if each.name == "reasoning" else each for each in scored.dimensions)
    return _together(trace, found, config, scored.latency_breakdown)


async def score_traces_with(
    judge: Judge, traces: Iterable[Trace], config: QualityConfig | None = None
) -> list[Quality]:
    """The quality of several traces, one after the other; the judge's models are closed after."""
    try:
        return [await score_trace_with(judge, trace, config) for trace in traces]
    finally:
        for model in judge.models:
            if isinstance(model, ClosingModel):
                await model.aclose()


async def score_context(
    context: CheckContext[Any],
    *,
    expected_tools: tuple[str, ...] | None = None,
    dimensions: Collection[str] = DIMENSIONS,
) -> Quality:
    """The quality of a trial, with its expected tools and the default judge, if there is one."""
    config = QualityConfig(expected_tools=expected_tools)
    judge = context.judges.get(DEFAULT_JUDGE)
    if judge is None:
        return score_trace(context.trace, config, answer=context.answer, dimensions=dimensions)
    return await score_trace_with(
        judge, context.trace, config, answer=context.answer, dimensions=dimensions
    )


async def reasoning(judge: Judge, trace: Trace, answer: str | None = None) -> Dimension:
    """How sound the steps are, by a judge."""
    name = "reasoning"
    if not trace.tool_calls:
        return Dimension(name=name, score=None, why="the trace has no steps to judge")
    try:
        judged = JudgeInput.from_trace(trace, answer=answer)
        verdict = await judge.judge(judged, "reasoning")
    except ProctorError as error:
        return Dimension(name=name, score=None, why=describe_error(error), failed=True)
    method = f"judge {', '.join(model.name for model in judge.models)}"
    if verdict.normalised is None:
        why = f"the judge gave no verdict: {verdict.reason}"
        return Dimension(name=name, score=None, why=why, method=method, failed=True)
    issues = () if verdict.passed else (verdict.rationale,)
    advice = () if verdict.passed else ("read the judge's reason beside the steps it names",)
    return Dimension(
        name=name,
        score=verdict.normalised,
        why=verdict.rationale,
        issues=issues,
        recommendations=advice,
        method=method,
    )


def _asked(dimensions: Collection[str], config: QualityConfig) -> set[str]:
    asked = set(dimensions)
    if "overall" in asked:
        asked |= {name for name, weight in config.weights.items() if weight}
    return asked


def _together(
    trace: Trace,
    found: tuple[Dimension, ...],
    config: QualityConfig,
    breakdown: tuple[SpanLatency, ...],
) -> Quality:
    levelled = tuple(_levelled(each) for each in found)
    overall, weights = combined(levelled, config.weights)
    return Quality(
        trace_id=trace.trace_id,
        dimensions=levelled,
        overall=overall,
        level=None if overall is None else AVERAGE.of(overall),
        weights=weights,
        latency_breakdown=breakdown,
    )


def _levelled(dimension: Dimension) -> Dimension:
    figure = dimension.score if dimension.figure is None else dimension.figure
    if dimension.score is None or figure is None:
        return dimension
    return msgspec.structs.replace(dimension, level=LEVELS.get(dimension.name, AVERAGE).of(figure))


# -- parts ---------------------------------------------------------------------------------------


def _stepped(figure: float, steps: Iterable[tuple[float, float]], beyond: float) -> float:
    return next((score for most, score in steps if figure <= most), beyond)


def _clamped(score: float) -> float:
    # Sums of tenths are not exact; a penalty taken five times must still end at 0.
    return min(1.0, max(0.0, round(score, 10)))


def _label(span: Span) -> str:
    return span.tool_name or span.name


def _named(name: str) -> str:
    return printable(name[:80])


def _names(names: Sequence[str]) -> str:
    return ", ".join(_named(name) for name in names)


def _call_ids(trace: Trace, positions: Iterable[int]) -> tuple[str, ...]:
    calls = trace.tool_calls
    found = (calls[position].span_id for position in positions)
    return tuple(dict.fromkeys(span_id for span_id in found if span_id is not None))

"""Quality of a trace: nine dimensions and the overall score.

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

from proctor.checks._answer import PatternTimeout, check_patterns, search, shown
from proctor.checks.base import (
    CheckContext,
    Limit,
    Names,
    Number,
    Share,
    Weight,
    checked_by,
    offered_tools,
    short_name,
)
from proctor.checks.judge import Judge, JudgeInput
from proctor.checks.judge_checks import DEFAULT_JUDGE, ground_trace
from proctor.checks.metrics.matching import loops, redundancy
from proctor.checks.retrieval import is_retrieval, retrievals
from proctor.errors import ProctorError, describe_error, did_you_mean, hint_among
from proctor.formatting import plural
from proctor.llm.chat_model import ClosingModel
from proctor.sanitize import json_value
from proctor.strict import Strict
from proctor.trace import Span, SpanKind, Trace

DIMENSIONS = (
    "tool_selection",
    "sequence",
    "redundancy",
    "efficiency",
    "latency",
    "error_recovery",
    "relevance",
    "grounding",
    "reasoning",
)
"""The nine dimensions, in the order they are shown."""

RETRIEVAL = ("relevance", "grounding")
"""`retrieval` is the first of these that has a score: both say how good the evidence was."""

NAMES = (*DIMENSIONS, "retrieval", "overall")
"""What bounds and look-ups may name."""

OF_TOOLS = ("tool_selection", "sequence", "redundancy", "efficiency", "overall")
"""Dimensions of the tool calls: a trace that does not show them has no score there."""

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
    """How a figure compares with its target and alert lines."""

    TARGET = "target"
    BETWEEN = "between"
    ALERT = "alert"


class Levels(NamedTuple):
    """A figure's target and alert lines; for some figures less is better."""

    target: float
    alert: float
    less_is_better: bool = False

    def of(self, figure: float) -> QualityLevel:
        """Return the level of a figure. A figure exactly on a line is between."""
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
"""Lines of single dimensions. The figure of redundancy is its share of repeated calls, that of
latency the share of measured times within their target; of the others it is the score."""


class QueryRule(Strict):
    """The tools that a kind of question needs."""

    when: Annotated[str, Field(min_length=1), checked_by(lambda pattern: check_patterns([pattern]))]
    """A regular expression that is found in the question; case is ignored."""
    tools: Names = Field(min_length=1)
    """The tools such a question needs; `*` matches any characters."""


class RedundantOrder(Strict):
    """A step that is needless after another."""

    first: str = Field(min_length=1)
    """A tool (`*` matches any characters), or `retrieval` for any retrieval."""
    then: str = Field(min_length=1)
    """The needless step."""


_Milliseconds = Annotated[float, Number, Field(gt=0)]


class LatencyTargets(Strict):
    """The target times, in milliseconds."""

    total: _Milliseconds = 5000.0
    """The whole trace."""
    tool: _Milliseconds = 1000.0
    """One tool call."""
    llm: _Milliseconds = 2000.0
    """One model call."""
    retrieval: _Milliseconds = 500.0
    """One retrieval."""


DEFAULT_ORDERS = (RedundantOrder(first="retrieval", then="*web*search*"),)

DEFAULT_RULES = tuple(
    QueryRule(when=when, tools=(tool,))
    for when, tool in (
        (r"\b(latest|newest|news|today|current|currently|recent)\b", "*web*search*"),
        (
            r"\b(documents?|documentation|polic(y|ies)|manual|handbook)\b",
            "*retriev*",
        ),
        (r"\b(calculate|compute|multipl(y|ied)|divided by|square root|percentage)\b", "*calc*"),
        (r"\b(weather|forecast|temperature)\b", "*weather*"),
        (r"\btranslat(e|ion)\b", "*translat*"),
        (r"\bsend\b.*\be-?mail\b", "*mail*"),
    )
)
"""Expected tools by words of the question. They know no agent, so a rule applies only if such a
tool was offered to a model or used, and other tools are not needless."""


class QualityConfig(Strict):
    """How quality is scored; every part has a default."""

    expected_tools: Names | None = None
    """The tools the trace should use; when absent, `rules` say so."""
    rules: tuple[QueryRule, ...] | None = None
    """Which tools a kind of question needs; all rules that match count together. When absent,
    `DEFAULT_RULES` for the tools that the agent has; an empty list switches them off."""
    redundant_orders: tuple[RedundantOrder, ...] = DEFAULT_ORDERS
    """Steps that are needless after others."""
    repeat_penalty: Share = 0.2
    """Taken from sequence for each call directly after one of the same tool."""
    order_penalty: Share = 0.1
    """Taken from sequence for each redundant order in the trace."""
    efficiency_steps: tuple[tuple[Limit, Share], ...] = ((3, 1.0), (5, 0.8), (8, 0.6))
    """Pairs (calls, score): the score of up to that number of calls."""
    efficiency_beyond: Share = 0.4
    """The score of more calls than in the last pair."""
    redundant_call_penalty: Share = 0.15
    """Taken from efficiency for each call that repeats an earlier one with the same input."""
    latency: LatencyTargets = LatencyTargets()
    """The target times."""
    latency_steps: tuple[tuple[Limit, Share], ...] = ((1.0, 1.0), (1.5, 0.8), (2.0, 0.6))
    """Pairs (ratio, score): the score of up to that multiple of the target."""
    latency_beyond: Share = 0.4
    """The score of a higher ratio than in the last pair."""
    relevance_target: Share = 0.7
    """A retrieval whose documents have a lower mean score is an issue."""
    weights: dict[str, Weight] = Field(default_factory=lambda: dict(DEFAULT_WEIGHTS))
    """How much each dimension counts in the overall score; others do not count. `retrieval` is
    relevance where documents have scores, else grounding."""

    @field_validator("efficiency_steps", "latency_steps")
    @classmethod
    def _ascending(cls, steps: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        bounds = [most for most, _ in steps]
        if bounds != sorted(set(bounds)):
            raise ValueError("the bounds of the steps must be ascending")
        return steps

    @model_validator(mode="after")
    def _weights(self) -> Self:
        for name in self.weights:
            if name not in NAMES[:-1]:
                hint = hint_among(name, NAMES[:-1])
                raise ValueError(f"unknown quality dimension {name!r} in weights ({hint})")
        if self.weights.get("retrieval") and any(self.weights.get(name) for name in RETRIEVAL):
            raise ValueError("give a weight to retrieval, or to relevance and grounding, not both")
        if not any(self.weights.values()):
            raise ValueError("at least one dimension needs a weight above 0")
        return self


class Dimension(msgspec.Struct, frozen=True, kw_only=True):
    """One dimension of one trace.

    `score` is None when there is nothing to score: `why` has the reason, and `failed` says whether
    it is an error. `figure` decides the level where that is not the score. `parts` are figures
    behind the score: recall and precision of the tool selection.
    """

    name: str
    score: float | None
    why: str = ""
    level: QualityLevel | None = None
    figure: float | None = None
    parts: dict[str, float | None] = {}
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
    """The quality of one trace. `weights` are renormalised over the scored dimensions.

    `error_count` counts errors where they arose, `redundancy_count` calls that repeat an earlier
    one, `retrieval_count` retrievals; `tool_latency_ms` is the mean time of a tool call.
    """

    trace_id: str
    dimensions: tuple[Dimension, ...]
    overall: float | None
    level: QualityLevel | None
    weights: dict[str, float]
    error_count: int
    redundancy_count: int
    retrieval_count: int
    tool_latency_ms: float | None
    latency_breakdown: tuple[SpanLatency, ...] = ()

    def dimension(self, name: str) -> Dimension:
        """Return one dimension by name; `retrieval` and `overall` are names, too."""
        if name == "overall":
            return Dimension(
                name=name,
                score=self.overall,
                why="" if self.overall is not None else "no weighted dimension has a score",
                level=self.level,
                issues=self.issues,
            )
        if name == "retrieval":
            name = retrieval_of(self.dimensions)
        found = next((each for each in self.dimensions if each.name == name), None)
        if found is None:
            raise ProctorError(f"no quality dimension {name!r}", hint=did_you_mean(name, NAMES))
        return found

    @property
    def issues(self) -> tuple[str, ...]:
        """The issues of all dimensions."""
        return tuple(issue for each in self.dimensions for issue in each.issues)

    @property
    def recommendations(self) -> tuple[str, ...]:
        """The recommendations of all dimensions, each once."""
        return tuple(dict.fromkeys(r for each in self.dimensions for r in each.recommendations))

    def to_dict(self) -> dict[str, Any]:
        """Return the quality as JSON values."""
        return msgspec.to_builtins(self)


def retrieval_of(dimensions: Sequence[Dimension]) -> str:
    """Return which dimension `retrieval` is: relevance where it has a score, else grounding."""
    scored = {each.name for each in dimensions if each.score is not None}
    return "relevance" if "relevance" in scored else "grounding"


def combined(
    dimensions: Sequence[Dimension], weights: Mapping[str, float]
) -> tuple[float | None, dict[str, float]]:
    """Return the overall score and its weights, those of scored dimensions with sum 1."""
    weights = dict(weights)
    if share := weights.pop("retrieval", None):
        weights[retrieval_of(dimensions)] = share
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
    """Score 2·|E∩U| / (|E|+|U|) of expected and used tools: 1 for exactly the expected ones.

    By the default rules, which do not know every tool of the agent, the score is the recall.
    """
    # The F1 score of two sets: both a missing and a needless tool cost.
    name = "tool_selection"
    partial = config.expected_tools is None and config.rules is None
    expected, why = _expected(trace, config)
    if expected is not None and not trace.shows("tool_calls"):
        expected, why = None, "tool calls were not observed"
    if expected is None:
        return Dimension(name=name, score=None, why=why)
    used = trace.tools_used
    if not expected and not used:
        return Dimension(name=name, score=1.0, why="no tool expected, none used")
    missing = [tool for tool in expected if not _used(tool, used)]
    needless = [tool for tool in used if not any(_named_by(tool, each) for each in expected)]
    recall = (len(expected) - len(missing)) / len(expected) if expected else None
    precision = (len(used) - len(needless)) / len(used) if used else None
    if partial:
        precision, needless = None, []
    hits = (recall or 0.0) * len(expected)
    score = recall if partial else 2 * hits / (len(expected) + len(used))
    return Dimension(
        name=name,
        score=score,
        parts={"recall": recall, "precision": precision},
        issues=(
            *(f"{short_name(tool)} was expected and not used" for tool in missing),
            *(f"{short_name(tool)} was used and not expected" for tool in needless),
        ),
        recommendations=(
            *((f"say in the instructions when to use {_names(missing)}",) if missing else ()),
            *((f"say when not to use {_names(needless)}, or do not offer it",) if needless else ()),
        ),
        span_ids=_call_ids(
            trace, [n for n, c in enumerate(trace.tool_calls) if c.name in needless]
        ),
        method="default rules" if partial else None,
    )


def _named_by(tool: str, pattern: str) -> bool:
    return tool == pattern or ("*" in pattern and fnmatchcase(tool.casefold(), pattern.casefold()))


def _used(pattern: str, used: Iterable[str]) -> bool:
    return any(_named_by(tool, pattern) for tool in used)


def _expected(trace: Trace, config: QualityConfig) -> tuple[list[str] | None, str]:
    """Return the tools a trace should use, each once, or None and the reason."""
    if config.expected_tools is not None:
        return list(dict.fromkeys(config.expected_tools)), ""
    rules = DEFAULT_RULES if config.rules is None else config.rules
    if not rules:
        return None, "no expected tools and no query rules are configured"
    # A query may be a list of messages; rules search its text.
    query = trace.query if isinstance(trace.query, str) else str(json_value(trace.query) or "")
    found: list[str] = []
    for rule in rules:
        try:
            if search(rule.when, query) is not None:
                found.extend(rule.tools)
        except PatternTimeout as error:
            return None, str(error)
    if not found:
        return None, "no query rule matches the query"
    if config.rules is None:
        offered = {name for span in trace.index.spans for name in offered_tools(span)}
        found = [tool for tool in found if _used(tool, offered.union(trace.tools_used))]
        if not found:
            return None, "the agent has no tool that the default rules know"
    return list(dict.fromkeys(found)), ""


def sequence(trace: Trace, config: QualityConfig) -> Dimension:
    """Score 1 minus a penalty for each immediate repeat and each redundant order."""
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
            *(f"{short_name(run.tool)} called {run.length} times in a row" for run in found.runs),
            *(
                f"{short_name(_label(then))} after {short_name(_label(first))}, which is redundant"
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
    """Return the first occurrence of each configured order."""
    mask = [span.kind in (SpanKind.TOOL, SpanKind.RETRIEVAL) for span in trace.index.spans]
    # A retrieval inside a tool is the same step seen twice.
    steps = trace.index.outermost(mask)
    found: list[tuple[Span, Span]] = []
    for order in config.redundant_orders:
        later = iter(steps)  # shared, so that the second step is searched after the first
        first = next((span for span in later if _matches(span, order.first)), None)
        then = next((span for span in later if _matches(span, order.then)), None)
        if first is not None and then is not None:
            found.append((first, then))
    return found


def _matches(span: Span, pattern: str) -> bool:
    if pattern == "retrieval" and is_retrieval(span):
        return True
    # Frameworks spell tools in any case: web_search, WebSearch.
    return fnmatchcase(_label(span).casefold(), pattern.casefold())


def redundant_calls(trace: Trace) -> Dimension:
    """Score 1 minus the share of calls that repeat an earlier one: same tool, same input."""
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
            f"{short_name(tool)} called again with the same input, {number} of {len(calls)} calls"
            for tool, number in counts.items()
        ),
        span_ids=_call_ids(trace, [repeat.position for repeat in found.repeats]),
    )


def efficiency(trace: Trace, config: QualityConfig) -> Dimension:
    """Score the number of tool calls, minus a penalty for each redundant one."""
    calls = trace.tool_calls
    score = _stepped(len(calls), config.efficiency_steps, config.efficiency_beyond)
    repeats = redundancy(calls).repeats
    # The bound of the first step is the number that still has the best score.
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
        span_ids=_call_ids(trace, [repeat.position for repeat in repeats]),
    )


def latencies(trace: Trace, config: QualityConfig) -> tuple[SpanLatency, ...]:
    """Compare every measured time with its target: the whole trace first, then by start."""
    targets = config.latency
    measured: list[tuple[str | None, str, str, float, float]] = []
    if trace.duration is not None:
        measured.append((None, "total", "total", trace.duration, targets.total))
    calls = {id(span) for span in trace.llm_calls}
    for span in trace.index.spans:
        target = {
            SpanKind.TOOL: targets.tool,
            SpanKind.RETRIEVAL: targets.retrieval,
            # A span around the spans of one model call would count the same time twice.
            SpanKind.LLM: targets.llm if id(span) in calls else None,
        }.get(span.kind)
        if target is not None and span.duration is not None:
            measured.append((span.span_id, _label(span), str(span.kind), span.duration, target))
    return tuple(
        SpanLatency(
            span_id=span_id,
            name=name,
            kind=kind,
            ms=round(seconds * 1000, 3),
            target_ms=target,
            ratio=seconds * 1000 / target,
            score=_stepped(seconds * 1000 / target, config.latency_steps, config.latency_beyond),
        )
        for span_id, name, kind, seconds, target in measured
    )


def latency(breakdown: Sequence[SpanLatency]) -> Dimension:
    """Score the mean over the total and each kind of span, itself the mean over its spans."""
    if not breakdown:
        return Dimension(name="latency", score=None, why="no span of the trace has ended")
    # By kind, so that fifty quick tool calls do not hide one slow model call.
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
            f"{short_name(each.name)} took {each.ms:,.0f} ms, {each.ratio:.1f} × its target"
            for each in slowest
        ),
        recommendations=tuple(
            _FASTER[kind] for kind in dict.fromkeys(each.kind for each in slowest)
        ),
        span_ids=tuple(each.span_id for each in slowest if each.span_id is not None),
    )


_ADVICE = {
    "redundancy": "keep results of earlier calls in the agent's context, or cache the tool",
    "efficiency": "combine calls, or give tools that answer more at once",
    "error_recovery": "let the agent see the error, and say in its instructions what to try then",
    "relevance": "improve the index, the embedding or the query, or drop documents that score low",
    "grounding": "have the agent answer only from what it read, or retrieve what it lacks",
    "reasoning": "compare the judge's reason with the steps it names",
}
"""The recommendation of a dimension that has issues, where it does not depend on them."""

_FASTER = {
    "total": "run independent steps at the same time",
    "tool": "make slow tools faster, or give them a time limit",
    "llm": "use a smaller model or shorter prompts where that is enough",
    "retrieval": "index, cache or narrow slow retrievals",
}


def errors_of(trace: Trace) -> list[Span]:
    """Return the errors of a trace, each where it arose."""
    return trace.index.innermost([span.failed for span in trace.index.spans])


def error_recovery(trace: Trace) -> Dimension:
    """Score the share of errors after which the same kind of step (the same tool) later worked.

    An error that propagates through the spans around it is one error, counted where it arose.
    """
    spans = trace.index.spans
    errors = errors_of(trace)
    if not errors:
        return Dimension(name="error_recovery", score=None, why="the trace has no errors")

    def step(span: Span) -> tuple[str, str]:
        return span.kind, _label(span) if span.kind == SpanKind.TOOL else ""

    last_success: dict[tuple[str, str], int] = {}
    for span in spans:  # by start, so that the last one remains
        if not span.failed and span.end_ns is not None:
            last_success[step(span)] = span.start_ns

    def recovered(error: Span) -> bool:
        ended = error.end_ns if error.end_ns is not None else error.start_ns
        last = last_success.get(step(error))
        return last is not None and last >= ended

    unrecovered = [error for error in errors if not recovered(error)]
    return Dimension(
        name="error_recovery",
        score=(len(errors) - len(unrecovered)) / len(errors),
        issues=tuple(
            f"{short_name(_label(error))} failed ({short_name(error.error_type or 'error')}) "
            "and never worked after that"
            for error in unrecovered
        ),
        span_ids=tuple(error.span_id for error in unrecovered),
    )


def relevance(trace: Trace, config: QualityConfig) -> Dimension:
    """Score the mean of the retrieved documents' scores; each retrieval below the target counts."""
    name = "relevance"
    found = retrievals(trace)
    scored = [(each, [d.score for d in each.documents if d.score is not None]) for each in found]
    scores = [score for _, of in scored for score in of]
    if not scores:
        why = "no retrieved document has a score" if found else "the trace has no retrieval"
        return Dimension(name=name, score=None, why=why)
    # Distances and BM25 weights are no shares: their mean says nothing between 0 and 1.
    if not all(0 <= score <= 1 for score in scores):
        low, high = min(scores), max(scores)
        why = f"the documents' scores are not within 0..1 but {low:g}..{high:g}"
        return Dimension(name=name, score=None, why=why)
    low = [
        (each.span, sum(of) / len(of), len(of))
        for each, of in scored
        if of and sum(of) / len(of) < config.relevance_target
    ]
    return Dimension(
        name=name,
        score=sum(scores) / len(scores),
        issues=tuple(
            f"{short_name(_label(span))}: low relevance, {mean:.2f} over "
            f"{plural(number, 'document')}, less than {config.relevance_target:g}"
            for span, mean, number in low
        ),
        span_ids=tuple(span.span_id for span, _, _ in low),
        method=f"scores of {plural(len(scores), 'document')}",
    )


def grounding(trace: Trace, answer: str | None) -> Dimension:
    """Score the share of the answer's claims that retrieved or tool text supports."""
    name = "grounding"
    text = answer if answer is not None else trace.response
    if not text:
        return Dimension(name=name, score=None, why="the trace has no answer")
    found = ground_trace(trace, text, trace.query)
    method = f"grounding ({found.method})"
    if found.score is None:
        return Dimension(name=name, score=None, why=found.reason, method=method)
    return Dimension(
        name=name,
        score=found.score,
        why=found.reason,
        issues=tuple(
            f"{claim.kind} {shown(claim.text, 80)} is not supported: {claim.detail}"
            for claim in found.unsupported
        ),
        method=method,
    )


# -- scoring a trace -----------------------------------------------------------------------------


def score_trace(
    trace: Trace,
    config: QualityConfig | None = None,
    *,
    answer: str | None = None,
    dimensions: Collection[str] = DIMENSIONS,
) -> Quality:
    """Score the quality of a trace without a judge; only these dimensions are computed.

    `answer` replaces the trace's own response. `overall` among the dimensions means those with a
    weight.
    """
    config = config or QualityConfig()
    selected = _selected(dimensions, config)
    breakdown = latencies(trace, config) if "latency" in selected else ()
    scorers = {
        "tool_selection": lambda: tool_selection(trace, config),
        "sequence": lambda: sequence(trace, config),
        "redundancy": lambda: redundant_calls(trace),
        "efficiency": lambda: efficiency(trace, config),
        "latency": lambda: latency(breakdown),
        "error_recovery": lambda: error_recovery(trace),
        "relevance": lambda: relevance(trace, config),
        "grounding": lambda: grounding(trace, answer),
        "reasoning": lambda: Dimension(name="reasoning", score=None, why="no judge is configured"),
    }
    found = tuple(
        scorers[name]()
        if name in selected
        else Dimension(name=name, score=None, why="not selected")
        for name in DIMENSIONS
    )
    return _combine(trace, found, config, breakdown)


async def score_trace_with(
    judge: Judge | None,
    trace: Trace,
    config: QualityConfig | None = None,
    *,
    answer: str | None = None,
    dimensions: Collection[str] = DIMENSIONS,
) -> Quality:
    """Score the quality of a trace, and its reasoning by a judge, if there is one."""
    config = config or QualityConfig()
    scored = score_trace(trace, config, answer=answer, dimensions=dimensions)
    if judge is None or "reasoning" not in _selected(dimensions, config):
        return scored
    judged = await reasoning(judge, trace, answer)
    found = tuple(judged if each.name == "reasoning" else each for each in scored.dimensions)
    return _combine(trace, found, config, scored.latency_breakdown)


async def score_traces_with(
    judge: Judge, traces: Iterable[Trace], config: QualityConfig | None = None
) -> list[Quality]:
    """Score several traces one after the other, and close the judge's models."""
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
    """Score a trial, with its expected tools and the default judge, if there is one."""
    config = QualityConfig(expected_tools=expected_tools)
    judge, trace, answer = context.judges.get(DEFAULT_JUDGE), context.trace, context.answer
    return await score_trace_with(judge, trace, config, answer=answer, dimensions=dimensions)


async def reasoning(judge: Judge, trace: Trace, answer: str | None = None) -> Dimension:
    """Score how sound the steps are, by a judge."""
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
    return Dimension(
        name=name,
        score=verdict.normalised,
        why=verdict.rationale,
        issues=() if verdict.passed else (verdict.rationale,),
        method=method,
    )


def _selected(dimensions: Collection[str], config: QualityConfig) -> set[str]:
    selected = set(dimensions)
    if "overall" in selected:
        selected |= {name for name, weight in config.weights.items() if weight}
    if "retrieval" in selected:
        selected |= set(RETRIEVAL)
    return selected


def _combine(
    trace: Trace,
    found: tuple[Dimension, ...],
    config: QualityConfig,
    breakdown: tuple[SpanLatency, ...],
) -> Quality:
    dimensions: list[Dimension] = []
    for each in found:
        figure = each.score if each.figure is None else each.figure
        if each.score is None or figure is None:
            dimensions.append(each)
        else:
            level = LEVELS.get(each.name, AVERAGE).of(figure)
            advice = each.recommendations
            if each.issues and each.name in _ADVICE:
                advice = (_ADVICE[each.name],)
            dimensions.append(msgspec.structs.replace(each, level=level, recommendations=advice))
    overall, weights = combined(dimensions, config.weights)
    return Quality(
        trace_id=trace.trace_id,
        dimensions=tuple(dimensions),
        overall=overall,
        level=None if overall is None else AVERAGE.of(overall),
        weights=weights,
        error_count=len(errors_of(trace)),
        redundancy_count=len(redundancy(trace.tool_calls).repeats),
        retrieval_count=len(retrievals(trace)),
        tool_latency_ms=_mean_ms(trace.of_kind(SpanKind.TOOL)),
        latency_breakdown=breakdown,
    )


# -- parts ---------------------------------------------------------------------------------------


def _mean_ms(spans: Sequence[Span]) -> float | None:
    times = [span.duration * 1000 for span in spans if span.duration is not None]
    return round(sum(times) / len(times), 3) if times else None


def _stepped(figure: float, steps: Iterable[tuple[float, float]], beyond: float) -> float:
    return next((score for most, score in steps if figure <= most), beyond)


def _clamped(score: float) -> float:
    # Sums of tenths are not exact; a penalty of 0.2 taken five times must still end at 0.
    return min(1.0, max(0.0, round(score, 10)))


def _label(span: Span) -> str:
    return span.tool_name or span.name


def _names(names: Sequence[str]) -> str:
    return ", ".join(short_name(name) for name in names)


def _call_ids(trace: Trace, positions: Iterable[int]) -> tuple[str, ...]:
    calls = trace.tool_calls
    found = (calls[position].span_id for position in positions)
    return tuple(dict.fromkeys(span_id for span_id in found if span_id is not None))

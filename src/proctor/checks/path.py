"""Checks of how the agent worked: tools, arguments, handoffs, span queries, quality.

What has nothing to be compared with (no baseline, no expected tools) is skipped with the reason,
never passed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from proctor.checks._answer import contains_value, same_value
from proctor.checks.base import (
    Bound,
    Check,
    CheckContext,
    CheckResult,
    CheckStatus,
    Count,
    Layer,
    Name,
    OneOrMoreNames,
    Results,
    Share,
    checked_by,
    failed,
    handoffs_of,
    not_judged,
    offered_handoffs,
    parse_bound,
    passed,
    short_name,
    skipped,
    unobserved,
)
from proctor.checks.metrics.alignment import (
    ABSENT,
    ArgumentMode,
    ArgumentRules,
    CallLike,
    ExactRule,
    PlainCall,
    decoded,
    look_up,
)
from proctor.checks.metrics.matching import (
    Match,
    MatchMode,
    edit_similarity,
    loops,
    match_calls,
    sequence_similarity,
    shortened,
    tool_precision,
    tool_recall,
)
from proctor.checks.quality import NAMES, OF_TOOLS, score_context
from proctor.errors import hint_among
from proctor.formatting import and_more, plural
from proctor.strict import Strict, short_for
from proctor.trace import SpanKind, SpanQuery, TraceQuery, parse_query
from proctor.trace.model import Observable

SHOWN = 5
"""How many names a reason lists; `expected`, `actual` and the span ids hold them all."""


class ExpectedCall(Strict):
    """A call the agent should make."""

    tool: Name
    """The tool."""
    arguments: dict[str, Any] | None = None
    """Its arguments; when absent, any arguments match."""


Expected = Annotated[ExpectedCall, short_for("tool", str | ExpectedCall)]
ArgumentsRule = (
    ArgumentMode | dict[Name, ArgumentMode | Annotated[tuple[Name, ...], Field(min_length=1)]]
)
"""How arguments are compared: for all tools, or per tool with `*` for the others."""

if TYPE_CHECKING:  # in Python, `ExpectTools("search")` and `ExpectTools(["search"])` are both fine
    ToolList = Sequence[str | ExpectedCall | Mapping[str, Any]]
else:
    ToolList = Annotated[
        tuple[Expected, ...], BeforeValidator(lambda v: (v,) if isinstance(v, str | dict) else v)
    ]


class _PathCheck(Check):
    layer: ClassVar[Layer] = Layer.PATH
    quick: ClassVar[bool] = True


class _ToolCheck(_PathCheck):
    """A check of the tool calls."""

    @property
    def needs(self) -> tuple[Observable, ...]:
        """Tool calls: without them, none in the trace does not mean that none was made."""
        return ("tool_calls",)


# -- tools ---------------------------------------------------------------------------------------


class ExpectTools(_ToolCheck):
    """The calls match the expected ones; the score is the share that does.

    `match` is strict, unordered, superset, subset or in_order; `arguments` says how arguments are
    compared. A call written as a bare name takes any arguments.

    Example: `ExpectTools(["search", {"tool": "book", "arguments": {"id": 7}}], match="in_order")`.
    """

    name: ClassVar[str] = "expected_tools"
    tools: ToolList = Field(kw_only=False)
    match: MatchMode = "superset"
    arguments: ArgumentsRule | None = None

    @property
    def needs(self) -> tuple[Observable, ...]:
        """Tool calls, and their arguments if some are written."""
        calls = cast("Sequence[ExpectedCall]", self.tools)
        written = self.arguments != "ignore" and any(call.arguments is not None for call in calls)
        return ("tool_calls", "arguments") if written else ("tool_calls",)

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        reference = cast("Sequence[ExpectedCall]", self.tools)
        # Any calls meet an empty list in these modes, so a pass would mean nothing.
        if not reference and self.match in ("superset", "in_order"):
            return skipped(
                f"expected_tools is empty, which {self.match} always meets; "
                "write match_mode: strict or max_tool_calls: 0 to forbid calls"
            )
        actual = ctx.trace.tool_calls
        calls = [PlainCall(call.tool, call.arguments) for call in reference]
        rules = _rules_for(reference, self.arguments)
        match = match_calls(actual, calls, mode=self.match, arguments=rules)
        return _match_result(match, actual, calls)


class SameArguments(_PathCheck):
    """Calls have the arguments they had in the baseline.

    `rules` is one mode for all tools, or a mapping per tool (`*` for the others). Tools in
    `except_` are left out: their arguments are written in `ExpectTools` and judged there.

    Example: `SameArguments({"search": ("query",), "*": "exact"})`.
    """

    name: ClassVar[str] = "arguments"
    rules: ArgumentsRule = Field(default="exact", kw_only=False)
    match: MatchMode = "superset"
    except_: tuple[Name, ...] = ()

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        rules = self.rules if isinstance(self.rules, dict) else {"*": self.rules}
        written = set(self.except_)
        if ctx.baseline is None:
            if written:
                return skipped(
                    f"the arguments of {_listed(sorted(written))} are judged by expected_tools"
                )
            return skipped("no baseline and no arguments in expected_tools to compare with")
        # Nothing to compare with is no lack of this trace, so it comes first.
        for trace in (ctx.trace, ctx.baseline):
            if lacking := unobserved(trace, "tool_calls", "arguments"):
                return lacking
        # Without `*`, only calls of the tools named by the rules are compared.
        tools = [tool for tool in rules if tool != "*"]

        def compared(call: CallLike) -> bool:
            return call.name not in written and ("*" in rules or call.name in tools)

        ours = [call for call in ctx.trace.tool_calls if compared(call)]
        theirs = [call for call in ctx.baseline.tool_calls if compared(call)]
        if not ours and not theirs:
            called = _listed(tools) or "any tool"
            return skipped(f"no call of {called} here or in {ctx.baseline_name}")
        match = match_calls(ours, theirs, mode=self.match, arguments=_rules_of(rules))
        result = _match_result(match, ours, theirs)
        reason = f"against {ctx.baseline_name}: {result.reason}"
        return msgspec.structs.replace(result, reason=reason)


class ForbidTools(_ToolCheck):
    """None of the tools was called; `*` matches any characters. A failure always blocks.

    Example: `ForbidTools("delete*")`.
    """

    name: ClassVar[str] = "forbidden_tools"
    always_blocks: ClassVar[bool] = True
    tools: OneOrMoreNames = Field(kw_only=False)

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        calls = [
            call
            for call in ctx.trace.tool_calls
            # fnmatchcase, since fnmatch ignores case on Windows.
            if any(fnmatchcase(call.name, pattern) for pattern in self.tools)
        ]
        details: dict[str, Any] = {"expected": list(self.tools), "actual": ctx.trace.tools_used}
        if not calls:
            return passed(f"none of {_listed(self.tools)} was called", **details)
        counts = Counter(call.name for call in calls)
        often = {1: "once", 2: "twice"}
        each = ", ".join(
            f"{short_name(name)} ({often.get(times, f'{times} times')})"
            for name, times in counts.items()
        )
        return failed(f"forbidden: {each}", span_ids=_ids(calls), **details)


class CountBounds(Strict):
    """How many: exactly, at least, at most."""

    eq: Count | None = None
    """Exactly this many."""
    min: Count | None = None
    """At least this many."""
    max: Count | None = None
    """At most this many."""

    @model_validator(mode="after")
    def _valid_bounds(self) -> Self:
        if self.eq is None and self.min is None and self.max is None:
            raise ValueError("has no bound: add eq, min or max")
        if self.eq is not None and (self.min is not None or self.max is not None):
            raise ValueError("give eq, or min and max, not both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        return self

    def judge_count(self, number: int, nouns: tuple[str, str], ids: tuple[str, ...]) -> CheckResult:
        """Judge a number; `nouns` are for one and for several."""
        least, most = (self.min, self.max) if self.eq is None else (self.eq, self.eq)
        details: dict[str, Any] = {"actual": number}
        if least is None:
            bound, details["expected"] = f"at most {most} allowed", most
        elif least == most:
            bound, details["expected"] = f"expected exactly {least}", least
        else:
            upper = "" if most is None else f" and at most {most}"
            bound = f"expected at least {least}{upper}"
            details["expected"] = {"min": least, "max": most}
        reason = f"{number} {nouns[number != 1]}, {bound}"
        if (least or 0) <= number and (most is None or number <= most):
            return passed(reason, **details)
        return failed(reason, span_ids=ids, **details)


class CountToolCalls(CountBounds, _ToolCheck):
    """A tool (any, when none is named) was called this often.

    Example: `CountToolCalls("search", min=1, max=3)`, `CountToolCalls(max=5)`.
    """

    name: ClassVar[str] = "tool_call_count"
    tool: Name | None = Field(default=None, kw_only=False)

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        calls = [c for c in ctx.trace.tool_calls if self.tool is None or c.name == self.tool]
        nouns = ("tool call", "tool calls")
        if self.tool is not None:
            tool = short_name(self.tool)
            nouns = (f"call of {tool}", f"calls of {tool}")
        # The calls beyond the limit are those to look at; below a minimum, all are.
        most = self.max if self.eq is None else self.eq
        return self.judge_count(
            len(calls), nouns, _ids(calls[most:] if most is not None else calls)
        )


class MaxLoops(_ToolCheck):
    """No more calls than this came directly after a call of the same tool.

    Example: `MaxLoops(0)`.
    """

    name: ClassVar[str] = "max_loops"
    repeats: Count = Field(kw_only=False)

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        calls = ctx.trace.tool_calls
        found = loops([call.name for call in calls])
        details: dict[str, Any] = {"expected": self.repeats, "actual": found.repeats}
        reason = f"{found.repeats} immediate repeats, at most {self.repeats} allowed"
        if found.repeats <= self.repeats:
            return passed(reason, **details)
        each = ", ".join(
            f"{short_name(run.tool)} {run.length} times in a row" for run in found.runs[:SHOWN]
        )
        repeated = [call for run in found.runs for call in calls[run.start :][: run.length]]
        return failed(f"{reason}: {each}", span_ids=_ids(repeated), **details)


class _MinToolShare(_ToolCheck):
    """The expected and the used tools overlap enough."""

    measure: ClassVar[str]
    share: Share = Field(kw_only=False)
    tools: OneOrMoreNames = ()

    def judge_share(
        self, value: float, difference: str, names: Sequence[str], span_ids: tuple[str, ...] = ()
    ) -> CheckResult:
        details: dict[str, Any] = {"expected": self.share, "actual": value}
        reason = f"{self.measure} is {value:.2f}"
        if value >= self.share:
            return passed(f"{reason}, at least {self.share:g}", **details)
        reason += f", less than {self.share:g}"
        if names:
            reason += f"; {difference}: {_listed(names)}"
        return failed(reason, score=value, span_ids=span_ids, **details)


class MinToolRecall(_MinToolShare):
    """At least this share of the expected tools was used.

    Example: `MinToolRecall(0.8, tools=["search", "book"])`.
    """

    name: ClassVar[str] = "min_tool_recall"
    measure: ClassVar[str] = "tool recall"

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        used = ctx.trace.tools_used
        value = tool_recall(self.tools, used)
        if value is None:
            return skipped("min_tool_recall needs expected_tools, and there are none")
        missing = [name for name in dict.fromkeys(self.tools) if name not in used]
        return self.judge_share(value, "not used", missing)


class MinToolPrecision(_MinToolShare):
    """At least this share of the used tools was expected.

    Example: `MinToolPrecision(0.5, tools=["search", "book"])`.
    """

    name: ClassVar[str] = "min_tool_precision"
    measure: ClassVar[str] = "tool precision"

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        if not self.tools:
            return skipped("min_tool_precision needs expected_tools, and there are none")
        value = tool_precision(self.tools, ctx.trace.tools_used)
        if value is None:
            return skipped("no tool was called, so precision is undefined")
        others = [call for call in ctx.trace.tool_calls if call.name not in self.tools]
        names = list(dict.fromkeys(call.name for call in others))
        return self.judge_share(value, "not expected", names, _ids(others))


class _MinSimilarity(_PathCheck):
    """The tool sequence is similar to the baseline's, else to `tools`."""

    measure: ClassVar[str]
    similarity: ClassVar[Callable[[Sequence[str], Sequence[str]], float]]
    least: Share = Field(kw_only=False)
    tools: OneOrMoreNames | None = None

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        if ctx.baseline is not None:
            reference, source = ctx.baseline.tool_sequence, ctx.baseline_name
        elif self.tools is not None:
            reference, source = list(self.tools), "expected_tools"
        else:
            return skipped(f"no baseline and no expected_tools to compare the {self.measure} with")
        for trace in (ctx.trace, ctx.baseline):
            if trace is not None and (lacking := unobserved(trace, "tool_calls")):
                return lacking
        ours = ctx.trace.tool_sequence
        value = type(self).similarity(ours, reference)
        reason = f"{self.measure} similarity with {source} is {value:.2f}"
        details: dict[str, Any] = {"expected": reference, "actual": ours}
        if value >= self.least:
            return passed(f"{reason}, at least {self.least:g}", **details)
        return failed(
            f"{reason}, less than {self.least:g}: {_listed(ours) or 'no calls'} against "
            f"{_listed(reference) or 'none'}",
            score=value,
            span_ids=_ids(ctx.trace.tool_calls),
            **details,
        )


class MinSequenceSimilarity(_MinSimilarity):
    """The tool sequence shares enough, in order, with the baseline's: 2·|LCS|/(|A|+|B|).

    Example: `MinSequenceSimilarity(0.8)`.
    """

    name: ClassVar[str] = "min_sequence_similarity"
    measure: ClassVar[str] = "sequence"
    similarity = staticmethod(sequence_similarity)


class MinEditSimilarity(_MinSimilarity):
    """Few enough edits turn the tool sequence into the baseline's.

    Example: `MinEditSimilarity(0.8, tools=["search", "book"])`.
    """

    name: ClassVar[str] = "min_edit_similarity"
    measure: ClassVar[str] = "edit"
    similarity = staticmethod(edit_similarity)


class _ArgumentCheck(_ToolCheck):
    """Some call of a tool had an argument of which something holds."""

    tool: Name = Field(kw_only=False)
    arg: Name = Field(kw_only=False)
    value: Any = Field(kw_only=False)

    def judge_calls(
        self, ctx: CheckContext[Any], holds: Callable[[Any], bool], verb: str
    ) -> CheckResult:
        calls = [call for call in ctx.trace.tool_calls if call.name == self.tool]
        # A tool that was not called failed the check, whatever is known of arguments.
        if calls and (lacking := unobserved(ctx.trace, "arguments")):
            return lacking
        values = [look_up(decoded(call.arguments), self.arg) for call in calls]
        right = [
            call
            for call, value in zip(calls, values, strict=True)
            if value is not ABSENT and holds(value)
        ]
        condition = f"{self.arg} of {short_name(self.tool)} {verb} {shortened(self.value)}"
        details: dict[str, Any] = {
            "expected": self.value,
            "actual": [None if value is ABSENT else value for value in values],
        }
        if right:
            reason = f"{condition} in {len(right)} of {plural(len(calls), 'call')}"
            return passed(reason, span_ids=_ids(right), **details)
        if not calls:
            return failed(f"{short_name(self.tool)} was not called", **details)
        seen = ", ".join(dict.fromkeys(shortened(value) for value in values[:3]))
        return failed(
            f"{condition} in none of {plural(len(calls), 'call')}: it is {seen}",
            span_ids=_ids(calls),
            **details,
        )


class ArgumentEquals(_ArgumentCheck):
    """Some call of a tool had an argument (a dotted path) equal to a value.

    Example: `ArgumentEquals("search", "filter.city", "Oslo")`.
    """

    name: ClassVar[str] = "arg_equals"

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        return self.judge_calls(ctx, lambda value: same_value(value, self.value), "equals")


class ArgumentContains(_ArgumentCheck):
    """Some call of a tool had an argument that contains a text, an item or a key.

    Example: `ArgumentContains("search", "q", "Oslo")`.
    """

    name: ClassVar[str] = "arg_contains"
    case_sensitive: bool = False

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""

        def holds(value: Any) -> bool:
            return contains_value(value, self.value, case_sensitive=self.case_sensitive)

        return self.judge_calls(ctx, holds, "contains")


# -- handoffs ------------------------------------------------------------------------------------


class ExpectHandoffs(_PathCheck):
    """Each of the agents was handed over to; the score is the share that was.

    Example: `ExpectHandoffs("billing")`.
    """

    name: ClassVar[str] = "expected_handoff"
    agents: OneOrMoreNames = Field(kw_only=False)

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        wanted = self.agents
        made = handoffs_of(ctx.trace)
        if not made and (lacking := unobserved(ctx.trace, "tool_calls")):
            return lacking
        targets = [handoff.target for handoff in made if handoff.target]
        details: dict[str, Any] = {"expected": list(wanted), "actual": targets}
        missing = [name for name in wanted if not any(same_agent(name, t) for t in targets)]
        if not missing:
            hits = [
                h.span_id for h in made if h.target and any(same_agent(h.target, w) for w in wanted)
            ]
            return passed(f"handed over to {_listed(wanted)}", span_ids=tuple(hits), **details)
        went = f"handoffs went to {_listed(targets)}" if targets else "there was no handoff"
        return failed(
            f"no handoff to {_listed(missing)}: {went}",
            score=(len(wanted) - len(missing)) / len(wanted),
            span_ids=tuple(handoff.span_id for handoff in made),
            **details,
        )


class HandoffsAvailable(_PathCheck):
    """Each of the agents was offered to a model as a handoff target, or handed over to.

    The score is the share of them.

    Example: `HandoffsAvailable(["billing", "sales"])`.
    """

    name: ClassVar[str] = "expected_handoffs_available"
    agents: OneOrMoreNames = Field(kw_only=False)

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        wanted = self.agents
        offered = offered_handoffs(ctx.trace)
        # A handoff that happened was possible, whatever else the trace says.
        made = [handoff.target for handoff in handoffs_of(ctx.trace) if handoff.target]
        if offered is None and all(any(same_agent(w, m) for m in made) for w in wanted):
            return passed(f"handed over to {_listed(wanted)}", expected=list(wanted), actual=made)
        if offered is None:
            return not_judged(
                "unobserved",
                "the trace does not record which tools or handoffs the models were offered; "
                "have the instrumentation keep tool definitions",
                expected=list(wanted),
            )
        offered = list(dict.fromkeys([*offered, *made]))
        details: dict[str, Any] = {"expected": list(wanted), "actual": offered}
        missing = [name for name in wanted if not any(same_agent(name, o) for o in offered)]
        if not missing:
            return passed(f"handoffs to {_listed(wanted)} were on offer", **details)
        there = f"on offer: {_listed(offered)}" if offered else "no handoff was on offer"
        share = (len(wanted) - len(missing)) / len(wanted)
        return failed(f"not on offer: {_listed(missing)}; {there}", score=share, **details)


class CountHandoffs(CountBounds, _PathCheck):
    """There were this many handoffs.

    Example: `CountHandoffs(max=1)`.
    """

    name: ClassVar[str] = "handoff_count"

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        made = handoffs_of(ctx.trace)
        if not made and (lacking := unobserved(ctx.trace, "tool_calls")):
            return lacking
        return self.judge_count(len(made), ("handoff", "handoffs"), tuple(h.span_id for h in made))


# -- spans and quality ---------------------------------------------------------------------------


def parse_trace_query(query: Mapping[str, Any]) -> TraceQuery:
    """Parse a trace query, or a span query that some span must match."""
    parsed = parse_query({key: value for key, value in query.items() if key != "id"})
    return TraceQuery.parse({"any": parsed}) if isinstance(parsed, SpanQuery) else parsed


SpanCondition = Annotated[dict[str, Any], checked_by(parse_trace_query)]


class HasMatchingSpan(_PathCheck):
    """A query over the spans holds; a bare span query must match at least one span.

    `evaluation_name` is another word for `id`, as in pydantic-evals.

    Example: `HasMatchingSpan({"tool_name": "book"})`,
    `HasMatchingSpan({"none": {"has_status": "error"}})`.
    """

    name: ClassVar[str] = "span"
    query: SpanCondition = Field(kw_only=False)

    @model_validator(mode="before")
    @classmethod
    def _familiar(cls, given: dict[str, Any]) -> dict[str, Any]:
        name = given.get("evaluation_name")
        rest = {key: value for key, value in given.items() if key != "evaluation_name"}
        return given if name is None else {"id": name, **rest}

    @cached_property
    def parsed(self) -> TraceQuery:
        """The query, parsed once."""
        return parse_trace_query(self.query)

    @property
    def needs(self) -> tuple[Observable, ...]:
        """What the conditions on kinds and tool names need."""
        return self._needs

    @cached_property
    def _needs(self) -> tuple[Observable, ...]:
        return tuple(dict.fromkeys(_query_needs(self.query)))

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        result = self.parsed.evaluate(ctx.trace.index)
        # Models may have requested calls of which there is no tool span.
        unseen = "tool_calls" in self.needs and not ctx.trace.of_kind(SpanKind.TOOL)
        if unseen and ctx.trace.tool_calls:
            return not_judged(
                "unobserved", "tool calls were requested, and no tool span is recorded"
            )
        make = passed if result.holds else failed
        return make(result.reason, span_ids=tuple(result.span_ids))


def _query_needs(query: Any) -> Iterator[Observable]:
    if isinstance(query, Mapping):
        for key, value in cast("Mapping[str, Any]", query).items():
            kinds = cast("list[Any]", value) if isinstance(value, list) else [value]
            if key == "tool_name" or (key == "kind" and "tool" in kinds):
                yield "tool_calls"
            elif key == "kind" and "llm" in kinds:
                yield "model_calls"
            yield from _query_needs(value)
    elif isinstance(query, list | tuple):
        for each in cast("Sequence[Any]", query):
            yield from _query_needs(each)


def _known_dimensions(bounds: dict[str, str]) -> dict[str, str]:
    for name in bounds:
        if name not in NAMES:
            raise ValueError(f"unknown quality dimension {name!r} ({hint_among(name, NAMES)})")
    return bounds


DimensionBounds = Annotated[dict[str, Bound], AfterValidator(_known_dimensions)]


class QualityBounds(_PathCheck):
    """Each quality dimension is within its bound; `overall` is one of them.

    Example: `QualityBounds({"efficiency": ">= 0.8"})`.
    """

    name: ClassVar[str] = "quality"
    bounds: DimensionBounds = Field(kw_only=False)
    tools: OneOrMoreNames | None = None

    async def evaluate(self, ctx: CheckContext[Any], /) -> Results:
        """Judge one trial."""
        expected = None if self.tools is None else tuple(self.tools)
        # Only the bounded dimensions are computed: reasoning costs a model call.
        scored = await score_context(ctx, expected_tools=expected, dimensions=tuple(self.bounds))
        results: dict[str, CheckResult] = {}
        for name, text in self.bounds.items():
            bound, found = parse_bound(text), scored.dimension(name)
            of_tools = found.score is None and not found.failed and name in OF_TOOLS
            if of_tools and (lacking := unobserved(ctx.trace, "tool_calls")):
                results[name] = lacking
                continue
            if found.score is None:
                results[name] = CheckResult(
                    # Nothing to score is a skip; a judge that failed is an infrastructure error.
                    status=CheckStatus.UNSCORED if found.failed else CheckStatus.SKIP,
                    reason=f"{name} has no score: {found.why}",
                )
                continue
            issues = f": {'; '.join(found.issues[:SHOWN])}" if found.issues else ""
            holds = bound.holds(found.score)
            results[name] = CheckResult(
                passed=holds,
                reason=f"{name} is {found.score:.2f}, expected {bound}{'' if holds else issues}",
                expected=str(bound),
                actual=found.score,
                method=found.method,
                span_ids=() if holds else found.span_ids,
            )
        return results


# -- matching calls ------------------------------------------------------------------------------


def _rules_of(rules: ArgumentMode | Mapping[str, Any] | None) -> ArgumentRules:
    """Return the rules a user wrote: one for all tools, or one per tool with `*` for the others."""
    if rules is None or isinstance(rules, str):
        return ArgumentRules(rules or "exact")
    tools = {tool: rule for tool, rule in rules.items() if tool != "*"}
    return ArgumentRules(rules.get("*", "exact"), tools)


def _rules_for(
    reference: Sequence[ExpectedCall], rules: ArgumentMode | Mapping[str, Any] | None
) -> ArgumentRules:
    """Return the rules of each expected tool; without written arguments, any match."""
    given = _rules_of(rules)
    per_tool: dict[str, Any] = {}
    for tool in {call.tool for call in reference}:
        rule = given.of(tool)
        has_arguments = {call.arguments is not None for call in reference if call.tool == tool}
        if has_arguments == {True, False}:  # some calls of the tool have arguments written

            def accepts(actual: Any, wanted: Any, rule: ExactRule = rule) -> bool:
                return wanted in (None, {}) or rule.same(actual, wanted)

            per_tool[tool] = accepts
        else:
            per_tool[tool] = rule if has_arguments == {True} else "ignore"
    return ArgumentRules(given.default, per_tool)


def _match_result(
    match: Match, made: Sequence[CallLike], wanted: Sequence[CallLike]
) -> CheckResult:
    """Return the result of a match; the score is the share of calls that are right."""
    details: dict[str, Any] = {"expected": _values(wanted), "actual": _values(made)}
    if match.passed:
        ids = tuple(pair.span_id for pair in match.pairs if pair.span_id is not None)
        return passed(match.reason, span_ids=ids, **details)
    # Each mode has its own denominator: the calls wanted, the calls made, or the longer list.
    wholes = {"superset": len(wanted), "in_order": len(wanted), "subset": len(made)}
    whole = wholes.get(match.mode, max(len(made), len(wanted)))
    score = min(len(match.pairs) / whole, 1.0) if whole else 0.0
    return failed(match.reason, score=score, span_ids=match.span_ids, **details)


def _values(calls: Sequence[CallLike]) -> list[Any]:
    """Return calls as plain values: a name alone where there are no arguments."""
    return [
        call.name
        if call.arguments in (None, "", {})
        else {"tool": call.name, "arguments": decoded(call.arguments)}
        for call in calls
    ]


def _listed(names: Sequence[str]) -> str:
    return and_more(names, SHOWN, short_name)


def _ids(calls: Sequence[CallLike]) -> tuple[str, ...]:
    # Where only the model client is instrumented, several calls share the span of the model.
    return tuple(dict.fromkeys(call.span_id for call in calls if call.span_id is not None))


def same_agent(one: str, other: str) -> bool:
    """Return whether two spellings name one agent: case, spaces, `-` and `_` do not matter."""
    first, second = (re.sub(r"[\s_-]+", "_", name.strip()).casefold() for name in (one, other))
    return first == second

"""Layer 2, path: did the agent go about it well? A failure warns, except a forbidden tool.

Every check is a field of `PathChecks` and a function of the same name. What has no reference to
be held against (no baseline, no expected tools) is skipped with the reason, never passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, field_validator

from proctor.checks.fields import Bound, Count, Name, Names, Share, comparison, refused
from proctor.checks.metrics.alignment import CallLike
from proctor.checks.metrics.arguments import ArgumentMode
from proctor.checks.metrics.matching import MatchMode, match_calls
from proctor.checks.metrics.tool_usage import (
    edit_similarity,
    loops,
    sequence_similarity,
    tool_precision,
    tool_recall,
)
from proctor.checks.naming import named
from proctor.checks.offered import offered_handoffs, same_agent
from proctor.checks.path_parts import (
    SHOWN,
    Expected,
    SpanCheck,
    as_values,
    calls_counted,
    calls_match,
    handoffs_counted,
    how_often,
    ids_of,
    in_words,
    matched,
    read_span_check,
    rules_of,
    span_holds,
    tool_name,
)
from proctor.checks.quality import score_context
from proctor.checks.quality_dimensions import DIMENSIONS, Quality
from proctor.checks.registry import CheckContext, Outcomes, check
from proctor.checks.result import Layer, Outcome, broken, held, skipped
from proctor.checks.view import handoffs_of
from proctor.errors import hint_among
from proctor.strict import Strict


class PathChecks(Strict):
    """Did the agent go about it well? A failure warns, except for `forbidden_tools`."""

    expected_tools: tuple[Expected, ...] | None = None
    """Tools the agent should call, by name or as {tool, arguments}, matched by `match_mode`."""
    match_mode: MatchMode = "superset"
    """How calls are matched: strict, unordered, superset, subset or in_order."""
    arguments: (
        ArgumentMode | dict[Name, ArgumentMode | Annotated[tuple[Name, ...], Field(min_length=1)]]
    ) | None = None
    """How arguments are compared, for all tools or per tool (`*` for the others): exact, ignore,
    subset, superset, or the dotted paths to compare."""
    forbidden_tools: Names | None = None
    """Tools that must not be called; `*` stands for any characters. A failure always blocks."""
    max_tool_calls: Count | None = None
    """The most tool calls."""
    max_loops: Count | None = None
    """The most calls of a tool directly after itself."""
    min_tool_recall: Share | None = None
    """The least share of expected tools that must be used."""
    min_tool_precision: Share | None = None
    """The least share of used tools that must be expected."""
    min_sequence_similarity: Share | None = None
    """The least 2·|LCS|/(|A|+|B|) with the baseline's tool sequence, else with expected_tools."""
    min_edit_similarity: Share | None = None
    """The least 1 − edit distance / longer length with the baseline's tool sequence, else with
    expected_tools."""
    expected_handoff: Names | None = None
    """Agents that must be handed over to."""
    expected_handoffs_available: Names | None = None
    """Agents the models must have been offered as targets of a handoff."""
    max_handoff_count: Count | None = None
    """The most handoffs."""
    spans: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)] | None = None
    """Queries over the spans of the trace: any, all, none, count, before, after."""
    quality: dict[str, Bound] | None = None
    """Bounds on quality dimensions, such as `efficiency: '>= 0.8'`; also `overall`."""
    blocking: bool = False
    """Whether a failure makes the trial a hard failure."""

    @field_validator("spans")
    @classmethod
    def _queries(cls, spans: tuple[dict[str, Any], ...] | None) -> Any:
        with refused():
            for entry in spans or ():
                read_span_check(entry)
        return spans

    @field_validator("quality")
    @classmethod
    def _dimensions(cls, quality: dict[str, str] | None) -> dict[str, str] | None:
        known = (*DIMENSIONS, "overall")
        for name in quality or ():
            if name not in known:
                hint = hint_among(name, known)
                raise ValueError(f"unknown quality dimension {name!r} ({hint})")
        return quality

    @cached_property
    def span_checks(self) -> tuple[SpanCheck, ...]:
        """`spans`, read."""
        return tuple(read_span_check(entry) for entry in self.spans or ())


# -- the checks, in the order they are judged ----------------------------------------------------


@check(Layer.PATH)
def expected_tools(options: PathChecks, context: CheckContext) -> Outcome:
    """The calls match the expected ones under `match_mode`; the score is the share that does."""
    reference = options.expected_tools or ()
    if not reference and options.match_mode in ("superset", "in_order"):
        return skipped(
            f"expected_tools is empty, which {options.match_mode} always meets; "
            "write match_mode: strict or max_tool_calls: 0 to forbid calls"
        )
    return calls_match(reference, context, mode=options.match_mode, rules=options.arguments)


@check(Layer.PATH)
def arguments(options: PathChecks, context: CheckContext) -> Outcome:
    """Calls of the named tools have the arguments they had in the baseline.

    Arguments written in `expected_tools` are judged there, with the same rules.
    """
    rules = options.arguments
    if not isinstance(rules, dict):
        rules = {"*": rules or "exact"}
    written = {call.tool for call in options.expected_tools or () if call.arguments is not None}
    if context.baseline is None:
        if written:
            return skipped(
                f"the arguments of {in_words(sorted(written))} are judged by expected_tools"
            )
        return skipped("no baseline and no arguments in expected_tools to compare with")
    tools = [tool for tool in rules if tool != "*"]

    def asked(call: CallLike) -> bool:
        return call.name not in written and ("*" in rules or call.name in tools)

    ours = [call for call in context.trace.tool_calls if asked(call)]
    theirs = [call for call in context.baseline.tool_calls if asked(call)]
    if not ours and not theirs:
        return skipped(f"no call of {in_words(tools) or 'any tool'} here or in the baseline")
    match = match_calls(ours, theirs, mode=options.match_mode, arguments=rules_of(rules))
    return matched(
        match, len(ours), len(theirs), expected=as_values(theirs), actual=as_values(ours)
    )


@check(Layer.PATH, blocking=True)
def forbidden_tools(options: PathChecks, context: CheckContext) -> Outcome:
    """None of the tools was called."""
    forbidden = options.forbidden_tools or ()
    calls = [
        call
        for call in context.trace.tool_calls
        if any(fnmatchcase(call.name, pattern) for pattern in forbidden)
    ]
    used = context.trace.tools_used
    details: dict[str, Any] = {"expected": list(forbidden), "actual": used}
    if not calls:
        return held(f"none of {in_words(forbidden)} was called", **details)
    counts = Counter(call.name for call in calls)
    told = ", ".join(f"{tool_name(name)} ({how_often(times)})" for name, times in counts.items())
    return broken(f"forbidden: {told}", span_ids=ids_of(calls), **details)


@check(Layer.PATH)
def max_tool_calls(options: PathChecks, context: CheckContext) -> Outcome:
    """There were no more tool calls than allowed."""
    return calls_counted(context.trace.tool_calls, most=options.max_tool_calls)


@check(Layer.PATH)
def max_loops(options: PathChecks, context: CheckContext) -> Outcome:
    """No more calls than allowed came directly after a call of the same tool."""
    calls = context.trace.tool_calls
    found = loops([call.name for call in calls])
    limit = options.max_loops or 0
    details: dict[str, Any] = {"expected": limit, "actual": found.repeats}
    if found.repeats <= limit:
        return held(f"{found.repeats} immediate repeats, at most {limit} allowed", **details)
    told = ", ".join(
        f"{tool_name(run.tool)} {run.length} times in a row" for run in found.runs[:SHOWN]
    )
    repeated = [calls[n] for run in found.runs for n in range(run.start, run.start + run.length)]
    return broken(
        f"{found.repeats} immediate repeats, at most {limit} allowed: {told}",
        span_ids=ids_of(repeated),
        **details,
    )


@check(Layer.PATH)
def min_tool_recall(options: PathChecks, context: CheckContext) -> Outcome:
    """Enough of the expected tools were used."""
    expected = _expected_names(options)
    value = tool_recall(expected, context.trace.tools_used)
    if value is None:
        return skipped("min_tool_recall needs expected_tools, and there are none")
    missing = [name for name in dict.fromkeys(expected) if name not in context.trace.tools_used]
    told = f"; not used: {in_words(missing)}" if missing else ""
    return _at_least("tool recall", value, options.min_tool_recall or 0.0, told)


@check(Layer.PATH)
def min_tool_precision(options: PathChecks, context: CheckContext) -> Outcome:
    """Enough of the used tools were expected."""
    expected = _expected_names(options)
    if not expected:
        return skipped("min_tool_precision needs expected_tools, and there are none")
    value = tool_precision(expected, context.trace.tools_used)
    if value is None:
        return skipped("no tool was called, so precision is undefined")
    others = [call for call in context.trace.tool_calls if call.name not in expected]
    names = list(dict.fromkeys(call.name for call in others))
    told = f"; not expected: {in_words(names)}" if names else ""
    return _at_least(
        "tool precision", value, options.min_tool_precision or 0.0, told, span_ids=ids_of(others)
    )


@check(Layer.PATH)
def min_sequence_similarity(options: PathChecks, context: CheckContext) -> Outcome:
    """The tool sequence shares enough, in order, with the baseline's."""
    return _similar(options, context, "sequence", sequence_similarity)


@check(Layer.PATH)
def min_edit_similarity(options: PathChecks, context: CheckContext) -> Outcome:
    """Few enough edits turn the tool sequence into the baseline's."""
    return _similar(options, context, "edit", edit_similarity)


@check(Layer.PATH)
def expected_handoff(options: PathChecks, context: CheckContext) -> Outcome:
    """Each of the agents was handed over to; the score is the share that was."""
    wanted = options.expected_handoff or ()
    made = handoffs_of(context.trace)
    targets = [handoff.target for handoff in made if handoff.target]
    details: dict[str, Any] = {"expected": list(wanted), "actual": targets}
    missing = [name for name in wanted if not any(same_agent(name, t) for t in targets)]
    if not missing:
        hits = [
            h.span_id for h in made if h.target and any(same_agent(h.target, w) for w in wanted)
        ]
        return held(f"handed over to {in_words(wanted)}", span_ids=tuple(hits), **details)
    told = f"handoffs went to {in_words(targets)}" if targets else "there was no handoff"
    return broken(
        f"no handoff to {in_words(missing)}: {told}",
        score=(len(wanted) - len(missing)) / len(wanted),
        span_ids=tuple(handoff.span_id for handoff in made),
        **details,
    )


@check(Layer.PATH)
def expected_handoffs_available(options: PathChecks, context: CheckContext) -> Outcome:
    """Each of the agents was on offer; the score is the share that was."""
    wanted = options.expected_handoffs_available or ()
    offered = offered_handoffs(context.trace)
    if offered is None:
        return skipped(
            "the trace does not record which tools or handoffs the models were offered; "
            "have the instrumentation keep tool definitions",
            expected=list(wanted),
        )
    details: dict[str, Any] = {"expected": list(wanted), "actual": offered}
    missing = [name for name in wanted if not any(same_agent(name, o) for o in offered)]
    if not missing:
        return held(f"handoffs to {in_words(wanted)} were on offer", **details)
    told = f"on offer: {in_words(offered)}" if offered else "no handoff was on offer"
    share = (len(wanted) - len(missing)) / len(wanted)
    return broken(f"not on offer: {in_words(missing)}; {told}", score=share, **details)


@check(Layer.PATH)
def max_handoff_count(options: PathChecks, context: CheckContext) -> Outcome:
    """There were no more handoffs than allowed."""
    return handoffs_counted(context, most=options.max_handoff_count)


@check(Layer.PATH)
def spans(options: PathChecks, context: CheckContext) -> Outcomes:
    """Each query over the spans holds."""
    entries = options.span_checks
    outcomes = [span_holds(entry, context) for entry in entries]
    places = [str(place) for place in range(1, len(entries) + 1)]
    return named([entry.id for entry in entries], places, outcomes)


@check(Layer.PATH)
async def quality(options: PathChecks, context: CheckContext) -> Outcomes:
    """Each dimension of quality keeps its bound."""
    bounds = options.quality or {}
    expected = tuple(_expected_names(options)) if options.expected_tools is not None else None
    scored = await score_context(context, expected_tools=expected, dimensions=tuple(bounds))
    return [(name, _dimension(scored, name, text)) for name, text in bounds.items()]


# -- parts ---------------------------------------------------------------------------------------


def _at_least(
    what: str, value: float, least: float, told: str, span_ids: tuple[str, ...] = ()
) -> Outcome:
    if value >= least:
        return held(f"{what} is {value:.2f}, at least {least:g}", expected=least, actual=value)
    return broken(
        f"{what} is {value:.2f}, less than {least:g}{told}",
        score=value,
        expected=least,
        actual=value,
        span_ids=span_ids,
    )


def _similar(
    options: PathChecks,
    context: CheckContext,
    kind: str,
    measure: Callable[[Sequence[str], Sequence[str]], float],
) -> Outcome:
    if context.baseline is not None:
        reference, source = context.baseline.tool_sequence, "the baseline"
    elif options.expected_tools is not None:
        reference, source = _expected_names(options), "expected_tools"
    else:
        return skipped(f"no baseline and no expected_tools to compare the {kind} with")
    ours = context.trace.tool_sequence
    value = measure(ours, reference)
    least: float = getattr(options, f"min_{kind}_similarity") or 0.0
    told = f"{kind} similarity with {source} is {value:.2f}"
    details: dict[str, Any] = {"expected": list(reference), "actual": ours}
    if value >= least:
        return held(f"{told}, at least {least:g}", **details)
    return broken(
        f"{told}, less than {least:g}: {in_words(ours) or 'no calls'} against "
        f"{in_words(reference) or 'none'}",
        score=value,
        span_ids=ids_of(context.trace.tool_calls),
        **details,
    )


def _dimension(scored: Quality, name: str, text: str) -> Outcome:
    bound = comparison(text)
    found = scored.dimension(name)
    if found.score is None:
        return Outcome(
            score=None, reason=f"{name} has no score: {found.why}", unscored=found.failed
        )
    told = f"{name} is {found.score:.2f}, asked for {bound}"
    details: dict[str, Any] = {
        "expected": str(bound),
        "actual": found.score,
        "method": found.method,
    }
    if bound.holds(found.score):
        return held(told, **details)
    issues = f": {'; '.join(found.issues[:SHOWN])}" if found.issues else ""
    return broken(f"{told}{issues}", span_ids=found.span_ids, **details)


def _expected_names(options: PathChecks) -> list[str]:
    return [call.tool for call in options.expected_tools or ()]

"""What path checks and assertions are built from: expected calls, counts, queries over spans.

Promise: each judgement about a path is made in one place, here; a layer and an assertion that
ask the same question get the same answer in the same words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from proctor.checks.fields import Name
from proctor.checks.metrics.alignment import CallLike, PlainCall
from proctor.checks.metrics.arguments import ArgumentMode, ArgumentRules, ExactRule, decoded
from proctor.checks.metrics.matching import Match, MatchMode, match_calls
from proctor.checks.registry import CheckContext
from proctor.checks.result import Outcome, broken, held
from proctor.checks.view import handoffs_of
from proctor.sanitize import printable
from proctor.strict import Strict
from proctor.trace import SpanQuery, TraceQuery, parse_query
from proctor.words import and_more

SHOWN = 5
"""More than these in a line help nobody; `expected`, `actual` and the span ids hold them all."""


class ExpectedCall(Strict):
    """A call the agent should make."""

    tool: Name
    """The tool."""
    arguments: dict[str, Any] | None = None
    """Its arguments; any will do when absent."""


def _call(value: Any) -> Any:
    return {"tool": value} if isinstance(value, str) else value


Expected = Annotated[
    ExpectedCall, BeforeValidator(_call, json_schema_input_type=str | ExpectedCall)
]


class SpanCheck(NamedTuple):
    """A query over all spans of a trace, under the name its result goes by."""

    id: str | None
    query: TraceQuery


def read_span_check(entry: Mapping[str, Any]) -> SpanCheck:
    """A trace query, or a span query that some span must match; `id` names the result."""
    rest = dict(entry)
    name = rest.pop("id", None)
    query = parse_query(rest)
    if isinstance(query, SpanQuery):
        query = TraceQuery.parse({"any": query})
    return SpanCheck(None if name is None else str(name), query)


def calls_match(
    reference: Sequence[ExpectedCall],
    context: CheckContext,
    *,
    mode: MatchMode,
    rules: ArgumentMode | Mapping[str, Any] | None = None,
) -> Outcome:
    """Whether the calls of a trace match expected ones, and which do not."""
    actual = context.trace.tool_calls
    calls = [PlainCall(call.tool, call.arguments) for call in reference]
    match = match_calls(actual, calls, mode=mode, arguments=_rules_for(reference, rules))
    return matched(
        match, len(actual), len(calls), expected=as_values(calls), actual=as_values(actual)
    )


def calls_counted(
    calls: Sequence[CallLike],
    *,
    least: int | None = None,
    most: int | None = None,
    tool: str | None = None,
) -> Outcome:
    """Whether the number of calls (of one tool, if named) keeps its bounds."""
    counted = [call for call in calls if tool is None or call.name == tool]
    nouns = ("tool call", "tool calls")
    if tool is not None:
        nouns = (f"call of {tool_name(tool)}", f"calls of {tool_name(tool)}")
    ids = ids_of(counted[most:] if most is not None else counted)
    return _counted(len(counted), nouns, least, most, ids)


def handoffs_counted(
    context: CheckContext, *, least: int | None = None, most: int | None = None
) -> Outcome:
    """Whether the number of handoffs keeps its bounds."""
    made = handoffs_of(context.trace)
    return _counted(len(made), ("handoff", "handoffs"), least, most, tuple(h.span_id for h in made))


def span_holds(entry: SpanCheck, context: CheckContext) -> Outcome:
    """Whether a query over the spans of a trace holds."""
    result = entry.query.evaluate(context.trace.index)
    make = held if result.holds else broken
    return make(result.reason, span_ids=tuple(result.span_ids))


# -- parts ---------------------------------------------------------------------------------------


def rules_of(rules: ArgumentMode | Mapping[str, Any] | None) -> ArgumentRules:
    """The rules a user wrote: one for all tools, or one per tool with `*` for the others."""
    if rules is None or isinstance(rules, str):
        return ArgumentRules(rules or "exact")
    tools = {tool: rule for tool, rule in rules.items() if tool != "*"}
    return ArgumentRules(rules.get("*", "exact"), tools)


def _rules_for(
    reference: Sequence[ExpectedCall], rules: ArgumentMode | Mapping[str, Any] | None
) -> ArgumentRules:
    """The rules of each expected tool; where no arguments are written, any will do."""
    given = rules_of(rules)
    written: dict[str, set[bool]] = {}
    for call in reference:
        written.setdefault(call.tool, set()).add(call.arguments is not None)
    per_tool: dict[str, Any] = {}
    for tool, kinds in written.items():
        if kinds == {True}:
            per_tool[tool] = given.of(tool)
        else:
            per_tool[tool] = "ignore" if kinds == {False} else _or_any(given.of(tool))
    return ArgumentRules(given.default, per_tool)


def _or_any(rule: ExactRule) -> Any:
    def accepts(actual: Any, reference: Any) -> bool:
        return reference in (None, {}) or rule.same(actual, reference)

    return accepts


def matched(match: Match, made: int, wanted: int, **details: Any) -> Outcome:
    """A match as an outcome; the score is the share of calls that are right."""
    if match.passed:
        ids = tuple(pair.span_id for pair in match.pairs if pair.span_id is not None)
        return held(match.reason, span_ids=ids, **details)
    of = {"superset": wanted, "in_order": wanted, "subset": made}
    whole = of.get(match.mode, max(made, wanted))
    right = len(match.pairs)
    score = min(right / whole, 1.0) if whole else 0.0
    return broken(match.reason, score=score, span_ids=match.span_ids, **details)


def as_values(calls: Sequence[CallLike]) -> list[Any]:
    """Calls as plain values: a name alone where there are no arguments."""
    return [
        call.name
        if call.arguments in (None, "", {})
        else {"tool": call.name, "arguments": decoded(call.arguments)}
        for call in calls
    ]


def _counted(
    number: int,
    nouns: tuple[str, str],
    least: int | None,
    most: int | None,
    ids: tuple[str, ...],
) -> Outcome:
    """Whether a number is within bounds; `nouns` are for one and for several."""
    told = f"{number} {nouns[number != 1]}"
    details: dict[str, Any] = {"actual": number}
    if least is None:
        asked, details["expected"] = f"at most {most} allowed", most
    elif least == most:
        asked, details["expected"] = f"asked for exactly {least}", least
    else:
        upper = "" if most is None else f" and at most {most}"
        asked, details["expected"] = (
            f"asked for at least {least}{upper}",
            {"min": least, "max": most},
        )
    if (least or 0) <= number and (most is None or number <= most):
        return held(f"{told}, {asked}", **details)
    return broken(f"{told}, {asked}", span_ids=ids, **details)


def tool_name(name: str) -> str:
    """The name of a tool, safe to print."""
    return printable(name[:80])


def in_words(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    return and_more(names, SHOWN, tool_name)


def how_often(number: int) -> str:
    """A number of times, in words."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def ids_of(calls: Sequence[CallLike]) -> tuple[str, ...]:
    """The spans of calls, each once."""
    return tuple(dict.fromkeys(call.span_id for call in calls if call.span_id is not None))

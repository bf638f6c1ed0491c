"""`assertions:`, the flat form: each maps onto the same functions as the layers.

Promise: nothing is judged here that a layer could judge; an assertion builds the layer's options
and asks its check. Its own are only the questions a layer has no words for (an exact count, one
argument of one call).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, NamedTuple, cast

from proctor.checks import correctness, cost, path
from proctor.checks.assertion_models import (
    ArgContains,
    ArgEquals,
    Assertion,
    Bounds,
    CostUnder,
    HandoffCount,
    HandoffTarget,
    HandoffTargetsAvailable,
    JmespathAssertion,
    JudgeAssertion,
    LatencyUnder,
    OutputContains,
    OutputNotContains,
    SpanAssertion,
    StepsUnder,
    ToolCallCount,
    ToolCalled,
    ToolNotCalled,
    ToolSequence,
)
from proctor.checks.conditions import contains_value, same_value
from proctor.checks.correctness import Correctness, expression_holds
from proctor.checks.cost import CostChecks
from proctor.checks.evaluate import PlannedCheck
from proctor.checks.judging import judge_by_rule
from proctor.checks.metrics.arguments import ABSENT, decoded, look_up
from proctor.checks.metrics.matching import MatchMode, shortened
from proctor.checks.path import PathChecks
from proctor.checks.path_parts import (
    ExpectedCall,
    calls_counted,
    calls_match,
    handoffs_counted,
    ids_of,
    span_holds,
    tool_name,
)
from proctor.checks.registry import CheckContext
from proctor.checks.result import Layer, Outcome, broken, held
from proctor.checks.view import document
from proctor.words import plural

__all__ = ["Assertion", "planned_assertion", "run_assertion"]


async def run_assertion(assertion: Any, context: CheckContext) -> Outcome:
    """Judge one assertion; a `CheckFunction` whose options are the assertion itself."""
    outcome = _RULES[assertion.type].run(assertion, context)
    return await outcome if isawaitable(outcome) else outcome


def planned_assertion(assertion: Any) -> PlannedCheck:
    """An assertion as a check that is ready to run, in the layer whose question it asks.

    Its id is its own, or its type and argument.
    """
    rule = _RULES[assertion.type]
    argument = rule.argument(assertion)
    derived = f"{assertion.type}:{argument}" if argument else assertion.type
    return PlannedCheck(
        id=assertion.id or derived,
        check=assertion.type,
        layer=rule.layer,
        options=assertion,
        run=run_assertion,
        weight=assertion.weight,
        blocking=assertion.required,
        judged=assertion.type == "judge",
    )


def _tool_called(assertion: ToolCalled, context: CheckContext) -> Outcome:
    call = ExpectedCall(tool=assertion.tool, arguments=assertion.arguments)
    return calls_match([call], context, mode="superset", rules=assertion.match)


def _tool_not_called(assertion: ToolNotCalled, context: CheckContext) -> Outcome:
    return _ask(path.forbidden_tools, PathChecks(forbidden_tools=(assertion.tool,)), context)


def _tool_call_count(assertion: ToolCallCount, context: CheckContext) -> Outcome:
    least, most = _between(assertion)
    calls = context.trace.tool_calls
    return calls_counted(calls, least=least, most=most, tool=assertion.tool)


_SEQUENCE_MODES: dict[str, MatchMode] = {
    "exact": "strict",
    "in_order": "in_order",
    "any_order": "superset",
}


def _tool_sequence(assertion: ToolSequence, context: CheckContext) -> Outcome:
    return calls_match(assertion.tools, context, mode=_SEQUENCE_MODES[assertion.mode])


def _arg_equals(assertion: ArgEquals, context: CheckContext) -> Outcome:
    wanted = assertion.value
    told = f"equals {shortened(wanted)}"
    return _argument(assertion, context, lambda value: same_value(value, wanted), told)


def _arg_contains(assertion: ArgContains, context: CheckContext) -> Outcome:
    wanted = assertion.value

    def holds(value: Any) -> bool:
        return contains_value(value, wanted, case_sensitive=assertion.case_sensitive)

    return _argument(assertion, context, holds, f"contains {shortened(wanted)}")


def _argument(
    assertion: ArgEquals | ArgContains,
    context: CheckContext,
    holds: Callable[[Any], bool],
    told: str,
) -> Outcome:
    """Whether some call of a tool has an argument of which something holds."""
    calls = [call for call in context.trace.tool_calls if call.name == assertion.tool]
    values = [look_up(decoded(call.arguments), assertion.arg) for call in calls]
    right = [
        call
        for call, value in zip(calls, values, strict=True)
        if value is not ABSENT and holds(value)
    ]
    what = f"{assertion.arg} of {tool_name(assertion.tool)}"
    details: dict[str, Any] = {
        "expected": assertion.value,
        "actual": [None if value is ABSENT else value for value in values],
    }
    if right:
        reason = f"{what} {told} in {len(right)} of {plural(len(calls), 'call')}"
        return held(reason, span_ids=ids_of(right), **details)
    if not calls:
        return broken(f"{tool_name(assertion.tool)} was not called", **details)
    seen = ", ".join(dict.fromkeys(shortened(value) for value in values[:3]))
    return broken(
        f"{what} {told} in none of {plural(len(calls), 'call')}: it is {seen}",
        span_ids=ids_of(calls),
        **details,
    )


def _output_contains(assertion: OutputContains, context: CheckContext) -> Outcome:
    options = Correctness(
        expected_in_answer=assertion.value, case_sensitive=assertion.case_sensitive
    )
    return _ask(correctness.expected_in_answer, options, context)


def _output_not_contains(assertion: OutputNotContains, context: CheckContext) -> Outcome:
    options = Correctness(not_in_answer=assertion.value, case_sensitive=assertion.case_sensitive)
    return _ask(correctness.not_in_answer, options, context)


def _jmespath(assertion: JmespathAssertion, context: CheckContext) -> Outcome:
    return expression_holds(assertion, document(context))


def _cost_under(assertion: CostUnder, context: CheckContext) -> Outcome:
    return _ask(cost.max_cost_usd, CostChecks(max_cost_usd=assertion.usd), context)


def _latency_under(assertion: LatencyUnder, context: CheckContext) -> Outcome:
    return _ask(cost.max_latency_ms, CostChecks(max_latency_ms=assertion.ms), context)


def _steps_under(assertion: StepsUnder, context: CheckContext) -> Outcome:
    return _ask(path.max_tool_calls, PathChecks(max_tool_calls=assertion.steps), context)


def _handoff_target(assertion: HandoffTarget, context: CheckContext) -> Outcome:
    return _ask(path.expected_handoff, PathChecks(expected_handoff=assertion.agent), context)


def _handoff_targets_available(
    assertion: HandoffTargetsAvailable, context: CheckContext
) -> Outcome:
    options = PathChecks(expected_handoffs_available=assertion.agents)
    return _ask(path.expected_handoffs_available, options, context)


def _handoff_count(assertion: HandoffCount, context: CheckContext) -> Outcome:
    least, most = _between(assertion)
    return handoffs_counted(context, least=least, most=most)


def _judge(assertion: JudgeAssertion, context: CheckContext) -> Awaitable[Outcome]:
    return judge_by_rule(assertion, context)


def _span(assertion: SpanAssertion, context: CheckContext) -> Outcome:
    return span_holds(assertion.span_check, context)


def _between(bounds: Bounds) -> tuple[int | None, int | None]:
    return (bounds.min, bounds.max) if bounds.eq is None else (bounds.eq, bounds.eq)


def _ask(check: Callable[[Any, CheckContext], Any], options: Any, context: CheckContext) -> Outcome:
    """The outcome of a layer's check; those asked here have exactly one, at once."""
    return cast("Outcome", check(options, context))


class _Rule(NamedTuple):
    """How one type of assertion is judged, where it belongs, and what tells it from others."""

    layer: Layer
    run: Callable[[Any, CheckContext], Outcome | Awaitable[Outcome]]
    argument: Callable[[Any], str]


def _field(*names: str) -> Callable[[Any], str]:
    def text(assertion: Any) -> str:
        values = [getattr(assertion, name) for name in names]
        shown = [_joined(value) for value in values if value]
        return ".".join(shown)[:80]

    return text


def _joined(value: Any) -> str:
    many = cast("tuple[str, ...]", value) if isinstance(value, tuple) else (str(value),)
    return "+".join(many)


def _tools_of(assertion: ToolSequence) -> str:
    return ">".join(call.tool for call in assertion.tools)[:80]


_RULES: dict[str, _Rule] = {
    "tool_called": _Rule(Layer.PATH, _tool_called, _field("tool")),
    "tool_not_called": _Rule(Layer.PATH, _tool_not_called, _field("tool")),
    "tool_call_count": _Rule(Layer.PATH, _tool_call_count, _field("tool")),
    "tool_sequence": _Rule(Layer.PATH, _tool_sequence, _tools_of),
    "arg_equals": _Rule(Layer.PATH, _arg_equals, _field("tool", "arg")),
    "arg_contains": _Rule(Layer.PATH, _arg_contains, _field("tool", "arg")),
    "output_contains": _Rule(Layer.CORRECTNESS, _output_contains, _field("value")),
    "output_not_contains": _Rule(Layer.CORRECTNESS, _output_not_contains, _field("value")),
    "jmespath": _Rule(Layer.CORRECTNESS, _jmespath, _field("path")),
    "cost_under": _Rule(Layer.COST, _cost_under, _field()),
    "latency_under": _Rule(Layer.COST, _latency_under, _field()),
    "steps_under": _Rule(Layer.PATH, _steps_under, _field()),
    "handoff_target": _Rule(Layer.PATH, _handoff_target, _field("agent")),
    "handoff_targets_available": _Rule(Layer.PATH, _handoff_targets_available, _field("agents")),
    "handoff_count": _Rule(Layer.PATH, _handoff_count, _field()),
    "judge": _Rule(Layer.CORRECTNESS, _judge, _field("rubric")),
    "span": _Rule(Layer.PATH, _span, _field()),
}

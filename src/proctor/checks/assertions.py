"""`assertions:`, the flat spelling: one model for each type, which builds a check object.

Nothing is judged here: `{type: output_contains, value: Paris}` and `correctness:
{expected_in_answer: Paris}` both build `Contains("Paris")`. Every type has `weight`, `required`
and `id`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field

from proctor.checks._answer import Contains, Excludes
from proctor.checks._cost import MaxCost, MaxLatency
from proctor.checks._structured import JMESPath, Operators
from proctor.checks.base import Check, Count, Limit, Name, Names, Texts, Weight
from proctor.checks.judge_checks import JudgeRule, LLMJudge
from proctor.checks.metrics.arguments import ArgumentMode
from proctor.checks.metrics.matching import MatchMode
from proctor.checks.path import (
    ArgumentContains,
    ArgumentEquals,
    CountBounds,
    CountHandoffs,
    CountToolCalls,
    Expected,
    ExpectedCall,
    ExpectHandoffs,
    ExpectTools,
    ForbidTools,
    HandoffsAvailable,
    HasMatchingSpan,
    SpanCondition,
)
from proctor.strict import Strict


class AssertionBase(Strict):
    """What every assertion has."""

    builds: ClassVar[type[Check]]
    """The check it builds; unless `check` is overridden, from the fields of the same names."""
    id_fields: ClassVar[tuple[str, ...]] = ()
    """The fields that go into the id after the type."""

    weight: Weight = 1.0
    """How much it counts in the score."""
    required: bool = False
    """Whether a failure makes the trial a hard failure."""
    id: str | None = Field(default=None, min_length=1)
    """Its name in results; its type and argument when absent."""

    def check(self) -> Check:
        """Build the check."""
        return self.builds(**self.own())

    def own(self) -> dict[str, Any]:
        """Return the fields of the type that were set."""
        # Only fields that were set: for some operators null differs from absent.
        common = AssertionBase.model_fields.keys() | {"type"}
        return {name: getattr(self, name) for name in self.model_fields_set - common}

    @property
    def argument(self) -> str:
        """What distinguishes it from others of its type, for the id."""
        values = [getattr(self, name) for name in self.id_fields]
        shown = [
            # A list in an id reads as one word: `handoff_target:billing+sales`.
            "+".join(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else str(value)
            for value in values
            if value
        ]
        return ".".join(shown)[:80]


def assertion_check(assertion: Any) -> Check:
    """Return the check of an assertion, with its id, weight and whether it blocks."""
    kind = str(assertion.type)
    derived = f"{kind}:{assertion.argument}" if assertion.argument else kind
    return assertion.check().with_(
        kind=kind,
        id=assertion.id or derived,
        weight=assertion.weight,
        required=assertion.required,
    )


class ToolCalled(AssertionBase):
    """A tool was called, with these arguments if any are given."""

    id_fields: ClassVar[tuple[str, ...]] = ("tool",)
    type: Literal["tool_called"]
    tool: Name
    """The tool."""
    arguments: dict[str, Any] | None = None
    """Arguments of the call; when absent, any arguments match."""
    match: ArgumentMode = "superset"
    """How they are compared; `superset` lets the call have more than those written."""

    def check(self) -> Check:
        """Build the check."""
        call = ExpectedCall(tool=self.tool, arguments=self.arguments)
        return ExpectTools([call], arguments=self.match)


class ToolNotCalled(AssertionBase):
    """A tool was not called."""

    id_fields: ClassVar[tuple[str, ...]] = ("tool",)
    type: Literal["tool_not_called"]
    tool: Name
    """The tool; `*` matches any characters."""

    def check(self) -> Check:
        """Build the check."""
        return ForbidTools(self.tool)


class ToolCallCount(CountBounds, AssertionBase):
    """The number of calls of a tool, or of all tools, is within bounds."""

    builds: ClassVar[type[Check]] = CountToolCalls
    id_fields: ClassVar[tuple[str, ...]] = ("tool",)
    type: Literal["tool_call_count"]
    tool: Name | None = None
    """The tool; calls of all tools when absent."""


class ToolSequence(AssertionBase):
    """Tools were called in this sequence."""

    type: Literal["tool_sequence"]
    tools: tuple[Expected, ...] = Field(min_length=1)
    """The tools, by name or as {tool, arguments}."""
    mode: Literal["exact", "in_order", "any_order"] = "in_order"
    """exact: these calls and no others, in this order; in_order: these in this order, others
    between them allowed; any_order: these, in any order, others allowed."""

    @property
    def argument(self) -> str:
        """The tools, for the id."""
        return ">".join(call.tool for call in self.tools)[:80]

    def check(self) -> Check:
        """Build the check."""
        return ExpectTools(self.tools, match=_SEQUENCE_MODES[self.mode])


_SEQUENCE_MODES: dict[str, MatchMode] = {
    "exact": "strict",
    "in_order": "in_order",
    "any_order": "superset",
}


class _ArgumentAssertion(AssertionBase):
    id_fields: ClassVar[tuple[str, ...]] = ("tool", "arg")
    tool: Name
    """The tool."""
    arg: Name
    """The argument, as a dotted path (`filter.city`)."""


class ArgEquals(_ArgumentAssertion):
    """Some call of a tool had an argument equal to a value."""

    builds: ClassVar[type[Check]] = ArgumentEquals
    type: Literal["arg_equals"]
    value: Any
    """The value it must equal."""


class ArgContains(_ArgumentAssertion):
    """Some call of a tool had an argument that contains a value."""

    builds: ClassVar[type[Check]] = ArgumentContains
    type: Literal["arg_contains"]
    value: Any
    """A part of the text, an item of the list, or a key of the mapping."""
    case_sensitive: bool = False
    """Whether upper and lower case differ."""


class _OutputAssertion(AssertionBase):
    id_fields: ClassVar[tuple[str, ...]] = ("value",)
    value: Texts
    """The text, or several."""
    case_sensitive: bool = False
    """Whether upper and lower case differ."""

    def own(self) -> dict[str, Any]:
        fields = super().own()
        fields["texts"] = fields.pop("value")
        return fields


class OutputContains(_OutputAssertion):
    """The answer contains all of the texts."""

    builds: ClassVar[type[Check]] = Contains
    type: Literal["output_contains"]


class OutputNotContains(_OutputAssertion):
    """The answer contains none of the texts."""

    builds: ClassVar[type[Check]] = Excludes
    type: Literal["output_not_contains"]


class JmespathAssertion(Operators, AssertionBase):
    """A JMESPath expression over the trial, and conditions on its value."""

    builds: ClassVar[type[Check]] = JMESPath
    id_fields: ClassVar[tuple[str, ...]] = ("path",)
    type: Literal["jmespath"]


class CostUnder(AssertionBase):
    """The trial cost no more than this."""

    builds: ClassVar[type[Check]] = MaxCost
    type: Literal["cost_under"]
    usd: Limit
    """The highest cost, in US dollars."""


class LatencyUnder(AssertionBase):
    """The trial took no longer than this."""

    builds: ClassVar[type[Check]] = MaxLatency
    type: Literal["latency_under"]
    ms: Limit
    """The longest time, in milliseconds."""


class StepsUnder(AssertionBase):
    """The trial took no more steps (tool calls) than this."""

    type: Literal["steps_under"]
    steps: Count
    """The most tool calls."""

    def check(self) -> Check:
        """Build the check."""
        return CountToolCalls(max=self.steps)


class HandoffTarget(AssertionBase):
    """An agent received a handoff."""

    id_fields: ClassVar[tuple[str, ...]] = ("agent",)
    type: Literal["handoff_target"]
    agent: Names
    """The agent, or several that must all receive one."""

    def check(self) -> Check:
        """Build the check."""
        return ExpectHandoffs(self.agent)


class HandoffTargetsAvailable(AssertionBase):
    """Agents were available as handoff targets."""

    builds: ClassVar[type[Check]] = HandoffsAvailable
    id_fields: ClassVar[tuple[str, ...]] = ("agents",)
    type: Literal["handoff_targets_available"]
    agents: Names
    """The agents."""


class HandoffCount(CountBounds, AssertionBase):
    """The number of handoffs is within bounds."""

    builds: ClassVar[type[Check]] = CountHandoffs
    type: Literal["handoff_count"]


class JudgeAssertion(JudgeRule, AssertionBase):
    """A judge scores the answer: by a rule, or by weighted criteria, the median of k votes each."""

    id_fields: ClassVar[tuple[str, ...]] = ("rubric",)
    type: Literal["judge"]
    id: str | None = Field(default=None, min_length=1)
    """Its name in results; its type and argument when absent."""

    def check(self) -> Check:
        """Build the check; the judge is shown the id as the name of the rule."""
        return LLMJudge(**self.own(), id=self.id)


class SpanAssertion(AssertionBase):
    """A query over the spans of the trace holds."""

    builds: ClassVar[type[Check]] = HasMatchingSpan
    type: Literal["span"]
    query: SpanCondition
    """Conditions that some span must meet, or any, all, none, count, before, after."""


Assertion = Annotated[
    ToolCalled
    | ToolNotCalled
    | ToolCallCount
    | ToolSequence
    | ArgEquals
    | ArgContains
    | OutputContains
    | OutputNotContains
    | JmespathAssertion
    | CostUnder
    | LatencyUnder
    | StepsUnder
    | HandoffTarget
    | HandoffTargetsAvailable
    | HandoffCount
    | JudgeAssertion
    | SpanAssertion,
    Field(discriminator="type"),
]
"""One assertion; `type` says which."""

"""`assertions:`, the flat spelling: one model for each type, which builds a check object.

Nothing is judged here: `{type: output_contains, value: Paris}` and `correctness:
{expected_in_answer: Paris}` both build `Contains("Paris")`. Every type has `weight`, `required`
and `id`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field, field_validator

from proctor.checks._answer import Contains, Excludes
from proctor.checks._cost import MaxCost, MaxLatency
from proctor.checks._structured import JMESPath, Operators
from proctor.checks.base import Check, Count, Limit, Name, Names, Texts, Weight, refused
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
    parse_trace_query,
)
from proctor.strict import Strict


class AssertionBase(Strict):
    """What every assertion has."""

    id_fields: ClassVar[tuple[str, ...]] = ()
    """The fields that go into the id beside the type."""

    weight: Weight = 1.0
    """How much it counts in the score."""
    required: bool = False
    """Whether a failure makes the trial a hard failure."""
    id: str | None = Field(default=None, min_length=1)
    """Its name in results; its type and argument when absent."""

    def check(self) -> Check:
        """Build the check, in the words of the layers."""
        raise NotImplementedError

    def own(self) -> dict[str, Any]:
        """Return the fields of the type that were written."""
        common = AssertionBase.model_fields.keys() | {"type"}
        return {name: getattr(self, name) for name in self.model_fields_set - common}

    @property
    def argument(self) -> str:
        """What tells it from others of its type, for the id."""
        values = [getattr(self, name) for name in self.id_fields]
        shown = [
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
    """Arguments of the call; any will do when absent."""
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
    """The tool; `*` stands for any characters."""

    def check(self) -> Check:
        """Build the check."""
        return ForbidTools(self.tool)


class ToolCallCount(CountBounds, AssertionBase):
    """A tool (or any, when none is named) was called so many times."""

    id_fields: ClassVar[tuple[str, ...]] = ("tool",)
    type: Literal["tool_call_count"]
    tool: Name | None = None
    """The tool; calls of all tools when absent."""

    def check(self) -> Check:
        """Build the check."""
        return CountToolCalls(**self.own())


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


class ArgEquals(AssertionBase):
    """Some call of a tool had an argument equal to a value."""

    id_fields: ClassVar[tuple[str, ...]] = ("tool", "arg")
    type: Literal["arg_equals"]
    tool: Name
    """The tool."""
    arg: Name
    """The argument, as a dotted path (`filter.city`)."""
    value: Any
    """The value it must equal."""

    def check(self) -> Check:
        """Build the check."""
        return ArgumentEquals(self.tool, self.arg, self.value)


class ArgContains(AssertionBase):
    """Some call of a tool had an argument that contains a value."""

    id_fields: ClassVar[tuple[str, ...]] = ("tool", "arg")
    type: Literal["arg_contains"]
    tool: Name
    """The tool."""
    arg: Name
    """The argument, as a dotted path (`filter.city`)."""
    value: Any
    """A part of the text, an item of the list, or a key of the mapping."""
    case_sensitive: bool = False
    """Whether upper and lower case differ."""

    def check(self) -> Check:
        """Build the check."""
        return ArgumentContains(**self.own())


class OutputContains(AssertionBase):
    """The answer contains texts."""

    id_fields: ClassVar[tuple[str, ...]] = ("value",)
    type: Literal["output_contains"]
    value: Texts
    """Texts that must all stand in the answer."""
    case_sensitive: bool = False
    """Whether upper and lower case differ."""

    def check(self) -> Check:
        """Build the check."""
        return Contains(self.value, case_sensitive=self.case_sensitive)


class OutputNotContains(AssertionBase):
    """The answer does not contain texts."""

    id_fields: ClassVar[tuple[str, ...]] = ("value",)
    type: Literal["output_not_contains"]
    value: Texts
    """Texts that must not stand in the answer."""
    case_sensitive: bool = False
    """Whether upper and lower case differ."""

    def check(self) -> Check:
        """Build the check."""
        return Excludes(self.value, case_sensitive=self.case_sensitive)


class JmespathAssertion(Operators, AssertionBase):
    """An expression over what the agent did, and what must hold of its value."""

    id_fields: ClassVar[tuple[str, ...]] = ("path",)
    type: Literal["jmespath"]

    def check(self) -> Check:
        """Build the check."""
        return JMESPath(**self.own())


class CostUnder(AssertionBase):
    """It cost no more than this."""

    type: Literal["cost_under"]
    usd: Limit
    """The most money, in US dollars."""

    def check(self) -> Check:
        """Build the check."""
        return MaxCost(self.usd)


class LatencyUnder(AssertionBase):
    """It took no longer than this."""

    type: Literal["latency_under"]
    ms: Limit
    """The longest time, in milliseconds."""

    def check(self) -> Check:
        """Build the check."""
        return MaxLatency(self.ms)


class StepsUnder(AssertionBase):
    """It took no more steps (tool calls) than this."""

    type: Literal["steps_under"]
    steps: Count
    """The most tool calls."""

    def check(self) -> Check:
        """Build the check."""
        return CountToolCalls(max=self.steps)


class HandoffTarget(AssertionBase):
    """An agent was handed over to."""

    id_fields: ClassVar[tuple[str, ...]] = ("agent",)
    type: Literal["handoff_target"]
    agent: Names
    """The agent, or several that must all be handed over to."""

    def check(self) -> Check:
        """Build the check."""
        return ExpectHandoffs(self.agent)


class HandoffTargetsAvailable(AssertionBase):
    """Agents were on offer as targets of a handoff."""

    id_fields: ClassVar[tuple[str, ...]] = ("agents",)
    type: Literal["handoff_targets_available"]
    agents: Names
    """The agents."""

    def check(self) -> Check:
        """Build the check."""
        return HandoffsAvailable(self.agents)


class HandoffCount(CountBounds, AssertionBase):
    """There were so many handoffs."""

    type: Literal["handoff_count"]

    def check(self) -> Check:
        """Build the check."""
        return CountHandoffs(**self.own())


class JudgeAssertion(JudgeRule, AssertionBase):
    """A judge scores the answer: by a rule, or by weighted criteria, the median of k votes each."""

    id_fields: ClassVar[tuple[str, ...]] = ("rubric",)
    type: Literal["judge"]
    id: str | None = Field(default=None, min_length=1)
    """Its name in results; its type and argument when absent."""

    def check(self) -> Check:
        """Build the check."""
        return LLMJudge(**self.own(), id=self.id)


class SpanAssertion(AssertionBase):
    """A query over the spans of the trace holds."""

    type: Literal["span"]
    query: dict[str, Any]
    """Conditions that some span must meet, or any, all, none, count, before, after."""

    @field_validator("query")
    @classmethod
    def _understood(cls, query: dict[str, Any]) -> dict[str, Any]:
        with refused():
            parse_trace_query(query)
        return query

    def check(self) -> Check:
        """Build the check."""
        return HasMatchingSpan(self.query)


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
"""One assertion, told apart by its `type`."""

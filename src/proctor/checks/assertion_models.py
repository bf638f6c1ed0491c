"""What an assertion may say: one model for each type, told apart by `type`.

Promise: every type has `weight`, `required` and `id`; a number that could never hold, a query or
an expression that cannot be understood is refused where it is written.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from proctor.checks.conditions import Operators
from proctor.checks.fields import Count, Limit, Name, Names, Texts, Weight, refused
from proctor.checks.judging import JudgeRule
from proctor.checks.metrics.arguments import ArgumentMode
from proctor.checks.path_parts import Expected, SpanCheck, read_span_check
from proctor.strict import Strict


class AssertionBase(Strict):
    """What every assertion has."""

    weight: Weight = 1.0
    """How much it counts in the score."""
    required: bool = False
    """Whether a failure makes the trial a hard failure."""
    id: str | None = Field(default=None, min_length=1)
    """Its name in results; its type and argument when absent."""


class Bounds(AssertionBase):
    """How many: exactly, at least, at most."""

    eq: Count | None = None
    """Exactly this many."""
    min: Count | None = None
    """At least this many."""
    max: Count | None = None
    """At most this many."""

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.eq is None and self.min is None and self.max is None:
            raise ValueError("says no number: add eq, min or max")
        if self.eq is not None and (self.min is not None or self.max is not None):
            raise ValueError("give eq, or min and max, not both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        return self


class ToolCalled(AssertionBase):
    """A tool was called, with these arguments if any are given."""

    type: Literal["tool_called"]
    tool: Name
    """The tool."""
    arguments: dict[str, Any] | None = None
    """Arguments of the call; any will do when absent."""
    match: ArgumentMode = "superset"
    """How they are compared; `superset` lets the call have more than those written."""


class ToolNotCalled(AssertionBase):
    """A tool was not called."""

    type: Literal["tool_not_called"]
    tool: Name
    """The tool; `*` stands for any characters."""


class ToolCallCount(Bounds):
    """A tool (or any, when none is named) was called so many times."""

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


class ArgEquals(AssertionBase):
    """Some call of a tool had an argument equal to a value."""

    type: Literal["arg_equals"]
    tool: Name
    """The tool."""
    arg: Name
    """The argument, as a dotted path (`filter.city`)."""
    value: Any
    """The value it must equal."""


class ArgContains(AssertionBase):
    """Some call of a tool had an argument that contains a value."""

    type: Literal["arg_contains"]
    tool: Name
    """The tool."""
    arg: Name
    """The argument, as a dotted path (`filter.city`)."""
    value: Any
    """A part of the text, an item of the list, or a key of the mapping."""
    case_sensitive: bool = False
    """Whether upper and lower case differ."""


class OutputContains(AssertionBase):
    """The answer contains texts."""

    type: Literal["output_contains"]
    value: Texts
    """Texts that must all stand in the answer."""
    case_sensitive: bool = False
    """Whether upper and lower case differ."""


class OutputNotContains(AssertionBase):
    """The answer does not contain texts."""

    type: Literal["output_not_contains"]
    value: Texts
    """Texts that must not stand in the answer."""
    case_sensitive: bool = False
    """Whether upper and lower case differ."""


class JmespathAssertion(Operators, AssertionBase):
    """An expression over what the agent did, and what must hold of its value."""

    type: Literal["jmespath"]


class CostUnder(AssertionBase):
    """It cost no more than this."""

    type: Literal["cost_under"]
    usd: Limit
    """The most money, in US dollars."""


class LatencyUnder(AssertionBase):
    """It took no longer than this."""

    type: Literal["latency_under"]
    ms: Limit
    """The longest time, in milliseconds."""


class StepsUnder(AssertionBase):
    """It took no more steps (tool calls) than this."""

    type: Literal["steps_under"]
    steps: Count
    """The most tool calls."""


class HandoffTarget(AssertionBase):
    """An agent was handed over to."""

    type: Literal["handoff_target"]
    agent: Names
    """The agent, or several that must all be handed over to."""


class HandoffTargetsAvailable(AssertionBase):
    """Agents were on offer as targets of a handoff."""

    type: Literal["handoff_targets_available"]
    agents: Names
    """The agents."""


class HandoffCount(Bounds):
    """There were so many handoffs."""

    type: Literal["handoff_count"]


class JudgeAssertion(JudgeRule, AssertionBase):
    """A judge scores the answer: by a rule, or by weighted criteria, the median of k votes each."""

    type: Literal["judge"]
    id: str | None = Field(default=None, min_length=1)
    """Its name in results; its type and argument when absent."""


class SpanAssertion(AssertionBase):
    """A query over the spans of the trace holds."""

    type: Literal["span"]
    query: dict[str, Any]
    """Conditions that some span must meet, or any, all, none, count, before, after."""

    @field_validator("query")
    @classmethod
    def _understood(cls, query: dict[str, Any]) -> dict[str, Any]:
        with refused():
            read_span_check(query)
        return query

    @cached_property
    def span_check(self) -> SpanCheck:
        """`query`, read."""
        return read_span_check(self.query)


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

"""Quality of a trace: what is scored, what it comes to, and from where on someone should look.

Promise: a dimension that cannot be scored is None and left out of the overall figure, whose
weights are then renormalised; a score of 0.0 is a score. Everything configurable is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, Self

import msgspec
from pydantic import Field, field_validator, model_validator

from proctor.checks.fields import Limit, Names, Number, Share, Weight, refused
from proctor.checks.text import check_pattern
from proctor.errors import ProctorError, did_you_mean, hint_among
from proctor.schema import Strict

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


class Level(StrEnum):
    """Where a figure stands: at its target, below its alert line, or between."""

    TARGET = "target"
    BETWEEN = "between"
    ALERT = "alert"


class Levels(NamedTuple):
    """A figure's target and alert lines; for some figures less is better."""

    target: float
    alert: float
    less_is_better: bool = False

    def of(self, figure: float) -> Level:
        """The level of a figure. The lines themselves belong to neither side."""
        sign = -1 if self.less_is_better else 1
        if sign * figure > sign * self.target:
            return Level.TARGET
        return Level.ALERT if sign * figure < sign * self.alert else Level.BETWEEN


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
    level: Level | None = None
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
    level: Level | None
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

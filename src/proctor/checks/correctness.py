"""Layer 1, correctness: is the answer right? A failure blocks.

Every check is a field of `Correctness` and a function of the same name, in the order they are
judged; judges come after everything that can be decided without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Self, cast

from pydantic import BeforeValidator, Field, field_validator, model_validator

from proctor.checks.conditions import Operators
from proctor.checks.fields import Positive, Share, Text, Texts, Weight, refused
from proctor.checks.json_schema import validator_of
from proctor.checks.text import check_pattern
from proctor.schema import Strict


class JmespathCheck(Operators):
    """An expression over what the agent did, and what must hold of its value."""

    id: str | None = None
    """A name for the result; the expression when absent."""


class Criterion(Strict):
    """One thing a judge scores by itself."""

    rule: str = Field(min_length=1)
    """What a good answer does, in a sentence or two."""
    id: str | None = None
    """A name for it; its position when absent."""
    weight: Weight = 1.0
    """How much it counts among the criteria."""
    threshold: Share | None = None
    """The least score (0..1) it must reach by itself, if any."""


class JudgeExample(Strict):
    """A worked example for the judge."""

    answer: str
    """An answer."""
    score: Annotated[int, Field(ge=1, le=5)]
    """The score it deserves, 1 to 5."""
    rationale: str = ""
    """Why."""
    input: str | None = None
    """What was asked."""


class JudgeOptions(Strict):
    """Which judge to ask, how often, and how good is good enough."""

    judge: str | None = None
    """A judge of the suite by its name; the default judge when absent."""
    model: str | None = None
    """A model to ask instead of the judge's own, such as `openai:gpt-4o-mini`."""
    threshold: Share = 0.7
    """The least score (0..1) that passes; 1–5 map to 0, 0.25, 0.5, 0.75, 1."""
    votes: Annotated[Positive, Field(le=99)] | None = None
    """How many times to ask; the median counts. The judge's own number when absent."""
    examples: tuple[JudgeExample, ...] = ()
    """Worked examples, shown to the judge."""
    anchors: dict[int, str] | None = None
    """What a score means, by score 1 to 5."""

    @field_validator("anchors")
    @classmethod
    def _on_the_scale(cls, anchors: dict[int, str] | None) -> dict[int, str] | None:
        outside = [score for score in anchors or () if not 1 <= score <= 5]
        if outside:
            raise ValueError(f"scores go from 1 to 5, not {outside[0]}")
        return anchors

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.judge is not None and self.model is not None:
            raise ValueError("give `judge` or `model`, not both")
        return self


class JudgeRule(JudgeOptions):
    """A rule for the judge, or several criteria that are scored one by one."""

    rule: str | None = Field(default=None, min_length=1)
    """What a good answer does, in words a stranger would understand."""
    criteria: tuple[Criterion, ...] = ()
    """Criteria scored one by one; the weighted mean counts."""
    id: str | None = None
    """A name for the result; its position when absent."""

    @field_validator("criteria", mode="before")
    @classmethod
    def _spelled(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            raise ValueError("criteria are a list of {rule: …, weight: …}")
        if isinstance(value, list | tuple):
            return _rules(cast("list[Any]", value))
        return value

    @model_validator(mode="after")
    def _asks(self) -> Self:
        if not self.rule and not self.criteria:
            raise ValueError("a judge needs a `rule` or `criteria`")
        if self.criteria and not any(criterion.weight for criterion in self.criteria):
            raise ValueError("at least one criterion needs a weight above 0")
        return self


class SafetyOptions(JudgeOptions):
    """How safety is judged."""

    policy: str | None = Field(default=None, min_length=1)
    """What an answer must not do; a general policy when absent."""


class HallucinationOptions(JudgeOptions):
    """How grounding is judged: by a judge, or without one by the share of supported claims."""

    method: Annotated[str, Field(pattern="^(auto|judge|grounding)$")] = "auto"
    """`judge`, `grounding` (no model needed), or `auto`: the judge when there is one."""
    threshold: Share = 0.8
    """The least share of claims (or judge's score, 0..1) that must be supported."""
    sources: Texts | None = None
    """Facts to hold the answer against besides what tools and retrieval returned."""


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple) and not value:
        raise ValueError("should have at least one entry; leave the key out to check nothing")
    return cast("list[Any]", value) if isinstance(value, list | tuple) else [value]


def _rules(value: Any) -> Any:
    return [{"rule": item} if isinstance(item, str) else item for item in _listed(value)]


def _switch(value: Any) -> Any:
    if value is False:
        return None
    return {} if value is True else value


Jmespaths = Annotated[
    tuple[JmespathCheck, ...],
    BeforeValidator(_listed, json_schema_input_type=JmespathCheck | list[JmespathCheck]),
]
JudgeRules = Annotated[
    tuple[JudgeRule, ...],
    BeforeValidator(_rules, json_schema_input_type=str | JudgeRule | list[str | JudgeRule]),
]


class Correctness(Strict):
    """Is the answer right? A failure here blocks."""

    expected_in_answer: Texts | None = None
    """Texts that must all stand in the answer."""
    any_expected_in_answer: Texts | None = None
    """Texts of which at least one must stand in the answer."""
    not_in_answer: Texts | None = None
    """Texts that must not stand in the answer."""
    exact_match: Text | None = None
    """The whole answer, up to surrounding white space."""
    regex_match: Texts | None = None
    """Regular expressions that must each be found somewhere in the answer."""
    json_schema: dict[str, Any] | None = None
    """A JSON Schema the answer must be valid JSON for. References are never fetched."""
    jmespath: Jmespaths | None = None
    """Expressions over what the agent did and answered."""
    llm_judge: JudgeRules | None = None
    """Rules an LLM judge scores the answer by."""
    safety_check: Annotated[
        SafetyOptions | None,
        BeforeValidator(_switch, json_schema_input_type=bool | SafetyOptions | None),
    ] = None
    """Whether an LLM judge finds the answer safe: `true`, or options."""
    hallucination_check: Annotated[
        HallucinationOptions | None,
        BeforeValidator(_switch, json_schema_input_type=bool | HallucinationOptions | None),
    ] = None
    """Whether the answer is supported by what the agent read: `true`, or options."""
    case_sensitive: bool = False
    """Whether texts and patterns tell upper from lower case."""
    blocking: bool = True
    """Whether a failure makes the trial a hard failure."""

    @field_validator("regex_match")
    @classmethod
    def _patterns(cls, patterns: tuple[str, ...] | None) -> tuple[str, ...] | None:
        with refused():
            for pattern in patterns or ():
                check_pattern(pattern)
        return patterns

    @field_validator("json_schema")
    @classmethod
    def _offline(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        if schema is not None:
            with refused():
                validator_of(schema)
        return schema

    @cached_property
    def schema_validator(self) -> Any:
        """The validator of `json_schema`, built once."""
        return validator_of(self.json_schema or {})

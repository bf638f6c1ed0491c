"""Rubrics: what an LLM judge grades, on which scale, and what passes.

A score is a whole number from 1 to 5; it is compared on 0..1 as (score - 1) / 4. An answer at
most one step of the scale below the threshold is borderline: neither passed nor clearly failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from proctor.checks.base import Texts
from proctor.errors import ProctorError, hint_among
from proctor.strict import Strict, read_strict

LOWEST, HIGHEST = 1, 5
STEP = 1 / (HIGHEST - LOWEST)
"""One point of the scale on 0..1."""

DEFAULT_THRESHOLD = 0.75
"""Score 4 passes: good answers with small flaws pass, a 3 ("partly") is borderline."""

OVERALL = "overall"
"""The name of the only criterion of a rubric that does not list any."""

_TOLERANCE = 1e-9
"""Weighted means of exact quarters are not exact; a threshold must not fail for that."""

# Names of criteria are keys of the JSON reply.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}\Z")

DEFAULT_ANCHORS: Mapping[int, str] = {
    5: "meets the rule fully",
    4: "meets the rule, with a small flaw that does no harm",
    3: "meets the rule in part",
    2: "mostly misses the rule",
    1: "misses the rule entirely, or does the opposite",
}


class Label(StrEnum):
    """What a normalised score means against a rubric's threshold."""

    PASS = "pass"
    BORDERLINE = "borderline"
    FAIL = "fail"


def normalised(score: float) -> float:
    """Convert a score of 1 to 5 to 0..1."""
    return (score - LOWEST) / (HIGHEST - LOWEST)


def label_of(value: float, threshold: float) -> Label:
    """Return the label of a normalised score."""
    if value >= threshold - _TOLERANCE:
        return Label.PASS
    return Label.BORDERLINE if value >= threshold - STEP - _TOLERANCE else Label.FAIL


def _not_blank(rule: str) -> str:
    if not rule.strip():
        raise ValueError("the rule is empty")
    return rule


def _criterion_name(name: str) -> str:
    if not _NAME.match(name):
        raise ValueError("a name is a letter, then letters, digits, - or _ (64 at most)")
    return name


def _read_criteria(value: Any) -> Any:
    """Return criteria, written as texts, mappings or a mapping by name, as a list with names."""
    if isinstance(value, Mapping):
        by_name = cast("Mapping[str, Any]", value)
        return [_criterion_fields(name, written) for name, written in by_name.items()]
    if not isinstance(value, list | tuple):
        return value
    items = cast("list[Any]", value)
    return [_criterion_fields(f"criterion_{place}", item) for place, item in enumerate(items, 1)]


def _criterion_fields(name: str, written: Any) -> Any:
    if isinstance(written, str):
        return {"name": name, "rule": written}
    if isinstance(written, Mapping):
        return {"name": name, **cast("Mapping[str, Any]", written)}
    return written


Rule = Annotated[str, AfterValidator(_not_blank)]
Score = Annotated[int, Field(ge=LOWEST, le=HIGHEST)]


class Criterion(Strict):
    """One criterion, which a judge scores separately."""

    rule: Rule
    """What a good answer does, in a sentence or two."""
    name: Annotated[str, AfterValidator(_criterion_name)] = "criterion"
    """A name for it: a letter, then letters, digits, - or _; its position when absent."""
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """How much it counts among the criteria."""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """The least score (0..1) of this criterion alone, if any."""


Criteria = Annotated[
    tuple[Criterion, ...],
    BeforeValidator(
        _read_criteria, json_schema_input_type=list[str | Criterion] | dict[str, str | Criterion]
    ),
]


class GradedExample(Strict):
    """A graded answer, shown to the judge before the one to grade."""

    answer: str
    """An answer."""
    # Strict: True is 1 in Python.
    score: Annotated[Score, Field(strict=True)] | dict[str, Annotated[Score, Field(strict=True)]]
    """The score it deserves, 1 to 5; or one for each criterion by name."""
    rationale: str
    """Why it deserves that score."""
    input: str | None = None
    """The input that the answer was given to."""
    expected: str | None = None
    """The expected answer."""
    context: Texts = ()
    """Texts that the answer was based on."""


class Rubric(Strict):
    """A rule, the meaning of each score, perhaps criteria and examples, and a threshold.

    `needs` names inputs without which grading would be guessing; a judge gives no score when one
    is missing.
    """

    name: str = "custom"
    rule: Rule
    anchors: dict[Score, str] = Field(default_factory=lambda: dict(DEFAULT_ANCHORS))
    criteria: Criteria = ()
    examples: tuple[GradedExample, ...] = ()
    threshold: float = Field(default=DEFAULT_THRESHOLD, ge=0, le=1)
    needs: tuple[Literal["expected", "evidence", "steps"], ...] = ()

    @model_validator(mode="after")
    def _valid_criteria(self) -> Self:
        names = [part.name for part in self.parts]
        if len(set(names)) != len(names):
            raise ValueError("two criteria have the same name")
        # The weighted mean divides by the sum of the weights.
        if not any(part.weight for part in self.parts):
            raise ValueError("at least one criterion needs a weight above 0")
        if any(set(self.scores_of(example)) != set(names) for example in self.examples):
            raise ValueError("an example must score exactly the criteria")
        return self

    @property
    def parts(self) -> tuple[Criterion, ...]:
        """The criteria; a rubric without any has one, its rule."""
        return self.criteria or (Criterion(name=OVERALL, rule=self.rule),)

    def scores_of(self, example: GradedExample) -> dict[str, int]:
        """Return an example's score for each criterion."""
        if isinstance(example.score, dict):
            return example.score
        return {part.name: example.score for part in self.parts}

    def weighted(self, scores: Mapping[str, float]) -> float:
        """Return the normalised score of graded criteria: their weighted mean."""
        total = sum(part.weight for part in self.parts)
        return sum(part.weight * normalised(scores[part.name]) for part in self.parts) / total


def rubric_from(value: Rubric | str | Mapping[str, Any]) -> Rubric:
    """Return a rubric by the name of a built-in one, or from a mapping as in YAML.

    A mapping may name a built-in rubric under `extends` and give only what differs.
    """
    if isinstance(value, Rubric):
        return value
    if isinstance(value, str):
        return _built_in(value)
    given = dict(value)
    base = given.pop("extends", None)
    if base is not None:
        # What is given replaces that part of the parent; lists are not merged.
        given = {**dict(_built_in(str(base))), **given}
    return read_strict(Rubric, given, f"rubric {given.get('name', 'custom')!r}")


def _built_in(name: str) -> Rubric:
    found = built_in_rubrics().get(name)
    if found is None:
        hint = hint_among(name, built_in_rubrics())
        raise ProctorError(f"no built-in rubric {name!r}", hint=hint)
    return found


@cache
def built_in_rubrics() -> Mapping[str, Rubric]:
    """Return the rubrics of rubrics.yaml, by the name a suite uses."""
    import yaml

    text = (files("proctor.checks") / "rubrics.yaml").read_text(encoding="utf-8")
    written: dict[str, Any] = yaml.safe_load(text)
    return {name: Rubric.model_validate({"name": name, **each}) for name, each in written.items()}

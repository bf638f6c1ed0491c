"""Layer 1, correctness: is the answer right? A failure blocks.

Every check is a field of `Correctness` and a function of the same name, in the order they are
judged; judges come after everything that can be decided without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, field_validator

from proctor.checks.conditions import Operators, compile_expression
from proctor.checks.fields import Text, Texts, refused
from proctor.checks.json_schema import MAX_PROBLEMS, problems_of, validator_of
from proctor.checks.judging import (
    HallucinationOptions,
    JudgeRule,
    SafetyOptions,
    judge_by_rule,
    judge_grounding,
    judge_safety,
    spelled_rules,
)
from proctor.checks.metrics.matching import shortened
from proctor.checks.naming import named
from proctor.checks.registry import CheckContext, Outcomes, check
from proctor.checks.result import Layer, Outcome, broken, held, unscored
from proctor.checks.text import PatternTimeout, check_pattern, normalised, search, shown
from proctor.checks.view import document
from proctor.strict import Strict
from proctor.words import and_more


class JmespathCheck(Operators):
    """An expression over what the agent did, and what must hold of its value."""

    id: str | None = None
    """A name for the result; the expression when absent."""


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple) and not value:
        raise ValueError("should have at least one entry; leave the key out to check nothing")
    return cast("list[Any]", value) if isinstance(value, list | tuple) else [value]


def _rules(value: Any) -> Any:
    return spelled_rules(_listed(value))


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


# -- the checks, in the order they are judged ----------------------------------------------------


@lru_cache(maxsize=1024)
def _wanted(text: str, case_sensitive: bool) -> str:
    """A text of a case in the form texts are compared in; the same for all its trials."""
    return normalised(text, case_sensitive=case_sensitive)


def _found(texts: Sequence[str], options: Correctness, context: CheckContext) -> list[str]:
    """Those of the texts that stand in the answer."""
    case_sensitive = options.case_sensitive
    answer = normalised(context.answer, case_sensitive=case_sensitive)
    return [text for text in texts if _wanted(text, case_sensitive) in answer]


@check(Layer.CORRECTNESS)
def expected_in_answer(options: Correctness, context: CheckContext) -> Outcome:
    """All of the texts stand in the answer; the score is the share that does."""
    texts = options.expected_in_answer or ()
    found = _found(texts, options, context)
    if len(found) == len(texts):
        reason = f"the answer contains {_asked(texts)}"
        return held(reason, expected=list(texts), actual=context.answer)
    missing = [text for text in texts if text not in found]
    return broken(
        f"{_lead(context)} lacks {_quoted(missing)} ({len(found)} of {len(texts)} found)",
        score=len(found) / len(texts),
        expected=list(texts),
        actual=context.answer,
    )


@check(Layer.CORRECTNESS)
def any_expected_in_answer(options: Correctness, context: CheckContext) -> Outcome:
    """At least one of the texts stands in the answer."""
    texts = options.any_expected_in_answer or ()
    found = _found(texts, options, context)
    details: dict[str, Any] = {"expected": list(texts), "actual": context.answer}
    if found:
        return held(f"the answer contains {_quoted(found)}", **details)
    return broken(f"{_lead(context)} has none of {_quoted(texts)}", **details)


@check(Layer.CORRECTNESS)
def not_in_answer(options: Correctness, context: CheckContext) -> Outcome:
    """None of the texts stands in the answer."""
    texts = options.not_in_answer or ()
    found = _found(texts, options, context)
    details: dict[str, Any] = {"expected": list(texts), "actual": context.answer}
    if not found:
        return held(f"the answer does not contain {_quoted(texts)}", **details)
    return broken(f"the answer contains {_quoted(found)}, which it must not", **details)


@check(Layer.CORRECTNESS)
def exact_match(options: Correctness, context: CheckContext) -> Outcome:
    """The answer is the text, up to surrounding white space, line ends and (by default) case."""
    wanted = options.exact_match or ""
    ours, theirs = (
        normalised(text, case_sensitive=options.case_sensitive).strip()
        for text in (context.answer, wanted)
    )
    details: dict[str, Any] = {"expected": wanted, "actual": context.answer}
    if ours == theirs:
        return held(f"the answer is {shown(wanted)}", **details)
    return broken(
        _first_difference(context.answer.strip(), wanted.strip(), ours, theirs), **details
    )


@check(Layer.CORRECTNESS)
def regex_match(options: Correctness, context: CheckContext) -> Outcome:
    """Every pattern is found somewhere in the answer; the score is the share that is."""
    patterns = options.regex_match or ()
    details: dict[str, Any] = {"expected": list(patterns), "actual": context.answer}
    try:
        matches = [
            search(pattern, context.answer, case_sensitive=options.case_sensitive)
            for pattern in patterns
        ]
    except PatternTimeout as error:
        return unscored(str(error), **details)
    missing = [p for p, match in zip(patterns, matches, strict=True) if match is None]
    if not missing:
        return held(f"found {_quoted([match or '' for match in matches])}", **details)
    found = len(patterns) - len(missing)
    return broken(
        f"{_lead(context)} has no match of {_quoted(missing)} ({found} of {len(patterns)} found)",
        score=found / len(patterns),
        **details,
    )


@check(Layer.CORRECTNESS)
def json_schema(options: Correctness, context: CheckContext) -> Outcome:
    """The answer is JSON, and valid for the schema."""
    import json

    details: dict[str, Any] = {"expected": options.json_schema, "actual": context.answer}
    try:
        value = json.loads(context.answer, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return broken(
            f"{_lead(context)} is not JSON: {error}; it is {shown(context.answer)}", **details
        )
    try:
        problems = problems_of(options.schema_validator, value)
    except PatternTimeout as error:
        return unscored(str(error), **details)
    except RecursionError:
        return unscored("the answer or the schema is nested too deeply to be compared", **details)
    if not problems:
        return held("the answer is valid for the schema", **details)
    more = f" (and {len(problems) - MAX_PROBLEMS} more)" if len(problems) > MAX_PROBLEMS else ""
    listed = "; ".join(problem[:300] for problem in problems[:MAX_PROBLEMS])
    return broken(f"not valid for the schema: {listed}{more}", **details)


@check(Layer.CORRECTNESS)
def jmespath(options: Correctness, context: CheckContext) -> Outcomes:
    """Each expression's value is as its operators ask."""
    whole = document(context)
    entries = options.jmespath or ()
    outcomes = [expression_holds(entry, whole) for entry in entries]
    return named([entry.id for entry in entries], [entry.path for entry in entries], outcomes)


@check(Layer.CORRECTNESS, judged=True)
async def llm_judge(options: Correctness, context: CheckContext) -> Outcomes:
    """A judge scores the answer by each rule."""
    rules = options.llm_judge or ()
    outcomes = [await judge_by_rule(rule, context) for rule in rules]
    places = [str(place) for place in range(1, len(rules) + 1)]
    return named([rule.id for rule in rules], places, outcomes)


@check(Layer.CORRECTNESS, judged=True)
async def safety_check(options: Correctness, context: CheckContext) -> Outcome:
    """A judge finds the answer safe."""
    return await judge_safety(options.safety_check or SafetyOptions(), context)


@check(Layer.CORRECTNESS, judged=True)
async def hallucination_check(options: Correctness, context: CheckContext) -> Outcome:
    """The answer is supported by what the agent read."""
    return await judge_grounding(options.hallucination_check or HallucinationOptions(), context)


# -- shared with assertions ----------------------------------------------------------------------


def expression_holds(entry: Operators, whole: dict[str, Any]) -> Outcome:
    """Whether the value of an expression over a document is as its operators ask."""
    from jmespath.exceptions import JMESPathError

    expected = {"path": entry.path, **entry.told()}
    try:
        value = compile_expression(entry.path).search(whole)
    except (JMESPathError, RecursionError, ArithmeticError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return broken(f"{entry.path} has no value here: {reason}", expected=expected)
    try:
        wrong = entry.broken_by(value)
    except PatternTimeout as error:
        return unscored(str(error), expected=expected, actual=value)
    found = shortened(value)
    details: dict[str, Any] = {"expected": expected, "actual": value}
    if wrong:
        return broken(f"{entry.path} is {found}: {' and '.join(wrong)}", **details)
    return held(f"{entry.path} is {found}", **details)


# -- words ---------------------------------------------------------------------------------------

# More than these in a line help nobody; `expected` holds them all.
_SHOWN = 5


@lru_cache(maxsize=1024)
def _asked(texts: tuple[str, ...]) -> str:
    """Texts of a case, the same for all its trials, in quotes."""
    return _quoted(texts)


def _quoted(texts: Sequence[str]) -> str:
    return and_more(texts, _SHOWN, lambda text: shown(text, 80))


def _lead(context: CheckContext) -> str:
    return "the answer" if context.answer.strip() else "the answer is empty: it"


def _first_difference(answer: str, wanted: str, ours: str, theirs: str) -> str:
    if not answer:
        return f"the answer is empty, expected {shown(wanted)}"
    if max(len(ours), len(theirs)) <= 80:
        return f"the answer is {shown(answer)}, expected {shown(wanted)}"
    pairs = enumerate(zip(ours, theirs, strict=False))
    place = next((n for n, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    start = max(0, place - 20)
    there = f"{shown(ours[start : place + 40])}, expected {shown(theirs[start : place + 40])}"
    return f"the answer differs from character {place + 1} on: {there}"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")

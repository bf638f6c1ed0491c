"""Checks that ask a language model: LLMJudge, Safety, Grounded.

A judge that is missing or fails leaves the check unscored, never failed. The result says which
method decided: a model, or grounding without one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import msgspec
from pydantic import Field, model_validator

from proctor.checks._answer import as_json
from proctor.checks.base import (
    Check,
    CheckContext,
    CheckResult,
    CheckStatus,
    Name,
    Positive,
    Share,
    Text,
    Texts,
    refused,
    skipped,
    unobserved,
    unscored,
)
from proctor.checks.judge import (
    Criteria,
    GradedExample,
    Judge,
    JudgeInput,
    JudgeVerdict,
    Label,
    Rubric,
    Score,
    conversation_of,
    label_of,
    normalised,
    rubric_from,
)
from proctor.errors import ProctorError, did_you_mean
from proctor.formatting import level_of
from proctor.strict import Strict
from proctor.trace import Trace

if TYPE_CHECKING:
    from proctor.checks.grounding import Grounding

DEFAULT_JUDGE = "default"
"""The name of the judge for checks that name none."""

GROUNDING_THRESHOLD = 0.8
"""Words are compared, not meaning: one claim in five may be worded too freely to be found."""


class JudgeOptions(Strict):
    """Which judge to call, how often, and which score passes."""

    judge: Name | None = None
    """The name of a judge of the suite; the default judge when absent."""
    model: Name | None = None
    """A model to use instead of the judge's own, such as `openai:gpt-4o-mini`."""
    threshold: Share | None = None
    """The least score (0..1) that passes; scores 1 to 5 count as 0, .25, .5, .75, 1."""
    votes: Annotated[Positive, Field(le=99)] | None = None
    """How many votes to take; their median counts. The judge's own number when absent."""
    examples: tuple[GradedExample, ...] = ()
    """Graded answers, shown to the judge."""
    anchors: dict[Score, str] | None = None
    """What a score means, by score 1 to 5."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.judge is not None and self.model is not None:
            raise ValueError("give `judge` or `model`, not both")
        return self

    @property
    def judged(self) -> bool:
        """A check with these options may call a model."""
        return True

    def changes(self) -> dict[str, Any]:
        """Return the fields that differ from a built-in rubric."""
        given = {
            "threshold": self.threshold,
            "anchors": self.anchors,
            "examples": self.examples or None,
        }
        return {name: value for name, value in given.items() if value is not None}


class JudgeRule(JudgeOptions):
    """A rule for the judge, a built-in rubric, or criteria that are scored one by one."""

    rule: str | None = Field(default=None, min_length=1, kw_only=False)
    """What a good answer does, in words that need no other context."""
    rubric: Name | None = None
    """A built-in rubric: helpfulness, correctness, safety, hallucination or reasoning."""
    criteria: Criteria = ()
    """Criteria scored one by one; their weighted mean counts."""
    expected: Text | None = None
    """The expected answer, shown to the judge."""
    id: Name | None = None
    """A name for the result; its position when absent."""

    @model_validator(mode="after")
    def _valid_rubric(self) -> Self:
        if not self.rule and not self.criteria and not self.rubric:
            raise ValueError("a judge needs a `rule`, `criteria` or a `rubric`")
        with refused():  # a rubric that cannot be built is an error in the file, not in a run
            _ = self.resolved
        return self

    @cached_property
    def resolved(self) -> Rubric:
        """The rubric of these options."""
        given = self.changes()
        if self.rubric is not None:
            given["extends"] = self.rubric
        if self.rule is not None or self.rubric is None:
            given["rule"] = self.rule or "The answer meets each of the criteria below."
        if self.criteria:
            given["criteria"] = self.criteria
        given.setdefault("name", self.id or self.rubric or "rule")
        return rubric_from(given)


class SafetyOptions(JudgeOptions):
    """How safety is judged."""

    policy: str | None = Field(default=None, min_length=1, kw_only=False)
    """What an answer must not do; a general policy when absent."""

    @cached_property
    def resolved(self) -> Rubric:
        """The rubric of these options."""
        given: dict[str, Any] = {"extends": "safety", **self.changes()}
        if self.policy is not None:
            given["rule"] = f"The answer keeps to this policy: {self.policy}"
        return rubric_from(given)


class HallucinationOptions(JudgeOptions):
    """How grounding is judged: by a judge, or without one by the share of supported claims."""

    method: Literal["auto", "judge", "grounding"] = "auto"
    """`judge`, `grounding` (no model needed), or `auto`: the judge when there is one."""
    sources: Texts | None = None
    """Facts to compare the answer with, in addition to tool results and retrieved documents."""

    @cached_property
    def resolved(self) -> Rubric:
        """The rubric of these options."""
        return rubric_from({"extends": "hallucination", **self.changes()})


# -- the checks ----------------------------------------------------------------------------------


class LLMJudge(JudgeRule, Check):
    """A judge scores the answer by a rule, a rubric or criteria.

    Example: `LLMJudge("is polite")`, `LLMJudge(rubric="helpfulness", threshold=0.75, votes=3)`.
    """

    name: ClassVar[str] = "llm_judge"

    async def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        result = await _judge(self, self.resolved, judged_of(ctx, expected=self.expected), ctx)
        actual: dict[str, Any] = result.actual or {}
        scores: dict[str, float] = actual.get("criteria", {})
        for part in self.criteria:
            # The weighted mean may pass although one criterion is below its own threshold.
            value = normalised(scores[part.name]) if part.name in scores else None
            if part.threshold is not None and value is not None and value < part.threshold:
                lower = f"{part.name} is {value:.2f}, less than its {part.threshold:g}"
                reason = f"{lower}; {result.reason}"
                return msgspec.structs.replace(result, status=CheckStatus.FAIL, reason=reason)
        return result


class Safety(SafetyOptions, Check):
    """A judge finds the answer safe.

    Example: `Safety()`, `Safety("never give medical advice")`.
    """

    name: ClassVar[str] = "safety_check"

    async def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        return await _judge(self, self.resolved, judged_of(ctx), ctx)


class Grounded(HallucinationOptions, Check):
    """Tool results and retrieved documents support the answer: by a judge, else by grounding.

    Example: `Grounded()`, `Grounded(method="grounding", threshold=0.9)`.
    """

    name: ClassVar[str] = "hallucination_check"

    async def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        # `auto` prefers the judge, which understands meaning, to comparing words.
        has_judge = self.judge or self.model or DEFAULT_JUDGE in ctx.judges
        if self.method == "grounding" or (self.method == "auto" and not has_judge):
            return self._ground(ctx)
        judged = replace(judged_of(ctx), context=self.sources or ())
        if judged.missing(["evidence"]):
            return unobserved(ctx.trace, "tool_calls") or skipped(
                "the trace has no tool output and no retrieved text, and no sources were given: "
                "nothing to compare the answer with"
            )
        return await _judge(self, self.resolved, judged, ctx)

    def _ground(self, ctx: CheckContext[Any]) -> CheckResult:
        """Return whether enough of the answer's claims are supported, without a model."""
        least = GROUNDING_THRESHOLD if self.threshold is None else self.threshold
        found = ground_trace(ctx.trace, ctx.answer, ctx.input, self.sources or ())
        method = f"grounding ({found.method})"
        if found.score is None:
            judged = replace(judged_of(ctx), context=self.sources or ())
            lacking = unobserved(ctx.trace, "tool_calls")
            if lacking is not None and judged.missing(["evidence"]):
                return lacking
            return skipped(found.reason, method=method, expected=least)
        return CheckResult(
            score=found.score,
            passed=found.score >= least,
            reason=f"{found.reason} (expected {level_of(least)} or more, judged without a model)",
            expected=least,
            actual={
                "score": found.score,
                "claims": len(found.claims),
                "unsupported": [
                    {"kind": claim.kind, "text": claim.text, "detail": claim.detail}
                    for claim in found.unsupported
                ],
            },
            method=method,
        )


def ground_trace(
    trace: Trace, answer: str, question: object, sources: Sequence[str] = ()
) -> Grounding:
    """Look up the claims of an answer in what a judge would be shown: documents, tool outputs."""
    judged = JudgeInput.from_trace(trace, answer=answer)
    text = (
        question if isinstance(question, str) else as_json(question) if question is not None else ""
    )
    evidence = [*sources, *judged.documents, *judged.tool_outputs]
    from proctor.checks.grounding import ground  # its patterns take a while to compile

    return ground(answer, evidence, question=text)


# -- calling a judge -----------------------------------------------------------------------------


def judged_of(ctx: CheckContext[Any], *, expected: str | None = None) -> JudgeInput:
    """Return the input of a judge for a trial."""
    judged = JudgeInput.from_trace(ctx.trace, answer=ctx.answer, expected=expected)
    asked = ctx.input if isinstance(ctx.input, str) else as_json(ctx.input)
    return replace(judged, input=conversation_of(ctx.trace) or asked)


async def _judge(
    options: JudgeOptions, rubric: Rubric, judged: JudgeInput, ctx: CheckContext[Any]
) -> CheckResult:
    try:
        async with chosen_judge(options.judge, options.model, ctx) as judge:
            verdict = await judge.judge(judged, rubric, votes=options.votes)
    except ProctorError as error:
        return unscored(f"{error}{f' ({error.hint})' if error.hint else ''}", expected=rubric.rule)
    return _verdict_result(verdict, judge, rubric)


@asynccontextmanager
async def chosen_judge(
    name: str | None, model: str | None, ctx: CheckContext[Any]
) -> AsyncGenerator[Judge]:
    """Yield the judge of a check; raise `ProctorError` when there is none.

    A model named by the check itself is opened for this call and closed after it.
    """
    judge = ctx.judges.get(name or DEFAULT_JUDGE)
    if model is not None:
        from proctor.llm.chat_model import ClosingModel
        from proctor.llm.providers import get_model

        opened = get_model(model)
        try:
            # Settings and cache stay those of the judge; only the model differs.
            yield Judge(opened) if judge is None else judge.with_models(opened)
        finally:
            if isinstance(opened, ClosingModel):
                await opened.aclose()
    elif judge is not None:
        yield judge
    elif name is None:
        raise ProctorError(
            "no judge is configured", hint="add `judge: {model: openai:gpt-4o-mini}` to the suite"
        )
    else:
        known = [known for known in ctx.judges if known != DEFAULT_JUDGE]
        raise ProctorError(f"there is no judge {name!r}", hint=did_you_mean(name, known))


def _verdict_result(verdict: JudgeVerdict, judge: Judge, rubric: Rubric) -> CheckResult:
    method = f"judge {', '.join(model.name for model in judge.models)}"
    details: dict[str, Any] = {
        "expected": {"rule": rubric.rule, "threshold": rubric.threshold},
        "method": method,
        "cost_usd": verdict.usage.cost_usd,
    }
    if verdict.normalised is None:
        return unscored(f"the judge gave no verdict: {verdict.reason}", **details)
    cut = f" (shortened for the judge: {', '.join(verdict.shortened)})" if verdict.shortened else ""
    return CheckResult(
        score=verdict.normalised,
        passed=bool(verdict.passed),
        reason=(
            f"{verdict.label}, {verdict.normalised:.2f} against {rubric.threshold:g}: "
            f"{verdict.rationale}{cut}"
        ),
        actual={
            "score": verdict.score,
            "label": verdict.label,
            "criteria": dict(verdict.criteria),
            "rationale": verdict.rationale,
            "votes": len(verdict.votes),
            "votes_passed": [
                label_of(rubric.weighted(vote.scores), rubric.threshold) == Label.PASS
                for vote in verdict.votes
                if vote.scores is not None
            ],
        },
        **details,
    )

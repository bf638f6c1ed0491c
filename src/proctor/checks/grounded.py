"""Grounding without a model, as the outcome of a check and as a dimension of quality.

Promise: the same evidence a judge would be shown (tool outputs, retrieved texts), every
unsupported piece named, and the method said so that nobody takes it for a judge's verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proctor.checks._answer import shown
from proctor.checks._judge_prompt import JudgeInput
from proctor.checks._structured import as_json
from proctor.checks.base import CheckContext, CheckResult, skipped
from proctor.checks.grounding import CheckedClaim, Grounding, ground
from proctor.checks.quality_dimensions import Dimension
from proctor.formatting import level_of
from proctor.trace import Trace

DEFAULT_THRESHOLD = 0.8
"""Words are compared, not meaning: one claim in five may be worded too freely to be found."""


def grounded_result(
    context: CheckContext[Any], sources: Sequence[str], threshold: float | None
) -> CheckResult:
    """Whether enough of the answer's claims are supported by what the agent read."""
    least = DEFAULT_THRESHOLD if threshold is None else threshold
    found = _ground(context.trace, context.answer, context.input, sources)
    method = f"grounding ({found.method})"
    if found.score is None:
        return skipped(found.reason, method=method, expected=least)
    return CheckResult(
        score=found.score,
        passed=found.score >= least,
        reason=f"{found.reason} (asked for {level_of(least)} or more, judged without a model)",
        expected=least,
        actual={
            "score": found.score,
            "claims": len(found.claims),
            "unsupported": [_told(claim) for claim in found.unsupported],
        },
        method=method,
    )


def retrieval(trace: Trace, answer: str | None) -> Dimension:
    """The share of the answer's claims that retrieved or tool text supports."""
    text = answer if answer is not None else trace.response
    if not text:
        return Dimension(name="retrieval", score=None, why="the trace has no answer")
    found = _ground(trace, text, trace.query, ())
    method = f"grounding ({found.method})"
    if found.score is None:
        return Dimension(name="retrieval", score=None, why=found.reason, method=method)
    wrong = found.unsupported
    return Dimension(
        name="retrieval",
        score=found.score,
        why=found.reason,
        issues=tuple(
            f"{claim.kind} {shown(claim.text, 80)} is not supported: {claim.detail}"
            for claim in wrong
        ),
        recommendations=(
            ("have the agent answer only from what it read, or retrieve what it lacks",)
            if wrong
            else ()
        ),
        method=method,
    )


def _ground(trace: Trace, answer: str, asked: object, sources: Sequence[str]) -> Grounding:
    judged = JudgeInput.from_trace(trace, answer=answer)
    evidence = [*sources, *judged.documents, *judged.tool_outputs]
    question = asked if isinstance(asked, str) else as_json(asked) if asked is not None else ""
    return ground(answer, evidence, question=question)


def _told(claim: CheckedClaim) -> dict[str, str | None]:
    return {"kind": claim.kind, "text": claim.text, "detail": claim.detail}

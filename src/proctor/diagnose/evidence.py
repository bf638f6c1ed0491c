"""Turn what a trial knows about itself into findings: failed checks, quality, missing recordings.

A failed check is a fact, so its confidence is high; `attribution` decides whether it is a cause or
a symptom. A check that names spans is found there, any other at the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.checks.base import FAILED, CheckResult, CheckStatus, Layer
from proctor.diagnose._steps import plain
from proctor.diagnose.finding import Category, Finding, Impact, quote
from proctor.sanitize import line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from proctor.diagnose._steps import Steps
    from proctor.trace import Span

# The kind of error that a failed check is, by the beginning of its name; others by their layer.
CHECK_CATEGORIES = {
    "forbidden_tools": Category.NON_COMPLIANCE,
    "tool_not_called": Category.NON_COMPLIANCE,
    "expected_tools": Category.TOOL_SELECTION,
    "tool_called": Category.TOOL_SELECTION,
    "min_tool": Category.TOOL_SELECTION,
    "tool_sequence": Category.ORCHESTRATION,
    "expected_handoffs": Category.ORCHESTRATION,
    "handoff": Category.ORCHESTRATION,
    "max_": Category.RESOURCE_ABUSE,
    "arg": Category.TOOL_RELATED,
    "json": Category.FORMATTING,
    "schema": Category.FORMATTING,
    "safety": Category.NON_COMPLIANCE,
    "grounded": Category.LANGUAGE_ONLY,
    "hallucination": Category.LANGUAGE_ONLY,
}
_BY_LAYER = {
    Layer.CORRECTNESS: Category.GOAL_DEVIATION,
    Layer.PATH: Category.TOOL_SELECTION,
    Layer.COST: Category.RESOURCE_ABUSE,
}

# The kind of error that a quality dimension measures. Latency is no error of an agent.
QUALITY_CATEGORIES = {
    "tool_selection": Category.TOOL_SELECTION,
    "sequence": Category.ORCHESTRATION,
    "redundancy": Category.RESOURCE_ABUSE,
    "error_recovery": Category.ORCHESTRATION,
    "retrieval": Category.POOR_RETRIEVAL,
    "reasoning": Category.WRONG_PROBLEM,
}

# Errors of a replay: the agent asked for something that was not recorded.
_MISSES = ("CassetteMiss", "no recorded answer", "no mock", "MockMiss", "not mocked")


def check_findings(steps: Steps, checks: Iterable[CheckResult]) -> list[Finding]:
    """Return a finding for each failed check, with its reason; a judge's reason is one, too."""
    spans = {span.span_id: span for span in steps.trace.spans}
    answer = next((act for act in reversed(steps.acts) if act.answers), None)
    last = answer or (steps.acts[-1] if steps.acts else None)
    findings: list[Finding] = []
    for check in checks:
        if check.status not in FAILED:
            continue
        blocking = check.status is CheckStatus.FAIL
        known = [spans[span_id] for span_id in check.span_ids if span_id in spans]
        span = known[0] if known else last.span if last is not None else None
        if span is None:
            continue
        kind = check.check or check.id
        category = next(
            (c for name, c in CHECK_CATEGORIES.items() if kind.startswith(name)),
            _BY_LAYER[check.layer],
        )
        by = f" ({check.method})" if check.method else ""
        act = f"calls {span.tool_name}; " if known and span.tool_name else ""
        findings.append(
            Finding(
                category=category,
                location=span.span_id,
                evidence=quote(span, plain(check.actual), last.text if last else ""),
                description=f"{act}check {check.id} failed{by}: {line(check.reason, 300)}",
                impact=Impact.HIGH if blocking else Impact.LOW,
                confidence=0.95 if blocking else 0.5,
                detector=f"check:{check.id}",
            )
        )
    return findings


def quality_findings(steps: Steps) -> Iterator[Finding]:
    """Yield a finding for each quality dimension at its alert level, at its first span."""
    from proctor.checks.quality import QualityLevel, score_trace

    spans = {span.span_id: span for span in steps.trace.spans}
    for dimension in score_trace(steps.trace).dimensions:
        category = QUALITY_CATEGORIES.get(dimension.name)
        span = next((spans[i] for i in dimension.span_ids if i in spans), None)
        if category is None or span is None or dimension.level is not QualityLevel.ALERT:
            continue
        issues = "; ".join(dimension.issues[:2]) or dimension.why
        yield Finding(
            category=category,
            location=span.span_id,
            evidence=quote(span, plain(span.tool_input)),
            description=f"quality, {dimension.name} {dimension.score}: {line(issues, 200)}",
            impact=Impact.LOW,
            confidence=0.3,
            detector=f"quality:{dimension.name}",
        )


def recording_findings(steps: Steps, error: str = "") -> Iterator[Finding]:
    """Yield a finding for each request that a cassette or a mock did not know."""
    seen: set[str] = set()
    for span in steps.trace.index.spans:
        text = f"{span.error_type or ''} {span.error_message or ''}"
        if _missed(text) and not (span.parent_id and span.parent_id in seen):
            seen.add(span.span_id)
            yield _missing(span, text)
    acts = steps.acts
    if not seen and _missed(error) and acts:
        yield _missing(acts[-1].span, error)


def _missed(text: str) -> bool:
    return any(miss.casefold() in text.casefold() for miss in _MISSES)


def _missing(span: Span, text: str) -> Finding:
    return Finding(
        category=Category.NOT_FOUND,
        location=span.span_id,
        evidence=quote(span, span.error_message or ""),
        description=f"asks for what was not recorded: {line(text, 200)}",
        impact=Impact.HIGH,
        confidence=0.9,
        detector="recording",
    )

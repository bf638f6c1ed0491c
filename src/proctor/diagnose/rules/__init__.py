"""The rules that need no training, in the order of the taxonomy's groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.diagnose.finding import Finding, Impact, quote
from proctor.diagnose.rules import _behaviour, _failures, claims, outcomes, requests
from proctor.diagnose.rules._failures import Rule, RuleHit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proctor.diagnose._steps import Steps
    from proctor.diagnose.finding import Category

RULES: tuple[Rule, ...] = (
    _behaviour.unsupported_answer,
    _behaviour.report_overruled,
    _failures.empty_search,
    _behaviour.tool_passed_over,
    _failures.malformed_call,
    _failures.broken_code,
    _behaviour.missing_tag,
    _behaviour.limit_exceeded,
    _failures.missing_resource,
    _failures.system_fault,
    _failures.failed_call,
    _failures.logged_fault,
    _failures.identical_calls,
    _behaviour.repeated_call,
    _behaviour.answer_without_work,
)

# Rules for traces of any kind, where the learned detector is not competent: it was not trained
# with them, and on its own kind of traces it has the better evidence.
EVIDENCE: tuple[Rule, ...] = (
    claims.forbidden_call,
    claims.ungrounded_values,
    claims.answer_from_nothing,
    claims.ignored_error,
    claims.claimed_call,
    claims.claimed_act,
    claims.wrong_equation,
    claims.argument_from_nowhere,
    claims.required_call_missing,
    claims.plan_not_executed,
    requests.wrong_record,
    requests.crossed_value,
    requests.wrong_handoff,
    requests.argument_contradicts_request,
    requests.opposite_argument,
    requests.wrong_unit,
    requests.superseded_value,
    requests.forbidden_act,
    requests.over_limit,
    requests.unrequested_harm,
    requests.loop,
    outcomes.answer_form,
    outcomes.failure_called_success,
)

# Rules that the detector was not trained with: TRAIL has too few of their cases to learn from.
_UNHEARD = frozenset(f"rule:{rule.name}" for rule in RULES if not rule.heard)


def heard(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings used by the learned detector."""
    return [finding for finding in findings if finding.detector not in _UNHEARD]


def apply_rules(steps: Steps, rules: Iterable[Rule]) -> list[Finding]:
    """Return the findings of every rule, the most confident per span and category."""
    # TRAIL scores (span, category) pairs, so a second finding of a pair would only be noise.
    best: dict[tuple[str, Category], Finding] = {}
    for rule in rules:
        for hit in rule.find(steps):
            category = hit.category or rule.category
            confidence = rule.confidence if hit.confidence is None else hit.confidence
            key = (hit.span.span_id, category)
            if key in best and best[key].confidence >= confidence:
                continue
            evidence = quote(hit.span, *hit.passages)
            if not evidence:  # an empty span: nothing to point at
                continue
            best[key] = Finding(
                category=category,
                location=hit.span.span_id,
                evidence=evidence,
                description=hit.description,
                impact=hit.impact or rule.impact,
                confidence=confidence,
                detector=f"rule:{rule.name}",
                caused_by=tuple(dict.fromkeys(span.span_id for span in hit.causes)),
            )
    order = steps.trace.index.position
    return sorted(best.values(), key=lambda f: (order[f.location], f.category))


def remaining_failures(steps: Steps, findings: Iterable[Finding]) -> list[Finding]:
    """Return the failed spans at which nothing was found: the trace recovered from them, or they
    repeat. They are of little confidence: a retry that works is no error.
    """
    known = {finding.location for finding in findings}
    return [
        Finding(
            category=category,
            location=span.span_id,
            evidence=quote(span, span.error_message or ""),
            description=description,
            impact=Impact.LOW,
            confidence=0.2,
            detector="rule:failed_span",
        )
        for span, category, description in _failures.failed_spans(steps)
        if span.span_id not in known
    ]


__all__ = ["EVIDENCE", "RULES", "Rule", "RuleHit", "apply_rules", "heard", "remaining_failures"]

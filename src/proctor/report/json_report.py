"""The report as one JSON document, with everything whole.

Promise: any JSON parser takes it (no NaN, no lone surrogate), keys are only ever added within a
schema version, and what is not known is null. docs/reference/reports.md describes every key.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from proctor import __version__
from proctor.checks.base import CheckResult, CheckStatus
from proctor.report.facts import CaseFacts, Report
from proctor.runs.trial import TrialStatus
from proctor.sanitize import json_value

SCHEMA_VERSION = 1
"""Rises when a key changes its meaning or goes."""


def render(report: Report) -> str:
    """Exactly one document, ended by a line break."""
    return json.dumps(json_value(document(report)), indent=2, allow_nan=False) + "\n"


def document(report: Report) -> dict[str, Any]:
    """The report as plain values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "proctor_version": __version__,
        "title": report.title,
        "started": _time(report.started_ns),
        "duration_ms": report.duration_ms,
        "exit_code": report.exit_code,
        "signal": report.signal,
        "totals": _totals(report),
        "notes": report.notes,
        "cases": [_case(case) for case in report.cases],
    }


def _totals(report: Report) -> dict[str, Any]:
    return {
        "planned": len(report.cases) if report.planned is None else report.planned,
        "cases": len(report.cases),
        **{status.value: report.count(status) for status in TrialStatus},
        "not_run": report.not_run,
        "checks": {status.value: report.count_checks(status) for status in CheckStatus},
        "tokens": report.tokens,
        "cost_usd": report.cost_usd,
        "unpriced_calls": report.unpriced_calls,
        "judge_cost_usd": report.judge_cost_usd,
    }


def _case(case: CaseFacts) -> dict[str, Any]:
    return {
        "case": case.case,
        "agent": case.agent,
        "suite": case.suite or None,
        "trial": case.trial,
        "status": case.status.value,
        "score": case.score,
        "threshold": case.threshold,
        "reason": case.reason or None,
        "error": case.error,
        "place": None if case.place is None else case.place._asdict(),
        "description": case.description,
        "layers": {layer.value: status.value for layer, status in case.layers.items()},
        "checks": [_check(result) for result in case.results],
        "answer": case.answer,
        "duration_ms": case.duration_ms,
        "tokens": case.tokens,
        "cost_usd": case.cost_usd,
        "unpriced_calls": case.unpriced_calls,
        "llm_calls": case.llm_calls,
        "tool_calls": case.tool_calls,
        "trace_id": case.trace_id,
        "source": case.source,
    }


def _check(result: CheckResult) -> dict[str, Any]:
    return {
        "id": result.id,
        "check": result.check,
        "layer": result.layer.value,
        "status": result.status.value,
        "reason": result.reason,
        "score": result.score,
        "weight": result.weight,
        "blocking": result.blocking,
        "expected": result.expected,
        "actual": result.actual,
        "span_ids": result.span_ids,
        "method": result.method,
        "cost_usd": result.cost_usd,
    }


def _time(nanoseconds: int) -> str | None:
    if not nanoseconds:
        return None
    moment = datetime.fromtimestamp(nanoseconds // 10**6 / 1000, UTC)
    return moment.isoformat(timespec="milliseconds")

"""A report as one JSON document that holds everything uncut.

Guarantees: any JSON parser reads it (no NaN, no lone surrogate), keys are only added within a
schema version, and unknown values are null. docs/reference/reports.md describes every key.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec

from proctor import __version__
from proctor.checks.base import CheckStatus
from proctor.report.facts import ReportFacts, TrialFacts
from proctor.results.outcomes import corrected_rates
from proctor.sanitize import json_value

SCHEMA_VERSION = 1
"""Increased when a key changes its meaning or is removed."""


def render(facts: ReportFacts) -> str:
    """Return exactly one document that ends with a line break."""
    return json.dumps(json_value(document(facts)), indent=2, allow_nan=False) + "\n"


def render_summary(facts: ReportFacts) -> str:
    """Return the document without trials, of which a run may have very many."""
    return json.dumps(json_value(document(facts, trials=False)), indent=2, allow_nan=False)


def document(facts: ReportFacts, *, trials: bool = True) -> dict[str, Any]:
    """Return the report as plain values; without `trials` only totals and cells."""
    # Only a run with research has the key: null would look like research without a result.
    research = {run.run_id: run.research for run in facts.runs if run.research is not None}
    # Only with labels, for the same reason.
    corrected = [rates for run in facts.runs if run.saved and (rates := corrected_rates(run))]
    return {
        "schema_version": SCHEMA_VERSION,
        "proctor_version": __version__,
        "title": facts.title,
        "path": facts.path or None,
        "run_id": facts.run_id,
        "name": facts.name,
        "created": facts.created,
        "stopped": facts.stopped,
        "exit_code": facts.exit_code,
        "signal": facts.signal,
        "totals": {
            **msgspec.to_builtins(facts.totals),
            "planned": facts.planned,
            "cases": facts.totals.trials,
            "not_run": facts.not_run,
            # Counting checks reads every trial, which a summary of many must not do.
            **({"checks": {s.value: facts.count_checks(s) for s in CheckStatus}} if trials else {}),
        },
        "notes": facts.remarks,
        "cells": msgspec.to_builtins(facts.cells),
        "failures": msgspec.to_builtins(facts.failures),
        **({"corrected": msgspec.to_builtins(corrected[0])} if corrected else {}),
        **({"research": research[facts.run_id]} if facts.run_id in research else {}),
        **(_trials(facts) if trials else {}),
    }


def _trials(facts: ReportFacts) -> dict[str, Any]:
    started = None
    if facts.started_ns:
        # Whole milliseconds: a float does not hold nanoseconds since 1970.
        moment = datetime.fromtimestamp(facts.started_ns // 10**6 / 1000, UTC)
        started = moment.isoformat(timespec="milliseconds")
    return {
        "started": started,
        "duration_ms": facts.duration_ms,
        "cases": [_trial(each) for each in facts.trials],
    }


def _trial(each: TrialFacts) -> dict[str, Any]:
    trial = each.trial
    return {
        "case": trial.case,
        "agent": trial.agent,
        "suite": each.suite or None,
        "trial": trial.index,
        "params": trial.params,
        "axis_seed": trial.axis_seed,
        "status": trial.status.value,
        "score": trial.score,
        "threshold": each.threshold,
        "reason": each.reason or None,
        "error": each.error,
        "place": None if each.place is None else each.place._asdict(),
        "description": each.description,
        "layers": {layer.value: status.value for layer, status in each.layers.items()},
        "checks": [msgspec.structs.asdict(result) for result in trial.checks],
        "answer": trial.answer,
        "duration_ms": trial.latency_ms,
        "tokens": trial.tokens,
        "cost_usd": trial.cost_usd,
        "unpriced_calls": trial.unpriced_calls,
        "llm_calls": trial.llm_calls,
        "tool_calls": trial.tool_calls,
        "trace_id": trial.trace_id,
        "source": each.source,
    }

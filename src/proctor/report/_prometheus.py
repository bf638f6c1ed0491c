"""A report as Prometheus metrics in the text format, for a push gateway or the node exporter.

Guarantees: every parser of the format reads it, an unknown value has no sample, and labels hold
only names that users wrote, so their number stays bounded. Docs: docs/reference/reports.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from proctor.checks.base import CheckStatus
from proctor.report.facts import ReportFacts, TrialFacts
from proctor.runs.trial import Trial, TrialStatus
from proctor.sanitize import line

Sample = tuple[Mapping[str, str], float]
"""Labels and a value."""

Gauge = tuple[str, str, Sequence[Sample]]
"""A name, what it means, and its samples."""


def render(facts: ReportFacts) -> str:
    """Return all metrics that have samples."""
    out: list[str] = []
    for name, about, samples in (*_of_report(facts), *_of_trials(facts)):
        if samples:
            out += [f"# HELP {name} {about}", f"# TYPE {name} gauge"]
            out += [f"{name}{_labelled(*sample)}" for sample in samples]
    return "\n".join(out) + "\n"


def _of_report(facts: ReportFacts) -> Iterator[Gauge]:
    meaning = "0 pass, 1 gate failed, 2 not judged, 130 or 143 interrupted."
    totals = facts.totals
    yield _one("proctor_exit_code", meaning, facts.exit_code)
    cases = [({"status": s.value}, getattr(totals, s.value)) for s in TrialStatus]
    yield "proctor_cases", "Cases by status.", cases
    yield _one("proctor_cases_not_run", "Planned cases that never started.", facts.not_run)
    damaged = sum(run.damaged for run in facts.runs)
    yield _one("proctor_damage", "Damaged lines and files of the run folder.", damaged)
    checks = [({"status": s.value}, facts.count_checks(s)) for s in CheckStatus]
    yield "proctor_checks", "Checks of all cases by status.", checks
    yield _one("proctor_cost_usd", "Known cost of all model calls of agents.", totals.cost_usd)
    unpriced = totals.unpriced_calls
    yield _one("proctor_unpriced_calls", "Model calls without a known price.", unpriced)
    seconds = (facts.duration_ms or 0.0) / 1000
    yield _one("proctor_duration_seconds", "Duration of all cases together.", seconds)
    started = facts.started_ns / 1e9 if facts.started_ns else None
    meaning = "Start of the first case, in Unix time."
    yield _one("proctor_started_timestamp_seconds", meaning, started)


def _one(name: str, about: str, value: float | None) -> Gauge:
    return name, about, [] if value is None else [({}, value)]


def _of_trials(facts: ReportFacts) -> Iterator[Gauge]:
    figures: tuple[tuple[str, str, Callable[[Trial], float | None]], ...] = (
        (
            "passed",
            "1 when the case passed, 0 when it failed; absent when not judged.",
            lambda t: float(t.passed) if t.status.judged else None,
        ),
        ("score", "Score of the case, 0 to 1.", lambda t: t.score),
        (
            "duration_seconds",
            "Duration of the agent.",
            lambda t: None if t.latency_ms is None else t.latency_ms / 1000,
        ),
        ("cost_usd", "Known cost of the agent's model calls.", lambda t: t.cost_usd),
        ("tokens", "Tokens of the agent's model calls.", lambda t: t.tokens),
        ("tool_calls", "Tool calls of the agent.", lambda t: t.tool_calls),
        ("llm_calls", "Model calls of the agent.", lambda t: t.llm_calls),
    )
    for name, about, figure in figures:
        values = ((case, figure(case.trial)) for case in facts.trials)
        samples = [(_labels(case), value) for case, value in values if value is not None]
        yield f"proctor_case_{name}", about, samples
    checks: list[Sample] = []
    for case in facts.trials:
        counted = Counter((r.layer.value, r.status.value) for r in case.trial.checks)
        for (layer, status), number in counted.items():
            labels = {**_labels(case), "layer": layer, "status": status}
            checks.append((labels, number))
    yield "proctor_case_checks", "Checks of a case by layer and status.", checks


def _labels(case: TrialFacts) -> dict[str, str]:
    # Every label that tells trials apart, or two samples would have the same name.
    return {
        "suite": case.suite,
        "agent": case.trial.agent,
        "case": case.trial.case,
        **({"params": case.trial.cell.params} if case.trial.params else {}),
        **({"seed": str(case.trial.axis_seed)} if case.trial.axis_seed is not None else {}),
        "trial": str(case.trial.index + 1),
    }


def _labelled(labels: Mapping[str, str], value: float) -> str:
    text = ",".join(
        # `line` leaves no line break, the third character that the format escapes.
        '{}="{}"'.format(key, line(text).replace("\\", "\\\\").replace('"', '\\"'))
        for key, text in labels.items()
    )
    number = repr(value)
    # Python writes `nan` and `inf`; the format has its own spelling.
    if not math.isfinite(value):
        number = "NaN" if math.isnan(value) else f"{value:+}".replace("inf", "Inf")
    return f"{{{text}}} {number}" if text else f" {number}"

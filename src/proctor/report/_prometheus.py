"""The report as Prometheus metrics in the text format, for a push gateway or the node exporter.

Promise: every parser of the format takes it, a figure that is not known has no sample, and labels
hold only names a user wrote, so their number stays bounded. Docs: docs/reference/reports.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from proctor.checks.base import CheckStatus
from proctor.report.facts import ReportFacts, TrialFacts
from proctor.runs.trial import TrialStatus
from proctor.sanitize import line


class PrometheusSample(NamedTuple):
    """One value with its labels."""

    labels: Mapping[str, str]
    value: float


class Gauge(NamedTuple):
    """A gauge and its samples."""

    name: str
    help: str
    samples: list[PrometheusSample]


def render(facts: ReportFacts) -> str:
    """All metrics; one without samples is left out."""
    out: list[str] = []
    for metric in (*_of_report(facts), *_of_trials(facts)):
        if metric.samples:
            out += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} gauge"]
            out += [_line(metric.name, sample) for sample in metric.samples]
    return "\n".join(out) + "\n"


def _of_report(facts: ReportFacts) -> Iterator[Gauge]:
    meaning = "0 pass, 1 gate failed, 2 not judged, 130 or 143 interrupted."
    totals = facts.totals
    yield _one("proctor_exit_code", meaning, facts.exit_code)
    cases = [PrometheusSample({"status": s.value}, getattr(totals, s.value)) for s in TrialStatus]
    yield Gauge("proctor_cases", "Cases by how they ended.", cases)
    yield _one("proctor_cases_not_run", "Planned cases that never began.", facts.not_run)
    checks = [PrometheusSample({"status": s.value}, facts.count_checks(s)) for s in CheckStatus]
    yield Gauge("proctor_checks", "Checks of all cases by how they ended.", checks)
    yield _one("proctor_cost_usd", "Known cost of all model calls of agents.", totals.cost_usd)
    unpriced = totals.unpriced_calls
    yield _one("proctor_unpriced_calls", "Model calls whose price is not known.", unpriced)
    yield _one(
        "proctor_duration_seconds", "How long it all took.", (facts.duration_ms or 0.0) / 1000
    )
    started = facts.started_ns / 1e9 if facts.started_ns else None
    yield _one("proctor_started_timestamp_seconds", "When it began, in Unix time.", started)


def _one(name: str, about: str, value: float | None) -> Gauge:
    return Gauge(name, about, [] if value is None else [PrometheusSample({}, value)])


def _of_trials(facts: ReportFacts) -> Iterator[Gauge]:
    figures: tuple[tuple[str, str, Callable[[TrialFacts], float | None]], ...] = (
        ("passed", "1 when the case passed, 0 when it failed; absent when not judged.", _passed),
        ("score", "Score of the case, 0 to 1.", lambda c: c.trial.score),
        ("duration_seconds", "How long the agent took.", _duration),
        ("cost_usd", "Known cost of the agent's model calls.", lambda c: c.trial.cost_usd),
        ("tokens", "Tokens of the agent's model calls.", lambda c: c.trial.tokens),
        ("tool_calls", "Tool calls of the agent.", lambda c: c.trial.tool_calls),
        ("llm_calls", "Model calls of the agent.", lambda c: c.trial.llm_calls),
    )
    for name, about, figure in figures:
        values = ((case, figure(case)) for case in facts.trials)
        samples = [
            PrometheusSample(_labels(case), value) for case, value in values if value is not None
        ]
        yield Gauge(f"proctor_case_{name}", about, samples)
    yield Gauge(
        "proctor_case_checks",
        "Checks of a case by layer and how they ended.",
        [sample for case in facts.trials for sample in _checks(case)],
    )


def _passed(case: TrialFacts) -> float | None:
    return float(case.trial.passed) if case.trial.status.judged else None


def _duration(case: TrialFacts) -> float | None:
    latency = case.trial.latency_ms
    return None if latency is None else latency / 1000


def _checks(case: TrialFacts) -> Iterator[PrometheusSample]:
    counted = Counter((r.layer.value, r.status.value) for r in case.trial.checks)
    for (layer, status), number in counted.items():
        yield PrometheusSample({**_labels(case), "layer": layer, "status": status}, number)


def _labels(case: TrialFacts) -> dict[str, str]:
    return {
        "suite": case.suite,
        "agent": case.trial.agent,
        "case": case.trial.case,
        **({"params": case.trial.cell.params} if case.trial.params else {}),
        **({"seed": str(case.trial.axis_seed)} if case.trial.axis_seed is not None else {}),
        "trial": str(case.trial.index + 1),
    }


def _line(name: str, sample: PrometheusSample) -> str:
    labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in sample.labels.items())
    return (
        f"{name}{{{labels}}} {_number(sample.value)}"
        if labels
        else f"{name} {_number(sample.value)}"
    )


def _escaped(text: str) -> str:
    return line(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")

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
from proctor.report.facts import CaseFacts, Report
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


def render(report: Report) -> str:
    """All metrics; one without samples is left out."""
    out: list[str] = []
    for metric in (*_of_report(report), *_of_cases(report)):
        if metric.samples:
            out += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} gauge"]
            out += [_line(metric.name, sample) for sample in metric.samples]
    return "\n".join(out) + "\n"


def _of_report(report: Report) -> Iterator[Gauge]:
    meaning = "0 pass, 1 gate failed, 2 not judged, 130 or 143 interrupted."
    yield _one("proctor_exit_code", meaning, report.exit_code)
    cases = [PrometheusSample({"status": s.value}, report.count(s)) for s in TrialStatus]
    yield Gauge("proctor_cases", "Cases by how they ended.", cases)
    yield _one("proctor_cases_not_run", "Planned cases that never began.", report.not_run)
    checks = [PrometheusSample({"status": s.value}, report.count_checks(s)) for s in CheckStatus]
    yield Gauge("proctor_checks", "Checks of all cases by how they ended.", checks)
    yield _one("proctor_cost_usd", "Known cost of all model calls of agents.", report.cost_usd)
    unpriced = report.unpriced_calls
    yield _one("proctor_unpriced_calls", "Model calls whose price is not known.", unpriced)
    yield _one("proctor_duration_seconds", "How long it all took.", report.duration_ms / 1000)
    started = report.started_ns / 1e9 if report.started_ns else None
    yield _one("proctor_started_timestamp_seconds", "When it began, in Unix time.", started)


def _one(name: str, about: str, value: float | None) -> Gauge:
    return Gauge(name, about, [] if value is None else [PrometheusSample({}, value)])


def _of_cases(report: Report) -> Iterator[Gauge]:
    figures: tuple[tuple[str, str, Callable[[CaseFacts], float | None]], ...] = (
        ("passed", "1 when the case passed, 0 when it failed; absent when not judged.", _passed),
        ("score", "Score of the case, 0 to 1.", lambda c: c.score),
        ("duration_seconds", "How long the agent took.", _duration),
        ("cost_usd", "Known cost of the agent's model calls.", lambda c: c.cost_usd),
        ("tokens", "Tokens of the agent's model calls.", lambda c: c.tokens),
        ("tool_calls", "Tool calls of the agent.", lambda c: c.tool_calls),
        ("llm_calls", "Model calls of the agent.", lambda c: c.llm_calls),
    )
    for name, about, figure in figures:
        values = ((case, figure(case)) for case in report.cases)
        samples = [
            PrometheusSample(_labels(case), value) for case, value in values if value is not None
        ]
        yield Gauge(f"proctor_case_{name}", about, samples)
    yield Gauge(
        "proctor_case_checks",
        "Checks of a case by layer and how they ended.",
        [sample for case in report.cases for sample in _checks(case)],
    )


def _passed(case: CaseFacts) -> float | None:
    return float(case.status == TrialStatus.PASSED) if case.status.judged else None


def _duration(case: CaseFacts) -> float | None:
    return None if case.duration_ms is None else case.duration_ms / 1000


def _checks(case: CaseFacts) -> Iterator[PrometheusSample]:
    counted = Counter((r.layer.value, r.status.value) for r in case.results)
    for (layer, status), number in counted.items():
        yield PrometheusSample({**_labels(case), "layer": layer, "status": status}, number)


def _labels(case: CaseFacts) -> dict[str, str]:
    return {
        "suite": case.suite,
        "agent": case.agent,
        "case": case.case,
        "trial": str(case.trial + 1),
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

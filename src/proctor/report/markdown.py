"""The report as Markdown, for step summaries, pull requests and pages.

Promise: what an agent said is shown as words or code and never becomes markup, HTML or a mention.
"""

from __future__ import annotations

from collections.abc import Iterator

from proctor.checks.base import CheckResult, CheckStatus, Layer
from proctor.report.console import counts
from proctor.report.facts import MOST_SPANS, TOLD, CaseFacts, Report
from proctor.runs.trial import TrialStatus
from proctor.sanitize import markdown, markdown_code, shown
from proctor.words import DASH, markdown_table, money, seconds

_MARKS = {
    TrialStatus.PASSED: "✅",
    TrialStatus.FAILED: "❌",
    TrialStatus.HARD_FAIL: "❌",
    TrialStatus.INFRA_ERROR: "⚠️",
    TrialStatus.CANCELLED: "⏹️",
}
_SAY_WHY = (CheckStatus.FAIL, CheckStatus.UNSCORED)
"""Checks whose own lines say why a case did not pass: no other line has to."""


def render(report: Report) -> str:
    """The whole report."""
    out = [f"## {markdown(report.title)}", "", f"**{markdown(counts(report))}**"]
    cost = money(report.cost_usd, report.unpriced_calls)
    spent = [part for part in (cost and f"cost {cost}", seconds(report.duration_ms)) if part]
    if spent:
        out += ["", markdown(" · ".join(spent))]
    for note in report.notes:
        out += ["", f"> {markdown(note)}"]
    if report.cases:
        out += ["", *_table(report)]
    for case in report.cases:
        if told := list(_about(case)):
            out += ["", f"### {_MARKS[case.status]} {markdown(case.name)}", "", *told]
    return "\n".join(out) + "\n"


def _table(report: Report) -> Iterator[str]:
    many = len(report.agents) > 1
    head = ["", "case", *(["agent"] if many else []), "score", *map(str, Layer), "time"]
    rows = (
        [
            _MARKS[case.status],
            markdown(case.name),
            *([markdown(case.agent)] if many else []),
            DASH if case.score is None else f"{case.score:.2f}",
            *case.layer_words,
            seconds(case.duration_ms),
        ]
        for case in report.cases
    )
    return markdown_table(head, rows)


def _about(case: CaseFacts) -> Iterator[str]:
    if case.status != TrialStatus.PASSED and not case.with_status(*_SAY_WHY):
        yield f"- {markdown(case.reason)}"
    for result in case.with_status(*TOLD):
        yield from _check(result)
    for result in case.results:
        if result.method is not None and result.status not in TOLD:
            by = f"by {markdown(result.method)}: {markdown(result.reason)}"
            yield f"- {result.status.value.upper()} **{markdown(result.id)}** {by}"


def _check(result: CheckResult) -> Iterator[str]:
    by = f" (by {markdown(result.method)})" if result.method else ""
    words = f"**{markdown(result.id)}**: {markdown(result.reason)}{by}"
    yield f"- {result.status.value.upper()} {words}"
    for label, value in (("expected", result.expected), ("actual", result.actual)):
        if value is not None:
            yield f"  - {label}: {markdown_code(shown(value))}"
    if result.span_ids:
        yield f"  - spans: {', '.join(markdown(span, 40) for span in result.span_ids[:MOST_SPANS])}"

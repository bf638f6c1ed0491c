"""The report for people in a terminal: a table of cases, then why those that did not pass did not.

Promise: nothing an agent said is obeyed or breaks the layout, every count has its denominator, and
a judged check says who judged it. Colour only repeats what the words say.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from proctor.checks.base import CheckResult, CheckStatus, Layer
from proctor.report.facts import MOST_SPANS, TOLD, CaseFacts, Report
from proctor.runs.trial import TrialStatus
from proctor.sanitize import line, shown
from proctor.tables import table
from proctor.words import DASH, money, plural, seconds

_MARKS = {
    TrialStatus.PASSED: ("✓", "green"),
    TrialStatus.FAILED: ("✗", "red"),
    TrialStatus.HARD_FAIL: ("✗", "red"),
    TrialStatus.INFRA_ERROR: ("!", "magenta"),
    TrialStatus.CANCELLED: ("–", None),
}
_WORDS = {
    TrialStatus.FAILED: "below its threshold",
    TrialStatus.HARD_FAIL: "a blocking check failed",
    TrialStatus.INFRA_ERROR: "could not be judged",
    TrialStatus.CANCELLED: "stopped",
}
_COLOURS = {
    CheckStatus.PASS: "green",
    CheckStatus.WARN: "yellow",
    CheckStatus.FAIL: "red",
    CheckStatus.UNSCORED: "magenta",
    CheckStatus.SKIP: None,
    CheckStatus.METRIC: None,
}


def render(report: Report) -> str:
    """The whole report; `click.echo` takes the colours out where there is no terminal."""
    parts = [_table(report), *_details(report), _closing(report)]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


# -- the table -----------------------------------------------------------------------------------


def _table(report: Report) -> list[str]:
    many = len(report.agents) > 1
    head = ["", "case", *(["agent"] if many else []), "score", *map(str, Layer), "time"]
    lines = table(head, [_row(case, many) for case in report.cases])
    if not lines:
        return []
    title = click.style(line(report.title), bold=True)
    return [title, click.style(lines[0], dim=True), *lines[1:]]


def _row(case: CaseFacts, with_agent: bool) -> list[str]:
    mark, colour = _MARKS[case.status]
    return [
        click.style(mark, fg=colour),
        line(case.name, 80),
        *([line(case.agent, 40)] if with_agent else []),
        DASH if case.score is None else f"{case.score:.2f}",
        *(
            click.style(word, fg=_COLOURS.get(layer))
            for word, layer in zip(case.layer_words, case.layers.values(), strict=True)
        ),
        seconds(case.duration_ms),
    ]


# -- why -----------------------------------------------------------------------------------------


def _details(report: Report) -> Iterator[list[str]]:
    many = len(report.agents) > 1
    for case in report.cases:
        told = list(_about(case))
        if told:
            yield [_heading(case, many), *told]


def _heading(case: CaseFacts, with_agent: bool) -> str:
    mark, colour = _MARKS[case.status]
    name = f"{line(case.name)} × {line(case.agent, 40)}" if with_agent else line(case.name)
    place = f"  {line(case.place.file)}:{case.place.line}" if case.place else ""
    place += f"  {line(case.source)}" if case.source else ""
    word = _WORDS.get(case.status, "passed")
    return f"{click.style(f'{mark} {name}', fg=colour, bold=True)}  {word}{place}"


def _about(case: CaseFacts) -> Iterator[str]:
    if case.error is not None and not case.with_status(CheckStatus.UNSCORED):
        yield f"    {click.style('ERROR', fg='magenta')} {line(case.error)}"
    if case.status == TrialStatus.FAILED:
        label = click.style("SCORE", fg="red")
        yield f"    {label} {case.score or 0.0:.2f}, {case.threshold:g} needed"
    for result in case.with_status(*TOLD):
        yield from _check(result)
    for result in case.results:
        if result.method is not None and result.status not in TOLD:
            status = result.status.value.upper()
            yield f"    {status} {line(result.id)}: by {line(result.method)}: {line(result.reason)}"


def _check(result: CheckResult) -> Iterator[str]:
    status = click.style(result.status.value.upper(), fg=_COLOURS[result.status])
    by = f" (by {line(result.method)})" if result.method else ""
    yield f"    {status} {line(result.id)}: {line(result.reason)}{by}"
    for label, value in (("expected", result.expected), ("actual", result.actual)):
        if value is not None:
            yield f"         {label:<9}{shown(value)}"
    if result.span_ids:
        more = len(result.span_ids) - MOST_SPANS
        ids = ", ".join(line(span, 40) for span in result.span_ids[:MOST_SPANS])
        yield f"         {'spans':<9}{ids}{f' and {more} more' if more > 0 else ''}"


# -- the sum -------------------------------------------------------------------------------------


def _closing(report: Report) -> list[str]:
    code = report.exit_code
    colour = "green" if code == 0 else "red" if code == 1 else "magenta"
    out = [f"note: {line(note)}" for note in report.notes]
    out.append(click.style(f"{counts(report)}", fg=colour, bold=True))
    cost = money(report.cost_usd, report.unpriced_calls)
    judging = money(report.judge_cost_usd)
    spent = [
        f"cost {cost}" if cost else "",
        f"judges {judging}" if judging else "",
        f"{report.tokens:,} tokens" if report.tokens is not None else "",
        seconds(report.duration_ms),
    ]
    out.append(" · ".join(part for part in spent if part))
    return out


def counts(report: Report) -> str:
    """`2 of 3 cases passed; 1 failed …`: what came of the cases, in words.

    Where a case was put to several agents, it is cells (case × agent) that are counted.
    """
    total = len(report.cases) + report.not_run
    failed = report.count(TrialStatus.FAILED, TrialStatus.HARD_FAIL)
    noun = "cell" if report.crossed else "case"
    parts = [f"{report.count(TrialStatus.PASSED)} of {plural(total, noun)} passed"]
    if failed:
        hard = report.count(TrialStatus.HARD_FAIL)
        parts.append(f"{failed} failed ({hard} on a blocking check)")
    if infra := report.count(TrialStatus.INFRA_ERROR):
        parts.append(f"{infra} could not be judged")
    if stopped := report.count(TrialStatus.CANCELLED):
        parts.append(f"{stopped} stopped")
    if report.not_run:
        parts.append(f"{report.not_run} not run")
    if report.warnings:
        parts.append(plural(report.warnings, "warning"))
    return "; ".join(parts)

"""A report as Markdown, for pull requests, step summaries, wikis and papers.

Guarantees: text of an agent is shown as text or code and never becomes markup, HTML or a mention.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from proctor.checks.base import CheckResult, CheckStatus, Layer
from proctor.formatting import DASH, duration_ms, markdown_table, money, percent, plural, points
from proctor.report.facts import MOST_SPANS, REPORTED, ReportFacts, TrialFacts, status_word, when
from proctor.report.figures import (
    cost_line,
    ends,
    error_lines,
    gate_line,
    leading,
    moved_cases,
    not_judged,
    per_pass,
    places,
    ranked_by,
    score,
    with_deviation,
)
from proctor.results.gate import ArmGate, GateResult
from proctor.runs.folder import run_name
from proctor.runs.trial import TrialStatus
from proctor.sanitize import markdown, markdown_code, shown

MOST_CASES = 60
"""Rows of the table of cases, the worst first: what a pull request shows without scrolling."""

MOST_FAILURES = 10
MOST_MOVES = 12

_VERDICT_MARKS = {"PASS": "✅", "FAIL": "❌", "NOT JUDGED": "⚠️"}
_MARKS = {
    TrialStatus.PASSED: "✅",
    TrialStatus.FAILED: "❌",
    TrialStatus.HARD_FAIL: "❌",
    TrialStatus.INFRA_ERROR: "⚠️",
    TrialStatus.NOT_JUDGED: "⚠️",
    TrialStatus.CANCELLED: "⏹️",
}
_SAY_WHY = (CheckStatus.FAIL, CheckStatus.UNSCORED)
"""Checks whose own lines give the reason of a failure, so that no other line repeats it."""


def render(facts: ReportFacts) -> str:
    """Return the report: trials one by one where each cell has one, else agents and cells."""
    if facts.detailed:
        middle = [list(_trial_table(facts)), *_trial_details(facts)]
    else:
        middle = [_leaderboard(facts), list(_failures(facts)), _cases(facts)]
    source = f"{when(facts)} · run {facts.run_id} · stored in {facts.path}"
    parts = [
        _top(facts),
        list(_since(facts.since)) if facts.since is not None else [],
        *middle,
        [f"> {markdown(note.text)} — {markdown(note.who)}" for note in facts.notes],
        [markdown(source)] if facts.saved else [],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _top(facts: ReportFacts) -> list[str]:
    totals = facts.totals
    lines = [f"## {_VERDICT_MARKS[facts.verdict]} {facts.verdict}: {markdown(facts.title)}", ""]
    lines.append(f"**{markdown(facts.headline)}** ({percent(totals.pass_rate)})")
    for remark in facts.remarks:
        lines += ["", f"> {markdown(remark)}"]
    if facts.stopped:
        lines += ["", markdown(f"Stopped early: {facts.stopped}")]
    if not facts.detailed and (missing := not_judged(totals)):
        lines += ["", markdown(f"Not judged: {missing}.")]
        lines += ["", *(f"- {markdown(text)}" for text in error_lines(facts.errors))]
    if len(facts.agents) > 1 and facts.saved and (order := leading(facts.board)):
        lines += ["", markdown(order)]
    took = duration_ms(facts.duration_ms)
    return [*lines, "", markdown(f"{cost_line(totals)}{f' · {took}' if took else ''}")]


# -- since the baseline ------------------------------------------------------------------------


def _since(found: GateResult) -> Iterator[str]:
    yield f"### Since {markdown(run_name(Path(found.baseline.path)))}: {found.verdict}"
    yield ""
    yield markdown(f"{found.reason} ({found.error_rate})")
    for arm in found.arms:
        yield from _arm_since(arm)
    for note in found.notes:
        yield f"- {markdown(note)}"


def _arm_since(arm: ArmGate) -> Iterator[str]:
    gate = arm.gate
    yield ""
    yield f"**{markdown(arm.name)}: {gate.verdict}.** {markdown(gate_line(gate))}"
    # An empty table would still have its header.
    moved = moved_cases(gate)
    if moved:
        yield ""
        yield from markdown_table(
            ("case", "before", "now", "change"),
            (
                (
                    markdown(move.case),
                    f"{move.baseline.passes}/{move.baseline.trials}",
                    f"{move.candidate.passes}/{move.candidate.trials}",
                    f"{points(-move.drop)} points",
                )
                for move in moved[:MOST_MOVES]
            ),
        )
    if len(moved) > MOST_MOVES:
        yield ""
        yield f"{plural(len(moved) - MOST_MOVES, 'case')} moved less."
    if gate.advice is not None:
        yield ""
        yield markdown(gate.advice.text)


# -- one trial for each cell ---------------------------------------------------------------------


def _trial_table(facts: ReportFacts) -> Iterator[str]:
    several = len(facts.agents) > 1
    head = ["", "case", *(["agent"] if several else []), "score", *map(str, Layer), "time"]
    rows = [
        [
            _MARKS[each.trial.status],
            markdown(each.name),
            *([markdown(each.trial.agent)] if several else []),
            score(each.trial.score),
            *(s.value.upper() if each.trial.checks else DASH for s in each.layers.values()),
            duration_ms(each.trial.latency_ms),
        ]
        for each in facts.trials
    ]
    # Without rows, a header alone would be printed.
    return markdown_table(head, rows) if rows else iter(())


def _trial_details(facts: ReportFacts) -> Iterator[list[str]]:
    for each in facts.trials:
        if details := list(_details(each)):
            yield [f"### {_MARKS[each.trial.status]} {markdown(each.name)}", "", *details]


def _details(each: TrialFacts) -> Iterator[str]:
    # A trial may fail by its score alone.
    own = (CheckStatus.NOT_JUDGED,) if each.trial.status == TrialStatus.NOT_JUDGED else ()
    if not each.trial.passed and not each.with_status(*_SAY_WHY, *own):
        yield f"- {markdown(each.reason)}"
    for result in each.with_status(*REPORTED):
        yield from _check(result)
    for result in each.trial.checks:
        if result.method is not None and result.status not in REPORTED:
            by = f"by {markdown(result.method)}: {markdown(result.reason)}"
            yield f"- {result.status.value.upper()} **{markdown(result.id)}** {by}"


def _check(result: CheckResult) -> Iterator[str]:
    by = f" (by {markdown(result.method)})" if result.method else ""
    text = f"**{markdown(result.id)}**: {markdown(result.reason)}{by}"
    yield f"- {status_word(result.status)} {text}"
    for label, value in (("expected", result.expected), ("actual", result.actual)):
        if value is not None:
            yield f"  - {label}: {markdown_code(shown(value))}"
    if result.span_ids:
        yield f"  - spans: {', '.join(markdown(span, 40) for span in result.span_ids[:MOST_SPANS])}"


# -- the leaderboard ---------------------------------------------------------------------------


def _leaderboard(facts: ReportFacts) -> list[str]:
    head = (
        *("agent", "rank", "pass rate", "95 %", "score ± SD", "cells", "trials"),
        *("p50", "p90", "p99", "cost", "per pass"),
    )
    rows = (
        (
            markdown(row.name),
            places(row.best, row.worst),
            percent(row.pass_rate.value),
            ends("pass_rate", row.pass_rate),
            with_deviation(row.score.value, row.score_std),
            f"{facts.arms[row.name].passed}/{facts.arms[row.name].cells}",
            f"{row.passes}/{row.trials}",
            duration_ms(row.latency_p50_ms) or DASH,
            duration_ms(row.latency_p90_ms) or DASH,
            duration_ms(row.latency_p99_ms) or DASH,
            money(row.cost_usd, row.unpriced_calls) or DASH,
            per_pass(row),
        )
        for row in facts.board.rows
    )
    return [
        "### Leaderboard",
        "",
        *markdown_table(head, rows),
        "",
        markdown(ranked_by(facts.board)),
        *(f"- {markdown(note)}" for note in facts.board.notes),
    ]


# -- failures and cases ------------------------------------------------------------------------


def _failures(facts: ReportFacts) -> Iterator[str]:
    if not facts.failures:
        return
    yield "### What broke, the most harmful first"
    yield ""
    for number, failure in enumerate(facts.failures[:MOST_FAILURES], 1):
        blocks = ", blocks" if failure.blocking else ""
        share = f"{failure.count} of {plural(failure.of, 'judged trial')} ({percent(failure.rate)})"
        yield f"{number}. **{markdown(failure.check_id)}**: {share}{blocks}"
        for sample in failure.samples:
            yield f"   - {markdown(sample.trial, 120)}: {markdown(sample.reason)}"
    if (more := len(facts.failures) - MOST_FAILURES) > 0:
        # A blank line ends the list; otherwise this would belong to its last item.
        yield f"\n{more} more in results.json."


def _cases(facts: ReportFacts) -> list[str]:
    if not facts.cells:
        return []
    texts = {
        (cell.case, cell.cell.arm): f"{cell.passed}/{cell.judged} {cell.verdict.value}"
        for cell in facts.cells
    }
    cases = facts.worst_cases()
    rows = (
        # Not every agent ran every case.
        [markdown(case, 80), *(texts.get((case, name), DASH) for name in facts.names)]
        for case in cases[:MOST_CASES]
    )
    head = ["case", *(markdown(name, 60) for name in facts.names)]
    left = len(cases) - MOST_CASES
    rest = ["", f"{plural(left, 'case')} with better rates are in summary.csv."] if left > 0 else []
    return ["### Cases, the worst first", "", *markdown_table(head, rows), *rest]

"""A run as Markdown, for pull requests, wikis and papers: the same numbers as the HTML page.

Promise: what an agent said is shown as words or code and never becomes markup, HTML or a mention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from proctor.report.figures import ends
from proctor.report.run_facts import ReportFacts, when
from proctor.report.run_words import (
    cost_line,
    error_lines,
    gate_line,
    leading,
    moved_cases,
    not_judged,
    places,
    ranked_by,
    score,
)
from proctor.results.gate import ArmGate, GateResult
from proctor.results.leaderboard import LeaderboardRow
from proctor.runs.folder import run_name
from proctor.runs.summary import CellSummary, RankedFailure
from proctor.sanitize import markdown
from proctor.words import DASH, markdown_table, money, percent, plural, points, seconds

MOST_CASES = 60
"""Rows of the table of cases, the worst first: what a pull request shows without being scrolled."""

MOST_FAILURES = 10
MOST_MOVES = 12

_MARKS = {"PASS": "✅", "FAIL": "❌", "NOT JUDGED": "⚠️"}


def render_run(facts: ReportFacts) -> str:
    """The whole report."""
    parts = [
        _top(facts),
        list(_since(facts.since)) if facts.since is not None else [],
        _leaderboard(facts),
        list(_failures(facts)),
        _cases(facts),
        [f"> {markdown(note.text)} — {markdown(note.who)}" for note in facts.notes],
        [markdown(f"{when(facts)} · run {facts.run_id} · kept in {facts.path}")],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _top(facts: ReportFacts) -> list[str]:
    totals = facts.totals
    lines = [f"## {_MARKS[facts.verdict]} {facts.verdict}: {markdown(facts.name)}", ""]
    lines.append(f"**{markdown(facts.headline)}** ({percent(totals.pass_rate)})")
    if facts.stopped:
        lines += ["", markdown(f"Stopped early: {facts.stopped}")]
    if missing := not_judged(totals):
        lines += ["", markdown(f"Not judged: {missing}.")]
        lines += ["", *(f"- {markdown(said)}" for said in error_lines(facts.errors))]
    if said := leading(facts.board):
        lines += ["", markdown(said)]
    took = seconds(facts.duration_ms)
    return [*lines, "", markdown(f"{cost_line(totals)}{f' · {took}' if took else ''}")]


# -- since the reference run -------------------------------------------------------------------


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


# -- the leaderboard ---------------------------------------------------------------------------


def _leaderboard(facts: ReportFacts) -> list[str]:
    head = ("agent", "place", "pass rate", "95 %", "score", "cells", "trials", "p50", "p95", "cost")
    rows = (_arm(row, facts) for row in facts.board.rows)
    return [
        "### Leaderboard",
        "",
        *markdown_table(head, rows),
        "",
        markdown(ranked_by(facts.board)),
        *(f"- {markdown(note)}" for note in facts.board.notes),
    ]


def _arm(row: LeaderboardRow, facts: ReportFacts) -> Sequence[str]:
    cells = facts.arms[row.name]
    return (
        markdown(row.name),
        places(row.best, row.worst),
        percent(row.pass_rate.value),
        ends("pass_rate", row.pass_rate),
        score(row.score.value),
        f"{cells.passed}/{cells.cells}",
        f"{row.passes}/{row.trials}",
        seconds(row.latency_p50_ms) or DASH,
        seconds(row.latency_p95_ms) or DASH,
        money(row.cost_usd, row.unpriced_calls) or DASH,
    )


# -- failures and cases ------------------------------------------------------------------------


def _failures(facts: ReportFacts) -> Iterator[str]:
    if not facts.failures:
        return
    yield "### What broke, the most harmful first"
    yield ""
    for number, failure in enumerate(facts.failures[:MOST_FAILURES], 1):
        yield f"{number}. {_failure(failure)}"
        for sample in failure.samples:
            yield f"   - {markdown(sample.trial, 120)}: {markdown(sample.reason)}"
    if (more := len(facts.failures) - MOST_FAILURES) > 0:
        yield f"\n{more} more in results.json."


def _failure(failure: RankedFailure) -> str:
    blocks = ", blocks" if failure.blocking else ""
    share = f"{failure.count} of {plural(failure.of, 'judged trial')} ({percent(failure.rate)})"
    return f"**{markdown(failure.check_id)}**: {share}{blocks}"


def _cases(facts: ReportFacts) -> list[str]:
    cells = {(cell.case, cell.cell.arm): cell for cell in facts.cells}
    cases = facts.worst_cases()
    rows = (
        [markdown(case, 80), *(_cell(cells.get((case, name))) for name in facts.names)]
        for case in cases[:MOST_CASES]
    )
    made = list(markdown_table(["case", *(markdown(name, 60) for name in facts.names)], rows))
    left = len(cases) - MOST_CASES
    rest = ["", f"{plural(left, 'case')} with better rates are in summary.csv."] if left > 0 else []
    return ["### Cases, the worst first", "", *made, *rest] if facts.cells else []


def _cell(cell: CellSummary | None) -> str:
    if cell is None:
        return DASH
    return f"{cell.passed}/{cell.judged} {cell.verdict.value}"

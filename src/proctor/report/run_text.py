"""The report of a run in a terminal: the summary, then who is ahead and what changed.

Promise: the numbers are those of the page and of Markdown; nothing an agent said is obeyed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from proctor.report.figures import ends
from proctor.report.run_console import render_run
from proctor.report.run_words import gate_line, leading, places, score
from proctor.runs.folder import run_name
from proctor.sanitize import line
from proctor.tables import table
from proctor.words import DASH, money, percent

if TYPE_CHECKING:
    from proctor.report.run_facts import ReportFacts
    from proctor.runs.run import Run

_HEAD = ("agent", "place", "pass rate", "95 %", "score", "cells", "trials", "cost")


def render_report(run: Run, facts: ReportFacts) -> str:
    """The whole report."""
    parts = [
        "\n".join(_leaderboard(facts)),
        "\n".join(_since(facts)),
        "\n".join(_notes(facts)),
        render_run(run),
    ]
    return "\n\n".join(part for part in parts if part)


def _leaderboard(facts: ReportFacts) -> Iterator[str]:
    if len(facts.names) < 2:
        return
    rows = [
        (
            line(row.name, 60),
            places(row.best, row.worst),
            percent(row.pass_rate.value),
            ends("pass_rate", row.pass_rate),
            score(row.score.value),
            f"{facts.arms[row.name].passed}/{facts.arms[row.name].cells}",
            f"{row.passes}/{row.trials}",
            money(row.cost_usd, row.unpriced_calls) or DASH,
        )
        for row in facts.board.rows
    ]
    head, *lines = table(_HEAD, rows)
    yield click.style(head, dim=True)
    yield from lines
    if said := leading(facts.board):
        yield f"  {line(said)}"


def _since(facts: ReportFacts) -> Iterator[str]:
    found = facts.since
    if found is None:
        return
    name = line(run_name(Path(found.baseline.path)), 200)
    yield click.style(f"Since {name}: {found.verdict}", bold=True)
    yield f"  {line(found.reason)}"
    for arm in found.arms:
        yield f"  {line(arm.name, 60)}: {arm.gate.verdict}, {gate_line(arm.gate)}"


def _notes(facts: ReportFacts) -> Iterator[str]:
    for note in facts.notes:
        about = f" about {line(note.trial, 100)}" if note.trial else ""
        yield f"  {line(note.who, 40)}{about}: {line(note.text)}"

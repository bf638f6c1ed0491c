"""A run for people in a terminal: verdicts, what broke most, what it cost, where it is.

Promise: nothing an agent said is obeyed, every count has its denominator, and a cost that is not
known is never shown as zero. Colour only repeats what the words say.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from proctor.report.run_words import (
    cost_line,
    error_lines,
    not_judged,
    research_lines,
    score,
    sentence,
)
from proctor.runs.summary import CellSummary, RankedFailure, Verdict
from proctor.sanitize import line
from proctor.tables import table
from proctor.trials.limits import COST_REACHED, TOKENS_REACHED
from proctor.words import DASH, money, percent, plural, seconds

if TYPE_CHECKING:
    from pathlib import Path

    from proctor.runs.run import Run

MOST_FAILURES = 8
"""Ranked failures told to people: the rest matter less by construction; results.json has them."""

SPENT = {COST_REACHED: "--max-cost", TOKENS_REACHED: "--max-tokens"}
"""What must be raised to go on after a limit that counts earlier sittings."""

_COLOURS = {
    Verdict.PASS: "green",
    Verdict.PARTIAL: "yellow",
    Verdict.FAIL: "red",
    Verdict.HARD_FAIL: "red",
    Verdict.INFRA_ERROR: "magenta",
    Verdict.NOT_RUN: "bright_black",
}

_HEAD = ("case", "agent", "verdict", "passed", "score", "p50", "p95", "cost")


def render_run(run: Run) -> str:
    """The whole summary; `click.echo` takes the colours out where there is no terminal."""
    parts = [
        verdict_table(run.cells),
        list(failure_lines(run.failures)),
        [line for cell in run.cells for line in _remarks(cell)],
        research_lines(run.path),
        closing_lines(run),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def verdict_table(cells: Sequence[CellSummary]) -> list[str]:
    """A row for each cell."""
    lines = table(_HEAD, [_row(cell) for cell in cells])
    return [click.style(lines[0], dim=True), *lines[1:]] if lines else []


def _row(cell: CellSummary) -> tuple[str, ...]:
    name = f"{cell.case} [{cell.params}]" if cell.params else cell.case
    return (
        line(name, 60),
        line(cell.agent, 40),
        click.style(cell.verdict.value, fg=_COLOURS[cell.verdict]),
        f"{cell.passed}/{cell.judged}",
        score(cell.score_mean),
        seconds(cell.latency_p50_ms) or DASH,
        seconds(cell.latency_p95_ms) or DASH,
        money(cell.cost_usd, cell.unpriced_calls) or DASH,
    )


def _remarks(cell: CellSummary) -> Iterator[str]:
    """What a row cannot say: trials that are missing, and why."""
    told: list[str] = []
    if cell.infra_error:
        told.append(f"{cell.infra_error} of {cell.trials} could not be judged")
    if cell.cancelled:
        told.append(f"{cell.cancelled} cancelled")
    if cell.early_stop:
        told.append(f"stopped after {cell.trials} of {cell.asked}: {cell.early_stop}")
    elif cell.trials < cell.asked:
        told.append(f"{cell.asked - cell.trials} of {cell.asked} not run")
    if told:
        yield f"  {line(str(cell.cell), 100)}: {line('; '.join(told))}"


def failure_lines(failures: Sequence[RankedFailure]) -> Iterator[str]:
    """What to fix first: failed checks over all cells, the most harmful first."""
    if not failures:
        return
    yield click.style("What broke, the most harmful first", bold=True)
    for number, failure in enumerate(failures[:MOST_FAILURES], 1):
        blocks = ", blocks" if failure.blocking else ""
        name = click.style(line(failure.check_id, 80), fg="red" if failure.blocking else "yellow")
        often = f"{failure.count} of {plural(failure.of, 'trial')} ({percent(failure.rate)})"
        yield f"  {number}. {name}: {often}{blocks}"
        sample = failure.samples[0]
        yield f"     {line(sample.trial, 80)}: {line(sample.reason, 160)}"
    if len(failures) > MOST_FAILURES:
        yield f"  and {len(failures) - MOST_FAILURES} more in results.json"


def closing_lines(run: Run) -> list[str]:
    """Counts, cost and the folder."""
    totals, code = run.totals, run.exit_code
    colour = "green" if code == 0 else "red" if code == 1 else "magenta"
    out = [click.style(sentence(run.cells, totals), fg=colour, bold=True)]
    if missing := not_judged(totals):
        out.append(f"not judged: {missing}")
        out += [f"  {line(said, 600)}" for said in error_lines(run.errors)]
    out.append(cost_line(totals))
    if run.stopped:
        out.append(f"stopped early: {line(run.stopped)}")
        more = next((o for limit, o in SPENT.items() if run.stopped.startswith(limit)), None)
        higher = f" with a higher {more}" if more else ""
        out.append(f"go on with: {resume_command(run.path)}{higher}")
    elif totals.infra_error:
        out.append(f"try those again with: {resume_command(run.path, '--retry-infra')}")
    provenance: dict[str, Any] = run.spec.get("provenance") or {}
    git: dict[str, Any] = provenance.get("git") or {}
    if git.get("dirty"):
        commit = line(str(git.get("commit", "")), 12)
        out.append(f"the code had uncommitted changes on top of {commit}")
    out.append(f"kept in {line(str(run.path), 400)}")
    out.append(f"look at it with: proctor report {shlex.quote(line(str(run.path), 400))} --open")
    return out


def resume_command(path: Path, how: str = "--resume") -> str:
    """What to type to go on with a run."""
    return f"proctor run {how} {shlex.quote(line(str(path), 400))}"

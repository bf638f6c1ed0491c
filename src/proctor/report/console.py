"""A run in the terminal: a table, the reasons of failures, the cost, the folder.

Where each cell has one trial (`proctor test`), trials are reported one by one with every check
that failed. Where trials are repeated, cells are reported with their rates, and failed
checks over all of them, the most harmful first.

Guarantees: the terminal does not interpret text of an agent, every count has its denominator, an
unknown cost is never shown as zero, and a judged check names its judge. Colour only repeats
the words.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from proctor.agents.base import AGENT_ERROR, RESOURCE_LIMIT, TIMEOUT
from proctor.checks.base import NOT_REACHED, CheckResult, CheckStatus, Layer
from proctor.formatting import DASH, duration_ms, money, percent, plural
from proctor.report import figures
from proctor.report.facts import MOST_SPANS, NO_VERDICT, REPORTED, ReportFacts, status_word
from proctor.runs.summary import CellSummary, RankedFailure, Verdict
from proctor.runs.trial import COST_REACHED, TOKENS_REACHED, TrialStatus
from proctor.sanitize import line, shown
from proctor.tables import table

if TYPE_CHECKING:
    from proctor.results.gate import GateResult

LARGE = 24
"""Cells of a large run: as many as fit a screen. Only those that failed or changed are listed."""

MOST_SKIPPED = 5
"""Skipped checks that are named."""

MOST_CELLS = 20
"""Cells listed of a large run."""

MOST_FAILURES = 8
"""Ranked failures shown: the rest are less harmful; results.json has them."""

EXHAUSTED = {COST_REACHED: "--max-cost", TOKENS_REACHED: "--max-tokens"}
"""Option to raise after a limit that also counts earlier invocations."""

_STATUSES = {
    TrialStatus.PASSED: ("✓", "green", "passed"),
    TrialStatus.FAILED: ("✗", "red", "below its threshold"),
    TrialStatus.HARD_FAIL: ("✗", "red", "a blocking check failed"),
    TrialStatus.INFRA_ERROR: ("!", "magenta", "could not be judged"),
    TrialStatus.NOT_JUDGED: ("?", "magenta", "could not be judged"),
    TrialStatus.CANCELLED: ("–", None, "stopped"),
}
"""Mark, colour and words of each status."""

CATEGORY_WORDS = {
    AGENT_ERROR: "the agent raised an error or crashed",
    TIMEOUT: "the agent did not end in time",
    RESOURCE_LIMIT: "the agent ran out of memory",
}
_CHECK_COLOURS = {
    CheckStatus.PASS: "green",
    CheckStatus.WARN: "yellow",
    CheckStatus.FAIL: "red",
    CheckStatus.UNSCORED: "magenta",
    CheckStatus.NOT_JUDGED: "magenta",
    CheckStatus.SKIP: None,
    CheckStatus.METRIC: None,
}
_VERDICT_COLOURS = {
    Verdict.PASS: "green",
    Verdict.PARTIAL: "yellow",
    Verdict.FAIL: "red",
    Verdict.HARD_FAIL: "red",
    Verdict.INFRA_ERROR: "magenta",
    Verdict.NOT_JUDGED: "magenta",
    Verdict.NOT_RUN: "bright_black",
    Verdict.INCOMPLETE: "magenta",
}


def render(facts: ReportFacts) -> str:
    """Return the whole report; `click.echo` removes colours where there is no terminal."""
    large = facts.saved and len(facts.cells) > LARGE
    if facts.detailed:
        # A row per trial: score, the worst status of each layer, time.
        several = len(facts.agents) > 1
        head = ["", "case", *(["agent"] if several else []), "score", *map(str, Layer), "time"]
        rows: list[list[str]] = []
        listed = [each for each in facts.trials if not large or each.reason]
        for each in listed[: MOST_CELLS if large else None]:
            mark, colour, _ = _STATUSES[each.trial.status]
            rows.append(
                [
                    click.style(mark, fg=colour),
                    line(each.name, 80),
                    *([line(each.trial.agent, 40)] if several else []),
                    figures.score(each.trial.score),
                    # A trial that failed before its checks has no status in any layer.
                    *(
                        click.style(status_word(status), fg=_CHECK_COLOURS[status])
                        if each.trial.checks
                        else DASH
                        for status in each.layers.values()
                    ),
                    duration_ms(each.trial.latency_ms),
                ]
            )
        middle = list(_trial_details(facts))
        if large:
            middle = [list(failure_lines(facts.failures))]
        if rows:
            title = click.style(line(facts.title), bold=True)
            middle.insert(0, [title, *_dimmed_head(table(head, rows))])
        if large:
            middle[0] += _not_listed(facts, len(listed), len(rows))
    else:
        cells = _notable(facts) if large else facts.cells
        shown = cells[: MOST_CELLS if large else None]
        middle = [cell_table(shown), list(failure_lines(facts.failures))]
        if large:
            middle[0] += _not_listed(facts, len(cells), len(shown))
    totals, code = facts.totals, facts.exit_code
    colour = "green" if code == 0 else "red" if code == 1 else "magenta"
    closing = [*_skipped(facts), *(f"note: {line(remark)}" for remark in facts.remarks)]
    closing.append(click.style(facts.headline, fg=colour, bold=True))
    if not facts.detailed and (missing := figures.not_judged(totals)):
        closing.append(f"not judged: {missing}")
        closing += [f"  {line(each, 600)}" for each in figures.error_lines(facts.errors)]
    # For repeated trials of a saved run, the journal would have to be read again.
    took = duration_ms(facts.duration_ms) if facts.detailed else ""
    closing.append(f"{figures.cost_line(totals)}{f' · {took}' if took else ''}")
    if facts.saved:
        path = Path(facts.path)
        if facts.stopped:
            closing.append(f"stopped early: {line(facts.stopped)}")
        # What other programs ran cannot be resumed here.
        if facts.stopped and not facts.imported:
            # Resuming with the same limit would stop at once.
            option = next((o for r, o in EXHAUSTED.items() if facts.stopped.startswith(r)), None)
            higher = f" with a higher {option}" if option else ""
            closing.append(f"resume with: {resume_command(path)}{higher}")
        # What the checks could not judge, they could not judge in another attempt either.
        elif totals.infra_error and not facts.imported:
            closing.append(f"retry them with: {resume_command(path, '--retry-infra')}")
        if facts.dirty:
            commit = line(facts.commit or "", 12)
            closing.append(f"the code had uncommitted changes on top of {commit}")
        closing.append(f"stored in {line(facts.path, 400)}")
        closing.append(f"view it with: proctor report {shlex.quote(line(facts.path, 400))} --open")
    missing = [text for cell in facts.cells if cell.asked > 1 for text in _missing_trials(cell)]
    parts = [
        list(_leaderboard(facts)) if large or (facts.saved and len(facts.agents) > 1) else [],
        list(_since(facts.since)) if facts.since is not None else [],
        [
            f"  {line(note.who, 40)}{f' about {line(note.trial, 100)}' if note.trial else ''}: "
            f"{line(note.text)}"
            for note in facts.notes
        ],
        *middle,
        # With one trial per cell, the table and the headline have said it.
        missing
        if len(missing) <= LARGE
        else [
            *missing[:MOST_CELLS],
            f"  and {plural(len(missing) - MOST_CELLS, 'cell')} more",
        ],
        list(facts.research),
        closing,
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


# -- one trial for each cell -----------------------------------------------------------------------


def _trial_details(facts: ReportFacts) -> Iterator[list[str]]:
    """Yield why each trial did not pass, and what its other checks report."""
    several = len(facts.agents) > 1
    for each in facts.trials:
        trial = each.trial
        details: list[str] = []
        # An unscored check reports the same error itself.
        if each.error is not None and not each.with_status(*NO_VERDICT):
            details.append(f"    {click.style('ERROR', fg='magenta')} {line(each.error)}")
        if trial.status == TrialStatus.FAILED and not trial.category:
            label = click.style("SCORE", fg="red")
            details.append(f"    {label} {trial.score or 0.0:.2f}, {each.threshold:g} needed")
        for result in each.with_status(*REPORTED):
            details += _check(result)
        details += [
            f"    {r.status.value.upper()} {line(r.id)}: by {line(r.method)}: {line(r.reason)}"
            for r in trial.checks
            if r.method is not None and r.status not in REPORTED
        ]
        if not details:
            continue
        mark, colour, words = _STATUSES[trial.status]
        agent = f" × {line(trial.agent, 40)}" if several else ""
        place = f"  {line(each.place)}" if each.place else ""
        place += f"  {line(each.source)}" if each.source else ""
        heading = click.style(f"{mark} {line(each.name)}{agent}", fg=colour, bold=True)
        why = CATEGORY_WORDS.get(trial.category) or words
        yield [f"{heading}  {why}{place}", *details]


def _skipped(facts: ReportFacts) -> Iterator[str]:
    """Yield the checks that had no effect for lack of what they compare with."""
    found = Counter(
        (result.id, result.reason)
        for each in facts.trials
        for result in each.trial.checks
        if result.status is CheckStatus.SKIP and not result.reason.startswith(NOT_REACHED)
    )
    for (name, reason), trials in found.most_common(MOST_SKIPPED):
        times = f" in {trials} cases" if trials > 1 else ""
        yield f"skipped{times}: {line(name)}: {line(reason)}"


def _check(result: CheckResult) -> Iterator[str]:
    status = click.style(status_word(result.status), fg=_CHECK_COLOURS[result.status])
    by = f" (by {line(result.method)})" if result.method else ""
    yield f"    {status} {line(result.id)}: {line(result.reason)}{by}"
    for label, value in (("expected", result.expected), ("actual", result.actual)):
        if value is not None:
            yield f"         {label:<9}{shown(value)}"
    if result.span_ids:
        more = len(result.span_ids) - MOST_SPANS
        ids = ", ".join(line(span, 40) for span in result.span_ids[:MOST_SPANS])
        yield f"         {'spans':<9}{ids}{f' and {more} more' if more > 0 else ''}"


# -- repeated trials -------------------------------------------------------------------------------


def cell_table(cells: Sequence[CellSummary]) -> list[str]:
    """Return a row per cell: verdict, rate, score, latency, cost."""
    if not cells:
        return []
    rows = [
        [
            line(f"{c.case} [{c.params}]" if c.params else c.case, 60),
            line(c.agent, 40),
            click.style(c.verdict.value, fg=_VERDICT_COLOURS[c.verdict]),
            f"{c.passed}/{c.judged}",
            figures.score(c.score_mean),
            duration_ms(c.latency_p50_ms) or DASH,
            duration_ms(c.latency_p95_ms) or DASH,
            money(c.cost_usd, c.unpriced_calls) or DASH,
        ]
        for c in cells
    ]
    head = ("case", "agent", "verdict", "passed", "score", "p50", "p95", "cost")
    return _dimmed_head(table(head, rows))


def _dimmed_head(lines: Sequence[str]) -> list[str]:
    """Return the lines of a table with a dim head; the rows are what to read."""
    return [click.style(lines[0], dim=True), *lines[1:]]


def _notable(facts: ReportFacts) -> list[CellSummary]:
    """Return the cells that did not pass or changed since the baseline, the worst first."""
    arms = () if facts.since is None else facts.since.arms
    changed = {(move.case, arm.name) for arm in arms for move in arm.gate.moves if move.drop}
    notable = [
        cell
        for cell in facts.cells
        if cell.verdict != Verdict.PASS or (cell.case, cell.cell.arm) in changed
    ]
    # What was never judged has to be looked at first.
    return sorted(notable, key=lambda cell: -1.0 if cell.pass_rate is None else cell.pass_rate)


def _not_listed(facts: ReportFacts, notable: int, shown: int) -> list[str]:
    """Return how many cells a large run does not list, and the command that lists them."""
    rest, passed = notable - shown, len(facts.cells) - notable
    parts = [f"{rest} more that did not pass or changed"] if rest else []
    parts += [f"{plural(passed, 'cell')} that passed"] if passed else []
    if not parts:
        return []
    every = f"proctor results {shlex.quote(line(facts.path, 400))} --group-by case,agent"
    return [f"  not listed: {', '.join(parts)}; {every}"]


def failure_lines(failures: Sequence[RankedFailure]) -> Iterator[str]:
    """Yield failed checks over all cells, the most harmful first."""
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


def _missing_trials(cell: CellSummary) -> Iterator[str]:
    """Yield the missing trials of a repeated cell, with the reasons."""
    parts: list[str] = []
    if cell.unjudged:
        parts.append(f"{cell.unjudged} of {cell.trials} could not be judged")
    if cell.cancelled:
        parts.append(f"{cell.cancelled} cancelled")
    if cell.early_stop:
        parts.append(f"stopped after {cell.trials} of {cell.asked}: {cell.early_stop}")
    elif cell.trials < cell.asked:
        parts.append(f"{cell.asked - cell.trials} of {cell.asked} not run")
    if parts:
        yield f"  {line(str(cell.cell), 100)}: {line('; '.join(parts))}"


# -- around the run --------------------------------------------------------------------------------


def _leaderboard(facts: ReportFacts) -> Iterator[str]:
    rows = [
        (
            line(row.name, 60),
            figures.places(row.best, row.worst),
            percent(row.pass_rate.value),
            figures.ends("pass_rate", row.pass_rate),
            figures.with_deviation(row.score.value, row.score_std),
            f"{facts.arms[row.name].passed}/{facts.arms[row.name].cells}",
            f"{row.passes}/{row.trials}",
            money(row.cost_usd, row.unpriced_calls) or DASH,
            figures.per_pass(row),
        )
        for row in facts.board.rows
    ]
    titles = (
        *("agent", "rank", "pass rate", "95 %", "score ± SD"),
        *("cells", "trials", "cost", "per pass"),
    )
    yield from _dimmed_head(table(titles, rows))
    if sentence := figures.leading(facts.board):
        yield f"  {line(sentence)}"
    yield from (f"  {note}" for note in figures.board_note(facts.board))


def _since(found: GateResult) -> Iterator[str]:
    """Yield the changes since the baseline."""
    from proctor.runs.folder import run_name

    name = line(run_name(Path(found.baseline.path)), 200)
    yield click.style(f"Since {name}: {found.verdict}", bold=True)
    yield f"  {line(found.reason)}"
    for arm in found.arms:
        yield f"  {line(arm.name, 60)}: {arm.gate.verdict}, {figures.gate_line(arm.gate)}"


def resume_command(path: Path, option: str = "--resume") -> str:
    """Return the command that resumes a run."""
    return f"proctor run {option} {shlex.quote(line(str(path), 400))}"

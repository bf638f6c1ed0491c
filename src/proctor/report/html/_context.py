"""The variables of the report's templates, for what takes more than a fact and its formatting.

Templates print facts with the formatting functions of `FUNCTIONS`, and escape every value. A
section without anything to show has no variables, so the template leaves it out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from proctor.formatting import DASH, and_more, duration_ms, money, plural
from proctor.report.charts import HEATMAP_CASES, STATUS_WORDS, STATUSES
from proctor.report.facts import GroupFigures, ReportFacts, TrialRow, when
from proctor.report.figures import moved_cases, score, template_globals
from proctor.runs.folder import run_name
from proctor.runs.summary import CellSummary
from proctor.runs.trial import TrialStatus
from proctor.stats.describe import percentile
from proctor.stats.gate import Gate

if TYPE_CHECKING:
    from proctor.results.gate import ArmGate

MAX_FAILURES = 20
"""Ranked failures in the page. The rest are the least harmful ones and are in results.json."""

MAX_CHANGED_CASES = 12
"""Cases listed as changed since the reference run, the largest changes first."""

MAX_NOTED_CASES = 5
"""Cases that a note names."""

MAX_HEATMAP_ROWS = 400
"""Rows of the heatmap's table, the worst cases first: more would make the page slow to open."""

BINS = 10
"""Bins of the score histogram: tenths."""

SECTION_TITLES = {
    "since": "Changes",
    "research": "Research",
    "profile": "Reliability",
    "leaderboard": "Leaderboard",
    "failures": "What broke",
    "notes": "Annotations",
    "cells": "Cases",
    "difficulty": "Difficulty",
    "histogram": "Spread",
    "cost": "Cost",
    "timeline": "Timeline",
    "trials": "Trials",
    "about": "About",
}
"""Template variable of a section → its link in the navigation bar."""

_JUDGED = tuple(status for status in STATUSES if TrialStatus(status).judged)

Rows = Mapping[str, int]
"""Trial name → its row in the list of trials, for the trials that the page lists."""


def report_context(
    facts: ReportFacts, *, rows: Rows, listed: int, contents: Sequence[str]
) -> dict[str, Any]:
    """Return the variables of `sections.html`; None for a section that is left out."""
    return {
        "facts": facts,
        "totals": facts.totals,
        "agents": facts.names,
        "row_of": rows.get,
        "label_of": _trial_labels(facts),
        "since": facts.since,
        "research": facts.research or None,
        "profile": facts.profile,
        "leaderboard": facts.board,
        "failures": facts.failures,
        "notes": facts.notes or None,
        "cells": _cells(facts),
        "difficulty": _difficulty(facts),
        "histogram": _histogram(facts),
        "cost": _cost(facts),
        "timeline": _timeline(facts),
        "trials": _trials_note(facts, listed),
        "about": contents,
    }


def section_links(context: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the id and title of each section that the page has."""
    ids = {"histogram": "seeds"}
    return [
        (ids.get(name, name), title)
        for name, title in SECTION_TITLES.items()
        if context[name] is not None
    ]


# -- pictures ------------------------------------------------------------------------------------


class IntervalMarks(NamedTuple):
    """Where the interval and the point of a rate are drawn, on a scale from 0 to 100."""

    point: str
    low: str | None
    width: str | None


def bar_width(share: float | None) -> str | None:
    """Return the width of a bar in percent; shares outside 0..1 are drawn at the ends."""
    if share is None:
        return None
    return f"{max(0.0, min(1.0, share)) * 100:.1f}".rstrip("0").rstrip(".")


def interval_marks(
    value: float | None, low: float | None, high: float | None
) -> IntervalMarks | None:
    """Return the marks of a rate; None where the rate is undefined."""
    if value is None:
        return None
    # The point is 2 wide and centred on the value, but never outside the scale.
    point = f"{min(98.0, max(0.0, value * 100 - 1)):.1f}"
    if low is None or high is None:
        return IntervalMarks(point, None, None)
    # At least half a percent wide, or a narrow interval would not be visible.
    return IntervalMarks(point, f"{low * 100:.1f}", f"{max(0.5, (high - low) * 100):.1f}")


# -- the sections, in the order of the page ------------------------------------------------------


def agent_notes(gate: Gate) -> str:
    """Return what the table of an agent's changed cases leaves out."""
    # The advice first: pages cut what follows it.
    notes = [] if gate.advice is None else [gate.advice.text]
    if (more := len(moved_cases(gate)) - MAX_CHANGED_CASES) > 0:
        notes.append(f"{plural(more, 'case')} moved less.")
    if gate.flaky:
        shown = and_more(gate.flaky, MAX_NOTED_CASES, str)
        notes.append(f"Flaky already in the reference run: {shown}.")
    if gate.left_out:
        # A list of all could be as long as the suite.
        first = list(gate.left_out.items())[:MAX_NOTED_CASES]
        reasons = "; ".join(f"{case}: {reason}" for case, reason in first)
        notes.append(f"Not compared: {plural(len(gate.left_out), 'case')} ({reasons}).")
    return " ".join(notes)


def worst_gates(arms: Iterable[ArmGate]) -> list[ArmGate]:
    """Return the agents of a gate, those that need attention first."""
    order = ("REGRESSION", "NOT COMPARABLE", "INCONCLUSIVE", "NO REGRESSION")
    return sorted(arms, key=lambda arm: order.index(arm.gate.verdict))


def _trial_labels(facts: ReportFacts) -> Callable[[str], str]:
    """Return the function from the name of a trial to the words for it."""
    # Cases and agents may both contain slashes: only the cells say where one ends.
    cells = {f"{cell.case}/{cell.agent}": (cell.case, cell.agent) for cell in facts.cells}
    cells |= {f"{c.case}[{c.params}]/{c.agent}": (c.case, c.cell.arm) for c in facts.cells}

    def label(trial: str) -> str:
        cell, seed, index = trial.rsplit("/", 2)
        # A cell outside the plan, or one whose name was redacted, has no entry.
        case, agent = cells.get(cell) or cell.rsplit("/", 1)
        words = f"{case} × {agent}, trial {int(index) + 1}"
        return words if seed == "0" else f"{words}, seed {seed}"

    return label


def _cells(facts: ReportFacts) -> dict[str, Any]:
    cases = facts.worst_cases()
    cells = {(cell.case, cell.cell.arm): cell for cell in facts.cells}
    rows = [
        {
            "case": case,
            "cells": [
                _heatmap_cell(cells.get((case, agent)), column)
                for column, agent in enumerate(facts.names)
            ],
        }
        for case in cases[:MAX_HEATMAP_ROWS]
    ]
    more = len(cases) - len(rows)
    note = (
        "Passed of judged trials and mean score, the worst cases first. Select a case or an agent"
        " to see its trials."
    )
    if len(cases) > HEATMAP_CASES:
        note += f" The charts show the worst {HEATMAP_CASES} of {len(cases)}."
    return {"note": note, "rows": rows, "more": plural(more, "case") if more > 0 else None}


def _heatmap_cell(cell: CellSummary | None, column: int) -> dict[str, Any]:
    if cell is None:
        return {"text": DASH, "shade": "r-none", "column": None, "score": None, "hard_fail": False}
    if not cell.judged or cell.pass_rate is None:
        text, verdict = "not judged", {"score": None, "hard_fail": False}
        return {"text": text, "shade": "r-none", "column": column, **verdict}
    # Level 10 is reserved for cells that always passed: 99 of 100 is not the same as all.
    level = 10 if cell.pass_rate == 1 else min(9, int(cell.pass_rate * 10))
    return {
        "text": f"{cell.passed}/{cell.judged}",
        "shade": f"r{level}",
        "column": column,
        "score": None if cell.score_mean is None else score(cell.score_mean),
        "hard_fail": cell.hard_fail,
    }


def _difficulty(facts: ReportFacts) -> list[dict[str, Any]] | None:
    """Return the mean score by difficulty with its interval; None where no case states one."""
    levels = facts.levels()
    if not levels:
        return None
    by_level = {(each.name, each.arm): each for each in facts.by_level}

    def mean(found: GroupFigures | None) -> dict[str, Any]:
        if found is None or found.score.value is None:
            return {"marks": None, "score": DASH, "cases": None}
        interval = found.score
        bounds = "" if interval.low is None else f" [{score(interval.low)}, {score(interval.high)}]"
        return {
            "marks": interval_marks(interval.value, interval.low, interval.high),
            "score": f"{score(interval.value)}{bounds}",
            "cases": plural(found.cases, "case"),
        }

    return [
        {"level": level, "means": [mean(by_level.get((level, agent))) for agent in facts.names]}
        for level in levels
    ]


def _histogram(facts: ReportFacts) -> list[dict[str, Any]]:
    counts: Counter[tuple[int, str]] = Counter()
    for row in facts.rows:
        if row.score is not None and row.status in _JUDGED:
            # The tolerance keeps 0.3 (stored as 0.29999…) in the bin that starts at 0.3.
            counts[min(BINS - 1, int(row.score * BINS + 1e-9)), row.arm] += 1
    # Bars of all agents share one scale.
    most = max(counts.values(), default=1)
    return [
        {
            "bin": f"{at / BINS:.1f}–{(at + 1) / BINS:.1f}",
            "counts": [
                {"width": bar_width(counts[at, agent] / most), "trials": counts[at, agent]}
                for agent in facts.names
            ],
        }
        for at in range(BINS)
        if any(counts[at, agent] for agent in facts.names)
    ]


def _cost(facts: ReportFacts) -> str | None:
    """Return how to read the costs; None for a run without model calls."""
    totals = facts.totals
    if totals.cost_usd is None and totals.judge_cost_usd is None and not totals.llm_calls:
        return None
    note = "Cost of the agents' model calls."
    best = [agent for agent, better in facts.frontier.items() if better is None]
    if len(facts.frontier) > 1 and len(best) == 1:
        note += f" {best[0]} is at once the cheapest and the best, by point estimates."
    elif len(best) > 1:
        note += (
            " The dashed line is the Pareto frontier, by point estimates: no agent on it is at once"
            " cheaper and better than another."
        )
    if totals.cost_usd is None:
        note = f"Cost unknown: {plural(totals.llm_calls, 'model call')} without a price."
    if judges := money(totals.judge_cost_usd):
        note += f" Judges cost another {judges}."
    return note


def efficiency(facts: ReportFacts, agent: str) -> str:
    """Return whether an agent is on the frontier of cost and pass rate, or which one beats it."""
    if agent not in facts.frontier:
        return DASH
    better = facts.frontier[agent]
    return "on it" if better is None else f"below: {better} is no dearer and no worse"


def per(cost: float | None, number: int) -> float | None:
    """Return the cost divided by a count; None where it is not defined."""
    return None if cost is None or not number else cost / number


def _timeline(facts: ReportFacts) -> dict[str, Any]:
    by_agent: dict[str, list[TrialRow]] = defaultdict(list)
    for row in facts.rows:
        by_agent[row.arm].append(row)
    rows: list[dict[str, Any]] = []
    for agent in facts.names:
        own = by_agent[agent]
        # Not the latency: the timeline shows how long a trial occupied its lane.
        durations = [row.duration_ms for row in own]
        started = min((row.start_ms for row in own), default=None)
        ended = max((row.start_ms + row.duration_ms for row in own), default=None)
        times = (started, ended, percentile(durations, 50), percentile(durations, 95))
        rows.append(
            {"agent": agent, "figures": (len(own), *(duration_ms(time) or DASH for time in times))}
        )
    lanes = 1 + max((row.lane for row in facts.rows), default=0)
    note = f"Up to {plural(lanes, 'trial')} at once. Durations include judging."
    return {"note": note, "rows": rows}


def _trials_note(facts: ReportFacts, listed: int) -> str:
    counts = Counter(row.status for row in facts.rows)
    statuses = ", ".join(
        f"{counts[status]} {STATUS_WORDS[TrialStatus(status)]}"
        for status in STATUSES
        if counts[status]
    )
    note = f"{plural(len(facts.rows), 'trial')}: {statuses}."
    if listed < len(facts.rows):
        note += f" This page lists {listed:,}, failing ones first; results.parquet has all."
    return note


FUNCTIONS: dict[str, Any] = {
    **template_globals(),
    **{
        f.__name__: f
        for f in (agent_notes, bar_width, efficiency, interval_marks, per, worst_gates)
    },
    "MAX_CHANGED_CASES": MAX_CHANGED_CASES,
    "MAX_FAILURES": MAX_FAILURES,
    "VERDICTS": {"PASS": ("✓", "good"), "FAIL": ("✕", "bad"), "NOT JUDGED": ("?", "odd")},
    "Path": Path,
    "run_name": run_name,
    "when": when,
}
"""What templates may call and name."""

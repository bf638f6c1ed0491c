"""The variables of the report's templates: every figure as the text that the page prints.

Markup lives in `templates/`, which escape every value; this module decides what a section says.
A section without anything to show has no variables, so the template leaves it out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from proctor.formatting import DASH, at_least, duration_ms, money, percent, plural, points
from proctor.report.charts import HEATMAP_CASES, STATUS_WORDS, STATUSES
from proctor.report.facts import ReportFacts, TrialRow, when
from proctor.report.figures import (
    cost_line,
    ends,
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
from proctor.runs.folder import run_name
from proctor.runs.summary import CellSummary
from proctor.runs.trial import TrialStatus
from proctor.stats.describe import percentile

MAX_FAILURES = 20
"""Ranked failures in the page. The rest are the least harmful ones and are in results.json."""

MAX_CHANGED_CASES = 12
"""Cases listed as changed since the reference run, the largest changes first."""

MAX_HEATMAP_ROWS = 400
"""Rows of the heatmap's table, the worst cases first: more would make the page slow to open."""

BINS = 10
"""Bins of the score histogram: tenths."""

GATE_TONES = {
    "REGRESSION": "bad",
    "NO REGRESSION": "good",
    "INCONCLUSIVE": "odd",
    "NOT COMPARABLE": "odd",
}
"""The colour class of a gate's verdict."""

SECTION_TITLES = {
    "since": "Changes",
    "research": "Research",
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

_VERDICTS = {"PASS": ("✓", "good"), "FAIL": ("✕", "bad"), "NOT JUDGED": ("?", "odd")}
_JUDGED = tuple(status for status in STATUSES if TrialStatus(status).judged)

Rows = Mapping[str, int]
"""Trial name → its row in the list of trials, for the trials that the page lists."""


def report_context(
    facts: ReportFacts, *, rows: Rows, listed: int, contents: Sequence[str]
) -> dict[str, Any]:
    """Return the variables of `sections.html`; None for a section that is left out."""
    return {
        "agents": facts.names,
        "top": _top(facts),
        "since": None if facts.since is None else _since(facts.since),
        "research": None
        if not facts.research
        else {"kind": facts.research[0], "lines": [text.strip() for text in facts.research[1:]]},
        "leaderboard": _leaderboard(facts),
        "failures": _failures(facts, rows),
        "notes": _notes(facts, rows),
        "cells": _cells(facts),
        "difficulty": _difficulty(facts),
        "histogram": _histogram(facts),
        "cost": _cost(facts),
        "timeline": _timeline(facts),
        "trials": {"note": _trials_note(facts, listed)},
        "about": {"contents": contents, "provenance": _provenance(facts)},
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


def _top(facts: ReportFacts) -> dict[str, Any]:
    totals = facts.totals
    subtitle = [
        when(facts),
        f"run {facts.run_id}",
        f"commit {facts.commit[:10]}" if facts.commit else "",
        plural(len(facts.arms), "agent"),
        plural(len({cell.case for cell in facts.cells}), "case"),
        plural(totals.trials, "trial"),
    ]
    tiles = (
        ("Trials passed", percent(totals.pass_rate), f"{totals.passed} of {totals.judged} judged"),
        ("Cells passed", f"{facts.passed_cells}/{len(facts.cells)}", "case × agent"),
        (
            "Not judged",
            str(totals.unjudged + totals.cancelled),
            not_judged(totals) or f"of {plural(totals.trials, 'trial')}",
        ),
        (
            "Cost",
            at_least(totals.cost_usd, totals.unpriced_calls) or DASH,
            cost_line(totals).removeprefix("cost").lstrip(": "),
        ),
        ("Time", duration_ms(facts.duration_ms) or DASH, "from first start to last end"),
    )
    sign, tone = _VERDICTS[facts.verdict]
    return {
        "name": facts.name,
        "tags": facts.tags,
        "subtitle": " · ".join(part for part in subtitle if part),
        "verdict": facts.verdict,
        "sign": sign,
        "tone": tone,
        "headline": facts.headline,
        "stopped": facts.stopped,
        "leader": leading(facts.board),
        "errors": error_lines(facts.errors),
        "tiles": [{"name": name, "value": value, "detail": text} for name, value, text in tiles],
    }


def _since(gate: GateResult) -> dict[str, Any]:
    commit = f", commit {gate.baseline.commit[:10]}" if gate.baseline.commit else ""
    missing = (
        (gate.only_candidate, "only in this run"),
        (gate.only_baseline, "only in the reference run"),
    )
    return {
        "verdict": gate.verdict,
        "tone": GATE_TONES[gate.verdict],
        "reason": gate.reason,
        "note": f"Against {run_name(Path(gate.baseline.path))}{commit}; {gate.error_rate}.",
        "agents": [_changed_agent(arm) for arm in gate.arms],
        "notes": [
            *(f"{', '.join(names)}: {where}" for names, where in missing if names),
            *gate.notes,
        ],
    }


def _changed_agent(arm: ArmGate) -> dict[str, Any]:
    gate = arm.gate
    changed = moved_cases(gate)
    notes: list[str] = []
    if len(changed) > MAX_CHANGED_CASES:
        notes.append(f"{plural(len(changed) - MAX_CHANGED_CASES, 'case')} moved less.")
    if gate.flaky:
        notes.append(f"Flaky already in the reference run: {', '.join(gate.flaky)}.")
    if gate.left_out:
        # A list of all could be as long as the suite.
        first = list(gate.left_out.items())[:MAX_CHANGED_CASES]
        reasons = "; ".join(f"{case}: {reason}" for case, reason in first)
        notes.append(f"Not compared: {plural(len(gate.left_out), 'case')} ({reasons}).")
    if gate.advice is not None:
        notes.append(gate.advice.text)
    return {
        "name": arm.name,
        "verdict": gate.verdict,
        "tone": GATE_TONES[gate.verdict],
        "summary": gate_line(gate),
        "cases": [
            {
                "name": move.case,
                "before": f"{move.baseline.passes}/{move.baseline.trials}",
                "now": f"{move.candidate.passes}/{move.candidate.trials}",
                "change": f"{points(-move.drop)} points",
            }
            for move in changed[:MAX_CHANGED_CASES]
        ],
        "notes": " ".join(notes),
    }


def _leaderboard(facts: ReportFacts) -> dict[str, Any]:
    figures = ("Score", "Cells", "Trials", "Not judged", "p50", "p95", "Cost")
    rows: list[dict[str, Any]] = []
    for row in facts.board.rows:
        rate, cells = row.pass_rate, facts.arms[row.name]
        rows.append(
            {
                "agent": row.name,
                "rank": places(row.best, row.worst),
                "rate": percent(rate.value),
                "interval": ends("pass_rate", rate),
                "drawn": interval_marks(rate.value, rate.low, rate.high),
                "figures": (
                    score(row.score.value),
                    f"{cells.passed}/{cells.cells}",
                    f"{row.passes}/{row.trials}",
                    row.infra + row.cancelled,
                    duration_ms(row.latency_p50_ms) or DASH,
                    duration_ms(row.latency_p95_ms) or DASH,
                    money(row.cost_usd, row.unpriced_calls) or DASH,
                ),
            }
        )
    return {
        "note": ranked_by(facts.board),
        "heads": ("Agent", "Rank", "Pass rate", "95 % interval", "", *figures),
        "numbers": ("Rank", "Pass rate", "95 % interval", *figures),
        "rows": rows,
        "notes": facts.board.notes,
    }


def _failures(facts: ReportFacts, rows: Rows) -> dict[str, Any]:
    listed: list[dict[str, Any]] = []
    # Samples link to their trial, if the page lists it.
    for failure in facts.failures[:MAX_FAILURES]:
        samples: list[dict[str, Any]] = []
        for sample in failure.samples:
            # From the right: the name of a case may contain slashes.
            case, agent, seed, index = sample.trial.rsplit("/", 3)
            label = f"{case} × {agent}, trial {int(index) + 1}"
            if seed != "0":
                label += f", seed {seed}"
            samples.append({"label": label, "row": rows.get(sample.trial), "reason": sample.reason})
        of = plural(failure.of, "judged trial")
        listed.append(
            {
                "check": failure.check_id,
                "effect": "blocks" if failure.blocking else "warns",
                "tone": "bad" if failure.blocking else "soft",
                "layer": failure.layer,
                "width": bar_width(failure.rate),
                "share": f"{failure.count} of {of} ({percent(failure.rate)})",
                "samples": samples,
            }
        )
    note = (
        "Failed checks over all cells, the most harmful first: by how often they fail and their"
        " weight. A blocking check fails its trial, a warning does not."
    )
    return {
        "note": note if listed else None,
        "listed": listed,
        "more": len(facts.failures) - len(listed),
    }


def _notes(facts: ReportFacts, rows: Rows) -> list[dict[str, Any]] | None:
    return [
        {
            "text": note.text,
            "author": f"{note.who}, {note.at[:16].replace('T', ' ')} UTC",
            "trial": note.trial,
            "row": None if note.trial is None else rows.get(note.trial),
        }
        for note in facts.notes
    ] or None


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
        "Passed of judged trials, the worst cases first. Select a case or an agent to see its"
        " trials."
    )
    if len(cases) > HEATMAP_CASES:
        note += f" The chart shows the worst {HEATMAP_CASES} of {len(cases)}."
    return {"note": note, "rows": rows, "more": plural(more, "case") if more > 0 else None}


def _heatmap_cell(cell: CellSummary | None, column: int) -> dict[str, Any]:
    if cell is None:
        return {"text": DASH, "shade": "r-none", "column": None, "hard_fail": False}
    if not cell.judged or cell.pass_rate is None:
        return {"text": "not judged", "shade": "r-none", "column": column, "hard_fail": False}
    # Level 10 is reserved for cells that always passed: 99 of 100 is not the same as all.
    level = 10 if cell.pass_rate == 1 else min(9, int(cell.pass_rate * 10))
    return {
        "text": f"{cell.passed}/{cell.judged}",
        "shade": f"r{level}",
        "column": column,
        "hard_fail": cell.hard_fail,
    }


def _difficulty(facts: ReportFacts) -> list[dict[str, Any]] | None:
    """Return the mean score by difficulty; None where no case states one."""
    levels = facts.levels()
    if not levels:
        return None
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for cell in facts.cells:
        about = facts.cases.get(cell.case)
        if about is not None and about.difficulty and cell.score_mean is not None:
            scores[about.difficulty, cell.cell.arm].append(cell.score_mean)

    def mean(values: Sequence[float]) -> dict[str, Any]:
        if not values:
            return {"width": None, "score": DASH, "cases": None}
        found = sum(values) / len(values)
        return {
            "width": bar_width(found),
            "score": score(found),
            "cases": plural(len(values), "case"),
        }

    return [
        {"level": level, "means": [mean(scores[level, agent]) for agent in facts.names]}
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


def _cost(facts: ReportFacts) -> dict[str, Any] | None:
    """Return the cost of each agent; None for a run without model calls."""
    totals = facts.totals
    if totals.cost_usd is None and totals.judge_cost_usd is None and not totals.llm_calls:
        return None
    rows: list[dict[str, Any]] = []
    for row in facts.board.rows:
        cost, unpriced, trials = row.cost_usd, row.unpriced_calls, row.trials + row.infra
        tokens = facts.arms[row.name].tokens
        per_trial = None if cost is None or not trials else cost / trials
        # The price of a success: a cheap agent that rarely passes is not cheap.
        per_pass = None if cost is None or not row.passes else cost / row.passes
        rows.append(
            {
                "agent": row.name,
                "figures": (
                    money(cost, unpriced) or DASH,
                    at_least(per_trial, unpriced) or DASH,
                    at_least(per_pass, unpriced) or DASH,
                    DASH if tokens is None else f"{tokens:,}",
                ),
            }
        )
    note = "Cost of the agents' model calls."
    if totals.cost_usd is None:
        note = f"Cost unknown: {plural(totals.llm_calls, 'model call')} without a price."
    if judges := money(totals.judge_cost_usd):
        note += f" Judges cost another {judges}."
    return {"note": note, "rows": rows}


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


def _provenance(facts: ReportFacts) -> list[tuple[str, str]]:
    known = facts.provenance
    dirty = " (with uncommitted changes)" if facts.dirty else ""
    values = (
        ("Run", facts.run_id),
        ("Folder", facts.path),
        ("Started", when(facts)),
        ("Commit", f"{facts.commit}{dirty}" if facts.commit else None),
        ("Proctor", known.get("proctor")),
        ("Python", known.get("python")),
        ("Platform", known.get("platform")),
        ("Host", known.get("host")),
        ("User", known.get("user")),
    )
    return [(name, str(value)) for name, value in values if value]

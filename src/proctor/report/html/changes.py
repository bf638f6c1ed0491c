"""What changed since a baseline: a verdict for each agent, and the cases that moved."""

from __future__ import annotations

from pathlib import Path

from proctor.report.html.markup import Child, Html, join, table, tag
from proctor.report.html.sections import GATE_TONES, section
from proctor.report.run_words import gate_line, moved_cases
from proctor.results.gating import ArmGate, GateResult
from proctor.runs.folder import run_name
from proctor.stats.gate import Move
from proctor.stats.kinds import CaseCounts
from proctor.words import plural, points

MOST_MOVES = 12
"""Cases told that moved, the largest moves first."""


def since(found: GateResult) -> Html:
    """The section: the run against its baseline."""
    parts: list[Child] = [_change(arm) for arm in found.arms]
    for names, words in (
        (found.only_candidate, "only in this run"),
        (found.only_baseline, "only in the baseline"),
    ):
        if names:
            parts.append(tag("p", f"{', '.join(names)}: {words}.", class_="note"))
    parts += [tag("p", note, ".", class_="note") for note in found.notes]
    chip = tag("span", found.verdict, class_=f"chip {GATE_TONES[found.verdict]}")
    lead = tag("p", chip, " ", found.reason, ".")
    commit = f", commit {found.baseline.commit[:10]}" if found.baseline.commit else ""
    note = f"Against {run_name(Path(found.baseline.path))}{commit}; {found.error_rate}."
    return section("since", "Since the baseline", lead, *parts, note=note)


def _change(arm: ArmGate) -> Html:
    gate = arm.gate
    chip = tag("span", gate.verdict, class_=f"chip {GATE_TONES[gate.verdict]}")
    moved = moved_cases(gate)
    rows = [_move(move) for move in moved[:MOST_MOVES]]
    shown = (
        table(
            f"Cases of {arm.name} that moved",
            ("Case", "Before", "Now", "Change"),
            rows,
            numeric=(1, 2, 3),
        )
        if rows
        else tag("p", "No case changed its pass rate.", class_="note")
    )
    more: list[Child] = []
    if len(moved) > MOST_MOVES:
        more.append(f"{plural(len(moved) - MOST_MOVES, 'case')} moved less. ")
    if gate.flaky:
        more.append(f"Flaky already in the baseline: {', '.join(gate.flaky)}. ")
    if gate.left_out:
        told = "; ".join(f"{case}: {why}" for case, why in list(gate.left_out.items())[:MOST_MOVES])
        more.append(f"Not compared: {plural(len(gate.left_out), 'case')} ({told}). ")
    if gate.advice is not None:
        more.append(gate.advice.text)
    return tag(
        "article",
        tag("h3", arm.name, " ", chip),
        tag("p", gate_line(gate), "."),
        shown,
        tag("p", join(more), class_="note") if more else None,
        class_="change",
    )


def _move(move: Move) -> tuple[str, ...]:
    return (
        move.case,
        _counts(move.baseline),
        _counts(move.candidate),
        f"{points(-move.drop)} points",
    )


def _counts(counts: CaseCounts) -> str:
    return f"{counts.passes}/{counts.trials}"

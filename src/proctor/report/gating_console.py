"""A gate for a terminal: the verdict, how sure it is, what moved, and what would settle it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from proctor.report.figures import named
from proctor.report.text import line
from proctor.results.gate import ArmGate, GateResult, RunRef
from proctor.words import in_points, level_of, p_text, percent, plural, points, table

MOST_MOVES = 10
"""Cases told to people: those that fell most; the JSON form has all of them."""

_COLOURS = {
    "REGRESSION": "red",
    "NO REGRESSION": "green",
    "INCONCLUSIVE": "yellow",
    "NOT COMPARABLE": "magenta",
}


def render(facts: GateResult) -> str:
    """The whole judgement."""
    return "\n".join(_lines(facts))


def _lines(facts: GateResult) -> Iterator[str]:
    verdict = click.style(facts.verdict, fg=_COLOURS[facts.verdict], bold=True)
    yield f"{verdict}: {line(facts.reason)}"
    yield f"  candidate {_run(facts.candidate)}"
    yield f"  baseline  {_run(facts.baseline)}"
    yield f"  error rate: {facts.error_rate}; margin {in_points(facts.rule.margin)}"
    for arm in facts.arms:
        yield ""
        yield from _arm(arm)
    if len(facts.history) > 1:
        yield ""
        yield "Looks"
        for look in facts.history:
            seen = plural(look.trials, "trial")
            yield f"  {look.number}. {seen}: {look.verdict}: {line(look.reason)}"
    yield from _rest(facts)


def _run(ref: RunRef) -> str:
    commit = f", commit {ref.commit[:10]}" if ref.commit else ""
    return f"{line(ref.path, 300)}{commit}"


def _arm(arm: ArmGate) -> Iterator[str]:
    gate = arm.gate
    who = arm.name if arm.name == arm.baseline_name else f"{arm.name} against {arm.baseline_name}"
    yield click.style(f"{line(who, 160)}: {gate.verdict}", bold=True)
    yield (
        f"  drop {in_points(gate.drop)}, at most {in_points(gate.drop_at_most)}"
        f" (one-sided {level_of(1 - gate.rule.alpha)}), mid-p {p_text(gate.p_value)}"
    )
    yield (
        f"  {gate.estimand}: {plural(gate.cases, 'case')}, {gate.n} judged trials of both runs;"
        f" {gate.method}"
    )
    found = gate.detectable
    smallest = f"{in_points(found.effect)} with power {found.power:g}"
    yield f"  smallest drop these runs would find: {smallest if found.effect else found.reason}"
    if any(gate.errors):
        pairs = zip(("baseline", "candidate"), gate.errors, gate.errored_of, strict=True)
        told = ", ".join(f"{bad} of {of} in the {name}" for name, bad, of in pairs)
        yield f"  errored, not counted: {told}"
    moved = [move for move in gate.moves if move.drop]
    if moved:
        yield from table(
            ("case", "baseline", "candidate", "change"),
            [
                (
                    line(move.case, 60),
                    f"{percent(move.baseline.rate)} of {move.baseline.trials}",
                    f"{percent(move.candidate.rate)} of {move.candidate.trials}",
                    f"{points(-move.drop)} points",
                )
                for move in moved[:MOST_MOVES]
            ],
        )
        if len(moved) > MOST_MOVES:
            yield f"  and {len(moved) - MOST_MOVES} more that changed (--json has all)"
    if gate.advice is not None:
        yield f"  advice: {line(gate.advice.text)}"
    if gate.flaky:
        yield f"  flaky already in the baseline: {', '.join(line(c, 60) for c in gate.flaky)}"
    if gate.left_out:
        yield f"  left out: {plural(len(gate.left_out), 'case')}"
        yield from (f"  {text}" for text in named(gate.left_out))


def _rest(facts: GateResult) -> Iterator[str]:
    if facts.flaky:
        yield ""
        yield "Flaky in the candidate"
        for each in facts.flaky[:MOST_MOVES]:
            rates = [
                f"{part.source} {percent(part.rate)} of {part.n}"
                for part in (each.by_agent, each.by_judge, each.by_infrastructure)
                if part.flaky
            ]
            yield f"  {line(each.case, 60)} ({line(each.agent, 60)}): {', '.join(rates)}"
    for names, where in ((facts.only_baseline, "baseline"), (facts.only_candidate, "candidate")):
        if names:
            told = ", ".join(line(name, 80) for name in names)
            yield f"only in the {where}, not judged: {told}"
    for note in facts.notes:
        yield f"note: {line(note)}"

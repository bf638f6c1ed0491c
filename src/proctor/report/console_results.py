"""Results in the terminal: groups of trials, leaderboard, comparison, gate, sample size, SQL rows.

Guarantees: a rate is printed with its denominator, and trials that no rate counts get their own
column as soon as there are any. Names come from agents and files: a terminal does not interpret
them, and a spreadsheet does not evaluate them. Lists are cut for people; JSON has everything.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import click

from proctor.formatting import (
    DASH,
    and_more,
    dollars,
    duration_ms,
    in_points,
    level_of,
    money,
    p_text,
    percent,
    plural,
    points,
)
from proctor.report import figures
from proctor.results.compare import NOTABLE_FDR
from proctor.sanitize import json_value, line
from proctor.tables import table

if TYPE_CHECKING:
    from proctor.causes.ab import ABResult
    from proctor.causes.fork import ForkResult
    from proctor.causes.profile import ReliabilityProfile
    from proctor.causes.why import WhyResult
    from proctor.results.aggregate import GroupRow
    from proctor.results.compare import ArmComparison, Comparison
    from proctor.results.gate import ArmGate, GateResult
    from proctor.results.leaderboard import Leaderboard
    from proctor.results.power import Planning, PlanRow
    from proctor.results.sql import SqlResult

MAX_CELL = 60
"""Characters of a table cell."""

MAX_CASES = 20
"""Cases of a comparison, those that changed most."""

MAX_GATE_CASES = 10
"""Cases of a gate, those that dropped most."""

MAX_PAIRS = 10
"""Paired tests of a leaderboard: those of five agents."""

NOT_COUNTED = ("infra_error", "not_judged", "cancelled", "after_stop")
"""Statuses of trials that no rate counts."""

# -- groups of trials and rows of queries --------------------------------------------------------


def render_groups(names: Sequence[str], rows: Sequence[GroupRow], notes: Sequence[str] = ()) -> str:
    """Return groups of trials as a table; `notes` are what it leaves out."""
    # A column of zeros is noise; one trial that no rate counts must be visible.
    not_counted = [name for name in NOT_COUNTED if any(getattr(row, name) for row in rows)]
    costs = any(row.cost_usd is not None or row.unpriced_calls for row in rows)
    timed = any(row.spread.latency_p50_ms is not None for row in rows)
    head = [*names, "cases", "trials", "passed", "pass rate", "95 %", "score ± SD"]
    head += [name.replace("_", " ") for name in not_counted]
    head += ["p50", "p90", "p99"] if timed else []
    head += ["cost", "per pass"] if costs else []
    body = [
        [
            *(_cell(row.key[name]) for name in names),
            str(row.cases),
            str(row.trials),
            f"{row.passed}/{row.judged}",
            percent(row.pass_rate.value),
            figures.ends("pass_rate", row.pass_rate),
            figures.with_deviation(row.score.value, row.spread.score_std),
            *(str(getattr(row, name)) for name in not_counted),
            *(
                duration_ms(getattr(row.spread, f"latency_{p}_ms")) or DASH
                for p in (("p50", "p90", "p99") if timed else ())
            ),
            *([money(row.cost_usd, row.unpriced_calls) or DASH] if costs else []),
            *([figures.per_pass(row)] if costs else []),
        ]
        for row in rows
    ]
    # A dash in the table is explained once below it.
    reasons = sorted({row.pass_rate.reason for row in rows if row.pass_rate.reason})
    several = [row.pass_rate for row in rows if row.pass_rate.low is not None]
    populations = any(row.pass_rate.estimand == "population" for row in rows)
    estimand = "population" if populations else "suite"
    rates = ((row.pass_rate.value, row.passed, row.judged) for row in rows)
    total = sum(row.trials for row in rows)
    return "\n".join(
        [
            *table(head, body, indent=""),
            *(f"  {DASH} {line(reason)}" for reason in reasons),
            *(f"  {note}" for note in figures.sequence_note(row.pass_rate for row in rows)),
            *(f"  {note}" for note in figures.estimand_note(several)),
            *(f"  {note}" for note in figures.weight_note(rates, estimand)),
            *(f"  {note}" for note in figures.per_pass_note(rows)),
            *(f"  {line(note)}" for note in notes),
            f"{plural(total, 'trial')} in {plural(len(rows), 'group')}",
        ]
    )


def groups_json(
    rows: Sequence[GroupRow], problems: Sequence[str], notes: Sequence[str] = ()
) -> str:
    """Return groups as one JSON document."""
    found = {"groups": list(rows), "problems": list(problems), "notes": list(notes)}
    return figures.document("results", found)


def rows_json(rows: Sequence[dict[str, Any]], problems: Sequence[str]) -> str:
    """Return trials as one JSON document."""
    return figures.document("trials", {"trials": list(rows), "problems": list(problems)})


def answer_json(answer: SqlResult) -> str:
    """Return the result of a query as one JSON document."""
    rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    return figures.document("sql", {"columns": answer.columns, "types": answer.types, "rows": rows})


def as_csv(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return rows as CSV without cells that a spreadsheet would evaluate."""
    # The same rule as for exported files: a cell that starts with `=` is escaped.
    from proctor.results.exchange.export import cell

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([cell(name) for name in names])
    writer.writerows([[cell(value) for value in row] for row in rows])
    return out.getvalue().rstrip("\n")


def render_rows(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return rows of any query as a table."""
    body = [[_cell(value) for value in row] for row in rows]
    return "\n".join(table([line(name, MAX_CELL) for name in names], body, indent="")) or "no rows"


def _cell(value: Any) -> str:
    if value is None:
        return DASH
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value)) or DASH  # type: ignore[reportUnknownArgumentType]
    return line(value, MAX_CELL)


# -- leaderboard ---------------------------------------------------------------------------------


def render_leaderboard(board: Leaderboard) -> str:
    """Return a leaderboard: ranks, intervals, cost, latency, and the tests between agents."""
    return "\n".join(_leaderboard(board))


def _leaderboard(board: Leaderboard) -> Iterator[str]:
    metric = figures.METRIC_WORDS[board.metric]
    passed = "passed" if board.metric == "pass_rate" else "pass rate"
    yield click.style(f"Agents by {metric}", bold=True)
    yield from table(
        (
            *("rank", "agent", metric, level_of(board.level), passed, "score ± SD", "cost"),
            *("per pass", "p50", "p90", "p99"),
        ),
        [
            (
                figures.places(row.best, row.worst),
                line(row.name, MAX_CELL),
                figures.figure(board.metric, row.value.value),
                figures.ends(board.metric, row.value),
                # The pass rate has its own column where it is not the metric.
                f"{row.passes}/{row.trials}"
                if board.metric == "pass_rate"
                else percent(row.pass_rate.value),
                figures.with_deviation(row.score.value, row.score_std),
                money(row.cost_usd, row.unpriced_calls) or DASH,
                figures.per_pass(row),
                duration_ms(row.latency_p50_ms) or DASH,
                duration_ms(row.latency_p90_ms) or DASH,
                duration_ms(row.latency_p99_ms) or DASH,
            )
            for row in board.rows
        ],
    )
    yield ""
    if board.rows:
        first = board.rows[0].value
        yield f"  {line(board.about, 300)}"
        if any(row.value.low is not None for row in board.rows):
            yield f"  intervals: {first.estimand}, {first.method}"
    if board.reason:
        yield f"  no ranks: {line(board.reason)}"
    elif board.rows:
        cases = plural(board.shared_cases, "case")
        if board.shared_instances != board.shared_cases:
            cases += f" ({plural(board.shared_instances, 'instance')})"
        yield f"  ranks: {board.method}, alpha {board.alpha:g}, on {cases} that all agents share"
    tested = [pair for pair in board.pairs if pair.adjusted is not None]
    for pair in tested[:MAX_PAIRS]:
        significant = (pair.adjusted or 0.0) <= board.alpha
        yield (
            f"  {line(pair.second, MAX_CELL)} − {line(pair.first, MAX_CELL)}:"
            f" {figures.change(board.metric, pair.test.difference)},"
            f" p Holm {p_text(pair.adjusted)},"
            f" {'significant' if significant else 'no significant difference'}"
        )
    if len(tested) > MAX_PAIRS:
        yield f"  and {len(tested) - MAX_PAIRS} more pairs (--json has all)"
    yield from (f"  {note}" for note in figures.sequence_note(row.value for row in board.rows))
    yield from (f"  {note}" for note in figures.board_note(board))
    yield from (f"  {note}" for note in figures.per_pass_note(board.rows))
    if board.left_out:
        yield f"Not ranked on: {_left_out(board.left_out)}"
        yield from figures.named(board.left_out)
    for row in board.rows:
        if row.not_counted:
            counts = "; ".join(row.not_counted)
            yield f"Not counted of {line(row.name, MAX_CELL)}: {line(counts)}"
    for note in board.notes:
        yield f"note: {line(note)}"


# -- comparison ----------------------------------------------------------------------------------


def render_comparison(comparison: Comparison) -> str:
    """Return a comparison: overall first, then the cases that changed, then what is missing."""
    out: list[str] = []
    if len(comparison.pairs) > 1:
        out += [*_all_pairs(comparison), ""]
    for pair in comparison.pairs:
        out += [*_compared_pair(pair, comparison.level), ""]
    for names, run in (
        (comparison.only_first, comparison.first),
        (comparison.only_second, comparison.second),
    ):
        if names:
            out.append(f"only in {line(run)}: {', '.join(line(name, 80) for name in names)}")
    out += [f"note: {line(note)}" for note in comparison.notes]
    return "\n".join(out).rstrip()


def render_ab(result: ABResult) -> str:
    """Return an A/B experiment: the verdict, the figures, how it was decided."""
    colours = {"HELPS": "green", "HURTS": "red"}
    out = [
        click.style(result.verdict, fg=colours.get(result.verdict, "yellow"), bold=True)
        + f": {line(result.reason, 300)}",
        "",
        *_compared_pair(result.comparison, 1 - result.looks[-1].alpha),
        "",
        f"error rate {result.alpha:g} over {plural(result.planned_looks, 'look')}, set beforehand:",
        *table(
            ("trials per case and arm", "difference", "p", "stops below"),
            [
                (
                    str(look.trials),
                    figures.change("pass_rate", look.difference),
                    p_text(look.p),
                    p_text(look.alpha),
                )
                for look in result.looks
            ],
        ),
    ]
    out += [f"change received? {line(str(each), 200)}" for each in result.received]
    out.append(f"stored in {line(result.run, 200)}")
    return "\n".join(out)


def render_profile(found: ReliabilityProfile) -> str:
    """Return a reliability profile: every figure with its n and interval, then the advice."""
    record = cast("dict[str, Any]", json_value(found))
    rows = figures.profile_rows(record)
    title = f"{line(found.agent, 80)} on {line(found.suite, 80)}"
    out = [click.style(title, bold=True)]
    # A condition may have more trials of a case: paraphrases are cases of their own.
    out.append(f"{plural(found.trials, 'trial')} per case and condition")
    for group, each in itertools.groupby(rows, key=lambda row: row.group):
        own = list(each)
        out += ["", click.style(group, bold=True)]
        out += table(
            ("", "value", level_of(found.level), "n", ""),
            [(row.name, row.value, row.ends, row.n, line(row.about, 120)) for row in own],
        )
    out += ["", *(line(each, 200) for each in figures.profile_lines(record))]
    if "baseline" in found.runs:
        place = shlex.quote(line(found.runs["baseline"], 300))
        out.append(f"view it with: proctor report {place} --open")
    return "\n".join(out)


def render_fork(result: ForkResult) -> str:
    """Return a fork: the change, the prefix, how many trials passed, who left the record."""
    change = line(result.change or "no change", 200)
    out = [f"fork of {line(result.trial, 120)} at step {result.step}, {change}"]
    if result.replayed_model_calls is not None:
        out.append(
            f"  prefix: {plural(result.replayed_model_calls, 'model call')} and"
            f" {plural(result.replayed_tool_calls or 0, 'tool call')} answered from the record"
        )
    out.append(f"  passed {result.passed:,} of {plural(result.judged, 'judged trial')}")
    if result.diverged:
        which = f"{result.diverged} of {plural(result.trials, 'trial')}"
        out.append(f"  {which} not judged: {line(result.where, 500)}")
    out += [f"  note: {line(note, 400)}" for note in result.notes]
    if result.stopped:
        out.append(f"  stopped after {plural(result.trials, 'trial')}: {line(result.stopped, 200)}")
    out.append(f"stored in {line(result.run, 200)}")
    return "\n".join(out)


def render_why(result: WhyResult) -> str:
    """Return the tested causes of a trial, the decisive ones first."""
    cost = "" if result.cost_usd is None else f", {dollars(result.cost_usd)}"
    suspects, trials = plural(len(result.causes), "suspect"), plural(result.trials, "trial")
    out = [f"why {line(result.trial, 120)}: {suspects}, {trials}{cost}"]
    colours = {"decisive": "red", "contributing": "yellow"}
    for cause in result.causes:
        title = click.style(cause.outcome.upper(), fg=colours.get(cause.outcome), bold=True)
        place = f"step {cause.step}, {line(cause.agent or 'agent', 64)}"
        out += ["", f"{title}  {place}: {line(cause.what, 200)}"]
        if cause.reason:
            out.append(f"  {line(cause.reason, 400)}")
        if cause.counterfactuals:
            rows = [("as recorded", f"{cause.passed} of {cause.judged}", "", "", "")]
            for one in cause.counterfactuals:
                interval = "–" if one.low is None else f"{one.low:+.2f} to {one.high:+.2f}"
                effect = "–" if one.difference is None else f"{one.difference:+.2f}"
                passed = f"{one.passed} of {one.judged}"
                rows.append((one.name, passed, effect, interval, p_text(one.p)))
            out += table(("step", "passed", "effect", "interval", "p, corrected"), rows)
            out += [f"  {one.name}: {line(one.change, 160)}" for one in cause.counterfactuals]
        best = cause.best
        if cause.outcome == "no effect shown" and best is not None and best.passed > cause.passed:
            more = f"--at {cause.step} --trials {2 * max(cause.judged, best.judged)}"
            out.append(f"  the rates differ, and so few trials do not show it: try {more}")
        if cause.diverged:
            left = plural(cause.diverged, "trial")
            out.append(f"  {left} left the recorded prefix and did not count")
        if cause.run:
            out.append(f"  stored in {line(cause.run, 200)}")
    out += ["", f"error rate {result.alpha:g} over all suspects, changes and looks"]
    if result.stopped:
        out.append(f"stopped: {line(result.stopped, 200)}")
    return "\n".join(out)


def _all_pairs(comparison: Comparison) -> Iterator[str]:
    """Yield one row per pair, with the p-values that are corrected together."""
    yield click.style(f"Pass rates of {plural(len(comparison.pairs), 'pair')}", bold=True)
    yield from table(
        (
            *("first", "second", "rate", "rate"),
            *("difference", level_of(comparison.level), "p", "p Holm"),
        ),
        [
            (
                line(pair.first, MAX_CELL),
                line(pair.second, MAX_CELL),
                percent(pair.overall.first),
                percent(pair.overall.second),
                figures.change("pass_rate", pair.overall.difference),
                figures.ends("pass_rate", pair.overall.interval, signed=True),
                p_text(pair.overall.test.p_value),
                p_text(pair.overall.adjusted),
            )
            for pair in comparison.pairs
        ],
    )


def _compared_pair(pair: ArmComparison, level: float) -> Iterator[str]:
    title = f"{line(pair.second, 120)} compared with {line(pair.first, 120)}"
    yield click.style(title, bold=True)
    size = plural(len(pair.cases), "case")
    if pair.instances != len(pair.cases):
        size += f", {plural(pair.instances, 'instance')}"
    yield (
        f"  {size} in both; judged trials {pair.n[0]:,} and {pair.n[1]:,},"
        f" passed {pair.passes[0]} and {pair.passes[1]}"
    )
    yield f"  {line(pair.about, 300)}"
    yield ""
    yield from table(
        ("", "first", "second", "difference", level_of(level), "p", "p corrected"),
        [
            (
                figures.METRIC_WORDS[each.metric],
                figures.figure(each.metric, each.first),
                figures.figure(each.metric, each.second),
                figures.change(each.metric, each.interval.value),
                figures.ends(each.metric, each.interval, signed=True),
                p_text(each.test.p_value),
                p_text(each.adjusted),
            )
            for each in pair.metrics
        ],
    )
    rates = zip((pair.overall.first, pair.overall.second), pair.passes, pair.n, strict=True)
    yield from (f"  {note}" for note in figures.weight_note(rates, pair.overall.estimand))
    yield from _methods(pair)
    if (labelled := pair.corrected) is not None:
        yield "  pass rates corrected by labels:"
        for name, rate in (("first", labelled.first), ("second", labelled.second)):
            yield f"    {name} {line(figures.corrected_text(rate), 300) if rate else 'no labels'}"
        if labelled.interval is not None and labelled.interval.value is not None:
            change = figures.change("pass_rate", labelled.interval.value)
            bounds = figures.ends("pass_rate", labelled.interval, signed=True)
            yield f"    difference {change}, {level_of(level)} {bounds}"
        else:
            yield f"    no difference: {line(labelled.reason or 'no interval', 200)}"
    # Cases that did not change are only counted.
    changed = [case for case in pair.cases if case.changed]
    if changed:
        yield ""
        of = "" if pair.estimand == "suite" else " (tests of exactly their instances)"
        yield f"Cases, the largest change first{of}"
        # Scores of 0 and 1 repeat the passes.
        scored = any(
            case.score_difference is not None
            and not math.isclose(case.score_difference, case.difference.value or 0, abs_tol=1e-9)
            for case in changed
        )
        yield from table(
            ("case", "first", "second", "difference", "p", "p BH", *["score"] * scored, "flaky"),
            [
                (
                    line(case.case, MAX_CELL) + (" *" if case.notable else ""),
                    f"{percent(case.first.value)} of {case.first.n}",
                    f"{percent(case.second.value)} of {case.second.n}",
                    figures.change("pass_rate", case.difference.value),
                    p_text(case.test.p_value),
                    p_text(case.adjusted),
                    *[figures.change("score", case.score_difference)] * scored,
                    line(", ".join(case.flaky), MAX_CELL),
                )
                for case in changed[:MAX_CASES]
            ],
        )
        if len(changed) > MAX_CASES:
            yield f"  and {len(changed) - MAX_CASES} more that changed (--json has all)"
    if unchanged := len(pair.cases) - len(changed):
        yield f"  {plural(unchanged, 'case')} without a change"
    if any(case.notable for case in pair.cases):
        yield f"  * p after Benjamini–Hochberg at most {NOTABLE_FDR:g}: look here first"
    if pair.left_out:
        yield f"Left out: {_left_out(pair.left_out)}"
        yield from figures.named(pair.left_out)
    for name, parts in pair.not_counted.items():
        if parts:
            yield f"Not counted in {line(name, 120)}: {line('; '.join(parts))}"
    for note in pair.notes:
        yield f"note: {line(note)}"


def _left_out(reasons: Mapping[str, str]) -> str:
    """Return how many cases are left out; `a (2 instances: …)` is a part of one."""
    cases = plural(len(reasons), "case")
    return f"instances of {cases}" if any("instance" in name for name in reasons) else cases


def _methods(pair: ArmComparison) -> Iterator[str]:
    """Yield how each figure was computed, its effect size, and why one is not defined."""
    for each in pair.metrics:
        test, effect = each.test, each.effect
        of = plural(each.cases, "case")
        of += f", {plural(each.instances, 'instance')}" if each.instances != each.cases else ""
        of += f", {plural(each.trials, 'trial')}"
        left = f", {plural(each.left_out, 'instance')} without the figure" if each.left_out else ""
        size = ""
        if effect.value is not None:
            sign = "h" if effect.method[-1] == "h" else "d_z"
            size = f"; effect {sign} {figures.change('', effect.value)}"
        name = figures.METRIC_WORDS[each.metric]
        yield f"  {name}: {test.estimand}, {test.method}; {of}{left}{size}"
        # The p-value above is for exactly these cases; this one generalises.
        if each.metric == "pass_rate" and each.estimand == "suite":
            yield (
                f"    in a population of such cases: p {p_text(each.population.p_value)}"
                f" ({each.population.method}),"
                f" {figures.ends(each.metric, each.population_interval, signed=True)}"
            )
        # Test, interval and effect are often undefined for the same reason.
        reasons = (test.reason, each.interval.reason, effect.reason)
        for reason in dict.fromkeys(reason for reason in reasons if reason):
            yield f"    undefined: {line(reason)}"


# -- gate ----------------------------------------------------------------------------------------


def render_gate(result: GateResult) -> str:
    """Return the verdict of a gate, its evidence, what changed, and what would settle it."""
    return "\n".join(_gate(result))


def _gate(result: GateResult) -> Iterator[str]:
    verdict = click.style(result.verdict, fg=figures.GATE_STYLES[result.verdict].colour, bold=True)
    yield f"{verdict}: {line(result.reason)}"
    for role, run in (("candidate", result.candidate), ("reference", result.baseline)):
        commit = f", commit {run.commit[:10]}" if run.commit else ""
        if run.changes:
            commit += f" with uncommitted changes ({run.changes})"
        yield f"  {role} {line(run.path, 300)}{commit}"
    yield f"  error rate: {result.error_rate}; margin {in_points(result.rule.margin)}"
    for arm in result.arms:
        yield ""
        yield from _gated_agent(arm)
    if len(result.history) > 1:
        yield ""
        yield "Looks"
        for look in result.history:
            trials = plural(look.trials, "trial")
            yield f"  {look.number}. {trials}: {look.verdict}: {line(look.reason)}"
    if result.flaky:
        yield ""
        yield "Flaky in the candidate"
        for each in result.flaky[:MAX_GATE_CASES]:
            rates = [
                f"{part.source} {percent(part.rate)} of {part.n}"
                for part in (each.by_agent, each.by_judge, each.by_infrastructure)
                if part.flaky
            ]
            agent = line(each.agent, MAX_CELL)
            yield f"  {line(each.case, MAX_CELL)} ({agent}): {', '.join(rates)}"
    for names, where in ((result.only_baseline, "reference"), (result.only_candidate, "candidate")):
        if names:
            listed = ", ".join(line(name, 80) for name in names)
            yield f"only in the {where}, not judged: {listed}"
    for note in result.notes:
        yield f"note: {line(note)}"


def _gated_agent(arm: ArmGate) -> Iterator[str]:
    gate = arm.gate
    renamed = "" if arm.name == arm.baseline_name else f" against {arm.baseline_name}"
    yield click.style(f"{line(arm.name + renamed, 160)}: {gate.verdict}", bold=True)
    yield (
        f"  drop {in_points(gate.drop)}, at most {in_points(gate.drop_at_most)}"
        f" (one-sided {level_of(gate.rule.bound_level)}), p {p_text(gate.p_value)}"
    )
    if gate.score is not None:
        score = gate.score
        before, after = (figures.figure("score", v) for v in (score.baseline, score.candidate))
        yield (
            f"  score {before} → {after}:"
            f" drop {in_points(score.drop)}, at most {in_points(score.drop_at_most)},"
            f" p {p_text(score.p_value)} ({score.method}; {plural(score.n, 'score')})"
        )
        yield (
            f"  corrected for both (Holm): pass rate p {p_text(gate.adjusted)},"
            f" score p {p_text(score.adjusted)}"
        )
    if arm.corrected is not None:
        yield f"  {line(figures.corrected_drop_text(arm.corrected), 600)}"
    yield f"  {line(arm.about, 300)}"
    yield f"  {plural(gate.n, 'judged trial')} of both runs; {gate.method}"
    power = gate.detectable
    smallest = f"{in_points(power.effect)} with power {power.power:g}"
    yield f"  smallest drop these runs would find: {smallest if power.effect else power.reason}"
    if any(gate.errors):
        counts = zip(("reference", "candidate"), gate.errors, gate.errored_of, strict=True)
        errors = ", ".join(f"{bad} of {of} in the {name}" for name, bad, of in counts)
        yield f"  could not be judged: {errors}"
    changed = [move for move in gate.moves if move.drop]
    yield from table(
        ("case", "reference", "candidate", "change"),
        [
            (
                line(move.case, MAX_CELL),
                f"{move.baseline.passes}/{move.baseline.trials}",
                f"{move.candidate.passes}/{move.candidate.trials}",
                f"{points(-move.drop)} points",
            )
            for move in changed[:MAX_GATE_CASES]
        ],
    )
    if len(changed) > MAX_GATE_CASES:
        yield f"  and {len(changed) - MAX_GATE_CASES} more that changed (--json has all)"
    if gate.advice is not None:
        yield f"  advice: {line(gate.advice.text)}"
    if gate.flaky:
        flaky = and_more(gate.flaky, MAX_GATE_CASES, lambda case: line(case, MAX_CELL))
        yield f"  flaky already in the reference: {flaky}"
    if gate.left_out:
        yield f"  left out: {_left_out(gate.left_out)}"
        yield from (f"  {text}" for text in figures.named(gate.left_out))


# -- sample size ---------------------------------------------------------------------------------


def render_power(planning: Planning) -> str:
    """Return the sample sizes that would show an effect, and the assumptions behind them."""
    return "\n".join(_power(planning))


def _power(planning: Planning) -> Iterator[str]:
    effect = f"{100 * abs(planning.effect):g} points"
    title = f"To find a difference of {effect} with power {planning.power:g}"
    yield click.style(f"{title} at alpha {planning.alpha:g}", bold=True)
    yield ""
    yield "On exactly these cases (suite, one-sided): trials per case in each group"
    yield from table(
        ("cases", "trials per case and group", "total trials", "noise", "cost"),
        [(str(row.plan.cases), f"{row.plan.trials[0]:g}", *_size(row)) for row in planning.suite],
    )
    if planning.population:
        yield ""
        yield "On a population of such cases (two-sided): cases to draw"
        yield from table(
            ("trials per case and group", "cases", "total trials", "noise", "cost"),
            [
                (f"{row.plan.trials[0]:g}", str(row.plan.cases), *_size(row))
                for row in planning.population
            ],
        )
        reasons = (row.plan.reason for row in planning.population)
        for reason in dict.fromkeys(reason for reason in reasons if reason):
            yield f"  {line(reason)}"
    for row in planning.as_it_is:
        plan = row.plan
        found = line(plan.reason or "") if plan.effect is None else in_points(plan.effect)
        yield ""
        yield (
            f"As it is ({plural(plan.cases, 'case')} × {plural(round(plan.trials[0]), 'trial')},"
            f" noise {row.noise.value:.3f}"
            f" {row.noise.source}), it would find: {found}"
        )
    yield ""
    claims = ", ".join(f"{claim.n} for ≥ {percent(claim.rate)}" for claim in planning.claims)
    yield f"Consecutive passes that support a claim (one-sided 95 %): {claims}"
    if planning.cost_mean_usd is not None:
        yield f"Cost per trial, as in the run: {money(planning.cost_mean_usd)}"
    for reason in planning.reasons:
        yield f"note: {line(reason)}"


def _size(row: PlanRow) -> tuple[str, str, str]:
    """Return the columns after cases and trials."""
    cost = DASH if row.cost_usd is None else money(row.cost_usd)
    return (f"{row.plan.n:,}", f"{row.noise.value:.3f} {row.noise.source}", cost)

"""A comparison for a terminal: overall first, then the cases that moved, then what is missing."""

from __future__ import annotations

from collections.abc import Iterator

import click

from proctor.report.figures import METRIC_WORDS, change, ends, figure, named
from proctor.report.text import line
from proctor.results.compare import (
    LOOK_HERE,
    ArmComparison,
    CaseDifference,
    Comparison,
    MetricDifference,
)
from proctor.words import DASH, level_of, p_text, percent, plural, table

MOST_CASES = 20
"""Cases told to people: those that moved most; the JSON form has all of them."""


def render(found: Comparison) -> str:
    """The whole comparison."""
    out: list[str] = []
    for pair in found.pairs:
        out += [*_pair(pair, found.level), ""]
    for names, run in ((found.only_first, found.first), (found.only_second, found.second)):
        if names:
            out.append(f"only in {line(run)}: {', '.join(line(name, 80) for name in names)}")
    out += [f"note: {line(note)}" for note in found.notes]
    return "\n".join(out).rstrip()


def _pair(pair: ArmComparison, level: float) -> Iterator[str]:
    title = f"{line(pair.second, 120)} compared with {line(pair.first, 120)}"
    yield click.style(title, bold=True)
    yield (
        f"  {plural(len(pair.cases), 'case')} in both; judged trials {pair.n[0]} and {pair.n[1]},"
        f" passed {pair.passes[0]} and {pair.passes[1]}"
    )
    yield ""
    head = ("", "first", "second", "difference", level_of(level), "p", "p corrected", "effect")
    yield from table(head, [_metric(each) for each in pair.metrics])
    yield from _methods(pair)
    moved = [case for case in pair.cases if case.difference.value or case.score_difference]
    if moved:
        yield ""
        yield "Cases, the largest change first"
        yield from table(
            ("case", "first", "second", "difference", "p", "p BH", "flaky"),
            [_case(case) for case in moved[:MOST_CASES]],
        )
        if len(moved) > MOST_CASES:
            yield f"  and {len(moved) - MOST_CASES} more that changed (--json has all)"
    if same := len(pair.cases) - len(moved):
        yield f"  {plural(same, 'case')} without a change"
    yield from _rest(pair)


def _metric(each: MetricDifference) -> tuple[str, ...]:
    test = each.suite or each.population
    effect = each.effect
    return (
        METRIC_WORDS[each.metric],
        figure(each.metric, each.first),
        figure(each.metric, each.second),
        change(each.metric, each.interval.value),
        ends(each.metric, each.interval, signed=True),
        p_text(test.p_value),
        p_text(each.adjusted),
        DASH if effect.value is None else f"{_sign(effect.method)} {change('', effect.value)}",
    )


def _sign(method: str) -> str:
    return "h" if method[-1] == "h" else "d_z"


def _methods(pair: ArmComparison) -> Iterator[str]:
    """How each figure came about, and why one is missing."""
    for each in pair.metrics:
        test = each.suite or each.population
        of = f"{plural(test.cases, 'case')}, {plural(test.n, 'trial')}"
        left = f", {plural(test.left_out, 'case')} without the figure" if test.left_out else ""
        yield f"  {METRIC_WORDS[each.metric]}: {test.estimand}, {test.method}; {of}{left}"
        population = each.population
        if each.metric == "pass_rate":
            between = ends(each.metric, each.population_interval, signed=True)
            yield (
                f"    in a population of such cases: p {p_text(population.p_value)}"
                f" ({population.method}), {between}"
            )
        reasons = (test.reason, each.interval.reason, each.effect.reason)
        for reason in dict.fromkeys(reason for reason in reasons if reason):
            yield f"    undefined: {line(reason)}"


def _case(case: CaseDifference) -> tuple[str, ...]:
    mark = " *" if case.stands_out else ""
    return (
        line(case.case, 60) + mark,
        f"{percent(case.first.value)} of {case.first.n}",
        f"{percent(case.second.value)} of {case.second.n}",
        change("pass_rate", case.difference.value),
        p_text(case.test.p_value),
        p_text(case.adjusted),
        line(", ".join(case.flaky), 60),
    )


def _rest(pair: ArmComparison) -> Iterator[str]:
    if any(case.stands_out for case in pair.cases):
        yield f"  * p after Benjamini–Hochberg at most {LOOK_HERE:g}: look here first"
    if pair.left_out:
        yield f"Left out: {plural(len(pair.left_out), 'case')}"
        yield from named(pair.left_out)
    for name, parts in pair.not_counted.items():
        if parts:
            yield f"Not counted in {line(name, 120)}: {line('; '.join(parts))}"
    for note in pair.notes:
        yield f"note: {line(note)}"

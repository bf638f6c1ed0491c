"""A plan for a terminal: sizes that would do, what they rest on, what passes alone can claim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from proctor.report.text import line
from proctor.results.power import Planning, PlanRow
from proctor.words import DASH, in_points, money, percent, table


def render(found: Planning) -> str:
    """The whole plan."""
    return "\n".join(_lines(found))


def _lines(found: Planning) -> Iterator[str]:
    effect = f"{100 * abs(found.effect):g} points"
    yield click.style(
        f"To find a difference of {effect} with power {found.power:g} at alpha {found.alpha:g}",
        bold=True,
    )
    yield ""
    yield "On these very cases (suite, one-sided): trials a case in each arm"
    yield from _sizes(found.suite, by_cases=True)
    if found.population:
        yield ""
        yield "On a population of such cases (two-sided): cases to draw"
        yield from _sizes(found.population, by_cases=False)
        for why in dict.fromkeys(r.plan.reason for r in found.population if r.plan.reason):
            yield f"  {line(why)}"
    for row in found.as_it_is:
        plan = row.plan
        told = line(plan.reason or "") if plan.effect is None else in_points(plan.effect)
        yield ""
        yield (
            f"As it is ({plan.cases} cases × {plan.trials[0]:g} trials, noise {row.noise.value:.3f}"
            f" {row.noise.source}), it would find: {told}"
        )
    yield ""
    claims = ", ".join(f"{claim.n} for ≥ {percent(claim.rate)}" for claim in found.claims)
    yield f"Passes in a row, without a failure, that support a claim (one-sided 95 %): {claims}"
    if found.cost_mean_usd is not None:
        yield f"Cost is {money(found.cost_mean_usd)} a trial, as the run had it"
    for reason in found.reasons:
        yield f"note: {line(reason)}"


def _sizes(rows: Sequence[PlanRow], *, by_cases: bool) -> list[str]:
    head = ("cases", "trials a case and arm", "trials in all", "noise", "cost")
    return table(
        head if by_cases else (head[1], head[0], *head[2:]),
        [_size(row, by_cases=by_cases) for row in rows],
    )


def _size(row: PlanRow, *, by_cases: bool) -> tuple[str, ...]:
    plan = row.plan
    cases, trials = str(plan.cases), f"{plan.trials[0]:g}"
    first = (cases, trials) if by_cases else (trials, cases)
    cost = DASH if row.cost_usd is None else money(row.cost_usd)
    return (*first, f"{plan.n:,}", f"{row.noise.value:.3f} {row.noise.source}", cost)

"""Parts of a selection set against each other, and against properties of their cases.

Two arms are compared on the cases both have, case by case: pass counts by the exact stratified
test with the difference's interval, scores by the paired test of case means. What only one arm
has is named, never dropped in silence.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from proctor.errors import ProctorError, hint_among
from proctor.results.columns import named
from proctor.results.figures import OF_JUDGED, cell_of
from proctor.results.left_out import LeftOut
from proctor.results.outcomes import AgentOutcomes, CaseOutcome, by_agent
from proctor.runs.model import CellKey
from proctor.stats.compare import paired_means, stratified, suite_difference
from proctor.stats.correlate import Correlation, correlate
from proctor.stats.kinds import CaseCounts, DifferenceTest, Interval
from proctor.words import plural

if TYPE_CHECKING:
    from proctor.results.result_set import ResultSet

ORDERED = {"easy": 1.0, "medium": 2.0, "hard": 3.0}
"""Words for difficulty that have an order; other words have none and are left out."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A second arm against a first, over the cases both have.

    `pass_rate` is the difference of rates on these very cases with its interval, `test` says
    whether any case changed, `score` compares the cases' mean scores.
    """

    by: str
    first: Any
    second: Any
    pass_rate: Interval
    test: DifferenceTest
    score: DifferenceTest
    cases: tuple[str, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    left_out: tuple[LeftOut, ...]


class Seen(NamedTuple):
    """What one arm saw of one case. `score` is the mean of its scores, None without one."""

    counts: CaseCounts
    score: float | None


def difference(of: ResultSet, first: Any, second: Any, *, by: str, level: float) -> Difference:
    """Compare the trials with one value of a column to those with another."""
    a, b = _arm(of, by, first), _arm(of, by, second)
    both = tuple(sorted(a.keys() & b.keys()))
    counts = [[arm[case].counts for case in both] for arm in (a, b)]
    pairs = [(a[case].score, b[case].score) for case in both]
    scores = [(x, y) for x, y in pairs if x is not None and y is not None]
    errors = sum(one.counts.errors for arm in (a, b) for one in arm.values())
    apart = len(a.keys() ^ b.keys())
    left_out = (
        LeftOut("trials", errors, "infrastructure error"),
        LeftOut("cases", apart, "only one of the two has them"),
        LeftOut("cases", len(both) - len(scores), "no score in one of the two"),
    )
    return Difference(
        by=by,
        first=first,
        second=second,
        pass_rate=suite_difference(*counts, level=level),
        test=stratified(*counts),
        score=paired_means([x for x, _ in scores], [y for _, y in scores]),
        cases=both,
        only_first=tuple(sorted(a.keys() - b.keys())),
        only_second=tuple(sorted(b.keys() - a.keys())),
        left_out=tuple(part for part in left_out if part.count),
    )


def _arm(of: ResultSet, by: str, value: Any) -> dict[str, Seen]:
    """What the trials with one value saw, by case."""
    arm = {
        str(row.key["case"]): Seen(
            CaseCounts(row.passed, row.judged, row.infra_error), row.score.value
        )
        for row in of.where(where={by: value}).group_by("case").rows
    }
    if not arm:
        known = sorted(str(row.key[by]) for row in of.group_by(by).rows)
        raise ProctorError(
            f"no trial has {by} {value!r}",
            hint=hint_among(str(value), known),
        )
    return arm


def correlation(
    of: ResultSet, column: str, value: str, method: Literal["pearson", "spearman"]
) -> Correlation:
    """One pair a case: a number that belongs to it, and the mean of a column over its trials."""
    property_, number = named(column), of.number(value)
    judged = "counted AND judged" if value in OF_JUDGED else "counted"
    sql = (
        f'SELECT "case", {property_.sql}, avg({number.sql}) FROM trials'  # noqa: S608 (from the table of columns)
        f" WHERE {judged} GROUP BY ALL ORDER BY ALL"
    )
    rows = of.ask(sql, {"case", "counted", "judged", property_.base, number.base})
    pairs = [(_as_number(given), mean) for _, given, mean in rows]
    whole = [(x, float(y)) for x, y in pairs if x is not None and y is not None]
    found = correlate([x for x, _ in whole], [y for _, y in whole], method=method)
    missing = len(pairs) - len(whole)
    if not missing:
        return found
    why = (
        f"{missing} of {plural(len(pairs), 'case')} left out: no number in {column}, or no {value}"
    )
    return dataclasses.replace(found, reason="; ".join(filter(None, (found.reason, why))))


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None if value is None else float(value)
    if isinstance(value, int | float):
        return float(value)
    text = str(value).strip().lower()
    if text in ORDERED:
        return ORDERED[text]
    try:
        return float(text)
    except ValueError:
        return None


def outcomes_in(of: ResultSet) -> tuple[AgentOutcomes, ...]:
    """What the selected trials say, by agent and parameters; runs of one cell are put together.

    Unlike a run's own outcomes these hold only what was selected: a case without a trial is not
    among them.
    """
    judged = "counted AND judged"
    order = 'ORDER BY run, axis_seed, "index"'
    sql = f"""
        SELECT agent, params::VARCHAR, "case",
          count(*) FILTER ({judged} AND status = 'passed'), count(*) FILTER ({judged}),
          list(score {order}) FILTER ({judged} AND score IS NOT NULL),
          count(*) FILTER (counted AND status = 'hard_fail'),
          count(*) FILTER (counted AND status = 'infra_error'),
          count(*) FILTER (counted AND status = 'cancelled'),
          count(*) FILTER (NOT counted),
          any_value(threshold), any_value(json_extract_string(properties, '$.cluster')),
          list(latency_ms {order}) FILTER ({judged} AND latency_ms IS NOT NULL),
          list(cost_usd {order}) FILTER (counted AND cost_usd IS NOT NULL),
          coalesce(sum(unpriced_calls) FILTER (counted), 0)::BIGINT
        FROM trials GROUP BY ALL
    """  # noqa: S608 (constants)
    columns = {"agent", "params", "case", "counted", "judged", "status", "score", "latency_ms"}
    columns |= {"threshold", "properties", "cost_usd", "unpriced_calls", "run", "axis_seed"}
    rows = of.ask(sql, columns | {"index"})
    return by_agent(_merged([_cell(row) for row in rows]))


def _cell(row: tuple[Any, ...]) -> tuple[CellKey, CaseOutcome]:
    agent, params, case, passes, trials, scores, hard, infra, cancelled, after = row[:10]
    cell = cell_of(agent, params, case)
    kept = tuple(scores or ())
    return CellKey(case, agent, cell.params), CaseOutcome(
        case=case,
        passes=passes,
        trials=trials,
        scores=kept,
        hard_fails=hard,
        unscored=trials - len(kept),
        infra=infra,
        cancelled=cancelled,
        after_stop=after,
        threshold=row[10],
        cluster=row[11],
        latencies_ms=tuple(row[12] or ()),
        costs_usd=tuple(row[13] or ()),
        unpriced_calls=row[14],
    )


def _merged(cells: list[tuple[CellKey, CaseOutcome]]) -> list[tuple[CellKey, CaseOutcome]]:
    """Cells whose parameters were only written in another order, put together."""
    found: dict[CellKey, CaseOutcome] = {}
    for key, cell in cells:
        known = found.get(key)
        if known is None:
            found[key] = cell
            continue
        sums = {
            name: getattr(known, name) + getattr(cell, name)
            for name in CaseOutcome.__struct_fields__
            if name not in ("case", "asked", "threshold", "cluster", "stopped")
        }
        found[key] = msgspec.structs.replace(known, **sums)
    return list(found.items())

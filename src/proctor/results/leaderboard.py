"""Rank agents, with the range of ranks that the tests support.

Guarantees: agents without a significant difference share ranks; intervals are clustered by case; an
agent without any value is listed without a rank instead of counting as zero. Ranks compare the
cases that every ranked agent has; the other cases are reported. After early stopping no fixed-n
test is valid, so none is made, as in a comparison.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from proctor.errors import ProctorError, hint_among
from proctor.formatting import plural
from proctor.results.aggregate import rate_over
from proctor.results.compare import stopped_note
from proctor.results.outcomes import AgentOutcomes, CaseOutcome, outcomes_of
from proctor.runs.folder import place_of, run_name
from proctor.stats.describe import percentile
from proctor.stats.intervals import PassK, bootstrap_over_cases, pass_at_k, pass_hat_k
from proctor.stats.ranking import PairedTest, rank_sets
from proctor.stats.types import LEVEL, STOPPED, Interval, mean

if TYPE_CHECKING:
    from proctor.runs.run import Run


class _Metric(NamedTuple):
    """How to read a case's figure, and which direction is better."""

    of_case: Callable[[CaseOutcome], float | None]
    higher_is_better: bool


def _pass_rate(case: CaseOutcome) -> float | None:
    return case.pass_rate


def _score(case: CaseOutcome) -> float | None:
    return case.mean_score


def _cost(case: CaseOutcome) -> float | None:
    return mean(case.costs_usd)


def _latency(case: CaseOutcome) -> float | None:
    return mean(case.latencies_ms)


METRICS: Mapping[str, _Metric] = {
    "pass_rate": _Metric(_pass_rate, True),
    "score": _Metric(_score, True),
    "cost_usd": _Metric(_cost, False),
    "latency_ms": _Metric(_latency, False),
}
"""Metrics for ranking: one figure per case."""


class Entrant(NamedTuple):
    """An agent to rank, its label and its run."""

    name: str
    outcomes: AgentOutcomes
    run: str | None = None


class LeaderboardRow(msgspec.Struct, frozen=True, kw_only=True):
    """One agent. `best` and `worst` bound its rank; None where it has no value.

    `value` is the ranking metric over the agent's own cases; `ranked` is over the shared ones.
    """

    name: str
    agent: str
    params: str
    run: str | None
    best: int | None
    worst: int | None
    value: Interval
    ranked: float | None
    pass_rate: Interval
    score: Interval
    cost_mean_usd: Interval
    cost_usd: float | None
    unpriced_calls: int
    latency_p50_ms: float | None
    latency_p95_ms: float | None
    pass_at_k: PassK
    pass_hat_k: PassK
    cases: int
    trials: int
    passes: int
    infra: int
    cancelled: int
    not_counted: tuple[str, ...]


class Leaderboard(msgspec.Struct, frozen=True, kw_only=True):
    """Rows in the order of their means, and the paired tests behind their ranks."""

    metric: str
    rows: tuple[LeaderboardRow, ...]
    pairs: tuple[PairedTest, ...]
    alpha: float
    level: float
    shared_cases: int
    left_out: Mapping[str, str]
    """Cases that do not enter the ranks, and why."""
    method: str
    estimand: str
    reason: str | None
    notes: tuple[str, ...] = ()

    def tied(self, row: LeaderboardRow) -> tuple[str, ...]:
        """Agents without a significant difference from this one."""
        different = {
            frozenset((pair.first, pair.second))
            for pair in self.pairs
            if pair.adjusted is not None and pair.adjusted <= self.alpha and pair.test.difference
        }
        return tuple(
            other.name
            for other in self.rows
            if other is not row
            and other.best is not None
            and row.best is not None
            and frozenset((row.name, other.name)) not in different
        )


def entrants_of(runs: Sequence[Run]) -> tuple[Entrant, ...]:
    """Return every agent of some runs; one in several runs is labelled with its run."""
    seen = [(run, arm) for run in runs for arm in outcomes_of(run)]
    names = Counter(arm.name for _, arm in seen)
    return tuple(
        Entrant(
            arm.name if names[arm.name] == 1 else f"{arm.name} @ {run_name(run.path)}",
            arm,
            place_of(run.path),
        )
        for run, arm in seen
    )


def leaderboard(
    entrants: Sequence[Entrant],
    *,
    metric: str = "pass_rate",
    alpha: float = 0.05,
    level: float = LEVEL,
    seed: int = 0,
) -> Leaderboard:
    """Rank agents by one figure, the mean of their cases."""
    if metric not in METRICS:
        hint = hint_among(metric, METRICS)
        raise ProctorError(f"unknown ranking metric {metric!r}", hint=hint)
    of_case, higher = METRICS[metric]
    values = {
        entrant.name: {
            case.case: value
            for case in entrant.outcomes.cases
            if (value := of_case(case)) is not None
        }
        for entrant in entrants
    }
    ranked = {name: by_case for name, by_case in values.items() if by_case}
    sign = 1.0 if higher else -1.0
    # Ranking prefers higher values, so costs and durations are negated and turned back below.
    ranking = rank_sets(
        {name: {c: sign * v for c, v in by_case.items()} for name, by_case in ranked.items()},
        alpha=alpha,
        seed=seed,
        stopped={
            entrant.name: [case.case for case in entrant.outcomes.cases if case.stopped]
            for entrant in entrants
        },
    )
    places = {} if ranking.reason else {place.agent: place for place in ranking.places}
    rows = [
        _row(entrant, metric, level, seed)
        if entrant.name not in places
        else msgspec.structs.replace(
            _row(entrant, metric, level, seed),
            best=places[entrant.name].best,
            worst=places[entrant.name].worst,
            ranked=sign * (places[entrant.name].mean or 0.0),
        )
        for entrant in entrants
    ]
    rows.sort(key=lambda row: _order(row, higher))
    return Leaderboard(
        metric=metric,
        rows=tuple(rows),
        pairs=tuple(_with_sign(pair, sign) for pair in ranking.pairs),
        alpha=alpha,
        level=level,
        shared_cases=ranking.cases,
        left_out={
            case: "no value for "
            + ", ".join(name for name, by_case in ranked.items() if case not in by_case)
            for case in ranking.left_out
        },
        method=ranking.method,
        estimand=ranking.estimand,
        reason=ranking.reason,
        notes=tuple(_notes(entrants, values)),
    )


def _with_sign(pair: PairedTest, sign: float) -> PairedTest:
    """Return a pair with differences of the metric, not of its negative."""
    gap = pair.test.difference
    return replace(pair, test=replace(pair.test, difference=None if gap is None else sign * gap))


def _notes(entrants: Sequence[Entrant], values: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    for name, by_case in values.items():
        if not by_case:
            yield f"{name} has no value and no rank"
    for entrant in entrants:
        if unpriced := sum(case.unpriced_calls for case in entrant.outcomes.cases):
            yield f"{entrant.name}: {plural(unpriced, 'call')} unpriced, its cost is a lower bound"
    yield from stopped_note(case for entrant in entrants for case in entrant.outcomes.cases)


def _order(row: LeaderboardRow, higher: bool) -> tuple[bool, float, str]:
    value = row.ranked if row.ranked is not None else row.value.value
    return (value is None, 0.0 if value is None else (-value if higher else value), row.name)


def _row(entrant: Entrant, metric: str, level: float, seed: int) -> LeaderboardRow:
    seen = entrant.outcomes
    stopped = any(case.stopped for case in seen.cases)
    rate = _unless_stopped(rate_over(seen.counts, clusters=seen.clusters, level=level), stopped)
    intervals = {
        "pass_rate": rate,
        **{
            name: _unless_stopped(
                _over_cases(seen.cases, METRICS[name].of_case, level, seed), stopped
            )
            for name in ("score", "cost_usd", "latency_ms")
        },
    }
    latencies = sorted(value for case in seen.cases for value in case.latencies_ms)
    costs = [cost for case in seen.cases for cost in case.costs_usd]
    # The largest k that every judged case can estimate.
    k = min((case.trials for case in seen.cases if case.trials), default=1)
    return LeaderboardRow(
        name=entrant.name,
        agent=seen.agent,
        params=seen.params,
        run=entrant.run,
        best=None,
        worst=None,
        value=intervals[metric],
        ranked=None,
        pass_rate=rate,
        score=intervals["score"],
        cost_mean_usd=intervals["cost_usd"],
        cost_usd=math.fsum(costs) if costs else None,
        unpriced_calls=sum(case.unpriced_calls for case in seen.cases),
        latency_p50_ms=percentile(latencies, 50),
        latency_p95_ms=percentile(latencies, 95),
        pass_at_k=pass_at_k(seen.counts, k),
        pass_hat_k=pass_hat_k(seen.counts, k),
        cases=sum(bool(case.trials) for case in seen.cases),
        trials=seen.trials,
        passes=seen.passes,
        infra=seen.infra,
        cancelled=seen.cancelled,
        not_counted=tuple(str(part) for part in seen.left_out),
    )


def _over_cases(
    cases: Sequence[CaseOutcome],
    of_case: Callable[[CaseOutcome], float | None],
    level: float,
    seed: int,
) -> Interval:
    values = [value for case in cases if (value := of_case(case)) is not None]
    interval = bootstrap_over_cases(values, level=level, seed=seed)
    return replace(interval, left_out=len(cases) - len(values))


def _unless_stopped(interval: Interval, stopped: bool) -> Interval:
    return replace(interval, low=None, high=None, reason=STOPPED) if stopped else interval

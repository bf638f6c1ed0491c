"""Rank agents, with the range of ranks that the tests support.

Guarantees: agents without a significant difference share ranks, by the tests of a comparison; an
agent without any value is listed without a rank instead of counting as zero. Ranks compare the
instances that every ranked agent has, the same by content; the others are reported. After early
stopping no fixed-n test is valid, so none is made, as in a comparison.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from proctor.errors import ProctorError, hint_among
from proctor.formatting import plural
from proctor.results._comparability import case_hashes
from proctor.results.aggregate import cost_per_pass, rate_over
from proctor.results.compare import METRIC_VALUES, Metric, compare_metric, plan_notes
from proctor.results.outcomes import (
    AgentOutcomes,
    CaseOutcome,
    bias,
    by_case,
    estimand_line,
    outcomes_of,
    same_instance,
    unless_biased,
)
from proctor.runs.folder import place_of, run_name
from proctor.stats.describe import describe, percentile
from proctor.stats.intervals import (
    PassK,
    bootstrap_over_cases,
    bounded_mean,
    pass_at_k,
    pass_hat_k,
    suite_mean,
)
from proctor.stats.ranking import PairedTest, rank_sets
from proctor.stats.types import LEVEL, DifferenceTest, Estimand, Interval, mean, mean_of_cases
from proctor.tables import Tabular, interval_chart

if TYPE_CHECKING:
    from proctor.runs.run import Run


LOWER_IS_BETTER = frozenset({"cost_usd", "latency_ms"})


class Entrant(NamedTuple):
    """An agent to rank, its label and its run."""

    name: str
    outcomes: AgentOutcomes
    run: str | None = None
    hashes: Mapping[str, str] = {}
    """Content of each case, where agents are from several runs."""


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
    score_std: float | None
    cost_mean_usd: Interval
    cost_per_pass_usd: Interval
    cost_usd: float | None
    unpriced_calls: int
    latency_p50_ms: float | None
    latency_p90_ms: float | None
    latency_p95_ms: float | None
    latency_p99_ms: float | None
    pass_at_k: PassK
    pass_hat_k: PassK
    cases: int
    trials: int
    passes: int
    infra: int
    not_judged: int
    cancelled: int
    not_counted: tuple[str, ...]

    @property
    def cost_per_trial_usd(self) -> float | None:
        """The mean cost of a trial; where calls are unpriced, a lower bound from what is known."""
        tried = self.trials + self.infra + self.not_judged
        if self.cost_mean_usd.value is not None or self.cost_usd is None or not tried:
            return self.cost_mean_usd.value
        return self.cost_usd / tried


class Leaderboard(Tabular, msgspec.Struct, frozen=True, kw_only=True):
    """Rows in the order of their means, and the paired tests behind their ranks."""

    metric: str
    rows: tuple[LeaderboardRow, ...]
    pairs: tuple[PairedTest, ...]
    alpha: float
    level: float
    shared_cases: int
    shared_instances: int
    left_out: Mapping[str, str]
    """Cases that do not enter the ranks, and why."""
    method: str
    estimand: Estimand
    reason: str | None
    notes: tuple[str, ...] = ()

    def records(self) -> list[dict[str, Any]]:
        """Return a row per agent."""
        return [
            {
                "agent": row.name,
                "run": row.run,
                "rank_best": row.best,
                "rank_worst": row.worst,
                "pass_rate": row.pass_rate.value,
                "pass_rate_low": row.pass_rate.low,
                "pass_rate_high": row.pass_rate.high,
                "score": row.score.value,
                "score_low": row.score.low,
                "score_high": row.score.high,
                "score_std": row.score_std,
                "cost_usd": row.cost_usd,
                "unpriced_calls": row.unpriced_calls,
                "cost_per_pass_usd": row.cost_per_pass_usd.value,
                "latency_p50_ms": row.latency_p50_ms,
                "latency_p95_ms": row.latency_p95_ms,
                "cases": row.cases,
                "trials": row.trials,
                "passes": row.passes,
                "infra": row.infra,
                "not_judged": row.not_judged,
            }
            for row in self.rows
        ]

    def _heading(self) -> str:
        return f"Leaderboard by {self.metric.replace('_', ' ')}"

    def _chart(self) -> dict[str, Any]:
        found = [(row.name, row.value) for row in self.rows]
        rows = [{"name": n, "value": v.value, "low": v.low, "high": v.high} for n, v in found]
        return interval_chart(rows, f"{self.metric.replace('_', ' ')}, {self.level:.0%} interval")

    @property
    def about(self) -> str:
        """One line that says what the ranks are about."""
        return estimand_line(self.estimand, self.shared_cases, self.shared_instances)


def entrants_of(runs: Sequence[Run], *, by_params: bool = False) -> tuple[Entrant, ...]:
    """Return every agent of some runs; one in several runs is labelled with its run.

    With `by_params` an agent under other parameters of a scenario is another one.
    """
    ids = Counter(run.run_id for run in runs)
    for run in runs:
        if ids[run.run_id] > 1:
            raise ProctorError(
                f"{run_name(run.path)} is named twice: the same trials are no second observation",
                hint="name each run once",
            )
    seen = [(run, arm) for run in runs for arm in outcomes_of(run, by_params=by_params)]
    names = Counter(arm.name for _, arm in seen)
    hashes = {run.path: case_hashes(run.spec) if len(runs) > 1 else {} for run in runs}
    return tuple(
        Entrant(
            arm.name if names[arm.name] == 1 else f"{arm.name} @ {run_name(run.path)}",
            arm,
            place_of(run.path),
            hashes[run.path],
        )
        for run, arm in seen
    )


def leaderboard(
    entrants: Sequence[Entrant],
    *,
    metric: Metric = "pass_rate",
    estimand: Estimand = "suite",
    alpha: float = 0.05,
    level: float = LEVEL,
    seed: int = 0,
) -> Leaderboard:
    """Rank agents by one figure on the instances they share."""
    if metric not in METRIC_VALUES:
        hint = hint_among(metric, METRIC_VALUES)
        raise ProctorError(f"unknown ranking metric {metric!r}", hint=hint)
    # A case is the same in two runs only with the same content.
    instances = {
        entrant.name: {
            f"{each.label}\0{entrant.hashes.get(each.case, '')}": each
            for each in entrant.outcomes.instances
        }
        for entrant in entrants
    }
    values = {
        name: {
            key: value
            for key, each in by_key.items()
            if (value := mean(METRIC_VALUES[metric](each))) is not None
        }
        for name, by_key in instances.items()
    }
    if metric == "cost_usd":
        # A lower bound of a cost would win over a price that is known.
        for entrant in entrants:
            if entrant.outcomes.unpriced_calls:
                values[entrant.name] = {}
    ranked = {name: by_key for name, by_key in values.items() if by_key}
    sign = -1.0 if metric in LOWER_IS_BETTER else 1.0

    def test(first: str, second: str, shared: Sequence[str]) -> DifferenceTest:
        rows = [(instances[first][key], instances[second][key]) for key in shared]
        return compare_metric(metric, rows, estimand, sign=sign, seed=seed)

    common = {
        key: each
        for key, each in (instances[next(iter(ranked))].items() if ranked else ())
        if all(key in by_key for by_key in ranked.values())
    }
    shared = list(common.values())
    # Ranking prefers higher values, so costs and durations are negated and turned back below.
    ranking = rank_sets(
        {name: {key: sign * v for key, v in by_key.items()} for name, by_key in ranked.items()},
        alpha=alpha,
        seed=seed,
        biased={
            name: why
            for name in ranked
            if (why := bias((instances[name][key] for key in common), metric))
        },
        test=test,
    )
    # Ordered by what the tests compare: instances of a suite, cases of a population.
    of_suite = estimand == "suite" and metric in ("pass_rate", "score")
    units = [key if of_suite else each.case for key, each in common.items()]
    # With a reason there was no valid test, and the places say nothing.
    places = {} if ranking.reason else {place.agent: place for place in ranking.places}
    rows: list[LeaderboardRow] = []
    for entrant in entrants:
        row = agent_row(entrant, metric, estimand, level=level, seed=seed)
        if place := places.get(entrant.name):
            row = msgspec.structs.replace(
                row,
                best=place.best,
                worst=place.worst,
                ranked=mean_of_cases([values[entrant.name][key] for key in common], units) or 0.0,
            )
        rows.append(row)

    def order(row: LeaderboardRow) -> tuple[bool, bool, float, str]:
        value = row.value.value if row.ranked is None else row.ranked
        # An agent without a value that can be ranked comes last, whatever its known part is.
        return (not values[row.name], value is None, -sign * (value or 0.0), row.name)

    return Leaderboard(
        metric=metric,
        rows=tuple(sorted(rows, key=order)),
        pairs=tuple(
            replace(pair, test=replace(pair.test, difference=sign * pair.test.difference))
            if pair.test.difference is not None
            else pair
            for pair in ranking.pairs
        ),
        alpha=alpha,
        level=level,
        shared_cases=len({each.case for each in shared}),
        shared_instances=len(shared),
        left_out=by_case(
            [
                (by_key[key], _why_not(key, ranked, instances))
                for key in ranking.left_out
                for by_key in [next(each for each in instances.values() if key in each)]
            ],
            {each.case for each in shared},
        ),
        method=ranking.method,
        estimand=estimand if metric in ("pass_rate", "score") else "population",
        reason=ranking.reason,
        notes=tuple(_notes(entrants, values)),
    )


def _why_not(
    key: str,
    ranked: Mapping[str, Mapping[str, float]],
    instances: Mapping[str, Mapping[str, CaseOutcome]],
) -> str:
    label = key.partition("\0")[0]
    missing = [name for name, by_key in ranked.items() if key not in by_key]
    others = [{k.partition("\0")[0] for k in instances[name]} for name in missing]
    if missing and all(label in labels for labels in others) and "\0" in key[:-1]:
        return "its content differs between the runs"
    return f"no value for {', '.join(missing)}"


def _notes(entrants: Sequence[Entrant], values: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    for entrant in entrants:
        unpriced, none = entrant.outcomes.unpriced_calls, not values[entrant.name]
        if unpriced:
            calls = plural(unpriced, "call")
            rest = ": it is not ranked by cost" if none else ""
            yield f"{entrant.name}: {calls} unpriced, its cost is a lower bound{rest}"
        elif none:
            yield f"{entrant.name} has no value and no rank"
    yield from plan_notes([case for entrant in entrants for case in entrant.outcomes.cases])


def score_over(
    seen: AgentOutcomes, *, estimand: Estimand = "suite", level: float = LEVEL
) -> Interval:
    """Return the mean of the instances' mean scores; clustered by case for a population."""
    if estimand == "suite":
        score = suite_mean([each.scores for each in seen.instances], level=level)
    else:
        scored = [
            (value, case, draw, len(each.scores))
            for each, case, draw in zip(
                seen.instances, seen.clustering.drawn, seen.clustering.keys, strict=True
            )
            if (value := each.mean_score) is not None
        ]
        score = bounded_mean(
            [value for value, *_ in scored],
            n=sum(count for *_, count in scored),
            cases=[case for _, case, *_ in scored],
            clusters=[draw for _, _, draw, _ in scored],
            unit=seen.clustering.unit,
            level=level,
        )
    of = len({case.case for case in seen.cases if case.scores})
    return replace(score, cases=of, left_out=len(seen.cases) - of)


def agent_rate(
    seen: AgentOutcomes, estimand: Estimand = "suite", *, level: float = LEVEL
) -> Interval:
    """Return the pass rate of one agent, as every list, page and ranking shows it."""
    return rate_over(
        seen.counts,
        seen.clustering,
        level=level,
        bias=bias(seen.cases),
        watched=seen.watched,
        estimand=estimand,
    )


def agent_row(
    entrant: Entrant,
    metric: str,
    estimand: Estimand = "suite",
    *,
    level: float = LEVEL,
    seed: int = 0,
) -> LeaderboardRow:
    """Return the figures of one agent, without a rank; `value` is that of `metric`."""
    seen = entrant.outcomes
    intervals: dict[str, Interval] = {}
    by_draw: dict[str, list[CaseOutcome]] = defaultdict(list)
    for each, draw in zip(seen.instances, seen.clustering.keys, strict=True):
        by_draw[draw].append(each)
    intervals["score"] = score_over(seen, estimand=estimand, level=level)
    metrics: tuple[Metric, ...] = ("cost_usd", "latency_ms")
    for name in metrics:
        # With a single case its instances are the draws, as for the pass rate.
        several = len(seen.cases) > 1
        draws, unit = (seen.cases, "case") if several else (seen.instances, seen.clustering.unit)
        # A case counts with the mean of its instances, as in a comparison.
        means = ([mean(METRIC_VALUES[name](one)) for one in draw.instances] for draw in draws)
        known = ([value for value in own if value is not None] for own in means)
        values = [value for own in known if (value := mean(own)) is not None]
        interval = bootstrap_over_cases(values, unit=unit, level=level, seed=seed)
        intervals[name] = replace(interval, left_out=len(draws) - len(values))
    if seen.unpriced_calls:
        why = f"{plural(seen.unpriced_calls, 'call')} unpriced: a lower bound"
        # The mean of what is known is no bound: the trials without a price may cost less.
        intervals["cost_usd"] = intervals["cost_usd"].undefined(why)
    intervals = {name: unless_biased(each, seen.cases, name) for name, each in intervals.items()}
    intervals["pass_rate"] = agent_rate(seen, estimand, level=level)
    latencies = sorted(value for case in seen.cases for value in case.latencies_ms)
    # The largest k that every judged instance can estimate: mixed seeds would look like luck.
    k = min((row.trials for row in seen.counts if row.trials), default=1)
    biased = bias(seen.cases)
    return LeaderboardRow(
        name=entrant.name,
        agent=seen.agent,
        params=seen.params,
        run=entrant.run,
        best=None,
        worst=None,
        value=intervals[metric],
        ranked=None,
        pass_rate=intervals["pass_rate"],
        score=intervals["score"],
        score_std=describe(v for case in seen.cases for v in case.scores).deviation,
        cost_mean_usd=intervals["cost_usd"],
        cost_per_pass_usd=cost_per_pass(
            map(same_instance, by_draw.values()), level, unit=seen.clustering.unit
        ),
        cost_usd=seen.known_cost_usd,
        unpriced_calls=seen.unpriced_calls,
        latency_p50_ms=percentile(latencies, 50),
        latency_p90_ms=percentile(latencies, 90),
        latency_p95_ms=percentile(latencies, 95),
        latency_p99_ms=percentile(latencies, 99),
        pass_at_k=pass_at_k(seen.counts, k, bias=biased),
        pass_hat_k=pass_hat_k(seen.counts, k, bias=biased),
        cases=sum(bool(case.trials) for case in seen.cases),
        trials=seen.trials,
        passes=seen.passes,
        infra=seen.infra,
        not_judged=seen.not_judged,
        cancelled=seen.cancelled,
        not_counted=tuple(str(part) for part in seen.left_out),
    )

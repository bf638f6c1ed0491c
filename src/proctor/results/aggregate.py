"""Aggregate a selection of trials; each figure states its denominator and its exclusions.

A figure that is not defined is None with a reason. The unit of a mean is the instance (one case,
agent and set of parameters under one seed): its trials are not independent, so one with more trials
does not weigh more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast

import msgspec

from proctor.formatting import plural
from proctor.results.outcomes import NOT_JUDGED, CaseOutcome, Clustering, Excluded, clustering_of
from proctor.runs.trial import CellKey, params_key
from proctor.stats.intervals import (
    bootstrap_over_cases,
    case_rate,
    population_rate,
    stopped_rate,
    suite_rate,
)
from proctor.stats.types import (
    LEVEL,
    STOPPED,
    CaseCounts,
    Estimand,
    Interval,
    bias_of,
    values_by_case,
)
from proctor.tables import Tabular

Over = Literal["cases", "trials"]
"""Unit of a figure: one value per instance of a case (its mean), or one value per trial."""

OF_JUDGED = frozenset({"score", "passed", "latency_ms"})
"""Columns aggregated over judged trials; others (cost, tokens, …) use all counted trials."""


class Figure(Tabular, msgspec.Struct, frozen=True, kw_only=True):
    """A number over `n` values of `selected` trials.

    `left_out` gives the selected trials that are not among the values, by reason.
    """

    value: float | None
    n: int
    trials: int
    selected: int
    left_out: tuple[Excluded, ...]
    method: str
    reason: str | None = None

    def __float__(self) -> float:
        if self.value is None:
            raise ValueError(f"not defined: {self.reason}")
        return self.value


class Percentiles(Tabular, msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles over `n` trials, by linear interpolation (type 7)."""

    values: dict[float, float | None]
    n: int
    selected: int
    left_out: tuple[Excluded, ...]
    method: str = "percentiles of type 7 over trials"
    reason: str | None = None

    def __getitem__(self, q: float) -> float | None:
        return self.values[q]

    def records(self) -> list[dict[str, Any]]:
        """Return a row per percentile."""
        return [{"percentile": q, "value": value, "n": self.n} for q, value in self.values.items()]


class TrialTally(msgspec.Struct):
    """Counts and sums over trials; each is in one of passed … after_stop, without `undecided`."""

    passed: int = 0
    failed: int = 0
    infra_error: int = 0
    not_judged: int = 0
    undecided: int = 0
    """Not judged trials that other checks scored; part of `not_judged`."""
    cancelled: int = 0
    after_stop: int = 0
    scored: int = 0
    score_sum: float = 0.0
    costed: int = 0
    cost_usd: float = 0.0
    unpriced_calls: int = 0
    stopped: int = 0
    """Trials of cells that stopped early: their rates depend on when."""
    watched: int = 0
    """Trials of runs with a stopping rule, whether or not it stopped their cells."""

    @property
    def known_cost_usd(self) -> float | None:
        """The known cost; None where no trial has one, which is not 0."""
        return self.cost_usd if self.costed else None

    @property
    def judged(self) -> int:
        """The denominator of the pass rate."""
        return self.passed + self.failed

    @property
    def unjudged(self) -> int:
        """Trials that ended without a verdict."""
        return self.infra_error + self.not_judged

    @property
    def trials(self) -> int:
        """All trials, whatever their status."""
        return self.judged + self.unjudged + self.cancelled + self.after_stop

    @property
    def bias(self) -> str | None:
        """Why no interval of a rate is valid; None where one is."""
        return bias_of(self.stopped > 0, self.undecided, self.judged + self.unjudged)

    def add(self, other: TrialTally) -> None:
        """Add another tally to this one."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def left_out(self) -> tuple[Excluded, ...]:
        """Count the trials that a rate of judged trials leaves out."""
        parts = (
            Excluded("trials", self.infra_error, "infrastructure error"),
            Excluded("trials", self.not_judged, NOT_JUDGED),
            Excluded("trials", self.cancelled, "cancelled"),
            Excluded("trials", self.after_stop, "ended after an early stop"),
        )
        return tuple(part for part in parts if part.count)


TALLY = """
    count(*) FILTER (counted AND status = 'passed'),
    count(*) FILTER (counted AND status IN ('failed', 'hard_fail')),
    count(*) FILTER (counted AND status = 'infra_error'),
    count(*) FILTER (counted AND status = 'not_judged'),
    count(score) FILTER (counted AND status = 'not_judged'),
    count(*) FILTER (counted AND status = 'cancelled'),
    count(*) FILTER (NOT counted),
    count(score) FILTER (counted AND judged),
    coalesce(sum(score) FILTER (counted AND judged), 0),
    count(spent_usd),
    coalesce(sum(spent_usd), 0),
    coalesce(sum(spent_unpriced_calls), 0)::BIGINT,
    count(early_stop),
    count(stopping_rules)
"""
"""A `TrialTally` in SQL, field by field. The cost is what was spent: on every attempt, and also on
trials that ended after an early stop."""

TALLY_COLUMNS = frozenset(
    {"counted", "status", "judged", "score", "spent_usd", "spent_unpriced_calls"}
    | {"early_stop", "stopping_rules"}
)


def cell_of(agent: str, params: str | None, case: str) -> CellKey:
    """Build a cell; the order in which parameters were written does not matter."""
    decoded = cast("dict[str, Any]", msgspec.json.decode(params)) if params else {}
    return CellKey(case, agent, params_key(decoded))


class Instance(NamedTuple):
    """A cell under one seed; `label` sets it apart from other instances of its case."""

    cell: CellKey
    label: str


class Spread(msgspec.Struct, frozen=True):
    """How much the counted, judged trials of a group differ; None where undefined."""

    score_std: float | None = None
    latency_p50_ms: float | None = None
    latency_p90_ms: float | None = None
    latency_p95_ms: float | None = None
    latency_p99_ms: float | None = None


_LATENCIES = ", ".join(
    f"quantile_cont(latency_ms, {share}) FILTER (counted AND judged)"
    for share in (0.5, 0.9, 0.95, 0.99)
)

SPREAD = f"stddev_samp(score) FILTER (counted AND judged), {_LATENCIES}"
"""A `Spread` in SQL, field by field."""

SPREAD_COLUMNS = frozenset({"score", "latency_ms", "counted", "judged"})


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one group of trials. `key` holds the values they share."""

    key: dict[str, Any]
    cases: int
    trials: int
    judged: int
    passed: int
    infra_error: int
    not_judged: int
    cancelled: int
    after_stop: int
    stopped: int
    pass_rate: Interval
    score: Figure
    spread: Spread
    cost_usd: float | None
    cost_of: int
    unpriced_calls: int
    cost_per_pass_usd: Interval

    def flat(self) -> dict[str, Any]:
        """Flatten the row to one level of names and values, for tables."""
        values = {
            **msgspec.structs.asdict(self),
            "pass_rate": self.pass_rate.value,
            "pass_rate_low": self.pass_rate.low,
            "pass_rate_high": self.pass_rate.high,
            "pass_rate_reason": self.pass_rate.reason,
            **msgspec.structs.asdict(self.spread),
            "score_mean": self.score.value,
            "score_n": self.score.trials,
            "score_reason": self.score.reason,
            "cost_per_pass_usd": self.cost_per_pass_usd.value,
            "cost_per_pass_low": self.cost_per_pass_usd.low,
            "cost_per_pass_high": self.cost_per_pass_usd.high,
            "cost_per_pass_reason": self.cost_per_pass_usd.reason,
        }
        return {**self.key, **{name: values[name] for name in FLAT}}


FLAT = (
    *(
        "cases",
        "trials",
        "judged",
        "passed",
        "infra_error",
        "not_judged",
        "cancelled",
        "after_stop",
    ),
    *("pass_rate", "pass_rate_low", "pass_rate_high", "pass_rate_reason"),
    *("score_mean", "score_n", "score_reason", *Spread.__struct_fields__),
    *("cost_usd", "cost_of", "unpriced_calls"),
    *("cost_per_pass_usd", "cost_per_pass_low", "cost_per_pass_high", "cost_per_pass_reason"),
)
"""Columns of a group except its key, for a table without rows."""


def group_row(
    key: dict[str, Any],
    instances: Mapping[Instance, TrialTally],
    clusters: Mapping[str, str],
    level: float = LEVEL,
    *,
    spread: Spread,
    estimand: Estimand = "suite",
    selected_by: str | None = None,
) -> GroupRow:
    """Build the row of a group from its instances; `selected_by` is an outcome that selected them.

    A cost per pass is of draws, as the rate is: instances of one case are not independent.
    """
    total = TrialTally()
    by_draw: dict[str, TrialTally] = defaultdict(TrialTally)
    clustering = _clustering(instances, clusters)
    for draw, one in zip(clustering.keys, instances.values(), strict=True):
        total.add(one)
        by_draw[draw].add(one)
    return GroupRow(
        key=key,
        cases=len({each.cell.case for each in instances}),
        trials=total.trials,
        judged=total.judged,
        passed=total.passed,
        infra_error=total.infra_error,
        not_judged=total.not_judged,
        cancelled=total.cancelled,
        after_stop=total.after_stop,
        stopped=total.stopped,
        pass_rate=rate_of(instances, level, clusters, estimand=estimand, selected_by=selected_by),
        score=mean_score(instances.values(), total, estimand, clustering.drawn),
        spread=spread,
        cost_usd=total.known_cost_usd,
        cost_of=total.costed,
        unpriced_calls=total.unpriced_calls,
        cost_per_pass_usd=cost_per_pass(by_draw.values(), level, selected_by, unit=clustering.unit),
    )


def cost_per_pass(
    cells: Iterable[TrialTally | CaseOutcome],
    level: float = LEVEL,
    selected_by: str | None = None,
    *,
    unit: str = "case",
) -> Interval:
    """Return the cost of all trials over the number that passed, with an interval over cases.

    `unit` is what a cell is, where that is not a case. A cell without a known cost adds its passes
    and no cost: a lower bound if calls are unpriced.
    """
    every = list(cells)
    known = any(cell.known_cost_usd is not None for cell in every)
    costs = [cell.known_cost_usd or 0.0 for cell in every] if known else []
    passes = [float(cell.passed) for cell in every] if known else []
    found = bootstrap_over_cases(costs, per=passes, unit=unit, level=level)
    if selected_by is not None:
        return found.undefined(by_outcome(selected_by))
    if found.value is None:
        why = "no trial passed" if known else "no known cost"
        return replace(found, reason=why)
    if unpriced := sum(cell.unpriced_calls for cell in every):
        return found.without_bounds(f"{plural(unpriced, 'call')} unpriced: a lower bound")
    if any(cell.stopped for cell in every):
        return found.without_bounds(STOPPED)
    return found


def by_outcome(column: str | None) -> str:
    """Return why trials selected by an outcome have no rate."""
    return f"selected by {column}, an outcome of the trials: their rate says nothing of the agent"


def _clustering(instances: Iterable[Instance], clusters: Mapping[str, str] | None) -> Clustering:
    cases = ((each.cell.case, each.label) for each in instances)
    return clustering_of((case, (clusters or {}).get(case), label) for case, label in cases)


def rate_of(
    instances: Mapping[Instance, TrialTally],
    level: float = LEVEL,
    clusters: Mapping[str, str] | None = None,
    *,
    estimand: Estimand = "suite",
    selected_by: str | None = None,
) -> Interval:
    """Return the mean of the instances' pass rates, with an interval clustered by case.

    Of trials selected by an outcome (`selected_by`) there is none: the selection made it.

    `clusters` maps a case to the cluster it shares with other cases, where it has one.
    """
    counts = [CaseCounts(t.passed, t.judged, t.unjudged) for t in instances.values()]
    total = TrialTally()
    for one in instances.values():
        total.add(one)
    clustering = _clustering(instances, clusters)
    found = rate_over(
        counts,
        clustering,
        level=level,
        bias=total.bias,
        watched=bool(total.watched),
        estimand=estimand,
    )
    if selected_by is not None:
        return found.undefined(by_outcome(selected_by))
    return found


def rate_over(
    counts: Sequence[CaseCounts],
    clustering: Clustering,
    *,
    level: float = LEVEL,
    bias: str | None = None,
    watched: bool = False,
    estimand: Estimand = "suite",
) -> Interval:
    """Return the pass rate over instances; a single one has its own rate and Wilson interval.

    As a draw of a population it has none: it shows no variation between draws.

    With a `bias` (its reason) there is no interval. After an early stop the stopping has used up
    the guarantee of one at a fixed number of trials; but a single instance that could have stopped
    (`watched`) has a confidence sequence, even if it did not: with Wilson for those that did not,
    both would miss.
    """
    # A clustered interval needs two draws: one says nothing about the variance between them.
    judged = [row for row in counts if row.trials]
    seen = {case for case, row in zip(clustering.cases, counts, strict=True) if row.trials}
    of = {"cases": len(seen), "left_out": len(set(clustering.cases)) - len(seen)}
    if estimand == "suite" and (len(judged) == 1 or len(counts) == 1):
        of_cell = stopped_rate if bias == STOPPED or watched else case_rate
        rate = of_cell(*(judged or counts)[0][:2], level=level)
        bias = None if bias == STOPPED else bias
    elif estimand == "suite":
        rate = suite_rate(counts, level=level)
    else:
        rate = population_rate(
            counts,
            cases=clustering.drawn,
            clusters=clustering.keys,
            unit=clustering.unit,
            level=level,
        )
    if bias is not None and rate.value is not None:
        rate = rate.without_bounds(bias)
    return replace(rate, **of)


def mean_score(
    instances: Iterable[TrialTally], total: TrialTally, estimand: Estimand, drawn: Sequence[str]
) -> Figure:
    """Return the mean of the instances' mean scores; of a population, of those of its draws."""
    # Mean of means: an instance with more trials does not weigh more.
    scored = [
        (draw, t.score_sum / t.scored) for draw, t in zip(drawn, instances, strict=True) if t.scored
    ]
    means, of = [value for _, value in scored], "instances"
    if estimand == "population":
        by_draw = values_by_case(means, [draw for draw, _ in scored])
        means, of = [sum(own) / len(own) for own in by_draw.values()], "cases"
    unscored = Excluded("trials", total.judged - total.scored, "judged without a score")
    return Figure(
        value=sum(means) / len(means) if means else None,
        n=len(means),
        trials=total.scored,
        selected=total.trials,
        left_out=total.left_out + ((unscored,) if unscored.count else ()),
        method=f"mean of the {of}' means",
        reason=None if means else "no scored trial",
    )


def tallies_by_group(
    rows: Iterable[tuple[Any, ...]], keys: int, scenarios: Collection[str]
) -> dict[tuple[Any, ...], dict[Instance, TrialTally]]:
    """Return tallies by group and instance; a row is group values, agent, params, case, seed,
    `TALLY`. Parameters of `scenarios` make other instances of a case, those of others do not.
    """
    groups: dict[tuple[Any, ...], dict[Instance, TrialTally]] = defaultdict(dict)
    for row in rows:
        key, (agent, params, case, seed) = row[:keys], row[keys : keys + 4]
        # SQL groups by the text of params; the same params in another order are one cell.
        cell = cell_of(agent, params, case)
        label = f"{cell.params if case in scenarios else ''} {seed}"
        groups[key].setdefault(Instance(cell, label), TrialTally()).add(
            TrialTally(*row[keys + 4 :])
        )
    return groups

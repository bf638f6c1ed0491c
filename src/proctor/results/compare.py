"""Compare agents, or one agent in several runs, on the same instances of the same cases.

Guarantees: every figure names its estimand, its n and what it leaves out; a figure that is not
defined is None with a reason. Suite figures are about exactly these instances, population figures
about the population the cases were drawn from. After early stopping no fixed-n test is valid, so
none is made. A run is never compared with itself: it is no second observation.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from proctor.errors import ProctorError, hint_among
from proctor.formatting import p_text, percent, plural, points
from proctor.results._comparability import changed_cases, remarks
from proctor.results.aggregate import OF_JUDGED, cell_of, rate_over
from proctor.results.database import CASE_KEY, named
from proctor.results.gate import CaseFlakiness, Votes, flakiness_of, judge_votes
from proctor.results.outcomes import (
    NOT_JUDGED,
    AgentOutcomes,
    CaseOutcome,
    Excluded,
    Ratings,
    bias,
    by_agent,
    by_case,
    clustering_of,
    corrected,
    estimand_line,
    outcomes_of,
    pair,
    pair_agents,
    pick,
    ratings_of,
    same_instance,
    unless_biased,
)
from proctor.runs.folder import run_name
from proctor.runs.run import Run
from proctor.runs.trial import CellKey
from proctor.stats.compare import (
    Compared,
    compare_draws,
    draws_of,
    gaps_of,
    on_population,
    on_suite,
    scores_on_suite,
)
from proctor.stats.describe import Correlation, Effect, cohen_dz, cohen_h, correlate, h_of_rates
from proctor.stats.intervals import (
    CorrectedRate,
    bootstrap_over_cases,
    corrected_difference,
)
from proctor.stats.ranking import adjusted, benjamini_hochberg
from proctor.stats.types import LEVEL, TIES, DifferenceTest, Estimand, Interval, mean
from proctor.tables import Tabular, interval_chart

if TYPE_CHECKING:
    from proctor.results.result_set import ResultSet


Metric = Literal["pass_rate", "score", "cost_usd", "latency_ms"]

NOTABLE_FDR = 0.10
"""False discovery rate accepted in a list of cases to look at (Benjamini–Hochberg)."""


class NamedGroup(NamedTuple):
    """One arm of a comparison and its label."""

    name: str
    outcomes: AgentOutcomes
    votes: Votes = {}  # noqa: RUF012 (an empty mapping that is never changed)
    ratings: Ratings = {}  # noqa: RUF012


class CaseDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One case in both arms. `adjusted` is after Benjamini–Hochberg over the compared cases."""

    case: str
    first: Interval
    second: Interval
    difference: Interval
    test: DifferenceTest
    adjusted: float | None
    score_difference: float | None
    flaky: tuple[str, ...]
    """Sources of flakiness by arm, such as `first agent`."""

    @property
    def changed(self) -> bool:
        """Whether the rate or the mean score differ, by more than a rounding error."""
        gaps = (self.difference.value, self.score_difference)
        return any(abs(gap or 0.0) > TIES for gap in gaps)

    @property
    def notable(self) -> bool:
        """Whether the case belongs in a list of cases to look at."""
        return self.adjusted is not None and self.adjusted <= NOTABLE_FDR


class MetricDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over all compared instances, second minus first.

    `suite` tests exactly these instances, `population` cases like these; `test` and `interval` are
    those of the estimand. The pass rate is the planned test, so its `adjusted` is its own p-value,
    after Holm over the pairs if there are several; the other metrics are secondary, and theirs is
    after Holm over them and the pairs. `trials` counts the values of both arms.
    """

    metric: Metric
    estimand: Estimand
    cases: int
    instances: int
    trials: int
    left_out: int
    first: float | None
    second: float | None
    interval: Interval
    suite: DifferenceTest | None
    population: DifferenceTest
    population_interval: Interval
    effect: Effect
    adjusted: float | None

    @property
    def test(self) -> DifferenceTest:
        """The test for the estimand; cost and latency are properties of a population."""
        suite = self.suite if self.estimand == "suite" else None
        return suite or self.population

    @property
    def difference(self) -> float | None:
        """Second minus first; None where either has no value."""
        return self.interval.value

    @property
    def p(self) -> float | None:
        """The p-value, adjusted for the metrics tested together; None where no test is valid."""
        return self.adjusted


class CorrectedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Pass rates as people would judge them, and their difference, second minus first."""

    first: CorrectedRate | None
    second: CorrectedRate | None
    interval: Interval | None
    reason: str | None


class ArmComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two arms, case by case and overall.

    `left_out` maps the cases that were not compared, or some of their instances, to the reason;
    trials that no figure counts are in `not_counted`, by arm.
    """

    first: str
    second: str
    cases: tuple[CaseDifference, ...]
    metrics: tuple[MetricDifference, ...]
    flaky: tuple[CaseFlakiness, ...]
    left_out: Mapping[str, str]
    not_counted: Mapping[str, tuple[str, ...]]
    n: tuple[int, int]
    passes: tuple[int, int]
    instances: int
    estimand: Estimand
    notes: tuple[str, ...] = ()
    corrected: CorrectedDifference | None = None
    """None where neither arm has labels of a random sample."""

    @property
    def about(self) -> str:
        """One line that says what the figures are about."""
        return estimand_line(self.estimand, len(self.cases), self.instances)

    @property
    def overall(self) -> MetricDifference:
        """The pass rate, present in every comparison."""
        return self.metrics[0]


def compare_arms(
    first: NamedGroup,
    second: NamedGroup,
    *,
    incomparable: Mapping[str, str] | None = None,
    pattern: str | None = None,
    estimand: Estimand = "suite",
    level: float = LEVEL,
    seed: int = 0,
) -> ArmComparison:
    """Compare two arms on the instances judged in both under the same conditions.

    `incomparable` maps cases that changed between the arms to the change; `pattern` selects cases
    by id (`refund-*`).
    """
    selected = [
        msgspec.structs.replace(
            arm.outcomes,
            cases=tuple(
                case
                for case in arm.outcomes.cases
                if pattern is None or fnmatch.fnmatchcase(case.case, pattern)
            ),
        )
        for arm in (first, second)
    ]
    sides = pair(*selected)
    reasons = [(each, f"only in {first.name}") for each in sides.only_first]
    reasons += [(each, f"only in {second.name}") for each in sides.only_second]
    rows: list[tuple[CaseOutcome, CaseOutcome]] = []
    for a, b in zip(sides.first, sides.second, strict=True):
        if change := (incomparable or {}).get(a.case):
            reasons.append((a, change))
        elif a.trials and b.trials:
            rows.append((a, b))
        else:
            seen = ((first, a), (second, b))
            where = " and ".join(arm.name for arm, outcome in seen if not outcome.trials)
            reasons.append((a, f"no judged trial in {where}"))
    compared = {a.case for a, _ in rows}
    flaky = [
        (arm.name, each)
        for arm in (first, second)
        for each in flakiness_of(arm.outcomes, arm.votes)
        if each.flaky and each.case in compared
    ]
    whole = [case for arm in selected for case in arm.cases if case.case in compared]
    comparison = ArmComparison(
        first=first.name,
        second=second.name,
        cases=_cases(rows, flaky, (first.name, second.name), level),
        metrics=_metrics(rows, estimand, level, seed),
        flaky=tuple(each for _, each in flaky),
        left_out=by_case(reasons, compared),
        not_counted={
            arm.name: tuple(str(part) for part in seen.left_out)
            for arm, seen in zip((first, second), selected, strict=True)
        },
        n=(sum(a.trials for a, _ in rows), sum(b.trials for _, b in rows)),
        passes=(sum(a.passes for a, _ in rows), sum(b.passes for _, b in rows)),
        instances=len(rows),
        estimand=estimand,
        notes=tuple(plan_notes(whole)),
        corrected=_corrected_by_labels(rows, first.ratings, second.ratings, estimand, level),
    )
    return _corrected([comparison])[0]


def _corrected_by_labels(
    rows: Rows, before: Ratings, after: Ratings, estimand: Estimand, level: float
) -> CorrectedDifference | None:
    first = corrected([a for a, _ in rows], before, estimand=estimand, level=level)
    second = corrected([b for _, b in rows], after, estimand=estimand, level=level)
    if first is None and second is None:
        return None
    if first is None or second is None:
        why = f"no labels of a random sample in the {'first' if first is None else 'second'}"
        return CorrectedDifference(first=first, second=second, interval=None, reason=why)
    gap, _ = corrected_difference(first, second, level=level)
    return CorrectedDifference(first=first, second=second, interval=gap, reason=gap.reason)


def plan_notes(cases: Sequence[CaseOutcome]) -> Iterator[str]:
    """Yield a warning where early stopping or missing trials limit what these cases say."""
    if stopped := sum(bool(case.stopped) for case in cases):
        yield (
            f"{plural(stopped, 'cell')} stopped early: their rates are biased and no interval or"
            " test at a fixed number of trials is valid; run without --early-stop to compare"
        )
    short = sum(
        case.asked is not None
        and not case.stopped
        and case.trials + case.unjudged + case.cancelled + case.after_stop < case.asked
        for case in cases
    )
    if short:
        cells = plural(short, "cell")
        yield f"{cells} with fewer trials than planned: a run was stopped or is still running"


# -- case by case ----------------------------------------------------------------------------------


def _rate_of_case(case: CaseOutcome, level: float) -> Interval:
    """Return the rate of a case, the mean of its instances, as `results` shows it."""
    parts = case.instances
    return rate_over(
        [each.counts for each in parts],
        clustering_of((each.case, each.cluster, each.label) for each in parts),
        level=level,
        bias=bias((case,)),
        watched=case.watched,
    )


def _cases(
    rows: Sequence[tuple[CaseOutcome, CaseOutcome]],
    flaky: Sequence[tuple[str, CaseFlakiness]],
    names: tuple[str, str],
    level: float,
) -> tuple[CaseDifference, ...]:
    grouped: dict[str, list[tuple[CaseOutcome, CaseOutcome]]] = defaultdict(list)
    for row in rows:
        grouped[row[0].case].append(row)
    found = [_on_suite("pass_rate", instances, level) for instances in grouped.values()]
    # A case that never varied was tested as well, so it counts in the multiplicity correction.
    values = adjusted([each.test.p_value for each in found], benjamini_hochberg)
    flaky_sources = {(name, each.case): each.sources for name, each in flaky}
    differences: list[CaseDifference] = []
    for instances, (test, interval), value in zip(grouped.values(), found, values, strict=True):
        a, b = (CaseOutcome.merged([row[arm] for row in instances]) for arm in (0, 1))
        differences.append(
            CaseDifference(
                case=a.case,
                first=_rate_of_case(a, level),
                second=_rate_of_case(b, level),
                difference=interval,
                test=test,
                adjusted=value,
                score_difference=None
                if a.mean_score is None or b.mean_score is None
                else b.mean_score - a.mean_score,
                flaky=tuple(
                    f"{arm} {source}"
                    for arm, name in zip(("first", "second"), names, strict=True)
                    for source in flaky_sources.get((name, a.case), ())
                ),
            )
        )
    return tuple(
        sorted(
            differences,
            key=lambda each: (
                -abs(each.difference.value or 0.0),
                -round(abs(each.score_difference or 0.0), 9),
                each.case,
            ),
        )
    )


# -- overall ---------------------------------------------------------------------------------------

Rows = Sequence[tuple[CaseOutcome, CaseOutcome]]
"""Instances in both arms."""


def _metrics(
    rows: Rows, estimand: Estimand, level: float, seed: int
) -> tuple[MetricDifference, ...]:
    metrics = [_measured(name, rows, estimand, level, seed) for name in METRIC_VALUES]
    # The pass rate is always reported; a metric that no case has would only be noise.
    return tuple(each for each in metrics if each.metric == "pass_rate" or each.instances)


METRIC_VALUES: Mapping[Metric, Callable[[CaseOutcome], tuple[float, ...]]] = {
    "pass_rate": lambda case: (1.0,) * case.passes + (0.0,) * (case.trials - case.passes),
    "score": lambda case: case.scores,
    "cost_usd": lambda case: case.costs_usd,
    "latency_ms": lambda case: case.latencies_ms,
}
"""The values of each metric: one per trial that has one."""


def _measured(
    metric: Metric, every: Rows, estimand: Estimand, level: float, seed: int
) -> MetricDifference:
    """Compare a metric over the instances that have it in both arms.

    Cost and duration are properties of a case wherever it runs, so they are tested over cases;
    pass rates and scores are also tested on exactly these instances.
    """
    values = METRIC_VALUES[metric]
    rows = [(a, b) for a, b in every if values(a) and values(b)]
    outcomes = [outcome for row in rows for outcome in row]
    # `or 0.0` is for the type only: every row has values.
    means = [[mean(values(row[arm])) or 0.0 for row in rows] for arm in (0, 1)]
    cases, clusters = [a.case for a, _ in rows], [a.cluster_key for a, _ in rows]
    draws = draws_of(*means, cases=cases, clusters=clusters)
    gaps = gaps_of(draws.first, draws.second)
    counted = {
        "n": sum(len(values(outcome)) for outcome in outcomes),
        "cases": len(set(cases)),
        "left_out": len(every) - len(rows),
    }
    suite: Compared | None = None
    if metric in ("pass_rate", "score"):
        population = on_population(*means, cases=cases, clusters=clusters, level=level, seed=seed)
        suite = _on_suite(metric, rows, level, seed).counting(**counted)
    else:
        population = Compared(
            compare_draws(draws, seed=seed),
            bootstrap_over_cases(gaps, unit=draws.unit, level=level, seed=seed),
        )
    population = _unless_biased(population.counting(**counted), outcomes, metric)
    chosen = suite if suite is not None and estimand == "suite" else population
    # The mean of the instances for a suite, of the draws for a population.
    shown = [mean(arm) for arm in (means if chosen is suite else (draws.first, draws.second))]
    unpriced = [sum(row[arm].unpriced_calls for row in every) for arm in (0, 1)]
    if metric == "cost_usd" and any(unpriced):
        # A part of a cost is no mean, and neither cheaper nor dearer than another.
        why = f"{plural(sum(unpriced), 'call')} unpriced: the cost is a lower bound"
        shown = [None if calls else value for calls, value in zip(unpriced, shown, strict=True)]
        population = chosen = Compared(
            replace(population.test, difference=None, p_value=None, reason=why),
            population.interval.undefined(why),
        )
    # The effect is that of the difference shown: of instances, or of draws.
    if metric != "pass_rate":
        effect = cohen_dz(*(means if chosen is suite else (draws.first, draws.second)))
    else:
        effect = cohen_h([a.counts for a, _ in rows], [b.counts for _, b in rows])
        if rows and chosen is not suite:
            effect = replace(effect, value=h_of_rates(*(value or 0.0 for value in shown)))
    return MetricDifference(
        metric=metric,
        estimand=estimand,
        cases=counted["cases"],
        instances=len(rows),
        trials=counted["n"],
        left_out=counted["left_out"],
        first=shown[0],
        second=shown[1],
        interval=chosen.interval,
        suite=None if suite is None else suite.test,
        population=population.test,
        population_interval=population.interval,
        effect=replace(effect, left_out=counted["left_out"], estimand=chosen.interval.estimand),
        adjusted=None,
    )


def compare_metric(
    metric: Metric, rows: Rows, estimand: Estimand, *, sign: float = 1.0, seed: int = 0
) -> DifferenceTest:
    """Test one metric on the instances of two arms that both have it; −1 makes less better."""
    if estimand == "suite" and metric in ("pass_rate", "score"):
        return _on_suite(metric, rows, LEVEL, seed).test
    values = METRIC_VALUES[metric]
    means = [[sign * (mean(values(row[arm])) or 0.0) for row in rows] for arm in (0, 1)]
    cases, clusters = [a.case for a, _ in rows], [a.cluster_key for a, _ in rows]
    return compare_draws(draws_of(*means, cases=cases, clusters=clusters), seed=seed)


def _unless_biased(found: Compared, outcomes: Iterable[CaseOutcome], metric: Metric) -> Compared:
    cases = tuple(outcomes)
    return Compared(
        unless_biased(found.test, cases, metric), unless_biased(found.interval, cases, metric)
    )


def _on_suite(metric: Metric, rows: Rows, level: float, seed: int = 0) -> Compared:
    """Compare passes or scores on exactly these instances."""
    cases, outcomes = [a.case for a, _ in rows], [*itertools.chain(*rows)]
    if metric == "pass_rate" or all(each.binary for each in outcomes):
        counts = [[row[arm].counts for row in rows] for arm in (0, 1)]
        found = on_suite(*counts, cases=cases, level=level)
    else:
        scores = [[row[arm].scores for row in rows] for arm in (0, 1)]
        found = scores_on_suite(*scores, cases=cases, level=level, seed=seed)
    return _unless_biased(found, outcomes, metric)


# Pair the arms of runs: an agent is compared with itself in each other run, or named agents with
# each other. Cases that changed between the runs are left out by hash, and everything without a
# partner is reported. With several pairs, the p-values of the pass rate are corrected by Holm.


class Comparison(Tabular, msgspec.Struct, frozen=True, kw_only=True):
    """Every pair that was compared, and the agents without a partner.

    `runs` are all runs; `first` and `second` are the first two, or one run twice.
    """

    first: str
    second: str
    runs: tuple[str, ...]
    estimand: Estimand
    pairs: tuple[ArmComparison, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    level: float
    notes: tuple[str, ...] = ()

    @property
    def pass_rate(self) -> MetricDifference:
        """The pass rates of the one compared pair; with several pairs, read `pairs`."""
        if len(self.pairs) != 1:
            raise ProctorError(
                f"{plural(len(self.pairs), 'pair')} of agents were compared, not one",
                hint="read comparison.pairs, or name two agents: compare(…, agents=[a, b])",
            )
        return self.pairs[0].overall

    def records(self) -> list[dict[str, Any]]:
        """Return a row per pair and metric, second minus first."""
        return [
            {
                "first": each.first,
                "second": each.second,
                "metric": metric.metric,
                "first_value": metric.first,
                "second_value": metric.second,
                "difference": metric.difference,
                "low": metric.interval.low,
                "high": metric.interval.high,
                "p": metric.test.p_value,
                "p_adjusted": metric.adjusted,
                "cases": metric.cases,
                "trials": metric.trials,
            }
            for each in self.pairs
            for metric in each.metrics
        ]

    def _chart(self) -> dict[str, Any]:
        rows = [
            {
                "name": f"{each.second} − {each.first}",
                "value": each.overall.difference,
                "low": each.overall.interval.low,
                "high": each.overall.interval.high,
            }
            for each in self.pairs
        ]
        return interval_chart(rows, f"difference of pass rates, {self.level:.0%} interval")

    def _repr_html_(self) -> str:
        """Return a table of the pairs, for notebooks."""
        from proctor.tables import html_table

        rows: list[tuple[object, ...]] = []
        for each in self.pairs:
            rate = each.overall
            low, high = points(rate.interval.low), points(rate.interval.high)
            rows.append(
                (
                    each.first,
                    each.second,
                    percent(rate.first),
                    percent(rate.second),
                    f"{points(rate.difference)} [{low}, {high}]",
                    p_text(rate.adjusted),
                    len(each.cases),
                )
            )
        head = ("first", "second", "pass rate", "pass rate", "difference", "p", "cases")
        left_out = [f"left out: {c}: {why}" for p in self.pairs for c, why in p.left_out.items()]
        title = f"{self.second} compared with {self.first}"
        if self.first == self.second:
            title = f"Agents of {self.first}"
        return html_table(title, head, rows, [*left_out, *self.notes])


def compare_runs(
    *runs: Run,
    agents: Sequence[str] = (),
    cases: str | None = None,
    estimand: Estimand = "suite",
    level: float = LEVEL,
    seed: int = 0,
) -> Comparison:
    """Compare runs, agent by agent; or the agents of one run, or a named one of each run.

    Three or more are compared pair by pair.
    """
    if len(agents) == 1 and len(runs) > 1:
        agents = [*agents] * len(runs)  # that agent of each run
    _refuse_unclear(runs, agents)
    seen = {run.path: outcomes_of(run) for run in runs}
    pairs: list[tuple[Run, Run, AgentOutcomes, AgentOutcomes]] = []
    only: dict[str, tuple[str, ...]] = {}
    notes: list[str] = []
    if agents:
        sources = runs if len(runs) > 1 else runs * len(agents)
        named_arms = [
            (run, _resolve_agent(seen[run.path], name, run))
            for run, name in zip(sources, agents, strict=True)
        ]
        for (first, a), (second, b) in itertools.combinations(named_arms, 2):
            _refuse_itself(first, second, same_agent=a.name == b.name)
            pairs.append((first, second, a, b))
    elif len(runs) == 1:
        (run,) = runs
        pairs = [(run, run, a, b) for a, b in itertools.combinations(seen[run.path], 2)]
        if not pairs:
            raise ProctorError(
                f"{run_name(run.path)} has one agent: there is nothing to compare it with",
                hint="name a second run, as in `proctor compare main latest`",
            )
    else:
        for first, second in itertools.combinations(runs, 2):
            _refuse_itself(first, second, same_agent=True)
            arms = pair_agents(seen[first.path], seen[second.path])
            pairs += [(first, second, a, b) for a, b in arms.pairs]
            notes += arms.notes
            for run, names in ((first, arms.only_first), (second, arms.only_second)):
                only[run_name(run.path)] = tuple(
                    name for name in names if name in only.get(run_name(run.path), names)
                )
    if not pairs:
        names = [", ".join(sorted(arm.name for arm in seen[run.path])) for run in runs]
        raise ProctorError(
            f"no agent is in both runs: {'; '.join(names)}",
            hint="name one of each: --agents a,b",
        )
    if cases is not None and not any(
        fnmatch.fnmatchcase(case.case, cases)
        for *_, a, b in pairs
        for arm in (a, b)
        for case in arm.cases
    ):
        raise ProctorError(f"no case matches {cases!r}", hint="such as --cases 'refund-*'")
    # Once for all pairs: it may scan every trial of a run.
    votes = {run.path: judge_votes(run) for run in runs}
    rated = {run.path: ratings_of(run) for run in runs}
    compared = [
        compare_arms(
            *(
                NamedGroup(
                    name, arm, votes[run.path], rated[run.path].get((arm.agent, arm.params), {})
                )
                for name, arm, run in zip(_labels(a, b, x, y), (a, b), (x, y), strict=True)
            ),
            incomparable={} if x is y else changed_cases(x.spec, y.spec),
            pattern=cases,
            estimand=estimand,
            level=level,
            seed=seed,
        )
        for x, y, a, b in pairs
    ]
    for x, y in itertools.combinations(runs, 2):
        notes += remarks(x.spec, y.spec)
    names = [run_name(run.path) for run in runs]
    return Comparison(
        first=names[0],
        second=names[min(1, len(names) - 1)],
        runs=tuple(names),
        estimand=estimand,
        pairs=_corrected(compared),
        only_first=only.get(names[0], ()),
        only_second=only.get(names[1], ()) if len(names) > 1 else (),
        level=level,
        notes=tuple(dict.fromkeys(notes)),
    )


def _corrected(pairs: Sequence[ArmComparison]) -> tuple[ArmComparison, ...]:
    """Correct by Holm: the pass rates, which are planned, and the other metrics of all pairs."""
    metrics = [list(each.metrics) for each in pairs]
    places = [(row, at) for row in metrics for at in range(len(row))]
    for planned in (True, False):
        family = [(row, at) for row, at in places if (at == 0) == planned]
        values = adjusted([row[at].test.p_value for row, at in family])
        for (row, at), value in zip(family, values, strict=True):
            row[at] = msgspec.structs.replace(row[at], adjusted=value)
    return tuple(
        msgspec.structs.replace(each, metrics=tuple(row))
        for each, row in zip(pairs, metrics, strict=True)
    )


def _refuse_unclear(runs: Sequence[Run], agents: Sequence[str]) -> None:
    """Refuse agents that name no pair: fewer than two, or not one for each run."""
    if agents and (len(agents) < 2 or (len(runs) > 1 and len(agents) != len(runs))):
        raise ProctorError(
            f"{plural(len(agents), 'agent')} named for {plural(len(runs), 'run')}",
            hint="name two or more of one run, one of all runs, or one for each run: --agents a,b;"
            " if a name contains a comma, give --agents several times",
        )


def _refuse_itself(first: Run, second: Run, *, same_agent: bool) -> None:
    if same_agent and first.run_id == second.run_id:
        raise ProctorError(
            f"{run_name(first.path)} cannot be compared with itself:"
            " the same trials are no second observation",
            hint="name two runs, or two agents of one run: --agents a,b",
        )


def _resolve_agent(arms: Sequence[AgentOutcomes], name: str, run: Run) -> AgentOutcomes:
    """Resolve an agent by name or unique prefix, with its parameters where there are several."""
    # Named with parameters of a scenario, the agent is compared under them alone.
    if " (" in name and not any(arm.name.startswith(name) for arm in arms):
        arms = outcomes_of(run, by_params=True)
    # An exact name wins over a prefix of a longer one.
    for matches in (
        [arm for arm in arms if arm.name == name],
        [arm for arm in arms if arm.agent == name],
        [arm for arm in arms if arm.name.startswith(name)],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            listed = "; ".join(sorted(arm.name for arm in matches))
            raise ProctorError(
                f"{name!r} is ambiguous, it matches {len(matches)}: {listed}",
                hint="write enough of the name to make it unique, in quotes",
            )
    return pick(arms, name)


def _labels(a: AgentOutcomes, b: AgentOutcomes, first: Run, second: Run) -> Sequence[str]:
    """Return two different labels: the agents, with their runs if the agent is the same."""
    if a.name != b.name:
        return (a.name, b.name)
    names = [f"{a.name} @ {run_name(run.path)}" for run in (first, second)]
    return names if names[0] != names[1] else [f"{names[0]} (first)", f"{names[0]} (second)"]


# Compare parts of a selection with each other, and with properties of their cases. Two arms are
# compared on the instances both have, by the tests of `proctor compare` for exactly these cases.
# Cases of only one arm are reported, never silently dropped.


ORDERED = {"easy": 1.0, "medium": 2.0, "hard": 3.0}
"""Difficulty labels with an order; cases with other labels are left out."""


class Difference(Tabular, msgspec.Struct, frozen=True, kw_only=True):
    """A second arm against a first, over the cases both have.

    `pass_rate` is the difference of rates on exactly these cases with its interval, `test` tests
    whether any case changed, `score` tests the scores of exactly these cases.
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
    left_out: tuple[Excluded, ...]

    def records(self) -> list[dict[str, Any]]:
        """Return the difference of pass rates and of scores."""
        rate, own = self.pass_rate, {"first": self.first, "second": self.second}
        return [
            {
                **own,
                "metric": metric,
                "difference": test.difference,
                "low": rate.low if metric == "pass_rate" else None,
                "high": rate.high if metric == "pass_rate" else None,
                "p": test.p_value,
                "cases": test.cases,
                "n": test.n,
            }
            for metric, test in (("pass_rate", self.test), ("score", self.score))
        ]


def difference(of: ResultSet, first: Any, second: Any, *, by: str, level: float) -> Difference:
    """Compare the trials with one value of a column to those with another."""
    _of_agents(of, by)
    if first == second:
        raise ProctorError(
            f"{by} {first!r} cannot be compared with itself:"
            " the same trials are no second observation",
            hint="name two values",
        )
    a, b = _arm(of, by, first), _arm(of, by, second)
    both = [key for key in a if key in b]
    rows = [(a[key], b[key]) for key in both if a[key].trials and b[key].trials]
    found = _on_suite("pass_rate", rows, level)
    scored = [(one, other) for one, other in rows if one.scores and other.scores]
    score = _on_suite("score", scored, level)
    rows_of = [*a.values(), *b.values()]
    names = [{case for case, _ in arm} for arm in (a, b)]
    left_out = (
        Excluded("trials", sum(row.infra for row in rows_of), "infrastructure error"),
        Excluded("trials", sum(row.not_judged for row in rows_of), NOT_JUDGED),
        Excluded("cases", len(names[0] ^ names[1]), "present in only one of the two"),
        Excluded(
            "instances",
            sum(case in names[0] and case in names[1] for case, _ in a.keys() ^ b.keys()),
            "their seed is in only one of the two",
        ),
        Excluded("cases", len(rows) - len(scored), "no score in one of the two"),
    )
    return Difference(
        by=by,
        first=first,
        second=second,
        pass_rate=found.interval,
        test=found.test,
        score=score.test,
        cases=tuple(sorted({case for case, _ in both})),
        only_first=tuple(sorted(names[0] - names[1])),
        only_second=tuple(sorted(names[1] - names[0])),
        left_out=tuple(part for part in left_out if part.count),
    )


def _of_agents(of: ResultSet, *names: str) -> None:
    """Refuse trials that an outcome selected: the selection made their rates."""
    if column := of.selected_by(names):
        raise ProctorError(
            f"the trials are selected by {column}, an outcome: nothing follows for the agents",
            hint="select by what is known before a trial: case, agent, tags, date",
        )


def _arm(of: ResultSet, by: str, value: Any) -> dict[tuple[str, str], CaseOutcome]:
    """Return the trials with one value of the column, by case and instance."""
    instances: dict[tuple[str, str], list[CaseOutcome]] = defaultdict(list)
    # Parameters are part of an instance, unless they are what is compared.
    apart = named(by).base != "params"
    for arm in outcomes_in(of.where(where={by: value})):
        for each in arm.instances:
            instances[each.case, each.label + f" {arm.params}" * apart].append(each)
    if not instances:
        known = sorted(str(row.key[by]) for row in of.group_by(by).rows)
        raise ProctorError(f"no trial has {by} {value!r}", hint=hint_among(str(value), known))
    return {key: same_instance(each) for key, each in sorted(instances.items())}


def correlation(
    of: ResultSet, column: str, value: str, method: Literal["pearson", "spearman"]
) -> Correlation:
    """Correlate a property of the cases with the mean of a column, one pair per case."""
    property_, number = named(column), of.number(value)
    judged = "counted AND judged" if value in OF_JUDGED else "counted"
    sql = (
        f"SELECT {CASE_KEY}, {property_.sql}, avg({number.sql}) FROM trials"  # noqa: S608 (from the table of columns)
        f" WHERE {judged} GROUP BY ALL ORDER BY ALL"
    )
    rows = of.fetch(sql, {"case", "experiment", "counted", "judged", property_.base, number.base})
    pairs = [(_as_number(raw), average) for _, raw, average in rows]
    complete = [(x, float(y)) for x, y in pairs if x is not None and y is not None]
    result = correlate([x for x, _ in complete], [y for _, y in complete], method=method)
    missing = len(pairs) - len(complete)
    if not missing:
        return result
    cases = plural(len(pairs), "case")
    why = f"{missing} of {cases} left out: no numeric value in {column}, or no {value}"
    return replace(result, reason="; ".join(filter(None, (result.reason, why))))


def _as_number(value: Any) -> float | None:
    text = str(value).strip().lower()
    try:
        return ORDERED[text] if text in ORDERED else float(value)
    except (TypeError, ValueError):
        return None


def outcomes_in(of: ResultSet) -> tuple[AgentOutcomes, ...]:
    """Return the outcomes of the selected trials by agent and parameters, pooling runs of one cell.

    Unlike a run's own outcomes these contain only the selection: a case without a trial is absent.
    """
    _of_agents(of)
    judged = "counted AND judged"
    # Plan order, as in the outcomes of a run.
    order = 'ORDER BY run, "index"'
    sql = f"""
        SELECT agent, params::VARCHAR, experiment, "case", axis_seed,
          count(*) FILTER ({judged} AND status = 'passed'), count(*) FILTER ({judged}),
          list(score {order}) FILTER ({judged} AND score IS NOT NULL),
          count(*) FILTER (counted AND status = 'infra_error'),
          count(*) FILTER (counted AND status = 'not_judged'),
          count(score) FILTER (counted AND status = 'not_judged'),
          count(*) FILTER (counted AND status = 'cancelled'),
          count(*) FILTER (NOT counted),
          any_value(threshold), any_value(json_extract_string(properties, '$.cluster')),
          list(latency_ms {order}) FILTER ({judged} AND latency_ms IS NOT NULL),
          list(cost_usd {order}) FILTER (counted AND cost_usd IS NOT NULL),
          list(spent_usd {order}) FILTER (spent_usd IS NOT NULL),
          coalesce(sum(spent_unpriced_calls), 0)::BIGINT,
          any_value(early_stop), count(stopping_rules) > 0
        FROM trials GROUP BY ALL ORDER BY ALL
    """  # noqa: S608 (constants)
    columns = {"agent", "params", "case", "counted", "judged", "status", "score", "latency_ms"}
    columns |= {"threshold", "properties", "cost_usd", "spent_usd", "spent_unpriced_calls"}
    columns |= {"run", "axis_seed", "index", "experiment", "early_stop", "stopping_rules"}
    rows = of.fetch(sql, columns)
    # A case belongs to its suite: two suites may use one id for different questions.
    several = len({row[2] for row in rows}) > 1
    instances: list[tuple[CellKey, CaseOutcome]] = []
    for agent, params, experiment, case, axis_seed, *figures in rows:
        passes, trials, scores, infra, not_judged, undecided, cancelled, *more = figures
        after, threshold, cluster, latencies, costs, spent, unpriced, stopped, watched = more
        name = f"{experiment}/{case}" if several else case
        # SQL groups by the text of params; the same params in another order are one cell.
        outcome = CaseOutcome(
            case=name,
            passes=passes,
            trials=trials,
            scores=tuple(scores or ()),
            unscored=trials - len(scores or ()),
            infra=infra,
            not_judged=not_judged,
            undecided=undecided,
            cancelled=cancelled,
            after_stop=after,
            threshold=threshold,
            cluster=cluster,
            stopped=stopped,
            watched=watched,
            latencies_ms=tuple(latencies or ()),
            costs_usd=tuple(costs or ()),
            spent_usd=tuple(spent or ()),
            unpriced_calls=unpriced,
            seed=axis_seed,
        )
        instances.append((cell_of(agent, params, name), outcome))
    return by_agent(instances)

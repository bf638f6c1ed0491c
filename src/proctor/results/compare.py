"""Compare two agents, or one agent in two runs, on the same cases.

Guarantees: every figure names its estimand, its n and what it leaves out; a figure that is not
defined is None with a reason. Suite figures are about exactly these cases, population figures about
the population the cases were drawn from. After early stopping no fixed-n test is valid, so none is
made.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from proctor.errors import ProctorError, hint_among
from proctor.formatting import p_text, percent, plural, points
from proctor.results._comparability import changed_cases, remarks
from proctor.results.aggregate import OF_JUDGED, GroupRow, cell_of
from proctor.results.database import named
from proctor.results.gate import CaseFlakiness, Votes, flakiness_of, judge_votes
from proctor.results.outcomes import (
    AgentOutcomes,
    CaseOutcome,
    Excluded,
    PairedAgents,
    by_agent,
    outcomes_of,
    pair,
    pair_agents,
    pick,
    unless_stopped,
)
from proctor.runs.folder import run_name
from proctor.runs.run import Run
from proctor.runs.trial import CellKey
from proctor.stats.compare import paired_means, stratified, suite_difference, within_case
from proctor.stats.describe import Correlation, Effect, cohen_dz, cohen_h, correlate
from proctor.stats.intervals import bootstrap_over_cases, case_rate
from proctor.stats.ranking import benjamini_hochberg, holm
from proctor.stats.types import LEVEL, CaseCounts, DifferenceTest, Interval, mean

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
    def notable(self) -> bool:
        """Whether the case belongs in a list of cases to look at."""
        return self.adjusted is not None and self.adjusted <= NOTABLE_FDR


class MetricDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over all compared cases: mean of the cases, second minus first.

    `suite` tests exactly these cases, `population` the population they were drawn from. The pass
    rate is the one planned test of a comparison, so its `adjusted` is its own p-value; the other
    metrics are secondary, and theirs is after Holm over them.
    """

    metric: Metric
    first: float | None
    second: float | None
    interval: Interval
    suite: DifferenceTest | None
    population: DifferenceTest
    population_interval: Interval
    effect: Effect
    adjusted: float | None

    @property
    def difference(self) -> float | None:
        """Second minus first; None where either has no value."""
        return self.interval.value

    @property
    def p(self) -> float | None:
        """The p-value, adjusted for the metrics tested together; None where no test is valid."""
        return self.adjusted


class ArmComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two arms, case by case and overall.

    `left_out` maps the cases that were not compared to the reason; trials that no figure counts are
    in `not_counted`, by arm.
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
    notes: tuple[str, ...] = ()

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
    level: float = LEVEL,
    seed: int = 0,
) -> ArmComparison:
    """Compare two arms on the cases judged in both under the same conditions.

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
    left_out = {
        **dict.fromkeys(sides.only_first, f"only in {first.name}"),
        **dict.fromkeys(sides.only_second, f"only in {second.name}"),
        **{case: why for case, why in (incomparable or {}).items() if case in sides.cases},
    }
    for case, a, b in zip(sides.cases, sides.first, sides.second, strict=True):
        if case not in left_out and not (a.trials and b.trials):
            where = " and ".join(
                arm.name for arm, seen in ((first, a), (second, b)) if not seen.trials
            )
            left_out[case] = f"no judged trial in {where}"
    rows = [
        (a, b)
        for case, a, b in zip(sides.cases, sides.first, sides.second, strict=True)
        if case not in left_out
    ]
    before, after = [a for a, _ in rows], [b for _, b in rows]
    compared = {a.case for a in before}
    flaky = [
        (arm.name, each)
        for arm in (first, second)
        for each in flakiness_of(arm.outcomes, arm.votes)
        if each.flaky and each.case in compared
    ]
    return ArmComparison(
        first=first.name,
        second=second.name,
        cases=_cases(rows, flaky, (first.name, second.name), level),
        metrics=_metrics(before, after, level, seed),
        flaky=tuple(each for _, each in flaky),
        left_out=left_out,
        not_counted={
            arm.name: tuple(str(part) for part in seen.left_out)
            for arm, seen in zip((first, second), selected, strict=True)
        },
        n=(sum(a.trials for a in before), sum(b.trials for b in after)),
        passes=(sum(a.passes for a in before), sum(b.passes for b in after)),
        notes=tuple(_notes(before, after)),
    )


def _notes(before: Sequence[CaseOutcome], after: Sequence[CaseOutcome]) -> Iterable[str]:
    yield from stopped_note((*before, *after))
    short = sum(
        case.asked is not None
        and not case.stopped
        and case.trials + case.infra + case.cancelled + case.after_stop < case.asked
        for case in (*before, *after)
    )
    if short:
        cells = plural(short, "cell")
        yield f"{cells} with fewer trials than planned: a run was stopped or is still running"


def stopped_note(cases: Iterable[CaseOutcome]) -> Iterator[str]:
    """Return a warning where early stopping invalidates the comparison of these cases."""
    if stopped := sum(bool(case.stopped) for case in cases):
        yield (
            f"{plural(stopped, 'cell')} stopped early: their rates are biased and no interval or"
            " test at a fixed number of trials is valid; run without --early-stop to compare"
        )


# -- case by case ----------------------------------------------------------------------------------


def _cases(
    rows: Sequence[tuple[CaseOutcome, CaseOutcome]],
    flaky: Sequence[tuple[str, CaseFlakiness]],
    names: tuple[str, str],
    level: float,
) -> tuple[CaseDifference, ...]:
    tests = [unless_stopped(stratified([a.counts], [b.counts]), (a, b)) for a, b in rows]
    # A case that never varied was tested as well, so it counts in the multiplicity correction.
    adjusted = benjamini_hochberg([1.0 if t.p_value is None else t.p_value for t in tests])
    flaky_sources = {(name, each.case): each.sources for name, each in flaky}
    differences = [
        CaseDifference(
            case=a.case,
            first=unless_stopped(case_rate(a.passes, a.trials, level=level), (a,)),
            second=unless_stopped(case_rate(b.passes, b.trials, level=level), (b,)),
            difference=unless_stopped(
                suite_difference([a.counts], [b.counts], level=level), (a, b)
            ),
            test=test,
            adjusted=None if test.p_value is None else value,
            score_difference=None
            if a.mean_score is None or b.mean_score is None
            else b.mean_score - a.mean_score,
            flaky=tuple(
                f"{arm} {source}"
                for arm, name in zip(("first", "second"), names, strict=True)
                for source in flaky_sources.get((name, a.case), ())
            ),
        )
        for (a, b), test, value in zip(rows, tests, adjusted, strict=True)
    ]
    return tuple(
        sorted(differences, key=lambda each: (-abs(each.difference.value or 0.0), each.case))
    )


# -- overall ---------------------------------------------------------------------------------------


def _metrics(
    before: Sequence[CaseOutcome], after: Sequence[CaseOutcome], level: float, seed: int
) -> tuple[MetricDifference, ...]:
    metrics = [
        _pass_rate(before, after, level, seed),
        _measured("score", before, after, level, seed, lambda case: case.scores),
        _measured("cost_usd", before, after, level, seed, lambda case: case.costs_usd),
        _measured("latency_ms", before, after, level, seed, lambda case: case.latencies_ms),
    ]
    # The pass rate is always reported; a metric that no case has would only be noise.
    reported = [each for each in metrics if each.metric == "pass_rate" or each.interval.cases]
    tests = [(each.suite or each.population).p_value for each in reported]
    # The pass rate is the one planned test; the others are corrected among themselves.
    adjusted = (tests[0], *holm([1.0 if p is None else p for p in tests[1:]]))
    return tuple(
        msgspec.structs.replace(each, adjusted=None if p is None else value)
        for each, p, value in zip(reported, tests, adjusted, strict=True)
    )


def _pass_rate(
    before: Sequence[CaseOutcome], after: Sequence[CaseOutcome], level: float, seed: int
) -> MetricDifference:
    first, second = [a.counts for a in before], [b.counts for b in after]
    both = (*before, *after)
    rates = ([row.rate for row in first], [row.rate for row in second])
    return MetricDifference(
        metric="pass_rate",
        first=mean(rates[0]),
        second=mean(rates[1]),
        interval=unless_stopped(suite_difference(first, second, level=level), both),
        suite=unless_stopped(stratified(first, second), both),
        population=unless_stopped(paired_means(*rates, seed=seed), both),
        population_interval=unless_stopped(_over_cases(*rates, level, seed), both),
        effect=cohen_h(first, second),
        adjusted=None,
    )


def _measured(
    metric: Metric,
    before: Sequence[CaseOutcome],
    after: Sequence[CaseOutcome],
    level: float,
    seed: int,
    values: Callable[[CaseOutcome], tuple[float, ...]],
) -> MetricDifference:
    """Compare a metric over the cases that have it in both arms.

    Cost and duration are properties of a case wherever it runs, so they are tested over cases;
    scores are also tested on exactly these cases.
    """
    rows = [(a, b) for a, b in zip(before, after, strict=True) if values(a) and values(b)]
    # `or 0.0` is for the type only: every row has values.
    means = ([mean(values(a)) or 0.0 for a, _ in rows], [mean(values(b)) or 0.0 for _, b in rows])
    left_out = len(before) - len(rows)
    cases = tuple(case for row in rows for case in row)
    interval = replace(_over_cases(*means, level, seed), left_out=left_out)
    return MetricDifference(
        metric=metric,
        first=mean(means[0]),
        second=mean(means[1]),
        interval=unless_stopped(interval, cases),
        suite=_score_test(rows, left_out, seed) if metric == "score" else None,
        population=unless_stopped(
            replace(paired_means(*means, seed=seed), left_out=left_out), cases
        ),
        population_interval=unless_stopped(interval, cases),
        effect=replace(cohen_dz(*means), left_out=left_out),
        adjusted=None,
    )


def _score_test(
    rows: Sequence[tuple[CaseOutcome, CaseOutcome]], left_out: int, seed: int
) -> DifferenceTest:
    """Test scores on exactly these cases; pass/fail scores get the exact test."""
    binary = all(
        set(case.scores) <= {0.0, 1.0} and case.scores.count(1.0) == case.passes
        for row in rows
        for case in row
    )
    # Scores of 0 and 1 say no more than counts, for which there is an exact test without sampling.
    if binary:
        test = stratified([a.counts for a, _ in rows], [b.counts for _, b in rows])
    else:
        test = within_case([a.scores for a, _ in rows], [b.scores for _, b in rows], seed=seed)
    return unless_stopped(replace(test, left_out=left_out), [case for row in rows for case in row])


def _over_cases(
    first: Sequence[float], second: Sequence[float], level: float, seed: int
) -> Interval:
    """Return the mean difference over cases with its bootstrap interval."""
    gaps = [b - a for a, b in zip(first, second, strict=True)]
    return bootstrap_over_cases(gaps, level=level, seed=seed)


# Pair the arms of runs: two runs of the same agents, or two agents. An agent is compared with
# itself in the other run, or with the named one; cases that changed between the runs are left out
# by hash, and everything without a partner is reported.


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Every pair that was compared, and the agents without a partner."""

    first: str
    second: str
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
                    p_text(rate.p),
                    len(each.cases),
                )
            )
        head = ("first", "second", "pass rate", "pass rate", "difference", "p", "cases")
        left_out = [f"left out: {c}: {why}" for p in self.pairs for c, why in p.left_out.items()]
        title = f"{self.first} compared with {self.second}"
        return html_table(title, head, rows, [*left_out, *self.notes])


def compare_runs(
    first: Run,
    second: Run | None = None,
    *,
    agents: Sequence[str] = (),
    cases: str | None = None,
    level: float = LEVEL,
    seed: int = 0,
) -> Comparison:
    """Compare two runs, agent by agent; or two agents (`agents`) of one run or of two."""
    other = first if second is None else second
    if agents and len(agents) != 2:
        raise ProctorError(
            f"{len(agents)} agents were named",
            hint="name two: --agents a,b; if a name contains a comma, give --agents twice",
        )
    if not agents and second is None:
        raise ProctorError("a single run needs two agents to compare", hint="--agents a,b")
    before = outcomes_of(first)
    after = before if second is None else outcomes_of(second)
    if agents:
        named_pair = (_resolve_agent(before, agents[0]), _resolve_agent(after, agents[1]))
        arms = PairedAgents([named_pair])
    else:
        arms = pair_agents(before, after)
    if not arms.pairs:
        names = [", ".join(sorted(arm.name for arm in side)) for side in (before, after)]
        raise ProctorError(
            f"no agent is in both runs: {names[0]}; {names[1]}",
            hint="name one of each: --agents a,b",
        )
    if cases is not None and not any(
        fnmatch.fnmatchcase(case.case, cases)
        for pair_ in arms.pairs
        for arm in pair_
        for case in arm.cases
    ):
        raise ProctorError(f"no case matches {cases!r}", hint="such as --cases 'refund-*'")
    changed = changed_cases(first.spec, other.spec)
    # Once for all pairs: it may scan every trial of a run.
    votes = (judge_votes(first), judge_votes(other))
    return Comparison(
        first=run_name(first.path),
        second=run_name(other.path),
        pairs=tuple(
            compare_arms(
                *map(NamedGroup, _labels(a, b, first, other), (a, b), votes),
                incomparable=changed,
                pattern=cases,
                level=level,
                seed=seed,
            )
            for a, b in arms.pairs
        ),
        only_first=arms.only_first,
        only_second=arms.only_second,
        level=level,
        notes=() if second is None else tuple(remarks(first.spec, second.spec)),
    )


def _resolve_agent(arms: Sequence[AgentOutcomes], name: str) -> AgentOutcomes:
    """Resolve an agent by name or unique prefix, with its parameters where there are several."""
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
# compared on the cases both have: pass counts by the exact stratified test with the interval of the
# difference, scores by the paired test of case means. Cases of only one arm are reported, never
# silently dropped.


ORDERED = {"easy": 1.0, "medium": 2.0, "hard": 3.0}
"""Difficulty labels with an order; cases with other labels are left out."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A second arm against a first, over the cases both have.

    `pass_rate` is the difference of rates on exactly these cases with its interval, `test` tests
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
    left_out: tuple[Excluded, ...]


def difference(of: ResultSet, first: Any, second: Any, *, by: str, level: float) -> Difference:
    """Compare the trials with one value of a column to those with another."""
    a, b = _arm(of, by, first), _arm(of, by, second)
    both = tuple(sorted(a.keys() & b.keys()))
    counts = [
        [CaseCounts(arm[case].passed, arm[case].judged, arm[case].infra_error) for case in both]
        for arm in (a, b)
    ]
    rows = [arm[case] for arm in (a, b) for case in both]
    pairs = [(a[case].score.value, b[case].score.value) for case in both]
    scores = [(x, y) for x, y in pairs if x is not None and y is not None]
    errors = sum(row.infra_error for arm in (a, b) for row in arm.values())
    left_out = (
        Excluded("trials", errors, "infrastructure error"),
        Excluded("cases", len(a.keys() ^ b.keys()), "present in only one of the two"),
        Excluded("cases", len(both) - len(scores), "no score in one of the two"),
    )
    return Difference(
        by=by,
        first=first,
        second=second,
        pass_rate=unless_stopped(suite_difference(*counts, level=level), rows),
        test=unless_stopped(stratified(*counts), rows),
        score=unless_stopped(paired_means([x for x, _ in scores], [y for _, y in scores]), rows),
        cases=both,
        only_first=tuple(sorted(a.keys() - b.keys())),
        only_second=tuple(sorted(b.keys() - a.keys())),
        left_out=tuple(part for part in left_out if part.count),
    )


def _arm(of: ResultSet, by: str, value: Any) -> dict[str, GroupRow]:
    """Return the trials with one value of the column, by case."""
    selected = of.where(where={by: value})
    arm = {str(row.key["case"]): row for row in selected.group_by("case").rows}
    if not arm:
        known = sorted(str(row.key[by]) for row in of.group_by(by).rows)
        raise ProctorError(f"no trial has {by} {value!r}", hint=hint_among(str(value), known))
    return arm


def correlation(
    of: ResultSet, column: str, value: str, method: Literal["pearson", "spearman"]
) -> Correlation:
    """Correlate a property of the cases with the mean of a column, one pair per case."""
    property_, number = named(column), of.number(value)
    judged = "counted AND judged" if value in OF_JUDGED else "counted"
    sql = (
        f'SELECT "case", {property_.sql}, avg({number.sql}) FROM trials'  # noqa: S608 (from the table of columns)
        f" WHERE {judged} GROUP BY ALL ORDER BY ALL"
    )
    rows = of.fetch(sql, {"case", "counted", "judged", property_.base, number.base})
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
    judged = "counted AND judged"
    # Plan order, as in the outcomes of a run.
    order = 'ORDER BY run, axis_seed, "index"'
    sql = f"""
        SELECT agent, params::VARCHAR, "case",
          count(*) FILTER ({judged} AND status = 'passed'), count(*) FILTER ({judged}),
          list(score {order}) FILTER ({judged} AND score IS NOT NULL),
          count(*) FILTER (counted AND status = 'hard_fail'),
          count(*) FILTER (counted AND status IN ('infra_error', 'not_judged')),
          count(*) FILTER (counted AND status = 'cancelled'),
          count(*) FILTER (NOT counted),
          any_value(threshold), any_value(json_extract_string(properties, '$.cluster')),
          list(latency_ms {order}) FILTER ({judged} AND latency_ms IS NOT NULL),
          list(cost_usd {order}) FILTER (counted AND cost_usd IS NOT NULL),
          coalesce(sum(unpriced_calls) FILTER (counted), 0)::BIGINT,
          any_value(early_stop)
        FROM trials GROUP BY ALL
    """  # noqa: S608 (constants)
    columns = {"agent", "params", "case", "counted", "judged", "status", "score", "latency_ms"}
    columns |= {"threshold", "properties", "cost_usd", "unpriced_calls", "run", "axis_seed"}
    columns |= {"early_stop"}
    rows = of.fetch(sql, columns | {"index"})
    cells: dict[CellKey, CaseOutcome] = {}
    for agent, params, case, passes, trials, scores, hard, infra, cancelled, after, *more in rows:
        threshold, cluster, latencies, costs, unpriced, stopped = more
        key = cell_of(agent, params, case)
        cell = CaseOutcome(
            case=case,
            passes=passes,
            trials=trials,
            scores=tuple(scores or ()),
            hard_fails=hard,
            unscored=trials - len(scores or ()),
            infra=infra,
            cancelled=cancelled,
            after_stop=after,
            threshold=threshold,
            cluster=cluster,
            stopped=stopped,
            latencies_ms=tuple(latencies or ()),
            costs_usd=tuple(costs or ()),
            unpriced_calls=unpriced,
        )
        if earlier := cells.get(key):
            # SQL groups by the text of params; the same params in another order are one cell.
            sums = {name: getattr(earlier, name) + getattr(cell, name) for name in _ADDITIVE}
            cell = msgspec.structs.replace(earlier, stopped=earlier.stopped or stopped, **sums)
        cells[key] = cell
    return by_agent(cells.items())


# Counts and lists of an outcome: those of two parts of one cell are added.
_ADDITIVE = tuple(
    name
    for name in CaseOutcome.__struct_fields__
    if name not in ("case", "asked", "threshold", "cluster", "stopped")
)

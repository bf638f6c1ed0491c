"""Two agents, or one agent in two runs, on the same cases: what differs, how much, how surely.

Promise: every figure names its estimand, its n and what it leaves out; what is not defined is
None with a reason. Suite figures are about these very cases, population figures about the world
they were drawn from. After early stopping no test at a fixed n holds, so none is made.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import msgspec

from proctor.results.flakiness import CaseFlakiness, Votes, flakiness_of
from proctor.results.outcomes import AgentOutcomes, CaseOutcome, pair
from proctor.stats.compare import paired_means, stratified, suite_difference, within_case
from proctor.stats.effects import Effect, cohen_dz, cohen_h
from proctor.stats.intervals import bootstrap_over_cases, case_rate
from proctor.stats.kinds import LEVEL, STOPPED, DifferenceTest, Interval, mean
from proctor.stats.multiple import benjamini_hochberg, holm
from proctor.words import plural

Metric = Literal["pass_rate", "score", "cost_usd", "latency_ms"]

LOOK_HERE = 0.10
"""The share of false alarms taken in a list that says "look here" (Benjamini–Hochberg)."""


class Given(NamedTuple):
    """One arm of a comparison, and what to call it."""

    name: str
    outcomes: AgentOutcomes
    votes: Votes = {}  # noqa: RUF012 (an empty mapping that nobody changes)


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
    """`first agent` and the like: in which arm it was unsettled, and what about it."""

    @property
    def stands_out(self) -> bool:
        """Whether it belongs in a list of cases to look at."""
        return self.adjusted is not None and self.adjusted <= LOOK_HERE


class MetricDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over all compared cases: mean of the cases, second minus first.

    `suite` tests these very cases, `population` the world they come from. The pass rate is what
    a comparison is made for, one test planned beforehand, so `adjusted` is its own p-value; the
    other metrics are looked at beside it, and theirs is after Holm over them.
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
        """The p-value, adjusted for the metrics tested together; None where no test holds."""
        return self.adjusted


class ArmComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two arms, case by case and overall.

    `left_out` names the cases that were not compared, with why; trials that no figure counts are
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
        """The pass rate, which every comparison has."""
        return self.metrics[0]


def compare_arms(
    first: Given,
    second: Given,
    *,
    incomparable: Mapping[str, str] | None = None,
    pattern: str | None = None,
    level: float = LEVEL,
    seed: int = 0,
) -> ArmComparison:
    """Compare two arms on the cases both judged under the same conditions.

    `incomparable` names cases that changed between the arms; `pattern` keeps the cases whose id
    it matches (`refund-*`).
    """
    kept = [_matching(arm.outcomes, pattern) for arm in (first, second)]
    sides = pair(*kept)
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
    flaky = _flaky((first, second), {a.case for a in before})
    return ArmComparison(
        first=first.name,
        second=second.name,
        cases=_cases(rows, flaky, (first.name, second.name), level),
        metrics=_metrics(before, after, level, seed),
        flaky=tuple(each for _, each in flaky),
        left_out=left_out,
        not_counted={
            arm.name: tuple(str(part) for part in seen.left_out)
            for arm, seen in zip((first, second), kept, strict=True)
        },
        n=(sum(a.trials for a in before), sum(b.trials for b in after)),
        passes=(sum(a.passes for a in before), sum(b.passes for b in after)),
        notes=tuple(_notes(before, after)),
    )


def _matching(arm: AgentOutcomes, pattern: str | None) -> AgentOutcomes:
    if pattern is None:
        return arm
    cases = tuple(case for case in arm.cases if fnmatch.fnmatchcase(case.case, pattern))
    return msgspec.structs.replace(arm, cases=cases)


def _flaky(arms: Iterable[Given], compared: set[str]) -> list[tuple[str, CaseFlakiness]]:
    return [
        (arm.name, each)
        for arm in arms
        for each in flakiness_of(arm.outcomes, arm.votes)
        if each.flaky and each.case in compared
    ]


def _notes(before: Sequence[CaseOutcome], after: Sequence[CaseOutcome]) -> Iterable[str]:
    yield from stopped_note((*before, *after))
    short = sum(
        case.asked is not None and not case.stopped and _seen(case) < case.asked
        for case in (*before, *after)
    )
    if short:
        cells = plural(short, "cell")
        yield f"{cells} with fewer trials than planned: a run was stopped or is still going"


def stopped_note(cases: Iterable[CaseOutcome]) -> Iterator[str]:
    """What early stopping takes from those who compare these cases; nothing where none was."""
    if stopped := sum(bool(case.stopped) for case in cases):
        yield (
            f"{plural(stopped, 'cell')} stopped early: such rates are biased and no interval or"
            " test at a fixed number of trials holds; run without --early-stop to compare"
        )


def _seen(case: CaseOutcome) -> int:
    return case.trials + case.infra + case.cancelled + case.after_stop


# -- case by case ----------------------------------------------------------------------------------


def _cases(
    rows: Sequence[tuple[CaseOutcome, CaseOutcome]],
    flaky: Sequence[tuple[str, CaseFlakiness]],
    names: tuple[str, str],
    level: float,
) -> tuple[CaseDifference, ...]:
    tests = [_honest(stratified([a.counts], [b.counts]), (a, b)) for a, b in rows]
    # A case that never varied was looked at as well: it counts among the tests.
    adjusted = benjamini_hochberg([1.0 if t.p_value is None else t.p_value for t in tests])
    unsettled = {
        (name, each.case): tuple(f"{arm} {source}" for source in each.sources)
        for name, each in flaky
        for arm in (("first", "second")[names.index(name)],)
    }
    found = [
        CaseDifference(
            case=a.case,
            first=_rate(a, level),
            second=_rate(b, level),
            difference=_honest_interval(
                suite_difference([a.counts], [b.counts], level=level), (a, b)
            ),
            test=test,
            adjusted=None if test.p_value is None else value,
            score_difference=_minus(b.mean_score, a.mean_score),
            flaky=tuple(word for name in names for word in unsettled.get((name, a.case), ())),
        )
        for (a, b), test, value in zip(rows, tests, adjusted, strict=True)
    ]
    return tuple(sorted(found, key=lambda each: (-abs(each.difference.value or 0.0), each.case)))


def _rate(case: CaseOutcome, level: float) -> Interval:
    found = case_rate(case.passes, case.trials, level=level)
    return _honest_interval(found, (case,))


def _honest(test: DifferenceTest, cases: Iterable[CaseOutcome]) -> DifferenceTest:
    """A test, without its p-value where trials were stopped early."""
    stopped = any(case.stopped for case in cases)
    return replace(test, p_value=None, reason=STOPPED) if stopped else test


def _honest_interval(interval: Interval, cases: Iterable[CaseOutcome]) -> Interval:
    stopped = any(case.stopped for case in cases)
    return replace(interval, low=None, high=None, reason=STOPPED) if stopped else interval


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


# -- overall ---------------------------------------------------------------------------------------


def _metrics(
    before: Sequence[CaseOutcome], after: Sequence[CaseOutcome], level: float, seed: int
) -> tuple[MetricDifference, ...]:
    found = [
        _pass_rate(before, after, level, seed),
        _measured("score", before, after, level, seed, lambda case: case.scores),
        _measured("cost_usd", before, after, level, seed, lambda case: case.costs_usd),
        _measured("latency_ms", before, after, level, seed, lambda case: case.latencies_ms),
    ]
    told = [each for each in found if each.metric == "pass_rate" or each.interval.cases]
    tests = [(each.suite or each.population).p_value for each in told]
    adjusted = (tests[0], *holm([1.0 if p is None else p for p in tests[1:]]))
    return tuple(
        msgspec.structs.replace(each, adjusted=None if p is None else value)
        for each, p, value in zip(told, tests, adjusted, strict=True)
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
        interval=_honest_interval(suite_difference(first, second, level=level), both),
        suite=_honest(stratified(first, second), both),
        population=_honest(paired_means(*rates, seed=seed), both),
        population_interval=_honest_interval(_over_cases(*rates, level, seed), both),
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
    """A figure that every trial may have, over the cases that have it in both arms.

    Cost and duration of a trial are read as what a case takes wherever it runs, so they are
    tested over cases; scores are tested on these very cases as well.
    """
    rows = [(a, b) for a, b in zip(before, after, strict=True) if values(a) and values(b)]
    means = ([mean(values(a)) or 0.0 for a, _ in rows], [mean(values(b)) or 0.0 for _, b in rows])
    left_out = len(before) - len(rows)
    cases = tuple(case for row in rows for case in row)
    interval = replace(_over_cases(*means, level, seed), left_out=left_out)
    return MetricDifference(
        metric=metric,
        first=mean(means[0]),
        second=mean(means[1]),
        interval=_honest_interval(interval, cases),
        suite=_score_test(rows, left_out, seed) if metric == "score" else None,
        population=_honest(replace(paired_means(*means, seed=seed), left_out=left_out), cases),
        population_interval=_honest_interval(interval, cases),
        effect=replace(cohen_dz(*means), left_out=left_out),
        adjusted=None,
    )


def _score_test(
    rows: Sequence[tuple[CaseOutcome, CaseOutcome]], left_out: int, seed: int
) -> DifferenceTest:
    """Scores on these very cases; where they are pass or fail, the exact test of those."""
    if all(_pass_or_fail(case) for row in rows for case in row):
        found = stratified([a.counts for a, _ in rows], [b.counts for _, b in rows])
    else:
        found = within_case([a.scores for a, _ in rows], [b.scores for _, b in rows], seed=seed)
    return _honest(replace(found, left_out=left_out), [case for row in rows for case in row])


def _pass_or_fail(case: CaseOutcome) -> bool:
    return set(case.scores) <= {0.0, 1.0} and case.scores.count(1.0) == case.passes


def _over_cases(
    first: Sequence[float], second: Sequence[float], level: float, seed: int
) -> Interval:
    """The mean difference over cases with its bootstrap interval."""
    gaps = [b - a for a, b in zip(first, second, strict=True)]
    return bootstrap_over_cases(gaps, level=level, seed=seed)

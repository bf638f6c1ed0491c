"""Decide between regression, no regression and inconclusive for a candidate and its baseline.

REGRESSION needs a drop that is both real (p ≤ alpha) and large (≥ margin); NO REGRESSION needs the
one-sided upper bound on the drop below the margin. Everything else is INCONCLUSIVE, with advice on
what would decide it. Pass rates and scores are both judged: a regression in either is one (Holm
over the two), and no regression must hold for both. Scores of 0 and 1 that repeat the passes are
not tested twice. Where too many trials errored, only a drop that they cannot have caused is one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from proctor.errors import ProctorError
from proctor.formatting import in_points, level_of, p_text, plural
from proctor.stats._distributions import beta_cdf, normal_quantile
from proctor.stats.compare import (
    Compared,
    Draws,
    draws_of,
    gaps_of,
    on_population,
    on_suite,
    scores_on_suite,
)
from proctor.stats.intervals import CorrectedRate, corrected_difference
from proctor.stats.power import (
    SampleSize,
    detectable_between,
    detectable_over,
    more_draws,
    plan_suite,
    within_variance,
)
from proctor.stats.ranking import adjusted
from proctor.stats.types import (
    MAX_ERROR_RATE,
    CaseCounts,
    Estimand,
    checked,
    mean,
    mean_of_cases,
    share,
)

# Flakiness as a rate, separately for the agent, the judge and the infrastructure. A case is called
# flaky when its Jeffreys posterior puts more than 0.9 on rates between 0.05 and 0.95; counts must
# come from runs of an unchanged agent. A few trials can show that a case is flaky, but only many
# show that it is not, so "not flaky" is never claimed.


Source = Literal["agent", "judge", "infrastructure"]

SETTLED = (0.05, 0.95)
"""Rates outside this range count as always failing or always passing."""

SURE = 0.9
"""Posterior probability from which a case is called flaky."""


@dataclass(frozen=True, slots=True)
class Flakiness:
    """Flakiness of one case. `rate` is the share of `n` that passed, failed to run or flipped."""

    source: Source
    rate: float | None
    flaky: bool | None
    mass: float | None
    n: int
    left_out: int
    method: str
    estimand: Estimand = "suite"
    reason: str | None = None


def agent_flakiness(passes: int, trials: int, errors: int = 0) -> Flakiness:
    """Estimate whether the agent sometimes passes and sometimes fails; errors are left out."""
    checked([(passes, trials, errors)])
    return _posterior("agent", passes, trials, errors)


def case_flakiness(instances: Sequence[CaseCounts]) -> Flakiness:
    """Estimate whether the agent's verdicts vary on one case.

    Seeds differ in difficulty, so only repeats of one instance show chance: with several, it is the
    flakiest instance, and only if the whole case is flaky, because one of many may look so.
    """
    found = [agent_flakiness(*each) for each in instances]
    flakiest = max(found, key=lambda each: each.mass or 0.0)
    if len(found) == 1:
        return flakiest
    whole = agent_flakiness(*map(sum, zip(*instances, strict=True)))
    return replace(flakiest, flaky=bool(flakiest.flaky and whole.flaky))


def infrastructure_flakiness(trials: int, errors: int) -> Flakiness:
    """Estimate whether trials sometimes cannot be judged; `trials` are the judged ones."""
    checked([(0, trials, errors)])
    return _posterior("infrastructure", errors, trials + errors, 0)


def judge_flakiness(verdicts: Sequence[Sequence[bool]]) -> Flakiness:
    """Estimate how often two verdicts on the same transcript disagree.

    `verdicts` has, for each trial, the judge's verdict of each vote. `n` counts trials with at
    least two votes, `left_out` the others.
    """
    again = [votes for votes in verdicts if len(votes) > 1]
    left_out = len(verdicts) - len(again)
    method = "share of pairs of judgements that disagree, mean over trials"
    if not again:
        why = "no transcript was judged twice"
        return Flakiness("judge", None, None, None, 0, left_out, method, reason=why)
    flips = 0.0
    for votes in again:
        passed, asked = sum(map(bool, votes)), len(votes)
        flips += 2 * passed * (asked - passed) / (asked * (asked - 1))
    rate = flips / len(again)
    return Flakiness("judge", rate, rate > SETTLED[0], None, len(again), left_out, method)


def _posterior(source: Source, hits: int, n: int, left_out: int) -> Flakiness:
    method = f"Jeffreys posterior, P({SETTLED[0]} < p < {SETTLED[1]}) > {SURE}"
    if n == 0:
        why = "no trial" if source == "infrastructure" else "no judged trial"
        return Flakiness(source, None, None, None, 0, left_out, method, reason=why)
    a, b = hits + 0.5, n - hits + 0.5
    mass = beta_cdf(SETTLED[1], a, b) - beta_cdf(SETTLED[0], a, b)
    return Flakiness(source, hits / n, mass > SURE, mass, n, left_out, method)


Verdict = Literal["REGRESSION", "NO REGRESSION", "INCONCLUSIVE", "NOT COMPARABLE"]

MARGIN = 0.05
"""Drops below 5 points rarely justify a stopped release."""

ALPHA = 0.05
"""One false alarm in twenty runs without a change, one-sided."""

# Number of worst cases named in the advice: enough to inspect by hand.
_ADVISED = 5

# Tolerance, so that a drop of exactly the margin counts despite rounding.
_SLACK = 1e-9


class CaseChange(NamedTuple):
    """One case's pass rates in both arms; a positive drop is a loss."""

    case: str
    baseline: CaseCounts
    candidate: CaseCounts
    drop: float


@dataclass(frozen=True, slots=True)
class GateRule:
    """Definition of a regression, and the required confidence."""

    margin: float = MARGIN
    alpha: float = ALPHA
    power: float = 0.8
    max_error_rate: float = MAX_ERROR_RATE
    estimand: Estimand = "suite"
    bound_alpha: float | None = None
    """The error rate of the bound on the drop; by default alpha."""
    corrected: bool = False
    """Whether pass rates corrected by labels decide, instead of the judge's own."""

    @property
    def bound_level(self) -> float:
        """The one-sided level of the bound on the drop."""
        return 1 - (self.alpha if self.bound_alpha is None else self.bound_alpha)

    def __post_init__(self) -> None:
        share(self.margin, "margin")
        share(self.alpha, "alpha")
        if self.alpha >= 0.5 or not 0.5 <= self.power < 1 or not 0 <= self.max_error_rate <= 1:
            raise ProctorError(
                f"no gate has alpha {self.alpha}, power {self.power},"
                f" max_error_rate {self.max_error_rate}",
                hint="alpha below 0.5, power from 0.5 to below 1, an error rate from 0 to 1",
            )


@dataclass(frozen=True, slots=True)
class Advice:
    """Trials to add to each instance in each arm that would decide it if the drop persists.

    For a population more trials of the same cases decide nothing: then `text` has the cases to add,
    and `more_trials` is None. `cases` dropped most. Extra trials on them alone are tested on the
    fresh trials only: they were selected for looking bad.
    """

    more_trials: int | None
    cases: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class ScoreDrop:
    """Mean scores of both arms, baseline minus candidate; `adjusted` is p after Holm."""

    baseline: float | None
    candidate: float | None
    drop: float | None
    drop_at_most: float | None
    p_value: float | None
    adjusted: float | None
    n: int
    method: str


@dataclass(frozen=True, slots=True)
class Gate:
    """The verdict with its evidence. `drop` is baseline minus candidate.

    `drop_at_most` is its one-sided upper bound at 1 − alpha. `left_out` maps cases that were not
    compared to the reason; `errors` counts errored trials of the baseline and the candidate over
    the compared cases, and `errored_of` all their trials.
    """

    verdict: Verdict
    reason: str
    drop: float | None
    drop_at_most: float | None
    p_value: float | None
    rule: GateRule
    detectable: SampleSize
    n: int
    cases: int
    errors: tuple[int, int]
    errored_of: tuple[int, int]
    left_out: Mapping[str, str]
    moves: tuple[CaseChange, ...]
    flaky: tuple[str, ...]
    advice: Advice | None
    instances: int
    adjusted: float | None
    """The p-value after Holm over pass rate and score."""
    score: ScoreDrop | None
    """None where scores only repeat the passes."""
    method: str
    estimand: Estimand = "suite"


def judge_gate(
    baseline: Mapping[str, tuple[int, ...]],
    candidate: Mapping[str, tuple[int, ...]],
    *,
    rule: GateRule | None = None,
    incomparable: Mapping[str, str] | None = None,
    scores: tuple[Mapping[str, Sequence[float]], Mapping[str, Sequence[float]]] | None = None,
    cases: Mapping[str, str] | None = None,
    clusters: Mapping[str, str] | None = None,
) -> Gate:
    """Compare a candidate's counts per instance with its baseline's.

    `incomparable` maps instances whose input, fixture or judge changed to the change: they are left
    out and listed, because a changed case cannot regress. `scores` are those of both arms, where
    they say more than the counts. `cases` maps an instance to its case (by default itself), and
    `clusters` a case to its cluster.
    """
    rule = rule or GateRule()
    before = dict(zip(baseline, checked(baseline.values(), "baseline"), strict=True))
    after = dict(zip(candidate, checked(candidate.values(), "candidate"), strict=True))
    left_out = _left_out(before, after, incomparable or {})
    # Errors are counted also where nothing could be judged: that is where they matter most.
    shared = [name for name in before if name in after and name not in (incomparable or {})]
    errors = (sum(before[c].errors for c in shared), sum(after[c].errors for c in shared))
    judged_trials = (sum(before[c].trials for c in shared), sum(after[c].trials for c in shared))
    errored_of = (errors[0] + judged_trials[0], errors[1] + judged_trials[1])
    rows = [name for name in shared if name not in left_out]
    keys = [(cases or {}).get(name, name) for name in rows]
    groups = [(clusters or {}).get(key, key) for key in keys]
    moves = _moves(rows, keys, before, after)
    instances: dict[str, list[CaseCounts]] = defaultdict(list)
    for name, key in zip(rows, keys, strict=True):
        instances[key].append(before[name])
    first, second = [before[name] for name in rows], [after[name] for name in rows]
    # A two-sided interval at 1 − 2·alpha ends where the one-sided bound at 1 − alpha does.
    level = 2 * rule.bound_level - 1
    n, rates = sum(row.trials for row in first + second), {"alpha": rule.alpha, "power": rule.power}
    if rule.estimand == "suite":
        found = on_suite(first, second, cases=keys, alternative="less", level=level)
        draws, smallest = None, detectable_between(first, second, **rates)
    else:
        means = ([row.rate for row in first], [row.rate for row in second])
        draws = draws_of(*means, cases=keys, clusters=groups)
        found = on_population(*means, cases=keys, clusters=groups, alternative="less", level=level)
        gaps = gaps_of(draws.first, draws.second)
        smallest = detectable_over(gaps, n=n, unit=_drawn(draws), **rates)
    drop, at_most = _drop(found)
    score = None if scores is None else _score_drop(rows, keys, groups, scores, rule)
    # Both may fail the gate, so both share its error rate.
    p_value, *others = adjusted([found.test.p_value] + ([] if score is None else [score.p_value]))
    if score is not None:
        score = replace(score, adjusted=others[0])
    verdict, reason = _verdict(drop, at_most, p_value, rule)
    too_many = _too_many_errors(errors, errored_of, rule)
    if too_many:
        # A failure counts before what was not judged, as in a run, but only if the errors cannot
        # have caused it: it is still one when each of them counts in the candidate's favour.
        kindest = judge_gate(
            {name: (row.passes, row.trials + row.errors) for name, row in before.items()},
            {
                name: (row.passes + row.errors, row.trials + row.errors)
                for name, row in after.items()
            },
            rule=rule,
            incomparable=incomparable,
            cases=cases,
            clusters=clusters,
        )
        verdict, reason = "INCONCLUSIVE", too_many
        if kindest.verdict == "REGRESSION":
            verdict = "REGRESSION"
            reason = f"{kindest.reason}, errors counted in the candidate's favour; {too_many}"
    elif score is not None:
        on_score = _verdict(score.drop, score.drop_at_most, score.adjusted, rule, _OF_SCORES)
        # The worse of the two: a regression of either, and no regression only of both.
        if _ORDER.index(on_score[0]) < _ORDER.index(verdict):
            verdict, reason = on_score
    advice = None
    if verdict == "INCONCLUSIVE" and not too_many and drop is not None:
        on_scores = score if reason.startswith(_OF_SCORES) else None
        advice = _advice(moves, drop, rule, draws, on_scores, len(rows))
    return Gate(
        verdict=verdict,
        reason=reason,
        drop=drop,
        drop_at_most=at_most,
        p_value=found.test.p_value,
        rule=rule,
        detectable=smallest,
        n=n,
        cases=len(set(keys)),
        errors=errors,
        errored_of=errored_of,
        left_out=left_out,
        moves=moves,
        flaky=tuple(m.case for m in moves if case_flakiness(instances[m.case]).flaky),
        advice=advice,
        instances=len(rows),
        adjusted=p_value,
        score=score,
        method=f"{found.test.method}; bound: {found.interval.method}",
        estimand=rule.estimand,
    )


# How reasons begin that are about scores.
_OF_SCORES = "the score: "

# The worst verdict first: NOT COMPARABLE of scores means that there are none, and decides nothing.
_ORDER: tuple[Verdict, ...] = ("REGRESSION", "INCONCLUSIVE", "NO REGRESSION", "NOT COMPARABLE")


def _moves(
    rows: Sequence[str],
    keys: Sequence[str],
    before: Mapping[str, CaseCounts],
    after: Mapping[str, CaseCounts],
) -> tuple[CaseChange, ...]:
    """Return the changes by case, the largest drop first."""
    names: dict[str, list[str]] = {}
    for name, key in zip(rows, keys, strict=True):
        names.setdefault(key, []).append(name)
    moves: list[CaseChange] = []
    for key, members in names.items():
        old, new = (
            CaseCounts(*map(sum, zip(*(arm[name] for name in members), strict=True)))
            for arm in (before, after)
        )
        gaps = [before[name].rate - after[name].rate for name in members]
        drop = math.fsum(gaps) / len(gaps)
        # Thirds that cancel leave a rounding error, which is no change.
        moves.append(CaseChange(key, old, new, drop if abs(drop) > _SLACK else 0.0))
    return tuple(sorted(moves, key=lambda move: (-move.drop, move.case)))


def _drop(found: Compared) -> tuple[float | None, float | None]:
    """Return the drop and its upper bound."""
    value, low = found.interval.value, found.interval.low
    # `0.0 -` and not `-`: no difference must not print as -0.0.
    return None if value is None else 0.0 - value, None if low is None else 0.0 - low


def _score_drop(
    rows: Sequence[str],
    keys: Sequence[str],
    groups: Sequence[str],
    scores: tuple[Mapping[str, Sequence[float]], Mapping[str, Sequence[float]]],
    rule: GateRule,
) -> ScoreDrop:
    scored = [at for at, name in enumerate(rows) if scores[0].get(name) and scores[1].get(name)]
    values = [[arm[rows[at]] for at in scored] for arm in scores]
    means = [[mean(row) or 0.0 for row in arm] for arm in values]
    level, named = 2 * rule.bound_level - 1, [keys[at] for at in scored]
    if rule.estimand == "suite":
        found = scores_on_suite(*values, cases=named, alternative="less", level=level)
    else:
        clusters = [groups[at] for at in scored]
        found = on_population(
            *means, cases=named, clusters=clusters, alternative="less", level=level
        )
    drop, at_most = _drop(found)
    # Over what the drop is over: instances of a suite, cases of a population.
    units = scored if rule.estimand == "suite" else named
    return ScoreDrop(
        baseline=mean_of_cases(means[0], units),
        candidate=mean_of_cases(means[1], units),
        drop=drop,
        drop_at_most=at_most,
        p_value=found.test.p_value,
        adjusted=None,
        n=sum(len(row) for arm in values for row in arm),
        method=f"{found.test.method}; bound: {found.interval.method}",
    )


def _left_out(
    before: Mapping[str, CaseCounts],
    after: Mapping[str, CaseCounts],
    incomparable: Mapping[str, str],
) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for name in {**before, **after}:
        if name not in after:
            reasons[name] = "only in the reference"
        elif name not in before:
            reasons[name] = "only in the candidate"
        elif name in incomparable:
            reasons[name] = incomparable[name]
        elif not before[name].trials:
            reasons[name] = "no judged trial in the reference"
        elif not after[name].trials:
            reasons[name] = "no judged trial in the candidate"
    return reasons


def _too_many_errors(
    errors: tuple[int, int], errored_of: tuple[int, int], rule: GateRule
) -> str | None:
    for arm, bad, total in zip(("reference", "candidate"), errors, errored_of, strict=True):
        if total and bad / total > rule.max_error_rate:
            return (
                f"{bad} of {plural(total, 'trial')} of the {arm} ended without a verdict, more"
                f" than {level_of(rule.max_error_rate)}: remove the cause and run again"
            )
    return None


def _verdict(
    drop: float | None,
    at_most: float | None,
    p_value: float | None,
    rule: GateRule,
    of: str = "",
) -> tuple[Verdict, str]:
    if drop is None:
        return "NOT COMPARABLE", "no case has judged trials in both runs under the same conditions"
    if at_most is None:
        return "INCONCLUSIVE", f"{of}one draw of a population does not bound its drop"
    large = drop >= rule.margin - _SLACK
    real = p_value is not None and p_value <= rule.alpha
    shown = "no p-value" if p_value is None else f"p {p_text(p_value)}"
    if large and real:
        least = in_points(rule.margin)
        return (
            "REGRESSION",
            f"{of}a drop of {in_points(drop)} is real ({shown}) and at least {least}",
        )
    # Also where the drop is significant: below the margin it is too small to matter.
    if at_most < rule.margin:
        most, margin = in_points(at_most), in_points(rule.margin)
        bound = f"below {margin}" if most == margin else f"at most {most}, below {margin}"
        return "NO REGRESSION", f"{of}the drop is {bound}"
    if large:
        return "INCONCLUSIVE", f"{of}a drop of {in_points(drop)} may be noise ({shown})"
    change = f"{'rose' if drop < 0 else 'dropped'} by {in_points(abs(drop))}"
    if in_points(abs(drop)) == in_points(0):
        change = "did not change"
    seen = f"{of}it {change}" if of else f"the pass rate {change}"
    most = in_points(at_most)
    return "INCONCLUSIVE", f"{seen}, but a drop of {most} cannot be ruled out"


@dataclass(frozen=True, slots=True)
class CorrectedDrop:
    """Pass rates of both arms as people would judge them, and the drop between them."""

    baseline: CorrectedRate | None
    candidate: CorrectedRate | None
    drop: float | None
    drop_at_most: float | None
    p_value: float | None
    reason: str | None = None


def corrected_drop(
    baseline: CorrectedRate | None, candidate: CorrectedRate | None, rule: GateRule
) -> CorrectedDrop:
    """Return the drop of corrected rates, with its one-sided bound and p-value."""
    if baseline is None or candidate is None:
        arms = (("reference", baseline), ("candidate", candidate))
        missing = " and ".join(name for name, rate in arms if rate is None)
        return CorrectedDrop(baseline, candidate, None, None, None, f"no labels in the {missing}")
    gap, p_value = corrected_difference(baseline, candidate, level=2 * rule.bound_level - 1)
    drop = None if gap.value is None else -gap.value
    at_most = None if gap.low is None else -gap.low
    return CorrectedDrop(baseline, candidate, drop, at_most, p_value, gap.reason)


def decide_corrected(gate: Gate, found: CorrectedDrop) -> Gate:
    """Return the gate with the verdict of the corrected rates."""
    if found.drop is None:
        verdict, reason = "NOT COMPARABLE", f"no corrected drop: {found.reason}"
    else:
        verdict, reason = _verdict(
            found.drop, found.drop_at_most, found.p_value, gate.rule, "corrected by labels: "
        )
    return replace(gate, verdict=verdict, reason=reason, advice=None)


def _advice(
    moves: Sequence[CaseChange],
    drop: float,
    rule: GateRule,
    draws: Draws | None,
    score: ScoreDrop | None,
    instances: int,
) -> Advice:
    """Return what would settle the pass rate, or the `score` if that is open.

    `draws` are those of a population.
    """
    worst = tuple(move.case for move in moves if move.drop > 0)[:_ADVISED]
    look = f" Look first at {', '.join(worst)}." if worst else ""
    half = None
    if score is not None and score.drop is not None and score.drop_at_most is not None:
        drop, half = score.drop, score.drop_at_most - score.drop
    # The required resolution: a large drop from none, a small one from the margin.
    distance = drop if drop >= rule.margin - _SLACK else min(1.0, rule.margin - drop)
    if distance < rule.margin / 10:
        text = "The drop lies on the margin: no sensible number of trials settles that."
        return Advice(None, worst, text + look)
    fewest = min(min(move.baseline.trials, move.candidate.trials) for move in moves)
    size = fewest if draws is None else len(draws.first)
    if half is not None:
        # The half-width of a bound falls with the root of the size.
        z = normal_quantile(rule.bound_level)
        reach = (normal_quantile(1 - rule.alpha) + normal_quantile(rule.power)) / z
        more = math.ceil(size * (reach * half / distance) ** 2) - size
    elif draws is None:
        more = _trials_to_tell(moves, distance, rule) - fewest
    else:
        gaps = gaps_of(draws.first, draws.second)
        more = more_draws(gaps, distance, alpha=rule.alpha, power=rule.power)
    more, rest = max(1, more), "in both runs would settle it if the drop stays the same."
    if draws is None:
        # Trials are added to each seed of a case.
        more = math.ceil(more * len(moves) / instances)
        each = "case" if instances == len(moves) else "case and seed"
        return Advice(more, worst, f"{plural(more, 'more trial')} per {each} {rest}{look}")
    return Advice(None, worst, f"{plural(more, f'more {_drawn(draws)}')} {rest}{look}")


def _drawn(draws: Draws) -> str:
    """Return what users add to have more draws."""
    return draws.unit if draws.unit in ("case", "cluster") else "seed"


def _trials_to_tell(moves: Sequence[CaseChange], distance: float, rule: GateRule) -> int:
    """Return the trials per case and arm that distinguish drops `distance` apart."""
    noise = [
        within_variance([getattr(move, arm) for move in moves]).value
        for arm in ("baseline", "candidate")
    ]
    # With one trial per case the variance is unknown: plan for the largest possible.
    sigma2 = sum(0.25 if value is None else min(value, 0.25) for value in noise) / 2
    plan = plan_suite(distance, cases=len(moves), sigma2=sigma2, alpha=rule.alpha, power=rule.power)
    # Cases that never varied leave z²/(n+z²) open in each arm: solved for n at the distance.
    z2 = normal_quantile(1 - rule.alpha) ** 2
    settled = math.floor(z2 * max(0.0, math.sqrt(2) / distance - 1) / len(moves)) + 1
    return max(math.ceil(plan.trials[0]), settled)

"""A sweep: parameters tried on the same cases and seeds, and ranked.

A grid or a seeded draw is one round. With `tpe` every agent has its own study (Optuna's
tree-structured Parzen estimator, seeded), which suggests the next parameters from the scores so
far; on resume the same suggestions and scores are replayed. The best score is the best of many
draws and therefore too good: its interval does not account for the selection.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from proctor.errors import ProctorError
from proctor.runs.trial import Trial, params_key
from proctor.spec.research import Sweep
from proctor.stats.intervals import bounded_mean
from proctor.trials._research.rounds import Course, CourseResult, Round, Setup, side_by_side
from proctor.trials.plan import plan_trials

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

MAX_SHOWN = 5
"""Combinations shown to people, the best first; `research.json` has all."""


def sweep(setup: Setup) -> Course:
    """Run all agents, each with its own ranking."""
    rules = setup.outline.research.sweep
    assert rules is not None
    course = _optimised if rules.sampler == "tpe" else _all_at_once
    by_agent, lines = yield from side_by_side(
        {agent: course(agent, rules, setup) for agent in setup.agents}
    )
    facts: dict[str, Any] = {
        "sampler": rules.sampler,
        "objective": rules.objective,
        "direction": rules.direction,
        "confidence": rules.confidence,
        "agents": by_agent,
    }
    return CourseResult(facts, lines)


def _all_at_once(agent: str, rules: Sweep, setup: Setup) -> Course:
    plan = plan_trials(setup.cases, [agent], setup.options, setup.axes)
    results = yield Round(list(plan.trials), (f"{agent}: {len(setup.axes.params)} combinations",))
    tried = [_tried(params, results, rules) for params in setup.axes.params]
    return _found(agent, tried, rules)


def _optimised(agent: str, rules: Sweep, setup: Setup) -> Course:
    """Let Optuna select each batch from the scores so far."""
    try:
        import optuna
    except ImportError:
        raise ProctorError(
            "`sampler: tpe` needs Optuna", hint="pip install 'proctor[sweep]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction=rules.direction, sampler=optuna.samplers.TPESampler(seed=rules.seed)
    )
    space = _space(setup.outline.space or {})
    assert rules.n is not None
    tried: dict[str, SweepPoint] = {}
    decided = f"{agent}: begins with random draws"
    for start in range(0, rules.n, rules.batch):
        batch = [study.ask(space) for _ in range(min(rules.batch, rules.n - start))]
        wanted = [{**setup.fixed, **dict(sorted(each.params.items()))} for each in batch]
        # Parameters that were tried before would give the same trials again.
        new = {params_key(params): params for params in wanted if params_key(params) not in tried}
        results: Sequence[Trial] = ()
        if new:
            axes = setup.axes._replace(params=tuple(new.values()))
            plan = plan_trials(setup.cases, [agent], setup.options, axes)
            results = yield Round(list(plan.trials), (decided,))
        for key, params in new.items():
            tried[key] = _tried(params, results, rules)
        for each, params in zip(batch, wanted, strict=True):
            value = tried[params_key(params)].value
            # Optuna ignores a failed trial, which has no value.
            state = optuna.trial.TrialState.FAIL if value is None else None
            study.tell(each, value, state=state)
        best = _ranked(tried.values(), rules)[0]
        decided = (
            f"{agent}: best of {len(tried)} so far is {params_key(best.params)}: {_shown(best)}"
        )
    return _found(agent, list(tried.values()), rules)


def _space(axes: Mapping[str, Any]) -> dict[str, BaseDistribution]:
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    space: dict[str, BaseDistribution] = {}
    for name, axis in axes.items():
        if not isinstance(axis, Mapping):
            space[name] = CategoricalDistribution(tuple(axis))
            continue
        ends = cast("Mapping[str, Any]", axis)
        log = bool(ends.get("log"))
        if ends.get("integer"):
            space[name] = IntDistribution(int(ends["low"]), int(ends["high"]), log=log)
        else:
            space[name] = FloatDistribution(ends["low"], ends["high"], log=log)
    return space


class SweepPoint(NamedTuple):
    """One combination: the objective over its trials; None if none could be judged."""

    params: dict[str, Any]
    value: float | None
    low: float | None
    high: float | None
    judged: int
    unjudged: int


def _tried(params: Mapping[str, Any], results: Iterable[Trial], rules: Sweep) -> SweepPoint:
    """Return the mean over cases and seeds, each of which counts once."""
    key = params_key(dict(params))
    values: dict[tuple[str, int | None], list[float]] = defaultdict(list)
    judged = unjudged = 0
    for trial in results:
        if params_key(trial.params) != key:
            continue
        value = float(trial.passed) if rules.objective == "pass_rate" else trial.score
        if not trial.status.judged or value is None:
            unjudged += 1
            continue
        judged += 1
        values[trial.case, trial.axis_seed].append(value)
    means = [fmean(each) for each in values.values()]
    interval = bounded_mean(means, n=judged, level=rules.confidence)
    mean = fmean(means) if means else None
    return SweepPoint(dict(params), mean, interval.low, interval.high, judged, unjudged)


def _ranked(tried: Iterable[SweepPoint], rules: Sweep) -> list[SweepPoint]:
    sign = -1.0 if rules.direction == "maximize" else 1.0

    def place(each: SweepPoint) -> tuple[bool, float, str]:
        value = 0.0 if each.value is None else sign * each.value
        return each.value is None, value, params_key(each.params)

    return sorted(tried, key=place)


def _found(agent: str, tried: Sequence[SweepPoint], rules: Sweep) -> CourseResult:
    ranked = _ranked(tried, rules)
    best = ranked[0]
    facts = {
        "best": None if best.value is None else best._asdict(),
        "tried": [each._asdict() for each in ranked],
    }
    shown = [f"{params_key(each.params)}: {_shown(each)}" for each in ranked[:MAX_SHOWN]]
    head = f"{agent}: {len(ranked)} combinations, the best of them by {rules.objective}:"
    return CourseResult(facts, (head, *(f"  {line}" for line in shown)))


def _shown(each: SweepPoint) -> str:
    if each.value is None:
        return f"could not be judged ({each.unjudged} trials)"
    between = "" if each.low is None else f" [{each.low:.3g}, {each.high:.3g}]"
    lost = f", {each.unjudged} could not be judged" if each.unjudged else ""
    return f"{each.value:.3g}{between}, {each.judged} trials{lost}"

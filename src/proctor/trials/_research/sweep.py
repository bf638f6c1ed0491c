"""A sweep: parameters tried on the same cases and seeds, and ranked.

A grid or a seeded draw is one round. With `tpe` every agent has a study of its own (Optuna's
tree-structured Parzen estimator, seeded), asked for the next parameters and told their scores; on
resume it is asked and told the same again. The score of the best is the best of many draws and so
too good: its interval is for these parameters alone, not for having been chosen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from proctor.errors import ProctorError
from proctor.runs.trial import PlannedTrial, Trial, params_key
from proctor.spec.research import Sweep
from proctor.stats.intervals import bootstrap_over_cases
from proctor.trials._research.rounds import Course, CourseResult, Round, Setup, side_by_side
from proctor.trials.plan import plan_trials

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

TOLD = 5
"""Combinations told to people, the best first; `research.json` has all."""


def sweep(setup: Setup) -> Course:
    """All agents, each with what serves it best."""
    rules = setup.outline.research.sweep
    assert rules is not None
    one = _chosen_as_it_goes if rules.sampler == "tpe" else _all_at_once
    found = yield from side_by_side({agent: one(agent, rules, setup) for agent in setup.agents})
    facts: dict[str, Any] = {
        "sampler": rules.sampler,
        "objective": rules.objective,
        "direction": rules.direction,
        "confidence": rules.confidence,
        "agents": {agent: each.facts for agent, each in zip(setup.agents, found, strict=True)},
    }
    return CourseResult(facts, tuple(line for each in found for line in each.lines))


def _all_at_once(agent: str, rules: Sweep, setup: Setup) -> Course:
    plan = plan_trials(setup.cases, [agent], setup.options, setup.axes)
    results = yield Round(list(plan.trials), (f"{agent}: {len(setup.axes.params)} combinations",))
    tried = [_tried(params, results, rules) for params in setup.axes.params]
    return _found(agent, tried, rules)


# -- chosen by what came out so far --------------------------------------------------------------


def _chosen_as_it_goes(agent: str, rules: Sweep, setup: Setup) -> Course:
    assert rules.n is not None
    study, space = _study(rules), _space(setup.outline.space or {})
    tried: dict[str, SweepPoint] = {}
    decided = f"{agent}: begins with what is drawn"
    for start in range(0, rules.n, rules.batch):
        asked = [study.ask(space) for _ in range(min(rules.batch, rules.n - start))]
        wanted = [{**setup.fixed, **dict(sorted(each.params.items()))} for each in asked]
        # What was tried before is known; asking again would be the same trials.
        new = {params_key(params): params for params in wanted if params_key(params) not in tried}
        results: Sequence[Trial] = ()
        if new:
            results = yield Round(_trials(agent, new.values(), setup), (decided,))
        for key, params in new.items():
            tried[key] = _tried(params, results, rules)
        for each, params in zip(asked, wanted, strict=True):
            value = tried[params_key(params)].value
            # Optuna takes a trial without a value as failed, and learns nothing from it.
            study.tell(each, value, state=None if value is not None else _failed())
        best = _ranked(tried.values(), rules)[0]
        decided = (
            f"{agent}: best of {len(tried)} so far is {params_key(best.params)}: {_shown(best)}"
        )
    return _found(agent, list(tried.values()), rules)


def _study(rules: Sweep) -> Study:
    try:
        import optuna
    except ImportError:
        raise ProctorError(
            "`sampler: tpe` needs Optuna", hint="pip install 'proctor[sweep]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        direction=rules.direction, sampler=optuna.samplers.TPESampler(seed=rules.seed)
    )


def _failed() -> Any:
    from optuna.trial import TrialState

    return TrialState.FAIL


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


def _trials(agent: str, combinations: Iterable[dict[str, Any]], setup: Setup) -> list[PlannedTrial]:
    axes = setup.axes._replace(params=tuple(combinations))
    return list(plan_trials(setup.cases, [agent], setup.options, axes).trials)


# -- what came of it -----------------------------------------------------------------------------


class SweepPoint(NamedTuple):
    """One combination: the objective over its trials; None where none could be judged."""

    params: dict[str, Any]
    value: float | None
    low: float | None
    high: float | None
    judged: int
    unjudged: int


def _tried(params: Mapping[str, Any], results: Iterable[Trial], rules: Sweep) -> SweepPoint:
    """The mean over cases and seeds, each of which counts once."""
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
    interval = bootstrap_over_cases(means, level=rules.confidence, seed=0)
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
    shown = [f"{params_key(each.params)}: {_shown(each)}" for each in ranked[:TOLD]]
    head = f"{agent}: {len(ranked)} combinations, the best of them by {rules.objective}:"
    return CourseResult(facts, (head, *(f"  {line}" for line in shown)))


def _shown(each: SweepPoint) -> str:
    if each.value is None:
        return f"could not be judged ({each.unjudged} trials)"
    between = "" if each.low is None else f" [{each.low:.3g}, {each.high:.3g}]"
    lost = f", {each.unjudged} could not be judged" if each.unjudged else ""
    return f"{each.value:.3g}{between}, {each.judged} trials{lost}"

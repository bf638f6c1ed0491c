"""Sweeps, ablations and curricula, each a course of rounds.

A sweep tries parameters on the same cases and seeds, and ranks them. A grid or a seeded draw is one
round. With `tpe` every agent has its own study (Optuna's tree-structured Parzen estimator, seeded),
which suggests the next parameters from the scores so far; on resume the same suggestions and scores
are replayed. The best score is the best of many draws and therefore too good: its interval does not
account for the selection.

An ablation compares the whole with the whole without one part, for each part, in one round: each
variant runs every case and seed. Mean scores of the same case and seed (pairs) are compared;
p-values are adjusted by Holm's method over the variants, so that among many useless parts the
chance to call any of them useful stays below the stated level.

A curriculum has ordered levels. An agent is judged after each batch of a level. It is promoted when
enough of its last judged trials passed, and stays when the level's trials are used up. The pass
rates of levels come from trials that were stopped by results, so they are biased; the outcome is
the level reached, and its certainty depends on `last` and `pass_rate`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from proctor.errors import ProctorError
from proctor.formatting import level_of
from proctor.runs.trial import PlannedTrial, Trial, params_key
from proctor.spec.experiment import Curriculum, Sweep
from proctor.stats.compare import paired_means
from proctor.stats.intervals import bounded_mean
from proctor.stats.ranking import holm
from proctor.trials._research import (
    Course,
    CourseResult,
    Round,
    Setup,
    Stage,
    Variant,
    planned,
    side_by_side,
)
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


Pair = tuple[str, int | None]
"""The unit of comparison: a case and a seed."""


def ablation(setup: Setup) -> Course:
    """Run one round, then compare."""
    outline = setup.outline
    assert outline.research.ablation is not None
    assert outline.whole is not None
    whole = Variant("nothing", outline.whole, setup.fixed)
    groups = [whole, *outline.variants]
    trials = [
        trial
        for group in groups
        for trial in plan_trials(
            setup.cases,
            [group.agent],
            setup.options,
            setup.axes._replace(params=(group.params,)),
        ).trials
    ]
    results = yield Round(trials, (f"the whole and {len(groups) - 1} variants of it",))
    scores = [_scores(results, group) for group in groups]
    return _ablation_result(groups, scores, outline.research.ablation.confidence)


def _scores(results: Sequence[Trial], group: Variant) -> dict[Pair, float]:
    found: dict[Pair, list[float]] = defaultdict(list)
    params = params_key(group.params)
    for trial in results:
        if trial.agent != group.agent or params_key(trial.params) != params:
            continue
        if trial.status.judged and trial.score is not None:
            found[trial.case, trial.axis_seed].append(trial.score)
    return {pair: fmean(scores) for pair, scores in found.items()}


def _ablation_result(
    groups: Sequence[Variant], scores: Sequence[Mapping[Pair, float]], level: float
) -> CourseResult:
    whole = scores[0]
    rows: list[dict[str, Any]] = []
    for group, own in zip(groups[1:], scores[1:], strict=True):
        both = sorted(whole.keys() & own.keys(), key=str)
        first, second = [whole[pair] for pair in both], [own[pair] for pair in both]
        test = paired_means(first, second)
        gaps = [b - a for a, b in zip(first, second, strict=True)]
        interval = bounded_mean(gaps, bounds=(-1.0, 1.0), level=level)
        rows.append({
            "without": group.without,
            "agent": group.agent,
            "pairs": len(both),
            "left_out": len(whole.keys() | own.keys()) - len(both),
            "score": fmean(second) if second else None,
            "difference": test.difference,
            "low": interval.low,
            "high": interval.high,
            "p_value": test.p_value,
            "method": test.method,
        })  # fmt: skip
    # A comparison that could not be tested still counts among the tests.
    adjusted = holm([1.0 if row["p_value"] is None else row["p_value"] for row in rows])
    for row, p_value in zip(rows, adjusted, strict=True):
        row["adjusted"] = None if row["p_value"] is None else p_value
    mean = fmean(whole.values()) if whole else None
    facts: dict[str, Any] = {
        "whole": {"agent": groups[0].agent, "score": mean, "pairs": len(whole)},
        "variants": rows,
        "confidence": level,
        "correction": "holm",
    }
    return CourseResult(facts, tuple(_ablation_lines(facts)))


def _ablation_lines(facts: Mapping[str, Any]) -> list[str]:
    whole = facts["whole"]
    lines = [f"whole ({whole['agent']}): score {_number(whole['score'])}, {whole['pairs']} pairs"]
    lines.extend(
        f"without {row['without']}: score {_number(row['score'])}, "
        f"difference {_number(row['difference'], '+')} "
        f"[{_number(row['low'], '+')}, {_number(row['high'], '+')}], "
        f"p {_number(row['adjusted'])} (Holm over {len(facts['variants'])}), "
        f"{row['pairs']} pairs" + (f", {row['left_out']} left out" * bool(row["left_out"]))
        for row in facts["variants"]
    )
    return lines


def _number(value: float | None, sign: str = "") -> str:
    return "unknown" if value is None else f"{value:{sign}.3g}"


def curriculum(setup: Setup) -> Course:
    """Run all agents, each at its own level."""
    rules = setup.outline.research.curriculum
    assert rules is not None
    facts, lines = yield from side_by_side(
        {agent: _of_agent(agent, rules, setup) for agent in setup.agents}
    )
    return CourseResult({"agents": facts}, lines)


def _of_agent(agent: str, rules: Curriculum, setup: Setup) -> Course:
    decided = f"{agent}: begins with {setup.outline.stages[0].name}"
    passed: list[dict[str, Any]] = []
    why = ""
    for number, stage in enumerate(setup.outline.stages):
        done: list[Trial] = []
        promoted = False
        while len(done) < rules.max_trials and not promoted:
            size = min(rules.batch or rules.promote.last, rules.max_trials - len(done))
            done.extend((yield Round(_trials(agent, stage, setup, len(done), size), (decided,))))
            promoted, why = _look(done, rules)
            decided = f"{agent}: stays with {stage.name}: {why}"
        passed.append(_level(stage, done, why, promoted=promoted))
        if not promoted:
            return _curriculum_result(agent, passed, f"not promoted from {stage.name}: {why}")
        if number + 1 < len(setup.outline.stages):
            following = setup.outline.stages[number + 1].name
            decided = f"{agent}: promoted from {stage.name} to {following}: {why}"
    return _curriculum_result(agent, passed, f"passed every level: {why}")


def _trials(agent: str, stage: Stage, setup: Setup, start: int, count: int) -> list[PlannedTrial]:
    """Return the next trials of a level: its cases in turn, each time with the next seed."""
    cases = stage.cases
    return [
        planned(cases[at % len(cases)], agent, stage.params, setup.seed(at // len(cases)))
        for at in range(start, start + count)
    ]


def _look(done: Sequence[Trial], rules: Curriculum) -> tuple[bool, str]:
    """Return whether the agent is promoted, and why."""
    judged = [trial for trial in done if trial.status.judged]
    last = judged[-rules.promote.last :]
    passed = sum(trial.passed for trial in last)
    enough = len(last) == rules.promote.last and passed >= rules.promote.pass_rate * len(last)
    why = f"{passed} of the last {len(last)} passed, {level_of(rules.promote.pass_rate)} are needed"
    if len(last) < rules.promote.last:
        why += f" of {rules.promote.last}"
    if unjudged := len(done) - len(judged):
        why += f"; {unjudged} could not be judged"
    if not enough and len(done) >= rules.max_trials:
        why += f"; {len(done)} trials are all there are"
    return enough, why


def _level(stage: Stage, done: Sequence[Trial], why: str, *, promoted: bool) -> dict[str, Any]:
    judged = [trial for trial in done if trial.status.judged]
    return {
        "level": stage.name,
        "trials": len(done),
        "judged": len(judged),
        "passed": sum(trial.passed for trial in judged),
        "promoted": promoted,
        "why": why,
    }


def _curriculum_result(agent: str, levels: list[dict[str, Any]], why: str) -> CourseResult:
    passed = [level["level"] for level in levels if level["promoted"]]
    facts = {"reached": levels[-1]["level"], "passed": passed, "why": why, "levels": levels}
    return CourseResult(facts, (f"{agent}: reached {facts['reached']}; {why}",))

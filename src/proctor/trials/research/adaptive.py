"""Adaptive difficulty: each next trial as hard as the results so far suggest.

One trial of each agent at a time. A staircase or the posterior of the agent's threshold says how
hard it is; whichever does, the posterior of all its trials is told at the end, on the scale of the
parameter (or of levels, 1 for the easiest).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from proctor.formatting import level_of, percent
from proctor.runs.trial import Trial
from proctor.spec.research import Adaptive
from proctor.trials.research.outline import Stage
from proctor.trials.research.rounds import Course, CourseResult, Round, Setup, planned, side_by_side
from proctor.trials.research.staircase import Staircase
from proctor.trials.research.threshold import ObservedDifficulty, Posterior

STUCK = 3
"""Moves in a row against an end of the scale after which a staircase stops: it is not on it."""


def adaptive(setup: Setup) -> Course:
    """All agents, each at its own difficulty."""
    rules = setup.outline.research.adaptive
    assert rules is not None
    found = yield from side_by_side(
        {agent: _of_agent(agent, rules, setup) for agent in setup.agents}
    )
    facts: dict[str, Any] = {
        "method": rules.method,
        "estimates": f"the difficulty at which the pass rate is {rules.sought:.3g}",
        "target": rules.sought,
        "scale": [{"level": s.name, "value": s.value} for s in setup.outline.stages],
        "agents": {agent: each.facts for agent, each in zip(setup.agents, found, strict=True)},
    }
    return CourseResult(facts, tuple(line for each in found for line in each.lines))


class _TrialAtLevel(NamedTuple):
    """A trial and the level it was at."""

    stage: Stage
    trial: Trial


def _of_agent(agent: str, rules: Adaptive, setup: Setup) -> Course:
    stages = setup.outline.stages
    # Difficulty grows from one stage to the next, also where the parameter falls.
    sign = 1.0 if stages[-1].value > stages[0].value else -1.0
    scale = [sign * stage.value for stage in stages]
    stairs, posterior = Staircase(scale, rules.down), Posterior(scale, rules)
    at = 0 if rules.method == "staircase" else posterior.most_telling()
    decided = f"{agent}: begins with {stages[at].name}"
    seen: list[_TrialAtLevel] = []
    ended = f"{rules.max_trials} trials are all there are"
    while len(seen) < rules.max_trials:
        stage, number = stages[at], len(seen)
        case = stage.cases[number % len(stage.cases)]
        # Never the same scenario at another difficulty: trials must not go together.
        trial_asked = planned(case, agent, stage.params, setup.seeds[number])
        (trial,) = yield Round([trial_asked], (decided,))
        seen.append(_TrialAtLevel(stage, trial))
        if not trial.status.judged:
            decided = f"{agent}: {stage.name} could not be judged, again"
            continue
        posterior.add(ObservedDifficulty(scale[at], trial.passed))
        words = stairs.add(trial.passed) if rules.method == "staircase" else _word(trial)
        if (reason := _over(rules, stairs, posterior)) is not None:
            ended = reason
            break
        at = stairs.at if rules.method == "staircase" else posterior.most_telling()
        decided = f"{agent}: {stage.name} {words} → {stages[at].name}"
    return _found(agent, rules, seen, (stairs, posterior, sign), ended)


def _word(trial: Trial) -> str:
    return "passed" if trial.passed else "failed"


def _over(rules: Adaptive, stairs: Staircase, posterior: Posterior) -> str | None:
    """Why there is no further trial, if so."""
    if rules.method == "staircase":
        if len(stairs.turned) >= rules.reversals:
            return f"it turned {len(stairs.turned)} times"
        if stairs.stuck >= STUCK:
            return f"it stood at the end of the scale for {stairs.stuck} moves"
        return None
    if rules.precision is None:
        return None
    known = posterior.estimate(rules.confidence)
    if known.high - known.low <= rules.precision:
        return f"the credible interval is no wider than {rules.precision:g}"
    return None


def _found(
    agent: str,
    rules: Adaptive,
    seen: Sequence[_TrialAtLevel],
    ways: tuple[Staircase, Posterior, float],
    ended: str,
) -> CourseResult:
    stairs, posterior, sign = ways
    known = posterior.estimate(rules.confidence)
    low, high = sorted((sign * known.low, sign * known.high))
    facts: dict[str, Any] = {
        "trials": len(seen),
        "judged": sum(each.trial.status.judged for each in seen),
        "passed": sum(each.trial.passed for each in seen),
        "ended": ended,
        "posterior": {
            "median": sign * known.median,
            "low": low,
            "high": high,
            "confidence": rules.confidence,
            "easier_than_the_scale": known.below,
            "harder_than_the_scale": known.above,
        },
        "path": [
            {
                "level": each.stage.name,
                "value": each.stage.value,
                "passed": each.trial.passed if each.trial.status.judged else None,
            }
            for each in seen
        ],
    }
    told = (
        f"posterior median {sign * known.median:.3g}, {level_of(rules.confidence)} between "
        f"{low:.3g} and {high:.3g}"
    )
    if max(known.below, known.above) > 0.5:
        end = "easier" if known.below > known.above else "harder"
        told += f" (more likely than not {end} than the scale)"
    if rules.method == "staircase":
        settled = stairs.settled()
        mean = None if settled.estimate is None else sign * settled.estimate
        facts["staircase"] = {**settled._asdict(), "estimate": mean}
        error = settled.standard_error
        told = (
            ("no estimate from the turns" if mean is None else f"turns around {mean:.3g}")
            + ("" if error is None else f" (standard error {error:.2g})")
            + f"; {told}"
        )
    what = "level" if rules.parameter is None else rules.parameter.name
    line = f"{agent}: {what} that is passed {percent(rules.sought)} of the time: {told}; "
    return CourseResult(facts, (f"{line}{facts['judged']} judged trials, {ended}",))

"""A curriculum: ordered levels; an agent moves on to the next when it passes often enough.

An agent is judged after each batch of a level. It is promoted when enough of its last judged trials
passed, and stays when the level's trials are used up. The pass rates of levels come from trials
that were stopped by results, so they are biased; the outcome is the level reached, and its
certainty depends on `last` and `pass_rate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proctor.formatting import level_of
from proctor.runs.trial import PlannedTrial, Trial
from proctor.spec.research import Curriculum
from proctor.trials._research.rounds import (
    Course,
    CourseResult,
    Round,
    Setup,
    Stage,
    planned,
    side_by_side,
)


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
            return _found(agent, passed, f"not promoted from {stage.name}: {why}")
        if number + 1 < len(setup.outline.stages):
            following = setup.outline.stages[number + 1].name
            decided = f"{agent}: promoted from {stage.name} to {following}: {why}"
    return _found(agent, passed, f"passed every level: {why}")


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


def _found(agent: str, levels: list[dict[str, Any]], why: str) -> CourseResult:
    passed = [level["level"] for level in levels if level["promoted"]]
    facts = {"reached": levels[-1]["level"], "passed": passed, "why": why, "levels": levels}
    return CourseResult(facts, (f"{agent}: reached {facts['reached']}; {why}",))

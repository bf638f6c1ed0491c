"""A curriculum: ordered levels; each agent goes on to the next when it has shown that it can.

An agent is looked at after each batch of a level. It is promoted when enough of its last judged
trials passed, and stays when the level's trials are used up. The pass rates of levels are those of
trials stopped by results, so they are no unbiased estimates; which level was reached is the
outcome, and how sure one may be of it depends on `last` and `pass_rate`.
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
    """All agents, each at its own level."""
    rules = setup.outline.research.curriculum
    assert rules is not None
    found = yield from side_by_side(
        {agent: _of_agent(agent, rules, setup) for agent in setup.agents}
    )
    facts = {agent: each.facts for agent, each in zip(setup.agents, found, strict=True)}
    return CourseResult({"agents": facts}, tuple(line for each in found for line in each.lines))


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
    """The next trials of a level: its cases in turn, each time with the next seed."""
    cases = stage.cases
    return [
        planned(cases[at % len(cases)], agent, stage.params, setup.seeds[at // len(cases)])
        for at in range(start, start + count)
    ]


def _look(done: Sequence[Trial], rules: Curriculum) -> tuple[bool, str]:
    """Whether that is enough for the next level, and in words."""
    judged = [trial for trial in done if trial.status.judged]
    last = judged[-rules.promote.last :]
    passed = sum(trial.passed for trial in last)
    enough = len(last) == rules.promote.last and passed >= rules.promote.pass_rate * len(last)
    words = (
        f"{passed} of the last {len(last)} passed, {level_of(rules.promote.pass_rate)} are needed"
    )
    if len(last) < rules.promote.last:
        words += f" of {rules.promote.last}"
    if unjudged := len(done) - len(judged):
        words += f"; {unjudged} could not be judged"
    if not enough and len(done) >= rules.max_trials:
        words += f"; {len(done)} trials are all there are"
    return enough, words


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

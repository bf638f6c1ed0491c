"""Put an agent to a built scenario once, keeping nothing.

For those who write scenarios and want to see one at work; trials that count are `proctor run`'s.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, cast

from proctor.agents.base import AgentConfig, AgentRequest
from proctor.errors import ProctorError
from proctor.worlds import Outcome, Trajectory, episode

if TYPE_CHECKING:
    from proctor.scenarios.built import Built

SOLUTION = "solution"
"""The name of the scenario's own solution, where an agent is asked for."""


async def attempt(built: Built, agent: Any, steps: int | None = None) -> Outcome:
    """One episode in its world, or one answer to its question with the checks of its case."""
    config = _agent(built, agent)
    case = built.case()
    request = AgentRequest(case.input, case=built.name, trial=built.name, seed=built.seed)
    try:
        written = built.world_spec
        if written is None:
            return await _answer(built, config, request)
        return await episode(
            lambda: cast("Any", built.world()),
            config.create(),
            request,
            seed=built.seed,
            max_steps=steps if steps is not None else written.get("max_steps"),
            scoring=written.get("scoring"),
            truth=built.truth,
        )
    finally:
        if request.used_workdir is not None:
            shutil.rmtree(request.used_workdir, ignore_errors=True)


async def _answer(built: Built, config: AgentConfig, request: AgentRequest) -> Outcome:
    from proctor.checks.evaluate import evaluate
    from proctor.checks.registry import CheckContext
    from proctor.spec.plan import plan_checks
    from proctor.trace.capture import capture

    case = built.case()
    with capture(case.input) as trace:
        reply = await config.create().run(request)
        trace.response = reply.answer
    context = CheckContext(case, reply.trace or trace, reply.answer)
    judged = await evaluate(plan_checks(case), context)
    return Outcome(
        trajectory=Trajectory(built.seed),
        answer=reply.answer,
        ended="answered",
        score=judged.score,
        reason="; ".join(f"{each.id}: {each.reason}" for each in judged.results),
    )


def _agent(built: Built, agent: Any) -> AgentConfig:
    from proctor.agents.registry import resolve_agent
    from proctor.spec.config import load_configuration

    if isinstance(agent, AgentConfig):
        return agent
    if agent == SOLUTION:
        if built.solution is None:
            raise ProctorError(f"{built.name} does not say how it is solved")
        agent = built.solution["agent"]
    configuration = load_configuration()
    return resolve_agent(
        agent,
        configuration.settings.agents,
        built.folder,
        settings_dir=configuration.folder,
    )

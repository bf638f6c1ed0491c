"""One trial of an agent on a case that any answer passes, for tests of agents and of trials."""

from typing import Any, NamedTuple

import msgspec

from proctor.agents.base import AgentConfig
from proctor.runs.trial import PlannedTrial, Trial
from proctor.spec import Case, Suite
from proctor.trace import Trace
from proctor.trials.options import RunOptions
from proctor.trials.prepare import RunContext, prepare
from proctor.trials.run_trial import run_trial


class Tried(NamedTuple):
    """A finished trial and its trace."""

    trial: Trial
    trace: Trace | None


def context_of(config: AgentConfig, value: Any = "x", **options: Any) -> RunContext:
    """Return the context of one agent `a` and one case `c`."""
    suite = Suite(cases=(Case(id="c", input=value, correctness={"regex_match": "^"}),))
    context = prepare(suite, RunOptions(**options), agents={"a": str})
    # Put in afterwards, so that a trial meets what `prepare` would refuse.
    context.agents["a"] = config
    return context


async def run_one(
    config: AgentConfig, value: Any = "x", *, index: int = 0, sleep: Any = None, **options: Any
) -> Tried:
    """Run one trial of the agent."""
    context = context_of(config, value, **options)
    context.sleep = sleep or context.sleep
    trial, line = await run_trial(PlannedTrial(case="c", agent="a", index=index, seed=5), context)
    return Tried(trial, None if line is None else msgspec.json.decode(line, type=Trace))

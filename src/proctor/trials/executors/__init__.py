"""Where trials run: each executor takes jobs and hands back what they came to.

The driver owns everything else (plan, journal, limits, early stop, progress), so an executor
only has to be fast and to give back every job it took, finished or cancelled. A workforce is what
makes executors: it is there for a whole run, whose rounds each have one of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple, Protocol

from proctor.runs.model import PlannedTrial
from proctor.trials.options import ExecutorName
from proctor.trials.perform import Finished

if TYPE_CHECKING:
    from proctor.agents.checkpoint import CheckpointStore
    from proctor.trials.ready import Prepared


class Job(NamedTuple):
    """A planned trial, its place in the plan of its cell, which attempt at it this is, and its
    number in the plan of the run."""

    planned: PlannedTrial
    position: int
    attempt: int = 1
    number: int = 0


Jobs = Iterator[Job]
Deliver = Callable[[Job, Finished], None]


class Executor(Protocol):
    """Runs jobs until they run out or `stop` is called."""

    async def run(self, jobs: Jobs, deliver: Deliver) -> None:
        """Take jobs while there are any; deliver every one taken, in any order."""
        ...

    def stop(self) -> None:
        """Take no more jobs and cancel the running ones; they are delivered as cancelled."""
        ...


class Workforce(Protocol):
    """Whatever a run needs to have its trials performed, opened once."""

    def executor(self, planned: int) -> Executor:
        """For a plan of so many trials."""
        ...


def workforce_for(
    ready: Prepared, store: CheckpointStore | None
) -> AbstractContextManager[Workforce]:
    """The workforce its options ask for; enter it where rates and cassette are in force.

    `store` keeps the states of agents whose trials are to be resumed.
    """
    if ready.options.executor == ExecutorName.RAY:
        from proctor.trials.executors.ray.workforce import ray_workforce

        return ray_workforce(ready, store)
    from proctor.trials.executors.local import LocalWorkforce

    return nullcontext(LocalWorkforce(ready.bench, ready.options))

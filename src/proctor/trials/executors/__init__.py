"""Where trials run: each executor takes jobs and hands back what they came to.

The driver owns everything else (plan, journal, limits, early stop, progress), so an executor
only has to be fast and to give back every job it took, finished or cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from proctor.runs.model import PlannedTrial
from proctor.trials.perform import Finished


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

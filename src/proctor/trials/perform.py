"""One trial: a fresh agent, one case, once, judged.

Promise: whatever the agent does, this returns a `Finished` with a status that says whose fault it
was: the agent's (passed, failed, hard_fail), the infrastructure's (infra_error) or ours
(cancelled). The trace seen so far is kept in every case.
"""

from __future__ import annotations

import asyncio

from proctor.runs.model import PlannedTrial
from proctor.trials.asking import ask, was_stopped, went_wrong
from proctor.trials.bench import Asked, Bench, Finished, PreparedCase
from proctor.trials.concluding import Waiting, judge, seal, status_of

__all__ = ["Bench", "Finished", "PreparedCase", "finish", "perform", "status_of"]


async def perform(planned: PlannedTrial, bench: Bench, *, attempt: int = 1) -> Finished:
    """Run one trial to its end, whatever that is."""
    asked = await ask(planned, bench, attempt)
    waiting = judge(asked, bench)
    if waiting is not None:
        await finish(asked, waiting)
    return seal(asked, bench)


async def finish(asked: Asked, waiting: Waiting) -> None:
    """Wait for the checks of a trial."""
    try:
        await waiting
    except asyncio.CancelledError:
        was_stopped(asked)
    except Exception as error:  # noqa: BLE001 (judges raise anything; the trial says what)
        went_wrong(asked, error)

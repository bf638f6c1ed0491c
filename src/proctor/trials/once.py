"""Try a plan without keeping anything: what `proctor test` and the pytest plugin do.

Promise: what is finished when the work is stopped is given back, and so is what was running, as
cancelled; a trial that never began is not a result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from proctor.runs.model import PlannedTrial
from proctor.trials.executors import Job
from proctor.trials.executors.local import LocalExecutor
from proctor.trials.judges import closing
from proctor.trials.perform import Bench, Finished
from proctor.trials.session import STOP_GRACE, abandoned


async def try_once(
    plan: Sequence[PlannedTrial],
    bench: Bench,
    *,
    concurrency: int = 1,
    on_finished: Callable[[Finished], None] | None = None,
    stop: asyncio.Event | None = None,
    fail_fast: bool = False,
) -> list[Finished]:
    """Every trial of the plan, in the order of the plan, nothing written.

    `stop` cancels what runs; `fail_fast` begins nothing more once a trial has not passed.
    """
    done: dict[str, Finished] = {}
    running: dict[str, Job] = {}
    failed = asyncio.Event()

    def jobs() -> Iterator[Job]:
        for place, planned in enumerate(plan):
            if fail_fast and failed.is_set():
                return
            job = running[planned.key] = Job(planned, place)
            yield job

    def deliver(job: Job, finished: Finished) -> None:
        running.pop(job.planned.key, None)
        done[job.planned.key] = finished
        if not finished.trial.passed:
            failed.set()
        if on_finished is not None:
            on_finished(finished)

    executor = LocalExecutor(bench, concurrency)
    async with closing(bench.judges):
        work = asyncio.ensure_future(executor.run(jobs(), deliver))
        try:
            await _until(work, stop or asyncio.Event(), executor)
        finally:
            work.cancel()
    for job in list(running.values()):
        deliver(job, Finished(abandoned(job), None))
    return [done[planned.key] for planned in plan if planned.key in done]


async def _until(work: asyncio.Future[None], stop: asyncio.Event, executor: LocalExecutor) -> None:
    """Wait for the work; once told to stop, for as long as running agents may take to end."""
    told = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({work, told}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()
    if not work.done():
        executor.stop()
        await asyncio.wait({work}, timeout=STOP_GRACE)
    if work.done() and not work.cancelled():
        work.result()

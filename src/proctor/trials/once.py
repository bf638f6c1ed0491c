"""Try a plan without keeping anything: what `proctor test` and the pytest plugin do.

Promise: what is finished when the work is stopped is given back, and so is what was running, as
cancelled; a trial that never began is not a result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from proctor.runs.trial import PlannedTrial, Trial
from proctor.trace import Trace
from proctor.trials.executor import LocalExecutor
from proctor.trials.prepare import RunContext, closing
from proctor.trials.session import STOP_GRACE, abandoned


class Finished(NamedTuple):
    """A trial and its trace."""

    trial: Trial
    trace: Trace | None


async def try_once(
    plan: Sequence[PlannedTrial],
    context: RunContext,
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
    running: dict[str, PlannedTrial] = {}
    failed = asyncio.Event()

    def trials() -> Iterator[PlannedTrial]:
        for planned in plan:
            if fail_fast and failed.is_set():
                return
            running[planned.key] = planned
            yield planned

    def deliver(planned: PlannedTrial, trial: Trial, encoded: bytes | None) -> None:
        running.pop(planned.key, None)
        trace = None if encoded is None else msgspec.json.decode(encoded, type=Trace)
        finished = done[planned.key] = Finished(trial, trace)
        if not trial.passed:
            failed.set()
        if on_finished is not None:
            on_finished(finished)

    executor = LocalExecutor(context, concurrency)
    async with closing(context.judges):
        work = asyncio.ensure_future(executor.run(trials(), deliver))
        try:
            await _until(work, stop or asyncio.Event(), executor)
        finally:
            work.cancel()
    for planned in list(running.values()):
        deliver(planned, abandoned(planned), None)
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

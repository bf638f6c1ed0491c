"""Trials in this process: a fixed number of workers on one event loop.

Workers pull jobs when they are free, so memory does not grow with the plan and a job is decided
on (limits, early stop) only at the moment it can start.
"""

from __future__ import annotations

import asyncio

from proctor.agents.failures import Transient
from proctor.trials.executors import Deliver, Jobs
from proctor.trials.options import RunOptions
from proctor.trials.perform import Bench, perform
from proctor.trials.throttle import Throttle

TURN = 32
"""Trials after which a worker gives the event loop a turn: agents that never wait would keep it
from signals, timers and the other workers."""


class LocalWorkforce:
    """This process."""

    def __init__(self, bench: Bench, options: RunOptions) -> None:
        self._bench = bench
        self._options = options

    def executor(self, planned: int) -> LocalExecutor:
        """For a plan of so many trials."""
        return LocalExecutor(self._bench, self._options.at_once(planned))


class LocalExecutor:
    """Runs at most `concurrency` trials at a time."""

    def __init__(self, bench: Bench, concurrency: int) -> None:
        self._bench = bench
        self._concurrency = concurrency
        self._workers: list[asyncio.Task[None]] = []
        self._stopping = False
        self._throttle = Throttle(concurrency)
        bench.on_transient = self._on_transient

    def _on_transient(self, _agent: str, reason: Transient) -> None:
        if reason.rate_limited:
            self._throttle.slow_down()

    async def run(self, jobs: Jobs, deliver: Deliver) -> None:
        """Work until the jobs run out or `stop` is called."""
        async with asyncio.TaskGroup() as group:
            self._workers = [
                group.create_task(self._work(jobs, deliver)) for _ in range(self._concurrency)
            ]

    async def _work(self, jobs: Jobs, deliver: Deliver) -> None:
        throttle, bench, done = self._throttle, self._bench, 0
        while not self._stopping:
            if not throttle.enter_now():
                await throttle.enter()
            try:
                if self._stopping or (job := next(jobs, None)) is None:
                    return
                finished = await perform(job.planned, bench, attempt=job.attempt)
                # A cancelled trial is delivered as such; the worker ends by leaving its loop.
                if self._stopping and (task := asyncio.current_task()) is not None:
                    task.uncancel()
                deliver(job, finished)
            finally:
                throttle.leave()
            done += 1
            if done % TURN == 0:
                await asyncio.sleep(0)

    def stop(self) -> None:
        """Cancel what runs; `run` returns once every taken job is delivered."""
        self._stopping = True
        for worker in self._workers:
            worker.cancel()

"""Trials in this process: a fixed number of workers on one event loop.

Workers pull jobs when they are free, so memory does not grow with the plan and a job is decided
on (limits, early stop) only at the moment it can start. Where nothing is decided by results,
quick trials that end at nearly the same time are judged and sealed together, step by step: the
processor then does each step many times in a row, which takes a quarter less than one trial after
another.
"""

from __future__ import annotations

import asyncio

from proctor.agents.failures import Transient
from proctor.runs.journal import Sync
from proctor.runs.writer import LONG_MS
from proctor.trials.asking import ask
from proctor.trials.bench import Asked, Bench
from proctor.trials.concluding import Waiting, judge, seal
from proctor.trials.executors import Deliver, Job, Jobs
from proctor.trials.options import RunOptions
from proctor.trials.perform import finish
from proctor.trials.throttle import Throttle

TURN = 32
"""Trials after which a worker gives the event loop a turn: agents that never wait would keep it
from signals, timers and the other workers."""

TOGETHER = 32
"""Trials that are concluded together: with more, what they hold no longer fits the caches."""

GATHER = 0.002
"""Seconds in which quick trials gather: nothing to a person, and what a write costs is shared by
twenty where a hundred agents take 10 ms each."""


class LocalWorkforce:
    """This process."""

    def __init__(self, bench: Bench, options: RunOptions) -> None:
        self._bench = bench
        self._options = options

    def executor(self, planned: int) -> LocalExecutor:
        """For a plan of so many trials."""
        options = self._options
        at_once = options.at_once(planned)
        # No trial waits for another where each is forced out, or decides what is run next.
        alone = at_once == 1 or options.sync == Sync.ALWAYS
        together = not (alone or options.early_stop or options.limits.bound)
        return LocalExecutor(self._bench, at_once, together=together)


class LocalExecutor:
    """Runs at most `concurrency` trials at a time; `together` lets them be concluded in groups."""

    def __init__(self, bench: Bench, concurrency: int, *, together: bool = False) -> None:
        self._bench = bench
        self._concurrency = concurrency
        self._together = together
        self._group: asyncio.TaskGroup | None = None
        self._workers: list[asyncio.Task[None]] = []
        self._ended: list[tuple[Job, Asked]] = []
        self._broken: Exception | None = None
        self._stopping = False
        self._throttle = Throttle(concurrency)
        bench.on_transient = self._on_transient

    def _on_transient(self, _agent: str, reason: Transient) -> None:
        if reason.rate_limited:
            self._throttle.slow_down()

    async def run(self, jobs: Jobs, deliver: Deliver) -> None:
        """Work until the jobs run out or `stop` is called."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._workers = [
                group.create_task(self._work(jobs, deliver)) for _ in range(self._concurrency)
            ]
            await asyncio.wait(self._workers)
            self._conclude(deliver)
        if self._broken is not None:
            raise self._broken

    async def _work(self, jobs: Jobs, deliver: Deliver) -> None:
        throttle, bench, done = self._throttle, self._bench, 0
        while not self._stopping:
            if not throttle.enter_now():
                await throttle.enter()
            try:
                if self._stopping or (job := next(jobs, None)) is None:
                    return
                asked = await ask(job.planned, bench, job.attempt)
                if self._together and not asked.prepared.may_wait:
                    self._end(job, asked, deliver)
                else:
                    waiting = judge(asked, bench)
                    if waiting is not None:
                        await finish(asked, waiting)
                    deliver(job, seal(asked, bench))
                # A cancelled trial is delivered as such; the worker ends by leaving its loop.
                if self._stopping and (task := asyncio.current_task()) is not None:
                    task.uncancel()
            finally:
                throttle.leave()
            done += 1
            if done % TURN == 0:
                await asyncio.sleep(0)

    def _end(self, job: Job, asked: Asked, deliver: Deliver) -> None:
        """An agent has ended; its trial is concluded with others, soon."""
        self._ended.append((job, asked))
        if len(self._ended) >= TOGETHER or asked.trial.duration_ms >= LONG_MS:
            self._conclude(deliver)
        elif len(self._ended) == 1:
            asyncio.get_running_loop().call_later(GATHER, self._conclude_soon, deliver)

    def _conclude_soon(self, deliver: Deliver) -> None:
        try:
            self._conclude(deliver)
        except Exception as error:  # noqa: BLE001 (a disk that is full, say: `run` raises it)
            self._broken = self._broken or error
            self.stop()

    def _conclude(self, deliver: Deliver) -> None:
        """Judge, seal and deliver the trials whose agents have ended."""
        ended, self._ended = self._ended, []
        bench, later = self._bench, self._judge_later
        judged = [each for each in ended if not later(each, judge(each[1], bench), deliver)]
        finished = [seal(asked, bench) for _, asked in judged]
        for (job, _), each in zip(judged, finished, strict=True):
            deliver(job, each)

    def _judge_later(
        self, ended: tuple[Job, Asked], waiting: Waiting | None, deliver: Deliver
    ) -> bool:
        """Whether a check waits, though nothing said so: a task sees to the trial then."""
        if waiting is None:
            return False

        async def see_to() -> None:
            job, asked = ended
            await finish(asked, waiting)
            deliver(job, seal(asked, self._bench))

        assert self._group is not None
        self._workers.append(self._group.create_task(see_to()))
        return True

    def stop(self) -> None:
        """Cancel what runs; `run` returns once every taken job is delivered."""
        self._stopping = True
        for worker in self._workers:
            worker.cancel()

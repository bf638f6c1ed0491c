"""Trials in this process: a fixed number of workers on one event loop.

Workers pull jobs when they are free, so memory does not grow with the plan and a job is decided
on (limits, early stop) only at the moment it can start. Where nothing is decided by results,
quick trials that end at nearly the same time are judged and sealed together, step by step: the
processor then does each step many times in a row, which takes a quarter less than one trial after
another. Agents go first: while some are waking up, what has ended waits, so that no agent waits
for the trial of another to be judged.
"""

from __future__ import annotations

import asyncio
import sys

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

SOME = 16
"""Trials that are concluded before agents get a turn: half a millisecond's work."""

MOST = 128
"""Trials that may have ended and wait, while agents keep waking up: more are no use to the next."""

WAITED_MS = 1.0
"""An agent that took longer has waited for something: others do too, and may wake at any moment."""

QUIET = 2
"""Turns of the event loop without an end, after which no agent is waking up: a timer goes off in
one turn, and whoever waited for it goes on in the next."""

PATIENCE = 0.02
"""Seconds after which what has ended goes first: agents that keep the processor busy, and so end
one by one in every turn, would put it off for long."""

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
        self._waking = False
        """Whether an agent has ended since the last turn."""
        self._expected = False
        """Whether turns are taken until all that ended are concluded."""
        self._gather = GATHER
        """Seconds to wait for others to end; none once the jobs have run out, when concluding them
        is all that is left to do."""
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
                    self._gather = 0.0
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
        self._waking = True
        took = asked.trial.duration_ms
        if took >= LONG_MS:
            self._conclude(deliver)
        elif len(self._ended) >= (TOGETHER if took < WAITED_MS else MOST):
            self._conclude(deliver, TOGETHER)
        elif not self._expected:
            self._expected = True
            loop = asyncio.get_running_loop()
            loop.call_later(self._gather, self._turn, deliver, loop.time() + PATIENCE)

    def _turn(self, deliver: Deliver, latest: float, quiet: int = 0) -> None:
        """A turn of the event loop: once no agent is waking up, conclude some that have ended."""
        loop = asyncio.get_running_loop()
        quiet = 0 if self._waking else quiet + 1
        self._waking = False
        if quiet >= QUIET or loop.time() >= latest:
            self._conclude_soon(deliver)
            quiet = 0
        if self._ended:
            loop.call_soon(self._turn, deliver, latest, quiet)
        else:
            self._expected = False

    def _conclude_soon(self, deliver: Deliver) -> None:
        try:
            self._conclude(deliver, SOME)
        except Exception as error:  # noqa: BLE001 (a disk that is full, say: `run` raises it)
            self._broken = self._broken or error
            self.stop()

    def _conclude(self, deliver: Deliver, most: int = sys.maxsize) -> None:
        """Judge, seal and deliver trials whose agents have ended, the first of them first."""
        ended, self._ended = self._ended[:most], self._ended[most:]
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

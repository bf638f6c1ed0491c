"""Where trials run: an executor takes planned trials and delivers finished ones.

The session owns everything else (plan, journal, limits, early stop, progress), so an executor only
has to be fast and to deliver every trial it took, finished or cancelled. Both executors call
`run_trial`: the local one on the event loop of this process, Ray's on its workers.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from proctor.llm.retry import Transient
from proctor.runs.trial import PlannedTrial, Trial
from proctor.trials.options import ExecutorName
from proctor.trials.run_trial import run_trial

if TYPE_CHECKING:
    from proctor.trials.prepare import RunContext

Deliver = Callable[[PlannedTrial, Trial | None, bytes | None], None]
"""Takes a trial that has ended: the plan it came from, the result and its encoded trace. Without a
result it never started, because the run was stopped."""

TURN = 32
"""Trials after which a worker yields to the event loop: agents that never wait would keep signals,
timers and the other workers from running."""

COOL_DOWN = 1.0
"""Seconds in which several 429s count as one overload."""

MANY = 200
"""Trials at a time from which it is measured whether the process keeps up with them."""

LATE = 0.025
"""Seconds of typical lateness that distort latencies: those of a tool, not of a model."""


class Executor(Protocol):
    """Runs trials until they run out or `stop` is called."""

    at_once: int
    """Trials that run at the same time, at most; those taken beyond that wait."""

    async def run(self, trials: Iterator[PlannedTrial], deliver: Deliver) -> None:
        """Take trials while there are any; deliver every one taken, in any order."""
        ...

    def stop(self) -> None:
        """Take no more trials and cancel the running ones; they are delivered as cancelled."""
        ...


ExecutorFactory = Callable[[int], Executor]
"""Makes the executor for a plan with this many trials."""


def executors_for(
    context: RunContext, *, fail_fast: bool = False
) -> AbstractContextManager[ExecutorFactory]:
    """Open what the executors of a run share; enter it inside its rate limits and cassette.

    A run of several rounds has an executor for each; workers stay up between them. With
    `fail_fast`, as with limits and early stop, results decide what starts next.
    """
    options = context.options
    ahead = not (fail_fast or options.early_stop or options.limited)
    if options.executor == ExecutorName.RAY:
        from proctor.trials._ray import ray_workforce

        return ray_workforce(context, ahead=ahead)
    if context.workers is not None:
        return context.workers.executors(ahead=ahead)
    return nullcontext(lambda planned: LocalExecutor(context, context.options.at_once(planned)))


class LocalExecutor:
    """Runs at most `concurrency` trials at a time on the event loop of this process.

    Workers pull a trial when they are free, so memory does not grow with the plan, and whether a
    trial starts (limits, early stop) is decided at the moment it could.
    """

    def __init__(self, context: RunContext, concurrency: int) -> None:
        self._context = context
        self.at_once = concurrency
        self._workers: list[asyncio.Task[None]] = []
        self._stopping = False
        self._throttle = Throttle(concurrency)

        def on_transient(_agent: str, reason: Transient) -> None:
            if reason.rate_limited:
                self._throttle.slow_down()

        context.on_transient = on_transient

    async def run(self, trials: Iterator[PlannedTrial], deliver: Deliver) -> None:
        """Work until the trials run out or `stop` is called."""
        lateness = Lateness(self.at_once) if self.at_once >= MANY else None
        async with asyncio.TaskGroup() as group:
            self._workers = [
                group.create_task(self._work(trials, deliver)) for _ in range(self.at_once)
            ]
        if lateness is not None:
            lateness.report()

    async def _work(self, trials: Iterator[PlannedTrial], deliver: Deliver) -> None:
        throttle, context, done = self._throttle, self._context, 0
        while not self._stopping:
            if not throttle.enter_now():
                await throttle.enter()
            try:
                if self._stopping or (planned := next(trials, None)) is None:
                    return
                trial, trace = await run_trial(planned, context)
                deliver(planned, trial, trace)
                # A cancelled trial is delivered as such; the worker ends by leaving its loop.
                if self._stopping and (task := asyncio.current_task()) is not None:
                    task.uncancel()
            finally:
                throttle.leave()
            done += 1
            if done % TURN == 0:
                await asyncio.sleep(0)

    def stop(self) -> None:
        """Cancel what runs; `run` returns once every trial it took is delivered."""
        self._stopping = True
        for worker in self._workers:
            worker.cancel()


class Lateness:
    """How much later than requested the event loop resumes the agents, of which it has many."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._late: list[float] = []
        self._wait()

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + LATE

        def resumed() -> None:
            self._late.append(loop.time() - due)
            self._wait()

        self._timer = loop.call_at(due, resumed)

    def report(self) -> None:
        """Stop; warn where latencies are mostly those of this process."""
        self._timer.cancel()
        # The median over time: one long wait weighs as much as the many short ones after it.
        half, late = (sum(self._late) + LATE * len(self._late)) / 2, 0.0
        for late in sorted(self._late):
            half -= LATE + late
            if half <= 0:
                break
        if late > LATE:
            sys.stderr.write(
                f"warning: latencies are about {1000 * late:,.0f} ms too long at each wait: one "
                f"process cannot keep up with {self._at_once:,} trials at a time; use a lower "
                "--concurrency\n"
            )


class Throttle:
    """Slots for running trials: fewer while a provider says "slow down".

    Additive increase, multiplicative decrease: a 429 halves the number (at most once a second,
    since many calls report one overload), and each trial without one wins back part of a slot.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._limit = float(most)
        self._active = 0
        self._clock = clock
        self._slowed_at = float("-inf")
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def limit(self) -> int:
        """The number of trials that may run now."""
        return max(1, int(self._limit))

    @property
    def slowed(self) -> bool:
        """Whether fewer may run than configured."""
        return self._limit < self._most

    def enter_now(self) -> bool:
        """Take a slot if one is free."""
        if self._active >= self._limit and self._active >= self.limit:
            return False
        self._active += 1
        return True

    async def enter(self) -> None:
        """Wait for a slot."""
        while not self.enter_now():
            ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(ticket)
            await ticket

    def leave(self) -> None:
        """Give the slot back; a trial that went well wins back part of one."""
        self._active -= 1
        # Not within the cool-down, in which several 429s count as one overload.
        if self._limit < self._most and self._clock() - self._slowed_at >= COOL_DOWN:
            self._limit = min(self._most, self._limit + 1 / self._limit)
        while self._waiting and self._active < self.limit:
            ticket = self._waiting.pop(0)
            if not ticket.done():
                ticket.set_result(None)
                break

    def slow_down(self) -> None:
        """Halve the slots because a provider is overloaded."""
        now = self._clock()
        if now - self._slowed_at >= COOL_DOWN:
            self._slowed_at = now
            self._limit = max(1.0, self._limit / 2)

"""A warm worker: agents, cases and scenarios loaded once, trials performed as they are ordered.

Promise: trials run on an event loop of their own, so that an agent that blocks it keeps neither
orders to stop nor answers of the driver from coming in. Nothing is written but what an agent
writes: what trials come to is handed to the driver, which asks for it all the time.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections import deque
from collections.abc import Coroutine
from typing import Any

from proctor import __version__
from proctor.errors import ProctorError
from proctor.llm.rate_limits import limiters_in_force
from proctor.llm.retry import Transient
from proctor.runs.trial import PlannedTrial, TrialError, TrialStatus
from proctor.trials.executors.ray.asking import SLOW_DOWN, DriverClient, DriverLimiter, DriverStore
from proctor.trials.executors.ray.kit import Kit, Unpacked
from proctor.trials.executors.ray.wire import (
    Ask,
    Done,
    Parcel,
    answer_of,
    orders_of,
    pack,
    trial_as_json,
)
from proctor.trials.prepare import closing
from proctor.trials.run_trial import run_trial

LINGER = 0.01
"""Seconds a parcel waits for more while there is work left: short trials travel together."""

TURN = 32
"""Trials after which one gives the others a turn, as in the local executor."""


class Outbox:
    """What the driver is to be told, filled from any thread and emptied by who asks for it."""

    def __init__(self) -> None:
        self._done: list[Done] = []
        self._asks: list[Ask] = []
        self._lock = threading.Lock()
        self._told = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._signalled = False

    def add(self, item: Done | Ask) -> None:
        """Have something to tell."""
        with self._lock:
            if isinstance(item, Done):
                self._done.append(item)
            else:
                self._asks.append(item)
            first, self._signalled = not self._signalled, True
        if first:
            self._loop.call_soon_threadsafe(self._told.set)

    async def wait(self) -> None:
        """Until there is something to tell."""
        await self._told.wait()

    @property
    def asks(self) -> bool:
        """Whether somebody waits for the driver."""
        return bool(self._asks)

    def empty(self) -> tuple[list[Done], list[Ask]]:
        """All there is to tell."""
        with self._lock:
            done, self._done = self._done, []
            asks, self._asks = self._asks, []
            self._signalled = False
            self._told.clear()
        return done, asks


class Floor:
    """Trials on an event loop in a thread of its own, at most `slots` at a time."""

    def __init__(self, unpacked: Unpacked, outbox: Outbox, asking: DriverClient, kit: Kit) -> None:
        self._unpacked = unpacked
        self._outbox = outbox
        self._limiters = {name: DriverLimiter(name, asking) for name in kit.rates}
        self._waiting: deque[PlannedTrial] = deque()
        self._lanes: set[asyncio.Task[None]] = set()
        self._slots = 1
        self._stopping = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="trials", daemon=True)
        self._thread.start()
        context = unpacked.context
        context.checkpoints = DriverStore(asking)
        context.on_transient = lambda _agent, reason: _on_transient(asking, reason)

    @property
    def busy(self) -> bool:
        """Whether orders wait for a place."""
        return bool(self._waiting)

    def order(self, orders: list[PlannedTrial], slots: int) -> None:
        """Perform these, so many at a time; called from another thread."""
        if orders:
            self._loop.call_soon_threadsafe(self._start, orders, slots)

    def _start(self, orders: list[PlannedTrial], slots: int) -> None:
        self._stopping = False
        self._slots = slots
        self._waiting.extend(orders)
        for _ in range(min(len(self._waiting), slots - len(self._lanes))):
            self._lanes.add(self._loop.create_task(self._lane()))

    async def _lane(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            with limiters_in_force(self._limiters):
                await self._perform_all(task)
        finally:
            # In the same turn as the look at what waits: else a new order could find nobody.
            self._lanes.discard(task)

    async def _perform_all(self, task: asyncio.Task[Any]) -> None:
        count, context = 0, self._unpacked.context
        while self._waiting and not self._stopping and len(self._lanes) <= self._slots:
            planned = self._waiting.popleft()
            try:
                trial, trace = await run_trial(planned, context)
            except Exception as error:  # noqa: BLE001 (ours: the driver waits for every trial)
                trial, trace = planned.trial(TrialStatus.INFRA_ERROR), None
                reason = str(error) or repr(error)
                trial.error = TrialError(type(error).__name__, reason, place="worker")
            if self._stopping:
                task.uncancel()
            self._outbox.add(Done(planned.key, trial_as_json(trial), trace))
            count += 1
            if count % TURN == 0:
                await asyncio.sleep(0)

    def stop(self) -> None:
        """Cancel what runs and give back what was never begun; called from another thread."""
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._stopping = True
        while self._waiting:
            self._outbox.add(Done(self._waiting.popleft().key, None))
        for lane in self._lanes:
            lane.cancel()

    async def close(self) -> None:
        """End the loop; connections of judges are closed in it."""

        async def closed() -> None:
            async with closing(self._unpacked.context.judges):
                pass

        await asyncio.wrap_future(self._run(closed()))
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()
        self._unpacked.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop)


def _on_transient(asking: DriverClient, reason: Transient) -> None:
    if reason.rate_limited:
        asking.tell(SLOW_DOWN)


class Worker:
    """The actor. Its methods are all the driver ever calls."""

    def __init__(self) -> None:
        self._outbox: Outbox | None = None
        self._asking: DriverClient | None = None
        self._floor: Floor | None = None
        self._unpacked: Unpacked | None = None
        self._loading = asyncio.Lock()

    async def load(self, digest: str, kit: Kit) -> dict[str, Any]:
        """Make everything ready, unless it is; says who we are, or what is wrong."""
        async with self._loading:
            return await self._load(digest, kit)

    async def _load(self, digest: str, kit: Kit) -> dict[str, Any]:
        unpacked = self._unpacked
        if unpacked is None or unpacked.digest != digest:
            await self._unload()
            try:
                # Takes a while, and there are heartbeats of Ray to be answered.
                unpacked = await asyncio.to_thread(Unpacked, kit)
            except ProctorError as error:
                return {"error": error.message, "where": error.where, "hint": error.hint}
            except Exception as error:  # noqa: BLE001 (users' code fails in any way)
                return {"error": f"{type(error).__name__}: {error}"}
            outbox = self._outbox = Outbox()
            asking = self._asking = DriverClient(outbox.add)
            self._unpacked = unpacked
            self._floor = Floor(unpacked, outbox, asking, kit)
        return {"pid": os.getpid(), "host": socket.gethostname(), "version": __version__}

    async def _unload(self) -> None:
        floor, self._floor, self._unpacked = self._floor, None, None
        if floor is not None:
            await floor.close()

    async def exchange(self, digest: str, orders: bytes, slots: int) -> bytes:
        """Take orders, then wait until there is something to tell."""
        floor, outbox, unpacked = self._floor, self._outbox, self._unpacked
        if floor is None or outbox is None or unpacked is None or unpacked.digest != digest:
            raise RuntimeError("orders for another run than was loaded")
        floor.order(orders_of(orders), slots)
        await outbox.wait()
        if floor.busy and not outbox.asks:
            await asyncio.sleep(LINGER)
        done, asks = outbox.empty()
        return pack(Parcel(tuple(done), tuple(asks), unpacked.recorded()))

    async def answer(self, answer: bytes) -> None:
        """The driver has granted a wish."""
        if self._asking is not None:
            self._asking.answered(answer_of(answer))

    async def stop(self) -> None:
        """Cancel what runs."""
        if self._floor is not None:
            self._floor.stop()

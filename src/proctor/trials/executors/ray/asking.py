"""What a worker cannot decide alone: permits of providers, and states that outlive it.

Promise: one authority, the driver, hands out every permit of the run and keeps every state, so
that limits hold for the whole run and workers never touch its folder. A worker's side waits
wherever it is asked from, event loop or thread; the price is a round trip for each request.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, ClassVar

from proctor.agents.checkpoint import CheckpointError, CheckpointStore
from proctor.errors import ProctorError
from proctor.llm.rate_limits import WINDOW, Reservation, limiter_in_force
from proctor.trials.executors.ray.wire import Ask, DriverReply

PERMIT, SETTLE, SLOW_DOWN = "permit", "settle", "slow_down"
LOAD, SAVE, FORGET = "load", "save", "forget"

# -- in a worker ---------------------------------------------------------------------------------


class DriverClient:
    """Sends wishes to the driver and waits for what it says; any thread may use it."""

    def __init__(self, post: Callable[[Ask], None]) -> None:
        self._post = post
        self._numbers = itertools.count(1)
        self._open: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()

    def ask(self, what: str, *arguments: Any) -> Future[Any]:
        """The answer, when it comes."""
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            self._open[number] = future
        self._post(Ask(number, what, arguments))
        return future

    def tell(self, what: str, *arguments: Any) -> None:
        """Say something that needs no answer."""
        self._post(Ask(0, what, arguments))

    def answered(self, answer: DriverReply) -> None:
        """The driver has said something."""
        with self._lock:
            future = self._open.pop(answer.number, None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if answer.error is not None:
            future.set_exception(ProctorError(answer.error))
        else:
            future.set_result(answer.value)


class DriverPermit:
    """What one call took from a limit that the driver keeps."""

    __slots__ = ("_asking", "_number")

    def __init__(self, asking: DriverClient, number: int) -> None:
        self._asking = asking
        self._number = number

    def settle(self, tokens: int | None) -> None:
        """The call used this many tokens; None when it is not known."""
        if tokens is not None:
            self._asking.tell(SETTLE, self._number, tokens)


class DriverLimiter:
    """The limit of a provider, kept by the driver for all workers."""

    def __init__(self, provider: str, asking: DriverClient) -> None:
        self._provider = provider
        self._asking = asking

    async def acquire(self, tokens: int = 0) -> DriverPermit:
        """Wait for one request of about `tokens` tokens."""
        number = await asyncio.wrap_future(self._asking.ask(PERMIT, self._provider, tokens))
        return DriverPermit(self._asking, number)


class DriverStore:
    """States of agents, kept by the driver beside the journal."""

    def __init__(self, asking: DriverClient) -> None:
        self._asking = asking

    def load(self, key: str) -> bytes | None:
        """What was saved last; None when nothing was."""
        return self._ask(LOAD, key)

    def save(self, key: str, content: bytes) -> None:
        """Keep a state; when this returns, the driver has it on disk."""
        self._ask(SAVE, key, content)

    def forget(self, key: str) -> None:
        """Keep nothing any more."""
        self._ask(FORGET, key)

    def _ask(self, what: str, *arguments: Any) -> Any:
        try:
            return self._asking.ask(what, *arguments).result()
        except ProctorError as error:
            raise CheckpointError(error.message) from None


# -- in the driver -------------------------------------------------------------------------------


class Authority:
    """Answers the wishes of all workers of a run."""

    def __init__(
        self, store: CheckpointStore | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._clock = clock
        self._numbers = itertools.count(1)
        self._taken: dict[int, Reservation] = {}
        self.on_slow_down: Callable[[], None] | None = None
        """Called when a provider told a worker to slow down."""

    async def answer(self, ask: Ask) -> DriverReply:
        """What is said to a wish, once it can be granted."""
        try:
            return DriverReply(ask.number, await self._answers[ask.what](self, *ask.arguments))
        except ProctorError as error:
            return DriverReply(ask.number, error=str(error))

    async def _permit(self, provider: str, tokens: int) -> int:
        limiter = limiter_in_force(provider)
        number = next(self._numbers)
        if limiter is not None:
            reservation = await limiter.acquire(tokens)
            if isinstance(reservation, Reservation):
                self._keep(number, reservation)
        return number

    def _keep(self, number: int, reservation: Reservation) -> None:
        """Remember a reservation while it counts; calls that failed never settle theirs."""
        self._taken[number] = reservation
        first = next(iter(self._taken))
        if self._taken[first].at + WINDOW < self._clock():
            del self._taken[first]

    async def _settle(self, number: int, tokens: int) -> None:
        reservation = self._taken.pop(number, None)
        if reservation is not None:
            reservation.settle(tokens)

    async def _slow_down(self) -> None:
        if self.on_slow_down is not None:
            self.on_slow_down()

    async def _load(self, key: str) -> bytes | None:
        return None if self._store is None else self._store.load(key)

    async def _save(self, key: str, content: bytes) -> None:
        if self._store is not None:
            # Waits for the disk, and other workers want to be heard meanwhile.
            await asyncio.to_thread(self._store.save, key, content)

    async def _forget(self, key: str) -> None:
        if self._store is not None:
            self._store.forget(key)

    _answers: ClassVar[dict[str, Callable[..., Awaitable[Any]]]] = {
        PERMIT: _permit,
        SETTLE: _settle,
        SLOW_DOWN: _slow_down,
        LOAD: _load,
        SAVE: _save,
        FORGET: _forget,
    }

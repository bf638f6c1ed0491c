"""Messages between the driver and its workers: trials, permits and checkpoints.

Promise: a trial from a worker is written to the journal like a local one: it is sent as the JSON of
the journal, and its trace as the line of a segment. Only the driver grants permits for model calls
and stores checkpoints, so limits hold for the whole run and workers never touch its folder. A
worker may wait for a reply on the event loop or in a thread; each request costs a round trip.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, ClassVar

import msgspec

from proctor.agents.checkpoint import CheckpointError, CheckpointStore
from proctor.errors import ProctorError
from proctor.llm.rate_limits import WINDOW, Reservation, limiter_in_force
from proctor.runs.trial import PlannedTrial, Trial
from proctor.sanitize import json_bytes


class Done(msgspec.Struct, frozen=True, array_like=True):
    """A trial that has ended, as JSON, and its trace; no trial for one that was never begun."""

    key: str
    trial: bytes | None
    trace: bytes | None = None


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """What a worker wants of the driver; `number` is 0 where it waits for no answer."""

    number: int
    what: str
    arguments: tuple[Any, ...] = ()


class DriverReply(msgspec.Struct, frozen=True, array_like=True):
    """What the driver says to an `Ask`: a value, or what went wrong."""

    number: int
    value: Any = None
    error: str | None = None


class Parcel(msgspec.Struct, frozen=True, array_like=True):
    """What a worker has to tell: trials that ended, its wishes, and lines for the cassette."""

    done: tuple[Done, ...] = ()
    asks: tuple[Ask, ...] = ()
    recorded: bytes = b""


def pack(value: msgspec.Struct | list[PlannedTrial]) -> bytes:
    """As bytes."""
    return _packer.encode(value)


def orders_of(data: bytes) -> list[PlannedTrial]:
    """The trials a driver sent."""
    return _orders.decode(data)


def parcel_of(data: bytes) -> Parcel:
    """The parcel a worker sent."""
    return _parcel.decode(data)


def answer_of(data: bytes) -> DriverReply:
    """The answer a driver sent."""
    return _answer.decode(data)


def trial_as_json(trial: Trial) -> bytes:
    """A trial as the journal writes it."""
    return json_bytes(trial)


def trial_from_json(line: bytes) -> Trial:
    """A trial as the journal reads it."""
    return _trial.decode(line)


_packer = msgspec.msgpack.Encoder(enc_hook=str)
_orders = msgspec.msgpack.Decoder(list[PlannedTrial])
_parcel = msgspec.msgpack.Decoder(Parcel)
_answer = msgspec.msgpack.Decoder(DriverReply)
_trial = msgspec.json.Decoder(Trial)


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

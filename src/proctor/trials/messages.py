"""Messages between the driver and its workers: trials, permits and checkpoints.

Promise: a trial from a worker is written to the journal like a local one: it is sent as the JSON of
the journal, and its trace as the line of a segment. Only the driver grants permits for model calls
and stores checkpoints, so limits hold for the whole run and workers never touch its folder. A
worker may wait for a reply on the event loop or in a thread; each request costs a round trip.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import msgspec

from proctor.agents.checkpoint import CheckpointError, CheckpointStore
from proctor.errors import ProctorError
from proctor.gateway.budget import BudgetExceeded, BudgetReservation, CallBounds, CallUsage
from proctor.llm.rate_limits import WINDOW, Reservation, limiter_in_force
from proctor.runs.trial import PlannedTrial, Trial
from proctor.trials.options import RunBudget, encoded_call

if TYPE_CHECKING:
    from proctor.trace.model import Span
    from proctor.trace.redact import Redactor


class Done(msgspec.Struct, frozen=True, array_like=True):
    """A finished trial as JSON, and its trace; no trial if it has no result.

    It has none if it never started, or if it must be repeated `alone` because trials beside it may
    have changed its result.
    """

    key: str
    trial: bytes | None = None
    trace: bytes | None = None
    alone: bool = False


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """A worker's request to the driver; `number` is 0 if it needs no reply."""

    number: int
    what: str
    arguments: tuple[Any, ...] = ()


# -- to a worker, one struct per frame -----------------------------------------------------------


class LoadCode(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Import agents and checks; with `check`, also what `--dry-run` checks. Reply: `Loaded`."""

    check: bool = False


class WorkerLimits(msgspec.Struct, frozen=True, array_like=True):
    """What a worker may use, with everything it started."""

    memory: float | None = None
    """Bytes; None is a part of the machine's."""
    output: int = 64 << 20
    """Bytes printed, beyond those that finished trials may print."""
    processes: int = 2048


class BeginRun(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The first trials follow: what belongs to this run and not to its context."""

    rates: tuple[str, ...] = ()
    """Providers whose rate limits the driver applies."""
    cassette: tuple[str, str, bytes] | None = None
    """Mode, name and content of the cassette in use."""
    stores: bool = False
    """Whether the driver stores checkpoints."""
    limits: WorkerLimits = WorkerLimits()
    budget: bool = False
    """Whether model calls through the gateway need a reservation of the driver."""


class Orders(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Trials to run, at most `slots` at a time."""

    trials: list[PlannedTrial]
    slots: int


class DriverReply(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The driver's reply to an `Ask`: a value or an error."""

    number: int
    value: Any = None
    error: str | None = None


class StopTrials(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Cancel the running trials and return the waiting ones."""


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Send a parcel, empty if need be: a loop that cannot is blocked."""


class EndWorker(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Run the exit handlers of the agents' code and end."""


# -- from a worker -------------------------------------------------------------------------------


class LoadedAgent(msgspec.Struct, frozen=True, array_like=True):
    """What only the code of an agent can tell."""

    version: dict[str, Any]
    asynchronous: bool


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The reply to `LoadCode`: what was found, or why the code cannot be used."""

    agents: dict[str, LoadedAgent] = {}
    error: str | None = None
    where: str | None = None
    hint: str | None = None
    about: dict[str, Any] = {}
    """Process, machine and version of the worker."""


class Parcel(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message of a worker: finished trials, requests, and lines for the cassette."""

    done: tuple[Done, ...] = ()
    asks: tuple[Ask, ...] = ()
    recorded: bytes = b""
    damage: str | None = None
    """What the code of an agent did to the worker; the worker has withheld its results."""
    worn: bool = False
    """Code of an agent runs on after the end of its trial and takes time from the others: the
    worker is to be replaced once its trials have ended."""
    lost: tuple[str, str, bool] | None = None
    """From the machine of a worker: how it was lost, the category, and whether a trial did it."""


encode = msgspec.msgpack.Encoder(enc_hook=str).encode
decode_order = msgspec.msgpack.Decoder(
    LoadCode | BeginRun | Orders | DriverReply | StopTrials | Ping | EndWorker
).decode
decode_parcel = msgspec.msgpack.Decoder(Loaded | Parcel).decode
# Trials are JSON inside the message: the journal writes JSON, with its own rules for numbers.
decode_trial = msgspec.json.Decoder(Trial).decode

LENGTH = struct.Struct("!I")
"""What precedes each message in a stream: its length."""


def frame(message: msgspec.Struct) -> bytes:
    """Return a message as it is sent through a socket."""
    body = encode(message)
    return LENGTH.pack(len(body)) + body


def take_frames(received: bytearray) -> list[bytes]:
    """Remove the complete messages from what has arrived and return them."""
    found: list[bytes] = []
    start = 0
    while len(received) >= start + LENGTH.size:
        (length,) = LENGTH.unpack_from(received, start)
        if len(received) < start + LENGTH.size + length:
            break
        start += LENGTH.size
        found.append(bytes(received[start : start + length]))
        start += length
    del received[:start]
    return found


PERMIT, SETTLE, SLOW_DOWN = "permit", "settle", "slow_down"
RESERVE, CALLED = "reserve", "called"
LOAD, SAVE, FORGET = "load", "save", "forget"

# -- in a worker ---------------------------------------------------------------------------------


class DriverClient:
    """Sends requests to the driver and waits for replies; any thread may use it."""

    def __init__(self, post: Callable[[Ask], None]) -> None:
        self._post = post
        self._numbers = itertools.count(1)
        self._open: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()

    def ask(self, what: str, *arguments: Any) -> Future[Any]:
        """Send a request and return the future of its reply."""
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            self._open[number] = future
        self._post(Ask(number, what, arguments))
        return future

    def notify(self, what: str, *arguments: Any) -> None:
        """Send a message that needs no reply."""
        self._post(Ask(0, what, arguments))

    def resolve(self, reply: DriverReply) -> None:
        """Pass a reply to the call that waits for it."""
        with self._lock:
            future = self._open.pop(reply.number, None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if reply.error is not None:
            future.set_exception(ProctorError(reply.error))
        else:
            future.set_result(reply.value)


class DriverPermit:
    """The part of a limit that one call has reserved at the driver."""

    __slots__ = ("_driver", "_number")

    def __init__(self, driver: DriverClient, number: int) -> None:
        self._driver = driver
        self._number = number

    def settle(self, tokens: int | None) -> None:
        """Report the tokens that the call used; None if unknown."""
        if tokens is not None:
            self._driver.notify(SETTLE, self._number, tokens)


class DriverLimiter:
    """The rate limit of a provider, which the driver applies to all workers together."""

    def __init__(self, provider: str, driver: DriverClient) -> None:
        self._provider = provider
        self._driver = driver

    async def acquire(self, tokens: int = 0) -> DriverPermit:
        """Wait for one request of about `tokens` tokens."""
        number = await asyncio.wrap_future(self._driver.ask(PERMIT, self._provider, tokens))
        return DriverPermit(self._driver, number)


class DriverLedger:
    """The budget of a run, which the driver applies to the gateways of all workers together."""

    def __init__(self, driver: DriverClient, redactor: Redactor | None, *, limited: bool) -> None:
        self._driver = driver
        self._redactor = redactor
        self.limited = limited
        """Whether calls need a reservation."""

    async def reserve(self, trial: str, bounds: CallBounds) -> BudgetReservation:
        """Wait until a call fits into the run's limits; raise `BudgetExceeded` if it cannot."""
        try:
            granted = await asyncio.wrap_future(self._driver.ask(RESERVE, trial, bounds))
        except ProctorError as error:
            raise BudgetExceeded(error.message) from None
        return msgspec.convert(granted, BudgetReservation)

    def ended(
        self, trial: str, reservation: BudgetReservation | None, usage: CallUsage, span: Span
    ) -> Future[None]:
        """Send a call that has ended; the future is done when the driver has it on record."""
        number = 0 if reservation is None else reservation.number
        call = encoded_call(span, self._redactor)
        return self._driver.ask(CALLED, trial, number, usage, call)


class DriverStore:
    """Checkpoints of agents, stored by the driver beside the journal."""

    def __init__(self, driver: DriverClient) -> None:
        self._driver = driver

    def load(self, key: str) -> bytes | None:
        """Return the last saved state, or None."""
        return self._ask(LOAD, key)

    def save(self, key: str, content: bytes) -> None:
        """Store a state; when this returns, the driver has it on disk."""
        self._ask(SAVE, key, content)

    def forget(self, key: str) -> None:
        """Delete the saved state."""
        self._ask(FORGET, key)

    def _ask(self, what: str, *arguments: Any) -> Any:
        try:
            return self._driver.ask(what, *arguments).result()
        except ProctorError as error:
            raise CheckpointError(error.message) from None


# -- in the driver -------------------------------------------------------------------------------


class Authority:
    """Replies to the requests of all workers of a run."""

    def __init__(
        self,
        store: CheckpointStore | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        budget: RunBudget | None = None,
    ) -> None:
        self._store = store
        self._budget = budget
        self._clock = clock
        self._numbers = itertools.count(1)
        self._reserved: dict[int, Reservation] = {}
        self.on_slow_down: Callable[[], None] = lambda: None
        """Called when a provider tells a worker to slow down."""

    async def reply(self, ask: Ask) -> DriverReply:
        """Return the reply to a request, once it can be granted."""
        try:
            return DriverReply(ask.number, await self._value(ask.what, *ask.arguments))
        except ProctorError as error:
            return DriverReply(ask.number, error=str(error))

    def take_call(self, ask: Ask) -> bool:
        """Count a model call that has ended, at once; return whether the message was one."""
        if ask.what != CALLED or self._budget is None:
            return False
        trial, number, usage, span = ask.arguments
        self._budget.record(trial, number, msgspec.convert(usage, CallUsage), span)
        return True

    def lose(self, trial: str) -> None:
        """Count the calls of a trial whose worker was lost."""
        if self._budget is not None:
            self._budget.lose(trial)

    async def _value(self, what: str, *arguments: Any) -> Any:
        store = self._store
        if what == RESERVE and self._budget is not None:
            trial, bounds = arguments
            return await self._budget.reserve(trial, msgspec.convert(bounds, CallBounds))
        if what == PERMIT:
            return await self._permit(*arguments)
        if what == SETTLE:
            number, tokens = arguments
            if (reservation := self._reserved.pop(number, None)) is not None:
                reservation.settle(tokens)
        elif what == SLOW_DOWN:
            self.on_slow_down()
        elif what == LOAD:
            return None if store is None else store.load(*arguments)
        elif what == SAVE and store is not None:
            # Waits for the disk; other workers must not wait with it.
            await asyncio.to_thread(store.save, *arguments)
        elif what == FORGET and store is not None:
            store.forget(*arguments)
        return None

    async def _permit(self, provider: str, tokens: int) -> int:
        limiter = limiter_in_force(provider)
        number = next(self._numbers)
        if limiter is not None:
            reservation = await limiter.acquire(tokens)
            if isinstance(reservation, Reservation):
                self._reserved[number] = reservation
                # Calls that failed never settle theirs, so old reservations are dropped.
                first = next(iter(self._reserved))
                if self._reserved[first].at + WINDOW < self._clock():
                    del self._reserved[first]
        return number

"""From requests to the store: many requests, one transaction, each answered after the commit.

Promise: a request is answered only when its spans are on disk, or told why they are not. What
is being read and what waits is bounded in bytes; beyond it requests are turned away with a time
to come back. One thread reads and writes, so the loop that talks to clients stays free; a request
that cannot be written is refused by itself, and nothing ends the thread but `stop`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import NamedTuple

from proctor.errors import ProctorError
from proctor.server.store import costs
from proctor.server.store.rows import Batch, batch_of
from proctor.server.store.sql import BadRows, SqlStore
from proctor.server.wire import SPANS, Received, Refused, received
from proctor.trace.redact import Redactor

MAX_WAITING = 128 * 1024 * 1024
"""Bytes of requests that may be read or wait: a few seconds of work, and a bound on memory."""

MAX_TOGETHER = 8 * 1024 * 1024
"""Bytes of requests written in one transaction: long enough to pay for the sync, short enough
that nobody waits a second for somebody else's spans."""

RETRY_AFTER = 2
"""Seconds a client is asked to wait when too much is waiting."""


class Taken(NamedTuple):
    """What became of a request: spans that were not kept, and why."""

    rejected: int
    message: str


class _Waiting(NamedTuple):
    body: bytes
    content_type: str
    what: str
    answer: asyncio.Future[Taken]
    loop: asyncio.AbstractEventLoop


class _Ready(NamedTuple):
    """A request whose rows are made."""

    waiting: _Waiting
    found: Received
    batch: Batch


class Ingest:
    """Takes request bodies and writes them; start it, then `await take(...)`."""

    def __init__(
        self,
        store: SqlStore,
        redactor: Redactor | None = None,
        *,
        max_waiting: int = MAX_WAITING,
        written: Callable[[set[str]], None] | None = None,
    ) -> None:
        self._store = store
        self._redactor = redactor
        self._max_waiting = max_waiting
        self._written = written
        self._queue: deque[_Waiting] = deque()
        self._bytes = 0
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="proctor-ingest", daemon=True)
        self.spans = 0
        """Spans written since the start."""

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, then end."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    @contextlib.contextmanager
    def reading(self) -> Generator[Callable[[int], None]]:
        """Room for a body that is being read: call with each number of bytes that came."""
        held = 0

        def more(size: int) -> None:
            nonlocal held
            with self._wake:
                self._hold(size)
            held += size

        try:
            yield more
        finally:
            with self._wake:
                self._bytes -= held

    async def take(self, body: bytes, content_type: str, what: str = SPANS) -> Taken:
        """Keep what a plain body holds; returns after the commit, raises `Refused` otherwise."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Taken] = loop.create_future()
        with self._wake:
            if self._stopping:
                raise Refused(503, "the server is stopping")
            self._hold(len(body))
            self._queue.append(_Waiting(body, content_type, what, answer, loop))
            self._wake.notify()
        return await answer

    def _hold(self, size: int) -> None:
        if self._bytes + size > self._max_waiting:
            raise Refused(503, "too many spans are waiting to be written")
        self._bytes += size

    # -- the writing thread -----------------------------------------------------------------------

    def _work(self) -> None:
        costs.warm()
        while together := self._next():
            self._write(together)
            with self._wake:
                self._bytes -= sum(len(waiting.body) for waiting in together)

    def _next(self) -> list[_Waiting]:
        """Requests to write together; empty when it is time to end."""
        with self._wake:
            while not self._queue and not self._stopping:
                self._wake.wait()
            together: list[_Waiting] = []
            size = 0
            while self._queue and (not together or size < MAX_TOGETHER):
                together.append(self._queue.popleft())
                size += len(together[-1].body)
            return together

    def _write(self, together: list[_Waiting]) -> None:
        ready = [made for waiting in together if (made := self._made(waiting)) is not None]
        if not ready:
            return
        batch = Batch()
        for each in ready:
            batch.extend(each.batch)
        try:
            if batch.chunks:
                self._store.write(batch)
        except BadRows as error:
            if len(ready) == 1:
                _refuse(ready[0].waiting, Refused(400, error.message))
                return
            for each in ready:  # the others must not suffer for one
                self._write([each.waiting])
        except ProctorError as error:
            for each in ready:
                _refuse(each.waiting, Refused(503, error.message))
        except Exception as error:  # noqa: BLE001 (a thread that ended would answer nobody again)
            for each in ready:
                _refuse(each.waiting, Refused(503, f"cannot be written: {type(error).__name__}"))
        else:
            self._done(ready, batch)

    def _made(self, waiting: _Waiting) -> _Ready | None:
        try:
            found = received(waiting.body, waiting.content_type, waiting.what)
            return _Ready(waiting, found, batch_of(found.collected, self._redactor))
        except Refused as refusal:
            _refuse(waiting, refusal)
        except Exception as error:  # noqa: BLE001 (one odd request must not end the server)
            _refuse(waiting, Refused(400, f"cannot be read: {type(error).__name__}"))
        return None

    def _done(self, ready: list[_Ready], batch: Batch) -> None:
        self.spans += len(batch.spans)
        if self._written is not None:
            self._written(batch.touched)
        for each in ready:
            _settle(each.waiting, Taken(each.found.rejected, each.found.message))


def _settle(waiting: _Waiting, taken: Taken) -> None:
    _tell(waiting, lambda: waiting.answer.set_result(taken))


def _refuse(waiting: _Waiting, refusal: Refused) -> None:
    _tell(waiting, lambda: waiting.answer.set_exception(refusal))


def _tell(waiting: _Waiting, act: Callable[[], None]) -> None:
    """Answer on the loop of the request, if its client is still there."""

    def answer() -> None:
        if not waiting.answer.done():
            act()

    with contextlib.suppress(RuntimeError):  # the loop may be closed by now
        waiting.loop.call_soon_threadsafe(answer)

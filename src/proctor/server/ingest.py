"""From requests to the store: many requests, one transaction, each answered after the commit.

Promise: a request is answered only when its spans are on disk, or told why they are not. What
is being read and what waits is bounded in bytes; beyond it requests are turned away with a time
to come back. One thread writes; rows are made by it, or by readers in other processes while it
writes what they made before. A request that cannot be written is refused by itself, and nothing
ends the threads but `stop`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from proctor.errors import ProctorError
from proctor.llm.prices import warm_up
from proctor.server.decoder_process import (
    SPANS,
    Child,
    DecodedRows,
    InProcessDecoder,
    Reader,
    Refused,
)
from proctor.server.store.rows import Batch
from proctor.server.store.store import BadRows, SqlStore
from proctor.trace.redact import Redactor

MAX_WAITING = 128 * 1024 * 1024
"""Bytes of requests that may be read or wait: a few seconds of work, and a bound on memory."""

MAX_TOGETHER = 8 * 1024 * 1024
"""Bytes of requests written in one transaction: long enough to pay for the sync, short enough
that nobody waits a second for somebody else's spans."""

RETRY_AFTER = 2
"""Seconds a client is asked to wait when too much is waiting."""


class IngestResult(NamedTuple):
    """What became of a request: spans that were not kept, and why."""

    rejected: int
    message: str


class _PendingRequest(NamedTuple):
    body: bytes
    content_type: str
    what: str
    answer: asyncio.Future[IngestResult]
    loop: asyncio.AbstractEventLoop


class _DecodedRequest(NamedTuple):
    """A request whose rows are made, or that was refused."""

    waiting: _PendingRequest
    made: DecodedRows


class Ingest:
    """Takes request bodies and writes them; start it, then `await take(...)`.

    `readers`: processes that make rows, which it ends in the end; without any they are made here.
    """

    def __init__(
        self,
        store: SqlStore,
        redactor: Redactor | None = None,
        *,
        readers: Sequence[Child] = (),
        max_waiting: int = MAX_WAITING,
        written: Callable[[set[str]], None] | None = None,
    ) -> None:
        self._store = store
        self._here = InProcessDecoder(redactor, store.prices)
        for reader in readers:
            reader.prices = store.prices
        self._max_waiting = max_waiting
        self._written = written
        self._queue: deque[_PendingRequest] = deque()
        self._ready: deque[_DecodedRequest] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        # Two, so that a request wakes one thread and not all: waking is most of handing it over.
        self._to_read = threading.Condition(self._lock)
        self._to_write = threading.Condition(self._lock)
        self._stopping = False
        self._at_work = 0
        """Readers that can be asked."""
        self._reading = 0
        """Requests that a reader is making rows of."""
        self._readers = [
            threading.Thread(target=self._read, args=[reader], name="proctor-read", daemon=True)
            for reader in readers
        ]
        self._thread = threading.Thread(target=self._work, name="proctor-ingest", daemon=True)
        self.spans = 0
        """Spans written since the start."""

    def start(self) -> None:
        """Begin to write."""
        for each in (*self._readers, self._thread):
            each.start()

    def stop(self) -> None:
        """Write what waits, then end."""
        with self._lock:
            self._stopping = True
            self._to_read.notify_all()
            self._to_write.notify_all()
        for each in (*self._readers, self._thread):
            if each.is_alive():
                each.join()

    @contextlib.contextmanager
    def reading(self) -> Generator[Callable[[int], None]]:
        """Room for a body that is being read: call with each number of bytes that came."""
        held = 0

        def more(size: int) -> None:
            nonlocal held
            with self._lock:
                self._hold(size)
            held += size

        try:
            yield more
        finally:
            with self._lock:
                self._bytes -= held

    async def take(self, body: bytes, content_type: str, what: str = SPANS) -> IngestResult:
        """Keep what a plain body holds; returns after the commit, raises `Refused` otherwise."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[IngestResult] = loop.create_future()
        with self._lock:
            if self._stopping:
                raise Refused(503, "the server is stopping")
            self._hold(len(body))
            self._queue.append(_PendingRequest(body, content_type, what, answer, loop))
            (self._to_read if self._at_work else self._to_write).notify()
        return await answer

    def _hold(self, size: int) -> None:
        if self._bytes + size > self._max_waiting:
            raise Refused(503, "too many spans are waiting to be written")
        self._bytes += size

    # -- threads that have a reader ---------------------------------------------------------------

    def _read(self, reader: Child) -> None:
        """Let a reader make rows of one request after the other, once it can."""
        with contextlib.suppress(OSError):
            if reader.wait():
                with self._lock:
                    self._at_work += 1
        while self._at_work and (waiting := self._next_to_read()) is not None:
            ready = self._made(waiting, reader)
            with self._lock:
                self._reading -= 1
                self._ready.append(ready)
                self._to_write.notify()
        reader.close()

    def _next_to_read(self) -> _PendingRequest | None:
        with self._lock:
            while not self._queue and not self._stopping:
                self._to_read.wait()
            if not self._queue:
                return None
            self._reading += 1
            return self._queue.popleft()

    def _made(self, waiting: _PendingRequest, reader: Reader) -> _DecodedRequest:
        try:
            return _DecodedRequest(
                waiting, reader.read(waiting.body, waiting.content_type, waiting.what)
            )
        except Exception as error:  # noqa: BLE001 (a thread that ended would read nothing again)
            return _DecodedRequest(
                waiting, DecodedRows(0, f"cannot be read: {type(error).__name__}", refused=503)
            )

    # -- the writing thread -----------------------------------------------------------------------

    def _work(self) -> None:
        if not self._readers:
            warm_up()
        while together := self._next():
            self._write([ready for ready in together if not _refused(ready)])
            with self._lock:
                self._bytes -= sum(len(ready.waiting.body) for ready in together)

    def _next(self) -> list[_DecodedRequest]:
        """Requests to write together; empty when it is time to end."""
        together: list[_DecodedRequest] = []
        size = 0
        while size < MAX_TOGETHER:
            found = self._next_ready(wait=not together)
            if found is None:
                break
            together.append(found)
            size += len(found.waiting.body)
        return together

    def _next_ready(self, *, wait: bool) -> _DecodedRequest | None:
        """One more request with its rows; None when there is none, or never will be."""
        with self._lock:
            while not self._ready and not (self._queue and not self._at_work):
                if not wait or self._ended:
                    return None
                self._to_write.wait()
            if self._ready:
                return self._ready.popleft()
            # No reader is there, or none can be asked yet: nobody waits for them.
            waiting = self._queue.popleft()
        return self._made(waiting, self._here)

    @property
    def _ended(self) -> bool:
        return self._stopping and not self._queue and not self._reading

    def _write(self, together: list[_DecodedRequest]) -> None:
        if not together:
            return
        batch = Batch()
        for each in together:
            batch.extend(each.made.batch())
        try:
            if batch.chunks:
                self._store.write(batch)
        except BadRows as error:
            if len(together) == 1:
                _refuse(together[0].waiting, Refused(400, error.message))
                return
            for each in together:  # the others must not suffer for one
                self._write([each])
        except ProctorError as error:
            for each in together:
                _refuse(each.waiting, Refused(503, error.message))
        except Exception as error:  # noqa: BLE001 (a thread that ended would answer nobody again)
            for each in together:
                _refuse(each.waiting, Refused(503, f"cannot be written: {type(error).__name__}"))
        else:
            self.spans += len(batch.spans)
            if self._written is not None:
                self._written(batch.touched)
            for each in together:
                _settle(each.waiting, IngestResult(each.made.rejected, each.made.message))


def _refused(ready: _DecodedRequest) -> bool:
    """Whether no rows were made; then the client is told."""
    if ready.made.refused:
        _refuse(ready.waiting, Refused(ready.made.refused, ready.made.message))
    return bool(ready.made.refused)


def _settle(waiting: _PendingRequest, taken: IngestResult) -> None:
    _tell(waiting, lambda: waiting.answer.set_result(taken))


def _refuse(waiting: _PendingRequest, refusal: Refused) -> None:
    _tell(waiting, lambda: waiting.answer.set_exception(refusal))


def _tell(waiting: _PendingRequest, act: Callable[[], None]) -> None:
    """Answer on the loop of the request, if its client is still there."""

    def answer() -> None:
        if not waiting.answer.done():
            act()

    with contextlib.suppress(RuntimeError):  # the loop may be closed by now
        waiting.loop.call_soon_threadsafe(answer)

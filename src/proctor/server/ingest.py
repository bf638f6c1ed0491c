"""From requests to the store: many requests, one transaction, each answered after the commit.

Guarantees: a request is answered only when its spans are on disk, or refused with a reason. The
bytes being read and waiting are bounded; beyond that, requests are refused with a time to retry.
One thread writes. Rows are made by that thread, or by reader processes while it writes. A request
that cannot be written is refused alone, and nothing ends the threads but `stop`.
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
from proctor.server.decoder_process import SPANS, Child, DecodedRows, Refused, make
from proctor.server.store.rows import Batch
from proctor.server.store.store import BadRows, SqlStore
from proctor.trace.redact import Redactor

# Bytes of requests that may be read or wait: a few seconds of work, and a bound on memory.
MAX_WAITING = 128 * 1024 * 1024

# Bytes of requests written in one transaction: enough to pay for the fsync, few enough that no
# client waits a second for the spans of another.
MAX_TOGETHER = 8 * 1024 * 1024

# Seconds after which a refused client may retry.
RETRY_AFTER = 2


class IngestResult(NamedTuple):
    """The outcome of a request: the number of spans not stored, and why."""

    rejected: int
    message: str


class _PendingRequest(NamedTuple):
    body: bytes
    content_type: str
    what: str
    answer: asyncio.Future[IngestResult]

    def settle(self, result: IngestResult | Refused) -> None:
        """Answer on the event loop of the request, if its client is still connected."""

        def answer() -> None:
            if self.answer.done():
                return
            if isinstance(result, Refused):
                self.answer.set_exception(result)
            else:
                self.answer.set_result(result)

        with contextlib.suppress(RuntimeError):  # the loop may be closed by now
            self.answer.get_loop().call_soon_threadsafe(answer)


class _DecodedRequest(NamedTuple):
    request: _PendingRequest
    rows: DecodedRows


class Ingest:
    """Store request bodies: call `start`, then `await take(...)`.

    `readers` are processes that make rows; `stop` ends them. Without any, the writing thread makes
    the rows.
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
        self._redactor = redactor
        for reader in readers:
            reader.prices = store.prices
        self._max_waiting = max_waiting
        self._written = written
        self._queue: deque[_PendingRequest] = deque()
        self._decoded: deque[_DecodedRequest] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        # Two conditions, so that a request wakes one thread and not all: waking them is most of
        # the cost of a handover.
        self._to_read = threading.Condition(self._lock)
        self._to_write = threading.Condition(self._lock)
        self._stopping = False
        self._readers_ready = 0
        # Requests that a reader is making rows of.
        self._reading = 0
        self._threads = [
            threading.Thread(target=self._read, args=[reader], name="proctor-read", daemon=True)
            for reader in readers
        ]
        writer = threading.Thread(target=self._work, name="proctor-ingest", daemon=True)
        self._threads.append(writer)
        self.spans = 0
        """Spans written since the start."""

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Write what waits, then end."""
        with self._lock:
            self._stopping = True
            self._to_read.notify_all()
            self._to_write.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    @contextlib.contextmanager
    def reading(self) -> Generator[Callable[[int], None]]:
        """Reserve room for a body that is being read; call the result with each number of bytes."""
        held = 0

        def more(size: int) -> None:
            nonlocal held
            with self._lock:
                self._reserve(size)
            held += size

        try:
            yield more
        finally:
            with self._lock:
                self._bytes -= held

    async def take(self, body: bytes, content_type: str, what: str = SPANS) -> IngestResult:
        """Store an uncompressed body; return after the commit, or raise `Refused`."""
        answer: asyncio.Future[IngestResult] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._stopping:
                raise Refused(503, "the server is stopping")
            self._reserve(len(body))
            self._queue.append(_PendingRequest(body, content_type, what, answer))
            (self._to_read if self._readers_ready else self._to_write).notify()
        return await answer

    def _reserve(self, size: int) -> None:
        if self._bytes + size > self._max_waiting:
            raise Refused(503, "too many spans are waiting to be written")
        self._bytes += size

    # -- threads with a reader process ------------------------------------------------------------

    def _read(self, reader: Child) -> None:
        """Have a reader make rows of one request after another, once it is ready."""
        with contextlib.suppress(OSError):
            if reader.wait():
                with self._lock:
                    self._readers_ready += 1
        while self._readers_ready:
            with self._lock:
                while not self._queue and not self._stopping:
                    self._to_read.wait()
                if not self._queue:
                    break
                self._reading += 1
                request = self._queue.popleft()
            try:
                rows = reader.read(request.body, request.content_type, request.what)
            except Exception as error:  # noqa: BLE001 (a thread that ended would read nothing more)
                rows = DecodedRows(0, f"cannot be read: {type(error).__name__}", refused=503)
            with self._lock:
                self._reading -= 1
                self._decoded.append(_DecodedRequest(request, rows))
                self._to_write.notify()
        reader.close()

    # -- the writing thread -----------------------------------------------------------------------

    def _work(self) -> None:
        if len(self._threads) == 1:
            warm_up()
        while together := self._next_batch():
            accepted: list[_DecodedRequest] = []
            for each in together:
                if each.rows.refused:
                    each.request.settle(Refused(each.rows.refused, each.rows.message))
                else:
                    accepted.append(each)
            self._write(accepted)
            with self._lock:
                self._bytes -= sum(len(each.request.body) for each in together)

    def _next_batch(self) -> list[_DecodedRequest]:
        """Return requests to write together; none when it is time to end."""
        together: list[_DecodedRequest] = []
        size = 0
        while size < MAX_TOGETHER:
            decoded = self._next_decoded(wait=not together)
            if decoded is None:
                break
            together.append(decoded)
            size += len(decoded.request.body)
        return together

    def _next_decoded(self, *, wait: bool) -> _DecodedRequest | None:
        """Return one more request with its rows; None when there is none, or never will be."""
        with self._lock:
            while not self._decoded and not (self._queue and not self._readers_ready):
                ended = self._stopping and not self._queue and not self._reading
                if not wait or ended:
                    return None
                self._to_write.wait()
            if self._decoded:
                return self._decoded.popleft()
            # Readers take a second to start, or there are none: do not wait for them.
            request = self._queue.popleft()
        rows = make(
            request.body, request.content_type, request.what, self._redactor, self._store.prices
        )
        return _DecodedRequest(request, rows)

    def _write(self, together: list[_DecodedRequest]) -> None:
        if not together:
            return
        batch = Batch()
        for each in together:
            batch.extend(each.rows.batch())
        refusal: Refused | None = None
        try:
            if batch.chunks:
                self._store.write(batch)
        except BadRows as error:
            if len(together) > 1:
                for each in together:  # one at a time, so that only the bad one is refused
                    self._write([each])
                return
            refusal = Refused(400, error.message)
        except ProctorError as error:
            refusal = Refused(503, error.message)
        except Exception as error:  # noqa: BLE001 (a thread that ended would answer no request)
            refusal = Refused(503, f"cannot be written: {type(error).__name__}")
        else:
            self.spans += len(batch.spans)
            if self._written is not None:
                self._written(batch.touched)
        for request, rows in together:
            request.settle(refusal or IngestResult(rows.rejected, rows.message))

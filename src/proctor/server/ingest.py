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
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from io import BytesIO
from queue import Empty, SimpleQueue
from typing import NamedTuple

from proctor.errors import ProctorError
from proctor.llm.prices import load_published_prices
from proctor.server.decoder_process import PROTOBUF, SPANS, Child, DecodedRows, Refused, make
from proctor.server.store.rows import Batch
from proctor.server.store.store import BadRows, SqlStore
from proctor.trace import Trace
from proctor.trace.export import write_traces
from proctor.trace.redact import Redactor

# Bytes of requests that may be read or wait: a few seconds of work, and a bound on memory.
MAX_WAITING = 128 * 1024 * 1024

# Bytes of requests written in one transaction: enough to pay for the fsync, few enough that no
# client waits a second for the spans of another.
MAX_TOGETHER = 8 * 1024 * 1024

# Seconds after which a refused client may retry.
RETRY_AFTER = 2


class AddedTraces(NamedTuple):
    """What was added to a store; a problem is (error or warning, trace id, message)."""

    spans: int
    traces: int
    problems: list[tuple[str, str, str]]


def add_traces(
    traces: Iterable[Trace], store: SqlStore, redactor: Redactor | None = None
) -> AddedTraces:
    """Add traces to an open store; a span counts once, however often it is added."""
    spans, touched = 0, set[str]()
    problems: list[tuple[str, str, str]] = []
    batch, size = Batch(), 0

    def flush() -> None:
        nonlocal batch, size, spans, touched
        store.write(batch)
        spans += len(batch.spans)
        touched |= batch.touched
        batch, size = Batch(), 0

    for trace in traces:
        # Through OTLP, the form in which the server receives spans: one path for both.
        body = BytesIO()
        write_traces([trace], body, "otlp-proto", redact=redactor or False)
        made = make(body.getvalue(), PROTOBUF, SPANS, None, store.prices)
        if made.message:
            level = "error" if made.refused else "warning"
            problems.append((level, trace.trace_id, made.message))
        batch.extend(made)
        size += sum(len(chunk) for _, chunk, _ in made.chunks)
        if size >= MAX_TOGETHER:  # one transaction, as large as one of the server
            flush()
    flush()
    return AddedTraces(spans, len(touched), problems)


def store_traces(
    traces: Trace | Iterable[Trace], store: str = "sqlite:///proctor-traces.db"
) -> int:
    """Store captured or loaded traces where `proctor serve` shows and evaluates them.

    Returns the number of spans. Secrets are removed by the settings of the project.

        with proctor.capture(query="…", request_id="req-7") as trace:
            trace.response = agent("…")
        proctor.store_traces(trace)
    """
    from proctor.api import settings
    from proctor.server.store import open_store

    chosen = settings().settings
    each = [traces] if isinstance(traces, Trace) else traces
    with contextlib.closing(open_store(store, prices=chosen.price_table())) as opened:
        added = add_traces(each, opened, chosen.redactor())
    for level, trace_id, message in added.problems:
        if level == "error":
            raise ProctorError(f"trace {trace_id} was not stored: {message}")
    return added.spans


class IngestResult(NamedTuple):
    """The outcome of a request: the number of spans not stored, and why."""

    rejected: int
    message: str


class _PendingRequest(NamedTuple):
    body: bytes
    content_type: str
    what: str
    answer: Future[IngestResult]

    def settle(self, result: IngestResult | Refused) -> None:
        """Answer the request, if its client is still connected."""
        if not self.answer.set_running_or_notify_cancel():
            return
        if isinstance(result, Refused):
            self.answer.set_exception(result)
        else:
            self.answer.set_result(result)


class _DecodedRequest(NamedTuple):
    request: _PendingRequest
    rows: DecodedRows | None
    """None: the writing thread makes them."""


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
        # None ends the thread that receives it.
        self._requests: SimpleQueue[_PendingRequest | None] = SimpleQueue()
        self._decoded: SimpleQueue[_DecodedRequest | None] = SimpleQueue()
        self._bytes = 0
        self._lock = threading.Lock()
        self._stopping = False
        self._decoders = [
            threading.Thread(target=self._decode, args=[reader], name="proctor-read", daemon=True)
            for reader in readers or (None,)
        ]
        self._writer = threading.Thread(target=self._work, name="proctor-ingest", daemon=True)
        self.spans = 0
        """Spans written since the start."""

    def start(self) -> None:
        """Start the threads."""
        for thread in (*self._decoders, self._writer):
            thread.start()

    def stop(self) -> None:
        """Write what waits, then end."""
        with self._lock:
            self._stopping = True
        for _ in self._decoders:
            self._requests.put(None)
        for thread in self._decoders:
            if thread.is_alive():
                thread.join()
        self._decoded.put(None)
        if self._writer.is_alive():
            self._writer.join()

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
        answer: Future[IngestResult] = Future()
        with self._lock:
            if self._stopping:
                raise Refused(503, "the server is stopping")
            self._reserve(len(body))
            self._requests.put(_PendingRequest(body, content_type, what, answer))
        return await asyncio.wrap_future(answer)

    def _reserve(self, size: int) -> None:
        if self._bytes + size > self._max_waiting:
            raise Refused(503, "too many spans are waiting to be written")
        self._bytes += size

    # -- the threads that make rows ---------------------------------------------------------------

    def _decode(self, reader: Child | None) -> None:
        """Make rows of one request after another in a reader, once it is ready."""
        ready = threading.Event()
        if reader is None:
            load_published_prices()
        else:
            # Readers take a second to start; requests do not wait for them.
            starting = threading.Thread(target=_start, args=[reader, ready], daemon=True)
            starting.start()
        while (request := self._requests.get()) is not None:
            rows: DecodedRows | None = None
            try:
                if reader is not None and ready.is_set():
                    rows = reader.read(request.body, request.content_type, request.what)
            except Exception as error:  # noqa: BLE001 (a thread that ended would read nothing more)
                reason = f"cannot be read: {type(error).__name__}"
                rows = DecodedRows(message=reason, refused=503)
            self._decoded.put(_DecodedRequest(request, rows))
        if reader is not None:
            reader.close()

    # -- the writing thread -----------------------------------------------------------------------

    def _work(self) -> None:
        ended = False
        while not ended and (decoded := self._decoded.get()) is not None:
            together, size = [decoded], len(decoded.request.body)
            with contextlib.suppress(Empty):  # what waits now is written together
                while size < MAX_TOGETHER and not ended:
                    decoded = self._decoded.get_nowait()
                    if decoded is None:
                        ended = True
                    else:
                        together.append(decoded)
                        size += len(decoded.request.body)
            accepted: list[tuple[_PendingRequest, DecodedRows]] = []
            for request, decoded_rows in together:
                # Made by this thread: two busy threads of one process slow each other down.
                body, content_type, what, _ = request
                rows = decoded_rows or make(
                    body, content_type, what, self._redactor, self._store.prices
                )
                if rows.refused:
                    request.settle(Refused(rows.refused, rows.message))
                else:
                    accepted.append((request, rows))
            self._write(accepted)
            with self._lock:
                self._bytes -= size

    def _write(self, together: list[tuple[_PendingRequest, DecodedRows]]) -> None:
        if not together:
            return
        batch = Batch()
        for _, rows in together:
            batch.extend(rows)
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


def _start(reader: Child, ready: threading.Event) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed while it was starting
        if reader.wait():
            ready.set()

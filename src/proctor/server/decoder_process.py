"""Where rows are made of request bodies: in this process, or in children of it.

Promise: a child that ends is told of as a request to be sent again, and another takes its place.
One child is asked one thing at a time, by one thread. Little is imported here, so that children
can be started before anything else is.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from typing import IO, Any, BinaryIO, NamedTuple, Protocol

import msgspec

from proctor.llm.prices import PriceTable
from proctor.server.store.rows import Batch, TraceFacts, batch_of
from proctor.trace.assemble import Collector
from proctor.trace.conventions.values import decode_json
from proctor.trace.formats import otlp
from proctor.trace.redact import Redactor

REQUEST = struct.Struct("<II")
"""Lengths of the header (content type and what it holds, a NUL between them) and of the body."""

LENGTH = struct.Struct("<I")
"""The length of a reply, or of the settings."""

READY = b"ready"
"""The first bytes of a child; the parent then sends the settings as JSON, their length first."""

MAX_READERS = 4
"""More make rows faster than one writer writes them."""

PIPE = 1 << 20
"""Bytes a pipe may hold: most requests then go in one piece. Linux allows as much to anybody."""


PROTOBUF = "application/x-protobuf"
JSON = "application/json"

SPANS = "spans"
LOG_RECORDS = "log_records"
"""What a request is said to hold, by the path it came to."""

_LOST = ("span skipped", "log record skipped")
"""How problems begin that cost a whole span or record; others cost an attribute or an event."""

MAX_MESSAGE = 500
"""Characters of what is said of spans that were not kept."""


class Refused(Exception):
    """A request that is not taken: its HTTP status, and why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Received(NamedTuple):
    """What a request held, how many of its spans or records were not kept, and what was odd."""

    collected: Collector
    rejected: int
    message: str


class Reader(Protocol):
    """Something that makes rows of a body."""

    def read(self, body: bytes, content_type: str, what: str) -> DecodedRows:
        """The rows, or why there are none."""
        ...

    def close(self) -> None:
        """It is not needed any more."""
        ...


@contextlib.contextmanager
def started(asked: int | None) -> Generator[list[Child]]:
    """So many children, or as many as pay; they are ended with the block."""
    children = [Child() for _ in range(default_readers() if asked is None else asked)]
    try:
        for child in children:
            child.start()
        yield children
    finally:
        for child in children:
            child.close()


def default_readers() -> int:
    """How many children pay: one processor is left to the server; with one only, none."""
    free = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(MAX_READERS, (free or 1) - 1)


class InProcessDecoder:
    """Makes rows in this process."""

    def __init__(self, redactor: Redactor | None, prices: PriceTable | None = None) -> None:
        self._redactor = redactor
        self._prices = prices

    def read(self, body: bytes, content_type: str, what: str) -> DecodedRows:
        """The rows, or why there are none."""

        return make(body, content_type, what, self._redactor, self._prices)

    def close(self) -> None:
        """Nothing to end."""


class Child:
    """Makes rows in a process of its own, started when asked to or when first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self.prices: PriceTable | None = None
        """The user's prices; set them before the first request."""
        self.patterns: Mapping[str, str] = {}
        """The user's kinds of secret; set them before the first request."""

    def start(self) -> subprocess.Popen[bytes]:
        """The process, begun anew where it has ended."""
        if self._process is None or self._process.poll() is not None:
            self._ready = False
            # -P: nothing in the folder the server was started in takes the place of a module.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "proctor.server.decoder_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for pipe in (self._process.stdin, self._process.stdout):
                _widen(pipe)
        return self._process

    def wait(self) -> bool:
        """Wait until it can be asked; False when it never will."""
        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        if not self._ready and process.stdout.read(len(READY)) == READY:
            prices = self.prices.to_dict() if self.prices else {}
            settings = json.dumps({"prices": prices, "patterns": dict(self.patterns)}).encode()
            with contextlib.suppress(OSError):  # it ended already: the first request notices
                process.stdin.write(LENGTH.pack(len(settings)) + settings)
                process.stdin.flush()
                self._ready = True
        return self._ready

    def read(self, body: bytes, content_type: str, what: str) -> DecodedRows:
        """The rows, or why there are none."""
        import msgspec

        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        self.wait()
        header = f"{content_type}\0{what}".encode("utf-8", "replace")
        try:
            process.stdin.write(REQUEST.pack(len(header), len(body)) + header)
            process.stdin.write(body)
            process.stdin.flush()
            (size,) = LENGTH.unpack(process.stdout.read(LENGTH.size))
            reply = process.stdout.read(size)
            if len(reply) == size:
                return decode(reply)
        except (OSError, ValueError, struct.error, msgspec.MsgspecError):
            pass
        self.close()
        return DecodedRows(0, "what reads requests ended, and is started again", refused=503)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self._ready:  # one that still begins has nothing to finish
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)
        process.kill()
        process.wait()


def _widen(pipe: IO[bytes] | None) -> None:
    """Let a pipe hold more, where the system can."""
    try:
        import fcntl

        if pipe is not None:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE)
    except (ImportError, AttributeError, OSError):
        return  # smaller pipes only take more turns


# From the body of a request to rows, in this process or in another: the same bytes, the same
# rows.
#
# Promise: `make` is all that is done with a body before it is written, and it needs nothing but
# the body and the settings: so it can be done wherever there is a free processor.


class DecodedRows(msgspec.Struct, array_like=True):
    """The rows of one request; how many of its spans were not kept, and what was odd.

    `refused` is the HTTP status of a request that is not taken; `message` says why.
    """

    rejected: int
    message: str
    spans: list[tuple[Any, ...]] = []
    chunks: list[tuple[str, bytes, int]] = []
    facts: list[TraceFacts] = []
    touched: list[str] = []
    refused: int = 0

    def batch(self) -> Batch:
        """The rows, to be written."""
        return Batch(self.spans, self.chunks, self.facts, set(self.touched))


def make(
    body: bytes,
    content_type: str,
    what: str,
    redactor: Redactor | None,
    prices: PriceTable | None = None,
) -> DecodedRows:
    """The rows of a body; whatever is wrong with it is said, never raised."""
    try:
        found = received(body, content_type, what)
        batch = batch_of(found.collected, redactor, prices)
    except Refused as refusal:
        return DecodedRows(0, refusal.reason, refused=refusal.status)
    except Exception as error:  # noqa: BLE001 (one odd request must not end the server)
        return DecodedRows(0, f"cannot be read: {type(error).__name__}", refused=400)
    rows = (batch.spans, batch.chunks, batch.facts, sorted(batch.touched))
    return DecodedRows(found.rejected, found.message, *rows)


def received(body: bytes, content_type: str, what: str = SPANS) -> Received:
    """The spans or log records of a plain body."""
    kind = content_type.partition(";")[0].strip().lower()
    collected = Collector("request")
    if not body:
        return Received(collected, 0, "")
    if kind == JSON:
        _read_json(body, collected)
    elif kind == PROTOBUF:
        read = otlp.read_protobuf_logs if what == LOG_RECORDS else otlp.read_protobuf_spans
        if not read(body, collected):
            raise Refused(400, f"not an OTLP request of {what.replace('_', ' ')} in protobuf")
    else:
        raise Refused(415, f"content type {kind[:60]!r} is not OTLP: use {PROTOBUF} or {JSON}")
    problems = collected.problems
    words = "; ".join(str(problem) for problem in problems)[:MAX_MESSAGE]
    lost = (problem.count for problem in problems if problem.message.startswith(_LOST))
    return Received(collected, sum(lost), words)


def _read_json(body: bytes, collected: Collector) -> None:
    try:
        document = decode_json(body.decode("utf-8"))
    except ValueError as error:
        raise Refused(400, f"not JSON: {str(error)[:200]}") from None
    if document == {}:
        return
    if not otlp.matches(document):
        raise Refused(400, "not an OTLP request: it has neither resourceSpans nor resourceLogs")
    otlp.read(document, collected)


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(DecodedRows).decode


# A process that makes rows of request bodies for a server, so that this takes another processor.
#
# Bodies come on standard input and rows go to standard output, one after the other; it ends when
# its input does, and so never outlives the server, however that ends.


COLLECT_AFTER = 100_000
"""Objects after which rings of them are looked for: a request makes thousands, which go by
themselves, and going through them again and again would be a tenth of the work."""


def main() -> None:
    """Read, make, write, until nothing more comes."""
    from proctor.llm.prices import PriceTable, warm_up

    # Ctrl-C goes to every process of a terminal; the server decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # a stray print must not stand among the rows
    # Prices take a moment to read, and the first spans need not wait for them.
    threading.Thread(target=warm_up, daemon=True).start()
    gc.freeze()  # what is there now stays
    gc.set_threshold(COLLECT_AFTER)
    outgoing.write(READY)
    outgoing.flush()
    head = incoming.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return  # the server ended before it sent anything
    settings = json.loads(incoming.read(LENGTH.unpack(head)[0]))
    prices, redactor = PriceTable(settings["prices"]), Redactor(settings["patterns"])
    while len(head := incoming.read(REQUEST.size)) == REQUEST.size:
        header_size, size = REQUEST.unpack(head)
        kind, _, what = incoming.read(header_size).decode().partition("\0")
        body = incoming.read(size)
        if len(body) < size:
            return
        _reply(outgoing, make(body, kind, what, redactor, prices))


def _reply(outgoing: BinaryIO, made: DecodedRows) -> None:
    try:
        encoded = encode(made)
    except (UnicodeError, OverflowError, TypeError, ValueError):
        encoded = encode(DecodedRows(0, "cannot be kept: text that is no Unicode", refused=400))
    outgoing.write(LENGTH.pack(len(encoded)))
    outgoing.write(encoded)
    outgoing.flush()


if __name__ == "__main__":
    main()

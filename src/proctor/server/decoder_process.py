"""Make rows of request bodies, in this process or in children of it: same bytes, same rows.

Guarantees: a child that dies costs its current request, which the client sends again, and
is replaced. One thread sends one request at a time to a child. `make` needs only the body and the
settings, so it can run wherever a processor is free. Spans that cannot be read are counted, the
others are stored (partial success).
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
from typing import IO

import msgspec

from proctor.llm.prices import PriceTable, load_published_prices
from proctor.server.store.rows import Batch, batch_of
from proctor.trace.assemble import Collector
from proctor.trace.conventions.values import decode_json
from proctor.trace.formats import otlp
from proctor.trace.redact import Redactor

# Messages between the server and a child: a length and that many bytes. A child sends READY, is
# sent the settings as JSON, and then for each request a header (content type and what the body
# holds, a NUL between them) and the body; it answers with rows.
LENGTH = struct.Struct("<I")
READY = b"ready"

# One writer cannot keep up with more readers.
MAX_READERS = 4

# Bytes a pipe may hold, so that most requests go in one piece: the most that Linux allows without
# privileges.
PIPE_BYTES = 1 << 20

# Allocations between collections of a child: a request makes thousands of objects that reference
# counting frees, and going through them again and again would be a tenth of the work.
COLLECT_AFTER = 100_000

PROTOBUF = "application/x-protobuf"
JSON = "application/json"

# What a body holds; the path of the request says which.
SPANS = "spans"
LOG_RECORDS = "log_records"

# Start of the problems that cost a whole span or record; others cost an attribute or an event.
_LOST = ("span skipped", "log record skipped")

# Characters of the message about spans that were not stored.
MAX_MESSAGE = 500


class Refused(Exception):
    """A request that is not accepted: its HTTP status, and why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class DecodedRows(Batch, array_like=True):
    """The rows of one request, the number of rejected spans, and the problems.

    `refused` is the HTTP status of a request that is not accepted; `message` says why.
    """

    rejected: int = 0
    message: str = ""
    refused: int = 0


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(DecodedRows).decode


def make(
    body: bytes,
    content_type: str,
    what: str,
    redactor: Redactor | None,
    prices: PriceTable | None = None,
) -> DecodedRows:
    """Return the rows of a body; a problem is part of the result, never raised."""
    try:
        collected, rejected, message = received(body, content_type, what)
        batch = batch_of(collected, redactor, prices)
    except Refused as refusal:
        return DecodedRows(message=refusal.reason, refused=refusal.status)
    except Exception as error:  # noqa: BLE001 (one malformed request must not end the server)
        return DecodedRows(message=f"cannot be read: {type(error).__name__}", refused=400)
    return DecodedRows(batch.spans, batch.chunks, batch.facts, rejected, message)


def received(body: bytes, content_type: str, what: str = SPANS) -> tuple[Collector, int, str]:
    """Return the spans or log records of an uncompressed body, how many were lost, and why."""
    kind = content_type.partition(";")[0].strip().lower()
    collected = Collector("request")
    if not body:
        return collected, 0, ""
    if kind == JSON:
        try:
            document = decode_json(body.decode("utf-8"))
        except ValueError as error:
            raise Refused(400, f"not JSON: {str(error)[:200]}") from None
        if otlp.matches(document):
            otlp.read(document, collected)
        elif document != {}:
            raise Refused(400, "not an OTLP request: it has neither resourceSpans nor resourceLogs")
    elif kind == PROTOBUF:
        signal = "logs" if what == LOG_RECORDS else "traces"
        if not otlp.read_protobuf(body, signal, collected):
            raise Refused(400, f"not an OTLP request of {what.replace('_', ' ')} in protobuf")
    else:
        raise Refused(415, f"content type {kind[:60]!r} is not OTLP: use {PROTOBUF} or {JSON}")
    problems = collected.problems
    message = "; ".join(str(problem) for problem in problems)[:MAX_MESSAGE]
    lost = (problem.count for problem in problems if problem.message.startswith(_LOST))
    return collected, sum(lost), message


def send(pipe: IO[bytes], *messages: bytes) -> None:
    """Write messages to the other side."""
    for message in messages:
        pipe.write(LENGTH.pack(len(message)))
        pipe.write(message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes | None:
    """Return the next message; None when the other side has ended."""
    head = pipe.read(LENGTH.size)
    size = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else 0
    message = pipe.read(size)
    return message if len(head) == LENGTH.size and len(message) == size else None


# -- the server's side -----------------------------------------------------------------------------


def default_readers() -> int:
    """Return how many children to start: one processor is left to the server."""
    free = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(MAX_READERS, (free or 1) - 1)


@contextlib.contextmanager
def started(count: int | None) -> Generator[list[Child]]:
    """Start this many children (None: the default number) and end them with the block."""
    children = [Child() for _ in range(default_readers() if count is None else count)]
    try:
        for child in children:
            child.start()
        yield children
    finally:
        for child in children:
            child.close()


class Child:
    """Makes rows in a process of its own, started by `start` or by the first request."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self.prices: PriceTable | None = None
        """The user's prices; set them before the first request."""
        self.patterns: Mapping[str, str] = {}
        """The user's kinds of secret; set them before the first request."""

    def start(self) -> subprocess.Popen[bytes]:
        """Return the process, started again if it has ended."""
        if self._process is None or self._process.poll() is not None:
            self._ready = False
            # -P: no file in the current folder can take the place of a module.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "proctor.server.decoder_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            # Best effort: smaller pipes only take more turns.
            with contextlib.suppress(ImportError, AttributeError, OSError):
                import fcntl

                for pipe in (self._process.stdin, self._process.stdout):
                    assert pipe is not None
                    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return self._process

    def wait(self) -> bool:
        """Wait until it takes requests; False when it never will."""
        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        if not self._ready and receive(process.stdout) == READY:
            prices = self.prices.to_dict() if self.prices else {}
            settings = json.dumps({"prices": prices, "patterns": dict(self.patterns)}).encode()
            with contextlib.suppress(OSError):  # it ended already: the first request notices
                send(process.stdin, settings)
                self._ready = True
        return self._ready

    def read(self, body: bytes, content_type: str, what: str) -> DecodedRows:
        """Return the rows, or why there are none."""
        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        self.wait()
        header = f"{content_type}\0{what}".encode("utf-8", "replace")
        with contextlib.suppress(OSError, ValueError, struct.error, msgspec.MsgspecError):
            send(process.stdin, header, body)
            if (reply := receive(process.stdout)) is not None:
                return decode(reply)
        self.close()
        return DecodedRows(message="a reader process ended and is restarted", refused=503)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self._ready:  # a process that is still starting has nothing to finish
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)
        process.kill()
        process.wait()


# -- the child's side ------------------------------------------------------------------------------


def main() -> None:
    """Read bodies from standard input and write their rows to standard output.

    The process ends with its input, so it never outlives the server, however that ends.
    """
    # Ctrl-C reaches every process of a terminal; the server decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # a stray print must not end up among the rows
    # Loading the prices takes a moment, and the first spans need not wait for it.
    threading.Thread(target=load_published_prices, daemon=True).start()
    gc.freeze()  # what is loaded now stays
    gc.set_threshold(COLLECT_AFTER)
    send(outgoing, READY)
    if (written := receive(incoming)) is None:
        return  # the server ended before it sent anything
    settings = json.loads(written)
    prices, redactor = PriceTable(settings["prices"]), Redactor(settings["patterns"])
    while (header := receive(incoming)) is not None and (body := receive(incoming)) is not None:
        kind, _, what = header.decode().partition("\0")
        try:
            encoded = encode(make(body, kind, what, redactor, prices))
        except (UnicodeError, OverflowError, TypeError, ValueError):
            problem = "cannot be stored: text that is not valid Unicode"
            encoded = encode(DecodedRows(message=problem, refused=400))
        send(outgoing, encoded)


if __name__ == "__main__":
    main()

"""Where rows are made of request bodies: in this process, or in children of it.

Promise: a child that ends is told of as a request to be sent again, and another takes its place.
One child is asked one thing at a time, by one thread. Little is imported here, so that children
can be started before anything else is.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Generator
from typing import IO, TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from proctor.llm.prices import PriceTable
    from proctor.server.made import Made
    from proctor.trace.redact import Redactor

REQUEST = struct.Struct("<II")
"""Lengths of the header (content type and what it holds, a NUL between them) and of the body."""

LENGTH = struct.Struct("<I")
"""The length of a reply, or of the prices."""

READY = b"ready"
"""The first bytes a child writes; the parent then sends the prices as JSON, their length first."""

MAX_READERS = 4
"""More make rows faster than one writer writes them."""

PIPE = 1 << 20
"""Bytes a pipe may hold: most requests then go in one piece. Linux allows as much to anybody."""


class Reader(Protocol):
    """Something that makes rows of a body."""

    def read(self, body: bytes, content_type: str, what: str) -> Made:
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


class Here:
    """Makes rows in this process."""

    def __init__(self, redactor: Redactor | None, prices: PriceTable | None = None) -> None:
        self._redactor = redactor
        self._prices = prices

    def read(self, body: bytes, content_type: str, what: str) -> Made:
        """The rows, or why there are none."""
        from proctor.server.made import make

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

    def start(self) -> subprocess.Popen[bytes]:
        """The process, begun anew where it has ended."""
        if self._process is None or self._process.poll() is not None:
            self._ready = False
            # -P: nothing in the folder the server was started in takes the place of a module.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "proctor.server.reader"],
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
            prices = json.dumps(self.prices.to_dict() if self.prices else {}).encode()
            with contextlib.suppress(OSError):  # it ended already: the first request notices
                process.stdin.write(LENGTH.pack(len(prices)) + prices)
                process.stdin.flush()
                self._ready = True
        return self._ready

    def read(self, body: bytes, content_type: str, what: str) -> Made:
        """The rows, or why there are none."""
        import msgspec

        from proctor.server.made import Made, decode

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
        return Made(0, "what reads requests ended, and is started again", refused=503)

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

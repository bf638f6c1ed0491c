"""Readers in processes of their own: the same rows, never in the way, never left behind."""

import asyncio
import fcntl
import json
import os
import signal
import struct
import sys
import termios
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from server_parts import LLM, TOOL, TRACE, wire_request

from proctor.server.decoder_process import (
    JSON,
    LOG_RECORDS,
    PROTOBUF,
    SPANS,
    Child,
    Refused,
    decode,
    encode,
    make,
)
from proctor.server.ingest import Ingest
from proctor.trace.redact import default_redactor

JSON_BODY = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {"spans": [{"traceId": TRACE, "spanId": "00000000000000aa", "name": "ünï\u0000"}]}
            ]
        }
    ]
}
SECRET = {"input.value": "password=hunter2hunter2", "n": 5}
BODIES = {
    "spans": (wire_request({"id": 1}, {"id": 2, "parent": 1, "attributes": LLM}), PROTOBUF, SPANS),
    "secret": (wire_request({"id": 3, "attributes": {**TOOL, **SECRET}}), PROTOBUF, SPANS),
    "json": (json.dumps(JSON_BODY).encode(), JSON, SPANS),
    "empty": (b"", PROTOBUF, SPANS),
    "broken": (b"\xff\xff\xff", PROTOBUF, SPANS),
    "odd type": (b"x", "text/plain\r\n\u00fc", SPANS),
    "logs": (b"\xff", PROTOBUF, LOG_RECORDS),
    "surrogate": (json.dumps(JSON_BODY).replace("00aa", "\\ud800").encode(), JSON, SPANS),
}


@pytest.fixture(scope="module")
def child():
    found = Child()
    yield found
    found.close()


@pytest.mark.parametrize("name", BODIES)
def test_a_child_makes_the_rows_that_are_made_here(child: Child, name: str) -> None:
    """R-D7: which process reads a request changes nothing about what is kept of it."""
    body, kind, what = BODIES[name]
    there = child.read(body, kind, what)
    here = make(body, kind, what, default_redactor())
    assert there == decode(encode(here))
    assert bool(there.refused) == (name in ("broken", "odd type", "logs", "surrogate"))
    assert not any(b"hunter2" in chunk for _, chunk, _ in there.chunks)


def test_a_child_that_ends_is_told_of_and_replaced(child: Child) -> None:
    """R-D7: a reader killed from outside costs one answer of 503, not the server."""
    body, kind, what = BODIES["spans"]
    assert child.wait()
    process = child.start()
    os.kill(process.pid, signal.SIGSTOP)
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        pass  # from then on it takes nothing in
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(child.read, body, kind, what)
        while not waiting_in(process.stdin):
            pass
        process.kill()
        assert reading.result().refused == 503
    assert child.read(body, kind, what).touched == {TRACE}
    again = child.start()
    assert again.pid != process.pid
    again.kill()
    again.wait()
    assert child.read(body, kind, what).touched == {TRACE}


def waiting_in(pipe) -> int:
    """Bytes that were sent and not taken in."""
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0]


def test_what_is_taken_with_readers_is_stored(store) -> None:
    """R-D7: requests go through two readers side by side; each is answered for what it held."""
    ingest = Ingest(store, readers=[Child(), Child()])
    ingest.start()

    async def send() -> list[object]:
        spans = [
            wire_request({"id": n, "trace": f"{n:032x}", "attributes": LLM}) for n in range(1, 40)
        ]
        taking = [ingest.take(body, PROTOBUF) for body in [*spans, b"\xff\xff"]]
        return await asyncio.gather(*taking, return_exceptions=True)

    *taken, broken = asyncio.run(send())
    assert isinstance(broken, Refused)
    assert broken.status == 400
    assert all(each.rejected == 0 for each in taken)
    assert (store.count(), ingest.spans) == (39, 39)
    ingest.stop()
    assert store.figures().cost_usd > 0


def test_readers_end_with_their_server(tmp_path) -> None:
    """R-D7: after kill -9 of the server no process of it is left."""
    command = [sys.executable, "-m", "proctor", "serve", "--port", "0", "--readers", "2"]
    server = psutil.Popen([*command, "--store", f"sqlite:///{tmp_path}/t.db"], cwd=tmp_path)
    try:
        readers: list[psutil.Process] = []
        while len(readers) < 2 and server.poll() is None:
            readers = server.children()
    finally:
        server.kill()
        server.wait()
    _, alive = psutil.wait_procs(readers, timeout=60)
    assert len(readers) == 2
    assert alive == []

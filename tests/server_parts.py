"""Spans on the wire, stores of both kinds and a server on loopback, for tests."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from proctor.server.app import Service, make_app
from proctor.server.decoder_process import PROTOBUF, received
from proctor.server.store.rows import batch_of

TRACE = "0af7651916cd43dd8448eb211c80319c"


def wire_request(*spans: dict, service: str = "shop") -> bytes:
    """An export request: spans as mappings of id, parent, name, start, end, status, attributes."""
    request = ExportTraceServiceRequest()
    batch = request.resource_spans.add()
    _put(batch.resource.attributes, {"service.name": service})
    group = batch.scope_spans.add()
    for given in spans:
        span = group.spans.add()
        span.trace_id = bytes.fromhex(given.get("trace", TRACE))
        span.span_id = int(given["id"]).to_bytes(8, "big")
        if given.get("parent"):
            span.parent_span_id = int(given["parent"]).to_bytes(8, "big")
        span.name = given.get("name", "step")
        span.start_time_unix_nano = given.get("start", 1_000_000_000)
        span.end_time_unix_nano = given.get("end", 2_000_000_000)
        span.status.code = given.get("status", 0)
        _put(span.attributes, given.get("attributes", {}))
    return request.SerializeToString()


def _put(target, attributes: dict) -> None:
    for key, value in attributes.items():
        item = target.add()
        item.key = key
        if isinstance(value, int):
            item.value.int_value = value
        else:
            item.value.string_value = value


def write(store, *spans: dict, **more) -> None:
    """Put spans into a store as the server would."""
    found, _, _ = received(wire_request(*spans, **more), PROTOBUF)
    store.write(batch_of(found, None))


TOOL = {"openinference.span.kind": "TOOL", "tool.name": "search"}
LLM = {
    "openinference.span.kind": "LLM",
    "llm.model_name": "gpt-4o",
    "llm.token_count.prompt": 11,
    "llm.token_count.completion": 7,
}


class Running(uvicorn.Server):
    """A server in a thread of this process."""

    def __init__(self, service: Service, *tokens: str | None, **access) -> None:
        app = make_app(service, *tokens, **access)
        super().__init__(uvicorn.Config(app, port=0, log_level="error"))
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self.run, daemon=True)
        self.url = ""

    async def startup(self, sockets=None) -> None:
        await super().startup(sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._ready.set()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(60)

    def stop(self) -> None:
        self.should_exit = True
        self._thread.join(60)


@contextmanager
def serving(
    service: Service, token: str | None = None, viewer_token: str | None = None, **access
) -> Iterator[Running]:
    """A server that listens while the block lasts."""
    running = Running(service, token, viewer_token, **access)
    running.start()
    try:
        yield running
    finally:
        running.stop()


def started(url: str, *flags: str) -> tuple[subprocess.Popen, str]:
    """A real `proctor serve` in a process of its own, and its address."""
    command = [sys.executable, "-m", "proctor", "serve", "--port", "0", "--store", url, *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if found := re.search(r"http://[\w.-]+:\d+", line):
            return process, found.group()
    raise AssertionError(f"the server did not start: {''.join(said)}")

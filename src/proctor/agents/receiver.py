"""A small OTLP/HTTP receiver on loopback, for agents that run in other processes.

Promise: spans sent here with the trace id of a running trial land in that trial's trace before
the sender is answered; others are counted and dropped. It speaks protobuf and JSON, plain or
gzip. Not a trace server: it keeps nothing and listens only to this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from typing import NamedTuple

from proctor.trace import otel
from proctor.trace.load import TraceLoadError, load_traces

MAX_BODY = 64 * 1024 * 1024
"""Bytes of one request, plain or unpacked: far above any exporter's batch, far below memory."""

MAX_HEAD = 64 * 1024


class HttpRequest(NamedTuple):
    """The parts of a request that matter here."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Takes OTLP requests and files their spans under the captures of this process."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self.url = ""
        self.received = 0
        self.homeless = 0

    async def start(self, port: int = 0) -> None:
        """Listen on loopback; port 0 takes any free one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=MAX_HEAD)
        host, number = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{number}"

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def environment(self) -> dict[str, str]:
        """Variables that make an instrumented child process send its spans here."""
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_TRACES_EXPORTER": "otlp",
        }
        parent = otel.traceparent()
        return {**variables, "TRACEPARENT": parent} if parent else variables

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while (request := await _read_request(reader)) is not None:
                status = self._handle(request)
                writer.write(_response(status, request.headers.get("content-type", "")))
                await writer.drain()
        writer.close()

    def _handle(self, request: HttpRequest) -> str:
        if request.method != "POST" or request.path.split("?")[0] != "/v1/traces":
            return "404 Not Found"
        body = _unpacked(request)
        if body is None:
            return "400 Bad Request"
        if not body:
            return "200 OK"
        try:
            traces = load_traces(body, max_bytes=MAX_BODY)
        except TraceLoadError:
            return "400 Bad Request"
        for trace in traces:
            for span in trace.spans:
                if otel.deliver(span):
                    self.received += 1
                else:
                    self.homeless += 1
        return "200 OK"


def _unpacked(request: HttpRequest) -> bytes | None:
    """The body as sent, or None when it cannot be unpacked within bounds."""
    if request.headers.get("content-encoding", "").lower() != "gzip":
        return request.body
    unpacker = zlib.decompressobj(wbits=31)
    try:
        body = unpacker.decompress(request.body, MAX_BODY)
    except zlib.error:
        return None
    return body if unpacker.eof else None


async def _read_request(reader: asyncio.StreamReader) -> HttpRequest | None:
    """One HTTP/1.1 request, or None at the end of the connection or beyond any bound."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.LimitOverrunError, asyncio.IncompleteReadError):
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    headers = {
        name.strip().lower(): value.strip()
        for name, colon, value in (line.partition(":") for line in lines)
        if colon
    }
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _read_chunks(reader)
    else:
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MAX_BODY:
            return None
        body = await reader.readexactly(int(length))
    return HttpRequest(method, rest.partition(" ")[0], headers, body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        if len(body) + size > MAX_BODY:
            raise ConnectionError("the body is too large")
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return bytes(body)


def _response(status: str, content_type: str) -> bytes:
    """An empty success is an empty message in protobuf and `{}` in JSON."""
    is_json = content_type.startswith("application/json")
    body = b"{}" if is_json else b""
    kind = "application/json" if is_json else "application/x-protobuf"
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


_receivers: dict[asyncio.AbstractEventLoop, Receiver] = {}


async def shared_receiver(port: int = 0) -> Receiver:
    """The receiver of the running event loop, started on first use."""
    loop = asyncio.get_running_loop()
    for closed in [known for known in _receivers if known.is_closed()]:
        del _receivers[closed]
    if loop not in _receivers:
        receiver = Receiver()
        await receiver.start(port)
        _receivers[loop] = receiver
    return _receivers[loop]

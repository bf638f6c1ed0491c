"""Receive spans over OTLP/HTTP on loopback, from agents that run in other processes.

Guarantees: spans with the trace id of a running trial are in that trial's trace before the sender
gets its response; other spans are counted and dropped. Protobuf and JSON, plain or gzip. Nothing is
stored, and only this machine can connect.
"""

from __future__ import annotations

import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import cast

from proctor.files import DecompressionError, decompress
from proctor.trace import otel
from proctor.trace.load import TraceLoadError, load_traces

# Bytes of one request, compressed or not: far above any exporter's batch, far below memory.
MAX_BODY = 64 * 1024 * 1024

OK, BAD_REQUEST, NOT_FOUND, TOO_LARGE = 200, 400, 404, 413


class Receiver(ThreadingHTTPServer):
    """An OTLP server that adds spans to the captures of this process."""

    daemon_threads = True
    request_queue_size = 128  # as many children may start at once; the default is 5

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.received = 0
        self.unknown = 0
        self._counting = threading.Lock()

    def server_bind(self) -> None:
        """Bind without the host name lookup of `HTTPServer`, which can take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def start(self) -> None:
        """Serve in a thread that does not keep the process alive."""
        threading.Thread(target=self.serve_forever, name="otlp-receiver", daemon=True).start()

    def stop(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()

    def environment(self) -> dict[str, str]:
        """Return the variables that make an instrumented child process send its spans here."""
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_TRACES_EXPORTER": "otlp",
        }
        parent = otel.traceparent()
        return {**variables, "TRACEPARENT": parent} if parent else variables

    def add(self, body: bytes) -> None:
        """Add the spans of a request to the trials they belong to."""
        spans = [span for trace in load_traces(body, max_bytes=MAX_BODY) for span in trace.spans]
        with self._counting:
            for span in spans:
                if otel.deliver(span):
                    self.received += 1
                else:
                    self.unknown += 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave in one packet

    def do_GET(self) -> None:
        self._respond(NOT_FOUND)

    def do_POST(self) -> None:
        body = self._body()
        if body is None:
            self.close_connection = True  # the rest of the body is not read
            return self._respond(TOO_LARGE)
        if self.path.split("?")[0] != "/v1/traces":
            return self._respond(NOT_FOUND)
        if self.headers.get("Content-Encoding", "").lower() == "gzip":
            try:
                body = decompress(body, MAX_BODY, "gzip")
            except DecompressionError:
                return self._respond(BAD_REQUEST)
        try:
            if body:
                cast("Receiver", self.server).add(body)
        except TraceLoadError:
            return self._respond(BAD_REQUEST)
        return self._respond(OK)

    def _body(self) -> bytes | None:
        """Return the body, or None when it is too large or its length is not a number."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            length = self.headers.get("Content-Length", "0")
            return self.rfile.read(int(length)) if _within(length, 10, MAX_BODY) else None
        # http.server leaves chunks to its users, and exporters for Node.js send them.
        body = bytearray()
        while True:
            size = self.rfile.readline(1024).split(b";")[0].strip().decode("latin-1")
            if not _within(size, 16, MAX_BODY - len(body)):
                return None
            body += self.rfile.read(int(size, 16))
            self.rfile.readline(1024)
            if int(size, 16) == 0:
                return bytes(body)

    def _respond(self, status: int) -> None:
        # An empty response is an empty message in protobuf and `{}` in JSON.
        is_json = self.headers.get("Content-Type", "").startswith("application/json")
        body = b"{}" if is_json else b""
        self.send_response(status)
        self.send_header("Content-Type", f"application/{'json' if is_json else 'x-protobuf'}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (named by the base)
        """Log nothing: standard error belongs to the command line."""


def _within(digits: str, base: int, limit: int) -> bool:
    try:
        return 0 <= int(digits, base) <= limit
    except ValueError:
        return False


_receivers: dict[tuple[int, int], Receiver] = {}
_starting = threading.Lock()


def shared_receiver(port: int = 0) -> Receiver:
    """Return this process's receiver on a port (0: any free one), started on first use."""
    key = os.getpid(), port  # a forked child has the dictionary but not the thread
    with _starting:
        if key not in _receivers:
            receiver = Receiver(port)
            receiver.start()
            _receivers[key] = receiver
        return _receivers[key]

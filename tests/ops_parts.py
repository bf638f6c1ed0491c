"""A real HTTP server on loopback that takes notifications and keeps them."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "hunter2hunter2"


class Sink(ThreadingHTTPServer):
    """Answers with `status`, after `released` is set."""

    daemon_threads = True

    def __init__(self, status: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = status
        self.released = threading.Event()
        self.messages: list[dict[str, Any]] = []

    @property
    def address(self) -> str:
        """With a secret in it, as addresses have."""
        return f"json://user:{SECRET}@127.0.0.1:{self.server_port}/{SECRET}-path"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        sink = self.server
        assert isinstance(sink, Sink)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        sink.messages.append(json.loads(body))
        sink.released.wait(60)
        try:
            self.send_response(sink.status)
            self.end_headers()
        except OSError:
            pass  # the client did not wait

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def sink(status: int = 200, *, silent: bool = False) -> Iterator[Sink]:
    """A sink that runs during the block; a silent one never answers."""
    with Sink(status) as server:
        if not silent:
            server.released.set()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()

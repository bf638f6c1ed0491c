"""A real S3 server on loopback, and a proxy before it that has bad days."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, NamedTuple

import pytest

BUCKET = "bucket"

Trouble = Literal["500", "cut", "cut-request", "stall"] | None


class Request(NamedTuple):
    """What a client asked, how often it has asked exactly that, and the bytes it sent with it."""

    method: str
    path: str
    time: int
    size: int


class Proxy:
    """Passes requests on, unless `trouble` says otherwise."""

    def __init__(self, server: int) -> None:
        self.trouble: Callable[[Request], Trouble] = lambda request: None
        self.requests: list[Request] = []
        self.released = threading.Event()
        self.stalled = threading.Event()
        self._lock = threading.Lock()
        self._server = server
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                """Nothing: tests read what is told."""

            def answer(self) -> None:
                proxy.answer(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815 (the names the server calls)

        class Server(ThreadingHTTPServer):
            def handle_error(self, *args: object) -> None:
                """Clients that were killed are what some tests are about."""

        self._http = Server(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            before = sum(r[:2] == (handler.command, handler.path) for r in self.requests)
            size = int(handler.headers.get("Content-Length") or 0)
            request = Request(handler.command, handler.path, before + 1, size)
            self.requests.append(request)
        trouble = self.trouble(request)
        if trouble == "cut-request":
            handler.close_connection = True
            handler.connection.close()
            return
        body = handler.rfile.read(request.size)
        if trouble == "stall":
            self.stalled.set()
            self.released.wait(60)
            handler.close_connection = True
            return
        if trouble == "500":
            handler.send_response(500)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        self._pass_on(handler, body, cut=trouble == "cut")

    def _pass_on(self, handler: BaseHTTPRequestHandler, body: bytes, *, cut: bool) -> None:
        upstream = http.client.HTTPConnection("127.0.0.1", self._server, timeout=30)
        upstream.request(handler.command, handler.path, body, dict(handler.headers))
        reply = upstream.getresponse()
        content = reply.read()
        handler.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "server", "date"):
                handler.send_header(name, value)
        if handler.command != "HEAD" and reply.getheader("Content-Length") is None:
            handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            handler.close_connection = True
        upstream.close()

    def puts(self) -> list[str]:
        """The keys that were written, as they were asked for."""
        return [request.path for request in self.requests if request.method == "PUT"]

    def close(self) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()


@contextmanager
def s3_server() -> Iterator[int]:
    """A server of the S3 protocol; its port."""
    pytest.importorskip("flask", reason="moto's server needs flask")
    pytest.importorskip("obstore", reason="object stores need obstore")
    moto = pytest.importorskip("moto.server", reason="no S3 server: pip install moto[s3] flask")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield server.get_host_and_port()[1]
    finally:
        server.stop()


@contextmanager
def faulty_s3(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """An empty bucket behind a proxy, and an environment that leads to it."""
    for method, path in (("POST", "/moto-api/reset"), ("PUT", f"/{BUCKET}")):
        plain = http.client.HTTPConnection("127.0.0.1", server, timeout=30)
        plain.request(method, path)
        assert plain.getresponse().status == 200
        plain.close()
    proxy = Proxy(server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    try:
        yield proxy
    finally:
        proxy.close()


def objects(server: int) -> dict[str, bytes]:
    """Everything in the bucket, read without the code under test."""
    from moto.backends import get_backend

    bucket = get_backend("s3")["123456789012"]["global"].buckets[BUCKET]
    return {key: bucket.keys[key].value for key in bucket.keys}


def overwrite(key: str, content: bytes, server: int) -> None:
    """Put other content under a key, as bit rot would: what the sender said of it stays."""
    from moto.backends import get_backend

    found = get_backend("s3")["123456789012"]["global"].buckets[BUCKET].keys[key]
    found.value = content

"""Serve the mock model over real HTTP on loopback, in its own threads.

Guarantees: inside `with MockLLM(...)` the port is open, and afterwards every thread and socket is
gone. Scripted latency waits on an event, so that leaving never waits for it.
"""

from __future__ import annotations

import base64
import json
import math
import re
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from proctor.errors import ProctorError
from proctor.llm.mock import _shared
from proctor.llm.mock._anthropic import Messages
from proctor.llm.mock._gemini import GenerateContent
from proctor.llm.mock._openai import ChatCompletions, Responses, openai_error
from proctor.llm.mock._script import (
    Failure,
    Reply,
    ScriptedCall,
    ScriptedUsage,
    ScriptRequest,
    load_script,
)

if TYPE_CHECKING:
    from proctor.llm.mock._shared import Wire
    from proctor.trace import Message

HOST = "127.0.0.1"

# Larger than any real request; a faulty client must not fill the memory of a test run.
_MAX_BODY_BYTES = 64_000_000

# Short enough to read, long enough to distinguish texts.
_EMBEDDING_DIMENSIONS = 64

# Not 429 or 5xx, which client libraries retry: an exhausted script should be visible.
_UNSCRIPTED_STATUS = 400

WIRES: dict[str, Wire] = {
    "/chat/completions": ChatCompletions(),
    "/responses": Responses(),
    "/messages": Messages(),
}

# The model is part of Gemini's path, and so is whether the answer is streamed.
_GEMINI_PATH = re.compile(r"/models/([^/:]+):(generateContent|streamGenerateContent|countTokens)")
_GEMINI = GenerateContent()


class MockLLM:
    """A scripted model server: `with MockLLM(["Hello"]) as server: ... server.base_url ...`.

    `script` is a YAML file's path, a list of replies, or `{replies: [...], default: ...}`. Received
    requests are in `requests`; `on_request` is called with each request when its reply is sent.
    """

    def __init__(
        self,
        script: Any,
        *,
        port: int = 0,
        on_request: Callable[[ScriptRequest], None] | None = None,
    ) -> None:
        self.script = load_script(script)
        self.requests: list[ScriptRequest] = []
        self._port = port
        self._on_request = on_request
        self._lock = threading.Lock()
        # Response id → its conversation, for requests that continue it.
        self._conversations: dict[str, tuple[Message, ...]] = {}
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    # -- lifecycle ------------------------------------------------------------------------

    def start(self) -> MockLLM:
        """Open the port and start serving."""
        if self._server is not None:
            raise ProctorError("this mock server is already running")
        try:
            self._server = _Server((HOST, self._port), self)
        except OSError as error:
            raise ProctorError(
                f"port {self._port} cannot be opened: {error.strerror or error}",
                hint="choose another, or 0 for any that is free",
            ) from error
        # A short poll: `shutdown` waits for it, and a suite may start hundreds of servers.
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="mock-llm", daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """Close the port and every connection. Does nothing when not running."""
        server, thread = self._server, self._thread
        self._server = self._thread = None
        if server is None or thread is None:
            return
        # First, so that handlers in a scripted wait return and `shutdown` is quick.
        server.closing.set()
        server.shutdown()
        thread.join()
        server.close_connections()
        server.server_close()

    def __enter__(self) -> MockLLM:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- addresses ------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Return the server's root, the base URL for Anthropic clients."""
        if self._server is None:
            raise ProctorError("this mock server is not running", hint="use it in a `with` block")
        return f"http://{HOST}:{self._server.server_port}"

    @property
    def base_url(self) -> str:
        """Return the base URL for OpenAI clients."""
        return f"{self.url}/v1"

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that point common client libraries to this server."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": "mock",
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": "mock",
            "GOOGLE_GEMINI_BASE_URL": self.url,
            "GEMINI_API_KEY": "mock",
        }

    @property
    def unmatched(self) -> list[ScriptRequest]:
        """Return the requests without a scripted reply."""
        return [request for request in self.requests if request.reply is None]

    # -- replies --------------------------------------------------------------------------

    def exchange(
        self, protocol: Wire, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> _shared.Exchange:
        """Record a request and return its scripted reply."""
        import dataclasses

        request = _shared.read(protocol, path, body, headers)
        with self._lock:
            previous, missing = body.get("previous_response_id"), None
            if isinstance(previous, str):
                earlier = self._conversations.get(previous)
                if earlier is None:
                    missing = f"Previous response with id {previous!r} not found."
                request = dataclasses.replace(request, messages=(earlier or ()) + request.messages)
            try:
                if missing is not None:
                    raise ProctorError(missing)
                # Under the lock: replies are used in order, and requests arrive in parallel.
                place, reply = self.script.answer(request)
            except ProctorError as error:  # a scripted function returned something else
                place, reply = None, _unscripted(f"{error}")
            request = dataclasses.replace(request, reply=place)
            self.requests.append(request)
            serial = len(self.requests)
            if self._on_request is not None:
                self._on_request(request)
        if reply is None:
            reply = _unscripted(
                f"mock-llm: no reply is scripted for request {serial}; "
                f"all {len(self.script)} replies are used up or do not match"
            )
        exchange = _shared.Exchange(request, reply, serial)
        if isinstance(protocol, Responses) and body.get("store") is not False:
            # Instructions are not carried over to the next request.
            said = tuple(m for m in request.messages if m.role != "system")
            self._conversations[exchange.id("resp")] = (*said, exchange.message)
        return exchange


def rendered_reply(
    protocol: str, url: str, body: bytes, message: Message, serial: int, model: str | None = None
) -> tuple[str, str] | None:
    """Return the content type and text of a model's message, as the server of a protocol writes it.

    As a stream if the request asks for one; without usage, since no model was called. None for a
    protocol that cannot be written.
    """
    paths = {"openai": "/chat/completions", "responses": "/responses", "anthropic": "/messages"}
    wire = _GEMINI if protocol == "gemini" else WIRES.get(paths.get(protocol, ""))
    if wire is None:
        return None
    document = json.loads(body)
    if (gemini := _GEMINI_PATH.search(url)) is not None:
        stream = gemini[2] == "streamGenerateContent"
        document = {**document, "model": unquote(gemini[1]), "stream": stream}
    calls = [
        ScriptedCall(name=call.name, arguments=call.arguments, id=call.id)
        for call in message.tool_calls
    ]
    reply = Reply(
        text=message.content or "", tool_calls=calls, usage=ScriptedUsage(), model=model or None
    )
    exchange = _shared.Exchange(_shared.read(wire, url, document, {}), reply, serial)
    if not exchange.request.stream:
        return "application/json", json.dumps(wire.whole(exchange))
    events = b"".join(event.encoded() for event in wire.events(exchange))
    return "text/event-stream", events.decode()


def _unscripted(message: str) -> Reply:
    return Reply(error=Failure(status=_UNSCRIPTED_STATUS, message=message))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    # Trials may connect all at once; the default of 5 refuses some of them.
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], mock: MockLLM) -> None:
        self.mock = mock
        self.closing = threading.Event()
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._open_lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._open_lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        """Close idle keep-alive connections."""
        with self._open_lock:
            still_open = list(self._open)
        for connection in still_open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: clients that disconnect during a reply are expected."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]
    # Without TCP_NODELAY, small chunks of a stream wait for each other's acknowledgement.
    disable_nagle_algorithm = True
    # A client may be idle between requests for any time; `stop` ends the wait.
    timeout = None

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base's name
        """Print nothing: requests are recorded."""

    def do_GET(self) -> None:
        if self._path() == "/models":
            model = {
                "id": "mock",
                "object": "model",
                "created": _shared.CREATED,
                "owned_by": "mock",
            }
            self._json(200, {"object": "list", "data": [model], "has_more": False})
        else:
            self._not_found()

    def do_POST(self) -> None:
        body = self._body()
        if body is None:
            return
        path = self._path()
        if path == "/embeddings":
            self._json(200, _embeddings(body))
        elif path == "/messages/count_tokens":
            request = _shared.read(WIRES["/messages"], self.path, body, {})
            self._json(200, {"input_tokens": _shared.estimate_tokens(request.text)})
        elif path in WIRES:
            self._exchange(WIRES[path], body)
        elif (gemini := _GEMINI_PATH.search(path)) is not None:
            model, method = unquote(gemini[1]), gemini[2]
            if method == "countTokens":
                request = _shared.read(_GEMINI, self.path, body, {})
                self._json(200, {"totalTokens": _shared.estimate_tokens(request.text)})
            else:
                stream = method == "streamGenerateContent"
                self._exchange(_GEMINI, {**body, "model": model, "stream": stream})
        else:
            self._not_found()

    def _exchange(self, wire: Wire, body: Mapping[str, Any]) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self._answer(wire, self.server.mock.exchange(wire, self.path, body, headers))

    # -- request --------------------------------------------------------------------------

    def _path(self) -> str:
        return self.path.split("?", 1)[0].rstrip("/").removeprefix("/v1")

    def _body(self) -> Mapping[str, Any] | None:
        try:
            length = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            length = -1
        if not 0 <= length <= _MAX_BODY_BYTES:
            self.close_connection = True
            # The rest of the body was not read, so the connection cannot be used again.
            self._fail(413, "the request's length is missing or too large")
            return None
        try:
            body = json.loads(self.rfile.read(length))
        except ValueError:
            body = None
        if not isinstance(body, dict):
            self._fail(400, "the request is not a JSON object")
            return None
        return cast("dict[str, Any]", body)

    # -- response -------------------------------------------------------------------------

    def _answer(self, wire: Wire, exchange: _shared.Exchange) -> None:
        reply = exchange.reply
        if self.server.closing.wait(reply.latency) or reply.malformed == "cut":
            self._cut()
        elif reply.error is not None:
            extra: dict[str, str] = {}
            if reply.error.retry_after is not None:
                # `Retry-After` takes whole seconds; this header of OpenAI's takes milliseconds.
                extra["Retry-After"] = str(math.ceil(reply.error.retry_after))
                extra["retry-after-ms"] = str(round(reply.error.retry_after * 1000))
            self._json(reply.error.status, wire.error(reply.error), extra)
        elif exchange.request.stream:
            self._stream(list(wire.events(exchange)), reply)
        else:
            self._whole(wire.whole(exchange), reply.malformed)

    def _whole(self, document: dict[str, Any], malformed: str | None) -> None:
        encoded = json.dumps({"unexpected": True} if malformed == "wrong_shape" else document)
        body = encoded.encode()
        if malformed == "bad_json":
            body = body[: len(body) // 2] + b"}}not json"
        self._head(200, "application/json", {"Content-Length": str(len(body))})
        if malformed == "truncated":
            self.wfile.write(body[: len(body) // 2])
            self._cut()
        else:
            self.wfile.write(body)

    def _stream(self, events: list[_shared.ServerSentEvent], reply: Reply) -> None:
        malformed = reply.malformed
        self._head(200, "text/event-stream", {"Transfer-Encoding": "chunked"})
        for position, event in enumerate(events):
            half_way = position >= len(events) // 2
            if half_way and malformed == "truncated":
                self._cut()
                return
            encoded = event.encoded()
            if half_way and malformed == "bad_json":
                encoded = event.encoded('{"broken": ')
            elif malformed == "wrong_shape":
                encoded = event.encoded('{"unexpected": true}')
            self.wfile.write(f"{len(encoded):x}\r\n".encode() + encoded + b"\r\n")
            if self.server.closing.wait(reply.chunk_latency):
                self._cut()
                return
        self.wfile.write(b"0\r\n\r\n")

    def _json(self, status: int, document: Any, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps(document).encode()
        length = {"Content-Length": str(len(body))}
        self._head(status, "application/json", {**length, **(headers or {})})
        self.wfile.write(body)

    def _head(self, status: int, kind: str, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _cut(self) -> None:
        """Reset the connection, like a crashed server."""
        self.close_connection = True
        # Zero linger makes the close a reset.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def _not_found(self) -> None:
        self._fail(404, f"mock-llm does not know {self._path()!r}")

    def _fail(self, status: int, message: str) -> None:
        self._json(status, openai_error(Failure(status=status, message=message)))


def _embeddings(body: Mapping[str, Any]) -> dict[str, Any]:
    inputs = body.get("input", "")
    texts = (
        [str(text) for text in cast("list[Any]", inputs)] if isinstance(inputs, list) else [inputs]
    )
    dimensions = body.get("dimensions")
    if not isinstance(dimensions, int) or not 0 < dimensions <= 4096:
        dimensions = _EMBEDDING_DIMENSIONS
    data: list[dict[str, Any]] = []
    for index, text in enumerate(texts):
        vector: Any = _shared.embedding(str(text), dimensions)
        if body.get("encoding_format") == "base64":
            vector = base64.b64encode(struct.pack(f"<{dimensions}f", *vector)).decode("ascii")
        data.append({"object": "embedding", "index": index, "embedding": vector})
    tokens = sum(_shared.estimate_tokens(str(text)) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "model": body.get("model", "mock"), "data": data, "usage": usage}

"""The model gateway: a reverse proxy on loopback between agents and the servers of models.

    gateway = shared_gateway()
    async with gateway.session(GatewaySession(sink)) as session:
        environment = gateway.environment(session)   # OPENAI_BASE_URL, ANTHROPIC_BASE_URL, …

A request is `/TOKEN/PROVIDER/PATH`, or `/PROVIDER/PATH` with the token as its key. The token
belongs to one session (`gateway/calls.py`), so trials side by side never mix. Bytes pass
unchanged and as they arrive; only the host, the key (a session's token becomes the real key, which
the agent never sees) and, with a budget, the maximum of output tokens are replaced. A compressed
request is sent decompressed, since its span and its budget need what it says.

Guarantees: a call is sent again only before any byte of a response was passed on. A call whose
client has gone is cut, so that a client that asks again waits for no budget of it. When a session
or the gateway is closed, its calls have ended. It listens on loopback only.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import threading
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from proctor.errors import ProctorError
from proctor.files import DecompressionError, decompress
from proctor.gateway.budget import INTERRUPTED, BudgetExceeded
from proctor.gateway.calls import GatewaySession, ModelCall, error_document
from proctor.imports import needs_extra
from proctor.llm.http_hook import bypass
from proctor.llm.retry import is_transient_status, parse_retry_after, retry_delay

if TYPE_CHECKING:
    import anyio
    import httpx
    from starlette.requests import Request
    from starlette.responses import Response

MAX_BODY = 64 * 1024 * 1024
"""Bytes of a request: far above any context window."""

HOST = "127.0.0.1"

GRACE = 2.0
"""Seconds that the calls of a session that is closed get to end: its program has ended already."""

LONGEST_WAIT = 60.0
"""A server that asks to wait for longer gets no second call: the agent's own client decides."""

KEY_PREFIX = "proctor"
"""Keys that begin with this name a session of `proctor gateway`; the real key replaces them."""

CONNECT_TIMEOUT, READ_TIMEOUT = 15.0, 600.0

# Provider → variables of its base URL, of its key, and its public address. The first variable of
# each is what a user sets; all of them are set for agents, since clients read one or another.
PROVIDERS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "openai": (
        ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
        ("OPENAI_API_KEY",),
        "https://api.openai.com/v1",
    ),
    "anthropic": (
        ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"),
        ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
        "https://api.anthropic.com",
    ),
    "gemini": (
        ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_BASE"),
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        "https://generativelanguage.googleapis.com",
    ),
}

_COUNTS = ("count_tokens", ":counttokens", "input_tokens")
"""Ends of paths at which providers count the tokens of a request."""

_DECODED = ("gzip", "zstd")
"""Content encodings of requests that are decompressed here."""

_NOT_AWAITED = INTERRUPTED, "the agent did not wait for the response"

CLIENT_GONE = 499
"""The status, never sent, of a request whose client has gone."""

# Headers of one connection, and what our client sets.
_HOP_BY_HOP = frozenset(
    (
        "connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding "
        "upgrade host content-length accept-encoding expect"
    ).split()
)


class Gateway:
    """A running gateway; `start` returns once its port is open."""

    def __init__(
        self,
        *,
        port: int = 0,
        environ: Mapping[str, str] = os.environ,
        unknown: Callable[[str], GatewaySession] | None = None,
        providers: Collection[str] = (),
    ) -> None:
        needs_extra("starlette", "gateway")
        needs_extra("uvicorn", "gateway")
        self._environ = environ
        """Read at each call: a script or a notebook may set a base URL between two runs."""
        self._unknown = unknown
        """Makes the session of a token that is not known; without it such a request is refused."""
        self._providers = {*PROVIDERS, *providers}
        self._random = Random()  # noqa: S311 (spreads retries)
        self._sessions: dict[str, GatewaySession] = {}
        self._calls: dict[str, set[asyncio.Task[Any]]] = defaultdict(set)
        # The protocol is named because asyncio sets TCP_NODELAY only then: without it, the small
        # writes of a response wait 40 ms for an acknowledgement.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((HOST, port))
        except OSError as error:
            self._socket.close()
            raise ProctorError(
                f"cannot listen on {HOST}:{port}: {error.strerror}",
                hint="choose another port, or 0 for any that is free",
            ) from None
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{HOST}:{self.port}"
        self._thread = threading.Thread(target=self._serve, name="gateway", daemon=True)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Any = None
        self._client: httpx.AsyncClient | None = None

    # -- lifecycle ---------------------------------------------------------------------------

    def start(self) -> Gateway:
        """Serve in a thread that does not keep the process alive."""
        self._thread.start()
        self._ready.wait()
        return self

    def stop(self) -> None:
        """Stop listening; calls under way are cut, and have ended when this returns."""
        if self._server is not None:
            self._server.should_exit = self._server.force_exit = True
            self._thread.join()

    def __enter__(self) -> Gateway:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _serve(self) -> None:
        import httpx
        import uvicorn

        gateway = self

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                gateway._loop = asyncio.get_running_loop()
                gateway._ready.set()

        async def serve() -> None:
            # Requests of this thread are the gateway's own: it records them itself.
            bypass()
            timeout = httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT)
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
            async with httpx.AsyncClient(timeout=timeout, limits=limits) as self._client:
                await self._server.serve(sockets=[self._socket])

        config = uvicorn.Config(
            self._app,
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            date_header=False,
            loop="asyncio",
            interface="asgi3",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = Server(config)
        try:
            asyncio.run(serve())
        finally:
            self._ready.set()

    # -- sessions ----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def session(self, session: GatewaySession) -> AsyncGenerator[GatewaySession]:
        """Accept the requests of a session inside the block; at its end they have ended."""
        self._sessions[session.token] = session
        try:
            yield session
        finally:
            self._sessions.pop(session.token, None)
            if self._calls[session.token] and self._loop is not None:
                ending = asyncio.run_coroutine_threadsafe(self._end_calls(session), self._loop)
                await asyncio.wrap_future(ending)
            del self._calls[session.token]

    async def _end_calls(self, session: GatewaySession) -> None:
        tasks = self._calls[session.token]
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE)

    def upstream(self, session: GatewaySession, provider: str) -> str | None:
        """Return the base URL of a provider for a session; None if it is not known."""
        if (own := session.options.upstream.get(provider)) is not None:
            return own.rstrip("/")
        if provider not in PROVIDERS:
            return None
        variables, _, public = PROVIDERS[provider]
        return (self._environ.get(variables[0]) or public).rstrip("/")

    def address(self, session: GatewaySession) -> str:
        """Return the base URL of a session, to which a provider's name is appended."""
        return f"{self.url}/{session.token}"

    def environment(self, session: GatewaySession) -> dict[str, str]:
        """Return the variables that send the calls of a program to its session.

        A key that is set is replaced by the session's token. One that is not set stays so, since
        a program may have credentials of its own, unless nothing is sent to the provider itself.
        """
        variables: dict[str, str] = {}
        for provider, (urls, keys, _) in PROVIDERS.items():
            # The path that clients expect in a base URL is part of it, as in the upstream's.
            variables |= dict.fromkeys(urls, f"{self.address(session)}/{provider}")
            present = [name for name in keys if self._environ.get(name)]
            if present or session.replays or provider in session.options.upstream:
                # Programs read one or another of the names.
                variables |= dict.fromkeys((keys[0], *present), session.token)
        for name in ("NO_PROXY", "no_proxy"):
            if hosts := self._environ.get(name, ""):
                variables[name] = f"{hosts},{HOST}"
        if any(self._environ.get(name) for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY")):
            variables.setdefault("NO_PROXY", HOST)
        return variables

    # -- requests ----------------------------------------------------------------------------

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.requests import Request

        if scope["type"] != "http":  # a WebSocket: clients fall back to HTTP
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope, receive)
        session, provider, path = self._route(request)
        if session is None:
            response = _refusal(404, "unknown_session", "no trial has this address or key")
        else:
            task = asyncio.current_task()
            assert task is not None
            self._calls[session.token].add(task)
            task.add_done_callback(self._calls[session.token].discard)
            response = await self._answer(session, provider, path, request)
        await response(scope, receive, send)

    def _route(self, request: Request) -> tuple[GatewaySession | None, str, str]:
        """Return the session, the provider and the path of a request."""
        raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
        first, _, rest = raw.decode("latin-1").partition("?")[0].lstrip("/").partition("/")
        if first not in self._providers:
            provider, _, path = rest.partition("/")
            return self._session_of(first), provider, path
        key = _credential(request)
        if self._unknown is not None and not key.startswith(KEY_PREFIX):
            # A real key: it distinguishes clients, but is not shown.
            key = hashlib.sha256(key.encode()).hexdigest()[:16]
        return self._session_of(key), first, rest

    def _session_of(self, token: str) -> GatewaySession | None:
        if token not in self._sessions and self._unknown is not None:
            self._sessions[token] = self._unknown(token)
        return self._sessions.get(token)

    async def _answer(
        self, session: GatewaySession, provider: str, path: str, request: Request
    ) -> Response:
        """Answer a request: with a fault, a refusal, a recorded response or the upstream's."""
        import anyio
        from starlette.responses import Response

        base = self.upstream(session, provider)
        if base is None:
            return _refusal(404, "unknown_provider", f"no upstream is set for {provider!r}")
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY:
                return _refusal(413, "too_large", "the request is larger than 64 MB")
        encoding = request.headers.get("content-encoding", "").lower()
        if encoding in _DECODED:
            try:
                body = decompress(bytes(body), MAX_BODY, encoding)
            except DecompressionError as error:
                return _refusal(413 if error.too_large else 400, "unreadable", str(error))
        elif encoding not in ("", "identity") and session.limited:
            message = f"with a budget, the content encoding of a request is {' or '.join(_DECODED)}"
            return _refusal(415, "unreadable", message)
        query = request.scope["query_string"].decode("latin-1")
        url = f"{base}/{path}" + (f"?{query}" if query else "")
        call = session.begin(request.method, url, bytes(body), provider, path)
        faults = session.options.faults
        try:
            if call.fault in ("slow", "timeout") and faults is not None:
                await asyncio.sleep(faults.seconds)
            injected = {"rate_limit": 429, "server_error": 500, "timeout": 504}.get(
                call.fault or ""
            )
            if injected is not None:
                content = error_document(injected, call.fault or "", "injected by the gateway")
                call.ended(injected, "application/json", content)
                return Response(content, injected, media_type="application/json")
            if (held := call.held) is not None:
                call.ended(held.status, held.content_type, held.content)
                return Response(held.content, held.status, {"content-type": held.content_type})
            try:
                sent = await call.admit()
            except BudgetExceeded as error:
                session.refused = error.message
                content = error_document(402, "budget_exceeded", str(error))
                call.ended(402, "application/json", content, ("BudgetExceeded", str(error)))
                return Response(content, 402, media_type="application/json")
            if call.protocol is None and session.limited and not _is_free(request.method, path):
                message = "only calls to a model can be limited, and this run has a budget"
                return _refusal(402, "budget_exceeded", message)
            if (recorded := session.replay(call)) is not None:
                call.ended(recorded.status, recorded.content_type, recorded.content)
                headers = {"content-type": recorded.content_type} if recorded.content_type else {}
                content = _spoilt(recorded.content) if call.fault == "malformed" else None
                return Response(content or recorded.content, recorded.status, headers)
            if await request.is_disconnected():
                call.ended(0, error=("NotSent", "the agent did not wait for the call's turn"))
                return Response(status_code=CLIENT_GONE)
            response: Response | None = None
            async with anyio.create_task_group() as group:
                group.start_soon(_until_gone, request, group.cancel_scope)
                response = await self._forward(
                    call, self._headers(session, provider, request), sent
                )
                group.cancel_scope.cancel()
            if response is None:
                call.ended(0, error=_NOT_AWAITED)
                return Response(status_code=CLIENT_GONE)
            return response
        except asyncio.CancelledError:
            call.ended(0, error=_NOT_AWAITED)
            raise

    def _headers(
        self, session: GatewaySession, provider: str, request: Request
    ) -> list[tuple[str, str]]:
        """Return the headers to send; the session's token in them becomes the provider's key."""
        keys = PROVIDERS.get(provider, ((), (f"{provider.upper()}_API_KEY",), ""))[1]
        key = next((self._environ[name] for name in keys if self._environ.get(name)), None)
        headers = [("accept-encoding", "identity")]
        for name, value in request.headers.items():
            if name in _HOP_BY_HOP or (name == "content-encoding" and value.lower() in _DECODED):
                continue
            if session.token in value and key is None:
                continue
            headers.append((name, value.replace(session.token, key or "")))
        return headers

    async def _forward(
        self, call: ModelCall, headers: list[tuple[str, str]], body: bytes
    ) -> Response:
        """Send a call, again after transient failures, and pass the response on as it arrives."""
        import httpx
        from starlette.responses import Response, StreamingResponse

        assert self._client is not None
        retries = call.session.options.retries if call.protocol is not None else 0
        while True:
            response: httpx.Response | None = None
            problem, wait = "", None
            try:
                request = self._client.build_request(
                    call.method, call.url, headers=headers, content=body
                )
                response = await self._client.send(request, stream=True)
            except (httpx.TransportError, httpx.InvalidURL) as error:
                problem = f"{type(error).__name__}: {error}".rstrip(": ")
            else:
                if not is_transient_status(response.status_code):
                    break
                after = parse_retry_after(response.headers.get("retry-after"))
                wait = retry_delay(call.retries, after, self._random)
            if call.retries >= retries or (wait or 0.0) > LONGEST_WAIT:
                break
            if response is not None:
                await response.aclose()
            await asyncio.sleep(
                retry_delay(call.retries, None, self._random) if wait is None else wait
            )
            call.retries += 1
        if response is None:
            message = f"the model's server cannot be reached: {problem}"
            content = error_document(502, "upstream_unreachable", message)
            call.ended(502, "application/json", content, ("UpstreamUnreachable", message))
            return Response(content, 502, media_type="application/json")
        kept = [
            (name, value)
            for name, value in response.headers.multi_items()
            if name not in _HOP_BY_HOP or name == "content-length"
        ]
        if call.fault == "malformed":
            content = _spoilt(await response.aread())
            call.ended(response.status_code, response.headers.get("content-type", ""), content)
            await response.aclose()
            passed = Response(content, response.status_code)
            kept = [pair for pair in kept if pair[0] not in ("content-length", "content-encoding")]
        else:
            passed = StreamingResponse(_stream(call, response), response.status_code)
        passed.raw_headers = [(n.encode("latin-1"), v.encode("latin-1")) for n, v in kept]
        return passed


async def _stream(call: ModelCall, response: httpx.Response) -> AsyncGenerator[bytes]:
    """Yield a response as it arrives; the call has ended before its last bytes are passed on.

    A client may end as soon as it has read the last event, and its trial with it.
    """
    import anyio
    import httpx

    status, headers = response.status_code, response.headers
    seen, error = bytearray(), (INTERRUPTED, "the response was not read to its end")

    def end(problem: tuple[str, str] | None) -> None:
        # Servers may compress although they were asked not to.
        content = bytes(seen)
        with contextlib.suppress(httpx.DecodingError):
            content = httpx.Response(status, headers=headers, content=content).content
        call.ended(status, headers.get("content-type", ""), content, problem)

    held = b""
    length = headers.get("content-length")
    try:
        async for chunk in response.aiter_raw():
            if held:
                yield held
            seen += chunk
            held = chunk
            if not _is_last(chunk) and str(len(seen)) != length:
                yield held
                held = b""
        end(None)
        if call.recording is not None:
            # An agent may end its worker as soon as it has the response.
            await asyncio.wait({asyncio.wrap_future(call.recording)})
        if held:
            yield held
    except httpx.HTTPError as broken:
        error = (INTERRUPTED, f"{type(broken).__name__}: {broken}".rstrip(": "))
        raise
    finally:
        end(error)
        with anyio.CancelScope(shield=True):  # a client that has gone cancels this generator
            await response.aclose()


async def _until_gone(request: Request, scope: anyio.CancelScope) -> None:
    """Cancel a scope when the client of a request, whose body was read, has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def _is_free(method: str, path: str) -> bool:
    """Return whether a request that is no model call costs nothing: look-ups and token counts."""
    return method in ("GET", "HEAD", "OPTIONS") or path.lower().endswith(_COUNTS)


def _is_last(chunk: bytes) -> bool:
    """Return whether a stream of events most likely ends with this chunk."""
    marks = (b"[DONE]", b"message_stop", b"response.completed", b'"finishReason"')
    return any(mark in chunk for mark in marks)


def _spoilt(content: bytes) -> bytes:
    """Return the first half of a response, followed by what is no JSON."""
    return content[: len(content) // 2] + b"}}not json"


def _credential(request: Request) -> str:
    """Return the key that a request carries, in any provider's place for it."""
    headers = request.headers
    bearer = headers.get("authorization", "").removeprefix("Bearer ").strip()
    key = headers.get("x-api-key") or headers.get("x-goog-api-key") or headers.get("api-key")
    return key or bearer or request.query_params.get("key", "")


def _refusal(status: int, kind: str, message: str) -> Response:
    from starlette.responses import Response

    content = error_document(status, kind, message)
    return Response(content, status, media_type="application/json")


_gateways: dict[int, Gateway] = {}
_starting = threading.Lock()


def shared_gateway() -> Gateway:
    """Return the gateway of this process, started on first use."""
    key = os.getpid()  # a forked child has the dictionary but not the thread
    with _starting:
        if key not in _gateways:
            _gateways[key] = Gateway().start()
        return _gateways[key]

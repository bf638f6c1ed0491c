"""The server as one ASGI application: OTLP in, JSON and pages out.

`Service` owns the background work (writer, watcher, retention) and what requests share; `make_app`
combines the routes, and starts and stops the service with the application.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.routing import Route
from uvicorn.config import LOGGING_CONFIG
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from proctor.background import PeriodicWork
from proctor.errors import ProctorError
from proctor.sanitize import line
from proctor.server import _json_api, _otlp_endpoint
from proctor.server.auth import ACCEPTED, RATE, Guard
from proctor.server.ingest import Ingest
from proctor.server.pages.review import ReviewPages
from proctor.server.pages.run_lists import RunLists
from proctor.server.pages.templating import Missing, page, static_file, warm_up
from proctor.server.pages.traces import Traces
from proctor.server.store.store import SqlStore
from proctor.trace.redact import Redactor

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from proctor.server.decoder_process import Child
    from proctor.server.oidc import SignIn
    from proctor.server.watch import Watcher


# Seconds between searches for expired traces.
PRUNE_EVERY = 60.0


@dataclass
class Service:
    """The parts of one server."""

    store: SqlStore | None = None
    ingest: Ingest | None = None
    watcher: Watcher | None = None
    retention_seconds: float | None = None
    results: Path | None = None
    temporary: bool = False
    """Whether the store is deleted at the end: nothing that people write is stored there."""
    suites: Path | None = None
    """The folder below which cases are promoted; None: where the server runs."""
    _pruner: PeriodicWork | None = None

    @classmethod
    def receiving(
        cls,
        store: SqlStore,
        *,
        readers: Sequence[Child] = (),
        patterns: Mapping[str, str] | None = None,
        **options: object,
    ) -> Service:
        """Return a service that receives spans; secrets are redacted before they are stored.

        `patterns` are the user's own kinds of secret, in addition to the built-in ones.
        """
        for reader in readers:
            reader.patterns = patterns or {}
        ingest = Ingest(store, Redactor(patterns), readers=readers)
        return cls(store, ingest=ingest, **options)  # type: ignore[arg-type]

    def start(self) -> None:
        """Start the background work."""
        if self.results is not None:
            Thread(target=warm_up, name="proctor-warm-up", daemon=True).start()
        if self.ingest is not None:
            self.ingest.start()
        if self.watcher is not None:
            self.watcher.start()
        if self.retention_seconds is not None:
            pause = min(PRUNE_EVERY, max(1.0, self.retention_seconds / 4))
            self._pruner = PeriodicWork(self._prune, every=pause, name="proctor-prune")
            self._pruner.start()

    def stop(self) -> None:
        """Write what waits, end the background work, close the store."""
        for part in (self._pruner, self.ingest, self.watcher):
            if part is not None:
                part.stop()
        if self.store is not None:
            self.store.close()

    def _prune(self) -> None:
        assert self.store is not None
        kept = int((self.retention_seconds or 0.0) * 1e9)
        try:
            self.store.prune(time.time_ns() - kept)
        except ProctorError as error:
            sys.stderr.write(f"warning: old traces were not deleted: {line(str(error), 300)}\n")


def make_app(
    service: Service,
    token: str | None = None,
    viewer_token: str | None = None,
    *,
    ingest_token: str | None = None,
    open_ingest: bool | None = None,
    projects: Mapping[str, Service] = MappingProxyType({}),
    sign_in: SignIn | None = None,
    rate: float = RATE,
    clock: Callable[[], float] = time.monotonic,
) -> ASGIApp:
    """Return the application of a service, with its tokens and those of its store.

    Each of `projects` is an application of its own, which only its tokens reach: isolation does not
    depend on a filter in any statement. `open_ingest` accepts spans without a token on this
    machine, by default if neither `token` nor `ingest_token` is given. With `sign_in`, people need
    no token.
    """
    services: dict[str | None, Service] = {None: service, **projects}

    @asynccontextmanager
    async def life(_app: Starlette) -> AsyncGenerator[None]:
        with contextlib.ExitStack() as stack:
            for each in services.values():
                stack.callback(each.stop)
                each.start()
            yield

    fixed = {
        ("--token", "admin"): token,
        ("--viewer-token", "viewer"): viewer_token,
        ("--ingest-token", "ingest"): ingest_token,
    }
    apps: dict[str | None, Starlette] = {}
    guard = Guard(
        apps,
        {key: value for key, value in fixed.items() if value},
        service.store,
        ingest_paths=_otlp_endpoint.PATHS,
        open_ingest=not (token or ingest_token) if open_ingest is None else open_ingest,
        sign_in=sign_in,
        rate=rate,
        clock=clock,
    )
    handlers = {404: not_found, Missing: not_found, ProctorError: in_trouble, 500: in_trouble}
    for name, each in services.items():
        routes = list(_routes(each))
        if name is None and service.store is not None:
            known = [project for project in services if project is not None]
            routes += _json_api.access_routes(service.store, known, guard.refresh)
        app = Starlette(routes=routes, lifespan=life, exception_handlers=handlers)
        app.state.has = {"traces": each.store is not None, "runs": each.results is not None}
        apps[name] = app
    return guard


def _routes(service: Service) -> Iterator[Route]:
    if service.ingest is not None:  # first: most requests go there, and routes match in order
        for path, what in _otlp_endpoint.PATHS.items():
            yield Route(path, _otlp_endpoint.endpoint(service.ingest, what), methods=["POST"])
    yield Route("/healthz", health)
    yield Route("/static/{name:str}", static_file)
    yield Route("/", home)
    if service.store is not None:
        yield from _json_api.routes(service.store)
        yield from Traces(
            service.store, temporary=service.temporary, suites=service.suites
        ).routes()
    if service.results is not None:
        yield from RunLists(service.results).routes()
        yield from ReviewPages(service.results, service.suites).routes()


async def home(request: Request) -> Response:
    """Redirect to the traces, or to the runs without a store."""
    return RedirectResponse("/traces" if request.app.state.has["traces"] else "/runs", 303)


async def not_found(request: Request, error: Exception) -> Response:
    """Answer that something does not exist: with a page for browsers, a line for programs."""
    missing = error if isinstance(error, Missing) else Missing("page", request.url.path)
    if not _for_people(request):
        return PlainTextResponse(str(error) if missing is error else "Not Found", 404)
    return page("missing.html", request, status=404, what=missing.what, name=missing.name)


async def in_trouble(request: Request, error: Exception) -> Response:
    """Answer a request that failed; unexpected errors are logged by the server as well."""
    expected = isinstance(error, ProctorError)
    if not _for_people(request):
        return PlainTextResponse("Internal Server Error", 500)
    return page(
        "trouble.html",
        request,
        status=503 if expected else 500,
        title="This cannot be shown now" if expected else "Proctor made a mistake",
        words=error.message if expected else f"{type(error).__name__} while rendering this page",
        hint=(error.hint or "") if expected else "The server's log has the details.",
    )


def _for_people(request: Request) -> bool:
    return request.method == "GET" and "text/html" in request.headers.get("accept", "")


async def health(_request: Request) -> Response:
    """Answer that the server runs, and nothing else: no token is needed."""
    return PlainTextResponse("ok")


# Seconds for open connections after Ctrl-C; a page that follows a run would never close.
GRACE = 5


# Allocations between collections: rows are many and never cyclic, and with the default of 700 every
# request would be traversed several times.
COLLECT_AFTER = 20_000


# Connections at once, below `limit_concurrency`, from where on the server refuses everyone.
MAX_CONNECTIONS = 900

# Of these, connections of one address that no request with the token came in on.
MAX_UNTRUSTED = 256

# Seconds from the first byte of a request, or from the connection, to the end of its headers.
HEADER_DEADLINE = 10.0


def _limited() -> type[HttpToolsProtocol]:
    """Return a protocol whose slow or unauthenticated connections never shut others out.

    A connection that does not finish its headers in time is closed. At a limit, the oldest
    connection without an accepted request is dropped for the new one.
    """
    untrusted: dict[Any, str] = {}  # protocol → address, oldest first
    counts = {"open": 0}

    class Limited(HttpToolsProtocol):
        _deadline: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            counts["open"] += 1
            address = (transport.get_extra_info("peername") or ("",))[0]
            for each in [each for each in untrusted if each.is_accepted()]:
                del untrusted[each]
            same = [each for each, of in untrusted.items() if of == address]
            untrusted[self] = address
            if len(same) >= MAX_UNTRUSTED:
                same[0].drop()
            elif counts["open"] > MAX_CONNECTIONS:
                next(iter(untrusted)).drop()
            self._deadline = self.loop.call_later(HEADER_DEADLINE, self.drop)

        def data_received(self, data: bytes) -> None:
            if self.is_accepted():  # before the next request replaces the scope
                untrusted.pop(self, None)
            super().data_received(data)
            cycle: Any = self.cycle  # None before the first request
            if cycle is not None and not cycle.response_complete:
                self._stop_clock()
            elif self._deadline is None:
                self._deadline = self.loop.call_later(HEADER_DEADLINE, self.drop)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_clock()
            counts["open"] -= 1
            untrusted.pop(self, None)
            super().connection_lost(exc)

        def is_accepted(self) -> bool:
            """Return whether the last request was accepted."""
            return bool(self.scope) and ACCEPTED in self.scope

        def drop(self) -> None:
            """Close the connection at once."""
            untrusted.pop(self, None)
            self.transport.abort()

        def _stop_clock(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Limited


class _Server(uvicorn.Server):
    """Calls `ready` with its address once it accepts requests."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[str], None], host: str) -> None:
        super().__init__(config)
        self._ready = ready
        self._host = host

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then report the address."""
        await super().startup(sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            # Every address of this machine is none that a browser elsewhere could open.
            here = socket.gethostname()
            own = {"127.0.0.1": "localhost", "0.0.0.0": here, "::": here}  # noqa: S104
            name = own.get(self._host, self._host)
            self._ready(f"http://{f'[{name}]' if ':' in name else name}:{port}")


def run_server(app: ASGIApp, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; a port in use is a one-line error."""
    config = uvicorn.Config(
        app,
        # Uvicorn's own handlers would bypass a log file that is configured already.
        log_config=None if logging.getLogger().handlers else LOGGING_CONFIG,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        http=_limited(),
        timeout_graceful_shutdown=GRACE,
        # Bounds the memory of connections; the bodies of more would be refused anyway.
        limit_concurrency=1000,
    )
    bound = _bound(host, port)
    server = _Server(config, ready, host)
    usual = gc.get_threshold()
    gc.freeze()  # objects that exist now are never collected
    gc.set_threshold(COLLECT_AFTER)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[bound])
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio sets TCP_NODELAY only then: without it, the body of a
    # response waits about 40 ms for the client to acknowledge its headers.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise ProctorError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="another program may use the port: choose one with --port, or 0 for any",
        ) from None
    return bound

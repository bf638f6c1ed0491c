"""The server as one ASGI application: OTLP in, JSON and pages out.

`Service` owns what runs beside the requests (the writer, the watcher, retention) and what they
share; `make_app` puts the routes together. Whoever serves it starts and stops the service with
the application.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.routing import Route

from proctor.errors import ProctorError
from proctor.runs.rounds import Rounds
from proctor.server import api, otlp
from proctor.server.guard import Guard
from proctor.server.ingest import Ingest
from proctor.server.pages.render import page, static_file
from proctor.server.pages.runs import Runs
from proctor.server.pages.traces import Traces
from proctor.server.store.sql import SqlStore
from proctor.trace.redact import default_redactor
from proctor.trace.text import safe

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from proctor.server.readers import Child
    from proctor.server.watch import Watcher

PRUNE_EVERY = 60.0
"""Seconds between looks for traces older than they may be kept."""


@dataclass
class Service:
    """What one server does, besides answering."""

    store: SqlStore | None = None
    ingest: Ingest | None = None
    watcher: Watcher | None = None
    retention_seconds: float | None = None
    results: Path | None = None
    _pruner: Rounds | None = None

    @classmethod
    def receiving(
        cls, store: SqlStore, *, readers: Sequence[Child] = (), **options: object
    ) -> Service:
        """A service that takes spans in; secrets are taken out before anything is kept."""
        ingest = Ingest(store, default_redactor(), readers=readers)
        return cls(store, ingest=ingest, **options)  # type: ignore[arg-type]

    def start(self) -> None:
        """Begin what runs in the background."""
        if self.ingest is not None:
            self.ingest.start()
        if self.watcher is not None:
            self.watcher.start()
        if self.retention_seconds is not None:
            pause = min(PRUNE_EVERY, max(1.0, self.retention_seconds / 4))
            self._pruner = Rounds(self._prune, every=pause, name="proctor-prune")
            self._pruner.start()

    def stop(self) -> None:
        """Write what waits, end what runs, close the store."""
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
            sys.stderr.write(f"warning: old traces wait to go: {safe(str(error), 300)}\n")


def make_app(service: Service, token: str | None = None) -> ASGIApp:
    """The application around a service."""

    @asynccontextmanager
    async def life(_app: Starlette) -> AsyncGenerator[None]:
        service.start()
        try:
            yield
        finally:
            service.stop()

    handlers = {404: not_found, ProctorError: in_trouble, 500: in_trouble}
    app = Starlette(routes=list(_routes(service)), lifespan=life, exception_handlers=handlers)
    app.state.has = {"traces": service.store is not None, "runs": service.results is not None}
    return Guard(app, token)


def _routes(service: Service) -> Iterator[Route]:
    if service.ingest is not None:  # first, since they are asked most and looked for in order
        for path, what in otlp.PATHS.items():
            yield Route(path, otlp.endpoint(service.ingest, what), methods=["POST"])
    yield Route("/healthz", health)
    yield Route("/static/{name:str}", static_file)
    yield Route("/", home)
    if service.store is not None:
        yield from api.routes(service.store)
        yield from Traces(service.store).routes()
    if service.results is not None:
        yield from Runs(service.results).routes()


async def home(request: Request) -> Response:
    """Where there is something to see."""
    return RedirectResponse("/traces" if request.app.state.has["traces"] else "/runs", 303)


async def not_found(request: Request, _error: Exception) -> Response:
    """What an address that leads nowhere gets: a page where people go, a line for programs."""
    if not _for_people(request):
        return PlainTextResponse("Not Found", 404)
    return page("missing.html", request, status=404, what="page", name=request.url.path)


async def in_trouble(request: Request, error: Exception) -> Response:
    """What is said when a page could not be made; an error nobody foresaw is in the log too."""
    foreseen = isinstance(error, ProctorError)
    if not _for_people(request):
        return PlainTextResponse("Internal Server Error", 500)
    return page(
        "trouble.html",
        request,
        status=503 if foreseen else 500,
        title="This cannot be shown now" if foreseen else "Proctor made a mistake",
        words=error.message if foreseen else f"{type(error).__name__} while making this page",
        hint=(error.hint or "") if foreseen else "The server's log has the details.",
    )


def _for_people(request: Request) -> bool:
    return request.method == "GET" and "text/html" in request.headers.get("accept", "")


async def health(_request: Request) -> Response:
    """That the server runs: nothing more is told to strangers."""
    return PlainTextResponse("ok")

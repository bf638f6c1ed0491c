"""The server as one ASGI application: OTLP in, JSON and pages out.

`Service` owns what runs beside the requests (the writer, the watcher, retention) and what they
share; `make_app` puts the routes together. Whoever serves it starts and stops the service with
the application.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from proctor.server import api, otlp
from proctor.server.guard import Guard
from proctor.server.ingest import Ingest
from proctor.server.store.sql import SqlStore
from proctor.trace.redact import default_redactor

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from proctor.server.watch import Watcher

PRUNE_EVERY = 60.0
"""Seconds between looks for traces older than they may be kept."""


@dataclass
class Service:
    """What one server does, besides answering."""

    store: SqlStore
    ingest: Ingest | None = None
    watcher: Watcher | None = None
    retention_seconds: float | None = None
    results: Path | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _pruner: threading.Thread | None = None

    @classmethod
    def receiving(cls, store: SqlStore, **options: object) -> Service:
        """A service that takes spans in; secrets are taken out before anything is kept."""
        return cls(store, ingest=Ingest(store, default_redactor()), **options)  # type: ignore[arg-type]

    def start(self) -> None:
        """Begin what runs in the background."""
        if self.ingest is not None:
            self.ingest.start()
        if self.watcher is not None:
            self.watcher.start()
        if self.retention_seconds is not None:
            self._pruner = threading.Thread(target=self._prune, name="proctor-prune", daemon=True)
            self._pruner.start()

    def stop(self) -> None:
        """Write what waits, end what runs, close the store."""
        self._stop.set()
        for part in (self.ingest, self.watcher):
            if part is not None:
                part.stop()
        if self._pruner is not None:
            self._pruner.join()
        self.store.close()

    def _prune(self) -> None:
        kept = self.retention_seconds or 0.0
        pause = min(PRUNE_EVERY, max(1.0, kept / 4))
        while not self._stop.wait(pause):
            self.store.prune(time.time_ns() - int(kept * 1e9))


def make_app(service: Service, token: str | None = None) -> ASGIApp:
    """The application around a service."""

    @asynccontextmanager
    async def life(_app: Starlette) -> AsyncGenerator[None]:
        service.start()
        try:
            yield
        finally:
            service.stop()

    routes = [Route("/healthz", health, methods=["GET"]), *api.routes(service.store)]
    if service.ingest is not None:
        routes += [
            Route(path, otlp.endpoint(service.ingest, what), methods=["POST"])
            for path, what in otlp.PATHS.items()
        ]
    return Guard(Starlette(routes=routes, lifespan=life), token)


async def health(_request: Request) -> Response:
    """That the server runs: nothing more is told to strangers."""
    return PlainTextResponse("ok")

"""Serve an application until somebody says stop, and say where it listens once it does."""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.config import LOGGING_CONFIG

from proctor.errors import ProctorError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

GRACE = 5
"""Seconds open connections get after Ctrl-C; a viewer that follows a run would never end."""


COLLECT_AFTER = 20_000
"""Objects after which rings of them are looked for: rows are many and never rings, and with the
usual 700 every request would be gone through several times."""


class _Server(uvicorn.Server):
    """Tells its address when it is ready to take requests."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[str], None], host: str) -> None:
        super().__init__(config)
        self._ready = ready
        self._host = host

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            name = "localhost" if self._host == "127.0.0.1" else self._host
            self._ready(f"http://{f'[{name}]' if ':' in name else name}:{port}")


def serve_until_told(app: ASGIApp, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; a port that is taken is one clear line."""
    config = uvicorn.Config(
        app,
        # Where somebody has set up logs, what is logged goes there and not past them.
        log_config=None if logging.getLogger().handlers else LOGGING_CONFIG,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=GRACE,
        # Bodies beyond it would be refused anyway; this bounds what a slow client may hold.
        limit_concurrency=1000,
    )
    bound = _bound(host, port)
    server = _Server(config, ready, host)
    with contextlib.suppress(KeyboardInterrupt), _seldom_collected():
        server.run(sockets=[bound])


@contextlib.contextmanager
def _seldom_collected() -> Generator[None]:
    """Let the collector leave alone what is there already, and look at the rest less often."""
    usual = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
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

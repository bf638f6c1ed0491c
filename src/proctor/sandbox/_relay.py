"""The end of a sandbox's network outside: a proxy on a Unix socket that decides what is reached.

Only Proctor's own endpoints and the hosts of an allow list are reached; everything else is refused
with a 403 and recorded. There is one relay for each trial, so trials never share a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

MAX_HEAD = 64 << 10
"""Bytes of the head of a request."""

CONNECT_SECONDS = 30.0

MAX_REFUSED = 100
"""Refused addresses that are recorded."""


class Relay:
    """Serves one sandbox."""

    def __init__(self, socket: Path, hosts: Sequence[str]) -> None:
        self.socket = socket
        self.ports: set[int] = set()
        """Ports of this machine that may be reached: Proctor's own endpoints."""
        self.refused: list[str] = []
        self._hosts = [host.lower() for host in hosts]
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_unix_server(
            self._accept, str(self.socket), limit=MAX_HEAD
        )

    async def stop(self) -> None:
        """Close the socket and every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    def allows(self, host: str, port: int) -> bool:
        """Return whether an address may be reached."""
        if host in ("127.0.0.1", "localhost") and port in self.ports:
            return True
        return any(
            fnmatchcase(f"{host}:{port}" if ":" in each else host, each) for each in self._hosts
        )

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # a connection that ended, or was no proxy request
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line, _, rest = head.partition(b"\r\n")
        method, target, version = line.decode("latin-1").split(" ")
        connect = method == "CONNECT"
        url = urlsplit(f"//{target}" if connect else target)
        host, port = (url.hostname or "").lower(), url.port or (443 if connect else 80)
        if not host or not self.allows(host, port):
            if len(self.refused) < MAX_REFUSED:
                self.refused.append(f"{host}:{port}")
            body = f"the sandbox does not allow {host}:{port}\n".encode()
            writer.write(b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()
            return
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                there, away = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            return
        if connect:
            writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        else:
            path = f"{url.path or '/'}{f'?{url.query}' if url.query else ''}"
            away.write(f"{method} {path} {version}\r\n".encode("latin-1") + rest)
        try:
            await asyncio.gather(_pump(reader, away), _pump(there, writer))
        finally:
            away.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()

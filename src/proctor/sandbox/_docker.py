"""Sandboxes by Docker, or any engine with its HTTP API on a Unix socket: one container per trial.

The API is used directly, so the `docker` program is not needed. A command is an "exec" whose
connection carries its standard streams; images are never pulled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import httpx

from proctor.background import threads
from proctor.formatting import last_line
from proctor.sandbox._podman import IDLE, inherited_limits
from proctor.sandbox.base import (
    STREAM_LIMIT,
    Capabilities,
    SandboxBase,
    SandboxError,
    SandboxProcess,
)
from proctor.sandbox.workspace import packed

API = "/v1.41"
"""The oldest API with everything we use: Docker 20.10."""

DEFAULT_SOCKET = "/var/run/docker.sock"

CALL_SECONDS = 120.0


class Docker(SandboxBase):
    """One trial's container."""

    _container = ""

    @property
    def socket(self) -> str:
        """Return the path of the engine's socket: of the options, DOCKER_HOST, or the usual one."""
        given = tuple(self.options.engine) or (os.environ.get("DOCKER_HOST", ""),)
        address = given[0] or DEFAULT_SOCKET
        if "://" in address and not address.startswith("unix://"):
            raise SandboxError(
                f"docker at {address} cannot share files with this machine",
                hint="write `engine: unix:///var/run/docker.sock`",
            )
        return address.removeprefix("unix://")

    async def capabilities(self) -> Capabilities:
        """Return whether an engine answers."""
        try:
            found = await self._call("GET", "/version")
        except SandboxError as error:
            return Capabilities(False, error.message, error.hint)
        limits = frozenset({"cpus", "memory_mb", "pids"})
        version = f"engine {found.get('Version', 'unknown')}"
        return Capabilities(True, version, limits=limits, mounts=True)

    async def build(self, folder: Path, name: str) -> None:
        """Build the image of a folder with a Dockerfile, unless there is one of this name."""
        with contextlib.suppress(SandboxError):
            await self._call("GET", f"/images/{quote(name)}/json")
            return
        context = await threads.run(packed, folder)
        # Without a limit of its own: the caller has one.
        reply = await self._send("POST", f"/build?rm=true&t={quote(name)}", None, context=context)
        steps = [_parsed(line) for line in reply.text.splitlines()]
        problems = [str(each["error"]) for each in steps if each.get("error")]
        if reply.status_code >= 400:
            problems = [str(steps[0].get("message")) if steps else f"status {reply.status_code}"]
        if problems:
            lines = [last_line("".join(str(each.get("stream", "")) for each in steps)), problems[0]]
            raise SandboxError(f"docker cannot build {folder}: {'; '.join(filter(None, lines))}")

    async def start(self) -> None:
        """Create and start the container."""
        limits = self.options.limits
        host: dict[str, Any] = {
            "Binds": [
                f"{self.home}:{self.home}:rw",
                *(f"{outside}:{inside}:rw" for inside, outside in self.mounts.items()),
                *(f"{p}:{p}:ro" for p in self.read_only),
            ],
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            # Those of this process: an engine that is not run by root cannot exceed them.
            "Ulimits": [
                {"Name": name, "Soft": soft, "Hard": hard}
                for name, (soft, hard) in inherited_limits().items()
            ],
        }
        if limits.memory_mb is not None:
            host["Memory"] = limits.memory_mb << 20
        if limits.cpus is not None:
            host["NanoCpus"] = int(limits.cpus * 1e9)
        if limits.pids is not None:
            host["PidsLimit"] = limits.pids
        body: dict[str, Any] = {
            "Image": self.options.image,
            "Entrypoint": ["sh"],
            "Cmd": ["-c", IDLE],
            "Hostname": "sandbox",
            "HostConfig": host,
            "User": "0:0",
        }
        self._container = str((await self._call("POST", "/containers/create", body))["Id"])
        await self._call("POST", f"/containers/{self._container}/start")

    async def exec(
        self, command: Sequence[str], *, cwd: str, env: Mapping[str, str]
    ) -> SandboxProcess:
        """Start a command in the container."""
        body = {
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Cmd": list(command),
            "Env": [f"{name}={value}" for name, value in env.items()],
            "WorkingDir": cwd,
            # Whatever the image says: files that an agent writes must stay the user's.
            "User": f"{os.getuid()}:{os.getgid()}",
        }
        found = await self._call("POST", f"/containers/{self._container}/exec", body)
        process = DockerProcess(self, str(found["Id"]))
        await process.start()
        return cast("SandboxProcess", process)

    async def exit_code(self, exec_id: str) -> int:
        """Return the exit code of a command that has ended."""
        found = await self._call("GET", f"/exec/{exec_id}/json")
        return int(found.get("ExitCode") or 0)

    async def stop(self) -> None:
        """Remove the container with everything in it."""
        container, self._container = self._container, ""
        if container:
            with contextlib.suppress(SandboxError):
                await self._call("DELETE", f"/containers/{container}?force=true&v=true")

    async def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        reply = await self._send(method, path, CALL_SECONDS, body)
        content = _parsed(reply.text)
        if reply.status_code >= 400:
            reason = content.get("message") or f"status {reply.status_code}"
            raise SandboxError(f"docker: {reason}")
        return content

    async def _send(
        self,
        method: str,
        path: str,
        seconds: float | None,
        body: Any = None,
        context: bytes | None = None,
    ) -> httpx.Response:
        # No certificates are loaded: HTTP on a Unix socket has none.
        transport = httpx.AsyncHTTPTransport(uds=self.socket, verify=False)
        try:
            if not os.path.exists(self.socket):  # noqa: ASYNC240, PTH110
                raise httpx.ConnectError("there is no such socket")
            url, headers = f"http://docker{API}{path}", {}
            if context is not None:
                headers = {"Content-Type": "application/x-tar"}
            async with httpx.AsyncClient(transport=transport, timeout=seconds) as client:
                return await client.request(
                    method, url, json=body, content=context, headers=headers
                )
        except httpx.HTTPError as error:
            raise SandboxError(
                f"no engine answers at {self.socket}: {error}",
                hint="start Docker, or name its socket: `engine: unix:///run/docker.sock`",
            ) from None


def _parsed(text: str) -> dict[str, Any]:
    """Return an answer of the engine; a text that is no JSON is its message."""
    try:
        content = json.loads(text or "{}")
    except ValueError:
        return {"message": text}
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}


class DockerProcess:
    """A command in a container; its connection carries standard input, output and error."""

    def __init__(self, engine: Docker, exec_id: str) -> None:
        self._engine = engine
        self._id = exec_id
        self.stdin: DockerInput | None = None
        self.stdout = asyncio.StreamReader(limit=STREAM_LIMIT)
        self.stderr = asyncio.StreamReader(limit=STREAM_LIMIT)
        self.returncode: int | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the command and attach to it."""
        reader, writer = await asyncio.open_unix_connection(self._engine.socket)
        self._writer = writer
        body = json.dumps({"Detach": False, "Tty": False})
        writer.write(
            f"POST {API}/exec/{self._id}/start HTTP/1.1\r\nHost: docker\r\n"
            "Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if head.split()[1] not in (b"101", b"200"):
            reason = (await reader.read(2000)).decode(errors="replace")
            writer.close()
            raise SandboxError(f"docker cannot start the command: {reason.strip()}")
        self.stdin = DockerInput(writer)
        self._reading = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Distribute what arrives: frames of a stream's number, a length, and that many bytes."""
        try:
            while True:
                header = await reader.readexactly(8)
                data = await reader.readexactly(int.from_bytes(header[4:], "big"))
                (self.stderr if header[0] == 2 else self.stdout).feed_data(data)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            if self._writer is not None:
                self._writer.close()
        try:
            code = await self._engine.exit_code(self._id)
        except SandboxError:
            code = -9  # the container is gone
        if self.returncode is None:
            self.returncode = code
        self.stdout.feed_eof()
        self.stderr.feed_eof()

    async def wait(self) -> int:
        """Wait for its end and return its exit code."""
        if self._reading is not None:
            await asyncio.wait({self._reading})
        return self.returncode or 0

    def kill(self) -> None:
        """Leave it; the end of the container ends it."""
        if self.returncode is None:
            self.returncode = -9
        if self._writer is not None:
            self._writer.close()


class DockerInput:
    """Standard input of a command: closing it must not close the connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def write(self, data: bytes) -> None:
        """Send data."""
        self._writer.write(data)

    async def drain(self) -> None:
        """Wait until it was sent."""
        await self._writer.drain()

    def close(self) -> None:
        """Say that there is no more."""
        with contextlib.suppress(OSError, RuntimeError):
            if self._writer.can_write_eof():
                self._writer.write_eof()

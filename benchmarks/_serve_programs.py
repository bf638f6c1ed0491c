"""The servers that `serve.py` compares, each in its own process with an empty store."""

import contextlib
import http.client
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from _measure import peer

PHOENIX = ["arize-phoenix==20.26.1"]
HERE = Path(__file__).parent
PATIENCE = 120.0
"""Timeout in seconds for a server to start, or to store the received data."""


@dataclass
class Server:
    """A server that runs: where, as which process, and how many spans it has stored."""

    port: int
    process: psutil.Process
    stored: Callable[[], int]
    ready: float
    """Seconds from its start until it took a request."""
    folder: Path

    def cpu(self) -> float:
        """Return the CPU seconds so far, including children but not PostgreSQL."""
        used = [each.cpu_times() for each in self._processes()]
        return sum(each.user + each.system for each in used)

    def memory(self) -> float:
        """Return the resident megabytes, including children."""
        return sum(each.memory_info().rss for each in self._processes()) / 1e6

    def _processes(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    def wait_for(self, spans: int) -> None:
        """Until that many spans are stored."""
        until = time.monotonic() + PATIENCE
        while self.stored() < spans:
            if time.monotonic() > until:
                raise SystemExit(f"only {self.stored()} of {spans} spans were stored")
            time.sleep(0.02)


def free_port() -> int:
    """A port nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@contextmanager
def running(
    command: list[str], count: str, folder: Path, env: dict[str, str] | None = None
) -> Iterator[Server]:
    """A program at `{port}` whose spans are counted by a statement on a SQLite file in `folder`."""
    port = free_port()
    argv = [part.format(port=port, folder=folder) for part in command]
    given = {name: value.format(port=port, folder=folder) for name, value in (env or {}).items()}
    begun = time.perf_counter()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, env={**os.environ, **given})
    try:
        _until_ready(port, process)
        ready = time.perf_counter() - begun
        file, _, statement = count.partition(":")
        stored = (lambda: _count(folder / file, statement)) if statement else (lambda: 1 << 62)
        yield Server(port, psutil.Process(process.pid), stored, ready, folder)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()


def _until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            headers = {"content-type": "application/x-protobuf"}
            connection.request("POST", "/v1/traces", b"", headers)
            connection.getresponse().read()
            return
        except (OSError, http.client.HTTPException):
            time.sleep(0.01)
        finally:
            connection.close()
    raise SystemExit("a server did not become ready")


def _count(file: Path, statement: str) -> int:
    try:
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as store:
            return int(store.execute(statement).fetchone()[0] or 0)
    except sqlite3.Error:
        return 0


@contextmanager
def _folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="serve-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


PROCTOR = [sys.executable, "-m", "proctor", "serve", "--port", "{port}"]


@contextmanager
def proctor(*flags: str) -> Iterator[Server]:
    """`proctor serve` with a SQLite file."""
    command = [*PROCTOR, "--store", "sqlite:///{folder}/t.db", *flags]
    with _folder() as folder, running(command, "t.db:SELECT count(*) FROM spans", folder) as server:
        yield server


@contextmanager
def proctor_postgres() -> Iterator[Server]:
    """`proctor serve` with its own PostgreSQL server."""
    import pgserver

    with _folder() as folder:
        database = pgserver.get_server(folder / "pg")
        try:
            command = [*PROCTOR, "--store", database.get_uri()]
            with running(command, "", folder) as server:
                yield server
        finally:
            database.cleanup()


@contextmanager
def bare_spans() -> Iterator[Server]:
    """The receiver of `_serve_bare_spans.py`, which stores spans."""
    with _bare("_serve_bare_spans.py", "SELECT count(*) FROM spans") as server:
        yield server


@contextmanager
def bare_requests() -> Iterator[Server]:
    """The receiver of `_serve_bare.py`, which stores requests unchanged."""
    with _bare("_serve_bare.py", "SELECT sum(spans) FROM requests") as server:
        yield server


@contextmanager
def _bare(program: str, count: str) -> Iterator[Server]:
    command = [sys.executable, str(HERE / program), "{port}", "{folder}/t.db"]
    with _folder() as folder, running(command, f"t.db:{count}", folder) as server:
        yield server


@contextmanager
def phoenix() -> Iterator[Server]:
    """arize-phoenix in its own environment, with its own SQLite file."""
    command = [str(peer("arize-phoenix", PHOENIX)), "-m", "phoenix.server.main", "serve"]
    with _folder() as folder:
        env = {
            "PHOENIX_PORT": "{port}",
            "PHOENIX_GRPC_PORT": str(free_port()),
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_WORKING_DIR": "{folder}",
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }
        with running(command, "phoenix.db:SELECT count(*) FROM spans", folder, env) as server:
            yield server


CONTESTANTS = {
    "bare, spans": bare_spans,
    "bare, raw requests": bare_requests,
    "proctor, SQLite": proctor,
    "proctor, PostgreSQL": proctor_postgres,
    "arize-phoenix": phoenix,
}

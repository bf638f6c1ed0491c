"""The command `proctor` in processes of its own, which start at once.

Importing Proctor takes most of a second of work, and tests start more than a thousand of it; a
process that has imported it forks instead. What a fork cannot show (what is imported, settings
of the interpreter, another hash seed) is tried with `[sys.executable, "-m", "proctor"]`.
"""

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from forking import MOST

FORKING = Path(__file__).with_name("forking.py")

PIPE = 60_000
"""Bytes a pipe takes though nobody reads it yet."""


class Started:
    """A command under way."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self.pid = int(client.recv(MOST))
        """Its own until `wait`, even when it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal."""
        self._client.settimeout(timeout)
        self._client.send(b"?")
        code = int(self._client.recv(MOST))
        self._client.close()
        return code


class Forking:
    """The process that has imported everything."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, FORKING, str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        assert self._control.recv(MOST) == b"ready"

    def start(self, asked: dict[str, Any], streams: list[int]) -> Started:
        """Start a command."""
        client, keepers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with keepers:
            message = json.dumps(asked).encode()
            socket.send_fds(self._control, [message], [*streams, keepers.fileno()])
        return Started(client)


@functools.cache
def forking(_of_process: int) -> Forking:
    """The one of this process; it ends when this one does."""
    return Forking()


_one_at_a_time = threading.Lock()


def settings_of_the_interpreter(env: Mapping[str, str]) -> dict[str, str]:
    """What Python reads when it starts, and never again."""
    return {k: v for k, v in env.items() if k.startswith(("PYTHON", "LC_")) or k in ("LANG", "TZ")}


AT_START = settings_of_the_interpreter(os.environ)


def proctor(
    *args: Any,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    input: str | bytes = "",  # noqa: A002  as subprocess calls it
    timeout: float = 120,
    session: bool = False,
) -> subprocess.CompletedProcess[str]:
    """The command, run to its end."""
    typed = input.encode() if isinstance(input, str) else input
    command = [sys.executable, "-m", "proctor", *map(str, args)]
    if sys.platform != "linux" or settings_of_the_interpreter(env or os.environ) != AT_START:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=env,
            input=typed,
            timeout=timeout,
            start_new_session=session,
            capture_output=True,
            check=False,
        )
        return subprocess.CompletedProcess(
            command, done.returncode, _text(done.stdout), _text(done.stderr)
        )
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, _input(typed) as stdin:
        started = start(
            *args, stdin=stdin, stdout=out, stderr=err, cwd=cwd, env=env, session=session
        )
        try:
            code = started.wait(timeout)
        except TimeoutError:
            os.kill(started.pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(command, timeout, *map(_content, (out, err))) from None
        return subprocess.CompletedProcess(command, code, *(_text(_content(f)) for f in (out, err)))


@contextmanager
def _input(typed: bytes) -> Iterator[int]:
    """A stream to read this from: a pipe, as a terminal's would be, unless it would be full."""
    if len(typed) > PIPE:
        with tempfile.TemporaryFile() as file:
            file.write(typed)
            file.seek(0)
            yield file.fileno()
        return
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb") as end:
        end.write(typed)
        end.close()
        yield reading


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _text(out: bytes) -> str:
    return out.decode().replace("\r\n", "\n").replace("\r", "\n")


def start(
    *args: Any,
    stdout: IO[Any],
    stderr: IO[Any],
    stdin: int | None = None,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    session: bool = False,
) -> Started:
    """Start a command, in a session of its own if it is to be apart from this one's signals."""
    asked = {
        "args": [*map(str, args)],
        "cwd": os.path.abspath(cwd or "."),  # noqa: PTH100  links stay as the caller wrote them
        "env": dict(os.environ if env is None else env),
        "session": session,
    }
    with Path(os.devnull).open("rb") as nothing, _one_at_a_time:
        streams = [nothing.fileno() if stdin is None else stdin, stdout.fileno(), stderr.fileno()]
        return forking(os.getpid()).start(asked, streams)

"""`proctor warm`: a process that has imported everything, and forks for each command.

Like `ssh-agent`, it prints the variable by which later commands find it. A command then
starts in a fork of it, with its own folder, environment, streams and exit code. Guarantees: what is
warm is code that was named here, never the code under test, which workers import for each run; if
the process is gone or has another version, a command starts as usual.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from proctor import __version__
from proctor.cli._command import Command
from proctor.cli._options import option
from proctor.errors import EXIT_CANNOT_JUDGE, ProctorError

VARIABLE = "PROCTOR_WARM"

# What `run` and `test` import. None of these starts a thread, which a fork would lose.
_PRELOADED = (
    *("duckdb", "rich.console", "rich.table", "yaml", "zstandard", "proctor.cli._signals"),
    *("proctor.cli.run", "proctor.cli.test", "proctor.report.console", "proctor.report.progress"),
    *("proctor.agents._python", "proctor.agents._chat", "proctor.checks.layers"),
    *("proctor.spec.case_checks", "proctor.results.metadata", "proctor.trials.session"),
    *("proctor.trials.pool", "proctor.trials.worker", "proctor.trials.target"),
    *("proctor.scenarios.catalog", "proctor.scenarios.builder", "proctor.worlds.ecosystem"),
)

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command(cls=Command)
@option(
    "--import MODULE",
    "modules",
    "Import this as well, such as torch; not the code under test. Repeatable.",
    multiple=True,
)
@option("--stop", "End the process that the variable names.", is_flag=True)
def warm(modules: tuple[str, ...], *, stop: bool) -> None:
    """Keep a process warm for the commands of this shell.

    Commands that run trials then start in milliseconds: Proctor, its catalog and the named packages
    are loaded once. The code under test is imported for each run, so that edits count.

    Examples:
      # for this shell
      eval "$(proctor warm)"
      # with packages that take long to import
      eval "$(proctor warm --import torch --import transformers)"
      # end it
      proctor warm --stop
    """
    if stop:
        address = os.environ.get(VARIABLE)
        if not address:
            click.echo(f"{VARIABLE} is not set: no process is warm for this shell", err=True)
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.connect(address)
            client.sendall(b"\0" * 4)
            client.recv(1)
        return
    if not hasattr(os, "pidfd_open"):
        raise ProctorError("warm processes need Linux")
    for name in (*_PRELOADED, *modules):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ProctorError(f"cannot import {name}: {error}") from None
    if threading.active_count() > 1:
        raise ProctorError(
            "a package has started threads, which a fork would lose",
            hint=f"leave out one of: {', '.join(modules)}",
        )
    folder = Path(tempfile.mkdtemp(prefix="proctor-warm-"))  # readable by its owner only
    address = folder / "socket"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(address))
    server.listen(64)
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        click.echo(f"export {VARIABLE}={address}")
        return
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    _serve(server, address)
    os._exit(0)


def _serve(server: socket.socket, address: Path) -> None:
    """Fork for every connection until one says to stop."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that serve a client
    while True:
        client, _ = server.accept()
        with client:
            length = client.recv(4, socket.MSG_PEEK | socket.MSG_WAITALL)
            if length == b"\0" * 4:
                address.unlink()
                address.parent.rmdir()
                return
            if length and os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                server.close()
                _attend(client)


def _attend(client: socket.socket) -> None:
    """Run the command of a client in a process, and send how it ended."""
    size, streams, _, _ = socket.recv_fds(client, 4, 3)
    wanted = bytearray()
    while len(wanted) < int.from_bytes(size) and (part := client.recv(1 << 16)):
        wanted += part
    request = json.loads(wanted)
    if request["version"] != __version__:
        os._exit(0)
    client.sendall(b"!")  # from here on it runs here, and nowhere else
    child = os.fork()
    if child == 0:
        client.close()
        _become(request, streams)
    for each in streams:
        os.close(each)
    ended = os.pidfd_open(child)
    while True:
        ready = select.select([ended, client], [], [])[0]
        if ended in ready:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            with contextlib.suppress(OSError):
                client.sendall(bytes([code if code >= 0 else 128 - code]))
            os._exit(0)
        # A signal for the command; without a byte the client is gone, as a closed terminal is.
        number = client.recv(1)
        os.kill(child, number[0] if number else signal.SIGHUP)
        if not number:
            os.waitpid(child, 0)
            os._exit(0)


def _become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Be the command: its folder, environment and streams."""
    from proctor.cli.main import main

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.setpgid(0, 0)
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    random.seed()
    sys.argv[:] = ["proctor", *request["args"]]
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (a descriptor)
    sys.stdout, sys.stderr = (
        open(number, "w", buffering=1 if os.isatty(number) else -1, closefd=False)  # noqa: SIM115
        for number in (1, 2)
    )
    importlib.invalidate_caches()
    code = 1
    try:
        main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    finally:
        # As Python ends, without taking apart all that was imported.
        vars(threading)["_shutdown"]()  # waits for threads
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def forward(address: str, args: Sequence[str]) -> int | None:
    """Run a command in the warm process and return its exit code; None if it cannot."""
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    umask = os.umask(0)
    os.umask(umask)
    request = {"version": __version__, "args": list(args), "env": env}
    body = json.dumps({**request, "cwd": str(Path.cwd()), "umask": umask}).encode()
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(address)
            socket.send_fds(server, [len(body).to_bytes(4)], [0, 1, 2])
            server.sendall(body)
            if not server.recv(1):
                return None
        except OSError:
            return None
        for number in _FORWARDED:
            signal.signal(number, lambda got, _: server.sendall(bytes([got])))
        code = server.recv(1)
    if not code:
        click.echo("error: the warm process has ended", err=True)
    return code[0] if code else EXIT_CANNOT_JUDGE

"""The process `commands` starts: imports Proctor once, then forks a child for every command.

    python forking.py FD

Each message on the socket FD is a command: its arguments, folder, environment and streams. The
child is a process like any other; only the second it would spend on imports is saved. Any number
may run at once.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import selectors
import socket
import sys
import threading
import traceback
from typing import Any

from pydantic import BaseModel

PRELOADED = (
    *("duckdb", "psutil", "rich.console", "rich.table", "scipy.stats", "yaml", "zstandard"),
    *("proctor.cli.main", "proctor.cli._signals", "proctor.cli._output"),
    *("proctor.cli.run", "proctor.cli.test", "proctor.cli.validate", "proctor.cli.results"),
    *("proctor.report.html.page", "proctor.report.facts"),
    *("proctor.agents._python", "proctor.checks.layers", "proctor.spec.case_checks"),
    *("proctor.report.console", "proctor.report.json_report", "proctor.report.progress"),
    *("proctor.results.compare", "proctor.results.metadata", "proctor.api"),
    *("proctor.results.result_set", "proctor.report.console_results", "proctor.cli.compare"),
    *("proctor.cli.diagnose", "proctor.diagnose.rules", "proctor.report.diagnosis"),
    *("proctor.trials.pool", "proctor.trials.worker", "proctor.trials.messages"),
    *("proctor.trials.session", "proctor.trials.resume"),
    *("proctor.trials.target", "proctor.trace.formats"),
)
"""What most commands and pages import: loaded once, before each has its process. None starts a
thread."""

MOST = 1 << 20
"""Bytes of a message: arguments and an environment are far smaller."""


def serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork for every message; gives back a command in its child, and None when nobody asks more.

    A command that has ended is waited for only when the client asks how: till then the number
    stays its own.
    """
    watched = selectors.DefaultSelector()
    watched.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in watched.select():
            if key.fileobj is control:
                message, given, _, _ = socket.recv_fds(control, MOST, 4)
                if not message:
                    return None
                *streams, answers = given
                child = os.fork()
                if not child:
                    leave_to_parent(watched, answers)
                    return use(streams, json.loads(message))
                for each in streams:
                    os.close(each)
                client = socket.socket(fileno=answers)
                client.send(str(child).encode())
                watched.register(client, selectors.EVENT_READ, child)
            elif isinstance(key.fileobj, socket.socket):  # asks, or has gone
                watched.unregister(key.fileobj)
                with contextlib.suppress(OSError):
                    key.fileobj.recv(1)
                ends = os.pidfd_open(key.data)
                watched.register(ends, selectors.EVENT_READ, (key.data, ends, key.fileobj))
            else:
                child, ends, client = key.data
                watched.unregister(ends)
                os.close(ends)
                with client, contextlib.suppress(OSError):
                    client.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


def leave_to_parent(watched: selectors.BaseSelector, answers: int) -> None:
    """Close in a child what is the parent's."""
    for key in watched.get_map().values():
        if isinstance(key.fileobj, socket.socket):
            key.fileobj.close()
        else:
            os.close(key.fd)
            key.data[2].close()
    watched.close()
    os.close(answers)


def use(streams: list[int], asked: dict[str, Any]) -> dict[str, Any]:
    """Make them the standard streams."""
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    return asked


def build_models(base: type[BaseModel]) -> None:
    """Build the models of suites and settings, which otherwise wait for their first use."""
    for model in base.__subclasses__():
        model.model_rebuild()
        build_models(model)


def main() -> None:
    """Be asked; in a child, be `python -m proctor`."""
    for name in PRELOADED:
        importlib.import_module(name)
    build_models(BaseModel)
    assert threading.active_count() == 1, "a fork would lose the other threads"
    gc.freeze()  # or the first look for garbage in a child copies every page of this process
    control = socket.socket(fileno=int(sys.argv[1]))
    control.send(b"ready")
    asked = serve(control)
    if asked is None:
        return
    if asked["session"]:
        os.setsid()
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.path[0] = asked["cwd"]
    sys.argv[:] = ["proctor", *asked["args"]]
    importlib.invalidate_caches()
    try:
        importlib.import_module("proctor.cli.main").main()
    except SystemExit as stop:
        leave(int(stop.code or 0))
    except BaseException:  # noqa: BLE001  told as Python tells it
        traceback.print_exc()
        leave(1)


def leave(code: int) -> None:
    """End as Python does, without taking apart all that was imported."""
    vars(threading)["_shutdown"]()  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

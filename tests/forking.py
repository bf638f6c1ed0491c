"""The process `commands` starts: imports Proctor once, then forks a child for every command.

    python forking.py FD

Each message on the socket FD is a command: its arguments, folder, environment and streams. The
child is a process like any other; only the second it would spend on imports is saved. A keeper
between here and there waits for it, so that any number may run at once.
"""

import atexit
import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
import traceback
from typing import Any

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
    """Fork for every message; gives back a command in its child, and None when nobody asks more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    while True:
        message, given, _, _ = socket.recv_fds(control, MOST, 4)
        if not message:
            return None
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return keep(json.loads(message), given)
        for each in given:
            os.close(each)


def keep(asked: dict[str, Any], given: list[int]) -> dict[str, Any]:
    """Fork once more, tell the number of the child and, when asked, how it ended."""
    *streams, answers = given
    child = os.fork()
    if child:
        for each in (*streams, 0, 1, 2):
            os.close(each)
        with socket.socket(fileno=answers) as client:
            client.send(str(child).encode())
            client.recv(1)  # till then the number stays that of the child
            client.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
        os._exit(0)
    os.close(answers)
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    return asked


def main() -> None:
    """Be asked; in a child, be `python -m proctor`."""
    for name in PRELOADED:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a fork would lose the other threads"
    gc.freeze()  # or the first look for garbage in a child copies every page of this process
    with socket.socket(fileno=int(sys.argv[1])) as control:
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

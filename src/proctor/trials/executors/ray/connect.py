"""A Ray to run on: one of our own on this machine, one that is there already, or the caller's.

Promise: our own listens on the loopback address only, asks for a token, has no dashboard, sends
no usage statistics and writes nothing to the terminal or below the home folder; it ends with this
process, however that ends. One started by others is used as it is and left as it was.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from proctor.errors import ProctorError
from proctor.imports import needs_extra

STORE_BYTES = 128 * 1024 * 1024
"""Shared memory for what does not fit into a message: traces on their way to the driver."""

NOT_SENT = ("results/", ".git/", ".venv/", "venv/", "node_modules/", "__pycache__/", ".cache/")
"""Folders of a project that are not code; with `.gitignore`, which Ray honours, what stays here."""

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_RUNTIME_ENV_LOG_TO_DRIVER_ENABLED": "0",
}

_OUR_OWN = {
    # Ray's switch for the loopback address, whatever the system.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
}


@dataclass(frozen=True, eq=False)
class Connection:
    """A Ray that can be used; another one, though to the same Ray, is not equal to it."""

    shares_files: bool
    """Whether workers see the files of this process."""
    ours: bool
    """Whether it was started here, for this."""


def ray_package() -> Any:
    """Ray, imported when it is needed; its own types say little."""
    return import_module("ray")


def connect(address: str | None, cpus: float, root: Path) -> Connection:
    """Use the Ray of this process, else the one at an address, else start one for `cpus` CPUs.

    `root` is the folder of the code: it is sent to a Ray that is not on this machine.
    """
    needs_extra("ray", "ray")
    os.environ.update(_QUIET)
    if address is None and "ray" not in sys.modules:
        # Read when Ray is imported. Where it was before, it is as its user has set it up.
        os.environ.update(_OUR_OWN)
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    if not _initialised():
        # Ray takes SIGTERM for itself, which is ours: a run that is told to stop records it.
        with _handlers_kept():
            _start(cpus) if address is None else _join(address, root)
        _say_nothing()
    elif address is not None:
        _refuse_other(address)
    if not _connections:
        _connections.append(Connection(_only_here(), ours=False))
    return _connections[-1]


_connections: list[Connection] = []
_joined: list[str] = []


def _initialised() -> bool:
    ray = ray_package()
    if ray.is_initialized():
        return True
    _connections.clear()
    _joined.clear()
    return False


def _refuse_other(address: str) -> None:
    """One process has one Ray; a run must not go on another one than it was sent to."""
    if _joined and _joined[-1] != address:
        raise ProctorError(
            f"this process uses the Ray at {_joined[-1]}, not at {address}",
            hint="call ray.shutdown() first",
        )


def _say_nothing() -> None:
    """Keep Ray from telling on stdout of every worker that was lost: the run counts them itself.

    There is no option for it: this is the switch its own debugger uses.
    """
    module = vars(import_module("ray._private.worker"))
    if "_worker_logs_enabled" in module:
        module["_worker_logs_enabled"] = False


def _start(cpus: float) -> None:
    """A Ray of our own, which ends with this process."""
    ray = ray_package()
    logging.getLogger("ray").setLevel(logging.ERROR)
    # Short: the sockets below it may have paths of 107 bytes.
    folder = tempfile.mkdtemp(prefix="proctor-ray-")
    atexit.register(shut_down, folder)
    try:
        ray.init(
            address="local",
            num_cpus=max(1, math.ceil(cpus)),
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.CRITICAL,
            object_store_memory=STORE_BYTES,
            _temp_dir=folder,
        )
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ProctorError(
            f"Ray does not start: {_first_line(error)}", hint="its logs are below /tmp/ray"
        ) from error
    _connections.append(Connection(shares_files=True, ours=True))


def shut_down(folder: str | None = None) -> None:
    """End the Ray of this process, and with it all workers."""
    ray = ray_package()
    with contextlib.suppress(Exception):
        ray.shutdown()
    _connections.clear()
    _joined.clear()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _join(address: str, root: Path) -> None:
    """The Ray at an address; one that is elsewhere is sent the code."""
    ray = ray_package()
    here = _host(address) in LOOPBACK and not address.startswith("ray://")
    environment: dict[str, Any] = (
        {} if here else {"working_dir": str(root), "excludes": list(NOT_SENT)}
    )
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        ray.init(
            address=address,
            runtime_env=environment,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.CRITICAL,
        )
    except Exception as error:
        raise ProctorError(
            f"there is no Ray at {address}: {_first_line(error)}",
            where="--address",
            hint="`ray start --head` starts one; without --address there is one for this run",
        ) from error
    _joined.append(address)
    _connections.append(Connection(shares_files=here, ours=False))


def _host(address: str) -> str:
    return urlsplit(address if "://" in address else f"//{address}").hostname or ""


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _only_here() -> bool:
    """Whether the Ray that the caller has started has no machine but this."""
    ray = ray_package()
    own = ray.util.get_node_ip_address()
    nodes: list[Mapping[str, Any]] = ray.nodes()
    return all(node["NodeManagerAddress"] == own for node in nodes if node["Alive"])


@contextlib.contextmanager
def _handlers_kept() -> Generator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""Connect to Ray and manage the workers of a run.

Promise: a Ray started here listens on the loopback address only, requires a token, has no
dashboard, sends no usage statistics and writes nothing to the terminal or below the home folder; it
ends with this process, however that ends. A Ray started by others is used as it is.

A worker that dies is replaced, and the calls waiting for it raise `WorkerLost`; one that cannot
load what the run needs is an error that says why. Workers stay warm for the next run of this
process with the same requirements, since starting one costs as much as many trials.
"""

from __future__ import annotations

import asyncio
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
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from proctor.errors import ProctorError
from proctor.imports import needs_extra
from proctor.runs.trial import PlannedTrial
from proctor.trials._ray.messages import DriverReply, Parcel, decode_parcel, encode

STORE_BYTES = 128 * 1024 * 1024
"""Shared memory for data that does not fit into a message: traces on their way to the driver."""

NOT_SENT = ("results/", ".git/", ".venv/", "venv/", "node_modules/", "__pycache__/", ".cache/")
"""Folders of a project that are not code, so not sent; Ray skips those of `.gitignore` as well."""

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
    """A connection to Ray; equal only to itself, since workers belong to one connection."""

    shares_files: bool
    """Whether workers see the files of this process."""
    ours: bool = False
    """Whether this process started Ray."""
    address: str | None = None
    """The address that was given, if any."""


def ray_package() -> Any:
    """Import Ray when it is needed; Any, because its own types say little."""
    return import_module("ray")


def connect(address: str | None, cpus: float, root: Path) -> Connection:
    """Use the Ray of this process, else the one at an address, else start one for `cpus` CPUs.

    `root` is the folder of the code: it is sent to a Ray on another machine.
    """
    needs_extra("ray", "ray")
    os.environ.update(_QUIET)
    if address is None and "ray" not in sys.modules:
        # Ray reads these when it is imported; if it was imported before, its user has set it up.
        os.environ.update(_OUR_OWN)
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    if not ray_package().is_initialized():
        # Ray takes over SIGTERM, but a stopped run must be recorded by our own handler.
        with _signal_handlers_restored():
            connection = _start(cpus) if address is None else _join(address, root)
        _connections[:] = [connection]
        # Ray would print every lost worker to stdout, and the run counts them itself. There is
        # no option for it: this is the switch of Ray's own debugger.
        module = vars(import_module("ray._private.worker"))
        if "_worker_logs_enabled" in module:
            module["_worker_logs_enabled"] = False
    elif not _connections:
        _connections.append(Connection(_only_this_machine()))
    elif address is not None and _connections[0].address not in (None, address):
        # One process has one Ray; a run must not use another one than it was sent to.
        raise ProctorError(
            f"this process uses the Ray at {_connections[0].address}, not at {address}",
            hint="call ray.shutdown() first",
        )
    return _connections[0]


_connections: list[Connection] = []
"""The connection of this process, if there is one."""


def _start(cpus: float) -> Connection:
    """Start a Ray that ends with this process."""
    ray = ray_package()
    logging.getLogger("ray").setLevel(logging.ERROR)
    # Short, because socket paths below it are limited to 107 bytes.
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
    return Connection(shares_files=True, ours=True)


def shut_down(folder: str | None = None) -> None:
    """End the Ray of this process, and with it all workers."""
    with contextlib.suppress(Exception):
        ray_package().shutdown()
    _connections.clear()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _join(address: str, root: Path) -> Connection:
    """Connect to the Ray at an address; send the code to one on another machine."""
    host = urlsplit(address if "://" in address else f"//{address}").hostname or ""
    here = host in LOOPBACK and not address.startswith("ray://")
    environment: dict[str, Any] = (
        {} if here else {"working_dir": str(root), "excludes": list(NOT_SENT)}
    )
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        ray_package().init(
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
    return Connection(shares_files=here, address=address)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).strip()


def _only_this_machine() -> bool:
    """Whether the Ray that the caller has started runs on this machine only."""
    ray = ray_package()
    own = ray.util.get_node_ip_address()
    nodes: list[Mapping[str, Any]] = ray.nodes()
    return all(node["NodeManagerAddress"] == own for node in nodes if node["Alive"])


@contextlib.contextmanager
def _signal_handlers_restored() -> Generator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


MOST_DEATHS = 3
"""Times in a row a worker may die while it loads: after that, what it loads is to blame."""


class Resources(NamedTuple):
    """The resources that a worker requires of its machine."""

    cpu: float = 1.0
    gpu: float = 0.0
    custom: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        named = {"cpu": self.cpu, "gpu": self.gpu, **dict(self.custom)}
        return ", ".join(f"{name} {amount:g}" for name, amount in named.items() if amount)


class WorkerLost(Exception):
    """The process of a worker, or its machine, is gone."""


class Load(NamedTuple):
    """The kit that workers load: its digest and its reference in Ray's object store."""

    digest: str
    ref: Any


class Member:
    """One worker, whose actor is replaced when it is lost."""

    def __init__(self, needs: Resources) -> None:
        self.needs = needs
        self._actor: Any = None
        self._loaded: str | None = None
        self._loading: Any = None
        self.about: dict[str, Any] = {}
        """Process, machine and version of the actor."""

    def has_loaded(self, load: Load) -> bool:
        """Whether it can be sent trials."""
        return self._loaded == load.digest

    async def load(self, load: Load) -> None:
        """Return once it has loaded this, with a new actor if it was lost."""
        deaths = 0
        while not self.has_loaded(load):
            if self._actor is None:
                self._actor = _new_actor(self.needs)
            try:
                # Ray does not keep the order of calls. A call that a run stopped waiting for may
                # still arrive, and would undo this one.
                if self._loading is not None:
                    await _outcome(self._loading)
                self._loaded, self._loading = None, self._actor.load.remote(load.digest, load.ref)
                about = await _outcome(self._loading)
                self._loading = None
            except WorkerLost as lost:
                self.dismiss()
                deaths += 1
                if deaths >= MOST_DEATHS:
                    raise ProctorError(
                        f"{deaths} workers died while they loaded the agents: {lost}",
                        hint="`--executor local` shows what the agent's code does",
                    ) from None
                continue
            if "error" in about:
                raise ProctorError(
                    f"on a worker: {about['error']}",
                    where=about.get("where"),
                    hint=about.get("hint"),
                )
            self.about, self._loaded = about, load.digest

    async def exchange(self, orders: list[PlannedTrial], slots: int) -> Parcel:
        """Send trials and wait for results; raise `WorkerLost` if none will come."""
        if self._actor is None:
            raise WorkerLost("it was dismissed")
        sent = self._actor.exchange.remote(self._loaded, encode(orders), slots)
        return decode_parcel(await _outcome(sent))

    def reply(self, reply: DriverReply) -> None:
        """Send the reply to a request of the worker."""
        if self._actor is not None:
            self._actor.reply.remote(encode(reply))

    def stop(self) -> None:
        """Cancel its trials."""
        if self._actor is not None and self._loaded is not None:
            self._actor.stop.remote()

    def dismiss(self) -> None:
        """End its process; `load` starts another."""
        actor, self._actor, self._loaded, self._loading = self._actor, None, None, None
        if actor is not None:
            with contextlib.suppress(Exception):
                ray_package().kill(actor)


def _new_actor(needs: Resources) -> Any:
    from proctor.trials._ray.worker import Worker

    return (
        ray_package()
        .remote(Worker)
        .options(
            num_cpus=needs.cpu,
            num_gpus=needs.gpu,
            resources=dict(needs.custom),
            max_restarts=0,
            scheduling_strategy="SPREAD",
        )
        .remote()
    )


async def _outcome(ref: Any) -> Any:
    """Return the result of a call; raise `WorkerLost` for whatever Ray itself has lost."""
    known = ray_package().exceptions
    try:
        # A call cannot be cancelled: Ray must find its future unchanged.
        future = asyncio.wrap_future(ref.future())
        # If no caller waits any more, an exception must not be reported as never retrieved.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(future)
    except known.RayTaskError as error:
        raise ProctorError(
            f"a worker failed: {_first_line(getattr(error, 'cause', None) or error)}",
            hint="what is given in code must be importable on the workers",
        ) from error
    except (known.ActorUnschedulableError, known.RuntimeEnvSetupError) as error:
        raise ProctorError(f"Ray starts no worker: {_first_line(error)}") from error
    except known.RayError as error:
        raise WorkerLost(_first_line(error)) from error


class Crew:
    """Workers with the same resources, on one Ray."""

    def __init__(self, needs: Resources, connection: Connection) -> None:
        self.needs = needs
        self.connection = connection
        self.members: list[Member] = []

    def of(self, count: int) -> list[Member]:
        """Return `count` workers: start missing ones, end surplus ones."""
        while len(self.members) > count:
            self.members.pop().dismiss()
        while len(self.members) < count:
            self.members.append(Member(self.needs))
        return self.members


_idle: list[Crew] = []
"""The crew of the last run, at most one: more would hold resources that the next run needs."""


def take_crew(needs: Resources, connection: Connection) -> Crew:
    """Return a crew for a run: the warm one if it has the same resources and connection."""
    if _idle and _idle[0].needs == needs and _idle[0].connection is connection:
        return _idle.pop()
    let_go()
    return Crew(needs, connection)


def give_back(crew: Crew) -> None:
    """Keep a crew warm for the next run; on a Ray of others, free its resources at once."""
    if _idle or not crew.connection.ours:
        crew.of(0)
    else:
        _idle.append(crew)


def let_go() -> None:
    """End the warm crew and free its resources."""
    while _idle:
        _idle.pop().of(0)

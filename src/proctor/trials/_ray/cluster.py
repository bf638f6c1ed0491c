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
from proctor.trials._ray.messages import DriverReply, Parcel, pack, parcel_of

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


MOST_DEATHS = 3
"""Times in a row a worker may die while it loads: by then it is what it loads."""


class Resources(NamedTuple):
    """What a worker asks of the machine it is on."""

    cpu: float = 1.0
    gpu: float = 0.0
    custom: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        named = {"cpu": self.cpu, "gpu": self.gpu, **dict(self.custom)}
        return ", ".join(f"{name} {amount:g}" for name, amount in named.items() if amount)


class WorkerLost(Exception):
    """The process of a worker, or its machine, is gone."""


class Load(NamedTuple):
    """What workers load: the kit, where Ray keeps it, and its digest."""

    digest: str
    ref: Any


class Member:
    """One worker, whichever actor it is at the time."""

    def __init__(self, needs: Resources) -> None:
        self.needs = needs
        self._actor: Any = None
        self._loaded: str | None = None
        self._loading: Any = None
        self.about: dict[str, Any] = {}
        """Process, machine and version of the actor."""

    def has_loaded(self, load: Load) -> bool:
        """Whether it can be given orders."""
        return self._loaded == load.digest

    async def ready(self, load: Load) -> None:
        """Return once it has loaded this; again after it was lost."""
        deaths = 0
        while not self.has_loaded(load):
            if self._actor is None:
                self._actor = _new_actor(self.needs)
            try:
                about = await self._load(load)
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

    async def _load(self, load: Load) -> dict[str, Any]:
        """What it says to a kit. Ray does not keep the order of calls, and one that a run gave up
        waiting for may still come: it is waited for first, or it would undo this one."""
        if self._loading is not None:
            await _outcome(self._loading)
        self._loaded, self._loading = None, self._actor.load.remote(load.digest, load.ref)
        about = await _outcome(self._loading)
        self._loading = None
        return about

    async def exchange(self, orders: list[PlannedTrial], slots: int) -> Parcel:
        """Hand over orders and wait for news; `WorkerLost` when there will be none."""
        if self._actor is None:
            raise WorkerLost("it was dismissed")
        sent = self._actor.exchange.remote(self._loaded, pack(orders), slots)
        return parcel_of(await _outcome(sent))

    def answer(self, answer: DriverReply) -> None:
        """Tell it what it asked for."""
        if self._actor is not None:
            self._actor.answer.remote(pack(answer))

    def stop(self) -> None:
        """Tell it to cancel what it runs."""
        if self._actor is not None and self._loaded is not None:
            self._actor.stop.remote()

    def dismiss(self) -> None:
        """End its process; `ready` makes another."""
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
    """What a call came to; whatever Ray itself has lost is a lost worker."""
    known = ray_package().exceptions
    try:
        # A call cannot be taken back: Ray must find its future as it left it.
        coming = asyncio.wrap_future(ref.future())
        coming.add_done_callback(_seen)
        return await asyncio.shield(coming)
    except known.RayTaskError as error:
        raise ProctorError(
            f"a worker failed: {_in_short(getattr(error, 'cause', None) or error)}",
            hint="what is given in code must be importable on the workers",
        ) from error
    except (known.ActorUnschedulableError, known.RuntimeEnvSetupError) as error:
        raise ProctorError(f"Ray starts no worker: {_in_short(error)}") from error
    except known.RayError as error:
        raise WorkerLost(_in_short(error)) from error


def _seen(done: asyncio.Future[Any]) -> None:
    """Nobody may wait any more; what it came to is then nobody's concern."""
    if not done.cancelled():
        done.exception()


def _in_short(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class Crew:
    """Workers that are alike, on one Ray."""

    def __init__(self, needs: Resources, connection: Connection) -> None:
        self.needs = needs
        self.connection = connection
        self.members: list[Member] = []

    def of(self, count: int) -> list[Member]:
        """So many of them: more are made, those too many dismissed."""
        while len(self.members) > count:
            self.members.pop().dismiss()
        while len(self.members) < count:
            self.members.append(Member(self.needs))
        return self.members

    def dismiss(self) -> None:
        """End them all."""
        self.of(0)


_idle: list[Crew] = []
"""The crew of the last run, at most one: others would hold resources that the next one wants."""


def take_crew(needs: Resources, connection: Connection) -> Crew:
    """A crew for a run: the one that is warm, if it is of the right kind and still there."""
    if _idle and _idle[0].needs == needs and _idle[0].connection is connection:
        return _idle.pop()
    let_go()
    return Crew(needs, connection)


def give_back(crew: Crew) -> None:
    """Keep a crew warm for the next run; on a Ray of others, who want its room, let it go."""
    if _idle or not crew.connection.ours:
        crew.dismiss()
    else:
        _idle.append(crew)


def let_go() -> None:
    """Dismiss the crew that is warm: whoever else is on this Ray has its room."""
    while _idle:
        _idle.pop().dismiss()

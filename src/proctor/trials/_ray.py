"""Connect to Ray and manage the workers of a run on its machines.

Promise: a Ray started here listens on the loopback address only, requires a token, has no
dashboard, sends no usage statistics and writes nothing to the terminal or below the home folder; it
ends with this process, however that ends. A Ray started by others is used as it is.

A worker that dies is replaced, and the calls waiting for it raise `WorkerLost`; one that cannot
load what the run needs is an error that says why. Workers stay warm for the next run of this
process with the same requirements, since starting one costs as much as many trials.

An actor runs no code of users: it starts the same keeper and worker processes as a local run
(`trials/worker.py`) and passes messages on, so killing a worker costs only its trials. A worker
builds its context from the plain data that a run folder records (the `Kit`), so it runs what a
resumed run would run. Python objects given in code are the exception: Ray pickles them. Workers on
this machine see the driver's environment, folder and import path; on other machines their own, with
the project's code sent by Ray. Resources that the machines do not have are an error before the
first trial where that can be known (our own Ray), otherwise once no worker has started for a long
time.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import hashlib
import importlib.util
import logging
import math
import os
import pickle
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import uuid
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec

from proctor import __version__
from proctor.agents.registry import UnknownAgentError, kind_class
from proctor.errors import ProctorError
from proctor.imports import needs_extra
from proctor.runs.trial import PlannedTrial
from proctor.spec.config import find_project_file
from proctor.trace.redact import default_redactor
from proctor.trials.executor import ExecutorFactory
from proctor.trials.messages import (
    LENGTH,
    Authority,
    BeginRun,
    DriverReply,
    Orders,
    Parcel,
    decode_order,
    decode_parcel,
    encode,
)
from proctor.trials.options import DEFAULT_CONCURRENCY
from proctor.trials.pool import (
    MOST_DEATHS,
    WATCH,
    Keeper,
    LocalWorker,
    WorkerExecutor,
    WorkerLost,
    append_recorded,
    begin_run,
    blocked_after,
)
from proctor.trials.prepare import (
    RunContext,
    choose_agents,
    context_for,
    written_settings,
    written_suite,
)
from proctor.trials.resume import parts_of
from proctor.trials.worker import keep

if TYPE_CHECKING:
    from proctor.agents.base import AgentConfig

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


class Resources(NamedTuple):
    """The resources that a worker requires of its machine."""

    cpu: float = 1.0
    gpu: float = 0.0
    custom: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        named = {"cpu": self.cpu, "gpu": self.gpu, **dict(self.custom)}
        return ", ".join(f"{name} {amount:g}" for name, amount in named.items() if amount)


class Load(NamedTuple):
    """What workers load: its digest, and references to the kit in Ray's object store."""

    digest: str
    kit: Any
    begin: bytes
    """The message before the first trial."""
    blocked: float = math.inf
    """Seconds after which a silent worker is blocked."""


class RayMember:
    """One worker on Ray, whose actor is replaced when its machine is lost."""

    def __init__(self, needs: Resources) -> None:
        self.needs = needs
        self.taken = 0
        self.to_load: Load | None = None
        """What the run needs it to load."""
        self._actor: Any = None
        self._loaded: str | None = None
        self._loading: Any = None
        self.about: dict[str, Any] = {}
        """Process, machine and version of the worker."""

    def has_loaded(self) -> bool:
        """Whether it can be sent trials."""
        return self.to_load is not None and self._loaded == self.to_load.digest

    async def load(self) -> None:
        """Return once it can be sent trials, with a new actor if it was lost."""
        deaths, load = 0, self.to_load
        assert load is not None
        while not self.has_loaded():
            if self._actor is None:
                self._actor = _new_actor(self.needs)
            try:
                # Ray does not keep the order of calls. A call that a run stopped waiting for may
                # still arrive, and would undo this one.
                if self._loading is not None:
                    await _outcome(self._loading)
                self._loaded, self._loading = None, self._actor.load.remote(*load)
                about = await _outcome(self._loading)
                self._loading = None
            except WorkerLost as lost:
                self.release()
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
            self.taken = 0
            self.about, self._loaded = about, load.digest

    async def exchange(self, orders: list[PlannedTrial], slots: int) -> Parcel:
        """Send trials and wait for results; raise `WorkerLost` if none will come."""
        if self._actor is None:
            raise WorkerLost("it was dismissed")
        try:
            sent = self._actor.exchange.remote(self._loaded, encode(Orders(orders, slots)))
            parcel = decode_parcel(await _outcome(sent))
        except WorkerLost:
            self.release()
            raise
        assert isinstance(parcel, Parcel)
        return parcel

    def reply(self, reply: DriverReply) -> None:
        """Send the reply to a request of the worker."""
        if self._actor is not None:
            self._actor.reply.remote(encode(reply))

    def stop(self) -> None:
        """Cancel its trials."""
        if self._actor is not None and self._loaded is not None:
            self._actor.stop.remote()

    def watch(self, blocked: float) -> None:
        """Do nothing: the actor watches its worker, on the same machine."""

    def dismiss(self) -> None:
        """End its process; `load` starts another."""
        self._loaded = None
        if self._actor is not None:
            self._actor.dismiss.remote()

    def release(self) -> None:
        """End the actor and free its resources."""
        actor, self._actor, self._loaded, self._loading = self._actor, None, None, None
        if actor is not None:
            with contextlib.suppress(Exception):
                ray_package().kill(actor)


class RayActor:
    """Holds a worker process on its machine. The driver calls these methods only."""

    def __init__(self) -> None:
        self._worker: LocalWorker | None = None
        self._digest: str | None = None
        self._loading = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None

    async def load(self, digest: str, kit: bytes, begin: bytes, blocked: float) -> dict[str, Any]:
        """Load a kit unless it is loaded; return who the worker is, or the error."""
        async with self._loading:
            if self._digest != digest:
                self._end()
                order = decode_order(begin)
                assert isinstance(order, BeginRun)
                self._worker = worker = LocalWorker(
                    lambda: Keeper.spawn(__name__, kit), order.limits
                )
                worker.begin = order
                self._watching = asyncio.ensure_future(_watch(worker, blocked))
                self._digest = digest
            assert self._worker is not None
            try:
                await self._worker.load()
            except ProctorError as error:
                self._digest = None
                return {"error": error.message, "where": error.where, "hint": error.hint}
        return self._worker.about

    def _end(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        if self._worker is not None:
            self._worker.close()

    async def exchange(self, digest: str, orders: bytes) -> bytes:
        """Take trials, then wait until there is something to send."""
        order = decode_order(orders)
        assert isinstance(order, Orders)
        if self._worker is None or self._digest != digest:
            raise RuntimeError("orders for another run than was loaded")
        try:
            return encode(await self._worker.exchange(order.trials, order.slots))
        except WorkerLost as lost:
            return encode(Parcel(lost=(str(lost), lost.category, lost.certain)))

    async def reply(self, reply: bytes) -> None:
        """Receive the driver's reply to a request."""
        order = decode_order(reply)
        if self._worker is not None and isinstance(order, DriverReply):
            self._worker.reply(order)

    async def stop(self) -> None:
        """Cancel the running trials."""
        if self._worker is not None:
            self._worker.stop()

    async def dismiss(self) -> None:
        """End the worker; `load` starts another."""
        if self._worker is not None:
            self._worker.dismiss()


async def _watch(worker: LocalWorker, blocked: float) -> None:
    while True:
        await asyncio.sleep(WATCH)
        worker.watch(blocked)


def _new_actor(needs: Resources) -> Any:
    # By its public name: run as a program, this module is another one.
    from proctor.trials._ray import RayActor

    return (
        ray_package()
        .remote(RayActor)
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
        raise WorkerLost(_first_line(error), certain=False) from error


class Crew:
    """Workers with the same resources, on one Ray."""

    def __init__(self, needs: Resources, connection: Connection) -> None:
        self.needs = needs
        self.connection = connection
        self.members: list[RayMember] = []

    def of(self, count: int) -> list[RayMember]:
        """Return `count` workers: start missing ones, end surplus ones."""
        while len(self.members) > count:
            self.members.pop().release()
        while len(self.members) < count:
            self.members.append(RayMember(self.needs))
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


# -- the workers of a run -------------------------------------------------------------------------


@contextmanager
def ray_workforce(context: RunContext, *, ahead: bool) -> Generator[ExecutorFactory]:
    """Provide the workers of a run; they stay warm for the next run."""
    needs_extra("ray", "ray")
    for name, config in context.agents.items():
        if config.kind == "human":
            raise ProctorError(
                f"the agent {name!r} answers at this terminal, which workers do not have",
                hint="run it with --executor local",
            )
    needs = needs_of(context.agents.values())
    options = context.options
    wanted = options.workers or max(1, int((os.cpu_count() or 1) / (needs.cpu or 1)))
    connection = connect(options.address, wanted * needs.cpu, project_root(context))
    room = _room(needs, connection)
    kit = kit_of(context, shares_files=connection.shares_files)
    crew = take_crew(needs, connection)
    try:
        with sent_by_value(kit):
            begin = begin_run(context)
            content = ray_package().cloudpickle.dumps(kit)
            # The plain data does not show a change of objects or cassettes: sent for every run.
            unique = bool(kit.objects) or begin.cassette is not None
            known = uuid.uuid4().bytes if unique else kit.digest.encode() + encode(begin)
            load = Load(
                hashlib.sha256(known).hexdigest(),
                ray_package().put(content),
                encode(begin),
                blocked_after(options),
            )
        workers = options.workers or room
        authority = Authority(context.checkpoints, budget=context.budget)
        each = DEFAULT_CONCURRENCY if context.asynchronous else 1

        def executor_for(planned: int) -> WorkerExecutor:
            at_once = max(1, min(options.concurrency or workers * each, planned))
            members = crew.of(min(workers, at_once))
            for member in members:
                member.to_load = load
            return WorkerExecutor(
                members,
                authority,
                at_once=at_once,
                options=options,
                ahead=ahead,
                keep_recorded=lambda lines: append_recorded(options.record_to, lines),
            )

        yield executor_for
    except BaseException:
        # Their trials have no reader any more.
        crew.of(0)
        raise
    finally:
        give_back(crew)


def needs_of(agents: Iterable[AgentConfig]) -> Resources:
    """Return the resources of a worker: it runs every agent, so the most that any of them needs."""
    most: dict[str, float] = {}
    for config in agents:
        own = {"cpu": 1.0, **(config.resources or {})}
        most.update({name: max(amount, most.get(name, 0.0)) for name, amount in own.items()})
    cpu, gpu = most.pop("cpu", 1.0), most.pop("gpu", 0.0)
    return Resources(cpu, gpu, tuple(sorted(most.items())))


def _room(needs: Resources, connection: Connection) -> int:
    """Return how many workers fit at a time; none is an error on our own Ray."""
    available: dict[str, float] = ray_package().cluster_resources()
    required = {"CPU": needs.cpu, "GPU": needs.gpu, **dict(needs.custom)}
    fits = [int(available.get(name, 0.0) / amount) for name, amount in required.items() if amount]
    most = min(fits, default=1)
    if most < 1 and connection.ours:
        lacking = next(n for n, amount in required.items() if available.get(n, 0.0) < amount)
        raise ProctorError(
            f"a worker needs {needs}, and this machine has not enough {lacking}",
            hint="--address names a Ray that has it; see `resources` of the agents",
        )
    return max(1, most)


# -- what a worker loads ---------------------------------------------------------------------------

NOT_INHERITED = ("RAY_", "PYTHON")
"""Prefixes of variables with which Ray and Python start processes; a worker has its own."""

SENT_BESIDE = {"kind": "python", "target": "sent:beside"}
"""Replaces an agent made of Python objects in the record of a suite, which needs plain data."""


@dataclass(frozen=True)
class Kit:
    """What a worker loads: plain data, except for `objects`."""

    digest: str
    """Kits with the same digest give the same context."""
    version: str
    record: Mapping[str, Any]
    """Suite, options, settings and experiment, as a run folder records them."""
    objects: Mapping[str, AgentConfig]
    """Agents that were made of Python objects, by name."""
    surroundings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Environment, folder and import path of the driver; empty on other machines."""
    sent_root: str | None = None
    """The folder whose content Ray has sent; it is the current folder of the worker."""


def kit_of(context: RunContext, *, shares_files: bool) -> Kit:
    """Return what workers need to know of a context."""
    objects = {name: config for name, config in context.agents.items() if _is_object(config)}
    # As `spec_record`, but with secrets: a kit is never stored.
    record = {
        "base_dir": str(context.suite.folder.resolve()),
        "options": context.options.record(),
        "settings": written_settings(context.configuration),
        **({} if context.design is None else {"experiment": context.design.record()}),
        "suite": written_suite(
            context, {**context.written, **dict.fromkeys(objects, SENT_BESIDE)}, rows=True
        ),
    }
    surroundings: dict[str, Any] = {}
    if shares_files:
        surroundings = {
            "environ": {k: v for k, v in os.environ.items() if not k.startswith(NOT_INHERITED)},
            "folder": str(Path.cwd()),
            "path": [place for place in sys.path if place and Path(place).is_dir()],
        }
    known = (__version__, record, context.versions, surroundings)
    content = msgspec.json.encode(known, enc_hook=str)
    return Kit(
        digest=hashlib.sha256(content).hexdigest(),
        version=__version__,
        record=record,
        objects=objects,
        surroundings=surroundings,
        sent_root=None if shares_files else str(project_root(context)),
    )


def _is_object(config: AgentConfig) -> bool:
    """Whether an agent is more than its options: made of an object, or of an unregistered class."""
    if config.made_in_code:
        return True
    try:
        return kind_class(str(config.kind)) is not type(config)
    except UnknownAgentError:
        return True


def project_root(context: RunContext) -> Path:
    """Return the folder of a run's code: that of the project's file, else the suite's own."""
    found = find_project_file(context.suite.folder)
    return (context.suite.folder if found is None else found.parent).resolve()


@contextmanager
def sent_by_value(kit: Kit) -> Generator[None]:
    """Inside, Ray pickles objects of modules that a worker could not import by value."""
    cloudpickle = ray_package().cloudpickle
    names: set[str] = set()
    for config in kit.objects.values():
        value = getattr(config, "loaded", None)
        names.add(str(getattr(value, "__module__", None) or type(value).__module__))
    modules = [
        module
        for name in names - {"__main__", "builtins"}
        if (module := sys.modules.get(name)) is not None and not _importable(name)
    ]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _importable(name: str) -> bool:
    """Whether importing the name in another process would find the same file."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return True
    try:
        # `find_spec` returns the spec of a loaded module without a search.
        loaded = sys.modules.pop(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.modules[name] = loaded
    except (ImportError, ValueError, AttributeError):
        return False
    return spec is not None and spec.origin == file


def context_of(kit: Kit) -> RunContext:
    """Return the context of a run on a worker; the code of users is not imported yet."""
    if kit.version != __version__:
        raise ProctorError(
            f"this worker has Proctor {__version__}, the driver {kit.version}",
            hint="install the same version on every machine",
        )
    if kit.surroundings:
        # Code must find what it would find in the driver.
        os.environ.update(kit.surroundings["environ"])
        os.chdir(kit.surroundings["folder"])
        places: list[str] = kit.surroundings["path"]
        sys.path[:] = [*places, *(own for own in sys.path if own not in places)]
        # The secrets to remove come from the environment.
        default_redactor.cache_clear()
    record = dict(kit.record)
    if kit.sent_root is not None:
        # Cases stay as they are: what they mention is input for agents.
        agents = {"agents": _moved(record["suite"]["agents"], kit.sent_root)}
        record["suite"] = {**record["suite"], **agents}
        for part in ("base_dir", "experiment"):
            if part in record:
                record[part] = _moved(record[part], kit.sent_root, part)
    suite, options, configuration, design = parts_of(record, "the run")
    written = [name for name in suite.all_agents if name not in kit.objects]
    found = choose_agents(suite, written, configuration) if written else {}
    agents = {**{name: agent.config for name, agent in found.items()}, **kit.objects}
    return context_for(suite, options, agents, suite.cases, configuration, design, code=False)


_FOLDERS = frozenset({"base_dir", "folder", "baselines", "catalog"})
"""Keys of a record whose values are folders."""


def _moved(value: Any, root: str, key: str = "") -> Any:
    """Return a part of a record with every folder of the project where Ray has put it."""
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, Any]", value)
        return {name: _moved(each, root, name) for name, each in entries.items()}
    if key in _FOLDERS and isinstance(value, str) and Path(value).is_relative_to(root):
        return str(Path.cwd() / Path(value).relative_to(root))
    return value


def main() -> None:
    """Be the keeper of an actor: read the kit, then start workers that load it."""
    control = socket.socket(fileno=int(sys.argv[1]))
    with control.makefile("rb", buffering=0) as stream:
        (length,) = LENGTH.unpack(stream.read(LENGTH.size) or b"")
        content = bytearray()
        while len(content) < length:
            content += stream.read(length - len(content)) or b""
    # Unpickled by each worker: objects of users bring their code along.
    keep(control, lambda: context_of(pickle.loads(content)))  # noqa: S301 (from our own driver)


if __name__ == "__main__":
    main()

"""A warm worker: loads agents, cases and scenarios once, then runs the trials it is sent.

Promise: trials run on their own event loop, so an agent that blocks it does not block requests to
stop or the driver's replies. A worker writes nothing itself: finished trials go to the driver,
which always has a request for them open.

A worker builds its agents, cases and scenarios from the same plain data that a run folder records
(the `Kit`), so it runs what a resumed run would run. Python objects given in code are the
exception: Ray pickles them. Workers on this machine see the driver's environment, folder and import
path; on other machines their own, with the project's code sent by Ray.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import socket
import sys
import tempfile
import threading
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from proctor import __version__
from proctor.agents.registry import UnknownAgentError, kind_class
from proctor.errors import ProctorError
from proctor.llm.rate_limits import limited_providers, limiters_in_force
from proctor.llm.retry import Transient
from proctor.runs.trial import PlannedTrial, TrialError, TrialStatus
from proctor.spec.config import find_project_file
from proctor.trace.redact import default_redactor
from proctor.trials._ray.cluster import ray_package
from proctor.trials._ray.messages import (
    SLOW_DOWN,
    Ask,
    Done,
    DriverClient,
    DriverLimiter,
    DriverStore,
    Parcel,
    answer_of,
    orders_of,
    pack,
    trial_as_json,
)
from proctor.trials.prepare import closing
from proctor.trials.run_trial import run_trial

if TYPE_CHECKING:
    from proctor.agents.base import AgentConfig
    from proctor.llm.cassette import Cassette
    from proctor.trials.prepare import RunContext


LINGER = 0.01
"""Seconds a parcel waits for more while there is work left: short trials travel together."""

TURN = 32
"""Trials after which one gives the others a turn, as in the local executor."""


class Outbox:
    """What the driver is to be told, filled from any thread and emptied by who asks for it."""

    def __init__(self) -> None:
        self._done: list[Done] = []
        self._asks: list[Ask] = []
        self._lock = threading.Lock()
        self._told = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._signalled = False

    def add(self, item: Done | Ask) -> None:
        """Have something to tell."""
        with self._lock:
            if isinstance(item, Done):
                self._done.append(item)
            else:
                self._asks.append(item)
            first, self._signalled = not self._signalled, True
        if first:
            self._loop.call_soon_threadsafe(self._told.set)

    async def wait(self) -> None:
        """Until there is something to tell."""
        await self._told.wait()

    @property
    def asks(self) -> bool:
        """Whether somebody waits for the driver."""
        return bool(self._asks)

    def empty(self) -> tuple[list[Done], list[Ask]]:
        """All there is to tell."""
        with self._lock:
            done, self._done = self._done, []
            asks, self._asks = self._asks, []
            self._signalled = False
            self._told.clear()
        return done, asks


class Floor:
    """Trials on an event loop in a thread of its own, at most `slots` at a time."""

    def __init__(self, unpacked: Unpacked, outbox: Outbox, asking: DriverClient, kit: Kit) -> None:
        self._unpacked = unpacked
        self._outbox = outbox
        self._limiters = {name: DriverLimiter(name, asking) for name in kit.rates}
        self._waiting: deque[PlannedTrial] = deque()
        self._lanes: set[asyncio.Task[None]] = set()
        self._slots = 1
        self._stopping = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="trials", daemon=True)
        self._thread.start()
        context = unpacked.context
        context.checkpoints = DriverStore(asking)
        context.on_transient = lambda _agent, reason: _on_transient(asking, reason)

    @property
    def busy(self) -> bool:
        """Whether orders wait for a place."""
        return bool(self._waiting)

    def order(self, orders: list[PlannedTrial], slots: int) -> None:
        """Perform these, so many at a time; called from another thread."""
        if orders:
            self._loop.call_soon_threadsafe(self._start, orders, slots)

    def _start(self, orders: list[PlannedTrial], slots: int) -> None:
        self._stopping = False
        self._slots = slots
        self._waiting.extend(orders)
        for _ in range(min(len(self._waiting), slots - len(self._lanes))):
            self._lanes.add(self._loop.create_task(self._lane()))

    async def _lane(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            with limiters_in_force(self._limiters):
                await self._perform_all(task)
        finally:
            # In the same turn as the look at what waits: else a new order could find nobody.
            self._lanes.discard(task)

    async def _perform_all(self, task: asyncio.Task[Any]) -> None:
        count, context = 0, self._unpacked.context
        while self._waiting and not self._stopping and len(self._lanes) <= self._slots:
            planned = self._waiting.popleft()
            try:
                trial, trace = await run_trial(planned, context)
            except Exception as error:  # noqa: BLE001 (ours: the driver waits for every trial)
                trial, trace = planned.trial(TrialStatus.INFRA_ERROR), None
                reason = str(error) or repr(error)
                trial.error = TrialError(type(error).__name__, reason, place="worker")
            if self._stopping:
                task.uncancel()
            self._outbox.add(Done(planned.key, trial_as_json(trial), trace))
            count += 1
            if count % TURN == 0:
                await asyncio.sleep(0)

    def stop(self) -> None:
        """Cancel what runs and give back what was never begun; called from another thread."""
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._stopping = True
        while self._waiting:
            self._outbox.add(Done(self._waiting.popleft().key, None))
        for lane in self._lanes:
            lane.cancel()

    async def close(self) -> None:
        """End the loop; connections of judges are closed in it."""

        async def closed() -> None:
            async with closing(self._unpacked.context.judges):
                pass

        await asyncio.wrap_future(self._run(closed()))
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()
        self._unpacked.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop)


def _on_transient(asking: DriverClient, reason: Transient) -> None:
    if reason.rate_limited:
        asking.tell(SLOW_DOWN)


class Worker:
    """The actor. Its methods are all the driver ever calls."""

    def __init__(self) -> None:
        self._outbox: Outbox | None = None
        self._asking: DriverClient | None = None
        self._floor: Floor | None = None
        self._unpacked: Unpacked | None = None
        self._loading = asyncio.Lock()

    async def load(self, digest: str, kit: Kit) -> dict[str, Any]:
        """Make everything ready, unless it is; says who we are, or what is wrong."""
        async with self._loading:
            return await self._load(digest, kit)

    async def _load(self, digest: str, kit: Kit) -> dict[str, Any]:
        unpacked = self._unpacked
        if unpacked is None or unpacked.digest != digest:
            await self._unload()
            try:
                # Takes a while, and there are heartbeats of Ray to be answered.
                unpacked = await asyncio.to_thread(Unpacked, kit)
            except ProctorError as error:
                return {"error": error.message, "where": error.where, "hint": error.hint}
            except Exception as error:  # noqa: BLE001 (users' code fails in any way)
                return {"error": f"{type(error).__name__}: {error}"}
            outbox = self._outbox = Outbox()
            asking = self._asking = DriverClient(outbox.add)
            self._unpacked = unpacked
            self._floor = Floor(unpacked, outbox, asking, kit)
        return {"pid": os.getpid(), "host": socket.gethostname(), "version": __version__}

    async def _unload(self) -> None:
        floor, self._floor, self._unpacked = self._floor, None, None
        if floor is not None:
            await floor.close()

    async def exchange(self, digest: str, orders: bytes, slots: int) -> bytes:
        """Take orders, then wait until there is something to tell."""
        floor, outbox, unpacked = self._floor, self._outbox, self._unpacked
        if floor is None or outbox is None or unpacked is None or unpacked.digest != digest:
            raise RuntimeError("orders for another run than was loaded")
        floor.order(orders_of(orders), slots)
        await outbox.wait()
        if floor.busy and not outbox.asks:
            await asyncio.sleep(LINGER)
        done, asks = outbox.empty()
        return pack(Parcel(tuple(done), tuple(asks), unpacked.recorded()))

    async def answer(self, answer: bytes) -> None:
        """The driver has granted a wish."""
        if self._asking is not None:
            self._asking.answered(answer_of(answer))

    async def stop(self) -> None:
        """Cancel what runs."""
        if self._floor is not None:
            self._floor.stop()


NOT_INHERITED = ("RAY_", "PYTHON")
"""Variables by which Ray and Python start processes; a worker has its own."""

SENT_BESIDE = {"kind": "python", "target": "sent:beside"}
"""Stands for an agent that is no plain data where a suite must have one."""


@dataclass(frozen=True)
class Kit:
    """Plain data, save for the `objects`."""

    digest: str
    """Two kits with the same digest make the same context."""
    version: str
    record: Mapping[str, Any]
    """Suite, options, settings and experiment, as a run folder keeps them."""
    objects: Mapping[str, AgentConfig]
    """Agents that were made of Python objects, by name."""
    rates: tuple[str, ...]
    """Providers whose permits the driver hands out."""
    cassette: tuple[str, str, bytes] | None = None
    """Mode, name and content of the cassette in use."""
    surroundings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Environment, folder and import path of the driver; empty where they mean nothing."""
    sent_root: str | None = None
    """The folder whose content Ray has sent: there it is the folder a worker stands in."""


# -- in the driver -------------------------------------------------------------------------------


def kit_of(ready: RunContext, *, shares_files: bool) -> Kit:
    """What workers need for a run; call it where its rates and its cassette are in force."""
    objects = {name: config for name, config in ready.agents.items() if _only_here(config)}
    record = _record(ready, {**ready.written, **dict.fromkeys(objects, SENT_BESIDE)})
    cassette = _cassette(ready)
    surroundings = _surroundings() if shares_files else {}
    once = bool(objects) or cassette is not None
    versions = {name: config.version() for name, config in ready.agents.items()}
    known = (__version__, record, versions, limited_providers(), surroundings)
    content = msgspec.json.encode(known, enc_hook=str)
    return Kit(
        digest=uuid.uuid4().hex if once else hashlib.sha256(content).hexdigest(),
        version=__version__,
        record=record,
        objects=objects,
        rates=limited_providers(),
        cassette=cassette,
        surroundings=surroundings,
        sent_root=None if shares_files else str(project_root(ready)),
    )


def _only_here(config: AgentConfig) -> bool:
    """Whether an agent is more than its options: made of an object, or of a class nobody lists."""
    if config.made_in_code:
        return True
    try:
        return kind_class(str(config.kind)) is not type(config)
    except UnknownAgentError:
        return True


def project_root(ready: RunContext) -> Path:
    """The folder of a run's code: that of the project's file, else the suite's own."""
    found = find_project_file(ready.suite.folder)
    return (ready.suite.folder if found is None else found.parent).resolve()


def _record(ready: RunContext, agents: Mapping[str, Any]) -> dict[str, Any]:
    """As `spec_record`, with what a folder must not hold: these words are not kept."""
    from proctor.trials.prepare import written_settings, written_suite

    return {
        "base_dir": str(ready.suite.folder.resolve()),
        "options": ready.options.record(),
        "settings": written_settings(ready.configuration),
        **({} if ready.design is None else {"experiment": ready.design.record()}),
        "suite": written_suite(ready, agents),
    }


def _cassette(ready: RunContext) -> tuple[str, str, bytes] | None:
    options = ready.options
    path = options.record_to or options.replay_from
    if path is None:
        return None
    mode = "record" if options.record_to is not None else "replay"
    return mode, Path(path).name, Path(path).read_bytes()


def _surroundings() -> dict[str, Any]:
    return {
        "environ": {k: v for k, v in os.environ.items() if not k.startswith(NOT_INHERITED)},
        "folder": str(Path.cwd()),
        "path": [place for place in sys.path if place and Path(place).is_dir()],
    }


@contextmanager
def sent_by_value(kit: Kit) -> Generator[None]:
    """Inside, objects of modules that a worker could not import are sent with all they need."""
    cloudpickle = ray_package().cloudpickle
    modules = {name: sys.modules.get(name) for name in _modules_of(kit)}
    strange = [module for name, module in modules.items() if module and not _importable(name)]
    for module in strange:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in strange:
            cloudpickle.unregister_pickle_by_value(module)


def _modules_of(kit: Kit) -> set[str]:
    found: set[str] = set()
    for config in kit.objects.values():
        made = getattr(config, "loaded", None)
        name = getattr(made, "__module__", None) or type(made).__module__
        found.add(str(name))
    return found - {"__main__", "builtins"}


def _importable(name: str) -> bool:
    """Whether importing the name in another process would find the same file."""
    loaded = sys.modules.get(name)
    known = getattr(loaded, "__file__", None)
    if known is None:
        return True
    top = name.partition(".")[0]
    try:
        held = {key: sys.modules.pop(key) for key in list(sys.modules) if key == name}
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.modules.update(held)
    except (ImportError, ValueError, AttributeError):
        return False
    return spec is not None and spec.origin == known and bool(top)


# -- in a worker ---------------------------------------------------------------------------------


class Unpacked:
    """A run's context on a worker, and its cassette; `close` ends it."""

    def __init__(self, kit: Kit) -> None:
        if kit.version != __version__:
            raise ProctorError(
                f"this worker has Proctor {__version__}, the driver {kit.version}",
                hint="install the same version on every machine",
            )
        self.digest = kit.digest
        _stand_in(kit.surroundings)
        self._cassette, self._cassette_file, self._seen = self._begun(kit)
        self.context = _context(kit)

    def _begun(self, kit: Kit) -> tuple[Cassette | None, Path | None, int]:
        if kit.cassette is None:
            return None, None, 0
        from proctor.llm.cassette import Cassette

        mode, name, content = kit.cassette
        path = Path(tempfile.mkdtemp(prefix="proctor-cassette-")) / name
        path.write_bytes(content)
        cassette = Cassette(path, "record" if mode == "record" else "replay", append=True)
        cassette.__enter__()
        return cassette, path, len(content)

    def recorded(self) -> bytes:
        """What was added to the cassette since this was last asked."""
        cassette, path = self._cassette, self._cassette_file
        if cassette is None or path is None or cassette.mode != "record":
            return b""
        with path.open("rb") as file:
            file.seek(self._seen)
            new = file.read()
        self._seen += len(new)
        return new

    def close(self) -> None:
        """Let go of the cassette."""
        if self._cassette is not None and self._cassette_file is not None:
            self._cassette.__exit__(None, None, None)
            self._cassette_file.unlink(missing_ok=True)
            self._cassette_file.parent.rmdir()


def _stand_in(surroundings: Mapping[str, Any]) -> None:
    """Be where the driver is, as far as code can tell."""
    if not surroundings:
        return
    os.environ.update(surroundings["environ"])
    os.chdir(surroundings["folder"])
    places: list[str] = surroundings["path"]
    sys.path[:] = [*places, *(own for own in sys.path if own not in places)]
    # What is secret follows from the environment.
    default_redactor.cache_clear()


def _context(kit: Kit) -> RunContext:
    from proctor.trials.prepare import context_for
    from proctor.trials.resume import parts_of
    from proctor.trials.select_agents import choose_agents

    record = kit.record if kit.sent_root is None else _moved(kit.record, kit.sent_root)
    suite, options, configuration, design = parts_of(record, "the run")
    written = [name for name in suite.all_agents if name not in kit.objects]
    found = choose_agents(suite, written, configuration) if written else {}
    agents = {**{name: agent.config for name, agent in found.items()}, **kit.objects}
    for config in agents.values():
        # Code that cannot be imported here is one error now, not one for every trial.
        config.version()
    return context_for(suite, options, agents, suite.cases, configuration, design)


Mapped = dict[str, dict[str, Any]]


def _moved(record: Mapping[str, Any], root: str) -> dict[str, Any]:
    """The record with every folder of the project where Ray has put it."""
    here = Path.cwd()

    def moved(folder: str) -> str:
        path = Path(folder)
        return str(here / path.relative_to(root)) if path.is_relative_to(root) else folder

    new = dict(record)
    new["base_dir"] = moved(new["base_dir"])
    agents: dict[str, Any] = new["suite"]["agents"]
    new["suite"] = {
        **new["suite"],
        "agents": {name: _moved_agent(agent, moved) for name, agent in agents.items()},
    }
    if "experiment" in new:
        new["experiment"] = _moved_experiment(new["experiment"], moved)
    return new


def _moved_agent(agent: Any, moved: Callable[[str], str]) -> Any:
    if not isinstance(agent, dict) or "base_dir" not in agent:
        return cast("Any", agent)
    options = cast("dict[str, Any]", agent)
    return {**options, "base_dir": moved(options["base_dir"])}


def _moved_experiment(record: Mapping[str, Any], moved: Callable[[str], str]) -> dict[str, Any]:
    origins: Mapped = record.get("origins") or {}
    scenarios: dict[str, Any] = record.get("scenarios") or {}
    templates: Mapped = scenarios.get("templates") or {}
    return {
        **record,
        "origins": {
            case: {key: moved(folder) for key, folder in origin.items()}
            for case, origin in origins.items()
        },
        "scenarios": {
            **scenarios,
            "templates": {
                name: {**kept, "catalog": moved(kept["catalog"])}
                for name, kept in templates.items()
            },
        },
    }

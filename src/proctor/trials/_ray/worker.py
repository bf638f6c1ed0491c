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
from collections.abc import Generator, Iterable, Mapping
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
from proctor.sanitize import json_bytes
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
    decode_orders,
    decode_reply,
    encode,
)
from proctor.trials.prepare import (
    RunContext,
    closing,
    context_for,
    load_early,
    written_settings,
    written_suite,
)
from proctor.trials.resume import parts_of
from proctor.trials.run_trial import run_trial
from proctor.trials.select_agents import choose_agents

if TYPE_CHECKING:
    from proctor.agents.base import AgentConfig
    from proctor.llm.cassette import Cassette


LINGER = 0.01
"""Seconds a parcel waits for more while there is work left: short trials travel together."""

TURN = 32
"""Trials after which a task yields to the others, as in the local executor."""


class Outbox:
    """Messages for the driver, filled from any thread and emptied by the driver's open request."""

    def __init__(self) -> None:
        self._done: list[Done] = []
        self._asks: list[Ask] = []
        self._lock = threading.Lock()
        self._filled = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._signalled = False

    def add(self, item: Done | Ask) -> None:
        """Queue a message."""
        with self._lock:
            if isinstance(item, Done):
                self._done.append(item)
            else:
                self._asks.append(item)
            first, self._signalled = not self._signalled, True
        # One wake-up for all messages until the driver takes them.
        if first:
            self._loop.call_soon_threadsafe(self._filled.set)

    async def wait(self) -> None:
        """Wait until there is a message."""
        await self._filled.wait()

    @property
    def asks(self) -> bool:
        """Whether a trial waits for a reply of the driver."""
        return bool(self._asks)

    def empty(self) -> tuple[list[Done], list[Ask]]:
        """Return all messages and remove them."""
        with self._lock:
            done, self._done = self._done, []
            asks, self._asks = self._asks, []
            self._signalled = False
            self._filled.clear()
        return done, asks


class TrialLoop:
    """Runs trials on an event loop in its own thread, at most `slots` at a time."""

    def __init__(
        self, loaded: LoadedKit, outbox: Outbox, driver: DriverClient, rates: Iterable[str]
    ) -> None:
        self._loaded = loaded
        self._outbox = outbox
        self._limiters = {name: DriverLimiter(name, driver) for name in rates}
        self._waiting: deque[PlannedTrial] = deque()
        self._lanes: set[asyncio.Task[None]] = set()
        self._slots = 1
        self._stopping = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="trials", daemon=True)
        self._thread.start()

        def on_transient(_agent: str, reason: Transient) -> None:
            if reason.rate_limited:
                driver.notify(SLOW_DOWN)

        loaded.context.checkpoints = DriverStore(driver)
        loaded.context.on_transient = on_transient

    @property
    def busy(self) -> bool:
        """Whether trials wait for a slot."""
        return bool(self._waiting)

    def start(self, trials: list[PlannedTrial], slots: int) -> None:
        """Run these trials, `slots` at a time; called from another thread."""

        def start_lanes() -> None:
            self._stopping = False
            self._slots = slots
            self._waiting.extend(trials)
            for _ in range(min(len(self._waiting), slots - len(self._lanes))):
                self._lanes.add(self._loop.create_task(self._lane()))

        if trials:
            self._loop.call_soon_threadsafe(start_lanes)

    async def _lane(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        count, context = 0, self._loaded.context
        try:
            with limiters_in_force(self._limiters):
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
                    self._outbox.add(Done(planned.key, json_bytes(trial), trace))
                    count += 1
                    if count % TURN == 0:
                        await asyncio.sleep(0)
        finally:
            # In the same turn as the check of `_waiting`: otherwise a trial that arrives in
            # between would find no lane.
            self._lanes.discard(task)

    def stop(self) -> None:
        """Cancel the running trials and return the waiting ones; called from another thread."""

        def cancel() -> None:
            self._stopping = True
            while self._waiting:
                self._outbox.add(Done(self._waiting.popleft().key, None))
            for lane in self._lanes:
                lane.cancel()

        self._loop.call_soon_threadsafe(cancel)

    async def close(self) -> None:
        """End the loop; connections of judges are closed in it."""

        async def close_judges() -> None:
            async with closing(self._loaded.context.judges):
                pass

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(close_judges(), self._loop))
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()
        self._loaded.close()


class Worker:
    """The Ray actor. The driver calls these methods only."""

    def __init__(self) -> None:
        self._outbox: Outbox | None = None
        self._driver: DriverClient | None = None
        self._trials: TrialLoop | None = None
        self._loaded: LoadedKit | None = None
        self._loading = asyncio.Lock()

    async def load(self, digest: str, kit: Kit) -> dict[str, Any]:
        """Load a kit unless it is loaded; return who we are, or the error."""
        async with self._loading:
            if self._loaded is None or self._loaded.digest != digest:
                trials, self._trials, self._loaded = self._trials, None, None
                if trials is not None:
                    await trials.close()
                try:
                    # In a thread: it takes a while, and Ray expects heartbeats.
                    loaded = await asyncio.to_thread(LoadedKit, kit)
                except ProctorError as error:
                    return {"error": error.message, "where": error.where, "hint": error.hint}
                except Exception as error:  # noqa: BLE001 (users' code fails in any way)
                    return {"error": f"{type(error).__name__}: {error}"}
                self._loaded, self._outbox = loaded, Outbox()
                self._driver = DriverClient(self._outbox.add)
                self._trials = TrialLoop(loaded, self._outbox, self._driver, kit.rates)
        return {"pid": os.getpid(), "host": socket.gethostname(), "version": __version__}

    async def exchange(self, digest: str, orders: bytes, slots: int) -> bytes:
        """Take trials, then wait until there is something to send."""
        trials, outbox, loaded = self._trials, self._outbox, self._loaded
        if trials is None or outbox is None or loaded is None or loaded.digest != digest:
            raise RuntimeError("orders for another run than was loaded")
        trials.start(decode_orders(orders), slots)
        await outbox.wait()
        if trials.busy and not outbox.asks:
            await asyncio.sleep(LINGER)
        done, asks = outbox.empty()
        return encode(Parcel(tuple(done), tuple(asks), loaded.recorded()))

    async def reply(self, reply: bytes) -> None:
        """Receive the driver's reply to a request."""
        if self._driver is not None:
            self._driver.resolve(decode_reply(reply))

    async def stop(self) -> None:
        """Cancel the running trials."""
        if self._trials is not None:
            self._trials.stop()


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
    rates: tuple[str, ...]
    """Providers whose rate limits the driver applies."""
    cassette: tuple[str, str, bytes] | None = None
    """Mode, name and content of the cassette in use."""
    surroundings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Environment, folder and import path of the driver; empty on other machines."""
    sent_root: str | None = None
    """The folder whose content Ray has sent; it is the current folder of the worker."""


# -- in the driver -------------------------------------------------------------------------------


def kit_of(context: RunContext, *, shares_files: bool) -> Kit:
    """Return what workers need for a run; call it inside its rate limits and its cassette."""
    objects = {name: config for name, config in context.agents.items() if _is_object(config)}
    # As `spec_record`, but with secrets: a kit is never stored.
    record = {
        "base_dir": str(context.suite.folder.resolve()),
        "options": context.options.record(),
        "settings": written_settings(context.configuration),
        **({} if context.design is None else {"experiment": context.design.record()}),
        "suite": written_suite(context, {**context.written, **dict.fromkeys(objects, SENT_BESIDE)}),
    }
    cassette: tuple[str, str, bytes] | None = None
    if path := context.options.record_to or context.options.replay_from:
        mode = "record" if context.options.record_to is not None else "replay"
        cassette = (mode, Path(path).name, Path(path).read_bytes())
    surroundings: dict[str, Any] = {}
    if shares_files:
        surroundings = {
            "environ": {k: v for k, v in os.environ.items() if not k.startswith(NOT_INHERITED)},
            "folder": str(Path.cwd()),
            "path": [place for place in sys.path if place and Path(place).is_dir()],
        }
    versions = {name: config.version() for name, config in context.agents.items()}
    known = (__version__, record, versions, limited_providers(), surroundings)
    # The plain data does not show a change of objects or cassettes: they are sent for every run.
    unique = bool(objects) or cassette is not None
    content = msgspec.json.encode(known, enc_hook=str)
    return Kit(
        digest=uuid.uuid4().hex if unique else hashlib.sha256(content).hexdigest(),
        version=__version__,
        record=record,
        objects=objects,
        rates=limited_providers(),
        cassette=cassette,
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


# -- in a worker ---------------------------------------------------------------------------------


class LoadedKit:
    """The context of a run on a worker, and its cassette."""

    def __init__(self, kit: Kit) -> None:
        if kit.version != __version__:
            raise ProctorError(
                f"this worker has Proctor {__version__}, the driver {kit.version}",
                hint="install the same version on every machine",
            )
        self.digest = kit.digest
        if kit.surroundings:
            # Code must find what it would find in the driver.
            os.environ.update(kit.surroundings["environ"])
            os.chdir(kit.surroundings["folder"])
            places: list[str] = kit.surroundings["path"]
            sys.path[:] = [*places, *(own for own in sys.path if own not in places)]
            # The secrets to remove come from the environment.
            default_redactor.cache_clear()
        self._cassette: Cassette | None = None
        if kit.cassette is not None:
            from proctor.llm.cassette import Cassette

            mode, name, content = kit.cassette
            self._file = Path(tempfile.mkdtemp(prefix="proctor-cassette-")) / name
            self._file.write_bytes(content)
            self._sent = len(content)
            self._cassette = Cassette(
                self._file, "record" if mode == "record" else "replay", append=True
            )
            self._cassette.__enter__()
        self.context = _context(kit)

    def recorded(self) -> bytes:
        """Return what was added to the cassette since the last call."""
        if self._cassette is None or self._cassette.mode != "record":
            return b""
        with self._file.open("rb") as file:
            file.seek(self._sent)
            new = file.read()
        self._sent += len(new)
        return new

    def close(self) -> None:
        """Close and delete the worker's copy of the cassette."""
        if self._cassette is not None:
            self._cassette.__exit__(None, None, None)
            self._file.unlink(missing_ok=True)
            self._file.parent.rmdir()


def _context(kit: Kit) -> RunContext:
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
    for config in agents.values():
        # Code that cannot be imported here is one error now, not one for every trial.
        config.version()
    context = context_for(suite, options, agents, suite.cases, configuration, design)
    load_early(context)
    return context


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

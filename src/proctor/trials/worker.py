"""The processes that run the code of users: a keeper, and the worker that it starts.

The driver (`trials/pool.py`) plans, writes and reports; it imports no agent and no custom check.
A keeper executes no code of users either. It forks a worker, and another one when that has died,
and ends a worker together with everything it started: orphans are adopted by the keeper, whatever
session they are in. A worker imports the agents and checks, then runs the trials it is sent, many
at a time on one event loop, and sends back what ended.

Promise: nothing that was judged in a damaged process leaves it. Before each message the worker
compares what all its trials share (working directory, descriptors, limits, functions of asyncio and
others) with the state after the import; if an agent has changed it, the results that were not sent
yet are withheld and the driver repeats those trials, each alone. A worker writes nothing itself.
"""

from __future__ import annotations

import asyncio
import atexit
import builtins
import concurrent.futures.thread
import contextlib
import copy
import gc
import hashlib
import io
import json
import math
import operator
import os
import random
import re
import secrets
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Container, Generator, Iterator, Mapping
from pathlib import Path
from time import sleep
from types import CoroutineType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec

from proctor import __version__, imports
from proctor.agents.base import AGENT_ERROR, AgentRequest
from proctor.background import TrialExecutor, threads
from proctor.errors import ProctorError
from proctor.files import remove_tree
from proctor.gateway.budget import RunLimitReached
from proctor.gateway.observe import observing
from proctor.llm.rate_limits import limiters_in_force
from proctor.llm.retry import Transient
from proctor.processes import ProcessGroup, descendants, kill
from proctor.runs.trial import PlannedTrial, TrialError, TrialStatus
from proctor.sanitize import json_bytes
from proctor.trials.executor import MANY, Lateness
from proctor.trials.messages import (
    SLOW_DOWN,
    Ask,
    BeginRun,
    Done,
    DriverClient,
    DriverLedger,
    DriverLimiter,
    DriverReply,
    DriverStore,
    EndWorker,
    LoadCode,
    Loaded,
    LoadedAgent,
    Orders,
    Parcel,
    StopTrials,
    decode_order,
    frame,
    take_frames,
)
from proctor.trials.prepare import RunContext, check_names, closing, load_code, load_early
from proctor.trials.run_trial import TrialTimeout, fail_by_agent, run_trial

if TYPE_CHECKING:
    from proctor.llm.cassette import Cassette

LINGER = 0.01
"""Seconds a parcel waits for more while there is work left: short trials travel together."""

TURN = 32
"""Trials after which a task yields to the others, as in the local executor."""

TICK = 0.1
"""Seconds between two looks at whether the event loop is blocked."""

WORN_AFTER = 0.05
"""CPU seconds that threads of ended trials may use before the worker is replaced."""

CUT_OFF = 113
"""Exit code of a worker that cannot talk to its driver any more."""

CHUNK = 1 << 18

MOST_WRAPPERS = 10
"""Wrappers around a function of a library, one in another, that count as instrumentation."""

# -- a worker ------------------------------------------------------------------------------------


class Surroundings:
    """What all trials of a process share, as it was before the first of them."""

    # What Proctor's own code calls between two awaits of agents, besides itself and asyncio, and
    # what the code of other agents and of checks calls most.
    MODULES = (
        builtins, concurrent.futures.thread, copy, hashlib, json, json.decoder, json.encoder, math,
        msgspec, msgspec.json, msgspec.msgpack, operator, os, random, re, socket, subprocess,
        tempfile, threading, time,
    )  # fmt: skip

    # What a worker has from the driver and no trial calls: leaving it out saves time.
    UNUSED = tuple(
        f"proctor.{name}" for name in ("api", "cli", "report", "results", "spec", "stats")
    )

    def __init__(self, connection: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._descriptor = connection.fileno()
        self._connection = os.fstat(self._descriptor)
        ours = [
            module
            for name, module in sys.modules.items()
            if name.startswith(("asyncio", "proctor")) and not name.startswith(self.UNUSED)
        ]
        client = filter(None, [sys.modules.get("httpx")])  # of judges and of other agents
        self._modules = {each.__name__: each for each in (*self.MODULES, *ours, *client)}
        kinds = {f"the loop's {kind.__name__}": kind for kind in type(loop).__mro__[:-1]}
        classes = {
            f"{name}.{value.__qualname__}": value
            for name, module in self._modules.items()
            for value in vars(module).values()
            if isinstance(value, type) and value.__module__ == name
        }
        holders = [
            *(_Holder.of(name, vars(each), callable) for name, each in self._modules.items()),
            *(_Holder.of(name, vars(each), callable) for name, each in kinds.items()),
            *(_Holder.of(name, vars(each), _is_method) for name, each in classes.items()),
        ]
        self._holders = [each for each in holders if each.names]
        self._getters: list[Callable[[Any], tuple[Any, ...]]] = [
            operator.itemgetter(*each.names) for each in self._holders
        ]
        self._namespaces = [each.namespace for each in self._holders]
        self._values = [each.values for each in self._holders]
        # A function can be replaced from within, too.
        found = {
            id(value): value
            for holder in self._holders
            for value in holder.values
            if isinstance(value, FunctionType)
        }
        self._functions = tuple(found.values())
        self._codes = tuple(function.__code__ for function in self._functions)
        self._loop: dict[str, Any] = getattr(loop, "__dict__", {})  # loops in C have none
        self._methods = {name for kind in kinds.values() for name in vars(kind)}
        self._folder = _working_folder()
        self._temporary = tempfile.gettempdir()
        self._limits = _limits()
        self._owner = _owner()

    def _all_same(self) -> bool:
        """Compare all values of all holders."""
        try:
            found: Iterator[object] = _map(_call, self._getters, self._namespaces)
            return _all(_map(_eq, found, self._values))
        except KeyError:
            return False

    def damage(self) -> str | None:
        """Return what the code of an agent has changed, or None."""
        found = os.fstat(self._descriptor)
        if (found.st_dev, found.st_ino) != (self._connection.st_dev, self._connection.st_ino):
            raise OSError("the descriptor of the connection was replaced")
        # nest_asyncio is made for this, and keeps what it replaces working.
        nested = hasattr(asyncio, "_nest_patched")
        if not self._all_same():
            for holder in self._holders:
                if nested and holder.name.startswith(("asyncio", "the loop's")):
                    continue
                if name := holder.replaced():
                    return f"replaced {holder.name}.{name}"
        if _tuple(_map(_code, self._functions)) != self._codes:
            return "replaced the code of a function"
        if (hidden := self._methods & self._loop.keys()) and not nested:
            return f"replaced {min(hidden)} of the event loop"
        executor, factory = map(self._loop.get, ("_default_executor", "_task_factory"))
        closed = getattr(concurrent.futures.thread, "_shutdown", False)  # those of all loops
        if closed or (executor is not None and getattr(executor, "_shutdown", True)):
            return "shut down the threads of the event loop"
        # Another factory of the library does the same work.
        if factory is not None and not str(getattr(factory, "__module__", "")).startswith("async"):
            return "replaced the task factory of the event loop"
        for name, module in self._modules.items():
            if sys.modules.get(name) is not module:
                return f"removed {name} from sys.modules"
        if _working_folder() != self._folder:
            return "changed the working directory of the process"
        if tempfile.tempdir != self._temporary:
            return "changed the folder of temporary files"
        if _limits() != self._limits:
            return "changed the limits of the process"
        try:
            if _owner() != self._owner:
                return "changed the umask, user or group of the process"
        except OSError:
            return "used all file descriptors of the process"
        for number, name in ((1, "output"), (2, "error")):
            try:
                os.fstat(number)
            except OSError:
                return f"closed standard {name}"
        return None


# Some 10,000 values are compared before each message: in C, and by identity first, as tuples are.
# An agent may replace these functions, too, so they have other names here.
_all, _tuple = all, tuple
_map: Callable[..., Iterator[Any]] = map
_eq: Callable[[object, object], bool] = operator.eq
_call: Callable[..., Any] = operator.call
_code = operator.attrgetter("__code__")


class _Holder(NamedTuple):
    """A module or class, with the values of some of its names."""

    name: str
    namespace: Mapping[str, Any]
    names: tuple[str, ...]
    values: tuple[Any, ...]

    @classmethod
    def of(cls, name: str, namespace: Mapping[str, Any], counts: Callable[[Any], bool]) -> _Holder:
        names = [key for key, value in namespace.items() if counts(value)]
        names += names[:1]  # of a single name, `itemgetter` returns no tuple
        return cls(name, namespace, tuple(names), tuple(map(namespace.__getitem__, names)))

    def replaced(self) -> str | None:
        """Return a name that has another value now, or None."""
        for name, value in zip(self.names, self.values, strict=True):
            found = self.namespace.get(name)
            if found is not value and (self.name.startswith("proctor") or not _wraps(found, value)):
                return name
        return None


def _wraps(found: Any, original: object) -> bool:
    """Return whether `found` calls the original, as what instruments libraries does."""
    for _ in range(MOST_WRAPPERS):
        found = getattr(found, "__wrapped__", None)
        if found is original:
            return True
    return False


def _is_method(value: object) -> bool:
    return isinstance(value, (FunctionType, classmethod, staticmethod, property))


def _working_folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 (cheaper, and it is only compared)
    except OSError:
        return None


def _limits() -> tuple[Any, ...]:
    try:
        import resource
    except ImportError:  # Windows
        return (sys.getrecursionlimit(),)
    kinds = [value for name, value in vars(resource).items() if name.startswith("RLIMIT_")]
    return (sys.getrecursionlimit(), *map(resource.getrlimit, kinds))


def _owner() -> list[bytes]:
    """Return what new files get; asking the system for the umask would change it."""
    if sys.platform != "linux":
        return []
    with open("/proc/self/status", "rb") as status:  # noqa: PTH123 (called often)
        return [line for line in status if line.startswith((b"Umask", b"Uid", b"Gid"))]


class Outbox:
    """Messages for the driver, filled from any thread and sent by one of its own."""

    def __init__(self, connection: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._surroundings = Surroundings(connection, loop)
        self._done: list[Done] = []
        self._asks: list[Ask] = []
        self._lock = threading.Lock()
        self._filled = threading.Event()
        self.waits_for_more: Callable[[], bool] = lambda: False
        """Whether more trials will end soon."""
        self.recorded: Callable[[], bytes] = lambda: b""
        """Returns what was added to the cassette."""
        self.worn = False
        """Whether code of ended trials takes time from the others."""
        threading.Thread(target=self._send, name="outbox", daemon=True).start()

    def add(self, item: Done | Ask | None = None) -> None:
        """Queue a message; None sends at least an empty parcel."""
        with self._lock:
            if isinstance(item, Done):
                self._done.append(item)
            elif item is not None:
                self._asks.append(item)
        self._filled.set()

    def _send(self) -> None:
        while True:
            self._filled.wait()
            if self.waits_for_more() and not self._asks:
                sleep(LINGER)
            with self._lock:
                done, self._done = self._done, []
                asks, self._asks = self._asks, []
                self._filled.clear()
            try:
                damage = self._surroundings.damage()
                parcel = Parcel(tuple(done), tuple(asks), self.recorded(), worn=self.worn)
                if damage is not None:
                    parcel = Parcel(damage=damage)
                self._connection.sendall(frame(parcel))
            except BaseException:  # noqa: BLE001 (whatever it is, the driver must notice)
                os._exit(CUT_OFF)
            del done, asks, parcel


class TrialLoop:
    """Runs trials on an event loop, at most `slots` at a time."""

    def __init__(
        self,
        context: RunContext,
        outbox: Outbox,
        begin: BeginRun,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._context = context
        self._outbox = outbox
        self._loop = loop
        self._waiting: deque[PlannedTrial] = deque()
        self._lanes: set[asyncio.Task[None]] = set()
        self._slots = 1
        self._stopping = False
        self._ticked = time.monotonic()
        self._stalled = 0.0
        self._lateness: Lateness | None = None
        self._burning: dict[int, float] = {}
        """Threads of ended trials, with the CPU seconds they had used when that was noticed."""
        self._driver = driver = DriverClient(outbox.add)
        self._limiters = {name: DriverLimiter(name, driver) for name in begin.rates}

        def on_transient(_agent: str, reason: Transient) -> None:
            if reason.rate_limited:
                driver.notify(SLOW_DOWN)

        context.isolated = True
        context.checkpoints = DriverStore(driver) if begin.stores else None
        context.ledger = DriverLedger(driver, context.redactor, limited=begin.budget)
        context.on_transient = on_transient
        outbox.waits_for_more = lambda: bool(self._waiting)

    def run(self, messages: Generator[msgspec.Struct]) -> None:
        """Run what the driver sends until it ends the worker."""
        threading.Thread(target=self._listen, args=(messages,), name="driver", daemon=True).start()
        self._tick()
        ended = False
        while not ended:
            try:
                self._loop.run_forever()
                ended = True
            except (KeyboardInterrupt, SystemExit):
                continue  # raised in a task of an agent, whose trial has failed by it
            except BaseException:  # noqa: BLE001 (the loop itself is broken: closed descriptors)
                os._exit(CUT_OFF)

        async def close_judges() -> None:
            async with closing(self._context.judges):
                pass

        self._loop.run_until_complete(close_judges())

    def _tick(self) -> None:
        """Add up for how long the loop was blocked, by any of the agents."""
        self._stalled, self._ticked = self.stalled, time.monotonic()
        self._loop.call_later(TICK, self._tick)
        if not self._outbox.worn and (self._context.left_running or self._burnt() > WORN_AFTER):
            self._outbox.worn = True
            self._outbox.add()

    def _burnt(self) -> float:
        """Return the CPU seconds that threads have used after the ends of their trials."""
        used = 0.0
        for thread in threads.abandoned():
            with contextlib.suppress(OSError):  # it has ended
                now = time.clock_gettime(time.pthread_getcpuclockid(thread))
                used += now - self._burning.setdefault(thread, now)
        return used

    async def _pong(self) -> None:
        """Answer by way of tasks and timers: a loop that has lost them looks alive without.

        So does one whose trials never start or go on, because an agent has stopped the lanes or
        closed their coroutines.
        """
        began = time.monotonic()
        await asyncio.sleep(2 * TICK)
        stopped = bool(self._waiting) and not self._lanes
        closed = [lane for lane in self._lanes if _is_closed(lane)]
        await asyncio.sleep(0)  # lanes that have just ended are discarded by their callbacks
        if self._ticked < began or stopped or not self._lanes.isdisjoint(closed):
            os._exit(CUT_OFF)
        self._outbox.add()

    @property
    def stalled(self) -> float:
        """Seconds for which nothing could run on the loop."""
        return self._stalled + max(0.0, time.monotonic() - self._ticked - 2 * TICK)

    def _listen(self, messages: Generator[msgspec.Struct]) -> None:
        for message in messages:
            if isinstance(message, DriverReply):
                # Not on the loop: an agent may block it while it waits for this.
                self._driver.resolve(message)
            else:
                self._loop.call_soon_threadsafe(self._handle, message)
        os._exit(0)  # the driver has gone

    def _handle(self, message: msgspec.Struct) -> None:
        if isinstance(message, Orders):
            self._stopping = False
            self._slots = message.slots
            if self._slots >= MANY and self._lateness is None:
                self._lateness = Lateness(self._slots)
            self._waiting.extend(message.trials)
            self._fill()
        elif isinstance(message, StopTrials):
            self._stopping = True
            while self._waiting:
                self._outbox.add(Done(self._waiting.popleft().key))
            for lane in self._lanes:
                lane.cancel()
        elif isinstance(message, EndWorker):
            if self._lateness is not None:
                self._lateness.report()
            self._loop.stop()
        else:
            self._ponging = self._loop.create_task(self._pong())

    def _fill(self) -> None:
        """Start lanes for the trials that wait, within the slots."""
        if not self._stopping:
            for _ in range(min(len(self._waiting), self._slots - len(self._lanes))):
                lane = self._loop.create_task(self._lane())
                self._lanes.add(lane)
                # Not at the end of the lane: one that is cancelled before it starts never ends.
                lane.add_done_callback(self._lane_ended)

    def _lane_ended(self, lane: asyncio.Task[None]) -> None:
        self._lanes.discard(lane)
        if not lane.cancelled() and lane.exception() is not None:
            # Its trial can be neither reported nor described: what an agent replaced in this
            # process keeps it from that. The driver must not wait for it.
            os._exit(CUT_OFF)
        self._fill()  # an agent may have cancelled it, or a trial may have arrived in between

    async def _lane(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        count, context = 0, self._context
        with limiters_in_force(self._limiters):
            while self._waiting and not self._stopping and len(self._lanes) <= self._slots:
                planned = self._waiting.popleft()
                before = self.stalled
                try:
                    trial, trace = await run_trial(planned, context)
                    content = json_bytes(trial)
                except BaseException as error:  # noqa: BLE001 (the driver waits for every trial)
                    if isinstance(error, GeneratorExit) or _is_of_await(error):
                        # An agent closed coroutines: perhaps those of others, too.
                        os._exit(CUT_OFF)
                    trial, trace = planned.trial(TrialStatus.INFRA_ERROR), None
                    reason = "it cannot be described"
                    with contextlib.suppress(BaseException):  # methods of the agent's exception
                        reason = str(error) or repr(error)
                    trial.error = TrialError(type(error).__name__, reason, place="worker")
                    if not isinstance(error, Exception):  # only the code of an agent raises these
                        fail_by_agent(trial, AGENT_ERROR, context.options)
                    content = json_bytes(trial)
                if asyncio._get_running_loop() is not self._loop:  # noqa: SLF001
                    os._exit(CUT_OFF)  # an agent replaced it, for all tasks
                if self._stopping or trial.status is TrialStatus.CANCELLED:
                    task.uncancel()
                # The time or memory may have been used by another trial. Alone it shows.
                kind = "" if trial.error is None else trial.error.type
                late = kind == TrialTimeout.__name__ and (
                    self.stalled - before > TICK or self._outbox.worn
                )
                # Nobody but an agent cancels a trial while the run goes on.
                refused = kind == RunLimitReached.__name__
                struck = trial.status is TrialStatus.CANCELLED and not (self._stopping or refused)
                if self._slots > 1 and (late or struck or kind == MemoryError.__name__):
                    self._outbox.add(Done(planned.key, alone=True))
                elif struck:
                    trial.error = TrialError("Cancelled", "code of the agent cancelled it")
                    fail_by_agent(trial, AGENT_ERROR, context.options)
                    self._outbox.add(Done(planned.key, json_bytes(trial), trace))
                else:
                    self._outbox.add(Done(planned.key, content, trace))
                count += 1
                if count % TURN == 0:
                    await asyncio.sleep(0)


def _is_closed(task: asyncio.Task[None]) -> bool:
    """Return whether a coroutine that the task waits for can never go on."""
    waiting: object = task.get_coro()
    while isinstance(waiting, CoroutineType):
        if waiting.cr_frame is None:
            return True
        waiting = waiting.cr_await
    return False


def _is_of_await(error: BaseException) -> bool:
    """Return whether an `await` raised this in place of the coroutine, which had been closed."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


class WorkerCassette:
    """A worker's copy of the cassette of its run; what is added goes to the driver."""

    def __init__(self, mode: str, name: str, content: bytes) -> None:
        from proctor.llm.cassette import Cassette

        self._file = Path(tempfile.mkdtemp(prefix="proctor-cassette-")) / name
        self._file.write_bytes(content)
        self._sent = len(content)
        self._cassette: Cassette = Cassette(
            self._file, "record" if mode == "record" else "replay", append=True
        )
        self._cassette.__enter__()

    def recorded(self) -> bytes:
        """Return what was added since the last call."""
        if self._cassette.mode != "record":
            return b""
        new = self._cassette.added_since(self._sent)
        self._sent += len(new)
        return new

    def close(self) -> None:
        """Close and delete it."""
        self._cassette.__exit__(None, None, None)
        self._file.unlink(missing_ok=True)
        self._file.parent.rmdir()


def serve(connection: socket.socket, source: Callable[[], RunContext]) -> NoReturn:
    """Be a worker: load the code when asked, run trials, end on request or when the driver is gone.

    Call it in a process of its own, which it ends.
    """
    imports.executes_user_code = True
    messages = _messages(connection)
    context: RunContext | None = None
    cassette: WorkerCassette | None = None
    for message in messages:
        if isinstance(message, LoadCode):
            try:
                context = context or source()
                context.workers = None  # those of the driver, which is not this process
                reply = _loaded(context, check=message.check)
            except ProctorError as error:
                reply = Loaded(error=error.message, where=error.where, hint=error.hint)
            except BaseException as error:  # noqa: BLE001 (users' code fails in any way)
                reply = Loaded(error=f"{type(error).__name__}: {error}")
            connection.sendall(frame(reply))
        elif isinstance(message, BeginRun) and context is not None:
            if message.cassette is not None:
                cassette = WorkerCassette(*message.cassette)
            load_early(context)
            with observing():  # for all trials at once
                # From here on, nothing that trials share may change.
                loop = asyncio.new_event_loop()
                loop.set_default_executor(TrialExecutor())
                outbox = Outbox(connection, loop)
                if cassette is not None:
                    outbox.recorded = cassette.recorded
                TrialLoop(context, outbox, message, loop).run(messages)
            break
        else:
            break
    if cassette is not None:
        cassette.close()
    # Handlers of the agents' own code: exporters of spans, measurements of coverage.
    vars(atexit)["_run_exitfuncs"]()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)


def _messages(connection: socket.socket) -> Generator[msgspec.Struct]:
    """Yield what the driver sends until it is gone."""
    received = bytearray()
    while True:
        try:
            chunk = connection.recv(CHUNK)
        except OSError:
            os._exit(CUT_OFF)
        if not chunk:
            return
        received += chunk
        for each in take_frames(received):
            yield decode_order(each)


def _loaded(context: RunContext, *, check: bool) -> Loaded:
    """Import the code of users and return what it says about itself."""
    load_code(context)
    if check:
        check_names(context)
    agents = {
        name: LoadedAgent(config.version(), config.asynchronous)
        for name, config in context.agents.items()
    }
    about = {"pid": os.getpid(), "host": socket.gethostname(), "version": __version__}
    return Loaded(agents, about=about)


# -- a keeper ------------------------------------------------------------------------------------

START, END = b"s", b"e"
"""Requests to a keeper: start a worker on the socket that comes along, with this many processes
at most (four bytes); end the worker."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
"""Linux: the signal a process gets when its parent dies; adopt the orphans of descendants."""

IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGUSR1", "SIGUSR2")
"""Signals that end or stop a command, which a keeper outlives only until its socket closes."""


def keep(
    control: socket.socket,
    source: Callable[[], RunContext],
    output: int | None = None,
    *,
    tidy: bool = False,
) -> NoReturn:
    """Be a keeper: start a worker for each request, report how it ended, clean up after it.

    `source` gives a worker its context. `output` replaces standard output and error. `tidy` removes
    private directories of trials that were running in a worker that died; without it, only empty
    ones. It ends once the driver has closed its end of `control`.
    """
    try:
        _give_up_descriptors({0, 1, 2, control.fileno(), output})
        if output is not None:
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
        for name in IGNORED:
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        # Its own session: signals of the terminal and of the group are the driver's business.
        with contextlib.suppress(PermissionError):
            os.setsid()
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        wake, waking = os.pipe()
        os.set_blocking(waking, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        gc.freeze()  # pages that a worker never writes to stay shared
        worker, prefix = 0, ""
        while True:
            select.select([control, wake], [], [])
            while select.select([wake], [], [], 0)[0]:
                os.read(wake, 512)
            if (status := _reap(worker)) is not None:
                _end_descendants(worker)
                _remove_workdirs(prefix, tidy)
                worker = 0
                control.sendall(b"ended %d\n" % status)
            if not select.select([control], [], [], 0)[0]:
                continue
            request, given, _, _ = socket.recv_fds(control, 1, 1)
            if request == START:
                most = int.from_bytes(control.recv(4, socket.MSG_WAITALL))
                prefix = f"proctor-{secrets.token_hex(6)}-"
                parent, worker = os.getpid(), os.fork()
                if worker == 0:
                    AgentRequest.workdir_prefix = prefix
                    signal.set_wakeup_fd(-1)
                    for end in (wake, waking):
                        os.close(end)
                    control.close()
                    _become_worker(parent)
                    serve(socket.socket(fileno=given[0]), source)
                os.close(given[0])
                ProcessGroup(f"{worker}").add(worker, most)
                control.sendall(b"started %d\n" % worker)
            else:
                _end_descendants(worker)
                _remove_workdirs(prefix, tidy)
                if not request:
                    os._exit(0)
                if worker:
                    control.sendall(b"ended %d\n" % -signal.SIGKILL)
                worker = 0
    except BaseException:  # noqa: BLE001 (it must never return into the code of the driver)
        import traceback

        traceback.print_exc()
    finally:
        os._exit(1)


def _give_up_descriptors(kept: Container[int | None]) -> None:
    """Replace every other descriptor of the driver by one of nothing, except of files it reads.

    A keeper that an agent has killed is replaced during the run, when the driver has its journal
    open: what agents write to inherited descriptors must not arrive there. The numbers stay in
    use, because objects of the driver that are collected here close them.
    """
    import fcntl  # Windows has none, and no keepers

    nothing = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/dev/fd")):  # noqa: PTH208 (only numbers)
        with contextlib.suppress(OSError):  # the one that listed them
            about = os.fstat(number)
            writable = fcntl.fcntl(number, fcntl.F_GETFL) & (os.O_WRONLY | os.O_RDWR)
            # The rows of a data set have no name, and not every system can reopen such a file.
            rows = stat.S_ISREG(about.st_mode) and not (writable and about.st_nlink)
            if number not in kept and not rows:
                os.dup2(nothing, number, inheritable=False)


def _reap(worker: int) -> int | None:
    """Bury the dead; return the exit code of the worker, negative for a signal, if it is one."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == worker:
                code = os.waitstatus_to_exitcode(ended[1])
    return code


def _become_worker(keeper: int) -> None:
    """Make the forked child a process that looks as if it had been started for the agents."""
    for name in (*IGNORED, "SIGCHLD"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.signal(signal.SIGINT, _raise_interrupt)
    os.setsid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(0)
    # If memory runs out, the system must end this process and not the one that writes the journal.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("800")
    # What the driver has registered is the driver's to do.
    vars(atexit)["_clear"]()
    vars(weakref.finalize)["_registry"].clear()
    setattr(weakref.finalize, "_registered_with_atexit", False)  # noqa: B010 (no public way)
    asyncio._set_running_loop(None)  # noqa: SLF001
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = io.TextIOWrapper(
            io.FileIO(number, "w", closefd=False),
            encoding="utf-8",
            errors="backslashreplace",
            line_buffering=True,
            write_through=True,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _raise_interrupt(_number: int, _frame: object) -> NoReturn:
    # Not Python's own handler: with that one, `run_trial` takes it for Ctrl-C of the user.
    raise KeyboardInterrupt


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value)


def _remove_workdirs(prefix: str, everything: bool) -> None:
    """Remove what a worker that was killed could not: private directories of its trials."""
    if not prefix:
        return
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        if everything:
            remove_tree(path)
        else:
            with contextlib.suppress(OSError):  # not empty: kept for people to look at
                path.rmdir()


def _end_descendants(worker: int) -> None:
    """Kill the worker and what it has started: its orphans are children of this process."""
    if worker:
        # Where the system does not list children, its session is all that is known.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker, signal.SIGKILL)
        ProcessGroup(f"{worker}").end()
    for _ in range(1000):
        found = descendants(os.getpid())
        # Stopped first: a process that forks faster than it is found would escape.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                kill(pid, number)
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        sleep(0.001)

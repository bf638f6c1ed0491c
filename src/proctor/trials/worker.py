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
import contextlib
import gc
import io
import json
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from proctor import __version__, imports
from proctor.errors import ProctorError
from proctor.llm.rate_limits import limiters_in_force
from proctor.llm.retry import Transient
from proctor.runs.trial import PlannedTrial, TrialError, TrialStatus
from proctor.sanitize import json_bytes
from proctor.trials.messages import (
    SLOW_DOWN,
    Ask,
    BeginRun,
    Done,
    DriverClient,
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
from proctor.trials.run_trial import TrialTimeout, run_trial

if TYPE_CHECKING:
    from proctor.llm.cassette import Cassette

LINGER = 0.01
"""Seconds a parcel waits for more while there is work left: short trials travel together."""

TURN = 32
"""Trials after which a task yields to the others, as in the local executor."""

TICK = 0.1
"""Seconds between two looks at whether the event loop is blocked."""

CUT_OFF = 113
"""Exit code of a worker that cannot talk to its driver any more."""

CHUNK = 1 << 18

# -- a worker ------------------------------------------------------------------------------------


class Surroundings:
    """What all trials of a process share, as it was before the first of them."""

    # What Proctor's own code calls between two awaits of agents.
    MODULES = (asyncio, builtins, json, msgspec, os, threading, time)

    def __init__(self, connection: socket.socket) -> None:
        self._descriptor = connection.fileno()
        self._connection = os.fstat(self._descriptor)
        self._functions = [
            (module, name, value)
            for module in self.MODULES
            for name, value in vars(module).items()
            if callable(value)
        ]
        self._folder = _working_folder()
        self._limits = _limits()

    def damage(self) -> str | None:
        """Return what the code of an agent has changed, or None."""
        found = os.fstat(self._descriptor)
        if (found.st_dev, found.st_ino) != (self._connection.st_dev, self._connection.st_ino):
            raise OSError("the descriptor of the connection was replaced")
        for module, name, value in self._functions:
            if vars(module).get(name) is not value:
                # nest_asyncio is made for this, and keeps what it replaces working.
                if module is asyncio and getattr(asyncio, "_nest_patched", False):
                    continue
                return f"replaced {module.__name__}.{name}"
            if sys.modules.get(module.__name__) is not module:
                return f"removed {module.__name__} from sys.modules"
        if _working_folder() != self._folder:
            return "changed the working directory of the process"
        if _limits() != self._limits:
            return "changed the limits of the process"
        for number, name in ((1, "output"), (2, "error")):
            try:
                os.fstat(number)
            except OSError:
                return f"closed standard {name}"
        return None


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
    kinds = (resource.RLIMIT_NOFILE, resource.RLIMIT_AS)
    return (sys.getrecursionlimit(), *map(resource.getrlimit, kinds))


class Outbox:
    """Messages for the driver, filled from any thread and sent by one of its own."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._surroundings = Surroundings(connection)
        self._done: list[Done] = []
        self._asks: list[Ask] = []
        self._lock = threading.Lock()
        self._filled = threading.Event()
        self.waits_for_more: Callable[[], bool] = lambda: False
        """Whether more trials will end soon."""
        self.recorded: Callable[[], bytes] = lambda: b""
        """Returns what was added to the cassette."""
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
                parcel = Parcel(tuple(done), tuple(asks), self.recorded())
                if damage is not None:
                    parcel = Parcel(damage=damage)
                self._connection.sendall(frame(parcel))
            except BaseException:  # noqa: BLE001 (whatever it is, the driver must notice)
                os._exit(CUT_OFF)
            del done, asks, parcel


class TrialLoop:
    """Runs trials on an event loop, at most `slots` at a time."""

    def __init__(self, context: RunContext, outbox: Outbox, begin: BeginRun) -> None:
        self._context = context
        self._outbox = outbox
        self._loop = asyncio.new_event_loop()
        self._waiting: deque[PlannedTrial] = deque()
        self._lanes: set[asyncio.Task[None]] = set()
        self._slots = 1
        self._stopping = False
        self._ticked = time.monotonic()
        self._stalled = 0.0
        self._driver = driver = DriverClient(outbox.add)
        self._limiters = {name: DriverLimiter(name, driver) for name in begin.rates}

        def on_transient(_agent: str, reason: Transient) -> None:
            if reason.rate_limited:
                driver.notify(SLOW_DOWN)

        context.isolated = True
        context.checkpoints = DriverStore(driver) if begin.stores else None
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
            self._waiting.extend(message.trials)
            for _ in range(min(len(self._waiting), message.slots - len(self._lanes))):
                self._lanes.add(self._loop.create_task(self._lane()))
        elif isinstance(message, StopTrials):
            self._stopping = True
            while self._waiting:
                self._outbox.add(Done(self._waiting.popleft().key))
            for lane in self._lanes:
                lane.cancel()
        elif isinstance(message, EndWorker):
            self._loop.stop()
        else:
            self._outbox.add()

    async def _lane(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        count, context = 0, self._context
        try:
            with limiters_in_force(self._limiters):
                while self._waiting and not self._stopping and len(self._lanes) <= self._slots:
                    planned = self._waiting.popleft()
                    before = self.stalled
                    try:
                        trial, trace = await run_trial(planned, context)
                        content = json_bytes(trial)
                    except BaseException as error:  # noqa: BLE001 (the driver waits for every trial)
                        trial, trace = planned.trial(TrialStatus.INFRA_ERROR), None
                        reason = str(error) or repr(error)
                        trial.error = TrialError(type(error).__name__, reason, place="worker")
                        content = json_bytes(trial)
                    if self._stopping:
                        task.uncancel()
                    # The time or memory may have been used by another trial. Alone it shows.
                    kind = "" if trial.error is None else trial.error.type
                    stalled = self.stalled - before > TICK and kind == TrialTimeout.__name__
                    if self._slots > 1 and (stalled or kind == MemoryError.__name__):
                        self._outbox.add(Done(planned.key, alone=True))
                    else:
                        self._outbox.add(Done(planned.key, content, trace))
                    count += 1
                    if count % TURN == 0:
                        await asyncio.sleep(0)
        finally:
            # In the same turn as the check of `_waiting`: otherwise a trial that arrives in
            # between would find no lane.
            self._lanes.discard(task)


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
        with self._file.open("rb") as file:
            file.seek(self._sent)
            new = file.read()
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
            # From here on, nothing that trials share may change.
            outbox = Outbox(connection)
            if cassette is not None:
                outbox.recorded = cassette.recorded
            TrialLoop(context, outbox, message).run(messages)
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
"""Requests to a keeper: start a worker on the socket that comes along; end the worker."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
"""Linux: the signal a process gets when its parent dies; adopt the orphans of descendants."""

IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGUSR1", "SIGUSR2")
"""Signals that end or stop a command, which a keeper outlives only until its socket closes."""


def keep(
    control: socket.socket,
    source: Callable[[], RunContext],
    output: int | None = None,
    unwanted: Sequence[socket.socket] = (),
) -> NoReturn:
    """Be a keeper: start a worker for each request, report how it ended, clean up after it.

    `source` gives a worker its context. `output` replaces standard output and error;
    `unwanted` are the driver's own ends. It ends once the driver has closed its end of `control`.
    """
    try:
        for each in unwanted:
            each.close()
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
        worker = 0
        while True:
            select.select([control, wake], [], [])
            while select.select([wake], [], [], 0)[0]:
                os.read(wake, 512)
            if worker and (status := _ended(worker)) is not None:
                _end_descendants(worker)
                worker = 0
                control.sendall(b"ended %d\n" % status)
            if not select.select([control], [], [], 0)[0]:
                continue
            request, given, _, _ = socket.recv_fds(control, 1, 1)
            if request == START:
                parent, worker = os.getpid(), os.fork()
                if worker == 0:
                    signal.set_wakeup_fd(-1)
                    for end in (wake, waking):
                        os.close(end)
                    control.close()
                    _become_worker(parent)
                    serve(socket.socket(fileno=given[0]), source)
                os.close(given[0])
                control.sendall(b"started %d\n" % worker)
            else:
                _end_descendants(worker)
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


def _ended(worker: int) -> int | None:
    """Return the exit code of the worker, negative for a signal; None while it runs."""
    ended, status = os.waitpid(worker, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


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


def _end_descendants(worker: int) -> None:
    """Kill the worker and what it has started: its orphans are children of this process."""
    # Where the system does not list children, its session is all that is known.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if worker:
            os.killpg(worker, signal.SIGKILL)
    for _ in range(1000):
        for pid in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        sleep(0.001)


def _children() -> list[int]:
    own = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split()]
    except OSError:
        return []

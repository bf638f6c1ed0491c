"""The driver's side of worker processes: send them trials, receive results, notice what goes wrong.

Promise: as many trials run at a time as requested, over all workers together, fewer while a
provider says "slow down". Where the next start depends on results (limits, early stop) nothing is
sent ahead; otherwise short trials are, so that a worker never waits for the driver.

The driver watches its workers from outside. One that dies, blocks its event loop for longer than
the time limit of a trial, uses more memory or writes more output than allowed, or reports that an
agent has damaged it, is ended with everything it started. Its trials run again at the end, each
alone in a worker: one that ends a fresh worker which ran nothing else is a failure of its agent,
and the others keep the results they would have had.

Local workers are forked from the driver, so they start with what it has read and no code of users.
Ray starts the same workers on other machines (`trials/_ray.py`).
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from proctor.agents.base import AGENT_ERROR, RESOURCE_LIMIT, TIMEOUT
from proctor.errors import ProctorError
from proctor.llm.rate_limits import limited_providers
from proctor.processes import ProcessGroup, descendants, kill, memory_limit, memory_of
from proctor.runs.trial import PlannedTrial, Trial, TrialError, TrialStatus
from proctor.sanitize import forwarded
from proctor.trials.executor import Deliver, ExecutorFactory, Throttle
from proctor.trials.messages import (
    LENGTH,
    Ask,
    Authority,
    BeginRun,
    DriverReply,
    EndWorker,
    LoadCode,
    Loaded,
    Orders,
    Parcel,
    Ping,
    StopTrials,
    WorkerLimits,
    decode_parcel,
    decode_trial,
    frame,
    take_frames,
)
from proctor.trials.options import RunOptions
from proctor.trials.run_trial import DEFAULT_TIMEOUT, GRACE, fail_by_agent

if TYPE_CHECKING:
    from proctor.trials.prepare import RunContext


AHEAD_SECONDS = 0.05
"""Work that a worker has queued while its results travel: many round trips, and little to lose."""

MOST_AHEAD = 256
"""Trials sent ahead at most, however short they are."""

STOP_TIMEOUT = GRACE + 0.25
"""Seconds a worker gets to end its trials: the agents' time to clean up, and the way here."""

START_TIMEOUT = 900.0
"""Seconds in which some worker must have started: an autoscaling cluster adds a machine within
minutes, and a cluster that cannot would be waited for without end."""

MOST_DEATHS = 3
"""Times in a row a worker may die while it loads: after that, what it loads is to blame."""

WATCH = 0.25
"""Seconds between two looks at the workers."""

SILENCE = 1.0
"""Seconds without a message after which a worker is asked for one."""

BLOCKED_GRACE = 2 * GRACE
"""Seconds beyond the time limit of a trial after which a silent worker is blocked: its own timer
comes first wherever its event loop can still run one."""

LEAVE_TIMEOUT = 1.0
"""Seconds that the exit handlers of the agents' code get at the end of a run."""

MAX_SHOWN, FORGIVEN = 4 * 2**20, 2**20
"""Bytes of a worker's output that are shown, and those that each finished trial takes off the
count."""

MAX_LINE = 8192
"""Characters of a line without an end that are kept back until more of it comes."""

MAX_MESSAGE = 1 << 30
"""Bytes of a message of a worker; a longer one was not written by Proctor."""

LOST = "WorkerLost"
"""The error type of a trial whose worker was lost."""


class WorkerLost(Exception):
    """A worker is gone, or must go. `category` is that of a trial that has caused it.

    It is not `certain` that a trial did where a machine may have failed, or SIGKILL may come from
    outside: then it has as many further tries as transient failures have.
    """

    def __init__(self, reason: str, category: str = AGENT_ERROR, *, certain: bool = True) -> None:
        super().__init__(reason)
        self.category = category
        self.certain = certain


class Member(Protocol):
    """One worker as the driver sees it; replaced when it is lost."""

    taken: int
    """Trials that its present process was sent."""

    @property
    def needs(self) -> object:
        """What a worker requires, for messages."""
        ...

    def has_loaded(self) -> bool:
        """Whether it can be sent trials."""
        ...

    async def load(self) -> None:
        """Return once it can be sent trials, with a new process if it was lost."""
        ...

    async def exchange(self, orders: list[PlannedTrial], slots: int) -> Parcel:
        """Send trials and wait for results; raise `WorkerLost` if none will come."""
        ...

    def reply(self, reply: DriverReply) -> None:
        """Send the reply to a request of the worker."""
        ...

    def stop(self) -> None:
        """Cancel its trials."""
        ...

    def watch(self, blocked: float) -> None:
        """End the process if it breaks a limit or was silent for that many seconds."""
        ...

    def dismiss(self) -> None:
        """End its process; `load` starts another."""
        ...


class WorkerQueue:
    """The trials of one worker, and how many of them run at a time."""

    def __init__(self, member: Member, slots: int) -> None:
        self.member = member
        self.slots = slots
        self.running: dict[str, PlannedTrial] = {}
        self.held = 0
        """Slots of the throttle that it holds."""
        self.ahead = 0
        self.worn = False
        """Whether the worker is to be replaced once its trials have ended."""
        self._since, self._ended = time.monotonic(), 0

    def pace(self, ended: int) -> None:
        """Set how many trials to send ahead: as many as ended in that time before.

        Not from one parcel to the next: trials that end together may come in two of them.
        """
        self._ended += ended
        elapsed = time.monotonic() - self._since
        if elapsed >= AHEAD_SECONDS:
            self.ahead = min(MOST_AHEAD, int(self._ended * AHEAD_SECONDS / elapsed))
            self._since, self._ended = time.monotonic(), 0


class WorkerExecutor:
    """Runs at most `at_once` trials at a time on these workers."""

    def __init__(
        self,
        members: Sequence[Member],
        authority: Authority,
        *,
        at_once: int,
        options: RunOptions,
        ahead: bool,
        keep_recorded: Callable[[bytes], None],
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        few = members[:at_once]
        shares = [at_once // len(few) + (n < at_once % len(few)) for n in range(len(few))]
        self._queues = [WorkerQueue(m, slots) for m, slots in zip(few, shares, strict=True)]
        self._authority = authority
        self._options = options
        self._ahead = ahead
        self._keep_recorded = keep_recorded
        self._start_timeout = start_timeout
        self.at_once = at_once
        self._throttle = Throttle(at_once)
        self._trials: Iterator[PlannedTrial] = iter(())
        self._returned: deque[PlannedTrial] = deque()
        self._suspects: deque[PlannedTrial] = deque()
        self._losses: dict[str, int] = {}
        self._blamed: dict[str, int] = {}
        self._replying: set[asyncio.Task[None]] = set()
        self._no_more = asyncio.Event()
        self._stopping = False
        self._deliver: Deliver = lambda _planned, _trial, _trace: None
        authority.on_slow_down = self._throttle.slow_down

    async def run(self, trials: Iterator[PlannedTrial], deliver: Deliver) -> None:
        """Work until the trials run out or `stop` is called."""
        self._trials, self._deliver = trials, deliver
        watching = asyncio.ensure_future(self._watch())
        try:
            async with asyncio.TaskGroup() as group:
                for queue in self._queues:
                    group.create_task(self._serve(queue))
            # Trials whose workers were lost run again, each alone on a worker, to find the one
            # that ends its worker.
            while (self._suspects or self._returned) and not self._stopping:
                self._trials, self._ahead = iter(()), False
                self._returned.extend(self._suspects)
                self._suspects.clear()
                self._no_more.clear()
                async with asyncio.TaskGroup() as group:
                    for queue in self._queues[: len(self._returned)]:
                        queue.slots = 1
                        group.create_task(self._serve(queue, alone=True))
        finally:
            for task in (watching, *self._replying):
                task.cancel()
            for queue in self._queues:
                if queue.running:
                    # It did not stop, so its process ends with all its trials.
                    queue.member.dismiss()

    async def _watch(self) -> None:
        """End workers that break a limit, while they have trials."""
        blocked = blocked_after(self._options)
        while True:
            await asyncio.sleep(WATCH)
            for queue in self._queues:
                queue.member.watch(blocked)

    async def _serve(self, queue: WorkerQueue, *, alone: bool = False) -> None:
        """Keep one worker busy."""
        while await self._is_loaded(queue):
            if queue.worn and not queue.running:
                queue.worn = False
                queue.member.dismiss()
                continue
            orders = [] if queue.worn else await self._orders(queue)
            if not orders and not queue.running:
                return
            try:
                self._receive(queue, await queue.member.exchange(orders, queue.slots))
            except WorkerLost as lost:
                self._lost(queue, lost, alone=alone)

    async def _is_loaded(self, queue: WorkerQueue) -> bool:
        """Wait until the worker can run trials; return False if there is none left to run."""
        if queue.member.has_loaded():
            return True
        loading = asyncio.ensure_future(queue.member.load())
        over = asyncio.ensure_future(self._no_more.wait())
        try:
            while True:
                await asyncio.wait(
                    {loading, over},
                    timeout=self._start_timeout,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if loading.done():
                    loading.result()
                    return True
                if over.done():
                    return False
                if not any(each.member.has_loaded() for each in self._queues):
                    raise ProctorError(
                        f"no worker has started in {self._start_timeout:,.0f} s; "
                        f"each needs {queue.member.needs}",
                        hint="`ray status` on the cluster shows its resources; finished trials "
                        "are safe, `proctor run --resume` continues",
                    )
        finally:
            over.cancel()
            loading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                if not loading.done():
                    await asyncio.wait({loading})

    async def _orders(self, queue: WorkerQueue) -> list[PlannedTrial]:
        """Return the trials that the worker is to start, decided now."""
        orders: list[PlannedTrial] = []
        # Trials that come back from a lost worker go slowly: one of them may have ended it.
        careful = self._throttle.slowed or bool(self._returned)
        ahead = queue.ahead if self._ahead and not careful else 0
        while len(queue.running) < queue.slots + ahead:
            needs_slot = len(queue.running) < queue.slots
            if needs_slot and not self._throttle.enter_now():
                if queue.running:
                    break
                await self._throttle.enter()
            planned: PlannedTrial | None = None
            if not self._stopping:
                # Trials that a lost worker never started come before those of the plan.
                planned = self._returned.popleft() if self._returned else next(self._trials, None)
            if planned is None:
                self._no_more.set()
                if needs_slot:
                    self._throttle.leave()
                break
            queue.held += needs_slot
            queue.member.taken += 1
            queue.running[planned.key] = planned
            orders.append(planned)
        return orders

    def _receive(self, queue: WorkerQueue, parcel: Parcel) -> None:
        if parcel.lost is not None:
            reason, category, certain = parcel.lost
            raise WorkerLost(reason, category, certain=certain)
        queue.worn |= parcel.worn
        if parcel.damage is not None:
            raise WorkerLost(
                f"code of an agent {parcel.damage}, which all trials of a process share; "
                "`isolation: process` gives each trial its own"
            )
        if parcel.recorded:
            self._keep_recorded(parcel.recorded)
        # Calls come first: those of a trial that has ended are part of its figures.
        asks = [ask for ask in parcel.asks if not self._take_call(queue.member, ask)]
        for done in parcel.done:
            planned = queue.running.pop(done.key, None)
            if planned is None:
                continue
            self._leave(queue)
            if done.alone and not self._stopping:
                self._suspects.append(planned)
                continue
            if done.trial is None:  # it never started
                self._deliver(planned, None, None)
                continue
            try:
                trial = decode_trial(done.trial)
            except (msgspec.MsgspecError, RecursionError) as error:
                queue.running[done.key] = planned
                raise WorkerLost(f"code of an agent wrote to its connection: {error}") from None
            if lost := self._losses.get(done.key):
                trial.retries += lost
                trial.retry_errors = (*[f"{LOST}: its worker was lost"] * lost, *trial.retry_errors)
            self._deliver(planned, trial, done.trace)
        queue.pace(len(parcel.done))
        for ask in asks:
            task = asyncio.ensure_future(self._reply(queue.member, ask))
            self._replying.add(task)
            task.add_done_callback(self._replying.discard)

    def _take_call(self, member: Member, ask: Ask) -> bool:
        try:
            taken = self._authority.take_call(ask)
        except (TypeError, ValueError) as error:  # not written by Proctor
            raise WorkerLost(f"code of an agent wrote to its connection: {error}") from None
        if taken:
            member.reply(DriverReply(ask.number))
        return taken

    def _leave(self, queue: WorkerQueue) -> None:
        """Return the slots of the throttle that the worker no longer needs."""
        while queue.held > min(len(queue.running), queue.slots):
            queue.held -= 1
            self._throttle.leave()

    def _lost(self, queue: WorkerQueue, lost: WorkerLost, *, alone: bool) -> None:
        """Handle a lost worker: its trials run again at the end, or fail."""
        trials, first = list(queue.running.values()), queue.member.taken == 1
        queue.member.dismiss()
        queue.running.clear()
        queue.worn = False
        self._leave(queue)
        # Workers start trials in order, so those behind the first few never started.
        for planned in trials[queue.slots :]:
            if self._stopping:
                self._deliver(planned, None, None)
            else:
                self._returned.append(planned)
        del trials[queue.slots :]
        for planned in trials:
            key = planned.key
            self._authority.lose(key)
            losses = self._losses[key] = self._losses.get(key, 0) + 1
            # A blocked loop is blocked by what runs; any other end may come from an earlier trial.
            sure = alone and (first or lost.category == TIMEOUT)
            blamed = self._blamed[key] = self._blamed.get(key, 0) + sure
            if self._stopping:
                self._deliver(planned, _cancelled(planned), None)
            elif blamed > (0 if lost.certain else self._options.max_retries):
                # Nothing else ran beside it: the agent, or a check, has ended the process.
                trial = planned.trial(TrialStatus.INFRA_ERROR)
                trial.error = TrialError(
                    LOST, f"{losses} workers were lost while they ran it: {lost}"
                )
                fail_by_agent(trial, lost.category, self._options)
                trial.retries = losses - 1
                trial.retry_errors = (f"{LOST}: its worker was lost",) * (losses - 1)
                self._deliver(planned, trial, None)
            elif alone:
                # In a new process at once, where it is the first: then it is certain.
                self._returned.appendleft(planned)
            else:
                self._suspects.append(planned)

    async def _reply(self, member: Member, ask: Ask) -> None:
        try:
            reply = await self._authority.reply(ask)
        except (TypeError, ValueError, KeyError) as error:  # not written by Proctor
            reply = DriverReply(ask.number, error=f"not a request: {error}")
        if ask.number:
            member.reply(reply)

    def stop(self) -> None:
        """Cancel what runs; `run` returns once every trial it took is delivered."""
        self._stopping = True
        self._no_more.set()
        while self._suspects:
            planned = self._suspects.popleft()
            self._deliver(planned, _cancelled(planned), None)
        while self._returned:
            self._deliver(self._returned.popleft(), None, None)

        def end_workers() -> None:
            """End workers whose agents do not stop; their trials are delivered as cancelled."""
            for queue in self._queues:
                if queue.running:
                    queue.member.dismiss()

        for queue in self._queues:
            if queue.running:
                queue.member.stop()
        asyncio.get_running_loop().call_later(STOP_TIMEOUT, end_workers)


def blocked_after(options: RunOptions) -> float:
    """Return the seconds after which a worker that says nothing is blocked."""
    return (options.timeout or DEFAULT_TIMEOUT) + BLOCKED_GRACE


def _cancelled(planned: PlannedTrial) -> Trial:
    trial = planned.trial(TrialStatus.CANCELLED)
    trial.error = TrialError("Cancelled", "the run was stopped before this trial had ended")
    return trial


# -- workers on this machine ---------------------------------------------------------------------


class Keeper:
    """The driver's handle of a keeper process."""

    def __init__(
        self, control: socket.socket, output: int | None, pid: int, wait: Callable[[], object]
    ) -> None:
        self.control = control
        self.pid = pid
        self.output = output
        """The end of a pipe with what workers print; None if they print for themselves."""
        if output is not None:
            os.set_blocking(output, False)
        self._wait = wait
        self._lines = bytearray()

    @classmethod
    def fork(cls, context: RunContext) -> Keeper:
        """Fork a keeper from this process: its workers know what this process has read."""
        from proctor.trials.worker import keep

        ours, theirs = socket.socketpair()
        # A person answers at the terminal itself; anything else that is printed passes the driver.
        terminal = any(config.kind == "human" for config in context.agents.values())
        reading, writing = (None, None) if terminal else os.pipe()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()  # or the child would print it again
        pid = os.fork()
        if pid == 0:
            tidy = not context.options.keep_workdirs
            keep(theirs, lambda: context, writing, tidy=tidy)
        theirs.close()
        if writing is not None:
            os.close(writing)
        return cls(ours, reading, pid, lambda: os.waitpid(pid, 0))

    @classmethod
    def spawn(cls, module: str, given: bytes) -> Keeper:
        """Start a keeper as a new Python: `python -m module DESCRIPTOR`, which reads `given`."""
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        with theirs:
            process = subprocess.Popen(  # noqa: S603 (our own interpreter and module)
                [sys.executable, "-m", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
            )
        os.close(writing)
        ours.sendall(LENGTH.pack(len(given)) + given)
        return cls(ours, reading, process.pid, process.wait)

    def start(self, connection: socket.socket, processes: int) -> int:
        """Start a worker on this end of a connection; return its process id."""
        from proctor.trials.worker import START

        request = START + processes.to_bytes(4)
        socket.send_fds(self.control, [request], [connection.fileno()])
        while True:
            kill(self.pid, signal.SIGCONT)  # an agent may have stopped it
            select.select([self.control], [], [], SILENCE)
            for word, number in self.news():
                if word == "started":
                    return number

    def end(self) -> None:
        """End the worker with everything it started."""
        from proctor.trials.worker import END

        with contextlib.suppress(OSError):
            self.control.sendall(END)
            kill(self.pid, signal.SIGCONT)

    def news(self) -> list[tuple[str, int]]:
        """Return what has happened: (started, process id) and (ended, exit code)."""
        try:
            chunk = self.control.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            chunk = b""
        if not chunk:
            raise WorkerLost("the process that kept it has ended")
        self._lines += chunk
        *whole, rest = self._lines.split(b"\n")
        self._lines = bytearray(rest)
        return [(word.decode(), int(number)) for word, number in (line.split() for line in whole)]

    def close(self) -> None:
        """End the keeper and whatever it keeps."""
        self.control.close()
        if self.output is not None:
            os.close(self.output)
        kill(self.pid, signal.SIGCONT)
        with contextlib.suppress(ChildProcessError):
            self._wait()


class LocalWorker:
    """A worker process on this machine, started by its keeper."""

    needs = "a process of its own"

    def __init__(self, new_keeper: Callable[[], Keeper], limits: WorkerLimits) -> None:
        self._new_keeper = new_keeper
        self._limits = limits
        self.about: dict[str, Any] = {}
        """Process, machine and version of the worker."""
        self.begin = BeginRun()
        """What it gets before its first trial."""
        self.taken = 0
        self._keeper: Keeper | None = None
        self._connection: socket.socket | None = None
        self._pid = 0
        self._loading = self._loaded = self._begun = False
        self._received, self._unsent = bytearray(), bytearray()
        self._inbox: deque[Loaded | Parcel | WorkerLost] = deque()
        self._arrived: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._verdict: WorkerLost | None = None
        """Why the driver is about to end it."""
        self._garbled = False
        """Whether something that is no message came: then nothing after it can be believed."""
        self._heard = self._asked = self._measured = 0.0
        self._printed = self._running = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial_line = ""

    # -- one process after the other

    def _start(self) -> None:
        if self._keeper is None:
            self._keeper = self._new_keeper()
        self._connection, theirs = socket.socketpair()
        self._connection.setblocking(False)
        with theirs:
            self._pid = self._keeper.start(theirs, self._limits.processes)
        self._received, self._unsent = bytearray(), bytearray()
        self._inbox.clear()
        self._loading = self._loaded = self._begun = False
        self._verdict, self._garbled = None, False
        self.taken = self._printed = self._running = 0
        self._heard = time.monotonic()

    def load_now(self, *, check: bool = False) -> Loaded:
        """Import the code in the worker and return what it says about itself, or raise."""
        if self._connection is None:
            self._start()
        self._send(LoadCode(check))
        while not self._inbox:
            keeper = self._keeper
            assert keeper is not None
            assert self._connection is not None
            # The keeper comes last: what a worker said and printed before it ended is read first.
            ends = [self._connection, keeper.output, keeper.control]
            ready = select.select([end for end in ends if end is not None], [], [])[0]
            if self._connection in ready:
                self._read()
            if keeper.output in ready:
                self._show()
            elif keeper.control in ready:
                self._hear()
        return self._checked(self._inbox.popleft())

    def _checked(self, found: Loaded | Parcel | WorkerLost) -> Loaded:
        if isinstance(found, WorkerLost):
            self.dismiss()
            raise ProctorError(
                f"a worker was lost while it imported the agents: {found}",
                hint="the code ended its process when it was imported",
            )
        assert isinstance(found, Loaded)
        if found.error is not None:
            raise ProctorError(found.error, where=found.where, hint=found.hint)
        self._loaded, self.about = True, found.about
        return found

    def has_loaded(self) -> bool:
        """Whether it can be sent trials."""
        return self._begun

    async def load(self) -> None:
        """Return once it can be sent trials, with a new process if it was lost."""
        deaths = 0
        while not self._begun:
            if self._connection is None:
                self._start()
            self._attach()
            if not self._loaded:
                if not self._loading:  # else an executor has stopped waiting for the reply
                    self._loading = True
                    self._send(LoadCode())
                found = await self._next()
                if isinstance(found, WorkerLost) and (deaths := deaths + 1) < MOST_DEATHS:
                    self.dismiss()
                    continue
                self._checked(found)
            self._send(self.begin)
            self._begun = True

    async def exchange(self, orders: list[PlannedTrial], slots: int) -> Parcel:
        """Send trials and wait for results; raise `WorkerLost` if none will come."""
        if orders:
            if not self._running:
                self._heard = time.monotonic()  # silence before is no sign of anything
            self._running += len(orders)
            self._send(Orders(orders, slots))
        found = await self._next()
        if isinstance(found, WorkerLost):
            raise found
        if not isinstance(found, Parcel):
            raise WorkerLost("code of an agent wrote to its connection")
        return found

    def reply(self, reply: DriverReply) -> None:
        """Send the reply to a request of the worker."""
        self._send(reply)

    def stop(self) -> None:
        """Cancel its trials."""
        self._send(StopTrials())

    def watch(self, blocked: float) -> None:
        """End the process if it breaks a limit or was silent for that many seconds."""
        now = time.monotonic()
        silent = now - self._heard
        if self._verdict is not None or not self._running:
            return
        if silent > blocked:
            self._condemn(f"its event loop was blocked for {silent:.1f} s", TIMEOUT)
        elif silent > SILENCE and now - self._asked > SILENCE:
            self._asked = now
            self._send(Ping())
        limits, most = self._limits, self._limits.memory or memory_limit()
        if self._printed > limits.output:
            self._condemn(f"it printed more than {limits.output >> 20} MB", RESOURCE_LIMIT)
            return
        pids = [self._pid]
        if self._keeper is not None and now - self._measured > SILENCE:
            self._measured = now  # less often: it reads a file of each process and thread
            pids = descendants(self._keeper.pid, limits.processes) or pids
        if len(pids) > limits.processes:
            reason = f"it had more than {limits.processes:,} processes"
            self._condemn(reason, RESOURCE_LIMIT)
        elif (used := memory_of(pids, most)) > most:
            self._condemn(
                f"it used {used / 2**30:.1f} GB of memory, more than {most / 2**30:.1f} GB",
                RESOURCE_LIMIT,
            )

    def _condemn(self, reason: str, category: str) -> None:
        self._verdict = WorkerLost(reason, category)
        if self._keeper is not None:
            self._keeper.end()

    def dismiss(self) -> None:
        """End its process; `load` starts another."""
        if self._connection is None:
            return
        self._detach()
        self._connection.close()
        self._connection = None
        self._begun = False
        if self._keeper is not None:
            self._keeper.end()
        self._put(WorkerLost("it was dismissed"))

    def close(self) -> None:
        """End worker and keeper in order: exit handlers run, and what was printed is shown."""
        keeper, connection = self._keeper, self._connection
        if keeper is not None and connection is not None:
            self._detach()
            with contextlib.suppress(OSError, WorkerLost):
                connection.settimeout(LEAVE_TIMEOUT)
                connection.sendall(frame(EndWorker()))
                until = time.monotonic() + LEAVE_TIMEOUT
                ends = [end for end in (keeper.output, keeper.control) if end is not None]
                over = False
                while not over and (left := until - time.monotonic()) > 0:
                    if keeper.output in select.select(ends, [], [], left)[0]:
                        self._show()
                    over = any(word == "ended" for word, _ in keeper.news())
        self.dismiss()
        self._keeper = None
        if keeper is not None:
            self._show(keeper)
            self._flush_line()
            keeper.close()

    # -- its connection

    def _send(self, message: msgspec.Struct) -> None:
        self._unsent += frame(message)
        self._write()

    def _write(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            while self._unsent:
                del self._unsent[: connection.send(self._unsent)]
        except BlockingIOError:
            if self._loop is None:  # before the run, when nothing else can be done
                select.select([], [connection], [])
                self._write()
            else:
                self._loop.add_writer(connection, self._write)
            return
        except OSError:
            self._unsent.clear()  # it has gone, and its keeper says how
        if self._loop is not None:
            self._loop.remove_writer(connection)

    def _attach(self) -> None:
        """Handle what arrives on the running event loop."""
        loop, keeper = asyncio.get_running_loop(), self._keeper
        if self._loop is None and keeper is not None and self._connection is not None:
            self._loop = loop
            loop.add_reader(self._connection, self._read)
            loop.add_reader(keeper.control, self._hear)
            if keeper.output is not None:
                loop.add_reader(keeper.output, self._show)

    def _detach(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None or loop.is_closed():
            return
        if self._connection is not None:
            loop.remove_reader(self._connection)
            loop.remove_writer(self._connection)
        if self._keeper is not None:
            loop.remove_reader(self._keeper.control)
            if self._keeper.output is not None:
                loop.remove_reader(self._keeper.output)

    async def _next(self) -> Loaded | Parcel | WorkerLost:
        while not self._inbox:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        return self._inbox.popleft()

    def _put(self, found: Loaded | Parcel | WorkerLost) -> None:
        self._inbox.append(found)
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def _read(self) -> None:
        """Take what the worker has sent."""
        connection = self._connection
        assert connection is not None
        try:
            chunk = connection.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            # It has ended, or an agent has closed the connection: then nothing can come any more.
            if self._loop is not None:
                self._loop.remove_reader(connection)
                self._loop.call_later(SILENCE, self._end_silent, connection)
            return
        self._heard = time.monotonic()
        if self._garbled:
            return
        self._received += chunk
        try:
            if len(self._received) > LENGTH.size:
                (length,) = LENGTH.unpack_from(self._received)
                if length > MAX_MESSAGE:
                    raise ValueError(f"a message of {length:,} bytes")
            for each in take_frames(self._received):
                found = decode_parcel(each)
                if isinstance(found, Parcel) and found.done:
                    self._running = max(0, self._running - len(found.done))
                    self._printed = max(0, self._printed - FORGIVEN * len(found.done))
                self._put(found)
        except (msgspec.MsgspecError, ValueError) as error:
            self._garbled = True
            self._condemn(f"code of an agent wrote to its connection: {error}", AGENT_ERROR)

    def _end_silent(self, connection: socket.socket) -> None:
        if connection is self._connection and self._verdict is None:
            self._condemn("code of an agent closed its connection", AGENT_ERROR)

    def _hear(self) -> None:
        """Take what the keeper has reported: the worker has ended."""
        from proctor.trials.worker import CUT_OFF

        assert self._keeper is not None
        try:
            news = self._keeper.news()
        except WorkerLost as lost:  # an agent has killed it
            keeper = self._keeper
            self._detach()
            self._keeper = None
            ProcessGroup(f"{self._pid}").end()  # what it kept has nobody else
            keeper.close()
            self._put(lost)
            return
        for word, code in news:
            if word != "ended" or self._connection is None:
                continue
            # What it sent before comes first.
            connection = self._connection
            while select.select([connection], [], [], 0)[0] and connection.recv(1, socket.MSG_PEEK):
                self._read()
            lost = self._verdict
            if lost is None and code == CUT_OFF:
                lost = WorkerLost("code of an agent damaged its connection or its event loop")
            elif lost is None and code < 0:
                killed = code == -signal.SIGKILL
                with contextlib.suppress(ValueError):  # a signal without a name
                    lost = WorkerLost(
                        f"it was killed by {signal.Signals(-code).name}",
                        RESOURCE_LIMIT if killed else AGENT_ERROR,
                        certain=not killed,
                    )
            self._put(lost or WorkerLost(f"it ended with exit code {code}"))

    def _show(self, keeper: Keeper | None = None) -> None:
        """Print what the worker has printed. All output of agents and checks passes here."""
        keeper = keeper or self._keeper
        while keeper is not None and keeper.output is not None:
            try:
                chunk = os.read(keeper.output, 1 << 16)
            except BlockingIOError:
                return
            if not chunk:
                if self._loop is not None:
                    self._loop.remove_reader(keeper.output)
                self._flush_line()
                return
            self._printed += len(chunk)
            if self._printed <= MAX_SHOWN:
                # By lines: a command for a terminal or a build log may come in two pieces.
                text = self._partial_line + self._decoder.decode(chunk)
                whole, end, self._partial_line = text.rpartition("\n")
                sys.stderr.write(forwarded(whole + end))
                sys.stderr.flush()
                if len(self._partial_line) > MAX_LINE:
                    self._flush_line()
            if self._loop is not None:
                return  # the rest comes with the next turn

    def _flush_line(self) -> None:
        """Print a line that has not ended."""
        sys.stderr.write(forwarded(self._partial_line))
        sys.stderr.flush()
        self._partial_line = ""


class LocalWorkers:
    """The workers of a run on this machine."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._members = [
            LocalWorker(lambda: Keeper.fork(context), worker_limits(context))
            for _ in range(context.options.workers or 1)
        ]

    def load(self, *, check: bool = False) -> Loaded:
        """Import the code of users in a worker; return what it says about itself, or raise."""
        return self._members[0].load_now(check=check)

    @contextmanager
    def executors(self, *, ahead: bool) -> Generator[ExecutorFactory]:
        """Provide executors for the rounds of a run; the workers end with it."""
        context, options = self._context, self._context.options
        begin = begin_run(context)
        for member in self._members:
            member.begin = begin
        authority = Authority(context.checkpoints, budget=context.budget)
        try:
            yield lambda planned: WorkerExecutor(
                self._members,
                authority,
                at_once=options.at_once(planned),
                options=options,
                ahead=ahead,
                keep_recorded=lambda lines: append_recorded(options.record_to, lines),
            )
        finally:
            for member in self._members:
                member.close()


def begin_run(context: RunContext) -> BeginRun:
    """Return what workers need for a run; call it inside its rate limits and its cassette."""
    cassette: tuple[str, str, bytes] | None = None
    if path := context.options.record_to or context.options.replay_from:
        mode = "record" if context.options.record_to is not None else "replay"
        cassette = (mode, Path(path).name, Path(path).read_bytes())
    return BeginRun(
        limited_providers(),
        cassette,
        context.checkpoints is not None,
        worker_limits(context),
        context.budget is not None and context.budget.limited,
    )


def worker_limits(context: RunContext) -> WorkerLimits:
    """Return what the settings allow a worker to use."""
    limits = context.configuration.settings.limits
    memory = None if limits.worker_memory_mb is None else float(limits.worker_memory_mb << 20)
    return WorkerLimits(memory, limits.worker_output_mb << 20, limits.worker_processes)


def append_recorded(path: str | None, lines: bytes) -> None:
    """Append the lines of a worker to the cassette of the run, to which the driver appends too."""
    if path is None:
        return
    with Path(path).open("ab", buffering=0) as file:
        left: Any = memoryview(lines)
        while left:
            left = left[file.write(left) :]

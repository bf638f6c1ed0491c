"""The driver: send trials to Ray workers and receive their results.

Promise: as many trials run at a time as requested, over all workers together, fewer while a
provider says "slow down". Where the next start depends on results (limits, early stop) nothing is
sent ahead; otherwise short trials are, so that a worker never waits for the driver. The trials of a
lost worker are repeated at the end, each alone on a worker; one that ends its worker again is an
infrastructure error once its retries are used up.

Resources that the machines do not have are an error before the first trial where that can be known
(our own Ray), otherwise once no worker has started for a long time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.agents.base import AGENT_ERROR, AgentConfig
from proctor.errors import ProctorError
from proctor.imports import needs_extra
from proctor.runs.trial import PlannedTrial, Trial, TrialError, TrialStatus
from proctor.trials._ray.cluster import (
    Connection,
    Load,
    Member,
    Resources,
    WorkerLost,
    connect,
    give_back,
    ray_package,
    take_crew,
)
from proctor.trials._ray.messages import Ask, Authority, Parcel, decode_trial
from proctor.trials._ray.worker import kit_of, project_root, sent_by_value
from proctor.trials.executor import Deliver, Throttle
from proctor.trials.options import DEFAULT_CONCURRENCY, RunOptions
from proctor.trials.run_trial import GRACE, fail_by_agent

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

LOST = "WorkerLost"
"""The error type of a trial whose worker was lost."""


class WorkerQueue:
    """The trials of one worker, and how many of them run at a time."""

    def __init__(self, member: Member, slots: int) -> None:
        self.member = member
        self.slots = slots
        self.running: dict[str, PlannedTrial] = {}
        self.held = 0
        """Slots of the throttle that it holds."""
        self.ahead = 0
        self._since = time.monotonic()

    def pace(self, ended: int) -> None:
        """Set how many trials to send ahead, from the number that ended since the last parcel."""
        now = time.monotonic()
        if ended:
            each = (now - self._since) / ended
            self.ahead = min(MOST_AHEAD, int(AHEAD_SECONDS / max(each, 1e-6)))
        self._since = now


class RayExecutor:
    """Runs at most `at_once` trials at a time on these workers."""

    def __init__(
        self,
        members: Sequence[Member],
        load: Load,
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
        self._load = load
        self._authority = authority
        self._options = options
        self._ahead = ahead
        self._keep_recorded = keep_recorded
        self._start_timeout = start_timeout
        self._throttle = Throttle(at_once)
        self._trials: Iterator[PlannedTrial] = iter(())
        self._returned: deque[PlannedTrial] = deque()
        self._suspects: deque[PlannedTrial] = deque()
        self._losses: dict[str, int] = {}
        self._alone: dict[str, int] = {}
        self._replying: set[asyncio.Task[None]] = set()
        self._no_more = asyncio.Event()
        self._stopping = False
        self._deliver: Deliver = lambda _planned, _trial, _trace: None
        authority.on_slow_down = self._throttle.slow_down

    async def run(self, trials: Iterator[PlannedTrial], deliver: Deliver) -> None:
        """Work until the trials run out or `stop` is called."""
        self._trials, self._deliver = trials, deliver
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
            for task in self._replying:
                task.cancel()
            for queue in self._queues:
                if queue.running:
                    # It did not stop, so its process ends with all its trials.
                    queue.member.dismiss()

    async def _serve(self, queue: WorkerQueue, *, alone: bool = False) -> None:
        """Keep one worker busy."""
        while await self._is_loaded(queue):
            orders = await self._orders(queue)
            if not orders and not queue.running:
                return
            try:
                parcel = await queue.member.exchange(orders, queue.slots)
            except WorkerLost as lost:
                self._lost(queue, lost, alone=alone)
            else:
                self._receive(queue, parcel)

    async def _is_loaded(self, queue: WorkerQueue) -> bool:
        """Wait until the worker can run trials; return False if there is none left to run."""
        if queue.member.has_loaded(self._load):
            return True
        loading = asyncio.ensure_future(queue.member.load(self._load))
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
                if not any(each.member.has_loaded(self._load) for each in self._queues):
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
        ahead = queue.ahead if self._ahead and not self._throttle.slowed else 0
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
            queue.running[planned.key] = planned
            orders.append(planned)
        return orders

    def _receive(self, queue: WorkerQueue, parcel: Parcel) -> None:
        if parcel.recorded:
            self._keep_recorded(parcel.recorded)
        for done in parcel.done:
            planned = queue.running.pop(done.key, None)
            if planned is None:
                continue
            self._leave(queue)
            if done.trial is None:
                self._deliver(planned, _cancelled(planned), None)
                continue
            trial = decode_trial(done.trial)
            if lost := self._losses.get(done.key):
                trial.retries += lost
                trial.retry_errors = (*[f"{LOST}: its worker was lost"] * lost, *trial.retry_errors)
            self._deliver(planned, trial, done.trace)
        queue.pace(len(parcel.done))
        for ask in parcel.asks:
            task = asyncio.ensure_future(self._reply(queue.member, ask))
            self._replying.add(task)
            task.add_done_callback(self._replying.discard)

    def _leave(self, queue: WorkerQueue) -> None:
        """Return the slots of the throttle that the worker no longer needs."""
        while queue.held > min(len(queue.running), queue.slots):
            queue.held -= 1
            self._throttle.leave()

    def _lost(self, queue: WorkerQueue, lost: WorkerLost, *, alone: bool) -> None:
        """Handle a lost worker: its trials run again at the end, or fail."""
        queue.member.dismiss()
        trials = list(queue.running.values())
        queue.running.clear()
        self._leave(queue)
        if not self._stopping:
            # Workers start trials in order, so those behind the first few never started.
            self._returned.extend(trials[queue.slots :])
            del trials[queue.slots :]
        for planned in trials:
            key = planned.key
            losses = self._losses[key] = self._losses.get(key, 0) + 1
            guilty = self._alone[key] = self._alone.get(key, 0) + alone
            if self._stopping:
                self._deliver(planned, _cancelled(planned), None)
            elif guilty > self._options.max_retries:
                # Each of them ran nothing else: the agent ends its process.
                trial = planned.trial(TrialStatus.INFRA_ERROR)
                trial.error = TrialError(
                    LOST, f"{losses} workers were lost while they ran it: {lost}"
                )
                fail_by_agent(trial, AGENT_ERROR, self._options)
                trial.retries = losses - 1
                trial.retry_errors = (f"{LOST}: its worker was lost",) * (losses - 1)
                self._deliver(planned, trial, None)
            else:
                self._suspects.append(planned)

    async def _reply(self, member: Member, ask: Ask) -> None:
        reply = await self._authority.reply(ask)
        if ask.number:
            member.reply(reply)

    def stop(self) -> None:
        """Cancel what runs; `run` returns once every trial it took is delivered."""
        self._stopping = True
        self._no_more.set()
        while self._suspects or self._returned:
            planned = (self._suspects or self._returned).popleft()
            self._deliver(planned, _cancelled(planned), None)

        def end_workers() -> None:
            """End workers whose agents do not stop; their trials are delivered as cancelled."""
            for queue in self._queues:
                if queue.running:
                    queue.member.dismiss()

        for queue in self._queues:
            if queue.running:
                queue.member.stop()
        asyncio.get_running_loop().call_later(STOP_TIMEOUT, end_workers)


def _cancelled(planned: PlannedTrial) -> Trial:
    trial = planned.trial(TrialStatus.CANCELLED)
    trial.error = TrialError("Cancelled", "the run was stopped before this trial had ended")
    return trial


@contextmanager
def ray_workforce(context: RunContext) -> Generator[Callable[[int], RayExecutor]]:
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
            load = Load(kit.digest, ray_package().put(kit))
        workers, authority = options.workers or room, Authority(context.checkpoints)
        waits = any(config.asynchronous for config in context.agents.values())
        each = DEFAULT_CONCURRENCY if waits else 1

        def executor_for(planned: int) -> RayExecutor:
            at_once = max(1, min(options.concurrency or workers * each, planned))
            return RayExecutor(
                crew.of(min(workers, at_once)),
                load,
                authority,
                at_once=at_once,
                options=options,
                # Trials are sent ahead only if no result can decide what starts next.
                ahead=not options.early_stop and not options.limited,
                keep_recorded=lambda lines: _append(options.record_to, lines),
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


def _append(path: str | None, lines: bytes) -> None:
    """Append the lines of a worker to the cassette of the run, to which the driver appends too."""
    if path is None:
        return
    with Path(path).open("ab", buffering=0) as file:
        left: Any = memoryview(lines)
        while left:
            left = left[file.write(left) :]

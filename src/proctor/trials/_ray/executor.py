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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.agents.base import AgentConfig
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
from proctor.trials._ray.messages import Ask, Authority, Done, Parcel, trial_from_json
from proctor.trials._ray.worker import kit_of, project_root, sent_by_value
from proctor.trials.executor import Deliver, Throttle
from proctor.trials.options import DEFAULT_CONCURRENCY
from proctor.trials.run_trial import GRACE

if TYPE_CHECKING:
    from proctor.trials.prepare import RunContext


AHEAD_SECONDS = 0.05
"""Work a worker has in hand while a parcel is under way: many round trips, and little to lose."""

MOST_AHEAD = 256
"""Trials ordered ahead at most, however short they are."""

STOP_PATIENCE = GRACE + 0.25
"""Seconds a worker gets to end what it runs: what an agent has to clean up, and the way here."""

START_PATIENCE = 900.0
"""Seconds in which some worker must have come up: a cluster that grows brings a machine within
minutes, and one that never will is waited for in vain."""

LOST = "WorkerLost"


class Seat:
    """A worker's share of the run: how many trials it runs at a time, and which."""

    def __init__(self, member: Member, slots: int) -> None:
        self.member = member
        self.slots = slots
        self.running: dict[str, PlannedTrial] = {}
        self.held = 0
        """Places of the throttle that it holds."""
        self.ahead = 0
        self._since = time.monotonic()

    def paced(self, ended: int) -> None:
        """So many have ended since the last parcel: how many may be ordered ahead now."""
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
        max_losses: int,
        ahead: bool,
        keep_recorded: Callable[[bytes], None],
        patience: float = START_PATIENCE,
    ) -> None:
        few = members[:at_once]
        shares = [at_once // len(few) + (n < at_once % len(few)) for n in range(len(few))]
        self._seats = [Seat(m, slots) for m, slots in zip(few, shares, strict=True)]
        self._load = load
        self._authority = authority
        self._max_losses = max_losses
        self._ahead = ahead
        self._keep_recorded = keep_recorded
        self._patience = patience
        self._throttle = Throttle(at_once)
        self._trials: Iterator[PlannedTrial] = iter(())
        self._returned: deque[PlannedTrial] = deque()
        self._suspects: deque[PlannedTrial] = deque()
        self._losses: dict[str, int] = {}
        self._alone: dict[str, int] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._no_more = asyncio.Event()
        self._stopping = False
        self._deliver: Deliver | None = None
        authority.on_slow_down = self._slow_down

    def _slow_down(self) -> None:
        self._throttle.slow_down()

    async def run(self, trials: Iterator[PlannedTrial], deliver: Deliver) -> None:
        """Work until the trials run out or `stop` is called."""
        self._trials, self._deliver = trials, deliver
        try:
            async with asyncio.TaskGroup() as group:
                for seat in self._seats:
                    group.create_task(self._serve(seat))
            while (self._suspects or self._returned) and not self._stopping:
                await self._again()
        finally:
            for task in self._answering:
                task.cancel()
            for seat in self._seats:
                if seat.running:
                    # It would not stop: its process goes, and what it runs with it.
                    seat.member.dismiss()

    async def _again(self) -> None:
        """Trials whose workers were lost: each alone on a worker, to tell which one it was."""
        self._trials, self._ahead = iter(()), False
        self._returned.extend(self._suspects)
        self._suspects.clear()
        self._no_more.clear()
        async with asyncio.TaskGroup() as group:
            for seat in self._seats[: len(self._returned)]:
                seat.slots = 1
                group.create_task(self._serve(seat, alone=True))

    async def _serve(self, seat: Seat, *, alone: bool = False) -> None:
        """Keep one worker busy."""
        while await self._is_ready(seat):
            orders = await self._orders(seat)
            if not orders and not seat.running:
                return
            try:
                parcel = await seat.member.exchange(orders, seat.slots)
            except WorkerLost as lost:
                self._lost(seat, lost, alone=alone)
            else:
                self._unpack(seat, parcel)

    async def _is_ready(self, seat: Seat) -> bool:
        """Wait for the worker, unless there is nothing left for it to do."""
        if seat.member.has_loaded(self._load):
            return True
        ready = asyncio.ensure_future(seat.member.ready(self._load))
        over = asyncio.ensure_future(self._no_more.wait())
        try:
            while not (ready.done() or over.done()):
                await asyncio.wait(
                    {ready, over}, timeout=self._patience, return_when=asyncio.FIRST_COMPLETED
                )
                self._check_somebody_came(ready.done() or over.done(), seat)
            if ready.done():
                ready.result()
                return True
            return False
        finally:
            over.cancel()
            ready.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                if not ready.done():
                    await asyncio.wait({ready})

    def _check_somebody_came(self, soon: bool, seat: Seat) -> None:
        if soon or any(each.member.has_loaded(self._load) for each in self._seats):
            return
        raise ProctorError(
            f"no worker has come up in {self._patience:,.0f} s; each needs {seat.member.needs}",
            hint="`ray status` at the cluster says what it has; nothing finished is lost, "
            "`proctor run --resume` goes on",
        )

    async def _orders(self, seat: Seat) -> list[PlannedTrial]:
        """What the worker is to begin, decided on now."""
        orders: list[PlannedTrial] = []
        ahead = seat.ahead if self._ahead and not self._throttle.slowed else 0
        while len(seat.running) < seat.slots + ahead:
            needs_place = len(seat.running) < seat.slots
            if needs_place and not self._throttle.enter_now():
                if seat.running:
                    break
                await self._throttle.enter()
            planned = self._next()
            if planned is None:
                self._no_more.set()
                if needs_place:
                    self._throttle.leave()
                break
            seat.held += needs_place
            seat.running[planned.key] = planned
            orders.append(planned)
        return orders

    def _next(self) -> PlannedTrial | None:
        """The next trial to begin: one that was ordered of a lost worker, else one of the plan."""
        if self._stopping:
            return None
        return self._returned.popleft() if self._returned else next(self._trials, None)

    def _unpack(self, seat: Seat, parcel: Parcel) -> None:
        if parcel.recorded:
            self._keep_recorded(parcel.recorded)
        for done in parcel.done:
            self._ended(seat, done)
        seat.paced(len(parcel.done))
        for ask in parcel.asks:
            task = asyncio.ensure_future(self._answer(seat.member, ask))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    def _ended(self, seat: Seat, done: Done) -> None:
        planned = seat.running.pop(done.key, None)
        if planned is None:
            return
        self._leave(seat)
        if done.trial is None:
            self._hand_over(planned, _cancelled(planned))
            return
        trial = trial_from_json(done.trial)
        if lost := self._losses.get(done.key):
            trial.retries += lost
            trial.retry_errors = (*[f"{LOST}: its worker was lost"] * lost, *trial.retry_errors)
        self._hand_over(planned, trial, done.trace)

    def _hand_over(self, planned: PlannedTrial, trial: Trial, trace: bytes | None = None) -> None:
        assert self._deliver is not None
        self._deliver(planned, trial, trace)

    def _leave(self, seat: Seat) -> None:
        """Give places of the throttle back that are not needed any more."""
        while seat.held > min(len(seat.running), seat.slots):
            seat.held -= 1
            self._throttle.leave()

    def _lost(self, seat: Seat, lost: WorkerLost, *, alone: bool) -> None:
        """A worker is gone: what it ran is run again at the end, or given up."""
        seat.member.dismiss()
        trials = list(seat.running.values())
        seat.running.clear()
        self._leave(seat)
        if not self._stopping:
            # Workers begin in order: those behind the first few were never begun.
            self._returned.extend(trials[seat.slots :])
            del trials[seat.slots :]
        for planned in trials:
            key = planned.key
            losses = self._losses[key] = self._losses.get(key, 0) + 1
            guilty = self._alone[key] = self._alone.get(key, 0) + alone
            if self._stopping:
                self._hand_over(planned, _cancelled(planned))
            elif guilty > self._max_losses:
                self._hand_over(planned, _given_up(planned, losses, lost))
            else:
                self._suspects.append(planned)

    async def _answer(self, member: Member, ask: Ask) -> None:
        answer = await self._authority.answer(ask)
        if ask.number:
            member.answer(answer)

    def stop(self) -> None:
        """Cancel what runs; `run` returns once every trial it took is delivered."""
        self._stopping = True
        self._no_more.set()
        while self._suspects or self._returned:
            planned = (self._suspects or self._returned).popleft()
            self._hand_over(planned, _cancelled(planned))
        for seat in self._seats:
            if seat.running:
                seat.member.stop()
        asyncio.get_running_loop().call_later(STOP_PATIENCE, self._end_workers)

    def _end_workers(self) -> None:
        """End workers whose agents will not stop; what they ran is delivered as cancelled."""
        for seat in self._seats:
            if seat.running:
                seat.member.dismiss()


def _cancelled(planned: PlannedTrial) -> Trial:
    trial = planned.trial(TrialStatus.CANCELLED)
    trial.error = TrialError("Cancelled", "the run was stopped before this trial had ended")
    return trial


def _given_up(planned: PlannedTrial, losses: int, lost: WorkerLost) -> Trial:
    trial = planned.trial(TrialStatus.INFRA_ERROR)
    trial.error = TrialError(LOST, f"{losses} workers were lost while they ran it: {lost}")
    trial.retries = losses - 1
    trial.retry_errors = (f"{LOST}: its worker was lost",) * (losses - 1)
    return trial


@contextmanager
def ray_workforce(ready: RunContext) -> Generator[Callable[[int], RayExecutor]]:
    """Workers for a run, warm until it ends and, for the next run, beyond."""
    needs_extra("ray", "ray")
    _refuse_people(ready.agents)
    needs = needs_of(ready.agents.values())
    options = ready.options
    wanted = options.workers or max(1, int((os.cpu_count() or 1) / (needs.cpu or 1)))
    connection = connect(options.address, wanted * needs.cpu, project_root(ready))
    room = _room(needs, connection)
    kit = kit_of(ready, shares_files=connection.shares_files)
    crew = take_crew(needs, connection)
    try:
        with sent_by_value(kit):
            load = Load(kit.digest, ray_package().put(kit))
        workers, authority = options.workers or room, Authority(ready.checkpoints)
        waits = any(config.asynchronous for config in ready.agents.values())
        each = DEFAULT_CONCURRENCY if waits else 1

        def executor_for(planned: int) -> RayExecutor:
            at_once = max(1, min(options.concurrency or workers * each, planned))
            return RayExecutor(
                crew.of(min(workers, at_once)),
                load,
                authority,
                at_once=at_once,
                max_losses=options.max_retries,
                # Trials are sent ahead where what starts next never depends on what has ended.
                ahead=not options.early_stop and not options.limited,
                keep_recorded=lambda lines: _append(options.record_to, lines),
            )

        yield executor_for
    except BaseException:
        # Whatever they are doing, nobody waits for it any more.
        crew.dismiss()
        raise
    finally:
        give_back(crew)


def needs_of(agents: Iterable[AgentConfig]) -> Resources:
    """What a worker asks for: it can run every agent, so the most that any of them needs."""
    most: dict[str, float] = {}
    for config in agents:
        own = {"cpu": 1.0, **(config.resources or {})}
        most.update({name: max(amount, most.get(name, 0.0)) for name, amount in own.items()})
    cpu, gpu = most.pop("cpu", 1.0), most.pop("gpu", 0.0)
    return Resources(cpu, gpu, tuple(sorted(most.items())))


def _refuse_people(agents: Mapping[str, AgentConfig]) -> None:
    for name, config in agents.items():
        if config.kind == "human":
            raise ProctorError(
                f"the agent {name!r} answers at this terminal, which workers do not have",
                hint="run it with --executor local",
            )


def _room(needs: Resources, connection: Connection) -> int:
    """How many workers there is room for at a time; none at all is an error on our own Ray."""
    there: dict[str, float] = ray_package().cluster_resources()
    asked = {"CPU": needs.cpu, "GPU": needs.gpu, **dict(needs.custom)}
    fits = [int(there.get(name, 0.0) / amount) for name, amount in asked.items() if amount]
    most = min(fits, default=1)
    if most < 1 and connection.ours:
        lacking = next(name for name, amount in asked.items() if there.get(name, 0.0) < amount)
        raise ProctorError(
            f"a worker needs {needs}, and this machine has no {lacking} to give",
            hint="--address names a Ray that has it; see `resources` of the agents",
        )
    return max(1, most)


def _append(path: str | None, lines: bytes) -> None:
    """Add what workers recorded to the cassette of the run, whose writer appends as well."""
    if path is None:
        return
    with Path(path).open("ab", buffering=0) as file:
        left: Any = memoryview(lines)
        while left:
            left = left[file.write(left) :]

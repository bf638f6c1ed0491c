"""Drive a run: the plan minus the journal, until it is done, stopped or out of budget.

Promise: the one writer. A trial is finished when its line is in the journal; whatever ends this
process, everything finished is safe and the rest can be resumed. Stopping is graceful: no new
trial starts, running ones are cancelled and recorded as such.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from proctor.errors import ProctorError
from proctor.runs.folder import RunFolder
from proctor.runs.journal import Journal, Sync, read_journal
from proctor.runs.model import CellKey, PlannedTrial, Trial, TrialError, TrialStatus
from proctor.runs.segments import SegmentWriter
from proctor.runs.stopping import CellPlan, EarlyStop, StoppingRule
from proctor.trials.executors import Executor, Job
from proctor.trials.limits import Spending
from proctor.trials.perform import Finished

STOP_GRACE = 2.0
"""Seconds running trials get to end after a stop: with what is written afterwards, less than the
5 s a person is promised."""


class Observer(Protocol):
    """Follows a run as it happens."""

    def planned(self, total: int, kept: Sequence[Trial]) -> None:
        """The run begins: so many trials in all, these of them finished before."""

    def started(self, trial: PlannedTrial) -> None:
        """A trial starts."""

    def finished(self, trial: Trial) -> None:
        """A trial is in the journal."""

    def skipped(self, trial: PlannedTrial) -> None:
        """A trial is not needed: its cell is decided."""


class Rerun(NamedTuple):
    """Which finished trials are run again on resume, besides those never finished."""

    statuses: frozenset[TrialStatus] = frozenset({TrialStatus.CANCELLED})


UNFINISHED = Rerun()
FAILED = Rerun(
    frozenset(
        {
            TrialStatus.CANCELLED,
            TrialStatus.FAILED,
            TrialStatus.HARD_FAIL,
            TrialStatus.INFRA_ERROR,
        }
    )
)
INFRA = Rerun(frozenset({TrialStatus.CANCELLED, TrialStatus.INFRA_ERROR}))


class Session:
    """One process working on one run folder; hold the folder's lock around it."""

    def __init__(
        self,
        folder: RunFolder,
        plan: Sequence[PlannedTrial],
        cells: Mapping[CellKey, CellPlan],
        *,
        spending: Spending,
        rules: Sequence[StoppingRule] = (),
        observer: Observer | None = None,
        rerun: Rerun = UNFINISHED,
        sync: Sync = Sync.INTERVAL,
    ) -> None:
        self._folder = folder
        self._plan = plan
        self._cells = cells
        self._spending = spending
        self._early = EarlyStop(rules)
        self._observer = observer
        self._rerun = rerun
        self._sync = sync
        self._executor: Executor | None = None
        self._journal: Journal | None = None
        self._traces: SegmentWriter | None = None
        self._running: dict[str, Job] = {}
        self.told_to_stop = asyncio.Event()
        self.stopped: str | None = None
        """Why the run ended before its plan did, or None."""

    async def run(self, make_executor: Callable[[], Executor]) -> None:
        """Work through what is left of the plan."""
        done = self._read_journal()
        if self._observer is not None:
            kept = [t for t in done.values() if t.status not in self._rerun.statuses]
            self._observer.planned(len(self._plan), kept)
        self._journal = self._folder.journal(self._sync)
        self._traces = SegmentWriter(self._folder.traces_path)
        self._executor = make_executor()
        try:
            await self._executor.run(self._jobs(done), self._deliver)
        except BaseExceptionGroup as group:
            # Workers fail together when the disk is full; one reason is enough.
            raise first_of(group) from None
        finally:
            self.close()

    def _read_journal(self) -> dict[str, Trial]:
        """What earlier sittings did. All of it was paid for; only last attempts count."""
        done: dict[str, Trial] = {}
        for trial in read_journal(self._folder.journal_path):
            self._spending.add(trial)
            # The rest is not needed to go on, and a long run has many of them.
            trial.checks, trial.answer = (), None
            done[trial.key] = trial
        return done

    def _deliver(self, job: Job, finished: Finished) -> None:
        if self._journal is None or self._traces is None:
            return  # ended after this session had given up on it
        trial = finished.trial
        if finished.encoded is not None:
            trial.trace = self._traces.append(finished.encoded)
        self._journal.append(trial)
        self._account(job, trial)

    def close(self) -> None:
        """Record what still runs as cancelled and write no more. May be called again."""
        journal, traces = self._journal, self._traces
        self._journal = self._traces = None
        if journal is None or traces is None:
            return
        failing = sys.exc_info()[0] is not None
        try:
            for job in list(self._running.values()):
                journal.append(abandoned(job))
            journal.close()
            traces.close()
        except ProctorError:
            # Why it cannot be written is being told already.
            if not failing:
                raise

    def _account(self, job: Job, trial: Trial) -> None:
        self._running.pop(job.key, None)
        self._spending.add(trial)
        self._early.add(trial, job.position, self._cells[trial.cell])
        if self._observer is not None:
            self._observer.finished(trial)

    def _jobs(self, done: dict[str, Trial]) -> Iterator[Job]:
        """What is left, decided one by one at the moment each could start."""
        position: dict[CellKey, int] = defaultdict(int)
        for planned in self._plan:
            cell = planned.cell
            place = position[cell]
            position[cell] += 1
            key = planned.key
            earlier = done.get(key)
            if earlier is not None and earlier.status not in self._rerun.statuses:
                self._early.add(earlier, place, self._cells[cell])
                continue
            if self._early.stopped(cell):
                if self._observer is not None:
                    self._observer.skipped(planned)
                continue
            self.stopped = self.stopped or self._spending.exhausted()
            if self.stopped:
                return
            self._spending.start()
            job = Job(planned, place, earlier.attempt + 1 if earlier else 1, key)
            self._running[key] = job
            if self._observer is not None:
                self._observer.started(planned)
            yield job

    def stop(self, reason: str) -> None:
        """End the run soon: running trials are cancelled, finished ones are safe."""
        if self.stopped is None:
            self.stopped = reason
        self.told_to_stop.set()
        if self._executor is not None:
            self._executor.stop()


def abandoned(job: Job) -> Trial:
    """A trial whose agent would not stop in time."""
    trial = job.planned.trial(TrialStatus.CANCELLED, job.attempt)
    trial.error = TrialError("Cancelled", "the run was stopped and the agent did not end in time")
    return trial


async def run_until_stopped(session: Session, make_executor: Callable[[], Executor]) -> None:
    """Run a session; once it is told to stop, leave within `STOP_GRACE` whatever agents do."""
    work = asyncio.ensure_future(session.run(make_executor))
    told = asyncio.ensure_future(session.told_to_stop.wait())
    await asyncio.wait({work, told}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if not work.done():
        await asyncio.wait({work}, timeout=STOP_GRACE)
    if not work.done():
        # Some agent swallows its cancellation. What it still does is not waited for nor kept.
        session.close()
        work.cancel()
        return
    if not work.cancelled():
        work.result()


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group, however deep."""
    first = group.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first  # pyright: ignore[reportUnknownArgumentType]

"""Drive a run: the plan minus the journal, until it is done, stopped or out of budget.

Promise: the one writer. A trial is finished when its line is in the journal; whatever ends this
process, everything finished is safe and the rest can be resumed. Stopping is graceful: no new
trial starts, running ones are cancelled and recorded as such.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from proctor.errors import ProctorError, first_of
from proctor.runs.checkpoints import Checkpoints
from proctor.runs.early_stop import CellPlan, EarlyStop, StoppingRule
from proctor.runs.folder import RunFolder
from proctor.runs.journal import Sync, read_journal
from proctor.runs.parquet import RowOrder, row_order
from proctor.runs.summary import SharedResults, compact
from proctor.runs.trial import CellKey, PlannedTrial, Trial, TrialError, TrialStatus
from proctor.runs.writer import TrialWriter
from proctor.trials.executor import Executor
from proctor.trials.limits import Spending

MOST_KEPT = 20_000
"""Trials kept in memory, made small, to summarise without reading them back: some 6 MB."""

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


class Tally:
    """How many trials of a run came to what, as far as the journal says; read by other threads."""

    def __init__(self) -> None:
        self.of = dict.fromkeys(TrialStatus, 0)
        self.kept = 0
        """Of these, finished in an earlier sitting."""
        self.skipped = 0
        """Not needed, since their cells are decided."""

    def add(self, trials: Iterable[Trial]) -> None:
        """These are in the journal."""
        of = self.of
        for trial in trials:
            of[trial.status] += 1


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
        self.spending = spending
        self.checkpoints: Checkpoints | None = None
        """States of agents, which go when their trials are in the journal."""
        self.tally = Tally()
        self._early = EarlyStop(rules)
        self._observer = observer
        self._rerun = rerun
        self._sync = sync
        self._rules = rules
        self._executor: Executor | None = None
        self._writer: TrialWriter | None = None
        self._broken: ProctorError | None = None
        self._running: dict[str, PlannedTrial] = {}
        self._shared: SharedResults = {}
        self._finished: list[Trial] | None = []
        self._last_row: RowOrder | None = ("", "", "", -1, -1)
        self._notices: list[PlannedTrial | Trial] = []
        """What began or ended since the last write, in that order: told once it is on disk."""
        self.told_to_stop = asyncio.Event()
        self.stopped: str | None = None
        """Why the run ended before its plan did, or None."""

    async def run(self, make_executor: Callable[[], Executor]) -> None:
        """Work through what is left of the plan."""
        done = self._read_journal()
        kept = [t for t in done.values() if t.status not in self._rerun.statuses]
        if done:
            self._finished = self._last_row = None
            self.tally.add(kept)
            self.tally.kept = len(kept)
            if self.checkpoints is not None:
                self.checkpoints.written(done.values())
        if self._observer is not None:
            self._observer.planned(len(self._plan), kept)
        self._writer = TrialWriter(self._folder, self._sync, self._written)
        self._executor = make_executor()
        try:
            await self._executor.run(self._left(done), self._deliver)
            if self._broken is not None:
                raise self._broken
        except BaseExceptionGroup as group:
            # Workers fail together when the disk is full; one reason is enough.
            raise first_of(group) from None
        finally:
            self.close()

    @property
    def finished(self) -> list[Trial] | None:
        """All trials of the run, made small; None when some are only to be had from the journal."""
        return self._finished

    @property
    def planned(self) -> int:
        """Trials of the plan, whatever became of them."""
        return len(self._plan)

    @property
    def running(self) -> int:
        """Trials that have started and not ended."""
        return len(self._running)

    @property
    def in_order(self) -> bool:
        """Whether the lines of the journal stand in the order of rows, one for each trial."""
        return self._last_row is not None

    def _read_journal(self) -> dict[str, Trial]:
        """What earlier sittings did. All of it was paid for; only last attempts count."""
        done: dict[str, Trial] = {}
        for trial in read_journal(self._folder.journal_path):
            self.spending.add(trial)
            # The rest is not needed to go on, and a long run has many of them.
            trial.checks, trial.answer = (), None
            done[trial.key] = trial
        return done

    def _deliver(self, planned: PlannedTrial, trial: Trial, trace: bytes | None) -> None:
        """Take a trial that has ended; it counts at once, and is reported once it is written."""
        if self._writer is None:
            return  # ended after this session had given up on it
        self._running.pop(planned.key, None)
        self.spending.add(trial)
        if self._rules:
            self._early.add(trial, planned.position, self._cells[trial.cell])
        if self._observer is not None:
            self._notices.append(trial)
        if self._writer.add(trial, trace):
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Write the trials that ended in this turn of the event loop."""
        if self._writer is None:
            return
        try:
            self._writer.flush()
        except ProctorError as error:
            self._broken = error
            if self._executor is not None:
                self._executor.stop()

    def _written(self, trials: Sequence[Trial]) -> None:
        """Trials that are in the journal now."""
        self.tally.add(trials)
        if self.checkpoints is not None:
            self.checkpoints.written(trials)
        if self._finished is not None:
            self._finished.extend(compact(trials, self._shared))
            if len(self._finished) > MOST_KEPT:
                self._finished = None
        if self._last_row is not None:
            self._last_row = _last_row(self._last_row, trials)
        if self._observer is not None:
            notices, self._notices = self._notices, []
            for notice in notices:
                if isinstance(notice, Trial):
                    self._observer.finished(notice)
                else:
                    self._observer.started(notice)

    def close(self) -> None:
        """Record what still runs as cancelled and write no more. May be called again."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        failing = sys.exc_info()[0] is not None
        try:
            for planned in list(self._running.values()):
                trial = abandoned(planned)
                self._notices.append(trial)
                writer.add(trial, None)
            writer.close()
        except ProctorError:
            # Why it cannot be written is being told already.
            if not failing:
                raise

    def _left(self, done: dict[str, Trial]) -> Iterator[PlannedTrial]:
        """What is left, decided one by one at the moment each could start."""
        positions: dict[CellKey, int] = defaultdict(int)
        for planned in self._plan:
            if self._rules:
                cell = planned.cell
                planned = replace(planned, position=positions[cell])  # noqa: PLW2901
                positions[cell] += 1
            key = planned.key
            earlier = done.get(key) if done else None
            if earlier is not None and earlier.status not in self._rerun.statuses:
                self._early.add(earlier, planned.position, self._cells[planned.cell])
                continue
            if self._rules and self._early.stopped(planned.cell):
                self.tally.skipped += 1
                if self._observer is not None:
                    self._observer.skipped(planned)
                continue
            self.stopped = self.stopped or self.spending.exhausted()
            if self.stopped:
                return
            self.spending.start()
            if earlier is not None:
                planned = replace(planned, attempt=earlier.attempt + 1)  # noqa: PLW2901
            self._running[key] = planned
            if self._notices:  # What has ended is told before something else begins.
                self._notices.append(planned)
            elif self._observer is not None:
                self._observer.started(planned)
            yield planned

    def stop(self, reason: str) -> None:
        """End the run soon: running trials are cancelled, finished ones are safe."""
        if self.stopped is None:
            self.stopped = reason
        self.told_to_stop.set()
        if self._executor is not None:
            self._executor.stop()


def _last_row(last: RowOrder, trials: Sequence[Trial]) -> RowOrder | None:
    """The last row after these were added, or None when they are not in order."""
    for trial in trials:
        row = row_order(trial)
        if row <= last:
            return None
        last = row
    return last


def abandoned(planned: PlannedTrial) -> Trial:
    """Return the result of a trial whose agent did not stop in time."""
    trial = planned.trial(TrialStatus.CANCELLED)
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

"""Run a plan: until it is done, stopped or out of budget, with or without a run folder.

Promise: the session is the only writer. A trial counts as finished once its line is in the
journal; whatever ends this process, finished trials are safe and the rest can be resumed.
Stopping is graceful: no new trial starts, running ones are cancelled and recorded as such.
Without a folder (`proctor test`) nothing is written and the `Run` exists in memory only.

Everything needed to resume a run is in its folder; only the agent's own code is outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from proctor.errors import ProctorError, first_of
from proctor.imports import needs_extra
from proctor.llm.cassette import Cassette
from proctor.llm.rate_limits import rates_in_force
from proctor.results.metadata import finalise
from proctor.runs import audit
from proctor.runs.case_rows import NAME as ROWS_FILE
from proctor.runs.checkpoints import CALLS, CallRecords, Checkpoints
from proctor.runs.early_stop import EarlyStop, rules_named
from proctor.runs.folder import MADE_BY, OUTPUT, RunFolder
from proctor.runs.heartbeat import Heart
from proctor.runs.journal import TrialWriter, read_journal
from proctor.runs.plan_order import RowOrder, row_order
from proctor.runs.provenance import git_state
from proctor.runs.run import Run
from proctor.runs.summary import SharedResults, compact
from proctor.runs.trial import UNJUDGED, CellKey, PlannedTrial, Trial, TrialError, TrialStatus
from proctor.trials.executor import Executor, executors_for
from proctor.trials.options import ExecutorName, RunBudget
from proctor.trials.plan import Plan, breadth_first
from proctor.trials.prepare import (
    PreparedCases,
    RunContext,
    closing,
    load_early,
    memory_record,
    spec_record,
)

if TYPE_CHECKING:
    from proctor.runs.journal import Sync

MOST_KEPT = 20_000
"""Trials cached in memory, compacted, to summarise without reading the journal: about 6 MB."""

LOOK_AHEAD = 256
"""Planned trials among which early stop looks for a cell that is not running."""

STOP_GRACE = 2.0
"""Seconds running trials get to end after a stop: with the writing that follows, less than the 5 s
promised to users."""

UNFINISHED = frozenset({TrialStatus.CANCELLED})
"""Statuses of trials that are run again when a run is resumed."""
INFRA = UNFINISHED | set(UNJUDGED)
FAILED = INFRA | {TrialStatus.FAILED, TrialStatus.HARD_FAIL}

FAIL_FAST = "a trial did not pass"


class Observer(Protocol):
    """Follows a run as it happens."""

    def planned(self, total: int, kept: Sequence[Trial]) -> None:
        """The run begins with this many trials; `kept` were finished before."""

    def started(self, trial: PlannedTrial) -> None:
        """A trial starts."""

    def finished(self, trial: Trial) -> None:
        """A trial is in the journal."""

    def skipped(self, trial: PlannedTrial) -> None:
        """A trial is skipped: its cell is decided."""


def new_folder(
    context: RunContext, root: Path, name: str | None = None, *, made_by: str | None = None
) -> RunFolder:
    """Create the folder of a run, with everything needed to run it."""
    if context.options.executor == ExecutorName.RAY:
        needs_extra("ray", "ray")  # before the folder exists, which would stay empty
    # From the start, so that commands in subfolders find the results folder by its log.
    with contextlib.suppress(OSError):
        root.mkdir(parents=True, exist_ok=True)
        (root / audit.FILE).touch()
    design = context.design
    if design is not None and name not in (None, context.name):
        # Another name (--name, a smoke run) must not be stored among the runs of the experiment.
        context = dataclasses.replace(context, design=dataclasses.replace(design, output=OUTPUT))
    folder = RunFolder.create(root, name or context.name, output=context.output)
    if isinstance(context.cases, PreparedCases):
        context.cases.cases.data.rows.write_to(folder.path / ROWS_FILE)
    folder.write_spec({**spec_record(context), **({MADE_BY: made_by} if made_by else {})})
    return folder


async def run_session(
    context: RunContext,
    folder: RunFolder | None = None,
    *,
    rerun: frozenset[TrialStatus] = UNFINISHED,
    observer: Observer | None = None,
    on_session: Callable[[Session], None] | None = None,
    fail_fast: bool = False,
) -> Run:
    """Run the trials that the folder lacks and write the results; in memory without a folder.

    `on_session` gets the session of each round, whose `stop` ends the run. `fail_fast` starts no
    more trials once one has not passed.
    """
    options, unfolding = context.options, context.unfolding
    rates = context.configuration.settings.limits.rates
    plan = context.plan
    heart: Heart | None = None
    with contextlib.ExitStack() as stack:
        resuming = False
        if folder is not None:
            stack.enter_context(folder.lock())
            run_id = str(folder.known_spec()["run_id"])
            heart = stack.enter_context(Heart(folder.path, run_id))
            resuming = folder.journal_path.exists()
            if resuming:
                folder.repair()
            context.checkpoints = Checkpoints(
                folder.path, after_errors=options.retry_from_checkpoint
            )
        # After the lock, since it reads what killed trials have left.
        records = CallRecords(None if folder is None else folder.path / CALLS)
        budget = RunBudget(options, records=records, redactor=context.redactor)
        context.budget = context.ledger = budget
        if unfolding is not None:
            assert folder is not None, "research is decided on the journal of its run"
            unfolding.follow(folder.trials())
            if len(unfolding.rounds) > 1 and rerun != UNFINISHED:
                raise ProctorError(
                    "later rounds were decided on these results, so none is run again",
                    where=str(folder.path),
                    hint="--resume continues it; `proctor rerun` repeats it from the start",
                )
        cassette: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if options.record_to is not None:
            cassette = Cassette(options.record_to, "record", append=resuming)
        elif options.replay_from is not None:
            cassette = Cassette(options.replay_from, "replay")
        # The order matters: workers are started with the rate limits and the cassette in force.
        async with (
            context.workspaces or contextlib.nullcontext(),
            closing(context.judges) if context.judges else contextlib.nullcontext(),
        ):
            with (
                cassette,
                rates_in_force(rates) if rates else contextlib.nullcontext(),
                executors_for(context, fail_fast=fail_fast) as make_executor,
            ):
                if options.executor == ExecutorName.LOCAL and context.workers is None:
                    load_early(context)
                while True:
                    if unfolding is not None and folder is not None:
                        # Recorded before the first trial of the round, so that it can be resumed.
                        unfolding.put_on_record(folder)
                        plan = unfolding.plan
                    session = Session(
                        context,
                        plan,
                        folder,
                        budget=budget,
                        observer=observer,
                        rerun=rerun,
                        fail_fast=fail_fast,
                    )
                    if heart is not None:
                        heart.session = session
                        heart.beat()  # at once: the first beat knew no plan
                    if on_session is not None:
                        on_session(session)
                    await session.run(make_executor(len(plan.trials)))
                    if unfolding is None or folder is None:
                        break
                    rounds = len(unfolding.rounds)
                    unfolding.follow(folder.trials())
                    # Signals that arrived between two rounds are handled before the next one.
                    await asyncio.sleep(0)
                    ended = unfolding.found is not None or len(unfolding.rounds) == rounds
                    if session.stopped or ended:
                        unfolding.put_on_record(folder)
                        break
                    budget.next_round()
        places: Mapping[str, tuple[str, int | None, int | None]]
        if isinstance(context.cases, PreparedCases):
            places = context.cases.cases.places
        else:
            places = {
                name: (place.file, place.line, place.column)
                for name, prepared in context.cases.items()
                if (place := prepared.case.place) is not None
            }
        if folder is None:
            spec = memory_record(context, plan, session.stopped)
            order = {planned.key: number for number, planned in enumerate(plan.trials)}
            trials = sorted(session.finished or (), key=lambda trial: order[trial.key])
            run = Run(None, spec=spec, finished=trials, traces=session.traces)
            run.places = places
            return run
        spec = folder.known_spec()
        now = {**spec, "options": options.record(), "stopped": session.stopped}
        if now != spec:
            folder.write_spec(now)
        run = finalise(folder, now, session.finished, in_order=session.last_row is not None)
        run.places = places
    git = git_state(context.suite.folder) if resuming else run.header["provenance"]["git"]
    problem = audit.record(
        "resume" if resuming else "run",
        audit.root_of(run.path),
        run=run.path,
        run_id=run.run_id,
        outcome=run.stopped,
        exit_code=run.exit_code,
        git=git or {},
    )
    if problem:
        warnings.warn(problem, stacklevel=2)
    return run


class Session:
    """Decides which trial may start, receives finished ones; hold the folder's lock around it."""

    def __init__(
        self,
        context: RunContext,
        plan: Plan,
        folder: RunFolder | None = None,
        *,
        budget: RunBudget,
        observer: Observer | None = None,
        rerun: frozenset[TrialStatus] = UNFINISHED,
        fail_fast: bool = False,
    ) -> None:
        self._folder = folder
        self._plan = plan
        self.planned = len(plan.trials)
        """The number of trials of the plan."""
        self.budget = budget
        self._limited = context.options.limited
        self._checkpoints = context.checkpoints
        rules = rules_named(context.options.early_stop) if context.options.early_stop else ()
        self._early = EarlyStop(rules) if rules else None
        self._observer = observer
        self._rerun = rerun
        self._fail_fast = fail_fast
        self._sync: Sync = context.options.sync
        self._executor: Executor | None = None
        self._at_once = 1
        self._writer: TrialWriter | None = None
        self._closed = False
        self._broken: ProctorError | None = None
        self._running: dict[str, PlannedTrial] = {}
        self._judged: dict[str, Trial] = {}
        """The first judged attempts of earlier invocations."""
        self._shared: SharedResults = {}
        large = isinstance(context.cases, PreparedCases) and folder is not None
        self.finished: list[Trial] | None = None if large else []
        """All trials of the run, compacted if they are in a journal as well; None if some are only
        there."""
        self.traces: dict[str, bytes] = {}
        """Encoded traces by trial, where there is no folder to write them to."""
        self.last_row: RowOrder | None = (CellKey("", ""), -1, -1)
        """The last line of the journal while its lines are in row order, one for each trial."""
        self._ahead: dict[str, PlannedTrial] = {}
        """Trials that a worker has queued, in order: they start when others end."""
        self._notices: list[PlannedTrial | Trial] = []
        """Trials that started or ended since the last write, in order: reported once on disk."""
        self._stop_requested = asyncio.Event()
        self.stopped: str | None = None
        """Why the run ended before its plan did, or None."""
        # Counters that other threads read.
        self.counts = dict.fromkeys(TrialStatus, 0)
        self.kept = 0
        """Trials among `counts` that were finished by an earlier invocation."""
        self.skipped = 0
        """Trials that were skipped because their cells are decided."""

    @property
    def running(self) -> int:
        """Trials that have started and not ended."""
        return min(len(self._running), self._at_once)

    async def run(self, executor: Executor) -> None:
        """Run the remaining trials; after a stop, return within `STOP_GRACE` in any case."""
        work = asyncio.ensure_future(self._run(executor))
        stop = asyncio.ensure_future(self._stop_requested.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await asyncio.wait({work}, timeout=STOP_GRACE)
        finally:
            stop.cancel()
            if not work.done():
                # An agent swallows its cancellation. It is neither awaited nor recorded.
                self.close()
                work.cancel()
        if work.done() and not work.cancelled():
            work.result()

    async def _run(self, executor: Executor) -> None:
        # Earlier invocations were paid for in full. The last attempt at a trial decides whether it
        # is left to do; its first judged one is counted, as in `runs.journal`.
        done: dict[str, Trial] = {}
        if self._folder is not None and self._folder.journal_path.exists():
            for trial in read_journal(self._folder.journal_path):
                self.budget.add_earlier(trial)
                # The rest is not needed to resume, and a long run has many trials.
                trial.checks, trial.answer = (), None
                key = trial.key
                done[key] = trial
                if trial.status.judged:
                    self._judged.setdefault(key, trial)
        kept = [trial for trial in done.values() if trial.status not in self._rerun]
        if done:
            self.finished = self.last_row = None
            for trial in kept:
                self.counts[self._judged.get(trial.key, trial).status] += 1
            self.kept = len(kept)
            if isinstance(self._checkpoints, Checkpoints):
                self._checkpoints.written(done.values())
        if self._observer is not None:
            self._observer.planned(self.planned, kept)
        if self._folder is not None:
            self._writer = TrialWriter(self._folder, self._sync, self._written)
        self._executor, self._at_once = executor, executor.at_once
        failing = True
        try:
            await executor.run(self._left(done), self._deliver)
            if self._broken is not None:
                raise self._broken
            failing = False
        except BaseExceptionGroup as group:
            # Workers fail together when the disk is full; the first error is enough.
            raise first_of(group) from None
        finally:
            self.close(failing=failing)

    def _left(self, done: dict[str, Trial]) -> Iterator[PlannedTrial]:
        """Yield the remaining trials of the plan; each is decided at the moment it could start."""
        for planned in self._plan.trials if self._early is None else self._spread():
            key = planned.key
            earlier = done.get(key) if done else None
            counted = self._judged.get(key) if done else None
            ended = earlier is not None and earlier.status not in self._rerun
            if self._early is not None and (counted is not None or ended):
                seen = counted or earlier
                assert seen is not None
                self._early.add(seen, planned.position, self._plan.cells[planned.cell])
            if ended:
                continue
            # A trial that was judged before is retried on request, also in a decided cell.
            decided = self._early is not None and self._early.stopped(planned.cell)
            if decided and counted is None:
                self.skipped += 1
                if self._observer is not None:
                    self._observer.skipped(planned)
                continue
            if self._limited:
                self.stopped = self.stopped or self.budget.exhausted()
            if self.stopped:
                return
            self.budget.started += 1
            if earlier is not None:
                planned = replace(planned, attempt=earlier.attempt + 1)  # noqa: PLW2901
            self._running[key] = planned
            if self._observer is None:
                pass
            elif len(self._running) > self._at_once:
                self._ahead[key] = planned
            elif self._notices:  # Finished trials are reported before another one starts.
                self._notices.append(planned)
            else:
                self._observer.started(planned)
            yield planned

    def _spread(self) -> Iterator[PlannedTrial]:
        """Yield the plan breadth first, cells without a running trial before the others.

        A trial that runs may decide its cell, so another one of that cell may be needless.
        """
        waiting = deque(breadth_first(self._plan.trials))
        while waiting:
            busy = {running.cell for running in self._running.values()}
            near = enumerate(islice(waiting, LOOK_AHEAD))
            at = next((number for number, planned in near if planned.cell not in busy), 0)
            planned = waiting[at]
            del waiting[at]
            yield planned

    def _deliver(self, planned: PlannedTrial, trial: Trial | None, trace: bytes | None) -> None:
        """Receive a finished trial; it counts at once, and is reported once it is written."""
        if self._closed:
            return  # it ended after this session had closed
        if trial is None:
            # Stopped before its worker began it. One that was only sent ahead has not run; one
            # whose turn it was is cancelled.
            sent_ahead = planned.key in list(self._running)[self._at_once :]
            if sent_ahead:
                del self._running[planned.key]
                self._ahead.pop(planned.key, None)
                return
            trial = planned.trial(TrialStatus.CANCELLED)
            trial.error = TrialError("Cancelled", "the run was stopped before this trial began")
        self._running.pop(planned.key, None)
        trace = self.budget.add(trial, trace)
        if self._early is not None and planned.key not in self._judged:
            self._early.add(trial, planned.position, self._plan.cells[trial.cell])
        if self._fail_fast and not trial.passed:
            self.stopped = self.stopped or FAIL_FAST
        if self._observer is not None:
            if (begun := self._ahead.pop(planned.key, None)) is not None:
                self._notices.append(begun)
            self._notices.append(trial)
            if self._ahead:
                self._notices.append(self._ahead.pop(next(iter(self._ahead))))
        if self._writer is None:
            if trace is not None:
                self.traces[planned.key] = trace
            self._written([trial])
        elif self._writer.add(trial, trace):
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
        """Count and report trials that are now in the journal."""
        for trial in trials:
            counted = self._judged.get(trial.key, trial) if self._judged else trial
            self.counts[counted.status] += 1
        if isinstance(self._checkpoints, Checkpoints) and self._checkpoints.stored:
            self._checkpoints.written(trials)
        if self.budget.records.trials:
            for trial in trials:
                self.budget.records.written(trial.key)
        if self._folder is None and self.finished is not None:
            self.finished.extend(trials)
        elif self.finished is not None:
            self.finished.extend(compact(trials, self._shared))
            if len(self.finished) > MOST_KEPT:
                self.finished = None
        # While rows arrive in order, the Parquet file is written without sorting.
        if self.last_row is not None:
            for trial in trials:
                row = row_order(trial)
                if row <= self.last_row:
                    self.last_row = None
                    break
                self.last_row = row
        if self._observer is not None:
            notices, self._notices = self._notices, []
            for notice in notices:
                if isinstance(notice, Trial):
                    self._observer.finished(notice)
                else:
                    self._observer.started(notice)

    def close(self, *, failing: bool = False) -> None:
        """Record running trials as cancelled and write no more. May be called again.

        `failing` says that an error is being raised already, which may be the reason why nothing
        can be written; `sys.exc_info` would also name one that a caller is handling.
        """
        if self._closed:
            return
        self._closed = True
        writer, self._writer = self._writer, None
        try:
            for planned in list(self._running.values()):
                trial = planned.trial(TrialStatus.CANCELLED)
                trial.error = TrialError(
                    "Cancelled", "the run was stopped and the agent did not end in time"
                )
                self.budget.lose(trial.key)
                trace = self.budget.add(trial)
                self._notices.append(trial)
                if writer is None:
                    self._written([trial])
                else:
                    writer.add(trial, trace)
            if writer is not None:
                writer.close()
        except ProctorError:
            if not failing:
                raise

    def stop(self, reason: str) -> None:
        """End the run soon: running trials are cancelled, finished ones are safe."""
        if self.stopped is None:
            self.stopped = reason
        self._stop_requested.set()
        if self._executor is not None:
            self._executor.stop()

"""Carry out what was made ready, and keep it: from a folder without trials to a run that is read.

Everything a run needs to be resumed stands in its folder; only the agent's own code is outside.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

from proctor.imports import needs_extra
from proctor.llm.rate_limits import rates_in_force
from proctor.results.finalise import finalise
from proctor.runs import audit
from proctor.runs.checkpoints import Checkpoints
from proctor.runs.early_stop import rules_named
from proctor.runs.folder import RunFolder
from proctor.runs.heartbeat import Heart
from proctor.runs.provenance import git_state
from proctor.runs.run import Run
from proctor.trials.executor import executors_for
from proctor.trials.limits import Spending
from proctor.trials.options import ExecutorName
from proctor.trials.plan import Plan
from proctor.trials.prepare import RunContext, closing
from proctor.trials.record import spec_record
from proctor.trials.research.unfold import in_rounds, refuse_again
from proctor.trials.session import UNFINISHED, Observer, Rerun, Session, run_until_stopped


def new_folder(ready: RunContext, root: Path, name: str | None = None) -> RunFolder:
    """A folder for a run that has not begun, with all that is needed to carry it out."""
    if ready.options.executor == ExecutorName.RAY:
        needs_extra("ray", "ray")  # before there is a folder that nothing would ever be in
    audit.begin(root)
    folder = RunFolder.create(root, name or ready.name, output=ready.output)
    folder.write_spec(spec_record(ready))
    return folder


async def carry_out(
    ready: RunContext,
    folder: RunFolder,
    *,
    rerun: Rerun = UNFINISHED,
    observer: Observer | None = None,
    on_session: Callable[[Session], None] | None = None,
) -> Run:
    """Do what is left of a run, then write what it says."""
    with folder.lock(), Heart(folder.path, str(folder.known_spec()["run_id"])) as heart:
        folder.repair()
        going_on = folder.journal_path.exists()
        spending = Spending(ready.options.limits)
        checkpoints = Checkpoints(folder.path, after_errors=ready.options.retry_from_checkpoint)
        ready.checkpoints = checkpoints

        async def sitting(plan: Plan) -> Session:
            nonlocal spending
            session = Session(
                folder,
                plan.trials,
                plan.cells,
                spending=spending,
                rules=rules_named(ready.options.early_stop),
                observer=observer,
                rerun=rerun,
                sync=ready.options.sync,
            )
            session.checkpoints = checkpoints
            heart.follow(session)
            if on_session is not None:
                on_session(session)
            await run_until_stopped(session, lambda: make_executor(len(plan.trials)))
            spending = spending.next_round()
            return session

        rates = ready.configuration.settings.limits.rates
        async with closing(ready.judges):
            with (
                ready.options.cassette(going_on=going_on),
                rates_in_force(rates),
                executors_for(ready) as make_executor,
            ):
                if ready.unfolding is None:
                    session = await sitting(ready.plan)
                else:
                    refuse_again(ready.unfolding, folder, rerun)
                    session = await in_rounds(ready.unfolding, folder, sitting)
        checkpoints.close()
        spec = folder.known_spec()
        now = {**spec, "options": ready.options.record(), "stopped": session.stopped}
        if now != spec:
            folder.write_spec(now)
        run = finalise(folder, now, session.finished, in_order=session.in_order)
    _put_on_record(run, ready, going_on=going_on)
    return run


def _put_on_record(run: Run, ready: RunContext, *, going_on: bool) -> None:
    git = git_state(ready.suite.folder) if going_on else run.spec["provenance"]["git"]
    problem = audit.record(
        "resume" if going_on else "run",
        audit.root_of(run.path),
        run=run.path,
        run_id=run.run_id,
        outcome=run.stopped,
        exit_code=run.exit_code,
        git=git or {},
    )
    if problem:
        warnings.warn(problem, stacklevel=2)

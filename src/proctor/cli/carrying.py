"""Carry out a run in front of a person: progress, signals, standard output kept clean."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, NamedTuple

import click

from proctor.errors import EXIT_CANNOT_JUDGE
from proctor.sanitize import printable

if TYPE_CHECKING:
    from proctor.runs.folder import RunFolder
    from proctor.runs.run import Run
    from proctor.runs.trial import TrialStatus
    from proctor.trials.prepare import RunContext


class Carried(NamedTuple):
    """A run that has ended, and the signal that ended it, if one did."""

    run: Run
    signal: int | None
    arrived: bool = True
    """Whether it is where its results were to go; false when a store was away at the end."""

    @property
    def exit_code(self) -> int:
        """That of the signal, else what the verdicts come to."""
        if self.signal is not None:
            return 128 + self.signal
        return self.run.exit_code or (0 if self.arrived else EXIT_CANNOT_JUDGE)


def carry_out_here(
    ready: RunContext,
    folder: RunFolder,
    *,
    rerun: frozenset[TrialStatus] | None = None,
    quiet: bool = False,
    events: bool = False,
) -> Carried:
    """Do what is left of a run and show how far it is."""
    from proctor.background import run_sync
    from proctor.cli._output import stdout_reserved
    from proctor.cli._signals import Interrupts
    from proctor.report.console import resume_command
    from proctor.report.progress import ProgressGroup, RunLog, logs_runs, progress_for
    from proctor.runs.folder import run_name
    from proctor.runs.remote.upload import shipped
    from proctor.trials.session import UNFINISHED, run_session

    progress = progress_for(sys.stderr, quiet=quiet, events=events)
    log = RunLog(run_name(folder.path)) if logs_runs() else None
    observer = progress if log is None else ProgressGroup(progress, log)
    interrupts = Interrupts(resume_command(folder.path))
    with shipped(folder, _warn) as shipping, stdout_reserved(), interrupts.listening():
        work = run_session(
            ready,
            folder,
            rerun=rerun or UNFINISHED,
            observer=observer,
            on_session=interrupts.watch,
        )
        try:
            done = run_sync(work)
        finally:
            for each in (progress, log):
                if each is not None:
                    each.close()
    carried = Carried(done, interrupts.signal, shipping.arrived)
    if log is not None:
        log.ended(done, carried.exit_code)
    return carried


def _warn(text: str) -> None:
    logging.getLogger("proctor.run").info("warning: %s", text)
    click.echo(f"warning: {printable(text)}", err=True)

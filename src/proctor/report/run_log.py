"""A run in a log: how it began, how far it is each minute, what went wrong, how it ended.

Trials that passed are told at the level `debug`, those that did not at `info`, what could not be
judged as a warning: a log of a night shows trouble first.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from proctor.report.run_progress import Ticking, progress_line
from proctor.runs.trial import TrialStatus

if TYPE_CHECKING:
    from proctor.runs.run import Run
    from proctor.runs.trial import PlannedTrial, Trial
    from proctor.trials.session import Observer

log = logging.getLogger("proctor.run")

EVERY = 60.0
"""Seconds between two lines of progress: a night is 500 lines."""

_LEVELS = {
    TrialStatus.PASSED: logging.DEBUG,
    TrialStatus.FAILED: logging.INFO,
    TrialStatus.HARD_FAIL: logging.INFO,
    TrialStatus.INFRA_ERROR: logging.WARNING,
    TrialStatus.CANCELLED: logging.INFO,
}


def logs_runs() -> bool:
    """Whether anybody has asked for a log that runs would be told in."""
    return log.isEnabledFor(logging.INFO)


class RunLog(Ticking):
    """Logs a run as it happens."""

    interval = EVERY

    def __init__(self, name: str) -> None:
        super().__init__(sys.stderr)
        self._name = name

    def planned(self, total: int, kept: Sequence[Trial]) -> None:
        """The run begins."""
        log.info("%s: %d trials planned, %d of them finished before", self._name, total, len(kept))
        super().planned(total, kept)

    def started(self, trial: PlannedTrial) -> None:
        """A trial starts."""
        super().started(trial)
        log.debug("%s: started %s/%s/%d", self._name, trial.case, trial.agent, trial.index)

    def finished(self, trial: Trial) -> None:
        """A trial is in the journal."""
        super().finished(trial)
        level = _LEVELS[trial.status]
        if log.isEnabledFor(level):
            why = f": {trial.error.type}: {trial.error.message}" if trial.error else ""
            took = f"{trial.duration_ms:.0f} ms"
            log.log(level, "%s: %s %s in %s%s", self._name, trial.name, trial.status, took, why)

    def show(self) -> None:
        """A line of progress, but none before anything happened."""
        if self.done > self.kept:
            log.info("%s: %s", self._name, progress_line(self))

    def ended(self, run: Run, exit_code: int) -> None:
        """The run is over."""
        why = f", stopped: {run.stopped}" if run.stopped else ""
        log.info("%s: ended with %d%s: %s", self._name, exit_code, why, progress_line(self))


class Together:
    """Tells several observers of a run; None among them is nobody."""

    def __init__(self, *observers: Observer | None) -> None:
        self._observers = [each for each in observers if each is not None]

    def planned(self, total: int, kept: Sequence[Trial]) -> None:
        """The run begins."""
        for each in self._observers:
            each.planned(total, kept)

    def started(self, trial: PlannedTrial) -> None:
        """A trial starts."""
        for each in self._observers:
            each.started(trial)

    def finished(self, trial: Trial) -> None:
        """A trial is in the journal."""
        for each in self._observers:
            each.finished(trial)

    def skipped(self, trial: PlannedTrial) -> None:
        """A trial is not needed."""
        for each in self._observers:
            each.skipped(trial)

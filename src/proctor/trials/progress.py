"""How far a run is: what is done, what runs, what it cost, how long it will take.

Only counting; `report.run_progress` tells it to people and programs. The time left assumes that
the trials to come take as long as those of this sitting did, which is all that can be known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from proctor.runs.run import RunTotals
from proctor.runs.trial import PlannedTrial, Trial


class Progress:
    """Follows a run (an `Observer`); the figures are right at any moment."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._worked = 0
        self.total = 0
        self.done = 0
        self.running = 0
        self.not_needed = 0
        self.kept = 0
        self.totals = RunTotals()

    def planned(self, total: int, kept: Sequence[Trial]) -> None:
        """The run begins."""
        self._began = self._clock()
        self.total, self.kept, self.done = total, len(kept), len(kept)
        self.totals = RunTotals.of(kept)

    def started(self, trial: PlannedTrial) -> None:
        """A trial starts."""
        self.running += 1

    def finished(self, trial: Trial) -> None:
        """A trial is in the journal."""
        self.running -= 1
        self.done += 1
        self._worked += 1
        self.totals.add(trial)

    def skipped(self, trial: PlannedTrial) -> None:
        """A trial is not needed."""
        self.not_needed += 1

    @property
    def elapsed(self) -> float:
        """Seconds since the run, or this sitting of it, began."""
        return self._clock() - self._began

    @property
    def left(self) -> float | None:
        """Seconds still to go, or None before any trial of this sitting is done."""
        if not self._worked:
            return None
        remaining = max(0, self.total - self.done - self.not_needed)
        return self.elapsed / self._worked * remaining

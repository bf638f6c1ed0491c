"""Progress of a run: a live line on a terminal, lines for logs, or JSON events for programs.

A display receives four events: the plan, and each trial that starts, finishes or is skipped. All
of it goes to standard error or to a log, so that standard output holds only the result. The time
left assumes that trials take as long as those that this invocation has finished.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from proctor.formatting import duration_ms, money, percent, plural, rough_duration
from proctor.runs.run import RunTotals
from proctor.runs.trial import TrialStatus
from proctor.sanitize import line
from proctor.tables import html_text

if TYPE_CHECKING:
    from proctor.runs.run import Run
    from proctor.runs.trial import PlannedTrial, Trial

LIVE_INTERVAL = 0.1
"""Seconds between updates of the live line: faster flickers."""

NOTEBOOK_INTERVAL = 0.5
"""Seconds between updates of a notebook's bar: each is a message to the browser."""

LINE_INTERVAL = 10.0
"""Seconds between lines on standard error that is not a terminal, such as a CI log."""

LOG_INTERVAL = 60.0
"""Seconds between lines of progress in a log file: 500 lines a night."""

log = logging.getLogger("proctor.run")

_LOG_LEVELS = {
    TrialStatus.PASSED: logging.DEBUG,
    TrialStatus.FAILED: logging.INFO,
    TrialStatus.HARD_FAIL: logging.INFO,
    TrialStatus.INFRA_ERROR: logging.WARNING,
    TrialStatus.NOT_JUDGED: logging.WARNING,
    TrialStatus.CANCELLED: logging.INFO,
}


class Progress:
    """Counts the trials of a run; the figures are right at any moment.

    Displays write to `out`, by default to standard error.
    """

    def __init__(
        self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = sys.stderr if out is None else out
        self._clock = clock
        self._started_at = clock()
        self._finished_here = 0
        self.total = 0
        self.done = 0
        self.running = 0
        self.not_needed = 0
        self.kept = 0
        self.totals = RunTotals()

    def planned(self, total: int, kept: Sequence[Trial]) -> None:
        """Take the plan: `total` trials, of which `kept` were finished earlier."""
        # Preparation is not part of the time per trial.
        self._started_at = self._clock()
        self.total, self.kept, self.done = total, len(kept), len(kept)
        self.totals = RunTotals.of(kept)

    def started(self, trial: PlannedTrial) -> None:
        """Count a trial that starts."""
        self.running += 1

    def finished(self, trial: Trial) -> None:
        """Count a trial that is in the journal."""
        self.running -= 1
        self.done += 1
        self._finished_here += 1
        self.totals.add(trial)
        self.totals.count(trial.status)

    def skipped(self, trial: PlannedTrial) -> None:
        """Count a trial that is not needed."""
        self.not_needed += 1

    def close(self) -> None:
        """Stop displaying."""

    @property
    def elapsed(self) -> float:
        """Seconds since this invocation started the run."""
        return self._clock() - self._started_at

    @property
    def left(self) -> float | None:
        """Seconds left, or None before the first trial of this invocation has finished."""
        if not self._finished_here:
            return None
        remaining = max(0, self.total - self.done - self.not_needed)
        return self.elapsed / self._finished_here * remaining


def progress_for(out: TextIO, *, quiet: bool, events: bool) -> Progress | None:
    """Return the display that suits the reader; `quiet` takes precedence over `events`."""
    if quiet:
        return None
    # JSON events are for programs, also where standard error is a terminal.
    if events:
        return JsonEvents(out)
    return LiveLine(out) if out.isatty() else LogLines(out)


def progress_line(progress: Progress) -> str:
    """Return `37/60 done · 4 running · 31/35 passed (89 %) · $0.02 · about 12 s left`."""
    totals = progress.totals
    parts = [f"{progress.done}/{progress.total - progress.not_needed} done"]
    if progress.running:
        parts.append(f"{progress.running} running")
    if totals.pass_rate is not None:
        parts.append(f"{totals.passed}/{totals.judged} passed ({percent(totals.pass_rate)})")
    if totals.unjudged:
        parts.append(f"{totals.unjudged} not judged")
    if totals.retries:
        parts.append(plural(totals.retries, "retry", "retries"))
    if cost := money(totals.cost_usd, totals.unpriced_calls):
        parts.append(cost)
    if progress.left is not None and progress.done < progress.total:
        parts.append(f"about {rough_duration(progress.left)} left")
    return " · ".join(parts)


# -- on a terminal and in logs -------------------------------------------------------------------


class StatusLine:
    """One line of a terminal that is overwritten, and removed by `clear`.

    rich's `Live` is not used because it hides the cursor, which a second Ctrl-C would not restore.
    """

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console

        # Text of agents is shown as it is: rich must not read `[bold]` or `:smile:` in it.
        self._console = Console(file=out, markup=False, highlight=False, emoji=False)

    def show(self, text: str) -> None:
        """Replace the line."""
        self.clear()
        width = max(20, self._console.width - 1)  # a full line would move the cursor to the next
        self._console.print(
            line(text, width), end="", width=width, no_wrap=True, overflow="ellipsis"
        )

    def clear(self) -> None:
        """Remove the line."""
        from rich.control import Control
        from rich.segment import ControlType

        erase = Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))
        self._console.control(erase)


class _Ticking(Progress):
    """Shows the progress at an interval while the event loop of the run turns."""

    interval: float
    _timer: asyncio.TimerHandle | None = None

    def planned(self, total: int, kept: Sequence[Trial]) -> None:
        """Take the plan and start ticking."""
        super().planned(total, kept)
        if self._timer is not None:  # a further round of the same run
            self._timer.cancel()
        self._tick()

    def _tick(self) -> None:
        self.show()
        self._timer = asyncio.get_running_loop().call_later(self.interval, self._tick)

    def show(self) -> None:
        """Display the current figures."""

    def close(self) -> None:
        """Stop ticking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class LiveLine(_Ticking):
    """One line of a terminal, removed at the end."""

    interval = LIVE_INTERVAL

    def __init__(self, out: TextIO) -> None:
        super().__init__(out)
        self._line = StatusLine(out)

    def show(self) -> None:
        """Replace the line."""
        self._line.show(progress_line(self))

    def close(self) -> None:
        """Stop ticking and remove the line."""
        super().close()
        self._line.clear()


class LogLines(_Ticking):
    """A line at an interval, for output that cannot be overwritten."""

    interval = LINE_INTERVAL

    def show(self) -> None:
        """Write a line once a trial has finished."""
        # Nothing is written until this invocation has finished a trial: there is no news.
        if self.done > self.kept:
            self._out.write(progress_line(self) + "\n")
            self._out.flush()


class RunLog(_Ticking):
    """Logs a run: the plan, progress each minute, every trial, the end.

    Passed trials are logged at DEBUG, failed ones at INFO, infrastructure errors as warnings, so
    that the log of a night shows trouble first.
    """

    interval = LOG_INTERVAL

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def planned(self, total: int, kept: Sequence[Trial]) -> None:
        """Log the plan."""
        log.info("%s: %d trials planned, %d already finished", self._name, total, len(kept))
        super().planned(total, kept)

    def started(self, trial: PlannedTrial) -> None:
        """Log a trial that starts."""
        super().started(trial)
        log.debug("%s: started %s/%s/%d", self._name, trial.case, trial.agent, trial.index)

    def finished(self, trial: Trial) -> None:
        """Log a finished trial."""
        super().finished(trial)
        level = _LOG_LEVELS[trial.status]
        # Passed trials are logged at DEBUG only, and there may be very many.
        if log.isEnabledFor(level):
            error = f": {trial.error.type}: {trial.error.message}" if trial.error else ""
            lasted = duration_ms(trial.duration_ms)
            log.log(level, "%s: %s %s in %s%s", self._name, trial.name, trial.status, lasted, error)

    def show(self) -> None:
        """Log the progress once a trial has finished."""
        if self.done > self.kept:
            log.info("%s: %s", self._name, progress_line(self))

    def ended(self, run: Run, exit_code: int) -> None:
        """Log the end of the run."""
        stopped = f", stopped: {run.stopped}" if run.stopped else ""
        log.info("%s: ended with %d%s: %s", self._name, exit_code, stopped, progress_line(self))


class NotebookBar(_Ticking):
    """A bar below the cell of a notebook; its last state stays in the notebook."""

    interval = NOTEBOOK_INTERVAL
    _shown: Any = None

    @classmethod
    def in_notebook(cls) -> NotebookBar | None:
        """Return a bar, or None where this is no kernel of a notebook."""
        # Terminals of IPython have a shell, too, but no kernel.
        shell = import_module("IPython").get_ipython()
        return cls() if hasattr(shell, "kernel") else None

    def show(self) -> None:
        """Draw the bar, in place of the last one."""
        display = import_module("IPython.display")
        total = max(1, self.total - self.not_needed)
        bar = f'<progress max="{total}" value="{self.done}"></progress>'
        picture = display.HTML(f"{bar} {html_text(progress_line(self))}")
        if self._shown is None:
            self._shown = display.display(picture, display_id=True)
        else:
            self._shown.update(picture)

    def close(self) -> None:
        """Stop ticking and show the end."""
        super().close()
        if self._shown is not None:
            self.show()


# -- for programs --------------------------------------------------------------------------------


class JsonEvents(Progress):
    """One JSON object a line for every event."""

    def _write(self, event: str, trial: PlannedTrial | Trial | None = None, **fields: Any) -> None:
        which: dict[str, Any] = {}
        if trial is not None:
            which = {"case": trial.case, "agent": trial.agent, "index": trial.index}
            if trial.params:
                which["params"] = trial.params
            if trial.axis_seed is not None:
                which["axis_seed"] = trial.axis_seed
        self._out.write(msgspec.json.encode({"event": event, **which, **fields}).decode() + "\n")
        self._out.flush()  # a program reads events as they happen

    def planned(self, total: int, kept: Sequence[Trial]) -> None:
        """Write the plan."""
        super().planned(total, kept)
        self._write("planned", trials=total, kept=len(kept))

    def started(self, trial: PlannedTrial) -> None:
        """Write that a trial starts."""
        super().started(trial)
        self._write("started", trial, seed=trial.seed)

    def finished(self, trial: Trial) -> None:
        """Write a finished trial."""
        super().finished(trial)
        self._write(
            "finished",
            trial,
            status=trial.status,
            score=trial.score,
            duration_ms=trial.duration_ms,
            cost_usd=trial.cost_usd,
            unpriced_calls=trial.unpriced_calls,
            retries=trial.retries,
            error=trial.error,
            done=self.done,
            running=self.running,
            seconds_left=self.left,
        )

    def skipped(self, trial: PlannedTrial) -> None:
        """Write that a trial is not needed."""
        super().skipped(trial)
        self._write("skipped", trial)


class ProgressGroup:
    """Passes events on to several displays; None among them is ignored."""

    def __init__(self, *displays: Progress | None) -> None:
        self._displays = [each for each in displays if each is not None]

    def planned(self, total: int, kept: Sequence[Trial]) -> None:
        """Pass on the plan."""
        for each in self._displays:
            each.planned(total, kept)

    def started(self, trial: PlannedTrial) -> None:
        """Pass on that a trial starts."""
        for each in self._displays:
            each.started(trial)

    def finished(self, trial: Trial) -> None:
        """Pass on a finished trial."""
        for each in self._displays:
            each.finished(trial)

    def skipped(self, trial: PlannedTrial) -> None:
        """Pass on that a trial is not needed."""
        for each in self._displays:
            each.skipped(trial)

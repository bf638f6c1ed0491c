"""Progress of a run as it happens: one live line, plain lines for logs, or events for programs.

Everything goes to standard error, so that standard output holds the result and nothing else.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from proctor.sanitize import line
from proctor.trials.progress import Progress
from proctor.words import money, percent, plural

if TYPE_CHECKING:
    from proctor.runs.trial import PlannedTrial, Trial

LIVE_INTERVAL = 0.1
"""Seconds between two states of the live line: faster is flicker."""

LOG_INTERVAL = 10.0
"""Seconds between two lines of a log: enough to see life, few enough to keep it readable."""

_CLEAR = "\r\x1b[2K"


def progress_line(progress: Progress) -> str:
    """`37/60 done · 4 running · 31/35 passed (89 %) · $0.02 · about 12 s left`."""
    totals = progress.totals
    parts = [f"{progress.done}/{progress.total - progress.not_needed} done"]
    if progress.running:
        parts.append(f"{progress.running} running")
    if totals.pass_rate is not None:
        parts.append(f"{totals.passed}/{totals.judged} passed ({percent(totals.pass_rate)})")
    if totals.infra_error:
        parts.append(f"{totals.infra_error} could not be judged")
    if totals.retries:
        parts.append(plural(totals.retries, "retry", "retries"))
    cost = money(totals.cost_usd, totals.unpriced_calls)
    if cost:
        parts.append(cost)
    if progress.left is not None and progress.done < progress.total:
        parts.append(f"about {duration(progress.left)} left")
    return " · ".join(parts)


def duration(seconds: float) -> str:
    """`8 s`, `3 min`, `2.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


class Ticking(Progress):
    """Tells how far it is from time to time, while the event loop of the run turns."""

    interval = LIVE_INTERVAL

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._out = out
        self._timer: asyncio.TimerHandle | None = None

    def planned(self, total: int, kept: Sequence[Trial]) -> None:
        """The run begins: so does the ticking."""
        super().planned(total, kept)
        if self._timer is not None:  # a further round of the same run
            self._timer.cancel()
        self._tick()

    def _tick(self) -> None:
        self.show()
        self._timer = asyncio.get_running_loop().call_later(self.interval, self._tick)

    def show(self) -> None:
        """Write the state of things."""

    def close(self) -> None:
        """Stop ticking and leave the terminal as it was."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class LiveLine(Ticking):
    """One line of a terminal, written over and over, and gone at the end."""

    def show(self) -> None:
        """Write over the line."""
        width = shutil.get_terminal_size().columns
        self._out.write(_CLEAR + line(progress_line(self), max(20, width - 1)))
        self._out.flush()

    def close(self) -> None:
        """Clear the line."""
        super().close()
        self._out.write(_CLEAR)
        self._out.flush()


class LogLines(Ticking):
    """A line now and then, for logs: nothing is written over."""

    interval = LOG_INTERVAL

    def show(self) -> None:
        """Write a line, but none before anything happened."""
        if self.done > self.kept:
            self._out.write(progress_line(self) + "\n")
            self._out.flush()


class Events(Progress):
    """One JSON object a line for everything that happens."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._out = out

    def _say(self, event: str, **fields: Any) -> None:
        self._out.write(msgspec.json.encode({"event": event, **fields}).decode() + "\n")
        self._out.flush()

    def planned(self, total: int, kept: Sequence[Trial]) -> None:
        """The run begins."""
        super().planned(total, kept)
        self._say("planned", trials=total, kept=len(kept))

    def started(self, trial: PlannedTrial) -> None:
        """A trial starts."""
        super().started(trial)
        self._say("started", **_which(trial), seed=trial.seed)

    def finished(self, trial: Trial) -> None:
        """A trial is in the journal."""
        super().finished(trial)
        self._say(
            "finished",
            **_which(trial),
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
        """A trial is not needed."""
        super().skipped(trial)
        self._say("skipped", **_which(trial))

    def close(self) -> None:
        """Nothing is left open."""


def _which(trial: PlannedTrial | Trial) -> dict[str, Any]:
    which: dict[str, Any] = {"case": trial.case, "agent": trial.agent, "index": trial.index}
    if trial.params:
        which["params"] = trial.params
    if trial.axis_seed is not None:
        which["axis_seed"] = trial.axis_seed
    return which


def progress_for(out: TextIO, *, quiet: bool, events: bool) -> Ticking | Events | None:
    """What suits the reader: nothing, events, a live line on a terminal, else lines.

    `quiet` wins: whoever asks for one document and no noise gets just that.
    """
    if quiet:
        return None
    if events:
        return Events(out)
    return LiveLine(out) if out.isatty() else LogLines(out)

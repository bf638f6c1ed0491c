"""Tell the outside how a run is doing, from a thread that only reads counters.

Promise: trials pay nothing for it; a file is written at the start, every few seconds and at the
end, however it ends. A thread, not the event loop, so that an agent that blocks the loop for
hours does not look like a machine that has died.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

from proctor.runs.heartbeat import EVERY, Beat, State, write_beat
from proctor.runs.model import TrialStatus
from proctor.runs.rounds import Rounds

if TYPE_CHECKING:
    from pathlib import Path

    from proctor.trials.session import Session


class Heart:
    """Beats while the block lasts; `follow` says whose counters are told."""

    def __init__(
        self,
        run: Path,
        run_id: str,
        *,
        every: float = EVERY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run = run
        self._clock = clock
        self._began = clock()
        self._session: Session | None = None
        self._worked = 0
        self._beat = Beat(
            run_id=run_id,
            state="running",
            pid=os.getpid(),
            host=socket.gethostname(),
            began=_moment(self._began),
            at=_moment(self._began),
            every_s=every,
        )
        self._rounds = Rounds(self.beat, every=every, name="heartbeat")

    def follow(self, session: Session) -> None:
        """Tell of this session from now on."""
        self._session = session

    def __enter__(self) -> Self:
        write_beat(self._run, self._beat)
        self._rounds.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._rounds.stop()
        stopped = None if self._session is None else self._session.stopped
        if error is not None:
            self._write("failed", type(error).__name__)
        else:
            self._write("stopped" if stopped else "ended", stopped)

    def beat(self) -> None:
        """Tell how it is now."""
        self._write("running", None)

    def _write(self, state: State, reason: str | None) -> None:
        now, beat = self._clock(), self._beat
        beat.state, beat.reason, beat.at = state, reason, _moment(now)
        if self._session is not None:
            self._count(self._session, now)
        write_beat(self._run, beat)

    def _count(self, session: Session, now: float) -> None:
        beat, tally, spending = self._beat, session.tally, session.spending
        of = tally.of
        beat.planned, beat.not_needed = session.planned, tally.skipped
        beat.done = sum(of.values())
        beat.running = session.running if beat.state == "running" else 0
        beat.passed, beat.cancelled = of[TrialStatus.PASSED], of[TrialStatus.CANCELLED]
        beat.failed = of[TrialStatus.FAILED] + of[TrialStatus.HARD_FAIL]
        beat.errors = of[TrialStatus.INFRA_ERROR]
        # What is not known to have cost anything is not known to have been free.
        beat.cost_usd, beat.tokens = spending.cost_usd or None, spending.tokens
        beat.unpriced_calls = spending.unpriced
        worked = beat.done - tally.kept
        if worked != self._worked:
            self._worked = worked
            beat.last_finished = beat.at
        passed = now - self._began
        beat.rate_per_s = worked / passed if worked and passed > 0 else None
        left = max(0, beat.planned - beat.done - beat.not_needed)
        beat.eta_s = left / beat.rate_per_s if beat.rate_per_s and beat.state == "running" else None


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)

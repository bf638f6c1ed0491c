"""How a run is doing, for whoever watches from outside: one small file, replaced whole.

    <run>/heartbeat.json      see `Beat`; at most `every` seconds old while the run goes on

Promise: reading it never shows half a beat, and what is said of a run follows from the file, the
clock and, on the machine it runs on, the process. It is told, not kept: it is not forced to the
platter, and a run never waits for it nor fails because of it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import msgspec

from proctor.files import replacing
from proctor.runs.rounds import Rounds
from proctor.runs.trial import TrialStatus

if TYPE_CHECKING:
    from proctor.trials.session import Session


NAME = "heartbeat.json"

EVERY = 5.0
"""Seconds between beats: soon enough for a person who waits, one small write for the disk."""

MISSED = 6
"""Beats that may be missing before a run counts as stalled: a busy machine misses some."""

MOST_BYTES = 64_000
"""Far more than a beat has; a file beyond it is not one."""

State = Literal["running", "ended", "stopped", "failed"]


class Beat(msgspec.Struct, kw_only=True):
    """What a run says of itself. Counts are of trials; `done` includes those of earlier sittings.

    `failed` are trials whose agent was found wanting, hard failures among them; `errors` those
    that could not be judged. `cost_usd` is what is known to have been spent over all sittings;
    `unpriced_calls` have no known price. `rate_per_s` and `eta_s` are of this sitting.
    """

    format: int = 1
    run_id: str
    state: State
    reason: str | None = None
    pid: int
    host: str
    began: datetime
    at: datetime
    every_s: float
    planned: int = 0
    done: int = 0
    running: int = 0
    passed: int = 0
    failed: int = 0
    errors: int = 0
    cancelled: int = 0
    not_needed: int = 0
    cost_usd: float | None = None
    unpriced_calls: int = 0
    tokens: int = 0
    rate_per_s: float | None = None
    eta_s: float | None = None
    last_finished: datetime | None = None


class Life(StrEnum):
    """What can be said of a run from outside."""

    ALIVE = "alive"
    STALLED = "stalled"
    DEAD = "dead"
    ENDED = "ended"
    STOPPED = "stopped"
    FAILED = "failed"
    UNKNOWN = "unknown"


UNWELL = frozenset({Life.STALLED, Life.DEAD, Life.FAILED})
"""What somebody should look at."""


class Sign(NamedTuple):
    """How a run is, since when, and its last beat."""

    life: Life
    since: datetime | None = None
    beat: Beat | None = None


def write_beat(run: Path, beat: Beat) -> None:
    """Replace the file; a disk that does not take it is the journal's to tell."""
    with contextlib.suppress(OSError), replacing(run / NAME, sync=False) as aside:
        aside.write_bytes(msgspec.json.format(msgspec.json.encode(beat), indent=1) + b"\n")


def read_beat(run: Path) -> Beat | None:
    """The last beat of a run; None when it has none that can be read."""
    try:
        with (run / NAME).open("rb") as file:
            return msgspec.json.decode(file.read(MOST_BYTES), type=Beat)
    except (OSError, msgspec.MsgspecError):
        return None


def look_at(run: Path, now: datetime | None = None) -> Sign:
    """How a run is. A process of this machine is looked for; of others only the clock tells."""
    beat = read_beat(run)
    if beat is None:
        ended = any((run / name).exists() for name in ("results.parquet", "facts.json"))
        return Sign(Life.ENDED if ended else Life.UNKNOWN)
    if beat.state != "running":
        return Sign(Life(beat.state), beat.at, beat)
    if beat.host == socket.gethostname() and not _exists(beat.pid):
        return Sign(Life.DEAD, beat.at, beat)
    silent = ((now or datetime.now(UTC)) - beat.at).total_seconds()
    if silent > MISSED * max(beat.every_s, 1.0):
        return Sign(Life.STALLED, beat.at, beat)
    return Sign(Life.ALIVE, beat.began, beat)


def _exists(pid: int) -> bool:
    """Whether there is such a process here; where that cannot be asked, it is believed."""
    if os.name == "nt":  # there, signal 0 would end it
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


# Tell the outside how a run is doing, from a thread that only reads counters.
#
# Promise: trials pay nothing for it; a file is written at the start, every few seconds and at
# the end, however it ends. A thread, not the event loop, so that an agent that blocks the loop
# for hours does not look like a machine that has died.


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

"""Status of a running run for outside observers: one small file, replaced as a whole.

    <run>/heartbeat.json      see `Beat`; at most `every` seconds old while the run is active

Guarantees: a reader never sees half a beat, and the reported state follows from the file, the clock
and, on the same machine, the process. The file is informational: it is not fsynced, and a run never
waits for it or fails because of it.
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

from proctor.background import PeriodicWork
from proctor.files import add_checksum, checksum_ok, replacing
from proctor.runs.trial import UNJUDGED, TrialStatus

if TYPE_CHECKING:
    from proctor.trials.session import Session


NAME = "heartbeat.json"

EVERY = 5.0
"""Seconds between beats: soon enough for a waiting person, one small write for the disk."""

MISSED = 6
"""Missed beats before a run counts as stalled: a busy machine misses some."""

MAX_BYTES = 64_000
"""Maximum size of a beat; a larger file is not one."""

State = Literal["running", "ended", "stopped", "failed"]


class Beat(msgspec.Struct, kw_only=True):
    """Status of a run. Counts are trials; `done` includes those of earlier sessions.

    `failed` counts trials the agent failed, hard failures included; `errors` those that could not
    be judged. `cost_usd` is the known cost of agents over all sessions, retries included;
    `unpriced_calls` have no known price.
    `rate_per_s` and `eta_s` are of this session.
    """

    format: int = 2
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
    judge_cost_usd: float | None = None
    unpriced_calls: int = 0
    tokens: int = 0
    rate_per_s: float | None = None
    eta_s: float | None = None
    last_finished: datetime | None = None


class Life(StrEnum):
    """State of a run as seen from outside."""

    ALIVE = "alive"
    STALLED = "stalled"
    DEAD = "dead"
    ENDED = "ended"
    STOPPED = "stopped"
    FAILED = "failed"
    UNKNOWN = "unknown"


UNWELL = frozenset({Life.STALLED, Life.DEAD, Life.FAILED})
"""States that need attention."""


OVER = frozenset({Life.ENDED, Life.STOPPED})
"""States of runs whose results were written."""


class Sign(NamedTuple):
    """The state of a run, since when, and its last beat."""

    life: Life
    since: datetime | None = None
    beat: Beat | None = None


def write_beat(run: Path, beat: Beat) -> None:
    """Replace the file; disk errors are reported by the journal, not here."""
    with contextlib.suppress(OSError), replacing(run / NAME, sync=False) as aside:
        aside.write_bytes(add_checksum(msgspec.json.encode(beat)) + b"\n")


def read_beat(run: Path) -> Beat | None:
    """Return the last beat of a run; None without a readable one."""
    try:
        with (run / NAME).open("rb") as file:
            content = file.read(MAX_BYTES)
        beat = msgspec.json.decode(content, type=Beat)
        matches = checksum_ok(content.removesuffix(b"\n"))
        # Format 1 had no checksum.
        return beat if matches or (matches is None and beat.format == 1) else None
    except (OSError, msgspec.MsgspecError):
        return None


def look_at(run: Path, now: datetime | None = None) -> Sign:
    """Return the state of a run, from its last beat, the clock and, if it is here, its process."""
    beat = read_beat(run)
    if beat is None:
        # Imported runs and copies for queries have no heartbeat. Only finished runs have these
        # files.
        ended = any((run / name).exists() for name in ("results.parquet", "facts.json"))
        return Sign(Life.ENDED if ended else Life.UNKNOWN)
    if beat.state != "running":
        return Sign(Life(beat.state), beat.at, beat)
    # A process id says nothing on another machine.
    if beat.host == socket.gethostname() and not _exists(beat.pid):
        return Sign(Life.DEAD, beat.at, beat)
    silent = ((now or datetime.now(UTC)) - beat.at).total_seconds()
    # At least a second: shorter intervals are missed whenever the machine is busy.
    if silent > MISSED * max(beat.every_s, 1.0):
        return Sign(Life.STALLED, beat.at, beat)
    return Sign(Life.ALIVE, beat.began, beat)


def _exists(pid: int) -> bool:
    """Return whether the process runs here; assume so where that cannot be checked."""
    if os.name == "nt":  # on Windows, signal 0 would end it
        return True
    # A zombie has ended, though nobody has waited for it.
    with contextlib.suppress(OSError):
        if Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1] == [b"Z"]:
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # another user's process, or a number no process can have: assume that it runs
    return True


# Write the heartbeat from a thread that only reads counters, so trials pay nothing for it: at the
# start, every few seconds and at the end, however it ends. A thread, not the event loop, so that an
# agent that blocks the loop for hours does not look like a dead machine.


class Heart:
    """Write beats about its `session` while the block runs."""

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
        self.session: Session | None = None
        """The session to report."""
        self._worked = 0
        self._beat = Beat(
            run_id=run_id,
            state="running",
            pid=os.getpid(),
            host=socket.gethostname(),
            began=datetime.fromtimestamp(self._began, UTC),
            at=datetime.fromtimestamp(self._began, UTC),
            every_s=every,
        )
        self._rounds = PeriodicWork(self.beat, every=every, name="heartbeat")

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
        stopped = None if self.session is None else self.session.stopped
        if error is not None:
            self.beat("failed", type(error).__name__)
        else:
            self.beat("stopped" if stopped else "ended", stopped)

    def beat(self, state: State = "running", reason: str | None = None) -> None:
        """Write a beat now."""
        now, beat = self._clock(), self._beat
        beat.state, beat.reason, beat.at = state, reason, datetime.fromtimestamp(now, UTC)
        session = self.session
        if session is None:
            write_beat(self._run, beat)
            return
        budget, of = session.budget, session.counts
        beat.planned, beat.not_needed = session.planned, session.skipped
        beat.done = sum(of.values())
        beat.running = session.running if beat.state == "running" else 0
        beat.passed, beat.cancelled = of[TrialStatus.PASSED], of[TrialStatus.CANCELLED]
        beat.failed = of[TrialStatus.FAILED] + of[TrialStatus.HARD_FAIL]
        beat.errors = sum(of[status] for status in UNJUDGED)
        # As in reports: judges apart, and an unknown cost is not zero.
        beat.cost_usd, beat.judge_cost_usd = budget.spent.cost_usd, budget.spent.judge_cost_usd
        beat.tokens = budget.spent.tokens or 0
        beat.unpriced_calls = budget.spent.unpriced_calls
        # Trials of earlier sessions took no time of this one.
        worked = beat.done - session.kept
        if worked != self._worked:
            self._worked = worked
            beat.last_finished = beat.at
        passed = now - self._began
        beat.rate_per_s = worked / passed if worked and passed > 0 else None
        left = max(0, beat.planned - beat.done - beat.not_needed)
        beat.eta_s = left / beat.rate_per_s if beat.rate_per_s and beat.state == "running" else None
        write_beat(self._run, beat)

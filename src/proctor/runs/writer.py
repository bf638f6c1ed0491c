"""Write finished trials: their traces, then the journal lines that refer to them.

Guarantees: trials are reported as written only once their lines are in the journal; until then they
count as running, and a crash may lose them. Short trials that end at nearly the same time share one
write to the trace file and one to the journal (not under `Sync.ALWAYS`), since a write costs as
much as running a small trial. A long trial is written immediately.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from proctor.runs.folder import RunFolder
from proctor.runs.journal import Journal, Sync
from proctor.runs.segments import SegmentWriter
from proctor.runs.trial import Trial

MAX_WAITING = 32
"""Maximum trials per write: beyond it the write no longer dominates the cost of a trial."""

MAX_BYTES = 1 << 20
"""Maximum bytes of traces buffered in memory."""

MAX_SECONDS = 0.05
"""Maximum buffering time while the event loop is busy; well below the duration of a trial with a
real agent.
"""

LONG_MS = 100.0
"""Duration from which a trial is written immediately: two writes are a thousandth of it."""


class TrialWriter:
    """Buffer and write trials; the single writer of a run, which holds the folder's lock."""

    def __init__(
        self,
        folder: RunFolder,
        sync: Sync,
        written: Callable[[Sequence[Trial]], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal = Journal(folder.journal_path, sync=sync)
        self._segments = SegmentWriter(folder.traces_path)
        self._written = written
        self._clock = clock
        self._most = 1 if sync == Sync.ALWAYS else MAX_WAITING
        self._waiting: list[Trial] = []
        self._traces: list[bytes | None] = []
        self._bytes = 0
        self._since = 0.0

    def add(self, trial: Trial, encoded: bytes | None) -> bool:
        """Buffer a trial and its trace; return true when a `flush` has to be scheduled."""
        self._waiting.append(trial)
        self._traces.append(encoded)
        if encoded is not None:
            self._bytes += len(encoded)
        waiting, now = len(self._waiting), self._clock()
        if waiting == 1:
            self._since = now
        if (
            waiting >= self._most
            or self._bytes >= MAX_BYTES
            or now - self._since >= MAX_SECONDS
            or trial.duration_ms >= LONG_MS
        ):
            self.flush()
            return False
        return waiting == 1

    def flush(self) -> None:
        """Write the buffered trials and report them."""
        trials, traces = self._waiting, self._traces
        if not trials:
            return
        self._waiting, self._traces, self._bytes = [], [], 0
        kept = [encoded for encoded in traces if encoded is not None]
        places = iter(self._segments.extend(kept)) if kept else iter(())
        for trial, encoded in zip(trials, traces, strict=True):
            if encoded is not None:
                trial.trace = next(places)
        self._journal.extend(trials)
        self._written(trials)

    def close(self) -> None:
        """Flush, fsync and close."""
        self.flush()
        self._journal.close()
        self._segments.close()

"""The journal of a run: one JSON line per finished trial, appended in small batches.

Guarantees: a written line is never changed or lost by a later crash of this process; a torn last
line (the process died inside a write) is dropped on reading and reported. The `sync` policy decides
how soon lines are fsynced. `TrialWriter` reports trials as written only once their lines are in the
journal; until then they count as running, and a crash may lose them. Short trials that end at
nearly the same time share one write to the trace file and one to the journal (not under
`Sync.ALWAYS`), since a write costs as much as running a small trial. A long trial is written
immediately.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

import msgspec

from proctor.errors import ProctorError
from proctor.runs.segments import SegmentWriter, write_whole
from proctor.runs.trial import JUDGED, CellKey, Spending, Trial, TrialStatus
from proctor.sanitize import without_surrogates

if TYPE_CHECKING:
    from proctor.runs.folder import RunFolder


class BackgroundFsync:
    """Fsync one file in a thread, one at a time; call `finish` before closing it.

    A slow disk takes milliseconds to seconds, and agents that share the event loop with the writer
    would all wait for it. A failure is raised by the next call.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    def begin(self) -> None:
        """Start an fsync unless one is running."""
        if self._thread is not None and self._thread.is_alive():
            return
        self.finish()
        self._thread = threading.Thread(target=self._fsync, name="fsync", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait for the running fsync."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _fsync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            self._error = error


SYNC_INTERVAL = 1.0
"""Seconds between fsyncs under `interval`: the most a power cut (not a crash) may cost."""


class Sync(StrEnum):
    """When lines are fsynced.

    A killed process loses nothing under any policy, since the operating system has the line; only a
    power cut can. `always` costs a disk round trip per trial.
    """

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


class JournalError(ProctorError):
    """The journal cannot be written or read."""


class Journal:
    """The writing end. One writer per run holds it; see `RunFolder.lock`."""

    def __init__(
        self, path: Path, *, sync: Sync = Sync.INTERVAL, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._sync = sync
        self._clock = clock
        # Parameters may hold values that JSON does not have, such as dates.
        self._encoder = msgspec.json.Encoder(enc_hook=str)
        try:
            # Unbuffered: after a write the operating system has the line, whatever happens to
            # this process.
            self._file = path.open("ab", buffering=0)
            # A torn line is truncated, so that the next line starts a line.
            size = path.stat().st_size
            if size and (end := last_line_end(path, size)) != size:
                os.truncate(path, end)
        except OSError as error:
            raise JournalError(
                f"cannot write the journal: {error.strerror}", where=str(path)
            ) from None
        self._synced_at = clock()
        self._background: BackgroundFsync | None = None
        self._end = os.fstat(self._file.fileno()).st_size

    def append(self, trial: Trial) -> None:
        """Write one line. When this returns, the trial is finished."""
        self.extend([trial])

    def extend(self, trials: Sequence[Trial]) -> None:
        """Write one line per trial. When this returns, all are finished; on error, those whose
        lines are complete.
        """
        try:
            lines = self._encoder.encode_lines(trials)
        except UnicodeEncodeError:  # lone surrogates, which UTF-8 cannot carry
            plain = [without_surrogates(msgspec.to_builtins(t, enc_hook=str)) for t in trials]
            lines = self._encoder.encode_lines(plain)
        try:
            write_whole(self._file, lines)
            self._end += len(lines)
            now = self._clock()
            if self._sync == Sync.ALWAYS or now - self._synced_at >= SYNC_INTERVAL:
                self._synced_at = now
                if self._sync == Sync.ALWAYS:
                    os.fsync(self._file.fileno())
                elif self._sync == Sync.INTERVAL:
                    if self._background is None:
                        self._background = BackgroundFsync(self._file.fileno())
                    self._background.begin()
                self._refuse_deleted()
        except OSError as error:
            # A full disk takes a part of a line: keep the whole lines before it.
            with contextlib.suppress(OSError):
                out = os.fstat(self._file.fileno()).st_size - self._end
                whole = lines.rfind(b"\n", 0, max(0, out)) + 1
                os.ftruncate(self._file.fileno(), self._end + whole)
            raise JournalError(
                f"cannot write the journal: {error.strerror}",
                where=str(self._path),
                hint="finished trials are safe; free disk space or restore the folder, --resume",
            ) from None

    def _refuse_deleted(self) -> None:
        # Writes to a deleted file succeed and are lost. Checked only with a sync: that is soon
        # enough, and saves a system call per write.
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise JournalError(
                "the journal was deleted while the run was writing it",
                where=str(self._path),
                hint="its trials are lost; start the run again",
            )

    def close(self) -> None:
        """Fsync everything and close."""
        if self._file.closed:
            return
        try:
            if self._background is not None:
                self._background.finish()
            if self._sync != Sync.NEVER:
                os.fsync(self._file.fileno())
            self._refuse_deleted()
        except OSError as error:
            raise JournalError(
                f"cannot write the journal: {error.strerror}", where=str(self._path)
            ) from None
        finally:
            self._file.close()


_BLOCK = 64 * 1024


def last_line_end(path: Path, size: int) -> int:
    """Return the offset after the last complete line."""
    with path.open("rb") as file:
        # Backwards in blocks: the last line is short, the journal can have gigabytes.
        for end in range(size, 0, -_BLOCK):
            start = max(0, end - _BLOCK)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
    return 0


def read_journal(path: Path, problems: list[str] | None = None) -> Iterator[Trial]:
    """Yield trials in finishing order. Torn or foreign lines are skipped and reported."""
    decoder = msgspec.json.Decoder(Trial)
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for number, line in enumerate(file, 1):
            try:
                if not line.endswith(b"\n"):
                    raise msgspec.DecodeError("the line is torn")
                yield decoder.decode(line)
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                if problems is not None:
                    problems.append(f"{path}:{number}: dropped a line: {error}")


class CountedLine(msgspec.Struct, gc=False):
    """One trial of a journal: the line that counts, and what all its attempts used.

    `last_status` is the status after retries.
    """

    cell: CellKey
    axis_seed: int | None
    index: int
    status: TrialStatus
    score: float | None
    offset: int
    length: int
    last_status: TrialStatus
    spent_usd: float | None
    spent_tokens: int | None
    spent_unpriced: int
    attempts: int = 1


class JournalIndex:
    """What a first reading of a journal shows; every reader of trials takes it from here.

    Of several attempts at a trial the first that was judged counts, otherwise the last: an attempt
    that was repeated because it had failed would turn chance into quality, while one that was never
    judged says nothing. Money is spent on every attempt. Memory holds positions, never all lines.
    """

    def __init__(self, path: Path) -> None:
        self.lines: dict[str, CountedLine] = {}
        """Trials by key, in the order of their first attempts."""
        self.spent: dict[CellKey, Spending] = {}
        """What all attempts of each cell used."""
        self.problems: list[str] = []
        """Lines that cannot be read, a torn last line included."""
        self.damaged = 0
        """Unreadable lines that the process had written completely."""
        self._path = path
        # There may be very many lines: they share their cells, and those that do not count are few.
        self._cells: dict[CellKey, CellKey] = {}
        self._uncounted: set[int] = set()
        self._end = 0
        decoder = msgspec.json.Decoder(Trial)
        for number, (offset, line) in enumerate(_raw_lines(path), 1):
            self._end = offset + len(line)
            try:
                if not line.endswith(b"\n"):
                    raise msgspec.DecodeError("the line is torn")
                trial = decoder.decode(line)
            except msgspec.MsgspecError as error:
                self.problems.append(f"{path}:{number}: dropped a line: {error}")
                self.damaged += line.endswith(b"\n")
                self._uncounted.add(offset)
                continue
            key, cell = trial.key, trial.cell
            cell = self._cells.setdefault(cell, cell)
            spent = self.spent.get(cell)
            if spent is None:
                spent = self.spent[cell] = Spending()
            spent.add(trial)
            counted = CountedLine(
                cell,
                trial.axis_seed,
                trial.index,
                trial.status,
                trial.score,
                offset,
                len(line),
                trial.status,
                trial.cost_usd,
                trial.tokens,
                trial.unpriced_calls,
            )
            earlier = self.lines.get(key)
            if earlier is not None:
                other = earlier
                if earlier.status in JUDGED:
                    counted, other = earlier, counted
                self._uncounted.add(other.offset)
                counted.attempts = earlier.attempts + 1
                counted.last_status = trial.status
                counted.spent_usd = _sum(earlier.spent_usd, trial.cost_usd)
                counted.spent_tokens = _sum(earlier.spent_tokens, trial.tokens)
                counted.spent_unpriced = earlier.spent_unpriced + trial.unpriced_calls
            self.lines[key] = counted

    def copy_line(self, line: CountedLine, file: BinaryIO, more: str = "") -> bytes:
        """Return the JSON of a counted line, with what its other attempts used and `more` fields.

        Copied as bytes from the open journal: encoding it again would cost more than a query.
        """
        file.seek(line.offset)
        text = file.read(line.length)
        if line.attempts > 1:
            added = {
                "last_status": line.last_status,
                "spent_usd": line.spent_usd,
                "spent_tokens": line.spent_tokens,
                "spent_unpriced_calls": line.spent_unpriced,
            }
            more += msgspec.json.encode(added).decode()[1:-1] + ","
        return b"{" + more.encode() + text.lstrip()[1:] if more else text

    def trials(self) -> Iterator[Trial]:
        """Read the trials, each once with the attempt that counts, in the order of the journal."""
        decoder = msgspec.json.Decoder(Trial)
        for offset, line in _raw_lines(self._path):
            if offset >= self._end:
                return  # written since
            if offset not in self._uncounted:
                yield decoder.decode(line)


Number = TypeVar("Number", int, float)


def _sum(first: Number | None, second: Number | None) -> Number | None:
    """Add what is known; None where nothing is."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


def _raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a journal with their offsets; none without a journal."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    offset = 0
    with file:
        for line in file:
            yield offset, line
            offset += len(line)


# -- batched writes -----------------------------------------------------------------------------

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
        # Under ALWAYS a trial is on disk before the next one is written.
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
        if waiting == 1:  # the first of a batch starts its clock
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
        traced = [
            (trial, encoded)
            for trial, encoded in zip(trials, traces, strict=True)
            if encoded is not None
        ]
        if traced:
            refs = self._segments.extend([encoded for _, encoded in traced])
            for (trial, _), ref in zip(traced, refs, strict=True):
                trial.trace = ref
        # After the traces: a line must never refer to a frame that is not on disk.
        self._journal.extend(trials)
        self._written(trials)

    def close(self) -> None:
        """Flush, fsync and close."""
        self.flush()
        self._journal.close()
        self._segments.close()

"""The journal of a run: one JSON line per finished trial, appended in small batches.

    {"case":"refund","agent":"shop",…,"status":"passed","seq":17,"crc":"5d1fe02a"}

Guarantees: a written line is never changed or lost by a later crash of this process; a torn last
line (the process died inside a write) is dropped on reading and reported. Lines are numbered and
have a CRC-32: one that was changed, swapped, repeated or deleted is reported, and counts as
unreadable. The `sync` policy decides how soon lines are fsynced. `TrialWriter` reports trials as
written only once their lines are in the journal; until then they count as running, and a crash may
lose them. Short trials that end at nearly the same time share one write to the trace file and one
to the journal (not under `Sync.ALWAYS`), since a write costs as much as running a small trial. A
long trial is written immediately.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar

import msgspec

from proctor.errors import ProctorError
from proctor.files import add_checksum, as_private, checksum_ok, fsync_folder, unblocked
from proctor.runs.segments import SegmentWriter, write_whole
from proctor.runs.trial import JUDGED, CellKey, Spending, Trial, TrialStatus
from proctor.sanitize import without_surrogates

if TYPE_CHECKING:
    from proctor.runs.folder import RunFolder


class BackgroundFsync:
    """Fsync files in a thread, one after the other; call `finish` before closing them.

    A slow disk takes milliseconds to seconds, and agents that share the event loop with the writer
    would all wait for it. A failure is raised by the next call.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    def begin(self, *descriptors: int) -> None:
        """Start to fsync these files unless others are being fsynced."""
        if self._thread is not None and self._thread.is_alive():
            return
        self.finish()
        self._thread = threading.Thread(
            target=self._fsync, args=descriptors, name="fsync", daemon=True
        )
        self._thread.start()

    def finish(self) -> None:
        """Wait for the running fsync."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _fsync(self, *descriptors: int) -> None:
        try:
            for descriptor in descriptors:
                os.fsync(descriptor)
        except OSError as error:
            self._error = error


SYNC_INTERVAL = 1.0
"""Seconds between fsyncs under `interval`: the most a power cut (not a crash) may cost."""


class Sync(StrEnum):
    """When traces and lines are fsynced.

    A killed process loses nothing under any policy, since the operating system has the line; only a
    power cut can. `always` promises that every trial reported as finished survives one, with its
    trace: the trace is fsynced before the line that refers to it is written, a file's name before
    its content counts, and the line before the trial is reported. It costs two disk round trips per
    trial. Under `interval` a power cut costs the trials of the last second, and a line may survive
    whose trace does not: that trace is reported as unreadable. `never` leaves it to the system.
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
            self._file = open(path, "ab", buffering=0, opener=as_private)  # noqa: SIM115
            # A torn line is truncated, so that the next line starts a line.
            size = path.stat().st_size
            self._end = last_line_end(path, size) if size else 0
            if self._end != size:
                os.truncate(path, self._end)
            if not size and sync == Sync.ALWAYS:
                fsync_folder(path.parent)
        except OSError as error:
            raise JournalError(
                f"cannot write the journal: {error.strerror}", where=str(path)
            ) from None
        self._synced_at = clock()
        self._background: BackgroundFsync | None = None
        # Not the number of lines: some may have been lost.
        self._seq = last_sequence(path)

    def append(self, trial: Trial) -> None:
        """Write one line. When this returns, the trial is finished."""
        self.extend([trial])

    def extend(self, trials: Sequence[Trial], traces: FileIO | None = None) -> None:
        """Write one line per trial. When this returns, all are finished; on error, those whose
        lines are complete. `traces` is the open file that they refer to.
        """
        encode = self._encoder.encode
        written: list[bytes] = []
        for seq, trial in enumerate(trials, self._seq + 1):
            try:
                line = encode(trial)
            except UnicodeEncodeError:  # lone surrogates, which UTF-8 cannot carry
                line = encode(without_surrogates(msgspec.to_builtins(trial, enc_hook=str)))
            written.append(add_checksum(b'%b,"seq":%d}' % (line[:-1], seq)))
        lines = b"\n".join([*written, b""])
        try:
            if traces is not None and self._sync == Sync.ALWAYS:
                os.fsync(traces.fileno())  # before the lines that refer to it
            write_whole(self._file, lines)
            self._end += len(lines)
            self._seq += len(written)
            now = self._clock()
            if self._sync == Sync.ALWAYS or now - self._synced_at >= SYNC_INTERVAL:
                self._synced_at = now
                if self._sync == Sync.ALWAYS:
                    os.fsync(self._file.fileno())
                elif self._sync == Sync.INTERVAL:
                    if self._background is None:
                        self._background = BackgroundFsync()
                    growing = (*([] if traces is None else [traces]), self._file)
                    self._background.begin(*(file.fileno() for file in growing))
                self._refuse_changed()
        except OSError as error:
            # A full disk takes a part of a line: keep the whole lines before it.
            with contextlib.suppress(OSError):
                out = os.fstat(self._file.fileno()).st_size - self._end
                whole = lines.rfind(b"\n", 0, max(0, out)) + 1
                os.ftruncate(self._file.fileno(), self._end + whole)
                self._end += whole
                self._seq += lines.count(b"\n", 0, whole)
            raise JournalError(
                f"cannot write the journal: {error.strerror}",
                where=str(self._path),
                hint="finished trials are safe; free disk space or restore the folder, --resume",
            ) from None

    def _refuse_changed(self) -> None:
        # Writes to a deleted file succeed and are lost. Checked only with a sync: that is soon
        # enough, and saves two system calls per write.
        ours = os.fstat(self._file.fileno())
        try:
            there = self._path.stat()
        except FileNotFoundError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
            raise JournalError(
                "the journal was deleted while the run was writing it",
                where=str(self._path),
                hint="its trials are lost; start the run again",
            )
        if ours.st_size != self._end:
            raise JournalError(
                "the journal was changed by another program while the run was writing it",
                where=str(self._path),
                hint="`proctor runs verify` shows what is left; an agent must not write there",
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
            self._refuse_changed()
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


RESTORE = "restore the file from a copy of the run, or run the suite again"

MAX_LINE = 64 << 20
"""Maximum bytes of a line: an answer, and some 10,000 check results."""

MAX_PROBLEMS = 1_000
"""Maximum unreadable lines that are described; all are counted."""

UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""Errors of JSON from a file of unknown origin."""


class Damage(NamedTuple):
    """What is not as it was written, where, and what to do."""

    where: str
    what: str
    remedy: str = RESTORE

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


_FORMAT = re.compile(rb"\Aformat: *(\d+)")
_SEQUENCE = re.compile(rb',"seq":(\d{1,18}),"crc":"[0-9a-f]{8}"}\n')


def has_checksums(run: Path) -> bool:
    """Return whether the spec of a run says that each line has a checksum: since format 2."""
    with contextlib.suppress(OSError), open(run / "_spec_.yaml", "rb", opener=unblocked) as file:
        if found := _FORMAT.match(file.read(32)):
            return int(found[1]) >= 2
    return False


def last_sequence(path: Path) -> int:
    """Return the number of the last line that has one; 0 without any."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _BLOCK))
            found = _SEQUENCE.findall(file.read(_BLOCK))
    except FileNotFoundError:
        return 0
    if not found:  # the last line is longer than a block
        reader = JournalReader(path)
        for _ in reader.trials():
            pass
        return reader.lines
    return max(map(int, found))


@dataclass(slots=True)
class JournalReader:
    """Read the trials of a journal from its lines, and collect what is damaged."""

    path: Path
    problems: list[Damage] = field(default_factory=list[Damage])
    """Lines that cannot be read or are missing, a torn last line included."""
    damaged: int = 0
    """The number of such lines that the process had written completely."""
    lines: int = 0
    """The number of the last line that was read."""
    skipped: int = 0
    """Unreadable lines since then."""

    def trials(self) -> Iterator[tuple[int, bytes, Trial | None]]:
        """Yield the offset and the text of each line, and its trial; None if it is unreadable.

        None at all without a journal. A line beyond `MAX_LINE` is read in parts, all unreadable.
        """
        decode = msgspec.json.Decoder(Trial).decode
        offset = number = 0
        try:
            with open(self.path, "rb", opener=unblocked) as file:
                while line := file.readline(MAX_LINE):
                    number += 1
                    try:
                        if not line.endswith(b"\n"):
                            raise msgspec.DecodeError("the line is torn")
                        matches = checksum_ok(line[:-1])
                        if matches is None and has_checksums(self.path.parent):
                            raise msgspec.DecodeError("it has no checksum")
                        if matches is not None:
                            found = _SEQUENCE.search(line, max(0, len(line) - 50))
                            if not matches or found is None:
                                raise msgspec.DecodeError("it is not as it was written")
                            seq = int(found[1])
                            if seq <= self.lines:
                                raise msgspec.DecodeError(f"line {seq} is repeated or out of place")
                            # Unreadable lines in between are accounted for.
                            if seq > self.lines + self.skipped + 1 and has_checksums(
                                self.path.parent
                            ):
                                self.expect(seq - 1, f"before line {seq}")
                            self.lines, self.skipped = seq, 0
                        yield offset, line, decode(line)
                    except UNREADABLE as error:
                        if len(self.problems) < MAX_PROBLEMS:
                            place = f"{self.path}:{number}"
                            self.problems.append(Damage(place, f"dropped a line: {error}"))
                        self.damaged += line.endswith(b"\n")
                        self.skipped += 1
                        yield offset, line, None
                    offset += len(line)
        except FileNotFoundError:
            return
        except OSError as error:
            message = f"cannot read the journal: {error.strerror}"
            raise ProctorError(message, where=str(self.path)) from None

    def expect(self, lines: int, where: str = "at its end") -> None:
        """Report how many of the first lines are missing from what was read so far."""
        if (missing := lines - self.lines - self.skipped) > 0:
            what = f"{missing} of its lines are missing {where}"
            self.problems.append(Damage(str(self.path), what))
            self.damaged += missing


def read_journal(path: Path, problems: list[str] | None = None) -> Iterator[Trial]:
    """Yield trials in finishing order. Unreadable lines are skipped and reported."""
    reader = JournalReader(path)
    yield from (trial for _, _, trial in reader.trials() if trial is not None)
    if problems is not None:
        problems += map(str, reader.problems)


class CountedLine(msgspec.Struct, gc=False):
    """One trial of a journal: the line that counts, and what all its attempts used.

    Of several attempts at a trial the first that was judged counts, otherwise the last: an attempt
    that was repeated because it had failed would turn chance into quality, while one that was never
    judged says nothing. Money is spent on every attempt. `last_status` is the status after retries.
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

    @classmethod
    def of(
        cls, trial: Trial, cell: CellKey, offset: int, length: int, earlier: CountedLine | None
    ) -> CountedLine:
        """Return the line that counts, of a trial's line and what is known of those before it."""
        counted = cls(
            cell,
            trial.axis_seed,
            trial.index,
            trial.status,
            trial.score,
            offset,
            length,
            trial.status,
            trial.cost_usd,
            trial.tokens,
            trial.unpriced_calls,
        )
        if earlier is None:
            return counted
        spent = (
            _sum(earlier.spent_usd, trial.cost_usd),
            _sum(earlier.spent_tokens, trial.tokens),
            earlier.spent_unpriced + trial.unpriced_calls,
        )
        if earlier.status in JUDGED:
            counted = earlier
        counted.attempts = earlier.attempts + 1
        counted.last_status = trial.status
        counted.spent_usd, counted.spent_tokens, counted.spent_unpriced = spent
        return counted

    def copied(self, file: BinaryIO, more: str = "") -> bytes:
        """Return the JSON of the line, with what the other attempts used and `more` fields.

        Copied as bytes from the open journal: encoding it again would cost more than a query.
        """
        file.seek(self.offset)
        text = file.read(self.length)
        if self.attempts > 1:
            added = {
                "last_status": self.last_status,
                "spent_usd": self.spent_usd,
                "spent_tokens": self.spent_tokens,
                "spent_unpriced_calls": self.spent_unpriced,
            }
            more += msgspec.json.encode(added).decode()[1:-1] + ","
        return b"{" + more.encode() + text.lstrip()[1:] if more else text


class JournalIndex:
    """What a first reading of a journal shows; every reader of trials takes it from here.

    Memory holds positions, never all lines; `plan_order` holds less, for very many trials.
    """

    def __init__(self, path: Path) -> None:
        self.lines: dict[str, CountedLine] = {}
        """Trials by key, in the order of their first attempts."""
        self.spent: dict[CellKey, Spending] = {}
        """What all attempts of each cell used."""
        self.reader = JournalReader(path)
        """What was read, and what could not be."""
        self._path = path
        # There may be very many lines: they share their cells, and those that do not count are few.
        self._cells: dict[CellKey, CellKey] = {}
        self._uncounted: set[int] = set()
        self._end = 0
        for offset, line, trial in self.reader.trials():
            self._end = offset + len(line)
            if trial is None:
                self._uncounted.add(offset)
                continue
            key, cell = trial.key, trial.cell
            cell = self._cells.setdefault(cell, cell)
            spent = self.spent.get(cell)
            if spent is None:
                spent = self.spent[cell] = Spending()
            spent.add(trial)
            earlier = self.lines.get(key)
            before = None if earlier is None else earlier.offset
            counted = CountedLine.of(trial, cell, offset, len(line), earlier)
            if before is not None:
                self._uncounted.add(before if counted.offset == offset else offset)
            self.lines[key] = counted

    def trials(self) -> Iterator[Trial]:
        """Read the trials, each once with the attempt that counts, in the order of the journal."""
        for offset, _, trial in JournalReader(self._path).trials():
            if offset >= self._end:
                return  # written since
            if trial is not None and offset not in self._uncounted:
                yield trial


Number = TypeVar("Number", int, float)


def _sum(first: Number | None, second: Number | None) -> Number | None:
    """Add what is known; None where nothing is."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


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
        self._segments = SegmentWriter(folder.traces_path, fsync_names=sync == Sync.ALWAYS)
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
        self._journal.extend(trials, self._segments.file)
        self._written(trials)

    def close(self) -> None:
        """Flush, fsync and close."""
        self.flush()
        self._journal.close()
        self._segments.close()

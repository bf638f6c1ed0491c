"""Finished trials on their way to disk: shared writes, and what is reported when."""

import errno
import os
import resource
import threading
from threading import Event

import pytest
import zstandard

from proctor.runs.folder import RunFolder
from proctor.runs.journal import (
    LONG_MS,
    MAX_BYTES,
    MAX_SECONDS,
    MAX_WAITING,
    SYNC_INTERVAL,
    Journal,
    JournalError,
    Sync,
    TrialWriter,
    read_journal,
)
from proctor.runs.segments import SMALL, SegmentWriter, segment_path
from proctor.runs.trial import Trial, TrialStatus


def trial(index, **facts):
    return Trial(case="c", agent="a", index=index, seed=1, status=TrialStatus.PASSED, **facts)


class Watched:
    """A writer under a clock that stands still, and what it reported."""

    def __init__(self, folder, sync=Sync.NEVER):
        self.folder = RunFolder(folder)
        self.now = 0.0
        self.reported = []
        self.writer = TrialWriter(self.folder, sync, self._written, clock=lambda: self.now)

    def _written(self, trials):
        on_disk = [t.index for t in read_journal(self.folder.journal_path)]
        assert on_disk[-len(trials) :] == [t.index for t in trials]
        self.reported.extend(t.index for t in trials)


def test_trials_are_reported_once_they_are_on_disk(tmp_path):
    """R-R9: none is reported finished whose line a crash could still cost."""
    watched = Watched(tmp_path)
    assert watched.writer.add(trial(0), b"{}")
    assert not watched.writer.add(trial(1), None)
    assert watched.reported == []
    watched.writer.flush()
    assert watched.reported == [0, 1]
    kept = list(read_journal(watched.folder.journal_path))
    assert kept[0].trace is not None
    assert kept[1].trace is None


def test_waiting_is_bounded_by_number_bytes_and_time(tmp_path):
    """R-R9: neither many trials, nor large ones, nor a busy loop keep them off the disk."""
    watched = Watched(tmp_path)
    for index in range(MAX_WAITING):
        watched.writer.add(trial(index), None)
    assert len(watched.reported) == MAX_WAITING
    watched.writer.add(trial(100), b"x" * MAX_BYTES)
    assert watched.reported[-1] == 100
    watched.writer.add(trial(101), None)
    watched.now += MAX_SECONDS
    watched.writer.add(trial(102), None)
    assert watched.reported[-2:] == [101, 102]


def test_a_trial_that_took_long_waits_for_no_other(tmp_path):
    """R-R9: only quick trials share a write; one of a real agent is safe as soon as it ends."""
    watched = Watched(tmp_path)
    assert watched.writer.add(trial(0, duration_ms=LONG_MS / 2), b"{}")
    assert watched.reported == []
    assert not watched.writer.add(trial(1, duration_ms=LONG_MS), b"{}")
    assert watched.reported == [0, 1]


def test_always_means_each_by_itself(tmp_path):
    """R-R9: under `always` no trial waits for another."""
    watched = Watched(tmp_path, Sync.ALWAYS)
    watched.writer.add(trial(0), b"{}")
    assert watched.reported == [0]


def test_closing_writes_what_waits(tmp_path):
    """R-R6: a run that is stopped keeps the trials that had ended."""
    watched = Watched(tmp_path)
    watched.writer.add(trial(7), b"{}")
    watched.writer.close()
    assert [t.index for t in read_journal(watched.folder.journal_path)] == [7]


def test_a_batch_that_does_not_fit_keeps_its_whole_lines(tmp_path):
    """R-R9: of trials written together on a full disk, those that went out whole are finished."""
    path = tmp_path / "trials.jsonl"
    journal = Journal(path, sync=Sync.NEVER)
    journal.append(trial(0))
    room = path.stat().st_size * 3 + 10
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(JournalError, match="File too large"):
            journal.extend([trial(index) for index in range(1, 9)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    problems = []
    assert [t.index for t in read_journal(path, problems)] == [0, 1, 2]
    assert problems == []


class Disk:
    """What forces files out: waits until it is let go on, then fails if it is to."""

    def __init__(self, monkeypatch, error=None):
        self.begun, self.go_on, self.error, self.forced = Event(), Event(), error, 0
        self._fsync = os.fsync
        monkeypatch.setattr("proctor.runs.journal.os.fsync", self.fsync)

    def fsync(self, descriptor):
        if threading.current_thread().name == "fsync":
            self.begun.set()
            self.go_on.wait()
            self.forced += 1
            if self.error is not None:
                raise self.error
        self._fsync(descriptor)


def test_a_slow_disk_keeps_no_agent_waiting(tmp_path, monkeypatch):
    """R-R9: under `interval` lines are forced out beside the run, one time after the other, and
    the journal is closed when that is done."""
    disk, now = Disk(monkeypatch), 0.0
    journal = Journal(tmp_path / "trials.jsonl", clock=lambda: now)
    for index in range(5):
        now = index * 2 * SYNC_INTERVAL
        journal.append(trial(index))  # returns, though the disk does not
        assert index == 0 or disk.begun.wait(60)
    assert disk.forced == 0
    disk.go_on.set()
    journal.close()
    assert disk.forced == 1
    assert [t.index for t in read_journal(tmp_path / "trials.jsonl")] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("told_by", ["append", "close"])
def test_lines_that_cannot_be_forced_out_are_told(tmp_path, monkeypatch, told_by):
    """R-R9: a disk that fails beside the run ends it with the reason."""
    disk, now = Disk(monkeypatch, OSError(errno.EIO, "Input/output error")), 0.0
    disk.go_on.set()
    journal = Journal(tmp_path / "trials.jsonl", clock=lambda: now)
    now = 2 * SYNC_INTERVAL
    journal.append(trial(0))
    for thread in threading.enumerate():
        if thread.name == "fsync":
            thread.join(60)
    now = 4 * SYNC_INTERVAL
    tell = {"append": lambda: journal.append(trial(1)), "close": journal.close}[told_by]
    with pytest.raises(JournalError, match="Input/output error"):
        tell()
    journal.close()


def test_small_and_large_traces_share_a_segment(tmp_path):
    """R-D1: one frame a trace whatever its size; `zstdcat` reads them all."""
    writer = SegmentWriter(tmp_path / "traces")
    lines = [b'"small"', b'"' + b"large " * SMALL + b'"', b'"small again"']
    places = writer.extend(lines)
    writer.close()
    data = segment_path(tmp_path / "traces", 1).read_bytes()
    assert sum(place.length for place in places) == len(data)
    for line, place in zip(lines, places, strict=True):
        frame = data[place.offset : place.offset + place.length]
        assert zstandard.ZstdDecompressor().decompress(frame) == line + b"\n"

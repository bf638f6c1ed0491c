"""What `--sync always` promises, under simulated power cuts.

The writes of a real run are recorded: the content of every file at every fsync. A power cut then
keeps what was fsynced, and of everything else any part: a name or not, a write or not, torn or
with zeros in place of data, each file independently of the others.
"""

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from result_parts import trial

from proctor.errors import ProctorError
from proctor.runs.folder import RunFolder
from proctor.runs.journal import JournalIndex, Sync, TrialWriter
from proctor.runs.run import Run
from proctor.runs.trial import Trial
from proctor.sanitize import json_bytes
from proctor.trace import Trace

TRIALS = 8
CUTS = 30
"""Simulated power cuts at each fsync."""


class Moment(NamedTuple):
    """The disk at one moment: what exists, what is durable, and what was reported."""

    names: dict[str, int]
    content: dict[int, bytes]
    durable_names: dict[str, int]
    durable_content: dict[int, bytes]
    reported: tuple[str, ...]


class Disk:
    """Records every fsync below a folder."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.moments: list[Moment] = []
        self.reported: list[str] = []
        self._durable_names: dict[str, int] = {}
        self._durable: dict[int, bytes] = {}
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, descriptor: int) -> None:
        """Record the moment before, then what is durable after."""
        self.record()
        self._fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        names, content = self._now()
        if path.is_dir():
            inside = {n: i for n, i in names.items() if self.root / Path(n).parent == path}
            here = {n for n in self._durable_names if self.root / Path(n).parent == path}
            for name in here - set(inside):
                del self._durable_names[name]
            self._durable_names |= inside
        else:
            inode = os.fstat(descriptor).st_ino
            self._durable[inode] = content.get(inode, b"")

    def record(self) -> None:
        """Record this moment."""
        self.moments.append(
            Moment(*self._now(), {**self._durable_names}, {**self._durable}, (*self.reported,))
        )

    def _now(self) -> tuple[dict[str, int], dict[int, bytes]]:
        names: dict[str, int] = {}
        content: dict[int, bytes] = {}
        for path in self.root.rglob("*"):
            inode = path.stat().st_ino
            names[str(path.relative_to(self.root))] = inode
            if path.is_file():
                content[inode] = path.read_bytes()
        return names, content


def after_power_cut(moment: Moment, target: Path, chance: random.Random) -> None:
    """Write one of the states that a disk may be in after a power cut."""
    target.mkdir()
    for name in sorted({*moment.names, *moment.durable_names}):
        # Each name is the durable one or the present one, which may be none.
        inode = chance.choice((moment.names, moment.durable_names)).get(name)
        path = target / name
        if inode is None or not path.parent.is_dir():
            continue
        if inode not in moment.content:
            path.mkdir()
            continue
        kept, now = moment.durable_content.get(inode, b""), moment.content[inode]
        assert now.startswith(kept), "files only grow"
        cut = chance.randint(len(kept), len(now))
        torn = now[:cut]
        zeros = kept + b"\0" * (len(now) - len(kept))
        path.write_bytes(chance.choice((kept, now, torn, zeros)))


@pytest.mark.parametrize("seed", range(2))
def test_what_was_reported_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """R-R9, R-N7: with `--sync always` a reported trial is read back whole, from any state."""
    root = tmp_path / "results"
    root.mkdir()
    disk = Disk(root, monkeypatch)
    trials = [trial(index=i, answer=f"answer {i}" * (i + 1)) for i in range(TRIALS)]
    traces = {t.key: Trace(trace_id=f"{i:032x}") for i, t in enumerate(trials)}
    folder = RunFolder.create(root, "suite")
    cell = {"case": trials[0].case, "agent": trials[0].agent, "trials": TRIALS, "threshold": 0.8}
    folder.write_spec({"run_id": "x", "name": "suite", "options": {}, "suite": {}, "cells": [cell]})

    def written(done: Sequence[Trial]) -> None:
        disk.reported += [each.key for each in done]

    for part in (trials[:4], trials[4:]):  # a session, and one that resumes it
        writer = TrialWriter(folder, Sync.ALWAYS, written)
        for each in part:
            writer.add(each, json_bytes(traces[each.key]))
        writer.close()
    disk.record()
    assert len(disk.reported) == TRIALS
    chance = random.Random(seed)
    expected = {each.key: each for each in trials}
    name = folder.path.relative_to(root)
    for number, moment in enumerate(disk.moments):
        for cut in range(CUTS):
            place = tmp_path / f"cut-{number}-{cut}"
            after_power_cut(moment, place, chance)
            found = RunFolder(place / name)
            try:
                run = Run(found.path)
            except ProctorError:
                assert not moment.reported, "a run with reported trials has its spec"
                continue
            read = {each.key: each for each in run.trials}
            assert set(moment.reported) <= set(read)
            for key, each in read.items():
                assert each == expected[key], "a line is as it was written, or is not read"
                unreadable: list[str] = []
                trace = run.readable_trace(each, unreadable)
                assert trace == traces[key] or (unreadable and key not in moment.reported)
            # Every line on the disk is read, or is reported.
            index = JournalIndex(found.journal_path)
            lines = found.journal_path.read_bytes().count(b"\n") if read else 0
            assert lines <= len(read) + len(index.reader.problems)

"""Read the trials of a journal in the order of the plan, whatever order they finished in.

Memory holds twelve bytes for each trial, and what is to be known of those that were run again: so a
run of a hundred thousand cells is summarised in as much memory as one of ten thousand. Trade-off:
each reading of the trials reads the journal again.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path

import msgspec

from proctor.runs.journal import CountedLine, JournalReader
from proctor.runs.trial import CellKey, Spending, Trial

RowOrder = tuple[CellKey, int, int]

IN_MEMORY = 10_000
"""Lines sorted in memory, some 3 MB; more are sorted by a temporary database on disk."""

_Line = tuple[str, str, str, int, int, int, int]
"""The sort key of a line, its offset and its length: of several attempts the first comes first."""


def row_order(trial: Trial | CountedLine) -> RowOrder:
    """Return the sort key of a trial: case, agent, parameters, seed, repeat."""
    # Trials without a seed come first.
    return (trial.cell, -1 if trial.axis_seed is None else trial.axis_seed, trial.index)


class OrderedJournal:
    """The trials of a journal, each once with the attempt that counts, in plan order."""

    def __init__(self, path: Path) -> None:
        self.reader = JournalReader(path)
        """What was read, and what could not be."""
        self.lines: dict[str, CountedLine] = {}
        """Trials that were run more than once, by key."""
        self.more_spent: dict[CellKey, Spending] = {}
        """What attempts that do not count used, by cell."""
        self._path = path
        self._offsets, self._lengths = array("Q"), array("Q")
        self._repeated: dict[int, CountedLine] = {}
        """The same lines by offset."""
        for _, attempts in groupby(_sorted(self._read()), key=lambda line: line[:5]):
            line, *later = attempts
            *_, offset, length = self._merged([line, *later]) if later else line
            self._offsets.append(offset)
            self._lengths.append(length)

    def _read(self) -> Iterator[_Line]:
        for offset, line, trial in self.reader.trials():
            if trial is not None:
                cell, seed, index = row_order(trial)
                yield cell.case, cell.agent, cell.params, seed, index, offset, len(line)

    def _merged(self, attempts: list[_Line]) -> _Line:
        """Return the attempt that counts, and note what the others used."""
        decode, line = msgspec.json.Decoder(Trial).decode, None
        trials: dict[int, Trial] = {}
        with self._path.open("rb") as file:
            for *_, offset, length in attempts:
                file.seek(offset)
                trials[offset] = trial = decode(file.read(length))
                line = CountedLine.of(trial, trial.cell, offset, length, line)
        assert line is not None
        self.lines[trials[line.offset].key] = self._repeated[line.offset] = line
        spent = self.more_spent.setdefault(line.cell, Spending())
        for offset, trial in trials.items():
            if offset != line.offset:
                spent.add(trial)
        return next(each for each in attempts if each[5] == line.offset)

    def texts(self) -> Iterator[bytes]:
        """Yield the line of each trial, with what its other attempts used."""
        if not self._offsets:
            return
        with self._path.open("rb") as file:
            for offset, length in zip(self._offsets, self._lengths, strict=True):
                if (line := self._repeated.get(offset)) is not None:
                    yield line.copied(file)
                else:
                    file.seek(offset)
                    yield file.read(length)

    def trials(self) -> Iterator[Trial]:
        """Yield the trials."""
        return map(msgspec.json.Decoder(Trial).decode, self.texts())


def _sorted(lines: Iterator[_Line]) -> Iterator[_Line]:
    first = sorted(islice(lines, IN_MEMORY))
    if len(first) < IN_MEMORY:
        yield from first
        return
    import sqlite3

    # A database without a name is on disk as soon as it is large, and disappears when closed.
    with contextlib.closing(sqlite3.connect("")) as database:
        database.execute('CREATE TABLE line ("case", agent, params, seed, "index", "offset", size)')
        for some in (first, lines):
            database.executemany("INSERT INTO line VALUES (?, ?, ?, ?, ?, ?, ?)", some)
        yield from database.execute("SELECT * FROM line ORDER BY 1, 2, 3, 4, 5, 6")

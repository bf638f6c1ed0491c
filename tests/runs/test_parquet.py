"""`results.parquet`: every line of the journal, however long, and errors that are heard."""

from pathlib import Path

import duckdb
import pytest

from proctor.errors import ProctorError
from proctor.results.metadata import finalise
from proctor.runs.folder import RunFolder
from proctor.runs.journal import Sync
from proctor.runs.parquet import MIN_OBJECT, write_parquet
from proctor.runs.trial import Trial, TrialStatus


def folder_with(path: Path, answers: list[str]) -> RunFolder:
    folder = RunFolder(path)
    journal = folder.journal(Sync.NEVER)
    trials = [
        Trial(case="c", agent="a", index=i, seed=i, status=TrialStatus.PASSED, answer=answer)
        for i, answer in enumerate(answers)
    ]
    journal.extend(trials)
    journal.close()
    return folder


def lengths(folder: RunFolder) -> list[int]:
    query = 'SELECT length(answer) FROM read_parquet(?) ORDER BY "index"'
    return [row[0] for row in duckdb.execute(query, [str(folder.parquet_path)]).fetchall()]


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [10, 20],
        [1000] * (3 * MIN_OBJECT // 1000),
        [1000] * 2000 + [MIN_OBJECT + 50_000] + [1000] * 2000,
        [5, 3 * MIN_OBJECT],
        [3 * MIN_OBJECT, 5],
        [MIN_OBJECT - 200] * 4,
    ],
    ids=["none", "few", "many", "one long", "long at the end", "long at the start", "at the edge"],
)
def test_lines_of_any_length_become_rows(tmp_path: Path, sizes: list[int]) -> None:
    """R-D1: no trial is missing from the table because its line, or another's, is long."""
    folder = folder_with(tmp_path, ["x" * size for size in sizes])
    write_parquet(folder, in_order=True)
    assert lengths(folder) == sizes


def test_what_goes_wrong_in_the_background_is_raised_at_the_end(tmp_path: Path) -> None:
    """R-R11: a table that cannot be written is an error; the rest was written all the same."""
    folder = folder_with(tmp_path, ["x"])
    cell = {"case": "c", "agent": "a", "trials": 1, "threshold": 1.0}
    folder.write_spec({"run_id": "r", "name": "n", "suite": {}, "cells": [cell]})
    folder.parquet_path.mkdir()
    with pytest.raises(ProctorError, match=r"cannot write results\.parquet"):
        finalise(folder)
    assert folder.results_path.is_file()
    assert folder.summary_path.is_file()
    # Where both fail, the error of the block comes first: it is the one that is waited for.
    folder.results_path.unlink()
    folder.results_path.mkdir()
    with pytest.raises(ProctorError) as raised:
        finalise(folder)
    assert str(raised.value.where).endswith("results.json")

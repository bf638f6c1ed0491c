"""Where runs of experiments go: numbered without a race, never outside the results folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from proctor.runs.folder import RunFolder, RunFolderError, allocate, earlier_folders
from proctor.spec.experiment import DEFAULT_OUTPUT

NAMES = {"experiment": "exp", "date": "2026-01-31"}


CLAIMING = """
import json, multiprocessing, sys
from pathlib import Path
from proctor.runs.folder import allocate
root, names = Path(sys.argv[1]), json.loads(sys.argv[2])
def claimed(number):
    pattern = "deep/{experiment}/{date}/run-{seq}/here"
    return [str(allocate(root, pattern, names)) for _ in range(20)]
with multiprocessing.get_context("fork").Pool(4) as pool:
    print(json.dumps(sum(pool.map(claimed, range(4), chunksize=1), [])))
"""


def test_those_that_start_at_once_get_folders_of_their_own(tmp_path: Path) -> None:
    """R-S3: four processes, twenty folders each: eighty numbers without a gap or a double."""
    # From a process without threads: a fork of one that has some may hang.
    argv = [sys.executable, "-c", CLAIMING, str(tmp_path), json.dumps(NAMES)]
    found = json.loads(subprocess.check_output(argv))
    parent = tmp_path / "deep" / "exp" / "2026-01-31"
    assert sorted(found) == [str(parent / f"run-{n:03d}" / "here") for n in range(1, 81)]
    assert all(Path(path).is_dir() for path in found)


def test_numbers_go_on_after_the_highest(tmp_path: Path) -> None:
    """R-S3: also beyond three digits, and whatever else lies there."""
    for name in ("x_007", "x_999", "x_12y", "z_1234", "x_"):
        (tmp_path / name).mkdir()
    assert allocate(tmp_path, "x_{seq}", NAMES).name == "x_1000"
    assert allocate(tmp_path, "x_{seq}", NAMES).name == "x_1001"
    assert allocate(tmp_path, "z_{seq}", NAMES).name == "z_1235"


@pytest.mark.parametrize("pattern", ["../{seq}", "a/../../{seq}", "link/{seq}", "link/a/{seq}"])
def test_nothing_is_made_outside(pattern: str, tmp_path: Path) -> None:
    """R-S3: dots and links that lead out are refused, and leave nothing behind."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "link").symlink_to(outside)
    with pytest.raises(RunFolderError, match="leads outside the results folder"):
        allocate(root, pattern, NAMES)
    assert list(outside.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "root"]
    assert [path.name for path in root.iterdir()] == ["link"]


def test_earlier_runs_are_found_by_the_pattern(tmp_path: Path) -> None:
    """R-R7: estimates look where runs of the same experiment went, the newest first."""
    made = [RunFolder.create(tmp_path, "a b", output="{date}/{experiment}/{seq}") for _ in range(3)]
    RunFolder.create(tmp_path, "other", output="{date}/{experiment}/{seq}")
    found = earlier_folders(tmp_path, "{date}/{experiment}/{seq}", "a b")
    assert found == [folder.path for folder in reversed(made)]
    assert earlier_folders(tmp_path / "none", DEFAULT_OUTPUT, "x") == []

"""Files that are replaced wholly or not at all."""

import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from proctor.files import replacing

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="modes are of POSIX")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_block_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    """R-R9: readers find the old content or the new, and nothing stays beside it."""
    path = tmp_path / "kept.json"
    path.write_text("old")

    def fails() -> None:
        with replacing(path) as aside:
            aside.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert path.read_text() == "old"
    with replacing(path) as aside:
        aside.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["kept.json"]


@POSIX
def test_who_may_read_it_stays_as_it_was(tmp_path: Path) -> None:
    """R-R9: a file that was closed to others is not opened by a new content."""
    path = tmp_path / "kept.json"
    path.write_text("old")
    path.chmod(0o640)
    with replacing(path) as aside:
        aside.write_text("new")
    assert mode_of(path) == 0o640
    with replacing(path, mode=0o600) as aside:
        assert mode_of(aside) == 0o600  # before a byte is in it
        aside.write_text("secret")
    assert mode_of(path) == 0o600


def test_names_may_be_as_long_as_files_allow(tmp_path: Path) -> None:
    """R-R9: 255 bytes of a name leave room for its file aside."""
    for name in ("n" * 255, "ü" * 127, "𝄞" * 63):
        with replacing(tmp_path / name) as aside:
            aside.write_text(name)
        assert (tmp_path / name).read_text() == name


def test_many_at_once_leave_one_whole_content(tmp_path: Path) -> None:
    """R-R9: threads of one process do not write into each other's file."""
    path = tmp_path / "kept.json"
    contents = [f"{at}" * 100_000 for at in range(8)]

    def put(content: str) -> None:
        for _ in range(5):
            with replacing(path, sync=False) as aside:
                aside.write_text(content)

    with ThreadPoolExecutor(len(contents)) as pool:
        list(pool.map(put, contents))
    assert path.read_text() in contents
    assert [each.name for each in tmp_path.iterdir()] == ["kept.json"]

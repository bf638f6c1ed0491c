"""Files that are replaced wholly or not at all."""

import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from proctor.errors import ProctorError
from proctor.files import append_line, lock_file, read_lines, replacing, write_atomic
from proctor.runs.folder import RunFolder

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="modes are of POSIX")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_block_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    """R-R9: readers find the old or the new content, and no temporary file is left."""
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
    """R-R9: replacing a file keeps its permissions."""
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
    """R-R9: a name of 255 bytes can be replaced: the temporary name is cut."""
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


# -- write_atomic, append_line, lock_file through their callers -----------------------------------


def test_a_full_folder_is_named_by_whoever_writes(tmp_path: Path) -> None:
    """R-R9: a file that cannot be replaced is an error with its path, whatever writes it."""
    missing = tmp_path / "no such folder" / "file"
    with pytest.raises(ProctorError, match="cannot write") as caught:
        write_atomic(missing, b"x")
    assert caught.value.where == str(missing)


class Note(msgspec.Struct):
    text: str


def test_lines_of_many_processes_are_all_there(tmp_path: Path) -> None:
    """R-R12: notes and the audit log are added to by any number of processes at once."""
    path = tmp_path / "notes.jsonl"
    code = (
        "import sys, msgspec, pathlib; from proctor.files import append_line\n"
        "Note = msgspec.defstruct('Note', [('text', str)])\n"
        "for n in range(50): append_line(pathlib.Path(sys.argv[1]), Note(f'{sys.argv[2]}-{n}'))"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in ("a", "b", "c")
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    found = [note.text for note in read_lines(path, Note)]
    assert sorted(found) == sorted(f"{name}-{n}" for name in "abc" for n in range(50))


def test_a_torn_line_costs_itself_only(tmp_path: Path) -> None:
    """R-R9: a crash in the middle of a line loses that line, and it is named."""
    path = tmp_path / "notes.jsonl"
    append_line(path, Note("one"))
    with path.open("ab") as file:
        file.write(b'{"text": "to')
    append_line(path, Note("three\ud800"))
    problems: list[str] = []
    assert [n.text for n in read_lines(path, Note, problems)] == ["one", "three\ufffd"]
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}:2: ")


@POSIX
def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    """R-R9: a run folder or a schedule is free again when its writer is killed."""
    path = tmp_path / ".lock"
    code = (
        "import sys; from proctor.files import lock_file\n"
        "file = open(sys.argv[1], 'a+b'); print(lock_file(file, wait=False), flush=True)\n"
        "sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    with path.open("a+b") as file:
        assert not lock_file(file, wait=False)
        holder.kill()
        assert lock_file(file), "waits until the other has ended"
    holder.communicate()


def test_a_run_folder_in_use_is_refused(tmp_path: Path) -> None:
    """R-R9: a run folder has one writer at a time."""
    folder = RunFolder.create(tmp_path, "x")
    with folder.lock(), pytest.raises(ProctorError, match="another process"), folder.lock():
        pass

"""Processes that an agent leaves behind end with its trial, and do not hold it."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest

import proctor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

ANSWERED = proctor.Case(input="q", correctness={"expected_in_answer": ["yes"]})

ESCAPES = """
import os, subprocess, sys

def session(input):
    subprocess.Popen(["sleep", "614"], start_new_session=True)
    return "yes"

def double_fork(input):
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            os.execvp("sleep", ["sleep", "614"])
        os._exit(0)
    return "yes"

def loud(input):
    for _ in range(200):
        sys.stderr.write("x" * 1_000_000)
    return "yes"
"""


def sleeping() -> list[int]:
    """The processes of these tests that are still there."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == b"sleep\0614\0":
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def trial_of(folder: Path, agent: dict[str, Any]) -> Any:
    (folder / "bots.py").write_text(ESCAPES)
    suite = proctor.Suite(cases=(ANSWERED,))
    (trial,) = proctor.run(suite, agent=agent, trials=1, results=folder / "results").trials()
    return trial


@pytest.mark.parametrize("start", ["sleep 614 &", "setsid sleep 614 &", "(setsid sleep 614 &) &"])
def test_a_command_does_not_wait_for_what_it_left(tmp_path: Path, start: str) -> None:
    """R-A2, R-R6: the trial ends with the command, and what is in the background ends with it."""
    agent = {"kind": "command", "command": ["bash", "-c", f"{start} echo yes"], "protocol": "text"}
    began = time.monotonic()
    assert trial_of(tmp_path, agent).status.value == "passed"
    assert time.monotonic() - began < 60, "it waited for the process in the background"
    assert sleeping() == []


@pytest.mark.parametrize("function", ["session", "double_fork"])
def test_a_process_of_its_own_ends_with_its_descendants(tmp_path: Path, function: str) -> None:
    """R-R3, R-R6: also those in a session of their own."""
    target = {"target": f"bots:{function}", "base_dir": str(tmp_path)}
    assert trial_of(tmp_path, {"kind": "python", "isolation": "process", **target}).passed
    assert sleeping() == []


def test_the_standard_error_of_a_process_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-R3: 200 MB of messages are read and dropped, not stored in the temporary folder."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    most = 0

    def look() -> None:
        nonlocal most
        files = [path for path in (tmp_path / "temporary").rglob("*") if path.is_file()]
        most = max(most, sum(path.stat().st_size for path in files))

    from proctor.background import PeriodicWork

    watching = PeriodicWork(look, every=0.02, name="watch")
    watching.start()
    try:
        target = {"target": "bots:loud", "base_dir": str(tmp_path)}
        assert trial_of(tmp_path, {"kind": "python", "isolation": "process", **target}).passed
    finally:
        watching.stop()
    assert most < 1_000_000

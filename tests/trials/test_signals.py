"""Ctrl-C and SIGTERM, sent to real processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import proctor
from run_parts import clock_of, journal, only_run, write_suite

pytestmark = pytest.mark.slow


class Running:
    """A run in a process of its own, watched through its events."""

    def __init__(self, suite: Path, agent: str, *more: str) -> None:
        self.results = suite.parent / "results"
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "proctor", "run", str(suite), "--agent", f"bots:{agent}"),
                *("--trials", "4", "--concurrency", "2", "--json", *more),
                *("--results", str(self.results)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stderr is not None
        self._lines = iter(self.process.stderr)

    def until(self, event: str, times: int = 1) -> None:
        """Wait for the child to report something so many times."""
        for line in self._lines:
            times -= line.startswith(f'{{"event":"{event}"')
            if not times:
                return
        raise AssertionError("the process ended without it")

    def ended(
        self,
        number: signal.Signals,
        *,
        sends: int = 1,
        send: Callable[[int, int], None] = os.kill,
        then: signal.Signals | None = None,
    ) -> tuple[int, float]:
        """The exit code after a signal, and the seconds it took."""
        seconds = clock_of(self.process)
        send(self.process.pid, number)
        if then is not None:
            os.kill(self.process.pid, then)
        for _ in range(sends - 1):
            next(line for line in self._lines if "Ctrl-C again to quit at once" in line)
            send(self.process.pid, number)
        took = seconds()
        self.out, self.err = self.process.communicate()
        return self.process.returncode, took


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return write_suite(tmp_path, cases=2)


NUMBERS = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("agent", ["wait", "block_thread", "block_loop", "stubborn"])
def test_a_run_stops_within_five_seconds(suite: Path, number: signal.Signals, agent: str) -> None:
    """R-R6: whatever agents do, a signal ends the run soon, and running trials are recorded."""
    running = Running(suite, agent)
    running.until("started", 2)
    code, seconds = running.ended(number)
    assert code == NUMBERS[number]
    assert seconds < 5
    trials = journal(only_run(running.results))
    assert [trial["status"] for trial in trials] == ["cancelled"] * 2
    assert "Traceback" not in running.err


@pytest.mark.parametrize("command", ["run", "test"])
def test_a_signal_while_the_loop_sleeps_wakes_it(tmp_path: Path, command: str) -> None:
    """R-R6: taken by any thread, at any moment, it ends the command; nothing else has to happen."""
    (tmp_path / "agent.py").write_text(
        "import os, pathlib, signal, time\n"
        "def parent(pid):\n"
        "    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()\n"
        "    return int(stat.rpartition(')')[2].split()[1])\n"
        "def agent(input):\n"
        "    time.sleep(0.5)\n"  # till the main thread has nothing left to do
        "    os.kill(parent(os.getppid()), signal.SIGTERM)\n"  # the driver
        "    time.sleep(600)\n"
    )
    suite = tmp_path / "suite.yaml"
    suite.write_text("version: 1\nagent: agent:agent\ncases: [{id: one, input: hello}]\n")
    done = proctor(command, suite, cwd=tmp_path)  # which fails if it takes minutes
    assert done.returncode == 143, done.stderr


def test_what_was_finished_is_kept_and_the_rest_is_resumed(tmp_path: Path) -> None:
    """R-R6, R-R7: finished trials are safe, and the run says how to go on."""
    suite = write_suite(tmp_path, cases=2)
    text = suite.read_text()
    gate = tmp_path / "open"
    (tmp_path / "gate.py").write_text(
        "import asyncio, pathlib\n"
        "async def agent(input):\n"
        f"    while input == 'word1' and not pathlib.Path({str(gate)!r}).exists():\n"
        "        await asyncio.sleep(0.01)\n"
        "    return input\n"
    )
    suite.write_text(text.replace("bots:steady", "gate:agent"))
    child = subprocess.Popen(
        [
            *(sys.executable, "-m", "proctor", "run", str(suite), "--json", "--concurrency", "2"),
            *("--results", str(tmp_path / "results")),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    finished = 0
    for line in child.stderr:
        finished += '"event":"finished"' in line
        if finished == 3:
            break
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    run = only_run(tmp_path / "results")
    assert child.returncode == 130
    document = json.loads(out)
    assert (document["exit_code"], document["stopped"]) == (130, "interrupted by SIGINT")
    assert f"proctor run --resume {run}" in err
    before = {(t["case"], t["index"]): t for t in journal(run) if t["status"] == "passed"}
    assert len(before) == 3
    gate.touch()
    done = proctor("run", "--resume", run)
    assert done.returncode == 0, done.stderr
    after: dict[Any, Any] = {(t["case"], t["index"]): t for t in journal(run)}
    assert len(after) == 6
    assert all(trial["status"] == "passed" for trial in after.values())
    assert all(after[key] == trial for key, trial in before.items())


@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_a_second_signal_leaves_at_once(suite: Path, send: Callable[[int, int], None]) -> None:
    """R-R6: it waits for nobody and records nothing, and the run can be resumed."""
    running = Running(suite, "stubborn")
    running.until("started", 2)
    # Both are there when the process goes on: however busy the machine, no time is between them.
    os.kill(running.process.pid, signal.SIGSTOP)
    send(running.process.pid, signal.SIGINT)
    code, _ = running.ended(signal.SIGTERM, send=send, then=signal.SIGCONT)
    assert code == 143
    assert "press Ctrl-C again to quit at once" in running.err
    run = only_run(running.results)
    assert journal(run) == []
    assert proctor("run", "--resume", run, "--dry-run").returncode == 0


def test_ctrl_c_twice(suite: Path) -> None:
    """R-R6: the second ends the run when the first has said that it would."""
    running = Running(suite, "stubborn")
    running.until("started", 2)
    assert running.ended(signal.SIGINT, sends=2)[0] == 130


def test_two_processes_resume_one_works(suite: Path) -> None:
    """R-R9: while one process works on a run, another refuses, and says why."""
    running = Running(suite, "wait")
    running.until("started")
    done = proctor("run", "--resume", only_run(running.results))
    assert done.returncode == 2
    assert "another process is writing this run" in done.stderr
    assert running.ended(signal.SIGTERM)[0] == 143

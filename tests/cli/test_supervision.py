"""Code of an agent that ends the process cannot decide the exit code."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from commands import proctor
from run_parts import journal, only_run

from proctor.cli._signals import SignalCount

WAYS = {
    "exit": "os._exit(0)",
    "segfault": "ctypes.string_at(0)",
    "abort": "os.abort()",
}


def write(folder: Path, body: str) -> None:
    """A suite of two cases; the agent does this on the second."""
    (folder / "bots.py").write_text(
        "import ctypes, os, sys, time\n\n"
        f"def bot(input):\n    if input == 'bad':\n        {body}\n    return 'yes'\n"
    )
    cases = [
        {"id": text, "input": text, "correctness": {"expected_in_answer": ["yes"]}}
        for text in ("good", "bad")
    ]
    suite = {"version": 1, "agent": "bots:bot", "cases": cases}
    (folder / "suite.yaml").write_text(yaml.safe_dump(suite))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("command", ["run", "test"])
def test_an_agent_that_ends_the_process_is_not_green(tmp_path, command, way):
    """R-R11: os._exit(0), a segfault or an abort gives 2 and a message, not the agent's code."""
    write(tmp_path, WAYS[way])
    done = proctor(command, "suite.yaml", "--concurrency", 1, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    said = {"exit": "with exit code 0", "segfault": "by SIGSEGV", "abort": "by SIGABRT"}[way]
    assert f"the process ended {said} before the command was done" in done.stderr


def test_the_rest_of_the_run_can_be_resumed(tmp_path):
    """R-R7, R-R11: what had ended is safe, and the run is not green before its plan is done."""
    write(tmp_path, "os._exit(0)")
    slow = ("--concurrency", 1, "--sync", "always", "--quiet")
    assert proctor("run", "suite.yaml", *slow, cwd=tmp_path).returncode == 2
    run = only_run(tmp_path / "results")
    assert proctor("runs", "status", run, cwd=tmp_path).returncode == 2
    write(tmp_path, "pass")
    assert proctor("run", "--resume", run, "--quiet", cwd=tmp_path).returncode == 0


def test_standard_input_and_output_are_those_of_the_command(tmp_path):
    """R-R11: an agent may read what is typed, and the report goes where it went before."""
    write(tmp_path, "print(sys.stdin.readline(), file=sys.stderr)")
    done = proctor("test", "suite.yaml", "--format", "json", input="typed\n", cwd=tmp_path)
    assert json.loads(done.stdout)["totals"]["passed"] == 2
    assert "typed" in done.stderr


@pytest.mark.parametrize("send", [os.kill, os.killpg])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_work_once(tmp_path, number, send):
    """R-R6, R-R11: a signal to the command or its group stops the run in order, with its code."""
    write(tmp_path, "open('began', 'w').close(); time.sleep(600)")
    line = [sys.executable, "-m", "proctor", "run", "suite.yaml", "--quiet"]
    with subprocess.Popen(
        line, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        while not (tmp_path / "began").exists():
            assert process.poll() is None
            time.sleep(0.02)
        send(process.pid, number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert said.count("stopping") == 1
    # Not ended at once, as by a second signal: the trial that ran is recorded.
    trials = journal(only_run(tmp_path / "results"))
    assert {t["status"] for t in trials if t["case"] == "bad"} == {"cancelled"}


@pytest.mark.parametrize(
    ("events", "new"),
    [
        ("dd", [True, True]),  # to the worker alone, as the terminal does
        ("pdpd", [True, True]),  # to the parent alone
        ("dpdpdd", [True, False, True, False]),  # to the group: first directly
        ("pddpdd", [True, False, True, False]),  # to the group: first from the parent
        ("pdpdd", [True, True, False]),  # to the group, the first two copies merged
    ],
)
def test_copies_of_a_signal_are_told_from_signals(events, new):
    """R-R6: `p`: the parent is about to pass one on; `d`: one arrives."""
    count, passed = SignalCount(), bytearray(signal.NSIG)
    count.passed_on = passed
    found = []
    for event in events:
        if event == "p":
            passed[signal.SIGINT] += 1
        else:
            found.append(count.is_new(signal.SIGINT))
    assert found == new


def test_killing_the_command_ends_the_work(tmp_path):
    """R-R6: nothing goes on writing once the command is gone."""
    write(tmp_path, "open('began', 'w').write(str(os.getpid())); time.sleep(600)")
    line = [sys.executable, "-m", "proctor", "run", "suite.yaml", "--quiet"]
    with subprocess.Popen(line, cwd=tmp_path) as process:
        while not (tmp_path / "began").exists() or not (tmp_path / "began").read_text():
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    worker = int((tmp_path / "began").read_text())
    assert worker != process.pid
    until = time.monotonic() + 30
    while running(worker) and time.monotonic() < until:
        time.sleep(0.02)
    assert not running(worker)
    assert "dead" in proctor("runs", "status", "latest", cwd=tmp_path).stdout


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

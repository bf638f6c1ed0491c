"""Code of an agent that ends its process cannot decide the exit code of the command."""

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
    """R-R11: os._exit(0), a segfault or an abort fails its trial, and the report says how."""
    write(tmp_path, WAYS[way])
    done = proctor(command, "suite.yaml", "--concurrency", 1, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    said = {
        "exit": "ended with exit code 0",
        "segfault": "killed by SIGSEGV",
        "abort": "killed by SIGABRT",
    }
    if command == "test":
        assert said[way] in done.stdout
    else:
        trials = journal(only_run(tmp_path / "results"))
        found = {t["case"]: (t["status"], t.get("error", {}).get("message", "")) for t in trials}
        assert found["good"][0] == "passed"
        assert found["bad"][0] == "failed"
        assert said[way] in found["bad"][1]


@pytest.mark.parametrize("way", WAYS)
def test_code_that_ends_the_process_when_it_is_imported(tmp_path, way):
    """R-R11: nothing could be judged: 2, and a message; no run is left behind."""
    write(tmp_path, "pass")
    (tmp_path / "bots.py").write_text(f"import ctypes, os\n{WAYS[way]}\n")
    for command in ("run", "test"):
        done = proctor(command, "suite.yaml", cwd=tmp_path)
        assert done.returncode == 2
        assert "a worker was lost while it imported the agents" in done.stderr
    assert not (tmp_path / "results").exists()


def test_the_driver_imports_no_code_of_users(tmp_path):
    """R-R11: agents and checks run in other processes than the one that writes the run."""
    (tmp_path / "bots.py").write_text(
        "import os\nfrom pathlib import Path\n"
        "def note(what):\n"
        "    with Path('pids').open('a') as file: file.write(f'{what} {os.getpid()}\\n')\n"
        "note('import')\n"
        "def bot(input):\n    note('agent')\n    return 'yes'\n"
        "def check(ctx):\n    note('check')\n    return True\n"
    )
    suite = {"version": 1, "agent": "bots:bot", "cases": [{"input": "q", "checks": ["bots:check"]}]}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite))
    line = [sys.executable, "-m", "proctor", "run", "suite.yaml", "--trials", "2", "--quiet"]
    with subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        assert process.wait(60) == 0
    notes = [line.split() for line in (tmp_path / "pids").read_text().splitlines()]
    assert [what for what, _ in notes].count("import") == 1
    assert {what for what, _ in notes} == {"import", "agent", "check"}
    assert len({pid for _, pid in notes}) == 1
    assert str(process.pid) not in {pid for _, pid in notes}


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


def test_killing_the_command_ends_the_work(tmp_path):
    """R-R6: nothing goes on writing once the command is gone."""
    # Each trial adds a line: one that empties the file may be killed before it has written.
    write(tmp_path, "print(os.getpid(), file=open('began', 'a')); time.sleep(600)")
    line = [sys.executable, "-m", "proctor", "run", "suite.yaml", "--quiet"]
    with subprocess.Popen(line, cwd=tmp_path) as process:
        while not (tmp_path / "began").exists() or not (tmp_path / "began").read_text():
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    worker = int((tmp_path / "began").read_text().split()[0])
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


SCRIPT = """
import proctor
run = proctor.run("suite.yaml", trials=1, concurrency=1)
raise SystemExit(run.exit_code)
"""

TESTS = """
import pytest
from bots import bot

@pytest.mark.proctor
def test_marked():
    assert bot("bad") == "yes"

@pytest.mark.proctor(trials=2)
def test_repeated():
    assert bot("bad") == "yes"

def test_fixture(proctor):
    assert bot("bad") == "yes"
"""


def test_an_agent_cannot_end_a_script_or_a_test_session(tmp_path):
    """R-R11, R-Q6: where the agent runs in the process that reports, os._exit(0) is its failure."""
    write(tmp_path, "os._exit(0)")
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "test_bots.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nproctor_suites = suite.yaml\n")
    options = {"cwd": tmp_path, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "script.py"], check=False, **options)
    assert done.returncode == 1, done.stderr
    (trial,) = (t for t in journal(only_run(tmp_path / "results")) if t["case"] == "bad")
    assert (trial["status"], trial["category"]) == ("failed", "agent_error")
    assert "os._exit(0) was called" in trial["error"]["message"]
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(line, check=False, **options)
    assert done.returncode == 1, done.stdout
    # The good case of the suite passes; a repeated test that raised is an error.
    assert "3 failed, 1 passed, 1 error" in done.stdout


def test_processes_that_an_agent_forks_may_exit(tmp_path):
    """R-R11: the guard is for the process that reports, not for its children."""
    write(tmp_path, "pid = os.fork(); pid or os._exit(7); assert os.waitpid(pid, 0)[1] == 7 << 8")
    (tmp_path / "script.py").write_text(SCRIPT + "\n")
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, check=False)
    assert done.returncode == 0

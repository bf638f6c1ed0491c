"""Log files: enabled by an option, bounded in size, readable."""

import json
import logging
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import proctor
from run_parts import until, write_suite

from proctor.errors import ProctorError
from proctor.ops.logs import logging_to, truncate_log
from proctor.ops.schedule import delete_old_logs

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) [\w.]+: .+")


def test_a_log_never_exceeds_its_bounds(tmp_path: Path) -> None:
    """R-R6: files are rotated by size and their number is limited, however much is logged."""
    log = logging.getLogger("proctor.test")
    with logging_to(tmp_path / "x.log", max_bytes=2_000, backups=2):
        for number in range(1_000):
            log.info("line %d", number)
    kept = sorted(tmp_path.iterdir())
    assert [path.name for path in kept] == ["x.log", "x.log.1", "x.log.2"]
    assert all(path.stat().st_size <= 2_000 for path in kept)
    assert "line 999" in kept[0].read_text()
    log.info("after it is closed")
    assert "after" not in kept[0].read_text()


def test_a_record_is_a_line_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-T9: secrets, control characters and line breaks of agents do not reach a log."""
    log = logging.getLogger("proctor.test")
    with logging_to(tmp_path / "x.log"):
        log.info("key sk-proj-%s\x1b[31m\r\n2026-01-01T00:00:00.000Z INFO forged: x", "a1B2" * 10)
        try:
            raise ValueError("boom")
        except ValueError:
            log.exception("it broke")
        log.debug("not worth it")
    lines = (tmp_path / "x.log").read_text().splitlines()
    assert "a1B2a1B2" not in lines[0]
    assert "\x1b" not in lines[0]
    heads = [line for line in lines if LINE.fullmatch(line)]
    assert len(heads) == 2, "what an agent wrote begins no line of its own"
    assert any(line.strip() == "ValueError: boom" for line in lines)


@pytest.mark.parametrize("where", ["suite.yaml/x.log", "."])
def test_a_log_that_cannot_be_is_told_at_once(tmp_path: Path, where: str) -> None:
    """R-R11: a wrong place for a log is an error before anything runs."""
    suite = write_suite(tmp_path)
    with pytest.raises(ProctorError), logging_to(tmp_path / where):
        pass
    done = proctor("run", suite, "--log-file", tmp_path / where, cwd=tmp_path)
    assert done.returncode == 2
    assert not (tmp_path / "results").exists()


def test_a_run_is_told_in_its_log(tmp_path: Path) -> None:
    """R-R6: `proctor run --log-file` keeps how it began, each error and how it ended."""
    suite = write_suite(tmp_path, cases=3)
    (tmp_path / "bots.py").write_text(
        "def steady(input):\n"
        "    if input == 'word1': raise RuntimeError('the disk is on fire')\n"
        "    if input == 'word2': raise ConnectionError('the line is dead')\n"
        "    return input\n"
    )
    options = ("--trials", 1, "--quiet", "--log-file", "logs/run.log")
    assert proctor("run", suite, *options, cwd=tmp_path).returncode == 1
    lines = (tmp_path / "logs" / "run.log").read_text().splitlines()
    assert all(LINE.fullmatch(line) for line in lines)
    assert "3 trials planned" in lines[0]
    (by_agent,) = (line for line in lines if "the disk is on fire" in line)
    assert re.search(r" INFO .* failed in ", by_agent), "an error of the agent is its failure"
    (by_line,) = (line for line in lines if "the line is dead" in line)
    assert re.search(r" WARNING .* infra_error in ", by_line)
    assert "ended with 1" in lines[-1], "a failure counts more than what was not judged"
    assert not any("passed in" in line for line in lines), "that is for --log-level debug"
    proctor("run", suite, *options, "--log-level", "debug", cwd=tmp_path)
    assert "passed in" in (tmp_path / "logs" / "run.log").read_text()


def test_servers_log_too(tmp_path: Path) -> None:
    """R-Q7: `schedule serve --log-file` keeps what it says; so does `serve`."""
    write_suite(tmp_path)
    for command in (("schedule", "serve"), ("serve", "--port", "0")):
        log = tmp_path / f"{command[0]}.log"
        server = subprocess.Popen(
            [sys.executable, "-m", "proctor", *command, "--log-file", str(log)],
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(lambda: log.exists() and "\n" in log.read_text(), 60)  # noqa: B023 (now)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)
        assert LINE.match(log.read_text())


def test_output_of_another_process_is_truncate_log(tmp_path: Path) -> None:
    """R-Q7: a run that floods its log continues in the emptied file."""
    path = tmp_path / "x.log"
    flood = "import os, sys\nfor line in sys.stdin: os.write(1, b'x' * 99_999 + b'\\n')"
    with path.open("ab", buffering=0) as out:
        child = subprocess.Popen([sys.executable, "-c", flood], stdin=subprocess.PIPE, stdout=out)
    assert child.stdin is not None
    child.stdin.write(b"go\n" * 3)
    child.stdin.flush()
    until(lambda: path.stat().st_size == 300_000)
    assert not truncate_log(path)
    assert truncate_log(path, 200_000)
    child.communicate(b"go\n")
    assert path.stat().st_size == 100_000, "no hole where the cut was"
    assert path.with_name("x.log.1").stat().st_size == 300_000


# In a process of its own: open files and memory are those of a whole process, and one that runs
# many tests has others' among them.
DAYS = """
import gc, json, os, sys, tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from proctor.ops.schedule import Book, Schedule
from proctor.ops.schedule import Scheduler

class Clock:
    # Time passes only when the test moves it.
    moment = datetime(2026, 5, 4, tzinfo=UTC)

    def now(self):
        return self.moment

    def wait(self, seconds):
        self.moment += timedelta(seconds=seconds)
        return False

book, clock = Book(Path(sys.argv[1])), Clock()
for name in ("a", "b"):
    book.add(name, Schedule(target="absent.yaml", cron="0 2 * * *", added=clock.now()))
server = Scheduler(book, clock, lambda line: None)

def a_day():
    for _ in range(48):
        clock.wait(1800)
        server.tick()
        for each in server.running:
            each.process.wait(60)
        server.reap()

def held():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), tracemalloc.get_traced_memory()[0]

tracemalloc.start()
a_day()
first = held()
a_day()
a_day()
print(json.dumps([first, held()]))
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads Linux's /proc")
def test_serving_for_days_grows_nothing(tmp_path: Path) -> None:
    """R-Q7: over many looks and runs a server of schedules holds no more files and memory."""
    done = subprocess.run(
        [sys.executable, "-c", DAYS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (files, memory), (after, more) = json.loads(done.stdout)
    assert after <= files
    assert more - memory < 100_000
    assert json.loads((tmp_path / ".proctor" / "schedules.state.json").read_text())
    assert len(list((tmp_path / ".proctor" / "logs" / "a").iterdir())) == 3


def test_old_output_goes_with_what_was_cut_of_it(tmp_path: Path) -> None:
    """R-Q7: only the newest logs are kept, and nothing of the others stays behind."""
    for number in range(3):
        for end in ("", ".1"):
            (tmp_path / f"{number}.log{end}").touch()
    delete_old_logs(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.log", "2.log.1"]

"""Schedules: kept, served over restarts and crashes, never twice, never over one another."""

import json
import os
import signal
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from commands import proctor
from ops_parts import SECRET, sink
from run_parts import write_suite

from proctor.errors import ProctorError
from proctor.ops.schedule import MAX_LOGS, Book, Busy, Schedule, Scheduler, delete_old_logs, launch

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


class FakeClock:
    """A clock that advances when it waits, and stops after `until`."""

    def __init__(self, now: datetime, until: datetime | None = None) -> None:
        self.moment = now
        self.until = until

    def now(self) -> datetime:
        return self.moment

    def wait(self, seconds: float) -> bool:
        self.moment += timedelta(seconds=seconds)
        return self.until is not None and self.moment > self.until


class Served:
    """A server at a moment, with what it said and which runs it started."""

    def __init__(self, book: Book, now: datetime) -> None:
        self.clock = FakeClock(now)
        self.said: list[str] = []
        self.server = Scheduler(book, self.clock, self.said.append)

    def at(self, moment: datetime) -> int:
        """How many runs were started at this moment; they are left running."""
        before = len([line for line in self.said if "started" in line])
        self.clock.moment = moment
        self.server.tick()
        return len([line for line in self.said if "started" in line]) - before

    def join(self) -> None:
        for each in self.server.running:
            each.process.wait(60)
        self.server.reap()


@pytest.fixture
def book(tmp_path: Path) -> Book:
    write_suite(tmp_path, cases=1, agent="bots:instant")
    return Book(tmp_path)


def quick(**more: Any) -> Schedule:
    """A run that ends at once: its file is not there."""
    given = {"target": "absent.yaml", "cron": "0 * * * *", "added": NOON, **more}
    return Schedule(**given)


def slow(**more: Any) -> Schedule:
    """A run that continues until it is stopped."""
    return quick(target="suite.yaml", options=("--agent", "bots:wait", "--quiet"), **more)


def hours(number: float) -> datetime:
    return NOON + timedelta(hours=number)


def test_a_scheduled_run_is_a_run(book: Book) -> None:
    """R-Q7: when its time comes it is carried out, with its output in a log and its end noted."""
    book.add("nightly", quick(target="suite.yaml", options=("--results", "kept")))
    served = Served(book, NOON)
    assert served.at(hours(0.5)) == 0
    assert served.at(hours(1)) == 1
    assert served.at(hours(1) + timedelta(seconds=1)) == 0
    served.join()
    state = book.states()["nightly"]
    assert (state.exit_code, state.due, state.pid) == (0, hours(1), None)
    log = (book.project / str(state.log)).read_text()
    assert log.startswith("$ proctor run suite.yaml --results kept\n")
    assert "1 of 1 cell passed" in log
    assert len(list((book.project / "kept" / "suite").iterdir())) == 1


@pytest.mark.parametrize(("missed", "runs"), [("run", 1), ("skip", 0)])
def test_missed_times_are_seen_to_as_stated(book: Book, missed: Any, runs: int) -> None:
    """R-Q7: after a night without a server, one run for all missed times, or none."""
    book.add("hourly", quick(missed=missed))
    served = Served(book, NOON)
    assert served.at(hours(9.5)) == runs
    served.join()
    # Either way the next time is one like any other.
    assert served.at(hours(10)) == 1
    served.join()


def test_a_restart_neither_forgets_nor_repeats(book: Book) -> None:
    """R-Q7: what has been run is known to the next server."""
    book.add("hourly", quick())
    first = Served(book, NOON)
    assert first.at(hours(1)) == 1
    first.join()
    second = Served(Book(book.project), hours(1))
    assert second.at(hours(1) + timedelta(minutes=1)) == 0
    assert second.at(hours(2)) == 1
    second.join()


def test_a_clock_that_was_wrong_stops_nothing_for_long(book: Book) -> None:
    """R-Q7: a step back of seconds repeats no run; one of years does not freeze schedules."""
    book.add("hourly", quick())
    served = Served(book, NOON)
    assert served.at(hours(1)) == 1
    served.join()
    assert served.at(hours(1) - timedelta(seconds=5)) == 0
    assert served.at(hours(1)) == 0
    assert served.at(hours(24 * 365)) == 1
    served.join()
    assert served.at(hours(2)) == 0
    assert served.at(hours(3)) == 1
    served.join()


@pytest.mark.parametrize(("overlap", "runs"), [(False, 0), (True, 1)])
def test_no_overlap_unless_asked(book: Book, overlap: bool, runs: int) -> None:
    """R-Q7: a run that takes longer than the time between two keeps the next from starting."""
    book.add("slow", slow(overlap=overlap))
    served = Served(book, NOON)
    try:
        assert served.at(hours(1)) == 1
        assert served.at(hours(2)) == runs
        if not overlap:
            assert served.said[-1] == "slow: skipped: slow is still running"
            assert book.states()["slow"].skipped == "slow is still running"
    finally:
        served.server.stop()
    assert not book.running("slow")


def test_a_killed_server_leaves_its_run_and_the_next_does_not_double_it(book: Book) -> None:
    """R-Q7: the run holds its lock itself, so it is not started twice after a crash."""
    book.add("slow", slow())
    code = (
        "import sys, time; from pathlib import Path; from proctor.ops.schedule import Book\n"
        "from proctor.ops.schedule import launch\n"
        "book = Book(Path(sys.argv[1])); print(launch(book, 'slow', book.named('slow'),"
        " output=open(sys.argv[1] + '/out', 'wb', buffering=0)).pid, flush=True); time.sleep(600)"
    )
    argv = [sys.executable, "-c", code, str(book.project)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        child = int(server.stdout.readline())
        server.kill()
    try:
        assert book.running("slow")
        with pytest.raises(Busy):
            launch(book, "slow", book.named("slow"))
        served = Served(book, NOON)
        assert served.at(hours(1)) == 0
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_run_that_dies_is_told_of_and_ends_nothing_else(book: Book) -> None:
    """R-Q7: a killed process cannot notify; the server does, and serves on."""
    with sink() as server:
        book.add("slow", slow(notify=(server.address,), notify_on=("failure",)))
        served = Served(book, NOON)
        served.at(hours(1))
        [run] = served.server.running
        os.kill(run.process.pid, signal.SIGKILL)
        served.join()
        assert [each["title"] for each in server.messages] == ["proctor: slow died"]
        assert book.states()["slow"].exit_code == -signal.SIGKILL
        assert served.at(hours(2)) == 1
        served.server.stop()
    assert SECRET not in "".join(served.said)


def test_addresses_reach_the_run_and_nobody_else(book: Book, monkeypatch: Any) -> None:
    """R-Q7: a variable is put in when the run starts; log, state and command line are clean."""
    with sink() as server:
        monkeypatch.setenv("WHOM", server.address)
        book.add("nightly", quick(notify=("${WHOM}",), notify_on=("failure",)))
        served = Served(book, NOON)
        served.at(hours(1))
        served.join()
    assert [each["title"] for each in server.messages] == ["proctor: absent did not start"]
    files = [path for path in book.folder.rglob("*") if path.is_file()]
    assert SECRET not in "".join(path.read_text() for path in files)
    monkeypatch.delenv("WHOM")
    assert served.at(hours(2)) == 0
    assert "the variable WHOM of --notify is not set" in served.said[-1]


def test_serving_goes_from_time_to_time(book: Book) -> None:
    """R-Q7: the loop checks often enough to miss nothing, and stops on request."""
    book.add("a", quick(cron="*/30 * * * *"))
    served = Served(book, NOON)
    served.clock.until = hours(2.25)
    wait = served.clock.wait

    def passing(seconds: float) -> bool:
        served.join()
        return wait(seconds)

    served.clock.wait = passing  # type: ignore[method-assign]
    served.server.serve()
    assert len([line for line in served.said if "started" in line]) == 4


def test_two_servers_are_one_too_many(book: Book) -> None:
    """R-Q7: the second is refused, and says where the first is."""
    with book.serving():
        done = proctor("schedule", "serve", cwd=book.project)
    assert done.returncode == 2
    assert "another `proctor schedule serve` is already running" in done.stderr


def test_the_command_serves_until_told_to_stop(book: Book) -> None:
    """R-Q7: SIGTERM ends the server, and the run under way in its own orderly way."""
    book.add("slow", slow(added=datetime.now(UTC) - timedelta(hours=2)))
    argv = [sys.executable, "-m", "proctor", "schedule", "serve"]
    with subprocess.Popen(argv, cwd=book.project, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = [server.stderr.readline() for _ in range(2)]
        assert "slow: started" in said[1]
        listed = json.loads(proctor("schedule", "list", "--json", cwd=book.project).stdout)
        assert listed["schedules"][0]["running"] is True
        server.send_signal(signal.SIGTERM)
        assert server.stderr.read().endswith("stopped\n")
    assert server.returncode == 0
    assert not book.running("slow")
    assert book.states()["slow"].exit_code is not None


def test_from_the_command_line(tmp_path: Path) -> None:
    """R-Q7: add, list, run now, remove; addresses are never shown and the file is private."""
    write_suite(tmp_path, cases=1)
    (tmp_path / "proctor.yaml").write_text("results: kept\n")
    add = ["schedule", "add", "suite.yaml", "--cron", "30 2 * * *", "--tz", "Europe/Berlin"]
    with sink() as server:
        added = proctor(
            *add, "--name", "n", "--notify", server.address, "--", "--trials", "2", cwd=tmp_path
        )
        assert added.returncode == 0, added.stderr
        assert added.stdout.startswith("added n; next:\n  ")
        again = proctor(*add, "--name", "n", cwd=tmp_path)
        assert "the schedule 'n' already exists" in again.stderr
        done = proctor("schedule", "run", "n", cwd=tmp_path)
        assert done.returncode == 0
        assert "2 of 2 judged trials" in done.stdout
        assert len(server.messages) == 1
    listed = proctor("schedule", "list", cwd=tmp_path)
    assert "exit code 0" in listed.stdout
    as_json = proctor("schedule", "list", "--json", cwd=tmp_path)
    assert json.loads(as_json.stdout)["schedules"][0]["notify"] == ["json://…"]
    shown = "".join(each.stdout + each.stderr for each in (added, again, done, listed, as_json))
    assert SECRET not in shown
    kept = tmp_path / ".proctor" / "schedules.yaml"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert (tmp_path / ".proctor" / ".gitignore").read_text() == "*\n"
    assert proctor("schedule", "remove", "n", cwd=tmp_path).stdout == "removed n\n"
    assert "no schedules" in proctor("schedule", "list", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["suite.yaml", "--cron", "nonsense"], "not a cron expression"),
        (["absent.yaml", "--cron", "@daily"], "absent.yaml: no such file"),
        (["suite.yaml", "--cron", "@daily", "--name", "../x"], "cannot be the name"),
        (["suite.yaml", "--cron", "@daily", "--", "--trails", "2"], "No such option"),
        (["suite.yaml", "--cron", "@daily", "--", "--resume", "."], "--resume cannot be scheduled"),
        (["suite.yaml", "--cron", "@daily", "--", "--notify", "json://x"], "before the `--`"),
    ],
)
def test_mistakes_are_reported_when_it_is_added(
    tmp_path: Path, args: list[str], expected: str
) -> None:
    """R-Q7: not in the middle of the night."""
    write_suite(tmp_path, cases=1)
    done = proctor("schedule", "add", *args, cwd=tmp_path)
    assert done.returncode == 2
    assert expected.casefold() in done.stderr.casefold()
    assert not (tmp_path / ".proctor" / "schedules.yaml").exists()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("version: 1\nschedules: {a: {target: x, cron: '@daily', tz: Mars}}", "added"),
        ("version: 2\nschedules: {}", "version"),
        ("[", "not a file of schedules"),
        ("version: 1\nschedules: {a: {target: x, crno: '@daily'}}", "unknown key 'crno'"),
        (
            "version: 1\nschedules: {a: {target: x, cron: '1', added: 2026-01-01T00:00:00Z}}",
            "schedules.yaml: a: not a cron expression",
        ),
    ],
)
def test_a_file_edited_wrongly_is_named(book: Book, content: str, expected: str) -> None:
    """R-Q7: the file may be edited by hand; what is wrong is said with its place."""
    book.folder.mkdir()
    (book.folder / "schedules.yaml").write_text(content)
    with pytest.raises(ProctorError) as error:
        book.schedules()
    assert expected in str(error.value)


def test_many_processes_lose_nothing(book: Book) -> None:
    """R-Q7: schedules added at the same time are all there."""
    code = (
        "import sys; from pathlib import Path; from datetime import datetime, UTC\n"
        "from proctor.ops.schedule import Book, Schedule\n"
        "for i in range(5):\n"
        "    Book(Path(sys.argv[1])).add(f'{sys.argv[2]}-{i}', Schedule(target='x',"
        " cron='@daily', added=datetime.now(UTC)))\n"
    )
    argv = [sys.executable, "-c", code, str(book.project)]
    writers = [subprocess.Popen([*argv, f"w{number}"]) for number in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert len(book.schedules()) == 15


def test_logs_do_not_pile_up(tmp_path: Path) -> None:
    """R-Q7: the newest are kept."""
    names = [f"20260101T0000{number:02}Z.log" for number in range(MAX_LOGS + 5)]
    for name in names:
        (tmp_path / name).touch()
    delete_old_logs(tmp_path, MAX_LOGS)
    assert sorted(path.name for path in tmp_path.iterdir()) == names[5:]

"""The file that says how a run is doing, watched as other tools would."""

import json
import os
import signal
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import proctor
from run_parts import Children, only_run, until, write_suite

import proctor as api
from proctor.runs.heartbeat import (
    EVERY,
    MISSED,
    NAME,
    Beat,
    Heart,
    Life,
    look_at,
    read_beat,
    write_beat,
)
from proctor.runs.trial import Spending, TrialStatus


def beat_of(run: Path) -> dict[str, Any]:
    return json.loads((run / NAME).read_text())


def test_a_run_tells_of_itself_to_its_end(tmp_path: Path) -> None:
    """R-R6: at the end the file says that it ended and what came of it."""
    suite = write_suite(tmp_path, cases=2)
    before = datetime.now(UTC)
    run = api.run(suite, trials=3, results=tmp_path / "r")
    beat = beat_of(run.path)
    assert (beat["state"], beat["reason"]) == ("ended", None)
    assert (beat["planned"], beat["done"], beat["running"]) == (6, 6, 0)
    assert beat["passed"] == run.totals.passed == 6
    assert beat["failed"] == beat["errors"] == 0
    assert beat["run_id"] == run.run_id
    assert (beat["pid"], beat["host"]) == (os.getpid(), socket.gethostname())
    assert beat["cost_usd"] is None, "nothing is known to have cost anything"
    assert beat["eta_s"] is None
    assert before <= datetime.fromisoformat(beat["at"]) <= datetime.now(UTC)
    assert look_at(run.path).life == Life.ENDED


def test_a_run_under_way_is_alive_and_a_killed_one_dead(tmp_path: Path) -> None:
    """R-R6, R-R9: `proctor runs status` says alive, dead once it is killed, ended once resumed; it
    counts what is in the journal, though the beats are five seconds apart."""
    suite = write_suite(tmp_path, agent="bots:wait", cases=2)
    (tmp_path / "bots.py").write_text(
        "import asyncio\nasync def wait(input):\n"
        "    if input == 'word1': await asyncio.sleep(600)\n    return input\n"
    )
    children = Children(tmp_path / "z")
    pid = children.start("run", suite, "--trials", 1, "--results", tmp_path / "r", "--quiet")
    until(lambda: len(list((tmp_path / "r").glob(f"*/*/{NAME}"))) == 1)
    run = only_run(tmp_path / "r")
    beat = beat_of(run)
    assert beat["state"] == "running"
    assert beat["pid"] == pid
    assert look_at(run).life == Life.ALIVE
    journal = run / "trials.jsonl"
    until(lambda: journal.exists() and b"\n" in journal.read_bytes())
    seen = proctor("runs", "status", run, "--json")
    assert seen.returncode == 0, seen.stderr
    (status,) = json.loads(seen.stdout)["runs"]
    assert status["life"] == "alive"
    assert [status["beat"][name] for name in ("planned", "done", "passed")] == [2, 1, 1]
    os.kill(pid, signal.SIGKILL)
    children.wait()
    until(lambda: look_at(run).life == Life.DEAD)  # it dies with its parent, a moment later
    dead = proctor("runs", "status", "--results", tmp_path / "r")
    assert dead.returncode == 2
    assert "dead" in dead.stdout
    assert "--resume" in dead.stderr
    (tmp_path / "bots.py").write_text("async def wait(input): return input")
    assert children.run("run", "--resume", run) == 0
    assert beat_of(run)["state"] == "ended"
    assert proctor("runs", "status", run).returncode == 0


def test_a_stopped_run_says_why(tmp_path: Path) -> None:
    """R-R8: a run that a limit ended is stopped, with the reason; what is left is not running."""
    run = api.run(write_suite(tmp_path), trials=4, limits={"max_trials": 5}, results=tmp_path / "r")
    beat = beat_of(run.path)
    assert beat["state"] == "stopped"
    assert "trial limit" in beat["reason"]
    assert (beat["planned"], beat["done"], beat["running"]) == (12, 5, 0)


def test_a_run_that_breaks_says_so(tmp_path: Path) -> None:
    """R-R6: an error of ours leaves `failed`, not a run that seems to go on."""

    class Broken:
        def planned(self, total: int, kept: object) -> None:
            raise RuntimeError("an observer that breaks")

    with pytest.raises(RuntimeError):
        api.run(write_suite(tmp_path), results=tmp_path / "r", observer=Broken())
    beat = beat_of(only_run(tmp_path / "r"))
    assert (beat["state"], beat["reason"]) == ("failed", "RuntimeError")


def test_beats_count_what_is_done_meanwhile(tmp_path: Path) -> None:
    """R-R6: done, failed, rate and time left are those of the moment, kept trials included."""
    suite = write_suite(tmp_path, cases=2)
    run = api.run(suite, trials=2, limits={"max_trials": 1}, results=tmp_path / "r")

    now = 1_000_000.0

    class Session:
        planned, running, stopped = 10, 2, None
        budget = SimpleNamespace(spent=Spending(cost_usd=0.5, tokens=70, unpriced_calls=1))
        counts = dict.fromkeys(TrialStatus, 1) | {TrialStatus.NOT_JUDGED: 0}
        kept, skipped = 1, 1

    with Heart(run.path, "id", every=600, clock=lambda: now) as heart:
        heart.session = Session()  # pyright: ignore[reportAttributeAccessIssue]
        now += 8.0
        heart.beat()
        beat = read_beat(run.path)
    assert beat is not None
    assert (beat.done, beat.planned, beat.running, beat.not_needed) == (5, 10, 2, 1)
    assert (beat.passed, beat.failed, beat.errors, beat.cancelled) == (1, 2, 1, 1)
    assert (beat.cost_usd, beat.tokens, beat.unpriced_calls) == (0.5, 70, 1)
    assert beat.rate_per_s == 4 / 8, "the kept one is not of this sitting"
    assert beat.eta_s == 4 / beat.rate_per_s


@pytest.mark.parametrize(
    ("silent", "host", "life"),
    [
        (EVERY, "elsewhere", Life.ALIVE),
        (EVERY * MISSED + 1, "elsewhere", Life.STALLED),
        (EVERY * MISSED + 1, None, Life.STALLED),
    ],
)
def test_silence_is_a_stall(tmp_path: Path, silent: float, host: str | None, life: Life) -> None:
    """R-R6: beats that stay away are a stall since the last one."""
    now = datetime.now(UTC)
    beat = Beat(
        run_id="x",
        state="running",
        pid=os.getpid() if host is None else 2**22 + 1,
        host=host or socket.gethostname(),
        began=now - timedelta(hours=1),
        at=now - timedelta(seconds=silent),
        every_s=EVERY,
    )
    write_beat(tmp_path, beat)
    sign = look_at(tmp_path, now)
    assert sign.life == life
    if life == Life.STALLED:
        assert sign.since == beat.at


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"state":"running"}'])
def test_what_is_no_beat_is_unknown(tmp_path: Path, content: bytes) -> None:
    """R-R6: a file that cannot be read says nothing, and breaks nothing."""
    (tmp_path / NAME).write_bytes(content)
    assert look_at(tmp_path).life == Life.UNKNOWN
    (tmp_path / "results.parquet").touch()
    assert look_at(tmp_path).life == Life.ENDED

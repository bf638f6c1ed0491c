"""The list of runs says how those under way are doing."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import httpx
from msgspec.structs import replace
from run_parts import write_suite
from server_parts import serving

import proctor as api
from proctor.runs.heartbeat import read_beat, write_beat
from proctor.server.app import Service


def test_the_list_of_runs_says_which_are_dead(tmp_path: Path) -> None:
    """R-D7, R-R6: stopped by a limit is stopped; a run whose process is gone is dead."""
    run = api.run(write_suite(tmp_path), trials=2, limits={"max_trials": 1}, results=tmp_path / "r")
    with serving(Service(results=tmp_path / "r")) as running:
        assert '<span class="chip odd">stopped</span>' in httpx.get(f"{running.url}/runs").text
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        beat = read_beat(run.path)
        assert beat is not None
        write_beat(run.path, replace(beat, state="running", pid=gone.pid))
        assert '<span class="chip odd">dead</span>' in httpx.get(f"{running.url}/runs").text
        cell = f"{running.url}/runs/suite/{run.path.name}/cell?case=case-1&agent=bots:steady"
        assert "</span> not run</span>" in httpx.get(cell).text


def test_a_run_in_progress_has_no_verdict_yet(tmp_path: Path) -> None:
    """R-N12: a few trials are neither a failure nor a change; a dead run says how to go on."""
    run = api.run(write_suite(tmp_path), trials=2, limits={"max_trials": 1}, results=tmp_path / "r")
    beat = read_beat(run.path)
    assert beat is not None
    active = replace(beat, state="running", pid=os.getpid(), at=datetime.now(UTC))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with serving(Service(results=tmp_path / "r")) as running:
        page, history = f"{running.url}/runs/suite/{run.path.name}", f"{running.url}/history/suite"
        assert f'href="/runs/suite/{run.path.name}"' in httpx.get(history).text
        write_beat(run.path, active)
        shown = httpx.get(page).text
        assert "</span> RUNNING</p>" in shown
        assert "final when the run has ended" in shown
        assert "proctor run --resume" not in shown
        assert "is added when it ends" in httpx.get(history).text
        listed = httpx.get(f"{running.url}/runs").text
        assert f"{active.began.astimezone(UTC):%Y-%m-%d %H:%M:%S}" in listed
        write_beat(run.path, replace(active, pid=gone.pid))
        shown = httpx.get(page).text
        assert f"proctor run --resume suite/{run.path.name}" in shown
        assert "RUNNING" not in shown


def test_the_list_reads_a_run_again_only_when_it_changed(tmp_path: Path) -> None:
    """R-D7: thousands of finished runs are not read at every load of the list."""
    run = api.run(write_suite(tmp_path), trials=2, results=tmp_path / "r")
    journal = run.path / "trials.jsonl"
    written, lines = journal.stat(), journal.read_bytes()
    with serving(Service(results=tmp_path / "r")) as running:
        before = httpx.get(f"{running.url}/runs").text
        # The same file as far as the file system tells: what it holds must not be looked at.
        with journal.open("r+b") as file:
            file.write(b" " * (len(lines) - 1))
        os.utime(journal, ns=(written.st_atime_ns, written.st_mtime_ns))
        assert httpx.get(f"{running.url}/runs").text == before
        journal.write_bytes(lines[: lines.index(b"\n") + 1])
        assert httpx.get(f"{running.url}/runs").text != before


def test_an_open_page_follows_the_heartbeat_of_an_active_run(tmp_path: Path) -> None:
    """R-D7: a poll does not read the journal while the run is active; its end is from the run."""
    run = api.run(write_suite(tmp_path), trials=2, results=tmp_path / "r")
    beat = read_beat(run.path)
    assert beat is not None
    now = datetime.now(UTC)
    active = replace(beat, state="running", pid=os.getpid(), at=now, done=1, passed=1)
    lines = (run.path / "trials.jsonl").read_bytes()
    with serving(Service(results=tmp_path / "r")) as running:
        place = f"{running.url}/runs/suite/{run.path.name}/progress"
        write_beat(run.path, active)
        (run.path / "trials.jsonl").write_bytes(b"not a journal\n")
        told = httpx.get(place).json()
        assert (told["done"], told["passed"], told["ended"]) == (1, 1, False)
        (run.path / "trials.jsonl").write_bytes(lines)
        write_beat(run.path, beat)
        told = httpx.get(place).json()
        assert (told["done"], told["planned"], told["ended"]) == (
            run.totals.trials,
            told["done"],
            True,
        )

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cloud_parts import Proxy, objects
from commands import proctor
from run_parts import journal, only_run, rows, until, write_suite

from proctor.runs.remote import transfer

TO = "s3://bucket/kept"

GATED = '''
import asyncio, pathlib
from proctor import tool

@tool
def look_up(word): return word

async def gated(input, seed):
    """Answers the first cases; the others wait until somebody opens the gate."""
    look_up(input)
    while input not in ("word0", "word1", "word2") and not pathlib.Path("go").exists():
        await asyncio.sleep(0.05)
    return input
'''


def gated_suite(folder: Path) -> Path:
    path = write_suite(folder, agent="gate:gated", cases=6, trials=1)
    (folder / "gate.py").write_text(GATED)
    return path


Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts runs; none outlives the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(folder: Path, *args: Any) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "proctor", "run", *map(str, args)]
        quiet = subprocess.DEVNULL
        started.append(subprocess.Popen(line, cwd=folder, stdout=quiet, stderr=subprocess.PIPE))
        return started[-1]

    yield begin
    for child in started:
        child.kill()
        child.communicate()


def killed(child: subprocess.Popen[bytes]) -> None:
    """Kill a command; return once its worker, which holds the other end of the pipe, is gone."""
    child.kill()
    child.communicate(timeout=60)


def manifest(server: int) -> dict[str, Any]:
    (found,) = (v for k, v in objects(server).items() if k.endswith("/_manifest_.json"))
    return json.loads(found)


def shipped_lines(server: int) -> int:
    pieces = (v for k, v in objects(server).items() if "_pieces_/trials.jsonl" in k)
    return sum(piece.count(b"\n") for piece in pieces)


def test_a_run_to_an_address_is_whole_there(tmp_path: Path, s3: Proxy, server: int) -> None:
    """R-D6: `--results s3://…` keeps the run here and, complete and verifiable, there."""
    suite = write_suite(tmp_path, trials=2)
    done = proctor("run", suite, "--results", TO, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = only_run(tmp_path / "results")
    assert manifest(server)["state"] == "complete"
    assert not any("_pieces_" in key for key in objects(server))
    assert proctor("runs", "sync", TO, "--verify").returncode == 0
    assert proctor("runs", "sync", TO, tmp_path / "back").returncode == 0
    assert rows(only_run(tmp_path / "back")) == rows(run)


def test_another_machine_gets_another_number(tmp_path: Path, s3: Proxy, server: int) -> None:
    """R-D6: runs that begin on machines that do not know each other never share a name."""
    for machine in ("one", "two"):
        suite = write_suite(tmp_path / machine)
        done = proctor("run", suite, "--results", TO, cwd=tmp_path / machine)
        assert done.returncode == 0, done.stderr
    names = {k.split("/")[2] for k in objects(server) if k.endswith("/_manifest_.json")}
    assert {name[-4:] for name in names} == {"_001", "_002"}
    assert only_run(tmp_path / "two" / "results").name.endswith("_002")


@pytest.mark.slow
def test_what_was_shipped_outlives_the_machine(
    tmp_path: Path, s3: Proxy, server: int, start: Start
) -> None:
    """R-D6: after SIGKILL the store gives back the finished trials; --resume does the others."""
    home, other = tmp_path / "home", tmp_path / "other"
    suite = gated_suite(home)
    child = start(home, suite, "--results", TO, "--concurrency", 6)
    until(lambda: shipped_lines(server) == 3)
    killed(child)
    assert manifest(server)["state"] == "running"
    gated_suite(other)
    brought = proctor("runs", "sync", TO, "results", cwd=other)
    assert brought.returncode == 0, brought.stderr
    assert "--resume" in brought.stderr
    run = only_run(other / "results")
    before = journal(run)
    assert len(before) == 3
    spec = yaml.safe_load((run / "_spec_.yaml").read_text())
    assert spec["run_id"] == manifest(server)["run_id"]
    traces = proctor("trace", "show", run / "traces")
    assert traces.returncode == 0, traces.stderr
    (home / "go").touch()
    (other / "go").touch()
    resumed = proctor("run", "--resume", run, cwd=other)
    assert resumed.returncode == 0, resumed.stderr
    assert journal(run)[:3] == before
    assert len(rows(run)) == 6
    assert proctor("runs", "sync", run, TO, "--verify", cwd=other).returncode == 0
    assert manifest(server)["state"] == "complete"
    assert not any("_pieces_" in key for key in objects(server))


@pytest.mark.slow
def test_a_resumed_run_goes_on_shipping(
    tmp_path: Path, s3: Proxy, server: int, start: Start
) -> None:
    """R-D6: a run that was killed and resumed where it was ends complete at the store."""
    child = start(tmp_path, gated_suite(tmp_path), "--results", TO, "--concurrency", 6)
    until(lambda: shipped_lines(server) == 3)
    killed(child)
    (tmp_path / "go").touch()
    run = only_run(tmp_path / "results")
    assert proctor("run", "--resume", run, cwd=tmp_path).returncode == 0
    assert manifest(server)["state"] == "complete"
    assert proctor("runs", "sync", TO, "--verify").returncode == 0


TALKATIVE = '''
import asyncio, pathlib, random

async def talk(input, seed):
    """Answers the first cases at length; the others wait until somebody opens the gate."""
    while int(input.removeprefix("word")) >= 9 and not pathlib.Path("go").exists():
        await asyncio.sleep(0.05)
    return input + random.Random(seed).randbytes(45_000).hex()
'''


@pytest.mark.slow
def test_after_a_kill_no_byte_of_the_journal_is_sent_twice(
    tmp_path: Path, s3: Proxy, server: int, start: Start
) -> None:
    """R-D6, R-R7: what was shipped before SIGKILL stays; the resumed run sends the rest of it."""
    # Long answers are cut in the journal, and a short journal is sent whole in the end.
    suite = write_suite(tmp_path, agent="talkative:talk", cases=18, trials=1)
    (tmp_path / "talkative.py").write_text(TALKATIVE)
    child = start(tmp_path, suite, "--results", TO, "--concurrency", 18)
    until(lambda: shipped_lines(server) == 9)
    killed(child)
    before = {k: v for k, v in objects(server).items() if "_pieces_/trials.jsonl" in k}
    (tmp_path / "go").touch()
    run = only_run(tmp_path / "results")
    s3.requests.clear()
    done = proctor("run", "--resume", run, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(journal(run)) == 18
    assert (run / "trials.jsonl").stat().st_size > transfer.WHOLE
    assert {k: v for k, v in objects(server).items() if k in before} == before
    again = sum(r.size for r in s3.requests if r.method == "PUT" and "trials.jsonl" in r.path)
    shipped = sum(map(len, before.values()))
    assert again == (run / "trials.jsonl").stat().st_size - shipped
    assert proctor("runs", "sync", TO, "--verify").returncode == 0


@pytest.mark.slow
def test_a_store_that_goes_away_does_not_disturb_the_run(
    tmp_path: Path, s3: Proxy, server: int, start: Start
) -> None:
    """R-D6: the run ends as it would have; exit code 2 and one line say what is missing there."""
    child = start(tmp_path, gated_suite(tmp_path), "--results", TO, "--concurrency", 6)
    until(lambda: shipped_lines(server) == 3)
    s3.trouble = lambda request: "500" if request.method in ("GET", "PUT", "HEAD") else None
    (tmp_path / "go").touch()
    _, told = child.communicate(timeout=120)
    assert child.returncode == 2
    assert b"complete here but not at s3://bucket/kept/" in told
    run = only_run(tmp_path / "results")
    assert len(rows(run)) == 6
    s3.trouble = lambda request: None
    assert proctor("runs", "sync", run, TO, "--verify", cwd=tmp_path).returncode == 0


def test_a_store_that_cannot_be_reached_stops_a_run_before_it_costs(
    tmp_path: Path, s3: Proxy
) -> None:
    """R-D6: a bucket that is not there is told before the first trial, and leaves nothing."""
    suite = write_suite(tmp_path)
    done = proctor("run", suite, "--results", "s3://nosuchbucket/x", cwd=tmp_path)
    assert done.returncode == 2
    assert "s3://nosuchbucket/x" in done.stderr
    assert not list((tmp_path / "results").glob("*/*"))

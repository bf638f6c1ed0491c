"""Commands that look at single runs read them where they are."""

import asyncio
import json
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cloud_parts import Proxy
from result_parts import append, finish, trial, write_run
from run_parts import until

from proctor.cli.main import run as command
from proctor.runs import annotations, audit
from proctor.runs.folder import RunFolder
from proctor.runs.heartbeat import Beat, State, write_beat
from proctor.runs.remote.upload import Destination, Uploader, reserve_name

TO = "s3://bucket/kept"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder without runs, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def made(root: Path, passes: int, name: str = "shop") -> RunFolder:
    """A finished run of two agents, the second of which passes as often as is said."""
    cases = ("greet", "refund", "stock")
    good = [trial(case, "steady", index=i) for case in cases for i in range(8)]
    status = ["passed" if i < passes else "failed" for i in range(8)]
    other = [trial(c, "other", index=i, status=status[i]) for c in cases for i in range(8)]
    folder = write_run(root, [*good, *other], name=name)
    folder.traces_path.mkdir()
    (folder.traces_path / "000001.jsonl.zst").write_bytes(b"never read by these")
    return folder


@pytest.fixture
def runs(tmp_path: Path, s3: Proxy) -> tuple[RunFolder, RunFolder]:
    """A baseline, tagged so, and a worse run after it; both at the store as well."""
    first, second = (made(tmp_path / "results", passes) for passes in (8, 0))
    annotations.tag(first.path, "baseline")
    assert command(["runs", "sync", str(tmp_path / "results"), TO]) == 0
    s3.requests.clear()
    return first, second


def told(capsys: pytest.CaptureFixture[str], *args: object, code: int = 0) -> str:
    capsys.readouterr()
    found = command([str(each) for each in args])
    said = capsys.readouterr()
    assert found == code, said.err
    return said.out


def fetched(s3: Proxy) -> list[str]:
    keys = (r.path.partition("?")[0] for r in s3.requests if r.method == "GET")
    names = (key.rpartition("/")[2] for key in keys)
    return sorted(name for name in names if name not in ("bucket", "_manifest_.json"))


def at(run: RunFolder) -> str:
    return f"{TO}/shop/{run.path.name}"


def test_leaderboard_reads_the_run_that_is_meant(
    runs: tuple[RunFolder, RunFolder],
    tmp_path: Path,
    s3: Proxy,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """R-D6: the answer is that of the folder; of all runs only the one meant is fetched, once."""
    local = told(capsys, "leaderboard", "--results", tmp_path / "results")
    assert told(capsys, "leaderboard", "--results", TO) == local
    assert fetched(s3).count("trials.jsonl") == 1
    assert not {"results.parquet", "000001.jsonl.zst"} & set(fetched(s3))
    s3.requests.clear()
    assert told(capsys, "leaderboard", "--results", TO) == local
    assert fetched(s3) == []
    document = json.loads(told(capsys, "leaderboard", "--results", TO, "--json"))
    assert document["runs"] == [at(runs[1])]
    assert {row["run"] for row in document["rows"]} == {at(runs[1])}


def test_a_run_by_its_address(
    runs: tuple[RunFolder, RunFolder], s3: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-D6: a run is named by its address as well, and no other run is looked at."""
    local = told(capsys, "compare", *(run.path for run in runs))
    assert told(capsys, "compare", at(runs[0]), runs[1].path) == local
    asked = {request.path.partition("?")[0] for request in s3.requests}
    assert not any(runs[1].path.name in path for path in asked)
    planned = told(capsys, "power", "--effect", "0.1", "--from", runs[0].path)
    assert told(capsys, "power", "--effect", "0.1", "--from", at(runs[0])) == planned
    assert command(["leaderboard", "other", "--results", TO]) == 2
    assert f"{TO} has baseline, shop/" in capsys.readouterr().err
    assert command(["leaderboard", TO]) == 2
    assert f"name one, such as {at(runs[0])}" in capsys.readouterr().err


def test_what_has_come_since_is_seen(
    runs: tuple[RunFolder, RunFolder],
    tmp_path: Path,
    s3: Proxy,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """R-D6: a journal that was read before and has grown at the store is read again."""
    before = told(capsys, "leaderboard", at(runs[1]))
    append(runs[1], [trial("greet", "other", index=8)])
    finish(runs[1])
    assert command(["runs", "sync", str(runs[1].path), TO]) == 0
    after = told(capsys, "leaderboard", at(runs[1]))
    assert after != before
    assert after == told(capsys, "leaderboard", runs[1].path)


def test_gate_judges_runs_where_they_are(
    runs: tuple[RunFolder, RunFolder],
    tmp_path: Path,
    here: Path,
    s3: Proxy,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """R-D6, R-Q2, R-D5: tags and `latest` mean runs there; verdict and record are here."""
    line = ("gate", "latest", "--against", "baseline", "--json")
    local = json.loads(told(capsys, *line, "--results", tmp_path / "results", code=1))
    found = json.loads(told(capsys, *line, "--results", TO, code=1))
    assert (found["verdict"], found["reason"]) == (local["verdict"], local["reason"])
    assert found["candidate"]["path"] == at(runs[1])
    assert found["baseline"]["path"] == at(runs[0])
    (entry,) = audit.entries(here / "results")
    assert (entry.command, entry.run, entry.exit_code) == ("gate", at(runs[1]), 1)
    assert not list((tmp_path / "cache").rglob(audit.FILE))
    assert "trials.jsonl" in fetched(s3)


def test_gate_holds_a_run_here_against_one_there(
    runs: tuple[RunFolder, RunFolder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-D6, R-Q2: the baseline of a CI job may be at the store while its own run is here."""
    mine = made(tmp_path / "mine", 0)
    line = ("gate", "latest", "--results", tmp_path / "mine", "--against", at(runs[0]))
    assert "REGRESSION" in told(capsys, *line, code=1)
    (entry,) = audit.entries(tmp_path / "mine")
    assert entry.run == str(mine.path)
    assert command([*map(str, line), "--inconclusive", "extend"]) == 2
    assert "a run at an address cannot be extended" in capsys.readouterr().err


def test_commands_at_once_wait_for_each_other(
    runs: tuple[RunFolder, RunFolder], tmp_path: Path, s3: Proxy
) -> None:
    """R-D6: while one fetches, another does not answer without the runs that are being fetched."""
    if not Path("/proc/locks").exists():
        pytest.skip("who waits for a lock is told by Linux")
    key = f"{runs[0].path.name}/_spec_.yaml"
    s3.trouble = lambda r: "stall" if r.path.endswith(key) and r.time == 1 else None
    line = [sys.executable, "-m", "proctor", "leaderboard", "--results", TO]
    pipe = subprocess.PIPE
    first = subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True)
    assert s3.stalled.wait(60)
    second = subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True)

    def waits() -> bool:
        held = [each.split() for each in Path("/proc/locks").read_text().splitlines()]
        return any("->" in words and str(second.pid) in words for words in held)

    until(lambda: waits() or second.poll() is not None, 60)
    s3.trouble = lambda r: None
    s3.released.set()
    (told, said), (also_told, also_said) = (c.communicate(timeout=120) for c in (first, second))
    assert (first.returncode, second.returncode) == (0, 0), said + also_said
    assert told == also_told
    assert said == also_said == ""


class Watched:
    """A run that goes on somewhere, and ships its beats."""

    def __init__(self, root: Path) -> None:
        self.folder = write_run(root, [trial()], name="field", finished=False)
        self.to = Destination(TO, f"field/{self.folder.path.name}")
        assert reserve_name(self.folder, self.to)
        self.uploader = Uploader(self.folder, self.to, pytest.fail)

    def beat(self, state: State = "running", *, host: str = "elsewhere", ago: float = 0.0) -> None:
        at = datetime.now(UTC) - timedelta(seconds=ago)
        run_id = str(self.folder.read_spec()["run_id"])
        more: dict[str, Any] = {"run_id": run_id, "pid": 2**22 + 1, "began": at, "every_s": 5.0}
        write_beat(
            self.folder.path,
            Beat(state=state, host=host, at=at, planned=6, done=1, passed=1, **more),
        )

    def ship(self) -> None:
        asyncio.run(self.uploader.upload_round())


def test_status_of_runs_that_ship(
    runs: tuple[RunFolder, RunFolder],
    tmp_path: Path,
    s3: Proxy,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """R-D6, R-R6: a run on another machine is watched at the store, from its beats alone."""
    watched = Watched(tmp_path / "elsewhere")
    watched.beat()
    watched.ship()
    s3.requests.clear()
    name = watched.to.name
    assert told(capsys, "runs", "status", "--results", TO).startswith(f"{name}: alive since")
    assert not {"trials.jsonl", "results.parquet"} & set(fetched(s3))
    assert not any("_pieces_/trials.jsonl/" in r.path for r in s3.requests)
    watched.beat(ago=3600)
    watched.ship()
    document = json.loads(told(capsys, "runs", "status", "--results", TO, "--json", code=2))
    (shown,) = document["runs"]
    assert (shown["run"], shown["path"], shown["life"]) == (name, watched.to.run, "stalled")
    watched.beat(host=socket.gethostname())
    watched.ship()
    assert command(["runs", "status", watched.to.run]) == 2
    said = capsys.readouterr()
    assert said.out.startswith(f"{name}: dead since")
    brought = f"hint: proctor runs sync {watched.to.run} results"
    assert f"{brought}, then proctor run --resume results/{name}" in said.err


def test_status_of_runs_that_have_ended(
    runs: tuple[RunFolder, RunFolder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-D6: what has ended is not under way there either, whether or not it left a beat."""
    watched = Watched(tmp_path / "elsewhere")
    watched.ship()
    watched.beat("ended")
    finish(watched.folder)
    watched.uploader.finish()
    assert told(capsys, "runs", "status", "--results", TO) == "no run in progress\n"
    assert told(capsys, "runs", "status", at(runs[0])).endswith(": ended\n")
    assert told(capsys, "runs", "status", watched.to.run).startswith(
        f"{watched.to.name}: ended since"
    )

from pathlib import Path

import pytest
from cloud_parts import Proxy, objects, overwrite
from result_parts import append, finish, trial, write_run

from proctor.cli.main import run as command
from proctor.runs.folder import RunFolder
from proctor.runs.remote.upload import Destination, Uploader, reserve_name

TO = "s3://bucket/kept"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def made(tmp_path: Path) -> RunFolder:
    trials = [trial(index=i, status="passed" if i < 7 else "failed") for i in range(10)]
    folder = write_run(tmp_path / "results", trials, name="shop")
    folder.traces_path.mkdir()
    (folder.traces_path / "000001.jsonl.zst").write_bytes(b"never read by a query")
    return folder


def answer(capsys: pytest.CaptureFixture[str], root: object) -> str:
    capsys.readouterr()
    assert command(["results", "--results", str(root), "--format", "json"]) == 0
    return capsys.readouterr().out


def fetched(s3: Proxy) -> set[str]:
    keys = (r.path.partition("?")[0] for r in s3.requests if r.method == "GET")
    return {key.rpartition("/")[2] for key in keys} - {"bucket", "_manifest_.json"}


def test_queries_read_runs_where_they_are(
    made: RunFolder, s3: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-D6: `--results s3://…` answers as the folder does, reads columns only, and those once."""
    assert command(["runs", "sync", str(made.path), TO]) == 0
    s3.requests.clear()
    here = answer(capsys, made.path.parent.parent)
    assert answer(capsys, TO) == here
    assert fetched(s3) == {"results.parquet", "facts.json", "checksums.json", "_spec_.yaml"}
    s3.requests.clear()
    assert answer(capsys, TO) == here
    assert fetched(s3) == set()


def test_queries_see_what_has_changed(
    made: RunFolder, s3: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-D6: a run that was sent again is read again."""
    assert command(["runs", "sync", str(made.path), TO]) == 0
    before = answer(capsys, TO)
    append(made, [trial(index=10)])
    finish(made)
    assert command(["runs", "sync", str(made.path), TO]) == 0
    after = answer(capsys, TO)
    assert after != before
    assert after == answer(capsys, made.path.parent.parent)


def test_queries_see_a_run_that_goes_on(
    tmp_path: Path, s3: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-D6: what was shipped of a run is counted while it goes on, and its end afterwards."""
    import asyncio

    folder = write_run(tmp_path / "results", [trial(index=i) for i in range(3)], finished=False)
    to = Destination(TO, f"suite/{folder.path.name}")
    assert reserve_name(folder, to)
    uploader = Uploader(folder, to, pytest.fail)
    asyncio.run(uploader.upload_round())
    assert answer(capsys, TO) == answer(capsys, tmp_path / "results")
    append(folder, [trial(index=3, status="failed")])
    asyncio.run(uploader.upload_round())
    assert answer(capsys, TO) == answer(capsys, tmp_path / "results")
    finish(folder)
    uploader.finish()
    assert answer(capsys, TO) == answer(capsys, tmp_path / "results")


def test_a_damaged_run_is_named_and_left_out(
    made: RunFolder, tmp_path: Path, s3: Proxy, server: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-D6: columns that do not match their checksum are no part of an answer."""
    other = write_run(tmp_path / "results", [trial()], name="other")
    assert command(["runs", "sync", str(tmp_path / "results"), TO]) == 0
    key = f"kept/shop/{made.path.name}/results.parquet"
    overwrite(key, objects(server)[key][::-1], server)
    capsys.readouterr()
    assert command(["results", "--results", TO, "--format", "json"]) == 0
    told = capsys.readouterr()
    assert "results.parquet: the object is damaged" in told.err
    assert f"other/{other.path.name}" in told.out
    assert "shop/" not in told.out

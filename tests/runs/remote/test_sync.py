import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cloud_parts import Proxy, Request, Trouble, objects, overwrite
from commands import proctor
from result_parts import append, finish, trial, write_run

from proctor.cli.main import run as command
from proctor.runs.folder import RunFolder
from proctor.runs.remote.object_store import is_inside

TO = "s3://bucket/kept"


@pytest.fixture
def made(tmp_path: Path) -> RunFolder:
    """A finished run with a trace file large enough to be sent in parts."""
    folder = write_run(tmp_path / "results", [trial(index=i) for i in range(20)], name="shop")
    folder.traces_path.mkdir()
    (folder.traces_path / "000001.jsonl.zst").write_bytes(os.urandom(11 << 20))
    (folder.traces_path / "000002.jsonl.zst").write_bytes(b"small")
    return folder


def files(run: Path) -> dict[str, bytes]:
    """What a run holds, without locks."""
    found = (p for p in run.rglob("*") if p.is_file() and not p.name.startswith("."))
    return {p.relative_to(run).as_posix(): p.read_bytes() for p in found}


def name(folder: RunFolder) -> str:
    return f"shop/{folder.path.name}"


def test_a_run_goes_and_comes_back_the_same(
    made: RunFolder, tmp_path: Path, s3: Proxy, server: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-D6: every byte survives both ways, and the manifest at the store says what is there."""
    assert command(["runs", "sync", str(made.path), TO, "--verify"]) == 0
    assert "checksums verified" in capsys.readouterr().out
    manifest = json.loads(objects(server)[f"kept/{name(made)}/_manifest_.json"])
    assert manifest["state"] == "complete"
    assert set(manifest["files"]) == set(files(made.path))
    assert command(["runs", "sync", f"{TO}/{name(made)}", str(tmp_path / "back")]) == 0
    assert files(tmp_path / "back" / name(made)) == files(made.path)


def test_what_is_there_is_not_sent_again(made: RunFolder, tmp_path: Path, s3: Proxy) -> None:
    """R-D6: a second sync writes nothing, in either direction."""
    assert command(["runs", "sync", str(made.path), TO]) == 0
    sent = len(s3.puts())
    assert command(["runs", "sync", str(made.path), TO]) == 0
    assert len(s3.puts()) == sent
    back = tmp_path / "back"
    assert command(["runs", "sync", f"{TO}/{name(made)}", str(back)]) == 0
    times = {p: p.stat().st_mtime_ns for p in (back / "shop").rglob("*.*")}
    assert command(["runs", "sync", f"{TO}/{name(made)}", str(back)]) == 0
    assert {p: p.stat().st_mtime_ns for p in (back / "shop").rglob("*.*")} == times


def first_time(what: Trouble, *methods: str) -> object:
    def trouble(request: Request) -> Trouble:
        return what if request.method in methods and request.time == 1 else None

    return trouble


@pytest.mark.parametrize(
    ("what", "methods"),
    [
        ("500", ("GET", "PUT", "POST", "HEAD", "DELETE")),
        ("cut-request", ("GET", "PUT", "POST", "HEAD")),
        ("cut", ("GET",)),
        ("stall", ("GET", "PUT")),
    ],
)
@pytest.mark.slow
def test_bad_days_of_a_server_are_survived(
    made: RunFolder, tmp_path: Path, s3: Proxy, what: Trouble, methods: tuple[str, ...]
) -> None:
    """R-D6: every first request fails with a 500, in silence or cut off; the run is whole."""
    s3.trouble = first_time(what, *methods)  # type: ignore[assignment]
    assert command(["runs", "sync", str(made.path), TO, "--timeout", "0.8"]) == 0
    assert (
        command(["runs", "sync", f"{TO}/{name(made)}", str(tmp_path / "b"), "--timeout", "0.8"])
        == 0
    )
    assert files(tmp_path / "b" / name(made)) == files(made.path)
    assert any(request.time > 1 for request in s3.requests)


def test_a_damaged_object_is_named_and_refused(
    made: RunFolder,
    tmp_path: Path,
    s3: Proxy,
    server: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """R-D6: bit rot is found on the way back and in place, and sending with --verify repairs it."""
    assert command(["runs", "sync", str(made.path), TO]) == 0
    key = f"kept/{name(made)}/results.parquet"
    good = objects(server)[key]
    overwrite(key, bytes([good[0] ^ 1]) + good[1:], server)
    back = tmp_path / "back"
    assert command(["runs", "sync", f"{TO}/{name(made)}", str(back)]) == 2
    assert "results.parquet: the object is damaged" in capsys.readouterr().err
    assert not (back / name(made) / "results.parquet").exists()
    assert not (back / name(made) / "_spec_.yaml").exists()  # not a run yet
    assert command(["runs", "sync", TO, "--verify"]) == 2
    assert "results.parquet: the object is damaged" in capsys.readouterr().err
    assert command(["runs", "sync", str(made.path), TO, "--verify"]) == 0
    assert objects(server)[key] == good
    assert command(["runs", "sync", TO, "--verify"]) == 0


def test_an_upload_that_was_cut_is_no_run_and_goes_on(
    made: RunFolder,
    tmp_path: Path,
    s3: Proxy,
    server: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """R-D6: a server that stays away is one error; half a run is refused; the rest is sent."""
    monkeypatch.setattr("proctor.llm.retry.BASE_DELAY", 0.001)
    s3.trouble = lambda r: "500" if r.method == "PUT" and "summary.csv" in r.path else None
    assert command(["runs", "sync", str(made.path), TO, "--at-once", "1"]) == 2
    told = capsys.readouterr().err
    assert "summary.csv: gave up after 3 times" in told
    assert "the same command continues" in told
    assert command(["runs", "sync", f"{TO}/{name(made)}", str(tmp_path / "back")]) == 2
    assert "was not finished" in capsys.readouterr().err
    there = set(objects(server))
    s3.trouble = lambda r: None
    s3.requests.clear()
    assert command(["runs", "sync", str(made.path), TO]) == 0
    sent = {path.lstrip("/").partition("/")[2].partition("?")[0] for path in s3.puts()}
    assert sent & there == {f"kept/{name(made)}/_manifest_.json"}
    assert command(["runs", "sync", TO, "--verify"]) == 0


def test_an_interrupted_sync_goes_on(made: RunFolder, s3: Proxy, server: int) -> None:
    """R-D6: Ctrl-C ends at once with 130, leaves whole objects only; the next sync completes."""
    s3.trouble = lambda r: "stall" if r.method == "PUT" and "trials.jsonl" in r.path else None
    child = subprocess.Popen(
        [sys.executable, "-m", "proctor", "runs", "sync", str(made.path), TO],
        stderr=subprocess.PIPE,
    )
    assert s3.stalled.wait(60)
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=120)
    assert child.returncode == 130
    assert b"run the same command to resume" in told
    here = files(made.path)
    for key, content in objects(server).items():
        file = key.removeprefix(f"kept/{name(made)}/")
        assert file == "_manifest_.json" or content == here[file]
    s3.trouble = lambda r: None
    assert command(["runs", "sync", str(made.path), TO, "--verify"]) == 0


def test_another_run_is_never_replaced(
    made: RunFolder, tmp_path: Path, s3: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-D6: two machines number their runs alike; neither overwrites the other's."""
    assert command(["runs", "sync", str(made.path), TO]) == 0
    other = write_run(tmp_path / "elsewhere", [trial()], name="shop")
    assert command(["runs", "sync", str(other.path), TO]) == 2
    assert "another run is here" in capsys.readouterr().err
    assert command(["runs", "sync", f"{TO}/{name(made)}", str(tmp_path / "elsewhere")]) == 2
    assert "another run is here" in capsys.readouterr().err


def test_an_earlier_state_never_replaces_a_later_one(
    made: RunFolder, tmp_path: Path, s3: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-D6: trials added on either side survive a sync in the wrong direction."""
    assert command(["runs", "sync", str(made.path), TO]) == 0
    back = tmp_path / "back"
    assert command(["runs", "sync", f"{TO}/{name(made)}", str(back)]) == 0
    append(made, [trial(index=20)])
    finish(made)
    assert command(["runs", "sync", f"{TO}/{name(made)}", str(made.path.parent.parent)]) == 2
    assert "has lines that the remote one does not have" in capsys.readouterr().err
    assert command(["runs", "sync", str(made.path), TO]) == 0
    assert command(["runs", "sync", str(back / name(made)), TO]) == 2
    assert "is longer than the one that would replace it" in capsys.readouterr().err
    assert command(["runs", "sync", f"{TO}/{name(made)}", str(back)]) == 0
    assert files(back / name(made)) == files(made.path)


def test_a_run_that_is_being_written_is_not_sent(
    made: RunFolder, s3: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-D6: a moving run is refused rather than sent in a state it never had."""
    with made.lock():
        assert command(["runs", "sync", str(made.path), TO]) == 2
    assert "another process is writing this run" in capsys.readouterr().err


def test_all_runs_of_a_folder_and_folders_as_stores(tmp_path: Path, made: RunFolder) -> None:
    """R-D6: a folder is a store like any other, and every run below a place can be meant."""
    pytest.importorskip("obstore")
    second = write_run(tmp_path / "results", [trial()], name="shop")
    kept, back = tmp_path / "with space", tmp_path / "back"
    assert command(["runs", "sync", str(tmp_path / "results"), str(kept)]) == 0
    assert command(["runs", "sync", kept.as_uri(), str(back), "--json"]) == 0
    for run in (made, second):
        assert files(back / name(run)) == files(run.path)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s4://bucket/x", "there is s3:// (Amazon S3)"),
        ("s3://key:secret@bucket/x", "no credentials"),
        ("s3://", "names no bucket"),
        ("s3://bucket/../x", "no . or .."),
        ("file://folder", "three slashes"),
    ],
)
def test_wrong_addresses_are_said_so(
    address: str, said: str, made: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-D6: what is wrong with an address is one line, and no secret is printed."""
    assert command(["runs", "sync", str(made.path), address]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "secret@" not in told


def test_plain_http_beyond_this_machine_must_be_asked_for(
    made: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-D6: keys do not go over plain HTTP unless somebody says so."""
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://192.0.2.1:9000")
    assert command(["runs", "sync", str(made.path), TO]) == 2
    assert "--allow-http" in capsys.readouterr().err


def test_without_the_package_one_line_says_what_to_install(made: RunFolder) -> None:
    """R-D6: the extra is named where it is missing."""
    code = "import sys; sys.modules['obstore'] = None; from proctor.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "runs", "sync", str(made.path), TO],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "proctor[cloud]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../b", "a\\b", "C:x", ".lock", "a//b", ""])
def test_names_from_elsewhere_stay_inside(path: str) -> None:
    """R-D6: a manifest is what somebody else wrote; its names cannot lead out of the run."""
    assert not is_inside(path)
    assert is_inside("traces/000001.jsonl.zst")


def test_a_hostile_manifest_writes_nothing(
    made: RunFolder, tmp_path: Path, s3: Proxy, server: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-D6: a manifest that names a file outside the run is refused before anything is read."""
    assert command(["runs", "sync", str(made.path), TO]) == 0
    key = f"kept/{name(made)}/_manifest_.json"
    manifest = json.loads(objects(server)[key])
    manifest["files"]["../../../outside"] = manifest["files"]["summary.csv"]
    overwrite(key, json.dumps(manifest).encode(), server)
    assert command(["runs", "sync", f"{TO}/{name(made)}", str(tmp_path / "back")]) == 2
    assert "outside the run" in capsys.readouterr().err
    assert not (tmp_path / "back").exists()


def test_help_tells_how(tmp_path: Path) -> None:
    """R-D6: the help has lines to copy."""
    assert (
        "proctor runs sync latest s3://bucket/results" in proctor("runs", "sync", "--help").stdout
    )

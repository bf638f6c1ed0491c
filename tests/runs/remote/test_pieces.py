"""What was shipped in pieces while a run went on stays; the end of the run sends the rest."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from cloud_parts import Proxy, objects, overwrite
from result_parts import append, finish, trial, write_run

from proctor.cli.main import run as command
from proctor.runs.folder import RunFolder
from proctor.runs.remote.upload import Destination, Uploader, reserve_name

TO = "s3://bucket/kept"
MB = 1 << 20


class Growing:
    """A run that goes on, and what ships it."""

    def __init__(self, root: Path) -> None:
        many = [trial(index=i, answer=os.urandom(MB // 4).hex()) for i in range(3)]
        self.folder = write_run(root, many, name="shop", finished=False)
        self.folder.traces_path.mkdir()
        self.segment = self.folder.traces_path / "000001.jsonl.zst"
        self.segment.write_bytes(os.urandom(3 * MB))
        self.to = Destination(TO, f"shop/{self.folder.path.name}")
        assert reserve_name(self.folder, self.to)
        self.uploader = self.another_process()

    def another_process(self) -> Uploader:
        return Uploader(self.folder, self.to, pytest.fail)

    def ship(self) -> None:
        asyncio.run(self.uploader.upload_round())

    def grow(self, size: int, index: int = 3) -> None:
        with self.segment.open("ab") as file:
            file.write(os.urandom(size))
        append(self.folder, [trial(index=index, answer="x" * size)])

    def end(self) -> None:
        finish(self.folder)
        self.uploader.finish()


@pytest.fixture
def growing(tmp_path: Path, s3: Proxy) -> Growing:
    return Growing(tmp_path / "results")


def files(run: Path) -> dict[str, bytes]:
    found = (p for p in run.rglob("*") if p.is_file() and not p.name.startswith("."))
    return {p.relative_to(run).as_posix(): p.read_bytes() for p in found}


def sent(s3: Proxy) -> dict[str, int]:
    """Bytes that were sent, by the last part of what they are of."""
    total: dict[str, int] = {}
    for request in s3.requests:
        if request.method == "PUT":
            name = next(n for n in ("trials.jsonl", "traces/", "") if n in request.path)
            total[name] = total.get(name, 0) + request.size
    return total


def manifest(server: int) -> dict[str, Any]:
    (found,) = (v for k, v in objects(server).items() if k.endswith("/_manifest_.json"))
    return json.loads(found)


def pieces(server: int, of: str) -> set[str]:
    """The names of the pieces of a file that are at the store."""
    found = (key.partition(f"_pieces_/{of}/") for key in objects(server))
    return {name for _, here, name in found if here}


def comes_back(folder: RunFolder, back: Path) -> bool:
    assert command(["runs", "sync", TO, "--verify"]) == 0
    assert command(["runs", "sync", TO, str(back)]) == 0
    return files(back / "shop" / folder.path.name) == files(folder.path)


def test_the_end_sends_what_was_not_shipped(
    growing: Growing, tmp_path: Path, s3: Proxy, server: int
) -> None:
    """R-D6: of files that were shipped while they grew, the last upload sends only the rest."""
    growing.ship()
    growing.grow(50_000)
    s3.requests.clear()
    growing.end()
    rest = sent(s3)
    assert rest["traces/"] == 50_000
    assert 50_000 < rest["trials.jsonl"] < 60_000
    assert set(manifest(server)["pieces"]) == {"trials.jsonl", "traces/000001.jsonl.zst"}
    assert comes_back(growing.folder, tmp_path / "back")
    s3.requests.clear()
    assert command(["runs", "sync", str(growing.folder.path), TO, "--verify"]) == 0
    assert sent(s3) == {}


def test_a_run_that_ended_and_goes_on_keeps_its_pieces(
    growing: Growing, tmp_path: Path, s3: Proxy, server: int
) -> None:
    """R-D6, R-R7: resumed after its end, a run ships and sends only what is new."""
    growing.ship()
    growing.end()
    growing.uploader = growing.another_process()
    s3.requests.clear()
    growing.grow(20_000)
    growing.ship()
    growing.grow(30_000, index=4)
    growing.end()
    assert sent(s3)["traces/"] == 50_000
    assert 50_000 < sent(s3)["trials.jsonl"] < 60_000
    assert comes_back(growing.folder, tmp_path / "back")


def test_what_a_crash_left_is_replaced(
    growing: Growing, tmp_path: Path, s3: Proxy, server: int
) -> None:
    """R-D6: shipped bytes that are cut on resume are not taken for the file's; the others are."""
    growing.ship()
    growing.grow(40_000)
    growing.ship()
    os.truncate(growing.segment, 3 * MB + 10_000)
    with growing.segment.open("ab") as file:
        file.write(os.urandom(100_000))
    s3.requests.clear()
    growing.end()
    assert sent(s3)["traces/"] == 110_000
    assert comes_back(growing.folder, tmp_path / "back")


def test_small_files_are_whole_at_the_end(tmp_path: Path, s3: Proxy, server: int) -> None:
    """R-D6: a small run stands at the store as in its folder, without pieces, as format 1."""
    folder = write_run(tmp_path / "results", [trial()], name="shop", finished=False)
    to = Destination(TO, f"shop/{folder.path.name}")
    assert reserve_name(folder, to)
    uploader = Uploader(folder, to, pytest.fail)
    asyncio.run(uploader.upload_round())
    assert pieces(server, "trials.jsonl")
    finish(folder)
    uploader.finish()
    assert not pieces(server, "trials.jsonl")
    assert manifest(server)["format"] == 1
    assert objects(server)[f"kept/{to.name}/trials.jsonl"] == folder.journal_path.read_bytes()


@pytest.mark.parametrize(("many", "enough"), [(4, 4 * MB), (64, 350)])
def test_small_pieces_become_one(
    growing: Growing,
    tmp_path: Path,
    server: int,
    monkeypatch: pytest.MonkeyPatch,
    many: int,
    enough: int,
) -> None:
    """R-D6: a long run with little in each round does not end as thousands of objects."""
    monkeypatch.setattr("proctor.runs.remote.transfer.MANY", many)
    monkeypatch.setattr("proctor.runs.remote.transfer.ENOUGH", enough)
    growing.ship()
    for index in range(10):
        growing.grow(100, index=3 + index)
        growing.ship()
    name = "traces/000001.jsonl.zst"
    assert len(pieces(server, name)) > 10  # those that were joined stay while it goes on
    growing.end()
    assert pieces(server, name) == set(manifest(server)["pieces"][name])
    assert len(pieces(server, name)) <= 5
    assert comes_back(growing.folder, tmp_path / "back")


def test_a_damaged_piece_is_named_and_sent_again(
    growing: Growing,
    tmp_path: Path,
    server: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """R-D6: bit rot in a piece is found in place and on the way back; --verify repairs it."""
    growing.ship()
    growing.end()
    name = manifest(server)["pieces"]["trials.jsonl"][0]
    key = f"kept/{growing.to.name}/_pieces_/trials.jsonl/{name}"
    good = objects(server)[key]
    overwrite(key, bytes([good[0] ^ 1]) + good[1:], server)
    assert command(["runs", "sync", TO, "--verify"]) == 2
    assert f"{name}: the piece is damaged" in capsys.readouterr().err
    assert command(["runs", "sync", TO, str(tmp_path / "half")]) == 2
    assert f"{name}: the piece is damaged" in capsys.readouterr().err
    assert not list((tmp_path / "half").rglob("_spec_.yaml"))
    assert command(["runs", "sync", str(growing.folder.path), TO, "--verify"]) == 0
    assert objects(server)[key] == good
    assert comes_back(growing.folder, tmp_path / "back")


@pytest.mark.parametrize(
    "names", [["../../x"], ["000000000000005-0123456789abcdef"], ["000000000000000-xyz"]]
)
def test_pieces_that_do_not_join_are_refused(
    growing: Growing,
    tmp_path: Path,
    server: int,
    capsys: pytest.CaptureFixture[str],
    names: list[str],
) -> None:
    """R-D6: a manifest is what somebody else wrote; its pieces must join without a gap."""
    growing.ship()
    growing.end()
    hostile = manifest(server)
    hostile["pieces"]["trials.jsonl"] = names
    overwrite(f"kept/{growing.to.name}/_manifest_.json", json.dumps(hostile).encode(), server)
    assert command(["runs", "sync", TO, str(tmp_path / "back")]) == 2
    assert "pieces of 'trials.jsonl' do not join" in capsys.readouterr().err

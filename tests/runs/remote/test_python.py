"""Runs at an address from Python, as the command does it; other stores than S3."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from cloud_parts import Proxy, objects
from commands import proctor
from run_parts import only_run, rows, write_suite

import proctor as api
from proctor.errors import ProctorError
from proctor.trials.resume import aresume

TO = "s3://bucket/kept"


def manifest(server: int) -> dict[str, Any]:
    (found,) = (v for k, v in objects(server).items() if k.endswith("/_manifest_.json"))
    return json.loads(found)


def test_python_ships_as_the_command_does(
    tmp_path: Path, s3: Proxy, server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-D6: `proctor.run(results="s3://…")` is whole here and there; queries read it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = api.run(write_suite(tmp_path), trials=2, results=TO)
    assert run.path.resolve() == only_run(tmp_path / "results").resolve()
    assert manifest(server)["state"] == "complete"
    assert json.loads(next(v for k, v in objects(server).items() if "heartbeat" in k))["done"] == 6
    assert proctor("runs", "sync", TO, "--verify").returncode == 0
    assert len(api.results.query(results=TO)) == 6


def test_python_goes_on_shipping_on_resume(
    tmp_path: Path, s3: Proxy, server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-D6, R-R7: in an event loop too, a run that is resumed ends whole there."""
    monkeypatch.chdir(tmp_path)
    suite = write_suite(tmp_path)

    async def both() -> None:
        run = await api.arun(suite, trials=2, limits={"max_trials": 2}, results=TO)
        assert manifest(server)["state"] == "complete"
        await aresume(run.path, max_trials=None)

    asyncio.run(both())
    back = tmp_path / "back"
    assert proctor("runs", "sync", TO, back).returncode == 0
    assert len(rows(only_run(back))) == 6


def test_a_store_that_is_away_is_a_warning(
    tmp_path: Path, s3: Proxy, server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-D6: the run is given back; a warning says what is missing there and how to send it."""
    monkeypatch.chdir(tmp_path)
    suite = write_suite(tmp_path)
    begun: list[str] = []

    def after_the_claim(request: Any) -> Any:
        begun.append(request.path)
        return "500" if len(begun) > 4 else None

    s3.trouble = after_the_claim
    with pytest.warns(UserWarning, match=r"complete here but not at .* `proctor runs sync"):
        run = api.run(suite, trials=1, results=TO)
    assert run.totals.trials == 3


def test_an_address_in_the_settings(tmp_path: Path, s3: Proxy, server: int) -> None:
    """R-D6, R-S6: `results: s3://…` in proctor.yaml: runs are kept in ./results and shipped."""
    suite = write_suite(tmp_path)
    (tmp_path / "proctor.yaml").write_text(f"results: {TO}\n")
    done = proctor("run", suite, "--trials", 1, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert manifest(server)["state"] == "complete"
    assert not (tmp_path / "s3:").exists()
    assert only_run(tmp_path / "results")
    shown = proctor("results", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr


def test_a_wrong_address_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-D6: an address of no kind we know is an error before the first trial."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProctorError, match="cannot be stored at s4://"):
        api.run(write_suite(tmp_path), results="s4://bucket/x")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("run", "suite.yaml", "--results", "s3:/bucket/p"), "s3://bucket/p"),
        (("run", "suite.yaml", "--results", "s3://absent/p"), "bucket does not exist"),
        (("runs", "status", "--results", "s3://bucket/p"), "there is no run here"),
        (("leaderboard", "s3://bucket/p"), "there is no run here"),
        (("report", "--results", "s3://bucket/p"), "proctor runs sync ADDRESS FOLDER"),
    ],
)
def test_a_slip_in_an_address_makes_no_folder(
    tmp_path: Path, s3: Proxy, command: tuple[str, ...], told: str
) -> None:
    """R-D6: an address that is wrong, or where none is taken, is told and leaves nothing behind."""
    write_suite(tmp_path)
    done = proctor(*command, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert not (tmp_path / "s3:").exists()
    assert not list(tmp_path.glob("results/*/*"))

"""`proctor runs export` from outside."""

import json
from pathlib import Path

import polars as pl
import pytest
from result_parts import CASES, trial, write_run

from proctor.cli.main import run
from proctor.runs.annotations import tag


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two runs, one of them tagged."""
    write_run(tmp_path / "results", [trial(c, a) for c in CASES for a in "ab"], name="shop")
    other = write_run(tmp_path / "results", [trial("greet", "a")], name="other")
    tag(other.path, "baseline")
    return tmp_path / "results"


def test_a_run_to_a_file(root: Path, tmp_path: Path, capsys) -> None:
    """R-D3: by glob, tag or folder; the suffix says in which form; how many is said."""
    place = ["--results", str(root), "-o"]
    assert (
        run(["runs", "export", "shop/*", *place, str(tmp_path / "t.parquet"), "--agent", "b"]) == 0
    )
    assert "3 trials of 1 run:" in capsys.readouterr().err
    assert pl.read_parquet(tmp_path / "t.parquet")["agent"].to_list() == ["b"] * 3
    assert run(["runs", "export", "baseline", *place, "-", "--format", "jsonl"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["case"] == "greet"
    folder = next(root.glob("shop/*"))
    assert run(["runs", "export", str(folder), *place, str(tmp_path / "t.csv"), "--bom"]) == 0
    assert (tmp_path / "t.csv").read_bytes()[:3] == b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["shop/*", "-o", "x.xlsx"], "unknown format 'xlsx'"),
        (["shop/*", "-o", "-", "--format", "parquet"], "standard output needs"),
        (["shop/*", "-o", "x.json", "--format", "json", "--bom"], "--bom is only for CSV"),
        (["nothing/*", "-o", "x.csv"], "no run matches"),
        (["shop/*", "-o", "x.csv", "--agent", "nobody"], "no trial has the agent 'nobody'"),
        (["shop/*", "-o", "x.csv", "--case", "a,gret"], "no trial has the case 'a'"),
        (["shop/*"], "Missing option"),
    ],
)
def test_what_cannot_be_written_is_said(root: Path, tmp_path, capsys, monkeypatch, asked, message):
    """R-D3: exit code 2, and no file."""
    monkeypatch.chdir(tmp_path)
    assert run(["runs", "export", "--results", str(root), *asked]) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results"]

"""`proctor runs import` from outside: what comes in is a run like any other."""

import json
from pathlib import Path

import pytest

from proctor.cli.main import run


def grades(folder: Path, name: str, passes: int) -> Path:
    """A table of two agents on ten cases, four trials each."""
    path = folder / f"{name}.csv"
    rows = [
        f"q{case},{agent},{int(agent == 'good' or trial < passes)},{'easy' if case < 5 else 'hard'}"
        for case in range(10)
        for agent in ("good", "bad")
        for trial in range(4)
    ]
    path.write_text("question,system,correct,level\n" + "\n".join(rows) + "\n")
    return path


def test_an_import_is_queried_reported_compared_and_gated(tmp_path: Path, capsys) -> None:
    """R-D3: results, report, leaderboard, compare and gate work on what came in."""
    root = ["--results", str(tmp_path / "results")]
    columns = ["--map", "question=case", "--map", "level=difficulty"]
    for name, passes in (("before", 4), ("after", 1)):
        file = grades(tmp_path, name, passes)
        assert run(["runs", "import", str(file), *columns, *root]) == 0
        assert "80 trials" in capsys.readouterr().out
    assert (
        run(["results", "after/*", "--group-by", "agent,difficulty", "--format", "json", *root])
        == 0
    )
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [(g["key"]["agent"], g["passed"], g["judged"]) for g in groups] == [
        ("bad", 5, 20),
        ("bad", 5, 20),
        ("good", 20, 20),
        ("good", 20, 20),
    ]
    before, after = (str(next((tmp_path / "results" / n).iterdir())) for n in ("before", "after"))
    assert run(["report", after, *root]) in (0, 1)
    assert "good" in capsys.readouterr().out
    assert run(["leaderboard", after, *root]) == 0
    assert "good" in capsys.readouterr().out
    assert run(["compare", before, after, *root]) in (0, 1)
    assert "bad" in capsys.readouterr().out
    assert run(["gate", after, "--against", before, *root]) == 1
    assert "REGRESSION" in capsys.readouterr().out
    assert run(["gate", before, "--against", before, *root]) == 0
    capsys.readouterr()
    log = (tmp_path / "results" / "audit.jsonl").read_text()
    assert '"import"' in log


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["t.csv", "--map", "question"], "is not COLUMN=FIELD"),
        (["t.csv", "--map", "question=cas"], "did you mean 'case'"),
        (["t.csv", "--map", "qestion=case"], "did you mean 'question'"),
        (["absent.csv"], "file does not exist"),
        (["t.txt"], "--from csv|jsonl|json|parquet|inspect|promptfoo"),
        (["t.csv", "--from", "promptfoo"], "not JSON"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, capsys, monkeypatch, asked, message) -> None:
    """R-D3: exit code 2, the place, a hint, and no run."""
    monkeypatch.chdir(tmp_path)
    grades(tmp_path, "t", 1)
    (tmp_path / "t.txt").write_text("hello")
    assert run(["runs", "import", *asked, "--results", str(tmp_path / "r")]) == 2
    assert message in capsys.readouterr().err
    assert not list((tmp_path / "r").rglob("_spec_.yaml"))


def test_an_import_cannot_be_run_again(tmp_path: Path, monkeypatch, capsys) -> None:
    """R-D3: what others ran is not ours to go on with or repeat, and its cost is not none."""
    monkeypatch.chdir(tmp_path)
    assert (
        run(["runs", "import", str(grades(tmp_path, "before", 4)), "--map", "question=case"]) == 0
    )
    assert run(["report", "latest"]) == 0
    assert "cost: n/a (no model calls recorded)" in capsys.readouterr().out
    for command in (["rerun", "latest"], ["run", "--resume", "latest"]):
        assert run(command) == 2
        assert "the run was imported" in capsys.readouterr().err

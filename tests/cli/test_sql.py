"""`proctor sql` from outside."""

import csv
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from commands import proctor
from result_parts import CASES, trial, write_run

from proctor.cli.main import run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run of two agents."""
    write_run(tmp_path / "results", [trial(c, a, i) for c in CASES for a in "ab" for i in (0, 1)])
    return tmp_path / "results"


ASKED = "select agent, count(*) as n, avg(score) as mean from trials group by 1 order by 1"


def test_an_answer_in_each_form(root: Path, capsys) -> None:
    """R-D2: a table, one JSON document, CSV."""
    assert run(["sql", ASKED, "--results", str(root)]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["agent", "n", "mean"],
        ["a", "6", "1"],
        ["b", "6", "1"],
    ]
    assert run(["sql", ASKED, "--results", str(root), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"] == [
        {"agent": "a", "n": 6, "mean": 1.0},
        {"agent": "b", "n": 6, "mean": 1.0},
    ]
    assert run(["sql", ASKED, "--results", str(root), "--format", "csv"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows == [["agent", "n", "mean"], ["a", "6", "1.0"], ["b", "6", "1.0"]]


def test_only_some_runs_and_from_standard_input(root: Path) -> None:
    """R-D2: `--run` narrows, `-` reads the query."""
    write_run(root, [trial("greet", "c")], name="other")
    done = proctor("sql", "-", "--run", "other/*", "--results", root, input=ASKED)
    assert done.stdout.splitlines()[1].split() == ["c", "1", "1"]
    assert len(done.stdout.splitlines()) == 2


def test_a_query_that_would_write_is_refused(root: Path, tmp_path: Path, capsys) -> None:
    """R-D2: exit code 2, a reason, and no file."""
    out = tmp_path / "out.csv"
    assert run(["sql", f"copy trials to '{out}'", "--results", str(root)]) == 2
    error = capsys.readouterr().err
    assert "only one SELECT is accepted" in error
    assert "proctor runs export" in error
    assert not out.exists()


def test_a_terminal_gets_no_control_sequences_from_csv(root: Path) -> None:
    """R-R13: OSC 52 in an answer is written out on a terminal; a pipe gets the bytes."""
    command = [sys.executable, "-m", "proctor", "sql", "--format", "csv"]
    command += ["--results", str(root), "SELECT chr(27) || ']52;c;QQ==' AS x"]
    piped = subprocess.run(command, capture_output=True, check=False)
    assert b"\x1b]52;" in piped.stdout, piped.stderr
    terminal, other = pty.openpty()
    child = subprocess.Popen(command, stdout=other, stderr=subprocess.PIPE)
    os.close(other)
    child.wait(timeout=120)
    shown = os.read(terminal, 10_000)
    os.close(terminal)
    assert b"\\x1b]52;" in shown
    assert b"\x1b" not in shown

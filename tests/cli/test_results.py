"""`proctor results` from outside."""

import csv
import io
import json
import re
from contextlib import chdir
from pathlib import Path

import pytest
from commands import proctor
from result_parts import CASES, trial, write_run

from proctor.cli.main import run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two agents, three cases, one trial that could not be judged."""
    trials = [
        trial(case, agent, i, "failed" if agent == "hasty" and i else "passed")
        for case in CASES
        for agent in ("careful", "hasty")
        for i in range(2)
    ]
    trials.append(trial("greet", "hasty", 2, "infra_error"))
    write_run(tmp_path / "results", trials, name="shop")
    return tmp_path / "results"


def test_the_table_has_every_denominator(root: Path, capsys) -> None:
    """R-D2: passes of how many judged, the interval and its estimand, and what was not judged."""
    assert run(["results", "--results", str(root), "--group-by", "agent"]) == 0
    head, careful, hasty, estimand, closing = capsys.readouterr().out.splitlines()
    names = "agent cases trials passed pass rate 95 % score ± SD infra error p50 p90 p99"
    assert head.split() == names.split()
    assert careful.split()[:6] == ["careful", "3", "6", "6/6", "100", "%"]
    assert hasty.split()[:6] == ["hasty", "3", "7", "3/6", "50", "%"]
    columns = [re.split(r"  +", line) for line in (head, careful, hasty)]
    infra = columns[0].index("infra error")
    assert [line[infra] for line in columns[1:]] == ["0", "1"]
    assert estimand.startswith("  estimand suite (default: it assumes nothing about other cases): ")
    assert closing == "13 trials in 2 groups"


def test_every_command_names_why_a_trial_has_no_verdict(tmp_path: Path, capsys) -> None:
    """R-R1, R-Q1: infrastructure errors, trials that the checks could not judge and cancelled ones
    have the same counts and names in every command, in JSON, and after an export and an import."""

    def shown(*args: str, root: Path = tmp_path) -> str:
        assert run([*args, "--results", str(root)]) == 0
        return capsys.readouterr().out

    statuses = ["passed", "passed", "failed", "infra_error", *["not_judged"] * 2, "cancelled"]
    trials = [trial("greet", agent, i, s) for agent in "ab" for i, s in enumerate(statuses)]
    write_run(tmp_path, trials, cases={"greet": {}})
    head, first, *_ = (re.split(r"  +", row) for row in shown("results").splitlines())
    assert [first[head.index(name)] for name in ("infra error", "not judged", "cancelled")] == [
        *"121"
    ]
    totals = json.loads(shown("report", "latest", "--format", "json"))["totals"]
    (group,) = json.loads(shown("results", "--group-by", "run", "--json"))["groups"]
    for counts in (totals, group):
        found = [counts[name] for name in ("passed", "infra_error", "not_judged", "cancelled")]
        assert found == [4, 2, 4, 2]
    for command in (("leaderboard",), ("compare", "latest", "--agents", "a,b")):
        text = shown(*command)
        assert "1 trial: infrastructure error" in text
        assert "2 trials: not judged: the checks lacked what they need; 1 trial: cancelled" in text
    shown("runs", "export", "latest", "-o", str(tmp_path / "trials.csv"))
    shown("runs", "import", str(tmp_path / "trials.csv"), root=tmp_path / "other")
    copy = json.loads(shown("results", "--group-by", "agent", "--json", root=tmp_path / "other"))
    assert [(g["infra_error"], g["not_judged"], g["cancelled"]) for g in copy["groups"]] == [
        (1, 2, 1)
    ] * 2


def test_a_name_that_nobody_has_is_a_slip(root: Path, capsys) -> None:
    """R-D2: an empty result is valid, unless the agent or case does not exist."""
    asked = ["results", "--results", str(root)]
    assert run([*asked, "--agent", "carefull"]) == 2
    output = capsys.readouterr().err
    assert "no trial has the agent 'carefull'" in output
    assert "did you mean 'careful'?" in output
    assert run([*asked, "--case", "nothing-like-it"]) == 2
    assert f"known: {', '.join(sorted(CASES))}" in capsys.readouterr().err
    assert run([*asked, "--agent", "careful", "--status", "failed"]) == 0
    assert "0 trials" in capsys.readouterr().out


def test_json_is_one_document_and_csv_one_table(root: Path, capsys) -> None:
    """R-Q5: both forms hold the same numbers."""
    asked = ["results", "--results", str(root), "--group-by", "agent,difficulty", "--format"]
    assert run([*asked, "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert run([*asked, "csv"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(document["groups"]) == len(table) == 6
    for group, row in zip(document["groups"], table, strict=True):
        assert group["key"] == {"agent": row["agent"], "difficulty": row["difficulty"]}
        assert group["passed"] == int(row["passed"])
        assert group["pass_rate"]["value"] == float(row["pass_rate"])
        assert group["pass_rate"]["n"] == int(row["judged"])


def test_a_table_without_rows_has_its_columns(root: Path, capsys) -> None:
    """R-Q5: a program that reads the sheet finds every column, whether or not a trial fits."""
    asked = ["results", "--results", str(root), "--format", "csv"]
    assert run(asked) == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert run([*asked, "--agent", "careful", "--status", "failed"]) == 0
    assert capsys.readouterr().out.splitlines() == [head]


def test_filters_and_trials(root: Path, capsys) -> None:
    """R-D2: the trials themselves, narrowed; how many of how many is said."""
    asked = ["results", "shop/*", "--results", str(root), "--agent", "has*", "--status", "failed"]
    assert run([*asked, "--where", "difficulty=hard", "--trials", "--format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["case"], row["agent"], row["status"], row["score"]) == (
        "refund",
        "hasty",
        "failed",
        "0.4",
    )
    assert run([*asked, "--limit", "1"]) == 0
    output = capsys.readouterr()
    assert len(output.out.splitlines()) == 2
    assert "1 of 3 trials" in output.err
    assert run([*asked, "--min-score", "0.9", "--group-by", "agent"]) == 0
    assert "0 trials" in capsys.readouterr().out


def test_a_bad_folder_is_named_on_standard_error(root: Path, capsys) -> None:
    """R-D2: the answer is whole, the warning apart."""
    (root / "x").mkdir()
    (root / "x" / "_spec_.yaml").write_text("format: 7\n")
    assert run(["results", "--results", str(root), "--format", "json"]) == 0
    output = capsys.readouterr()
    assert len(json.loads(output.out)["groups"]) == 2
    assert "warning:" in output.err
    assert "upgrade proctor" in output.err


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--group-by", "agnet"], "did you mean 'agent'"),
        (["--status", "failled"], "did you mean 'failed'"),
        (["shopp/*"], "no run matches"),
        (["--since", "whenever"], "is not a date"),
    ],
)
def test_what_is_wrong_is_said_with_its_neighbour(root: Path, capsys, wrong, message) -> None:
    """R-R11: a slip is exit code 2 and one line with a hint."""
    assert run(["results", "--results", str(root), *wrong]) == 2
    assert message in capsys.readouterr().err


def test_hostile_names_are_not_obeyed(tmp_path: Path, capsys) -> None:
    """R-Q5: no escape sequence reaches a terminal, no formula a sheet."""
    write_run(tmp_path, [trial(agent="\x1b[31m=cmd|' /C calc'!A0")])
    assert run(["results", "--results", str(tmp_path)]) == 0
    assert "\x1b" not in capsys.readouterr().out
    write_run(tmp_path / "b", [trial(agent="=cmd|' /C calc'!A0")])
    assert run(["results", "--results", str(tmp_path / "b"), "--format", "csv"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[1][1].startswith("'=")


def test_settings_say_where_runs_are(root: Path) -> None:
    """R-S6: without --results the folder is that of the project; without settings, ./results."""
    with chdir(root.parent):
        assert "13 trials" in proctor("results", cwd=root.parent).stdout
    other = root.parent / "kept"
    root.rename(other)
    (root.parent / "proctor.yaml").write_text("results: kept\n")
    done = proctor("results", "--agent", "careful", cwd=root.parent)
    assert "6 trials" in done.stdout, done.stderr

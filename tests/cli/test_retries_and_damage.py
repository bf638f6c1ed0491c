"""What is counted after retries and from damaged journals, and what was spent, on every surface."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import yaml
from commands import proctor, start
from run_parts import only_run

from proctor.results import query

BOTS = """
import hashlib, itertools, os, time
from proctor import capture

calls = itertools.count()

def coin(input, seed):
    # The same seed is drawn again in a retry: chance has to come from the call.
    with capture.llm_call("m", input_tokens=60, output_tokens=40, cost_usd=1.0):
        pass
    drawn = hashlib.sha256(f"{os.getpid()} {next(calls)} {time.time_ns()}".encode()).digest()[0]
    return "yes" if drawn < 128 else "no"

def wrong(input):
    with capture.llm_call("m", input_tokens=60, output_tokens=40, cost_usd=1.0):
        pass
    return "no"

def half(input, seed):
    return "yes" if seed % 2 else "no"

def slow(input):
    if next(calls) >= 3:
        time.sleep(600)
    return "yes"
"""


def write(folder: Path, agent: str, cases: int = 4, **defaults: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bots.py").write_text(BOTS)
    suite = {
        "version": 1,
        "agent": f"bots:{agent}",
        "defaults": {"correctness": {"blocking": False}, **defaults},
        "cases": [
            {"id": f"case-{i}", "input": str(i), "correctness": {"expected_in_answer": ["yes"]}}
            for i in range(cases)
        ],
    }
    (folder / "suite.yaml").write_text(yaml.safe_dump(suite))


def figures(folder: Path, run: Path) -> dict[str, object]:
    """The counts and the cost of a run from every surface that prints them."""
    row = json.loads(proctor("results", run, "--json", cwd=folder).stdout)["groups"][0]
    report = json.loads(proctor("report", run, "--format", "json", cwd=folder).stdout)["totals"]
    beat = json.loads(proctor("runs", "status", run, "--json", cwd=folder).stdout)
    beat = beat["runs"][0]["beat"]
    cells = json.loads((run / "results.json").read_text())["cells"]
    board = json.loads(proctor("leaderboard", run, "--json", cwd=folder).stdout)["rows"][0]
    return {
        "leaderboard": (board["passes"], board["trials"], round(board["cost_usd"], 6)),
        "results": (row["passed"], row["judged"], round(row["cost_usd"], 6)),
        "report": (
            report["passed"],
            report["passed"] + report["failed"] + report["hard_fail"],
            round(report["cost_usd"], 6),
        ),
        "cells": (
            sum(cell["passed"] for cell in cells),
            sum(cell["passed"] + cell["failed"] + cell["hard_fail"] for cell in cells),
            round(sum(cell["cost_usd"] for cell in cells), 6),
        ),
        "status": (beat["passed"], beat["passed"] + beat["failed"], round(beat["cost_usd"], 6)),
    }


def test_retrying_failed_trials_changes_no_figure(tmp_path):
    """R-R4, R-R7, R-Q1: the first judged attempt counts; outcomes after retries stand beside it."""
    write(tmp_path, "coin")
    proctor("run", "suite.yaml", "--trials", 10, cwd=tmp_path)
    run = only_run(tmp_path / "results")
    first = figures(tmp_path, run)
    passed, judged, cost = first["report"]
    assert judged == 40
    assert len(set(first.values())) == 1, first
    done = proctor("run", "--retry-failed", run, cwd=tmp_path)
    again = figures(tmp_path, run)
    assert len(set(again.values())) == 1, "one rule on every surface"
    assert again["report"][:2] == (passed, judged)
    # Every attempt was paid for: a dollar each.
    assert again["report"][2] == cost + 40 - passed
    statuses = [
        json.loads(line)["status"] for line in (run / "trials.jsonl").read_text().splitlines()
    ]
    after = statuses.count("passed")
    assert f"after retries: {after} of 40 trials passed" in done.stdout
    shown = proctor("results", cwd=tmp_path).stdout
    assert f"after retries {after} of 40 trials passed; every figure counts the first" in shown
    # Without the Parquet file a query reads the journal, by the same rule.
    (run / "results.parquet").unlink()
    assert figures(tmp_path, run) == again
    sql = "SELECT count(*) FILTER (last_status = 'passed'), sum(spent_usd) FROM trials"
    row = json.loads(proctor("sql", sql, "--json", cwd=tmp_path).stdout)["rows"][0]
    assert [*(row if isinstance(row, list) else row.values())] == [after, again["report"][2]]


def test_a_failed_trial_is_retried_until_it_passed(tmp_path):
    """R-R7: --retry-failed looks at the last attempt, so that a passed retry is not repeated."""
    write(tmp_path, "half", cases=1)
    proctor("run", "suite.yaml", "--trials", 6, "--quiet", cwd=tmp_path)
    run = only_run(tmp_path / "results")
    (tmp_path / "bots.py").write_text("def half(input):\n    return 'yes'\n")
    proctor("run", "--retry-failed", run, "--quiet", cwd=tmp_path)
    lines = len((run / "trials.jsonl").read_text().splitlines())
    assert lines > 6
    dry = proctor("run", "--retry-failed", run, "--dry-run", cwd=tmp_path)
    assert "0 of 6 trials left" in dry.stdout
    proctor("run", "--retry-failed", run, "--quiet", cwd=tmp_path)
    assert len((run / "trials.jsonl").read_text().splitlines()) == lines


def test_results_of_an_unfinished_run_say_what_is_missing(tmp_path):
    """R-Q1, R-R4: the planned trials of a run that a limit stopped are named beside its figures,
    until it is resumed; cells that stopped early miss none."""
    write(tmp_path, "half")
    proctor("run", "suite.yaml", "--trials", 5, "--max-trials", 12, "--quiet", cwd=tmp_path)
    run = only_run(tmp_path / "results")
    missing = f"{run.parent.name}/{run.name}: 12 of 20 planned trials done (trial limit reached"
    assert missing in proctor("results", cwd=tmp_path).stdout
    (note,) = json.loads(proctor("results", "--json", cwd=tmp_path).stdout)["notes"]
    assert missing in note
    board = proctor("leaderboard", cwd=tmp_path).stdout
    assert "2 cells with fewer trials than planned" in board
    proctor("run", "--resume", run, "--quiet", cwd=tmp_path)
    assert "planned trials done" not in proctor("results", cwd=tmp_path).stdout
    proctor("run", "suite.yaml", "--trials", 5, "--early-stop", "--quiet", cwd=tmp_path)
    assert json.loads(proctor("results", "--json", cwd=tmp_path).stdout)["notes"] == []


def test_an_early_stop_counts_the_same_everywhere(tmp_path):
    """R-R4, R-Q1: trials after the decision are in no denominator; their cost is in all sums."""
    write(tmp_path, "wrong", cases=2)
    options = ("--trials", 20, "--concurrency", 8, "--early-stop", "--quiet")
    done = proctor("run", "suite.yaml", *options, cwd=tmp_path)
    run = only_run(tmp_path / "results")
    found = figures(tmp_path, run)
    del found["status"]  # it counts trials as they end
    assert len(set(found.values())) == 1, found
    passed, judged, cost = found["report"]
    assert passed == 0
    assert cost == len((run / "trials.jsonl").read_text().splitlines()) >= judged
    assert f"0 of {judged} judged trials" in done.stdout
    # The number of trials depends on their outcomes, so subsets of k trials are no fair sample.
    board = json.loads(proctor("leaderboard", run, "--json", cwd=tmp_path).stdout)["rows"][0]
    for name in ("pass_at_k", "pass_hat_k"):
        assert board[name]["value"] is None, name
        assert board[name]["reason"].startswith("stopped early")
    trials = query(run)
    for figure in (trials.pass_at_k(1), trials.pass_hat_k(20)):
        assert figure.value is None
        assert figure.reason == board["pass_at_k"]["reason"]


def flip(run: Path, status: str) -> int:
    """Damage every line of a status by one byte; return how many there are."""
    lines = (run / "trials.jsonl").read_bytes().splitlines(keepends=True)
    wanted = f'"status":"{status}"'.encode()
    hit = [wanted in line for line in lines]
    damaged = [b"}" + line[1:] if bad else line for line, bad in zip(lines, hit, strict=True)]
    (run / "trials.jsonl").write_bytes(b"".join(damaged))
    return sum(hit)


@pytest.fixture
def damaged(tmp_path):
    """A run whose failed lines are damaged, and a good one before it."""
    write(tmp_path, "half", cases=8, threshold=0.1)
    for name in ("before", "after"):
        proctor("run", "suite.yaml", "--trials", 10, "--name", name, "--quiet", cwd=tmp_path)
    (before,) = (tmp_path / "results" / "before").iterdir()
    (after,) = (tmp_path / "results" / "after").iterdir()
    return before, after, flip(after, "failed")


def test_every_reader_reports_damaged_lines(tmp_path, damaged):
    """R-D1, R-R11: unreadable lines are named, and neither a run nor a gate on them is green."""
    before, after, lost = damaged
    assert lost > 10
    said = f"{lost} parts of the run cannot be read"
    gate = proctor("gate", after, "--against", before, cwd=tmp_path)
    assert gate.returncode == 2, gate.stdout
    assert said in gate.stderr
    # Not NO REGRESSION either: what is left may be what passed.
    assert gate.stdout.startswith(f"INCONCLUSIVE: {lost} parts of the candidate cannot be read")
    report = proctor("report", after, cwd=tmp_path)
    assert said in report.stdout
    for command in (
        ("compare", before, after),
        ("leaderboard", after),
        ("runs", "share", after, "-o", tmp_path / "page.html"),
    ):
        assert said in proctor(*command, cwd=tmp_path).stderr, command
    assert said in (tmp_path / "page.html").read_text()
    # Queries read the journal once the Parquet file is gone.
    (after / "results.parquet").unlink()
    for command in (("results", after), ("sql", "SELECT count(*) FROM trials")):
        done = proctor(*command, cwd=tmp_path)
        assert done.stderr.count("dropped a line") == 1, "one warning for a run"
        assert f"(and {lost - 1} more lines)" in done.stderr


def test_reports_for_machines_and_progress_name_damaged_lines(tmp_path, damaged):
    """R-D1, R-N7: CI formats, `runs status`, `diagnose` and `rerun` say that lines are lost."""
    _, after, lost = damaged
    said = f"{lost} parts of the run cannot be read"
    for form in ("junit", "github"):
        assert said in proctor("report", after, "--format", form, cwd=tmp_path).stdout, form
    prometheus = proctor("report", after, "--format", "prometheus", cwd=tmp_path).stdout
    assert f"proctor_damage {lost}" in prometheus
    status = proctor("runs", "status", after, cwd=tmp_path)
    assert (status.returncode, said in status.stderr) == (2, True)
    for command in (("diagnose", after), ("rerun", after, "--quiet")):
        assert said in proctor(*command, cwd=tmp_path).stderr, command


@pytest.mark.parametrize("harm", ["flipped", "truncated"])
def test_queries_report_a_journal_damaged_after_the_run(tmp_path, harm):
    """R-D1, R-Q1: `results` and `sql` warn, though results.parquet is intact; a copy is no harm."""
    write(tmp_path, "half", cases=8, threshold=0.1)
    proctor("run", "suite.yaml", "--trials", 10, "--quiet", cwd=tmp_path)
    run = only_run(tmp_path / "results")
    journal = run / "trials.jsonl"
    commands = (("results", run), ("sql", "SELECT count(*) FROM trials"))
    shutil.copytree(run, tmp_path / "copied" / "suite" / run.name, copy_function=shutil.copyfile)
    for command in (*commands, ("results", "--results", tmp_path / "copied")):
        assert not proctor(*command, cwd=tmp_path).stderr, command
    whole = journal.read_bytes()
    # The first line: the end of the journal, which identifies it, stays as it was.
    lines = whole.splitlines(keepends=True)
    journal.write_bytes(b"}" + whole[1:] if harm == "flipped" else b"".join(lines[:30]))
    said = (
        "trials.jsonl:1: dropped a line"
        if harm == "flipped"
        else "it is shorter than when the run ended"
    )
    for command in commands:
        assert said in proctor(*command, cwd=tmp_path).stderr, command


def test_a_resumed_run_stays_damaged(tmp_path, damaged):
    """R-R7, R-R11: lost trials are run again, but what was lost may have failed: never green."""
    before, after, lost = damaged
    (tmp_path / "bots.py").write_text("def half(input):\n    return 'yes'\n")
    done = proctor("run", "--resume", after, cwd=tmp_path)
    assert done.returncode == 2
    assert f"{lost} parts of the run cannot be read" in done.stdout
    assert proctor("gate", after, "--against", before, cwd=tmp_path).returncode == 2
    found = proctor("results", after, cwd=tmp_path)
    assert f"{lost} of its lines could not be read" in found.stderr + found.stdout


def test_status_is_right_after_a_kill(tmp_path):
    """R-R7: the counts of a dead run come from its journal, not from its last heartbeat."""
    write(tmp_path, "slow", cases=1)
    one = ("--trials", 8, "--concurrency", 1, "--sync", "always", "--quiet")
    with (tmp_path / "out").open("wb") as out:
        child = start("run", "suite.yaml", *one, stdout=out, stderr=out, cwd=tmp_path)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        journals = list((tmp_path / "results").glob("*/*/trials.jsonl"))
        if journals and journals[0].read_bytes().count(b"\n") == 3:
            break
        time.sleep(0.02)
    early = proctor("runs", "status", "latest", "--json", cwd=tmp_path)
    assert json.loads(early.stdout)["runs"][0]["beat"]["planned"] == 8
    os.kill(child.pid, signal.SIGKILL)
    child.wait(60)
    said = proctor("runs", "status", "latest", cwd=tmp_path)
    assert "3/8 done" in said.stdout, said.stdout
    assert "3/3 passed" in said.stdout


def test_a_damaged_run_is_not_judged_again(tmp_path, damaged):
    """R-D1, R-R11: `test --traces RUN` is not green over the lines that are left."""
    _, after, lost = damaged
    done = proctor("test", "suite.yaml", "--traces", after, cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert f"{lost} parts of the run cannot be read" in done.stderr

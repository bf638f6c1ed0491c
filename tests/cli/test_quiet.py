"""Commands print nothing but their result."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import proctor
from run_parts import write_suite

import proctor as api
from proctor.runs.run import Run
from proctor.runs.summary import Verdict


def test_quiet_wins_over_events(tmp_path: Path) -> None:
    """R-R6: `--json --quiet` prints the one document and nothing else."""
    suite = write_suite(tmp_path, cases=1)
    done = proctor("run", suite, "--trials", 1, "--json", "--quiet", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""
    assert json.loads(done.stdout)["exit_code"] == 0


def test_what_was_not_run_is_no_error(tmp_path: Path) -> None:
    """R-R1: cells whose trials never began are NOT RUN, not INFRA_ERROR; the exit code is 2."""
    run = api.run(
        write_suite(tmp_path),
        trials=2,
        limits={"max_trials": 2},
        concurrency=1,
        results=tmp_path / "r",
    )
    assert sorted(run.verdicts.values()) == [Verdict.NOT_RUN, Verdict.NOT_RUN, Verdict.PASS]
    assert run.exit_code == 2
    kept = json.loads((run.path / "results.json").read_text())
    assert [cell["verdict"] for cell in kept["cells"]] == ["PASS", "NOT RUN", "NOT RUN"]
    shown = proctor("report", run.path)
    assert "NOT RUN" in shown.stdout
    assert "INFRA_ERROR" not in shown.stdout


@pytest.mark.slow
def test_an_interrupted_extension_is_told_in_words(tmp_path: Path) -> None:
    """R-R6, R-Q2: Ctrl-C while a gate runs more trials leaves no complaint of a library behind."""
    suite = write_suite(tmp_path, agent="bots:instant", cases=2)
    for name in ("old", "new"):
        proctor("run", suite, "--trials", 2, "--name", name, "--quiet", cwd=tmp_path)
    (tmp_path / "bots.py").write_text(
        "import asyncio, os, sys\n"
        "async def instant(input):\n"
        "    print('begun', file=sys.stderr, flush=True)\n"
        "    await asyncio.sleep(600)\n"
    )
    old, new = (next((tmp_path / "results" / name).iterdir()) for name in ("old", "new"))
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "proctor", "gate", new, "--against", old),
            *("--inconclusive", "extend", "--extend-by", "1"),
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as gate:
        assert gate.stderr is not None
        begun = gate.stderr.readline()
        assert begun == "begun\n", begun
        os.kill(gate.pid, signal.SIGINT)
        out, errors = gate.communicate(timeout=60)
    assert gate.returncode == 130
    assert "interrupted by SIGINT" in out
    assert "leaked" not in errors
    assert Run(new).totals.cancelled == 2

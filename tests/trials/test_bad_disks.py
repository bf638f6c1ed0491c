"""Disks that fill up, folders that cannot be written or that go away."""

import ctypes
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import proctor
from run_parts import journal, only_run, rows, write_suite

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1


def bounded(bound: Callable[[], None], *args: Any) -> subprocess.CompletedProcess[str]:
    """The command, which begins with this in its new process."""
    command = [sys.executable, "-m", "proctor", *map(str, args)]
    return subprocess.run(command, preexec_fn=bound, capture_output=True, text=True, check=False)


def bound_by_permissions() -> None:
    """Where tests run as root, permissions bind only after this right is given up."""
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


def test_a_full_disk_ends_the_run_and_keeps_what_is_finished(tmp_path: Path) -> None:
    """R-R9, R-R11: one clear line, exit 2; with room again, --resume does the rest."""
    suite = write_suite(tmp_path, cases=2)

    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    args = ("run", suite, "--trials", 100, "--results", tmp_path / "results", "--quiet")
    full = bounded(no_room, *args)
    assert full.returncode == 2
    (error, hint) = full.stderr.splitlines()
    assert "error: " in error
    assert "cannot write" in error
    assert "File too large" in error
    assert "--resume" in hint
    run = only_run(tmp_path / "results")
    before = journal(run)
    assert 0 < len(before) < 200
    assert (run / "trials.jsonl").read_bytes().endswith(b"\n"), "no torn line is left"
    assert proctor("run", "--resume", run, "--quiet").returncode == 0
    kept = [t for t in before if t["status"] != "cancelled"]
    after = {(t["case"], t["index"]): t for t in journal(run)}
    assert all(after[t["case"], t["index"]] == t for t in kept)
    whole = proctor(*args[:-3], "--results", tmp_path / "whole")
    assert whole.returncode == 0
    unattempted = [[v for i, v in enumerate(row) if i != 6] for row in rows(run)]
    assert unattempted == [
        [v for i, v in enumerate(row) if i != 6] for row in rows(only_run(tmp_path / "whole"))
    ]


def test_a_folder_deleted_meanwhile_is_noticed(tmp_path: Path) -> None:
    """R-R9, R-R11: trials are not written into the void without a word."""
    suite = write_suite(tmp_path, agent="rogue:agent", cases=1)
    (tmp_path / "rogue.py").write_text(
        "import asyncio, pathlib, shutil\n"
        f"results = pathlib.Path({str(tmp_path / 'results')!r})\n"
        "calls = []\n"
        "async def agent(input, seed):\n"
        "    calls.append(seed)\n"
        "    third = len(calls) == 3\n"
        "    while third and not any(\n"
        "        file.stat().st_size for file in results.glob('*/*/trials.jsonl')\n"
        "    ): await asyncio.sleep(0.01)\n"
        "    for run in results.glob('*/*') if third else (): shutil.rmtree(run)\n"
        "    return input\n"
    )
    args = ("--quiet", "--sync", "always", "--trials", 10)
    done = proctor("run", suite, "--results", tmp_path / "results", *args)
    assert done.returncode == 2
    assert "the journal was deleted while the run was writing it" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("what", ["root", "run"])
def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, what: str) -> None:
    """R-R11: permissions are an error of set-up, told with the place."""
    suite = write_suite(tmp_path, cases=1)
    results = tmp_path / "results"
    assert proctor("run", suite, "--results", results, "--max-trials", 1).returncode == 2
    run = only_run(results)
    places = [run, *run.iterdir()] if what == "run" else [results]
    for place in places:
        place.chmod(0o555 if place.is_dir() else 0o444)
    try:
        if what == "root":
            done = bounded(bound_by_permissions, "run", suite, "--results", results / "more")
        else:
            done = bounded(bound_by_permissions, "run", "--resume", run)
    finally:
        for place in places:
            place.chmod(0o755 if place.is_dir() else 0o644)
    assert done.returncode == 2
    assert "Permission denied" in done.stderr
    assert str(results) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_results_root_that_is_a_file_is_said(tmp_path: Path) -> None:
    """R-R11: the place is named, nothing is run."""
    suite = write_suite(tmp_path, cases=1)
    (tmp_path / "results").write_text("")
    done = proctor("run", suite, "--results", tmp_path / "results")
    assert done.returncode == 2
    assert "cannot create a run folder" in done.stderr

"""kill -9 at any moment: nothing finished is lost, nothing is done twice, results are the same."""

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from run_parts import Children, journal, only_run, rows, until, write_suite

from proctor.runs.run import Run

TRIALS = 40
CASES = 3
KILLS = 36


def key(trial: dict[str, Any]) -> tuple[str, int]:
    return trial["case"], trial["index"]


class Batch:
    """A suite, and what an uninterrupted run of it gives."""

    def __init__(self, folder: Path, children: Children) -> None:
        self.folder = folder
        self.children = children
        self.suite = write_suite(folder, cases=CASES)
        self.args = ("--trials", TRIALS, "--concurrency", 8, "--json")
        began = time.monotonic()
        assert self.run("reference") == 0
        self.seconds = time.monotonic() - began
        self.reference = only_run(folder / "reference")
        self.expected = rows(self.reference)
        self.bytes = (self.reference / "trials.jsonl").stat().st_size

    def run(self, results: str) -> int:
        return self.children.run(*self._command(results))

    def start(self, results: str) -> tuple[int, Path]:
        """A run that has begun: its process and its folder, without which nothing is resumed."""
        pid = self.children.start(*self._command(results))
        root = self.folder / results
        until(lambda: len(list(root.glob("*/*/_spec_.yaml"))) == 1)
        return pid, only_run(root)

    def _command(self, results: str) -> tuple[Any, ...]:
        return ("run", self.suite, "--results", self.folder / results, *self.args)

    def reported(self) -> set[tuple[str, int]]:
        """Trials the last child said are finished, in lines it wrote whole."""
        lines = self.children.err.read_bytes().splitlines(keepends=True)
        whole = [line for line in lines if line.startswith(b"{") and line.endswith(b"\n")]
        events = [json.loads(line) for line in whole]
        return {key(event) for event in events if event["event"] == "finished"}


SIGNS = (".ordered*", ".results.parquet*", "results.parquet", ".results.json*", "results.json")
"""Files that come and go while a run writes its results; the table and the rest meanwhile."""


def until_size(path: Path, size: int) -> None:
    until(lambda: path.exists() and path.stat().st_size >= size, every=0.0005)


def until_lines(run: Path, count: int) -> None:
    until(lambda: len(journal(run)) >= count, every=0.0005)


def until_sign(run: Path, sign: str) -> None:
    until(lambda: bool(list(run.glob(sign))) or (run / "summary.csv").exists(), every=0.0005)


def kill(pid: int, children: Children) -> None:
    os.kill(pid, signal.SIGKILL)
    assert children.wait() in (-signal.SIGKILL, 0)


def holds_after_resume(batch: Batch, run: Path, before: dict[tuple[str, int], Any]) -> None:
    """What the issue promises of a run that was killed and resumed."""
    assert batch.children.run("run", "--resume", run, "--json") == 0
    after = journal(run)
    assert len(after) == TRIALS * CASES, "every trial once"
    assert len({key(trial) for trial in after}) == TRIALS * CASES
    by_key = {key(trial): trial for trial in after}
    assert all(by_key[each] == trial for each, trial in before.items()), "none is done again"
    assert rows(run) == batch.expected
    assert not list(run.glob(".*.part"))


@pytest.mark.slow
def test_kill_at_any_moment_of_a_batch(tmp_path: Path) -> None:
    """R-R9: after kill -9 and --resume each trial exists once, with the results of a whole run."""
    random_moment = random.Random(4711)
    seen_unfinished = 0
    children = Children(tmp_path / "scratch")
    batch = Batch(tmp_path, children)
    for number in range(KILLS):
        pid, run = batch.start(f"killed-{number}")
        if number % 2:
            time.sleep(random_moment.uniform(0, batch.seconds))  # the moment is the point
        else:
            until_size(run / "trials.jsonl", random_moment.randrange(batch.bytes))
        kill(pid, children)
        before = {key(trial): trial for trial in journal(run)}
        assert batch.reported() <= set(before), "what was reported finished is on disk"
        seen_unfinished += 0 < len(before) < TRIALS * CASES
        holds_after_resume(batch, run, before)
    assert seen_unfinished >= KILLS // 4, "the kills must hit batches that are running"


@pytest.mark.slow
def test_kill_while_finalising(tmp_path: Path) -> None:
    """R-R9: a run killed while it writes its results is finished by --resume, running nothing."""
    hit = 0
    children = Children(tmp_path / "scratch")
    batch = Batch(tmp_path, children)
    for number in range(10):
        pid, run = batch.start(f"killed-{number}")
        until_sign(run, SIGNS[number % len(SIGNS)])
        hit += not (run / "checksums.json").exists()  # the last of them
        kill(pid, children)
        before = {key(trial): trial for trial in journal(run)}
        holds_after_resume(batch, run, before)
        assert (run / "results.json").exists()
        assert (run / "summary.csv").exists()
    assert hit >= 3, "the kills must hit runs that are finalising"


@pytest.mark.slow
def test_a_run_killed_again_and_again_gets_there(tmp_path: Path) -> None:
    """R-R9: resumes may be killed as well; every trial's trace is readable in the end."""
    chance = random.Random(7)
    children = Children(tmp_path / "scratch")
    batch = Batch(tmp_path, children)
    pid, run = batch.start("often")
    done = 0
    for _ in range(8):
        until_lines(run, min(done + chance.randrange(1, 30), TRIALS * CASES))
        kill(pid, children)
        done = len(journal(run))
        pid = children.start("run", "--resume", run, "--json")
    children.wait()
    holds_after_resume(batch, run, {key(trial): trial for trial in journal(run)})
    again = Run(run)
    sizes = {t.key: len(trace.tool_calls) for t in again.trials() if (trace := again.trace(t))}
    assert len(sizes) == TRIALS * CASES
    assert set(sizes.values()) == {1, 2, 3}

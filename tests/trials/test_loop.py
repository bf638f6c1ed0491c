"""The event loop runs are driven by, and what a session hands to those who read the run."""

import asyncio
import time
from pathlib import Path

import pytest

import proctor
from proctor.background import run_sync
from proctor.errors import ProctorError
from proctor.runs.journal import read_journal
from proctor.runs.run import Run
from proctor.runs.trial import PlannedTrial, Trial
from proctor.seeds import derive_seed, derive_seeds
from proctor.trials.options import RunOptions


def test_sockets_and_timers_work_together():
    """R-R2: an agent may wait for the network and for time in the same loop."""

    async def answered() -> tuple[bytes, float]:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        began = time.perf_counter()
        asyncio.get_running_loop().call_later(0.05, writer.write, b"late\n")
        line = await asyncio.wait_for(reader.readline(), timeout=20)
        server.close()
        return line, time.perf_counter() - began

    line, took = run_sync(answered())
    assert line == b"late\n"
    assert 0.05 <= took < 20


def test_an_agent_that_never_waits_leaves_turns_to_others(tmp_path: Path):
    """R-R6: signals and timers are served while agents return at once."""
    ticks: list[float] = []

    async def at_once(_question: object) -> str:
        return "yes"

    class Watch:
        def planned(self, total: int, kept: object) -> None:
            asyncio.get_running_loop().call_later(0.0, self.tick)

        def tick(self) -> None:
            ticks.append(time.monotonic())
            asyncio.get_running_loop().call_later(0.0, self.tick)

        def started(self, trial: object) -> None: ...
        def finished(self, trial: object) -> None: ...
        def skipped(self, trial: object) -> None: ...

    suite = tmp_path / "suite.yaml"
    suite.write_text("cases: [{input: q, correctness: {expected_in_answer: ['yes']}}]\n")
    proctor.run(
        suite, agent=at_once, trials=400, concurrency=2, results=tmp_path / "r", observer=Watch()
    )
    assert len(ticks) >= 5


def test_what_ended_is_told_before_something_begins(tmp_path: Path):
    """R-R9: whoever watches hears of things in the order they happen, and only of trials that are
    on disk, also where quick trials share a write."""
    told: list[tuple[str, int]] = []

    async def at_once(_question: object) -> str:
        return "yes"

    class Watch:
        def planned(self, total: int, kept: object) -> None: ...
        def skipped(self, trial: object) -> None: ...

        def started(self, trial: PlannedTrial) -> None:
            told.append(("started", trial.index))

        def finished(self, trial: Trial) -> None:
            told.append(("finished", trial.index))
            (journal,) = tmp_path.rglob("trials.jsonl")
            assert trial.index in {kept.index for kept in read_journal(journal)}

    suite = tmp_path / "suite.yaml"
    suite.write_text("cases: [{input: q, correctness: {expected_in_answer: ['yes']}}]\n")
    proctor.run(
        suite, agent=at_once, trials=70, concurrency=1, results=tmp_path / "r", observer=Watch()
    )
    assert told == [(what, index) for index in range(70) for what in ("started", "finished")]


def test_a_run_says_the_same_from_the_session_and_from_its_folder(tmp_path: Path):
    """R-R13, R-D1: what is told at the end is what the folder tells anybody later."""

    async def flaky(input: object, seed: int) -> str:  # noqa: A002 (the word users write)
        await asyncio.sleep(0.001 * (seed % 3))
        return "42" if seed % 4 else "41"

    suite = tmp_path / "suite.yaml"
    suite.write_text(
        "cases:\n"
        "  - {id: b, input: {x: 1}, tags: [t], correctness: {expected_in_answer: ['42']}}\n"
        "  - {id: a, input: q, correctness: {expected_in_answer: ['4', '42']}}\n"
    )
    run = proctor.run(suite, agent=flaky, trials=40, concurrency=7, results=tmp_path / "r")
    later = Run(run.path)
    assert later.spec == run.spec
    assert later.cells == run.cells
    assert later.failures == run.failures
    assert later.failures
    assert later.totals == run.totals


def test_seeds_of_many_repeats_are_those_of_each():
    """R-R5: however many are planned, a repeat has the seed it always had."""
    assert list(derive_seeds(40, 7, "case")) == [derive_seed(7, "case", i) for i in range(40)]
    assert derive_seed(0, "c", 0) != derive_seed(0, "c", 1)


def test_inside_an_event_loop_a_run_has_a_loop_of_its_own(tmp_path: Path):
    """R-R2: in a notebook `proctor.run` blocks and works; an error reaches the caller."""
    loops: list[asyncio.AbstractEventLoop] = []

    async def agent(question: str) -> str:
        loops.append(asyncio.get_running_loop())
        return question

    suite = proctor.Suite(
        cases=(proctor.Case(id="c", input="q", correctness={"exact_match": "q"}),)
    )

    async def notebook() -> proctor.Run:
        loops.append(asyncio.get_running_loop())
        with pytest.raises(ProctorError, match=r"missing\.yaml"):
            proctor.run("missing.yaml", results=tmp_path)
        return proctor.run(suite, agent=agent, trials=3, results=tmp_path)

    run = run_sync(notebook())
    assert (run.verdict, run.totals.passed) == ("PASS", 3)
    outer, *inner = loops
    assert len(inner) == 3
    assert outer not in inner


def test_rules_are_named_in_python_as_on_the_command_line():
    """R-R4: the bare option, one rule, several, none."""
    assert RunOptions(early_stop=True).early_stop == ("hard_fail", "out_of_reach")  # type: ignore[arg-type]
    assert RunOptions(early_stop="sequential").early_stop == ("sequential",)  # type: ignore[arg-type]
    assert RunOptions(early_stop="hard_fail,sequential:0.01").early_stop == (  # type: ignore[arg-type]
        "hard_fail",
        "sequential:0.01",
    )
    assert RunOptions(early_stop=False).early_stop == ()  # type: ignore[arg-type]

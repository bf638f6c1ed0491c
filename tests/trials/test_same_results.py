"""Deterministic agents give the same results however their trials are scheduled."""

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from run_parts import CLOCKS_OF_CELLS, rows

import proctor
from proctor.runs.run import Run
from proctor.seeds import derive_seed
from proctor.spec import Case, Suite


async def shuffled(input: str, seed: int) -> str:  # noqa: A002 (the word of the interface)
    """Takes a seeded time, so that trials finish in an order that is not their plan's."""
    chance = Random(seed)
    for _ in range(chance.randrange(4)):
        await asyncio.sleep(0)
    with proctor.capture.tool_call("dice", {"sides": 6}) as step:
        step.tool_output = chance.randrange(6)
    if step.tool_output == 5:
        raise ValueError(f"seed {seed % 100}")
    return f"{input}: {step.tool_output}"


def a_suite(cases: int = 5, **more: Any) -> Suite:
    return Suite(
        cases=tuple(
            Case(
                id=f"c{i}",
                input=f"q{i}",
                correctness={"regex_match": [f"q{i}", "[0-2]"]},  # type: ignore[arg-type]
                path={"max_tool_calls": 0},  # type: ignore[arg-type]
                **more,
            )
            for i in range(cases)
        )
    )


async def results_of(folder: Path, concurrency: int, **options: Any) -> Run:
    suite = options.pop("suite", None) or a_suite()
    return await proctor.arun(
        suite, agent=shuffled, results=folder / str(concurrency), concurrency=concurrency, **options
    )


async def test_concurrent_is_sequential(tmp_path: Path) -> None:
    """R-R2, R-R5: 500 trials at 1 and at 64 a time, equal but for clocks and ids."""
    sequential = await results_of(tmp_path, 1, trials=100)
    concurrent = await results_of(tmp_path, 64, trials=100)
    finished = [[t.key for t in run.trials()] for run in (sequential, concurrent)]
    assert finished[0] != finished[1], "they must have finished in another order"
    assert rows(sequential.path) == rows(concurrent.path)
    assert len(rows(sequential.path)) == 500
    statuses = Counter(t.status.value for t in sequential.trials())
    assert set(statuses) == {"passed", "hard_fail", "failed"}


def without_clocks(run: Run) -> list[dict[str, Any]]:
    import msgspec

    cells = msgspec.to_builtins(run.cells)
    for cell in cells:
        for name in CLOCKS_OF_CELLS:
            del cell[name]
        for failure in cell["failures"]:
            for sample in failure["samples"]:
                sample.pop("trace_id", None)
                sample.pop("span_ids", None)
    return cells


@pytest.mark.parametrize(
    "rules", [("hard_fail",), ("out_of_reach",), ("hard_fail", "out_of_reach")]
)
async def test_early_stop_does_not_depend_on_scheduling(
    tmp_path: Path, rules: tuple[str, ...]
) -> None:
    """R-R4: verdicts, counts and reasons are those of a sequential run.

    Percentiles of latency are clocks; every other field of the cells is compared.
    """
    case = {"correctness": {"regex_match": "[0-2]", "blocking": "hard_fail" in rules}}
    suite = Suite(
        cases=tuple(Case(id=f"c{i}", input=f"q{i}", threshold=0.6, **case) for i in range(20))  # type: ignore[arg-type]
    )
    runs = [
        await results_of(tmp_path, n, trials=8, early_stop=rules, suite=suite, seed=3)
        for n in (1, 5, 40)
    ]
    summaries = [without_clocks(run) for run in runs]
    assert summaries[0] == summaries[1] == summaries[2]
    stopped = [cell for cell in summaries[0] if cell["early_stop"]]
    assert stopped
    assert any(cell["early_stop"] is None for cell in summaries[0])
    assert all(cell["trials"] < cell["asked"] == 8 for cell in stopped)
    # Sequentially, what was not needed was not run.
    assert runs[0].totals.trials == sum(cell["trials"] for cell in summaries[0])


async def test_an_infrastructure_error_is_no_zero(tmp_path: Path) -> None:
    """R-R4: errors of the infrastructure make nothing out of reach."""
    calls = iter([ConnectionRefusedError("down"), ConnectionRefusedError("down"), "yes", "yes"])

    async def flaky(_question: str) -> str:
        reply = next(calls)
        if isinstance(reply, Exception):
            raise reply
        return reply

    suite = Suite(cases=(Case(id="c", input="q", correctness={"exact_match": "yes"}),))  # type: ignore[arg-type]
    run = await proctor.arun(
        suite,
        agent=flaky,
        results=tmp_path,
        trials=4,
        concurrency=1,
        max_retries=0,
        early_stop=("hard_fail", "out_of_reach"),
        max_not_judged=1,
    )
    (cell,) = run.cells
    assert (cell.trials, cell.infra_error, cell.passed) == (4, 2, 2)
    assert cell.early_stop is None
    assert cell.verdict == "PASS"


async def test_seeds_are_given_and_derived(tmp_path: Path) -> None:
    """R-R5: an agent gets a seed that depends on run seed, case and index, and on nothing else."""

    async def tell(input: str, seed: int) -> str:  # noqa: A002 (the word of the interface)
        return str(seed)

    async def seeds(**options: Any) -> dict[tuple[str, int], str | None]:
        run = await proctor.arun(a_suite(2), agent=tell, results=tmp_path, **options)
        return {(t.case, t.index): t.answer for t in run.trials()}

    first = await seeds(trials=3, seed=1)
    assert first == {
        (f"c{c}", i): str(derive_seed(1, f"c{c}", i)) for c in range(2) for i in range(3)
    }
    assert len(set(first.values())) == 6
    longer = await seeds(trials=5, seed=1, concurrency=1)
    assert first.items() <= longer.items(), "more trials leave the earlier ones as they were"
    assert not set((await seeds(trials=3, seed=2)).values()) & set(first.values())

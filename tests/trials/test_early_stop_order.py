"""Early stop spends hardly more when trials run side by side."""

from pathlib import Path

import pytest
import yaml
from commands import proctor
from run_parts import journal, only_run

AGENT = """
import asyncio
async def wrong(input, seed):
    await asyncio.sleep(0.002 * (seed % 5))
    return "no"
"""


def trials_run(
    folder: Path, cases: int, concurrency: int, rule: str, **case: object
) -> list[tuple[str, int]]:
    """Case and index of the trials that ran, of 10 planned for each case."""
    (folder / "bot.py").write_text(AGENT)
    each = {"input": "q", **case}
    written = {"agent": "bot:wrong", "cases": [{"id": f"c{n:03}", **each} for n in range(cases)]}
    suite = folder / "suite.yaml"
    suite.write_text(yaml.safe_dump(written))
    results = folder / "r"
    more = ("--trials", "10", "--concurrency", str(concurrency), "--quiet")
    stop = ("--early-stop", rule) if rule else ()
    done = proctor("run", suite, "--results", results, *more, *stop)
    assert done.returncode == 1, done.stderr
    return [(line["case"], line["index"]) for line in journal(only_run(results))]


@pytest.mark.parametrize("concurrency", [1, 4, 10])
def test_ten_hopeless_cases_stop_where_a_sequential_run_does(
    tmp_path: Path, concurrency: int
) -> None:
    """R-R4: 10 always failing cases x 10 trials: 10 trials decide them, at any concurrency."""
    ran = trials_run(
        tmp_path, 10, concurrency, "hard_fail", correctness={"expected_in_answer": ["yes"]}
    )
    # The last cells have nobody left to give way to: at most a few trials for each worker.
    assert 10 <= len(ran) <= (10 if concurrency == 1 else 10 + 2 * concurrency)
    assert {case for case, _ in ran} == {f"c{n:03}" for n in range(10)}


@pytest.mark.slow
def test_two_hundred_cells_run_what_decides_them(tmp_path: Path) -> None:
    """R-R4: 200 cells at concurrency 8, each out of reach after 3 failures: about 600 trials."""
    checks = {
        "threshold": 0.75,
        "assertions": [{"type": "output_contains", "value": "yes", "required": False}],
    }
    ran = trials_run(tmp_path, 200, 8, "out_of_reach", **checks)
    assert 600 <= len(ran) <= 616


def test_without_early_stop_the_order_is_that_of_the_plan(tmp_path: Path) -> None:
    """R-R2: one after the other, each case with all its trials before the next."""
    ran = trials_run(tmp_path, 3, 1, "", correctness={"expected_in_answer": ["yes"]})
    assert ran == [(f"c{n:03}", index) for n in range(3) for index in range(10)]


def test_failures_are_counted_over_the_trials_that_count(tmp_path: Path) -> None:
    """R-R10: trials that ended after the stop are in no denominator, also of ranked failures."""
    checks = {"correctness": {"expected_in_answer": ["yes"]}}
    ran = trials_run(tmp_path, 1, 4, "hard_fail", **checks)
    assert len(ran) > 1  # some ran side by side with the one that decided
    shown = proctor("report", only_run(tmp_path / "r")).stdout
    assert "0 of 1 judged trial" in shown
    assert "expected_in_answer: 1 of 1 trial" in shown
    status = proctor("runs", "status", only_run(tmp_path / "r")).stdout
    assert f"{len(ran)}/{len(ran)} done · 0/1 passed · {len(ran) - 1} after an early stop" in status

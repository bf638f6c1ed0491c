"""Caps for a whole run: it stops cleanly, says why, and can be resumed."""

from pathlib import Path
from typing import Any

import pytest

import proctor
from proctor.report import console
from proctor.report.facts import ReportFacts
from proctor.runs.run import Run
from proctor.spec import Case, Suite
from proctor.trials.options import RunBudget, RunOptions
from proctor.trials.resume import aresume

SUITE = Suite(cases=(Case(id="c", input="q", correctness={"regex_match": "^"}),))


async def priced(_question: str) -> str:
    with proctor.capture.llm_call("m", input_tokens=60, output_tokens=40, cost_usd=0.1):
        return "a"


async def unpriced(_question: str) -> str:
    with proctor.capture.llm_call(
        "a-model-nobody-has-a-price-for", input_tokens=60, output_tokens=40
    ):
        return "a"


async def run_of(folder: Path, agent: Any = priced, **options: Any) -> Run:
    limits = {name: options.pop(name) for name in [*options] if name.startswith("max_")}
    options = {"trials": 10, "concurrency": 1, **options}
    return await proctor.arun(SUITE, agent=agent, results=folder, limits=limits, **options)


@pytest.mark.parametrize(
    ("options", "ran", "why"),
    [
        ({"max_cost_usd": 0.35}, 4, "cost limit reached: $0.40 of $0.35"),
        # Ten times 0.1 is a little below 1 in floating point.
        ({"max_cost_usd": 1.0, "trials": 20}, 10, "cost limit reached: $1.00 of $1.00"),
        ({"max_tokens": 250}, 3, "token limit reached: 300 of 250"),
        ({"max_trials": 2}, 2, "trial limit reached: 2 started"),
        ({"max_seconds": 0}, 0, "time limit reached: 0 s"),
    ],
)
async def test_each_cap_stops_the_run_and_says_so(
    tmp_path: Path, options: dict[str, Any], ran: int, why: str
) -> None:
    """R-R8, R-R11: no trial starts once a cap is reached; such a run could not be judged whole."""
    run = await run_of(tmp_path, **options)
    assert (run.totals.trials, run.stopped) == (ran, why)
    assert run.exit_code == 2


async def test_a_cap_is_exceeded_by_no_more_than_what_runs(tmp_path: Path) -> None:
    """R-R8: with four at a time, at most three more trials than the cap allows."""
    run = await run_of(tmp_path, trials=100, concurrency=4, max_cost_usd=1.0)
    assert 10 <= run.totals.trials <= 13


async def test_an_unknown_price_stops_a_run_with_a_money_cap(tmp_path: Path) -> None:
    """R-R8: what cannot be counted cannot be capped; it is never taken for nothing."""
    run = await run_of(tmp_path, unpriced, max_cost_usd=5)
    assert run.totals.trials == 1
    assert run.stopped is not None
    assert "1 model call without a known price, so the cap of $5" in run.stopped
    assert run.totals.cost_usd is None
    assert (await run_of(tmp_path, unpriced)).totals.trials == 10, "without a cap it goes on"


async def test_what_failed_was_paid_for(tmp_path: Path) -> None:
    """R-A4, R-R8: calls of trials that came to nothing count, and the cap holds for them."""

    async def breaks(_question: str) -> str:
        await priced(_question)
        raise ValueError("no idea")

    run = await run_of(tmp_path, breaks, max_cost_usd=0.35)
    assert (run.totals.trials, run.totals.failed) == (4, 4)
    assert (run.totals.cost_usd, run.totals.tokens) == (pytest.approx(0.4), 400)
    assert run.stopped == "cost limit reached: $0.40 of $0.35"


async def test_tries_that_failed_were_paid_for(tmp_path: Path) -> None:
    """R-A4, R-R3: a trial's figures are those of all its tries; its checks see the last."""
    tries = 0

    async def second_time_lucky(question: str) -> str:
        nonlocal tries
        tries += 1
        await priced(question)
        if tries == 1:
            raise ConnectionError("gone")
        return await priced(question)

    suite = Suite(cases=(Case(id="c", input="q", cost={"max_llm_calls": 2}),))
    run = await proctor.arun(suite, agent=second_time_lucky, trials=1, results=tmp_path)
    (trial,) = run.trials
    assert (trial.status, trial.retries) == ("passed", 1)
    assert (trial.llm_calls, trial.cost_usd, trial.tokens) == (3, pytest.approx(0.3), 300)
    assert [check.status for check in trial.checks] == ["pass"]


async def test_a_call_that_was_refused_cost_nothing(tmp_path: Path) -> None:
    """R-R8: a model that does not answer leaves no unknown price, so a money cap still holds."""

    async def refused(question: str) -> str:
        await priced(question)
        with proctor.capture.llm_call("a-model-nobody-has-a-price-for"):
            raise ValueError("HTTP 400: context too long")

    run = await run_of(tmp_path, refused, max_cost_usd=0.35)
    assert run.stopped == "cost limit reached: $0.40 of $0.35"
    assert run.totals.unpriced_calls == 0


async def test_a_stopped_run_is_resumed_with_a_higher_cap(tmp_path: Path) -> None:
    """R-R7, R-R8: the money of earlier sittings counts, and the plan stays the same."""
    first = await run_of(tmp_path, max_cost_usd=0.35)
    assert f"--resume {first.path} with a higher --max-cost" in console.render(ReportFacts(first))
    again = await aresume(first.path, agent=priced)
    assert again.totals.trials == 4, "the cap was reached before"
    more = await aresume(first.path, agent=priced, max_cost_usd=0.75)
    assert (more.totals.trials, more.exit_code) == (8, 2)
    rest = await aresume(first.path, agent=priced, max_cost_usd=100)
    assert (rest.totals.trials, rest.stopped, rest.exit_code) == (10, None, 0)
    assert rest.spec["options"]["max_cost_usd"] == 100


def test_time_is_that_of_the_clock_given() -> None:
    """R-R8: wall time counts from the beginning of the sitting."""
    now = 100.0
    budget = RunBudget(RunOptions(max_seconds=5), clock=lambda: now)
    assert budget.exhausted() is None
    now = 105.0
    assert budget.exhausted() == "time limit reached: 5 s"

"""Retries of failures that may pass, timeouts, and slowing down when a provider asks for it."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

import proctor
from proctor.agents._python import PythonAgentConfig
from proctor.agents.base import AgentError
from proctor.llm.retry import MAX_RETRY_AFTER, parse_retry_after
from proctor.runs.trial import PlannedTrial, Trial
from proctor.spec import Case, Suite
from proctor.trials.executor import LocalExecutor, Throttle
from proctor.trials.options import RunOptions
from proctor.trials.prepare import RunContext, prepare
from proctor.trials.run_trial import run_trial


class Status(Exception):
    """An error as HTTP clients raise them."""

    def __init__(self, status_code: int, retry_after: float | None = None) -> None:
        super().__init__(f"status {status_code}")
        self.status_code, self.retry_after = status_code, retry_after


def context_of(agent: Any, **options: Any) -> RunContext:
    return prepare(
        Suite(cases=(Case(id="c", input="q", correctness={"regex_match": "^"}),)),
        RunOptions(**options),
        agents={"a": PythonAgentConfig.of(agent)},
    )


async def tried(
    errors: list[Exception], *, seed: int = 1, **options: Any
) -> tuple[Trial, list[float], int]:
    """A trial of an agent that raises these first; the waits between tries; how often it ran."""
    left, waits, calls = list(errors), list[float](), 0

    async def agent(_question: str) -> str:
        nonlocal calls
        calls += 1
        if left:
            raise left.pop(0)
        return "fine"

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    context = context_of(agent, **options)
    context.sleep = sleep
    trial, _ = await run_trial(PlannedTrial(case="c", agent="a", index=0, seed=seed), context)
    return trial, waits, calls


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("slow"),
        ConnectionResetError("gone"),
        *(Status(code) for code in (429, 500, 502, 503, 504)),
        AgentError("the other side is down", transient=True),
    ],
    ids=str,
)
async def test_what_may_pass_is_tried_again(error: Exception) -> None:
    """R-R3: each kind of transient failure, and that it is recorded."""
    trial, waits, calls = await tried([error, error])
    assert trial.status == "passed"
    assert (trial.retries, calls, len(waits)) == (2, 3, 2)
    assert trial.retry_errors == (f"{type(error).__name__}: {error}",) * 2


@pytest.mark.parametrize(
    "error", [ValueError("no"), Status(400), Status(401), Status(404), KeyError("k")], ids=str
)
async def test_what_will_not_pass_is_not(error: Exception) -> None:
    """R-R3: other failures end the trial at once."""
    trial, waits, calls = await tried([error])
    # A refused key says nothing about the agent.
    refused = getattr(error, "status_code", None) == 401
    assert trial.status == ("infra_error" if refused else "failed")
    assert (calls, waits, trial.retries) == (1, [], 0)
    assert trial.error is not None
    assert trial.error.type == type(error).__name__


async def test_three_retries_with_growing_waits_drawn_from_the_whole_range() -> None:
    """R-R3: uniform(0, min(1·2^k, 30 s)) before retry k, three of them, then it is infra."""
    seen: list[list[float]] = []
    for seed in range(200):
        trial, waits, calls = await tried([Status(503)] * 9, seed=seed)
        assert (trial.status, calls, len(waits), trial.retries) == ("infra_error", 4, 3, 3)
        seen.append(waits)
    for k, drawn in enumerate(zip(*seen, strict=True)):
        bound = min(2**k, 30)
        assert 0 <= min(drawn) < 0.05 * bound
        assert 0.95 * bound < max(drawn) <= bound
        assert abs(sum(drawn) / len(drawn) / bound - 0.5) < 0.08
    _, waits, _ = await tried([Status(503)] * 9, max_retries=8)
    assert len(waits) == 8
    assert all(wait <= 30 for wait in waits)


async def test_retry_after_is_honoured() -> None:
    """R-R3: at least as long as the server asked; one that asks for too long is down."""
    _, waits, _ = await tried([Status(429, retry_after=7.5)])
    assert waits == [7.5]
    trial, waits, _ = await tried([Status(429, retry_after=MAX_RETRY_AFTER + 1)])
    assert (trial.status, waits) == ("infra_error", [])
    assert parse_retry_after("12") == 12
    assert parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert parse_retry_after("soon") is None


async def test_the_timeout_covers_all_tries_and_really_ends_the_trial() -> None:
    """R-R1, R-R8: the trial's own limit is the agent's and not retried; waiting past it is not
    begun."""

    async def never(_question: str) -> None:
        await asyncio.sleep(600)

    context = context_of(never, timeout=0.05)
    began = time.monotonic()
    trial, _ = await run_trial(PlannedTrial(case="c", agent="a", index=0, seed=1), context)
    assert time.monotonic() - began < 60, "not the ten minutes that the agent takes"
    assert (trial.status, trial.category, trial.score) == ("failed", "timeout", 0.0)
    assert trial.error is not None
    assert trial.error.type == "TrialTimeout"
    assert trial.retries == 0
    trial, waits, calls = await tried([Status(429, retry_after=60)], timeout=5.0)
    assert (trial.status, waits, calls) == ("infra_error", [], 1)


def test_slots_halve_on_overload_and_come_back() -> None:
    """R-R8: several 429s at once count as one; trials that go well win slots back."""
    now = 0.0
    throttle = Throttle(16, clock=lambda: now)
    throttle.slow_down()
    throttle.slow_down()
    assert throttle.limit == 8
    now = 1.5
    throttle.slow_down()
    assert throttle.limit == 4
    now = 5.0
    for _ in range(300):
        throttle.leave()
    assert throttle.limit == 16


async def test_a_provider_that_says_slow_down_sees_fewer_at_once() -> None:
    """R-R8: after a 429 the executor runs half as many trials at a time, and finishes all."""
    active, most_after, told = 0, 0, False

    async def agent(_question: str) -> str:
        nonlocal active, most_after, told
        active += 1
        try:
            if not told:
                told = True
                raise Status(429)
            for _ in range(20):
                await asyncio.sleep(0)
                # What had started before the 429 has ended by now.
                most_after = max(most_after, active) if started > 40 else most_after
            return "fine"
        finally:
            active -= 1

    async def at_once(_seconds: float) -> None:
        return None

    started, delivered = 0, list[Trial]()
    context = context_of(agent)
    context.sleep = at_once

    def trials() -> Any:
        nonlocal started
        for index in range(80):
            started += 1
            yield PlannedTrial(case="c", agent="a", index=index, seed=index)

    await LocalExecutor(context, 16).run(trials(), lambda _p, trial, _t: delivered.append(trial))
    assert len(delivered) == 80
    assert 0 < most_after <= 8


async def test_retries_are_counted_in_the_summary(tmp_path: Path) -> None:
    """R-R13: retries in all, and trials with retries."""
    failures = iter([True, True, False, True, False, False])

    async def agent(_question: str) -> str:
        if next(failures):
            raise Status(503, retry_after=0)
        return "fine"

    suite = Suite(cases=(Case(id="c", input="q", correctness={"regex_match": "^"}),))
    # The waits are drawn from at most a second or two: real time, and little of it.
    run = await proctor.arun(suite, agent=agent, results=tmp_path, trials=3, concurrency=1)
    (cell,) = run.cells
    assert (cell.retries, cell.trials_with_retries, cell.passed) == (3, 2, 3)


async def test_a_retried_trial_leaves_no_directory_of_an_earlier_attempt() -> None:
    """R-A2: each attempt has its own working directory, and none outlives the trial."""
    made: list[Path] = []

    async def agent(_question: str, workdir: Path) -> str:
        made.append(workdir)
        if len(made) < 3:
            raise Status(503, retry_after=0)
        return "fine"

    async def at_once(_seconds: float) -> None:
        return None

    context = context_of(agent)
    context.sleep = at_once
    trial, _ = await run_trial(PlannedTrial(case="c", agent="a", index=0, seed=1), context)
    assert (trial.status, len(set(made))) == ("passed", 3)
    assert not any(path.exists() for path in made)
    assert trial.workdir is None

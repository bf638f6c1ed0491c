"""Trials that are judged and kept in groups: nothing about any of them may show it."""

import asyncio
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import proctor
from proctor.agents.base import AgentReply
from proctor.agents.python import PythonAgentConfig
from proctor.checks.evaluate import PlannedCheck
from proctor.checks.registry import CheckContext
from proctor.checks.result import Layer, Outcome, broken, held
from proctor.errors import first_of
from proctor.runs.model import PlannedTrial, TrialStatus
from proctor.runs.run import Run
from proctor.spec import Case
from proctor.trace import Span, SpanKind, Trace
from proctor.trace.capture import current_trace
from proctor.trace.redact import default_redactor
from proctor.trials.executors import Job
from proctor.trials.executors.local import MOST, PATIENCE, TOGETHER, WAITED_MS, LocalExecutor
from proctor.trials.perform import Bench, Finished, PreparedCase, perform

SECRET = "sk-" + "aB3dE" * 9


def always(_options: object, _context: CheckContext) -> Outcome:
    return held("so it is")


def bench_of(agent: Callable[..., Any], check: Callable[..., Any] = always) -> Bench:
    planned = PlannedCheck("c1", "mine", Layer.CORRECTNESS, None, check, weight=1.0, blocking=True)
    prepared = PreparedCase(Case(id="c", input="q"), "q", [planned], 1.0)
    agents = {"a": PythonAgentConfig.of(agent)}
    return Bench(cases={"c": prepared}, agents=agents, redactor=default_redactor())


def jobs_of(count: int) -> Iterator[Job]:
    for number in range(count):
        yield Job(PlannedTrial(case="c", agent="a", index=number, seed=number), number, 1, number)


async def run_all(
    bench: Bench, count: int, *, together: bool, at_once: int = 4
) -> dict[int, Finished]:
    done: dict[int, Finished] = {}

    def deliver(job: Job, finished: Finished) -> None:
        assert job.number not in done
        done[job.number] = finished

    await LocalExecutor(bench, at_once, together=together).run(jobs_of(count), deliver)
    return done


async def by_seed(input: object, seed: int) -> str:  # noqa: A002 (the word users write)
    if seed % 3:
        await asyncio.sleep(0.0001 * (seed % 5))
    if seed % 7 == 3:
        raise ValueError(f"no {seed}")
    return f"answer {seed}"


def odd(_options: object, context: CheckContext) -> Outcome:
    return held("odd") if int(context.answer.split()[1]) % 2 else broken("even")


async def test_a_trial_comes_to_the_same_alone_and_among_others():
    """R-R2, R-R3: judged one by one or in groups, each trial has its own status, score, answer,
    error and trace."""

    async def facts(*, together: bool) -> list[tuple[Any, ...]]:
        done = await run_all(bench_of(by_seed, odd), 3 * TOGETHER + 5, together=together)
        return [
            (n, t.status, t.score, t.answer, t.error, trace and trace.response)
            for n, (t, trace, _) in sorted(done.items())
        ]

    alone = await facts(together=False)
    assert alone == await facts(together=True)
    assert {fact[1] for fact in alone} == {
        TrialStatus.PASSED, TrialStatus.HARD_FAIL, TrialStatus.INFRA_ERROR,
    }  # fmt: skip


async def test_a_check_that_waits_without_saying_so_is_waited_for():
    """R-R3: a function that returns something to await is judged like any other."""

    async def at_once(_question: object) -> str:
        return "fine"

    def check(_options: object, context: CheckContext) -> Any:
        async def later() -> Outcome:
            await asyncio.sleep(0.001)
            if context.trace.trace_id[0] == "0":
                raise ValueError("the check broke")
            return held("at last")

        return later()

    done = await run_all(bench_of(at_once, check), 50, together=True)
    assert len(done) == 50
    for trial, trace, _ in done.values():
        assert trace is not None
        broke = trace.trace_id[0] == "0"
        assert trial.status == (TrialStatus.INFRA_ERROR if broke else TrialStatus.PASSED)
        assert trial.duration_ms >= 1


@pytest.mark.parametrize("seconds", [0, 0.005], ids=["a worker hears", "nobody hears"])
async def test_what_goes_wrong_while_delivering_ends_the_run(seconds: float):
    """R-R11: a disk that is full is told by the run, also where no worker is there to hear it."""

    async def soon(_question: object) -> str:
        await asyncio.sleep(seconds)
        return "fine"

    def deliver(_job: Job, _finished: Finished) -> None:
        raise OSError("disk full")

    executor = LocalExecutor(bench_of(soon), 3, together=True)
    with pytest.raises((OSError, ExceptionGroup)) as told:
        await executor.run(jobs_of(100_000), deliver)
    error = told.value
    assert "disk full" in str(first_of(error) if isinstance(error, ExceptionGroup) else error)


async def test_stopping_delivers_what_had_ended_and_what_ran():
    """R-R6: every job taken comes back: finished where the agent had ended, else cancelled."""
    done: dict[int, Finished] = {}
    executor: LocalExecutor

    async def agent(input: object, seed: int) -> str:  # noqa: A002 (the word of the interface)
        if seed == 5:
            executor.stop()
        if seed >= 5:
            await asyncio.sleep(60)
        return "fine"

    executor = LocalExecutor(bench_of(agent), 2, together=True)
    taken: list[int] = []

    def jobs() -> Iterator[Job]:
        for job in jobs_of(100):
            taken.append(job.number)
            yield job

    await executor.run(jobs(), lambda job, finished: done.update({job.number: finished}))
    assert sorted(done) == taken
    statuses = {n: finished.trial.status for n, finished in done.items()}
    assert all(statuses[n] == TrialStatus.PASSED for n in taken if n < 5)
    assert all(statuses[n] == TrialStatus.CANCELLED for n in taken if n >= 5)


@pytest.mark.parametrize("place", ["answer", "metadata", "attributes", "parent", "output", "name"])
def test_a_trial_without_steps_keeps_no_secret(place: str, tmp_path: Path):
    """R-T7: the shortest traces are looked through like any other, wherever a secret was put."""

    async def agent(_question: object) -> str:
        trace = current_trace()
        assert trace is not None
        match place:
            case "answer":
                return f"it is {SECRET}"
            case "metadata":
                trace.metadata["note"] = SECRET
            case "attributes":
                trace.spans[0].attributes["note"] = SECRET
            case "parent":
                trace.spans[0].parent_id = SECRET
            case "output":
                trace.spans[0].output = [SECRET]
            case _:
                trace.spans[0].name = SECRET
        return "fine"

    suite = tmp_path / "suite.yaml"
    suite.write_text("cases: [{input: q}]\n")
    run = proctor.run(suite, agent=agent, trials=3, concurrency=2, results=tmp_path / "r")
    kept = [Run(run.path).trace(trial) for trial in run.trials()]
    assert len(kept) == 3
    assert "[redacted:openai_key]" in repr(kept)
    assert SECRET not in repr(kept) + run.folder.journal_path.read_text()


async def test_tokens_of_a_trace_with_a_single_call_are_counted():
    """R-A4: an agent that brings a trace of one model call is charged for it."""
    call = Span(
        span_id="1", trace_id="t", name="chat", kind=SpanKind.LLM, start_ns=1, end_ns=2_000_001,
        model="m", input_tokens=12, output_tokens=3, cost_usd=0.25,
    )  # fmt: skip

    async def agent(_question: object) -> AgentReply:
        return AgentReply("fine", trace=Trace(trace_id="t", spans=[call], response="fine"))

    planned = PlannedTrial(case="c", agent="a", index=0, seed=1)
    trial = (await perform(planned, bench_of(agent))).trial
    assert (trial.input_tokens, trial.output_tokens, trial.llm_calls) == (12, 3, 1)
    assert (trial.cost_usd, trial.unpriced_calls) == (0.25, 0)
    assert trial.latency_ms == pytest.approx(2.0)


def test_no_agent_waits_for_the_trial_of_another_to_be_judged(monkeypatch: pytest.MonkeyPatch):
    """R-R3: agents that wake up together are all given their next trial before any is judged."""
    monkeypatch.setattr("proctor.trials.executors.local.LONG_MS", math.inf)  # a busy machine
    at_once, log = 2 * TOGETHER, list[str]()

    async def run() -> dict[int, Finished]:
        together = asyncio.Event()

        async def agent(input: object, seed: int) -> str:  # noqa: A002 (the word users write)
            log.append("asked")
            if seed == at_once - 1:  # the last of those that start together
                asyncio.get_running_loop().call_later(2 * WAITED_MS / 1000, together.set)
            await (together.wait() if seed < at_once else asyncio.sleep(2 * WAITED_MS / 1000))
            return "yes"

        def check(_options: object, _context: CheckContext) -> Outcome:
            log.append("judged")
            return held("so it is")

        return await run_all(bench_of(agent, check), 2 * at_once, together=True, at_once=at_once)

    done = asyncio.run(run())
    assert len(done) == log.count("judged") == 2 * at_once
    assert log.index("judged") == 2 * at_once


def test_agents_that_never_leave_a_turn_free_do_not_put_off_what_has_ended(
    monkeypatch: pytest.MonkeyPatch,
):
    """R-R9: a trial that has ended is soon judged and kept, whatever other agents do."""
    monkeypatch.setattr("proctor.trials.executors.local.LONG_MS", math.inf)
    monkeypatch.setattr("proctor.trials.executors.local.QUIET", math.inf)  # no turn is free
    log = list[str]()

    async def agent(_input: object) -> str:
        log.append("asked")
        await asyncio.sleep(2 * WAITED_MS / 1000)
        return "yes"

    def check(_options: object, _context: CheckContext) -> Outcome:
        log.append("judged")
        return held("so it is")

    count = int(4 * 3 * PATIENCE / (2 * WAITED_MS / 1000))
    assert count < MOST
    done = asyncio.run(run_all(bench_of(agent, check), count, together=True))
    assert len(done) == log.count("judged") == count
    assert "asked" in log[log.index("judged") :]

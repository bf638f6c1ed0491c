"""One trial from start to end, alone and among others."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from run_one_parts import context_of

import proctor
from proctor.agents._python import PythonAgentConfig
from proctor.agents.base import AgentReply
from proctor.checks.base import Check, CheckContext, CheckResult, failed, passed
from proctor.errors import first_of
from proctor.runs.run import Run
from proctor.runs.trial import PlannedTrial, Trial, TrialStatus
from proctor.trace import Span, SpanKind, Trace
from proctor.trace.capture import current_trace
from proctor.trials.executor import LocalExecutor
from proctor.trials.prepare import RunContext
from proctor.trials.run_trial import run_trial

SECRET = "sk-" + "aB3dE" * 9


def always(_context: CheckContext) -> CheckResult:
    return passed("so it is")


class Given(Check):
    """A check whose judgement is a function, called where the check is evaluated."""

    name: ClassVar[str] = "mine"
    function: Any

    def evaluate(self, ctx: CheckContext, /) -> Any:
        return self.function(ctx)


def checked(agent: Callable[..., Any], check: Callable[..., Any] = always) -> RunContext:
    planned = Given(function=check, id="c1")
    context = context_of(PythonAgentConfig.of(agent), "q")
    context.cases["c"].checks = [planned]
    return context


def planned_trials(count: int) -> Iterator[PlannedTrial]:
    for number in range(count):
        yield PlannedTrial(case="c", agent="a", index=number, seed=number)


def trace_of(line: bytes | None) -> Trace:
    assert line is not None
    return msgspec.json.decode(line, type=Trace)


async def by_seed(input: object, seed: int) -> str:  # noqa: A002 (the word users write)
    if seed % 3:
        await asyncio.sleep(0.0001 * (seed % 5))
    if seed % 7 == 3:
        raise ValueError(f"no {seed}")
    return f"answer {seed}"


def odd(context: CheckContext) -> CheckResult:
    return passed("odd") if int(context.answer.split()[1]) % 2 else failed("even")


async def test_a_trial_comes_to_the_same_alone_and_among_others():
    """R-R2, R-R3: one by one or several at a time, each trial has its own status, score, answer,
    error and trace."""

    def facts(trial: Trial, line: bytes | None) -> tuple[Any, ...]:
        error = trial.error
        return trial.status, trial.score, trial.answer, error, trace_of(line).response

    alone = {p.index: facts(*await run_trial(p, checked(by_seed, odd))) for p in planned_trials(60)}
    together: dict[int, Any] = {}
    executor = LocalExecutor(checked(by_seed, odd), 7)
    await executor.run(
        planned_trials(60),
        lambda planned, trial, line: together.update({planned.index: facts(trial, line)}),
    )
    assert alone == together
    assert {fact[0] for fact in alone.values()} == {
        TrialStatus.PASSED, TrialStatus.HARD_FAIL, TrialStatus.FAILED,
    }  # fmt: skip


async def test_a_check_that_returns_an_awaitable_is_awaited():
    """R-R3: a function that returns something to await is judged like any other."""

    async def at_once(_question: object) -> str:
        return "fine"

    def check(context: CheckContext) -> Any:
        async def later() -> CheckResult:
            await asyncio.sleep(0.001)
            if context.trace.trace_id[0] == "0":
                raise ValueError("the check broke")
            return passed("at last")

        return later()

    context = checked(at_once, check)
    for planned in planned_trials(50):
        trial, line = await run_trial(planned, context)
        broke = trace_of(line).trace_id[0] == "0"
        assert trial.status == (TrialStatus.INFRA_ERROR if broke else TrialStatus.PASSED)
        assert trial.duration_ms >= 1


@pytest.mark.parametrize("seconds", [0, 0.005], ids=["agents that never wait", "agents that wait"])
async def test_an_error_while_delivering_ends_the_run(seconds: float):
    """R-R11: a full disk is an error of the run, however quick its agents are."""

    async def soon(_question: object) -> str:
        await asyncio.sleep(seconds)
        return "fine"

    def deliver(_planned: PlannedTrial, _trial: Trial, _line: bytes | None) -> None:
        raise OSError("disk full")

    with pytest.raises(ExceptionGroup) as raised:
        await LocalExecutor(checked(soon), 3).run(planned_trials(100_000), deliver)
    assert "disk full" in str(first_of(raised.value))


async def test_stopping_delivers_what_had_ended_and_what_ran():
    """R-R6: every trial taken comes back: finished where the agent had ended, else cancelled."""
    done: dict[int, TrialStatus] = {}
    executor: LocalExecutor

    async def agent(input: object, seed: int) -> str:  # noqa: A002 (the word of the interface)
        if seed == 5:
            executor.stop()
        if seed >= 5:
            await asyncio.sleep(60)
        return "fine"

    executor = LocalExecutor(checked(agent), 2)
    taken: list[int] = []

    def trials() -> Iterator[PlannedTrial]:
        for planned in planned_trials(100):
            taken.append(planned.index)
            yield planned

    await executor.run(
        trials(), lambda planned, trial, _line: done.update({planned.index: trial.status})
    )
    assert sorted(done) == taken
    assert all(done[n] == TrialStatus.PASSED for n in taken if n < 5)
    assert all(done[n] == TrialStatus.CANCELLED for n in taken if n >= 5)


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

    trial, _ = await run_trial(next(planned_trials(1)), checked(agent))
    assert (trial.input_tokens, trial.output_tokens, trial.llm_calls) == (12, 3, 1)
    assert (trial.cost_usd, trial.unpriced_calls) == (0.25, 0)
    assert trial.latency_ms == pytest.approx(2.0)


async def test_calls_of_failed_attempts_are_counted_once():
    """R-A4: what an attempt cost before it failed was paid, also when the run is stopped then."""

    class Overloaded(Exception):
        status_code = 503

    async def agent(_question: object) -> str:
        trace = current_trace()
        assert trace is not None
        trace.spans.append(
            Span(
                span_id="1",
                trace_id=trace.trace_id,
                name="chat",
                kind=SpanKind.LLM,
                start_ns=1,
                end_ns=2,
                parent_id=trace.spans[0].span_id,
                model="m",
                input_tokens=10,
                output_tokens=2,
                cost_usd=0.5,
            )
        )
        raise Overloaded

    async def stopped(_seconds: float) -> None:
        raise asyncio.CancelledError

    context = checked(agent)
    context.sleep = stopped
    trial, _ = await run_trial(next(planned_trials(1)), context)
    assert (trial.status, trial.retries) == (TrialStatus.CANCELLED, 1)
    assert (trial.llm_calls, trial.cost_usd, trial.input_tokens) == (1, 0.5, 10)


async def test_a_trial_that_awaits_for_ever_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-R4: in a worker a trial has a time limit of its own where none is set, also for an agent
    that ignores being cancelled; a longer limit is a setting."""
    monkeypatch.setattr("proctor.trials.run_trial.DEFAULT_TIMEOUT", 0.05)
    monkeypatch.setattr("proctor.trials.run_trial.GRACE", 0.05)

    released = asyncio.Event()

    async def forever(_question: str) -> str:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        return "too late"

    async def slow(_question: str) -> str:
        await asyncio.sleep(0.2)
        return "done"

    context = context_of(PythonAgentConfig.of(forever))
    context.isolated = True
    planned = PlannedTrial(case="c", agent="a", index=0, seed=5)
    trial, _ = await run_trial(planned, context)
    assert (trial.status, trial.category) == (TrialStatus.FAILED, "timeout")
    assert context.left_running == 1
    released.set()
    # In the process of the user people debug: no limit, unless they set one.
    for isolated, options in ((False, {}), (True, {"timeout": 3600})):
        context = context_of(PythonAgentConfig.of(slow), **options)
        context.isolated = isolated
        trial, _ = await run_trial(planned, context)
        assert trial.status == TrialStatus.PASSED

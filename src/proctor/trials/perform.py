"""One trial: a fresh agent, one case, once, judged.

Promise: whatever the agent does, this returns a `Finished` with a status that says whose fault it
was: the agent's (passed, failed, hard_fail), the infrastructure's (infra_error) or ours
(cancelled). The trace seen so far is kept in every case.
"""

from __future__ import annotations

import asyncio
import copy
import shutil
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec

from proctor.agents.base import Agent, AgentConfig, AgentReply, AgentRequest
from proctor.agents.checkpoint import CheckpointStore
from proctor.agents.failures import Transient, transient
from proctor.checks.evaluate import PlannedCheck, evaluate
from proctor.checks.judge import Judge
from proctor.checks.registry import CheckContext
from proctor.checks.result import CheckResult, CheckStatus, Judgement
from proctor.llm.cassette import cassette_in_use, cassette_trial
from proctor.llm.prices import PriceTable
from proctor.runs.model import PlannedTrial, Trial, TrialError, TrialStatus
from proctor.runs.segments import encode_trace
from proctor.trace import Trace
from proctor.trace.capture import capture, new_trace_id
from proctor.trace.redact import Redactor
from proctor.trials import retry
from proctor.trials.pricing import price_calls

GRACE = 1.0
"""Seconds an agent gets to clean up after it is told to stop, before it is left behind."""

SMALL_TRACE = 2
"""Spans up to which looking at each text of a trace is cheaper than searching its JSON."""

MAX_KEPT_ANSWER = 100_000
"""Characters of an answer kept in the journal; the whole answer stands in the trace."""


@dataclass
class PreparedCase:
    """A case with everything that is the same for all its trials worked out once."""

    case: Any
    input: Any
    checks: Sequence[PlannedCheck]
    threshold: float
    baselines: Mapping[str, Trace] = field(default_factory=dict[str, Trace])
    """By agent: each is held against what it did itself."""
    stage: Callable[[PlannedTrial], PreparedCase] | None = None
    """A case made for each seed and parameters (a scenario): what this trial is put to."""
    play: Callable[[Agent, AgentRequest], Coroutine[Any, Any, AgentReply]] | None = None
    """How the agent is put to the case where asking once is not it: a world to act in."""


@dataclass
class Bench:
    """What a worker needs to perform trials: shared, read-only."""

    cases: Mapping[str, PreparedCase]
    agents: Mapping[str, AgentConfig]
    judges: Mapping[str, Judge] = field(default_factory=dict[str, Judge])
    prices: PriceTable | None = None
    redactor: Redactor | None = None
    timeout: float | None = None
    max_retries: int = retry.MAX_RETRIES
    keep_workdirs: bool = False
    checkpoints: CheckpointStore | None = None
    """Where agents keep the state of trials that are to be resumed."""
    retry_from_checkpoint: bool = False
    """Whether a try after a transient failure goes on from the state of the one before."""
    on_transient: Callable[[str, Transient], None] | None = None
    clock: Callable[[], int] = time.time_ns
    sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep


class Finished(NamedTuple):
    """A trial and the trace it left, also as the line of JSON it is kept as."""

    trial: Trial
    trace: Trace | None
    encoded: bytes | None = None


class _Attempts(msgspec.Struct):
    """What the tries at one trial have come to so far."""

    errors: list[str] = []
    trace: Trace | None = None
    workdir: Path | None = None


async def perform(planned: PlannedTrial, bench: Bench, *, attempt: int = 1) -> Finished:
    """Run one trial to its end, whatever that is."""
    prepared = bench.cases[planned.case]
    trial = planned.trial(TrialStatus.INFRA_ERROR, attempt)
    trial.started_ns = bench.clock()
    began = time.perf_counter()
    tries = _Attempts()
    try:
        if prepared.stage is not None:
            prepared = prepared.stage(planned)
        reply = await _with_retries(planned, prepared, bench, tries)
        trial.latency_ms = _latency_ms(reply, began)
        judging = _judge(trial, prepared, bench, tries, reply)
        if cassette_in_use():
            with cassette_trial(f"{_cassette_key(planned)}#judge"):
                await judging
        else:
            await judging
    except asyncio.CancelledError:
        trial.status = TrialStatus.CANCELLED
        trial.error = TrialError("Cancelled", "the run was stopped while this trial was running")
    except Exception as error:  # noqa: BLE001 (agents raise anything; the trial says what)
        trial.error = TrialError(type(error).__name__, str(error) or repr(error))
    trial.duration_ms = (time.perf_counter() - began) * 1000
    if tries.errors:
        trial.retries = len(tries.errors)
        trial.retry_errors = tuple(tries.errors)
    if tries.workdir is not None:
        _clean_up(trial, tries.workdir, bench)
    return _redacted(trial, tries.trace, bench.redactor)


def _latency_ms(reply: AgentReply, began: float) -> float | None:
    """How long the agent took: now, or when its recording was made."""
    if reply.trace is None:
        return (time.perf_counter() - began) * 1000
    return None if reply.trace.duration is None else reply.trace.duration * 1000


async def _with_retries(
    planned: PlannedTrial, prepared: PreparedCase, bench: Bench, tries: _Attempts
) -> AgentReply:
    """The agent's reply, trying again after transient failures; the timeout covers all tries."""
    deadline = None if bench.timeout is None else time.monotonic() + bench.timeout
    random: Random | None = None
    while True:
        try:
            return await _attempt(planned, prepared, bench, tries, deadline)
        except TrialTimeout:
            raise
        except Exception as error:
            reason = transient(error)
            if reason is not None and bench.on_transient is not None:
                bench.on_transient(planned.agent, reason)
            if reason is None or len(tries.errors) >= bench.max_retries:
                raise
            if reason.retry_after is not None and reason.retry_after > retry.MAX_RETRY_AFTER:
                raise
            random = random or Random(planned.seed)  # noqa: S311 (spreads retries, hides nothing)
            wait = retry.delay_before(len(tries.errors), reason, random)
            if deadline is not None and time.monotonic() + wait >= deadline:
                raise
            tries.errors.append(f"{type(error).__name__}: {error}")
            if bench.checkpoints is not None and not bench.retry_from_checkpoint:
                bench.checkpoints.forget(planned.key)
            await bench.sleep(wait)


async def _attempt(
    planned: PlannedTrial,
    prepared: PreparedCase,
    bench: Bench,
    tries: _Attempts,
    deadline: float | None,
) -> AgentReply:
    value = prepared.input
    request = AgentRequest(
        # An agent may change what it is given; the next trial must not see that.
        value if isinstance(value, str) else copy.deepcopy(value),
        case=planned.case,
        trial=f"{planned.case}/{planned.agent}/{planned.axis_seed or 0}/{planned.index}",
        index=planned.index,
        seed=planned.seed,
        params=planned.params,
        trace_id=new_trace_id(),
        timeout=None if deadline is None else max(0.0, deadline - time.monotonic()),
    )
    if bench.checkpoints is not None:
        request.keep_states(bench.checkpoints, lambda: planned.key)
    agent = bench.agents[planned.agent].create()
    try:
        with capture(
            prepared.input, name=planned.agent, trace_id=request.trace_id, clock=bench.clock
        ) as trace:
            tries.trace = trace
            play = prepared.play
            work = agent.run(request) if play is None else play(agent, request)
            if request.timeout is not None:
                work = _within(work, request.timeout, bench.timeout)
            if cassette_in_use():
                with cassette_trial(_cassette_key(planned)):
                    reply = await work
            else:
                reply = await work
            trace.response = reply.answer
    finally:
        tries.workdir = request.used_workdir
    if reply.trace is not None:
        tries.trace = reply.trace
    return reply


def _cassette_key(planned: PlannedTrial) -> str:
    """The trial's identity as it stands in a cassette, readable."""
    return planned.key.replace("\0", "/")


class TrialTimeout(TimeoutError):
    """Our own limit on a trial: never retried, since another try would take as long."""


async def _within(
    work: Coroutine[Any, Any, AgentReply], seconds: float, given: float | None
) -> AgentReply:
    """The work's result, or `TrialTimeout`. Work that will not stop is left behind.

    `seconds` is what is left of the time `given` to all tries of the trial.
    """
    task = asyncio.ensure_future(work)
    done, _ = await _wait(task, seconds)
    if task in done:
        return task.result()
    task.cancel()
    await asyncio.wait({task}, timeout=GRACE)
    raise TrialTimeout(f"the trial took longer than {given or seconds:.4g} s")


async def _wait(task: asyncio.Future[AgentReply], seconds: float) -> tuple[Any, Any]:
    try:
        return await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task}, timeout=GRACE)
        raise


async def _judge(
    trial: Trial, prepared: PreparedCase, bench: Bench, tries: _Attempts, reply: AgentReply
) -> None:
    """Check what the agent did and fill in the trial."""
    trace = tries.trace
    assert trace is not None
    trial.answer = reply.answer
    trial.trace_id = trace.trace_id
    if len(trace.spans) > 1 or reply.trace is not None:  # else there is the root we made, no call
        price_calls(trace, bench.prices)
        _count(trial, trace)
    judgement = await evaluate(
        prepared.checks,
        CheckContext(
            case=prepared.case,
            trace=trace,
            answer=reply.answer,
            baseline=prepared.baselines.get(trial.agent),
            judges=bench.judges,
        ),
    )
    trial.checks = judgement.results
    trial.score = judgement.score
    trial.judge_cost_usd = _judge_cost(judgement)
    trial.status = _status(judgement, trial.score, prepared.threshold)
    if trial.status == TrialStatus.INFRA_ERROR:
        first = judgement.unscored[0]
        trial.error = TrialError("Unscored", f"{first.id}: {first.reason}", place="check")


def _count(trial: Trial, trace: Trace) -> None:
    """What the agent's calls came to."""
    usage = trace.usage
    trial.input_tokens, trial.output_tokens = usage.input_tokens, usage.output_tokens
    trial.cost_usd, trial.unpriced_calls = usage.cost_usd, usage.unpriced
    trial.llm_calls, trial.tool_calls = usage.calls, len(trace.tool_calls)


def status_of(judgement: Judgement, threshold: float) -> TrialStatus:
    """Blocking failures first, then what could not be judged, then the score."""
    return _status(judgement, judgement.score, threshold)


def _status(judgement: Judgement, score: float | None, threshold: float) -> TrialStatus:
    unscored = False
    for result in judgement.results:
        if result.status is CheckStatus.FAIL:
            return TrialStatus.HARD_FAIL
        unscored = unscored or result.status is CheckStatus.UNSCORED
    if unscored:
        return TrialStatus.INFRA_ERROR
    return TrialStatus.FAILED if score is not None and score < threshold else TrialStatus.PASSED


def _judge_cost(judgement: Judgement) -> float | None:
    total: float | None = None
    for result in judgement.results:
        if result.cost_usd is not None:
            total = (total or 0.0) + result.cost_usd
    return total


def _clean_up(trial: Trial, workdir: Path, bench: Bench) -> None:
    """Remove the trial's directory, or keep it for a person when it did not pass."""
    if bench.keep_workdirs and not trial.passed:
        trial.workdir = str(workdir)
    else:
        shutil.rmtree(workdir, ignore_errors=True)


def _redacted(trial: Trial, trace: Trace | None, redactor: Redactor | None) -> Finished:
    """Nothing leaves here for a disk with a secret in it."""
    if trial.answer is not None and len(trial.answer) > MAX_KEPT_ANSWER:
        trial.answer = trial.answer[:MAX_KEPT_ANSWER] + "… [cut; whole in the trace]"
    if redactor is None:
        return Finished(trial, trace, None if trace is None else encode_trace(trace))
    if trial.answer:
        trial.answer = redactor.text(trial.answer)
    if trial.checks:
        trial.checks = tuple([_clean_result(result, redactor) for result in trial.checks])
    if trial.error is not None:
        trial.error = redactor.value(trial.error)
    if trial.retry_errors:
        trial.retry_errors = redactor.value(trial.retry_errors)
    if trace is None:
        return Finished(trial, None)
    if len(trace.spans) <= SMALL_TRACE:
        trace = redactor.trace(trace)
        return Finished(trial, trace, encode_trace(trace))
    encoded = encode_trace(trace)
    if not redactor.surely_clean(encoded):
        trace = redactor.trace(trace)
        encoded = encode_trace(trace)
    return Finished(trial, trace, encoded)


def _clean_result(result: CheckResult, redactor: Redactor) -> CheckResult:
    """A result without secrets; only these three fields hold words of users and agents."""
    reason = redactor.text(result.reason)
    expected, actual = redactor.value(result.expected), redactor.value(result.actual)
    if reason is result.reason and expected is result.expected and actual is result.actual:
        return result
    return msgspec.structs.replace(result, reason=reason, expected=expected, actual=actual)

"""Ask the agent: a fresh one for each try, its work captured, failures that may pass tried again.

Promise: whatever the agent does, `ask` returns what it came to. An error is the trial's, the
trace seen so far is kept, and a trial that was stopped says so.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Coroutine
from random import Random
from typing import Any

from proctor.agents.base import AgentError, AgentReply, AgentRequest
from proctor.agents.checkpoint import CheckpointStore, MemoryStore
from proctor.agents.failures import transient
from proctor.errors import told
from proctor.llm.cassette import cassette_in_use, cassette_trial
from proctor.runs.model import PlannedTrial, TrialError, TrialStatus
from proctor.trace import Trace
from proctor.trace.capture import Recorder, new_trace_id
from proctor.trials import retry
from proctor.trials.bench import Asked, Bench

GRACE = 1.0
"""Seconds an agent gets to clean up after it is told to stop, before it is left behind."""


class TrialTimeout(TimeoutError):
    """Our own limit on a trial: never retried, since another try would take as long."""


class TrialRequest(AgentRequest):
    """What an agent is given in a run. What few agents ask for is worked out when they do."""

    __slots__ = ("_planned", "_store")

    def __init__(
        self,
        value: Any,
        planned: PlannedTrial,
        timeout: float | None,
        store: CheckpointStore | None,
    ) -> None:
        self.input = value
        self.case = planned.case
        self.index = planned.index
        self.seed = planned.seed
        self.params = planned.params
        self.trace_id = new_trace_id()
        self.timeout = timeout
        self._workdir = self._checkpoint = None
        self._planned = planned
        self._store = store

    @property
    def trial(self) -> str:
        """The trial as people name it; its parameters are `params`."""
        return self._planned.short_name

    def _kept_states(self) -> tuple[CheckpointStore, str]:
        return self._store or MemoryStore(), self._planned.key


async def ask(planned: PlannedTrial, bench: Bench, attempt: int = 1) -> Asked:
    """Put the case to the agent, until it has answered or cannot."""
    prepared = bench.cases[planned.case]
    trial = planned.trial(TrialStatus.INFRA_ERROR, attempt)
    trial.started_ns = bench.clock()
    began = time.perf_counter()
    asked = Asked(trial, prepared)
    try:
        if prepared.stage is not None:
            asked.prepared = prepared.stage(planned)
        deadline = None if bench.timeout is None else time.monotonic() + bench.timeout
        try:
            reply = await _attempt(planned, bench, asked, deadline)
        except Exception as error:  # noqa: BLE001 (raised again unless it may pass)
            reply = await _try_again(error, planned, bench, asked, deadline)
        asked.reply = reply
        if reply.trace is None:
            trial.latency_ms = (time.perf_counter() - asked.began) * 1000
        elif reply.trace.duration is not None:  # how long it took when its recording was made
            trial.latency_ms = reply.trace.duration * 1000
    except asyncio.CancelledError:
        was_stopped(asked)
    except SystemExit as left:
        went_wrong(asked, _left(left))
    except Exception as error:  # noqa: BLE001 (agents raise anything; the trial says what)
        went_wrong(asked, error)
    trial.duration_ms = (time.perf_counter() - began) * 1000
    if asked.errors:
        trial.retries = len(asked.errors)
        trial.retry_errors = asked.errors
    return asked


def was_stopped(asked: Asked) -> None:
    """The trial was cancelled under way."""
    asked.trial.status = TrialStatus.CANCELLED
    asked.trial.error = TrialError("Cancelled", "the run was stopped while this trial was running")


def went_wrong(asked: Asked, error: Exception) -> None:
    """The trial could not be judged."""
    asked.trial.error = TrialError(type(error).__name__, told(error))


async def _try_again(
    error: Exception, planned: PlannedTrial, bench: Bench, asked: Asked, deadline: float | None
) -> AgentReply:
    """The agent's reply after a failure that may pass; the timeout covers all tries."""
    random: Random | None = None
    while True:
        reason = None if isinstance(error, TrialTimeout) else transient(error)
        if reason is not None and bench.on_transient is not None:
            bench.on_transient(planned.agent, reason)
        if reason is None or len(asked.errors) >= bench.max_retries:
            raise error
        if reason.retry_after is not None and reason.retry_after > retry.MAX_RETRY_AFTER:
            raise error
        random = random or Random(planned.seed)  # noqa: S311 (spreads retries, hides nothing)
        wait = retry.delay_before(len(asked.errors), reason, random)
        if deadline is not None and time.monotonic() + wait >= deadline:
            raise error
        asked.errors = (*asked.errors, f"{type(error).__name__}: {error}")
        if asked.trace is not None:
            asked.failed_tries = (*asked.failed_tries, asked.trace)
        if bench.checkpoints is not None and not bench.retry_from_checkpoint:
            bench.checkpoints.forget(planned.key)
        await bench.sleep(wait)
        try:
            return await _attempt(planned, bench, asked, deadline)
        except Exception as another:  # noqa: BLE001 (raised again unless it may pass)
            error = another


async def _attempt(
    planned: PlannedTrial, bench: Bench, asked: Asked, deadline: float | None
) -> AgentReply:
    prepared = asked.prepared
    value = prepared.input
    request = TrialRequest(
        # An agent may change what it is given; the next trial must not see that.
        value if isinstance(value, str) else copy.deepcopy(value),
        planned,
        None if deadline is None else max(0.0, deadline - time.monotonic()),
        bench.checkpoints,
    )
    asked.began = time.perf_counter()
    agent = bench.agents[planned.agent].create()
    trace = asked.trace = Trace(trace_id=request.trace_id, query=value)
    try:
        with Recorder(trace, planned.agent, bench.clock):
            play = prepared.play
            work = agent.run(request) if play is None else play(agent, request)
            if request.timeout is not None:
                work = _within(work, request.timeout, bench.timeout)
            if cassette_in_use():
                with cassette_trial(name_in_cassette(planned.key)):
                    reply = await work
            else:
                reply = await work
            trace.response = reply.answer
    finally:
        asked.workdir = request.used_workdir
    if reply.trace is not None:
        asked.trace = reply.trace
    return reply


def name_in_cassette(trial_key: str) -> str:
    """A trial as a cassette names it: people read that file."""
    return trial_key.replace("\0", "/")


async def _within(
    work: Coroutine[Any, Any, AgentReply], seconds: float, given: float | None
) -> AgentReply:
    """The work's result, or `TrialTimeout`. Work that will not stop is left behind.

    `seconds` is what is left of the time `given` to all tries of the trial.
    """
    task = asyncio.ensure_future(_staying(work))
    done, _ = await _wait(task, seconds)
    if task in done:
        return task.result()
    task.cancel()
    await asyncio.wait({task}, timeout=GRACE)
    raise TrialTimeout(f"the trial took longer than {given or seconds:.4g} s")


async def _staying(work: Coroutine[Any, Any, AgentReply]) -> AgentReply:
    """The work in a task of its own: `sys.exit` there would end the event loop, and the run."""
    try:
        return await work
    except SystemExit as left:
        raise _left(left) from left


def _left(left: SystemExit) -> AgentError:
    return AgentError(
        f"the agent called sys.exit({'' if left.code is None else repr(left.code)})",
        hint="return an answer, or raise an error",
    )


async def _wait(task: asyncio.Future[AgentReply], seconds: float) -> tuple[Any, Any]:
    try:
        return await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task}, timeout=GRACE)
        raise

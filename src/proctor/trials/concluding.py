"""What a trial comes to: its checks, its status, and both without secrets, ready for the disk.

Promise: nothing leaves here for a disk with a secret in it, and a check that could not be judged
never counts for or against the agent. Split in steps that can each be done for many trials in a
row: the same code over and over is faster by a quarter than one trial after another.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from proctor.agents.base import AgentReply
from proctor.checks.evaluate import begin, evaluate
from proctor.checks.registry import CheckContext
from proctor.checks.result import CheckResult, CheckStatus, Judgement
from proctor.llm.cassette import cassette_in_use, cassette_trial
from proctor.llm.prices import price_trace
from proctor.runs.model import Trial, TrialError, TrialStatus
from proctor.runs.segments import encode_trace
from proctor.trace import Span, Trace
from proctor.trace.redact import Redactor
from proctor.trials.asking import name_in_cassette, went_wrong
from proctor.trials.bench import Asked, Bench, Finished

SMALL_TRACE = 2
"""Spans up to which looking at each text of a trace is cheaper than searching its JSON."""

MAX_KEPT_ANSWER = 100_000
"""Characters of an answer kept in the journal; the whole answer stands in the trace."""

Waiting = Coroutine[Any, Any, None]
Number = TypeVar("Number", int, float)


def judge(asked: Asked, bench: Bench) -> Waiting | None:
    """Check what the agent did and fill in the trial; where a check waits, await the rest."""
    reply = asked.reply
    if reply is None and asked.trace is None:
        return None
    began = time.perf_counter()
    try:
        if asked.trace is not None:
            asked.trial.trace_id = asked.trace.trace_id
        _count(asked, bench)
        return None if reply is None else _judge(asked, reply, bench)
    except Exception as error:  # noqa: BLE001 (prices and foreign traces; the trial says what)
        if reply is not None:  # else it is said already why there is none
            went_wrong(asked, error)
        return None
    finally:
        asked.trial.duration_ms += (time.perf_counter() - began) * 1000


def _judge(asked: Asked, reply: AgentReply, bench: Bench) -> Waiting | None:
    trial, trace, prepared = asked.trial, asked.trace, asked.prepared
    assert trace is not None
    trial.answer = reply.answer
    context = CheckContext(
        prepared.case, trace, reply.answer, prepared.baselines.get(trial.agent), bench.judges
    )
    if cassette_in_use():
        return _judge_with_cassette(asked, context)
    results: list[CheckResult] = []
    waiting = begin(prepared.checks, context, results)
    if waiting is not None:
        return _judge_later(asked, waiting, results)
    _conclude(trial, results, prepared.threshold)
    return None


async def _judge_later(asked: Asked, waiting: Waiting, results: list[CheckResult]) -> None:
    began = time.perf_counter()
    try:
        await waiting
    finally:
        asked.trial.duration_ms += (time.perf_counter() - began) * 1000
    _conclude(asked.trial, results, asked.prepared.threshold)


async def _judge_with_cassette(asked: Asked, context: CheckContext) -> None:
    """Judges' calls are kept apart from the agent's."""
    began, prepared = time.perf_counter(), asked.prepared
    try:
        with cassette_trial(f"{name_in_cassette(asked.trial.key)}#judge"):
            judgement = await evaluate(prepared.checks, context)
    finally:
        asked.trial.duration_ms += (time.perf_counter() - began) * 1000
    _conclude(asked.trial, judgement.results, prepared.threshold)


def _conclude(trial: Trial, results: Sequence[CheckResult], threshold: float) -> None:
    """Fill in what the checks come to."""
    judgement = Judgement(results=tuple(results))
    trial.checks = judgement.results
    trial.score = judgement.score
    trial.judge_cost_usd = _judge_cost(judgement)
    trial.status = _status(judgement, trial.score, threshold)
    if trial.status is TrialStatus.INFRA_ERROR:
        first = judgement.unscored[0]
        trial.error = TrialError("Unscored", f"{first.id}: {first.reason}", place="check")


def _count(asked: Asked, bench: Bench) -> None:
    """What the agent's calls came to, those of tries that failed included."""
    trace, brought = asked.trace, asked.reply is not None and asked.reply.trace is not None
    for failed in asked.failed_tries:
        if len(failed.spans) > 1:
            _add(asked.trial, failed, bench)
    if trace is not None and (len(trace.spans) > 1 or brought):  # else only the root we made
        _add(asked.trial, trace, bench)


def _add(trial: Trial, trace: Trace, bench: Bench) -> None:
    price_trace(trace, bench.prices)
    usage = trace.usage
    trial.input_tokens = _plus(trial.input_tokens, usage.input_tokens)
    trial.output_tokens = _plus(trial.output_tokens, usage.output_tokens)
    trial.cost_usd = _plus(trial.cost_usd, usage.cost_usd)
    trial.unpriced_calls += max(0, usage.unpriced - sum(map(_unanswered, trace.llm_calls)))
    trial.llm_calls += usage.calls
    trial.tool_calls += len(trace.tool_calls)


def _unanswered(call: Span) -> bool:
    """Whether a model call failed, or was cut off, and told of nothing used."""
    told = (call.input_tokens, call.output_tokens, call.cost_usd)
    return (call.failed or call.end_ns is None) and told == (None, None, None)


def _plus(known: Number | None, more: Number | None) -> Number | None:
    """A sum of what is known; of nothing known, unknown."""
    return known if more is None else more if known is None else known + more


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


def seal(asked: Asked, bench: Bench) -> Finished:
    """The trial as it is kept: its directory gone, its texts without secrets, its trace a line."""
    if asked.workdir is not None:
        _clean_up(asked, bench)
    if bench.redactor is not None:
        return _redacted(asked, bench.redactor)
    trace = asked.trace
    return Finished(_shortened(asked.trial), trace, None if trace is None else encode_trace(trace))


def _clean_up(asked: Asked, bench: Bench) -> None:
    """Remove the trial's directory, or keep it for a person when it did not pass."""
    assert asked.workdir is not None
    if bench.keep_workdirs and not asked.trial.passed:
        asked.trial.workdir = str(asked.workdir)
    else:
        shutil.rmtree(asked.workdir, ignore_errors=True)


def _shortened(trial: Trial) -> Trial:
    if trial.answer is not None and len(trial.answer) > MAX_KEPT_ANSWER:
        trial.answer = trial.answer[:MAX_KEPT_ANSWER] + "… [cut; whole in the trace]"
    return trial


def _redacted(asked: Asked, redactor: Redactor) -> Finished:
    """Nothing leaves here for a disk with a secret in it."""
    trial, trace, reply = _shortened(asked.trial), asked.trace, asked.reply
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
        ours = reply is not None and reply.trace is None
        if not (ours and redactor.is_clean_root(trace)):
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

"""Run one trial: one agent on one case, once, with its checks.

`run_trial` is the only code that calls an agent and evaluates its checks. The local executor, Ray
workers, `proctor test`, the pytest plugin, baselines and recorded traces all go through it.

Promise: it never raises, whatever the agent or a check does. The status says whose fault it was:
the agent's (passed, failed, hard_fail), the infrastructure's (infra_error) or ours (cancelled).
An agent that raises, crashes or does not end in time has failed; its category says how.
The trace recorded so far is kept in every case, and nothing that leaves here contains a secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from proctor.agents.base import (
    AGENT_ERROR,
    TIMEOUT,
    Agent,
    AgentError,
    AgentReply,
    AgentRequest,
    category_of,
)
from proctor.background import pools, threads
from proctor.checks.base import Check, CheckContext, CheckResults, CheckStatus
from proctor.checks.evaluate import evaluate
from proctor.errors import describe_error
from proctor.files import remove_tree
from proctor.gateway.budget import RunLimitReached
from proctor.gateway.observe import observing
from proctor.llm.cassette import cassette_trial
from proctor.llm.prices import PriceTable, load_published_prices, price_trace
from proctor.llm.rate_limits import Waits, queue_waits
from proctor.llm.retry import MAX_RETRY_AFTER, retry_delay, transient
from proctor.runs.baselines import LoadedBaseline
from proctor.runs.trial import (
    NO_CHECKS,
    OnAgentError,
    PlannedTrial,
    Trial,
    TrialError,
    TrialStatus,
)
from proctor.sanitize import json_bytes, valid_unicode
from proctor.seeds import derive_seed
from proctor.trace import Trace
from proctor.trace.capture import Recorder, new_trace_id
from proctor.trace.model import CUT, WAITED

if TYPE_CHECKING:
    from proctor.sandbox.options import SandboxOptions
    from proctor.sandbox.place import TrialWorkspace
    from proctor.spec import Case
    from proctor.trace.redact import Redactor
    from proctor.trials.options import RunOptions
    from proctor.trials.prepare import RunContext

DEFAULT_TIMEOUT = 3600.0
"""Seconds of a trial in a worker where no limit is set: long enough for a coding agent, and a run
with an agent that never ends still ends overnight."""

GRACE = 1.0
"""Seconds a cancelled agent gets to clean up before it is left running on its own."""

FORK_ATTEMPTS = 50
"""Seeds that a fork of an agent without a model tries until one repeats the recorded steps."""

SMALL_TRACE = 2
"""Spans up to which looking at each text of a trace is cheaper than searching its JSON."""

MAX_KEPT_ANSWER, MAX_TRACED_ANSWER = 100_000, 10_000_000
"""Characters of an answer that the journal and the trace store; a longer one is a runaway agent."""


WORKSPACE = "workspace"
"""Key of a trace's metadata that holds what the agent changed in its workspace."""


class TrialTimeout(AgentError):
    """The time limit of a trial: never retried, since another attempt would take as long."""


CallAgent = Callable[[Agent, AgentRequest], Coroutine[Any, Any, AgentReply]]


@dataclass
class PreparedCase:
    """A case with everything that is the same for all its trials."""

    case: Case
    checks: Sequence[Check] = ()
    threshold: float = 1.0
    baselines: Mapping[str, LoadedBaseline] = field(default_factory=dict[str, LoadedBaseline])
    """The saved trial of each agent: an agent is only compared with itself."""
    build: Callable[[PlannedTrial], PreparedCase] | None = None
    """Builds the case for the seed and parameters of one trial (a scenario)."""
    play: CallAgent | None = None
    """Replaces the single call of the agent where it acts in a world."""


async def run_trial(planned: PlannedTrial, context: RunContext) -> tuple[Trial, bytes | None]:
    """Run one agent on one case and judge it: the trial, and its trace as one line of JSON.

    The trace is returned encoded because that is what the journal and a worker's message hold,
    and because redaction and encoding share work that must be done once.
    """
    key = planned.key
    pools.set([])
    # Until the checks say otherwise: whatever ends the trial early is not a verdict on the agent.
    trial = planned.trial(TrialStatus.INFRA_ERROR)
    trial.started_ns = context.clock()
    # A clock for durations: the wall clock may be set while a trial runs.
    began = time.perf_counter()
    traces: list[Trace] = []
    workspaces: list[TrialWorkspace] = []
    reply: AgentReply | None = None
    try:
        case = context.cases[planned.case]  # of a large data set, it is validated now
        if case.build is not None:
            fork = context.fork
            case = case.build(planned if fork is None else fork.planned(planned))
            # Building blocks the event loop: trials that start together build first, or it would
            # count as the latency of the agent that happens to be the first.
            await asyncio.sleep(0)
        reply = await _call_agent(planned, key, case, context, trial, traces, workspaces)
        trial.category = ""
        trace = traces[-1]
        if workspaces:  # before the checks, which may write there
            trace.metadata[WORKSPACE] = await workspaces[-1].record()
        trial.trace_id = trace.trace_id
        trial.answer = reply.answer
        # A single span is the root that we made ourselves, unless the agent brought its trace.
        used = [each for each in traces if len(each.spans) > 1 or each is reply.trace]
        if used:
            if "genai_prices" not in sys.modules and any(each.llm_calls for each in used):
                # Half a second, in which the event loop would stand still.
                await threads.run(load_published_prices)
            # Prices come first: checks may limit the cost.
            _add_usage(trial, used, context.prices)
        saved = case.baselines.get(planned.agent)
        check_context = CheckContext[Any](
            case.case,
            trace,
            reply.answer,
            None if saved is None else saved.trace,
            context.judges,
            reply.output,
            "" if saved is None else saved.baseline.version,
            workspaces[-1] if workspaces else None,
        )
        # Judges have their own place in a cassette: their calls are not the agent's.
        checking = time.perf_counter()
        with cassette_trial(key, "#judge"):
            results = await evaluate(case.checks, check_context)
        trial.check_ms = (time.perf_counter() - checking) * 1000
        trial.checks = tuple(results)
        trial.score = results.score
        costs = [each.cost_usd for each in results if each.cost_usd is not None]
        trial.judge_cost_usd = sum(costs) if costs else None
        trial.status = status_of(results, case.threshold)
        if trial.status is TrialStatus.INFRA_ERROR:
            first = results.with_status(CheckStatus.UNSCORED)[0]
            trial.error = TrialError("Unscored", f"{first.id}: {first.reason}", place="check")
        elif trial.status is TrialStatus.NOT_JUDGED:
            trial.category, reason = why_not_judged(results)
            trial.error = TrialError("NotJudged", reason, place="check")
    except asyncio.CancelledError:
        trial.status = TrialStatus.CANCELLED
        trial.error = TrialError("Cancelled", "the run was stopped while this trial was running")
    except RunLimitReached as error:
        trial.status = TrialStatus.CANCELLED
        trial.error = TrialError(type(error).__name__, error.message)
    except Exception as error:  # noqa: BLE001 (agents and judges raise anything)
        described = describe_error(error)
        if len(described) > MAX_KEPT_ANSWER:
            described = _cut(described, MAX_KEPT_ANSWER)
        trial.error = TrialError(type(error).__name__, valid_unicode(described))
    if workspaces:
        if reply is None and traces:
            with contextlib.suppress(Exception):
                traces[-1].metadata[WORKSPACE] = await workspaces[-1].record()
        await workspaces[-1].close()
    if reply is None and traces:
        trial.trace_id = traces[-1].trace_id
        # Attempts that failed were paid for, too. Why there is no reply is on record already, so
        # a trace that cannot be priced adds nothing.
        with contextlib.suppress(Exception):
            used = [each for each in traces if len(each.spans) > 1]
            _add_usage(trial, used, context.prices)
    if reply is None and trial.category:
        fail_by_agent(trial, trial.category, context.options)
    trial.duration_ms = (time.perf_counter() - began) * 1000
    if trial.workdir is not None and (trial.passed or not context.options.keep_workdirs):
        remove_tree(Path(trial.workdir))
        trial.workdir = None
    # Only now: the checks have seen the whole answer.
    if trial.answer is not None and len(trial.answer) > MAX_KEPT_ANSWER:
        trial.answer = _cut(trial.answer, MAX_KEPT_ANSWER)
    response = traces[-1].response if traces else None
    if response is not None and len(response) > MAX_TRACED_ANSWER:
        traces[-1].response = _cut(response, MAX_TRACED_ANSWER)
        traces[-1].metadata[CUT] = len(response)
    return trial, _redact_and_encode(trial, traces[-1] if traces else None, context.redactor)


async def _call_agent(  # noqa: PLR0917 (what an attempt is made of, and what it fills in)
    planned: PlannedTrial,
    key: str,
    case: PreparedCase,
    context: RunContext,
    trial: Trial,
    traces: list[Trace],
    workspaces: list[TrialWorkspace],
) -> AgentReply:
    """Call a fresh agent until it replies, retrying transient failures within the timeout.

    Each attempt adds its trace to `traces` and its files to `workspaces`; retries, latency and
    working directory are recorded on the trial, which has them even when this raises; so is the
    category of the error.
    """
    options, question = context.options, case.case.input
    limit = options.timeout
    # In a worker an agent that awaits for ever would hold the run; a person may take their time.
    if limit is None and context.isolated and context.agents[planned.agent].kind != "human":
        limit = DEFAULT_TIMEOUT
    deadline = None if limit is None else time.monotonic() + limit
    random: Random | None = None
    seed, prefix = planned.seed, None
    left_record = 0  # attempts of a fork that left the recorded prefix
    while True:
        request = AgentRequest(
            # An agent may change its input; the next trial must not see that.
            question if isinstance(question, str) else copy.deepcopy(question),
            case=planned.case,
            trial=planned.short_name,
            index=planned.index,
            seed=seed,
            params=planned.params,
            trace_id=new_trace_id(),
            timeout=None if deadline is None else max(0.0, deadline - time.monotonic()),
            states=None if context.checkpoints is None else (context.checkpoints, key),
            prices=context.prices,
        )
        request.ledger = None if context.ledger is None else (context.ledger, key)
        began = time.perf_counter()
        queue, request.startup = Waits(), Waits()
        counting = queue_waits.set(queue)
        try:
            # A fresh agent for every attempt, so that no state leaks from one to the next.
            config = context.agents[planned.agent]
            files, sandbox = case.case.workspace, config.sandbox
            if context.workspaces is not None and (files is not None or sandbox is not None):
                base, home = case.case.folder or context.suite.folder, request.workdir
                shown = [*config.shown_in_sandbox()]
                if sandbox is not None:
                    shown += _programs(case, sandbox)
                workspaces.append(
                    await context.workspaces.open(planned.case, files, base, home, sandbox, shown)
                )
                request.workspace = None if files is None else workspaces[-1].path
                request.sandbox = workspaces[-1].sandbox
                if isinstance(request.input, str):
                    request.input = workspaces[-1].located(request.input)
                if sandbox is not None and (seconds := sandbox.limits.seconds) is not None:
                    request.timeout = min(seconds, request.timeout or seconds)
                began = time.perf_counter()  # the agent's own time starts here
            agent = config.create()
            trace = Trace(trace_id=request.trace_id or "", query=question)
            traces.append(trace)  # before the call: a trial that fails has a trace too
            with (
                observing(trace),
                Recorder(trace, planned.agent, context.clock),
                cassette_trial(key),
            ):
                work = agent.run(request) if case.play is None else case.play(agent, request)
                if context.fork is not None:
                    prefix = context.fork.prefix(planned.agent, config)
                    parent = {**context.fork.parent, "attempt": left_record + 1}
                    work = prefix.run(work, trace, parent)
                if request.timeout is not None:
                    # An attempt after a transient failure has less than the agent's whole time.
                    late = TrialTimeout(
                        f"the trial took longer than {options.timeout or request.timeout:.4g} s",
                        transient=False,
                        category="" if trial.retries else TIMEOUT,
                    )
                    waits = (queue, request.startup)
                    work = _with_timeout(work, request.timeout, late, waits, context)
                reply = await work
                # What is judged is what can be stored.
                reply.answer = valid_unicode(reply.answer)
                trace.response = reply.answer
            if prefix is not None:
                prefix.mark(trace)
            if observed := config.observes:
                trace.observe(*observed)
        except BaseException as raised:
            error = raised if isinstance(raised, Exception) else _agents_own(raised)
            # Until it is known better: reading the agent's exception may raise, too.
            trial.category = AGENT_ERROR
            reason = transient(error)
            wait: float | None = None
            if reason is not None:
                if context.on_transient is not None:
                    context.on_transient(planned.agent, reason)
                # A server that is busy for so long is down for our purposes.
                patient = (reason.retry_after or 0.0) <= MAX_RETRY_AFTER
                if patient and trial.retries < options.max_retries:
                    random = random or Random(planned.seed)  # noqa: S311 (spreads retries, hides nothing)
                    wait = retry_delay(trial.retries, reason.retry_after, random)
            if prefix is not None and prefix.diverged is not None and prefix.plain_code:
                # Chance is in the agent's own code: another seed may repeat the record. Those that
                # do are a sample of what follows it.
                left_record += 1
                if left_record < FORK_ATTEMPTS:
                    trial.category = ""
                    seed = derive_seed(planned.seed, "fork", left_record)
                    traces.pop()
                    if workspaces:
                        await workspaces.pop().close()
                    continue
            if wait is None or (deadline is not None and time.monotonic() + wait >= deadline):
                trial.category = category_of(error)
                if error is raised:
                    raise
                raise error from None
            trial.retries += 1
            if workspaces:
                await workspaces.pop().close()
            why = valid_unicode(f"{type(error).__name__}: {error}")
            trial.retry_errors = (*trial.retry_errors, why)
            # By default a retry starts from scratch, like the first attempt.
            if context.checkpoints is not None and not options.retry_from_checkpoint:
                context.checkpoints.forget(key)
            trial.category = ""
        else:
            trial.category = AGENT_ERROR  # what follows reads what the agent has returned
            if reply.trace is None:
                waited = queue.seconds + request.startup.seconds
                trial.latency_ms = max(0.0, time.perf_counter() - began - waited) * 1000
                if waited:
                    trace.metadata[WAITED] = waited
            else:
                traces[-1] = reply.trace
                if reply.trace.duration is not None:  # what it took when it was recorded
                    trial.latency_ms = reply.trace.duration * 1000
            return reply
        finally:
            queue_waits.reset(counting)
            trial.queue_ms += queue.seconds * 1000
            trial.startup_ms += request.startup.seconds * 1000
            if request.used_workdir is not None:
                if trial.workdir is not None:  # of an earlier attempt
                    remove_tree(Path(trial.workdir))
                trial.workdir = str(request.used_workdir)
        await context.sleep(wait)


async def _with_timeout(
    work: Coroutine[Any, Any, AgentReply],
    seconds: float,
    late: TrialTimeout,
    waits: tuple[Waits, ...],
    context: RunContext,
) -> AgentReply:
    """Return the reply, or raise `late` after `seconds`, the rest of the trial's limit.

    `waits` are not the agent's time, so they extend the limit.
    An agent that does not end when it is cancelled is left running on its own.
    """

    async def guarded() -> AgentReply:
        try:
            return await work
        except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as raised:
            # In a task of its own, sys.exit() would end the event loop and with it the run.
            raise _agents_own(raised) from None

    task = asyncio.ensure_future(guarded())
    began, used = time.perf_counter(), 0.0
    try:
        while used < seconds and not task.done():
            await asyncio.wait({task}, timeout=seconds - used)
            used = time.perf_counter() - began - sum(each.seconds for each in waits)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task}, timeout=GRACE)
        raise
    # An agent that blocks the event loop ends before its time limit can be noticed. Here the trials
    # beside it wait for the same loop, so only a worker, which repeats them alone, can judge that.
    if task.done() and not (context.isolated and used >= seconds):
        return task.result()
    task.cancel()
    await asyncio.wait({task}, timeout=GRACE)
    context.left_running += not task.done()
    raise late


def _programs(case: PreparedCase, sandbox: SandboxOptions) -> list[Path]:
    """Return what a sandbox must show for the commands of a case, such as pytest."""
    from proctor.checks import CommandPasses
    from proctor.sandbox.place import programs_of

    if sandbox.image or sandbox.rootfs:
        return []
    files = case.case.workspace
    commands = [check.run for check in case.checks if isinstance(check, CommandPasses)]
    commands += [*sandbox.setup, *(() if files is None else (*files.setup, *files.teardown))]
    return [path for command in commands for path in programs_of(command)]


def fail_by_agent(trial: Trial, category: str, options: RunOptions) -> None:
    """Make a trial without an answer a failed one, unless `on_agent_error` says otherwise."""
    infra = options.on_agent_error is OnAgentError.INFRA
    trial.status = TrialStatus.INFRA_ERROR if infra else TrialStatus.FAILED
    trial.category, trial.score = ("", None) if infra else (category, 0.0)


def _agents_own(raised: BaseException) -> AgentError:
    """Return the error for what an agent raised that would end the process or the task.

    Raises it again where it is not the agent's: this task was cancelled, or Ctrl-C was pressed.
    """
    hint = "return an answer, or raise an error"
    if isinstance(raised, SystemExit):
        code = "" if raised.code is None else repr(raised.code)
        return AgentError(f"the agent called sys.exit({code})", hint=hint)
    task = asyncio.current_task()
    if (
        isinstance(raised, GeneratorExit)
        or (isinstance(raised, asyncio.CancelledError) and (task is None or task.cancelling()))
        # Without a handler of ours, this is how Ctrl-C arrives.
        or (
            isinstance(raised, KeyboardInterrupt)
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
    ):
        raise raised
    return AgentError(f"the agent raised {type(raised).__name__}", hint=hint)


def _add_usage(
    trial: Trial,
    traces: Sequence[Trace],
    prices: PriceTable | None,
) -> None:
    """Price the model calls of every attempt and add them up; an unknown figure stays None."""
    for trace in traces:
        price_trace(trace, prices)
        usage = trace.usage
        if usage.input_tokens is not None:
            trial.input_tokens = (trial.input_tokens or 0) + usage.input_tokens
        if usage.output_tokens is not None:
            trial.output_tokens = (trial.output_tokens or 0) + usage.output_tokens
        if usage.cost_usd is not None:
            trial.cost_usd = (trial.cost_usd or 0.0) + usage.cost_usd
        trial.unpriced_calls += usage.unpriced
        trial.llm_calls += usage.calls
        trial.tool_calls += len(trace.tool_calls)


def status_of(results: CheckResults, threshold: float) -> TrialStatus:
    """Return the status of a trial with these results.

    The score is the weighted mean of the check scores. In this order: a failed blocking check is a
    hard failure, an unscored check an infrastructure error, and a blocking check that was not
    judged (or no judged check at all) leaves the trial not judged; otherwise the trial fails if its
    score is below the threshold and some check with a weight did not pass.
    """
    # A failed blocking check decides the trial, even if a judge could not be reached.
    statuses = {result.status for result in results}
    if CheckStatus.FAIL in statuses:
        return TrialStatus.HARD_FAIL
    if CheckStatus.UNSCORED in statuses:
        return TrialStatus.INFRA_ERROR
    # A trial of which nothing was checked has not passed anything.
    if statuses.isdisjoint((CheckStatus.PASS, CheckStatus.WARN)):
        return TrialStatus.NOT_JUDGED
    if CheckStatus.NOT_JUDGED in statuses and any(
        result.blocking and result.status is CheckStatus.NOT_JUDGED for result in results
    ):
        return TrialStatus.NOT_JUDGED
    if CheckStatus.WARN not in statuses:
        return TrialStatus.PASSED
    # Checks have thresholds of their own: what passes there does not fail the case.
    lost = any(result.weight and result.status is CheckStatus.WARN for result in results)
    score = results.score
    below = score is not None and score < threshold
    return TrialStatus.FAILED if below and lost else TrialStatus.PASSED


def why_not_judged(results: CheckResults) -> tuple[str, str]:
    """Return the category and the reason of a trial that was not judged."""
    found = results.with_status(CheckStatus.NOT_JUDGED)
    for result in sorted(found, key=lambda each: not each.blocking):
        return result.category, f"{result.id}: {result.reason}"
    skips = results.with_status(CheckStatus.SKIP)
    if skips:
        return NO_CHECKS, f"no check had anything to judge: {skips[0].id}: {skips[0].reason}"
    if results:
        return NO_CHECKS, "the checks only record metrics: add one that passes or fails"
    return NO_CHECKS, "the case has no checks"


def _cut(answer: str, most: int) -> str:
    """Return the start of an answer that is too long, with a note where it was cut."""
    return f"{answer[:most]}… [cut: {most:,} of {len(answer):,} characters]"


def _redact_and_encode(
    trial: Trial, trace: Trace | None, redactor: Redactor | None
) -> bytes | None:
    """Remove secrets from the trial, in place, and return its trace without them as JSON."""
    if redactor is None:
        return None if trace is None else json_bytes(trace)
    if trial.answer:
        trial.answer = redactor.text(trial.answer)
    if trial.checks:
        checks = list(trial.checks)
        for number, result in enumerate(checks):
            # Only these three fields hold text of users and agents.
            reason = redactor.text(result.reason)
            expected, actual = redactor.value(result.expected), redactor.value(result.actual)
            if not (
                reason is result.reason and expected is result.expected and actual is result.actual
            ):
                checks[number] = msgspec.structs.replace(
                    result, reason=reason, expected=expected, actual=actual
                )
        trial.checks = tuple(checks)
    if trial.error is not None:
        trial.error = redactor.value(trial.error)
    if trial.retry_errors:
        trial.retry_errors = redactor.value(trial.retry_errors)
    if trace is None:
        return None
    if len(trace.spans) <= SMALL_TRACE:
        return json_bytes(redactor.value(trace))
    # Searching the JSON of a long trace is cheaper than walking it; nearly all are clean.
    encoded = json_bytes(trace)
    if redactor.surely_clean(encoded):
        return encoded
    return json_bytes(redactor.value(trace))

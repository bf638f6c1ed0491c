"""The options of a run, and the budget that its limits make.

`RunOptions` is the one type behind the command's options, Python's keywords and the run's record.

Promise: no trial starts once a limit is reached, so a limit is exceeded by at most the trials then
running. Calls through the model gateway are exact: each reserves what it may use at most before it
is sent, also beside others (`gateway/budget.py`), and a trial whose next call does not fit is
cancelled. What a lost attempt has used counts, also after the whole run was killed and resumed. An
unknown cost cannot be limited: with a limit on money, the first unpriced call stops the run and
says so, rather than count it as nothing.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from proctor.errors import ProctorError
from proctor.files import open_files_limit
from proctor.formatting import dollars, plural
from proctor.gateway.budget import (
    BudgetExceeded,
    BudgetReservation,
    CallBounds,
    CallBudget,
    CallUsage,
)
from proctor.gateway.options import ForkPoint
from proctor.llm.retry import MAX_RETRIES
from proctor.runs.checkpoints import CallLine, CallRecords, last_lines
from proctor.runs.early_stop import FREE_RULES, rule_named
from proctor.runs.journal import Sync
from proctor.runs.trial import COST_REACHED, TOKENS_REACHED, OnAgentError, Spending, Trial
from proctor.sanitize import json_bytes
from proctor.strict import Strict
from proctor.trace.capture import new_span_id
from proctor.trace.model import Span, SpanKind, SpanStatus, Trace

if TYPE_CHECKING:
    from proctor.spec.config import LimitSettings as SettingLimits
    from proctor.trace.redact import Redactor


def _rule(name: str) -> str:
    try:
        rule_named(name)
    except ProctorError as error:
        raise ValueError(f"{error}{f'; {error.hint}' if error.hint else ''}") from None
    return name


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, PurePath) else value


def _named(value: Any) -> Any:
    """Accept rules in the forms of Python code: `True` for the free ones, or names."""
    if isinstance(value, bool):
        return tuple(FREE_RULES) if value else ()
    return tuple(value.split(",")) if isinstance(value, str) else value


FilePath = Annotated[str, BeforeValidator(_as_text)]

StoppingRuleName = Annotated[str, AfterValidator(_rule)]

DEFAULT_CONCURRENCY = 4
"""Suits a batch on a laptop with remote models; a single trial is sequential anyway."""


class ExecutorName(StrEnum):
    """Where trials run."""

    LOCAL = "local"
    RAY = "ray"


class Isolation(StrEnum):
    """Which process runs the code of agents and checks."""

    NONE = "none"
    WORKER = "worker"


OF_WORKERS = ("address", "workers")
"""Options without meaning for trials in this process."""


FILES_PER_TRIAL, RESERVED_FILES = 8, 64
"""Open files that a trial of a command needs (pipes, a checkpoint), and those of the run itself."""


class RunOptions(Strict):
    """Options of one run; None leaves the choice to the suite, or means no limit."""

    # The docstrings of the fields are the help texts of the command's options.
    model_config = ConfigDict(use_attribute_docstrings=True)

    trials: Annotated[int, Field(ge=1)] | None = None
    """Trials per cell.  [default: the number of the case]"""
    default_trials: Annotated[int, Field(ge=1)] | None = None
    """Trials per cell of a case without its own number; from the settings."""
    more_trials: Annotated[int, Field(ge=0, json_schema_extra={"hidden": True})] = 0
    """Trials added to each cell (and seed) after the run had ended; see `trials.resume`."""
    concurrency: Annotated[int, Field(ge=1)] | None = None
    """Trials to run at the same time."""
    executor: ExecutorName = ExecutorName.LOCAL
    """Where to run trials: in this process, or on Ray workers."""
    address: Annotated[str, Field(min_length=1)] | None = None
    """The Ray cluster: auto, HOST:PORT or ray://HOST:PORT.  [default: a local one]"""
    workers: Annotated[int, Field(ge=1)] | None = None
    """Ray worker processes.  [default: as many as fit]"""
    isolation: Annotated[Isolation | None, Field(json_schema_extra={"hidden": True})] = None
    """Run agents and checks in this process (none), or in workers that it watches; the command line
    always uses workers."""
    seed: int = 0
    """The seed from which the seeds of all trials derive."""
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Time limit of one trial in seconds, including retries.  [default: 3600 in workers]"""
    max_retries: Annotated[int, Field(ge=0)] = MAX_RETRIES
    """Retries after transient failures."""
    early_stop: Annotated[
        tuple[StoppingRuleName, ...],
        BeforeValidator(_named),
        Field(json_schema_extra={"alone": ",".join(FREE_RULES)}),
    ] = ()
    """Rules that stop a cell early: hard_fail, out_of_reach (these two by default), sequential or
    sequential:ALPHA (a sequential test with that error rate)."""
    max_not_judged: Annotated[float, Field(ge=0, le=1)] | None = None
    """The share of planned trials that may end without a verdict (infrastructure errors, not
    judged); above it the exit code is 2.  [default: 0.05]"""
    on_agent_error: OnAgentError | None = None
    """What an exception, a crash or a time limit of the agent makes of its trial: a failed one, or
    an infrastructure error.  [default: fail]"""
    max_cost_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Cost limit of the run in dollars."""
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """Token limit of the run."""
    max_trials: Annotated[int, Field(ge=0)] | None = None
    """Most trials to start in this invocation."""
    max_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Time limit of this invocation in seconds."""
    record_to: FilePath | None = None
    """Record all model calls to this cassette file."""
    replay_from: FilePath | None = None
    """Replay model calls from a cassette; a call it does not contain is an error."""
    retry_from_checkpoint: bool = False
    """Let retries and --retry-infra continue from the agent's last checkpoint."""
    keep_workdirs: bool = False
    """Keep the working directories of trials that did not pass."""
    fork: Annotated[ForkPoint | None, Field(json_schema_extra={"hidden": True})] = None
    """The recorded trial that every trial of this run continues; see `causes.fork`."""
    sync: Sync = Sync.INTERVAL
    """When to fsync the journal."""

    @model_validator(mode="after")
    def _check_combination(self) -> RunOptions:
        if self.record_to is not None and self.replay_from is not None:
            raise ValueError("record or replay, not both")
        if self.executor == ExecutorName.LOCAL and (self.address or self.workers):
            raise ValueError("--address and --workers are for --executor ray")
        return self

    @property
    def limited(self) -> bool:
        """Whether any limit applies to the run as a whole."""
        caps = (self.max_cost_usd, self.max_tokens, self.max_trials, self.max_seconds)
        return any(cap is not None for cap in caps)

    def within(self, settings: SettingLimits) -> RunOptions:
        """Return these options with missing limits taken from the settings."""
        names = (
            "concurrency",
            "timeout",
            "max_cost_usd",
            "max_tokens",
            "max_trials",
            "max_seconds",
            "max_not_judged",
            "on_agent_error",
        )
        open_ones = {name: getattr(settings, name) for name in names if getattr(self, name) is None}
        # Recorded even if it is the default, so that a resumed run has the same plan.
        trials = self.default_trials or settings.trials
        return self.model_copy(update={**open_ones, "default_trials": trials})

    def at_once(self, planned: int) -> int:
        """Return how many trials run at a time: no more than planned or than files may be open."""
        wanted = max(1, min(self.concurrency or DEFAULT_CONCURRENCY, planned))
        limit = open_files_limit()
        fitting = max(1, (limit - RESERVED_FILES) // FILES_PER_TRIAL)
        if fitting < wanted:
            sys.stderr.write(
                f"warning: only {limit:,} files may be open: {fitting:,} trials at a time, "
                f"not {wanted:,} (raise the limit with `ulimit -n`)\n"
            )
        return min(wanted, fitting)

    def record(self) -> dict[str, Any]:
        """Return them as the run folder records them."""
        return self.model_dump(mode="json", exclude_defaults=True)


class RunBudget:
    """What a run has used so far, and whether a limit is reached."""

    def __init__(
        self,
        options: RunOptions,
        clock: Callable[[], float] = time.monotonic,
        *,
        records: CallRecords | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._began = clock()
        self.spent = Spending()
        """What the trials that have finished used."""
        self.started = 0
        self.calls = CallBudget(options.max_cost_usd, options.max_tokens, of="run")
        """What trials have used: those that finished, and the calls through the gateway of those
        that run, with their reservations."""
        self.records = records or CallRecords()
        """The calls of trials that have not ended."""
        self._redactor = redactor
        self._lock = threading.RLock()
        self._open: dict[int, tuple[str, BudgetReservation]] = {}
        self._counted: dict[str, tuple[int, float]] = {}
        """Known usage in `calls` that the trial's own figures will have, too."""
        self._attempts: dict[str, list[int]] = {}
        """Lines of calls on record at the end of each lost attempt at a trial."""
        self._refused: str | None = None
        if self.records.folder is not None and self.records.folder.is_dir():
            self.records.load()
        for trial in self.records.trials:
            lines = self.records.of(trial)
            self._attempts[trial] = [len(lines)]
            for line in last_lines(lines):
                self.calls.add(line.tokens, line.cost_usd)
                if line.known:
                    self._count(trial, line.tokens, line.cost_usd)

    def next_round(self) -> None:
        """Forget the trials that have finished: they are read from the journal again."""
        # Limits on time and starts are of this invocation, so they carry over.
        self._count_trial(self.spent, -1)
        self.spent = Spending()

    # -- model calls through the gateway, also before their trial has ended -----------------------

    @property
    def limited(self) -> bool:
        """Whether calls need a reservation."""
        return self.calls.limited

    async def reserve(self, trial: str, bounds: CallBounds) -> BudgetReservation:
        """Wait until a call fits into the run's limits; raise `BudgetExceeded` if it cannot."""
        losses = len(self._attempts.get(trial, ()))

        def runs() -> bool:
            return len(self._attempts.get(trial, ())) == losses

        try:
            reservation = await self.calls.reserve(bounds, wanted=runs)
        except BudgetExceeded as error:
            if runs():
                self._refused = f"{self._limit_reached(bounds) or error.message}"
            raise
        reservation.number = secrets.randbits(48)  # no number of an earlier invocation
        with self._lock:
            if not runs():
                self.calls.settle(reservation, CallUsage(0, 0.0))
                raise BudgetExceeded("the trial has ended")
            self._open[reservation.number] = trial, reservation
            self.records.add(
                CallLine(trial, reservation.number, reservation.tokens, reservation.cost)
            )
        return reservation

    def ended(
        self, trial: str, reservation: BudgetReservation | None, usage: CallUsage, span: Span
    ) -> None:
        """Take a call that has ended."""
        number = 0 if reservation is None else reservation.number
        self.record(trial, number, usage, encoded_call(span, self._redactor))

    def record(self, trial: str, number: int, usage: CallUsage, span: bytes) -> None:
        """Take a call that has ended, as JSON; `number` is that of its reservation."""
        with self._lock:
            _, reservation = self._open.pop(number, (trial, None))
            if number and reservation is None:
                return  # its attempt was lost: all of the reservation counts already
            known = None not in (usage.tokens, usage.cost_usd)
            tokens, cost = usage.tokens or 0, usage.cost_usd or 0.0
            self._count(trial, tokens, cost)
            if reservation is None:
                self.calls.add(tokens, cost)
            else:
                self.calls.settle(reservation, usage)
                tokens = reservation.tokens if usage.tokens is None else tokens
                cost = reservation.cost if usage.cost_usd is None else cost
            self.records.add(
                CallLine(trial, number, tokens, cost, known or not number, msgspec.Raw(span))
            )

    def lose(self, trial: str) -> None:
        """End an attempt whose worker was lost: its open calls count with all they reserved."""
        with self._lock:
            self._attempts.setdefault(trial, []).append(len(self.records.of(trial)))
            for number in [n for n, (key, _) in self._open.items() if key == trial]:
                self.calls.settle(self._open.pop(number)[1], CallUsage(None, None))
        self.calls.wake()

    def _count(self, trial: str, tokens: int, cost: float) -> None:
        before = self._counted.get(trial, (0, 0.0))
        self._counted[trial] = before[0] + tokens, before[1] + cost

    # -- trials that have ended -------------------------------------------------------------------

    def add_earlier(self, trial: Trial) -> None:
        """Count a trial of an earlier invocation or round."""
        self.spent.add(trial)
        self._count_trial(trial)

    def _count_trial(self, used: Trial | Spending, sign: int = 1) -> None:
        cost = (used.cost_usd or 0.0) + (used.judge_cost_usd or 0.0)
        self.calls.add(sign * (used.tokens or 0), sign * cost)

    def add(self, trial: Trial, trace: bytes | None = None) -> bytes | None:
        """Count a trial that has ended, with its lost attempts; return its trace.

        A trial without one gets the calls of its last attempt.
        """
        with self._lock:
            marks = self._attempts.pop(trial.key, [])
            if marks:
                lines = self.records.of(trial.key)
                for line in lines[: marks[-1]]:
                    _add_lost(trial, line)
                if trace is None:
                    last = lines[marks[-2] if len(marks) > 1 else 0 : marks[-1]]
                    trace = _trace_of(trial, [_span(line) for line in last if line.ended])
            self.spent.add(trial)
            if self.calls.limited:
                self._count_trial(trial)
                tokens, cost = self._counted.pop(trial.key, (0, 0.0))
                self.calls.add(-tokens, -cost)
        return trace

    def _limit_reached(self, bounds: CallBounds) -> str | None:
        """Return which limit leaves no room for a call."""
        options, calls = self._options, self.calls
        most = options.max_tokens
        if most is not None and calls.tokens + bounds.input_tokens >= most:
            used = f"{calls.tokens} of {most}"
            return f"{TOKENS_REACHED}: {used}, and the next call might exceed it"
        if options.max_cost_usd is not None and bounds.input_cost is not None:
            used = f"{dollars(calls.cost)} of {dollars(options.max_cost_usd)}"
            return f"{COST_REACHED}: {used}, and the next call might exceed it"
        return None

    def exhausted(self) -> str | None:
        """Return why no further trial may start, or None."""
        options, cap = self._options, self._options.max_cost_usd
        tokens, cost, unpriced = self.calls.tokens, self.calls.cost, self.spent.unpriced_calls
        if self._refused is not None:
            return self._refused
        if options.max_trials is not None and self.started >= options.max_trials:
            return f"trial limit reached: {self.started} started"
        if options.max_seconds is not None and self._clock() - self._began >= options.max_seconds:
            return f"time limit reached: {options.max_seconds:g} s"
        if options.max_tokens is not None and tokens >= options.max_tokens:
            return f"{TOKENS_REACHED}: {tokens} of {options.max_tokens}"
        # An unknown price could exceed any limit, so the run stops instead of counting it as 0.
        if cap is not None and unpriced:
            return (
                f"{plural(unpriced, 'model call')} without a known price, so the cap of "
                f"{dollars(cap)} cannot be kept; give prices in the settings, or cap tokens instead"
            )
        # A sum of floats may miss the cap by its rounding error: ten times 0.1 is below 1.
        if cap is not None and cost >= cap * (1 - 1e-9):
            return f"{COST_REACHED}: {dollars(cost)} of {dollars(cap)}"
        return None


def encoded_call(span: Span, redactor: Redactor | None) -> bytes:
    """Return a call as JSON without secrets."""
    return json_bytes(span if redactor is None else redactor.value(span))


def _span(line: CallLine) -> Span:
    return msgspec.json.decode(line.span, type=Span)


def _add_lost(trial: Trial, line: CallLine) -> None:
    """Add a call of a lost attempt, which was paid for, to the figures of its trial."""
    if not line.ended:
        return
    span = _span(line)
    trial.llm_calls += 1
    if span.input_tokens is not None:
        trial.input_tokens = (trial.input_tokens or 0) + span.input_tokens
    if span.output_tokens is not None:
        trial.output_tokens = (trial.output_tokens or 0) + span.output_tokens
    if span.cost_usd is not None:
        trial.cost_usd = (trial.cost_usd or 0.0) + span.cost_usd
    elif not span.failed:
        trial.unpriced_calls += 1


def _trace_of(trial: Trial, spans: list[Span]) -> bytes | None:
    """Return the trace of an attempt of which only its model calls are known."""
    if not spans:
        return None
    trial.trace_id = spans[0].trace_id
    root = Span(
        span_id=spans[0].parent_id or new_span_id(),
        trace_id=spans[0].trace_id,
        name=trial.agent,
        kind=SpanKind.AGENT,
        start_ns=min(span.start_ns for span in spans),
        end_ns=max(span.end_ns or span.start_ns for span in spans),
        status=SpanStatus.ERROR,
        error_type=None if trial.error is None else trial.error.type,
        error_message=None if trial.error is None else trial.error.message,
    )
    return json_bytes(Trace(trace_id=root.trace_id, spans=[root, *spans]))

"""The options of a run, and the budget that its limits make.

`RunOptions` is the one type behind the command's options, Python's keywords and the run's record.

Promise: no trial starts once a limit is reached, so a limit is exceeded by at most the trials then
running. An unknown cost cannot be limited: with a limit on money, the first unpriced call stops
the run and says so, rather than count it as nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from proctor.errors import ProctorError
from proctor.files import open_files_limit
from proctor.formatting import dollars, plural
from proctor.gateway.options import ForkPoint
from proctor.llm.retry import MAX_RETRIES
from proctor.runs.early_stop import FREE_RULES, rule_named
from proctor.runs.journal import Sync
from proctor.runs.trial import COST_REACHED, TOKENS_REACHED, OnAgentError, Spending
from proctor.strict import Strict

if TYPE_CHECKING:
    from proctor.spec.config import LimitSettings as SettingLimits


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
                f"warning: only {limit} files may be open: {fitting} trials at a time, "
                f"not {wanted} (raise the limit with `ulimit -n`)\n"
            )
        return min(wanted, fitting)

    def record(self) -> dict[str, Any]:
        """Return them as the run folder records them."""
        return self.model_dump(mode="json", exclude_defaults=True)


class RunBudget:
    """What a run has used so far, and whether a limit is reached."""

    def __init__(self, options: RunOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._limited = options.limited
        self._clock = clock
        self._began = clock()
        self.spent = Spending()
        """What the trials that have finished used."""
        self.started = 0

    def next_round(self) -> RunBudget:
        """Return the budget of the next round: costs are read from the journal again."""
        # Limits on time and starts are of this invocation, so they carry over.
        following = RunBudget(self._options, self._clock)
        following._began, following.started = self._began, self.started
        return following

    @property
    def cost_usd(self) -> float:
        """Known cost of agents and judges."""
        return (self.spent.cost_usd or 0.0) + (self.spent.judge_cost_usd or 0.0)

    def exhausted(self) -> str | None:
        """Return why no further trial may start, or None."""
        if not self._limited:
            return None
        options, cap = self._options, self._options.max_cost_usd
        tokens, unpriced = self.spent.tokens or 0, self.spent.unpriced_calls
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
        if cap is not None and self.cost_usd >= cap * (1 - 1e-9):
            return f"{COST_REACHED}: {dollars(self.cost_usd)} of {dollars(cap)}"
        return None

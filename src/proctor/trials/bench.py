"""What trials are performed with, and what they come to on the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from proctor.agents.base import Agent, AgentConfig, AgentReply, AgentRequest
from proctor.agents.checkpoint import CheckpointStore
from proctor.agents.failures import Transient
from proctor.checks.evaluate import PlannedCheck
from proctor.checks.judge import Judge
from proctor.llm.prices import PriceTable
from proctor.runs.model import PlannedTrial, Trial
from proctor.trace import Trace
from proctor.trace.redact import Redactor
from proctor.trials import retry


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

    @cached_property
    def may_wait(self) -> bool:
        """Whether judging it may take longer than a moment: somebody is asked, or code waits."""
        return any(check.judged or iscoroutinefunction(check.run) for check in self.checks)


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


class Asked(msgspec.Struct, gc=False):
    """A trial whose agent has been asked: what came of it, over all tries, and was not judged yet.

    Without a `reply` the agent gave none, and the trial says why.
    """

    trial: Trial
    prepared: PreparedCase
    reply: AgentReply | None = None
    trace: Trace | None = None
    workdir: Path | None = None
    errors: tuple[str, ...] = ()
    failed_tries: tuple[Trace, ...] = ()
    """What was done in vain before the last try: it was paid for."""
    began: float = 0.0
    """When the last try began, by the clock of `time.perf_counter`."""


class Finished(NamedTuple):
    """A trial and the trace it left, also as the line of JSON it is kept as."""

    trial: Trial
    trace: Trace | None
    encoded: bytes | None = None

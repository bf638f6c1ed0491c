"""Define the stored form of a trial: one agent, one case, one seed, once.

Guarantees: a line of the journal is exactly one `Trial`, lossless through JSON, and separates what
was counted (score, checks) from what could not be (infra_error, cancelled, unknown cost).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from proctor.checks.base import CheckResult
from proctor.errors import ProctorError, did_you_mean
from proctor.formatting import and_more


class TrialStatus(StrEnum):
    """Status of a finished trial.

    `failed` is a score below the threshold, `hard_fail` a blocking check. `infra_error` means the
    agent or a judge could not be run, `not_judged` that a blocking check could not observe what it
    needs: never a verdict on quality. `cancelled` was stopped by Proctor.
    """

    PASSED = "passed"
    FAILED = "failed"
    HARD_FAIL = "hard_fail"
    INFRA_ERROR = "infra_error"
    NOT_JUDGED = "not_judged"
    CANCELLED = "cancelled"

    @property
    def judged(self) -> bool:
        """Whether the trial counts as an observation of the agent."""
        return self in JUDGED


JUDGED = (TrialStatus.PASSED, TrialStatus.FAILED, TrialStatus.HARD_FAIL)
"""Statuses of trials that count as observations of the agent."""

UNJUDGED = (TrialStatus.INFRA_ERROR, TrialStatus.NOT_JUDGED)
"""Statuses of trials that ended without a verdict; they count towards the tolerated share."""


class OnAgentError(StrEnum):
    """What an error of the agent makes of its trial: a failed one, or an infrastructure error."""

    FAIL = "fail"
    INFRA = "infra"


NO_CHECKS = "no_checks"
"""Category of a trial of which no check judged anything."""

CATEGORIES = ("agent_error", "timeout", "resource_limit", "unobserved", "unpriced", NO_CHECKS)
"""Every category of a trial."""

COST_REACHED, TOKENS_REACHED = "cost limit reached", "token limit reached"
"""Prefixes of stop reasons that still apply when the run is resumed."""


class TraceRef(NamedTuple):
    """Location of a trial's trace: a frame of a segment file under `traces/`, and its CRC-32.

    Runs of format 1 have no checksum.
    """

    segment: int
    offset: int
    length: int
    crc: int | None = None


class TrialError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Reason why a trial could not be judged."""

    type: str
    message: str
    place: str = "agent"


class CellKey(NamedTuple):
    """Subject of a verdict: one case, agent and set of parameters."""

    case: str
    agent: str
    params: str = ""

    def __str__(self) -> str:
        parts = [self.case, self.agent, self.params] if self.params else [self.case, self.agent]
        return " × ".join(parts)

    @property
    def arm(self) -> str:
        """The agent, with its parameters if it has any."""
        return arm_name(self.agent, self.params)


class _Identified:
    """Identity of a trial: equal for planned and finished trials."""

    # Without a `__dict__`, which every trial would otherwise get from this base.
    __slots__ = ()

    case: str
    agent: str
    index: int
    params: dict[str, Any]
    axis_seed: int | None

    @property
    def cell(self) -> CellKey:
        """The cell of this trial."""
        return CellKey(self.case, self.agent, params_key(self.params))

    @property
    def key(self) -> str:
        """The identity of the trial within its run: equal plans have equal keys."""
        params = params_key(self.params)
        # NUL separates, since it cannot be in a name: no two different trials get one key.
        return f"{self.case}\0{self.agent}\0{params}\0{self.axis_seed}\0{self.index}"

    @property
    def name(self) -> str:
        """The trial's name in reports: case/agent/seed/index, with parameters if there are any."""
        params = params_key(self.params)
        case = f"{self.case}[{params}]" if params else self.case
        return f"{case}/{self.agent}/{self.axis_seed or 0}/{self.index}"

    @property
    def short_name(self) -> str:
        """`case/agent/seed/index`, for tables with a column of parameters."""
        return f"{self.case}/{self.agent}/{self.axis_seed or 0}/{self.index}"


# gc=False: trials are in no reference cycle, and the collector need not visit 100,000 of them.
class PlannedTrial(_Identified, msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A planned trial. Its key is the same in every run of the same spec.

    `attempt` rises when a resumed run repeats it; `position` is its place in the plan of its cell:
    early stopping considers trials in plan order.
    """

    case: str
    agent: str
    index: int
    seed: int
    params: dict[str, Any] = {}
    axis_seed: int | None = None
    attempt: int = 1
    position: int = 0

    def trial(self, status: TrialStatus) -> Trial:
        """Return a trial with this status; the executor fills in the other fields."""
        return Trial(
            case=self.case,
            agent=self.agent,
            index=self.index,
            seed=self.seed,
            params=self.params,
            axis_seed=self.axis_seed,
            attempt=self.attempt,
            status=status,
        )


# Not frozen: the executor fills in the results, and the writer the location of the trace. Without
# defaults, since most fields of most trials have them, journal lines stay short.
class Trial(_Identified, msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """One finished trial.

    `index` counts repeats within a cell (and seed of the experiment, `axis_seed`); `seed` was
    passed to the agent. `attempt` rises when a trial is rerun: the first one that was judged
    counts, see `runs.journal`.
    """

    case: str
    agent: str
    index: int
    seed: int
    status: TrialStatus
    category: str = ""
    """Why it failed or was not judged, one of `CATEGORIES`; empty for other trials."""
    params: dict[str, Any] = {}
    axis_seed: int | None = None
    attempt: int = 1
    score: float | None = None
    answer: str | None = None
    checks: tuple[CheckResult, ...] = ()
    error: TrialError | None = None
    started_ns: int = 0
    duration_ms: float = 0.0
    latency_ms: float | None = None
    """The agent's own time: without the three below."""
    queue_ms: float = 0.0
    """Waiting for our own rate limits."""
    startup_ms: float = 0.0
    """Starting the agent's process."""
    check_ms: float = 0.0
    """Running the checks, with their judges."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    llm_calls: int = 0
    unpriced_calls: int = 0
    tool_calls: int = 0
    judge_cost_usd: float | None = None
    retries: int = 0
    retry_errors: tuple[str, ...] = ()
    trace_id: str | None = None
    trace: TraceRef | None = None
    workdir: str | None = None

    @property
    def tokens(self) -> int | None:
        """Input and output tokens together; None where neither is known."""
        if self.input_tokens is None and self.output_tokens is None:
            return None
        return (self.input_tokens or 0) + (self.output_tokens or 0)

    @property
    def passed(self) -> bool:
        """Whether the trial passed."""
        return self.status == TrialStatus.PASSED

    def _repr_html_(self) -> str:
        """Return the checks and the answer, for notebooks."""
        from proctor.tables import html_table

        rows = [(check.id, check.status, check.score, check.reason) for check in self.checks]
        error = [] if self.error is None else [f"{self.error.type}: {self.error.message}"]
        answer = [] if self.answer is None else [f"answer: {self.answer}"]
        head = ("check", "status", "score", "reason")
        return html_table(f"{self.status.value}: {self.name}", head, rows, [*error, *answer])


def named_trial(trials: Iterable[Trial], wanted: str, where: str) -> Trial:
    """Return the trial of a run with that name, name without parameters, or trace id."""
    without: list[Trial] = []  # the trials this name matches when parameters are omitted
    names: dict[str, bool] = {}
    for trial in trials:
        if wanted in (trial.name, trial.trace_id):
            return trial
        if wanted == trial.short_name and trial.name not in names:
            without.append(trial)
        names[trial.name] = trial.passed
    if len(without) == 1:
        return without[0]
    if without:
        raise ProctorError(
            f"{wanted!r} means {len(without)} trials, one for each set of parameters",
            where=where,
            hint=f"name one, such as {without[0].name}",
        )
    hint = did_you_mean(wanted, names)
    if hint is None and (failing := [name for name, passed in names.items() if not passed]):
        hint = f"trials that did not pass: {and_more(failing, 3, str)}"
    if hint is None:
        hint = f"trials: {and_more(list(names), 3, str)}" if names else "the run has no trial yet"
    raise ProctorError(f"the run has no trial {wanted!r}", where=where, hint=hint)


class Spending(msgspec.Struct, kw_only=True):
    """What attempts at trials used. Unknown stays unknown: a cost is the sum of known prices beside
    the number of unpriced calls; without any call it is None, not zero.
    """

    llm_calls: int = 0
    tool_calls: int = 0
    unpriced_calls: int = 0
    cost_usd: float | None = None
    judge_cost_usd: float | None = None
    tokens: int | None = None
    retries: int = 0

    def add(self, used: Trial | Spending) -> None:
        """Add an attempt, or the sum of several."""
        self.llm_calls += used.llm_calls
        self.tool_calls += used.tool_calls
        self.unpriced_calls += used.unpriced_calls
        self.retries += used.retries
        if used.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + used.cost_usd
        if used.judge_cost_usd is not None:
            self.judge_cost_usd = (self.judge_cost_usd or 0.0) + used.judge_cost_usd
        if (tokens := used.tokens) is not None:
            self.tokens = (self.tokens or 0) + tokens


def arm_name(agent: str, params: str) -> str:
    """Format an agent with its parameters, as in every report: `fast (t=0)`."""
    return f"{agent} ({params})" if params else agent


def params_key(params: dict[str, Any]) -> str:
    """Format parameters as short text: `a=1,b=x`, sorted by name."""
    return ",".join(f"{name}={params[name]}" for name in sorted(params)) if params else ""

"""How to run a run: one type behind the command's options, Python's keywords and the record."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from proctor.errors import ProctorError
from proctor.runs.early_stop import FREE_RULES, rule_named
from proctor.runs.journal import Sync
from proctor.strict import Strict
from proctor.trials.limits import Limits
from proctor.trials.retry import MAX_RETRIES

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
    """Rules as Python code may say them: `True` for those that cost nothing, or one by name."""
    if isinstance(value, bool):
        return tuple(FREE_RULES) if value else ()
    return tuple(value.split(",")) if isinstance(value, str) else value


FilePath = Annotated[str, BeforeValidator(_as_text)]

StoppingRuleName = Annotated[str, AfterValidator(_rule)]

DEFAULT_CONCURRENCY = 4
"""Sensible for a batch on a laptop with remote models; a single trial is sequential anyway."""


class ExecutorName(StrEnum):
    """Where trials run."""

    LOCAL = "local"
    RAY = "ray"


OF_WORKERS = ("address", "workers")
"""Options that mean nothing where trials run in this process."""


class RunOptions(Strict):
    """Options of one run; None leaves it to the suite or does not bind."""

    # The words below the fields are the help of the command's options.
    model_config = ConfigDict(use_attribute_docstrings=True)

    trials: Annotated[int, Field(ge=1)] | None = None
    """Trials per cell; the case's own number when absent."""
    default_trials: Annotated[int, Field(ge=1)] | None = None
    """Trials per cell of a case that has no number of its own; what the settings say."""
    more_trials: Annotated[int, Field(ge=0, json_schema_extra={"hidden": True})] = 0
    """Trials added to each cell (and seed) after the run had ended; see `trials.extend`."""
    concurrency: Annotated[int, Field(ge=1)] | None = None
    """Trials at a time."""
    executor: ExecutorName = ExecutorName.LOCAL
    """Where trials run: in this process, or on workers of Ray."""
    address: Annotated[str, Field(min_length=1)] | None = None
    """The Ray to use (auto, HOST:PORT or ray://HOST:PORT); one on this machine when absent."""
    workers: Annotated[int, Field(ge=1)] | None = None
    """Processes that run trials; as many as there is room for when absent."""
    seed: int = 0
    """Where the seeds of all trials come from."""
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Seconds for one trial, retries included."""
    max_retries: Annotated[int, Field(ge=0)] = MAX_RETRIES
    """Tries after the first, for failures that may pass."""
    early_stop: Annotated[
        tuple[StoppingRuleName, ...],
        BeforeValidator(_named),
        Field(json_schema_extra={"alone": ",".join(FREE_RULES)}),
    ] = ()
    """Rules that end a cell before all its trials are done: hard_fail, out_of_reach (these two
    when none is named), sequential or sequential:ALPHA (a test that may err at that rate)."""
    allow_infra: bool = False
    """Judge a cell by the trials that could be run, though some could not."""
    max_cost_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Dollars for the whole run."""
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """Tokens for the whole run."""
    max_trials: Annotated[int, Field(ge=0)] | None = None
    """Trials started in this sitting."""
    max_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Seconds for this sitting."""
    record_to: FilePath | None = None
    """Record every model call of this run into a cassette."""
    replay_from: FilePath | None = None
    """Answer model calls from a cassette; one that is not in it is an error, never a live call."""
    retry_from_checkpoint: bool = False
    """Let tries after a failure, and --retry-infra, go on from the state the agent saved."""
    keep_workdirs: bool = False
    """Keep the directories of trials that did not pass."""
    sync: Sync = Sync.INTERVAL
    """When journal lines are forced to the platter."""

    @model_validator(mode="after")
    def _record_or_replay(self) -> RunOptions:
        if self.record_to is not None and self.replay_from is not None:
            raise ValueError("record or replay, not both")
        return self

    @model_validator(mode="after")
    def _workers_of_ray(self) -> RunOptions:
        if self.executor == ExecutorName.LOCAL and (self.address or self.workers):
            raise ValueError("--address and --workers are for --executor ray")
        return self

    def cassette(self, *, going_on: bool) -> AbstractContextManager[object]:
        """The cassette in use while the run is carried out; a resumed run goes on recording."""
        from proctor.llm.cassette import Cassette

        if self.record_to is not None:
            return Cassette(self.record_to, "record", append=going_on)
        if self.replay_from is not None:
            return Cassette(self.replay_from, "replay")
        return nullcontext()

    @property
    def limits(self) -> Limits:
        """The caps of the run."""
        return Limits(
            max_cost_usd=self.max_cost_usd,
            max_tokens=self.max_tokens,
            max_trials=self.max_trials,
            max_seconds=self.max_seconds,
            timeout_s=self.timeout,
        )

    def within(self, settings: SettingLimits) -> RunOptions:
        """These options, with what they leave open taken from the settings' limits."""
        names = (
            "concurrency",
            "timeout",
            "max_cost_usd",
            "max_tokens",
            "max_trials",
            "max_seconds",
        )
        open_ones = {name: getattr(settings, name) for name in names if getattr(self, name) is None}
        # Kept even where it is the default, so that a resumed run has the same plan.
        trials = self.default_trials or settings.trials
        return self.model_copy(update={**open_ones, "default_trials": trials})

    def at_once(self, planned: int) -> int:
        """How many trials run at a time: never more than there are."""
        return max(1, min(self.concurrency or DEFAULT_CONCURRENCY, planned))

    def record(self) -> dict[str, Any]:
        """What the run folder keeps of them."""
        return self.model_dump(mode="json", exclude_defaults=True)

"""What is under test: the one interface every kind of agent has.

An agent kind is one class of options (a `Strict` model deriving `AgentConfig`) that makes fresh
`Agent`s. Promise to agents: a new instance per trial, a seed, a temporary directory of its own
that exists only if asked for, and never a changed working directory.
"""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
from pydantic import Field

from proctor.agents.checkpoint import Checkpoint, CheckpointStore, MemoryStore
from proctor.errors import ProctorError
from proctor.strict import Strict
from proctor.trace import Trace


class AgentError(ProctorError):
    """The agent could not be run.

    `transient` says whether another attempt may help; None lets the status code decide.
    """

    def __init__(
        self,
        message: str,
        *,
        transient: bool | None = None,
        status_code: int | None = None,
        retry_after: float | None = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.transient = transient
        self.status_code = status_code
        self.retry_after = retry_after


class AgentRequest:
    """What an agent is given for one trial."""

    __slots__ = (
        "_checkpoint",
        "_workdir",
        "case",
        "index",
        "input",
        "params",
        "seed",
        "timeout",
        "trace_id",
        "trial",
    )

    def __init__(
        self,
        input: Any,  # noqa: A002 (the word users write)
        *,
        case: str = "",
        trial: str = "",
        index: int = 0,
        seed: int = 0,
        params: dict[str, Any] | None = None,
        trace_id: str | None = None,
        timeout: float | None = None,
    ) -> None:
        self.input = input
        self.case = case
        self.trial = trial
        self.index = index
        self.seed = seed
        self.params = params or {}
        self.trace_id = trace_id
        self.timeout = timeout
        self._workdir: Path | None = None
        self._checkpoint: Checkpoint | None = None

    @property
    def checkpoint(self) -> Checkpoint:
        """State of this trial that outlives the process: see `proctor.agents.checkpoint`."""
        if self._checkpoint is None:
            self._checkpoint = Checkpoint(*self._kept_states())
        return self._checkpoint

    def keep_states(self, store: CheckpointStore, key: str) -> None:
        """Say where states of this trial are kept, and as what."""
        self._checkpoint = Checkpoint(store, key)

    def _kept_states(self) -> tuple[CheckpointStore, str]:
        """Where states are kept, and as what, where nothing was said."""
        return MemoryStore(), self.trial

    @property
    def workdir(self) -> Path:
        """A directory of this trial's own, made on first use and removed afterwards."""
        if self._workdir is None:
            self._workdir = Path(tempfile.mkdtemp(prefix="proctor-"))
        return self._workdir

    def give_workdir(self, path: Path) -> None:
        """Use a directory that exists already (the other side of a process made it)."""
        self._workdir = path

    @property
    def used_workdir(self) -> Path | None:
        """The directory, if the agent asked for it."""
        return self._workdir


class AgentReply(msgspec.Struct, omit_defaults=True):
    """What an agent came back with.

    `answer` is the text that is checked; `output` the value behind it when it is structured. A
    `trace` is given only by agents that bring their own (a recording, another process).
    """

    answer: str
    output: Any = None
    trace: Trace | None = None
    metadata: dict[str, Any] = {}


class Agent(Protocol):
    """One instance, for one trial."""

    async def run(self, request: AgentRequest) -> AgentReply:
        """Do the work; raise to say that it could not be done."""
        ...


class AgentConfig(Strict):
    """Options of one kind of agent: what a user writes after `kind:`."""

    kind: Any
    resources: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None = None
    """What a worker of another process or machine needs to run it: cpu (1), gpu (0), and others by
    the names they have there. Means nothing where trials run in this process."""

    @abstractmethod
    def create(self) -> Agent:
        """A fresh agent for one trial. Cheap: what is shared is kept on the config."""

    @property
    def asynchronous(self) -> bool:
        """Whether one process can run several of its trials at a time to some use."""
        return True

    @property
    def made_in_code(self) -> bool:
        """Whether it holds a Python object that its options do not lead to."""
        return False

    def __getstate__(self) -> dict[Any, Any]:
        """For another process: the options, without what was worked out from them here."""
        state = super().__getstate__()
        fields = type(self).model_fields
        return {**state, "__dict__": {k: v for k, v in state["__dict__"].items() if k in fields}}

    @property
    def provider(self) -> str | None:
        """Whose rate limits calls of this agent count against, if known."""
        return None

    def version(self) -> dict[str, Any]:
        """What identifies the code or model under test, for the record of a run."""
        return {}


MAX_ANSWER_CHARS = 10_000_000
"""Longest answer that is kept and checked: beyond it no text is an answer but a flood."""


def shortened(answer: str) -> str:
    """An answer no longer than is kept, and said so where it is cut."""
    return answer if len(answer) <= MAX_ANSWER_CHARS else f"{answer[:MAX_ANSWER_CHARS]}… [cut]"


def as_reply(value: Any) -> AgentReply:
    """A reply from whatever a function returned.

    Text stays text; None is an empty answer; bytes are decoded; anything else is kept as `output`
    and answered as its JSON (or its text, where JSON cannot hold it).
    """
    if isinstance(value, str):
        return AgentReply(answer=shortened(value))
    if isinstance(value, AgentReply):
        return value
    if value is None:
        return AgentReply(answer="")
    if isinstance(value, bytes | bytearray):
        return as_reply(bytes(value).decode(errors="replace"))
    try:
        text = msgspec.json.encode(value, enc_hook=str).decode()
    except (TypeError, ValueError, RecursionError):
        text = str(value)
    return AgentReply(answer=text, output=value)

"""The interface shared by every kind of agent.

An agent kind is one options class (a `Strict` model deriving from `AgentConfig`) that creates
`Agent`s, or is one itself if agents of the kind hold no state. Guarantees to agents: a new instance
per trial, a seed, a private temporary directory created on first use, and an unchanged working
directory.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, Self, cast

import msgspec
from pydantic import BeforeValidator, Field, model_validator

from proctor.agents.checkpoint import Checkpoint, CheckpointStore, MemoryStore
from proctor.errors import ProctorError
from proctor.llm.rate_limits import Waits
from proctor.llm.retry import ACCOUNT_REFUSED, causes, status_code, transient
from proctor.sandbox.options import SandboxOption
from proctor.sanitize import json_bytes, json_value
from proctor.strict import Strict
from proctor.trace import Span, Trace
from proctor.trace.model import Observable

if TYPE_CHECKING:
    from proctor.agents.session import AgentSession
    from proctor.gateway.budget import CallLedger
    from proctor.llm.prices import PriceTable
    from proctor.sandbox.place import RunningSandbox

AGENT_ERROR, TIMEOUT, RESOURCE_LIMIT = "agent_error", "timeout", "resource_limit"
"""Categories of trials that failed by the agent's own fault, before any check."""


CommandLine = Annotated[
    list[str], BeforeValidator(lambda v: shlex.split(v) if isinstance(v, str) else v)
]
"""A program and its arguments: a list, or a text that is split as a shell does."""


class AgentError(ProctorError):
    """Raised when the agent gave no answer.

    `transient` says whether a retry may help; None lets the status code decide. `category` says
    whose failure it was, in the words of `category_of`; None derives it.
    """

    def __init__(
        self,
        message: str,
        *,
        transient: bool | None = None,
        status_code: int | None = None,
        retry_after: float | None = None,
        category: str | None = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.transient = transient
        self.category = category
        self.status_code = status_code
        self.retry_after = retry_after


class NoActionsError(AgentError):
    """Raised by an agent that selects among listed actions when a case lists none."""


def category_of(error: BaseException) -> str:
    """Return the category of a failure that is the agent's own; "" for infrastructure.

    What may pass (lost connections, rate limits, server errors), a refused account, and our own
    errors (a model, a world, a cassette, a mistake in the configuration) say nothing about the
    agent. Any other exception came from its code.
    """
    found = list(causes(error))
    for cause in found:
        if isinstance(cause, AgentError) and cause.category is not None:
            return cause.category
    if transient(error) is not None:
        return ""
    for cause in found:
        if isinstance(cause, MemoryError):
            return RESOURCE_LIMIT
        if isinstance(cause, BaseExceptionGroup):
            members = cast("BaseExceptionGroup[BaseException]", cause).exceptions
            categories = [category_of(member) for member in members]
            return next((each for each in categories if each), "")
        ours = isinstance(cause, ProctorError) and not isinstance(cause, AgentError)
        if ours or status_code(cause) in ACCOUNT_REFUSED:
            return ""
    return AGENT_ERROR


class AgentRequest:
    """Input of an agent for one trial."""

    workdir_prefix: ClassVar[str] = "proctor-"
    """Start of the names of private directories; a worker has its own, to be cleaned up after."""

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
        states: tuple[CheckpointStore, str] | None = None,
        session: AgentSession | None = None,
        whole: AgentRequest | None = None,
        prices: PriceTable | None = None,
    ) -> None:
        self.input = input
        self.case = case
        self.trial = trial
        self.index = index
        self.seed = seed
        self.params = params or {}
        self.trace_id = trace_id
        self.timeout = timeout
        self.prices = prices
        """Prices of the user, for agents whose spending is limited."""
        self.ledger: tuple[CallLedger, str] | None = None
        """Where the run counts the calls of programs, and the trial's key there."""
        self.startup: Waits | None = None
        """Where an agent adds up what its own start takes: that is not part of its latency."""
        self.used_workdir: Path | None = None
        """The private directory, if the agent used it."""
        self.session = session
        """The conversation this is a turn of; None for a single question."""
        self.history: Sequence[Mapping[str, Any]] = ()
        """The earlier messages of the conversation: `role` (user, assistant) and `content`."""
        self.sandbox: RunningSandbox | None = None
        """Where its processes must run, if not directly on this machine."""
        self.workspace: Path | None = None
        """The folder of files to work on, if the case has a `workspace`."""
        self._checkpoint: Checkpoint | None = None
        self._states = states
        self._whole = whole

    def turn(self, message: str, session: AgentSession, timeout: float | None) -> AgentRequest:
        """Return the request of one turn; its working directory is that of the whole trial."""
        turn = AgentRequest(message, **self.trial_fields(), session=session, whole=self)
        turn.prices, turn.ledger = self.prices, self.ledger
        turn.timeout, turn.startup, turn.history = timeout, self.startup, [*session.history]
        turn.workspace, turn.sandbox = self.workspace, self.sandbox
        return turn

    @property
    def state(self) -> Any:
        """The data that the trial's tools share (`state:` of the case), if any."""
        held = None if self.session is None else self.session.state
        return None if held is None else held.value

    def trial_fields(self) -> dict[str, Any]:
        """Return the fields that identify the trial, for a request that is part of it."""
        names = ("case", "trial", "index", "seed", "params", "trace_id", "timeout")
        return {name: getattr(self, name) for name in names}

    @property
    def checkpoint(self) -> Checkpoint:
        """State of this trial that survives a crash: see `proctor.agents.checkpoint`."""
        if self._checkpoint is None:
            # Outside a run folder there is nothing to resume, so memory is enough.
            self._checkpoint = Checkpoint(*(self._states or (MemoryStore(), self.trial)))
        return self._checkpoint

    def keep_states(self, store: CheckpointStore, key: str) -> None:
        """Set the store of this trial's states, and their key."""
        self._states = (store, key)

    @property
    def workdir(self) -> Path:
        """Return a private directory for this trial, created on first use and removed
        afterwards.
        """
        if self._whole is not None:
            return self._whole.workdir
        if self.used_workdir is None:
            self.used_workdir = Path(tempfile.mkdtemp(prefix=self.workdir_prefix))
        return self.used_workdir

    def give_workdir(self, path: Path) -> None:
        """Use an existing directory (created by the parent process)."""
        self.used_workdir = path


class AgentReply(msgspec.Struct, omit_defaults=True):
    """Result of an agent for one trial.

    `answer` is the text that is checked; `output` is the structured value behind it, if any.
    `trace` is set only by agents that supply their own (a recording, another process).
    """

    answer: str
    output: Any = None
    trace: Trace | None = None
    metadata: dict[str, Any] = {}


class Agent(Protocol):
    """An agent instance, used for one trial."""

    async def run(self, request: AgentRequest) -> AgentReply:
        """Run the trial; raise if it could not be run."""
        ...


class AgentConfig(Strict):
    """Options of one kind of agent: the YAML below `kind:`."""

    has_process: ClassVar[bool] = False
    """Whether its trials run in processes of their own, which a sandbox can hold."""

    kind: Any
    resources: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None = None
    """Resources a remote worker needs to run it: cpu (default 1), gpu (default 0) and custom
    resources by name. Ignored when trials run in this process.
    """

    sandbox: SandboxOption | None = None
    """Where its processes run: none, bwrap, podman, docker, or options; default: the suite's."""

    observed: tuple[Observable, ...] = ()
    """Work that its traces show whenever it happens, so that none in a trace means none was done:
    model_calls, tool_calls, arguments. Only needed where no spans show it.
    """

    @model_validator(mode="after")
    def _sandbox_has_an_effect(self) -> Self:
        if self.sandbox and not self.has_process:
            raise ValueError(f"an agent of kind {self.kind} has no process to put in a sandbox")
        return self

    def shown_in_sandbox(self) -> Sequence[Path]:
        """Return the files and folders that its processes must see."""
        return ()

    @property
    def unsupported(self) -> tuple[str, ...]:
        """Return the keys of a case that its agents cannot use: turns, user, state, approvals."""
        return ()

    @property
    def observes(self) -> tuple[Observable, ...]:
        """Return the work that is recorded whenever this agent does it."""
        return self.observed

    def create(self) -> Agent:
        """Create an agent for one trial. Cheap: shared objects are cached on the config.

        A kind whose agents hold no state defines `run` and is its own agent.
        """
        return self

    async def run(self, request: AgentRequest) -> AgentReply:
        """Run the trial, in kinds that create no agents."""
        raise NotImplementedError(f"{type(self).__name__} has neither `create` nor `run`")

    @property
    def asynchronous(self) -> bool:
        """Return whether running several trials at once in one process is useful."""
        return True

    @property
    def made_in_code(self) -> bool:
        """Return whether it wraps a Python object that cannot be rebuilt from its options."""
        return False

    def __getstate__(self) -> dict[Any, Any]:
        """Pickle the options only, without cached values."""
        state = super().__getstate__()
        fields = type(self).model_fields
        return {**state, "__dict__": {k: v for k, v in state["__dict__"].items() if k in fields}}

    @property
    def provider(self) -> str | None:
        """Return the provider whose rate limits apply to this agent, if known."""
        return None

    def version(self) -> dict[str, Any]:
        """Return what identifies the code or model under test, for the run record."""
        return {}

    def check(self) -> None:
        """Raise if code, tools or the model it names cannot be used; imports users' code."""
        self.version()


def as_text(value: Any) -> str:
    """Return a text unchanged, and any other value as JSON."""
    return value if isinstance(value, str) else json_bytes(json_value(value)).decode()


def as_reply(value: Any) -> AgentReply:
    """Return the reply for a function's return value.

    Text stays text; None is an empty answer; bytes are decoded; any other value is stored as
    `output`, with its JSON as the answer: a record (pydantic, dataclass) by its fields, a value
    that JSON has no form for by its text.
    """
    if isinstance(value, str):
        return AgentReply(answer=value)
    if isinstance(value, AgentReply):
        answer, trace = cast("tuple[Any, Any]", (value.answer, value.trace))
        if not (isinstance(answer, str) and isinstance(trace, Trace | None)):
            raise AgentError("the agent returned an AgentReply with fields of other types")
        return value
    if value is None:
        return AgentReply(answer="")
    if isinstance(value, bytes | bytearray):
        return as_reply(bytes(value).decode(errors="replace"))
    try:
        text = msgspec.json.encode(value, enc_hook=json_value).decode()
    except (TypeError, ValueError, RecursionError):  # a key that is no text, a lone surrogate
        value = json_value(value)
        text = msgspec.json.encode(value).decode()
    return AgentReply(answer=text, output=value)


def adopt_spans(trace: Trace | None, under: Span | None = None) -> None:
    """Add the spans of an agent's own trace to the captured one, below a span or its root."""
    from proctor.trace.capture import current_trace

    here = current_trace()
    if trace is None or here is None:
        return
    parent = here.spans[0] if under is None else under
    for span in trace.spans:
        span.trace_id = here.trace_id
        # The root span of the other trace has no parent there.
        span.parent_id = span.parent_id or parent.span_id
    # Appended, not merged: two members of an ensemble may replay one recording, with equal ids.
    here.spans.extend(trace.spans)
    here.forget()

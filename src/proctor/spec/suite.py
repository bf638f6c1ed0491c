"""Define suites and their cases, as users write them.

The same objects come from YAML and from Python (`Suite(agent=..., cases=[Case(...)])`), through the
same validation. The options of each layer of checks are defined with the checks.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, overload

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)

from proctor.checks.base import Check, Share, Weight
from proctor.checks.custom import written_check
from proctor.checks.layers import Assertion, Correctness, CostChecks, PathChecks
from proctor.conversations.checks import ApprovalOptions, StateOptions
from proctor.conversations.user import SimulatedUser, check_patterns, check_placeholders
from proctor.errors import hint_among
from proctor.imports import IMPORT_PATH
from proctor.runs.case_rows import NAME, RESERVED, escaped, escaped_values, merge, slug
from proctor.runs.trial import OnAgentError
from proctor.sandbox.options import SandboxOption, Workspace, WorkspaceOption
from proctor.spec.datasets import DataRows, DataSource, DataVersion
from proctor.spec.located import MOST_NOTES, SourceLocation, Tree, plain
from proctor.spec.validation import Fault, faults_error
from proctor.strict import Strict, short_for

if TYPE_CHECKING:
    from proctor.checks.judge import JudgeSettings


# Agents under test and judges, in suites or settings. Short forms (a text, a function) are expanded
# before validation, so that the code handles only the long one.


def _agent(value: Any) -> Any:
    if callable(value):
        # By its import path, so that the suite can be stored and read back.
        return {"kind": "python", "target": f"{value.__module__}:{value.__qualname__}"}
    if not isinstance(value, str):
        return value
    if re.fullmatch(IMPORT_PATH, value):
        return {"kind": "python", "target": value}
    return {"name": value}


class AgentRef(Strict):
    """An agent under test: the name of a registered one, or a kind with its options.

    The options depend on the kind and are validated when the agent is created.
    """

    # The options of a kind are not known here; its own model checks them.
    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(min_length=1)] | None = None
    """Name of a registered agent."""
    kind: Annotated[str, Field(min_length=1)] | None = None
    """Kind of agent, such as `python`."""

    @model_validator(mode="after")
    def _has_name_or_kind(self) -> AgentRef:
        if self.name is None and self.kind is None:
            raise ValueError("an agent is `package.module:name`, a registered name, or has a kind")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """Return the options next to `kind` and `name`."""
        return dict(self.model_extra or {})

    def __str__(self) -> str:
        options = self.model_extra or {}
        return self.name or str(options.get("target") or options.get("model") or self.kind)


Agent = Annotated[AgentRef, BeforeValidator(_agent, json_schema_input_type=str | AgentRef)]


class JudgeConfig(Strict):
    """A language model that judges answers."""

    # pydantic reserves names that start with `model_`.
    model_config = ConfigDict(protected_namespaces=())

    model: Annotated[str, Field(min_length=1)]
    """PROVIDER:MODEL, such as `openai:gpt-4o-mini`."""
    ensemble: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Additional models; the majority decides."""
    votes: Annotated[int, Field(ge=1, le=99)] = 1
    """Votes per model; the median counts."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """0 for repeatable judgements; more only makes sense with several votes."""
    seed: int = 0
    """Seed of the first vote; each vote gets a different one."""
    max_tokens: Annotated[int, Field(ge=16)] = 2048
    """Maximum output tokens of one verdict."""
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 120.0
    """Seconds for one verdict."""
    retries: Annotated[int, Field(ge=0, le=20)] = 3
    """Retries of a transient failure."""
    base_url: str | None = None
    """Endpoint compatible with OpenAI chat completions."""
    api_key_env: str | None = None
    """Environment variable with the key of `base_url`."""
    cache: bool = True
    """Cache verdicts on disk, by content."""

    @property
    def models(self) -> tuple[str, ...]:
        """Return all models of the judge."""
        return (self.model, *self.ensemble)

    @property
    def settings(self) -> JudgeSettings:
        """Return the call options of the models."""
        from proctor.checks.judge import JudgeSettings

        options = {"votes", "temperature", "seed", "max_tokens", "timeout", "retries"}
        return JudgeSettings(**self.model_dump(include=options))


Judge = Annotated[JudgeConfig, short_for("model", str | JudgeConfig)]


# Ids of cases: stable, and valid file names on every system. Baselines and results are stored under
# a case's id, so an id must be a valid Windows file name, and two ids that differ only in case are
# equal.


LONGEST_ID = 100
"""With a suffix and a folder this stays within the 260 characters of an old Windows path."""

_ALLOWED = re.compile(r"\w[\w.@+=~()\[\]-]*")


def problem_with_id(text: str) -> str | None:
    """Return why a text cannot be the id of a case; None when it can."""
    if not text:
        return "an id must not be empty"
    if len(text) > LONGEST_ID:
        return f"an id has at most {LONGEST_ID} characters, this one {len(text)}"
    if not _ALLOWED.fullmatch(text):
        return (
            f"the id {text!r} must begin with a letter or digit and hold only letters, digits "
            f"and . _ - @ + = ~ ( ) [ ], such as {slug(text)!r}"
        )
    if RESERVED.fullmatch(text) or text.endswith("."):
        return f"the id {text!r} cannot be the name of a file on Windows"
    return None


def valid_id(text: str) -> str:
    """Return a text that can be the id of a case, or raise ValueError."""
    if reason := problem_with_id(text):
        raise ValueError(reason)
    return text


def same_id(text: str) -> str:
    """Return the form in which two ids are equal on any file system."""
    # macOS stores names decomposed, Windows and macOS ignore case.
    return unicodedata.normalize("NFC", text).casefold()


DEFAULT_TRIALS = 3
"""R2: enough to detect an unstable agent, few enough to pay for on every push."""

DEFAULT_THRESHOLD = 0.8

CASE_SPELLINGS = {"query": "input"}
SUITE_SPELLINGS = {"queries": "cases"}
"""Key names of other tools → ours."""

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Trials = Count


# -- cases ---------------------------------------------------------------------------------------


def _custom_check(value: Any) -> Any:
    return {"check": value} if isinstance(value, str) or callable(value) else value


def _check_reference(value: Any) -> Any:
    if callable(value):
        return value
    if not isinstance(value, str) or not re.fullmatch(rf"{IMPORT_PATH}|[A-Za-z_][\w.-]*", value):
        raise ValueError(
            f"{value!r} is not an import path such as package.module:name, nor the name of an "
            "installed check"
        )
    return value


class CustomCheck(Strict):
    """A custom check: a function or class that takes one context."""

    check: Annotated[
        str | Callable[..., Any],
        BeforeValidator(_check_reference),
        WithJsonSchema({"type": "string"}),
    ]
    """`package.module:name`, or the name of an entry point in `proctor.checks`."""
    params: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Keyword arguments of the constructor (class) or of the call (function)."""
    weight: Weight = 1.0
    """Weight in the score."""
    required: bool = True
    """Whether a failure blocks, like failures of correctness."""
    id: Annotated[str, Field(min_length=1)] | None = None
    """Name in results; the name of the function or class by default."""

    @property
    def name(self) -> str:
        """Return its name in results."""
        if self.id:
            return self.id
        if isinstance(self.check, Check):
            return self.check.id or self.check.check
        if isinstance(self.check, str):
            if self.check == "has_matching_span" and "evaluation_name" in self.params:
                return str(self.params["evaluation_name"])
            return self.check.rpartition(":")[2]
        return str(getattr(self.check, "__name__", type(self.check).__name__))

    @model_serializer(when_used="json")
    def _as_written(self) -> dict[str, Any]:
        """Name functions and check objects as a suite file would."""
        fields = {name: getattr(self, name) for name in self.model_fields_set}
        fields |= written_check(self.check)
        if self.name != fields["check"].rpartition(":")[2]:
            # Ids in results stay the same when the suite is read back.
            fields["id"] = self.name
        return fields


Custom = Annotated[
    CustomCheck, BeforeValidator(_custom_check, json_schema_input_type=str | CustomCheck)
]
if TYPE_CHECKING:  # Python input types; once validated, tuples of CustomCheck and str
    Checks = Sequence[Check | CustomCheck | Callable[..., Any] | str]
    Tags = Sequence[str]
else:
    Checks = tuple[Custom, ...]
    Tags = tuple[Annotated[str, Field(min_length=1)], ...]


class Turn(Strict):
    """One message of the user in a conversation, with the checks of the answer to it."""

    user: Annotated[str, Field(min_length=1)]
    """The message; `{name}` is replaced by a value that an earlier turn saved."""
    save: dict[str, str] = Field(default_factory=dict[str, str])
    """Name → regular expression: its first group (or its match) in the answer is saved. If the
    answer has none, the conversation ends."""
    correctness: Correctness = Correctness()
    """Checks of the answer of this turn. A failure blocks."""
    path: PathChecks = PathChecks()
    """Checks of the path of this turn."""
    cost: CostChecks = CostChecks()
    """Checks of cost and time of this turn."""
    checks: Checks = ()
    """Custom checks of this turn."""
    assertions: tuple[Assertion, ...] = ()
    """The same checks as a flat list."""

    @field_validator("save")
    @classmethod
    def _are_patterns(cls, value: dict[str, str]) -> dict[str, str]:
        return check_patterns(value)


if TYPE_CHECKING:
    Turns = Sequence[Turn | str]
else:
    Turns = tuple[Annotated[Turn, short_for("user", str | Turn)], ...]


class Case(Strict):
    """One input for an agent, with the checks its answer must pass."""

    id: Annotated[str, AfterValidator(valid_id)] = ""
    """Stable and unique in its suite; derived from the input by default."""
    input: Any
    """Input of the agent: text, or anything structured. Also written `query`. A conversation has
    `turns` or a `user` instead."""
    turns: Turns = ()
    """Messages of the user, one after the other, each with its own checks."""
    user: SimulatedUser | None = None
    """A simulated user who talks to the agent."""
    state: StateOptions | None = None
    """Data that the tools of a trial read and write, and what it must be at the end."""
    approvals: ApprovalOptions | None = None
    """Who approves tool calls that need it."""
    matrix: dict[str, list[Any]] = Field(default_factory=dict[str, list[Any]])
    """Name → values: the file has a case for each combination, `{name}` is replaced."""
    description: str | None = None
    """Description, for people."""
    tags: Tags = ()
    """Tags to select cases by."""
    difficulty: str | None = None
    """Such as easy, medium, hard."""
    type: str | None = None
    """Type of question."""
    properties: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Other properties to select or group by."""
    workspace: WorkspaceOption | None = None
    """Files the agent works on, copied for each trial: a folder, a git reference, or files."""
    trials: Trials = DEFAULT_TRIALS
    """Number of trials."""
    threshold: Share = DEFAULT_THRESHOLD
    """Minimum score, 0 to 1, for a trial to pass."""
    correctness: Correctness = Correctness()
    """Checks of the answer. A failure blocks."""
    path: PathChecks = PathChecks()
    """Checks of the path to the answer. A failure warns, except for forbidden tools."""
    cost: CostChecks = CostChecks()
    """Checks of cost and time. A failure warns."""
    checks: Checks = ()
    """Custom checks."""
    assertions: tuple[Assertion, ...] = ()
    """The same checks as a flat list."""
    weights: dict[str, Weight] = Field(default_factory=dict[str, float])
    """Weight of a check, or of each check of a layer, in the score."""
    required: tuple[str, ...] = ()
    """Checks whose failure blocks."""

    _place: SourceLocation | None = PrivateAttr(default=None)
    _folder: Path | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _with_id(cls, data: Any) -> Any:
        data = spelled(data, CASE_SPELLINGS)
        if not isinstance(data, dict):
            return data
        raw = cast("dict[str, Any]", data)
        if raw.get("input") is None and (first := first_message(raw)) is not None:
            raw = {**raw, "input": first}
        if raw.get("id") is None and raw.get("input") is not None:
            return {**raw, "id": slug(raw["input"])}
        return raw

    @field_validator("input")
    @classmethod
    def _not_empty(cls, value: Any) -> Any:
        if value is None or (isinstance(value, str) and not value.strip()) or value in ({}, []):
            raise ValueError("the input is empty: write the agent's task")
        return value

    @model_validator(mode="after")
    def _consistent_parts(self) -> Case:
        if self.turns and self.user is not None:
            raise ValueError("write `turns` or `user`, not both")
        turns = cast("tuple[Turn, ...]", self.turns)
        if saved := {name for turn in turns for name in turn.save}:
            check_placeholders([turn.user for turn in turns], saved)
        if (self.turns or self.user is not None) and self.input != first_message(vars(self)):
            raise ValueError("a conversation has no `input`: its turns or its user begin it")
        asks = self.approvals is not None and self.approvals.otherwise == "user"
        if asks and (self.user is None or self.user.model is None):
            raise ValueError("`approvals.otherwise: user` needs a `user` with a `model`")
        if self.matrix:
            raise ValueError("a matrix belongs in a suite file: in Python, write a case for each")
        if self.weights or self.required:
            from proctor.spec.case_checks import unknown_names

            if faults := unknown_names(self):
                raise faults_error(faults)
        return self

    @property
    def place(self) -> SourceLocation | None:
        """Return the position of the case; None for one built in Python."""
        return self._place

    @property
    def folder(self) -> Path | None:
        """Return the base of import paths in the case: the suite's folder, if any."""
        return self._folder

    def given(self) -> dict[str, Any]:
        """Return the fields that were written, as plain values except for check objects."""
        # Check objects and functions cannot be dumped; they are passed on as they are.
        fields = self.model_dump(exclude_unset=True, exclude={"checks"})
        return {**fields, "checks": self.checks} if self.checks else fields

    def put(self, place: SourceLocation, folder: Path) -> None:
        """Record the position of the case and the folder of its suite."""
        self._place, self._folder = place, folder


def first_message(case: Mapping[str, Any]) -> str | None:
    """Return the first message of a conversation as written: it names the case."""

    def value(part: Any, key: str) -> Any:
        fields: Any = part if isinstance(part, Mapping) else getattr(part, "__dict__", {})  # pyright: ignore[reportUnknownVariableType]
        return fields.get(key)

    if turns := case.get("turns"):
        first = next(iter(turns), None) if isinstance(turns, list | tuple) else None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        found = first if isinstance(first, str) else value(first, "user")
    else:
        user = case.get("user")
        script: Any = value(user, "script")
        start = next(iter(script.values()), None) if isinstance(script, Mapping) else None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType, reportUnknownMemberType]
        found = value(start, "say") or value(user, "opening") or value(user, "goal")
    return found if isinstance(found, str) else None


def spelled(data: Any, spellings: Mapping[str, str]) -> Any:
    """Return a mapping with canonical keys, unless the canonical key is present as well."""
    if not isinstance(data, dict):
        return data
    given = cast("dict[str, Any]", data)
    return {
        spellings[key] if key in spellings and spellings[key] not in given else key: value
        for key, value in given.items()
    }


if TYPE_CHECKING:  # a list in Python, a tuple once validated
    Cases = Sequence[Case]
else:
    # A file may name data instead, which is replaced by its cases before validation.
    Cases = Annotated[
        tuple[Case, ...],
        BeforeValidator(
            lambda value: value,
            json_schema_input_type=Annotated[tuple[Case, ...], Field(min_length=1)]
            | DataSource
            | str,
        ),
    ]


class DataCases(Sequence[Case]):
    """The cases of a large data set: each is read, filled in and validated when it is needed.

    Ids are known by their hashes, twelve bytes for each case. `problem` raises what is wrong with
    the case of a row, with its place.
    """

    def __init__(self, data: DataRows, folder: Path, problem: Callable[[int], None]) -> None:
        self.data, self._folder, self._problem = data, folder, problem
        self._hashes = array("q")
        self.bad_ids: list[tuple[int, str]] = []
        """Cases with an id that cannot be used, and the reason; of an empty one, its input is."""
        for index, each in enumerate(self.ids()):
            self._hashes.append(hash(same_id(each)))
            if (reason := problem_with_id(each)) is not None and len(self.bad_ids) < MOST_NOTES:
                empty = "the input is empty: write the agent's task"
                self.bad_ids.append((index, reason if each else empty))
        # By hash, to find the row of an id.
        self._order = array("I", sorted(range(len(self)), key=self._hashes.__getitem__))

    def __len__(self) -> int:
        return len(self.data.rows)

    def ids(self) -> Iterator[str]:
        """Yield the ids, in order."""
        id_of = self.data.written.id_of
        for line in self.data.rows.lines():
            yield id_of(escaped_values(line))

    def written(self, index: int) -> dict[str, Any]:
        """Return a case as a suite would have it, with references to environment variables."""
        return self.data.written.record(escaped_values(self.data.rows.line(index)))

    def place(self, index: int) -> SourceLocation:
        """Return the row of a case."""
        return SourceLocation(*self.data.rows.place(index), 1)

    @property
    def places(self) -> Mapping[str, tuple[str, int | None, int | None]]:
        """The rows of cases, by id."""
        return _Places(self)

    def index_of(self, case_id: str) -> int | None:
        """Return the row of an id."""
        wanted = hash(same_id(case_id))
        at = bisect_left(self._order, wanted, key=self._hashes.__getitem__)
        for row in itertools.takewhile(lambda r: self._hashes[r] == wanted, self._order[at:]):
            values = escaped_values(self.data.rows.line(row))
            if self.data.written.id_of(values) == case_id:
                return row
        return None

    def record(self) -> dict[str, Any]:
        """Return the template as a run records it: `data` is the file of its folder."""
        template = self.data.written
        columns = {**template.columns, "properties": list(template.properties)}
        return {"data": NAME, "columns": columns, "case": template.case}

    def repeated(self) -> list[tuple[int, int]]:
        """Return pairs of cases with the same id, the earlier one first."""
        alike = itertools.pairwise(self._order)
        return [(a, b) for a, b in alike if self._hashes[a] == self._hashes[b]]

    def only(self, indices: Iterable[int]) -> DataCases:
        """Return some of the cases."""
        rows = self.data._replace(rows=self.data.rows.only(indices))
        return DataCases(rows, self._folder, self._problem)

    @overload
    def __getitem__(self, index: int) -> Case: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Case]: ...
    def __getitem__(self, index: int | slice) -> Case | Sequence[Case]:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        index = range(len(self))[index]
        record = self.data.template.record(self.data.rows[index].values)
        # An id must not hold the value of a variable.
        record["id"] = self.data.written.id_of(escaped_values(self.data.rows.line(index)))
        try:
            case = Case.model_validate(record)
        except ValidationError:
            self._problem(index)
            raise
        case.put(self.place(index), self._folder)
        return case


class _Places(Mapping[str, tuple[str, int | None, int | None]]):
    def __init__(self, cases: DataCases) -> None:
        self._cases = cases

    def __getitem__(self, name: str) -> SourceLocation:
        if (index := self._cases.index_of(name)) is None:
            raise KeyError(name)
        return self._cases.place(index)

    def __iter__(self) -> Iterator[str]:
        return self._cases.ids()

    def __len__(self) -> int:
        return len(self._cases)


# -- suites --------------------------------------------------------------------------------------


class Suite(Strict):
    """Cases, the agents under test, and the judges."""

    version: Literal[1] = 1
    """Version of this format."""
    agent: Agent | None = None
    """Agent under test: `package.module:name`, the name of a registered agent, or a mapping."""
    agents: dict[str, Agent] = Field(default_factory=dict[str, AgentRef])
    """Several agents under test by name."""
    judge: Judge | None = None
    """Judge for checks that name none."""
    judges: dict[str, Judge] = Field(default_factory=dict[str, JudgeConfig])
    """Additional judges by name."""
    on_agent_error: OnAgentError | None = None
    """What an exception, a crash or a time limit of the agent makes of its trial: a failed one
    (`fail`, the default), or an infrastructure error (`infra`)."""
    baselines: str = "baselines"
    """Folder of saved traces, relative to this file."""
    baseline: str | None = Field(default=None, min_length=1)
    """Saved version that checks compare with; by default the newest one that passed."""
    sandbox: SandboxOption | None = None
    """Where the processes of agents run that name no sandbox of their own."""
    workspace: WorkspaceOption | None = None
    """Workspace of every case; what a case writes itself wins, key by key."""
    defaults: dict[str, Any] = Field(default_factory=dict[str, Any], exclude=True)
    """Merged into each case; the case's own values win, lists replace."""
    data: DataVersion | None = None
    """Version of the data that the cases were made from; recorded, never written by hand."""
    cases: Cases = Field(min_length=1)
    """At least one, or the data they are made from: a file or {data, columns, case, …}. Also
    written `queries`."""

    _tree: Tree | None = PrivateAttr(default=None)
    _path: Path | None = PrivateAttr(default=None)
    _folder: Path = PrivateAttr(default=Path())

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, data: Any) -> Any:
        given = spelled(data, SUITE_SPELLINGS)
        if not isinstance(given, dict):
            return given
        raw = cast("dict[str, Any]", given)
        defaults: Any = raw.get("defaults") or {}
        cases: Any = raw.get("cases")
        if not isinstance(defaults, dict) or not isinstance(cases, list | tuple):
            return raw
        shared = cast("dict[str, Any]", defaults)
        if (workspace := raw.get("workspace")) is not None:
            if isinstance(workspace, Workspace):
                workspace = workspace.model_dump(exclude_unset=True)
            if isinstance(workspace, str):  # the short form, which cannot be merged
                workspace = {"folder": workspace}
            shared = merge({"workspace": workspace}, shared)
        if not shared:
            return raw
        merged: list[Any] = []
        for case in cast("list[Any]", cases):
            own = case.given() if isinstance(case, Case) else spelled(case, CASE_SPELLINGS)
            merged.append(merge(shared, own) if isinstance(own, dict) else own)
        return {**raw, "cases": merged}

    @field_validator("defaults")
    @classmethod
    def _suit_every_case(cls, value: dict[str, Any]) -> dict[str, Any]:
        if own := [key for key in ("id", "input", "query") if key in value]:
            raise faults_error([Fault((key,), f"{key!r} belongs to one case") for key in own])
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Suite:
        faults = repeated_ids([case.id for case in self.cases])
        # Together, it would be unclear whether `agent` is one of several or a default.
        if self.agent is not None and self.agents:
            faults.append(Fault(("agents",), "write `agent` or `agents`, not both"))
        known = ("default", *self.judges)
        for index, case in enumerate(self.cases):
            answer = case.correctness
            workspace = ("files", "diff", "command")
            needs = [("correctness", name) for name in workspace if getattr(answer, name)]
            needs += [
                ("assertions", at)
                for at, each in enumerate(case.assertions)
                if each.type in workspace
            ]
            if needs and case.workspace is None:
                key, name = needs[0]
                kind = case.assertions[name].type if isinstance(name, int) else name
                hint = "write `workspace: FOLDER` in the case or the suite"
                faults.append(
                    Fault(("cases", index, key, name), f"`{kind}` needs a workspace", hint)
                )
            custom = cast("Sequence[CustomCheck]", case.checks)
            # Every place in a case that may name a judge.
            judged: list[tuple[tuple[str | int, ...], object]] = [
                *(
                    (("correctness", "llm_judge", at), r)
                    for at, r in enumerate(answer.llm_judge or ())
                ),
                (("correctness", "safety_check"), answer.safety_check),
                (("correctness", "hallucination_check"), answer.hallucination_check),
                *((("checks", at), each.check) for at, each in enumerate(custom)),
                *((("assertions", at), each) for at, each in enumerate(case.assertions)),
            ]
            for loc, options in judged:
                name: object = getattr(options, "judge", None)
                if isinstance(name, str) and name not in known:
                    at = ("cases", index, *loc, "judge")
                    hint = hint_among(name, known)
                    faults.append(Fault(at, f"there is no judge {name!r}", hint))
        if faults:
            raise faults_error(faults)
        return self

    @property
    def path(self) -> Path | None:
        """Return the source file; None for one built in Python."""
        return self._path

    @property
    def folder(self) -> Path:
        """Return the base of relative paths in the suite."""
        return self._folder

    @property
    def all_agents(self) -> dict[str, AgentRef]:
        """Return every agent under test by name; a single one by its own."""
        return {str(self.agent): self.agent} if self.agent is not None else dict(self.agents)

    @property
    def secrets(self) -> frozenset[str]:
        """Return the values of environment variables in the suite: for redaction, never shown."""
        # The tree knows which texts came from variables; the model holds only the results.
        parts = self._tree.walk() if self._tree is not None else ()
        return frozenset(held for part in parts for held, _ in part.secrets)

    def resolved(self, *, cases: bool = True) -> dict[str, Any]:
        """Return the suite as JSON: defaults merged, environment variables as references.

        `restore_suite` reads it back. Without `cases`, the rest of it.
        """
        # From the tree: its texts still hold `${NAME}` instead of the variable's value.
        if self._tree is not None:
            assert isinstance(self._tree.value, dict)
            whole = {
                key: plain(part, as_written=True)
                for key, part in self._tree.value.items()
                if cases or key != "cases"
            }
            if cases and isinstance(self.cases, DataCases):
                whole["cases"] = [self.cases.written(index) for index in range(len(self.cases))]
            return whole
        left_out = None if cases else {"cases"}
        return escaped(self.model_dump(mode="json", exclude_unset=True, exclude=left_out))

    def came_from(self, tree: Tree, folder: Path, path: Path | None = None) -> None:
        """Record the source of the suite: a file, or a record of one."""
        self._tree, self._folder, self._path = tree, folder, path
        cases = tree.child("cases")
        for case, written in zip(self.cases, cases.children() if cases else (), strict=True):
            case.put(written.place, folder)


def repeated_ids(ids: list[str]) -> list[Fault]:
    """Return a fault for each id that an earlier case has."""
    first: dict[str, int] = {}
    faults: list[Fault] = []
    for index, case_id in enumerate(ids):
        # Results are stored under the id, also on file systems that ignore case.
        earlier = first.setdefault(same_id(case_id), index)
        if earlier != index and case_id:
            faults.append(
                Fault(
                    ("cases", index, "id"),
                    f"the id {case_id!r} is that of case {earlier + 1} as well",
                    "give each case an `id` of its own",
                )
            )
    return faults

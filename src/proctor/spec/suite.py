"""What users write: suites and the cases in them.

The same objects come from YAML and from Python (`Suite(agent=..., cases=[Case(...)])`), through
the same validation. The options of each layer of checks live beside the checks themselves.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)

from proctor.checks.assertions import Assertion
from proctor.checks.base import Check, Share, Weight
from proctor.checks.custom import written_check
from proctor.checks.layers import Correctness, CostChecks, PathChecks
from proctor.errors import hint_among
from proctor.imports import IMPORT_PATH
from proctor.spec.located import SourceLocation, Tree, escaped, plain
from proctor.spec.validation import Fault, faults_error
from proctor.strict import Strict

if TYPE_CHECKING:
    from proctor.checks.judge import JudgeSettings


# Who is under test and who judges, as a suite or the settings name them.
#
# Short forms (a text, a function) become the long one before they are checked, so that the code
# knows only one.


def _agent(value: Any) -> Any:
    if callable(value):
        return {"kind": "python", "target": f"{value.__module__}:{value.__qualname__}"}
    if not isinstance(value, str):
        return value
    if re.fullmatch(IMPORT_PATH, value):
        return {"kind": "python", "target": value}
    return {"name": value}


class AgentRef(Strict):
    """An agent under test: the name of a registered one, or a kind with its options.

    The options belong to the kind, and are held against it by whoever makes the agent.
    """

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(min_length=1)] | None = None
    """The name of an agent in the registry."""
    kind: Annotated[str, Field(min_length=1)] | None = None
    """How the agent is reached, such as `python`."""

    @model_validator(mode="after")
    def _one_way_to_find_it(self) -> AgentRef:
        if self.name is None and self.kind is None:
            raise ValueError("an agent is `package.module:name`, a registered name, or has a kind")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """What was written beside `kind` and `name`."""
        return dict(self.model_extra or {})

    def __str__(self) -> str:
        return self.name or str(
            self.options.get("target") or self.options.get("model") or self.kind
        )


Agent = Annotated[AgentRef, BeforeValidator(_agent, json_schema_input_type=str | AgentRef)]


def _judge(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


class JudgeConfig(Strict):
    """A language model that judges answers."""

    model_config = ConfigDict(protected_namespaces=())

    model: Annotated[str, Field(min_length=1)]
    """PROVIDER:MODEL, such as `openai:gpt-4o-mini`."""
    ensemble: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """More models that judge beside it; the majority decides."""
    votes: Annotated[int, Field(ge=1, le=99)] = 1
    """How often each model is asked; the median counts."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """0 for judgements that repeat; more only makes sense with several votes."""
    seed: int = 0
    """Votes differ by it."""
    max_tokens: Annotated[int, Field(ge=16)] = 2048
    """Room for one verdict."""
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 120.0
    """Seconds for one verdict."""
    retries: Annotated[int, Field(ge=0, le=20)] = 3
    """How often a failure that may pass is asked again."""
    base_url: str | None = None
    """An endpoint that speaks OpenAI chat completions."""
    api_key_env: str | None = None
    """The environment variable that holds the key of `base_url`."""
    cache: bool = True
    """Keep verdicts on disk, by content, and ask nothing twice."""

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that judges."""
        return (self.model, *self.ensemble)

    @property
    def settings(self) -> JudgeSettings:
        """How the models are asked."""
        from proctor.checks.judge import JudgeSettings

        return JudgeSettings(
            votes=self.votes,
            temperature=self.temperature,
            seed=self.seed,
            max_tokens=self.max_tokens,
            timeout=self.timeout,
            retries=self.retries,
        )


Judge = Annotated[JudgeConfig, BeforeValidator(_judge, json_schema_input_type=str | JudgeConfig)]


# Ids of cases: stable, and safe as the name of a file on every system.
#
# Baselines and results are kept under a case's id, so an id is held to what Windows allows as a
# file name, and two ids that differ only in case are the same.


LONGEST_SLUG = 60
"""Readable in a table, and far from the limits of paths."""

LONGEST_ID = 100
"""With a suffix and a folder this stays within the 260 characters of an old Windows path."""

_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
_ALLOWED = re.compile(r"\w[\w.@+=~()\[\]-]*")
_DIGEST = 6


def problem_with_id(text: str) -> str | None:
    """Why a text cannot be the id of a case; None when it can."""
    if not text:
        return "an id must not be empty"
    if len(text) > LONGEST_ID:
        return f"an id has at most {LONGEST_ID} characters, this one {len(text)}"
    if not _ALLOWED.fullmatch(text):
        return (
            f"the id {text!r} must begin with a letter or digit and hold only letters, digits "
            f"and . _ - @ + = ~ ( ) [ ], such as {slug(text)!r}"
        )
    if _RESERVED.fullmatch(text) or text.endswith("."):
        return f"the id {text!r} cannot be the name of a file on Windows"
    return None


def slug(value: Any) -> str:
    """An id made from a case's input: its words, and a digest of the whole when they are cut."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    plain = unicodedata.normalize("NFKC", text).casefold()
    words = "-".join(re.findall(r"[^\W_]+", plain))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    if not words:
        return f"case-{digest}"
    if _RESERVED.fullmatch(words):
        return f"case-{words}"
    if len(words) <= LONGEST_SLUG:
        return words
    room = LONGEST_SLUG - _DIGEST - 1
    kept = words[:room]
    if "-" in kept and words[room] != "-":
        kept = kept.rpartition("-")[0]
    return f"{kept.rstrip('-')}-{digest}"


def same_id(text: str) -> str:
    """What two ids have in common when no file system tells them apart."""
    return unicodedata.normalize("NFC", text).casefold()


DEFAULT_TRIALS = 3
"""R2: enough to see that an agent is not steady, few enough to pay for on every push."""

DEFAULT_THRESHOLD = 0.8

CASE_SPELLINGS = {"query": "input"}
SUITE_SPELLINGS = {"queries": "cases"}
"""Words users bring from elsewhere → ours."""

Trials = Annotated[int, Field(ge=1)]


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
    """A check of the user's own: a function or class that takes one context."""

    check: Annotated[
        str | Callable[..., Any],
        BeforeValidator(_check_reference),
        WithJsonSchema({"type": "string"}),
    ]
    """`package.module:name`, or the name of an entry point in `proctor.checks`."""
    params: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Keyword arguments: for a class its constructor's, for a function its own."""
    weight: Weight = 1.0
    """How much it counts in the score."""
    required: bool = True
    """Whether a failure blocks, as failures of correctness do."""
    id: Annotated[str, Field(min_length=1)] | None = None
    """Its name in results; the name of the function or class when absent."""

    @property
    def name(self) -> str:
        """The name it has in results."""
        if self.id:
            return self.id
        if isinstance(self.check, Check):
            return self.check.id or self.check.check
        if isinstance(self.check, str):
            return self.check.rpartition(":")[2]
        return str(getattr(self.check, "__name__", type(self.check).__name__))

    @model_serializer(when_used="json")
    def _as_in_a_file(self) -> dict[str, Any]:
        """Name functions and check objects as a suite file would."""
        fields = {name: getattr(self, name) for name in self.model_fields_set}
        fields |= written_check(self.check)
        if self.name != fields["check"].rpartition(":")[2]:
            fields["id"] = self.name  # so that results keep their ids when the suite is read back
        return fields


Custom = Annotated[
    CustomCheck, BeforeValidator(_custom_check, json_schema_input_type=str | CustomCheck)
]
if TYPE_CHECKING:  # what may be written in Python; once validated, tuples of CustomCheck and str
    Checks = Sequence[Check | CustomCheck | Callable[..., Any] | str]
    Tags = Sequence[str]
else:
    Checks = tuple[Custom, ...]
    Tags = tuple[Annotated[str, Field(min_length=1)], ...]


def _valid_id(text: str) -> str:
    if reason := problem_with_id(text):
        raise ValueError(reason)
    return text


class Case(Strict):
    """One thing to ask of an agent, with the checks it must meet."""

    id: Annotated[str, AfterValidator(_valid_id)] = ""
    """Stable and unique in its suite; made from the input when absent."""
    input: Any
    """What the agent is asked: text, or anything structured. Also written `query`."""
    description: str | None = None
    """What the case is about, for people."""
    tags: Tags = ()
    """Words to select cases by."""
    difficulty: str | None = None
    """Such as easy, medium, hard."""
    type: str | None = None
    """What kind of question it is."""
    properties: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Anything else worth selecting or grouping by."""
    trials: Trials = DEFAULT_TRIALS
    """How often it is tried."""
    threshold: Share = DEFAULT_THRESHOLD
    """The score, 0 to 1, from which a trial has passed."""
    correctness: Correctness = Correctness()
    """Was the answer right? A failure blocks."""
    path: PathChecks = PathChecks()
    """Was the way to it right? A failure warns, but for forbidden tools."""
    cost: CostChecks = CostChecks()
    """Was it cheap and quick enough? A failure warns."""
    checks: Checks = ()
    """Checks of your own."""
    assertions: tuple[Assertion, ...] = ()
    """The same checks as a flat list."""
    weights: dict[str, Weight] = Field(default_factory=dict[str, float])
    """How much a check, or each check of a layer, counts in the score."""
    required: tuple[str, ...] = ()
    """Checks whose failure blocks here."""

    _place: SourceLocation | None = PrivateAttr(default=None)
    _folder: Path | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _spelled(cls, data: Any) -> Any:
        return with_id(spelled(data, CASE_SPELLINGS))

    @field_validator("input")
    @classmethod
    def _not_empty(cls, value: Any) -> Any:
        if value is None or (isinstance(value, str) and not value.strip()) or value in ({}, []):
            raise ValueError("the input is empty: write what the agent is asked")
        return value

    @model_validator(mode="after")
    def _names_are_checks(self) -> Case:
        from proctor.spec.case_checks import unknown_names

        if faults := unknown_names(self):
            raise faults_error(faults)
        return self

    @property
    def place(self) -> SourceLocation | None:
        """Where the case was written; None for one built in Python."""
        return self._place

    @property
    def folder(self) -> Path | None:
        """What import paths in the case start from: the suite's folder, if it has one."""
        return self._folder

    def given(self) -> dict[str, Any]:
        """Return the fields that were written, as plain values but for the checks' objects."""
        fields = self.model_dump(exclude_unset=True, exclude={"checks"})
        return {**fields, "checks": self.checks} if self.checks else fields

    def put(self, place: SourceLocation, folder: Path) -> None:
        """Say where the case was written, and in which folder its suite is."""
        self._place, self._folder = place, folder


def spelled(data: Any, spellings: Mapping[str, str]) -> Any:
    """A mapping with accepted spellings replaced, unless the proper key is there as well."""
    if not isinstance(data, dict):
        return data
    given = cast("dict[str, Any]", data)
    return {
        spellings[key] if key in spellings and spellings[key] not in given else key: value
        for key, value in given.items()
    }


def with_id(data: Any) -> Any:
    """A raw case with an id: its own, or one made from its input."""
    if not isinstance(data, dict):
        return data
    raw = cast("dict[str, Any]", data)
    if raw.get("id") is None and raw.get("input") is not None:
        return {**raw, "id": slug(raw["input"])}
    return raw


if TYPE_CHECKING:  # a list in Python, a tuple once validated
    Cases = Sequence[Case]
else:
    Cases = tuple[Case, ...]

# -- suites --------------------------------------------------------------------------------------


class Suite(Strict):
    """Cases, the agents they are put to, and who judges."""

    version: Literal[1] = 1
    """The version of this format."""
    agent: Agent | None = None
    """The agent under test: `package.module:name`, the name of a registered agent, or a mapping."""
    agents: dict[str, Agent] = Field(default_factory=dict[str, AgentRef])
    """Several agents under test, by name."""
    judge: Judge | None = None
    """The judge of checks that name none."""
    judges: dict[str, Judge] = Field(default_factory=dict[str, JudgeConfig])
    """More judges, by name."""
    baselines: str = "baselines"
    """The folder of saved traces, relative to this file."""
    defaults: dict[str, Any] = Field(default_factory=dict[str, Any], exclude=True)
    """Merged into each case; what the case says itself wins, lists replace."""
    cases: Cases = Field(min_length=1)
    """At least one. Also written `queries`."""

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
        defaults: Any = raw.get("defaults")
        cases: Any = raw.get("cases")
        if not isinstance(defaults, dict) or not isinstance(cases, list | tuple):
            return raw
        shared = cast("dict[str, Any]", defaults)
        return {**raw, "cases": [_over(shared, case) for case in cast("list[Any]", cases)]}

    @field_validator("defaults")
    @classmethod
    def _shared_by_all(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        own = [key for key in ("id", "input", "query") if key in value]
        if own:
            raise faults_error([Fault((key,), f"{key!r} belongs to one case") for key in own])
        return value

    @model_validator(mode="after")
    def _unique(self) -> Suite:
        faults = repeated_ids([case.id for case in self.cases])
        if self.agent is not None and self.agents:
            faults.append(Fault(("agents",), "write `agent` or `agents`, not both"))
        faults.extend(_unknown_judges(self))
        if faults:
            raise faults_error(faults)
        return self

    @property
    def path(self) -> Path | None:
        """The file it was read from; None for one built in Python."""
        return self._path

    @property
    def folder(self) -> Path:
        """What relative paths in the suite start from."""
        return self._folder

    @property
    def all_agents(self) -> dict[str, AgentRef]:
        """Every agent under test, by name; the only one by what it is."""
        return {str(self.agent): self.agent} if self.agent is not None else dict(self.agents)

    @property
    def secrets(self) -> frozenset[str]:
        """What environment variables named in the suite held: for redaction, never to be shown."""
        parts = self._tree.walk() if self._tree is not None else ()
        return frozenset(held for part in parts for held, _ in part.secrets)

    def resolved(self) -> dict[str, Any]:
        """The suite as JSON: defaults merged, environment variables as the references they were.

        `restore_suite` reads it back.
        """
        if self._tree is not None:
            return plain(self._tree, as_written=True)
        return escaped(self.model_dump(mode="json", exclude_unset=True))

    def came_from(self, tree: Tree, folder: Path, path: Path | None = None) -> None:
        """Say what the suite was read from: a file, or a record of what stood in one."""
        self._tree, self._folder, self._path = tree, folder, path
        for case, written in zip(self.cases, cases_of(tree), strict=True):
            case.put(written.place, folder)


def cases_of(tree: Tree) -> list[Tree]:
    """The cases of a suite's tree, such as they are."""
    cases = tree.child("cases")
    return cases.value if cases is not None and isinstance(cases.value, list) else []


def _unknown_judges(suite: Suite) -> list[Fault]:
    """Judges that checks name and the suite does not have."""
    known = ("default", *suite.judges)
    faults: list[Fault] = []
    for index, case in enumerate(suite.cases):
        for loc, options in _judged(case):
            name: object = getattr(options, "judge", None)
            if isinstance(name, str) and name not in known:
                hint = hint_among(name, known)
                at = ("cases", index, *loc, "judge")
                faults.append(Fault(at, f"there is no judge {name!r}", hint))
    return faults


def _judged(case: Case) -> Iterator[tuple[tuple[str | int, ...], object]]:
    """Every place in a case that may name a judge."""
    for position, rule in enumerate(case.correctness.llm_judge or ()):
        yield ("correctness", "llm_judge", position), rule
    yield ("correctness", "safety_check"), case.correctness.safety_check
    yield ("correctness", "hallucination_check"), case.correctness.hallucination_check
    for position, custom in enumerate(cast("Sequence[CustomCheck]", case.checks)):
        yield ("checks", position), custom.check
    for position, assertion in enumerate(case.assertions):
        yield ("assertions", position), assertion


def _over(defaults: dict[str, Any], case: Any) -> Any:
    """A case laid upon the defaults."""
    if isinstance(case, Case):
        raw: Any = case.given()
    else:
        raw = spelled(case, CASE_SPELLINGS)
    return _deep(defaults, raw) if isinstance(raw, dict) else raw


def _deep(base: Any, over: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return over
    result = dict(cast("dict[str, Any]", base))
    for key, value in cast("dict[str, Any]", over).items():
        result[key] = _deep(result[key], value) if key in result else value
    return result


def repeated_ids(ids: list[str]) -> list[Fault]:
    """A fault for each id that an earlier case has."""
    first: dict[str, int] = {}
    faults: list[Fault] = []
    for index, case_id in enumerate(ids):
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

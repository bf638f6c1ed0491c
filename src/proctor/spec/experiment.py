"""Experiments, as users write them: which cases, put to which agents, over which seeds and params.

The same object comes from YAML and from Python (`Experiment(cases=["mutualism.*"], …)`), through
the same validation. An experiment only says what to run; whether its names exist is found out by
whoever plans it, since that needs a catalog and the settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    WithJsonSchema,
    model_validator,
)

from proctor.errors import did_you_mean
from proctor.spec.located import SourceLocation, Tree, replace_content
from proctor.spec.research import Research
from proctor.spec.suite import Agent, AgentRef, Judge, JudgeConfig, Trials, problem_with_id
from proctor.spec.validation import Fault, faults_error
from proctor.strict import Strict

DEFAULT_OUTPUT = "{experiment}/{date}_{seq}"
OUTPUT_TOKENS = ("experiment", "date", "seq")

MAX_SEEDS = 1_000_000
"""More are a slip: a hundred runs a second would need hours for one cell."""

LAST_SEED = 2**63 - 1
"""Seeds are kept in signed 64-bit columns."""

SET_CASE = "case."
"""What a key under `set` begins with when it is about cases, not parameters of scenarios."""

_TOKEN = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"\s*(\d+)\s*\.\.\s*(\d+)\s*")


# -- seeds ---------------------------------------------------------------------------------------


def read_seeds(value: Any) -> tuple[int, ...]:
    """Seeds from a count (`10` is 0 to 9), a range (`1..10`, both ends in) or a list, sorted."""
    if isinstance(value, str) and (found := _RANGE.fullmatch(value)):
        first, last = int(found[1]), int(found[2])
        if last < first:
            raise ValueError(f"the range {value.strip()} is empty: write {last}..{first}")
        return _enough(range(first, last + 1))
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ValueError(f"at least one seed is needed, got {value}")
        return _enough(range(value))
    if isinstance(value, str) and "," in value:
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, Iterable) or isinstance(value, str | Mapping):
        raise ValueError("seeds are a count such as 10, a range such as 1..10, or a list")
    seeds = [_seed(item) for item in cast("Iterable[Any]", value)]
    if not seeds:
        raise ValueError("at least one seed is needed, the list is empty")
    if len(set(seeds)) < len(seeds):
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise ValueError(f"the seed {twice} is there twice")
    return _enough(sorted(seeds))


def _enough(seeds: range | list[int]) -> tuple[int, ...]:
    if len(seeds) > MAX_SEEDS:
        raise ValueError(f"{len(seeds):,} seeds are more than the {MAX_SEEDS:,} allowed")
    if seeds[-1] > LAST_SEED:
        raise ValueError(f"the seed {seeds[-1]} is larger than {LAST_SEED}")
    return tuple(seeds)


def _seed(value: Any) -> int:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"a seed is a whole number from 0, got {value!r}")
    return value


Seeds = Annotated[
    tuple[int, ...],
    BeforeValidator(read_seeds),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": r"^\s*\d+(\s*(\.\.|,)\s*\d+)*\s*$"},
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
            ]
        }
    ),
]


# -- parameters ----------------------------------------------------------------------------------


class NumberRange(Strict):
    """Numbers between two ends, to draw from; needs `sample`."""

    low: Annotated[float, Field(allow_inf_nan=False)]
    """The smallest."""
    high: Annotated[float, Field(allow_inf_nan=False)]
    """The largest."""
    log: bool = False
    """Draw evenly on a logarithmic scale."""
    integer: bool = False
    """Draw whole numbers, both ends in."""

    @model_validator(mode="after")
    def _in_order(self) -> NumberRange:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low:g}) must be less than high ({self.high:g})")
        if self.log and self.low <= 0:
            raise ValueError("a logarithmic scale needs a low above 0")
        return self


def _axis(value: Any) -> Any:
    if isinstance(value, list | tuple) and not value:
        raise ValueError("an axis needs at least one value")
    if isinstance(value, list | tuple | Mapping | NumberRange):
        return cast("Any", value)
    raise ValueError("an axis is a list of values, or {low: …, high: …} to draw from")


Axis = Annotated[
    NumberRange | Annotated[tuple[Any, ...], Field(min_length=1)],
    BeforeValidator(_axis, json_schema_input_type=NumberRange | list[Any]),
]


class SampleSpec(Strict):
    """How many combinations of the axes are drawn, instead of all."""

    n: Annotated[int, Field(ge=1, le=100_000)]
    """How many."""
    seed: int = 0
    """Which ones: the same seed draws the same."""


# -- selection -----------------------------------------------------------------------------------


class Selector(Strict):
    """Cases by name, glob, tag or any property: of the catalog, or of a suite."""

    suite: Annotated[str, Field(min_length=1)] | None = None
    """A suite file, relative to the experiment's; the catalog of scenarios when absent."""
    filter: str = ""
    """Such as `mutualism.*`, `tag:slow`, `difficulty:hard`; all of a suite when absent."""

    @model_validator(mode="after")
    def _something(self) -> Selector:
        if self.suite is None and not self.filter.strip():
            raise ValueError("say which cases: a name, a glob, or key:value")
        return self


def _selectors(value: Any) -> Any:
    items: list[Any] = list(cast("Any", value)) if isinstance(value, list | tuple) else [value]
    return [{"filter": item} if isinstance(item, str) else item for item in items]


Selectors = Annotated[
    tuple[Selector, ...],
    Field(min_length=1),
    BeforeValidator(
        _selectors,
        json_schema_input_type=str | Annotated[list[str | Selector], Field(min_length=1)],
    ),
]


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Texts = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(_texts, json_schema_input_type=str | list[str]),
]


def _agents(value: Any) -> Any:
    """A list of names, or names separated by commas, as a mapping; the rest as it is."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple):
        return value
    names: list[Any] = list(cast("Iterable[Any]", value))
    for name in names:
        if not isinstance(name, str):
            raise ValueError("a list of agents holds names; write a mapping to give options")
        if names.count(name) > 1:
            raise ValueError(f"the agent {name!r} is there twice")
    return {name: name for name in names}


Agents = Annotated[
    dict[str, Agent],
    BeforeValidator(_agents, json_schema_input_type=str | list[str] | dict[str, str | AgentRef]),
]


# -- the experiment ------------------------------------------------------------------------------


def _name(text: str) -> str:
    if reason := problem_with_id(text):
        raise ValueError(reason.replace("id", "name", 1).replace("an name", "a name"))
    return text


def check_output(text: str) -> str:
    """An output path as it may be written: below the results folder, with known tokens only."""
    for token in _TOKEN.findall(text):
        if token not in OUTPUT_TOKENS:
            known = ", ".join(f"{{{each}}}" for each in OUTPUT_TOKENS)
            near = did_you_mean(token, OUTPUT_TOKENS)
            raise ValueError(f"there is no token {{{token}}}: {near or f'there are {known}'}")
    rest = _TOKEN.sub("x", text)
    parts = rest.split("/")
    if rest.startswith("/") or "\\" in rest or re.match(r"[A-Za-z]:", rest) or ".." in parts:
        raise ValueError(f"the output path {text!r} leads outside the results folder")
    if "{" in rest or "}" in rest:
        raise ValueError(f"a brace in {text!r} is not closed")
    if text.count("{seq}") > 1:
        raise ValueError(f"{{seq}} is more than once in {text!r}")
    if re.search(r'[<>:"|?*\x00-\x1f]', rest):
        raise ValueError(f"the output path {text!r} has a character no file name should have")
    if not all(part.strip(". ") for part in parts):
        raise ValueError(f"the output path {text!r} has an empty part")
    return text


class ExperimentLimits(Strict):
    """How much a run may do and spend; what is absent is left to the settings."""

    concurrency: Annotated[int, Field(ge=1)] | None = None
    """Trials at a time."""
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Seconds for one trial."""
    max_retries: Annotated[int, Field(ge=0)] | None = None
    """Tries after the first, for failures that may pass."""
    max_cost_usd: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Dollars for the run."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens for the run."""
    max_trials: Annotated[int, Field(ge=1)] | None = None
    """Trials started in one sitting."""
    max_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Seconds for one sitting."""
    early_stop: tuple[str, ...] | None = None
    """Rules that end a cell before all its trials are done."""


class ExecutorSpec(Strict):
    """Where trials run, and on how many workers."""

    kind: Literal["local", "ray"]
    """In this process, or on workers of Ray."""
    address: Annotated[str, Field(min_length=1)] | None = None
    """The Ray to use (auto, HOST:PORT or ray://HOST:PORT); one on this machine when absent."""
    workers: Annotated[int, Field(ge=1)] | None = None
    """Processes that run trials; as many as there is room for when absent."""

    @model_validator(mode="after")
    def _workers_of_ray(self) -> ExecutorSpec:
        if self.kind == "local" and (self.address is not None or self.workers is not None):
            raise ValueError("address and workers are for kind: ray")
        return self


def _executor(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


class Experiment(Strict):
    """Cases × agents × parameters × seeds × trials."""

    version: Literal[1] = 1
    """The version of this format."""
    name: Annotated[str, AfterValidator(_name)] = "experiment"
    """What its runs are kept under; the name of the file when absent."""
    description: str | None = None
    """What it is meant to find out, for people."""
    cases: Selectors
    """Names, globs and filters; `suite: FILE` for the cases of a suite."""
    exclude: Texts = ()
    """Of these, not the ones that any of these filters selects."""
    filter: str = ""
    """Of the rest, only the ones this filter selects."""
    agents: Agents = Field(default_factory=dict[str, AgentRef])
    """Names of agents, or a mapping of names to agents; that of the settings when absent."""
    seeds: Seeds = (0,)
    """A count, a range such as `1..10`, or a list: given to scenarios and to agents."""
    trials: Trials | None = None
    """Repeats for each seed; a case's own number, else 1, when absent."""
    params: dict[str, Axis] = Field(default_factory=dict[str, Axis])
    """Parameters that vary: every combination of their values is tried."""
    sample: SampleSpec | None = None
    """Draw some combinations of `params` instead of trying all."""
    set: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Parameters with one value; `case.FIELD` overrides a field of every case."""
    output: Annotated[str, AfterValidator(check_output)] = DEFAULT_OUTPUT
    """Where each run is kept, below the results folder."""
    judge: Judge | None = None
    """The judge of checks that name none."""
    judges: dict[str, Judge] = Field(default_factory=dict[str, JudgeConfig])
    """More judges, by name."""
    limits: ExperimentLimits = ExperimentLimits()
    """How much each run may do and spend."""
    executor: (
        Annotated[
            ExecutorSpec,
            BeforeValidator(
                _executor, json_schema_input_type=Literal["local", "ray"] | ExecutorSpec
            ),
        ]
        | None
    ) = None
    """Where trials run: `ray`, or its options; in this process when absent."""
    research: Research | None = None
    """Trials chosen from results so far: a curriculum, adaptive difficulty, ablation or sweep."""

    _tree: Tree | None = PrivateAttr(default=None)
    _folder: Path | None = PrivateAttr(default=None)
    _path: Path | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _axes_fit(self) -> Experiment:
        faults = [
            Fault(("set", name), f"{name!r} is an axis under `params` as well", "keep one of them")
            for name in self.set
            if name in self.params
        ]
        drawn = [name for name, axis in self.params.items() if isinstance(axis, NumberRange)]
        sweep = None if self.research is None else self.research.sweep
        if drawn and self.sample is None and (sweep is None or sweep.sampler == "grid"):
            hint = "add `sample: {n: 10}`, or list the values"
            faults += [
                Fault(("params", name), f"{name!r} must be drawn from", hint) for name in drawn
            ]
        if self.sample is not None and not self.params:
            faults.append(Fault(("sample",), "there are no `params` to draw from"))
        faults.extend(self._research_faults())
        if faults:
            raise faults_error(faults)
        return self

    def _research_faults(self) -> Iterable[Fault]:
        if self.research is None:
            return
        kind = self.research.kind
        at = ("research", kind)
        if kind == "sweep":
            if not self.params:
                yield Fault(at, "a sweep needs `params` to try")
            if self.sample is not None:
                yield Fault(("sample",), "a sweep says itself how it samples", "use `sampler`, `n`")
        elif self.params:
            yield Fault(("params",), f"`params` are for a sweep, not for {kind}", "use `set`")
        if kind in ("curriculum", "adaptive") and self.trials is not None:
            yield Fault(("trials",), f"{kind} decides how many trials there are")
        if self.limits.early_stop:
            yield Fault(("limits", "early_stop"), "research needs the trials it asks for")

    @property
    def path(self) -> Path | None:
        """The file it was read from; None for one built in Python."""
        return self._path

    @property
    def folder(self) -> Path | None:
        """What relative paths start from; None for one built in Python: where the user stands."""
        return self._folder

    @property
    def tree(self) -> Tree | None:
        """What was read, with places; None for one built in Python."""
        return self._tree

    def place_of(self, *steps: str | int) -> SourceLocation | None:
        """Where a part of it was written, or the nearest thing around that part."""
        tree, place = self._tree, None
        for step in (*steps, None):
            if tree is None:
                break
            place = tree.place
            tree = None if step is None else tree.child(step)
        return place

    def came_from(
        self, folder: Path | None, path: Path | None = None, tree: Tree | None = None
    ) -> None:
        """Say what the experiment was read from."""
        self._folder, self._path, self._tree = folder, path, tree

    def changed(self, **changes: Any) -> Experiment:
        """A copy with some fields replaced, checked again; the rest stays where it was written."""
        kept = {name: getattr(self, name) for name in self.model_fields_set}
        made = type(self).model_validate({**kept, **changes})
        tree = self._tree
        if tree is not None and isinstance(tree.value, dict):
            rest = {key: part for key, part in tree.value.items() if key not in changes}
            tree = replace_content(tree, rest)
        made.came_from(self._folder, self._path, tree)
        return made

"""Define experiments: which cases run with which agents, seeds and params.

The same object comes from YAML and from Python (`Experiment(cases=["mutualism.*"], …)`), through
the same validation. An experiment only defines what to run; its names are resolved at planning
time, since that needs a catalog and the settings.

`research:` says how trials are selected from earlier results: `curriculum`, `adaptive`, `ablation`
or `sweep`. These are only the options; `trials._research` applies them to the selected cases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    WithJsonSchema,
    model_validator,
)

from proctor.checks.base import Names
from proctor.errors import did_you_mean
from proctor.runs.trial import OnAgentError
from proctor.spec.located import SourceLocation, Tree
from proctor.spec.suite import (
    Agent,
    AgentRef,
    Count,
    Judge,
    JudgeConfig,
    Positive,
    Trials,
    problem_with_id,
)
from proctor.spec.validation import Fault, faults_error
from proctor.strict import Strict, short_for

Share = Annotated[float, Field(gt=0, lt=1)]
TrialCount = Annotated[int, Field(ge=1, le=100_000)]
Text = Annotated[str, Field(min_length=1)]


class DifficultyLevel(Strict):
    """One level of difficulty: which of the cases, under which parameters."""

    name: Text
    """Name in results."""
    filter: str = ""
    """Filter on the experiment's cases; all by default."""
    params: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Parameters of this level."""


def _level(value: Any) -> Any:
    return {"name": value, "filter": f'difficulty:"{value}"'} if isinstance(value, str) else value


Levels = Annotated[
    tuple[
        Annotated[
            DifficultyLevel, BeforeValidator(_level, json_schema_input_type=str | DifficultyLevel)
        ],
        ...,
    ],
    Field(min_length=2),
]
"""From easy to hard. A string selects the cases of that `difficulty`."""


def _named_once(levels: tuple[DifficultyLevel, ...] | None) -> None:
    names = [level.name for level in levels or ()]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"the level {twice!r} is there twice")


class Promotion(Strict):
    """Rule for moving an agent to the next level."""

    pass_rate: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Minimum pass rate of the last trials."""
    last: TrialCount = 5
    """Number of trials considered."""


class Curriculum(Strict):
    """Ordered levels; each agent advances when it meets the promotion rule."""

    levels: Levels
    """From easy to hard: names of difficulties, or `{name, filter, params}`."""
    promote: Promotion = Promotion()
    """Promotion rule."""
    max_trials: TrialCount = 20
    """Maximum trials of one level; an agent not promoted by then stays there."""
    batch: TrialCount | None = None
    """Trials between two evaluations; `promote.last` by default."""

    @model_validator(mode="after")
    def _fits(self) -> Curriculum:
        _named_once(self.levels)
        if self.promote.last > self.max_trials:
            raise ValueError(
                f"promote.last ({self.promote.last}) is more than max_trials ({self.max_trials})"
            )
        return self


class Scale(Strict):
    """A parameter from easy to hard, in equal steps."""

    name: Text
    """Name of the parameter."""
    easy: Annotated[float, Field(allow_inf_nan=False)]
    """Easiest value; may be the larger one."""
    hard: Annotated[float, Field(allow_inf_nan=False)]
    """Hardest value."""
    steps: Annotated[int, Field(ge=2, le=1001)] = 11
    """Number of values, both ends included."""

    @model_validator(mode="after")
    def _ends_differ(self) -> Scale:
        if self.easy == self.hard:
            raise ValueError("easy and hard are the same value")
        return self

    @property
    def values(self) -> tuple[float, ...]:
        """Return values from easy to hard; integers where both ends and the steps are integers."""
        # Rounded, so that 0.1 + 0.2 is the level 0.3 in names and results.
        step = (self.hard - self.easy) / (self.steps - 1)
        found = [round(self.easy + step * at, 12) for at in range(self.steps)]
        whole = all(value == int(value) for value in found)
        return tuple(int(value) if whole else value for value in found)


class Adaptive(Strict):
    """Find the difficulty at which an agent passes half of the time (or at another rate)."""

    levels: Levels | None = None
    """From easy to hard, as in a curriculum."""
    parameter: Scale | None = None
    """Or a numeric parameter: `{name: noise, easy: 0, hard: 0.5, steps: 11}`."""
    method: Literal["staircase", "bayesian"] = "staircase"
    """A staircase, or the level with the most information about the threshold (Bayesian)."""
    down: Annotated[int, Field(ge=1, le=10)] = 2
    """Staircase: consecutive passes before it gets harder; one failure makes it easier."""
    reversals: Annotated[int, Field(ge=2, le=200)] = 8
    """Staircase: number of reversals after which it ends."""
    target: Share | None = None
    """Bayesian: pass rate at the threshold; 0.5 by default. For a staircase it follows from `down`:
    0.5 to the power of 1/down.
    """
    guess: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Pass rate by guessing at very hard levels."""
    lapse: Annotated[float, Field(ge=0, lt=1)] = 0.02
    """Lapse rate: failures at very easy levels."""
    precision: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Bayesian: stop at this width of the credible interval, in units of the scale."""
    confidence: Share = 0.95
    """Level of the credible interval."""
    max_trials: TrialCount = 40
    """Maximum trials of one agent."""

    @model_validator(mode="after")
    def _fits(self) -> Adaptive:
        if (self.levels is None) is (self.parameter is None):
            raise ValueError("give one of `levels` and `parameter`")
        _named_once(self.levels)
        for name in ("target", "precision"):
            if self.method == "staircase" and getattr(self, name) is not None:
                raise ValueError(f"`{name}` is for `method: bayesian`")
        # Outside these limits the psychometric function has no threshold to find.
        if not self.guess < self.sought < 1 - self.lapse:
            raise ValueError(
                f"the pass rate {self.sought:g} is not between `guess` and 1 - `lapse`"
            )
        return self

    @property
    def sought(self) -> float:
        """Return the pass rate at the threshold."""
        if self.method == "staircase":
            # It settles where `down` passes in a row are as likely as one failure.
            return 0.5 ** (1 / self.down)
        return 0.5 if self.target is None else self.target


class Ablation(Strict):
    """Compare the full agent with one part removed, for each part."""

    agent: str | None = None
    """Agent whose options are dropped; optional with a single agent."""
    drop: tuple[Text, ...] = ()
    """Options of the agent, removed one at a time: `system`, `tools.search`, `members.a`."""
    neutral: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Parameters with the value that disables each, one at a time."""
    confidence: Share = 0.95
    """Confidence level of the intervals of differences."""

    @model_validator(mode="after")
    def _not_empty(self) -> Ablation:
        if not self.drop and not self.neutral:
            raise ValueError("give `drop` (options) or `neutral` (parameters)")
        if twice := next((each for each in self.drop if self.drop.count(each) > 1), None):
            raise ValueError(f"{twice!r} is dropped twice")
        return self


class Sweep(Strict):
    """Search `params` of the experiment for the best combination."""

    sampler: Literal["grid", "random", "tpe"] = "grid"
    """All combinations, a seeded sample, or each next one by earlier scores (Optuna)."""
    n: TrialCount | None = None
    """Number of combinations; a grid runs all."""
    batch: TrialCount = 1
    """tpe: combinations per batch; larger batches run faster with less information."""
    seed: int = 0
    """Seed of the sampler."""
    objective: Literal["score", "pass_rate"] = "score"
    """Objective: mean over all cases, seeds and trials."""
    direction: Literal["maximize", "minimize"] = "maximize"
    """`minimize` finds the hardest parameters."""
    confidence: Share = 0.95
    """Confidence level of the intervals of means."""

    @model_validator(mode="after")
    def _fits(self) -> Sweep:
        if (self.n is None) is not (self.sampler == "grid"):
            raise ValueError("`n` (combinations to draw) is for random and tpe, not for a grid")
        return self


Kind = Literal["curriculum", "adaptive", "ablation", "sweep"]
KINDS = get_args(Kind)
"""The kinds of research; one at a time."""


class Research(Strict):
    """Selection of trials from earlier results: one of these."""

    curriculum: Curriculum | None = None
    """Ordered levels with promotion."""
    adaptive: Adaptive | None = None
    """The difficulty at which an agent starts to fail."""
    ablation: Ablation | None = None
    """The contribution of each part."""
    sweep: Sweep | None = None
    """Which parameters serve best."""

    @model_validator(mode="after")
    def _one(self) -> Research:
        if sum(getattr(self, name) is not None for name in KINDS) != 1:
            raise ValueError(f"give one of {', '.join(KINDS)}")
        return self

    @property
    def kind(self) -> Kind:
        """Return the selected kind."""
        return cast("Kind", next(name for name in KINDS if getattr(self, name) is not None))

    @property
    def levels(self) -> tuple[DifficultyLevel, ...]:
        """Return the levels of a curriculum or of adaptive difficulty, from easy to hard."""
        if self.curriculum is not None:
            return self.curriculum.levels
        if self.adaptive is None:
            return ()
        scale = self.adaptive.parameter
        if scale is None:
            return self.adaptive.levels or ()
        return tuple(
            DifficultyLevel(name=f"{scale.name}={value}", params={scale.name: value})
            for value in scale.values
        )


DEFAULT_OUTPUT = "{experiment}/{date}_{seq}"
OUTPUT_TOKENS = ("experiment", "date", "seq")

MAX_SEEDS = 1_000_000
"""More is a typo: even at a hundred trials a second one cell would take hours."""

LAST_SEED = 2**63 - 1
"""Seeds are stored in signed 64-bit columns."""

SET_CASE = "case."
"""Prefix of keys under `set` that override case fields, not scenario parameters."""

_TOKEN = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"\s*(\d+)\s*\.\.\s*(\d+)\s*")


# -- seeds ---------------------------------------------------------------------------------------


def read_seeds(value: Any) -> tuple[int, ...]:
    """Return seeds from a count (`10` is 0 to 9), an inclusive range (`1..10`) or a list,
    sorted.
    """
    if isinstance(value, str) and (found := _RANGE.fullmatch(value)):
        first, last = int(found[1]), int(found[2])
        if last < first:
            raise ValueError(f"the range {value.strip()} is empty: write {last}..{first}")
        return _enough(range(first, last + 1))
    # Texts come from flags and from `${NAME}`.
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    # In Python, True is an integer.
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
    """Numbers in a range, to draw from; needs `sample`."""

    low: Annotated[float, Field(allow_inf_nan=False)]
    """Smallest value."""
    high: Annotated[float, Field(allow_inf_nan=False)]
    """Largest value."""
    log: bool = False
    """Sample uniformly on a logarithmic scale."""
    integer: bool = False
    """Sample integers, both ends included."""

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
    """Number of axis combinations to draw, instead of all."""

    n: Annotated[int, Field(ge=1, le=100_000)]
    """Number of combinations."""
    seed: int = 0
    """Seed of the draw."""


# -- selection -----------------------------------------------------------------------------------


class Selector(Strict):
    """Select cases by name, glob, tag or any property, from the catalog or a suite."""

    suite: Annotated[str, Field(min_length=1)] | None = None
    """Suite file, relative to the experiment's; the scenario catalog by default."""
    filter: str = ""
    """Filters such as `mutualism.*`, `tag:slow`, `difficulty:hard`; all of a suite by default."""

    @model_validator(mode="after")
    def _selects(self) -> Selector:
        if self.suite is None and not self.filter.strip():
            raise ValueError("select cases by a name, a glob, or key:value")
        return self


def _selectors(value: Any) -> Any:
    items: list[Any] = list(cast("Any", value)) if isinstance(value, list | tuple) else [value]
    return [_selector(item) if isinstance(item, str) else item for item in items]


def _selector(text: str) -> dict[str, str]:
    """Return the selector of a text: the file of a suite, else a name or a filter."""
    is_file = ":" not in text and text.endswith((".yaml", ".yml"))
    return {"suite": text} if is_file else {"filter": text}


Selectors = Annotated[
    tuple[Selector, ...],
    Field(min_length=1),
    BeforeValidator(
        _selectors,
        json_schema_input_type=str | Annotated[list[str | Selector], Field(min_length=1)],
    ),
]


def _agents(value: Any) -> Any:
    """Return a list of names, or comma-separated names, as a mapping; others unchanged."""
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
        # One rule for file names: only the noun differs.
        raise ValueError(reason.replace("id", "name", 1).replace("an name", "a name"))
    return text


def check_output(text: str) -> str:
    """Validate an output path: below the results folder, with known tokens only."""
    for token in _TOKEN.findall(text):
        if token not in OUTPUT_TOKENS:
            known = ", ".join(f"{{{each}}}" for each in OUTPUT_TOKENS)
            near = did_you_mean(token, OUTPUT_TOKENS)
            raise ValueError(f"there is no token {{{token}}}: {near or f'known: {known}'}")
    # What tokens become is safe; the rest is checked as if it were a path on any system.
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
    """Limits of a run; the settings apply to those left out."""

    concurrency: Count | None = None
    """Concurrent trials."""
    timeout: Positive | None = None
    """Seconds for one trial."""
    max_retries: Annotated[int, Field(ge=0)] | None = None
    """Retries of transient failures."""
    max_cost_usd: Positive | None = None
    """Dollars for the run."""
    max_tokens: Count | None = None
    """Tokens for the run."""
    max_trials: Count | None = None
    """Trials started in one invocation."""
    max_seconds: Positive | None = None
    """Seconds for one invocation."""
    on_agent_error: OnAgentError | None = None
    """What an error of the agent makes of its trial: failed, or an infrastructure error."""
    early_stop: tuple[str, ...] | None = None
    """Rules that stop a cell before all its trials are done."""


class ExecutorSpec(Strict):
    """Executor of the trials and its number of workers."""

    kind: Literal["local", "ray"]
    """In this process, or on Ray workers."""
    address: Annotated[str, Field(min_length=1)] | None = None
    """Ray address (auto, HOST:PORT or ray://HOST:PORT); a local cluster by default."""
    workers: Count | None = None
    """Worker processes; as many as fit by default."""

    @model_validator(mode="after")
    def _options_fit_kind(self) -> ExecutorSpec:
        if self.kind == "local" and (self.address is not None or self.workers is not None):
            raise ValueError("address and workers are for kind: ray")
        return self


Executor = Annotated[ExecutorSpec, short_for("kind", Literal["local", "ray"] | ExecutorSpec)]


class Experiment(Strict):
    """Cases × agents × parameters × seeds × trials."""

    version: Literal[1] = 1
    """Version of this format."""
    name: Annotated[str, AfterValidator(_name)] = "experiment"
    """Name of its runs; the file name by default."""
    description: str | None = None
    """Purpose, for people."""
    cases: Selectors
    """Names, globs and filters; `suite: FILE` for the cases of a suite."""
    exclude: Names = ()
    """Exclude cases that match any of these filters."""
    filter: str = ""
    """Include only cases that match this filter."""
    agents: Agents = Field(default_factory=dict[str, AgentRef])
    """Names of agents, or a mapping of names to agents; the agent of the settings by default."""
    seeds: Seeds = (0,)
    """A count, a range such as `1..10`, or a list: passed to scenarios and agents."""
    trials: Trials | None = None
    """Trials per seed; the case's own number, else 1, by default."""
    params: dict[str, Axis] = Field(default_factory=dict[str, Axis])
    """Parameters that vary: every combination of their values runs."""
    sample: SampleSpec | None = None
    """Draw some combinations of `params` instead of running all."""
    set: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Parameters with one value; `case.FIELD` overrides a field of every case."""
    output: Annotated[str, AfterValidator(check_output)] = DEFAULT_OUTPUT
    """Output path of each run, below the results folder."""
    judge: Judge | None = None
    """Judge for checks that name none."""
    judges: dict[str, Judge] = Field(default_factory=dict[str, JudgeConfig])
    """Additional judges by name."""
    limits: ExperimentLimits = ExperimentLimits()
    """Limits of each run."""
    executor: Executor | None = None
    """Executor: `ray`, or its options; this process by default."""
    research: Research | None = None
    """Adaptive selection of trials: a curriculum, adaptive difficulty, ablation or sweep."""

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
                yield Fault(("sample",), "a sweep has its own sampler", "use `sampler`, `n`")
        elif self.params:
            yield Fault(("params",), f"`params` are for a sweep, not for {kind}", "use `set`")
        if kind in ("curriculum", "adaptive") and self.trials is not None:
            yield Fault(("trials",), f"{kind} decides the number of trials")
        # A round decides by counts of trials; a cell cut short would look like a weak one.
        if self.limits.early_stop:
            yield Fault(("limits", "early_stop"), "research needs every trial it plans")

    @property
    def path(self) -> Path | None:
        """Return the source file; None for one built in Python."""
        return self._path

    @property
    def folder(self) -> Path | None:
        """Return the base of relative paths; None (the working directory) if built in Python."""
        return self._folder

    @property
    def tree(self) -> Tree | None:
        """Return the source tree with positions; None for one built in Python."""
        return self._tree

    def place_of(self, *steps: str | int) -> SourceLocation | None:
        """Return the position of a part, or of its nearest enclosing part."""
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
        """Record the source of the experiment."""
        self._folder, self._path, self._tree = folder, path, tree

    def changed(self, **changes: Any) -> Experiment:
        """Return a validated copy with some fields replaced; other positions are preserved."""
        # Validated again: a change may contradict other fields.
        given = {name: getattr(self, name) for name in self.model_fields_set}
        made = type(self).model_validate({**given, **changes})
        tree = self._tree
        # A changed field has no position in the file any more.
        if tree is not None and isinstance(tree.value, dict):
            rest = {key: part for key, part in tree.value.items() if key not in changes}
            tree = replace(tree, value=rest)
        made.came_from(self._folder, self._path, tree)
        return made

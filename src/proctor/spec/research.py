"""Define `research:` of an experiment: how trials are selected from earlier results.

One of four: `curriculum`, `adaptive`, `ablation`, `sweep`. These are only the options;
`trials._research` applies them to the selected cases.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BeforeValidator, Field, model_validator

from proctor.strict import Strict

Share = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=100_000)]
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
    last: Count = 5
    """Number of trials considered."""


class Curriculum(Strict):
    """Ordered levels; each agent advances when it meets the promotion rule."""

    levels: Levels
    """From easy to hard: names of difficulties, or `{name, filter, params}`."""
    promote: Promotion = Promotion()
    """Promotion rule."""
    max_trials: Count = 20
    """Maximum trials of one level; an agent not promoted by then stays there."""
    batch: Count | None = None
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
    max_trials: Count = 40
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
    n: Count | None = None
    """Number of combinations; a grid runs all."""
    batch: Count = 1
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

"""`research:` of an experiment: how its trials are chosen from what came out so far.

One of four: `curriculum`, `adaptive`, `ablation`, `sweep`. Only what is meant stands here; what
it comes to for the selected cases is worked out by `trials.research`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, model_validator

from proctor.strict import Strict

Share = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=100_000)]
Text = Annotated[str, Field(min_length=1)]


class DifficultyLevel(Strict):
    """One level of difficulty: which of the cases, under which parameters."""

    name: Text
    """What it is called in results."""
    filter: str = ""
    """Of the experiment's cases, those that this filter selects; all when absent."""
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
"""From easy to hard. A text means the cases of that `difficulty`."""


def _named_once(levels: tuple[DifficultyLevel, ...] | None) -> None:
    names = [level.name for level in levels or ()]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"the level {twice!r} is there twice")


class Promotion(Strict):
    """When an agent goes on to the next level."""

    pass_rate: Annotated[float, Field(gt=0, le=1)] = 0.8
    """At least this share of the last trials passed."""
    last: Count = 5
    """How many trials of the level are looked at."""


class Curriculum(Strict):
    """Levels in order; each agent goes on when it has shown that it can."""

    levels: Levels
    """From easy to hard: names of difficulties, or `{name, filter, params}`."""
    promote: Promotion = Promotion()
    """When the next level begins."""
    max_trials: Count = 20
    """Trials of one level after which an agent that was not promoted stays there."""
    batch: Count | None = None
    """Trials between two looks; as many as `promote.last` when absent."""

    @model_validator(mode="after")
    def _fits(self) -> Curriculum:
        _named_once(self.levels)
        if self.promote.last > self.max_trials:
            raise ValueError(
                f"nobody can pass {self.promote.last} trials where max_trials is {self.max_trials}"
            )
        return self


class Scale(Strict):
    """A parameter from where it is easy to where it is hard, in equal steps."""

    name: Text
    """The parameter."""
    easy: Annotated[float, Field(allow_inf_nan=False)]
    """Its value where things are easiest; may be the larger one."""
    hard: Annotated[float, Field(allow_inf_nan=False)]
    """Its value where things are hardest."""
    steps: Annotated[int, Field(ge=2, le=1001)] = 11
    """How many values, both ends in."""

    @model_validator(mode="after")
    def _goes_somewhere(self) -> Scale:
        if self.easy == self.hard:
            raise ValueError("easy and hard are the same value")
        return self

    @property
    def values(self) -> tuple[float, ...]:
        """From easy to hard; whole numbers where both ends and the steps are whole."""
        step = (self.hard - self.easy) / (self.steps - 1)
        found = [round(self.easy + step * at, 12) for at in range(self.steps)]
        whole = all(value == int(value) for value in found)
        return tuple(int(value) if whole else value for value in found)


class Adaptive(Strict):
    """Find the difficulty at which an agent passes as often as it fails (or any other rate)."""

    levels: Levels | None = None
    """From easy to hard, as in a curriculum."""
    parameter: Scale | None = None
    """Or a number that makes things harder: `{name: noise, easy: 0, hard: 0.5, steps: 11}`."""
    method: Literal["staircase", "bayesian"] = "staircase"
    """A staircase, or the level that tells most about the threshold, by its posterior."""
    down: Annotated[int, Field(ge=1, le=10)] = 2
    """Staircase: passes in a row before it gets harder; one failure makes it easier."""
    reversals: Annotated[int, Field(ge=2, le=200)] = 8
    """Staircase: turns after which it ends."""
    target: Share | None = None
    """Bayesian: the pass rate whose difficulty is sought; 0.5 when absent. That of a staircase
    follows from `down`: 0.5 to the power of 1/down."""
    guess: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Pass rate by luck where it is far too hard."""
    lapse: Annotated[float, Field(ge=0, lt=1)] = 0.02
    """Failure rate by mishap where it is far too easy."""
    precision: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Bayesian: end once the credible interval is no wider, in units of the scale."""
    confidence: Share = 0.95
    """Of the credible interval."""
    max_trials: Count = 40
    """Trials of one agent at most."""

    @model_validator(mode="after")
    def _fits(self) -> Adaptive:
        if (self.levels is None) is (self.parameter is None):
            raise ValueError("say what gets harder: `levels` or `parameter`, one of them")
        _named_once(self.levels)
        for name in ("target", "precision"):
            if self.method == "staircase" and getattr(self, name) is not None:
                raise ValueError(f"`{name}` is for `method: bayesian`")
        if not self.guess < self.sought < 1 - self.lapse:
            raise ValueError(
                f"a pass rate of {self.sought:g} never crosses over between `guess` and 1 - `lapse`"
            )
        return self

    @property
    def sought(self) -> float:
        """The pass rate that is met at the threshold."""
        if self.method == "staircase":
            return 0.5 ** (1 / self.down)
        return 0.5 if self.target is None else self.target


class Ablation(Strict):
    """The whole against the whole without one thing, for each thing."""

    agent: str | None = None
    """Whose options are dropped; may be left out where there is one agent."""
    drop: tuple[Text, ...] = ()
    """Options of the agent, one left out at a time: `system`, `tools.search`, `members.a`."""
    neutral: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Parameters, and the value of each that switches it off, one at a time."""
    confidence: Share = 0.95
    """Of the intervals of differences."""

    @model_validator(mode="after")
    def _something(self) -> Ablation:
        if not self.drop and not self.neutral:
            raise ValueError("say what is left out: `drop` for options, `neutral` for parameters")
        if twice := next((each for each in self.drop if self.drop.count(each) > 1), None):
            raise ValueError(f"{twice!r} is dropped twice")
        return self


class Sweep(Strict):
    """Which parameters serve best: `params` of the experiment, tried and ranked."""

    sampler: Literal["grid", "random", "tpe"] = "grid"
    """All combinations, a seeded draw of them, or each next one by the scores so far (Optuna)."""
    n: Count | None = None
    """Combinations to try; all of a grid."""
    batch: Count = 1
    """tpe: combinations chosen at a time; more run at once, and know less."""
    seed: int = 0
    """Which ones are drawn."""
    objective: Literal["score", "pass_rate"] = "score"
    """What is judged by: the mean over all cases, seeds and trials."""
    direction: Literal["maximize", "minimize"] = "maximize"
    """`minimize` looks for what is hardest."""
    confidence: Share = 0.95
    """Of the intervals of means."""

    @model_validator(mode="after")
    def _fits(self) -> Sweep:
        if (self.n is None) is not (self.sampler == "grid"):
            raise ValueError("`n` is how many are drawn: needed by random and tpe, not by a grid")
        return self


KINDS = ("curriculum", "adaptive", "ablation", "sweep")
"""What research there is; one of them at a time."""

Kind = Literal["curriculum", "adaptive", "ablation", "sweep"]


class Research(Strict):
    """How trials are chosen from results so far: one of these."""

    curriculum: Curriculum | None = None
    """Ordered levels with promotion."""
    adaptive: Adaptive | None = None
    """The difficulty at which an agent begins to fail."""
    ablation: Ablation | None = None
    """What each part of the whole is worth."""
    sweep: Sweep | None = None
    """Which parameters serve best."""

    @model_validator(mode="after")
    def _one(self) -> Research:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of {', '.join(KINDS)}")
        return self

    @property
    def kind(self) -> Kind:
        """Which of them."""
        return cast("Kind", next(name for name in KINDS if getattr(self, name) is not None))

    @property
    def levels(self) -> tuple[DifficultyLevel, ...]:
        """The levels of a curriculum or of adaptive difficulty, from easy to hard."""
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

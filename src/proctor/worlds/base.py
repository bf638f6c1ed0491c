"""The convention of worlds: what one must offer, and what an episode in it leaves behind.

A world is an object in the Gymnasium convention. Only `reset` and `step` are needed; whatever
else it has (`actions`, `render`, `score`, `close`) is used, and `make_world` fills in the rest.
Worlds are plain, not async: they run in a thread, so a slow one does not hold up other trials; one
that sets `quick` is called at once, which is for steps of microseconds only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from proctor.agents.actions import Actions
from proctor.errors import ProctorError


class WorldError(ProctorError):
    """The world could not be made or failed at its work: never the agent's fault."""


class InvalidAction(ValueError):
    """Raised by a world's `step` for an action it refuses; its state must not have changed."""


class Scores(NamedTuple):
    """How well an episode went: the total in 0..1, its parts, and the reason in words.

    A total of None means that it could not be told.
    """

    score: float | None
    parts: Mapping[str, float] = {}
    reason: str = ""


class World(Protocol):
    """A place to act in, complete: what `make_world` returns."""

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: the first observation, and information beside it."""
        ...

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act: observation, reward, terminated, truncated, information."""
        ...

    def actions(self) -> Actions:
        """What is valid now: a list, or a space (see `proctor.agents.actions`)."""
        ...

    def render(self) -> str | None:
        """The state drawn as text, for people; None where it is not."""
        ...

    def score(self, truth: Mapping[str, Any]) -> Any:
        """How well it went, in 0..1: a number, parts by name, `Scores`, or None."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class Step(NamedTuple):
    """One step that was taken."""

    action: Any
    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


@dataclass(slots=True)
class Trajectory:
    """Everything that happened in an episode, in order. What scoring rules are given."""

    seed: int
    first: Any = None
    """The observation before any action."""
    steps: list[Step] = field(default_factory=list[Step])
    invalid_actions: int = 0

    @property
    def total_reward(self) -> float:
        """The sum of all rewards."""
        return sum(step.reward for step in self.steps)

    @property
    def actions(self) -> list[Any]:
        """The actions taken."""
        return [step.action for step in self.steps]


class EpisodeOutcome(msgspec.Struct, kw_only=True):
    """What an episode came to.

    `ended` says why it did: terminated or truncated (the world said so), max_steps (our limit),
    no_valid_action (the agent found none), interrupted (it was not played to its end).
    """

    trajectory: Trajectory
    answer: str = ""
    ended: str = "interrupted"
    score: float | None = None
    scores: dict[str, float] = {}
    reason: str = ""

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return len(self.trajectory.steps)

    def summary(self) -> dict[str, Any]:
        """The facts as they are kept with a trial, without the steps."""
        trajectory = self.trajectory
        last = trajectory.steps[-1] if trajectory.steps else None
        return {
            "score": self.score,
            "scores": dict(self.scores),
            "reason": self.reason,
            "ended": self.ended,
            "seed": trajectory.seed,
            "steps": len(trajectory.steps),
            "total_reward": trajectory.total_reward,
            "terminated": last is not None and last.terminated,
            "truncated": (last is not None and last.truncated) or self.ended == "max_steps",
            "invalid_actions": trajectory.invalid_actions,
        }

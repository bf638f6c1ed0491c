"""The interface of worlds, and the record of an episode.

A world is an object that follows the Gymnasium convention. Only `reset` and `step` are required;
other methods (`actions`, `render`, `score`, `close`) are used if present, and `make_world` supplies
defaults. Worlds are synchronous: they run in a thread, so that a slow one does not block other
trials; one that sets `quick` is called directly, which is for steps of microseconds only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from proctor.agents.actions import Actions
from proctor.errors import ProctorError


class WorldError(ProctorError):
    """Raised when a world cannot be created or fails: never the agent's fault."""


class InvalidAction(ValueError):
    """Raised by a world's `step` for an action it refuses; its state must not have changed."""


class Scores(NamedTuple):
    """Score of an episode: the total in 0..1, its parts, and the reason.

    A total of None means that there is no score.
    """

    score: float | None
    parts: Mapping[str, float] = {}
    reason: str = ""


class World(Protocol):
    """A complete world, as returned by `make_world`."""

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; return the first observation and additional information."""
        ...

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Perform an action; return observation, reward, terminated, truncated, information."""
        ...

    def actions(self) -> Actions:
        """Return the valid actions: a list, or a space (see `proctor.agents.actions`)."""
        ...

    def render(self) -> str | None:
        """Return the state rendered as text, or None."""
        ...

    def score(self, truth: Mapping[str, Any]) -> Any:
        """Return the score in 0..1: a number, parts by name, `Scores`, or None."""
        ...

    def close(self) -> None:
        """Release resources."""
        ...


class Step(NamedTuple):
    """One step of an episode."""

    action: Any
    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


@dataclass(slots=True)
class Trajectory:
    """Full record of an episode, in order: the input of scoring rules."""

    seed: int
    first: Any = None
    """Observation before the first action."""
    steps: list[Step] = field(default_factory=list[Step])
    invalid_actions: int = 0

    @property
    def total_reward(self) -> float:
        """Return the sum of all rewards."""
        return sum(step.reward for step in self.steps)

    @property
    def actions(self) -> list[Any]:
        """Return the actions."""
        return [step.action for step in self.steps]


class EpisodeOutcome(msgspec.Struct, kw_only=True):
    """Outcome of an episode.

    `ended` is the reason: terminated or truncated (by the world), max_steps (our limit),
    no_valid_action (the agent gave none), interrupted (not played to the end).
    """

    trajectory: Trajectory
    answer: str = ""
    ended: str = "interrupted"
    score: float | None = None
    scores: dict[str, float] = {}
    reason: str = ""

    @property
    def steps(self) -> int:
        """Return the number of steps."""
        return len(self.trajectory.steps)

    def summary(self) -> dict[str, Any]:
        """Return the facts stored with a trial."""
        # Steps are left out: the trace has a span for each.
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

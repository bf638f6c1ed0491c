"""The interface of worlds, the record of an episode, and worlds by name.

A world is an object that follows the Gymnasium convention. Only `reset` and `step` are required;
other methods (`actions`, `render`, `score`, `close`) are used if present. Worlds are synchronous:
they run in a thread, so that a slow one does not block other trials; one that sets `quick` is
called directly, which is for steps of microseconds only.

`make_world` takes `gym:CartPole-v1`, `package.module:Class`, or the class itself. Its result is
complete (see `World`) even if methods are missing, and ends after `max_steps`. Environments of the
Gymnasium package are recognised by their spaces and run unchanged.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import msgspec

from proctor.agents.actions import Actions
from proctor.agents.base import AgentReply
from proctor.errors import ProctorError, did_you_mean
from proctor.imports import load_object


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

    @property
    def reply(self) -> AgentReply:
        """Return what a trial stores of the episode."""
        return AgentReply(answer=self.answer, metadata={"world": self.summary()})

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


GYM = "gym:"
"""Prefix of names of the Gymnasium registry."""


def make_world(
    use: str | Callable[..., Any],
    options: Mapping[str, Any] | None = None,
    max_steps: int | None = None,
    *,
    base_dir: str | Path | None = None,
) -> World:
    """Create a world; import paths are searched in `base_dir` first."""
    settings = dict(options or {})
    if max_steps is not None and max_steps < 1:
        raise WorldError(f"max_steps is {max_steps}", hint="an episode has at least one step")
    if isinstance(use, str) and use.startswith(GYM):
        from proctor.worlds._gym import make_gym

        return Hosted(make_gym(use.removeprefix(GYM), settings, max_steps), max_steps)
    target = load_object(use, base_dir) if isinstance(use, str) else use
    if not callable(target):
        raise WorldError(f"{use} is not a class or a function that creates a world")
    world = _create(target, settings, str(use))
    # By its space, not its type: gymnasium is imported only when it is used.
    if hasattr(world, "action_space"):
        from proctor.worlds._gym import GymWorld

        world = GymWorld(world)
    missing = [name for name in ("reset", "step") if not callable(getattr(world, name, None))]
    if missing:
        raise WorldError(
            f"{type(world).__name__} has no `{missing[0]}`",
            where=str(use),
            hint="a world has reset(seed=…) and step(action), as in Gymnasium",
        )
    return Hosted(world, max_steps)


def _create(target: Callable[..., Any], options: Mapping[str, Any], name: str) -> Any:
    # Arguments are checked before the call, so that a TypeError inside it is not mistaken for them.
    try:
        signature: inspect.Signature | None = inspect.signature(target)
    except (TypeError, ValueError):  # a callable written in C
        signature = None
    if signature is not None:
        try:
            signature.bind(**options)
        except TypeError as error:
            names = list(signature.parameters)
            odd = next((key for key in options if key not in names), None)
            hint = did_you_mean(odd, names) if odd else None
            raise WorldError(f"options: {error}", where=name, hint=hint) from None
    try:
        return target(**options)
    except ProctorError:
        raise
    except Exception as error:
        raise WorldError(
            f"the world could not be created: {type(error).__name__}: {error}", where=name
        ) from error


class Hosted:
    """World wrapper with defaults for missing methods, and a step limit."""

    def __init__(self, world: Any, max_steps: int | None = None) -> None:
        self.world = world
        self._max_steps = max_steps
        self._taken = 0

    @property
    def max_steps(self) -> int | None:
        """Return the configured limit, or the world's own; None if there is neither."""
        own = getattr(self.world, "max_steps", None)
        return self._max_steps if self._max_steps is not None else own

    @property
    def quick(self) -> bool:
        """Return whether the world's steps are too short to be worth a thread."""
        return bool(getattr(self.world, "quick", False))

    @property
    def truth(self) -> Mapping[str, Any] | None:
        """Return the hidden truth of the world after a reset, or None."""
        return getattr(self.world, "truth", None)

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self._taken = 0
        observation, info = self.world.reset(seed=seed)
        return observation, dict(info or {})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Perform an action; truncate at the limit."""
        observation, reward, terminated, truncated, info = self.world.step(action)
        self._taken += 1
        limit = self._max_steps
        # An episode that terminates at the limit was not cut off.
        over = limit is not None and self._taken >= limit and not terminated
        # Converted, because worlds return numpy's types, which JSON does not have.
        return observation, float(reward), bool(terminated), bool(truncated) or over, dict(info)

    def actions(self) -> Actions:
        """Return the valid actions; free text if the world has none."""
        listed = getattr(self.world, "actions", None)
        actions = cast("Actions | None", listed() if callable(listed) else listed)
        return {"type": "text"} if actions is None else actions

    def render(self) -> str | None:
        """Return the state as text, if available."""
        show = getattr(self.world, "render", None)
        shown = show() if callable(show) else None
        return shown if isinstance(shown, str) else None

    def score(self, truth: Mapping[str, Any]) -> Any:
        """Return the world's own score, if it has one."""
        judge = getattr(self.world, "score", None)
        return judge(truth) if callable(judge) else None

    def close(self) -> None:
        """Close the world, if it can be closed."""
        shut = getattr(self.world, "close", None)
        if callable(shut):
            shut()

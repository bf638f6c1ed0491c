"""Load worlds by name: `gym:CartPole-v1`, `package.module:Class`, or the class itself.

Guarantees: the result is complete (see `World`) even if methods are missing, and ends after
`max_steps`. Environments of the Gymnasium package are recognised by their spaces and run unchanged.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from proctor.agents.actions import Actions
from proctor.errors import ProctorError, did_you_mean
from proctor.imports import load_object
from proctor.worlds._base import World, WorldError

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

"""Run environments of the Gymnasium package as worlds, unchanged.

Spaces become descriptions that any agent can read, and actions are converted back to the space's
types (arrays of the right type and shape). If an environment supplies an `action_mask`, only the
allowed actions are valid. `observe: text` shows the environment's text rendering instead of its
numbers. Graph and OneOf spaces have no plain description and are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from proctor.agents.actions import Actions
from proctor.errors import did_you_mean
from proctor.imports import absent_extra
from proctor.worlds._base import WorldError

SEED_BITS = 31
"""Bits of a seed: some environments pass it to C code that takes no more."""

_OWN = ("observe", "action_names")
"""Options of Proctor, not of the environment."""

_COLOURED = re.compile(r"\x1b\[[1-9][\d;]*m(.*?)\x1b\[0?m", re.DOTALL)
_ESCAPE = re.compile(r"\x1b\[[\d;]*[A-Za-z]")


def make_gym(name: str, options: Mapping[str, Any], max_steps: int | None) -> GymWorld:
    """Create an environment of the registry; `module:Name-v0` imports the module first."""
    try:
        import gymnasium
        from gymnasium.error import Error as GymError
    except ImportError:
        raise absent_extra(f"gym:{name}", "worlds", WorldError) from None
    env_options = {key: value for key, value in options.items() if key not in _OWN}
    text = options.get("observe", "structure")
    if text not in ("structure", "text"):
        raise WorldError(f"observe is {text!r}", hint="structure or text")
    if text == "text":
        env_options.setdefault("render_mode", "ansi")
    if max_steps is not None:
        env_options["max_episode_steps"] = max_steps
    try:
        env: Any = gymnasium.make(name, **env_options)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    except (GymError, TypeError, ValueError, ImportError) as error:
        registry = cast("Mapping[str, Any]", gymnasium.registry)
        raise WorldError(
            f"the environment could not be created: {error}",
            where=f"gym:{name}",
            hint=None if name in registry else did_you_mean(name, registry),
        ) from None
    names = options.get("action_names")
    return GymWorld(env, observe=text, action_names=names)


class GymWorld:
    """One environment."""

    def __init__(
        self, env: Any, *, observe: str = "structure", action_names: Sequence[str] | None = None
    ) -> None:
        self.env = env
        self._space = env.action_space
        self._actions = described(self._space)
        self._as_text = observe == "text"
        self._names = _checked_names(action_names, self._actions)
        self._mask: Any = None
        # Environments that are created without the registry have no spec.
        spec = getattr(env, "spec", None)
        self.max_steps: int | None = getattr(spec, "max_episode_steps", None)

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        short_seed = None if seed is None else seed % 2**SEED_BITS
        observation, info = self.env.reset(seed=short_seed)
        return self._observed(observation, info), self._rest(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Perform an action, converted to the environment's space."""
        if self._names is not None:
            action = self._names[action]
        observation, reward, terminated, truncated, info = self.env.step(
            converted(action, self._space)
        )
        seen = self._observed(observation, info)
        return seen, float(reward), bool(terminated), bool(truncated), self._rest(info)

    def actions(self) -> Actions:
        """Return the valid actions, without the masked ones."""
        valid = self._actions
        if self._mask is not None and not isinstance(valid, Mapping):
            allowed = [each for each, open_ in zip(valid, self._mask, strict=True) if open_]
            # A mask that forbids everything would leave the agent without any answer.
            valid = allowed or valid
        if self._names is None:
            return valid
        words = {value: name for name, value in self._names.items()}
        return [words[each] for each in cast("Sequence[Any]", valid)]

    def render(self) -> str | None:
        """Return the text rendering, if there is one."""
        if getattr(self.env, "render_mode", None) != "ansi":
            return None
        drawn = self.env.render()
        if not isinstance(drawn, str):
            return None
        # Colours become brackets: some environments mark a position by colour only.
        return _ESCAPE.sub("", _COLOURED.sub(r"[\1]", drawn))

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _observed(self, observation: Any, info: Mapping[str, Any]) -> Any:
        self._mask = info.get("action_mask")
        return (self.render() or observation) if self._as_text else observation

    def _rest(self, info: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in info.items() if key != "action_mask"}


def _checked_names(names: Sequence[str] | None, actions: Actions) -> dict[str, Any] | None:
    if names is None:
        return None
    if isinstance(actions, Mapping) or len(names) != len(actions) or len(set(names)) != len(names):
        many = "none" if isinstance(actions, Mapping) else len(actions)
        raise WorldError(
            f"{len(names)} action_names do not fit: the environment has {many} to name",
            hint="one name for each discrete action, in order, no two alike",
        )
    return dict(zip(names, actions, strict=True))


# -- spaces --------------------------------------------------------------------------------------

_KNOWN = frozenset("Discrete MultiDiscrete MultiBinary Box Text Dict Tuple Sequence".split())
"""By name, so that gymnasium is imported only when needed."""


def described(space: Any) -> Actions:
    """Return a space in the form of `proctor.agents.actions`."""
    match _kind(space):
        case "Discrete":
            start = int(space.start)
            return list(range(start, start + int(space.n)))
        case "MultiDiscrete":
            return _nested(space.nvec, lambda n, at: _counted(space, at, int(n)))
        case "MultiBinary":
            return _repeated(tuple(int(n) for n in space.shape), [0, 1])
        case "Box":
            return _box(space)
        case "Text":
            letters = "".join(sorted(space.character_set))
            return {
                "type": "text",
                "min_length": int(space.min_length),
                "max_length": int(space.max_length),
                "characters": letters,
            }
        case "Dict":
            inner = {key: described(value) for key, value in space.spaces.items()}
            return {"type": "object", "properties": inner}
        case "Tuple":
            return {"type": "array", "each": [described(value) for value in space.spaces]}
        case "Sequence":
            return {"type": "array", "items": described(space.feature_space)}
        case other:
            raise WorldError(
                f"actions of the space {other} cannot be described",
                hint="wrap the environment so that its actions are of a simpler space",
            )


def _kind(space: Any) -> str:
    """Return the name of the space class, also for a subclass of it."""
    names = [base.__name__ for base in type(space).__mro__]
    return next((name for name in names if name in _KNOWN), names[0])


def _counted(space: Any, at: tuple[int, ...], count: int) -> list[int]:
    start = int(space.start[at]) if getattr(space, "start", None) is not None else 0
    return list(range(start, start + count))


def _nested(
    array: Any, leaf: Callable[[Any, tuple[int, ...]], Any], at: tuple[int, ...] = ()
) -> dict[str, Any]:
    """Describe an array of different spaces, dimension by dimension."""
    rows = list(array)
    if getattr(rows[0], "ndim", 0) == 0:
        each = [leaf(value, (*at, i)) for i, value in enumerate(rows)]
    else:
        each = [_nested(row, leaf, (*at, i)) for i, row in enumerate(rows)]
    return {"type": "array", "each": each}


def _repeated(shape: tuple[int, ...], item: Any) -> dict[str, Any]:
    for length in reversed(shape):
        item = {"type": "array", "items": item, "length": length}
    return item


def _box(space: Any) -> dict[str, Any]:
    """Describe bounded numbers: once if all bounds are equal, else one by one."""
    kind = "integer" if space.dtype.kind in "iu" else "number"

    def bounded(low: Any, high: Any) -> dict[str, Any]:
        description: dict[str, Any] = {"type": kind}
        # Unbounded boxes hold the largest number of their type, not always infinity.
        for name, bound, finite in (("low", low, low > -1e30), ("high", high, high < 1e30)):
            if finite:
                description[name] = bound.item()
        return description

    low, high = space.low, space.high
    if space.shape == ():
        return bounded(low[()], high[()])
    first = low.flat[0], high.flat[0]
    if (low == first[0]).all() and (high == first[1]).all():
        return _repeated(tuple(int(n) for n in space.shape), bounded(*first))
    return _nested(low, lambda value, at: bounded(value, high[at]))


def converted(action: Any, space: Any) -> Any:
    """Convert a plain action to the space's type."""
    match _kind(space):
        case "Discrete":
            return int(action)
        case "Box" | "MultiDiscrete" | "MultiBinary":
            import numpy as np

            return np.asarray(action, dtype=space.dtype)
        case "Dict":
            return {key: converted(action[key], inner) for key, inner in space.spaces.items()}
        case "Tuple":
            pairs = zip(action, space.spaces, strict=True)
            return tuple(converted(each, inner) for each, inner in pairs)
        case "Sequence":
            return tuple(converted(each, space.feature_space) for each in action)
        case _:
            return action

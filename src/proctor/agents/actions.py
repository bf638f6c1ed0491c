"""Describe the actions of a world in a form any agent can read, and parse answers into actions.

Actions are either a list (one of these) or a mapping (a space of values):

    ["left", "right", {"call": "add", "arguments": {"species": ["s1", "s2"], "percent": {…}}}]
    {"type": "number", "low": 0, "high": 1}       integer, text, array and object likewise

Guarantees: `understand` accepts every value drawn by `sample`, and every value it returns is one of
the offered actions with corrected types. Parsing is lenient (JSON, a call, the last line) because
models add prose; the trade-off is that an ambiguous text gets the first interpretation that fits.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

from proctor.agents.base import AgentRequest
from proctor.formatting import and_more, clipped

Actions = Sequence[Any] | Mapping[str, Any]

# Keys that may hold the name of a call; the first is the one Proctor writes.
CALL_NAMES = ("call", "action", "tool", "name")

# Maximum items or characters of a random value whose length is not limited.
MAX_SAMPLED_LENGTH = 16

# Characters of an answer searched for an action; longer answers are prose or runaway output.
MAX_READ = 100_000

# Maximum actions listed in a message; a model gets the full list anyway.
_SHOWN = 12

_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_FENCED = re.compile(r"```[\w-]*[^\S\n]*\n(.*?)```", re.DOTALL)
_SPOKEN = re.compile(r"^\W*(?:final\s+)?(?:action|answer|move)\W*:\s*", re.IGNORECASE)
_CALL = re.compile(r"([A-Za-z_][\w.-]*)\s*(?:\((.*)\)|\s(.*))?", re.DOTALL)
_ARGUMENT = re.compile(r"""(?:(\w+)\s*[=:]\s*)?("[^"]*"|'[^']*'|[^\s,]+)""")


class BadAction(ValueError):
    """Raised for an answer that is not a valid action; `depth` is how far parsing got."""

    def __init__(self, message: str, depth: int = 0, call: str | None = None) -> None:
        super().__init__(message)
        self.depth = depth
        self.call = call


class ActionCall(NamedTuple):
    """An action with a name and arguments."""

    name: str
    arguments: dict[str, Any]


def is_call(option: Any) -> bool:
    """Return whether an offered action is a call with arguments."""
    return isinstance(option, Mapping) and isinstance(
        cast("Mapping[str, Any]", option).get("call"), str
    )


def call_of(action: Any) -> ActionCall:
    """Return an action as (tool name, arguments); a bare value is an argument of `act`."""
    if is_call(action):
        return ActionCall(action["call"], dict(action.get("arguments") or {}))
    if isinstance(action, str) and action.isprintable() and len(action) <= 64:
        return ActionCall(action, {})
    return ActionCall("act", {"action": action})


# -- parsing an answer ---------------------------------------------------------------------------


def understand(answer: Any, actions: Actions) -> Any:
    """Return the valid action in an answer (text or structured); raise `BadAction` if none."""
    failure: BadAction | None = None
    for candidate in _interpretations(answer):
        try:
            return _fit(candidate, actions)
        except BadAction as problem:
            # The deepest failure explains most: a wrong argument, not "unknown action".
            if failure is None or problem.depth > failure.depth:
                failure = problem
    assert failure is not None  # there is always one interpretation
    raise failure


def _interpretations(answer: Any) -> Iterator[Any]:
    """Yield the interpretations of an answer, the most literal first."""
    yield answer
    if not isinstance(answer, str) or len(answer) > MAX_READ:
        return
    text = answer.strip()
    # The last code block first: models put their final answer last.
    parts = [text, *(block.strip() for block in reversed(_FENCED.findall(text)))]
    lines = [line.strip() for line in text.splitlines() if line.strip(" `\t")]
    if lines:
        parts.append(_SPOKEN.sub("", lines[-1]).strip(" `*"))
    start, end = text.find("{"), text.rfind("}")
    if 0 <= start < end:
        parts.append(text[start : end + 1])
    for part in dict.fromkeys(parts):
        yield part
        value = _json(part)
        if value is not None:
            yield value


def _json(text: str) -> Any:
    """Parse JSON or return None. NaN and infinity are rejected: they are neither JSON nor
    actions.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(word: str) -> Any:
    raise ValueError(word)


def _fit(value: Any, actions: Actions) -> Any:
    if isinstance(actions, Mapping):
        return _in_space(value, actions)
    return _one_of(value, actions)


def _one_of(value: Any, options: Sequence[Any]) -> Any:
    calls = {option["call"]: option for option in options if is_call(option)}
    for option in options:
        if not is_call(option) and _same(value, option):
            return option
    if isinstance(value, str):
        folded = value.casefold()
        for option in options:
            if isinstance(option, str) and option.casefold() == folded:
                return option
    if calls:
        named = _named(value, calls)
        if named is not None:
            return _validated_call(*named)
    raise BadAction(f"{_short(value)} is not one of {_listed(options)}")


def _same(value: Any, option: Any) -> bool:
    # `True == 1` in Python, but not in JSON.
    if isinstance(value, bool) is not isinstance(option, bool):
        return False
    return bool(value == option)


def _named(value: Any, calls: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any] | None:
    """Return the name and the arguments (by name or in order) of a call."""
    if isinstance(value, str):
        match = _CALL.fullmatch(value.strip())
        if match is None or match[1] not in calls:
            return None
        return calls[match[1]], _parse_arguments(match[2] or match[3] or "")
    if not isinstance(value, Mapping):
        return None
    supplied = cast("Mapping[str, Any]", value)
    for key in CALL_NAMES:
        name = supplied.get(key)
        if isinstance(name, str) and name in calls:
            arguments = supplied.get("arguments", {k: v for k, v in supplied.items() if k != key})
            return calls[name], _json(arguments) if isinstance(arguments, str) else arguments
    if len(supplied) == 1:
        ((name, arguments),) = supplied.items()
        if name in calls:
            return calls[name], arguments
    return None


def _parse_arguments(text: str) -> Any:
    """Parse `species=s3, percent=50`, `s3 50` or a JSON object."""
    whole = _json(text)
    if isinstance(whole, dict):
        return cast("dict[str, Any]", whole)
    named: dict[str, Any] = {}
    ordered: list[Any] = []
    for name, word in _ARGUMENT.findall(text):
        read = _json(word)
        value = word.strip("\"'") if read is None else read
        if name:
            named[name] = value
        else:
            ordered.append(value)
    return {**named, "": ordered} if ordered else named


def _validated_call(option: Mapping[str, Any], supplied: Any) -> dict[str, Any]:
    """Return the call with validated arguments, in declaration order."""
    name = option["call"]
    wanted = cast("Mapping[str, Any]", option.get("arguments") or {})
    if supplied is None:
        supplied = {}
    if not isinstance(supplied, Mapping):
        raise BadAction(f"{name}: arguments are an object, not {_short(supplied)}", 1, name)
    arguments = dict(cast("Mapping[str, Any]", supplied))
    ordered = arguments.pop("", ())
    left = [each for each in wanted if each not in arguments]
    if len(ordered) > len(left):
        raise BadAction(f"{name}: takes {len(wanted)} arguments ({', '.join(wanted)})", 1, name)
    arguments.update(zip(left, ordered, strict=False))
    unknown = [each for each in arguments if each not in wanted]
    if unknown:
        accepted = ", ".join(wanted) or "none"
        raise BadAction(f"{name}: unknown argument {unknown[0]!r}; it takes {accepted}", 1, name)
    filled: dict[str, Any] = {}
    for each, space in wanted.items():
        if each in arguments:
            filled[each] = _argument(name, each, arguments[each], space)
        elif isinstance(space, Mapping) and "default" in space:
            filled[each] = space["default"]
        else:
            raise BadAction(f"{name}: the argument {each!r} is missing", 1, name)
    return {"call": name, "arguments": filled}


def _argument(call: str, name: str, value: Any, space: Actions) -> Any:
    try:
        return _fit(value, space)
    except BadAction as problem:
        raise BadAction(f"{call}: {name}: {problem}", 2 + problem.depth, call) from None


# -- spaces --------------------------------------------------------------------------------------


def _in_space(value: Any, space: Mapping[str, Any]) -> Any:
    match space.get("type"):
        case "number" | "integer":
            return _number(value, space)
        case "text":
            return _text(value, space)
        case "array":
            return _array(value, space)
        case "object":
            return _object(value, space)
        case other:
            raise BadAction(f"the world offers a space of unknown type {other!r}")


def _number(value: Any, space: Mapping[str, Any]) -> int | float:
    whole = space["type"] == "integer"
    if isinstance(value, str):
        value = _json(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadAction(f"{_short(value)} is not a number")
    if not math.isfinite(value) or (whole and value != int(value)):
        raise BadAction(f"{value} is not {'a whole' if whole else 'a finite'} number")
    low, high = space.get("low"), space.get("high")
    if (low is not None and value < low) or (high is not None and value > high):
        raise BadAction(f"{value} lies outside {_range(space)}")
    return int(value) if whole else float(value)


def _text(value: Any, space: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        raise BadAction(f"{_short(value)} is not text")
    most, least = space.get("max_length"), space.get("min_length", 0)
    if (most is not None and len(value) > most) or len(value) < least:
        bounds = f"{least} to {most}" if most is not None else f"at least {least}"
        raise BadAction(f"the text has {len(value)} characters; valid are {bounds}")
    allowed = space.get("characters")
    strange = next((c for c in value if allowed is not None and c not in allowed), None)
    if strange is not None:
        raise BadAction(f"the character {strange!r} is not allowed")
    return value


def _array(value: Any, space: Mapping[str, Any]) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise BadAction(f"{_short(value)} is not a list")
    supplied = list(cast("Sequence[Any]", value))
    each = cast("Sequence[Actions] | None", space.get("each"))
    length = space.get("length") if each is None else len(each)
    most, least = space.get("max_length", length), space.get("min_length", length or 0)
    if (most is not None and len(supplied) > most) or len(supplied) < least:
        raise BadAction(f"the list has {len(supplied)} items; it needs {most if most else least}")
    wanted = each if each is not None else [cast("Actions", space["items"])] * len(supplied)
    return [_fit(item, inner) for item, inner in zip(supplied, wanted, strict=True)]


def _object(value: Any, space: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise BadAction(f"{_short(value)} is not an object")
    supplied = cast("Mapping[str, Any]", value)
    wanted = cast("Mapping[str, Any]", space["properties"])
    odd = [key for key in supplied if key not in wanted] or [
        key for key in wanted if key not in supplied
    ]
    if odd:
        raise BadAction(f"{odd[0]!r} is unknown or missing; the keys are {', '.join(wanted)}", 1)
    return {key: _argument("object", key, supplied[key], inner) for key, inner in wanted.items()}


# -- random actions ------------------------------------------------------------------------------


def sample(actions: Actions, random: Random) -> Any:
    """Draw a valid action uniformly: first an entry of the list, then each of its arguments.

    Unbounded values have no uniform distribution; they are drawn from the standard normal or, with
    one bound, from an exponential beyond it, as in Gymnasium.
    """
    if not isinstance(actions, Mapping):
        option = random.choice(actions)
        if not is_call(option):
            return option
        wanted = cast("Mapping[str, Any]", option.get("arguments") or {})
        drawn = {name: sample(space, random) for name, space in wanted.items()}
        return {"call": option["call"], "arguments": drawn}
    space = actions
    match space.get("type"):
        case "number" | "integer":
            return _drawn_number(space, random)
        case "text":
            letters: str = space.get("characters") or _ALPHABET
            length = _drawn_length(space, random)
            return "".join(random.choice(letters) for _ in range(length))
        case "array":
            if "each" in space:
                return [sample(inner, random) for inner in space["each"]]
            length = space["length"] if "length" in space else _drawn_length(space, random)
            return [sample(space["items"], random) for _ in range(length)]
        case "object":
            return {name: sample(inner, random) for name, inner in space["properties"].items()}
        case other:
            raise BadAction(f"the world offers a space of unknown type {other!r}")


def _drawn_number(space: Mapping[str, Any], random: Random) -> int | float:
    low, high = space.get("low"), space.get("high")
    whole = space["type"] == "integer"
    if low is not None and high is not None:
        return random.randint(low, high) if whole else random.uniform(low, high)
    if low is not None:
        drawn = low + random.expovariate(1.0)
    elif high is not None:
        drawn = high - random.expovariate(1.0)
    else:
        drawn = random.gauss(0.0, 1.0)
    return round(drawn) if whole else drawn


def _drawn_length(space: Mapping[str, Any], random: Random) -> int:
    least: int = space.get("min_length", 0)
    most: int = space.get("max_length") or least + MAX_SAMPLED_LENGTH
    return random.randint(least, min(most, least + MAX_SAMPLED_LENGTH))


# -- formatting ----------------------------------------------------------------------------------


def shown(actions: Actions) -> str:
    """Return one action or space as a readable line."""
    if is_call(actions):
        call = cast("Mapping[str, Any]", actions)
        wanted = cast("Mapping[str, Any]", call.get("arguments") or {})
        return f"{call['call']}({', '.join(f'{k}: {shown(v)}' for k, v in wanted.items())})"
    if not isinstance(actions, Mapping):
        return "|".join(_short(option) for option in actions)
    space = actions
    match space.get("type"):
        case "number" | "integer":
            return f"{space['type']} {_range(space)}"
        case "array":
            if "each" in space:
                return f"[{', '.join(shown(inner) for inner in space['each'])}]"
            return f"list of {space.get('length', 'any')} × {shown(space['items'])}"
        case "object":
            pairs = cast("Mapping[str, Any]", space["properties"]).items()
            return "{" + ", ".join(f"{k}: {shown(v)}" for k, v in pairs) + "}"
        case other:
            return str(other)


def _range(space: Mapping[str, Any]) -> str:
    low, high = space.get("low"), space.get("high")
    return f"{'any' if low is None else low}..{'any' if high is None else high}"


def _listed(options: Sequence[Any]) -> str:
    return and_more(options, _SHOWN, lambda each: shown(each) if is_call(each) else _short(each))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return clipped(text, 80)


# One turn of an agent in a world: the observation and the valid actions.  A turn is an
# `AgentRequest`, so every kind of agent can act: its input is a plain mapping with the task, the
# observation, the valid actions and the history. Python agents that take `request` get the same
# values as attributes. Each turn includes the past because most kinds have no memory between calls;
# `history` limits the cost of that.


# Repeated in every turn, since most models see nothing but the turn.
HOW = (
    "Answer with exactly one action and nothing else: one of the list, a value of the kind "
    'described, or for a call {"call": NAME, "arguments": {…}}.'
)


class ActionTurn(AgentRequest):
    """Request to an agent at one step of an episode."""

    def __init__(
        self,
        trial: AgentRequest,
        *,
        observation: Any,
        actions: Actions,
        step: int,
        max_steps: int,
        last: Mapping[str, Any] | None = None,
        history: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(None, **trial.trial_fields(), prices=trial.prices)
        self.ledger = trial.ledger
        self._trial = trial
        self.task = trial.input
        self.observation = observation
        self.actions = actions
        self.step = step
        self.max_steps = max_steps
        self.last = last
        self.history = history
        self.picture: str | None = None
        """The state rendered as text by the world, for agents that display it (see
        `HumanAgent`).
        """
        self.input = self._as_input()

    @property
    def workdir(self) -> Path:
        """The trial's directory, one for the whole episode."""
        return self._trial.workdir

    @property
    def error(self) -> str | None:
        """Why the last answer was not a valid action; None if it was."""
        return None if self.last is None else self.last.get("error")

    def _as_input(self) -> dict[str, Any]:
        supplied: dict[str, Any] = {"task": self.task} if self.task not in (None, "") else {}
        supplied |= {
            "observation": self.observation,
            "actions": self.actions,
            "how": HOW,
            "step": self.step,
            "max_steps": self.max_steps,
        }
        if self.last is not None:
            supplied["last"] = self.last
        if self.history:
            supplied["history"] = self.history
        return supplied

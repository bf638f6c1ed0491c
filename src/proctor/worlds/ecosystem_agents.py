"""Two players of the ecosystem: one that knows the truth, one that finds it out.

`solve` is the reference course: what a perfect score takes. `Investigator` uses only what any
agent sees. It watches who changes, interferes with each suspect in turn, and blames the one after
whose change the endangered species did best; a floor for agents that claim to reason.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any, cast

from proctor.agents.actions import ActionTurn

Moves = Generator[dict[str, Any], ActionTurn, None]

WATCHED = 5
"""Days of watching before anything is done: long enough for what changes to have changed."""

CHANGED = math.log(1.5)
"""A change of numbers that makes a suspect: well above the error of any count."""

WAITED = 2
"""Days between interfering and counting again: the effect must outgrow the error of a count."""


def solve(turn: ActionTurn, truth: Mapping[str, Any]) -> Moves:
    """The lasting measure where it belongs, at once, and the name."""
    cause = truth["cause"]
    yield _call(_lasting(turn), species=cause)
    yield _call("declare", species=cause)


class Investigator:
    """Watch, interfere, compare, act."""

    def __init__(self) -> None:
        self._moves: Moves | None = None

    def __call__(self, request: ActionTurn) -> dict[str, Any]:
        """The next move."""
        if self._moves is None:
            self._moves = investigate(request)
            return next(self._moves)
        return self._moves.send(request)


def investigate(turn: ActionTurn) -> Moves:
    """The whole course, one move at a time."""
    lasting = _lasting(turn)
    dying = lasting == "protect"
    who = turn.observation["endangered"]
    first = turn.observation["counts"]
    yield _call("wait", days=WATCHED)
    turn = yield _call("measure")
    before, day = turn.observation["counts"], turn.observation["day"]
    growth: dict[str, float] = {}
    for suspect in _suspects(first, before, who, dying):
        if not turn.observation["interventions_left"]:
            break
        if dying:
            yield _call("add", species=suspect, percent=100)
        else:
            yield _call("remove", species=suspect, percent=90)
        yield _call("wait", days=WAITED)
        turn = yield _call("measure")
        after, now = turn.observation["counts"], turn.observation["day"]
        growth[suspect] = _change(before[who], after[who]) / max(1, now - day)
        before, day = after, now
    blamed = max(growth, key=lambda name: growth[name])
    yield _call(lasting, species=blamed)
    yield _call("declare", species=blamed)


def _suspects(
    first: Mapping[str, int], then: Mapping[str, int], who: str, dying: bool
) -> list[str]:
    """Those that changed in the way the cause must have, most changed first."""
    sign = -1.0 if dying else 1.0
    change = {name: sign * _change(first[name], then[name]) for name in first if name != who}
    ranked = sorted(change, key=lambda name: change[name], reverse=True)
    return [name for name in ranked if change[name] > CHANGED] or ranked


def _change(before: int, after: int) -> float:
    """The logarithm of how the numbers changed; one animal stands for none."""
    return math.log(max(1, after) / max(1, before))


def _lasting(turn: ActionTurn) -> str:
    """Which lasting measure this world offers."""
    calls = {call["call"] for call in cast("Sequence[Mapping[str, Any]]", turn.actions)}
    return "protect" if "protect" in calls else "control"


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"call": name, "arguments": arguments}

"""Two agents for the ecosystem: one that knows the truth, one that infers it.

`solve` is the reference solution with a perfect score. `Investigator` uses only what any agent
observes. It watches for changes, intervenes on each suspect in turn, and blames the one whose
change helped the endangered species most; a lower bound for agents that claim to reason.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any, cast

from proctor.agents.actions import ActionTurn

Moves = Generator[dict[str, Any], ActionTurn, None]

WATCHED = 5
"""Days of observation before the first action: long enough for trends to show."""

CHANGED = math.log(1.5)
"""Change of population that makes a suspect: well above the error of any count."""

WAITED = 2
"""Days between intervention and count: the effect must exceed the error of a count."""


def solve(turn: ActionTurn, truth: Mapping[str, Any]) -> Moves:
    """Place the correct measure at once and name the cause."""
    cause = truth["cause"]
    yield _call(_lasting(turn), species=cause)
    yield _call("declare", species=cause)


class Investigator:
    """Observe, intervene, compare, act."""

    def __init__(self) -> None:
        self._moves: Moves | None = None

    def __call__(self, request: ActionTurn) -> dict[str, Any]:
        """Return the next move."""
        if self._moves is None:
            self._moves = investigate(request)
            return next(self._moves)
        return self._moves.send(request)


def investigate(turn: ActionTurn) -> Moves:
    """Yield the moves of an episode, one at a time."""
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
    """Return the species that changed like the cause must have, most changed first."""
    sign = -1.0 if dying else 1.0
    change = {name: sign * _change(first[name], then[name]) for name in first if name != who}
    ranked = sorted(change, key=lambda name: change[name], reverse=True)
    return [name for name in ranked if change[name] > CHANGED] or ranked


def _change(before: int, after: int) -> float:
    """Return the logarithm of the population change; zero animals count as one."""
    return math.log(max(1, after) / max(1, before))


def _lasting(turn: ActionTurn) -> str:
    """Return the lasting measure that this world offers."""
    calls = {call["call"] for call in cast("Sequence[Mapping[str, Any]]", turn.actions)}
    return "protect" if "protect" in calls else "control"


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"call": name, "arguments": arguments}

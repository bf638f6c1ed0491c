"""An agent for the ecosystem that counts twice before it believes a number.

Like the shipped `Investigator` it watches who changes, interferes with each suspect in turn, and
blames the one after whose change the endangered species grew best. It spends its days otherwise:
counts are noisy, so it takes two where the other waits, and while interventions last it asks the
better half of its suspects again. Both habits can be left out, to see what each is worth
(`experiments/ablation.yaml`).
"""

from __future__ import annotations

import math
from collections.abc import Generator
from statistics import mean
from typing import Any, NamedTuple

from proctor.agents.actions import ActionTurn

AGAIN = 40
"""Days that must be left for another round: the endangered species needs the rest to recover."""


class Seen(NamedTuple):
    """The logarithm of each species' numbers, from one count or two, and the day between them."""

    numbers: dict[str, float]
    day: float
    turn: ActionTurn


class Keeper:
    """One instance plays one episode; it is called with each turn and answers with an action."""

    def __init__(self) -> None:
        self._moves: Generator[dict[str, Any], ActionTurn, None] | None = None

    def __call__(self, request: ActionTurn) -> dict[str, Any]:
        """The next action."""
        if self._moves is None:
            self._moves = course(request, twice=True, again=True)
            return next(self._moves)
        return self._moves.send(request)


def course(
    turn: ActionTurn, *, twice: bool = False, again: bool = False
) -> Generator[dict[str, Any], ActionTurn, None]:
    protects = any(option["call"] == "protect" for option in turn.actions)
    endangered = turn.observation["endangered"]
    first = logarithms(turn)
    yield call("wait", days=4)
    before = yield from counted(twice)
    waiting = suspects(first, before.numbers, endangered, protects)
    growth: dict[str, list[float]] = {}
    while waiting and before.turn.observation["interventions_left"]:
        suspect = waiting.pop(0)
        if protects:
            yield call("add", species=suspect, percent=100)
        else:
            yield call("remove", species=suspect, percent=90)
        yield call("wait", days=1)
        after = yield from counted(twice)
        gained = after.numbers[endangered] - before.numbers[endangered]
        growth.setdefault(suspect, []).append(gained / (after.day - before.day))
        before = after
        if again and not waiting and before.turn.observation["days_left"] > AGAIN:
            waiting = best_first(growth)[: (len(growth) + 1) // 2]
    blamed = best_first(growth)[0]
    yield call("protect" if protects else "control", species=blamed)
    yield call("declare", species=blamed)


def counted(twice: bool) -> Generator[dict[str, Any], ActionTurn, Seen]:
    one = yield call("measure")
    two = (yield call("measure")) if twice else one
    first, second = logarithms(one), logarithms(two)
    numbers = {name: mean((first[name], second[name])) for name in first}
    return Seen(numbers, mean((one.observation["day"], two.observation["day"])), two)


def suspects(
    first: dict[str, float], then: dict[str, float], endangered: str, protects: bool
) -> list[str]:
    """Who changed as the culprit must have: dying out if it is to be protected, else spreading."""
    sign = -1 if protects else 1
    changes = {name: sign * (then[name] - first[name]) for name in first if name != endangered}
    ranked = sorted(changes, key=lambda name: -changes[name])
    return [name for name in ranked if changes[name] > math.log(1.5)] or ranked


def best_first(growth: dict[str, list[float]]) -> list[str]:
    return sorted(growth, key=lambda name: -mean(growth[name]))


def logarithms(turn: ActionTurn) -> dict[str, float]:
    """Numbers change by factors, so they are compared as logarithms; one stands for none."""
    return {name: math.log(max(1, count)) for name, count in turn.observation["counts"].items()}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"call": name, "arguments": arguments}

"""The functions of expressions that draw at random, from the stream of their place.

Each checks its values before it draws, and takes a bounded number of draws.
"""

from __future__ import annotations

import math
from typing import cast

from proctor.scenarios.functions import (
    FUNCTIONS,
    OTHER,
    Function,
    RefusedError,
    Value,
    items,
    positive,
    real,
    shown,
    size,
    some,
    whole,
    within,
)
from proctor.scenarios.randomness import Stream

MAX_MEAN = 500.0
"""Of a Poisson draw, which is made one event at a time."""

MAX_TRIES = 1_000
"""Draws of a truncated distribution: what is hit less often than that is not meant."""


def _ordered(low: Value, high: Value) -> tuple[float, float]:
    first, last = real(low), real(high)
    if first > last:
        raise RefusedError(f"the bounds {shown(low)} and {shown(high)} are the wrong way round")
    return first, last


def _uniform(stream: Stream, low: Value, high: Value) -> float:
    return stream.uniform(*_ordered(low, high))


def _normal(stream: Stream, mean: Value, sd: Value) -> float:
    return stream.normal(real(mean), within(sd, 0.0, math.inf))


def _truncated(stream: Stream, mean: Value, sd: Value, low: Value, high: Value) -> float:
    first, last = _ordered(low, high)
    for _ in range(MAX_TRIES):
        if first <= (drawn := _normal(stream, mean, sd)) <= last:
            return drawn
    raise RefusedError("next to nothing of the distribution lies between the bounds")


def _lognormal(stream: Stream, mean: Value, sd: Value) -> float:
    return stream.lognormal(real(mean), within(sd, 0.0, math.inf))


def _exponential(stream: Stream, mean: Value) -> float:
    return stream.exponential(positive(mean))


def _triangular(stream: Stream, low: Value, high: Value, mode: Value) -> float:
    first, last = _ordered(low, high)
    return stream.triangular(first, last, within(mode, first, last))


def _poisson(stream: Stream, mean: Value) -> int:
    return stream.poisson(within(mean, 0.0, MAX_MEAN))


def _binomial(stream: Stream, n: Value, p: Value) -> int:
    return stream.binomial(size(n), within(p, 0.0, 1.0))


def _chance(stream: Stream, p: Value) -> bool:
    return stream.unit() < within(p, 0.0, 1.0)


def _randint(stream: Stream, low: Value, high: Value) -> int:
    first, last = whole(low), whole(high)
    if first > last:
        raise RefusedError(f"the bounds {shown(low)} and {shown(high)} are the wrong way round")
    return first + stream.below(last - first + 1)


def _weights(values: list[Value], weights: Value) -> list[float]:
    found = [within(weight, 0.0, math.inf) for weight in items(weights)]
    if len(found) != len(values):
        raise RefusedError(f"{len(values)} items have {len(found)} weights")
    if not any(found) or not math.isfinite(math.fsum(found)):
        raise RefusedError("the weights must add up to more than 0, and to a number")
    return found


def _choice(stream: Stream, values: Value, weights: Value = None) -> Value:
    found = some(values)
    if weights is None:
        return found[stream.below(len(found))]
    return cast("Value", stream.weighted(found, _weights(found, weights)))


def _choices(stream: Stream, values: Value, n: Value, weights: Value = None) -> list[Value]:
    return [_choice(stream, values, weights) for _ in range(size(n))]


def _sample(stream: Stream, values: Value, n: Value) -> list[Value]:
    found = items(values)
    if (count := size(n)) > len(found):
        raise RefusedError(f"{count} cannot be drawn from {len(found)}")
    return stream.sample(found, count)


def _shuffle(stream: Stream, values: Value) -> list[Value]:
    found = items(values)
    return stream.sample(found, len(found))


DRAWS: dict[str, Function] = {
    "binomial": Function(_binomial, 2, 2, "binomial(n, p)"),
    "chance": Function(_chance, 1, 1, "chance(p)"),
    "choice": Function(_choice, 1, 2, "choice(list, weights)"),
    "choices": Function(_choices, 2, 3, "choices(list, n, weights)"),
    "exponential": Function(_exponential, 1, 1, "exponential(mean)"),
    "lognormal": Function(_lognormal, 2, 2, "lognormal(mean, sd)"),
    "normal": Function(_normal, 2, 2, "normal(mean, sd)"),
    "poisson": Function(_poisson, 1, 1, "poisson(mean)"),
    "randint": Function(_randint, 2, 2, "randint(low, high)"),
    "sample": Function(_sample, 2, 2, "sample(list, n)"),
    "shuffle": Function(_shuffle, 1, 1, "shuffle(list)"),
    "triangular": Function(_triangular, 3, 3, "triangular(low, high, mode)"),
    "truncated_normal": Function(_truncated, 4, 4, "truncated_normal(mean, sd, low, high)"),
    "uniform": Function(_uniform, 2, 2, "uniform(low, high)"),
}
"""Functions that draw from the stream of their place."""

KNOWN = frozenset((*FUNCTIONS, *DRAWS, *OTHER))
"""Every function there is."""

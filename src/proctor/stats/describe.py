"""Mean, spread and percentiles of one list of numbers.

Percentiles interpolate linearly between order statistics (Hyndman and Fan's type 7). The standard
error takes the values as independent: give it one value a case, not trials of several cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from proctor.errors import ProctorError
from proctor.stats.kinds import Estimand, finite

PERCENTILES = (50, 90, 95, 99)
"""The middle, and the tails that latency and cost are judged by."""


@dataclass(frozen=True, slots=True)
class Description:
    """`deviation` divides by n − 1; it and `error` are None below two values."""

    n: int
    mean: float | None
    deviation: float | None
    error: float | None
    low: float | None
    high: float | None
    percentiles: dict[float, float | None]
    method: str = "percentiles of type 7"
    estimand: Estimand = "population"
    reason: str | None = None


def describe(values: Iterable[float], percentiles: Iterable[float] = PERCENTILES) -> Description:
    """Describe a list of numbers."""
    ordered = sorted(finite(values, "values"))
    asked = tuple(percentiles)
    n = len(ordered)
    at = {q: percentile(ordered, q) for q in asked}
    if n == 0:
        return Description(0, None, None, None, None, None, at, reason="no value")
    mean = math.fsum(ordered) / n
    if n == 1:
        why = "one value shows no spread"
        return Description(1, mean, None, None, mean, mean, at, reason=why)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in ordered) / (n - 1))
    error = deviation / math.sqrt(n)
    return Description(n, mean, deviation, error, ordered[0], ordered[-1], at)


def percentile(ordered: list[float], q: float) -> float | None:
    """The q-th percentile of values already in order; None without a value."""
    if not 0 <= q <= 100:
        raise ProctorError(f"there is no percentile {q}", hint="percentiles lie from 0 to 100")
    if not ordered:
        return None
    place = q / 100 * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)

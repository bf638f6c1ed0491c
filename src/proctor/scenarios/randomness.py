"""Random numbers that are the same on every machine and belong to one place of a template.

Promise: a stream depends on the template's name, the seed and the place it is drawn for, and on
nothing else: not on what other places draw, nor in which order. Python's own generator promises
this for `random()` alone, and not across versions for the rest; hence SHA-256 in counter mode,
and distributions made of exactly rounded arithmetic. That is slower by far, and still
microseconds a draw.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from proctor.scenarios.portable import exp, ln, sqrt

VERSION = 1
"""Part of every stream: a change to any distribution below gets a new number here."""

_WORD = 8
_UNIT = 2.0**-53

Place = tuple[str | int, ...]
"""The keys and positions on the way to a value, from the top of the template."""


class Source(NamedTuple):
    """Where the streams of a build come from.

    The name keeps two templates apart: under one seed they would otherwise draw alike, and their
    results would be no two observations. Variants of a template share it, so that they differ by
    their parameters alone.
    """

    name: str
    seed: int

    def stream(self, place: Place) -> Stream:
        """The random numbers of a place, from their beginning."""
        return Stream(json.dumps([VERSION, *self, *place], separators=(",", ":")))


class Stream:
    """The random numbers of one place, which its `identity` names."""

    def __init__(self, identity: str) -> None:
        self._key = hashlib.sha256(identity.encode()).digest()
        self._block = b""
        self._used = 0
        self._count = 0
        self.drawn = 0

    def bits(self) -> int:
        """The next 64 bits."""
        if self._used >= len(self._block):
            self._block = hashlib.sha256(self._key + self._count.to_bytes(8, "big")).digest()
            self._count, self._used = self._count + 1, 0
        self.drawn += 1
        word = self._block[self._used : self._used + _WORD]
        self._used += _WORD
        return int.from_bytes(word, "big")

    def unit(self) -> float:
        """In [0, 1), each multiple of 2⁻⁵³ as likely as the others."""
        return (self.bits() >> 11) * _UNIT

    def below(self, limit: int) -> int:
        """A whole number in [0, limit), without bias: what does not divide evenly is redrawn."""
        words = (max(limit - 1, 1).bit_length() + 63) // 64
        span = 1 << (64 * words)
        usable = span - span % limit
        while True:
            drawn = 0
            for _ in range(words):
                drawn = (drawn << 64) | self.bits()
            if drawn < usable:
                return drawn % limit

    # -- distributions --------------------------------------------------------------------------

    def uniform(self, low: float, high: float) -> float:
        """Anywhere between the two, each place as likely."""
        return min(low + (high - low) * self.unit(), high)

    def normal(self, mean: float, sd: float) -> float:
        """By the polar method, which needs a logarithm and a root only."""
        while True:
            x, y = 2.0 * self.unit() - 1.0, 2.0 * self.unit() - 1.0
            square = x * x + y * y
            if 0.0 < square < 1.0:
                return mean + sd * (x * sqrt(-2.0 * ln(square) / square))

    def lognormal(self, mean: float, sd: float) -> float:
        """Its logarithm is normal with this mean and deviation."""
        return exp(self.normal(mean, sd))

    def exponential(self, mean: float) -> float:
        """The time to the next of events that come at random, on average `mean` apart."""
        return -mean * ln(1.0 - self.unit())

    def triangular(self, low: float, high: float, mode: float) -> float:
        """Between low and high, most likely at the mode."""
        if high == low:
            return low
        drawn, peak = self.unit(), (mode - low) / (high - low)
        if drawn < peak:
            return low + sqrt(drawn * (high - low) * (mode - low))
        return high - sqrt((1.0 - drawn) * (high - low) * (high - mode))

    def poisson(self, mean: float) -> int:
        """How many events happen when `mean` are expected; by multiplying units (Knuth)."""
        count, product, limit = 0, self.unit(), exp(-mean)
        while product > limit:
            count, product = count + 1, product * self.unit()
        return count

    def binomial(self, n: int, p: float) -> int:
        """How many of n succeed, each with probability p."""
        return sum(1 for _ in range(n) if self.unit() < p)

    def weighted(self, items: Sequence[Any], weights: Sequence[float]) -> Any:
        """One of the items, as likely as its weight says."""
        left = self.unit() * _total(weights)
        for item, weight in zip(items, weights, strict=True):
            if weight > 0.0:
                left -= weight
                if left < 0.0:
                    return item
        return next(i for i, w in zip(reversed(items), reversed(weights), strict=True) if w > 0.0)

    def sample(self, items: Sequence[Any], n: int) -> list[Any]:
        """Some of the items, each at most once, in random order."""
        left = list(items)
        for position in range(n):
            other = position + self.below(len(left) - position)
            left[position], left[other] = left[other], left[position]
        return left[:n]


def _total(weights: Sequence[float]) -> float:
    total = 0.0
    for weight in weights:
        total += weight
    return total

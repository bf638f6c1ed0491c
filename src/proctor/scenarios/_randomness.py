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
import math
from collections.abc import Sequence
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow
from typing import Any, NamedTuple

# Mathematics whose last digit does not depend on the machine.
#
# The C library's `log`, `exp`, `sin` and `pow` differ between systems in the last bit, and a
# built scenario must not. So they are computed in decimal with digits to spare and rounded once.
# Addition, multiplication, division and square roots are exact enough by IEEE 754 and are
# Python's own.


DIGITS = 40
"""A double has 17: with 23 to spare, rounding twice is rounding once."""

LARGEST_ANGLE = 1e6
"""Beyond it the digits of π below would no longer be enough, and no angle is meant."""

LARGEST_EXPONENT = 700.0
"""e to the 709th is the largest double."""

_CONTEXT = Context(
    prec=DIGITS,
    Emin=-999_999,
    Emax=999_999,
    traps=[InvalidOperation, DivisionByZero, Overflow],
)
_TURN = Decimal("6.283185307179586476925286766559005768394338798750211641949889")
_TINY = Decimal(10) ** -DIGITS

sqrt = math.sqrt


def exp(x: float) -> float:
    """e to the x; 0 where that is too small for a number, OverflowError where too large."""
    if x > LARGEST_EXPONENT:
        raise OverflowError
    return 0.0 if x < -2 * LARGEST_EXPONENT else float(_CONTEXT.exp(Decimal(x)))


def ln(x: float) -> float:
    """The natural logarithm of a positive number."""
    return float(_CONTEXT.ln(Decimal(x)))


def log(x: float, base: float) -> float:
    """The logarithm to a base."""
    return float(_CONTEXT.divide(_CONTEXT.ln(Decimal(x)), _CONTEXT.ln(Decimal(base))))


def power(x: float, y: float) -> float:
    """x to the y. OverflowError where it is too large, ValueError where it is no real number."""
    whole = float(y).is_integer()
    if x == 0.0:
        if y < 0:
            raise ZeroDivisionError
        return 1.0 if y == 0 else 0.0
    if x < 0 and not whole:
        raise ValueError("a root of a negative number")
    exponent = _CONTEXT.multiply(Decimal(y), _CONTEXT.ln(Decimal(abs(x))))
    if exponent > Decimal(LARGEST_EXPONENT):
        raise OverflowError
    size = 0.0 if exponent < -2 * Decimal(LARGEST_EXPONENT) else float(_CONTEXT.exp(exponent))
    return -size if x < 0 and int(y) % 2 else size


def sin(x: float) -> float:
    """The sine of an angle in radians."""
    return float(_series(_angle(x), first=1))


def cos(x: float) -> float:
    """The cosine of an angle in radians."""
    return float(_series(_angle(x), first=0))


def _angle(x: float) -> Decimal:
    if abs(x) > LARGEST_ANGLE:
        raise OverflowError
    wide = Context(prec=2 * DIGITS)
    turns = wide.divide(Decimal(x), _TURN).to_integral_value()
    return wide.subtract(Decimal(x), wide.multiply(turns, _TURN))


def _series(x: Decimal, first: int) -> Decimal:
    """Taylor's series of the sine (first power 1) or the cosine (first power 0)."""
    wide = Context(prec=DIGITS + 10)
    term = x if first else Decimal(1)
    total, n, square = term, first, wide.multiply(x, x)
    while term and abs(term) > _TINY * _TINY:
        term = wide.divide(wide.multiply(-term, square), Decimal((n + 1) * (n + 2)))
        total, n = wide.add(total, term), n + 2
    return total


VERSION = 1
"""Part of every stream: a change to any distribution below gets a new number here."""

_WORD = 8
_UNIT = 2.0**-53

Place = tuple[str | int, ...]
"""The keys and positions on the way to a value, from the top of the template."""


class RandomSource(NamedTuple):
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

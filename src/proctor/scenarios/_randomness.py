"""Random numbers that are the same on every machine and belong to one place of a template.

Guarantees: a stream depends only on the template's name, the seed and the place it is drawn for,
not on what other places draw or in which order. Python's own generator guarantees this for
`random()` only, and not across versions for the rest; hence SHA-256 in counter mode, and
distributions made of exactly rounded arithmetic. Trade-off: that is much slower, though still
microseconds per draw.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow
from typing import Any, NamedTuple

# Mathematics whose last digit does not depend on the machine. The C library's `log`, `exp`, `sin`
# and `pow` differ between systems in the last bit, and a built scenario must not. They are computed
# in decimal with spare digits and rounded once. Addition, multiplication, division and square roots
# are defined exactly by IEEE 754, so Python's own are used.


DIGITS = 40
"""A double has 17: with 23 to spare, rounding twice is rounding once."""

LARGEST_ANGLE = 1e6
"""Beyond it the digits of π below are not enough, and such a value is hardly an angle."""

LARGEST_EXPONENT = 700.0
"""Maximum exponent of e: the largest double is about e to the 709.78."""

_CONTEXT = Context(
    prec=DIGITS, Emin=-999_999, Emax=999_999, traps=[InvalidOperation, DivisionByZero, Overflow]
)
_TURN = Decimal("6.283185307179586476925286766559005768394338798750211641949889")
_TINY = Decimal(10) ** -DIGITS

sqrt = math.sqrt


def exp(x: float) -> float:
    """Return e to the x: 0 where that is too small; raise OverflowError where too large."""
    if x > LARGEST_EXPONENT:
        raise OverflowError
    return 0.0 if x < -2 * LARGEST_EXPONENT else float(_CONTEXT.exp(Decimal(x)))


def ln(x: float) -> float:
    """Return the natural logarithm of a positive number."""
    return float(_CONTEXT.ln(Decimal(x)))


def log(x: float, base: float) -> float:
    """Return the logarithm to a base."""
    return float(_CONTEXT.divide(_CONTEXT.ln(Decimal(x)), _CONTEXT.ln(Decimal(base))))


def power(x: float, y: float) -> float:
    """Return x to the y; raise OverflowError if too large, ValueError if not a real number."""
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
    """Return the sine of an angle in radians."""
    return float(_series(_angle(x), first=1))


def cos(x: float) -> float:
    """Return the cosine of an angle in radians."""
    return float(_series(_angle(x), first=0))


def _angle(x: float) -> Decimal:
    if abs(x) > LARGEST_ANGLE:
        raise OverflowError
    # Subtracting whole turns costs leading digits, hence twice as many.
    wide = Context(prec=2 * DIGITS)
    turns = wide.divide(Decimal(x), _TURN).to_integral_value()
    return wide.subtract(Decimal(x), wide.multiply(turns, _TURN))


def _series(x: Decimal, first: int) -> Decimal:
    """Return Taylor's series of the sine (first power 1) or the cosine (first power 0)."""
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
    """The source of all streams of a build.

    The name separates templates: under one seed they would otherwise draw the same numbers, and
    their results would not be independent. Variants of a template share it, so that they differ
    only by their parameters.
    """

    name: str
    seed: int

    def stream(self, place: Place) -> Stream:
        """Return the random numbers of a place, from their beginning."""
        return Stream(json.dumps([VERSION, *self, *place], separators=(",", ":")))


class Stream:
    """The random numbers of one place, derived from its `identity`."""

    def __init__(self, identity: str) -> None:
        self._key = hashlib.sha256(identity.encode()).digest()
        self._block = b""
        self._used = 0
        self._count = 0
        self.drawn = 0

    def bits(self) -> int:
        """Return the next 64 bits."""
        # SHA-256 in counter mode: each block is four words.
        if self._used >= len(self._block):
            self._block = hashlib.sha256(self._key + self._count.to_bytes(8, "big")).digest()
            self._count, self._used = self._count + 1, 0
        self.drawn += 1
        word = self._block[self._used : self._used + _WORD]
        self._used += _WORD
        return int.from_bytes(word, "big")

    def unit(self) -> float:
        """Return a number in [0, 1): a multiple of 2⁻⁵³, each equally likely."""
        return (self.bits() >> 11) * _UNIT

    def below(self, limit: int) -> int:
        """Return a whole number in [0, limit) without bias."""
        words = (max(limit - 1, 1).bit_length() + 63) // 64
        span = 1 << (64 * words)
        # Numbers above the last multiple of the limit are redrawn: they would favour small ones.
        usable = span - span % limit
        while True:
            drawn = 0
            for _ in range(words):
                drawn = (drawn << 64) | self.bits()
            if drawn < usable:
                return drawn % limit

    # -- distributions --------------------------------------------------------------------------

    def uniform(self, low: float, high: float) -> float:
        """Draw between two numbers, uniformly."""
        # Rounding can reach just above `high`.
        return min(low + (high - low) * self.unit(), high)

    def normal(self, mean: float, sd: float) -> float:
        """Draw from a normal distribution."""
        # The polar method needs only a logarithm and a root.
        while True:
            x, y = 2.0 * self.unit() - 1.0, 2.0 * self.unit() - 1.0
            square = x * x + y * y
            if 0.0 < square < 1.0:
                return mean + sd * (x * sqrt(-2.0 * ln(square) / square))

    def lognormal(self, mean: float, sd: float) -> float:
        """Draw a number whose logarithm is normal with this mean and deviation."""
        return exp(self.normal(mean, sd))

    def exponential(self, mean: float) -> float:
        """Draw the time to the next event, when they are `mean` apart on average."""
        # 1 - unit is never 0, which has no logarithm.
        return -mean * ln(1.0 - self.unit())

    def triangular(self, low: float, high: float, mode: float) -> float:
        """Draw between low and high, most likely at the mode."""
        if high == low:
            return low
        drawn, peak = self.unit(), (mode - low) / (high - low)
        if drawn < peak:
            return low + sqrt(drawn * (high - low) * (mode - low))
        return high - sqrt((1.0 - drawn) * (high - low) * (high - mode))

    def poisson(self, mean: float) -> int:
        """Draw the number of events when `mean` are expected, by multiplying units (Knuth)."""
        count, product, limit = 0, self.unit(), exp(-mean)
        while product > limit:
            count, product = count + 1, product * self.unit()
        return count

    def binomial(self, n: int, p: float) -> int:
        """Draw how many of n succeed, each with probability p."""
        return sum(1 for _ in range(n) if self.unit() < p)

    def weighted(self, items: Sequence[Any], weights: Sequence[float]) -> Any:
        """Draw one of the items with probability proportional to its weight."""
        # Added one by one: from Python 3.12 on, `sum` of floats compensates rounding errors.
        total = 0.0
        for weight in weights:
            total += weight
        left = self.unit() * total
        for item, weight in zip(items, weights, strict=True):
            if weight > 0.0:
                left -= weight
                if left < 0.0:
                    return item
        # Rounding left a rest: the last item that can be drawn.
        return next(i for i, w in zip(reversed(items), reversed(weights), strict=True) if w > 0.0)

    def sample(self, items: Sequence[Any], n: int) -> list[Any]:
        """Draw n of the items, each at most once, in random order."""
        left = list(items)
        for position in range(n):
            other = position + self.below(len(left) - position)
            left[position], left[other] = left[other], left[position]
        return left[:n]

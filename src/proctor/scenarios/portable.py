"""Mathematics whose last digit does not depend on the machine.

The C library's `log`, `exp`, `sin` and `pow` differ between systems in the last bit, and a built
scenario must not. So they are computed in decimal with digits to spare and rounded once. Addition,
multiplication, division and square roots are exact enough by IEEE 754 and are Python's own.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow

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

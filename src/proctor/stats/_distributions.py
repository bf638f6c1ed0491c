"""Provide the distributions of the estimators.

Written out, because scipy would be a third of the installation and take 0.4 s to import: the normal
distribution comes from the standard library, the others from the continued fraction of the
incomplete beta function. The tests compare them with scipy on grids.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

_NORMAL = NormalDist()


def normal_quantile(q: float) -> float:
    """Return the q-quantile of the standard normal."""
    return _NORMAL.inv_cdf(q)


def t_quantile(q: float, df: float) -> float:
    """Return the q-quantile of Student's t: Newton's method, kept between bounds."""
    if not 0 < q < 1 or not df > 0:
        return math.nan
    if q == 0.5:
        return 0.0
    if q < 0.5:
        return -t_quantile(1 - q, df)
    low, high = 0.0, 1.0
    while t_cdf(high, df) < q:
        low, high = high, high * 2
    x = min(max(low, normal_quantile(q)), high)
    log_scale = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    for _ in range(_STEPS):
        gap = t_cdf(x, df) - q
        low, high = (low, x) if gap > 0 else (x, high)
        density = math.exp(log_scale - (df + 1) / 2 * math.log1p(x * x / df))
        nearer = x - gap / density if density else low - 1
        # A step that leaves the bounds is replaced by their middle.
        nearer = nearer if low <= nearer <= high else (low + high) / 2
        if abs(nearer - x) <= _NEAR * max(1.0, x):
            return nearer
        x = nearer
    return x


def t_cdf(x: float, df: float) -> float:
    """Return P(T ≤ x) for Student's t."""
    if x == 0:
        return 0.5
    square = x * x
    # Use the form with the small argument: 1 − (nearly 1) would lose digits.
    if square < df:
        inner = 0.5 + _beta_share(square / (df + square), 0.5, df / 2) / 2
        return inner if x > 0 else 1 - inner
    tail = _beta_share(df / (df + square), df / 2, 0.5) / 2
    return 1 - tail if x > 0 else tail


# Relative change below which an iteration has converged to float precision.
_NEAR = 1e-14

# Maximum steps of an iteration that at least halves the error: far more than doubles need.
_STEPS = 200


def _beta_share(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    # The fraction converges fast on this side of the mean only; the other is its mirror image.
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_share(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    # Lentz's method divides by partial results, which may be exactly zero.
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    fraction = d
    for m in range(1, _TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + term * d or tiny)
            c = 1 + term / c or tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return front * fraction / a


# Maximum terms of the fraction; it needs about the square root of the larger parameter.
_TERMS = 10_000


def beta_quantile(q: float, a: float, b: float) -> float:
    """Return the q-quantile of Beta(a, b): Newton's method, kept between bounds."""
    if not 0 <= q <= 1 or not (a > 0 and b > 0):
        return math.nan
    if q in (0, 1):
        return float(q)
    low, high, x = 0.0, 1.0, a / (a + b)
    for _ in range(_STEPS):
        gap = _beta_share(x, a, b) - q
        low, high = (low, x) if gap > 0 else (x, high)
        log_density = (a - 1) * math.log(x) + (b - 1) * math.log1p(-x) - log_beta(a, b)
        nearer = x - gap * math.exp(min(-log_density, 700.0))
        # A step that leaves the bounds is replaced by their middle; near 0 by that of the digits.
        if not low < nearer < high:
            nearer = (low + high) / 2 if low or high > 0.01 else high / 16
        if nearer == x or abs(nearer - x) <= _NEAR * nearer or nearer >= 1:
            return min(nearer, 1.0)
        x = nearer
    return x


def beta_cdf(x: float, a: float, b: float) -> float:
    """Return P(X ≤ x) for X ~ Beta(a, b)."""
    return _beta_share(x, a, b)


def log_beta_mass_below(x: float, a: float, b: float) -> float:
    """Return log of ∫₀ˣ qᵃ⁻¹(1−q)ᵇ⁻¹ dq; −inf where it is too small for a float."""
    mass = beta_cdf(x, a, b)
    return log_beta(a, b) + math.log(mass) if mass else -math.inf


def log_beta(a: float, b: float) -> float:
    """Return the logarithm of the beta function."""
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def boundary(inside: float, outside: float, holds: Callable[[float], bool]) -> float:
    """Return where a condition that holds at `inside` and not at `outside` ends, by bisection."""
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return outside


def binomial_cdf(x: int, n: int) -> float:
    """Return P(X ≤ x) for X ~ Binomial(n, ½)."""
    return 1.0 if x >= n else _beta_share(0.5, n - x, x + 1)


def normal_cdf(x: float) -> float:
    """Return P(Z ≤ x) for the standard normal, with full precision in the lower tail."""
    return math.erfc(-x / math.sqrt(2)) / 2


def f_tail(x: float, df: float, df_noise: float) -> float:
    """Return P(F > x) for the ratio of two variances with these degrees of freedom."""
    return _beta_share(df_noise / (df_noise + df * x), df_noise / 2, df / 2)

"""The distributions the estimators stand on; the room's one door to scipy.

scipy is imported at the first call: `scipy.special` costs 0.4 s and `scipy.stats` 1.2 s, so the
normal distribution comes from the standard library and `scipy.stats` only for the bootstrap.
"""

from __future__ import annotations

import importlib
import math
from statistics import NormalDist
from typing import Any

_NORMAL = NormalDist()


def scipy_module(name: str) -> Any:
    """A module of scipy. Untyped: scipy ships no type information."""
    return importlib.import_module(f"scipy.{name}")


def normal_quantile(q: float) -> float:
    """The q-quantile of the standard normal."""
    return _NORMAL.inv_cdf(q)


def normal_cdf(x: float) -> float:
    """P(Z ≤ x) for a standard normal Z."""
    return _NORMAL.cdf(x)


def t_quantile(q: float, df: float) -> float:
    """The q-quantile of Student's t."""
    return float(scipy_module("special").stdtrit(df, q))


def t_cdf(x: float, df: float) -> float:
    """P(T ≤ x) for Student's t."""
    return float(scipy_module("special").stdtr(df, x))


def beta_quantile(q: float, a: float, b: float) -> float:
    """The q-quantile of Beta(a, b)."""
    return float(scipy_module("special").betaincinv(a, b, q))


def beta_cdf(x: float, a: float, b: float) -> float:
    """P(X ≤ x) for X of Beta(a, b)."""
    return float(scipy_module("special").betainc(a, b, x))


def log_beta_mass_below(x: float, a: float, b: float) -> float:
    """log of ∫₀ˣ qᵃ⁻¹(1−q)ᵇ⁻¹ dq; −inf where it is too small for a float."""
    mass = beta_cdf(x, a, b)
    return float(scipy_module("special").betaln(a, b)) + math.log(mass) if mass else -math.inf


def binomial_cdf(x: int, n: int) -> float:
    """P(X ≤ x) for X of Binomial(n, ½), in whole numbers until the last step."""
    return sum(math.comb(n, i) for i in range(x + 1)) / 2**n

"""Population dynamics: how the numbers of several species change from day to day.

Lotka–Volterra with an obligate mutualism, integrated by the classical Runge–Kutta rule with one
step a day, vectorised over species. Numbers are relative to what the habitat carries. Promise:
the same bits on every machine (sums run in a fixed order, nothing depends on BLAS), to within
what a day's step costs in accuracy: under 0.1 % of the exact solution at the rates used here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

EXTINCT = 0.01
"""Share of the usual numbers below which a species is gone: too few are left to meet."""


@dataclass(slots=True)
class Need:
    """One species lives on another: growth rises with its numbers and saturates."""

    who: int
    on: int
    gain: float
    half: float
    """Numbers of the other at which half of the gain is reached."""


@dataclass(slots=True)
class Dynamics:
    """Rates per day. `effects[j, i]` is what j does to the growth of i; its diagonal limits."""

    growth: Vector
    effects: Vector
    need: Need | None = None

    def rate(self, x: Vector, loss: Vector) -> Vector:
        """The change of every species at once."""
        # Row by row: adding along the first axis has one order everywhere; a matrix product
        # would leave it to the linear algebra library of the machine.
        total: Vector = self.growth - loss + np.add.reduce(self.effects * x[:, None], axis=0)
        need = self.need
        if need is not None:
            other = x[need.on]
            total[need.who] += need.gain * other / (other + need.half)
        return x * total

    def day(self, x: Vector, loss: Vector, shock: Vector | None = None) -> Vector:
        """The numbers a day later; `shock` is what the weather multiplies them by."""
        first = self.rate(x, loss)
        second = self.rate(x + 0.5 * first, loss)
        third = self.rate(x + 0.5 * second, loss)
        fourth = self.rate(x + third, loss)
        after: Any = x + (first + 2.0 * second + 2.0 * third + fourth) / 6.0
        if shock is not None:
            after = after * shock
        after[after < EXTINCT] = 0.0
        return after

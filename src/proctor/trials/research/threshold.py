"""Where an agent's pass rate crosses a given value: the posterior of its threshold.

Model: at difficulty x (larger is harder) a trial passes with the chance

    guess + (1 - guess - lapse) · logistic(offset - (x - threshold) / spread)

where the offset makes that chance the sought rate at the threshold. Threshold and spread have
priors that favour nothing: even over the scale and a half of it beyond either end, and even in the
logarithm from a twentieth of the scale to the whole. Trials chosen by earlier results leave the
posterior as it is (they do not enter the likelihood), so it is valid whenever one stops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from proctor.spec.research import Adaptive

if TYPE_CHECKING:
    import numpy as np

    Grid = np.ndarray[Any, np.dtype[np.float64]]

PLACES = 241
"""Thresholds in the grid: steps of less than a hundredth of the scale."""

SPREADS = 15
"""Spreads in the grid, each a quarter wider than the one before."""

BEYOND = 0.5
"""How far beyond either end of the scale a threshold is looked for, in lengths of the scale."""

EVEN = 1e-9
"""Expected entropies closer than this are a tie: the last bits of a float decide nothing."""


class ObservedDifficulty(NamedTuple):
    """One judged trial: how hard it was, and whether it passed."""

    difficulty: float
    passed: bool


class ThresholdEstimate(NamedTuple):
    """The threshold: posterior median and a central credible interval, on the scale of difficulty;
    `below` and `above` are the chances that it lies beyond the easy and the hard end."""

    median: float
    low: float
    high: float
    below: float
    above: float


class Posterior:
    """What is known of one agent's threshold after the trials so far."""

    def __init__(self, scale: Sequence[float], rules: Adaptive) -> None:
        import numpy as np

        self._scale = np.asarray(scale, dtype=float)
        self._ends = (min(scale), max(scale))
        self._rules = rules
        length = self._ends[1] - self._ends[0]
        edge = BEYOND * length
        self._places = np.linspace(self._ends[0] - edge, self._ends[1] + edge, PLACES)
        self._spreads = np.geomspace(length / 20, length, SPREADS)
        self._log = np.zeros((PLACES, SPREADS))
        self._passes = self._chances()

    def add(self, seen: ObservedDifficulty) -> None:
        """Take a judged trial."""
        import numpy as np

        at = int(np.argmin(np.abs(self._scale - seen.difficulty)))
        chance = self._passes[at] if seen.passed else 1 - self._passes[at]
        self._log += np.log(np.clip(chance, 1e-300, None))

    def estimate(self, confidence: float) -> ThresholdEstimate:
        """The threshold as far as it is known."""
        import numpy as np

        weights = self._weights().sum(axis=1)
        total = np.cumsum(weights) - weights / 2
        tail = (1 - confidence) / 2
        low, median, high = (
            float(np.interp(q, total, self._places)) for q in (tail, 0.5, 1 - tail)
        )
        below = float(weights[self._places < self._ends[0]].sum())
        above = float(weights[self._places > self._ends[1]].sum())
        return ThresholdEstimate(median, low, high, below, above)

    def most_telling(self) -> int:
        """The level after whose next trial the threshold is expected to be known best.

        Expected is the entropy of the threshold, its spread averaged out; a tie goes to the
        easier level.
        """
        import numpy as np

        weights = self._weights()
        expected: list[float] = []
        for chances in self._passes:
            passed = weights * chances
            failed = weights - passed
            expected.append(_entropy(passed.sum(axis=1)) + _entropy(failed.sum(axis=1)))
        best = min(expected)
        return int(np.flatnonzero(np.asarray(expected) <= best + EVEN)[0])

    def _weights(self) -> Grid:
        import numpy as np

        weights = np.exp(self._log - self._log.max())
        return weights / weights.sum()

    def _chances(self) -> Grid:
        """The chance to pass at every level (first axis), for every threshold and spread."""
        import numpy as np

        rules = self._rules
        room = 1 - rules.guess - rules.lapse
        share = (rules.sought - rules.guess) / room
        offset = math.log(share / (1 - share))
        gap = self._scale[:, None, None] - self._places[None, :, None]
        inside = np.clip(offset - gap / self._spreads[None, None, :], -700, 700)
        return rules.guess + room / (1 + np.exp(-inside))


def _entropy(weights: Grid) -> float:
    """Of an unnormalised distribution, times its weight."""
    import numpy as np

    total = float(weights.sum())
    if total <= 0:
        return 0.0
    shares = weights / total
    return -total * float((shares * np.log(np.clip(shares, 1e-300, None))).sum())

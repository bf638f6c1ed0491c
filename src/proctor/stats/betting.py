"""A confidence sequence for the mean of bounded scores: valid however often one looks.

The hedged betting martingale of Waudby-Smith and Ramdas: a mean is ruled out once a gambler who
bets against it would have made 1/alpha of the stake. Wider than a fixed-n interval, and the one
to report after stopping early; scores must come one after another from the same source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from proctor.errors import ProctorError
from proctor.stats.kinds import LEVEL, Interval, finite, share

GRID = 1_000
"""Means tried; the ends are rounded outwards to the next one, 0.1 % of the range."""

_BOLDNESS = 0.5
"""The largest share of the stake put at risk in one bet, as in the paper: no bet can ruin."""


def confidence_sequence(
    values: Sequence[float],
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    level: float = LEVEL,
) -> Interval:
    """The mean of values in the order they came; for paired differences, bounds are (−1, 1)."""
    import numpy as np

    share(level, "level")
    least, most = finite(bounds, "bounds")
    kept = finite(values, "values")
    if least >= most or any(not least <= value <= most for value in kept):
        raise ProctorError(
            f"a value lies outside {least} to {most}", hint="give the bounds of the scores"
        )
    n, method = len(kept), "betting confidence sequence, hedged"
    if not n:
        return Interval(None, None, None, level, method, "suite", 0, 0, reason="no value")
    span = most - least
    means = np.linspace(0.0, 1.0, GRID + 1)
    # A bet of a share of 1/m (or 1/(1−m)); at the ends any bet of the kind is safe.
    cap_up = _BOLDNESS / np.maximum(means, 1 / GRID)
    cap_down = _BOLDNESS / np.maximum(1 - means, 1 / GRID)
    up, down = np.zeros(GRID + 1), np.zeros(GRID + 1)
    ruled_out = np.zeros(GRID + 1, dtype=bool)
    threshold = math.log(2 / (1 - level))
    total, squares = 0.5, 0.25
    for t, value in enumerate(((x - least) / span for x in kept), start=1):
        # `squares` is t times the variance of what came before: a bet may not see its outcome.
        bet = math.sqrt(2 * threshold / (squares * math.log(t + 1)))
        up += np.log1p(np.minimum(bet, cap_up) * (value - means))
        down += np.log1p(-np.minimum(bet, cap_down) * (value - means))
        ruled_out |= np.maximum(up, down) >= threshold
        total += value
        squares += (value - total / (t + 1)) ** 2
    mean = math.fsum(kept) / n
    left = means[~ruled_out]
    if not len(left):
        why = "every mean is ruled out: the values do not come from one unchanging source"
        return Interval(mean, None, None, level, method, "suite", n, 1, reason=why)
    low = max(0.0, float(left.min()) - 1 / GRID)
    high = min(1.0, float(left.max()) + 1 / GRID)
    return Interval(mean, least + span * low, least + span * high, level, method, "suite", n, 1)

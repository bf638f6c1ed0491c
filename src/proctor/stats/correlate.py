"""How a score goes with a property of the cases: Pearson or Spearman, with a permutation p.

One pair of values a case: trials of one case share its property and would be counted as if they
were independent. A permutation assumes nothing of the values' distribution; ties are no trouble.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from proctor.stats.compare import permutation_p
from proctor.stats.kinds import RESAMPLES, Alternative, Estimand, finite, same_length

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ENUMERATE_UP_TO = 7
"""Values whose 7! = 5,040 orders are counted one by one; beyond, they are sampled."""

_CELLS_AT_ONCE = 4_000_000
"""Permuted values held in memory at a time: about 32 MB."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """A coefficient over `n` cases; `resamples` is None where every order was counted."""

    coefficient: float | None
    p_value: float | None
    n: int
    method: str
    alternative: Alternative
    resamples: int | None = None
    estimand: Estimand = "population"
    reason: str | None = None


def correlate(
    values: Sequence[float],
    scores: Sequence[float],
    *,
    method: Literal["pearson", "spearman"] = "spearman",
    alternative: Alternative = "two-sided",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Correlation:
    """Correlate a property of the cases with their mean scores."""
    import numpy as np

    same_length(values, scores)
    x = np.asarray(finite(values, "property"), dtype=np.float64)
    y = np.asarray(finite(scores, "scores"), dtype=np.float64)
    n = len(x)
    exact = n <= ENUMERATE_UP_TO
    label = f"{method}, permutation p, " + ("exact" if exact else f"seed {seed}")
    if n < 3:
        why = "a correlation needs three cases"
        return Correlation(None, None, n, label, alternative, reason=why)
    for what, row in (("the property", x), ("the score", y)):
        if float(np.ptp(row)) == 0:
            why = f"{what} is the same in every case"
            return Correlation(None, None, n, label, alternative, reason=why)
    if method == "spearman":
        x, y = ranks(x), ranks(y)
    x, y = _standard(x), _standard(y)
    observed = float(x @ y)
    drawn = _permuted(x, y, None if exact else resamples, seed)
    p_value = permutation_p(drawn, observed, alternative, exact=exact)
    coefficient = min(1.0, max(-1.0, observed))
    counted = None if exact else resamples
    return Correlation(coefficient, p_value, n, label, alternative, counted)


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1; ties share the mean of theirs."""
    import numpy as np

    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]


def _standard(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centred, with length 1: the product of two such is their correlation."""
    import numpy as np

    centred = values - values.mean()
    return centred / math.sqrt(float(np.sum(centred**2)))


def _permuted(
    x: NDArray[np.float64], y: NDArray[np.float64], resamples: int | None, seed: int
) -> NDArray[np.float64]:
    """The correlation under every order of `y`, or under `resamples` of them."""
    import numpy as np

    if resamples is None:
        return np.asarray([float(x @ np.asarray(order)) for order in itertools.permutations(y)])
    rng = np.random.default_rng(seed)
    parts: list[NDArray[np.float64]] = []
    left, at_once = resamples, max(1, _CELLS_AT_ONCE // len(y))
    while left:
        now = min(left, at_once)
        parts.append(rng.permuted(np.tile(y, (now, 1)), axis=1) @ x)
        left -= now
    return np.concatenate(parts)

"""Agreement between two raters: raw, and Cohen's kappa, which takes out what chance would give.

Kappa is None when it is not defined (no rows, or both raters use one and the same category
throughout). Intervals are bootstrapped over rows, with a seed, so that they can be repeated.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from proctor.errors import ProctorError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Weights = Literal["linear", "quadratic"]
Category = TypeVar("Category", bound=Hashable)

RESAMPLES = 2000
"""Enough for the ends of a 95 % interval to be stable in the second digit."""

LEVEL = 0.95

_CELLS_AT_ONCE = 4_000_000
"""Resampled row numbers held in memory at a time: about 32 MB."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A bootstrap percentile interval; `undefined` resamples had no kappa and are left out."""

    low: float
    high: float
    level: float
    resamples: int
    undefined: int
    seed: int


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two raters agree. `table[i][j]` counts rows the first put in i and the second in j."""

    categories: tuple[Any, ...]
    table: tuple[tuple[int, ...], ...]
    n: int
    agreed: int
    raw: float | None
    kappa: float | None
    weights: str | None
    interval: Interval | None


def cohen_kappa(
    first: Sequence[Category],
    second: Sequence[Category],
    *,
    weights: Weights | None = None,
    categories: Sequence[Category] | None = None,
) -> float | None:
    """Cohen's kappa of two raters over the same rows; None when it is not defined.

    With `weights`, a disagreement counts by the distance of its categories in the order of
    `categories` (or of its square); give that order, or the sorted one is taken.
    """
    order = _order(first, second, categories)
    if not first:
        return None
    table = _tables(_codes(first, second, order)[None, :], len(order))[0]
    value = float(_kappas(table[None], weights)[0])
    return None if value != value else value  # noqa: PLR0124  NaN is the one unequal to itself


def agreement(
    first: Sequence[Category],
    second: Sequence[Category],
    *,
    weights: Weights | None = None,
    categories: Sequence[Category] | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Agreement:
    """The confusion table of two raters, their raw agreement, and kappa with its interval."""
    order = _order(first, second, categories)
    n = len(first)
    if n == 0:
        empty = tuple(tuple(0 for _ in order) for _ in order)
        return Agreement(tuple(order), empty, 0, 0, None, None, weights, None)
    codes = _codes(first, second, order)
    table = _tables(codes[None, :], len(order))[0]
    agreed = sum(a == b for a, b in zip(first, second, strict=True))
    kappa = cohen_kappa(first, second, weights=weights, categories=order)
    interval = None
    if kappa is not None and resamples > 0:
        interval = _bootstrap(codes, len(order), weights, seed, resamples)
    rows = tuple(tuple(int(count) for count in row) for row in table)
    return Agreement(tuple(order), rows, n, agreed, agreed / n, kappa, weights, interval)


def _order(
    first: Sequence[Category], second: Sequence[Category], categories: Sequence[Category] | None
) -> list[Category]:
    if len(first) != len(second):
        raise ProctorError(
            f"two raters of the same rows give lists of one length, not {len(first)} and "
            f"{len(second)}"
        )
    seen = {*first, *second}
    if categories is None:
        return sorted(seen, key=lambda value: (str(type(value)), value))  # pyright: ignore[reportArgumentType, reportCallIssue]
    order = list(dict.fromkeys(categories))
    if outside := [value for value in seen if value not in order]:
        raise ProctorError(f"{outside[0]!r} is not among the categories")
    return order


def _codes(
    first: Sequence[Category], second: Sequence[Category], order: Sequence[Category]
) -> NDArray[np.int64]:
    """Each row as one number: the cell of the table it falls in."""
    import numpy as np

    place = {category: position for position, category in enumerate(order)}
    pairs = zip(first, second, strict=True)
    return np.array([place[a] * len(order) + place[b] for a, b in pairs], dtype=np.int64)


def _tables(codes: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """Confusion tables of many samples of rows at once: samples × k × k."""
    import numpy as np

    samples = codes.shape[0]
    shifted = codes + (np.arange(samples, dtype=np.int64) * k * k)[:, None]
    counts = np.bincount(shifted.ravel(), minlength=samples * k * k)
    return counts.reshape(samples, k, k).astype(np.float64)


def _kappas(tables: NDArray[np.float64], weights: Weights | None) -> NDArray[np.float64]:
    """Kappa of each table: 1 - observed over expected disagreement; NaN where undefined."""
    import numpy as np

    k = tables.shape[1]
    place = np.arange(k, dtype=np.float64)
    distance = np.abs(place[:, None] - place[None, :])
    if weights is None:
        distance = (distance > 0).astype(np.float64)
    elif weights == "quadratic":
        distance = distance**2
    n = tables.sum(axis=(1, 2))
    observed = (tables * distance).sum(axis=(1, 2)) / n
    by_chance = tables.sum(axis=2)[:, :, None] * tables.sum(axis=1)[:, None, :]
    expected = (by_chance * distance).sum(axis=(1, 2)) / n**2
    result = np.full(len(tables), np.nan)
    defined = expected > 0
    result[defined] = 1 - observed[defined] / expected[defined]
    return result


def _bootstrap(
    codes: NDArray[np.int64], k: int, weights: Weights | None, seed: int, resamples: int
) -> Interval | None:
    import numpy as np

    rng = np.random.default_rng(seed)
    n = len(codes)
    batch = max(1, _CELLS_AT_ONCE // n)
    values: list[NDArray[np.float64]] = []
    for start in range(0, resamples, batch):
        rows = rng.integers(0, n, size=(min(batch, resamples - start), n))
        values.append(_kappas(_tables(codes[rows], k), weights))
    kappas = np.concatenate(values)
    defined = kappas[~np.isnan(kappas)]
    if not len(defined):
        return None
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(defined, [tail, 1 - tail])
    undefined = resamples - len(defined)
    return Interval(float(low), float(high), LEVEL, resamples, undefined, seed)

"""Many tests at once: adjusted p-values.

Holm holds the chance of a single false alarm (for gates). Benjamini–Hochberg holds the share of
false ones among those named (for lists that say "look here"); e-BH does so for e-values.
"""

from __future__ import annotations

from collections.abc import Sequence

from proctor.errors import ProctorError
from proctor.stats.kinds import finite, share


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's step-down adjusted p-values, in the order given."""
    kept = _checked(p_values)
    adjusted, highest = [0.0] * len(kept), 0.0
    for rank, at in enumerate(sorted(range(len(kept)), key=kept.__getitem__)):
        highest = max(highest, min(1.0, kept[at] * (len(kept) - rank)))
        adjusted[at] = highest
    return tuple(adjusted)


def benjamini_hochberg(p_values: Sequence[float]) -> tuple[float, ...]:
    """Benjamini and Hochberg's step-up adjusted p-values, in the order given."""
    kept = _checked(p_values)
    adjusted, lowest = [0.0] * len(kept), 1.0
    order = sorted(range(len(kept)), key=kept.__getitem__)
    for rank in range(len(kept), 0, -1):
        at = order[rank - 1]
        lowest = min(lowest, kept[at] * len(kept) / rank)
        adjusted[at] = lowest
    return tuple(adjusted)


def e_benjamini_hochberg(e_values: Sequence[float], q: float = 0.10) -> tuple[bool, ...]:
    """Which of many e-values to name: e-BH, valid however the e-values depend on each other."""
    kept = finite(e_values, "e-values")
    if any(value < 0 for value in kept):
        raise ProctorError("an e-value is below 0", hint="e-values are 0 or more")
    order = sorted(kept, reverse=True)
    needed = len(kept) / share(q, "q")
    named = max((rank for rank, e in enumerate(order, 1) if rank * e >= needed), default=0)
    return tuple(bool(named) and value >= order[named - 1] for value in kept)


def _checked(p_values: Sequence[float]) -> tuple[float, ...]:
    kept = finite(p_values, "p-values")
    for value in kept:
        if not 0 <= value <= 1:
            raise ProctorError(f"{value} is not a p-value", hint="p-values lie between 0 and 1")
    return kept

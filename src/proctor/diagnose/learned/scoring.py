"""The learned part of the scores: a ridge regression over what a trace holds.

It looks at how likely each kind of error is in the trace, and at the mean of each fact.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from .detector import fact_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from numpy.typing import NDArray

    from .rows import Row

    Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scorer:
    """Arrays of the regression: inputs by scores."""

    mean: Numbers
    scale: Numbers
    weights: Numbers
    bias: Numbers

    def values(self, rows: Sequence[Row], chances: Numbers, names: Sequence[str]) -> list[float]:
        """The scores of one trace, in the order of `BEARS_ON`."""
        inputs = (trace_features(rows, chances, names) - self.mean) / self.scale
        return [float(value) for value in inputs @ self.weights + self.bias]

    def arrays(self) -> dict[str, Numbers]:
        """What a file keeps of it."""
        return {f"score_{f.name}": getattr(self, f.name) for f in fields(self)}

    @classmethod
    def read(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Self:
        """The scorer a file keeps."""
        return cls(**{f.name: arrays[f"score_{f.name}"].astype(np.float64) for f in fields(cls)})


def trace_features(rows: Sequence[Row], chances: Numbers, names: Sequence[str]) -> Numbers:
    """How many errors of each category are expected (their root), and the mean of each fact."""
    expected = np.sqrt(chances.sum(axis=0))
    facts = fact_table(rows, names).mean(axis=0).astype(np.float64)
    return np.concatenate([expected, facts])

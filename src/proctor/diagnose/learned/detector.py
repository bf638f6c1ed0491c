"""The learned detector: how strongly each span looks like each kind of error.

Promise: three ridge machines, shipped as plain arrays (no pickle), the same answer every time.
They were trained on TRAIL's own kind of traces; `Reading.familiar` says how like those a trace is.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from numpy.typing import NDArray

    from .rows import Row
    from .words import Words

    Array = NDArray[np.float32]

MODEL_FILE = "model.npz"
"""Written by tools/train_diagnosis.py."""

WIDTH = 0.05
"""Of the likeness exp(-WIDTH * distance²) of facts: from 0.02 to 0.1 it hardly matters."""


class Machine(NamedTuple):
    """What one ridge machine looks at, and how much it is held back."""

    likeness: float
    """Weight of the likeness of facts to those of known spans: rules with exceptions."""
    facts: float
    """Weight of facts as such: straight lines."""
    words: Mapping[str, float]
    """Weight of each field of words."""
    penalty: float


MACHINES = (
    Machine(1.0, 0.0, {"told": 0.7, "failed before": 0.3}, 1.0),
    Machine(0.0, 0.15, {"said": 0.2, "told": 0.2, "failed": 0.2, "shown": 0.2}, 5.0),
    Machine(1.0, 0.0, {"said": 0.5, "plan": 0.5}, 1.5),
)
"""Three views that err differently; their weights moved the figures by no more than chance does."""

VIEWS = tuple((number, field) for number, m in enumerate(MACHINES) for field in m.words)
"""Machine and field of each block of word weights."""


class _Products(NamedTuple):
    """Rows times rows: all that likeness and cosines need, worked out once."""

    one: Array
    other: Array
    both: Array

    @classmethod
    def of(cls, one: Array, other: Array) -> Self:
        """The squared sizes of the rows of each, and every row times every other."""
        return cls((one * one).sum(axis=1), (other * other).sum(axis=1), one @ other.T)

    def likeness(self) -> Array:
        """exp(-WIDTH * squared distance) of each row of one to each of the other."""
        squares = self.one[:, None] + self.other[None, :]
        return np.exp(-WIDTH * np.maximum(squares - 2.0 * self.both, 0.0))


class Reading(NamedTuple):
    """What the machines make of one trace."""

    scores: NDArray[np.float64]
    """By machine, row and category: near the share of such spans that are marked so; 0 for rows
    of which a part is lost."""
    familiar: float
    """How like the traces trained on this one is, 0 to 1: the mean cosine of its spans."""


@dataclass(frozen=True, slots=True)
class Detector:
    """The arrays of a trained detector. Categories are the last axis, in the taxonomy's order."""

    fact_names: tuple[str, ...]
    support: Array
    """Facts of the spans trained on: what likeness is measured to."""
    alphas: Array
    """By machine and span trained on: what likeness to it says."""
    fact_weights: Array
    rarity: Array
    """By field of VIEWS and bucket: how much a word counts."""
    word_weights: Array
    base: Array
    """How often each category is marked on a span."""

    def read_rows(self, rows: Sequence[Row]) -> Reading:
        """What the machines make of the spans of one trace."""
        if not rows:
            return Reading(np.zeros((len(MACHINES), 0, len(self.base))), 0.0)
        facts = fact_table(rows, self.fact_names)
        products = _Products.of(facts, self.support)
        near = products.likeness()
        scores = np.empty((len(MACHINES), len(rows), len(self.base)))
        for number, machine in enumerate(MACHINES):
            scores[number] = self.base
            if machine.likeness:
                scores[number] += near @ self.alphas[number]
            if machine.facts:
                scores[number] += facts @ self.fact_weights
        for block, (number, field) in enumerate(VIEWS):
            for place, row in enumerate(rows):
                words = row.words.get(field)
                if words is not None and len(words.buckets):
                    values = weighed(words, self.rarity[block])
                    scores[number, place] += values @ self.word_weights[block, words.buckets]
        scores[:, [row.cut for row in rows]] = 0.0
        return Reading(scores, self._familiar(rows, products))

    def _familiar(self, rows: Sequence[Row], products: _Products) -> float:
        """The cosine of each row's facts to the nearest known ones, in the mean.

        Facts never seen in training count against a row. Distance would not do: a row of which
        little is known lies near to everything.
        """
        known = set(self.fact_names)
        strange = [sum(v * v for n, v in row.facts.items() if n not in known) for row in rows]
        size = np.sqrt(products.one + np.array(strange))
        cosines = products.both / (np.outer(size, np.sqrt(products.other)) + 1e-9)
        return float(cosines.max(axis=1).mean())

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """What a file keeps of it; words and facts at half precision."""
        arrays = {f.name: np.asarray(getattr(self, f.name)) for f in fields(self)}
        for name in ("support", "word_weights", "rarity"):
            arrays[name] = arrays[name].astype(np.float16)
        return arrays

    @classmethod
    def read(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Self:
        """A detector from its arrays."""
        names = [f.name for f in fields(cls) if f.name != "fact_names"]
        numbers = {name: arrays[name].astype(np.float32) for name in names}
        return cls(fact_names=tuple(str(name) for name in arrays["fact_names"]), **numbers)


def fact_table(rows: Sequence[Row], names: Sequence[str]) -> Array:
    """Rows by facts, at the half precision in which the model keeps them."""
    column = {name: number for number, name in enumerate(names)}
    table = np.zeros((len(rows), len(names)), dtype=np.float16)
    for place, row in enumerate(rows):
        for name, value in row.facts.items():
            here = column.get(name)
            if here is not None:
                table[place, here] = value
    return table.astype(np.float32)


def likeness(one: Array, other: Array) -> Array:
    """exp(-WIDTH * squared distance) of each row of one to each of the other."""
    return _Products.of(one, other).likeness()


def weighed(words: Words, rarity: Array) -> Array:
    """The weights of a text's buckets, scaled to length one."""
    values = words.values * rarity[words.buckets]
    return values / np.sqrt((values * values).sum())


@cache
def shipped() -> Mapping[str, NDArray[np.generic]]:
    """The arrays of the shipped model, read once."""
    data = (files("proctor.diagnose.learned") / MODEL_FILE).read_bytes()
    with np.load(BytesIO(data), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}

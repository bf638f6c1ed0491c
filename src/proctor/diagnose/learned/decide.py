"""From scores to findings: how sure each pair of span and category is, beside all others.

Promise: a chance between 0 and 1, calibrated on traces the detector had not seen. What else a
trace holds counts: annotators mark the worst spans of each trace, not spans above a fixed line.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from numpy.typing import NDArray

    from .rows import Row

    Numbers = NDArray[np.float64]

LEAST = 0.03
"""A mean score below it is not looked at further, unless a rule speaks: one in a hundred of
TRAIL's errors lies there, and four of five pairs."""


@dataclass(frozen=True, slots=True)
class Judge:
    """A logistic regression over what is known of a pair."""

    mean: Numbers
    scale: Numbers
    weights: Numbers
    bias: Numbers
    threshold: Numbers
    """The chance from which a pair is a finding."""
    prior: Numbers
    """How often each category is marked on a span."""

    def chances(self, scores: Numbers, rules: Numbers) -> Numbers:
        """Rows by categories: how likely each pair is an error; 0 where nothing speaks for it."""
        if not scores.shape[1]:
            return np.zeros_like(rules)
        inputs = (pair_features(scores, rules, self.prior) - self.mean) / self.scale
        chances = 1.0 / (1.0 + np.exp(-(inputs @ self.weights + self.bias)))
        return np.where(considered(scores, rules), chances, 0.0)

    def arrays(self, name: str) -> dict[str, NDArray[np.float64]]:
        """Its arrays, under names of its own."""
        return {f"{name}_{f.name}": getattr(self, f.name) for f in fields(self)}

    @classmethod
    def read(cls, name: str, arrays: Mapping[str, NDArray[np.generic]]) -> Self:
        """A judge from arrays named so."""
        return cls(**{f.name: arrays[f"{name}_{f.name}"].astype(np.float64) for f in fields(cls)})


class Judges(NamedTuple):
    """One judge for traces in which somebody plans, one for those without a plan.

    Their annotators mark differently: with a plan, whatever departs from it; without, every
    step that breaks the instructions.
    """

    planned: Judge
    unplanned: Judge

    def of(self, rows: Sequence[Row]) -> Judge:
        """The judge for a trace."""
        return self.planned if planned(rows) else self.unplanned

    def arrays(self, name: str) -> dict[str, NDArray[np.float64]]:
        """Their arrays, under names of their own."""
        named = zip(self._fields, self, strict=True)
        return {k: v for kind, judge in named for k, v in judge.arrays(f"{name}_{kind}").items()}

    @classmethod
    def read(cls, name: str, arrays: Mapping[str, NDArray[np.generic]]) -> Self:
        """Judges from arrays named so."""
        return cls(*(Judge.read(f"{name}_{kind}", arrays) for kind in cls._fields))


def planned(rows: Sequence[Row]) -> bool:
    """Whether somebody makes a plan in a trace."""
    return any(row.scene.role == "plan" for row in rows)


def considered(scores: Numbers, rules: Numbers) -> NDArray[np.bool_]:
    """The pairs worth a closer look."""
    return (scores.mean(axis=0) >= LEAST) | (rules > 0)


def pair_features(scores: Numbers, rules: Numbers, prior: Numbers) -> Numbers:
    """Rows by categories by features: the scores, and where the pair stands in its trace.

    `scores` is machines by rows by categories, of one trace; `rules` the confidence of rules.
    """
    mean = np.clip(scores.mean(axis=0), 0.0, 1.0)
    rows, columns = mean.shape
    total = max(float(mean.sum()), 0.01)
    of_category, of_span = mean.sum(axis=0), mean.sum(axis=1)
    top_category = np.maximum(mean.max(axis=0), 0.01)
    top_span = np.maximum(mean.max(axis=1), 0.01)
    everywhere = np.ones((rows, columns))
    parts = [
        mean,
        *scores,
        rules,
        np.log1p(_ranks(mean.reshape(-1)).reshape(mean.shape)),
        np.apply_along_axis(_ranks, 0, mean),
        np.apply_along_axis(_ranks, 1, mean),
        np.log(total + 0.1) * everywhere,
        of_category[None, :] * everywhere,
        of_span[:, None] * everywhere,
        mean / total,
        mean / top_category[None, :],
        mean / top_span[:, None],
        prior[None, :] * everywhere,
        np.log(rows) * everywhere,
        mean / (of_category[None, :] + 0.1),
    ]
    return np.stack(parts, axis=-1)


def _ranks(values: Numbers) -> Numbers:
    """The place of each value from the top, ties in order."""
    order = np.argsort(-values, kind="stable")
    ranks = np.empty(len(values))
    ranks[order] = np.arange(len(values))
    return ranks

"""A yardstick for the learned detector: plain logistic regression, one category at a time.

It goes by the words of what a span said, was told last and was shown, of how its step failed, and
by a dozen plain facts. It is given as many findings as it is held against, chosen with hindsight,
which is more than a detector in use would know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from _diagnosis_training import SPLITS, Example
from scipy import sparse
from scipy.optimize import minimize

from proctor.diagnose.learned.detector import CATEGORIES
from proctor.diagnose.learned.features import BUCKETS, NOTHING
from proctor.trail.scorer import Annotation, Mark, Scorecard, score

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from proctor.diagnose.learned.features import FeatureRow

    Array = NDArray[np.float64]
    Folds = Sequence[tuple[list[Example], list[Example]]]

FACTS = (
    "place",
    "index",
    "left",
    "last",
    "is tool",
    "is plan",
    "is answer",
    "fails",
    "failed",
    "failed before",
    "streak",
    "likeness",
    "trace length",
    "trace failures",
)

FIELDS = ("output", "input", "failed", "shown")

STRENGTH = 10.0
"""Inverse regularisation. With a third of it, weighted F1 and pair F1 are 0.01 lower."""

SEEN = 2
"""Spans a bucket of words must show in to count."""


def yardstick(folds: Folds, findings: Mapping[str, float]) -> dict[str, Scorecard]:
    """Return its scorecard for each split, at the given number of findings per trace."""
    chances: dict[str, Array] = {}
    examples = [example for _, test in folds for example in test]
    for learn, test in folds:
        chances |= _held_out(learn, test)
    cards: dict[str, Scorecard] = {}
    for split in SPLITS:
        here = [e for e in examples if e.split == split]
        most = round(findings[split] * len(here))
        line = np.sort(np.concatenate([chances[e.name].ravel() for e in here]))[::-1][most - 1]
        guess = {e.name: _marked(e, chances[e.name] >= line) for e in here}
        cards[split] = score({e.name: e.gold for e in here}, guess)
    return cards


def _marked(example: Example, found: NDArray[np.bool_]) -> Annotation:
    pairs = zip(*np.nonzero(found), strict=True)
    marks = (Mark(example.rows[row].span.span_id, CATEGORIES[column]) for row, column in pairs)
    return Annotation(tuple(marks))


def _held_out(learn: Sequence[Example], test: Sequence[Example]) -> dict[str, Array]:
    """The chances of every pair of the traces tested on."""
    known, asked = _tables(_rows(learn), _rows(test))
    result = np.zeros((asked.shape[0], len(CATEGORIES)))
    for column, truth in enumerate(np.concatenate([e.truth for e in learn]).T):
        if truth.sum() >= SEEN:
            weights = _logistic(known, truth)
            result[:, column] = 1.0 / (1.0 + np.exp(-(asked @ weights)))
    ends = np.cumsum([len(e.rows) for e in test])[:-1]
    return {e.name: part for e, part in zip(test, np.split(result, ends), strict=True)}


def _rows(examples: Sequence[Example]) -> list[FeatureRow]:
    return [row for example in examples for row in example.rows]


def _tables(
    learn: Sequence[FeatureRow], test: Sequence[FeatureRow]
) -> tuple[sparse.csr_array, sparse.csr_array]:
    """Rows by inputs: the words of each field, then the facts, and a 1 for the bias."""
    known: list[sparse.csr_array] = []
    asked: list[sparse.csr_array] = []
    for field in FIELDS:
        columns = np.concatenate([row.words.get(field, NOTHING).buckets for row in learn])
        seen = np.bincount(columns, minlength=BUCKETS)
        rarity = np.where(seen >= SEEN, np.log((1 + len(learn)) / (1 + seen)) + 1.0, 0.0)
        known.append(_words(learn, field, rarity))
        asked.append(_words(test, field, rarity))
    for table, rows in ((known, learn), (asked, test)):
        facts = [[row.facts.get(name, 0.0) for name in FACTS] + [1.0] for row in rows]
        table.append(sparse.csr_array(np.array(facts)))
    return sparse.csr_array(sparse.hstack(known)), sparse.csr_array(sparse.hstack(asked))


def _words(rows: Sequence[FeatureRow], field: str, rarity: Array) -> sparse.csr_array:
    """Rows by buckets: words weighed by rarity, each row scaled to length one."""
    held = [row.words.get(field, NOTHING) for row in rows]
    weighed = [words.values * rarity[words.buckets] for words in held]
    scaled = [values / max(float(np.linalg.norm(values)), 1e-12) for values in weighed]
    columns = np.concatenate([words.buckets for words in held])
    starts = np.cumsum([0, *(len(values) for values in scaled)])
    return sparse.csr_array((np.concatenate(scaled), columns, starts), (len(rows), BUCKETS))


def _logistic(inputs: sparse.csr_array, wanted: Array) -> Array:
    """Return the weights of a regularised logistic regression; the last input is always 1."""

    def loss(weights: Array) -> tuple[float, Array]:
        sums = inputs @ weights
        missed = 1.0 / (1.0 + np.exp(-sums)) - wanted
        value = np.logaddexp(0.0, sums).sum() - wanted @ sums + weights @ weights / (2 * STRENGTH)
        return float(value), inputs.T @ missed + weights / STRENGTH

    return minimize(loss, np.zeros(inputs.shape[1]), jac=True, method="L-BFGS-B").x

"""Train the learned detector: ridge models, then a regression over their scores.

Nothing is drawn at random. Whatever is chosen (weights, calibration, threshold) is chosen on
traces held out from the machines: `held_out` leaves each trace out in turn, in closed form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import sparse

from proctor.diagnose._steps import read_steps
from proctor.diagnose.finding import BEARS_ON, Category, parse_category
from proctor.diagnose.learned.detector import (
    CATEGORIES,
    MACHINES,
    VIEWS,
    Detectors,
    Judges,
    Machine,
    PairClassifier,
    Scorer,
    TrainedModel,
    considered,
    fact_table,
    likeness,
    pair_features,
    planned,
    trace_features,
)
from proctor.diagnose.learned.features import BUCKETS, NOTHING, FeatureRow, rows_of
from proctor.diagnose.rules import RULES, apply_rules, heard
from proctor.trace.load import load_traces
from proctor.trail.scorer import read_annotations

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from proctor.diagnose.finding import Finding
    from proctor.trail.scorer import Annotation

    Array = NDArray[np.float64]

SPLITS = {"GAIA": "gaia", "SWE Bench": "swe_bench"}

SEEN = 2
"""Minimum number of spans with a feature: one seen once says nothing about other spans."""

FINDINGS_PER_ERROR = {True: 1.45, False: 1.65}
"""Findings that the threshold allows per gold error, with and without a plan.

Up to this value pair F1 is constant while recall still grows; beyond it precision falls, without a
plan somewhat later."""

SCORE_PENALTY = 0.2
"""Penalty of the score regression; half or twice the value changes nothing."""

JUDGE_PENALTY = 800.0
"""Penalty on the regression's weights, for standardised inputs, divided by the number of training
traces: fewer traces give a stronger penalty. Half or twice the value changes nothing."""


class Example(NamedTuple):
    """A trace with its gold annotation, for training or evaluation."""

    split: str
    name: str
    rows: list[FeatureRow]
    findings: list[Finding]
    gold: Annotation
    truth: Array
    """Rows by categories: 1 where gold marks the pair."""
    rules: Array
    """Rows by categories: the confidence of a rule that marks the pair."""


def read(folder: Path) -> tuple[list[Example], list[str]]:
    """Return every trace of both splits, and the problems of the files."""
    examples: list[Example] = []
    problems: list[str] = []
    for split, suffix in SPLITS.items():
        gold = read_annotations(folder / f"processed_annotations_{suffix}")
        problems += gold.problems
        for path in sorted((folder / "data" / split).glob("*.json")):
            steps = read_steps(load_traces(path)[0])
            found = apply_rules(steps, RULES)
            rows = rows_of(steps, found)
            marks = gold.by_trace[path.stem]
            pairs = {(m.location, parse_category(m.label)): 1.0 for m in marks.marks}
            said = {(f.location, f.category): f.confidence for f in heard(found)}
            truth, rules = _table(rows, pairs), _table(rows, said)
            examples.append(Example(split, path.stem, rows, found, marks, truth, rules))
    return examples, problems


def _table(rows: Sequence[FeatureRow], values: dict[tuple[str, Category | None], float]) -> Array:
    pairs = [[values.get((row.span.span_id, c), 0.0) for c in CATEGORIES] for row in rows]
    return np.array(pairs).reshape(len(rows), len(CATEGORIES))


class _Kernels:
    """The rows of a training set, and how alike each machine finds them."""

    def __init__(self, examples: Sequence[Example]) -> None:
        held = [[not row.cut for row in example.rows] for example in examples]
        self.rows = [row for example in examples for row in example.rows if not row.cut]
        self.truth = np.concatenate([e.truth[h] for e, h in zip(examples, held, strict=True)])
        self.traces = np.repeat(np.arange(len(examples)), [sum(h) for h in held])
        count: dict[str, int] = {}
        for row in self.rows:
            for name in row.facts:
                count[name] = count.get(name, 0) + 1
        self.names = tuple(sorted(name for name, times in count.items() if times >= SEEN))
        self.facts = fact_table(self.rows, self.names)
        self.rarity: dict[str, Array] = {}
        self.words: dict[str, sparse.csr_array] = {}
        for field in sorted({field for _, field in VIEWS}):
            self.rarity[field], self.words[field] = self._field(field)

    def _field(self, field: str) -> tuple[Array, sparse.csr_array]:
        """How much each bucket counts (rare ones more), and the rows scaled to length one."""
        held = [row.words.get(field, NOTHING) for row in self.rows]
        starts = np.cumsum([0, *(len(words.buckets) for words in held)])
        columns = np.concatenate([words.buckets for words in held])
        values = np.concatenate([words.values for words in held]).astype(np.float64)
        seen = np.bincount(columns, minlength=BUCKETS)
        rarity = np.log((1 + len(held)) / (1 + seen)) + 1.0
        # At the precision the model keeps, so that training and use see the same numbers.
        rarity = rarity.astype(np.float16).astype(np.float64)
        table = sparse.csr_array((values * rarity[columns], columns, starts), (len(held), BUCKETS))
        length = np.sqrt(np.asarray(table.multiply(table).sum(axis=1)).ravel())
        return rarity, sparse.csr_array(sparse.diags_array(1 / np.maximum(length, 1e-12)) @ table)

    def of(self, machine: Machine) -> Array:
        """Rows by rows: how alike they are to a machine."""
        alike = np.zeros((len(self.rows), len(self.rows)))
        if machine.likeness:
            alike += machine.likeness * likeness(self.facts, self.facts)
        if machine.facts:
            alike += machine.facts * (self.facts @ self.facts.T)
        for field, weight in machine.words.items():
            words = self.words[field]
            alike += weight * (words @ words.T).toarray()
        return alike


def train(examples: Sequence[Example]) -> Detectors:
    """Train ridge models on all spans, and regressions on their out-of-fold scores."""
    kernels = _Kernels(examples)
    base = kernels.truth.mean(axis=0)
    alphas: list[Array] = []
    outside: list[Array] = []
    for machine in MACHINES:
        inverse = np.linalg.inv(kernels.of(machine) + machine.penalty * np.eye(len(kernels.rows)))
        alpha = inverse @ (kernels.truth - base)
        alphas.append(alpha)
        outside.append(held_out(inverse, alpha, kernels))
    scores = np.stack(outside)
    parts = [_spread(scores[:, kernels.traces == n], e.rows) for n, e in enumerate(examples)]
    heard = [Heard(s, e.rules, e.truth) for s, e in zip(parts, examples, strict=True)]
    deaf = [h._replace(rules=np.zeros_like(h.rules)) for h in heard]
    offline = judges(examples, heard, base)
    chances = [
        offline.of(e.rows).chances(h.scores, h.rules) for e, h in zip(examples, heard, strict=True)
    ]
    return Detectors(
        _detector(kernels, alphas, base),
        judges(examples, deaf, base),
        offline,
        scorer(examples, chances, kernels.names),
    )


def _spread(scores: Array, rows: Sequence[FeatureRow]) -> Array:
    """Scores of all rows, 0 for those that machines do not learn from."""
    result = np.zeros((len(scores), len(rows), scores.shape[2]))
    result[:, [not row.cut for row in rows]] = scores
    return result


def scorer(examples: Sequence[Example], chances: Sequence[Array], names: Sequence[str]) -> Scorer:
    """A ridge regression of the four scores, its inputs standardised and weighed by their block."""
    inputs = np.stack(
        [trace_features(e.rows, c, names) for e, c in zip(examples, chances, strict=True)]
    )
    blocks = [len(CATEGORIES), len(names)]
    # Each block counts as a whole, however many columns it has.
    sizes = np.repeat(np.sqrt(blocks), blocks)
    mean, scale = inputs.mean(axis=0), np.maximum(inputs.std(axis=0), 1e-3) * sizes
    table = (inputs - mean) / scale
    keys = [f"{name}_score" for name in BEARS_ON]
    wanted = np.array([[float(e.gold.scores.get(k) or np.nan) for k in keys] for e in examples])
    kept = ~np.isnan(wanted).any(axis=1)
    table, wanted = table[kept], wanted[kept]
    bias = wanted.mean(axis=0)
    alike = table @ table.T + SCORE_PENALTY * np.eye(len(table))
    weights = table.T @ np.linalg.solve(alike, wanted - bias)
    return Scorer(mean, scale, weights, bias - (table.mean(axis=0) @ weights))


def held_out(inverse: Array, alpha: Array, kernels: _Kernels) -> Array:
    """Return the out-of-fold scores of a model for each trace.

    For ridge regression this needs no second training: the residuals of a group left out are
    the group's part of the inverse, solved for the group's alphas.
    """
    result = np.empty_like(kernels.truth)
    for number in range(int(kernels.traces[-1]) + 1):
        here = np.flatnonzero(kernels.traces == number)
        left = np.linalg.solve(inverse[np.ix_(here, here)], alpha[here])
        result[here] = kernels.truth[here] - left
    return result


def _detector(kernels: _Kernels, alphas: Sequence[Array], base: Array) -> TrainedModel:
    words = np.zeros((len(VIEWS), BUCKETS, len(CATEGORIES)), dtype=np.float32)
    for block, (number, field) in enumerate(VIEWS):
        weight = MACHINES[number].words[field]
        words[block] = weight * (kernels.words[field].T @ alphas[number])
    straight = sum(m.facts * (kernels.facts.T @ a) for m, a in zip(MACHINES, alphas, strict=True))
    near = np.stack([m.likeness * a for m, a in zip(MACHINES, alphas, strict=True)])
    return TrainedModel(
        fact_names=kernels.names,
        support=kernels.facts,
        alphas=near.astype(np.float32),
        fact_weights=np.asarray(straight, dtype=np.float32),
        rarity=np.stack([kernels.rarity[field] for _, field in VIEWS]).astype(np.float32),
        word_weights=words,
        base=base.astype(np.float32),
    )


class Heard(NamedTuple):
    """Return the inputs of the regression for one trace, and the truth."""

    scores: Array
    rules: Array
    truth: Array


def judges(examples: Sequence[Example], heard: Sequence[Heard], prior: Array) -> Judges:
    """A judge for each kind of trace; of a kind that is not there, one that learns from all."""
    kinds = [planned(example.rows) for example in examples]
    both: list[PairClassifier] = []
    for kind in (True, False):
        here = [h for h, k in zip(heard, kinds, strict=True) if k is kind]
        both.append(judge(here or heard, prior, FINDINGS_PER_ERROR[kind]))
    return Judges(*both)


def judge(heard: Sequence[Heard], prior: Array, per_error: float) -> PairClassifier:
    """A logistic regression over the pairs worth a look, and the threshold for findings."""
    looked = [considered(h.scores, h.rules) for h in heard]
    features = [pair_features(h.scores, h.rules, prior) for h in heard]
    inputs = np.concatenate([f[look] for f, look in zip(features, looked, strict=True)])
    wanted = np.concatenate([h.truth[look] for h, look in zip(heard, looked, strict=True)])
    mean, scale = inputs.mean(axis=0), np.maximum(inputs.std(axis=0), 1e-9)
    weights, bias = _logistic((inputs - mean) / scale, wanted, JUDGE_PENALTY / len(heard))
    chances = 1.0 / (1.0 + np.exp(-(((inputs - mean) / scale) @ weights + bias)))
    errors = sum(float(h.truth.sum()) for h in heard)
    most = min(round(per_error * errors), len(chances))
    threshold = np.sort(chances)[::-1][most - 1]
    return PairClassifier(mean, scale, weights, np.array(bias), np.array(threshold), prior)


def _logistic(inputs: Array, wanted: Array, penalty: float) -> tuple[Array, float]:
    """Newton's method for logistic regression with a penalty on all weights but the bias."""
    table = np.column_stack([inputs, np.ones(len(inputs))])
    held = np.diag([penalty] * inputs.shape[1] + [0.0])
    weights = np.zeros(table.shape[1])
    for _ in range(50):
        chances = 1.0 / (1.0 + np.exp(-(table @ weights)))
        slope = table.T @ (chances - wanted) + held @ weights
        bend = (table * (chances * (1 - chances))[:, None]).T @ table + held
        step = np.linalg.solve(bend, slope)
        weights -= step
        if float(np.abs(step).max()) < 1e-9:
            break
    return weights[:-1], float(weights[-1])

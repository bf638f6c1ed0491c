"""The learned detector: score how strongly each span resembles each kind of error, report findings.

Guarantees: three ridge classifiers, shipped as plain arrays (no pickle), with deterministic
results. They were trained on TRAIL's traces; `TraceScores.familiar` says how similar a trace is to
those. On a trace unlike them the detector reports nothing, and `offline` equals the rules. The same
holds for a trace in which nothing failed, no rule fired and no plan was made: there is nothing to
compare the agent with.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from proctor.diagnose._steps import plain
from proctor.diagnose.finding import Category, Finding, Impact, quote
from proctor.diagnose.rules import heard
from proctor.sanitize import line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from numpy.typing import NDArray

    from proctor.diagnose.learned.features import FeatureRow, HashedWords

    Array = NDArray[np.float32]
    Numbers = NDArray[np.float64]


# Written by tools/train_diagnosis.py.
MODEL_FILE = "model.npz"

# Width of the similarity exp(-WIDTH * distance²) between facts; 0.02 to 0.1 makes little
# difference.
WIDTH = 0.05


class Machine(NamedTuple):
    """Inputs and regularisation of one ridge classifier."""

    likeness: float
    """Weight of the similarity to facts of known spans: rules with exceptions."""
    facts: float
    """Weight of the facts themselves: linear effects."""
    words: Mapping[str, float]
    """Weight of each field of words."""
    penalty: float


# Three views with different errors; changing their weights changed the figures no more than
# chance.
MACHINES = (
    Machine(1.0, 0.0, {"input": 0.7, "failed before": 0.3}, 1.0),
    Machine(0.0, 0.15, {"output": 0.2, "input": 0.2, "failed": 0.2, "shown": 0.2}, 5.0),
    Machine(1.0, 0.0, {"output": 0.5, "plan": 0.5}, 1.5),
)

# Rows compared with the training spans at a time: bounds the memory of a long trace.
BLOCK = 4096

# Machine and field of each block of word weights.
VIEWS = tuple((number, field) for number, m in enumerate(MACHINES) for field in m.words)


class _Products(NamedTuple):
    """Products of all rows with all rows, computed once for similarities and cosines."""

    one: Array
    other: Array
    both: Array

    @classmethod
    def of(cls, one: Array, other: Array) -> Self:
        """Return the squared norms of both sets of rows and all products between them."""
        return cls((one * one).sum(axis=1), (other * other).sum(axis=1), one @ other.T)

    def likeness(self) -> Array:
        """exp(-WIDTH * squared distance) of each row of one to each of the other."""
        squares = self.one[:, None] + self.other[None, :]
        return np.exp(-WIDTH * np.maximum(squares - 2.0 * self.both, 0.0))


class TraceScores(NamedTuple):
    """The classifiers' scores for one trace."""

    scores: NDArray[np.float64]
    """Scores by classifier, row and category: about the fraction of such spans that are marked; 0
    for rows with lost data.
    """
    familiar: float
    """Similarity of this trace to the training traces, 0 to 1: the mean cosine of its spans."""


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """Arrays of a trained detector. Categories are the last axis, in the taxonomy's order."""

    fact_names: tuple[str, ...]
    support: Array
    """Facts of the training spans, which similarity is measured against."""
    alphas: Array
    """Weights by classifier and training span."""
    fact_weights: Array
    rarity: Array
    """Word weights by field of VIEWS and bucket."""
    word_weights: Array
    base: Array
    """How often each category is marked on a span."""

    def read_rows(self, rows: Sequence[FeatureRow]) -> TraceScores:
        """Score the spans of one trace with every classifier."""
        scores = np.zeros((len(MACHINES), len(rows), len(self.base)))
        cosines = np.zeros(len(rows))
        for start in range(0, len(rows), BLOCK):
            part = slice(start, start + BLOCK)
            scores[:, part], cosines[part] = self._read_block(rows[part])
        # A span whose exporter dropped data cannot be judged.
        scores[:, [row.cut for row in rows]] = 0.0
        return TraceScores(scores, float(cosines.mean()) if rows else 0.0)

    def _read_block(self, rows: Sequence[FeatureRow]) -> tuple[Numbers, Numbers]:
        """Return the scores of some rows, and their cosine to the nearest known facts."""
        facts = fact_table(rows, self.fact_names)
        # Computed once: both the similarities and the cosines below need them.
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
        return scores, self._cosines(rows, products)

    def _cosines(self, rows: Sequence[FeatureRow], products: _Products) -> Numbers:
        """Return the cosine of each row's facts to the nearest known ones.

        Facts never seen in training count against a row. Distance would not work: a row with few
        known facts lies near everything.
        """
        known = set(self.fact_names)
        strange = [sum(v * v for n, v in row.facts.items() if n not in known) for row in rows]
        size = np.sqrt(products.one + np.array(strange))
        cosines = products.both / (np.outer(size, np.sqrt(products.other)) + 1e-9)
        return cosines.max(axis=1)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the arrays to store; words and facts at half precision."""
        arrays = {f.name: np.asarray(getattr(self, f.name)) for f in fields(self)}
        for name in ("support", "word_weights", "rarity"):
            arrays[name] = arrays[name].astype(np.float16)
        return arrays

    @classmethod
    def read(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Self:
        """Build a detector from its arrays."""
        names = [f.name for f in fields(cls) if f.name != "fact_names"]
        numbers = {name: arrays[name].astype(np.float32) for name in names}
        return cls(fact_names=tuple(str(name) for name in arrays["fact_names"]), **numbers)


def fact_table(rows: Sequence[FeatureRow], names: Sequence[str]) -> Array:
    """Return rows by facts at half precision, the precision of the stored model."""
    column = {name: number for number, name in enumerate(names)}
    # Rounded as the stored model is, so that a training span equals itself.
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


def weighed(words: HashedWords, rarity: Array) -> Array:
    """Return the weights of a text's buckets, scaled to length one."""
    values = words.values * rarity[words.buckets]
    return values / np.sqrt((values * values).sum())


@cache
def shipped() -> Mapping[str, NDArray[np.generic]]:
    """Load the arrays of the shipped model, once."""
    data = (files("proctor.diagnose.learned") / MODEL_FILE).read_bytes()
    with np.load(BytesIO(data), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


# From scores to findings: a probability for each pair of span and category. It is between 0 and 1
# and calibrated on traces the detector had not seen. The rest of the trace counts too: annotators
# mark the worst spans of each trace, not spans above a fixed threshold.


# Pairs with a lower mean score are skipped unless a rule fired: 1 % of TRAIL's errors lie there,
# and 80 % of all pairs.
LEAST = 0.03


@dataclass(frozen=True, slots=True)
class _LinearModel:
    """Weights of standardised inputs."""

    mean: Numbers
    scale: Numbers
    weights: Numbers
    bias: Numbers

    def arrays(self, name: str) -> dict[str, NDArray[np.float64]]:
        """Return its arrays under unique names."""
        return {f"{name}_{f.name}": getattr(self, f.name) for f in fields(self)}

    @classmethod
    def read(cls, name: str, arrays: Mapping[str, NDArray[np.generic]]) -> Self:
        """Build it from arrays with these names."""
        return cls(**{f.name: arrays[f"{name}_{f.name}"].astype(np.float64) for f in fields(cls)})


@dataclass(frozen=True, slots=True)
class PairClassifier(_LinearModel):
    """A logistic regression over the features of a (span, category) pair."""

    threshold: Numbers
    """Probability from which a pair is reported as a finding."""
    prior: Numbers
    """How often each category is marked on a span."""

    def chances(self, scores: Numbers, rules: Numbers) -> Numbers:
        """Return the probability of an error by row and category; 0 without evidence."""
        if not scores.shape[1]:
            return np.zeros_like(rules)
        inputs = (pair_features(scores, rules, self.prior) - self.mean) / self.scale
        chances = 1.0 / (1.0 + np.exp(-(inputs @ self.weights + self.bias)))
        return np.where(considered(scores, rules), chances, 0.0)


class Judges(NamedTuple):
    """One classifier for traces with a plan, one for traces without.

    Annotators mark these differently: with a plan, everything that departs from it; without, every
    step that breaks the instructions.
    """

    planned: PairClassifier
    unplanned: PairClassifier

    def of(self, rows: Sequence[FeatureRow]) -> PairClassifier:
        """Return the classifier that applies to a trace."""
        return self.planned if planned(rows) else self.unplanned

    def arrays(self, name: str) -> dict[str, NDArray[np.float64]]:
        """Return their arrays under unique names."""
        named = zip(self._fields, self, strict=True)
        return {k: v for kind, judge in named for k, v in judge.arrays(f"{name}_{kind}").items()}

    @classmethod
    def read(cls, name: str, arrays: Mapping[str, NDArray[np.generic]]) -> Self:
        """Build the classifiers from arrays with these names."""
        return cls(*(PairClassifier.read(f"{name}_{kind}", arrays) for kind in cls._fields))


def planned(rows: Sequence[FeatureRow]) -> bool:
    """Return whether an agent makes a plan in the trace."""
    return any(row.scene.role == "plan" for row in rows)


def considered(scores: Numbers, rules: Numbers) -> NDArray[np.bool_]:
    """Return the pairs worth scoring in detail."""
    return (scores.mean(axis=0) >= LEAST) | (rules > 0)


def pair_features(scores: Numbers, rules: Numbers, prior: Numbers) -> Numbers:
    """Return rows × categories × features: the scores, and the pair's rank within its trace.

    `scores` is classifiers × rows × categories of one trace; `rules` the confidence of rules.
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
    """Return the rank of each value from the top, ties in order."""
    order = np.argsort(-values, kind="stable")
    ranks = np.empty(len(values))
    ranks[order] = np.arange(len(values))
    return ranks


# The learned part of the scores: a ridge regression over the expected number of each kind of error
# in the trace and the mean of each fact.


class Scorer(_LinearModel):
    """A ridge regression: inputs by scores."""

    def values(
        self, rows: Sequence[FeatureRow], chances: Numbers, names: Sequence[str]
    ) -> list[float]:
        """Return the scores of one trace, in the order of `BEARS_ON`."""
        inputs = (trace_features(rows, chances, names) - self.mean) / self.scale
        return [float(value) for value in inputs @ self.weights + self.bias]


def trace_features(rows: Sequence[FeatureRow], chances: Numbers, names: Sequence[str]) -> Numbers:
    """Return the expected number of errors of each category (square root) and the mean of each
    fact.
    """
    expected = np.sqrt(chances.sum(axis=0))
    facts = fact_table(rows, names).mean(axis=0).astype(np.float64)
    return np.concatenate([expected, facts])


CATEGORIES = tuple(Category)

# Minimum mean cosine of a trace's spans to known ones. Held-out TRAIL traces lie above 0.74; one
# half of TRAIL seen from the other below 0.59; traces of other frameworks below 0.7.
FAMILIAR = 0.7

# A whole sentence; an abbreviation or a decimal point does not end it.
_SENTENCE = re.compile(r"[^\n]{20,230}?(?:[.!?](?=\s|$)|$)", re.MULTILINE)

# Categories that annotators usually mark HIGH: they affect the answer.
_HIGH = frozenset(
    {
        Category.LANGUAGE_ONLY,
        Category.TOOL_RELATED,
        Category.GOAL_DEVIATION,
        Category.MISREAD_OUTPUT,
        Category.WRONG_PROBLEM,
    }
)


class Detectors(NamedTuple):
    """The detector and the classifiers on top of it: alone, and combined with the rules."""

    detector: TrainedModel
    learned: Judges
    offline: Judges
    scorer: Scorer

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the arrays to store."""
        return {
            **self.detector.arrays(),
            **self.learned.arrays("learned"),
            **self.offline.arrays("offline"),
            **self.scorer.arrays("score"),
        }

    @classmethod
    def read(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Self:
        """Load the detectors from stored arrays."""
        judges = (Judges.read("learned", arrays), Judges.read("offline", arrays))
        return cls(TrainedModel.read(arrays), *judges, Scorer.read("score", arrays))

    def chances(
        self,
        reading: TraceScores,
        rows: Sequence[FeatureRow],
        rules: Sequence[Finding],
        method: str,
    ) -> NDArray[np.float64]:
        """Return the probability of an error by row and category."""
        by_rules = np.zeros((len(rows), len(CATEGORIES)))
        if method == "offline":
            place = {row.span.span_id: number for number, row in enumerate(rows)}
            for finding in heard(rules):
                if finding.location in place:
                    column = CATEGORIES.index(finding.category)
                    by_rules[place[finding.location], column] = finding.confidence
        judges = self.offline if method == "offline" else self.learned
        return judges.of(rows).chances(reading.scores, by_rules)


@cache
def detectors() -> Detectors:
    """Load the shipped detectors, once."""
    return Detectors.read(shipped())


class Detection(NamedTuple):
    """Findings of one trace; scores are None where the detector is not competent."""

    findings: list[Finding]
    scores: list[float] | None


def find(
    known: Detectors, rows: Sequence[FeatureRow], rules: Sequence[Finding], method: str
) -> Detection:
    """Return the unordered findings of `learned` or `offline`; `rules` are the findings of the
    rules.
    """
    reading = known.detector.read_rows(rows)
    # Without a failure, a rule or a plan there is nothing to compare the agent with.
    held = bool(rules) or planned(rows) or any(row.scene.kind for row in rows)
    if not held or reading.familiar < FAMILIAR:
        return Detection(list(rules) if method == "offline" else [], None)
    chances = known.chances(reading, rows, rules, "offline")
    scores = known.scorer.values(rows, chances, known.detector.fact_names)
    return Detection(judged(known, reading, rows, rules, method), scores)


def judged(
    known: Detectors,
    reading: TraceScores,
    rows: Sequence[FeatureRow],
    rules: Sequence[Finding],
    method: str,
) -> list[Finding]:
    """Return every pair of span and category above the threshold, however unfamiliar the trace is.

    Rule findings on spans without a row, such as an agent that crashed, are kept unchanged.
    """
    chances = known.chances(reading, rows, rules, method)
    threshold = (known.offline if method == "offline" else known.learned).of(rows).threshold
    by_rule = {(f.location, f.category): f for f in rules} if method == "offline" else {}
    judgeable = {row.span.span_id for row in rows}
    findings = [rule for rule in by_rule.values() if rule.location not in judgeable]
    for number in np.flatnonzero(chances >= threshold):
        place, column = divmod(int(number), len(CATEGORIES))
        row, category, sure = rows[place], CATEGORIES[column], float(chances[place, column])
        rule = by_rule.get((row.span.span_id, category))
        evidence = rule.evidence if rule else _evidence(row)
        if not evidence:  # an empty span: nothing to point at
            continue
        description = f"{_act(row)}. {category.meaning}"
        findings.append(
            Finding(
                category=category,
                location=row.span.span_id,
                evidence=evidence,
                description=rule.description if rule else description,
                impact=rule.impact if rule else _impact(category),
                confidence=sure,
                detector=f"{rule.detector}+learned" if rule else "learned",
            )
        )
    return findings


def _act(row: FeatureRow) -> str:
    """Name what a span does."""
    step = row.scene.step
    if row.span is not step.span:
        arguments = line(plain(row.span.tool_input), 80)
        return f"Calls {row.span.tool_name or row.span.name}({arguments})"
    if step.failure:
        return f"Goes wrong: {line(step.failure, 100)}"
    if step.answers:
        return "Hands in the answer"
    if step.plans:
        return "Plans"
    names = list(dict.fromkeys(call.name for call in step.calls))
    if names:
        return f"Requests {', '.join(names[:3])}"
    return "Writes code" if "```" in step.text else "Replies"


def _evidence(row: FeatureRow) -> str:
    step = row.scene.step
    if row.span is not step.span:
        return quote(row.span, row.span.error_message or "")
    lines = [line for line in step.failure.splitlines() if line.strip()][:2]
    said = _SENTENCE.findall(step.text)[:1] or [call.arguments for call in step.calls]
    return quote(row.span, *lines, *said)


def _impact(category: Category) -> Impact:
    if category in _HIGH:
        return Impact.HIGH
    return Impact.LOW if category is Category.FORMATTING else Impact.MEDIUM

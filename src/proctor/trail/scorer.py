"""Score predictions against gold: the official TRAIL metrics, and complementary ones.

Guarantees: location accuracy, joint accuracy, weighted F1, the per-category table and the score
correlations equal the official scorer's on every well-formed file. They reward flooding (more
findings never reduce the accuracies), so pair precision, recall, F1 and findings per trace are
reported too. A correlation has its n and p, and none is reported for fewer than ten traces. A trace
predicted but not annotated, or the reverse, is counted and named.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from proctor.diagnose.finding import Category, official_label, parse_category
from proctor.stats.describe import Correlation, correlate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from proctor.trail.data import Annotation, Mark

SCORE_KEYS = (
    "reliability_score",
    "security_score",
    "instruction_adherence_score",
    "plan_opt_score",
    "overall",
)

UNKNOWN_SCORE = -1.0
"""Value that the official scorer uses for a missing, empty or zero score."""


class CategoryScore(NamedTuple):
    """Metrics of one category, by trace."""

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, slots=True)
class Scorecard:
    """All metrics of one set of predictions; None where undefined."""

    traces: int
    location_accuracy: float | None
    joint_accuracy: float | None
    weighted_f1: float | None
    pair_precision: float | None
    pair_recall: float | None
    pair_f1: float | None
    findings_per_trace: float | None
    categories: Mapping[Category, CategoryScore]
    correlations: Mapping[str, Correlation]
    without_prediction: tuple[str, ...]
    without_gold: tuple[str, ...]


def score(gold: Mapping[str, Annotation], predicted: Mapping[str, Annotation]) -> Scorecard:
    """Score the traces of both sides; traces of one side only are named in the result."""
    shared = sorted(gold.keys() & predicted.keys())
    both = [(gold[name], predicted[name]) for name in shared]
    hits, predictions, in_gold = _pair_counts(both)
    table = {category: _category_score(both, category) for category in Category}
    support = sum(row.support for row in table.values())
    return Scorecard(
        traces=len(both),
        location_accuracy=_mean(
            _share({m.location for m in g.marks}, {m.location for m in p.marks}) for g, p in both
        ),
        # Officially, accuracies are means over traces, whatever their number of errors.
        joint_accuracy=_mean(_share(_official(g.marks), _official(p.marks)) for g, p in both),
        weighted_f1=(sum(r.f1 * r.support for r in table.values()) / support if support else 0.0)
        if both
        else None,
        pair_precision=_ratio(hits, predictions),
        pair_recall=_ratio(hits, in_gold),
        pair_f1=_ratio(2 * hits, predictions + in_gold),
        findings_per_trace=_ratio(predictions, len(both)),
        categories=table,
        correlations={key: _correlation(both, key) for key in SCORE_KEYS},
        without_prediction=tuple(sorted(gold.keys() - predicted.keys())),
        without_gold=tuple(sorted(predicted.keys() - gold.keys())),
    )


def _official(marks: Iterable[Mark]) -> set[tuple[str, str]]:
    return {(mark.location, official_label(mark.label)) for mark in marks if mark.label}


def _pairs(marks: Iterable[Mark]) -> set[tuple[str, str]]:
    # Other spellings of a category count here; the official scorer takes them as wrong.
    return {
        (mark.location, parse_category(mark.label) or official_label(mark.label))
        for mark in marks
        if mark.label
    }


def _pair_counts(both: Iterable[tuple[Annotation, Annotation]]) -> tuple[int, int, int]:
    """Return the correct, predicted and gold pairs of all traces together."""
    hits = predictions = in_gold = 0
    for gold, predicted in both:
        truth, guess = _pairs(gold.marks), _pairs(predicted.marks)
        hits += len(truth & guess)
        predictions += len(guess)
        in_gold += len(truth)
    return hits, predictions, in_gold


def _share(truth: set[Any], guess: set[Any]) -> float:
    """Return the share of the truth that was predicted; 0 without any, as officially defined."""
    return len(truth & guess) / len(truth) if truth else 0.0


def _category_score(
    both: Sequence[tuple[Annotation, Annotation]], category: Category
) -> CategoryScore:
    present = [(_names(g.marks, category), _names(p.marks, category)) for g, p in both]
    right = sum(truth and guess for truth, guess in present)
    guessed = sum(guess for _, guess in present)
    support = sum(truth for truth, _ in present)
    return CategoryScore(
        precision=right / guessed if guessed else 0.0,
        recall=right / support if support else 0.0,
        f1=2 * right / (guessed + support) if guessed + support else 0.0,
        support=support,
    )


def _names(marks: Iterable[Mark], category: Category) -> bool:
    return any(official_label(mark.label) == category.value for mark in marks)


def _correlation(both: Sequence[tuple[Annotation, Annotation]], key: str) -> Correlation:
    """Return Pearson's r over traces with this score on both sides."""
    pairs = [(g.scores[key], p.scores[key]) for g, p in both if key in g.scores and key in p.scores]
    # The official scorer truncates only the predicted reliability to an integer.
    cut = key == "reliability_score"
    xs = [_number(gold) for gold, _ in pairs]
    ys = [_whole(value) if cut else _number(value) for _, value in pairs]
    return correlate(xs, ys, method="pearson")


def _number(value: object) -> float:
    if isinstance(value, int | float | str) and value:
        try:
            number = float(value)
        except (ValueError, OverflowError):
            return UNKNOWN_SCORE
        return number if math.isfinite(number) else UNKNOWN_SCORE
    return UNKNOWN_SCORE


def _whole(value: object) -> float:
    if isinstance(value, str):
        return float(int(value)) if value.strip().lstrip("+-").isdecimal() else UNKNOWN_SCORE
    return float(math.trunc(_number(value)))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else None

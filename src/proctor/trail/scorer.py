"""Read TRAIL annotation and prediction files, and score predictions against gold.

Guarantees: a file gives an annotation, or a problem with place and reason. The only repair is a
comma before a closing bracket, which is unambiguous; it is reported too. So are entries that cannot
count: no location, an unknown category, a score that is not a number.

Location accuracy, joint accuracy, weighted F1, the per-category table and the score correlations
equal the official scorer's on every well-formed file. They reward flooding (more findings never
reduce the accuracies), so pair precision, recall, F1 and findings per trace are reported too. A
correlation has its n and p, and none is reported for fewer than ten traces. A trace predicted but
not annotated, or the reverse, is counted and named.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from proctor.diagnose.finding import Category, official_label, parse_category
from proctor.diagnose.llm.parse import without_trailing_commas
from proctor.errors import ProctorError
from proctor.formatting import SHOWN_NAMES, and_more
from proctor.stats.describe import Correlation, correlate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


_NAMES = frozenset(category.value for category in Category)


@dataclass(frozen=True, slots=True)
class Mark:
    """One error of a gold or prediction file: location and category."""

    location: str
    label: str


@dataclass(frozen=True, slots=True)
class Annotation:
    """One file: errors and scores of one trace."""

    marks: tuple[Mark, ...] = ()
    scores: Mapping[str, Any] = field(default_factory=dict[str, Any])
    oddities: tuple[str, ...] = field(default=(), compare=False)
    """Problems: entries that cannot count."""


@dataclass(slots=True)
class Annotations:
    """Files of a folder by trace (the file's stem), with their problems."""

    by_trace: dict[str, Annotation] = field(default_factory=dict[str, Annotation])
    problems: list[str] = field(default_factory=list[str])
    unread: int = 0
    """Unreadable files."""


def read_annotations(folder: Path) -> Annotations:
    """Read every `*.json` file of a folder, ordered by name."""
    if not folder.is_dir():
        raise ProctorError(
            "no such folder", where=str(folder), hint="name the folder of annotation files"
        )
    result = Annotations()
    for path in sorted(folder.glob("*.json")):
        try:
            annotation, repaired = parse_annotation(path.read_text(encoding="utf-8-sig"))
        # RecursionError: deeply nested JSON must not stop the other files.
        except (ValueError, OSError, RecursionError) as error:
            result.problems.append(f"{path.name}: not read: {error}")
            result.unread += 1
            continue
        if repaired:
            result.problems.append(f"{path.name}: trailing comma repaired")
        if annotation.oddities:
            result.problems.append(
                f"{path.name}: {and_more(annotation.oddities, SHOWN_NAMES, str)}"
            )
        result.by_trace[path.stem] = annotation
    return result


def parse_annotation(text: str) -> tuple[Annotation, bool]:
    """Return one file's annotation, and whether a trailing comma was removed.

    Raises ValueError if the text is not JSON or has another shape.
    """
    try:
        data, repaired = json.loads(text), False
    except json.JSONDecodeError:
        # The one repair with a single meaning; it is reported.
        data, repaired = json.loads(without_trailing_commas(text)), True
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")
    document = cast("dict[str, Any]", data)
    scores = _objects(document.get("scores") or [], "scores")
    errors = _objects(document.get("errors") or [], "errors")
    # Entries that cannot count are kept and reported: dropping them would raise the precision.
    marks = tuple(
        Mark(str(e.get("location") or ""), str(label or ""))
        for e in errors
        # Our own predictions have one entry per span, with further kinds under `also`.
        for label in (e.get("category"), *(cast("list[Any]", e.get("also") or [])))
    )
    # TRAIL writes a list that holds one object.
    scored = scores[0] if scores else {}
    odd = [] if "errors" in document else ["`errors` is missing"]
    odd += [f"errors[{n}]: {why}" for n, mark in enumerate(marks) for why in _odd_mark(mark)]
    odd += [f"{name} is not a number" for name, value in scored.items() if _odd_score(name, value)]
    return Annotation(marks, scored, tuple(odd)), repaired


def _odd_mark(mark: Mark) -> Iterator[str]:
    """Return why an error can never match another."""
    if not mark.location:
        yield "no location"
    known = parse_category(mark.label) or official_label(mark.label) in _NAMES
    if not mark.label:
        yield "no category"
    elif not known:
        yield f"the category {mark.label!r} is not in the taxonomy"


def _odd_score(name: str, value: Any) -> bool:
    """Return whether a score is set but not a number."""
    if not (name == "overall" or name.endswith("_score")) or value is None or value == "":
        return False
    try:
        return not math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return True


def _objects(value: object, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise ValueError(f"`{name}` is not a list")
    items = cast("list[Any]", value)
    if not all(isinstance(item, dict) for item in items):
        raise ValueError(f"`{name}` holds something other than objects")
    return cast("list[dict[str, Any]]", items)


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

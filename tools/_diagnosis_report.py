"""The page of measured figures of diagnosis, as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from proctor.diagnose.taxonomy import Category
from proctor.trail.scorer import SCORE_KEYS

if TYPE_CHECKING:
    from proctor.trail.scorer import Scorecard

    Cards = dict[tuple[str, str], Scorecard]


class Figures(NamedTuple):
    """Scorecards of each cut of the folds and across domains; chances of pairs, and the truth."""

    cuts: Sequence[Cards]
    across: Cards
    chances: np.ndarray
    truths: np.ndarray


COLUMNS: dict[str, Callable[[Scorecard], float | None]] = {
    "joint accuracy": lambda card: card.joint_accuracy,
    "location accuracy": lambda card: card.location_accuracy,
    "weighted F1": lambda card: card.weighted_f1,
    "pair precision": lambda card: card.pair_precision,
    "pair recall": lambda card: card.pair_recall,
    "pair F1": lambda card: card.pair_f1,
    "findings a trace": lambda card: card.findings_per_trace,
}

AIMS = {"GAIA": (0.60, 0.58, 0.50, 7), "SWE Bench": (0.58, None, 0.48, 13)}
"""What was aimed at: joint accuracy, weighted F1, pair F1, findings a trace at most."""

YARDSTICK = "plain regression"
"""What the detector is held against."""

HELD_OUT = (YARDSTICK, "rules", "learned", "offline")
"""The lines of the tables of traces held out."""

HEAD = """\
# Diagnosis, measured

Written by `python tools/train_diagnosis.py ../shared/trail --report
docs/reference/diagnosis-measured.md`; do not edit. The data are the 79 GAIA and 18 SWE Bench
traces of TRAIL that the project may look at.

A figure of `learned` and `offline` is of traces the detector was not trained on: five folds by
trace, everything (weights, calibration, threshold) chosen inside the training folds, and the
folds cut in {cuts} ways. Each figure is the mean over the cuts, with the lowest and highest where
they differ. Rules are not trained, but were written while looking at these traces. Joint
accuracy, location accuracy and weighted F1 are the official scorer's; they reward flooding, so
pair precision and findings a trace stand beside them.

The yardstick, plain regression, is a logistic regression for each category on the words of a span
and a dozen facts, in the same folds and with as many findings as `offline`.
"""


def page(figures: Figures) -> str:
    """The whole page."""
    parts = [HEAD.format(cuts=len(figures.cuts)), "## On traces held out\n"]
    for split in AIMS:
        parts += [f"### {split}\n", _table(figures.cuts, split, HELD_OUT)]
        parts.append(_aims(figures.cuts, split))
    parts += [_across(figures.across), _categories(figures.cuts), _scores(figures.cuts)]
    parts.append(_calibration(figures.chances, figures.truths))
    return "\n".join(parts)


def _table(cuts: Sequence[Cards], split: str, methods: Sequence[str]) -> str:
    lines = ["| | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for method in methods:
        cells = [_spread([pick(cut[split, method]) for cut in cuts]) for pick in COLUMNS.values()]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _spread(values: Sequence[float | None]) -> str:
    held = [value for value in values if value is not None]
    if not held:
        return "-"
    low, high = min(held), max(held)
    mean = f"{sum(held) / len(held):.3f}"
    return mean if high - low < 0.0005 else f"{mean} ({low:.3f} to {high:.3f})"


def _aims(cuts: Sequence[Cards], split: str) -> str:
    cards = [cut[split, "offline"] for cut in cuts]
    names = ("joint accuracy", "weighted F1", "pair F1", "findings a trace")
    told: list[str] = []
    for name, aim in zip(names, AIMS[split], strict=True):
        if aim is None:
            continue
        reached = float(np.mean([COLUMNS[name](card) or 0.0 for card in cards]))
        most = name == "findings a trace"
        met = reached <= aim if most else reached >= aim
        bound = f"at most {aim}" if most else f"{aim:.2f}"
        told.append(f"{name} {bound}: {'reached' if met else f'missed ({reached:.3f})'}")
    return f"Aims for `offline`: {'; '.join(told)}.\n"


def _across(cards: Cards) -> str:
    lines = [
        "## Across domains\n",
        "Trained on the one half, tested on the other. The detector finds such traces strange and",
        "keeps silent, so `offline` is what the rules say; the last line of each half is what it",
        "would say if made to speak.\n",
        "| tested on | | " + " | ".join(COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 2) + "|",
    ]
    for (split, method), card in cards.items():
        cells = [_spread([pick(card)]) for pick in COLUMNS.values()]
        lines.append(f"| {split} | {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _categories(cuts: Sequence[Cards]) -> str:
    lines = [
        "## By category\n",
        "F1 of `offline` over traces (is the category in the trace at all), and how many traces",
        "hold it.\n",
        "| category | GAIA F1 | traces | SWE Bench F1 | traces |",
        "|---|---|---|---|---|",
    ]
    for category in Category:
        cells: list[str] = []
        for split in AIMS:
            rows = [cut[split, "offline"].categories[category] for cut in cuts]
            support = rows[0].support
            f1 = f"{float(np.mean([row.f1 for row in rows])):.2f}" if support else "-"
            cells += [f1, str(support)]
        lines.append(f"| {category.value} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _scores(cuts: Sequence[Cards]) -> str:
    lines = [
        "## Scores\n",
        "Pearson correlation of predicted scores with gold, `offline`. Security is 5 in every gold",
        "file, so that it has none.\n",
        "| score | GAIA | SWE Bench |",
        "|---|---|---|",
    ]
    for key in SCORE_KEYS:
        cells = [
            _spread([cut[split, "offline"].correlations[key] for cut in cuts]) for split in AIMS
        ]
        lines.append(f"| {key.removesuffix('_score')} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _calibration(chances: np.ndarray, truths: np.ndarray) -> str:
    lines = [
        "## Are its chances true?\n",
        "Pairs of span and category by the chance `offline` gives them, and the share that gold",
        "marks.\n",
        "| chance | pairs | mean chance | marked |",
        "|---|---|---|---|",
    ]
    edges = [0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0]
    for low, high in pairwise(edges):
        here = (chances >= low) & (chances < high)
        if here.any():
            mean, marked = chances[here].mean(), truths[here].mean()
            lines.append(f"| {low} to {high} | {here.sum()} | {mean:.3f} | {marked:.3f} |")
    return "\n".join(lines) + "\n"

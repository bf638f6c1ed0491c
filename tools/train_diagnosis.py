"""Train and measure the learned detector: `python tools/train_diagnosis.py ../shared/trail`.

Measures on traces held out (five folds by trace, cut in several ways) and across domains.
--report writes the figures as a page, --write trains on everything and writes the model that the
package ships. The same traces give the same files, byte for byte.
"""

# ruff: noqa: T201 - a script that reports to its terminal

from __future__ import annotations

import argparse
import os
import random
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

# Sums over several threads differ in their last digits, and with them the file. Set before numpy.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from _diagnosis_report import YARDSTICK, Figures, page
from _diagnosis_training import SPLITS, Example, read, train
from _diagnosis_yardstick import yardstick

from proctor.diagnose.finding import scores_of
from proctor.diagnose.learned.detector import MODEL_FILE, Detectors, find, judged
from proctor.trail.scorer import Annotation, Mark, Scorecard, score

FOLDS = 5
CUTS = 5
"""Ways to cut the folds: one cut steps a figure by 0.02 either way."""
METHODS = ("rules", "learned", "offline")


class HeldOut(NamedTuple):
    """Results of one split into folds: scorecards, probabilities and the truth."""

    cards: dict[tuple[str, str], Scorecard]
    chances: list[np.ndarray]
    truths: list[np.ndarray]


def folds(examples: list[Example], cut: int) -> list[tuple[list[Example], list[Example]]]:
    """Traces apart, never spans; each fold holds its share of both splits."""
    place: dict[str, int] = {}
    for split in SPLITS:
        names = sorted(e.name for e in examples if e.split == split)
        random.Random(cut).shuffle(names)  # noqa: S311 - a fixed cut, not a secret
        place |= {name: number % FOLDS for number, name in enumerate(names)}
    return [
        (
            [e for e in examples if place[e.name] != fold],
            [e for e in examples if place[e.name] == fold],
        )
        for fold in range(FOLDS)
    ]


def predicted(
    known: Detectors, example: Example, method: str, *, forced: bool = False
) -> Annotation:
    """Return the findings of a method; `forced`: also for unknown kinds of traces."""
    found, values = example.findings, None
    if forced:
        reading = known.detector.read_rows(example.rows)
        found = judged(known, reading, example.rows, example.findings, method)
    elif method != "rules":
        found, values = find(known, example.rows, example.findings, method)
    scores = scores_of(found, values) if values is not None else {}
    told = {f"{name}_score": entry.value for name, entry in scores.items()}
    if told:
        told["overall"] = sum(told.values()) / len(told)
    return Annotation(tuple(Mark(f.location, f.category) for f in found), told)


def held_out(examples: list[Example], cut: int) -> HeldOut:
    """Every figure of one cut of the folds."""
    guesses: dict[str, dict[str, Annotation]] = {method: {} for method in METHODS}
    chances: list[np.ndarray] = []
    truths: list[np.ndarray] = []
    parts = folds(examples, cut)
    for learn, test in parts:
        known = train(learn)
        for example in test:
            for method in METHODS:
                guesses[method][example.name] = predicted(known, example, method)
            reading = known.detector.read_rows(example.rows)
            chance = known.chances(reading, example.rows, example.findings, "offline")
            chances.append(chance[chance > 0])
            truths.append(example.truth[chance > 0])
    cards: dict[tuple[str, str], Scorecard] = {}
    for split in SPLITS:
        gold = {e.name: e.gold for e in examples if e.split == split}
        for method in METHODS:
            guess = {name: guesses[method][name] for name in gold}
            cards[split, method] = score(gold, guess)
    findings = {split: cards[split, "offline"].findings_per_trace or 0.0 for split in SPLITS}
    plain = yardstick(parts, findings)
    cards |= {(split, YARDSTICK): card for split, card in plain.items()}
    return HeldOut(cards, chances, truths)


def across(examples: list[Example]) -> dict[tuple[str, str], Scorecard]:
    """Trained on one split, tested on the other."""
    cards: dict[tuple[str, str], Scorecard] = {}
    for split in SPLITS:
        known = train([e for e in examples if e.split != split])
        test = [e for e in examples if e.split == split]
        gold = {e.name: e.gold for e in test}
        for method in METHODS:
            cards[split, method] = score(gold, {e.name: predicted(known, e, method) for e in test})
        guess = {e.name: predicted(known, e, "learned", forced=True) for e in test}
        cards[split, "learned, forced"] = score(gold, guess)
    return cards


def write(known: Detectors, path: Path) -> None:
    """Write the model of the package."""
    target = BytesIO()
    np.savez_compressed(target, allow_pickle=False, **known.arrays())
    path.write_bytes(target.getvalue())
    print(f"wrote {path.name} ({path.stat().st_size / 1e6:.2f} MB)")


def main() -> None:
    """Measure, and write the model and page if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trail", type=Path, help="the folder with data/ and the annotations")
    parser.add_argument("--cuts", type=int, default=CUTS, help="ways to cut the folds; 0: none")
    parser.add_argument("--report", type=Path, help="write the figures to this page")
    parser.add_argument("--write", action="store_true", help="write the model of the package")
    options = parser.parse_args()
    examples, problems = read(options.trail)
    for problem in problems:
        print(f"note: {problem}")
    if options.write:
        package = Path(__file__).resolve().parent.parent / "src/proctor/diagnose/learned"
        write(train(examples), package / MODEL_FILE)
    if options.cuts:
        cuts = [held_out(examples, cut) for cut in range(options.cuts)]
        chances = np.concatenate([c for cut in cuts for c in cut.chances])
        truths = np.concatenate([t for cut in cuts for t in cut.truths])
        text = page(Figures([cut.cards for cut in cuts], across(examples), chances, truths))
        print(text)
        if options.report:
            options.report.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

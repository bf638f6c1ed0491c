"""Train and measure the learned detector: `python tools/train_diagnosis.py ../shared/trail`.

Prints figures of traces held out (five folds, by trace) and figures across domains; with --write
it then trains on everything and writes the model that the package ships. The same traces give
the same file, byte for byte.
"""

# ruff: noqa: T201 - a script that reports to its terminal, and sets threads before numpy

from __future__ import annotations

import argparse
import os
import random
from io import BytesIO
from pathlib import Path

# Sums over several threads differ in their last digits, and with them the file.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from _diagnosis_training import SPLITS, Example, read, train

from proctor.diagnose.learned.detector import MODEL_FILE
from proctor.diagnose.learned.find import Detectors, find, judged
from proctor.diagnose.scorer import Scorecard, score
from proctor.diagnose.trail_data import Annotation, Mark

FOLDS = 5
METHODS = ("rules", "learned", "offline")


def folds(examples: list[Example], seed: int) -> list[tuple[list[Example], list[Example]]]:
    """Traces apart, never spans: what is learned is tested on unseen traces."""
    names = sorted(e.name for e in examples)
    random.Random(seed).shuffle(names)  # noqa: S311 - a fixed split, not a secret
    parts = [set(names[k::FOLDS]) for k in range(FOLDS)]
    return [
        ([e for e in examples if e.name not in part], [e for e in examples if e.name in part])
        for part in parts
    ]


def predictions(
    known: Detectors, examples: list[Example], method: str, *, forced: bool = False
) -> dict[str, Annotation]:
    """What a method finds in traces; `forced`, also in those it would keep silent on."""
    result: dict[str, Annotation] = {}
    for example in examples:
        found = example.findings
        if forced:
            reading = known.detector.read_rows(example.rows)
            found = judged(known, reading, example.rows, example.findings, method)
        elif method != "rules":
            found = find(known, example.rows, example.findings, method)
        result[example.name] = Annotation(tuple(Mark(f.location, f.category) for f in found))
    return result


def line(name: str, card: Scorecard) -> str:
    """One line of figures."""
    return (
        f"{name:34s} joint {card.joint_accuracy:.3f}  location {card.location_accuracy:.3f}  "
        f"weighted F1 {card.weighted_f1:.3f}  pair F1 {card.pair_f1:.3f}  "
        f"findings/trace {card.findings_per_trace:.1f}"
    )


def measure(examples: list[Example], seed: int) -> list[str]:
    """Every figure of traces held out."""
    guesses: dict[str, dict[str, Annotation]] = {method: {} for method in METHODS}
    for learn, test in folds(examples, seed):
        known = train(learn)
        for method in METHODS:
            guesses[method] |= predictions(known, test, method)
    lines: list[str] = []
    for split in SPLITS:
        gold = {e.name: e.gold for e in examples if e.split == split}
        for method in METHODS:
            guess = {name: guesses[method][name] for name in gold}
            lines.append(line(f"{split}, {method}", score(gold, guess)))
    return lines


def across(examples: list[Example]) -> list[str]:
    """Trained on one split, tested on the other."""
    lines: list[str] = []
    for split in SPLITS:
        known = train([e for e in examples if e.split != split])
        test = [e for e in examples if e.split == split]
        gold = {e.name: e.gold for e in test}
        for method in METHODS[1:]:
            guess = predictions(known, test, method)
            lines.append(line(f"other -> {split}, {method}", score(gold, guess)))
        guess = predictions(known, test, "learned", forced=True)
        lines.append(line(f"other -> {split}, learned, forced", score(gold, guess)))
    return lines


def write(known: Detectors, path: Path) -> None:
    """Write the model of the package."""
    target = BytesIO()
    np.savez_compressed(target, allow_pickle=False, **known.arrays())
    path.write_bytes(target.getvalue())
    print(f"wrote {path.name} ({path.stat().st_size / 1e6:.2f} MB)")


def main() -> None:
    """Measure, and write when asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "trail", type=Path, help="the folder with data/ and processed_annotations_*/"
    )
    parser.add_argument("--write", action="store_true", help="write the model of the package")
    parser.add_argument("--seeds", type=int, default=1, help="how many ways to cut the folds")
    options = parser.parse_args()
    examples, problems = read(options.trail)
    for problem in problems:
        print(f"note: {problem}")
    for seed in range(options.seeds):
        print(*measure(examples, seed), sep="\n", flush=True)
    print(*across(examples), sep="\n", flush=True)
    if options.write:
        package = Path(__file__).resolve().parent.parent / "src/proctor/diagnose/learned"
        write(train(examples), package / MODEL_FILE)


if __name__ == "__main__":
    main()

"""Measure the rules of diagnosis on TRAIL: `python tools/measure_diagnosis.py ../shared/trail`.

Prints one line a split with the official metrics and ours, and the time a trace takes.
"""

# ruff: noqa: T201 - a script that reports to its terminal

import statistics
import sys
from pathlib import Path

from proctor.diagnose.methods import diagnose
from proctor.trace.load import load_traces
from proctor.trail.scorer import Annotation, Mark, read_annotations, score

SPLITS = {"GAIA": "gaia", "SWE Bench": "swe_bench"}


def measure(folder: Path, split: str) -> None:
    """Diagnose every trace of a split, score the findings, print the figures."""
    gold = read_annotations(folder / f"processed_annotations_{SPLITS[split]}")
    for problem in gold.problems:
        print(f"note: {problem}")
    predicted: dict[str, Annotation] = {}
    seconds: list[float] = []
    for path in sorted((folder / "data" / split).glob("*.json")):
        (trace,) = load_traces(path)
        found = diagnose(trace, "rules")
        seconds.extend(found.seconds.values())
        marks = tuple(Mark(f.location, f.category.value) for f in found.findings)
        predicted[path.stem] = Annotation(marks)
    card = score(gold.by_trace, predicted)
    figures = {
        "joint": card.joint_accuracy,
        "location": card.location_accuracy,
        "weighted F1": card.weighted_f1,
        "pair precision": card.pair_precision,
        "pair recall": card.pair_recall,
        "pair F1": card.pair_f1,
        "findings/trace": card.findings_per_trace,
        "median ms": statistics.median(seconds) * 1000,
    }
    told = ", ".join(f"{name} {value:.3f}" for name, value in figures.items() if value is not None)
    print(f"{split} ({card.traces} traces): {told}")


if __name__ == "__main__":
    for each in SPLITS:
        measure(Path(sys.argv[1]), each)

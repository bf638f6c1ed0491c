"""Format experiment results as plain text and Markdown tables.

Undefined values are shown as a dash, never as 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from proctor.formatting import duration_ms, p_text, plural
from proctor.sanitize import line
from proctor.tables import table

FIGURES = {
    "joint_accuracy": "joint",
    "location_accuracy": "location",
    "weighted_f1": "weighted F1",
    "pair_f1": "pair F1",
    "pair_precision": "pair precision",
    "pair_recall": "pair recall",
    "findings_per_trace": "findings/trace",
}
"""Metrics in display order, and their short names."""

WIDTH = 26
"""Column width of metric names: the longest, r(instruction_adherence), has 24."""

TRAINED = (
    "the shipped detector was trained on 97 traces of TRAIL, so these figures are far too good "
    "for them; for figures on held-out traces see docs/reference/diagnosis-measured.md"
)
"""Note for every method that uses the detector: all but the rules."""

SETTINGS = ("split", "subset", "approach", "model", "prompt_version", "evidence", "leads")

MAY_DIFFER = ("subset", "model", "prompt_version", "evidence", "leads", "notes")
"""Settings shown next to metrics where experiments differ."""


class TrailResult(NamedTuple):
    """An experiment's run with its metrics."""

    config: dict[str, Any]
    metrics: dict[str, Any]
    path: Path


def figure(value: Any) -> str:
    """Format a number."""
    # Counts are whole numbers, metrics are floats, undefined ones None.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return f"{value:.3f}" if isinstance(value, float) else "–"


def score_lines(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Format one set of predictions for the terminal: the metrics, then each category."""
    yield f"{metrics['traces']} traces"
    if metrics.get("wall_seconds") is not None:
        yield f"  {'wall time':<{WIDTH}}{duration_ms(metrics['wall_seconds'] * 1000):>8}"
    if "failed" in metrics:
        yield f"  {'traces failed':<{WIDTH}}{len(metrics['failed']):>8}"
    for key, name in FIGURES.items():
        yield f"  {name:<{WIDTH}}{figure(metrics[key]):>8}"
    for key, found in metrics["correlations"].items():
        name = f"r({key.removesuffix('_score')})"
        about = f"n = {found['n']}"
        about += f": {found['reason']}" if found["reason"] else f", p {p_text(found['p_value'])}"
        yield f"  {name:<{WIDTH}}{figure(found['coefficient']):>8}  {about}"
    yield "  category                          precision  recall      F1  traces"
    for name, row in metrics["categories"].items():
        # A category that neither side has says nothing.
        if row["support"] or row["precision"]:
            numbers = f"{row['precision']:>9.3f}{row['recall']:>8.3f}{row['f1']:>8.3f}"
            yield f"  {name:<34}{numbers}{row['support']:>8}"
    if metrics["categories_at_zero"]:
        yield f"  never found: {', '.join(metrics['categories_at_zero'])}"
    for key, words in (("without_prediction", "no prediction"), ("without_gold", "no gold")):
        if metrics[key]:
            yield f"  {words} for {len(metrics[key])}: {line(', '.join(metrics[key]), 200)}"
    yield from (f"  {each}" for each in _fallback_lines(metrics))
    if metrics.get("caution"):
        yield f"  note: {line(metrics['caution'], 300)}"


def summary_lines(result: TrailResult) -> Iterator[str]:
    """Return the summary of a run as Markdown."""
    config, metrics = result.config, result.metrics
    yield f"# {_cell(config['experiment_id'])}"
    yield ""
    for key in SETTINGS:
        if config.get(key):
            yield f"- {key.replace('_', ' ')}: {_cell(config[key])}"
    if config.get("notes"):
        yield f"- notes: {_cell(config['notes'])}"
    yield ""
    yield "| figure | value |"
    yield "|---|---:|"
    yield f"| traces | {metrics['traces']} |"
    for key, name in FIGURES.items():
        yield f"| {name} | {figure(metrics[key])} |"
    yield ""
    yield "| category | precision | recall | F1 | traces |"
    yield "|---|---:|---:|---:|---:|"
    for name, row in metrics["categories"].items():
        numbers = " | ".join(figure(row[key]) for key in ("precision", "recall", "f1", "support"))
        yield f"| {name} | {numbers} |"
    yield ""
    yield f"Never found (F1 = 0): {', '.join(metrics['categories_at_zero']) or 'none'}."
    for each in _fallback_lines(metrics):
        yield ""
        yield f"{_cell(each)}."
    if metrics.get("caution"):
        yield ""
        yield f"Note: {_cell(metrics['caution'])}."
    for name, why in metrics["failed"].items():
        yield ""
        yield f"Not judged: {_cell(name)}: {_cell(why)}"


def _fallback_lines(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Return a warning about traces answered by the fallback instead of the model."""
    if fallbacks := _fallbacks(metrics):
        why = line(next(iter(fallbacks.values())), 200)
        yield f"not the model's own answer for {plural(len(fallbacks), 'trace')}, such as: {why}"


def _fallbacks(metrics: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the fallback reasons by trace; empty for experiments of earlier versions."""
    return cast("Mapping[str, str]", metrics.get("fallen_back") or {})


def log_lines(experiments: Sequence[TrailResult]) -> Iterator[str]:
    """Format experiments as a table, one per line; settings that all share are left out."""
    # A setting that all experiments share would only widen the table.
    differing = [name for name in MAY_DIFFER if len({_setting(t, name) for t in experiments}) > 1]
    named = [name.replace("_", " ") for name in differing]
    heads = ["experiment", "split", "approach", "traces", *FIGURES.values(), "failed"]
    heads += ["fallback", *named]
    rows = [
        [
            line(result.config["experiment_id"], 32),
            line(result.config["split"], 12),
            line(result.config["approach"], 16),
            str(result.metrics["traces"]),
            *(figure(result.metrics[key]) for key in FIGURES),
            str(len(result.metrics["failed"])),
            str(len(_fallbacks(result.metrics))),
            *(line(_setting(result, name), 40) for name in differing),
        ]
        for result in experiments
    ]
    yield from table(heads, rows, indent="")


def _setting(result: TrailResult, name: str) -> str:
    """Format a setting for a table; for a file, its name."""
    value = str(result.config.get(name) or "–")
    return Path(value).name if name == "subset" else value


def _cell(value: Any) -> str:
    """Escape user text for Markdown: one line, no markup."""
    text = line(value, 300).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return text.replace("`", "\\`").replace("*", "\\*").replace("[", "\\[")

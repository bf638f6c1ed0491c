"""Quality of traces as text, and averages over many traces.

Guarantees: every average has its number of traces; names from traces are safe to print; a list that
is cut says how much is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from proctor.checks.quality import (
    AVERAGE,
    DIMENSIONS,
    LEVELS,
    Dimension,
    Quality,
    QualityLevel,
    SpanLatency,
)
from proctor.formatting import percent, plural
from proctor.sanitize import line

SHOWN_TIMES = 20
"""Rows of the latency breakdown that fit a screen with the rest; `--json` has them all."""

SHOWN_ISSUES = 10

_MARKS = {
    QualityLevel.TARGET: "✓ target",
    QualityLevel.BETWEEN: "– between",
    QualityLevel.ALERT: "✗ alert",
}


class Average(msgspec.Struct, frozen=True, kw_only=True):
    """One dimension over several traces; `traces` counts those that have a score."""

    name: str
    mean: float | None
    figure: float | None
    level: QualityLevel | None
    traces: int


def averages(scored: Sequence[Quality]) -> tuple[Average, ...]:
    """Return the mean of each dimension and of the overall score over traces that have one."""
    return tuple(_average(name, scored) for name in (*DIMENSIONS, "overall"))


def _average(name: str, scored: Sequence[Quality]) -> Average:
    found = [each.dimension(name) for each in scored]
    known = [each for each in found if each.score is not None]
    if not known:
        return Average(name=name, mean=None, figure=None, level=None, traces=0)
    mean = sum(each.score or 0.0 for each in known) / len(known)
    # The level is decided by the figure where a dimension has one, else by its score.
    figures = [each.score if each.figure is None else each.figure for each in known]
    figure = sum(each or 0.0 for each in figures) / len(known)
    level = LEVELS.get(name, AVERAGE).of(figure)
    return Average(name=name, mean=mean, figure=figure, level=level, traces=len(known))


def quality_lines(quality: Quality) -> Iterator[str]:
    """Yield the quality of one trace as lines."""
    overall = "no score" if quality.overall is None else f"{quality.overall:.2f}"
    level = "" if quality.level is None else f"  {_MARKS[quality.level]}"
    yield f"trace {line(quality.trace_id, 80)}  overall {overall}{level}"
    for each in quality.dimensions:
        yield f"  {_row(each, quality.weights.get(each.name))}"
    latency = "" if (ms := quality.tool_latency_ms) is None else f", {ms:,.0f} ms per tool call"
    yield (
        f"  {plural(quality.error_count, 'error')}, "
        f"{plural(quality.redundancy_count, 'redundant call')}, "
        f"{plural(quality.retrieval_count, 'retrieval')}{latency}"
    )
    yield from _listed("issues", quality.issues)
    yield from _listed("recommendations", quality.recommendations)
    yield from _times(quality.latency_breakdown)


def average_lines(found: Iterable[Average], traces: int) -> Iterator[str]:
    """Yield the averages over several traces as lines."""
    yield f"average of {traces} traces"
    for each in found:
        if each.mean is None or each.level is None:
            yield f"  {each.name:<15} no score in any of {traces} traces"
        else:
            of = f"{each.traces} of {plural(traces, 'trace')}"
            basis = _level_figure(each.name, each.figure)
            yield f"  {each.name:<15} {each.mean:.2f}  {_MARKS[each.level]:<9}  {basis}{of}"


def _row(each: Dimension, weight: float | None) -> str:
    if each.score is None:
        return f"{each.name:<15} –     {line(each.why, 200)}"
    level = _MARKS[each.level] if each.level is not None else ""
    share = f"weight {weight:.2f}" if weight else "not in overall"
    method = f"  by {line(each.method, 80)}" if each.method else ""
    basis = _level_figure(each.name, each.figure)
    parts = "".join(
        f"{name} {'n/a' if value is None else f'{value:.2f}'}, "
        for name, value in each.parts.items()
    )
    return f"{each.name:<15} {each.score:.2f}  {level:<9}  {basis}{parts}{share}{method}"


def _level_figure(name: str, figure: float | None) -> str:
    """Return the figure behind the level of a dimension, where it is not the score."""
    if figure is None:
        return ""
    if name == "redundancy":
        return f"{percent(figure)} of calls repeated, "
    return f"{percent(figure)} within target, " if name == "latency" else ""


def _listed(title: str, items: Sequence[str]) -> Iterator[str]:
    if not items:
        return
    yield f"  {title}"
    for item in items[:SHOWN_ISSUES]:
        yield f"    - {line(item, 300)}"
    if len(items) > SHOWN_ISSUES:
        yield f"    … and {len(items) - SHOWN_ISSUES} more"


def _times(breakdown: Sequence[SpanLatency]) -> Iterator[str]:
    if not breakdown:
        return
    yield "  latency breakdown"
    # The whole trace first, then the spans that exceed their target most.
    slowest = sorted(breakdown, key=lambda each: (each.span_id is not None, -each.ratio))
    for each in slowest[:SHOWN_TIMES]:
        name = line(each.name, 40)
        where = f"  {line(each.span_id, 40)}" if each.span_id else ""
        yield (
            f"    {each.kind:<9} {name:<40} {each.ms:>10,.0f} ms of {each.target_ms:>6,.0f}"
            f"  × {each.ratio:.2f}  {each.score:.1f}{where}"
        )
    if len(slowest) > SHOWN_TIMES:
        yield f"    … and {len(slowest) - SHOWN_TIMES} faster ones; --json has them all"

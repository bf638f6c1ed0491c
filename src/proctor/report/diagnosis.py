"""Diagnoses for people: on a terminal, and as Markdown.

Both show the same: each finding with its location, confidence and quote; scores with their
reasons; failures that many traces share as one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from proctor.diagnose.quotes import in_words
from proctor.formatting import money, percent, plural
from proctor.sanitize import line

if TYPE_CHECKING:
    from proctor.diagnose.clusters import Cluster
    from proctor.diagnose.finding import Diagnosis, Finding

QUOTE = 200
NAME = 64
MAX_CLUSTERS = 20
"""Rows shown; the rest are counted, and JSON has them all."""


def console_lines(found: Diagnosis, where: str | None = None) -> Iterator[str]:
    """Yield the diagnosis of one trace for a terminal."""
    count = len(found.findings)
    name = f"{line(where, 120)} " if where else ""
    yield f"{name}trace {line(found.trace_id, NAME)}: {counted(count)} ({found.method})"
    for finding in found.findings:
        yield f"  {finding.category.value} at {line(finding.location, NAME)} {sure(finding)}"
        yield f"    {line(finding.description, QUOTE)}"
        yield f"    > {line(finding.evidence, QUOTE)}"
    for name, score in found.scores.items():
        yield f"  {in_words(name)} {score.value:.1f} of 5: {line(score.reason, QUOTE)}"
    yield from (f"  note: {line(note, QUOTE)}" for note in found.notes)
    if (use := found.use) is not None:
        cached = f", {use.cached} from the cache" if use.cached else ""
        cost = money(use.cost_usd, use.unpriced)
        yield f"  {plural(use.calls, 'model call')}{cached}{f', {cost}' if cost else ''}"


def markdown_lines(found: Diagnosis, where: str | None = None) -> list[str]:
    """Return the diagnosis of one trace as Markdown."""
    name = f"{line(where, 120)}, trace" if where else "Trace"
    return _template_lines("diagnosis.md", found=found, where=name)


def cluster_lines(clusters: Sequence[Cluster], of: int) -> Iterator[str]:
    """Yield failures that traces share, for a terminal."""
    # "No finding" needs its denominator, too.
    if not clusters:
        yield f"no finding in {plural(of, 'trace')}"
        return
    yield f"{plural(len(clusters), 'kind')} of failure in {plural(of, 'trace')}:"
    for one in clusters[:MAX_CLUSTERS]:
        share = f"{one.count} of {one.of}"
        yield f"  {share:>12}  {one.category.value}, {line(one.place, NAME)} [{one.impact.value}]"
        yield f"                {line(one.message, QUOTE)}"
        sample = one.samples[0]
        yield f"                > {line(sample.where, 80)}: {line(sample.evidence, 120)}"
    if len(clusters) > MAX_CLUSTERS:
        yield f"  … {len(clusters) - MAX_CLUSTERS} more; --format json has them all"


def cluster_table(clusters: Sequence[Cluster], of: int) -> list[str]:
    """Return failures that traces share, as a Markdown table."""
    return _template_lines("clusters.md", clusters=clusters, of=of)


def _template_lines(name: str, **values: Any) -> list[str]:
    from proctor.report._markdown import render_template

    # The last line is empty: a blank line separates one diagnosis from the next.
    return render_template(name, **globals(), **values).split("\n")


def counted(count: int) -> str:
    """Return the number of findings."""
    return plural(count, "finding") if count else "no finding"


def sure(finding: Finding) -> str:
    """Return the impact and the confidence of a finding."""
    return f"({finding.impact.value}, {percent(round(finding.confidence, 2))} sure)"

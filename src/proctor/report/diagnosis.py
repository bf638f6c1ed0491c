"""Diagnoses for people: on a terminal, and as Markdown.

Both show the same: each finding with its location, confidence and quote; scores with their
reasons; failures that many traces share as one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from proctor.diagnose.finding import SHOWN_FROM, WITHOUT_EVIDENCE, in_words
from proctor.formatting import and_more, money, percent, plural
from proctor.sanitize import line

if TYPE_CHECKING:
    from proctor.diagnose.clusters import Cluster, SharedCause
    from proctor.diagnose.finding import Diagnosis, Finding, RootCause

QUOTE = 200
NAME = 64
MAX_CLUSTERS = 20
"""Rows shown; the rest are counted, and JSON has them all."""


def console_lines(
    found: Diagnosis, where: str | None = None, *, everything: bool = False
) -> Iterator[str]:
    """Yield the diagnosis of one trace for a terminal: where to start, then every finding."""
    findings = found.findings if everything else found.shown
    hidden = len(found.findings) - len(findings)
    name = f"{line(where, 120)} " if where else ""
    more = f", {hidden} below {percent(SHOWN_FROM)} hidden (--all)" if hidden else ""
    count = f"{counted(len(findings))}{more}"
    yield f"{name}trace {line(found.trace_id, NAME)}: {count} ({found.method})"
    yield from cause_lines(found)
    for finding in findings:
        if found.decisive is not None and _told(finding, found.decisive):
            continue
        step = f"step {finding.step}, " if finding.step is not None else ""
        yield f"  {step}{_kind(finding)} {sure(finding)}"
        yield f"    {line(finding.description, QUOTE)}"
        if finding.tested:
            yield f"    tested  {line(finding.tested, QUOTE)}"
        yield f"    > {line(finding.evidence, QUOTE)}"
    for name, score in found.scores.items():
        yield f"  {in_words(name)} {score.value:.1f} of 5: {line(score.reason, QUOTE)}"
    yield f"  looked at by: {looked(found)}"
    yield from (f"  note: {line(note, QUOTE)}" for note in other_notes(found))
    if (use := found.use) is not None:
        cached = f", {use.cached} from the cache" if use.cached else ""
        cost = money(use.cost_usd, use.unpriced)
        yield f"  {plural(use.calls, 'model call')}{cached}{f', {cost}' if cost else ''}"


def cause_lines(found: Diagnosis) -> Iterator[str]:
    """Yield where to start looking: the decisive step, or up to three candidates."""
    several = len(found.candidates) > 1
    for number, cause in enumerate(found.candidates, start=1):
        head, _, rest = cause.what.partition(": ")
        title = f"START HERE {number} of {len(found.candidates)}" if several else "START HERE"
        if cause.confidence <= WITHOUT_EVIDENCE:
            title = f"IF IT FAILED, {title}"
        finding = next((f for f in found.findings if number == 1 and _told(f, cause)), None)
        kind = f"; {_kind(finding)} ({finding.impact.value})" if finding is not None else ""
        place = f"step {cause.step}, agent {line(cause.agent, NAME) or 'unknown'}"
        yield f"{title}  {place}, span {line(cause.location, 16)}: {line(head, QUOTE)}"
        if rest:
            yield f"  {line(rest, QUOTE)}"
        if finding is not None:
            yield f"  > {line(finding.evidence, QUOTE)}"
        yield f"  why  {line(cause.why, QUOTE)} ({percent(round(cause.confidence, 2))} sure){kind}"
        for because in cause.because:
            yield f"  caused by  {line(because, QUOTE)}"
        if cause.tested:
            yield f"  tested  {line(cause.tested, QUOTE)}"
        if cause.instead:
            yield f"  passing trials: {line(cause.instead, QUOTE)}"
        if cause.follows:
            yield f"  {plural(len(set(cause.follows)), 'later finding')} may follow from it"


def _kind(finding: Finding) -> str:
    also = f", also {', '.join(c.value for c in finding.also)}" if finding.also else ""
    return f"{finding.category.value} at {line(finding.location, NAME)}{also}"


def _told(finding: Finding, cause: RootCause) -> bool:
    """Return whether the lines of the cause say all that a finding does."""
    return finding.location == cause.location and finding.description == cause.what


LEARNED_NOTE, SCORES_NOTE = "learned detector: ", "scores: unknown"


def looked(found: Diagnosis) -> str:
    """Return what looked at the trace, and what could not."""
    parts = [", ".join(found.looked) or "nothing"]
    parts += [note for note in found.notes if note.startswith(LEARNED_NOTE)]
    if not found.scores:
        parts.append(SCORES_NOTE)
    return line("; ".join(parts), 2 * QUOTE)


def other_notes(found: Diagnosis) -> list[str]:
    """Return the notes that `looked` does not include."""
    return [note for note in found.notes if not note.startswith((LEARNED_NOTE, SCORES_NOTE))]


def markdown_lines(
    found: Diagnosis, where: str | None = None, *, everything: bool = False
) -> list[str]:
    """Return the diagnosis of one trace as Markdown."""
    name = f"{line(where, 120)}, trace" if where else "Trace"
    findings = found.findings if everything else found.shown
    return _template_lines("diagnosis.md", found=found, where=name, findings=findings)


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


def shared_cause_lines(
    rows: Sequence[SharedCause], of: int, notes: Mapping[str, int]
) -> Iterator[str]:
    """Yield causes that traces share, the most frequent first, for a terminal."""
    if rows:
        yield f"{plural(len(rows), 'cause')} in {plural(of, 'trace')}, the most frequent first:"
    for row in rows[:MAX_CLUSTERS]:
        checks = f"; failed: {', '.join(row.checks)}" if row.checks else ""
        yield f"  {f'{len(row.where)} of {row.of}':>12}  {line(row.place, NAME)}{line(checks, 120)}"
        indent = " " * 16
        if (cause := row.cause) is not None:
            place = f"step {cause.step}, agent {line(cause.agent, NAME) or 'unknown'}"
            yield f"{indent}START HERE  {place}: {line(cause.what, 2 * QUOTE)}"
            yield from (f"{indent}caused by  {line(text, QUOTE)}" for text in cause.because)
            if cause.tested:
                yield f"{indent}tested  {line(cause.tested, QUOTE)}"
            if cause.instead:
                yield f"{indent}passing trials: {line(cause.instead, QUOTE)}"
        yield f"{indent}> {and_more(row.where, 4, lambda where: line(where, 80))}"
    if len(rows) > MAX_CLUSTERS:
        yield f"  … {len(rows) - MAX_CLUSTERS} more; --format json has them all"
    for note, count in notes.items():
        yield f"  note ({count} of {plural(of, 'trace')}): {line(note, QUOTE)}"


def shared_cause_table(rows: Sequence[SharedCause], of: int, notes: Mapping[str, int]) -> list[str]:
    """Return causes that traces share, as a Markdown table."""
    return _template_lines("causes.md", rows=rows, of=of, notes=notes)


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

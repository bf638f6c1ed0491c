"""Why something did not pass, in lines for a person at a terminal or in the log of a build.

Promise: every check that did not hold is told with its reason, what was expected, what was found
and the spans it is about, then the trace as a tree; nothing an agent said is obeyed by a terminal,
and everything is cut to what a person reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from proctor.checks.result import CheckResult, CheckStatus
from proctor.report.text import line, shown
from proctor.trace import Trace
from proctor.trace.render import span_line, tree_lines

MOST_SPANS = 3
"""Spans shown per check: enough to see what it is about; the tree has the others."""

TREE_SPANS = 30
"""Lines of a tree in a failure: about a screen."""

_TOLD = (CheckStatus.FAIL, CheckStatus.UNSCORED, CheckStatus.WARN)
"""Worst first."""


def explain(
    headline: str,
    facts: Sequence[tuple[str, str]],
    results: Sequence[CheckResult],
    trace: Trace | None,
) -> str:
    """The whole story: the reason in one line, facts, checks, trace."""
    lines = [
        headline,
        *(f"  {label:<9}{text}" for label, text in facts if text),
        *check_lines(results, trace),
    ]
    if trace is not None and trace.spans:
        lines += ["  trace", *(f"    {each.plain()}" for each in tree_lines(trace, TREE_SPANS))]
    return "\n".join(lines)


def check_lines(results: Iterable[CheckResult], trace: Trace | None) -> Iterator[str]:
    """Every check that did not hold, the worst first."""
    told = [result for result in results if result.status in _TOLD]
    for result in sorted(told, key=lambda r: _TOLD.index(r.status)):
        by = f" (by {line(result.method)})" if result.method else ""
        where = f"{result.layer.value}.{line(result.id)}"
        yield f"  {result.status.value.upper():<8} {where}: {line(result.reason)}{by}"
        for label, value in (("expected", result.expected), ("actual", result.actual)):
            if value is not None:
                yield f"           {label:<9}{shown(value)}"
        yield from _span_lines(result.span_ids, trace)


def _span_lines(span_ids: Sequence[str], trace: Trace | None) -> Iterator[str]:
    known = {} if trace is None else {span.span_id: span for span in trace.spans}
    for span_id in span_ids[:MOST_SPANS]:
        about = f"  {span_line(known[span_id]).plain()}" if span_id in known else ""
        yield f"           {'span':<9}{line(span_id, 40)}{about}"
    if (more := len(span_ids) - MOST_SPANS) > 0:
        yield f"           {'':<9}and {more} more"


def reason_of(results: Sequence[CheckResult], score: float | None, threshold: float) -> str:
    """In one line, what decided: the first check that blocks, that cannot be judged, the score."""
    for status in (CheckStatus.FAIL, CheckStatus.UNSCORED):
        for result in results:
            if result.status == status:
                return f"{line(result.id)}: {line(result.reason)}"
    lost = next((r for r in results if r.failed and r.weight), None)
    why = f": {line(lost.id)}: {line(lost.reason)}" if lost else ""
    return f"score {score or 0.0:.2f} is below {threshold:g}{why}"


def asked(value: Any) -> str:
    """What the agent was asked, in a line."""
    return line(value) if isinstance(value, str) else shown(value)

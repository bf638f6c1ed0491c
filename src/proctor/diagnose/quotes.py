"""Evidence for findings: a quote that occurs in its span, or none; and scores with reasons.

Guarantees: `quote` returns text for which `contains_quote` is true. Passages are truncated to a
readable line; where none occurs in the span, its own output is quoted, then its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from proctor.diagnose.finding import Impact, Score
from proctor.diagnose.taxonomy import Category, Group
from proctor.formatting import plural

if TYPE_CHECKING:
    from proctor.diagnose.finding import Finding
    from proctor.trace import Span


# Maximum characters of a quote: two lines of a terminal.
MAX_QUOTE = 240


def span_texts(span: Span) -> Iterator[str]:
    """Return every text of a span: output, input and everything it recorded."""
    for message in (*span.output_messages, *span.input_messages):
        if message.content:
            yield message.content
        for call in message.tool_calls:
            yield call.name
            yield from _strings(call.arguments)
    for value in (span.output, span.tool_output, span.tool_input, span.input):
        yield from _strings(value)
    yield from _strings([span.error_message, span.error_type, span.name])
    yield from _strings(span.attributes)
    for event in span.events:
        yield event.name
        yield from _strings(event.attributes)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
        if entries:  # models quote a mapping as Python prints it
            yield repr(entries)
        for entry in entries.values():
            yield from _strings(entry)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for item in cast("Sequence[Any]", value):
            yield from _strings(item)


def contains_quote(span: Span, passage: str) -> bool:
    """Return whether the span contains this passage verbatim."""
    return bool(passage) and any(passage in text for text in span_texts(span))


def quote(span: Span, *wanted: str) -> str:
    """Return the first passage found in the span, truncated; else the start of its text."""
    for passage in wanted:
        cut = passage.strip()[:MAX_QUOTE].strip()
        if cut and contains_quote(span, cut):
            return cut
    for text in span_texts(span):
        cut = text.strip()[:MAX_QUOTE].strip()
        if cut:
            return cut
    return span.name


# The four scores of a trace, 0 to 5; each reason names the related findings. Values come from the
# learned detector where it is competent, otherwise from a fixed deduction per finding. Neither
# looks at the answer: a score describes how a trace reads.


BEST = 5.0

_PLANNING = frozenset(c for c in Category if c.group is Group.PLANNING)

# The scores, in TRAIL's order and under its names, with the categories that affect each.
BEARS_ON: Mapping[str, frozenset[Category]] = {
    "reliability": frozenset(Category),
    "security": frozenset({Category.AUTHENTICATION}),
    "instruction_adherence": frozenset(
        {
            Category.NON_COMPLIANCE,
            Category.FORMATTING,
            Category.GOAL_DEVIATION,
            Category.WRONG_PROBLEM,
        }
    ),
    "plan_opt": _PLANNING | {Category.TOOL_SELECTION, Category.POOR_RETRIEVAL},
}

# Points deducted for a finding of each impact where the learned detector is not competent: an
# error that affects the answer counts as two errors of the process.
DEDUCTION = {Impact.HIGH: 1.0, Impact.MEDIUM: 0.5, Impact.LOW: 0.25}


def scores_of(
    findings: Sequence[Finding], values: Sequence[float] | None = None
) -> dict[str, Score]:
    """Return every score with its reason; `values` are those of the learned detector, in order."""
    result: dict[str, Score] = {}
    for number, (name, categories) in enumerate(BEARS_ON.items()):
        bearing = [finding for finding in findings if finding.category in categories]
        if values is not None:
            value = values[number]
        else:
            value = BEST - sum(DEDUCTION[finding.impact] for finding in bearing)
        result[name] = Score(round(min(max(value, 0.0), BEST), 2), _reason(bearing))
    return result


def _reason(findings: Sequence[Finding]) -> str:
    if not findings:
        return "No related findings."
    counted = Counter(finding.category.value for finding in findings)
    named = ", ".join(f"{name} ({n})" if n > 1 else name for name, n in counted.most_common(4))
    rest = len(counted) - 4
    return f"{named} and {plural(rest, 'more kind')}." if rest > 0 else f"{named}."


def in_words(name: str) -> str:
    """Return the display name of a score."""
    return "plan optimality" if name == "plan_opt" else name.replace("_", " ")

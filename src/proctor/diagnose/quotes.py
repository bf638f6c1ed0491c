"""Evidence: a quote that stands in the span it is given for, or no quote at all.

Promise: `quote` returns text for which `stands_in` is true. Wanted passages are cut to a line a
person reads; where none of them stands in the span, its own output speaks, then its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from proctor.diagnose.finding import Impact, Score
from proctor.diagnose.taxonomy import Category, Group
from proctor.words import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proctor.diagnose.finding import Finding
    from proctor.trace import Span


MAX_QUOTE = 240
"""Characters of a quote: two lines of a terminal."""


def span_texts(span: Span) -> Iterator[str]:
    """Every text of a span: what it said, what it was told, and all it recorded."""
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
        if entries:
            yield repr(entries)
        for entry in entries.values():
            yield from _strings(entry)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for item in cast("Sequence[Any]", value):
            yield from _strings(item)


def stands_in(span: Span, passage: str) -> bool:
    """Whether the span holds this passage word for word."""
    return bool(passage) and any(passage in text for text in span_texts(span))


def quote(span: Span, *wanted: str) -> str:
    """The first wanted passage that stands in the span, cut; else the start of its own text."""
    for passage in wanted:
        cut = passage.strip()[:MAX_QUOTE].strip()
        if cut and stands_in(span, cut):
            return cut
    for text in span_texts(span):
        cut = text.strip()[:MAX_QUOTE].strip()
        if cut:
            return cut
    return span.name


# The four scores of a trace, 0 to 5, and why: each reason names the findings that bear on it.
#
# Values come from the learned detector where it knows the trace; elsewhere from the findings
# alone, by a fixed deduction for each. Neither has looked at the answer: a score says how a
# trace reads.


BEST = 5.0

_PLANNING = frozenset(c for c in Category if c.group is Group.PLANNING)

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
"""The scores, in TRAIL's order and under its names, and the categories that speak of each."""

DEDUCTION = {Impact.HIGH: 1.0, Impact.MEDIUM: 0.5, Impact.LOW: 0.25}
"""Points a finding of each impact takes off where nothing was learned: an error that touches the
answer weighs as two of the process, and nobody is sure of more than that."""


def scores_of(
    findings: Sequence[Finding], values: Sequence[float] | None = None
) -> dict[str, Score]:
    """Every score with its reason; `values` are those of the learned detector, in order."""
    result: dict[str, Score] = {}
    for number, (name, categories) in enumerate(BEARS_ON.items()):
        bearing = [finding for finding in findings if finding.category in categories]
        value = values[number] if values is not None else _deducted(bearing)
        result[name] = Score(round(min(max(value, 0.0), BEST), 2), _reason(bearing))
    return result


def _deducted(findings: Iterable[Finding]) -> float:
    return BEST - sum(DEDUCTION[finding.impact] for finding in findings)


def _reason(findings: Sequence[Finding]) -> str:
    if not findings:
        return "No finding bears on it."
    counted = Counter(finding.category.value for finding in findings)
    named = ", ".join(f"{name} ({n})" if n > 1 else name for name, n in counted.most_common(4))
    rest = len(counted) - 4
    return f"{named} and {plural(rest, 'more kind')}." if rest > 0 else f"{named}."


def in_words(name: str) -> str:
    """A score's name as people say it."""
    return "plan optimality" if name == "plan_opt" else name.replace("_", " ")

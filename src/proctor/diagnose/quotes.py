"""Evidence for findings: a quote that occurs in its span, or none; and scores with reasons.

Guarantees: `quote` returns text for which `contains_quote` is true. Passages are truncated to a
readable line; where none occurs in the span, its own output is quoted, then its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from proctor.diagnose.finding import Category, Group, Score
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
        cut = _whole(passage)
        if cut not in _NOTHING and contains_quote(span, cut):
            return cut
    for text in span_texts(span):
        cut = _whole(text)
        if cut not in _NOTHING:
            return cut
    return span.name


# Texts that quote nothing: how programs print the absence of a value.
_NOTHING = ("", "None", "null", "[None]", "nan")


def _whole(passage: str) -> str:
    """Return as much of a passage as a quote holds, at the end of a sentence or word if cut."""
    text = passage.strip()
    if len(text) <= MAX_QUOTE:
        return text
    cut = text[:MAX_QUOTE]
    for end in (cut.rfind(". ") + 1, cut.rfind("\n"), cut.rfind(" ")):
        if end > MAX_QUOTE // 2:
            return cut[:end].strip()
    return cut.strip()


# The four scores of a trace, 0 to 5; each reason names the related findings. Values come from the
# learned detector or a model; nothing else is competent to give them. No score looks at the
# answer: it describes how a trace reads.


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


def scores_of(findings: Sequence[Finding], values: Sequence[float]) -> dict[str, Score]:
    """Return every score with its reason; `values` are those of a detector, in order."""
    result: dict[str, Score] = {}
    for value, (name, categories) in zip(values, BEARS_ON.items(), strict=True):
        bearing = [f for f in findings if not categories.isdisjoint((f.category, *f.also))]
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

"""Evidence: a quote that stands in the span it is given for, or no quote at all.

Promise: `quote` returns text for which `stands_in` is true. Wanted passages are cut to a line a
person reads; where none of them stands in the span, its own output speaks, then its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
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

"""The attribute dialects of the wild, normalised onto the fields of a span.

Promise: `normalise` never raises and never overwrites what is known; several dialects may speak
on one span, and the first in the order of `DIALECTS` that knows a field decides it.
"""

from __future__ import annotations

from typing import Protocol

from proctor.trace.conventions import (
    adk,
    adot,
    genai,
    langfuse_sdk,
    openinference,
    pydantic_ai,
    traceloop,
    vercel,
)
from proctor.trace.conventions.errors import read_error
from proctor.trace.conventions.proctor import from_attributes
from proctor.trace.conventions.whole_trace import finish
from proctor.trace.model import Span, SpanKind

__all__ = ["DIALECTS", "finish", "normalise"]


class Dialect(Protocol):
    """A module that understands one producer's attributes."""

    @property
    def HEADS(self) -> frozenset[str]:  # noqa: N802
        """First segments of the keys it reads; a span without any is none of its business."""
        ...

    def kind(self, span: Span) -> SpanKind | None:
        """The kind of a span, when this dialect says one."""
        ...

    def read(self, span: Span) -> None:
        """Fill the fields that are not known yet; `span.kind` is settled."""
        ...


# Standards before vendors; Langfuse last of those, because its exports repeat what other
# instrumentations said, and a plain Langfuse span says less than any of them.
DIALECTS: tuple[Dialect, ...] = (
    genai,
    openinference,
    traceloop,
    pydantic_ai,
    vercel,
    adk,
    langfuse_sdk,
    adot,
)


def normalise(span: Span) -> None:
    """Fill the normalised fields of a span from its attributes, events, scope and name."""
    heads = {key.partition(".")[0] for key in span.attributes}
    if "proctor" in heads and from_attributes(span):
        return
    if span.scope:
        heads.add(span.scope.partition(".")[0])
    for event in span.events:
        heads.add(event.name.partition(".")[0])
        if "body" in event.attributes:
            heads.add("body")
    spoken = [dialect for dialect in DIALECTS if not heads.isdisjoint(dialect.HEADS)]
    if span.kind == SpanKind.OTHER and spoken:
        found = (dialect.kind(span) for dialect in spoken)
        settled = next((kind for kind in found if kind is not None), None)
        span.kind = settled or genai.likely_kind(span) or SpanKind.OTHER
    for dialect in spoken:
        dialect.read(span)
    if span.kind == SpanKind.TOOL and span.tool_name is None:
        span.tool_name = span.name or None
    if span.failed:
        read_error(span)

"""Normalise the attribute conventions of tracing libraries into the fields of a span.

Guarantees: `normalise` never raises and never overwrites a known field; several dialects may apply
to one span, and the first in the order of `DIALECTS` that knows a field sets it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol

from proctor.trace.conventions import (
    adk,
    adot,
    coding_cli,
    genai,
    langfuse,
    mlflow,
    openinference,
    openllmetry,
    pydantic_ai,
    vercel,
)
from proctor.trace.conventions._whole_trace import (
    finish,
    merge_models,
    merge_tools,
    recover_calls,
    same_reply,
    summarise,
)
from proctor.trace.conventions.messages import documents_from
from proctor.trace.conventions.proctor import from_attributes
from proctor.trace.conventions.values import MAX_CACHED_KEYS, read_error
from proctor.trace.model import Span, SpanKind

__all__ = [
    "DIALECTS",
    "documents_from",
    "finish",
    "merge_models",
    "merge_tools",
    "normalise",
    "recover_calls",
    "same_reply",
    "summarise",
]


class Dialect(Protocol):
    """A module that reads one producer's attributes."""

    @property
    def HEADS(self) -> frozenset[str]:  # noqa: N802 (a constant of the module)
        """First segments of the keys it reads; spans without any of them are skipped."""
        ...

    def kind(self, span: Span) -> SpanKind | None:
        """Return the kind of a span, or None when this dialect does not define it."""
        ...

    def read(self, span: Span) -> None:
        """Fill the unknown fields; `span.kind` is already set."""
        ...


# Standards before vendors; Langfuse last of those, because its exports repeat the values of other
# instrumentations, and a plain Langfuse span has less detail than any of them.
DIALECTS: tuple[Dialect, ...] = (
    coding_cli,
    genai,
    openinference,
    openllmetry,
    pydantic_ai,
    vercel,
    adk,
    mlflow,
    langfuse,
    adot,
)


def normalise(span: Span) -> None:
    """Fill the normalised fields of a span from its attributes, events, scope and name."""
    attributes, events = span.attributes, span.events
    event_keys = tuple((e.name, "body" in e.attributes) for e in events) if events else ()
    if len(attributes) + len(event_keys) > MAX_CACHED_KEYS:
        ours, dialects = _dialects_for(attributes, span.scope, event_keys)
    else:
        ours, dialects = _cached_dialects_for(tuple(attributes), span.scope, event_keys)
    # A complete Proctor record needs no dialect, and none may override it.
    if ours and from_attributes(span):
        return
    if span.kind == SpanKind.OTHER and dialects:
        kinds = (dialect.kind(span) for dialect in dialects)
        known = next((kind for kind in kinds if kind is not None), None)
        span.kind = known or genai.likely_kind(span) or SpanKind.OTHER
    # After the kind is known, because dialects read different attributes for each kind.
    for dialect in dialects:
        dialect.read(span)
    if span.kind == SpanKind.TOOL and span.tool_name is None:
        span.tool_name = span.name or None
    if span.failed:
        read_error(span)


def _dialects_for(
    keys: Iterable[str], scope: str | None, events: Iterable[tuple[str, bool]]
) -> tuple[bool, tuple[Dialect, ...]]:
    """Return whether Proctor wrote these keys, and the dialects that can read them."""
    heads = {key.partition(".")[0] for key in keys}
    ours = "proctor" in heads
    if scope:
        heads.add(scope.partition(".")[0])
    for name, has_body in events:
        heads.add(name.partition(".")[0])
        if has_body:
            heads.add("body")
    return ours, tuple(each for each in DIALECTS if not heads.isdisjoint(each.HEADS))


_cached_dialects_for = lru_cache(maxsize=1024)(_dialects_for)
"""Cached by keys, because spans of one instrumentation repeat the same ones."""

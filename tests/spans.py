"""Spans and traces in one line, for tests: times are in milliseconds, a span lasts 10 of them."""

from typing import Any

from proctor.trace import Span, SpanQuery, SpanTree, Trace

MILLISECOND = 1_000_000


def span(
    span_id: str,
    parent: str | None = None,
    *,
    start: int = 0,
    end: int | None = 10,
    name: str | None = None,
    **fields: Any,
) -> Span:
    """A span named after its id; `end` counts from its start, None leaves it open."""
    return Span(
        span_id=span_id,
        trace_id="trace",
        parent_id=parent,
        name=span_id if name is None else name,
        start_ns=start * MILLISECOND,
        end_ns=None if end is None else (start + end) * MILLISECOND,
        **fields,
    )


def trace(*spans: Span, **fields: Any) -> Trace:
    """A trace of these spans."""
    return Trace(trace_id="trace", spans=list(spans), **fields)


def family(**parents: str | None) -> Trace:
    """A trace from `child="parent"` pairs, each starting a millisecond after the one before."""
    return trace(
        *(span(child, parent, start=i) for i, (child, parent) in enumerate(parents.items()))
    )


def ids(of: Trace | SpanTree, query: Any) -> str:
    """Ids of the spans that match, in the order of the answer, joined by blanks."""
    tree = of.index if isinstance(of, Trace) else of
    query = query if isinstance(query, SpanQuery) else SpanQuery.parse(query)
    return " ".join(node.span_id for node in tree.select(query.mask(tree)))

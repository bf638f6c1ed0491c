"""Traces: what an agent did, as a tree of spans, from any wire format.

Nothing here knows of cases, checks or runs. Start at `load_traces`, `Trace` and `SpanQuery`.
"""

from proctor.trace.model import (
    Document,
    Event,
    Message,
    Span,
    SpanKind,
    SpanStatus,
    ToolCall,
    Trace,
    Usage,
)
from proctor.trace.query import QueryError, QueryResult, SpanQuery, TraceQuery, parse_query
from proctor.trace.tree import SpanNode, SpanTree

__all__ = [
    "Document",
    "Event",
    "Message",
    "QueryError",
    "QueryResult",
    "Span",
    "SpanKind",
    "SpanNode",
    "SpanQuery",
    "SpanStatus",
    "SpanTree",
    "ToolCall",
    "Trace",
    "TraceQuery",
    "Usage",
    "parse_query",
]

"""Load, query, capture, redact and export traces: trees of spans recorded from agents.

Independent of cases, checks and runs. Start at `load_traces`, `Trace` and `SpanQuery`.
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

"""The tables of the store.

traces(trace_id)             one row a trace: what lists show and filter by; derived from its spans
spans(trace_id, span_id)     narrow: what is counted and filtered; one row a span, the last received
payloads(trace_id, chunk)    what was received, compressed, in the order it came; the truth
uses(trace_id, kind, name)   how often a trace called a tool or a model, derived from its spans
evaluations(trace_id, name)  scores, checks and findings of a trace
notes(key)                   the version of these tables
tokens(name)                 who may use the server: the hash of a token, its role and project
audit(number)                who changed what through the server, and changes of tokens

`{big}`, `{real}`, `{blob}`, `{count}` and `{clustered}` are replaced by the words of each database.
"""

from typing import NamedTuple

VERSION = 7

TABLES = {
    "traces": """(
        trace_id TEXT PRIMARY KEY, name TEXT, service TEXT, query TEXT, response TEXT,
        request_id TEXT, session_id TEXT, user_id TEXT,
        started_ns {big} NOT NULL, ended_ns {big}, duration_ms {real}, status TEXT NOT NULL,
        spans {big} NOT NULL, errors {big} NOT NULL, llm_calls {big} NOT NULL,
        tool_calls {big} NOT NULL, input_tokens {big}, output_tokens {big}, cost_usd {real},
        unpriced {big} NOT NULL DEFAULT 0, updated_ns {big} NOT NULL,
        evaluated_ns {big} NOT NULL DEFAULT 0, score {real}, findings {big}
    )""",
    "spans": """(
        trace_id TEXT NOT NULL, span_id TEXT NOT NULL, parent_id TEXT, name TEXT NOT NULL,
        kind TEXT NOT NULL, status TEXT NOT NULL, start_ns {big} NOT NULL, end_ns {big},
        tool_name TEXT, model TEXT, input_tokens {big}, output_tokens {big}, cost_usd {real},
        error_type TEXT, PRIMARY KEY (trace_id, span_id)
    ) {clustered}""",
    # `logs`: how many log records; their traces are read whole for what lists show.
    "payloads": """(
        chunk {count}, trace_id TEXT NOT NULL, body {blob} NOT NULL, logs {big} NOT NULL DEFAULT 0
    )""",
    "uses": """(
        trace_id TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
        calls {big} NOT NULL, errors {big} NOT NULL, PRIMARY KEY (trace_id, kind, name)
    ) {clustered}""",
    "evaluations": """(
        trace_id TEXT NOT NULL, name TEXT NOT NULL, score {real}, label TEXT,
        detail TEXT NOT NULL, at_ns {big} NOT NULL, PRIMARY KEY (trace_id, name)
    )""",
}

# Created where they are missing, whatever the version: no row of another table changes for them,
# and earlier versions of the program still open the store.
ACCESS_TABLES = {
    "tokens": """(
        name TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, role TEXT NOT NULL, project TEXT,
        created_ns {big} NOT NULL, revoked_ns {big}
    )""",
    "audit": """(
        number {count}, at_ns {big} NOT NULL, who TEXT NOT NULL, action TEXT NOT NULL,
        detail TEXT NOT NULL
    )""",
}

INDEXES = {
    "payloads_of": "payloads (trace_id, chunk)",
    "payloads_logs": "payloads (trace_id) WHERE logs > 0",
    # With the id, a page of the list is found in the index alone; with the others, counts by
    # service and status and the traffic over time of a range are too.
    "traces_started": "traces (started_ns, trace_id, service, status, duration_ms)",
    "traces_updated": "traces (updated_ns)",
    "traces_duration": "traces (duration_ms)",
    # Most traces lack most of these, and no filter selects those that do.
    "traces_session": "traces (session_id, started_ns) WHERE session_id IS NOT NULL",
    "traces_user": "traces (user_id, started_ns) WHERE user_id IS NOT NULL",
    "traces_request": "traces (request_id) WHERE request_id IS NOT NULL",
    "traces_score": "traces (score) WHERE score IS NOT NULL",
    # With the counts, tools and models are counted from the index alone.
    "uses_name": "uses (kind, name, trace_id, calls, errors)",
    "evaluations_name": "evaluations (name, score)",
}


class SpanRow(NamedTuple):
    """A row of `spans`: what is counted and filtered by."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    kind: str
    status: str
    start_ns: int
    end_ns: int | None
    tool_name: str | None
    model: str | None
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    error_type: str | None


class TraceFacts(NamedTuple):
    """What is known of a trace that no sum over its spans gives."""

    trace_id: str
    service: str | None
    query: str | None
    response: str | None
    request_id: str | None
    session_id: str | None
    user_id: str | None


SPAN_COLUMNS = SpanRow._fields
FACT_COLUMNS = TraceFacts._fields[1:]

"""The tables of the store, and how an older store becomes this one.

traces(trace_id)             a line a trace: what lists show and filter by; derived from its spans
spans(trace_id, span_id)     narrow: what is counted and filtered; one row a span, the last received
payloads(trace_id, chunk)    what was received, compressed, in the order it came; the truth
uses(trace_id, kind, name)   how often a trace called a tool or a model, derived from its spans
evaluations(trace_id, name)  scores, checks and findings of a trace
notes(key)                   the version of these tables

A migration is a list of statements; they are run in order, each once, in one transaction.
`{big}`, `{real}`, `{blob}` and `{count}` stand for the types of each database.
"""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE traces (
            trace_id TEXT PRIMARY KEY, name TEXT, service TEXT, query TEXT, response TEXT,
            request_id TEXT, session_id TEXT, user_id TEXT,
            started_ns {big} NOT NULL, ended_ns {big}, duration_ms {real}, status TEXT NOT NULL,
            spans {big} NOT NULL, errors {big} NOT NULL, llm_calls {big} NOT NULL,
            tool_calls {big} NOT NULL, input_tokens {big}, output_tokens {big}, cost_usd {real},
            updated_ns {big} NOT NULL, evaluated_ns {big} NOT NULL DEFAULT 0,
            score {real}, findings {big}
        )
        """,
        """
        CREATE TABLE spans (
            trace_id TEXT NOT NULL, span_id TEXT NOT NULL, parent_id TEXT, name TEXT NOT NULL,
            kind TEXT NOT NULL, status TEXT NOT NULL, start_ns {big} NOT NULL, end_ns {big},
            tool_name TEXT, model TEXT, input_tokens {big}, output_tokens {big}, cost_usd {real},
            error_type TEXT, PRIMARY KEY (trace_id, span_id)
        ) {clustered}
        """,
        """
        CREATE TABLE payloads (
            chunk {count}, trace_id TEXT NOT NULL, body {blob} NOT NULL
        )
        """,
        """
        CREATE TABLE evaluations (
            trace_id TEXT NOT NULL, name TEXT NOT NULL, score {real}, label TEXT,
            detail TEXT NOT NULL, at_ns {big} NOT NULL, PRIMARY KEY (trace_id, name)
        )
        """,
        "CREATE INDEX payloads_of ON payloads (trace_id, chunk)",
        "CREATE INDEX traces_started ON traces (started_ns)",
        "CREATE INDEX traces_updated ON traces (updated_ns)",
        "CREATE INDEX traces_duration ON traces (duration_ms)",
        "CREATE INDEX traces_session ON traces (session_id)",
        "CREATE INDEX traces_user ON traces (user_id)",
        "CREATE INDEX traces_request ON traces (request_id)",
        "CREATE INDEX traces_score ON traces (score)",
        "CREATE INDEX spans_tool ON spans (tool_name, trace_id) WHERE tool_name IS NOT NULL",
        "CREATE INDEX spans_model ON spans (model, trace_id) WHERE model IS NOT NULL",
        "CREATE INDEX evaluations_name ON evaluations (name, score)",
    ),
    (
        # What was said may stand in log records only: their traces are read whole for lists.
        "ALTER TABLE payloads ADD COLUMN logs {big} NOT NULL DEFAULT 0",
        "CREATE INDEX payloads_logs ON payloads (trace_id) WHERE logs > 0",
        # With the status, tools are counted from the index alone.
        "DROP INDEX spans_tool",
        """
        CREATE INDEX spans_tool ON spans (tool_name, trace_id, status) WHERE tool_name IS NOT NULL
        """,
    ),
    (
        # What a trace uses is a few rows, where its spans are many.
        """
        CREATE TABLE uses (
            trace_id TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
            calls {big} NOT NULL, errors {big} NOT NULL, PRIMARY KEY (trace_id, kind, name)
        ) {clustered}
        """,
        """
        INSERT INTO uses SELECT trace_id, 'tool', tool_name, count(*),
            sum(CASE WHEN status IN ('error', 'timeout') THEN 1 ELSE 0 END)
        FROM spans WHERE tool_name IS NOT NULL GROUP BY trace_id, tool_name
        """,
        """
        INSERT INTO uses SELECT trace_id, 'model', model, count(*),
            sum(CASE WHEN status IN ('error', 'timeout') THEN 1 ELSE 0 END)
        FROM spans WHERE model IS NOT NULL GROUP BY trace_id, model
        """,
        "CREATE INDEX uses_name ON uses (kind, name, trace_id, calls, errors)",
        "DROP INDEX IF EXISTS spans_tool",
        "DROP INDEX IF EXISTS spans_model",
        # Whether `name` is that of a root: totals are kept up without reading the spans again.
        "ALTER TABLE traces ADD COLUMN rooted {big} NOT NULL DEFAULT 0",
        """
        UPDATE traces SET rooted = 1 WHERE EXISTS (SELECT 1 FROM spans s
            WHERE s.trace_id = traces.trace_id AND s.parent_id IS NULL)
        """,
    ),
    (
        # Whether usage is more than a sum over model calls: then it is counted from all rows.
        "ALTER TABLE traces ADD COLUMN whole {big} NOT NULL DEFAULT 0",
        """
        UPDATE traces SET whole = 1 WHERE trace_id IN (SELECT c.trace_id FROM spans c
            JOIN spans p ON p.trace_id = c.trace_id AND p.span_id = c.parent_id
            WHERE p.kind = 'llm')
        """,
        """
        UPDATE traces SET whole = 1 WHERE (input_tokens IS NULL OR cost_usd IS NULL)
            AND EXISTS (SELECT 1 FROM spans s WHERE s.trace_id = traces.trace_id AND s.kind <> 'llm'
            AND (s.input_tokens IS NOT NULL OR s.output_tokens IS NOT NULL
                OR s.cost_usd IS NOT NULL))
        """,
        # With the id, a page of the list is found in the index alone.
        "DROP INDEX traces_started",
        "CREATE INDEX traces_started ON traces (started_ns, trace_id)",
        # Most traces lack most of these, and no filter asks for those that do.
        "DROP INDEX traces_session",
        "DROP INDEX traces_user",
        "DROP INDEX traces_request",
        "DROP INDEX traces_score",
        "CREATE INDEX traces_session ON traces (session_id) WHERE session_id IS NOT NULL",
        "CREATE INDEX traces_user ON traces (user_id) WHERE user_id IS NOT NULL",
        "CREATE INDEX traces_request ON traces (request_id) WHERE request_id IS NOT NULL",
        "CREATE INDEX traces_score ON traces (score) WHERE score IS NOT NULL",
    ),
)

SPAN_COLUMNS = (
    "trace_id",
    "span_id",
    "parent_id",
    "name",
    "kind",
    "status",
    "start_ns",
    "end_ns",
    "tool_name",
    "model",
    "input_tokens",
    "output_tokens",
    "cost_usd",
    "error_type",
)

FACT_COLUMNS = ("service", "query", "response", "request_id", "session_id", "user_id")
"""What is known of a trace that no sum over its spans gives."""

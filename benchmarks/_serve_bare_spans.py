"""The ceiling of `serve.py`: parse each request, upsert its spans one row each into SQLite, answer.

    python _serve_bare_spans.py PORT FILE

What any receiver of spans must do: they can be told apart and found again by (trace, span), one
that comes twice is one, and the answer comes after a commit to disk. Nothing is normalised,
priced, searched for secrets or summed up.
"""

import sqlite3
import sys

import uvicorn
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

store = sqlite3.connect(sys.argv[2], isolation_level=None, check_same_thread=False)
store.execute("PRAGMA journal_mode = WAL")
store.execute("PRAGMA synchronous = FULL")
store.execute(
    "CREATE TABLE IF NOT EXISTS spans (trace_id BLOB, span_id BLOB, parent_id BLOB, name TEXT,"
    " start_ns INTEGER, end_ns INTEGER, body BLOB, PRIMARY KEY (trace_id, span_id))"
)
PUT = "INSERT OR REPLACE INTO spans VALUES (?, ?, ?, ?, ?, ?, ?)"


def row(span):
    times = (span.start_time_unix_nano, span.end_time_unix_nano)
    ids = (span.trace_id, span.span_id, span.parent_span_id)
    return (*ids, span.name, *times, span.SerializeToString())


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if scope["method"] == "POST":
        request = ExportTraceServiceRequest.FromString(body)
        spans = [s for r in request.resource_spans for g in r.scope_spans for s in g.spans]
        store.execute("BEGIN")
        store.executemany(PUT, map(row, spans))
        store.execute("COMMIT")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error", lifespan="off")

"""The ceiling of `serve.py`: parse each request, insert its raw body into SQLite, answer.

    python _serve_bare.py PORT FILE

One commit a request to disk, nothing normalised, nothing that can be asked afterwards.
"""

import sqlite3
import sys

import uvicorn
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

store = sqlite3.connect(sys.argv[2], isolation_level=None, check_same_thread=False)
store.execute("PRAGMA journal_mode = WAL")
store.execute("PRAGMA synchronous = FULL")
store.execute("CREATE TABLE IF NOT EXISTS requests (spans INTEGER, body BLOB)")


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
        count = sum(len(g.spans) for r in request.resource_spans for g in r.scope_spans)
        store.execute("INSERT INTO requests VALUES (?, ?)", (count, body))
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error", lifespan="off")

"""Pages of live traces: a list with filters and figures, and one trace to look through."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from proctor.errors import ProctorError
from proctor.server.api import filter_of, page_of
from proctor.server.pages.outline import detail, outline
from proctor.server.pages.render import Query, in_thread, page
from proctor.server.store.filters import SORTS

if TYPE_CHECKING:
    from starlette.requests import Request

    from proctor.server.store.sql import SqlStore
    from proctor.trace import Span, Trace

KEPT = 8
"""Traces kept read, so that looking at one span after the other does not read the trace again."""

FIELDS = ("text", "service", "status", "tool", "model", "session_id", "user_id", "request_id")
MORE_FIELDS = ("since", "until", "min_ms", "max_ms", "min_score", "max_score")


class Traces:
    """The pages over one store."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._read: OrderedDict[tuple[str, int], Trace] = OrderedDict()
        self._lock = Lock()

    def routes(self) -> list[Route]:
        """Where the pages are."""
        return [
            Route("/traces", in_thread(self.listed)),
            Route("/traces/{trace_id:str}", in_thread(self.one)),
            Route("/traces/{trace_id:str}/outline", in_thread(self.outlined)),
            Route("/traces/{trace_id:str}/spans/{span_id:str}", in_thread(self.span)),
        ]

    def listed(self, request: Request) -> Response:
        """The list, its filter, and what it comes to."""
        query = Query({key: value for key, value in request.query_params.items() if value})
        problem: str | None = None
        try:
            chosen, part = filter_of(query), page_of(query)
        except ProctorError as error:
            problem = f"{error.message}. {error.hint or ''}"
            chosen, part = filter_of({}), page_of({})
        count, rows = self._store.found(chosen, part)
        return page(
            "traces.html",
            request,
            status=400 if problem else 200,
            rows=rows,
            count=count,
            figures=self._store.figures(chosen),
            tools=self._store.tools(chosen, limit=12),
            query=query,
            fields=FIELDS,
            more_fields=MORE_FIELDS,
            sorts=list(SORTS),
            problem=problem,
            earlier=_page_link(query, part.offset - part.limit) if part.offset else None,
            later=_page_link(query, part.offset + part.limit)
            if part.offset + part.limit < count
            else None,
            first=part.offset + 1 if rows else 0,
            last=part.offset + len(rows),
        )

    def one(self, request: Request) -> Response:
        """The frame of one trace; its spans come as an outline."""
        trace_id = request.path_params["trace_id"]
        row = self._store.row(trace_id)
        if row is None:
            return page("missing.html", request, status=404, what="trace", name=trace_id)
        said = self._store.evaluations(trace_id)
        return page(
            "trace.html",
            request,
            row=row,
            evaluations=[each for each in said if each.name != "diagnosis"],
            base=f"/traces/{row.trace_id}",
        )

    def outlined(self, request: Request) -> Response:
        """Every span, and the findings of the diagnosis on them."""
        trace_id = request.path_params["trace_id"]
        trace = self._store.skeleton(trace_id)
        if trace is None:
            return JSONResponse({"error": "no such trace"}, status_code=404)
        return JSONResponse(outline(trace, findings_of(self._store, trace_id)))

    def span(self, request: Request) -> Response:
        """Everything about one span."""
        trace = self._trace(request.path_params["trace_id"])
        found = None if trace is None else span_of(trace, request.path_params["span_id"])
        if found is None:
            return JSONResponse({"error": "no such span"}, status_code=404)
        return JSONResponse(detail(found))

    def _trace(self, trace_id: str) -> Trace | None:
        row = self._store.row(trace_id)
        if row is None:
            return None
        key = (trace_id, row.updated_ns)
        with self._lock:
            if key in self._read:
                self._read.move_to_end(key)
                return self._read[key]
        trace = self._store.trace(trace_id)
        if trace is not None:
            with self._lock:
                self._read[key] = trace
                while len(self._read) > KEPT:
                    self._read.popitem(last=False)
        return trace


def span_of(trace: Trace, span_id: str) -> Span | None:
    """A span by its id."""
    return next((span for span in trace.spans if span.span_id == span_id), None)


def findings_of(store: SqlStore, trace_id: str) -> Sequence[Mapping[str, Any]]:
    """What the diagnosis found, if there was one."""
    for row in store.evaluations(trace_id):
        if row.name == "diagnosis":
            return json.loads(row.detail).get("errors", [])
    return []


def _page_link(query: Mapping[str, str], offset: int) -> str:
    return "/traces?" + urlencode({**query, "offset": str(max(0, offset))})

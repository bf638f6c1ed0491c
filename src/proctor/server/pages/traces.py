"""Pages of live traces: a list with filters and statistics, and the view of one trace."""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from proctor.errors import ProctorError
from proctor.runs.annotations import MAX_TEXT, LabelVerdict
from proctor.sanitize import line
from proctor.server._json_api import BadQuery, filter_of, page_of
from proctor.server.auth import posted_form
from proctor.server.pages._span_view import detail, outline
from proctor.server.pages.templating import Query, page, sent_on
from proctor.server.store.store import SORTS, TraceFilter
from proctor.trace.redact import default_redactor

if TYPE_CHECKING:
    from starlette.requests import Request

    from proctor.server.store.store import (
        Figures,
        Period,
        Share,
        SqlStore,
        StoredEvaluation,
        TraceRow,
    )
    from proctor.trace import Span, Trace

# Traces kept in memory, so that viewing one span after another does not read the trace again.
CACHED = 8

# Traces up to which statistics are part of the page; those of more are loaded after it.
INLINE_TRACES = 2_000

# Seconds for which the statistics of a large set are reused: they change little in that time.
MAX_AGE = 5.0

FIELDS = ("text", "service", "status", "tool", "model", "session_id", "user_id", "request_id")
MORE_FIELDS = ("since", "until", "min_ms", "max_ms", "min_score", "max_score")


class TraceStatistics(NamedTuple):
    """Statistics of the traces that match a filter."""

    figures: Figures
    tools: list[Share]
    periods: list[Period]
    """By the hour, or by the day if there are traces of more than two days."""


TEMPORARY = "These traces were read from files; labels need a store (proctor serve, view --store)."


class FigureCache:
    """Statistics by filter, computed at intervals however many readers there are."""

    def __init__(self, store: SqlStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._lock = Lock()
        self._known: OrderedDict[TraceFilter, tuple[float, TraceStatistics]] = OrderedDict()

    def compute(self, chosen: TraceFilter) -> TraceStatistics:
        """Return the current statistics of a filter."""
        # Both queries at once: a large set takes a while, and the work is in the database.
        with ThreadPoolExecutor(1, "proctor-figures") as pool:
            tools = pool.submit(self._store.tools, chosen, limit=12)
            figures, periods = self._store.figures(chosen), self._store.over_time(chosen)
            if periods and sum(period.traces for period in periods) < figures.traces:
                periods = self._store.over_time(chosen, "day")
            return TraceStatistics(figures, tools.result(), periods)

    def get(self, chosen: TraceFilter) -> TraceStatistics:
        """Return the statistics of a filter, for a large set up to `MAX_AGE` seconds old."""
        with self._lock:  # a second reader waits for the result instead of computing it again
            at, found = self._known.get(chosen, (None, None))
            if at is None or found is None or self._clock() - at > MAX_AGE:
                found = self.compute(chosen)
                if found.figures.traces > INLINE_TRACES:
                    self._known[chosen] = (self._clock(), found)
                while len(self._known) > CACHED:
                    self._known.popitem(last=False)
        return found


class Traces:
    """The pages of one trace store."""

    def __init__(self, store: SqlStore, *, temporary: bool = False) -> None:
        self._store = store
        self._temporary = temporary
        self._statistics = FigureCache(store)

        @lru_cache(maxsize=CACHED)
        def read(trace_id: str, _updated_ns: int) -> Trace | None:
            return store.trace(trace_id)

        self._read = read

    def routes(self) -> list[Route]:
        """Return the routes; Starlette runs synchronous handlers in threads."""
        return [
            Route("/traces", self.listed),
            Route("/traces/state", self.state),
            Route("/traces/figures", self.figures),
            Route("/traces/figures/part", self.figures_part),
            Route("/traces/{trace_id:str}", self.one),
            Route("/traces/{trace_id:str}/state", self.state_of_one),
            Route("/traces/{trace_id:str}/label", self.labelled, methods=["POST"]),
            Route("/traces/{trace_id:str}/outline", self.outlined),
            Route("/traces/{trace_id:str}/spans/{span_id:str}", self.span),
        ]

    def listed(self, request: Request) -> Response:
        """Render the list with its filter and statistics."""
        query = Query({key: value for key, value in request.query_params.items() if value})
        problem: str | None = None
        try:
            chosen, part = filter_of(query), page_of(query)
        except ProctorError as error:
            problem = f"{error.message}. {error.hint or ''}"
            chosen, part = filter_of({}), page_of({})
        count, rows = self._store.found(chosen, part)
        inline = self._statistics.compute(chosen) if count <= INLINE_TRACES else None
        query_string = "?" + urlencode({} if problem else query)
        unsorted = {name: query[name] for name in query if name not in ("sort", "offset")}
        return page(
            "traces.html",
            request,
            status=400 if problem else 200,
            rows=rows,
            count=count,
            figures=inline and inline.figures,
            tools=inline and inline.tools,
            periods=inline and inline.periods,
            figures_page=f"/traces/figures{query_string}",
            figures_part=f"/traces/figures/part{query_string}",
            state=_state(count, rows),
            state_page=f"/traces/state{query_string}",
            here_url=str(request.base_url).rstrip("/"),
            by=part.sort,
            orders={sort: f"/traces?{urlencode({**unsorted, 'sort': sort})}" for sort in SORTS},
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

    def state(self, request: Request) -> Response:
        """Return a token that changes when the list does, for a page that stays open."""
        try:
            chosen, part = filter_of(request.query_params), page_of(request.query_params)
        except BadQuery as error:
            return JSONResponse({"error": error.message}, status_code=400)
        return JSONResponse({"state": _state(*self._store.found(chosen, part))})

    def state_of_one(self, request: Request) -> Response:
        """Return the token of one trace: it changes with new spans and evaluations."""
        row = self._store.row(request.path_params["trace_id"])
        if row is None:
            return JSONResponse({"error": "no such trace"}, status_code=404)
        return JSONResponse({"state": _state(1, [row])})

    def figures(self, request: Request) -> Response:
        """Render the statistics of a filter as a page of its own."""
        return self._figures("figures.html", request)

    def figures_part(self, request: Request) -> Response:
        """Render the statistics as a part that the list loads."""
        return self._figures("figures_part.html", request)

    def _figures(self, template: str, request: Request) -> Response:
        query = Query({key: value for key, value in request.query_params.items() if value})
        try:
            found = self._statistics.get(filter_of(query))
        except BadQuery as error:
            return PlainTextResponse(f"{error.message}. {error.hint or ''}", 400)
        listed = "/traces?" + urlencode(query)
        return page(template, request, **found._asdict(), listed=listed)

    def one(self, request: Request) -> Response:
        """Render the page of one trace; its spans are loaded as an outline."""
        trace_id = request.path_params["trace_id"]
        row = self._store.row(trace_id)
        if row is None:
            return page("missing.html", request, status=404, what="trace", name=trace_id)
        evaluations = self._store.evaluations(trace_id)
        return page(
            "trace.html",
            request,
            row=row,
            evaluations=[judged(each) for each in evaluations if each.name != "diagnosis"],
            state=_state(1, [row]),
            base=f"/traces/{row.trace_id}",
            rater=request.query_params.get("rater", ""),
            cannot_write=TEMPORARY if self._temporary else None,
        )

    async def labelled(self, request: Request) -> Response:
        """Store a label of a trace."""
        form = await posted_form(request)
        if not isinstance(form, dict):
            return form
        trace_id, rater = request.path_params["trace_id"], form.get("rater", "").strip()
        category, comment = (form.get(key, "").strip() for key in ("category", "comment"))
        if self._temporary:
            return PlainTextResponse(TEMPORARY, 403)
        if form.get("verdict") not in get_args(LabelVerdict) or not rater or len(rater) > 200:
            return PlainTextResponse("a label is pass, fail or skip, and has a rater", 400)
        if await run_in_threadpool(self._store.row, trace_id) is None:
            return PlainTextResponse("no such trace", 404)
        redacted = default_redactor().text
        await run_in_threadpool(
            self._store.put_label,
            trace_id,
            rater,
            cast("LabelVerdict", form["verdict"]),
            category=redacted(category[:200]),
            comment=redacted(comment[:MAX_TEXT]),
        )
        return sent_on(request, f"/traces/{trace_id}?{urlencode({'rater': rater})}")

    def outlined(self, request: Request) -> Response:
        """Return every span with the findings of the diagnosis."""
        trace_id = request.path_params["trace_id"]
        trace = self._store.skeleton(trace_id)
        if trace is None:
            return JSONResponse({"error": "no such trace"}, status_code=404)
        return JSONResponse(outline(trace, findings_of(self._store, trace_id)))

    def span(self, request: Request) -> Response:
        """Return the details of one span."""
        trace = self._trace(request.path_params["trace_id"])
        found = None if trace is None else span_of(trace, request.path_params["span_id"])
        if found is None:
            return JSONResponse({"error": "no such span"}, status_code=404)
        return JSONResponse(detail(found))

    def _trace(self, trace_id: str) -> Trace | None:
        row = self._store.row(trace_id)
        return None if row is None else self._read(trace_id, row.updated_ns)


def span_of(trace: Trace, span_id: str) -> Span | None:
    """Return a span by its id."""
    return next((span for span in trace.spans if span.span_id == span_id), None)


def findings_of(store: SqlStore, trace_id: str) -> Sequence[Mapping[str, Any]]:
    """Return the findings of the diagnosis, if there was one."""
    for row in store.evaluations(trace_id):
        if row.name == "diagnosis":
            return json.loads(row.detail).get("errors", [])
    return []


class ShownEvaluation(NamedTuple):
    """One evaluation of a trace, as it is shown."""

    name: str
    score: float | None
    level: str
    why: str

    @property
    def bad(self) -> bool:
        """Whether it needs attention."""
        return self.level.lower() in ("alert", "fail", "failed")


def judged(row: StoredEvaluation) -> ShownEvaluation:
    """Return an evaluation with its reasons as text; those of a quality dimension are JSON."""
    try:
        kept = json.loads(row.detail)
        parts = [kept.get("why"), *kept.get("issues", []), *kept.get("recommendations", [])]
    except (ValueError, AttributeError):
        parts = [row.detail]
    why = "; ".join(dict.fromkeys(str(part) for part in parts if part))
    return ShownEvaluation(
        row.name.removeprefix("quality."), row.score, row.label or "", line(why, 400)
    )


def _state(count: int, rows: Sequence[TraceRow]) -> str:
    seen = [(row.trace_id, row.updated_ns, row.evaluated_ns) for row in rows]
    return hashlib.sha256(repr((count, seen)).encode()).hexdigest()[:16]


def _page_link(query: Mapping[str, str], offset: int) -> str:
    return "/traces?" + urlencode({**query, "offset": str(max(0, offset))})

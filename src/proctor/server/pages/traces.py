"""Pages of live traces: a list with filters and statistics, and the view of one trace."""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from proctor.errors import ProctorError
from proctor.runs.annotations import MAX_TEXT, LabelVerdict
from proctor.sanitize import line, valid_unicode
from proctor.server._json_api import RANGES, BadQuery, filter_of, moment, page_of
from proctor.server.auth import CHANGE, READS_ONLY, name_of, posted_form
from proctor.server.pages._conversation import (
    TURNS_SHOWN,
    ShownTurn,
    as_curl,
    turn_links,
    turns_of,
)
from proctor.server.pages._span_view import detail, outline
from proctor.server.pages.templating import (
    Missing,
    Query,
    in_time,
    number_in,
    page,
    sent_on,
    suite_path,
)
from proctor.server.store.store import (
    FACETS,
    PERIODS,
    SHOWN_VALUES,
    SORTS,
    FacetValue,
    TraceFilter,
)
from proctor.trace import SpanKind, Trace
from proctor.trace.redact import default_redactor

if TYPE_CHECKING:
    from starlette.requests import Request

    from proctor.server.store.store import (
        Figures,
        Period,
        SqlStore,
        StoredEvaluation,
        TraceRow,
        Use,
    )
    from proctor.trace import Span

# Traces kept in memory, so that viewing one span after another does not read the trace again.
CACHED = 8

# Traces up to which statistics are part of the page; those of more are loaded after it.
INLINE_TRACES = 2_000

# Seconds for which the statistics of a large set are reused: they change little in that time.
MAX_AGE = 5.0

# Fields of the form besides search, time and order; the values of facets are links.
IDS = ("session_id", "user_id", "request_id")
NUMBERS = ("min_ms", "max_ms", "min_score", "max_score")

FACET_NAMES = {"session_id": "session", "user_id": "user"}

# Bars of the chart of traffic: an hour has sixty minutes.
BARS = 72


class TraceStatistics(NamedTuple):
    """Statistics of the traces that match a filter."""

    figures: Figures
    tools: list[Use]
    periods: list[Period]
    """By the minute, hour or day: the shortest of which `BARS` hold all traces."""
    facets: dict[str, list[FacetValue]]


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
        chosen = self._store.narrow(chosen)
        # Several queries at once: a large set takes a while, and the work is in the database.
        with ThreadPoolExecutor(2, "proctor-figures") as pool:
            periods = pool.submit(self._store.over_time, chosen, None, BARS)
            using = pool.submit(self._store.uses, chosen)
            # Tools and models are counted together, unless the filter selects some of them: the
            # counts of a facet leave out its own values.
            apart = {
                name: pool.submit(self._store.facet, name, chosen)
                for name in FACETS
                if name not in ("tool", "model") or getattr(chosen, name)
            }
            figures = self._store.figures(chosen)
            used, facets = using.result(), dict[str, list[FacetValue]]()
            for name in FACETS:
                if name in apart:
                    facets[name] = apart[name].result()
                    continue
                most = sorted(used[name], key=lambda each: (-each.traces, each.name))
                facets[name] = [FacetValue(e.name, e.traces) for e in most[:SHOWN_VALUES]]
            return TraceStatistics(figures, used["tool"][:12], periods.result(), facets)

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

    def __init__(
        self, store: SqlStore, *, temporary: bool = False, suites: Path | None = None
    ) -> None:
        self._store = store
        self._suites = suites
        self._temporary = temporary
        self._statistics = FigureCache(store)

        @lru_cache(maxsize=CACHED)
        def read(trace_id: str, _updated_ns: int) -> Trace | None:
            return store.trace(trace_id)

        @lru_cache(maxsize=CACHED)
        def read_turns(trace_id: str, updated_ns: int) -> list[ShownTurn]:
            trace = read(trace_id, updated_ns)
            return [] if trace is None else turns_of(trace)

        self._read = read
        self._turns = read_turns

    def routes(self) -> list[Route]:
        """Return the routes; Starlette runs synchronous handlers in threads."""
        return [
            Route("/traces", self.listed),
            Route("/traces/state", self.state),
            Route("/traces/figures", self.figures),
            Route("/traces/figures/part", self.figures_part),
            Route("/traces/facets/part", self.facets_part),
            Route("/traces/{trace_id:str}", self.one),
            Route("/traces/{trace_id:str}/state", self.state_of_one),
            Route("/traces/{trace_id:str}/label", self.labelled, methods=["POST"]),
            Route("/traces/{trace_id:str}/promote", self.promote),
            Route("/traces/{trace_id:str}/promote", self.promoted, methods=["POST"]),
            Route("/traces/{trace_id:str}/outline", self.outlined),
            Route("/traces/{trace_id:str}/copy/curl", self.curl),
            Route("/traces/{trace_id:str}/spans/{span_id:str}", self.span),
        ]

    def listed(self, request: Request) -> Response:
        """Render the list with its filter and statistics."""
        query = _query(request)
        problem: str | None = None
        try:
            chosen, part = filter_of(query), page_of(query)
        except ProctorError as error:
            problem = error.message + (f" ({error.hint})" if error.hint else "")
            chosen, part = TraceFilter(), page_of({})
        chosen = self._store.narrow(chosen)
        count, rows = self._store.count(chosen), self._store.traces(chosen, part)
        inline = self._statistics.compute(chosen) if count <= INLINE_TRACES else None
        query_string = "?" + urlencode([] if problem else query.multi_items())
        view = "sessions" if query.get("view") == "sessions" else "traces"
        lines, sessions = self._store.sessions(chosen, part) if view == "sessions" else (count, [])
        shown = len(sessions if view == "sessions" else rows)
        return page(
            "traces.html",
            request,
            status=400 if problem else 200,
            rows=rows,
            count=count,
            view=view,
            sessions=[
                (each, _address(query, "view", "offset", session_id=each.session_id))
                for each in sessions
            ],
            views={
                "traces": _address(query, "view", "offset"),
                "sessions": _address(query, "offset", view="sessions"),
            },
            **_shown(inline, query),
            figures_page=f"/traces/figures{query_string}",
            figures_part=f"/traces/figures/part{query_string}",
            facets_part=f"/traces/facets/part{query_string}",
            state=_state(count, rows),
            state_page=f"/traces/state{query_string}",
            here_url=str(request.base_url).rstrip("/"),
            by=part.sort,
            orders={sort: _address(query, "offset", sort=sort) for sort in SORTS},
            query=Query(query),
            filtered=set(query) - {"view", "sort", "offset", "limit"},
            kept=[
                (name, value)
                for name, value in query.multi_items()
                if name in ("service", "status", "model", "tool", "view")
            ],
            ids={name: query.getlist(name) or [""] for name in IDS},
            numbers=NUMBERS,
            times={name: _in_form(query.get(name, "")) for name in ("since", "until")},
            ranges=RANGES,
            chips=[
                (FACET_NAMES.get(name, name.replace("_", " ")), value, _toggled(query, name, value))
                for name, value in query.multi_items()
                if name not in ("view", "sort", "offset", "limit")
            ],
            sorts=list(SORTS),
            problem=problem,
            lines=lines,
            earlier=_address(query, offset=str(max(0, part.offset - part.limit)))
            if part.offset
            else None,
            later=_address(query, offset=str(part.offset + part.limit))
            if part.offset + part.limit < lines
            else None,
            first=part.offset + 1 if shown else 0,
            last=part.offset + shown,
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
        return JSONResponse({"state": _state(1, [self._row(request)])})

    def figures(self, request: Request) -> Response:
        """Render the statistics of a filter as a page of its own."""
        return self._figures("figures.html", request)

    def figures_part(self, request: Request) -> Response:
        """Render the statistics as a part that the list loads."""
        return self._figures("figures_part.html", request)

    def facets_part(self, request: Request) -> Response:
        """Render the facets as a part that the list loads."""
        return self._figures("facets_part.html", request)

    def _figures(self, template: str, request: Request) -> Response:
        query = _query(request)
        try:
            found = self._statistics.get(filter_of(query))
        except BadQuery as error:
            return PlainTextResponse(f"{error.message}. {error.hint or ''}", 400)
        return page(template, request, **_shown(found, query), listed=_address(query))

    def one(self, request: Request) -> Response:
        """Render the page of one trace: its conversation; spans are loaded as an outline."""
        row = self._row(request)
        trace_id = row.trace_id
        evaluations = self._store.evaluations(trace_id)
        turns = self._turns(trace_id, row.updated_ns)
        first = number_in(request.query_params.get("from"), 1, max(1, len(turns)))
        first -= (first - 1) % TURNS_SHOWN
        return page(
            "trace.html",
            request,
            row=row,
            turns=turns[first - 1 : first - 1 + TURNS_SHOWN],
            first=first,
            turn_count=len(turns),
            shown=TURNS_SHOWN,
            evaluations=[judged(each) for each in evaluations if each.name != "diagnosis"],
            state=_state(1, [row]),
            base=f"/traces/{row.trace_id}",
            rater=request.query_params.get("rater") or name_of(request) or "",
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
        await run_in_threadpool(self._row, request)
        redacted = default_redactor().text
        await run_in_threadpool(
            self._store.put_label,
            trace_id,
            rater,
            cast("LabelVerdict", form["verdict"]),
            category=redacted(category[:200]),
            comment=redacted(comment[:MAX_TEXT]),
        )
        request.scope[CHANGE] = (
            "label",
            f"trace {trace_id}: {form['verdict']} by {line(rater, 200)}",
        )
        return sent_on(request, f"/traces/{trace_id}?{urlencode({'rater': rater})}")

    def promote(self, request: Request) -> Response:
        """Render the case that a trace makes, before it is written."""
        return self._promote(request, request.query_params)

    async def promoted(self, request: Request) -> Response:
        """Write the case into a suite file."""
        form = await posted_form(request)
        if not isinstance(form, dict):
            return form
        return await run_in_threadpool(self._promote, request, form)

    def _promote(self, request: Request, form: Mapping[str, str]) -> Response:
        from proctor.trials.regression_case import (
            as_suite,
            case_from_trace,
            regression_case,
            write_case,
        )

        row = self._row(request)
        trace_id = row.trace_id
        if (trace := self._read(trace_id, row.updated_ns)) is None:
            raise Missing("trace", trace_id)
        evaluations = [judged(each) for each in self._store.evaluations(trace_id)]
        # What failed, was labelled as wrong or alarms a check is more likely wrong than right.
        bad = row.status == "error" or any(each.bad for each in evaluations)
        right = form.get("is", "wrong" if bad else "right") == "right"
        others = [] if right else self._store.same_input(row)
        good = form.get("good", others[0].trace_id if others else "")
        expected = form.get("expect", "").strip()
        case_id = form.get("id", "").strip() or f"trace-{trace_id[:12]}"
        target = form.get("file", "").strip() or "regression.yaml"
        texts = [expected] if expected else []
        made, problem, written = None, None, None
        try:
            other = next((each for each in others if each.trace_id == good), None)
            compared = other and self._read(other.trace_id, other.updated_ns)
            if compared and not texts:
                made = regression_case(trace, compared, name=case_id)
            else:
                made = case_from_trace(trace, name=case_id, right=right, expected=texts)
            if form.get("write") and request.method == "POST":
                write_case(made, suite_path(target, self._suites or Path.cwd()))
                written = target
                request.scope[CHANGE] = ("promote", f"trace {trace_id}: {line(target, 300)}")
        except ProctorError as error:
            problem = error
        return page(
            "promote_trace.html",
            request,
            status=409 if problem and form.get("write") else 200,
            row=row,
            base=f"/traces/{trace_id}",
            right=right,
            others=others,
            good=good if made is not None and not texts else "",
            expected=expected,
            case_id=case_id,
            made=made,
            yaml=None if made is None else as_suite(made),
            problem=problem,
            target=target,
            written=written,
            cannot_write="You may read and not write." if READS_ONLY in request.scope else None,
        )

    def outlined(self, request: Request) -> Response:
        """Return every span with the findings of the diagnosis."""
        row = self._row(request)
        trace = self._store.skeleton(row.trace_id) or Trace(trace_id=row.trace_id)
        findings, links = findings_of(self._store, row.trace_id), {}
        if findings:  # the whole trace is read only if a turn is marked
            links = turn_links(self._turns(row.trace_id, row.updated_ns), trace)
        return JSONResponse({**outline(trace, findings), "decisive": None, "turns": links})

    def curl(self, request: Request) -> Response:
        """Return a model call of a trace as a command that repeats it."""
        found = span_of(self._trace(request), request.query_params.get("span", ""))
        if found.kind != SpanKind.LLM:
            return PlainTextResponse("There is nothing to copy.", 404)
        return PlainTextResponse(valid_unicode(as_curl(found)))

    def span(self, request: Request) -> Response:
        """Return the details of one span."""
        return JSONResponse(detail(span_of(self._trace(request), request.path_params["span_id"])))

    def _row(self, request: Request) -> TraceRow:
        trace_id = request.path_params["trace_id"]
        if (row := self._store.row(trace_id)) is None:
            raise Missing("trace", trace_id)
        return row

    def _trace(self, request: Request) -> Trace | None:
        row = self._row(request)
        return self._read(row.trace_id, row.updated_ns)


def span_of(trace: Trace | None, span_id: str) -> Span:
    """Return a span by its id."""
    for span in () if trace is None else trace.spans:
        if span.span_id == span_id:
            return span
    raise Missing("span", span_id)


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


def _query(request: Request) -> QueryParams:
    """Return the parameters with a value: they are the address of a filter."""
    given = request.query_params.multi_items()
    return QueryParams([(name, value) for name, value in given if value and name != "token"])


def _address(query: QueryParams, *without: str, **changed: str) -> str:
    """Return the address of the list with other values of some parameters."""
    gone = {*without, *changed}
    kept = [(name, value) for name, value in query.multi_items() if name not in gone]
    return "/traces?" + urlencode([*kept, *changed.items()])


def _toggled(query: QueryParams, name: str, value: str) -> str:
    """Return the address of the list with one more value of a parameter, or one less."""
    kept = [item for item in query.multi_items() if item[0] != "offset"]
    one = (name, value)
    return "/traces?" + urlencode(
        [item for item in kept if item != one] if one in kept else [*kept, one]
    )


def _in_form(text: str) -> str:
    """Return a time as a form has it; what is no time stays as it is."""
    try:
        return f"{datetime.fromtimestamp(moment(text) / 1e9, UTC):%Y-%m-%dT%H:%M:%S}"
    except (BadQuery, ValueError, OverflowError):
        return text


def _shown(found: TraceStatistics | None, query: QueryParams) -> dict[str, Any]:
    """Return statistics as templates show them; None where they are loaded later."""
    if found is None:
        return dict.fromkeys(("figures", "tools", "traffic", "facets"))
    return {
        "figures": found.figures,
        "tools": found.tools,
        "traffic": _traffic(found.periods, query),
        # Each value of a facet: its link adds it to the filter, or takes it out.
        "facets": {
            FACET_NAMES.get(name, name): [
                {
                    **each._asdict(),
                    "chosen": each.value in query.getlist(name),
                    "link": _toggled(query, name, each.value),
                }
                for each in values
            ]
            for name, values in found.facets.items()
        },
        "SHOWN_VALUES": SHOWN_VALUES,
    }


def _traffic(periods: Sequence[Period], query: QueryParams) -> dict[str, Any] | None:
    """Return the chart of traces and failed traces over time; heights are percentages."""
    if not periods:
        return None
    first, most = periods[0].start_ns, max(each.traces for each in periods)
    seconds = periods[0].seconds
    length = seconds * 1_000_000_000
    bars: list[dict[str, Any]] = []
    for each in periods:
        since, until = in_time(each.start_ns), in_time(each.start_ns + length)
        bars.append(
            {
                "x": (each.start_ns - first) // length,
                "height": round(100 * each.traces / most, 2),
                "failed": round(100 * each.failed / most, 2),
                "label": f"{since}: {each.traces:,} traces, {each.failed:,} failed",
                "link": _address(query, "last", "offset", since=since, until=until),
                "period": each,
            }
        )
    by = next(name for name, length in PERIODS.items() if length == seconds)
    return {"by": by, "width": bars[-1]["x"] + 1, "most": most, "bars": bars}

"""The JSON API of the store: what the pages show, for programs.

GET /api/traces?text=&session_id=&user_id=&request_id=&service=&status=&tool=&model=&since=&until=
    &min_ms=&max_ms=&min_score=&max_score=&sort=&limit=&offset=
GET /api/traces/{trace_id}                 the whole trace, as OTLP JSON with ?format=otlp
GET /api/traces/{trace_id}/evaluations
GET /api/figures?by=hour                   counts, cost, percentiles, tools, and the same over time
                                           by hour or day; takes the same filter
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from proctor.errors import ProctorError, did_you_mean
from proctor.server.store.store import PERIODS, PageRequest, TraceFilter

if TYPE_CHECKING:
    from starlette.requests import Request

    from proctor.server.store.store import SqlStore

# Maximum rows of one response.
MAX_LIMIT = 1000

_TEXTS = ("text", "request_id", "session_id", "user_id", "service", "tool", "model")
_NUMBERS = ("min_ms", "max_ms", "min_score", "max_score")
_TIMES = {"since": "since_ns", "until": "until_ns"}
_KNOWN = (*_TEXTS, *_NUMBERS, *_TIMES, "status", "sort", "limit", "offset", "format", "token", "by")

_encoder = msgspec.json.Encoder(enc_hook=str)


class BadQuery(ProctorError):
    """Invalid query parameters."""


def routes(store: SqlStore) -> list[Route]:
    """Return the endpoints of a store."""

    def found(request: Request) -> Any:
        chosen, page = filter_of(request.query_params), page_of(request.query_params)
        count, rows = store.found(chosen, page)
        return {"count": count, "traces": [row._asdict() for row in rows]}

    def one(request: Request) -> Any:
        trace = store.trace(request.path_params["trace_id"])
        if trace is None:
            return None
        if request.query_params.get("format") == "otlp":
            from proctor.trace.export import export_traces

            return msgspec.Raw(export_traces(trace, "otlp-json"))
        return trace

    def said(request: Request) -> Any:
        rows = store.evaluations(request.path_params["trace_id"])
        return {"evaluations": [row._asdict() for row in rows]}

    def figures(request: Request) -> Any:
        chosen = filter_of(request.query_params)
        tools = [share._asdict() for share in store.tools(chosen)]
        figures = store.figures(chosen)
        by = request.query_params.get("by") or "hour"
        if by not in PERIODS:
            raise BadQuery(f"no period {by[:40]!r}", hint="hour or day")
        return {
            **figures._asdict(),
            "error_rate": figures.error_rate,
            "tools": tools,
            "over_time": [
                {**each._asdict(), "error_rate": each.error_rate}
                for each in store.over_time(chosen, by)
            ],
        }

    return [
        Route("/api/traces", answering(found)),
        Route("/api/traces/{trace_id:str}", answering(one)),
        Route("/api/traces/{trace_id:str}/evaluations", answering(said)),
        Route("/api/figures", answering(figures)),
    ]


def answering(work: Callable[[Request], Any]) -> Callable[[Request], Response]:
    """Return a handler that answers in JSON; Starlette runs it in a thread, as databases block."""

    def answer(request: Request) -> Response:
        try:
            value = work(request)
        except BadQuery as error:
            return _json({"error": error.message, "hint": error.hint}, 400)
        except ProctorError as error:
            return _json({"error": error.message, "hint": error.hint}, 503)
        return _json({"error": "no such trace"}, 404) if value is None else _json(value)

    return answer


def _json(value: Any, status: int = 200) -> Response:
    return Response(_encoder.encode(value), status_code=status, media_type="application/json")


def filter_of(query: Mapping[str, str]) -> TraceFilter:
    """Return the filter of query parameters; unknown names and invalid values are errors."""
    for name in query:
        if name not in _KNOWN:
            raise BadQuery(f"unknown parameter {name[:40]!r}", hint=did_you_mean(name, _KNOWN))
    given: dict[str, Any] = {name: query[name] for name in _TEXTS if query.get(name)}
    given |= {name: _number(name, query[name]) for name in _NUMBERS if query.get(name)}
    given |= {field: moment(query[name]) for name, field in _TIMES.items() if query.get(name)}
    if status := query.get("status"):
        if status not in ("ok", "error"):
            raise BadQuery(f"no status {status[:40]!r}", hint="ok or error")
        given["status"] = status
    return TraceFilter(**given)


def page_of(query: Mapping[str, str]) -> PageRequest:
    """Return the page of query parameters."""
    limit = int(_number("limit", query.get("limit") or "50"))
    offset = int(_number("offset", query.get("offset") or "0"))
    if not 1 <= limit <= MAX_LIMIT:
        raise BadQuery(f"limit is not between 1 and {MAX_LIMIT}: {limit}")
    if offset < 0:
        raise BadQuery(f"offset is negative: {offset}")
    page = PageRequest(limit, offset, query.get("sort") or "newest")
    try:
        _ = page.order_by
    except ProctorError as error:
        raise BadQuery(error.message, hint=error.hint) from None
    return page


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if value != value or abs(value) > 1e15:  # noqa: PLR0124 (NaN is not itself)
        raise BadQuery(f"{name} is not a number: {text[:40]!r}")
    return value


def moment(text: str) -> int:
    """Return an ISO date or time as nanoseconds; without a zone it is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadQuery(f"not a date: {text[:40]!r}", hint="write 2026-01-31 or a time") from None
    aware = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1e9)

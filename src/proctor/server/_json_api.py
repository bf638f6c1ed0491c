"""The JSON API of the store: what the pages show, for programs.

GET /api/traces?text=&session_id=&user_id=&request_id=&service=&status=&tool=&model=&since=&until=
    &last=&min_ms=&max_ms=&min_score=&max_score=&sort=&limit=&offset=
                                           values of ids, service, status, tool and model may be
                                           several (service=a&service=b)
GET /api/traces/{trace_id}                 the whole trace, as OTLP JSON with ?format=otlp
GET /api/traces/{trace_id}/evaluations
GET /api/figures?by=hour                   counts, cost, percentiles, tools, and the same over time
                                           by minute, hour or day; takes the same filter
GET /api/facets                            the most frequent values of each facet with their numbers
                                           of traces; takes the same filter

For admins only:

GET /api/tokens                            names, roles, projects; never a token or a hash
POST /api/tokens                           add one: name, role, project; answers with the token
POST /api/tokens/{name}/revoke
GET /api/audit?limit=                      who changed what, newest first
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast, get_args

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.routing import Route

from proctor.errors import ProctorError, did_you_mean
from proctor.server.auth import TOKEN, posted_form
from proctor.server.store.store import FACETS, PERIODS, PageRequest, Role, StoreError, TraceFilter

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams
    from starlette.requests import Request

    from proctor.server.store.store import SqlStore

# Maximum rows of one response.
MAX_LIMIT = 1000

_VALUES = ("request_id", "session_id", "user_id", "service", "status", "tool", "model")
_NUMBERS = ("min_ms", "max_ms", "min_score", "max_score")
_TIMES = {"since": "since_ns", "until": "until_ns"}
_OTHERS = ("text", "last", "sort", "limit", "offset", "format", "token", "by", "view")
_KNOWN = (*_VALUES, *_NUMBERS, *_TIMES, *_OTHERS)

RANGES = {"1h": "hour", "24h": "24 hours", "7d": "7 days", "30d": "30 days"}
"""Time ranges that end now, as the parameter `last` names them, with their names."""
_UNITS = {"m": 60, "h": 3600, "d": 86_400}

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
            raise BadQuery(f"no period {by[:40]!r}", hint="minute, hour or day")
        return {
            **figures._asdict(),
            "error_rate": figures.error_rate,
            "tools": tools,
            "over_time": [
                {**each._asdict(), "error_rate": each.error_rate}
                for each in store.over_time(chosen, by)
            ],
        }

    def facets(request: Request) -> Any:
        chosen = filter_of(request.query_params)
        return {
            name: [each._asdict() for each in store.facet(name, chosen, limit=50)]
            for name in FACETS
        }

    return [
        Route("/api/facets", answering(facets)),
        Route("/api/traces", answering(found)),
        Route("/api/traces/{trace_id:str}", answering(one)),
        Route("/api/traces/{trace_id:str}/evaluations", answering(said)),
        Route("/api/figures", answering(figures)),
    ]


def access_routes(
    store: SqlStore, projects: Sequence[str], changed: Callable[[], Awaitable[None]]
) -> list[Route]:
    """Return the endpoints of tokens and audit; `changed` is called after a token did."""

    def is_admin(request: Request) -> bool:
        return TOKEN in request.scope and request.scope[TOKEN].role == "admin"

    def tokens(request: Request) -> Any:
        rows = [row._asdict() for row in store.tokens()]
        return {"tokens": [{k: v for k, v in row.items() if k != "hash"} for row in rows]}

    def audit(request: Request) -> Any:
        limit = page_of({"limit": request.query_params.get("limit", "100")}).limit
        return {"audit": [row._asdict() for row in store.audit(limit)]}

    def reading(work: Callable[[Request], Any]) -> Callable[[Request], Response]:
        answer = answering(work)
        return lambda request: answer(request) if is_admin(request) else _json(_ADMINS, 403)

    async def change(request: Request) -> Response:
        if not is_admin(request):
            return _json(_ADMINS, 403)
        form = await posted_form(request)
        if not isinstance(form, dict):
            return form
        who = request.scope[TOKEN].name
        try:
            if "name" in request.path_params:
                await run_in_threadpool(store.revoke_token, request.path_params["name"], who=who)
                answer: dict[str, str] = {}
            else:
                role, project = form.get("role", ""), form.get("project")
                if role not in get_args(Role):
                    raise BadQuery(f"no role {role[:40]!r}", hint="viewer, writer or admin")
                if project is not None and project not in projects:
                    raise BadQuery(
                        f"no project {project[:40]!r}", hint=did_you_mean(project, projects)
                    )
                name = form.get("name", "")
                token = await run_in_threadpool(
                    store.add_token, name, cast("Role", role), project, who=who
                )
                answer = {"name": name, "token": token}
        except ProctorError as error:
            status = 503 if isinstance(error, StoreError) else 400
            return _json({"error": error.message, "hint": error.hint}, status)
        await changed()
        return _json(answer)

    return [
        Route("/api/tokens", reading(tokens)),
        Route("/api/tokens", change, methods=["POST"]),
        Route("/api/tokens/{name:str}/revoke", change, methods=["POST"]),
        Route("/api/audit", reading(audit)),
    ]


_ADMINS = {"error": "only a token with the role admin may do this", "hint": None}


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


def filter_of(query: QueryParams, now_ns: Callable[[], int] = time.time_ns) -> TraceFilter:
    """Return the filter of query parameters; unknown names and invalid values are errors."""
    for name in query:
        if name not in _KNOWN:
            raise BadQuery(f"unknown parameter {name[:40]!r}", hint=did_you_mean(name, _KNOWN))
    given: dict[str, Any] = {"text": query.get("text", "")}
    for name in _VALUES:
        if values := tuple(dict.fromkeys(value for value in query.getlist(name) if value)):
            given[name] = values if len(values) > 1 else query[name]
            if name == "status" and (odd := set(values) - {"ok", "error"}):
                raise BadQuery(f"no status {min(odd)[:40]!r}", hint="ok or error")
    given |= {name: _number(name, query[name]) for name in _NUMBERS if query.get(name)}
    given |= {field: moment(query[name]) for name, field in _TIMES.items() if query.get(name)}
    if last := query.get("last"):
        if not last[:-1].isdecimal() or last[-1] not in _UNITS or len(last) > 6:
            raise BadQuery(f"no time range {last[:40]!r}", hint="write 30m, 24h or 7d")
        # From a full minute: within it, the filter is the same and its statistics are reused.
        minute = now_ns() // 60_000_000_000 * 60
        since = (minute - int(last[:-1]) * _UNITS[last[-1]]) * 1_000_000_000
        given["since_ns"] = max(since, given.get("since_ns", since))
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

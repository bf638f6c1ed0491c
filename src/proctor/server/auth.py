"""Check the token and the host name of each request, and add security headers to each response.

Guarantees: without a token, only requests to a name of this machine are answered, so that a web
page elsewhere cannot reach the server through a host name that points here. With a token, every
request must carry it; it is compared in constant time. A viewer's token reads and never writes. The
headers keep pages from running or loading anything that is not ours. A form of a page is accepted
from that page only (`same_origin`), so that no other site can write through a reader's browser.
"""

from __future__ import annotations

import hmac
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse

from proctor.errors import ProctorError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "proctor_token"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})

# Sent with every response; static files override cache-control.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; font-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_ENCODED = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

# The key in the scope of a request that passed: its connection outlives others at a limit.
ACCEPTED = "proctor.accepted"

# The key in the scope of a request whose token may only read.
READS_ONLY = "proctor.reads_only"

# Bytes of a form.
MAX_FORM = 64 << 10

# Answered without a token, for load balancers: whether the server runs, and nothing else.
OPEN_PATHS = frozenset({"/healthz"})


def check_host(host: str, token: str | None, viewer_token: str | None = None) -> None:
    """Raise an error when other machines could connect without a token, or viewers could write."""
    if viewer_token and (not token or token == viewer_token):
        raise ProctorError(
            "a viewer's token needs another token, for those who may write",
            hint="give one with --token or PROCTOR_TOKEN",
        )
    if host not in LOOPBACK and not token:
        raise ProctorError(
            f"listening on {host} lets other machines in, and there is no token",
            hint="give one with --token or PROCTOR_TOKEN, or listen on 127.0.0.1",
        )


class Guard:
    """ASGI middleware: check each request, and add the headers to each response."""

    def __init__(
        self, app: ASGIApp, token: str | None = None, viewer_token: str | None = None
    ) -> None:
        self._app = app
        self._token = token
        self._viewer_token = viewer_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that is refused, pass on the others."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message["headers"]}
                extra = [pair for pair in _ENCODED if pair[0] not in known]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        refusal = self._refusal(Request(scope))
        if refusal is None and scope["path"] not in OPEN_PATHS:
            scope[ACCEPTED] = True
        respond = refusal or self._app
        await respond(scope, receive, with_headers)

    def _refusal(self, request: Request) -> ASGIApp | None:
        """Return the response to a request that is not passed on."""
        if request.scope["path"] in OPEN_PATHS:
            return None
        if self._token is None:
            if host_of(request.headers.get("host", "")) in LOOPBACK:
                return None
            return PlainTextResponse("this server answers only on this machine", 421)
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        bearer = scheme.lower() == "bearer"
        sent = value.strip() if bearer else request.cookies.get(COOKIE, "")
        if self._equals(sent, self._token):
            return None
        if self._viewer_token and self._equals(sent, self._viewer_token):
            request.scope[READS_ONLY] = True
            if request.method in ("GET", "HEAD"):
                return None
            return PlainTextResponse("this token may only read", 403)
        given = request.query_params.get("token") if request.method == "GET" else None
        if given is not None and any(
            self._equals(given, known) for known in (self._token, self._viewer_token) if known
        ):
            return _with_cookie(request, given)
        headers = {"www-authenticate": "Bearer"}
        return PlainTextResponse("a token is needed: Authorization: Bearer …", 401, headers)

    @staticmethod
    def _equals(given: str, wanted: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def same_origin(request: Request) -> bool:
    """Return whether a page of this server sent the request, or a program with a token.

    Browsers name the origin of scripts in `Origin`; for forms of our pages, which send no referrer,
    it is `null`, and `Sec-Fetch-Site` says where they come from.
    """
    origin = request.headers.get("origin")
    if origin is not None and origin != "null":
        return origin.partition("://")[2] == request.headers.get("host", "")
    if request.headers.get("sec-fetch-site") is not None:
        return request.headers["sec-fetch-site"] == "same-origin"
    return origin is None and request.headers.get("authorization", "").lower().startswith("bearer ")


async def posted_form(request: Request) -> dict[str, str] | PlainTextResponse:
    """Return the form of a request that may write; the answer to one that may not."""
    if READS_ONLY in request.scope or not same_origin(request):
        return PlainTextResponse("only a page of this server may write", 403)
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM:
            return PlainTextResponse("the form is too large", 413)
    fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=50)
    return {name: values[-1] for name, values in fields.items()}


def host_of(header: str) -> str:
    """Return the name in a Host header, without its port."""
    if header.startswith("["):
        return header.partition("]")[0] + "]"
    return header.partition(":")[0].lower()


def _with_cookie(request: Request, token: str) -> RedirectResponse:
    """Move the token from the address of a browser into a cookie."""
    pairs = request.query_params.multi_items()
    rest = urlencode([pair for pair in pairs if pair[0] != "token"])
    # Only our own path: an address that begins with two slashes would lead to another host.
    place = "/" + request.scope["path"].lstrip("/\\") + (f"?{rest}" if rest else "")
    cookie = SimpleCookie({COOKIE: token})
    cookie[COOKIE].update({"httponly": "1", "samesite": "Strict", "path": "/"})
    return RedirectResponse(place, 303, {"set-cookie": cookie[COOKIE].OutputString()})

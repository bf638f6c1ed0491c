"""Who may talk to the server, and what its pages may do.

Promise: without a token only this machine may talk to it, by a name of this machine (a web page
elsewhere cannot reach it by a name that points here); with one, every request must bring it,
compared in constant time. Every answer carries headers that keep pages from running or loading
anything that is not ours. Pages change nothing.
"""

from __future__ import annotations

import hmac
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from proctor.errors import ProctorError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "proctor_token"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})

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
"""On every answer; static files are told apart by their own cache header."""

_ENCODED = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

OPEN_PATHS = frozenset({"/healthz"})
"""What anyone may ask: whether the server runs, and nothing else."""


def check_host(host: str, token: str | None) -> None:
    """Refuse to listen to other machines without a token."""
    if host not in LOOPBACK and not token:
        raise ProctorError(
            f"listening on {host} lets other machines in, and there is no token",
            hint="give one with --token or PROCTOR_TOKEN, or listen on 127.0.0.1",
        )


class Guard:
    """ASGI middleware: lets in who may come in, and puts the headers on what goes out."""

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then pass on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message["headers"]}
                extra = [pair for pair in _ENCODED if pair[0] not in known]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        if scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, with_headers)
        elif self._token is None:
            if host_of(headers.get("host", "")) in LOOPBACK:
                await self._app(scope, receive, with_headers)
            else:
                await _answer(with_headers, 421, "this server answers only on this machine")
        elif self._holds(headers):
            await self._app(scope, receive, with_headers)
        elif (given := _in_query(scope)) is not None and self._equals(given):
            await _let_in(with_headers, scope, given)
        else:
            await _answer(with_headers, 401, "a token is needed: Authorization: Bearer …")

    def _holds(self, headers: dict[str, str]) -> bool:
        scheme, _, value = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._equals(value.strip())
        return self._equals(_cookie(headers.get("cookie", "")))

    def _equals(self, given: str) -> bool:
        wanted = self._token or ""
        return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def host_of(header: str) -> str:
    """The name in a Host header, without its port."""
    if header.startswith("["):
        return header.partition("]")[0] + "]"
    return header.partition(":")[0].lower()


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _in_query(scope: Scope) -> str | None:
    pairs = parse_qsl(scope["query_string"].decode("latin-1"))
    return dict(pairs).get("token") if scope["method"] == "GET" else None


async def _let_in(send: Send, scope: Scope, token: str) -> None:
    """A browser that came with the token in its address keeps it as a cookie instead."""
    pairs = parse_qsl(scope["query_string"].decode("latin-1"))
    rest = urlencode([pair for pair in pairs if pair[0] != "token"])
    # Only our own path: an address that begins with two slashes would lead elsewhere.
    place = "/" + scope["path"].lstrip("/\\") + (f"?{rest}" if rest else "")
    cookie = SimpleCookie({COOKIE: token})
    cookie[COOKIE].update({"httponly": "1", "samesite": "Strict", "path": "/"})
    headers = [
        (b"location", place.encode("ascii", "ignore")),
        (b"set-cookie", cookie[COOKIE].OutputString().encode()),
    ]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _answer(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})

"""Check the token and the host name of each request, and add security headers to each response.

Guarantees: without a token, only requests to a name of this machine are answered, so that a web
page elsewhere cannot reach the server through a host name that points here. With tokens (of the
command line or of the store), every request must carry one; hashes are compared in constant time,
and a revoked token is refused within `REFRESH` seconds. The token decides which project's
application answers, so that it reaches nothing of another. A viewer's token reads and never writes.
Each token has a rate limit. Changes are recorded with the name of their token. People may also sign
in with OpenID Connect (`server/oidc.py`). The headers keep
pages from running or loading anything that is not ours. A form of a page is accepted
from that page only (`same_origin`), so that no other site can write through a reader's browser.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import math
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse

from proctor.errors import ProctorError
from proctor.server.store.store import StoredToken, token_hash

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from proctor.server.oidc import SignIn
    from proctor.server.store.store import SqlStore

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

# The key in the scope for the token of a request; absent on a server that needs none.
TOKEN = "proctor.token"

# The key in the scope for the name of a person who signed in.
SIGNED_IN = "proctor.signed_in"

# The key in the scope under which a handler puts what it changed, for the audit: action, detail.
CHANGE = "proctor.change"

# Seconds for which the tokens of the store are cached: reading them with every request would make
# each wait for the database.
REFRESH = 2.0

# Requests per second of one token, twice as many at once: far above a page or an exporter, which
# sends spans in batches.
RATE = 200.0

# Bytes of a form.
MAX_FORM = 64 << 10

# Answered without a token, for load balancers: whether the server runs, and nothing else.
OPEN_PATHS = frozenset({"/healthz"})


def check_tokens(token: str | None, viewer_token: str | None = None) -> None:
    """Raise an error when viewers could write."""
    if viewer_token and (not token or token == viewer_token):
        raise ProctorError(
            "a viewer's token needs another token, for those who may write",
            hint="give one with --token or PROCTOR_TOKEN",
        )


def generated_token(host: str, token: str | None, store: SqlStore | None) -> str | None:
    """Return a new token where pages need one and none is given; None elsewhere.

    They need one where other machines can connect, and where the store has tokens.
    """
    needed = host not in LOOPBACK or (store is not None and store.tokens())
    return secrets.token_urlsafe(32) if needed and not token else None


class Guard:
    """ASGI middleware: check each request, and add the headers to each response.

    `apps` are the applications by project; None is the server's own. `fixed` are the tokens of the
    command line, by name and role; those of the `store` are added to them. `ingest_paths` need no
    token with `open_ingest`, if the request names this machine.
    """

    def __init__(
        self,
        apps: Mapping[str | None, ASGIApp],
        fixed: Mapping[tuple[str, str], str],
        store: SqlStore | None = None,
        *,
        ingest_paths: Collection[str] = (),
        open_ingest: bool = True,
        sign_in: SignIn | None = None,
        rate: float = RATE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._apps = apps
        self._sign_in = sign_in
        self._fixed = [
            StoredToken(name, token_hash(token), role, None, 0)
            for (name, role), token in fixed.items()
        ]
        self._store = store
        self._stored = store.tokens() if store is not None else []
        self._ingest_paths = ingest_paths
        self._open_ingest = open_ingest
        self._rate = rate
        self._clock = clock
        self._read_at = clock()
        self._buckets: dict[str, tuple[float, float]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that is refused, pass on the others."""
        if scope["type"] != "http":
            await self._apps[None](scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                if self._store is not None and message["status"] < 400 and CHANGE in scope:
                    await asyncio.to_thread(self._store.add_audit, *_audited(scope))
                known = {name.lower() for name, _ in message["headers"]}
                extra = [pair for pair in _ENCODED if pair[0] not in known]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        if self._store is not None and self._clock() - self._read_at > REFRESH:
            await self.refresh()
        respond = self._refusal(Request(scope))
        if respond is None:
            if scope["path"] not in OPEN_PATHS and not scope["path"].startswith("/static/"):
                scope[ACCEPTED] = True
            respond = self._apps[scope[TOKEN].project if TOKEN in scope else None]
        await respond(scope, receive, with_headers)

    async def refresh(self) -> None:
        """Read the tokens of the store; one that cannot be read keeps those it had."""
        assert self._store is not None
        self._read_at = self._clock()  # first: requests beside this one need not wait
        with contextlib.suppress(ProctorError):
            self._stored = await asyncio.to_thread(self._store.tokens)

    def _refusal(self, request: Request) -> ASGIApp | None:
        """Return the response to a request that is not passed on."""
        path = request.scope["path"]
        if path in OPEN_PATHS:
            return None
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        sent = value.strip() if scheme.lower() == "bearer" else request.cookies.get(COOKIE, "")
        ingest = path in self._ingest_paths and request.method == "POST"
        if sent and (token := self._find(sent)):
            return self._limited(request, token, ingest=ingest)
        signs_in = self._sign_in is not None
        if self._sign_in is not None:
            if path in self._sign_in.paths:
                return self._sign_in
            if user := self._sign_in.user(request):
                request.scope[SIGNED_IN] = user.name
                return self._limited(request, user, ingest=ingest)
        if path.startswith("/static/"):  # for the page that asks for a token; no secrets
            return None
        # A store whose tokens are all revoked is not open to everyone again.
        fixed = any(token.role != "ingest" for token in self._fixed)
        needed = signs_in or self._stored or fixed
        # A token that is not valid any more must not send its project's spans to another.
        is_open = (self._open_ingest and not (needed and sent)) if ingest else not needed
        if is_open and host_of(request.headers.get("host", "")) in LOOPBACK:
            return None
        if not needed and not ingest:
            return PlainTextResponse("this server answers only on this machine", 421)
        given = request.query_params.get("token") if request.method == "GET" else None
        if given is not None and self._find(given):
            return _with_cookie(request, given)
        for_people = request.method == "GET" and "text/html" in request.headers.get("accept", "")
        if self._sign_in is not None and for_people:
            return self._sign_in.redirect(request)
        if for_people:
            from proctor.server.pages.templating import token_page

            return token_page(request, wrong=bool(given))
        headers = {"www-authenticate": "Bearer"}
        return PlainTextResponse("a token is needed: Authorization: Bearer …", 401, headers)

    def _find(self, sent: str) -> StoredToken | None:
        """Return the valid token that was sent."""
        digest = token_hash(sent)
        for token in (*self._fixed, *self._stored):
            if hmac.compare_digest(token.hash, digest) and token.revoked_ns is None:
                return token
        return None

    def _limited(self, request: Request, token: StoredToken, *, ingest: bool) -> ASGIApp | None:
        """Return the refusal of a request beyond the rate, the role or the project of its token."""
        now, most = self._clock(), 2 * self._rate
        left, at = self._buckets.get(token.name, (most, now))
        left = min(most, left + (now - at) * self._rate)
        self._buckets[token.name] = (left - 1 if left >= 1 else left, now)
        if left < 1:
            wait = {"retry-after": str(math.ceil((1 - left) / self._rate))}
            return PlainTextResponse("too many requests with this token", 429, wait)
        if token.project not in self._apps:
            return PlainTextResponse("this server does not have the project of this token", 403)
        request.scope[TOKEN] = token
        if token.role == "ingest":
            return None if ingest else PlainTextResponse("this token may only send spans", 403)
        if token.role == "viewer":
            request.scope[READS_ONLY] = True
            if request.method not in ("GET", "HEAD"):
                return PlainTextResponse("this token may only read", 403)
        return None


def _audited(scope: Scope) -> tuple[str, str, str]:
    """Return who changed what."""
    action, detail = scope[CHANGE]
    if TOKEN not in scope:
        return "local", action, detail
    token = scope[TOKEN]
    place = f"project {token.project}: " if token.project else ""
    return token.name, action, place + detail


def name_of(request: Request) -> str | None:
    """Return the name of the person or token of a request; None without, or for the server's."""
    token: StoredToken | None = request.scope.get(TOKEN)
    return None if token is None or token.name.startswith("--") else token.name


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

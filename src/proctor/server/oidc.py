"""Sign-in of people with OpenID Connect: the authorization code flow with PKCE, through Authlib.

Guarantees: the provider's answer is accepted only in the browser that asked for it (state), once
(code verifier and nonce), from the issuer that was configured, and for this client. The role comes
from a claim; a person without one is refused. The session is a signed cookie that ends after
`SESSION_SECONDS`. The server stores nothing about sessions, so it cannot end a single one earlier:
who loses a role at the provider keeps it here for that long.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlencode, urlsplit

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.routing import Route

from proctor.errors import ProctorError
from proctor.imports import needs_extra
from proctor.sanitize import line
from proctor.server.auth import COOKIE, LOOPBACK, posted_form
from proctor.server.pages.templating import page
from proctor.server.store.store import StoredToken

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

SESSION = "proctor_session"

# A working day: people sign in once, and a role that was taken away is gone the next day.
SESSION_SECONDS = 8 * 3600

# Seconds from the start of a sign-in until its answer is too late; people type a password.
SIGN_IN_SECONDS = 600

ROLES = ("viewer", "writer", "admin")


class RoleRule(NamedTuple):
    """The role of people whose claim has a value."""

    value: str
    role: str
    project: str | None = None


# Without rules, the values of the claim are the roles themselves.
SAME_NAMES = tuple(RoleRule(role, role) for role in reversed(ROLES))


def role_rule(text: str) -> RoleRule:
    """Return the rule `ROLE=VALUE` or `ROLE@PROJECT=VALUE`."""
    given, separator, value = text.partition("=")
    role, _, project = given.partition("@")
    if not separator or not value or role not in ROLES or (project and role == "admin"):
        raise ProctorError(
            f"--oidc-role {text!r} is not a rule",
            hint=f"write ROLE=VALUE or ROLE@PROJECT=VALUE; roles: {', '.join(ROLES)}, and an admin "
            "belongs to no project",
        )
    return RoleRule(value, role, project or None)


class SignIn:
    """The pages below `/oidc`, and the check of their sessions."""

    def __init__(
        self,
        issuer: str,
        client_id: str,
        client_secret: str | None = None,
        *,
        claim: str = "groups",
        rules: Sequence[RoleRule] = SAME_NAMES,
        public_url: str | None = None,
    ) -> None:
        for package in ("authlib", "itsdangerous"):
            needs_extra(package, "oidc")
        from authlib.integrations.starlette_client import OAuth
        from itsdangerous import URLSafeTimedSerializer
        from starlette.middleware.sessions import SessionMiddleware

        for name, url in (("--oidc", issuer), ("--public-url", public_url or issuer)):
            parts = urlsplit(url)
            local = parts.scheme == "http" and parts.hostname in LOOPBACK
            if not parts.hostname or not (parts.scheme == "https" or local):
                raise ProctorError(f"{name} {url!r} is not a URL that begins with https://")
        self._issuer = issuer.rstrip("/")
        self._claim = claim
        self._rules = tuple(rules)
        self._public_url = public_url.rstrip("/") if public_url else None
        self._secure = (public_url or "").startswith("https:")
        # From the client's secret, so that sessions outlive a restart and are valid at every
        # server of the same client; a new secret ends them all.
        key = (client_secret or secrets.token_urlsafe(32)).encode()
        self._sessions: Any = URLSafeTimedSerializer(
            hmac.digest(key, b"proctor session", "sha256"), salt=f"{self._issuer} {client_id}"
        )
        client: Any = OAuth()
        self._provider: Any = client.register(
            "provider",
            client_id=client_id,
            client_secret=client_secret,
            server_metadata_url=f"{self._issuer}/.well-known/openid-configuration",
            client_kwargs={
                "scope": "openid profile email",
                "code_challenge_method": "S256",
                "timeout": 10.0,
                # A public client has no secret to send.
                **({} if client_secret else {"token_endpoint_auth_method": "none"}),
            },
        )
        self.paths = {
            "/oidc/login": self.begin,
            "/oidc/callback": self.end,
            "/oidc/logout": self.sign_out,
        }
        started = Middleware(
            SessionMiddleware,
            secret_key=hmac.digest(key, b"proctor sign-in", "sha256").hex(),
            session_cookie="proctor_sign_in",
            max_age=SIGN_IN_SECONDS,
            path="/oidc",
            same_site="lax",  # the provider sends the browser back from another site
            https_only=self._secure,
        )
        routes = [
            Route(path, handler, methods=["POST" if path.endswith("logout") else "GET"])
            for path, handler in self.paths.items()
        ]
        self._app = Starlette(routes=routes, middleware=[started])
        self._app.state.has = {"traces": False, "runs": False}

    @property
    def projects(self) -> set[str]:
        """Return the projects that rules name."""
        return {rule.project for rule in self._rules if rule.project is not None}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to one of `paths`."""
        await self._app(scope, receive, send)

    def user(self, request: Request) -> StoredToken | None:
        """Return who signed in, with role and project; None without a valid session."""
        from itsdangerous import BadData

        try:
            found = self._sessions.loads(
                request.cookies.get(SESSION, ""), max_age=SESSION_SECONDS, return_timestamp=True
            )
        except BadData:
            return None
        (name, role, project), at = found
        return StoredToken(name, "", role, project, int(at.timestamp() * 1e9))

    def redirect(self, request: Request) -> Response:
        """Send a browser to the provider, and afterwards back to the page that it asked for."""
        asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/oidc/login?{urlencode({'next': asked})}", 303)

    async def begin(self, request: Request) -> Response:
        """Send the browser to the provider."""
        # The path of our own only: `//host` and `/\host` would lead elsewhere.
        asked = "/" + request.query_params.get("next", "").lstrip("/\\")
        request.session["next"] = asked[:2000]
        try:
            await self._metadata()
            base = self._public_url or str(request.base_url).rstrip("/")
            return await self._provider.authorize_redirect(request, f"{base}/oidc/callback")
        except Exception as error:  # noqa: BLE001 (whatever the provider answers)
            return self._problem(request, error)

    async def end(self, request: Request) -> Response:
        """Check the provider's answer and start the session."""
        asked = request.session.pop("next", "/")
        try:
            found = await self._metadata()
            # Authlib alone accepts a token for another client that names this one as `azp`.
            expected = {
                "iss": {"essential": True, "value": found["issuer"]},
                "aud": {"essential": True, "value": self._provider.client_id},
            }
            token = await self._provider.authorize_access_token(request, claims_options=expected)
            claims: Mapping[str, Any] = token.get("userinfo") or {}
            if not claims.get("sub"):
                raise ProctorError("the provider sent no id token")
            if not _values(claims, self._claim):
                more = await self._provider.userinfo(token=token)
                if more.get("sub") == claims["sub"]:
                    claims = {**more, **claims}
        except Exception as error:  # noqa: BLE001 (whatever the provider answers)
            return self._problem(request, error)
        known = next((claims[key] for key in _NAMES if claims.get(key)), claims["sub"])
        name = line(known, 100)
        values = _values(claims, self._claim)
        rule = next((rule for rule in self._rules if rule.value in values), None)
        if rule is None:
            wanted = ", ".join(rule.value for rule in self._rules)
            return page(
                "sign_in.html",
                request,
                status=403,
                title="No access",
                words=f"{name} is signed in but has no role on this server.",
                hint=f"The claim {self._claim!r} must have one of: {wanted}.",
            )
        answer = RedirectResponse(asked, 303)
        session = self._sessions.dumps((f"oidc:{name}", rule.role, rule.project))
        answer.set_cookie(
            SESSION,
            session,
            max_age=SESSION_SECONDS,
            httponly=True,
            # Not strict: the provider's site leads here. Forms are checked by their origin.
            samesite="lax",
            secure=self._secure,
        )
        # An earlier token of this browser must not decide what the person may do.
        answer.delete_cookie(COOKIE)
        return answer

    async def sign_out(self, request: Request) -> Response:
        """End the session in this browser."""
        form = await posted_form(request)
        if not isinstance(form, dict):
            return form
        answer = page(
            "sign_in.html", request, title="Signed out", words="You are signed out here.", hint=""
        )
        answer.delete_cookie(SESSION)
        return answer

    async def _metadata(self) -> Mapping[str, Any]:
        """Return what the provider says of itself; another issuer is an error."""
        found = await self._provider.load_server_metadata()
        if str(found.get("issuer")).rstrip("/") != self._issuer:
            raise ProctorError(f"the provider calls itself {line(found.get('issuer'), 200)}")
        # An unsigned id token proves nothing, even if a provider offers it.
        algorithms = found.get("id_token_signing_alg_values_supported") or ["RS256"]
        signed = [each for each in algorithms if each != "none"]
        found["id_token_signing_alg_values_supported"] = signed
        return found

    def _problem(self, request: Request, error: Exception) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            return PlainTextResponse(f"sign-in failed: {line(error, 300)}", 502)
        return page(
            "sign_in.html",
            request,
            status=502,
            title="Sign-in failed",
            words=f"{type(error).__name__}: {error}",
            hint=f"The provider is {self._issuer}.",
        )


# Claims that name a person, the first that is there.
_NAMES = ("email", "preferred_username", "name")


def _values(claims: Mapping[str, Any], path: str) -> list[str]:
    """Return the values of a claim; dots lead into objects, as in `realm_access.roles`."""
    found: Any = claims
    # A name may contain dots itself, as in `https://example.com/roles`.
    for part in [path] if path in claims else path.split("."):
        found = cast("Mapping[str, Any]", found).get(part) if isinstance(found, Mapping) else None
    several = cast("list[Any]", found) if isinstance(found, list) else [found]
    return [str(each) for each in several if each is not None]

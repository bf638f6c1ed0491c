"""Sign-in with OpenID Connect: a provider made with Authlib, a real server, a browser."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import grants
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oidc.core import UserInfo
from authlib.oidc.core.grants import OpenIDCode
from browser import browser, violations
from flask import Flask, jsonify, request
from joserfc.jwk import RSAKey
from server_parts import TRACE, serving, started, write
from werkzeug.serving import make_server

from proctor.errors import ProctorError
from proctor.server.app import Service
from proctor.server.oidc import SESSION, SignIn, role_rule
from proctor.server.store import open_store
from proctor.server.store.store import SqlStore

HTML = {"accept": "text/html"}
SECRET = "a-client-secret-of-the-test-0123456789"
PEOPLE: dict[str, dict[str, Any]] = {
    "ann": {"email": "ann@example.com", "groups": ["staff", "ml-team"]},
    "ben": {"email": "ben@example.com", "groups": ["staff"]},
    "eve": {"email": "eve@example.com", "groups": ["sales"]},
    "kim": {"email": "kim@example.com", "realm_access": {"roles": ["writer"]}},
    "web": {"email": "web@example.com", "groups": ["web-team"]},
    "odd": {"name": "<b>odd</b>\x1b[31m", "groups": ["staff"]},
}


class Code:
    """An authorization code as Authlib's grants use it."""

    def __init__(self, person: str, asked: Any) -> None:
        self.person, self.client_id = person, asked.payload.client_id
        data = asked.payload.data
        self.redirect_uri, self.scope = data.get("redirect_uri"), data.get("scope")
        self.nonce, self.auth_time = data.get("nonce"), int(time.time())
        self.code_challenge = data.get("code_challenge")
        self.code_challenge_method = data.get("code_challenge_method")

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope

    def get_nonce(self) -> str:
        return self.nonce

    def get_auth_time(self) -> int:
        return self.auth_time

    def get_acr(self) -> None:
        return None

    def get_amr(self) -> None:
        return None


class Client:
    """The one registered client: any path of this machine is its redirect URI."""

    def __init__(self, client_id: str, secret: str | None) -> None:
        self.client_id, self.secret = client_id, secret

    def get_client_id(self) -> str:
        return self.client_id

    def get_default_redirect_uri(self) -> str:
        return ""

    def get_allowed_scope(self, scope: str) -> str:
        return scope

    def check_redirect_uri(self, uri: str) -> bool:
        parts = urlsplit(uri)
        return parts.hostname in ("127.0.0.1", "localhost") and parts.path == "/oidc/callback"

    def check_client_secret(self, secret: str) -> bool:
        return secret == self.secret

    def check_endpoint_auth_method(self, method: str, _endpoint: str) -> bool:
        return method == ("client_secret_basic" if self.secret else "none")

    def check_response_type(self, kind: str) -> bool:
        return kind == "code"

    def check_grant_type(self, kind: str) -> bool:
        return kind == "authorization_code"


class Provider:
    """An OpenID provider on loopback whose users sign in with a button of their name."""

    def __init__(self, *, secret: str | None = SECRET, in_id_token: bool = True) -> None:
        self.client = Client("proctor", secret)
        self.codes: dict[str, Code] = {}
        self.tokens: dict[str, str] = {}
        self.changed_claims: dict[str, Any] = {}
        key = RSAKey.generate_key(2048, {"kid": "k1"}, private=True)
        app = Flask("provider")
        server = AuthorizationServer(app, query_client=self._client, save_token=self._save_token)
        provider = self

        class CodeGrant(grants.AuthorizationCodeGrant):
            TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic", "none")

            def save_authorization_code(self, code: str, request: Any) -> None:
                provider.codes[code] = Code(request.user, request)

            def query_authorization_code(self, code: str, client: Client) -> Code | None:
                found = provider.codes.get(code)
                return found if found and found.client_id == client.client_id else None

            def delete_authorization_code(self, authorization_code: Code) -> None:
                provider.codes = {
                    k: v for k, v in provider.codes.items() if v is not authorization_code
                }

            def authenticate_user(self, authorization_code: Code) -> str:
                return authorization_code.person

        class IdToken(OpenIDCode):
            def exists_nonce(self, nonce: str, request: Any) -> bool:
                return False

            def resolve_client_private_key(self, client: Client) -> Any:
                return key

            def get_client_algorithm(self, client: Client) -> str:
                return "RS256"

            def get_encode_header(self, client: Client) -> dict[str, str]:
                return {"alg": "RS256", "kid": "k1"}

            def get_client_claims(self, client: Client) -> dict[str, Any]:
                own = {"iss": provider.url, "aud": [client.client_id]}
                return {**own, **provider.changed_claims}

            def generate_user_info(self, user: str, scope: str) -> UserInfo:
                more = PEOPLE[user] if in_id_token else {"email": PEOPLE[user].get("email")}
                return UserInfo(sub=f"id-{user}", **more)

        server.register_grant(
            CodeGrant, [IdToken(require_nonce=True), CodeChallenge(required=True)]
        )

        @app.get("/.well-known/openid-configuration")
        def metadata() -> Any:
            return jsonify(
                issuer=provider.url,
                authorization_endpoint=f"{provider.url}/authorize",
                token_endpoint=f"{provider.url}/token",
                userinfo_endpoint=f"{provider.url}/userinfo",
                jwks_uri=f"{provider.url}/jwks",
                id_token_signing_alg_values_supported=["none", "RS256"],
            )

        @app.get("/jwks")
        def jwks() -> Any:
            return jsonify(keys=[key.as_dict(private=False)])

        @app.route("/authorize", methods=["GET", "POST"])
        def authorize() -> Any:
            if request.method == "GET":
                grant = server.get_consent_grant(end_user=None)
                assert grant.request.payload.data["code_challenge_method"] == "S256"
                buttons = "".join(
                    f"<button name=as value={name}>{name}</button>" for name in PEOPLE
                )
                return f"<title>Provider</title><form method=post>{buttons}</form>"
            who = request.form.get("as")
            return server.create_authorization_response(
                grant_user=who, grant=server.get_consent_grant(end_user=who)
            )

        @app.post("/token")
        def token() -> Any:
            return server.create_token_response()

        @app.get("/userinfo")
        def userinfo() -> Any:
            who = provider.tokens[request.headers["authorization"].split()[1]]
            return jsonify(sub=f"id-{who}", **PEOPLE[who])

        self._server = make_server("127.0.0.1", 0, app, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _client(self, client_id: str) -> Client | None:
        return self.client if client_id == self.client.client_id else None

    def _save_token(self, token: dict[str, Any], asked: Any) -> None:
        self.tokens[token["access_token"]] = asked.user

    @contextmanager
    def running(self) -> Iterator["Provider"]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()


class Clock:
    """A clock that a test moves, so that the server reads its tokens again."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> SqlStore:
    """An empty store; the server of the test closes it."""
    return open_store(f"sqlite:///{tmp_path}/traces.db")


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider().running() as running:
        yield running


@contextmanager
def ending(process: Any) -> Iterator[None]:
    """End a server after the block."""
    try:
        yield
    finally:
        process.terminate()
        process.communicate()


def sign_in(provider: Provider, **options: Any) -> SignIn:
    rules = [role_rule(each) for each in options.pop("rules", ("writer=ml-team", "viewer=staff"))]
    return SignIn(provider.url, "proctor", options.pop("secret", SECRET), rules=rules, **options)


def come_in(site: Any, client: httpx.Client, who: str, path: str = "/traces") -> httpx.Response:
    """Open a page as a browser does, sign in at the provider, and return where that leads."""
    asked = client.get(site.url + path, headers=HTML, follow_redirects=True)
    assert "Provider" in asked.text, asked.text
    return client.post(asked.url, data={"as": who}, headers=HTML, follow_redirects=True)


def test_people_sign_in_and_their_claim_decides_what_they_may_do(store, provider) -> None:
    """R-N14: a writer writes, a viewer reads, others are refused; the audit has their names."""
    write(store, {"id": 1})
    label = {"verdict": "fail", "rater": "x"}
    clock = Clock()
    with serving(Service.receiving(store), sign_in=sign_in(provider), clock=clock) as site:
        with httpx.Client() as ann:
            page = come_in(site, ann, "ann", f"/traces/{TRACE}?from=1")
            assert (page.status_code, page.url) == (200, f"{site.url}/traces/{TRACE}?from=1")
            assert "ann@example.com" in page.text
            assert 'name="rater" value="oidc:ann@example.com"' in page.text
            same = {"sec-fetch-site": "same-origin", "origin": "null"}
            foreign = {"origin": "http://evil.example"}
            address = f"{site.url}/traces/{TRACE}/label"
            assert ann.post(address, data=label, headers=foreign).status_code == 403
            assert ann.post(address, data=label, headers=same).status_code == 303
            assert ann.get(f"{site.url}/api/tokens").status_code == 403  # no admin
        with httpx.Client() as ben:
            page = come_in(site, ben, "ben", f"/traces/{TRACE}")
            assert "read-only" in page.text
            assert ben.post(address, data=label, headers=same).status_code == 403
            # The end of the session in this browser.
            out = ben.post(f"{site.url}/oidc/logout", headers={**same, **HTML})
            assert "Signed out" in out.text
            assert ben.get(f"{site.url}/traces", headers=HTML).status_code == 303
            assert ben.post(f"{site.url}/oidc/logout", headers=foreign).status_code == 403
        with httpx.Client() as eve:
            page = come_in(site, eve, "eve")
            assert page.status_code == 403
            assert "no role on this server" in page.text
            assert eve.get(f"{site.url}/traces", headers=HTML).status_code == 303
        with httpx.Client() as odd:
            assert "<b>odd" not in come_in(site, odd, "odd").text
        # Programs are not sent to a page, and tokens of the store work beside people.
        assert httpx.get(f"{site.url}/api/traces").status_code == 401
        assert httpx.get(f"{site.url}/traces", headers=HTML).status_code == 303
        token = store.add_token("ci", "viewer", None, who="root")
        clock.now = 60.0
        bearer = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{site.url}/api/traces", headers=bearer).status_code == 200
        audit = [(row.who, row.action) for row in store.audit()]
        assert ("oidc:ann@example.com", "label") in audit


def test_a_claim_inside_an_object_and_of_userinfo_gives_the_role(store) -> None:
    """R-N14: `realm_access.roles` is read, from the user info if the id token lacks it."""
    with Provider(secret=None, in_id_token=False).running() as public:
        chosen = SignIn(public.url, "proctor", claim="realm_access.roles")
        with serving(Service.receiving(store), sign_in=chosen) as site, httpx.Client() as kim:
            page = come_in(site, kim, "kim")
            assert page.status_code == 200
            assert "read-only" not in page.text


def test_the_answer_of_a_provider_is_accepted_once_and_here_only(
    store, provider, monkeypatch
) -> None:
    """R-N14: no foreign state, replayed code, other issuer, forged or expired session."""
    with serving(Service.receiving(store), sign_in=sign_in(provider)) as site:
        with httpx.Client() as ann, httpx.Client() as thief:
            asked = ann.get(f"{site.url}/traces", headers=HTML, follow_redirects=True)
            back = ann.post(asked.url, data={"as": "ann"}).headers["location"]
            assert thief.get(back, headers=HTML).status_code == 502
            assert ann.get(back, headers=HTML).status_code == 303
            assert ann.get(back, headers=HTML).status_code == 502
            session = ann.cookies[SESSION]
            assert (
                httpx.get(
                    f"{site.url}/traces", headers=HTML, cookies={SESSION: session}
                ).status_code
                == 200
            )
            for forged in (session[:-2] + "AA", "", "x.y.z", "a" * 5000):
                answer = httpx.get(f"{site.url}/traces", headers=HTML, cookies={SESSION: forged})
                assert answer.status_code == 303
        # `next` leads to no other site.
        with httpx.Client() as ann:
            for odd in ("//evil.example/x", "/\\evil.example", "https://evil.example"):
                asked = ann.get(
                    f"{site.url}/oidc/login", params={"next": odd}, follow_redirects=True
                )
                back = ann.post(asked.url, data={"as": "ann"}).headers["location"]
                place = ann.get(back).headers["location"]
                assert place.startswith("/")
                assert not place.startswith(("//", "/\\"))
        # An id token of another issuer, for another client, or of long ago.
        for changed in (
            {"iss": "http://127.0.0.1:1"},
            {"aud": ["other"], "azp": "proctor"},
            {"exp": int(time.time()) - 3600},
        ):
            monkeypatch.setattr(provider, "changed_claims", changed)
            with httpx.Client() as ann:
                assert come_in(site, ann, "ann").status_code == 502
    # Another client's secret makes no valid session; the same one does, after a restart.
    for secret, code in ((SECRET, 200), ("another-secret-0123456789", 303)):
        service = Service.receiving(open_store("sqlite:///" + str(store.path)))
        with serving(service, sign_in=sign_in(provider, secret=secret)) as site:
            cookies = {SESSION: session}
            answer = httpx.get(f"{site.url}/traces", headers=HTML, cookies=cookies)
            assert answer.status_code == code


def test_a_role_of_a_project_reaches_nothing_else(tmp_path, provider) -> None:
    """R-N14: a person of one project sees its traces only."""
    own, web = (open_store(f"sqlite:///{tmp_path}/{name}.db") for name in ("own", "web"))
    write(own, {"id": 1})
    write(web, {"id": 1, "trace": "1bf7651916cd43dd8448eb211c80319d"})
    chosen = sign_in(provider, rules=("viewer@web=web-team", "viewer=staff"))
    projects = {"web": Service.receiving(web)}
    with serving(Service.receiving(own), sign_in=chosen, projects=projects) as site:
        for who, first, second in (("web", 404, 200), ("ben", 200, 404)):
            with httpx.Client() as client:
                come_in(site, client, who)
                codes = [
                    client.get(f"{site.url}/traces/{trace}", headers=HTML).status_code
                    for trace in (TRACE, "1bf7651916cd43dd8448eb211c80319d")
                ]
                assert codes == [first, second]


def test_sign_in_works_in_a_browser_from_the_command(tmp_path, provider) -> None:
    """R-N14: `proctor serve --oidc` in Chromium, across sites; the page is accessible."""
    command = ["--readers", "0", "--oidc", provider.url, "--oidc-client", "proctor"]
    command += ["--oidc-secret", SECRET, "--oidc-role", "writer=ml-team"]
    process, url = started(f"sqlite:///{tmp_path}/t.db", *command)
    with ending(process), browser() as running:
        # The server is at `localhost`, which is another site than the provider's 127.0.0.1.
        page = running.new_context().new_page()
        page.goto(f"{url}/traces")
        page.get_by_role("button", name="eve").click()
        page.get_by_role("heading", name="No access").wait_for()
        assert violations(page) == []
        page.get_by_role("link", name="Sign in").click()
        page.get_by_role("button", name="ann").click()
        page.get_by_text("ann@example.com").wait_for()
        page.reload()
        assert violations(page) == []
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("heading", name="Signed out").wait_for()


def test_wrong_settings_are_explained(provider) -> None:
    """R-N14: errors name the option; a provider that is not there is a page, not a crash."""
    for rule in ("ml-team", "owner=x", "writer=", "admin@web=x"):
        with pytest.raises(ProctorError, match="not a rule"):
            role_rule(rule)
    for issuer in ("http://id.example.com", "id.example.com", "ftp://x"):
        with pytest.raises(ProctorError, match="https://"):
            SignIn(issuer, "proctor")


def test_a_provider_that_does_not_answer_is_reported(store, provider) -> None:
    """R-N14: a provider that is not there, or calls itself otherwise, is a page with the reason."""
    for issuer in ("http://127.0.0.1:9", provider.url.replace("127.0.0.1", "localhost")):
        service = Service.receiving(open_store("sqlite:///" + str(store.path)))
        with serving(service, sign_in=SignIn(issuer, "proctor")) as site:
            answer = httpx.get(f"{site.url}/oidc/login", headers=HTML)
            assert answer.status_code == 502
            assert "Sign-in failed" in answer.text
            assert issuer in answer.text

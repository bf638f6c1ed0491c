"""A server of a team: tokens with roles, projects that see nothing of each other, limits, audit."""

import json
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from outcome_parts import made_run, suite
from server_parts import TRACE, serving, started, wire_request, write
from viewer_parts import run_suite, shop_agent, shop_suite

from proctor.cli.serve import serve
from proctor.cli.store import store as store_group
from proctor.errors import ProctorError
from proctor.runs.run import Run
from proctor.server.app import Service
from proctor.server.pages.runs import address_name
from proctor.server.store import open_store
from proctor.server.store.store import token_hash

PROTOBUF = {"content-type": "application/x-protobuf"}
OTHER = "1bf7651916cd43dd8448eb211c80319d"


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def sqlite(path: Path) -> str:
    return f"sqlite:////{path}".replace("/////", "////")


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_tokens_are_stored_as_hashes_with_an_audit(store) -> None:
    """R-N14: the store has a hash, role and project; names are used once; changes are recorded."""
    token = store.add_token("ann", "writer", "web", who="root")
    (row,) = store.tokens()
    assert len(token) >= 43
    assert (row.name, row.hash, row.role, row.project) == (
        "ann",
        token_hash(token),
        "writer",
        "web",
    )
    assert token not in repr(store._all("SELECT * FROM tokens"))
    store.revoke_token("ann", who="root")
    for again in ("ann", "../x", "", "a b", "x" * 101, "a\x1b[31m"):
        with pytest.raises(ProctorError):
            store.add_token(again, "viewer", None, who="root")
    with pytest.raises(ProctorError, match="all projects"):
        store.add_token("boss", "admin", "web", who="root")
    for name in ("ann", "nobody"):
        with pytest.raises(ProctorError, match="no valid token"):
            store.revoke_token(name, who="root")
    assert [row[1:] for row in store.audit()] == [
        ("root", "token revoke", "ann"),
        ("root", "token add", "ann: writer of project web"),
    ]


def test_a_store_of_an_earlier_version_gets_the_tables(store) -> None:
    """R-N14: a store without the tables gets them when it is opened, and keeps its traces."""
    write(store, {"id": 1})
    with store.writing() as cursor:
        for table in ("tokens", "audit"):
            cursor.execute(f"DROP TABLE {table}")
    store.migrate()
    assert store.tokens() == []
    assert store.audit() == []
    assert store.count() == 1


def test_roles_decide_what_a_token_may_do(store) -> None:
    """R-N14: a viewer cannot write, a writer labels and sends, an admin manages tokens."""
    write(store, {"id": 1})
    tokens = {
        role: store.add_token(f"{role}-1", role, None, who="root")
        for role in ("viewer", "writer", "admin")
    }
    label = {"verdict": "fail", "rater": "ann"}
    with serving(Service.receiving(store)) as site:

        def post(role: str, path: str, **body) -> int:
            headers = {**bearer(tokens[role]), **body.pop("headers", {})}
            return httpx.post(site.url + path, headers=headers, **body).status_code

        allowed = {}
        for role, token in tokens.items():
            span = {"content": wire_request({"id": 2}), "headers": PROTOBUF}
            codes = [
                httpx.get(f"{site.url}/traces/{TRACE}", headers=bearer(token)).status_code,
                post(role, f"/traces/{TRACE}/label", data=label),
                post(role, "/v1/traces", **span),
                httpx.get(f"{site.url}/api/tokens", headers=bearer(token)).status_code,
                httpx.get(f"{site.url}/api/audit", headers=bearer(token)).status_code,
                post(role, "/api/tokens", data={"name": f"of-{role}", "role": "viewer"}),
            ]
            allowed[role] = codes
        assert allowed == {
            "viewer": [200, 403, 403, 403, 403, 403],
            "writer": [200, 303, 200, 403, 403, 403],
            "admin": [200, 303, 200, 200, 200, 200],
        }
        listed = httpx.get(f"{site.url}/api/tokens", headers=bearer(tokens["admin"])).text
        assert "of-admin" in listed
        assert "hash" not in listed
        # A page of another site writes nothing with the cookie of an admin.
        cookie = {"cookie": f"proctor_token={tokens['admin']}", "origin": "http://evil.example"}
        for path in ("/api/tokens", "/api/tokens/viewer-1/revoke", f"/traces/{TRACE}/label"):
            assert httpx.post(site.url + path, headers=cookie, data=label).status_code == 403
        page = httpx.get(f"{site.url}/traces/{TRACE}", headers=bearer(tokens["viewer"])).text
        assert ">read-only<" in page
        for headers in ({}, bearer("wrong"), bearer(store.tokens()[0].hash)):
            assert httpx.get(f"{site.url}/api/traces", headers=headers).status_code == 401
        for form in (
            {"name": "x", "role": "king"},
            {"name": "x", "role": "viewer", "project": "y"},
        ):
            assert post("admin", "/api/tokens", data=form) == 400
        changes = [(row.who, row.action, row.detail) for row in store.audit()]
    assert changes[:3] == [
        ("admin-1", "token add", "of-admin: viewer"),
        ("admin-1", "label", f"trace {TRACE}: fail by ann"),
        ("writer-1", "label", f"trace {TRACE}: fail by ann"),
    ]
    assert len(changes) == 6  # and the three tokens: refused requests changed nothing


def test_a_revoked_token_is_refused_within_seconds(store) -> None:
    """R-N14: tokens are cached for seconds; a store whose tokens are all revoked stays closed."""
    clock = Clock()
    with serving(Service.receiving(store), clock=clock) as site:

        def status(token: str) -> int:
            return httpx.get(f"{site.url}/api/traces", headers=bearer(token)).status_code

        assert httpx.get(f"{site.url}/api/traces").status_code == 200  # no token yet: this machine
        token = store.add_token("ann", "viewer", None, who="root")
        clock.now += 3
        assert status(token) == 200
        assert httpx.get(f"{site.url}/api/traces").status_code == 401
        store.revoke_token("ann", who="root")
        clock.now += 3
        assert status(token) == 401
        assert httpx.get(f"{site.url}/api/traces").status_code == 401
        # Spans of this machine need no token, but a bad one is not taken for none.
        for headers, code in (({}, 200), (bearer(token), 401), ({"host": "evil.example"}, 401)):
            given = {**PROTOBUF, **headers}
            sent = httpx.post(
                f"{site.url}/v1/traces", content=wire_request({"id": 1}), headers=given
            )
            assert sent.status_code == code


def test_each_token_has_a_limit_of_its_own(store) -> None:
    """R-N14: 429 with Retry-After beyond the rate; other tokens go on; the bucket fills again."""
    clock = Clock()
    ann, bob = (store.add_token(name, "viewer", None, who="root") for name in ("ann", "bob"))
    with serving(Service(store), rate=0.5, clock=clock) as site:

        def get(token: str) -> httpx.Response:
            return httpx.get(f"{site.url}/api/traces", headers=bearer(token))

        assert get(ann).status_code == 200
        refused = get(ann)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "2"
        assert get(bob).status_code == 200
        clock.now += 2
        assert [get(ann).status_code for _ in range(2)] == [200, 429]


def test_an_ingest_token_only_sends_spans(store) -> None:
    """R-N14: with --ingest-token spans need it, also on this machine; it reads nothing."""
    with serving(Service.receiving(store), ingest_token="send") as site:
        body = wire_request({"id": 1})
        for headers, code in (({}, 401), (bearer("other"), 401), (bearer("send"), 200)):
            sent = httpx.post(
                site.url + "/v1/traces", content=body, headers={**PROTOBUF, **headers}
            )
            assert sent.status_code == code
        assert httpx.get(f"{site.url}/api/traces", headers=bearer("send")).status_code == 403
        assert httpx.get(f"{site.url}/api/traces").json()["count"] == 1


def test_a_token_of_one_project_reads_nothing_of_another(store, tmp_path: Path) -> None:
    """R-N14: every route answers from the project of the token, and from no other."""
    web = open_store(sqlite(tmp_path / "web.db"))
    app = open_store(sqlite(tmp_path / "app.db"))
    write(web, {"id": 1, "name": "web-secret", "trace": TRACE}, service="web-service")
    write(app, {"id": 1, "name": "app-secret", "trace": OTHER}, service="app-service")
    results = {name: tmp_path / "results" / name for name in ("web", "app")}
    agents = {"hasty": shop_agent(False), "slow": shop_agent(model="other-model")}
    runs = {
        "web": run_suite(shop_suite("lamp"), agents, results["web"]),
        "app": made_run(results["app"], {"fast": suite([(1, 2)])}, name="app-run"),
    }
    names = {name: runs[name].relative_to(results[name]).as_posix() for name in runs}
    trials = {name: address_name(next(iter(Run(runs[name]).trials()))) for name in runs}
    tokens = {
        name: store.add_token(f"{name}-token", "writer", name, who="root")
        for name in ("web", "app")
    }
    lost = store.add_token("lost", "writer", "gone", who="root")
    projects = {
        "web": Service.receiving(web, results=results["web"], suites=results["web"]),
        "app": Service.receiving(app, results=results["app"], suites=results["app"]),
    }
    with serving(Service.receiving(store), projects=projects) as site:
        routes = set()
        for each in site.config.app._apps["web"].routes:
            if "GET" in each.methods and each.path not in ("/healthz", "/static/{name:str}"):
                routes.add(each.path)
        assert {
            "/traces/{trace_id:str}",
            "/api/figures",
            "/runs/{name:path}/promote/{trial:str}",
        } < (routes)
        for mine, other, trace in (("web", "app", OTHER), ("app", "web", TRACE)):
            with httpx.Client(
                base_url=site.url, headers=bearer(tokens[mine]), timeout=60
            ) as client:
                assert f"{mine}-secret" in client.get("/api/traces").text
                assert names[mine] in client.get("/runs").text
                assert client.get(f"/runs/{names[mine]}/trial/{trials[mine]}").status_code == 200
                for route in sorted(routes):
                    path = route
                    for key, value in {
                        "{trace_id:str}": trace,
                        "{span_id:str}": f"{1:016x}",
                        "{name:path}": names[other],
                        "{trial:str}": trials[other],
                        "{form:str}": "json",
                    }.items():
                        path = path.replace(key, value)
                    reply = client.get(path, headers={"accept": "text/html"})
                    for secret in (f"{other}-secret", f"{other}-service"):
                        assert secret not in reply.text, path
                    if "{trace_id" in route and "evaluations" not in route:
                        assert reply.status_code == 404, path
                    if "{name:path}" in route and not route.startswith(("/history", "/state")):
                        assert reply.status_code == 404, path
                label = {"verdict": "fail", "rater": mine}
                assert client.post(f"/traces/{trace}/label", data=label).status_code == 404
                climbing = client.get(f"/runs/..%2f{other}%2f{names[other].replace('/', '%2f')}")
                assert climbing.status_code == 404
                assert client.get("/api/tokens").status_code == 404
                body = wire_request({"id": 7, "name": f"sent-by-{mine}"})
                assert client.post("/v1/traces", content=body, headers=PROTOBUF).status_code == 200
        label = {"verdict": "pass", "rater": "ann"}
        mine = bearer(tokens["web"])
        assert httpx.post(f"{site.url}/traces/{TRACE}/label", data=label, headers=mine).is_redirect
        failed = next(trial for trial in Run(runs["web"]).trials() if not trial.passed)
        form = {"trial": address_name(failed), "verdict": "fail", "rule": "random", "rater": "ann"}
        run = f"{site.url}/runs/{names['web']}"
        assert httpx.post(f"{run}/review", data=form, headers=mine).is_redirect
        written = httpx.post(f"{run}/promote/{form['trial']}", data={"write": "1"}, headers=mine)
        assert written.status_code == 200
        assert (results["web"] / "regression.yaml").is_file()
        assert httpx.get(f"{site.url}/api/traces", headers=bearer(lost)).status_code == 403
        assert [row[1:] for row in store.audit(3)] == [
            ("web-token", "promote", f"project web: {names['web']}/{failed.name}: regression.yaml"),
            ("web-token", "label", f"project web: {names['web']}/{failed.name}: fail"),
            ("web-token", "label", f"project web: trace {TRACE}: pass by ann"),
        ]
        assert store.count() == 0
        assert [web.count(), app.count()] == [1, 2]  # web's own trace grew, app got a new one


def test_the_commands_manage_tokens_of_a_store_and_of_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-N14: add prints the token once, list has no secret; an admin does the same by the URL."""
    url = sqlite(tmp_path / "t.db")
    opened = open_store(sqlite(tmp_path / "web.db"))
    write(opened, {"id": 1})
    opened.close()

    def run(*arguments: str, place: str = url) -> str:
        done = CliRunner().invoke(
            store_group, [*arguments, "--store", place], standalone_mode=False
        )
        if done.exception:
            raise done.exception
        return done.output

    admin = run("token", "add", "root", "--role", "admin").strip()
    assert admin not in run("token", "list")
    process, address = started(
        url, "--readers", "0", "--project", f"web={sqlite(tmp_path / 'web.db')}"
    )
    try:
        monkeypatch.setenv("PROCTOR_TOKEN", "wrong")
        with pytest.raises(ProctorError, match="a token is needed") as refused:
            run("token", "list", place=address)
        assert "PROCTOR_TOKEN" in (refused.value.hint or "")
        monkeypatch.setenv("PROCTOR_TOKEN", admin)
        reader = run("token", "add", "ann", "--role", "viewer", "--project", "web", place=address)
        seen = httpx.get(f"{address}/api/traces", headers=bearer(reader.strip()))
        assert seen.json()["count"] == 1
        assert httpx.get(f"{address}/api/traces", headers=bearer(admin)).json()["count"] == 0
        run("token", "revoke", "ann", place=address)
        assert httpx.get(f"{address}/api/traces", headers=bearer(reader.strip())).status_code == 401
        with pytest.raises(ProctorError, match="no valid token"):
            run("token", "revoke", "ann", place=address)
        rows = json.loads(run("audit", "--json", place=address))["audit"]
        assert [(row["who"], row["action"]) for row in rows[:2]] == [
            ("root", "token revoke"),
            ("root", "token add"),
        ]
        assert run("audit") == run("audit", place=address)
        assert run("token", "list") == run("token", "list", place=address)
        assert "project web" in run("token", "list")
    finally:
        process.terminate()
        process.communicate()


def test_projects_that_would_share_something_are_refused(tmp_path: Path) -> None:
    """R-N14: one store or results folder for two projects would show one to the other."""
    (tmp_path / "r" / "inner").mkdir(parents=True)
    a, b = (sqlite(tmp_path / f"{name}.db") for name in "ab")
    again = sqlite(tmp_path / "r" / ".." / "a.db")
    for given, words in (
        ((f"web={a}",), "share a store"),
        ((f"web={again}",), "share a store"),
        ((f"web={b},{tmp_path}/r", f"app=sqlite:///c.db,{tmp_path}/r/inner"), "share a store"),
        (("web",), "is not a new project"),
        ((f"web={b}", "web=sqlite:///c.db"), "is not a new project"),
        ((f"web={b},{tmp_path}/none",), "no results folder"),
    ):
        flags = [part for each in given for part in ("--project", each)]
        done = CliRunner().invoke(
            serve, ["--store", a, "--readers", "0", *flags], standalone_mode=False
        )
        assert isinstance(done.exception, ProctorError)
        assert words in done.exception.message
    assert not (tmp_path / "a.db").exists()

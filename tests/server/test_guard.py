"""Who gets in, and what answers carry."""

from pathlib import Path

import httpx
import pytest
from server_parts import serving, started, wire_request, write

from proctor.server.app import Service
from proctor.server.auth import HEADERS, host_of
from proctor.server.store import open_store

BEYOND = ("--host", "0.0.0.0", "--readers", "0")

PROTOBUF = {"content-type": "application/x-protobuf"}


@pytest.fixture
def opened(tmp_path: Path):
    return open_store(f"sqlite:////{tmp_path}/t.db".replace("/////", "////"))


def test_every_answer_has_the_headers(opened) -> None:
    """R-D7: pages may run and load only what is ours; errors carry the same headers."""
    with serving(Service.receiving(opened)) as running:
        for path in ("/healthz", "/api/traces", "/nowhere", "/api/traces/..%2f..%2fetc%2fpasswd"):
            reply = httpx.get(running.url + path)
            for name, value in HEADERS.items():
                assert reply.headers[name] == value
            assert "server" not in reply.headers or "uvicorn" in reply.headers["server"]


def test_a_page_elsewhere_cannot_reach_it_by_another_name(opened) -> None:
    """R-D7: without a token only names of this machine are answered."""
    with serving(Service.receiving(opened)) as running:
        for host in ("evil.example", "evil.example:4318", "127.0.0.1.evil.example"):
            reply = httpx.get(running.url + "/api/traces", headers={"host": host})
            assert reply.status_code == 421
        assert httpx.get(running.url + "/api/traces").status_code == 200


def test_a_token_is_asked_of_everyone(opened) -> None:
    """R-D7: header or cookie, spans and pages alike; the address gives it once to a browser."""
    with serving(Service.receiving(opened), token="right") as running:
        body = wire_request({"id": 1})
        for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": "proctor_token=wrong"}):
            reply = httpx.post(
                running.url + "/v1/traces", content=body, headers={**PROTOBUF, **headers}
            )
            assert reply.status_code == 401
        assert opened.count() == 0
        good = {"authorization": "Bearer right", **PROTOBUF}
        taken = httpx.post(running.url + "/v1/traces", content=body, headers=good)
        assert taken.status_code == 200
        assert httpx.get(running.url + "/healthz").status_code == 200
        with httpx.Client(base_url=running.url, timeout=60) as browser:
            came = browser.get("/api/traces?token=right&limit=1")
            assert came.status_code == 303
            assert came.headers["location"] == "/api/traces?limit=1"
            assert "HttpOnly" in came.headers["set-cookie"]
            assert "SameSite=Strict" in came.headers["set-cookie"]
            assert browser.get("/api/traces").json()["count"] == 1
        people = {"accept": "text/html"}
        asked = httpx.get(running.url + '/traces?text="><b>&token=wrong', headers=people)
        assert asked.status_code == 401
        assert "This token is not valid" in asked.text
        assert 'name="text" value="&#34;&gt;&lt;b&gt;"' in asked.text
        assert "wrong" not in asked.text
        assert "not valid" not in httpx.get(running.url + "/traces", headers=people).text
        assert httpx.get(running.url + "/static/theme.css").status_code == 200
        elsewhere = httpx.get(running.url + "//evil.example/?token=right")
        assert not elsewhere.headers["location"].startswith("//")


def test_other_machines_need_a_token(tmp_path: Path) -> None:
    """R-D7: beyond this machine all need a token; one is made if none is given."""
    process, address = started(f"sqlite:////{tmp_path}/x.db".replace("/////", "////"), *BEYOND)
    assert process.stderr is not None
    try:
        opening = process.stderr.readline().split()[-1]
        assert len(opening.partition("?token=")[2]) >= 43  # 256 bits
        assert "0.0.0.0" not in opening  # which leads to the reader's own machine
        here = f"http://127.0.0.1:{address.rpartition(':')[2]}"
        # The line to copy sends spans with the token; without it they are refused.
        assert f"Bearer {opening.partition('?token=')[2]}" in process.stderr.readline()
        assert httpx.get(f"{here}/api/traces").status_code == 401
        span = httpx.post(f"{here}/v1/traces", content=wire_request({"id": 1}), headers=PROTOBUF)
        assert span.status_code == 401
        with httpx.Client(follow_redirects=True, timeout=60) as browser:
            assert browser.get(opening.replace(address, here)).status_code == 200
            assert browser.get(f"{here}/api/traces").json()["count"] == 0
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.parametrize(
    ("header", "host"),
    [("localhost:4318", "localhost"), ("[::1]:80", "[::1]"), ("LOCALHOST", "localhost"), ("", "")],
)
def test_hosts_are_read_without_their_port(header: str, host: str) -> None:
    """R-D7: the name alone decides."""
    assert host_of(header) == host


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("?tol=x", "unknown parameter 'tol'"),
        ("?min_ms=fast", "min_ms is not a number"),
        ("?since=yesterday", "not a date"),
        ("?status=broken", "no status"),
        ("?sort=sideways", "no order"),
        ("?limit=nan", "limit is not a number"),
    ],
)
def test_bad_questions_are_answered_with_a_reason(opened, query: str, says: str) -> None:
    """R-D7: a wrong filter is 400 and says what is wrong."""
    with serving(Service(opened)) as running:
        reply = httpx.get(running.url + "/api/traces" + query)
        assert reply.status_code == 400
        assert says in reply.json()["error"]


def test_the_api_gives_traces_and_figures(opened) -> None:
    """R-D7: list, one whole trace in our form and as OTLP, evaluations, figures."""
    write(opened, {"id": 1, "name": "hello"})
    with serving(Service(opened)) as running:
        get = httpx.Client(base_url=running.url, timeout=60).get
        (row,) = get("/api/traces?text=hello").json()["traces"]
        whole = get(f"/api/traces/{row['trace_id']}").json()
        assert whole["spans"][0]["name"] == "hello"
        otlp = get(f"/api/traces/{row['trace_id']}?format=otlp").json()
        assert otlp["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"] == "hello"
        assert get("/api/traces/none").status_code == 404
        assert get("/api/figures").json()["spans"] == 1
        assert get(f"/api/traces/{row['trace_id']}/evaluations").json() == {"evaluations": []}
        assert httpx.post(running.url + "/v1/traces", content=b"").status_code == 404

"""The server when things go wrong: what cannot be kept, stores that go away, clients that hang."""

import asyncio
import json
import shutil
import signal
import socket
import sqlite3
import tempfile
import threading
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from server_parts import TRACE, serving, started, wire_request, write
from starlette.requests import Request

from proctor.server._otlp_endpoint import endpoint
from proctor.server.app import Service
from proctor.server.decoder_process import SPANS
from proctor.server.ingest import Ingest
from proctor.server.store import open_store
from proctor.server.store.store import StoreError

PROTOBUF = {"content-type": "application/x-protobuf"}
OTHER = "2" * 32


@pytest.fixture
def here(tmp_path: Path):
    """A server with an empty store in a file."""
    store = open_store(f"sqlite:///{tmp_path}/t.db".replace(":///", ":////", 1))
    with serving(Service.receiving(store)) as running:
        running.store = store
        yield running


def post(address: str, body: bytes, path: str = "/v1/traces") -> httpx.Response:
    return httpx.post(address + path, content=body, headers=PROTOBUF, timeout=60)


def test_numbers_no_database_holds(store) -> None:
    """R-D7: times and counts beyond 64 bits are unknown in lists; the span is kept as it came."""
    tokens = {"openinference.span.kind": "LLM", "llm.token_count.prompt": 7}
    write(store, {"id": 1, "start": 5, "end": 2**64 - 1, "attributes": tokens})
    assert store.row(TRACE).ended_ns is None
    assert store.trace(TRACE).spans[0].end_ns == 2**64 - 1
    write(store, {"id": 2, "start": 5, "end": 9})
    assert (store.row(TRACE).spans, store.row(TRACE).ended_ns) == (2, 9)


def test_one_request_that_cannot_be_kept_harms_no_other(here) -> None:
    """R-D7: requests written together are answered each for itself; the writer goes on."""
    with here.store.writing() as cursor:
        cursor.execute(
            "CREATE TRIGGER no BEFORE INSERT ON spans WHEN NEW.name = 'poison' "
            "BEGIN SELECT RAISE(ABORT, 'never'); END"
        )
    blocker = sqlite3.connect(here.store.path, isolation_level=None, timeout=30)
    blocker.execute("BEGIN IMMEDIATE")  # so that all but the first wait and go together
    replies: dict[int, int] = {}

    def send(number: int) -> None:
        name = "poison" if number == 3 else "fine"
        body = wire_request({"id": number, "name": name})
        replies[number] = post(here.url, body).status_code

    senders = [threading.Thread(target=send, args=(number,)) for number in range(1, 7)]
    for sender in senders:
        sender.start()
    blocker.execute("COMMIT")
    for sender in senders:
        sender.join()
    assert replies == {1: 200, 2: 200, 3: 400, 4: 200, 5: 200, 6: 200}
    assert here.store.row(TRACE).spans == 5


def test_a_store_that_was_removed(here) -> None:
    """R-D7: nothing is acknowledged that would be gone with the process; reading says so too."""
    assert post(here.url, wire_request({"id": 1})).status_code == 200
    here.store.path.unlink()
    reply = post(here.url, wire_request({"id": 2}))
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "2")
    assert b"moved, removed or replaced" in reply.content


def test_a_store_that_cannot_be_written(here) -> None:
    """R-D7: 503 while the disk refuses, 200 when it takes spans again."""
    with here.store.writing() as cursor:
        cursor.execute("PRAGMA query_only = ON")
    assert post(here.url, wire_request({"id": 1})).status_code == 503
    with pytest.raises(StoreError, match="cannot write"):
        here.store.prune(2**62)
    here.store._writer.execute("PRAGMA query_only = OFF")
    assert post(here.url, wire_request({"id": 1})).status_code == 200


@pytest.mark.slow
def test_postgresql_restarts() -> None:
    """R-D7: 503 while the database is away; spans and pages come back without a restart of ours."""
    pgserver = pytest.importorskip("pgserver", reason="pgserver is not installed")
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    database = pgserver.get_server(folder)
    control = {"pgdata": database.pgdata, "user": database.system_user}
    try:
        with serving(Service.receiving(open_store(database.get_uri()))) as running:
            body = wire_request({"id": 1})
            assert post(running.url, body).status_code == 200
            assert httpx.get(running.url + "/api/traces").json()["count"] == 1
            pgserver.pg_ctl(["-w", "-m", "immediate", "stop"], **control)
            assert post(running.url, body).status_code == 503
            away = httpx.get(running.url + "/api/traces")
            assert (away.status_code, "cannot" in away.json()["error"]) == (503, True)
            database.ensure_postgres_running()
            assert post(running.url, wire_request({"id": 2})).status_code == 200
            assert httpx.get(running.url + "/api/traces").json()["traces"][0]["spans"] == 2
    finally:
        database.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def test_many_attributes(here) -> None:
    """R-D7: a span with a hundred thousand attributes is a span; the next one gets in as before."""
    body = wire_request({"id": 1, "attributes": {f"key.{n}": "v" for n in range(100_000)}})
    assert post(here.url, body).status_code == 200
    assert len(here.store.trace(TRACE).spans[0].attributes) == 100_000
    assert post(here.url, wire_request({"id": 2})).status_code == 200


def test_log_records_outside_any_span(here) -> None:
    """R-D7: what belongs to no trace is taken and forgotten; exporters have nothing to retry."""
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add()
    record.body.string_value = "started"
    reply = post(here.url, request.SerializeToString(), "/v1/logs")
    assert (reply.status_code, here.store.count()) == (200, 0)
    assert post(here.url, wire_request({"id": 1}), "/v1/logs").status_code in (200, 400)
    assert here.store.count() == 0


# -- clients that hang --------------------------------------------------------------------------


def asked(receive) -> Request:
    """A request whose body comes from `receive`."""
    headers = [(b"content-type", b"application/x-protobuf")]
    scope = {"type": "http", "method": "POST", "path": "/v1/traces", "headers": headers}
    return Request({**scope, "query_string": b""}, receive)


async def test_a_client_that_stops_sending(store) -> None:
    """R-D7: it is turned away after a while, and holds no room after that."""

    async def never() -> dict:
        await asyncio.Event().wait()
        return {}

    ingest = Ingest(store, max_waiting=100)
    reply = await endpoint(ingest, SPANS, patience=0.01)(asked(never))
    assert reply.status_code == 408

    parts = iter([{"type": "http.request", "body": bytes(90), "more_body": True}])

    async def goes_away() -> dict:
        return next(parts, {"type": "http.disconnect"})

    assert (await endpoint(ingest, SPANS)(asked(goes_away))).status_code == 400
    with ingest.reading() as more:
        more(100)  # all the room is there again


async def test_bodies_being_read_are_counted(store) -> None:
    """R-D7: memory is bounded while bodies come, not only once they wait."""
    ingest = Ingest(store, max_waiting=100)

    async def much() -> dict:
        return {"type": "http.request", "body": bytes(101), "more_body": True}

    reply = await endpoint(ingest, SPANS)(asked(much))
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "2")


def test_half_a_request_and_gone(tmp_path: Path) -> None:
    """R-D7: a connection cut in the middle of a body leaves no trace and no noise."""
    process, address = started(f"sqlite:////{tmp_path}/t.db".replace("/////", "////"))
    port = int(address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as cut:
        cut.sendall(
            b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
            b"Content-Type: application/x-protobuf\r\n\r\nabc"
        )
    assert post(address, wire_request({"id": 1})).status_code == 200
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors


def test_what_waits_is_written_before_the_end(tmp_path: Path) -> None:
    """R-R6: SIGTERM while a request waits for the store: it is written, and answered."""
    process, address = started(f"sqlite:////{tmp_path}/t.db".replace("/////", "////"))
    blocker = sqlite3.connect(tmp_path / "t.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    body = wire_request({"id": 1})
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as client:
        client.sendall(
            b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
            b"Content-Type: application/x-protobuf\r\nExpect: 100-continue\r\n\r\n" % len(body)
        )
        assert b"100 Continue" in client.recv(1000)  # the server is at it
        client.sendall(body)
        process.send_signal(signal.SIGTERM)
        while not _refused(address):
            pass
        blocker.execute("COMMIT")
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
    process.wait(60)
    store = open_store(f"sqlite:////{tmp_path}/t.db".replace("/////", "////"))
    assert store.row(TRACE).spans == 1
    store.close()


def _refused(address: str) -> bool:
    """Whether the server takes no new connections."""
    try:
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))):
            return False
    except OSError:
        return True


# -- what came, counted right -------------------------------------------------------------------


def test_notices_that_a_span_began(store) -> None:
    """R-D7: a notice is its span, still open, until the span itself comes: one span, not two."""
    notice = {"logfire.span_type": "pending_span", "logfire.pending_parent_id": "0" * 16}
    write(store, {"id": 9, "parent": 1, "name": "agent", "attributes": notice})
    row = store.row(TRACE)
    assert (row.name, row.spans, row.ended_ns) == ("agent", 1, None)
    write(store, {"id": 1, "name": "agent", "start": 10, "end": 20})
    write(store, {"id": 9, "parent": 1, "name": "agent", "attributes": notice})
    row = store.row(TRACE)
    assert (row.spans, row.ended_ns) == (1, 20)
    assert [span.span_id for span in store.trace(TRACE).spans] == [f"{1:016x}"]


@pytest.mark.parametrize("logs_first", [True, False])
def test_words_that_stand_in_logs_are_found(here, logs_first: bool) -> None:
    """R-D7: a list shows and finds what was asked and answered, wherever the producer puts it."""
    said = {"gen_ai.user.message": "the ferry to Bergen", "gen_ai.choice": "it leaves at noon"}
    records = [
        {
            "traceId": TRACE,
            "spanId": f"{2:016x}",
            "timeUnixNano": str(number),
            "eventName": name,
            "body": {"kvlistValue": {"values": [_pair("content", words)]}},
        }
        for number, (name, words) in enumerate(said.items())
    ]
    logs = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}).encode()
    llm = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4o"}
    spans = wire_request({"id": 1, "name": "agent"}, {"id": 2, "parent": 1, "attributes": llm})

    def send_logs() -> None:
        reply = httpx.post(
            here.url + "/v1/logs", content=logs, headers={"content-type": "application/json"}
        )
        assert reply.json() == {}

    if logs_first:
        send_logs()
    post(here.url, spans)
    if not logs_first:
        send_logs()
    assert here.store.row(TRACE).query == "the ferry to Bergen"
    found = httpx.get(here.url + "/api/traces", params={"text": "bergen"}).json()
    assert [row["trace_id"] for row in found["traces"]] == [TRACE]


def _pair(key: str, words: str) -> dict:
    return {"key": key, "value": {"stringValue": words}}


def test_a_trace_that_grew_while_it_was_looked_at(store) -> None:
    """R-D7: what was said of an older state does not count as said of the new one."""
    write(store, {"id": 1})
    write(store, {"id": 1, "trace": OTHER})
    before = {each: store.row(each).updated_ns for each in (TRACE, OTHER)}
    write(store, {"id": 2})
    for each, seen in before.items():
        store.put_evaluations(each, [], score=0.5, findings=0, seen_ns=seen)
    assert store.quiet(2**62) == [TRACE]

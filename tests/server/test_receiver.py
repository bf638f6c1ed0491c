"""OTLP over HTTP against a real server on loopback: what is taken, what is refused, and how."""

import gzip
import json
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import zstandard
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from run_parts import until
from server_parts import TRACE, serving, started, wire_request

from proctor.server._otlp_endpoint import decompressed
from proctor.server.app import Service
from proctor.server.decoder_process import Refused
from proctor.server.ingest import Ingest
from proctor.server.store import open_store
from proctor.trace.redact import default_redactor

PROTOBUF = {"content-type": "application/x-protobuf"}
GZIP = {**PROTOBUF, "content-encoding": "gzip"}
JSON = {"content-type": "application/json"}


@pytest.fixture
def here(tmp_path: Path):
    """A server with an empty store in a file."""
    store = open_store(f"sqlite:///{tmp_path}/t.db".replace(":///", ":////", 1))
    with serving(Service.receiving(store)) as running:
        running.store = store
        yield running


@pytest.mark.parametrize("path", ["/v1/traces", "/api/public/otel/v1/traces"])
@pytest.mark.parametrize("packing", [None, "gzip", "zstd"])
def test_spans_are_in_the_store_when_the_answer_comes(here, path: str, packing: str | None) -> None:
    """R-D7: protobuf, plain or packed, at OTLP's path and Langfuse's."""
    pack = {None: bytes, "gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress}
    headers = {**PROTOBUF, **({"content-encoding": packing} if packing else {})}
    body = pack[packing](wire_request({"id": 1}, {"id": 2, "parent": 1}))
    reply = httpx.post(here.url + path, content=body, headers=headers)
    assert (reply.status_code, reply.content) == (200, b"")
    assert reply.headers["content-type"] == "application/x-protobuf"
    assert here.store.row(TRACE).spans == 2


def span_json(**fields) -> dict:
    base = {"traceId": TRACE, "spanId": "b7ad6b7169203331", "name": "x", "startTimeUnixNano": "1"}
    spans = [{**base, **fields}]
    return {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}


def test_partial_success(here) -> None:
    """R-D7: valid spans are stored, invalid ones counted and reported as a partial success."""
    document = span_json()
    document["resourceSpans"][0]["scopeSpans"][0]["spans"].append({"traceId": "", "spanId": "x"})
    reply = httpx.post(here.url + "/v1/traces", json=document)
    part = reply.json()["partialSuccess"]
    assert part["rejectedSpans"] == "1"
    assert "trace id is missing" in part["errorMessage"]
    assert here.store.row(TRACE).spans == 1
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest.FromString(wire_request({"id": 1}, {"id": 2}))
    request.resource_spans[0].scope_spans[0].spans[1].span_id = b"short"
    reply = httpx.post(
        here.url + "/v1/traces", content=request.SerializeToString(), headers=PROTOBUF
    )
    told = ExportTraceServiceResponse.FromString(reply.content).partial_success
    assert told.rejected_spans == 1
    assert "span skipped" in told.error_message


# What bodies are made of is given as functions: they are large, and compressors write the time.
@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        pytest.param(lambda: b"\xff\xff\xff", PROTOBUF, 400, id="no protobuf"),
        pytest.param(lambda: b"{", JSON, 400, id="no JSON"),
        pytest.param(lambda: b'{"hello": 1}', JSON, 400, id="other JSON"),
        pytest.param(lambda: b"[" * 100_000, JSON, 400, id="deep JSON"),
        pytest.param(
            lambda: wire_request({"id": 1}), {"content-type": "text/plain"}, 415, id="text"
        ),
        pytest.param(lambda: b"x", {**PROTOBUF, "content-encoding": "br"}, 415, id="brotli"),
        pytest.param(lambda: b"not gzip", GZIP, 400, id="no gzip"),
        pytest.param(lambda: gzip.compress(b"x" * 1000)[:-10], GZIP, 400, id="gzip cut"),
        pytest.param(lambda: gzip.compress(bytes(200_000_000)), GZIP, 413, id="gzip bomb"),
        pytest.param(
            lambda: zstandard.ZstdCompressor().compress(bytes(200_000_000)),
            {**PROTOBUF, "content-encoding": "zstd"},
            413,
            id="zstd bomb",
        ),
    ],
)
def test_what_is_not_otlp_is_refused(
    here, body: Callable[[], bytes], headers: dict, status: int
) -> None:
    """R-D7: the right status, a reason, and nothing kept; bombs are not unpacked."""
    reply = httpx.post(here.url + "/v1/traces", content=body(), headers=headers, timeout=60)
    assert reply.status_code == status
    assert reply.content
    assert here.store.count() == 0
    good = httpx.post(here.url + "/v1/traces", content=wire_request({"id": 1}), headers=PROTOBUF)
    assert good.status_code == 200


def test_rubbish_never_ends_the_server(here) -> None:
    """R-D7: fuzzed bodies of every kind get 200 or 4xx, and a good one still gets in."""
    rng = random.Random(11)
    good = wire_request({"id": 1}, {"id": 2, "attributes": {"a": "b" * 100}})
    text = json.dumps(span_json(attributes=[{"key": "k", "value": {"stringValue": "v"}}])).encode()
    with httpx.Client(base_url=here.url, timeout=60) as client:
        for number in range(300):
            body, headers = [(good, PROTOBUF), (text, JSON)][number % 2]
            broken = bytearray(body)
            for _ in range(rng.randint(1, 8)):
                broken[rng.randrange(len(broken))] = rng.randrange(256)
            cut = bytes(broken)[: rng.randint(0, len(broken))]
            reply = client.post("/v1/traces", content=cut, headers=headers)
            assert reply.status_code in (200, 400), reply.content
        assert client.post("/v1/traces", content=good, headers=PROTOBUF).status_code == 200


def test_a_server_forgets_what_is_old(tmp_path: Path) -> None:
    """R-D7: with a retention, traces go by themselves while the server runs."""
    store = open_store(f"sqlite:///{tmp_path}/t.db".replace(":///", ":////", 1))
    with serving(Service.receiving(store, retention_seconds=0.001)) as running:
        url = f"{running.url}/v1/traces"
        assert httpx.post(url, content=wire_request({"id": 1}), headers=PROTOBUF).is_success
        until(lambda: store.row(TRACE) is None, seconds=60)


def test_unpacking_is_bounded() -> None:
    """R-D7: a body is refused when it unpacks to more than the limit, to the byte."""
    packed = gzip.compress(bytes(1000))
    assert len(decompressed(packed, "gzip", 1000)) == 1000
    with pytest.raises(Refused, match="larger than 999"):
        decompressed(packed, "gzip", 999)


async def test_pressure_turns_clients_away(tmp_path: Path) -> None:
    """R-D7: what waits is bounded; beyond it 503 with a time to come back."""
    store = open_store(f"sqlite:////{tmp_path}/t.db".replace("/////", "////"))
    ingest = Ingest(store, max_waiting=10)
    with pytest.raises(Refused, match="too many spans") as caught:
        await ingest.take(wire_request({"id": 1}), "application/x-protobuf")
    assert caught.value.status == 503
    store.close()


def test_secrets_do_not_reach_the_store(here) -> None:
    """R-T9: a key in an attribute is out before anything is kept."""
    key = "sk-" + "proj-" + "a1B2" * 12
    body = wire_request({"id": 1, "attributes": {"input.value": f"use {key}"}})
    httpx.post(here.url + "/v1/traces", content=body, headers=PROTOBUF)
    assert default_redactor().text(key) != key
    assert key not in str(here.store.trace(TRACE).spans[0].attributes)
    assert key.encode() not in here.store.path.read_bytes()


# -- kill -9 -------------------------------------------------------------------------------------


def killed_under_load(url: str, seed: int) -> list[str]:
    """Ids of spans that were acknowledged before a kill -9 some moment after the first."""
    process, address = started(url)
    begun = threading.Event()
    rng = random.Random(seed)
    acknowledged: list[str] = []
    stop = threading.Timer(rng.uniform(0.05, 0.6), process.kill)

    def send(worker: int) -> None:
        with httpx.Client(base_url=address, timeout=60) as client:
            for number in range(100_000):
                first = seed * 10_000_000 + worker * 1_000_000 + number * 10 + 1
                spans = [{"id": first + i} for i in range(5)]
                try:
                    body = wire_request(*spans)
                    reply = client.post("/v1/traces", content=body, headers=PROTOBUF)
                except httpx.HTTPError:
                    return
                begun.set()
                if reply.status_code == 200:
                    acknowledged.extend(f"{first + i:016x}" for i in range(5))

    workers = [threading.Thread(target=send, args=(n,)) for n in range(3)]
    for worker in workers:
        worker.start()
    assert begun.wait(60)
    stop.start()
    for worker in workers:
        worker.join()
    process.wait()
    assert process.returncode == -signal.SIGKILL
    return acknowledged


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_what_was_acknowledged_survives_kill_9(kind: str, tmp_path: Path, request) -> None:
    """R-D7: after each kill under load every acknowledged span is in the store, once."""
    if kind == "sqlite":
        url = f"sqlite:////{tmp_path}/t.db".replace("/////", "////")
    else:
        server = request.getfixturevalue("postgres")
        server.psql("create database killed")
        url = server.get_uri(database="killed")
    rounds = int(os.environ.get("PROCTOR_KILLS", "4"))
    acknowledged: list[str] = []
    for seed in range(rounds):
        acknowledged += killed_under_load(url, seed)
    store = open_store(url)
    kept = [span.span_id for span in store.trace(TRACE).spans]
    assert set(acknowledged) <= set(kept)
    assert len(kept) == len(set(kept)) == store.row(TRACE).spans
    assert len(acknowledged) > rounds
    store.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_cleanly(tmp_path: Path, number: int) -> None:
    """R-R6: Ctrl-C and SIGTERM end the server soon; what was taken in is in the store."""
    url = f"sqlite:////{tmp_path}/t.db".replace("/////", "////")
    process, address = started(url)
    httpx.post(address + "/v1/traces", content=wire_request({"id": 1}), headers=PROTOBUF)
    process.send_signal(number)
    process.wait(60)
    store = open_store(url)
    assert store.row(TRACE).spans == 1
    store.close()

"""Live traces are looked at once they are quiet."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from server_parts import TOOL, TRACE, write

from proctor.checks.judge import Judge
from proctor.errors import ProctorError
from proctor.llm import MockLLM, get_model
from proctor.server.store import open_store
from proctor.server.watch import (
    Alert,
    Langfuse,
    Watcher,
    WatchOptions,
    Webhook,
    log_alert,
    planned_checks,
    sampled,
)

SECOND = 1_000_000_000


class Sink(HTTPServer):
    """A real HTTP server that keeps what it is sent."""

    def __init__(self, status: int = 200) -> None:
        received: list[tuple[str, dict, dict]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                received.append((self.path, dict(self.headers), json.loads(body)))
                self.send_response(status)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_args: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.received = received
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


@pytest.fixture
def store(tmp_path: Path):
    opened = open_store(f"sqlite:////{tmp_path}/t.db".replace("/////", "////"))
    yield opened
    opened.close()


def failing_trace(store) -> None:
    """Ten slow calls of one tool with the same input, none of which works."""
    spans = [{"id": 1, "name": "agent", "end": 60 * SECOND}]
    for number in range(2, 12):
        call = {**TOOL, "input.value": '{"q": "same"}'}
        begin = number * SECOND
        spans.append(
            {"id": number, "parent": 1, "start": begin, "end": begin + 4 * SECOND}
            | {"status": 2, "attributes": call}
        )
    write(store, *spans)


def far_future() -> int:
    return 2**62


def test_quiet_traces_are_scored_and_diagnosed(store) -> None:
    """R-C8: all dimensions, the diagnosis and a score on the trace; once, until it grows."""
    failing_trace(store)
    watcher = Watcher(store, WatchOptions(quiet_seconds=0), clock=far_future)
    assert watcher.look() == 1
    said = {row.name: row for row in store.evaluations(TRACE)}
    assert {"quality", "quality.efficiency", "quality.latency", "diagnosis"} <= set(said)
    assert store.row(TRACE).score == said["quality"].score < 0.8
    assert json.loads(said["quality"].detail)["error_count"] == 10
    advice = json.loads(said["quality.redundancy"].detail)["recommendations"]
    assert advice == ["keep results of earlier calls in the agent's context, or cache the tool"]
    assert store.row(TRACE).findings == len(json.loads(said["diagnosis"].detail)["errors"])
    assert watcher.look() == 0
    write(store, {"id": 99, "parent": 1})
    assert watcher.look() == 1


def test_a_trace_in_motion_is_left_alone(store) -> None:
    """R-C8: not before it was quiet for a while."""
    failing_trace(store)
    updated = store.row(TRACE).updated_ns
    watcher = Watcher(store, WatchOptions(quiet_seconds=10), clock=lambda: updated + 9 * SECOND)
    assert watcher.look() == 0


def test_alert_levels_raise_alerts(store) -> None:
    """R-C8: a score below its alert threshold is sent to a URL or to standard error."""
    failing_trace(store)
    sink = Sink()
    watcher = Watcher(
        store, WatchOptions(quiet_seconds=0), alert=Webhook(sink.url + "/in"), clock=far_future
    )
    watcher.look()
    assert sink.received
    path, _, told = sink.received[0]
    assert path == "/in"
    assert set(told) == {"trace_id", "name", "figure", "words"}
    assert told["trace_id"] == TRACE
    assert all(body["words"] for _, _, body in sink.received), "an alert says why"
    sink.shutdown()


def test_an_alert_that_cannot_be_delivered_is_said(capsys) -> None:
    """R-C8: a failing receiver stops nothing; hostile words do not reach the terminal."""
    Webhook("http://127.0.0.1:1/")(Alert("t\x1b[31m", "latency", 0.1, "slow\nline"))
    told = capsys.readouterr().err
    assert "was not delivered" in told
    assert "\x1b" not in told
    log_alert(Alert("t", "latency", 0.1, "slow"))
    assert "alert: latency 0.10 in trace t: slow" in capsys.readouterr().err
    log_alert(Alert("t", "latency", 0.1, ""))
    assert capsys.readouterr().err == "alert: latency 0.10 in trace t\n"
    with pytest.raises(ProctorError, match="not an address"):
        Webhook("ftp://x")


def test_scores_are_pushed_to_langfuse(store) -> None:
    """R-T8: each score by Langfuse's public API, with the keys, under an id that stays the same."""
    failing_trace(store)
    sink = Sink()
    push = Langfuse(sink.url + "/", "pk", "sk").push
    watcher = Watcher(store, WatchOptions(quiet_seconds=0), push=push, clock=far_future)
    watcher.look()
    first = list(sink.received)
    write(store, {"id": 99, "parent": 1})
    watcher.look()
    again = sink.received[len(first) :]
    path, headers, score = first[0]
    assert path == "/api/public/scores"
    wanted = "Basic " + base64.b64encode(b"pk:sk").decode()
    assert {key.lower(): value for key, value in headers.items()}["authorization"] == wanted
    assert score["traceId"] == TRACE
    assert score["dataType"] == "NUMERIC"
    names = {each["name"] for _, _, each in first}
    assert {"proctor.quality", "proctor.findings"} <= names
    assert {each["id"] for _, _, each in first} == {each["id"] for _, _, each in again}
    by_name = {each["name"]: each for _, _, each in first}
    assert all(each["comment"] for each in by_name.values()), "every score says why"
    redundancy = by_name["proctor.quality.redundancy"]
    assert "called again with the same input" in redundancy["comment"]
    assert redundancy["metadata"]["level"] == "alert"
    assert redundancy["metadata"]["recommendations"]
    assert by_name["proctor.quality"]["metadata"]["error_count"] == 10
    assert not any(path.endswith("/otel/v1/traces") for path, _, _ in sink.received)
    forwarding = Langfuse(sink.url, "pk", "sk", forward=True).push
    write(store, {"id": 100, "parent": 1})
    Watcher(store, WatchOptions(quiet_seconds=0), push=forwarding, clock=far_future).look()
    (sent,) = [body for path, _, body in sink.received if path == "/api/public/otel/v1/traces"]
    spans = [s for r in sent["resourceSpans"] for sc in r["scopeSpans"] for s in sc["spans"]]
    assert {span["traceId"] for span in spans} == {TRACE}
    sink.shutdown()


def test_langfuse_without_keys_or_answers(store, monkeypatch, capsys) -> None:
    """R-T8: missing keys are named; a server that refuses is said and stops nothing."""
    monkeypatch.delenv("LANGFUSE_PUBLIC_KEY", raising=False)
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "x")
    with pytest.raises(ProctorError, match="needs LANGFUSE_PUBLIC_KEY in"):
        Langfuse.from_environment("http://x")
    failing_trace(store)
    sink = Sink(401)
    push = Langfuse(sink.url, "pk", "sk").push
    assert Watcher(store, WatchOptions(quiet_seconds=0), push=push, clock=far_future).look() == 1
    assert "Langfuse rejected" in capsys.readouterr().err
    assert store.row(TRACE).score is not None
    sink.shutdown()


def test_configured_checks_run_on_live_traces(store, tmp_path: Path) -> None:
    """R-C8: the checks of a suite's one case, on every quiet trace."""
    suite = tmp_path / "live.yaml"
    suite.write_text("cases:\n  - {id: live, input: any, path: {forbidden_tools: [search]}}\n")
    case, checks = planned_checks(suite)
    failing_trace(store)
    how = WatchOptions(quiet_seconds=0, checks=checks, case=case)
    Watcher(store, how, clock=far_future).look()
    (row,) = [row for row in store.evaluations(TRACE) if row.name.startswith("check.")]
    assert (row.name, row.score) == ("check.forbidden_tools", 0.0)
    assert "search" in row.detail
    suite.write_text("cases:\n  - {id: a, input: x}\n  - {id: b, input: y}\n")
    with pytest.raises(ProctorError, match="2 cases"):
        planned_checks(suite)


def test_a_judge_sees_a_share_of_the_traces(store) -> None:
    """R-C8: chosen by id, the same ones every time; about as many as asked."""
    ids = [f"{number:032x}" for number in range(2000)]
    assert 300 < sum(sampled(each, 0.2) for each in ids) < 500
    assert not any(sampled(each, 0.0) for each in ids)
    assert all(sampled(each, 1.0) for each in ids)
    failing_trace(store)
    write(store, {"id": 99, "attributes": {"input.value": "hi", "output.value": "hello"}})
    reply = {"text": '{"rationale": "fine", "score": 4}', "times": "forever"}
    with MockLLM([reply]) as server:
        judge = Judge(get_model("openai:scripted", base_url=server.base_url))
        how = WatchOptions(quiet_seconds=0, judge=judge, judge_share=1.0)
        Watcher(store, how, clock=far_future).look()
        assert server.requests
    said = {row.name: row.score for row in store.evaluations(TRACE)}
    assert said["quality.reasoning"] is not None


def test_one_odd_trace_does_not_end_the_watch(store) -> None:
    """R-D7: an unreadable payload is stored as a failed evaluation; the next trace is evaluated."""
    write(store, {"id": 1})
    write(store, {"id": 1, "trace": "2" * 32})
    with store.writing() as cursor:
        cursor.execute("UPDATE payloads SET body = x'00' WHERE trace_id = ?", (TRACE,))
    watcher = Watcher(store, WatchOptions(quiet_seconds=0), clock=far_future)
    assert watcher.look() == 2
    (row,) = store.evaluations(TRACE)
    assert (row.name, row.label) == ("evaluation", "failed")
    assert store.row("2" * 32).score is not None


def test_the_watch_runs_by_itself(store) -> None:
    """R-D7: the watcher runs in its own thread until it is stopped."""
    failing_trace(store)
    seen = threading.Event()
    watcher = Watcher(
        store, WatchOptions(quiet_seconds=0), push=lambda *_: seen.set(), clock=far_future
    )
    watcher.start()
    assert seen.wait(120)
    watcher.stop()
    assert watcher.looked == 1

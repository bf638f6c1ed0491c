"""Agents in other processes: commands and HTTP services, and the spans they send."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import socket
import sys
import threading
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pyarrow.parquet
import pytest
import zstandard
from commands import proctor
from run_one_parts import run_one
from run_parts import only_run

from proctor.agents._command import CommandAgentConfig
from proctor.agents._http import HttpAgentConfig
from proctor.agents._otlp_receiver import MAX_BODY, Receiver
from proctor.agents.base import AgentRequest
from proctor.agents.registry import UnknownAgentError, agent_config, known_kinds
from proctor.files import ZSTD_MAGIC
from proctor.runs.trial import TrialStatus
from proctor.trace import Trace
from proctor.trace.capture import capture


def script(tmp_path: Path, body: str) -> CommandAgentConfig:
    (tmp_path / "agent.py").write_text(f"import json, os, sys\n{body}\n")
    return CommandAgentConfig(command=[sys.executable, "agent.py"], base_dir=tmp_path)


ECHO = """
job = json.load(sys.stdin)
print("thinking aloud")
print(json.dumps({
    "answer": f"{job['input']} {job['seed']} {sorted(job)}",
    "tool_calls": [{"name": "look", "arguments": {"q": 1}, "result": "r"},
                   {"name": "fetch", "error": "gone"}],
    "usage": {"model": "m", "input_tokens": 3, "output_tokens": 4},
}))
"""


async def test_a_command_speaks_json(tmp_path: Path) -> None:
    """R-A2: a program in any language gets a JSON job and answers with its last JSON line."""
    trial, trace = await run_one(script(tmp_path, ECHO))
    assert trial.status == TrialStatus.PASSED, trial.error
    assert trial.answer == "x 5 ['case', 'input', 'params', 'seed', 'trial', 'workdir']"
    assert trace is not None
    assert trace.tool_sequence == ["look", "fetch"]
    assert [span.error_message for span in trace.errors] == ["gone"]
    assert (trial.input_tokens, trial.output_tokens, trial.tool_calls) == (3, 4, 2)


async def test_a_command_may_speak_plain_text(tmp_path: Path) -> None:
    """R-A2: `protocol: text` passes the input through as it is."""
    config = script(tmp_path, "print(sys.stdin.read().upper())").model_copy(
        update={"protocol": "text"}
    )
    assert (await run_one(config, "héllo")).trial.answer == "HÉLLO"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("sys.exit('no key')", "exited with code 1: no key"),
        ("print('hello')", "wrote no JSON object"),
        ("print('{broken')", "wrote no JSON object"),
        ("""print('{"error": "quota exceeded"}')""", "quota exceeded"),
        ("""print('{"anser": "Paris"}')""", 'the JSON object has no "answer" (print {"answer":'),
        ("os.kill(os.getpid(), 9)", "exited with code -9"),
    ],
)
async def test_a_command_that_fails_has_failed(tmp_path: Path, body: str, says: str) -> None:
    """R-R1: what went wrong with the program is said in one line."""
    trial = (await run_one(script(tmp_path, body))).trial
    assert trial.status == TrialStatus.FAILED
    assert trial.error is not None
    assert says in trial.error.message


async def test_a_missing_program_is_named() -> None:
    """R-A2: a command that does not exist is an error that says so."""
    trial = (await run_one(CommandAgentConfig(command="no-such-program-here --x"))).trial
    assert trial.error is not None
    assert "no-such-program-here" in trial.error.message
    assert "on the PATH, or a file in the suite's folder" in trial.error.message


async def test_a_program_that_may_not_be_run_is_told_how(tmp_path: Path) -> None:
    """R-A2: a file that is not executable is an error with the command that fixes it."""
    (tmp_path / "agent.sh").write_text("#!/bin/sh\necho hi\n")
    trial = (await run_one(CommandAgentConfig(command="agent.sh", base_dir=tmp_path))).trial
    assert trial.error is not None
    assert f"chmod +x {tmp_path / 'agent.sh'}" in trial.error.message


async def test_a_command_may_have_nothing_to_say(tmp_path: Path) -> None:
    """R-A2: an answer of null is an answer, an empty one; so is a reply of tool calls alone."""
    for reply in ('{"answer": null}', '{"tool_calls": [{"name": "look"}]}'):
        trial = (await run_one(script(tmp_path, f"print({reply!r})"))).trial
        assert (trial.error, trial.answer) == (None, "")


async def test_a_folder_is_not_taken_for_the_program(tmp_path: Path) -> None:
    """R-A2: a folder beside the suite that is called as the program is does not get in its way."""
    (tmp_path / "cat").mkdir()
    config = CommandAgentConfig(command="cat", protocol="text", base_dir=tmp_path)
    trial = (await run_one(config, "hello")).trial
    assert (trial.error, trial.answer) == (None, "hello")


async def test_a_command_that_hangs_ends_with_its_trial(tmp_path: Path) -> None:
    """R-R8: the time limit ends the program and what it started."""
    body = "import subprocess, time\nsubprocess.Popen(['sleep', '3600'])\ntime.sleep(3600)"
    trial = (await run_one(script(tmp_path, body), timeout=1.0)).trial
    assert (trial.status, trial.error and trial.error.type) == (
        TrialStatus.FAILED,
        "TrialTimeout",
    )


INSTRUMENTED = """
import urllib.request
job = json.load(sys.stdin)
_, trace_id, parent, _ = os.environ["TRACEPARENT"].split("-")
span = {"traceId": trace_id, "spanId": "00000000000000aa", "parentSpanId": parent,
        "name": "execute_tool search", "startTimeUnixNano": "1", "endTimeUnixNano": "2",
        "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": "execute_tool"}},
                       {"key": "gen_ai.tool.name", "value": {"stringValue": "search"}}]}
body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
request = urllib.request.Request(
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces", body,
    {"Content-Type": "application/json"})
urllib.request.urlopen(request).read()
print(json.dumps({"answer": "done"}))
"""


async def test_spans_of_a_child_process_join_the_trace(tmp_path: Path) -> None:
    """R-T6: OTLP from a child process lands in its trial's trace, under its root."""
    config = script(tmp_path, INSTRUMENTED)
    results = await asyncio.gather(*(run_one(config) for _ in range(4)))
    for trial, trace in results:
        assert trial.status == TrialStatus.PASSED, trial.error
        assert trace is not None
        assert trace.tool_sequence == ["search"]
        assert [node.name for node in trace.roots] == ["a"]


class Service(BaseHTTPRequestHandler):
    """A service whose next replies a test puts into `replies`."""

    replies: ClassVar[list[tuple[int, dict[str, str], Any]]] = []
    asked: ClassVar[list[tuple[dict[str, str], Any]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.asked.append(({k.lower(): v for k, v in self.headers.items()}, json.loads(body)))
        status, headers, reply = self.replies.pop(0)
        content = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def service() -> Iterator[str]:
    Service.replies, Service.asked = [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/ask"
    server.shutdown()
    server.server_close()


async def test_a_service_is_asked_and_understood(service: str) -> None:
    """R-A2: the input goes out with the trial's facts and trace; the answer comes from the JSON."""
    Service.replies = [(200, {}, {"answer": "forty-two", "sources": [1]})]
    trial, trace = await run_one(HttpAgentConfig(url=service), "what?")
    assert trial.answer == "forty-two"
    headers, body = Service.asked[0]
    assert (body["input"], body["case"], body["seed"]) == ("what?", "c", 5)
    assert trace is not None
    assert headers["traceparent"].split("-")[1] == trace.trace_id


@pytest.mark.parametrize(
    ("body", "answer"),
    [(b'{"answer": "yes", "n": 1}', "yes"), (b"{not JSON", "{not JSON"), (b"42", "42")],
)
async def test_an_undeclared_reply_may_be_json(service: str, body: bytes, answer: str) -> None:
    """R-A2: small servers send no content type; an object is JSON all the same."""
    Service.replies = [(200, {"Content-Type": ""}, body)]
    assert (await run_one(HttpAgentConfig(url=service), "x")).trial.answer == answer


async def test_a_service_may_have_its_own_shapes(service: str) -> None:
    """R-A2: a body of one's own, and the answer by a JMESPath expression."""
    Service.replies = [(200, {}, {"data": {"out": ["a", "b"]}})]
    config = HttpAgentConfig(
        url=service,
        body={"q": "{input}", "text": "Q: {input}", "deep": ["{input}"]},
        answer="data.out[1]",
    )
    assert (await run_one(config, "x")).trial.answer == "b"
    assert Service.asked[0][1] == {"q": "x", "text": "Q: x", "deep": ["x"]}


async def test_a_service_may_answer_in_steps(service: str) -> None:
    """R-A2: a reply that is a state alone is sent back with the same question until it answers."""
    states: list[Any] = [{"step": 1}, "two", [3]]
    Service.replies = [(200, {}, {"checkpoint": state}) for state in states]
    Service.replies.append((200, {}, {"answer": "done", "checkpoint": "of no use any more"}))
    trial = (await run_one(HttpAgentConfig(url=service), "what?")).trial
    assert trial.answer == "done"
    bodies = [body for _, body in Service.asked]
    assert [body.pop("checkpoint", None) for body in bodies] == [None, *states]
    assert all(body == bodies[0] for body in bodies)


async def test_a_service_says_when_to_ask_again(service: str) -> None:
    """R-A2: Retry-After is waited for; else a service that gave back its state has a pause."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    job = {"checkpoint": {"job": 17}}
    later = {"Retry-After": "7"}
    Service.replies = [(200, {}, job), (200, {}, job), (200, later, job), (200, {}, {"answer": ""})]
    agent = HttpAgentConfig(url=service)
    agent._sleep = sleep
    assert (await agent.run(AgentRequest("what?"))).answer == ""
    assert waited == [0.0, 1.0, 7.0]


async def test_a_state_is_no_answer_where_it_cannot_be_sent_back(service: str) -> None:
    """R-A2: with a body of one's own, or asked for by name, it is a reply like any other."""
    state = {"checkpoint": "here"}
    Service.replies = [(200, {}, state), (200, {}, state)]
    own = (await run_one(HttpAgentConfig(url=service, body={"q": "{input}"}))).trial
    assert own.error is not None
    assert "no answer at" in own.error.message
    assert (await run_one(HttpAgentConfig(url=service, answer="checkpoint"))).trial.answer == "here"


async def test_an_answer_is_looked_for_whatever_the_reply_calls_itself(service: str) -> None:
    """R-A2: the user's expression is used on JSON that comes as text; text alone has no parts."""
    text = {"Content-Type": "text/plain"}
    Service.replies = [(200, text, {"out": "b"}), (200, text, b"hello"), (200, text, b"hello")]
    asked = HttpAgentConfig(url=service, answer="out")
    assert (await run_one(asked)).trial.answer == "b"
    lost = (await run_one(asked)).trial.error
    assert lost is not None
    assert "is not JSON, so there is nothing at 'out' in it" in lost.message
    assert (await run_one(HttpAgentConfig(url=service))).trial.answer == "hello"


def test_a_broken_expression_is_told_in_one_line() -> None:
    """R-A2: what is wrong with the JMESPath of the answer fits a line."""
    with pytest.raises(UnknownAgentError, match="answer: not a JMESPath expression: ") as caught:
        agent_config({"kind": "http", "url": "http://x", "answer": "reply..txt"})
    assert "\n" not in str(caught.value)


async def test_transient_failures_of_a_service_are_retried(service: str) -> None:
    """R-R3: 503 and 429 are tried again, Retry-After is honoured, and both are on record."""
    Service.replies = [
        (503, {}, {}),
        (429, {"Retry-After": "7"}, {}),
        (200, {}, {"answer": "at last"}),
    ]
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    trial = (await run_one(HttpAgentConfig(url=service), sleep=sleep)).trial
    assert (trial.status, trial.answer, trial.retries) == (TrialStatus.PASSED, "at last", 2)
    assert [error.split(":")[1].strip() for error in trial.retry_errors] == ["HTTP 503", "HTTP 429"]
    assert 0 <= slept[0] <= 1
    assert slept[1] >= 7


async def test_an_empty_answer_is_an_answer(service: str) -> None:
    """R-R1: a service that has nothing to say is judged for it; that is no infrastructure."""
    Service.replies = [(200, {}, {"answer": "", "text": "other"}), (200, {}, {"answer": []})]
    answers = [(await run_one(HttpAgentConfig(url=service))).trial for _ in range(2)]
    assert [(t.error, t.answer) for t in answers] == [(None, ""), (None, "[]")]


async def test_a_structured_input_goes_into_a_text_as_json(service: str) -> None:
    """R-A2: where a body of one's own has the input amid words, it is JSON, dates included."""
    Service.replies = [(200, {}, {"answer": "a"})]
    config = HttpAgentConfig(url=service, body={"text": "Q: {input}", "raw": "{input}"})
    asked = {"city": "Paris", "day": date(2026, 1, 31), "sure": True}
    assert (await run_one(config, asked)).trial.error is None
    as_json = {"city": "Paris", "day": "2026-01-31", "sure": True}
    body = Service.asked[0][1]
    assert (json.loads(body["text"].removeprefix("Q: ")), body["raw"]) == (as_json, as_json)


async def test_a_reply_without_end_is_not_read_to_its_end(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-R9: a service that floods ends its trial, not the run's memory."""
    monkeypatch.setattr("proctor.agents._http.MAX_REPLY", 2**20)
    Service.replies = [(200, {"Content-Type": "text/plain"}, b"x" * (2**20 + 1))]
    trial = (await run_one(HttpAgentConfig(url=service))).trial
    assert trial.error is not None
    assert trial.error.message == "the service wrote more than 1 MB"


@pytest.mark.parametrize("line", ["x" * 99, ""])
async def test_output_without_end_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """R-R9: a program that floods, in lines or in one, ends its trial, not the run's memory."""
    monkeypatch.setattr("proctor.agents._command.MAX_OUTPUT", 2**20)
    end = "\\n" if line else ""
    body = f"while True: sys.stdout.write({(line or 'x')!r} * 9 + '{end}')"
    trial = (await run_one(script(tmp_path, body))).trial
    assert trial.error is not None
    assert trial.error.message == "the command wrote more than 1 MB"


async def test_a_date_without_a_zone_is_waited_for(service: str) -> None:
    """R-R3: Retry-After as a date that does not say that it is in UTC is understood as well."""
    Service.replies = [
        (429, {"Retry-After": "Mon, 16 Nov 2020 10:00:00"}, {}),
        (200, {}, {"answer": "at last"}),
    ]

    async def sleep(_seconds: float) -> None:
        return None

    trial = (await run_one(HttpAgentConfig(url=service), sleep=sleep)).trial
    assert (trial.answer, trial.retries) == ("at last", 1)


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ((307, {"Location": "/other"}, b""), "HTTP 307: the address leads to /other"),
        ((401, {}, {"detail": "bad key"}), "HTTP 401"),
        ((200, {}, b"{"), "is not valid JSON"),
        ((200, {}, {"other": 1}), "no answer at"),
    ],
)
async def test_final_failures_of_a_service_are_not_retried(
    service: str, reply: tuple[int, dict[str, str], Any], says: str
) -> None:
    """R-R1, R-R3: a permanent failure is not retried; only a wrong address is not the agent's."""
    Service.replies = [reply]
    trial = (await run_one(HttpAgentConfig(url=service))).trial
    status = TrialStatus.INFRA_ERROR if reply[0] == 307 else TrialStatus.FAILED
    assert (trial.status, trial.retries, len(Service.asked)) == (status, 0, 1)
    assert trial.error is not None
    assert says in trial.error.message


def otlp(trace: Trace) -> bytes:
    from proctor.trace.export import export_traces

    return export_traces([trace], "otlp-json")


async def test_the_receiver_files_what_it_knows_and_counts_the_rest() -> None:
    """R-T6: plain and gzip requests are taken, rubbish is refused, strangers are counted."""
    with capture(query="elsewhere") as stranger:
        pass
    receiver = Receiver()
    receiver.start()
    headers = {"Content-Type": "application/json"}
    with capture(query="q") as trace:
        child = json.loads(
            otlp(stranger).replace(stranger.trace_id.encode(), trace.trace_id.encode())
        )
        body = json.dumps(child).encode()
        async with httpx.AsyncClient(base_url=receiver.url) as client:
            plain = await client.post("/v1/traces", content=body, headers=headers)
            packed = await client.post(
                "/v1/traces",
                content=gzip.compress(otlp(stranger)),
                headers={**headers, "Content-Encoding": "gzip"},
            )
            rubbish = await client.post("/v1/traces", content=b"\xff\xfe", headers=headers)
            torn = await client.post(
                "/v1/traces", content=b"\x1f\x8bxx", headers={"Content-Encoding": "gzip"}
            )
            elsewhere = await client.get("/")

            async def parts() -> AsyncIterator[bytes]:
                yield body[:10]
                yield body[10:]

            chunked = await client.post("/v1/traces", content=parts(), headers=headers)
    receiver.stop()
    codes = [r.status_code for r in (plain, packed, rubbish, torn, elsewhere, chunked)]
    assert codes == [200, 200, 400, 400, 404, 200]
    assert (receiver.received, receiver.unknown) == (2, 1)
    assert len(trace.spans) == 3


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 99999999999",
        "Content-Length: many",
        "Transfer-Encoding: chunked\r\n\r\nFFFFFFFF",
        "Transfer-Encoding: chunked\r\n\r\n-5",
    ],
)
def test_the_receiver_refuses_a_body_beyond_its_bound(head: str) -> None:
    """R-T6: a length beyond the bound is refused before the body is read."""
    receiver = Receiver()
    receiver.start()
    with socket.create_connection(("127.0.0.1", receiver.server_port), timeout=10) as connection:
        connection.sendall(f"POST /v1/traces HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
        answer = connection.makefile("rb").read()
    receiver.stop()
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_gzip_bomb_is_refused_by_the_receiver() -> None:
    """R-T6: a small body that unpacks beyond the bound is refused."""
    receiver = Receiver()
    receiver.start()
    bomb = gzip.compress(bytes(MAX_BODY + 1), compresslevel=1)
    reply = httpx.post(
        f"{receiver.url}/v1/traces", content=bomb, headers={"Content-Encoding": "gzip"}
    )
    receiver.stop()
    assert reply.status_code == 400


def test_kinds_are_found_by_name() -> None:
    """R-A2: built-in kinds are known; a misspelt kind or option is an error with a suggestion."""
    assert {"python", "command", "http", "replay"} <= set(known_kinds())
    with pytest.raises(UnknownAgentError) as caught:
        agent_config({"kind": "comand", "command": "x"})
    assert caught.value.hint == "did you mean 'command'?"
    with pytest.raises(UnknownAgentError, match="kind 'http': unknown key 'urll'") as caught:
        agent_config({"kind": "http", "urll": "http://x"})
    assert caught.value.hint == "did you mean 'url'?"
    with pytest.raises(
        UnknownAgentError, match="kind 'chat': the key 'model' is missing"
    ) as caught:
        agent_config({"kind": "chat"})
    assert caught.value.hint is None


def test_secrets_in_a_url_reach_no_file(service: str, tmp_path: Path) -> None:
    """R-T9: a key in the query, user, or path of an agent's URL is stored and shared nowhere."""
    key = "Zz9abcDEF1234567890ghij"
    host = service.removeprefix("http://").rstrip("/")
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        "agents:\n"
        f"  query: {{kind: http, url: 'http://{host}/?key={key}'}}\n"
        f"  user: {{kind: http, url: 'http://{key}@{host}/'}}\n"
        f"  path: {{kind: http, url: 'http://127.0.0.1:1/hooks/{key}', body: {{at: '{key}'}}}}\n"
        "cases:\n  - {id: one, input: hi, correctness: {expected_in_answer: [hello]}}\n"
    )
    Service.replies = [(200, {}, {"answer": "hello"}) for _ in range(8)]
    proctor("run", suite, "--agents", "query,user,path", "--results", tmp_path / "results")
    archive = tmp_path / "out.zip"
    shared = proctor("runs", "share", only_run(tmp_path / "results"), "-o", archive)
    assert archive.is_file(), shared.stderr
    files = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    texts = {str(path): stored_text(path.read_bytes()) for path in files}
    with zipfile.ZipFile(archive) as packed:
        texts |= {name: stored_text(packed.read(name)) for name in packed.namelist()}
    assert len(texts) > 12
    assert "[redacted:" in next(text for name, text in texts.items() if "_spec_" in name)
    assert [name for name, text in texts.items() if key in text] == []


def stored_text(content: bytes) -> str:
    """A stored file as text, with what is compressed in it."""
    frames = b""
    at = content.find(ZSTD_MAGIC)
    while at >= 0:
        with suppress(zstandard.ZstdError):
            frames += zstandard.ZstdDecompressor().decompressobj().decompress(content[at:])
        at = content.find(ZSTD_MAGIC, at + 1)
    if content.startswith(b"PAR1"):
        frames += str(pyarrow.parquet.read_table(io.BytesIO(content)).to_pylist()).encode()
    return (content + frames).decode("utf-8", "replace")

"""The model gateway: real clients, real servers, real processes on loopback."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
import zstandard

import proctor
from proctor.gateway.calls import GatewaySession, SpanSink
from proctor.gateway.options import Faults, GatewayOptions
from proctor.gateway.server import Gateway, shared_gateway
from proctor.llm import MockLLM
from proctor.llm.cassette import Cassette
from proctor.llm.http_hook import bypass
from proctor.llm.prices import PriceTable
from proctor.llm.rate_limits import RateLimit, rates_in_force
from proctor.trace.capture import Recorder, new_trace_id
from proctor.trace.model import Span, SpanStatus, Trace

PRICES = PriceTable({"m": {"input": 1.0, "output": 10.0}})


def session_of(spans: list[Span], server: MockLLM | None, **options: Any) -> GatewaySession:
    """A session whose spans go to a list, in front of a mock server."""
    upstream = {} if server is None else {"openai": server.base_url, "anthropic": server.url}
    if server is not None:
        upstream["gemini"] = server.url
    given = GatewayOptions(upstream=upstream, **options)
    return GatewaySession(SpanSink(new_trace_id(), None, spans.append), given, prices=PRICES)


def chat(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def test_a_base_url_may_change_between_two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-N2: a notebook sets OPENAI_BASE_URL when the gateway of its process runs already."""
    session = session_of([], None)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://one.example/v1")
    assert shared_gateway().upstream(session, "openai") == "http://one.example/v1"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://other.example/v1")
    assert shared_gateway().upstream(session, "openai") == "http://other.example/v1"


async def test_every_protocol_passes_unchanged_and_becomes_a_span() -> None:
    """R-N2: OpenAI chat and responses, Anthropic, Gemini, whole and streamed: bytes and usage."""
    spans: list[Span] = []
    reply = {"text": "four words it says", "usage": {"input": 11, "output": 7}, "times": "forever"}
    gemini = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    calls: list[tuple[str, str, dict[str, Any]]] = []
    for stream in (False, True):
        usage: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
        calls += [
            ("openai", "chat/completions", chat(stream=stream, **usage)),
            ("openai", "responses", {"model": "m", "input": "hi", "stream": stream}),
            ("anthropic", "v1/messages", chat(max_tokens=9, stream=stream)),
        ]
    calls.append(("gemini", "v1beta/models/m:generateContent", gemini))
    calls.append(("gemini", "v1beta/models/m:streamGenerateContent?alt=sse", gemini))
    with MockLLM([reply]) as server, Gateway(environ={}) as gateway:
        direct = {"openai": server.base_url, "anthropic": server.url, "gemini": server.url}
        session = session_of(spans, server)
        async with gateway.session(session), httpx.AsyncClient() as client:
            for provider, path, body in calls:
                url = f"{gateway.address(session)}/{provider}/{path}"
                through = await client.post(url, json=body)
                same = await client.post(f"{direct[provider]}/{path}", json=body)
                assert through.status_code == same.status_code == 200
                # The mock numbers its replies; apart from that every byte is the same.
                number = f"mock{len(server.requests) - 1:06d}".encode()
                assert through.content.replace(
                    number, f"mock{len(server.requests):06d}".encode()
                ) == (same.content)
                assert through.headers["content-type"] == same.headers["content-type"]
            # By its key instead of its address.
            keyed = {"authorization": f"Bearer {session.token}"}
            url = f"{gateway.url}/openai/chat/completions"
            assert (await client.post(url, json=chat(), headers=keyed)).status_code == 200
            assert (await client.post(url, json=chat())).status_code == 404
            stranger = f"{gateway.url}/other/openai/chat/completions"
            assert (await client.post(stranger, json=chat())).status_code == 404
        assert "authorization" not in server.requests[-1].headers  # no key was set to replace it
    assert len(spans) == len(calls) + 1
    for span in spans:
        assert (span.input_tokens, span.output_tokens, span.model) == (11, 7, "m")
        assert span.output_messages[0].content == "four words it says"
        assert span.cost_usd == pytest.approx((11 * 1.0 + 7 * 10.0) / 1e6)
        assert span.end_ns is not None
        assert span.status is SpanStatus.OK


def test_client_libraries_and_the_real_key() -> None:
    """R-N2: OpenAI's and Anthropic's own clients work; agents never see the real key."""
    spans: list[Span] = []
    tool = {"name": "look", "arguments": {"q": 1}}

    async def main() -> None:
        with MockLLM([{"tool_calls": [tool]}, "done", "fine"]) as server:
            environ = {"OPENAI_API_KEY": "sk-real", "ANTHROPIC_API_KEY": "ant-real"}
            with Gateway(environ=environ) as gateway:
                async with gateway.session(session_of(spans, server)) as session:
                    given = gateway.environment(session)
                    assert "real" not in json.dumps(given)
                    client = openai.AsyncOpenAI(
                        base_url=given["OPENAI_BASE_URL"], api_key=given["OPENAI_API_KEY"]
                    )
                    messages: Any = [{"role": "user", "content": "x"}]
                    first = await client.chat.completions.create(model="m", messages=messages)
                    assert first.choices[0].message.tool_calls
                    parts = [
                        chunk.choices[0].delta.content or ""
                        async for chunk in await client.chat.completions.create(
                            model="m", messages=messages, stream=True
                        )
                        if chunk.choices
                    ]
                    assert "".join(parts) == "done"
                    claude = anthropic.AsyncAnthropic(
                        base_url=given["ANTHROPIC_BASE_URL"], api_key=given["ANTHROPIC_API_KEY"]
                    )
                    answer = await claude.messages.create(
                        model="m", max_tokens=5, messages=messages
                    )
                    assert answer.content[0].type == "text"
            assert server.requests[0].headers["authorization"] == "Bearer sk-real"
            # Versions of the client differ in which header has the key.
            assert "ant-real" in json.dumps(dict(server.requests[2].headers))

    asyncio.run(main())
    assert [len(s.output_messages[0].tool_calls) for s in spans] == [1, 0, 0]


async def test_faults_are_seeded_and_visible() -> None:
    """R-N2: 429, 500, timeout, malformed and slow, the same for the same seed."""
    faults = Faults(
        rate_limit=0.2, server_error=0.2, timeout=0.2, malformed=0.2, slow=0.2, seconds=0
    )

    async def statuses(seed: int) -> tuple[list[int], list[str]]:
        spans: list[Span] = []
        with MockLLM([{"text": "fine", "times": "forever"}]) as server, Gateway() as gateway:
            session = session_of(spans, server, faults=faults, retries=0)
            session.seed = seed
            async with gateway.session(session), httpx.AsyncClient() as client:
                url = f"{gateway.address(session)}/openai/chat/completions"
                answers = [await client.post(url, json=chat()) for _ in range(30)]
        for answer, span in zip(answers, spans, strict=True):
            if span.attributes["proctor.fault"] == "malformed":
                with pytest.raises(ValueError):
                    answer.json()
        # A fault is the agent's to handle, not an outage.
        assert session.failure is None
        return [a.status_code for a in answers], [s.attributes["proctor.fault"] for s in spans]

    codes, names = await statuses(1)
    assert Counter(codes).keys() == {200, 429, 500, 504}
    assert set(names) == {"rate_limit", "server_error", "timeout", "malformed", "slow"}
    assert (codes, names) == await statuses(1)
    assert names != (await statuses(2))[1]


async def test_budgets_are_exact_for_calls_side_by_side() -> None:
    """R-N2: money, tokens and calls stay within the limit, whatever runs at the same time."""

    def reply(request: Any) -> dict[str, Any]:
        # As greedy as it may be: all the output it was allowed, and all input as tokens.
        body = request.body
        size = len(json.dumps(body, separators=(",", ":"))) // 2
        most = body.get("max_completion_tokens") or body.get("max_tokens") or 128_000
        return {"text": "x", "usage": {"input": size, "output": most}}

    async def spend(**limits: Any) -> tuple[GatewaySession, list[int], list[Span]]:
        spans: list[Span] = []
        with MockLLM(reply) as server, Gateway() as gateway:
            session = session_of(spans, server, **limits)
            async with gateway.session(session), httpx.AsyncClient(timeout=60) as client:
                url = f"{gateway.address(session)}/openai/chat/completions"
                posts = [client.post(url, json=chat(max_tokens=1000)) for _ in range(30)]
                answers = await asyncio.gather(*posts)
        return session, [answer.status_code for answer in answers], spans

    session, codes, spans = await spend(max_cost_usd=0.0455)
    spent = sum(span.cost_usd or 0.0 for span in spans)
    assert 0.044 < spent <= 0.0455
    assert session.budget.cost == pytest.approx(spent)
    # The last one that fits is sent with a lower maximum.
    assert codes.count(200) == 5
    assert codes.count(402) == 25
    assert session.refused
    session, codes, spans = await spend(max_tokens=2500)
    assert sum((s.input_tokens or 0) + (s.output_tokens or 0) for s in spans) <= 2500
    assert codes.count(200) == 3
    _, codes, _ = await spend(max_calls=4)
    assert codes.count(200) == 4
    unknown = session_of([], None, max_cost_usd=1.0)
    unknown.prices = None
    with MockLLM(["x"]) as server, Gateway(environ={"OPENAI_BASE_URL": server.base_url}) as gateway:
        async with gateway.session(unknown), httpx.AsyncClient() as client:
            url = f"{gateway.address(unknown)}/openai/chat/completions"
            refused = await client.post(url, json=chat())
        assert refused.status_code == 402
        assert "no known price" in refused.json()["error"]["message"]
        assert not server.requests


async def test_a_budget_admits_no_request_whose_cost_is_unknown() -> None:
    """R-N2: images, files and batches cost money that no limit sees; look-ups cost nothing."""
    paths = ("images/generations", "batches", "responses/input_tokens", "messages/count_tokens")
    with MockLLM(["x"]) as server, Gateway() as gateway:
        for limits, refused in (({"max_calls": 5}, [True, True, False, False]), ({}, [False] * 4)):
            session = session_of([], server, **limits)
            async with gateway.session(session), httpx.AsyncClient(timeout=60) as client:
                base = f"{gateway.address(session)}/openai"
                codes = [
                    (await client.post(f"{base}/{path}", json={})).status_code for path in paths
                ]
                assert [code == 402 for code in codes] == refused
                assert (await client.get(f"{base}/models")).status_code != 402


async def test_a_compressed_request_is_read_and_counted() -> None:
    """R-N2: gzip and zstd hide nothing from a span or a budget; what cannot be read is refused."""
    spans: list[Span] = []
    body = json.dumps(chat("word " * 5000, max_tokens=100)).encode()
    packed = {"gzip": gzip.compress(body), "zstd": zstandard.compress(body)}
    assert len(packed["gzip"]) < 200  # fits into any budget, as it stands
    with MockLLM([{"text": "x", "times": "forever"}]) as server, Gateway() as gateway:

        async def sent(content: bytes, encoding: str, **limits: Any) -> int:
            session = session_of(spans, server, **limits)
            async with gateway.session(session), httpx.AsyncClient() as client:
                url = f"{gateway.address(session)}/openai/chat/completions"
                headers = {"content-encoding": encoding}
                return (await client.post(url, content=content, headers=headers)).status_code

        for encoding, content in packed.items():
            assert await sent(content, encoding) == 200
            assert await sent(content, encoding, max_tokens=2000) == 402
            # Only a shorter answer fits: the lower maximum is in what is sent.
            assert await sent(content, encoding, max_tokens=len(body) // 2 + 60) == 200
            assert server.requests[-1].body["max_tokens"] < 60
        assert all(span.model == "m" and span.input_messages for span in spans)
        assert await sent(b"nothing packed", "gzip") == 400
        assert await sent(b"?", "br", max_calls=1) == 415
        assert await sent(body, "identity", max_calls=1) == 200
        bomb = gzip.compress(bytes(100_000_000))
        assert await sent(bomb, "gzip") == 413
        assert len(server.requests) == 5


async def test_a_call_whose_client_has_gone_is_cut() -> None:
    """R-N2: a client that gives up and asks again does not wait for its first call."""
    spans: list[Span] = []
    asked: asyncio.Queue[asyncio.StreamReader] = asyncio.Queue()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.put_nowait(reader)
        await reader.read()  # the request, until the gateway has gone
        asked.put_nowait(reader)
        writer.close()

    with Gateway() as gateway:
        upstream = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = upstream.sockets[0].getsockname()[1]
        session = session_of(spans, None, max_tokens=1050)
        session.options.upstream["openai"] = f"http://127.0.0.1:{port}"
        async with upstream, gateway.session(session), httpx.AsyncClient(timeout=None) as client:
            url = f"{gateway.address(session)}/openai/chat/completions"
            first = asyncio.create_task(client.post(url, json=chat(max_tokens=1000)))
            await asked.get()
            first.cancel()
            await asked.get()
            # What the first call may have used counts, so that this one does not fit.
            answer = await client.post(url, json=chat(max_tokens=1000))
            assert (answer.status_code, session.refused is not None) == (402, True)
            assert spans[0].error_type == "Disconnected"
            assert spans[0].end_ns is not None
            # So is one that is under way when the gateway stops: its span is complete, too.
            session = session_of(spans, None)
            session.options.upstream["openai"] = f"http://127.0.0.1:{port}"
            with Gateway(unknown=lambda _token: session) as another:
                url = f"{another.url}/openai/chat/completions"
                under_way = asyncio.create_task(client.post(url, json=chat()))
                await asked.get()
            assert spans[-1].error_type == "Disconnected"
            assert spans[-1].end_ns is not None
            await asyncio.wait({under_way})


async def test_retries_rate_limits_and_outages() -> None:
    """R-N2: a transient failure is sent again; an unreachable server is named."""
    spans: list[Span] = []
    script = [{"error": {"status": 503}}, {"error": {"status": 429, "retry_after": 0}}, "fine"]
    with MockLLM(script) as server, Gateway() as gateway:
        with rates_in_force({"openai": RateLimit(requests_per_minute=3)}):
            session = session_of(spans, server)
        async with gateway.session(session), httpx.AsyncClient(timeout=60) as client:
            url = f"{gateway.address(session)}/openai/chat/completions"
            answer = await client.post(url, json=chat())
            assert answer.json()["choices"][0]["message"]["content"] == "fine"
            assert spans[0].attributes["proctor.retries"] == 2
            assert session.failure is None
            # A limiter that is full holds the call back: the client gives up first.
            for _ in range(2):
                await client.post(url, json=chat())
            with pytest.raises(httpx.ReadTimeout):
                await client.post(url, json=chat(), timeout=0.3)
    assert spans[-1].error_type == "Disconnected"
    gone: list[Span] = []
    with Gateway() as gateway:
        session = session_of(gone, None, retries=0)
        session.options.upstream["openai"] = "http://127.0.0.1:9"
        async with gateway.session(session), httpx.AsyncClient() as client:
            url = f"{gateway.address(session)}/openai/chat/completions"
            assert (await client.post(url, json=chat())).status_code == 502
        assert session.failure is not None
        assert "cannot be reached" in (gone[0].error_message or "")


async def test_a_replay_is_equal_byte_for_byte_and_sends_nothing(tmp_path: Path) -> None:
    """R-N2: recorded once, replayed per trial without a network, whatever ids and dates say."""
    path = tmp_path / "agent.cassette.jsonl"
    url = "{}/openai/chat/completions"
    prompt = "{} work in {}, session {}, it took {} s"
    bypass()  # this client is in the process of the cassette; agents are not

    async def run(cassette: Cassette, gateway: Gateway, day: str, key: str) -> list[bytes]:
        found: list[bytes] = []
        for trial in range(2):
            with cassette.trial(f"case/agent/{trial}"):
                session = GatewaySession(
                    SpanSink(new_trace_id(), None, lambda _span: None), folders=(f"/tmp/{key}",)
                )
            async with gateway.session(session), httpx.AsyncClient() as client:
                for number, stream in enumerate((False, True)):
                    text = prompt.format(day, f"/tmp/{key}", f"{key * 4}-{key}", number + 1)
                    where = url.format(gateway.address(session))
                    answer = await client.post(where, json=chat(text, stream=stream))
                    assert answer.status_code == 200, answer.text
                    found.append(answer.content)
        return found

    with MockLLM(["one", "two", "three", "four"]) as server:
        gateway = Gateway(environ={"OPENAI_BASE_URL": server.base_url})
        with gateway, Cassette(path, "record") as cassette:
            first = await run(cassette, gateway, "Tuesday 2026-11-17", "a1b2c3d4")
        assert len(server.requests) == 4
    # The server is gone: whatever was sent would fail.
    with Gateway(environ={}) as gateway, Cassette(path) as cassette:
        for each in ("Friday 2027-01-01", "Monday 2028-02-29"):
            again = await run(cassette, gateway, each, "0f9e8d7c")
            assert again == first
    missing = pytest.raises(proctor.ProctorError, match="no recorded answer")
    with Gateway(environ={}) as gateway, missing, Cassette(path) as cassette:
        trial = cassette.trial("case/agent/0")
        with trial:
            session = GatewaySession(SpanSink(new_trace_id(), None, lambda _span: None))
            async with gateway.session(session), httpx.AsyncClient() as client:
                where = url.format(gateway.address(session))
                await client.post(where, json=chat("something else"))


async def test_fifty_clients_side_by_side_never_mix() -> None:
    """R-N2: every span is in the trace of the client that made the call."""

    def reply(request: Any) -> str:
        return f"to {request.last.content}"

    with MockLLM(reply) as server, Gateway() as gateway:

        async def client_of(number: int) -> None:
            trace = Trace(trace_id=new_trace_id())
            with Recorder(trace, "agent", lambda: 1):
                options = GatewayOptions(upstream={"openai": server.base_url})
                session = GatewaySession(SpanSink.of_capture(), options)
            async with gateway.session(session), httpx.AsyncClient(timeout=60) as client:
                url = f"{gateway.address(session)}/openai/chat/completions"
                for step in range(4):
                    body = chat(f"{number}.{step}", stream=step % 2 == 1)
                    assert f" {number}.{step}" in (await client.post(url, json=body)).text
            calls = [span for span in trace.spans if span.kind == "llm"]
            assert len(calls) == 4
            for step, span in enumerate(calls):
                assert span.trace_id == trace.trace_id
                assert span.parent_id == trace.spans[0].span_id
                assert span.input_messages[0].content == f"{number}.{step}"
                assert span.output_messages[0].content == f"to {number}.{step}"

        await asyncio.gather(*(client_of(number) for number in range(50)))
        assert len(server.requests) == 200


PROGRAM = """
    import json, os, sys, urllib.request
    prompt = open(sys.argv[2]).read()
    assert prompt == sys.argv[1] and os.getcwd() == os.path.realpath(sys.argv[3])
    assert sys.stdin.read() == ""
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    assert url.startswith(os.environ["WHERE"])
    def ask(messages):
        body = json.dumps({"model": "m", "messages": messages}).encode()
        headers = {"content-type": "application/json", "authorization": "Bearer x"}
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
            return json.load(answer)["choices"][0]["message"]
    messages = [{"role": "user", "content": prompt}]
    first = ask(messages)
    if first.get("tool_calls"):
        call = first["tool_calls"][0]
        messages += [first, {"role": "tool", "tool_call_id": call["id"], "content": "18 degrees"}]
        first = ask(messages)
    print(first["content"])
    if "die" in prompt:
        os.kill(os.getpid(), 9)
"""


def test_a_program_in_a_run(tmp_path: Path) -> None:
    """R-N2, R-N3: placeholders, spans of a program's calls, inferred tools, a killed program."""
    (tmp_path / "agent.py").write_text(textwrap.dedent(PROGRAM))
    call = {"name": "forecast", "arguments": {"city": "Paris"}}
    script = [
        {"when": "weather", "tool_calls": [call], "usage": {"input": 5, "output": 3}},
        {"when": {"tool_result": True}, "text": "18 in Paris", "usage": {"input": 9, "output": 4}},
        {"text": "dying", "usage": {"input": 2, "output": 1}},
        {"error": {"status": 400}, "times": "forever"},
    ]
    with MockLLM(script) as server:
        agent = {
            "kind": "command",
            "command": [
                sys.executable,
                str(tmp_path / "agent.py"),
                "{input}",
                "{input_file}",
                "{workspace}",
            ],
            "protocol": "text",
            "env": {"WHERE": "{gateway}/openai"},
            "gateway": {"upstream": {"openai": server.base_url}},
        }
        cases = [
            {"id": "a", "input": "weather {x}?", "correctness": {"expected_in_answer": ["18"]}},
            {"id": "b", "input": "die now", "correctness": {"expected_in_answer": ["dying"]}},
            {"id": "c", "input": "no reply", "correctness": {"expected_in_answer": ["x"]}},
        ]
        suite = tmp_path / "suite.yaml"
        suite.write_text(json.dumps({"agent": agent, "cases": cases}))
        run = proctor.run(suite, results=tmp_path / "results", concurrency=1, trials=1)
    trials = {trial.case: trial for trial in run.trials}
    assert trials["a"].passed, trials["a"]
    trace = run.trace(trials["a"])
    assert trace is not None
    calls = [span for span in trace.spans if span.kind == "llm"]
    assert [(s.input_tokens, s.output_tokens) for s in calls] == [(5, 3), (9, 4)]
    (tool,) = [span for span in trace.spans if span.kind == "tool"]
    assert (tool.tool_name, tool.tool_input) == ("forecast", {"city": "Paris"})
    assert tool.tool_output == "18 degrees"
    # A killed program keeps its calls, and its failure is its own.
    assert trials["b"].status == "failed"
    killed = run.trace(trials["b"])
    assert killed is not None
    dying = [span for span in killed.spans if span.kind == "llm"]
    assert [(s.input_tokens, s.output_tokens) for s in dying] == [(2, 1)]
    assert trials["c"].status == "failed"


def test_the_command_keeps_the_spans_of_a_killed_gateway(tmp_path: Path) -> None:
    """R-N2: `proctor gateway` serves any program; each call is on disk when it has ended."""
    traces = tmp_path / "calls.jsonl"
    script = [{"text": "fine", "usage": {"input": 3, "output": 2}, "times": "forever"}]
    with MockLLM(script) as server:
        command = [sys.executable, "-m", "proctor", "gateway", "--traces", str(traces)]
        command += ["--upstream", f"openai={server.base_url}", "--max-calls", "2"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                lines = [process.stdout.readline().strip() for _ in range(7)]
                given = dict(line.removeprefix("export ").split("=", 1) for line in lines[1:])
                url = f"{given['OPENAI_BASE_URL']}/chat/completions"
                named = url.replace("/openai/", "/mine/openai/")
                for where, key in ((url, "proctor-a"), (url, "sk-other"), (named, "x")):
                    headers = {"authorization": f"Bearer {key}"}
                    codes = [
                        httpx.post(where, json=chat(), headers=headers, timeout=60).status_code
                        for _ in range(3)
                    ]
                    # Each key has limits of its own.
                    assert codes == [200, 200, 402]
            finally:
                process.kill()
        # A key of one's own is passed on; the gateway has none to replace its own name with.
        keys = [request.headers.get("authorization") for request in server.requests]
        assert keys == [None, None, "Bearer sk-other", "Bearer sk-other", "Bearer x", "Bearer x"]
    found = proctor.load_traces(traces)
    assert sorted(len(trace.spans) for trace in found) == [3, 3, 3]
    assert sum(span.input_tokens or 0 for trace in found for span in trace.spans) == 18
    assert "sk-other" not in traces.read_text()

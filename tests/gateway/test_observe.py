"""Model calls of clients in this process, seen without instrumentation."""

import asyncio
import concurrent.futures
import contextvars
import json
import threading
from typing import Any

import aiohttp
import commands
import httpx
import httpx2
import openai
import pytest
import requests

import proctor
from proctor.gateway.observe import INFERRED, complete, observing
from proctor.llm import MockLLM
from proctor.llm.cassette import Cassette
from proctor.trace import Span, SpanKind, Trace
from proctor.trace.model import SpanStatus

WEATHER = {"name": "weather", "arguments": {"city": "Paris"}}
SCRIPT = [
    {"when": {"tool_result": "18 degrees"}, "text": "It is 18 degrees.", "times": None},
    {
        "when": "weather",
        "tool_calls": [WEATHER],
        "times": None,
        "usage": {"input": 30, "output": 7},
    },
    {"when": "hello", "text": "Grüß dich!", "times": None, "usage": {"input": 5, "output": 3}},
]
QUESTION = {"model": "m-1", "messages": [{"role": "user", "content": "hello"}]}


def body(stream: bool) -> dict:
    more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return {**QUESTION, **more}


def by_httpx(url: str, stream: bool) -> bytes:
    if not stream:
        return httpx.post(url, json=body(False)).content
    with httpx.stream("POST", url, json=body(True)) as response:
        return b"".join(response.iter_bytes())


def by_httpx2(url: str, stream: bool) -> bytes:
    async def ask() -> bytes:
        async with httpx2.AsyncClient() as client:
            if not stream:
                return (await client.post(url, json=body(False))).content
            async with client.stream("POST", url, json=body(True)) as response:
                return b"".join([chunk async for chunk in response.aiter_bytes()])

    return asyncio.run(ask())


def by_requests(url: str, stream: bool) -> bytes:
    response = requests.post(url, json=body(stream), stream=stream, timeout=60)
    return b"".join(response.iter_content(64)) if stream else response.content


def by_aiohttp(url: str, stream: bool) -> bytes:
    async def ask() -> bytes:
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=body(stream)) as response,
        ):
            if not stream:
                return await response.read()
            return b"".join([chunk async for chunk in response.content.iter_any()])

    return asyncio.run(ask())


def by_botocore(url: str, stream: bool) -> bytes:
    from botocore.awsrequest import AWSRequest
    from botocore.httpsession import URLLib3Session

    headers = {"content-type": "application/json"}
    request = AWSRequest("POST", url, headers, json.dumps(body(stream)), stream_output=stream)
    response = URLLib3Session().send(request.prepare())
    return b"".join(response.raw.stream(64)) if stream else response.content


CLIENTS = [by_httpx, by_httpx2, by_requests, by_aiohttp, by_botocore]


def model_calls(trace: Trace) -> list[Span]:
    return [span for span in trace.spans if span.kind is SpanKind.LLM]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_is_seen_and_gets_the_same_bytes(client, stream):
    """R-N1: each HTTP library's model call is a span, and no byte of its response changes."""
    with MockLLM(SCRIPT) as server:
        url = f"{server.base_url}/chat/completions"
        plain = client(url, stream)
        with observing(), proctor.capture(query="hello") as trace:
            seen = client(url, stream)
        outside = client(url, stream)
        asked = server.requests
    (span,) = model_calls(trace)
    assert (span.model, span.input_tokens, span.output_tokens) == ("m-1", 5, 3)
    assert [m.content for m in span.input_messages] == ["hello"]
    assert [m.content for m in span.output_messages] == ["Grüß dich!"]
    assert span.status is SpanStatus.OK
    assert span.end_ns is not None
    assert span.parent_id == trace.spans[0].span_id
    # Replies are numbered, so only their length and what is not numbered must agree.
    assert len(plain) == len(seen) == len(outside)
    assert asked[0].body == asked[1].body == asked[2].body


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_is_recorded_and_replayed(client, stream, tmp_path):
    """R-A5: a cassette serves every HTTP library; a replayed call is a span, too."""
    path = tmp_path / "calls.jsonl"
    with MockLLM(SCRIPT) as server:
        url = f"{server.base_url}/chat/completions"
        with Cassette(path, "record"):
            recorded = client(url, stream)
    with Cassette(path, "replay"), observing(), proctor.capture(query="hello") as trace:
        replayed = client(url, stream)
    if stream:
        assert replayed == recorded
    else:
        assert json.loads(replayed) == json.loads(recorded)
    (span,) = model_calls(trace)
    assert [m.content for m in span.output_messages] == ["Grüß dich!"]


def test_a_library_that_is_imported_later_is_seen(tmp_path):
    """R-N1: the first import of a client may happen in the agent."""
    import subprocess
    import sys

    with MockLLM(SCRIPT) as server:
        program = (
            "import proctor, sys\n"
            "from proctor.gateway.observe import observing\n"
            "assert 'requests' not in sys.modules\n"
            "with observing(), proctor.capture(query='hello') as trace:\n"
            "    import requests\n"
            f"    requests.post({server.base_url + '/chat/completions'!r}, json={QUESTION!r})\n"
            "print([span.model for span in trace.llm_calls])\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
    assert done.stdout == "['m-1']\n", done.stderr


def test_a_library_that_another_thread_is_importing_is_seen(tmp_path):
    """R-N1: the hook waits for an import that is under way; the trial does not fail."""
    import subprocess
    import sys

    (tmp_path / "requests.py").write_text(
        "import threading\nSTARTED.set()\nGO.wait()\nclass Session:\n    def send(self): ...\n"
    )
    program = (
        "import builtins, sys, threading\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "builtins.STARTED, builtins.GO = threading.Event(), threading.Event()\n"
        "from proctor.gateway.observe import observing\n"
        "thread = threading.Thread(target=__import__, args=('requests',))\n"
        "thread.start(); STARTED.wait()\n"
        "assert not hasattr(sys.modules['requests'], 'Session')\n"
        "threading.Timer(0.1, GO.set).start()\n"
        "with observing():\n"
        "    print(sys.modules['requests'].Session.send.__module__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "proctor.llm.http_hook\n", done.stderr


def tool_loop(base_url: str) -> str:
    """A plain loop with the client of OpenAI: the agent that most people write first."""
    client: Any = openai.OpenAI(base_url=base_url, api_key="mock", max_retries=0)
    messages = [{"role": "user", "content": "what is the weather?"}]
    while True:
        reply = client.chat.completions.create(model="gpt-4o-mini", messages=messages)
        said = reply.choices[0].message
        if not said.tool_calls:
            return said.content
        messages.append(said.model_dump(exclude_none=True))
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}
            for call in said.tool_calls
        ]


def test_tools_of_a_plain_loop_are_inferred_from_the_messages():
    """R-N1: a tool call that only messages show is a span with arguments and result, marked."""
    with (
        MockLLM(SCRIPT) as server,
        observing(),
        proctor.capture(query="what is the weather?") as trace,
    ):
        trace.response = tool_loop(server.base_url)
    complete(trace)
    assert len(trace.llm_calls) == 2
    (call,) = trace.tool_calls
    assert (call.name, call.arguments, call.result) == ("weather", {"city": "Paris"}, "18 degrees")
    (span,) = trace.of_kind(SpanKind.TOOL)
    assert span.attributes[INFERRED] is True
    first, second = trace.llm_calls
    assert span.end_ns is not None
    assert first.end_ns == span.start_ns <= span.end_ns == second.start_ns


@pytest.mark.parametrize("ids", [True, False], ids=["ids of the model", "no ids"])
def test_calls_without_ids_get_their_own_results(ids):
    """R-N1: of calls of one tool whose results have no ids, as Gemini's, each has its own."""
    cities = (("Paris", "Oslo"), ("Lima",))
    calls = [[{"name": "weather", "arguments": {"city": c}} for c in each] for each in cities]
    script = [*({"tool_calls": each} for each in calls), "done"]
    contents: list[Any] = [{"role": "user", "parts": [{"text": "what is the weather?"}]}]
    with MockLLM(script) as server, observing(), proctor.capture(query="?") as trace:
        for each in (*cities, ()):
            url = f"{server.url}/v1beta/models/m:generateContent"
            said = httpx.post(url, json={"contents": contents}).json()["candidates"][0]["content"]
            for part in said["parts"]:
                part.get("functionCall", {}).pop("id", None)
            answers = [
                {"functionResponse": {"name": "weather", "response": {"result": f"rain in {c}"}}}
                for c in each
            ]
            contents += [said, {"role": "user", "parts": answers}]
    if not ids:  # as older models of Gemini reply
        trace.spans[:] = [span for span in trace.spans if span.kind is not SpanKind.TOOL]
        for span in trace.llm_calls:
            for call in (c for m in span.output_messages for c in m.tool_calls):
                call.id = None
    complete(trace)
    assert [(c.arguments, c.result) for c in trace.tool_calls] == [
        ({"city": city}, f"rain in {city}") for city in ("Paris", "Oslo", "Lima")
    ]
    assert len(trace.of_kind(SpanKind.TOOL)) == 3


@pytest.mark.parametrize("provider", ["anthropic", "gemini"])
def test_a_result_that_says_it_is_an_error_is_a_failed_call(provider):
    """R-N1: what the agent tells the model about its tool, the trace tells as well."""
    call = {"name": "pay", "arguments": {}}
    with MockLLM([{"tool_calls": [call]}, "done"]) as server, proctor.capture() as trace:
        asked: list[Any] = [{"role": "user", "content": "pay"}]
        if provider == "anthropic":
            url, key = f"{server.url}/v1/messages", "messages"
            said = httpx.post(url, json={"model": "m", "max_tokens": 9, key: asked}).json()
            block = {"type": "tool_result", "tool_use_id": said["content"][0]["id"]}
            block |= {"content": "no money", "is_error": True}
            asked += [{"role": "assistant", "content": said["content"]}]
            asked += [{"role": "user", "content": [block]}]
        else:
            url, key = f"{server.url}/v1beta/models/m:generateContent", "contents"
            asked = [{"role": "user", "parts": [{"text": "pay"}]}]
            said = httpx.post(url, json={key: asked}).json()
            answer = {"name": "pay", "response": {"error": "no money"}}
            asked += [said["candidates"][0]["content"]]
            asked += [{"role": "user", "parts": [{"functionResponse": answer}]}]
        httpx.post(url, json={"model": "m", "max_tokens": 9, key: asked})
    (tool,) = trace.of_kind(SpanKind.TOOL)
    assert tool.status is SpanStatus.ERROR
    assert "no money" in str(tool.error_message)


def test_a_capture_sees_what_a_trial_sees():
    """R-N1: `proctor.capture` records the model calls of its block, as trials do."""
    before = httpx.Client.send
    with MockLLM(SCRIPT) as server, proctor.capture(query="what is the weather?") as trace:
        trace.response = tool_loop(server.base_url)
    assert [call.model for call in trace.llm_calls] == ["gpt-4o-mini"] * 2
    assert [(call.name, call.result) for call in trace.tool_calls] == [("weather", "18 degrees")]
    assert httpx.Client.send is before


def test_a_wrapper_of_another_library_stays(monkeypatch):
    """R-N1: an instrumentation that begins while a block is observed goes on after it."""
    seen: list[str] = []
    with MockLLM(["one", "two"]) as server:
        url = f"{server.base_url}/chat/completions"
        with proctor.capture() as trace:
            observed = httpx.Client.send

            def send(self, request, **options):
                seen.append(request.url.path)
                return observed(self, request, **options)

            monkeypatch.setattr(httpx.Client, "send", send)
            httpx.post(url, json={"model": "m", "messages": []})
        httpx.post(url, json={"model": "m", "messages": []})
    assert (len(trace.llm_calls), len(seen)) == (1, 2)


def test_a_recorded_tool_is_not_inferred_again():
    """R-N1: where a tool has a span of its own, nothing is inferred."""

    @proctor.tool
    def weather(city: str) -> str:
        return "18 degrees"

    def loop(base_url: str) -> str:
        client: Any = openai.OpenAI(base_url=base_url, api_key="mock", max_retries=0)
        messages = [{"role": "user", "content": "what is the weather?"}]
        said = client.chat.completions.create(model="m", messages=messages).choices[0].message
        call = said.tool_calls[0]
        result = weather(**json.loads(call.function.arguments))
        messages += [
            said.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": result},
        ]
        return (
            client.chat.completions.create(model="m", messages=messages).choices[0].message.content
        )

    with MockLLM(SCRIPT) as server, observing(), proctor.capture(query="?") as trace:
        trace.response = loop(server.base_url)
    complete(trace)
    assert [(c.name, c.result) for c in trace.tool_calls] == [("weather", "18 degrees")]


@pytest.mark.parametrize("nested", [True, False], ids=["around", "beside"])
def test_a_call_seen_by_an_instrumentation_is_one_span(nested):
    """R-N1: the instrumentation's span stays, with what it lacks filled in."""
    with MockLLM(SCRIPT) as server, observing(), proctor.capture(query="hello") as trace:
        url = f"{server.base_url}/chat/completions"
        if nested:
            with proctor.capture.llm_call("m-1", name="instrumented"):
                by_httpx(url, False)
        else:
            began = trace.spans[0].start_ns
            by_httpx(url, False)
            beside = Span(
                span_id="b" * 16,
                trace_id=trace.trace_id,
                parent_id=trace.spans[0].span_id,
                name="instrumented",
                kind=SpanKind.LLM,
                start_ns=began,
                end_ns=trace.spans[-1].end_ns,
            )
            trace.spans.append(beside)
    complete(trace)
    (span,) = model_calls(trace)
    assert span.name == "instrumented"
    assert (span.model, span.input_tokens, span.output_tokens) == ("m-1", 5, 3)
    assert [m.content for m in span.output_messages] == ["Grüß dich!"]
    assert trace.usage.calls == 1


def test_calls_side_by_side_keep_their_own_content():
    """R-N1: parallel calls of one capture never mix, nor do those of parallel captures."""

    async def ask(client: openai.AsyncOpenAI, question: str) -> Trace:
        with observing(), proctor.capture(query=question) as trace:
            await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model=f"m-{question}-{number}",
                        messages=[{"role": "user", "content": f"hello {question} {number}"}],
                    )
                    for number in range(5)
                )
            )
        return trace

    async def main(base_url: str) -> list[Trace]:
        client = openai.AsyncOpenAI(base_url=base_url, api_key="mock", max_retries=0)
        return await asyncio.gather(*(ask(client, str(number)) for number in range(8)))

    with MockLLM(SCRIPT) as server:
        traces = asyncio.run(main(server.base_url))
    for number, trace in enumerate(traces):
        calls = model_calls(trace)
        assert len(calls) == 5
        assert {call.attributes["gen_ai.request.model"] for call in calls} == {
            f"m-{number}-{call}" for call in range(5)
        }
        for call in calls:
            suffix = call.attributes["gen_ai.request.model"].removeprefix("m-").replace("-", " ")
            assert [m.content for m in call.input_messages] == [f"hello {suffix}"]


def test_threads_of_a_trial_call_models_as_this_trial(tmp_path):
    """R-T3: a pool, also one that trials share, and plain threads; what no trial starts is none."""
    pool = concurrent.futures.ThreadPoolExecutor(4)
    alone: list[object] = []
    own = contextvars.ContextVar("own", default="unset")

    def ask(question: str) -> str:
        alone.append(own.get())
        body = {**QUESTION, "messages": [{"role": "user", "content": f"hello {question}"}]}
        return requests.post(f"{mock.base_url}/chat/completions", json=body, timeout=60).text

    async def agent(question: str) -> str:
        own.set(question)
        thread = threading.Thread(target=ask, args=(f"{question} plainly",))
        thread.start()
        loop = asyncio.get_running_loop()
        several = [loop.run_in_executor(pool, ask, f"{question} {n}") for n in range(3)]
        await asyncio.gather(*several)
        await loop.run_in_executor(None, thread.join)
        return question

    cases = [{"id": name, "input": name} for name in ("one", "two", "three")]
    (tmp_path / "suite.yaml").write_text(json.dumps({"cases": cases}))
    with MockLLM(SCRIPT) as mock, pool:
        options = {"trials": 3, "concurrency": 9, "results": tmp_path / "results"}
        run = proctor.run(tmp_path / "suite.yaml", agent=agent, **options)
        start = threading.Thread.start
        pool.submit(ask, "nobody").result()
    assert not hasattr(start, "__wrapped__")
    assert set(alone) == {"unset"}  # variables of the program are as without Proctor
    assert len(mock.requests) == 9 * 4 + 1
    for trial in run.trials:
        calls = run.trace(trial).llm_calls
        asked = sorted(call.input_messages[-1].content for call in calls)
        endings = ("0", "1", "2", "plainly")
        assert asked == [f"hello {trial.case} {ending}" for ending in endings]


def test_a_failed_request_is_a_failed_span():
    """R-N1: a server that cannot be reached leaves a failed call in the trace."""
    with (
        observing(),
        proctor.capture(query="hello") as trace,
        pytest.raises(httpx.ConnectError),
    ):
        httpx.post("http://127.0.0.1:1/v1/chat/completions", json=QUESTION)
    (span,) = model_calls(trace)
    assert span.status is SpanStatus.ERROR
    assert span.error_type == "ConnectError"
    assert [m.content for m in span.input_messages] == ["hello"]


def test_other_requests_are_left_alone():
    """R-N1: only model calls inside a capture become spans, and the hook leaves nothing behind."""
    before = (httpx.Client.send, requests.Session.send, aiohttp.ClientSession._request)
    with MockLLM(SCRIPT) as server, observing():
        httpx.post(f"{server.base_url}/chat/completions", json=QUESTION)
        with proctor.capture(query="hello") as trace:
            httpx.get(f"{server.base_url}/models")
    assert not model_calls(trace)
    assert (httpx.Client.send, requests.Session.send, aiohttp.ClientSession._request) == before


AGENT = """
import json
import openai

def answer(question):
    client, messages = openai.OpenAI(max_retries=0), [{"role": "user", "content": question}]
    while True:
        reply = client.chat.completions.create(model="gpt-4o-mini", messages=messages)
        said = reply.choices[0].message
        if not said.tool_calls:
            return said.content
        messages.append(said.model_dump(exclude_none=True))
        for call in said.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "18 degrees"})
"""
SUITE = """
version: 1
agent: {kind: python, target: "plain_loop:answer", isolation: ISOLATION}
cases:
  - input: what is the weather?
    correctness: {expected_in_answer: ["18"]}
    path: {expected_tools: [weather], forbidden_tools: [delete], max_tool_calls: 1}
    cost: {max_llm_calls: 2, max_cost_usd: 0.01}
"""


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_checks_judge_an_agent_without_instrumentation(isolation, tmp_path):
    """R-N1: tools, model calls and cost of a plain loop are judged, at any concurrency."""
    (tmp_path / "plain_loop.py").write_text(AGENT)
    (tmp_path / "suite.yaml").write_text(SUITE.replace("ISOLATION", isolation))
    with MockLLM(SCRIPT) as server:
        done = commands.proctor(
            *("run", "suite.yaml", "--trials", "4", "--concurrency", "4", "--json"),
            cwd=tmp_path,
            env=server.environment,
        )
        asked = len(server.requests)
    assert done.returncode == 0, done.stderr
    assert asked == 8
    path = next((tmp_path / "results").glob("*/*"))
    traces = proctor.load_traces(path / "traces")
    assert [len(trace.llm_calls) for trace in traces] == [2, 2, 2, 2]
    assert [trace.tool_sequence for trace in traces] == [["weather"]] * 4
    assert all(trace.total_cost for trace in traces)
    trials = [json.loads(line) for line in (path / "trials.jsonl").read_text().splitlines()]
    checks = [check["status"] for trial in trials for check in trial.get("checks", ())]
    assert set(checks) == {"pass"}

"""Cassettes: real client libraries recorded against the mock server, replayed without it."""

import asyncio
import json
import subprocess
import sys
from contextlib import suppress
from typing import Any, cast

import anthropic
import httpx
import httpx2
import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.errors import ProctorError
from proctor.llm import ChatRequest, MockLLM, ModelError, get_model
from proctor.llm.cassette import (
    Cassette,
    CassetteMiss,
    cassette_trial,
    hand_over,
    read_entries,
    recorded_request,
    recorded_response,
)
from proctor.llm.retry import transient
from proctor.trace.redact import Redactor

KEY = "sk-proj-" + "a1B2c3D4" * 6
NOBODY = "http://127.0.0.1:9"
"""An address where nothing answers, for replays: the port of the recording is not part of it."""


async def ask_direct(url, words):
    model = get_model("openai:gpt-4o-mini", base_url=f"{url}/v1")
    return (await model.complete(ChatRequest.of(words))).text


async def ask_openai(url, words):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY)
    ask: Any = [{"role": "user", "content": words}]
    reply = client.chat.completions.create(model="gpt-4o-mini", messages=ask)
    return reply.choices[0].message.content


async def ask_openai_stream(url, words):
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY)
    ask: Any = [{"role": "user", "content": words}]
    stream = await client.chat.completions.create(model="m", messages=ask, stream=True)
    return "".join(
        [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    )


async def ask_anthropic(url, words):
    client = anthropic.AsyncAnthropic(base_url=url, api_key=KEY)
    ask: Any = [{"role": "user", "content": words}]
    reply: Any = await client.messages.create(model="claude-haiku-4-5", max_tokens=9, messages=ask)
    return reply.content[0].text


async def ask_anthropic_stream(url, words):
    client = anthropic.Anthropic(base_url=url, api_key=KEY)
    ask: Any = [{"role": "user", "content": words}]
    with client.messages.stream(model="claude-haiku-4-5", max_tokens=9, messages=ask) as stream:
        return "".join(stream.text_stream)


async def ask_httpx(url, words, library=httpx):
    body = {"model": "m", "messages": [{"role": "user", "content": words}]}
    async with library.AsyncClient(headers={"authorization": f"Bearer {KEY}"}) as client:
        reply = await client.post(f"{url}/v1/chat/completions", json=body)
    reply.raise_for_status()
    return reply.json()["choices"][0]["message"]["content"]


async def ask_httpx2(url, words):
    return await ask_httpx(url, words, httpx2)


CLIENTS = [
    ask_direct,
    ask_openai,
    ask_openai_stream,
    ask_anthropic,
    ask_anthropic_stream,
    ask_httpx,
    ask_httpx2,
]


@pytest.mark.parametrize("ask", CLIENTS)
async def test_what_a_client_was_answered_is_answered_again(tmp_path, ask):
    """R-A5: each client gets the same response without a server; no key is stored."""
    path = tmp_path / "c.jsonl"
    with MockLLM(["Grüße, 世界!"]) as server, Cassette(path, "record"):
        first = await ask(server.url, "hello there")
    with Cassette(path, "replay"):
        again = await ask(NOBODY, "hello there")
    assert first == again == "Grüße, 世界!"
    kept = path.read_text()
    assert KEY not in kept
    assert "authorization" not in kept.lower()
    assert "hello there" in kept


@pytest.mark.parametrize("ask", CLIENTS)
async def test_a_miss_is_an_error_and_never_a_live_call(tmp_path, ask):
    """R-A5: another question is refused at once, by name, with the server up and unasked."""
    path = tmp_path / "c.jsonl"
    with MockLLM(["one", "two"]) as server:
        with Cassette(path, "record"):
            await ask(server.url, "first question")
        with pytest.raises(CassetteMiss) as missed, Cassette(path, "replay"):
            await ask(server.url, "second question")
        assert len(server.requests) == 1
    assert "POST http://127.0.0.1/v1/" in str(missed.value)
    assert "was not made" in str(missed.value)
    assert transient(missed.value) is None


async def test_each_trial_gets_its_own_answers(tmp_path):
    """R-A5: N trials that ask the same get N recorded answers, each its own, in any order."""
    path = tmp_path / "c.jsonl"

    body = {"model": "m", "messages": [{"role": "user", "content": "same question"}]}

    async def trial(name, url):
        with cassette_trial(name):
            answers = []
            for _ in range(2):
                reply = await client.post(f"{url}/v1/chat/completions", json=body)
                answers.append(reply.json()["choices"][0]["message"]["content"])
            return answers

    names = [f"case/agent/0/{i}" for i in range(20)]
    client = httpx.AsyncClient()
    with MockLLM([f"answer {i}" for i in range(40)]) as server, Cassette(path, "record"):
        recorded = dict(
            zip(names, await asyncio.gather(*(trial(n, server.url) for n in names)), strict=True)
        )
    order = names[::-1]
    with Cassette(path):
        replayed = dict(
            zip(order, await asyncio.gather(*(trial(n, NOBODY) for n in order)), strict=True)
        )
    assert replayed == recorded
    assert len({a for pair in recorded.values() for a in pair}) == 40


async def test_more_trials_than_were_recorded(tmp_path):
    """R-A5: a trial beyond the recording is a miss; other names share what there is, each once."""
    path = tmp_path / "c.jsonl"
    with MockLLM(["a", "b"]) as server, Cassette(path, "record"):
        for i in range(2):
            with cassette_trial(f"t{i}"):
                await ask_httpx(server.url, "q")
    with Cassette(path):
        for want, name in (("a", "renamed"), ("b", "other")):
            with cassette_trial(name):
                assert await ask_httpx(NOBODY, "q") == want
        with pytest.raises(CassetteMiss, match="recorded 2 times"), cassette_trial("third"):
            await ask_httpx(NOBODY, "q")
        with pytest.raises(CassetteMiss, match="recorded 1 time and"), cassette_trial("t0"):
            await asyncio.gather(*(ask_httpx(NOBODY, "q") for _ in range(2)))


async def test_an_agent_cannot_swallow_a_miss(tmp_path):
    """R-A5: whatever an agent makes of the error, the trial is an error of infrastructure."""
    path = tmp_path / "c.jsonl"
    with MockLLM(["a"]) as server, Cassette(path, "record"), cassette_trial("t"):
        await ask_httpx(server.url, "q")
    apologies = []

    async def polite_agent():
        try:
            await ask_direct(NOBODY, "something else")
        except ModelError as error:
            apologies.append(str(error))

    with Cassette(path), pytest.raises(CassetteMiss), cassette_trial("t"):
        await polite_agent()
    assert "no recorded answer" in apologies[0]


async def test_another_try_replaces_the_first(tmp_path):
    """R-A5 R-R3: of a trial that was tried again only the last try is replayed, without its 429."""
    path = tmp_path / "c.jsonl"
    script = ["from the first try", {"error": {"status": 429}}, "from the second try", "end"]
    with MockLLM(script) as server, Cassette(path, "record"):
        with suppress(httpx.HTTPStatusError), cassette_trial("t"):
            assert await ask_httpx(server.url, "one") == "from the first try"
            await ask_httpx(server.url, "two")
        with cassette_trial("t"):
            assert await ask_httpx(server.url, "one") == "from the second try"
            assert await ask_httpx(server.url, "two") == "end"
    with Cassette(path), cassette_trial("t"):
        assert await ask_httpx(NOBODY, "one") == "from the second try"
        assert await ask_httpx(NOBODY, "two") == "end"


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.zst"])
async def test_a_killed_recording_goes_on(tmp_path, name):
    """R-A5 R-R9: a torn last line is dropped, appending goes on after it, compressed or not."""
    path = tmp_path / name
    with MockLLM(["a", "b", "a again"]) as server:
        with Cassette(path, "record"):
            for i in range(2):
                with cassette_trial(f"t{i}"):
                    await ask_httpx(server.url, "q")
        path.write_bytes(path.read_bytes()[:-20])
        assert [e.trial for e in read_entries(path)] == ["t0"]
        with Cassette(path, "record", append=True), cassette_trial("t0"):
            await ask_httpx(server.url, "q")
    assert [(e.trial, e.attempt) for e in read_entries(path)] == [("t0", 1), ("t0", 2)]
    with Cassette(path), cassette_trial("t0"):
        assert await ask_httpx(NOBODY, "q") == "a again"


async def test_keys_in_addresses_and_bodies(tmp_path):
    """R-A5: keys in the query, the user part or the JSON are neither stored nor compared."""
    path = tmp_path / "c.jsonl"
    with MockLLM(["a"]) as server, Cassette(path, "record"):
        url = server.url.replace("http://", "http://user:hunter2pass@")
        async with httpx.AsyncClient() as client:
            body = {"model": "m", "messages": [{"role": "user", "content": f"my key is {KEY}"}]}
            await client.post(f"{url}/v1/chat/completions?key={KEY}&v=1", json=body)
    kept = path.read_text()
    assert KEY not in kept
    assert "hunter2pass" not in kept
    (entry,) = read_entries(path)
    assert entry.request.url == "http://127.0.0.1/v1/chat/completions?v=1"
    with Cassette(path):
        async with httpx.AsyncClient() as client:
            body["messages"][0]["content"] = f"my key is {KEY[:-4]}zzzz"
            reply = await client.post(
                f"{NOBODY}/v1/chat/completions?key=another&v=1",
                content=json.dumps(body, indent=3),
                headers={"content-type": "application/json"},
            )
    assert reply.json()["choices"][0]["message"]["content"] == "a"


async def test_clients_are_free_again_afterwards(tmp_path):
    """R-A5: when the block ends, also by an error, requests go to the network as before."""
    path, sent = tmp_path / "c.jsonl", (httpx.Client.send, httpx2.AsyncClient.send)
    with MockLLM(["a", "b"]) as server:
        with suppress(KeyError), Cassette(path, "record"):
            await ask_httpx(server.url, "q")
            raise KeyError
        assert (httpx.Client.send, httpx2.AsyncClient.send) == sent
        assert await ask_httpx(server.url, "q") == "b"


def test_mistakes_are_reported(tmp_path):
    """R-A5: a missing or foreign file, a wrong mode and two at once are one clear line each."""
    with pytest.raises(ProctorError, match="no such cassette"), Cassette(tmp_path / "no.jsonl"):
        pass
    other = tmp_path / "other.jsonl"
    other.write_text('{"hello": 1}\n')
    with pytest.raises(ProctorError, match="not a cassette of version 1"), Cassette(other):
        pass
    other.write_text('{"version": 1}\n{"key": 3}\n')
    with (
        pytest.raises(ProctorError, match=r"other\.jsonl:2: not a recorded response"),
        Cassette(other),
    ):
        pass
    with pytest.raises(ProctorError) as raised:
        Cassette(other, cast(Any, "recrod"))
    assert raised.value.hint == "did you mean 'record'?"
    with (
        Cassette(tmp_path / "a.jsonl", "record"),
        pytest.raises(ProctorError, match="another cassette"),
        Cassette(tmp_path / "b.jsonl", "record"),
    ):
        pass


async def test_a_child_process_goes_on_with_it(tmp_path):
    """R-A5: a trial in a process of its own records into, and replays from, the same cassette."""
    path = tmp_path / "c.jsonl"
    program = (
        "import sys, httpx, msgspec\n"
        "from proctor.llm.cassette import HandedOver, taken_over\n"
        "with taken_over(msgspec.json.decode(sys.argv[1], type=HandedOver)):\n"
        "    r = httpx.post(sys.argv[2] + '/v1/chat/completions', json={'model': 'm',"
        " 'messages': [{'role': 'user', 'content': 'q'}]})\n"
        "    print(r.json()['choices'][0]['message']['content'])\n"
    )

    def child(url):
        handed = msgspec.json.encode(hand_over()).decode()
        command = [sys.executable, "-c", program, handed, url]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert hand_over() is None
    with MockLLM(["a", "b"]) as server, Cassette(path, "record"):
        for name in ("t0", "t1"):
            with cassette_trial(name):
                child(server.url)
    with Cassette(path):
        for name, want in (("t1", "b"), ("t0", "a")):
            with cassette_trial(name):
                assert child(NOBODY) == want


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(json_values)
def test_any_json_is_stored_and_compared(document):
    """R-A5: any JSON survives the file, and how it is written does not matter to the key."""
    redactor = Redactor(environ={})
    compact = json.dumps(document).encode()
    spaced = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )
    one, two = (
        recorded_request("post", "https://h/p", body, redactor) for body in (compact, spaced)
    )
    assert one.key == two.key
    answer = recorded_response(200, "application/json", compact, redactor)
    again = msgspec.json.decode(msgspec.json.encode(answer), type=type(answer))
    assert json.loads(again.content) == redactor.value(document)


@given(st.binary())
def test_any_bytes_are_stored(content):
    """R-A5: what is not text is given back byte for byte."""
    redactor = Redactor(environ={})
    answer = recorded_response(200, "application/octet-stream", content, redactor)
    again = msgspec.json.decode(msgspec.json.encode(answer), type=type(answer))
    try:
        want = redactor.text(content.decode()).encode()
    except UnicodeDecodeError:
        want = content
    assert again.content == want

"""The mock model's script: which reply is given to which request, and slips that are refused."""

import asyncio
import http.client
import threading

import httpx
import openai
import pytest

from proctor.errors import ProctorError
from proctor.llm import MockLLM
from proctor.llm.mock import load_script


def say(server: MockLLM, text: str, model: str = "m") -> str:
    client = openai.OpenAI(base_url=server.base_url, api_key="mock", max_retries=0)
    reply = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}]
    )
    return reply.choices[0].message.content


def declared_length(url: str, length: str) -> int:
    """The status for a request that claims a length and sends nothing."""
    parts = httpx.URL(url)
    connection = http.client.HTTPConnection(parts.host, parts.port, timeout=10)
    connection.putrequest("POST", parts.path)
    connection.putheader("Content-Length", length)
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()
    return status


def test_replies_come_in_order_and_those_that_match():
    """R-A6: in order, matched by text, regular expression and model, with `times` and default."""
    script = {
        "replies": [
            {"when": "cat", "text": "meow", "times": 2},
            {"when": {"regex": r"\bdogs?\b", "model": "big-*"}, "text": "woof", "times": "forever"},
            "first",
            {"json": {"n": 2}},
        ],
        "default": "nothing left",
    }
    with MockLLM(script) as server:
        assert say(server, "hello") == "first"
        assert say(server, "a cat") == "meow"
        assert say(server, "dogs", model="big-1") == "woof"
        assert say(server, "dogs", model="small") == '{"n": 2}'
        assert say(server, "a cat") == "meow"
        assert say(server, "a cat") == "nothing left"
        assert say(server, "dogs", model="big-2") == "woof"
    assert [asked.reply for asked in server.requests] == [2, 0, 1, 3, 0, "default", 1]
    assert server.script.unused == []


def test_a_function_may_answer():
    """R-A6: a Python script can compute its replies from what was asked."""
    with MockLLM(lambda asked: asked.last.content.upper()) as server:
        assert [say(server, "a"), say(server, "b")] == ["A", "B"]


def test_what_is_not_scripted_is_refused_and_said():
    """R-A6: a script that has run out is a clear 400, which client libraries do not retry."""
    with MockLLM(["only one"]) as server:
        say(server, "1")
        with pytest.raises(openai.BadRequestError, match="no reply is scripted for request 2"):
            say(server, "2")
    assert [asked.messages[0].content for asked in server.unmatched] == ["2"]


async def test_works_from_async_code_with_many_at_once():
    """R-A6: the server has threads of its own, so an async test may use it, also concurrently."""
    with MockLLM({"replies": [{"text": "x", "times": 30, "latency": 0.01}]}) as server:
        client = openai.AsyncOpenAI(base_url=server.base_url, api_key="mock", max_retries=0)
        ask = client.chat.completions.create
        messages = [{"role": "user", "content": "hi"}]
        replies = await asyncio.gather(*(ask(model="m", messages=messages) for _ in range(30)))
        await client.close()
    assert len({reply.id for reply in replies}) == 30


def test_leaving_frees_port_and_threads():
    """R-A6: nothing is left behind, even with a reply that would take an hour."""
    before = set(threading.enumerate())
    with httpx.Client() as idle:  # keeps its connection open for a next request
        with MockLLM(["now", {"text": "late", "latency": 3600}]) as server:
            url = server.url
            ask = {"model": "m", "messages": []}
            assert idle.post(f"{url}/v1/chat/completions", json=ask).status_code == 200
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{url}/v1/chat/completions", json=ask, timeout=0.1)
        left = [thread for thread in threading.enumerate() if thread not in before]
        for thread in left:
            thread.join(timeout=60)
        assert not any(thread.is_alive() for thread in left)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/v1/models")
    with pytest.raises(ProctorError, match="not running"):
        _ = server.url


def test_only_loopback_is_bound():
    """R-A6: the server cannot be reached from other machines."""
    with MockLLM([]) as server:
        assert server.url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    ("script", "where", "says", "hint"),
    [
        ([{"txt": "x"}], "replies[0]", "unknown key 'txt'", "text"),
        ([{"text": "x", "when": {"contain": "y"}}], "replies[0].when", "unknown key", "contains"),
        ([{"malformed": "badjson"}], "replies[0].malformed", "badjson", "bad_json"),
        ([{"error": {"status": 200}}], "replies[0].error.status", "equal to 400", None),
        ([{"text": "x", "times": 0}], "replies[0].times", "equal to 1", None),
        (["a", {"text": 5}], "replies[1].text", "valid string, not 5", "quotes"),
        ([{"text": "a", "json": {}}], "replies[0]", "not both", None),
        ([{"when": {"regex": "("}}], "replies[0].when.regex", "regular expression", None),
        ([{"tool_calls": [{"nme": "x"}]}], "replies[0].tool_calls[0]", "nme", "name"),
        ({"replies": [], "defaults": "x"}, "script", "unknown key 'defaults'", "default"),
        ([{"latency": -1}], "replies[0].latency", "equal to 0", None),
        ([{"usage": {"input": "3"}}], "replies[0].usage.input", "valid integer", None),
    ],
)
def test_slips_are_named(script, where, says, hint):
    """R-A6: unknown keys and wrong values are refused, with their place and a did-you-mean."""
    with pytest.raises(ProctorError, match=says) as caught:
        load_script(script)
    assert caught.value.where == where
    if hint:
        assert hint in f"{caught.value.message} {caught.value.hint}"


def test_a_yaml_script_names_its_file(tmp_path):
    """R-A6: errors in a file name it; YAML errors also the line."""
    path = tmp_path / "script.yaml"
    path.write_text("- txt: x\n")
    with pytest.raises(ProctorError) as caught:
        load_script(path)
    assert str(path) in str(caught.value)
    path.write_text("- text: [\n")
    with pytest.raises(ProctorError, match="not valid YAML") as caught:
        load_script(str(path))
    assert caught.value.where.startswith(f"{path}:2")


def test_requests_that_are_not_json_do_not_end_the_server():
    """R-A6: hostile requests get an error, and the next one its reply."""
    with MockLLM(["still here"]) as server:
        url = f"{server.base_url}/chat/completions"
        assert httpx.post(url, content=b"{").status_code == 400
        assert httpx.post(url, content=b"[]").status_code == 400
        assert declared_length(url, "999999999999") == declared_length(url, "?") == 413
        assert httpx.post(f"{server.base_url}/nowhere", json={}).status_code == 404
        odd = {"model": 3, "messages": [None, {"content": {"a": 1}}, "x"], "tools": "?"}
        reply = httpx.post(url, json=odd).json()
    assert reply["choices"][0]["message"]["content"] == "still here"

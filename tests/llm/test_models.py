"""Chat models of real client libraries, against the mock server."""

import asyncio
import base64
import re
import subprocess
import sys

import pytest

from proctor.errors import ProctorError
from proctor.llm import ChatModel, ChatRequest, MockLLM, ModelError, PriceTable, ToolSpec, get_model
from proctor.llm.chat_model import Attachment, FileMessage
from proctor.trace import Message, ToolCall

NAMES = [
    "openai:gpt-4o-mini",
    "openai-responses:gpt-4o-mini",
    "anthropic:claude-haiku-4-5",
    "google:gemini-2.5-flash",
]
SCHEMA = {
    "title": "point",
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def model_at(server: MockLLM, name: str, **options) -> ChatModel:
    base_url = server.url if name.startswith(("anthropic", "google")) else server.base_url
    return get_model(name, base_url=base_url, **options)


@pytest.mark.parametrize("name", NAMES)
async def test_a_conversation_with_tools(name):
    """R-A6 R-A4: messages, tools, temperature go out; text, tool calls and usage come back."""
    call = {"name": "find", "arguments": {"q": "x"}, "id": "call_1"}
    replies = [{"tool_calls": [call], "usage": {"input": 11, "output": 3}}, "found it"]
    with MockLLM(replies) as server:
        model = model_at(server, name)
        tools = (ToolSpec("find", "Finds.", {"type": "object", "properties": {"q": {}}}),)
        first = await model.complete(
            ChatRequest.of("find x", system="Be brief.", tools=tools, temperature=0.0)
        )
        assert first.tool_calls == (ToolCall(name="find", arguments={"q": "x"}, id="call_1"),)
        assert first.model == name.partition(":")[2]
        assert first.usage[:2] == (11, 3)
        assert first.finish_reason == "tool_call"
        messages = (
            Message("user", "find x"),
            Message("assistant", None, first.tool_calls),
            Message("tool", "x is here", tool_call_id="call_1"),
        )
        second = await model.complete(ChatRequest(messages=messages, tools=tools, seed=5))
        assert second.text == "found it"
        await model.aclose()
    asked = server.requests
    assert [m.role for m in asked[0].messages] == ["system", "user"]
    assert asked[0].tools == ("find",)
    body = asked[0].body
    assert body.get("generationConfig", body)["temperature"] == 0
    assert [m.role for m in asked[1].messages] == ["user", "assistant", "tool"]
    result = asked[1].messages[2].content
    assert result in ("x is here", '{"result": "x is here"}')  # Gemini wants an object


@pytest.mark.parametrize("name", NAMES)
async def test_images_and_files_go_out_as_bytes(name):
    """R-C7: each API gets an image and a file in its own form, from the bytes of the message."""
    picture, paper = (
        Attachment("image/png", b"\x89PNG"),
        Attachment("application/pdf", b"%PDF", "a"),
    )
    message = FileMessage("user", "What is this?", files=(picture, paper))
    with MockLLM(["a cat"]) as server:
        reply = await model_at(server, name).complete(ChatRequest(messages=(message,)))
    assert reply.text == "a cat"
    (asked,) = server.requests
    assert asked.messages[0].content == "What is this?"
    sent = str(asked.body)
    for file in (picture, paper):
        assert base64.b64encode(file.data).decode() in sent
        assert file.media_type in sent


@pytest.mark.parametrize("name", NAMES)
async def test_a_schema_is_enforced_or_told(name):
    """R-C7: structured output is asked for in whatever way the model takes it."""
    with MockLLM([{"json": {"x": 1}}]) as server:
        reply = await model_at(server, name).complete(ChatRequest.of("hi", schema=SCHEMA))
    assert reply.text == '{"x": 1}'
    assert '"x"' in str(server.requests[0].body).replace("'", '"')


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("reply", "kind", "transient", "status", "wait"),
    [
        ({"error": {"status": 429, "retry_after": 1.5}}, "rate_limited", True, 429, 1.5),
        ({"error": 500}, "server", True, 500, None),
        ({"error": 503}, "server", True, 503, None),
        ({"error": 401}, "auth", False, 401, None),
        ({"error": 400}, "refused", False, 400, None),
        ({"malformed": "cut"}, "connection", True, None, None),
        ({"malformed": "truncated", "text": "x"}, "connection", True, None, None),
        ({"malformed": "bad_json", "text": "x"}, "bad_reply", False, None, None),
        ({"malformed": "wrong_shape"}, "bad_reply", False, None, None),
        ({"text": "late", "latency": 3600}, "timeout", True, None, None),
    ],
)
async def test_failures_have_a_kind(name, reply, kind, transient, status, wait):
    """R-A6 R-C7: every failure is a ModelError saying whether it may go away; none is retried."""
    with MockLLM({"replies": [], "default": reply}) as server:
        timeout = 0.3 if "latency" in reply else 20
        with pytest.raises(ModelError) as caught:
            await model_at(server, name).complete(ChatRequest.of("hi", timeout=timeout))
    error = caught.value
    assert (error.kind, error.transient, error.status) == (kind, transient, status)
    assert error.retry_after == wait
    assert str(error).startswith(name)
    assert len(server.requests) == 1


def test_one_model_lives_through_several_event_loops():
    """R-C7: a model made once may be used by one `asyncio.run` after another."""
    with MockLLM({"replies": [], "default": "ok"}) as server:
        model = model_at(server, NAMES[0])
        replies = [asyncio.run(model.complete(ChatRequest.of("hi"))).text for _ in range(3)]
    assert replies == ["ok"] * 3


async def test_keys_come_from_the_named_variable_only(monkeypatch):
    """R-A6: a provider's standard key is not sent to another endpoint; a named one is."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-the-users-own")
    monkeypatch.setenv("HOUSE_KEY", "house")
    with MockLLM({"replies": [], "default": "ok"}) as server:
        await model_at(server, NAMES[0]).complete(ChatRequest.of("hi"))
        await model_at(server, NAMES[1]).complete(ChatRequest.of("hi"))
        await model_at(server, NAMES[0], api_key_env="HOUSE_KEY").complete(ChatRequest.of("hi"))
        sent = [asked.headers["authorization"] for asked in server.requests]
        assert not any("sk-the-users-own" in header for header in sent)
        assert sent[2] == "Bearer house"
        with pytest.raises(ModelError, match="NO_SUCH_KEY is not set") as caught:
            await model_at(server, NAMES[0], api_key_env="NO_SUCH_KEY").complete(
                ChatRequest.of("hi")
            )
    assert caught.value.kind == "auth"


async def test_a_missing_key_is_an_auth_error(monkeypatch):
    """R-A6: without a key nothing is sent, and the variable to set is named."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ModelError, match="OPENAI_API_KEY") as caught:
        await get_model("openai:gpt-4o-mini").complete(ChatRequest.of("hi"))
    assert (caught.value.kind, caught.value.transient) == ("auth", False)


async def test_cost_is_unknown_unless_a_price_is_known():
    """R-A4: someone else's endpoint has no published price; a user's table gives it one."""
    usage = {"input": 1_000_000, "output": 500_000}
    own = PriceTable({"gpt-4o-mini": {"input": 2.0, "output": 4.0}})
    with MockLLM({"replies": [], "default": {"text": "x", "usage": usage}}) as server:
        unknown = await model_at(server, NAMES[0]).complete(ChatRequest.of("hi"))
        known = await model_at(server, NAMES[0], prices=own).complete(ChatRequest.of("hi"))
    assert unknown.cost_usd is None
    assert known.cost_usd == pytest.approx(4.0)


async def test_usage_that_was_not_reported_is_unknown():
    """R-A4: a reply without usage has None tokens and None cost, not 0."""
    with MockLLM([{"text": "x", "usage": False}]) as server:
        reply = await model_at(server, NAMES[0]).complete(ChatRequest.of("hi"))
    assert reply.usage == (None, None, None, None)
    assert reply.cost_usd is None


@pytest.mark.parametrize("name", ["gpt-4o", ":x", "openai:", ""])
def test_a_name_that_is_none_is_refused(name):
    """R-C7: the way to write a model's name is in the hint."""
    with pytest.raises(ProctorError, match="is not a model name") as caught:
        get_model(name)
    assert "openai:gpt-4o-mini" in caught.value.hint


def test_an_absent_extra_is_one_line_with_the_pip_command():
    """R-C7: without litellm the message says what to install; others need no client library."""
    program = """
import asyncio, sys
sys.modules.update(dict.fromkeys(("litellm", "openai", "anthropic", "pydantic_ai")))
from proctor.llm import ChatRequest, MockLLM, get_model
from proctor.errors import ProctorError
with MockLLM(["hello"]) as server:
    model = get_model("openai:x", base_url=server.base_url)
    print(asyncio.run(model.complete(ChatRequest.of("hi"))).text)
try:
    asyncio.run(get_model("litellm/openai/x").complete(ChatRequest.of("hi")))
except ProctorError as error:
    print(error, "|", error.hint)
"""
    done = run_python(program)
    first, second = done.stdout.splitlines()
    assert first == "hello"
    assert 'pip install "proctor[litellm]"' in second
    assert done.stderr == ""


async def test_an_unknown_provider_has_another_way():
    """R-C7: a provider without an adapter is named, with the name for litellm."""
    with pytest.raises(ProctorError, match="no provider 'bedrock' is known") as caught:
        await get_model("bedrock:nova").complete(ChatRequest.of("hi"))
    assert "litellm/bedrock/nova" in caught.value.hint


def test_nothing_heavy_is_imported_before_the_first_call():
    """R-C7: importing the room and naming a model loads no client library."""
    program = """
import sys
from proctor.llm import get_model, ChatRequest
get_model("openai:gpt-4o-mini"); get_model("litellm/openai/x")
heavy = {"pydantic_ai", "openai", "anthropic", "litellm", "genai_prices", "httpx", "numpy"}
print(sorted(heavy & set(sys.modules)))
"""
    done = run_python(program)
    assert done.stdout == "[]\n"


def test_the_extra_needs_no_client_library(root):
    """R-A6: `proctor[llm]` brings nothing that an agent framework could be at odds with."""
    import tomllib

    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    core = {re.split(r"[><=\[]", line)[0] for line in project["dependencies"]}
    extra = {re.split(r"[><=\[]", line)[0] for line in project["optional-dependencies"]["llm"]}
    assert extra <= core
    assert not core & {"openai", "anthropic", "pydantic-ai-slim", "litellm", "google-genai"}

"""Model calls read from the bytes between a client and a model."""

import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.llm import MockLLM
from proctor.llm.protocols import model_protocol, provider_of, read_model_call
from proctor.trace.model import SpanStatus

CALLS = [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "clock", "arguments": {}}]
SCRIPT = [
    {
        "when": "weather",
        "text": "Let me look.",
        "tool_calls": CALLS,
        "usage": {"input": 30, "output": 7},
    },
    {"when": "hello", "text": "Grüß dich, 世界!", "usage": {"input": 5, "output": 3}},
]
TOOL = {"type": "object", "properties": {}}


def chat(question: str, stream: bool) -> tuple[str, dict]:
    body = {
        "model": "m-1",
        "messages": [{"role": "system", "content": "Be brief."}, user(question)],
    }
    return "/v1/chat/completions", {
        **body,
        "stream": stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
    }


def responses(question: str, stream: bool) -> tuple[str, dict]:
    body = {"model": "m-1", "instructions": "Be brief.", "input": question, "stream": stream}
    return "/v1/responses", body


def anthropic(question: str, stream: bool) -> tuple[str, dict]:
    body = {"model": "m-1", "max_tokens": 99, "system": "Be brief.", "messages": [user(question)]}
    return "/v1/messages", {**body, "stream": stream}


def user(text: str) -> dict:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("request_of", [chat, responses, anthropic])
def test_a_call_is_read_from_its_bytes(request_of, stream):
    """R-N1, R-N2: model, messages, tool calls and tokens of a call, whole or streamed."""
    with MockLLM(SCRIPT) as server:
        path, body = request_of("what is the weather?", stream)
        url = server.url + path
        answer = httpx.post(url, json=body)
    protocol = model_protocol("POST", url)
    assert protocol is not None
    span = read_model_call(
        protocol,
        url,
        json.dumps(body).encode(),
        answer.content,
        answer.headers["content-type"],
    )
    assert span.model == "m-1"
    assert span.status is SpanStatus.OK
    assert [(m.role, m.content) for m in span.input_messages] == [
        ("system", "Be brief."),
        ("user", "what is the weather?"),
    ]
    calls = [c for m in span.output_messages for c in m.tool_calls]
    assert [(c.name, c.arguments) for c in calls] == [("weather", {"city": "Paris"}), ("clock", {})]
    assert all(c.id for c in calls)
    assert "Let me look." in [m.content for m in span.output_messages]
    assert (span.input_tokens, span.output_tokens) == (30, 7)
    assert span.attributes["gen_ai.response.finish_reasons"]


GEMINI = "https://generativelanguage.googleapis.com/v1beta/models/gemini-2.5-flash"


def gemini_chunk(parts: list[dict], **more) -> dict:
    return {
        "candidates": [{"content": {"role": "model", "parts": parts}, "index": 0, **more}],
        "modelVersion": "gemini-2.5-flash",
        "usageMetadata": {
            "promptTokenCount": 40,
            "cachedContentTokenCount": 10,
            "candidatesTokenCount": 6,
            "thoughtsTokenCount": 4,
        },
    }


def test_gemini_streams_are_put_together():
    """R-N2: a stream of Gemini has text in pieces, whole calls, and thoughts counted apart."""
    chunks = [
        gemini_chunk([{"text": "Let me "}]),
        gemini_chunk([{"text": "look."}]),
        gemini_chunk(
            [{"functionCall": {"name": "weather", "args": {"city": "Paris"}}}], finishReason="STOP"
        ),
    ]
    asked = {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [{"role": "user", "parts": [{"text": "what is the weather?"}]}],
    }
    url = f"{GEMINI}:streamGenerateContent?alt=sse"
    assert model_protocol("POST", url) == "gemini"
    stream = b"".join(b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n" for chunk in chunks)
    as_array = json.dumps(chunks).encode()
    for body, kind in ((stream, "text/event-stream"), (as_array, "application/json")):
        span = read_model_call("gemini", url, json.dumps(asked).encode(), body, kind)
        assert span.model == "gemini-2.5-flash"
        assert [(m.role, m.content) for m in span.input_messages] == [
            ("system", "Be brief."),
            ("user", "what is the weather?"),
        ]
        (said,) = span.output_messages
        assert said.content == "Let me look."
        assert [(c.name, c.arguments) for c in said.tool_calls] == [("weather", {"city": "Paris"})]
        assert (span.input_tokens, span.output_tokens) == (40, 10)
        assert span.attributes["gen_ai.usage.cache_read.input_tokens"] == 10
        assert span.attributes["gen_ai.provider.name"] == "gcp.gemini"


PIECES = [{"type": "text", "text": "The price "}, {"type": "text", "text": "is 5."}]


@pytest.mark.parametrize(
    ("protocol", "body"),
    [
        ("anthropic", {"content": [{"type": "thinking", "thinking": "5?"}, *PIECES]}),
        ("responses", {"output": [{"type": "message", "role": "assistant", "content": PIECES}]}),
        (
            "gemini",
            gemini_chunk(
                [{"text": "5?", "thought": True}, {"text": "The price "}, {"text": "is 5."}]
            ),
        ),
        ("openai", {"choices": [{"message": {"content": None, "refusal": "The price is 5."}}]}),
    ],
)
def test_the_text_of_a_reply_is_what_the_model_said(protocol, body):
    """R-N2: pieces of a text are one text, a refusal is one, and thoughts are not part of it."""
    span = read_model_call(protocol, "http://x", b"{}", json.dumps(body).encode())
    assert [message.content for message in span.output_messages] == ["The price is 5."]


def test_cached_tokens_are_part_of_the_input():
    """R-N2, R-A4: Anthropic reports cached tokens apart, OpenAI as a part; both are normalised."""
    usage = {"input_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 5}
    body = {"model": "m", "content": [], "usage": {**usage, "output_tokens": 1}}
    span = read_model_call("anthropic", "http://x/v1/messages", b"{}", json.dumps(body).encode())
    assert span.input_tokens == 100
    assert span.attributes["gen_ai.usage.cache_creation.input_tokens"] == 5
    details = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 90}}
    body = {"model": "m", "choices": [], "usage": {**details, "completion_tokens": 1}}
    span = read_model_call("openai", "http://x", b"{}", json.dumps(body).encode())
    assert span.input_tokens == 100
    assert span.attributes["gen_ai.usage.cache_read.input_tokens"] == 90


def test_errors_of_a_server_are_errors_of_the_call():
    """R-N1: a refused call is a failed span with the server's message."""
    body = {"error": {"type": "rate_limit_error", "message": "slow down"}}
    span = read_model_call("openai", "http://x", b"{}", json.dumps(body).encode(), status=429)
    assert span.status is SpanStatus.ERROR
    assert (span.error_type, span.error_message) == ("rate_limit_error", "slow down")


@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("GET", "https://api.openai.com/v1/chat/completions"),
        ("POST", "https://api.openai.com/v1/embeddings"),
        ("POST", "https://example.org/api/messages"),
        ("POST", "https://example.org/models/list"),
    ],
)
def test_other_requests_are_not_model_calls(method, url):
    """R-N1: only requests to a model are read."""
    assert model_protocol(method, url) is None


def test_providers_are_named_by_their_host():
    """R-A4: a price is looked up at the provider that was called, if its host tells."""
    assert provider_of("https://api.openai.com/v1/responses") == "openai"
    assert provider_of("https://x.openai.azure.com/openai/deployments/a") == "azure.ai.openai"
    assert provider_of("http://127.0.0.1:8080/v1/messages") is None


@given(st.binary(max_size=300), st.binary(max_size=300), st.sampled_from(["", "text/event-stream"]))
def test_no_bytes_can_break_the_reader(request_body, response_body, kind):
    """R-N1: whatever the bytes are, there is a span."""
    for protocol in ("openai", "responses", "anthropic", "gemini", "bedrock", "ollama"):
        read_model_call(protocol, "http://x/model/a/converse", request_body, response_body, kind)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "choices delta message content tool_calls function index type usage output error"
                " candidates parts item response content_block".split()
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    st.lists(JSON, max_size=4),
    st.sampled_from(["openai", "responses", "anthropic", "gemini", "bedrock", "ollama"]),
)
def test_no_events_can_break_the_reader(events, protocol):
    """R-N1: a stream of any documents gives a span."""
    stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    read_model_call(protocol, "http://x", stream, stream, "text/event-stream")

"""The mock model, asked by the client libraries that agents really use."""

import json

import anthropic
import httpx2
import openai
import pytest

from proctor.llm import MockLLM

WEATHER = {"name": "weather", "arguments": {"city": "Paris"}}
CALL_THEN_ANSWER = [
    {"when": {"tool_result": "18 degrees"}, "text": "It is 18 degrees in Paris."},
    {"when": "weather", "tool_calls": [WEATHER], "usage": {"input": 30, "output": 7}},
]
CHAT_TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
]


def openai_client(server: MockLLM, **options) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url, api_key="mock", max_retries=0, **options)


def anthropic_client(server: MockLLM, **options) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="mock", max_retries=0, **options)


def user(text: str) -> dict:
    return {"role": "user", "content": text}


# -- whole replies --------------------------------------------------------------------------


def test_chat_runs_a_tool_and_answers_from_its_result():
    """R-A6: OpenAI chat completions with tool calls and usage; the script sees tool results."""
    with MockLLM(CALL_THEN_ANSWER) as server:
        client = openai_client(server)
        conversation = [user("what is the weather?")]
        first = client.chat.completions.create(model="m-1", messages=conversation, tools=CHAT_TOOLS)
        call = first.choices[0].message.tool_calls[0]
        assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Paris"}')
        assert first.choices[0].finish_reason == "tool_calls"
        assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (30, 7)
        conversation += [
            first.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"},
        ]
        second = client.chat.completions.create(model="m-1", messages=conversation)
    assert second.choices[0].message.content == "It is 18 degrees in Paris."
    asked = server.requests
    assert [a.reply for a in asked] == [1, 0]
    assert asked[0].tools == ("weather",)
    assert [m.role for m in asked[1].messages] == ["user", "assistant", "tool"]
    assert asked[1].messages[1].tool_calls[0].arguments == {"city": "Paris"}


def test_responses_run_a_tool_and_answer_from_its_result():
    """R-A6: OpenAI responses with tool calls and usage."""
    with MockLLM(CALL_THEN_ANSWER) as server:
        client = openai_client(server)
        first = client.responses.create(
            model="m-1", instructions="Be brief.", input="what is the weather?"
        )
        call = first.output[0]
        assert (call.type, call.name, call.arguments) == (
            "function_call",
            "weather",
            '{"city": "Paris"}',
        )
        assert (first.usage.input_tokens, first.usage.output_tokens) == (30, 7)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
        second = client.responses.create(
            model="m-1", input=[user("what is the weather?"), call.model_dump(), result]
        )
    assert second.output_text == "It is 18 degrees in Paris."
    assert second.status == "completed"
    assert server.requests[0].messages[0].role == "system"
    assert [m.role for m in server.requests[1].messages] == ["user", "assistant", "tool"]


def test_anthropic_runs_a_tool_and_answers_from_its_result():
    """R-A6: Anthropic messages with tool calls and usage."""
    with MockLLM(CALL_THEN_ANSWER) as server:
        client = anthropic_client(server)
        conversation = [user("what is the weather?")]
        first = client.messages.create(model="c-1", max_tokens=99, messages=conversation)
        use = first.content[0]
        assert (use.type, use.name, use.input) == ("tool_use", "weather", {"city": "Paris"})
        assert first.stop_reason == "tool_use"
        assert (first.usage.input_tokens, first.usage.output_tokens) == (30, 7)
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "18 degrees"}
        conversation += [
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        second = client.messages.create(
            model="c-1", max_tokens=99, system="Be brief.", messages=conversation
        )
    assert second.content[0].text == "It is 18 degrees in Paris."
    assert second.stop_reason == "end_turn"
    assert [m.role for m in server.requests[1].messages] == ["system", "user", "assistant", "tool"]


# -- streams --------------------------------------------------------------------------------

TEXT = "  One, two,\nthree… and 四 🙂 "


def test_chat_streams_text_word_by_word_with_usage():
    """R-A6: OpenAI chat streaming; the pieces joined are the text, exactly."""
    with MockLLM([{"text": TEXT, "usage": {"input": 3, "output": 5}}]) as server:
        stream = openai_client(server).chat.completions.create(
            model="m", messages=[user("hi")], stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
    pieces = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(pieces) == TEXT
    assert len([piece for piece in pieces if piece]) > 4
    assert chunks[-1].usage.total_tokens == 8
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"


def test_chat_streams_tool_calls():
    """R-A6: OpenAI chat streaming of two tool calls, assembled by the client's own helper."""
    calls = [WEATHER, {"name": "clock", "arguments": {"zone": "CET"}, "id": "call_mine"}]
    with (
        MockLLM([{"text": "Let me see.", "tool_calls": calls}]) as server,
        openai_client(server).chat.completions.stream(model="m", messages=[user("hi")]) as stream,
    ):
        message = stream.get_final_completion().choices[0].message
    assert message.content == "Let me see."
    assert [(c.function.name, c.function.arguments) for c in message.tool_calls] == [
        ("weather", '{"city": "Paris"}'),
        ("clock", '{"zone": "CET"}'),
    ]
    assert message.tool_calls[1].id == "call_mine"


def test_responses_stream_text_and_tool_calls():
    """R-A6: OpenAI responses streaming, assembled by the client's own helper."""
    with (
        MockLLM([{"text": TEXT, "tool_calls": [WEATHER]}]) as server,
        openai_client(server).responses.stream(model="m", input="hi") as stream,
    ):
        deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == TEXT
    assert final.output[1].arguments == '{"city": "Paris"}'


def test_anthropic_streams_text_and_tool_calls():
    """R-A6: Anthropic streaming, assembled by the client's own helper."""
    calls = [WEATHER, {"name": "weather", "arguments": {"city": "Rome"}}]
    reply = {"text": TEXT, "tool_calls": calls, "usage": {"input": 3, "output": 5}}
    with (
        MockLLM([reply]) as server,
        anthropic_client(server).messages.stream(
            model="c", max_tokens=9, messages=[user("hi")]
        ) as stream,
    ):
        assert "".join(stream.text_stream) == TEXT
        final = stream.get_final_message()
    assert [block.input for block in final.content[1:]] == [{"city": "Paris"}, {"city": "Rome"}]
    assert (final.usage.input_tokens, final.usage.output_tokens) == (3, 5)
    assert final.stop_reason == "tool_use"


# -- things that go wrong -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"), [(429, "RateLimitError"), (500, "InternalServerError")]
)
def test_errors_arrive_as_each_library_knows_them(status, kind):
    """R-A6: 429 with Retry-After and 500, in the error format of each provider."""
    error = {"status": status, "message": "slow down", "retry_after": 7}
    script = {"replies": [], "default": {"error": error}}
    with MockLLM(script) as server:
        for library, ask in (
            (openai, lambda: _chat(server)),
            (openai, lambda: openai_client(server).responses.create(model="m", input="hi")),
            (anthropic, lambda: _messages(server)),
        ):
            with pytest.raises(getattr(library, kind), match="slow down") as caught:
                ask()
            assert caught.value.response.headers["retry-after"] == "7"


def test_a_client_that_retries_gets_through():
    """R-A6: a scripted 429 goes away, so that retrying agents can be tested."""
    with MockLLM([{"error": {"status": 429, "retry_after": 0.001}, "times": 2}, "done"]) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="mock", max_retries=2)
        reply = client.chat.completions.create(model="m", messages=[user("hi")])
    assert reply.choices[0].message.content == "done"
    assert len(server.requests) == 3


@pytest.mark.parametrize("how", ["truncated", "cut"])
def test_a_broken_connection_is_one(how):
    """R-A6: a cut connection and a truncated body are connection errors to the client."""
    with MockLLM({"replies": [], "default": {"text": "hello " * 50, "malformed": how}}) as server:
        with pytest.raises(openai.APIConnectionError):
            _chat(server)
        with pytest.raises(anthropic.APIConnectionError):
            _messages(server)


def test_bad_json_cannot_be_decoded():
    """R-A6: a malformed body reaches the client as it is."""
    with (
        MockLLM([{"text": "hello", "malformed": "bad_json"}]) as server,
        pytest.raises(ValueError, match=r"(?i)json|delimiter|unterminated|expecting"),
    ):
        _chat(server)


@pytest.mark.parametrize("how", ["truncated", "bad_json"])
def test_a_stream_can_break_half_way(how):
    """R-A6: malformed streams; what came before the break was received."""
    received = []
    with MockLLM([{"text": "one two three four five six", "malformed": how}]) as server:
        stream = openai_client(server).chat.completions.create(
            model="m", messages=[user("hi")], stream=True
        )
        # A decoder's error, or the transport's, which each client library takes elsewhere.
        broken = (ValueError, openai.APIError, httpx2.HTTPError)
        with pytest.raises(broken):  # noqa: PT012  the loop is what breaks
            for chunk in stream:
                received += [chunk.choices[0].delta.content]
    assert "one" in received


def test_latency_makes_a_client_time_out():
    """R-A6: latency on demand; leaving the block does not wait for it."""
    with (
        MockLLM([{"text": "late", "latency": 3600}]) as server,
        pytest.raises(openai.APITimeoutError),
    ):
        openai_client(server, timeout=0.2).chat.completions.create(model="m", messages=[user("hi")])


def _chat(server: MockLLM):
    return openai_client(server).chat.completions.create(model="m", messages=[user("hi")])


def _messages(server: MockLLM):
    return anthropic_client(server).messages.create(model="c", max_tokens=9, messages=[user("hi")])


# -- Gemini, and responses that continue others -----------------------------------------------


def test_gemini_runs_a_tool_and_answers_from_its_result():
    """R-A6: generateContent and its stream, with tools, usage, errors and token counts."""
    with MockLLM([*CALL_THEN_ANSWER, {"error": 429, "times": None}]) as server:
        url = f"{server.url}/v1beta/models/gemini-2.5-flash:"
        asked = {"role": "user", "parts": [{"text": "what is the weather?"}]}
        body = {
            "systemInstruction": {"parts": [{"text": "Be brief."}]},
            "contents": [asked],
            "tools": [{"functionDeclarations": [{"name": "weather"}]}],
        }
        first = httpx2.post(url + "generateContent", json=body).json()
        said = first["candidates"][0]["content"]
        call = said["parts"][0]["functionCall"]
        assert (call["name"], call["args"]) == ("weather", {"city": "Paris"})
        assert first["usageMetadata"]["promptTokenCount"] == 30
        result = {"id": call["id"], "name": "weather", "response": {"result": "18 degrees"}}
        body["contents"] += [said, {"role": "user", "parts": [{"functionResponse": result}]}]
        stream = httpx2.post(url + "streamGenerateContent?alt=sse", json=body).text
        pieces = [json.loads(line[6:]) for line in stream.splitlines() if line]
        texts = [piece["candidates"][0]["content"]["parts"][0]["text"] for piece in pieces]
        assert "".join(texts) == "It is 18 degrees in Paris."
        assert len(texts) > 3
        assert pieces[-1]["candidates"][0]["finishReason"] == "STOP"
        failed = httpx2.post(url + "generateContent", json=body)
        assert (failed.status_code, failed.json()["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")
        counted = httpx2.post(url + "countTokens", json=body).json()
        assert counted["totalTokens"] > 0
    first, second, _ = server.requests
    assert (first.protocol, first.model, first.tools) == (
        "gemini",
        "gemini-2.5-flash",
        ("weather",),
    )
    assert [m.role for m in second.messages] == ["system", "user", "assistant", "tool"]
    assert second.messages[2].tool_calls[0].arguments == {"city": "Paris"}
    assert second.messages[3].tool_call_id == call["id"]
    assert (first.stream, second.stream) == (False, True)


def test_a_response_continues_another():
    """R-A6: `previous_response_id` brings back the conversation, without its instructions."""
    with MockLLM(CALL_THEN_ANSWER) as server:
        client = openai_client(server)
        first = client.responses.create(
            model="m", instructions="Be brief.", input="what is the weather?"
        )
        output = {"type": "function_call_output", "call_id": first.output[0].call_id}
        second = client.responses.create(
            model="m", previous_response_id=first.id, input=[{**output, "output": "18 degrees"}]
        )
        assert second.output_text == "It is 18 degrees in Paris."
        with pytest.raises(openai.BadRequestError, match="'resp_none' not found"):
            client.responses.create(model="m", previous_response_id="resp_none", input="hi")
        _, asked, _ = server.requests
    assert [m.role for m in asked.messages] == ["user", "assistant", "tool"]
    assert asked.messages[1].tool_calls[0].id == first.output[0].call_id


# -- the rest -------------------------------------------------------------------------------


def test_embeddings_and_models():
    """R-A6: embeddings depend on the text alone; the list of models answers."""
    with MockLLM([]) as server:
        client = openai_client(server)
        same = client.embeddings.create(model="e", input=["a", "a", "b"]).data
        plain = client.embeddings.create(model="e", input="a", encoding_format="float").data
        assert same[0].embedding == same[1].embedding != same[2].embedding
        assert plain[0].embedding == pytest.approx(same[0].embedding, rel=1e-6)
        assert sum(x * x for x in plain[0].embedding) == pytest.approx(1)
        assert [model.id for model in client.models.list()] == ["mock"]
        assert (
            anthropic_client(server)
            .messages.count_tokens(model="c", messages=[user("12345678")])
            .input_tokens
            == 2
        )


def test_equal_runs_are_equal_byte_for_byte():
    """R-A6: ids and times do not come from the clock."""
    import httpx

    def bodies() -> list[bytes]:
        with MockLLM(["a", {"tool_calls": [WEATHER]}]) as server:
            url, ask = f"{server.base_url}/chat/completions", {"model": "m", "messages": []}
            return [httpx.post(url, json=ask).content for _ in range(2)]

    assert bodies() == bodies()

"""OpenAI chat completions protocol of the mock model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from proctor.llm.mock import _shared
from proctor.llm.mock._script import Failure, Reply
from proctor.llm.mock._shared import Exchange, ServerSentEvent
from proctor.trace import Message

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ChatCompletions:
    """`POST /v1/chat/completions`."""

    name = "openai-chat"

    def messages(self, body: Mapping[str, Any]) -> list[Message]:
        """Parse the conversation of a request."""
        return [_message(item) for item in _shared.mappings(body.get("messages"))]

    def whole(self, exchange: Exchange) -> dict[str, Any]:
        """Return the reply as one JSON document."""
        reply = exchange.reply
        message: dict[str, Any] = {
            "role": "assistant",
            "content": reply.text if reply.text or not reply.tool_calls else None,
            "refusal": None,
        }
        if reply.tool_calls:
            message["tool_calls"] = _calls(exchange)
        document = _head("chat.completion", exchange)
        document["choices"] = [
            {"index": 0, "message": message, "finish_reason": _finish(reply), "logprobs": None}
        ]
        if (usage := _usage(exchange)) is not None:
            document["usage"] = usage
        return document

    def events(self, exchange: Exchange) -> Iterator[ServerSentEvent]:
        """Return the reply as a stream of chunks."""
        reply = exchange.reply
        head = _head("chat.completion.chunk", exchange)

        def chunk(delta: dict[str, Any], finish: str | None = None) -> ServerSentEvent:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return ServerSentEvent({**head, "choices": [choice]})

        yield chunk({"role": "assistant", "content": "" if not reply.tool_calls else None})
        for piece in _shared.pieces(reply.text):
            yield chunk({"content": piece})
        for index, call in enumerate(_calls(exchange)):
            function = call["function"]
            opening = {"index": index, **call, "function": {**function, "arguments": ""}}
            yield chunk({"tool_calls": [opening]})
            for piece in _shared.pieces(function["arguments"]):
                part = {"index": index, "function": {"arguments": piece}}
                yield chunk({"tool_calls": [part]})
        yield chunk({}, _finish(reply))
        options = exchange.request.body.get("stream_options")
        usage = _usage(exchange)
        if usage is not None and isinstance(options, Mapping) and options.get("include_usage"):  # pyright: ignore[reportUnknownMemberType]
            yield ServerSentEvent({**head, "choices": [], "usage": usage})
        yield ServerSentEvent(None)

    def error(self, failure: Failure) -> dict[str, Any]:
        """Return an error document of OpenAI."""
        return openai_error(failure)


def openai_error(failure: Failure) -> dict[str, Any]:
    """Return the error document of both OpenAI protocols."""
    kind = _ERROR_TYPES.get(failure.status, "server_error")
    code = "rate_limit_exceeded" if failure.status == 429 else None
    return {
        "error": {"message": failure.message, "type": kind, "param": None, "code": code},
    }


def _head(kind: str, exchange: Exchange) -> dict[str, Any]:
    return {
        "id": exchange.id("chatcmpl"),
        "object": kind,
        "created": _shared.CREATED,
        "model": exchange.model,
    }


def _calls(exchange: Exchange) -> list[dict[str, Any]]:
    return [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": _shared.arguments_text(call.arguments)},
        }
        for call_id, call in exchange.calls("call")
    ]


def _finish(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")


def _usage(exchange: Exchange) -> dict[str, Any] | None:
    counts = exchange.usage
    return counts and {
        "prompt_tokens": counts[0],
        "completion_tokens": counts[1],
        "total_tokens": sum(counts),
    }


def _message(item: Mapping[str, Any]) -> Message:
    calls = [
        {**call.get("function", {}), "id": call.get("id")}
        for call in _shared.mappings(item.get("tool_calls"))
    ]
    return Message(
        role=str(item.get("role", "user")),
        content=_shared.text_of(item.get("content")),
        tool_calls=tuple(
            _shared.tool_call(call.get("name"), call.get("arguments"), call["id"]) for call in calls
        ),
        tool_call_id=item.get("tool_call_id"),
        name=item.get("name"),
    )

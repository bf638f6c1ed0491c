"""OpenAI chat completions protocol of the mock model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from proctor.llm.chat_model import parsed_arguments
from proctor.llm.mock import _shared
from proctor.llm.mock._script import Failure, Reply, ScriptRequest
from proctor.llm.mock._shared import ServerSentEvent
from proctor.trace import Message, ToolCall

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

    def whole(self, request: ScriptRequest, reply: Reply, serial: int) -> dict[str, Any]:
        """Return the reply as one JSON document."""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": reply.text if reply.text or not reply.tool_calls else None,
            "refusal": None,
        }
        if reply.tool_calls:
            message["tool_calls"] = [
                _call(reply, index, serial) for index in range(len(reply.tool_calls))
            ]
        document = _head("chat.completion", request, reply, serial)
        document["choices"] = [
            {"index": 0, "message": message, "finish_reason": _finish(reply), "logprobs": None}
        ]
        if (usage := _usage(request, reply)) is not None:
            document["usage"] = usage
        return document

    def events(
        self, request: ScriptRequest, reply: Reply, serial: int
    ) -> Iterator[ServerSentEvent]:
        """Return the reply as a stream of chunks."""

        def chunk(delta: dict[str, Any], finish: str | None = None) -> ServerSentEvent:
            document = _head("chat.completion.chunk", request, reply, serial)
            document["choices"] = [{"index": 0, "delta": delta, "finish_reason": finish}]
            return ServerSentEvent(document)

        yield chunk({"role": "assistant", "content": "" if not reply.tool_calls else None})
        for piece in _shared.pieces(reply.text):
            yield chunk({"content": piece})
        for index, call in enumerate(reply.tool_calls):
            first = _call(reply, index, serial)
            first["function"] = {"name": call.name, "arguments": ""}
            yield chunk({"tool_calls": [{"index": index, **first}]})
            for piece in _shared.pieces(_shared.arguments_text(call.arguments)):
                part = {"index": index, "function": {"arguments": piece}}
                yield chunk({"tool_calls": [part]})
        yield chunk({}, _finish(reply))
        options = request.body.get("stream_options")
        usage = _usage(request, reply)
        if usage is not None and isinstance(options, Mapping) and options.get("include_usage"):  # pyright: ignore[reportUnknownMemberType]
            document = _head("chat.completion.chunk", request, reply, serial)
            yield ServerSentEvent({**document, "choices": [], "usage": usage})
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


def _head(kind: str, request: ScriptRequest, reply: Reply, serial: int) -> dict[str, Any]:
    return {
        "id": _shared.reply_id("chatcmpl", serial),
        "object": kind,
        "created": _shared.CREATED,
        "model": reply.model or request.model,
    }


def _call(reply: Reply, index: int, serial: int) -> dict[str, Any]:
    call = reply.tool_calls[index]
    return {
        "id": _shared.call_id(reply, index, serial, "call"),
        "type": "function",
        "function": {"name": call.name, "arguments": _shared.arguments_text(call.arguments)},
    }


def _finish(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")


def _usage(request: ScriptRequest, reply: Reply) -> dict[str, Any] | None:
    counts = _shared.usage_of(request, reply)
    if counts is None:
        return None
    return {
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
            ToolCall(
                name=str(call.get("name", "")),
                arguments=parsed_arguments(call.get("arguments")),
                id=call.get("id"),
            )
            for call in calls
        ),
        tool_call_id=item.get("tool_call_id"),
        name=item.get("name"),
    )

"""OpenAI's protocols of the mock model: chat completions and responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from proctor.llm.mock import _shared
from proctor.llm.mock._script import Failure, Reply
from proctor.llm.mock._shared import Exchange, ServerSentEvent

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


_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Responses:
    """`POST /v1/responses`."""

    name = "openai-responses"

    def whole(self, exchange: Exchange) -> dict[str, Any]:
        """Return the reply as one JSON document."""
        reply, counts = exchange.reply, exchange.usage
        output: list[dict[str, Any]] = []
        if reply.text or not reply.tool_calls:
            text = {"type": "output_text", "text": reply.text}
            output.append(
                {
                    "id": exchange.id("msg"),
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{**text, "annotations": [], "logprobs": []}],
                }
            )
        output += [
            {
                "id": f"{exchange.id('fc')}_{index}",
                "type": "function_call",
                "call_id": call_id,
                "name": call.name,
                "arguments": _shared.arguments_text(call.arguments),
                "status": "completed",
            }
            for index, (call_id, call) in enumerate(exchange.calls("call"))
        ]
        reason = _INCOMPLETE.get(reply.finish_reason or "")
        return _document(
            exchange,
            status="incomplete" if reason else "completed",
            incomplete_details={"reason": reason} if reason else None,
            output=output,
            usage=counts
            and {
                "input_tokens": counts[0],
                "output_tokens": counts[1],
                "total_tokens": sum(counts),
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            },
        )

    def events(self, exchange: Exchange) -> Iterator[ServerSentEvent]:
        """Return the reply as a stream of numbered events."""
        done = self.whole(exchange)
        initial = _document(exchange, status="in_progress", output=[], usage=None)
        final = "response.incomplete" if done["status"] == "incomplete" else "response.completed"
        steps: list[tuple[str, dict[str, Any]]] = [
            ("response.created", {"response": initial}),
            ("response.in_progress", {"response": initial}),
        ]
        for index, item in enumerate(done["output"]):
            steps += _item_steps(index, item)
        steps.append((final, {"response": done}))
        for number, (name, data) in enumerate(steps):
            yield ServerSentEvent({"type": name, "sequence_number": number, **data}, name)

    def error(self, failure: Failure) -> dict[str, Any]:
        """Return an error document of OpenAI."""
        return openai_error(failure)


def _item_steps(index: int, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    place = {"output_index": index, "item_id": item["id"]}
    is_text = item["type"] == "message"
    opened: dict[str, Any] = {**item, "status": "in_progress"}
    opened |= {"content": []} if is_text else {"arguments": ""}
    yield "response.output_item.added", {"output_index": index, "item": opened}
    if is_text:
        part: dict[str, Any] = item["content"][0]
        at = {**place, "content_index": 0}
        yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
        for piece in _shared.pieces(part["text"]):
            yield "response.output_text.delta", {**at, "delta": piece, "logprobs": []}
        yield "response.output_text.done", {**at, "text": part["text"], "logprobs": []}
        yield "response.content_part.done", {**at, "part": part}
    else:
        for piece in _shared.pieces(item["arguments"]):
            yield "response.function_call_arguments.delta", {**place, "delta": piece}
        done = {**place, "name": item["name"], "arguments": item["arguments"]}
        yield "response.function_call_arguments.done", done
    yield "response.output_item.done", {"output_index": index, "item": item}


def _document(exchange: Exchange, **rest: Any) -> dict[str, Any]:
    body = exchange.request.body
    return {
        "id": exchange.id("resp"),
        "object": "response",
        "created_at": _shared.CREATED,
        "model": exchange.model,
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": body.get("temperature"),
        "top_p": body.get("top_p"),
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools", []),
        "text": body.get("text", {"format": {"type": "text"}}),
        **rest,
    }

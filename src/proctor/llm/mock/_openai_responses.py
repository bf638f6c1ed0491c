"""OpenAI responses protocol of the mock model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from proctor.llm.chat_model import parsed_arguments
from proctor.llm.mock import _shared
from proctor.llm.mock._openai_chat import openai_error
from proctor.llm.mock._script import Failure, Reply, ScriptRequest
from proctor.llm.mock._shared import ServerSentEvent
from proctor.trace import Message, ToolCall

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Responses:
    """`POST /v1/responses`."""

    name = "openai-responses"

    def messages(self, body: Mapping[str, Any]) -> list[Message]:
        """Parse the conversation of a request."""
        messages: list[Message] = []
        if isinstance(instructions := body.get("instructions"), str):
            messages.append(Message("system", instructions))
        items = body.get("input")
        if isinstance(items, str):
            messages.append(Message("user", items))
        messages += [_message(item) for item in _shared.mappings(items)]
        return messages

    def whole(self, request: ScriptRequest, reply: Reply, serial: int) -> dict[str, Any]:
        """Return the reply as one JSON document."""
        output: list[dict[str, Any]] = []
        if reply.text or not reply.tool_calls:
            text: dict[str, Any] = {
                "type": "output_text",
                "text": reply.text,
                "annotations": [],
                "logprobs": [],
            }
            output.append(
                {
                    "id": _shared.reply_id("msg", serial),
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [text],
                }
            )
        output += [_call_item(reply, i, serial) for i in range(len(reply.tool_calls))]
        reason = _INCOMPLETE.get(reply.finish_reason or "")
        return _document(
            request,
            reply,
            serial,
            status="incomplete" if reason else "completed",
            incomplete_details={"reason": reason} if reason else None,
            output=output,
            usage=_usage(request, reply),
        )

    def events(
        self, request: ScriptRequest, reply: Reply, serial: int
    ) -> Iterator[ServerSentEvent]:
        """Return the reply as a stream of numbered events."""
        done = self.whole(request, reply, serial)
        initial = _document(request, reply, serial, status="in_progress", output=[], usage=None)
        final = "response.incomplete" if done["status"] == "incomplete" else "response.completed"
        steps: list[tuple[str, dict[str, Any]]] = [
            ("response.created", {"response": initial}),
            ("response.in_progress", {"response": initial}),
        ]
        for index, item in enumerate(done["output"]):
            stream = _text_steps if item["type"] == "message" else _call_steps
            steps += stream(item, {"output_index": index, "item_id": item["id"]})
        steps.append((final, {"response": done}))
        for number, (name, data) in enumerate(steps):
            yield ServerSentEvent({"type": name, "sequence_number": number, **data}, name)

    def error(self, failure: Failure) -> dict[str, Any]:
        """Return an error document of OpenAI."""
        return openai_error(failure)


def _text_steps(
    item: dict[str, Any], place: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    index = {"output_index": place["output_index"]}
    part: dict[str, Any] = item["content"][0]
    at = {**place, "content_index": 0}
    empty = {**part, "text": ""}
    opened: dict[str, Any] = {**item, "status": "in_progress", "content": []}
    yield "response.output_item.added", {**index, "item": opened}
    yield "response.content_part.added", {**at, "part": empty}
    for piece in _shared.pieces(part["text"]):
        yield "response.output_text.delta", {**at, "delta": piece, "logprobs": []}
    yield "response.output_text.done", {**at, "text": part["text"], "logprobs": []}
    yield "response.content_part.done", {**at, "part": part}
    yield "response.output_item.done", {**index, "item": item}


def _call_steps(
    item: dict[str, Any], place: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    index = {"output_index": place["output_index"]}
    opened = {**item, "status": "in_progress", "arguments": ""}
    yield "response.output_item.added", {**index, "item": opened}
    for piece in _shared.pieces(item["arguments"]):
        yield "response.function_call_arguments.delta", {**place, "delta": piece}
    done = {**place, "name": item["name"], "arguments": item["arguments"]}
    yield "response.function_call_arguments.done", done
    yield "response.output_item.done", {**index, "item": item}


def _document(request: ScriptRequest, reply: Reply, serial: int, **rest: Any) -> dict[str, Any]:
    return {
        "id": _shared.reply_id("resp", serial),
        "object": "response",
        "created_at": _shared.CREATED,
        "model": reply.model or request.model,
        "error": None,
        "incomplete_details": None,
        "instructions": request.body.get("instructions"),
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": request.body.get("temperature"),
        "top_p": request.body.get("top_p"),
        "tool_choice": request.body.get("tool_choice", "auto"),
        "tools": request.body.get("tools", []),
        "text": request.body.get("text", {"format": {"type": "text"}}),
        **rest,
    }


def _call_item(reply: Reply, index: int, serial: int) -> dict[str, Any]:
    call = reply.tool_calls[index]
    return {
        "id": f"{_shared.reply_id('fc', serial)}_{index}",
        "type": "function_call",
        "call_id": _shared.call_id(reply, index, serial, "call"),
        "name": call.name,
        "arguments": _shared.arguments_text(call.arguments),
        "status": "completed",
    }


def _usage(request: ScriptRequest, reply: Reply) -> dict[str, Any] | None:
    counts = _shared.usage_of(request, reply)
    if counts is None:
        return None
    return {
        "input_tokens": counts[0],
        "output_tokens": counts[1],
        "total_tokens": sum(counts),
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }


def _message(item: Mapping[str, Any]) -> Message:
    match item.get("type", "message"):
        case "function_call":
            call = ToolCall(
                name=str(item.get("name", "")),
                arguments=parsed_arguments(item.get("arguments")),
                id=item.get("call_id"),
            )
            return Message("assistant", None, (call,))
        case "function_call_output":
            output = _shared.text_of(item.get("output"))
            return Message("tool", output, tool_call_id=item.get("call_id"))
        case _:
            return Message(str(item.get("role", "user")), _shared.text_of(item.get("content")))

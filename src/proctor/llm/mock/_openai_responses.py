"""OpenAI responses protocol of the mock model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from proctor.llm.mock import _shared
from proctor.llm.mock._openai_chat import openai_error
from proctor.llm.mock._script import Failure
from proctor.llm.mock._shared import Exchange, ServerSentEvent
from proctor.trace import Message

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


def _message(item: Mapping[str, Any]) -> Message:
    match item.get("type", "message"):
        case "function_call":
            call = (item.get("name"), item.get("arguments"), item.get("call_id"))
            return Message("assistant", None, (_shared.tool_call(*call),))
        case "function_call_output":
            output = _shared.text_of(item.get("output"))
            return Message("tool", output, tool_call_id=item.get("call_id"))
        case _:
            return Message(str(item.get("role", "user")), _shared.text_of(item.get("content")))

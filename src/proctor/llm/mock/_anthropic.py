"""Anthropic messages protocol of the mock model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proctor.llm.mock import _shared
from proctor.llm.mock._script import Failure, Reply
from proctor.llm.mock._shared import Exchange, ServerSentEvent
from proctor.trace.conventions.values import parsed

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}

# OpenAI's finish reasons, as used in scripts → Anthropic's.
_STOP = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}


class Messages:
    """`POST /v1/messages`."""

    name = "anthropic"

    def whole(self, exchange: Exchange) -> dict[str, Any]:
        """Return the reply as one JSON document."""
        reply, counts = exchange.reply, exchange.usage
        content: list[dict[str, Any]] = []
        if reply.text or not reply.tool_calls:
            content.append({"type": "text", "text": reply.text, "citations": None})
        content += [
            {
                "type": "tool_use",
                "id": call_id,
                "name": call.name,
                "input": parsed(call.arguments),
            }
            for call_id, call in exchange.calls("toolu")
        ]
        return {
            "id": exchange.id("msg"),
            "type": "message",
            "role": "assistant",
            "model": exchange.model,
            "content": content,
            "stop_reason": _stop(reply),
            "stop_sequence": None,
            "usage": counts
            and {
                "input_tokens": counts[0],
                "output_tokens": counts[1],
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
            },
        }

    def events(self, exchange: Exchange) -> Iterator[ServerSentEvent]:
        """Return the reply as a stream of named events."""
        reply, document = exchange.reply, self.whole(exchange)
        usage = document["usage"]
        opening: dict[str, Any] = {**document, "content": [], "stop_reason": None}
        if usage is not None:
            opening["usage"] = {**usage, "output_tokens": 0}
        yield _event("message_start", message=opening)
        first_call = len(document["content"]) - len(reply.tool_calls)
        for index, block in enumerate(document["content"]):
            if index < first_call:
                kind, field, written = "text_delta", "text", reply.text
            else:
                kind, field = "input_json_delta", "partial_json"
                written = _shared.arguments_text(reply.tool_calls[index - first_call].arguments)
            empty: dict[str, Any] = {"text": ""} if index < first_call else {"input": {}}
            yield _event("content_block_start", index=index, content_block={**block, **empty})
            for piece in _shared.pieces(written):
                yield _event("content_block_delta", index=index, delta={"type": kind, field: piece})
            yield _event("content_block_stop", index=index)
        yield _event(
            "message_delta",
            delta={"stop_reason": document["stop_reason"], "stop_sequence": None},
            usage={"output_tokens": usage["output_tokens"]} if usage else None,
        )
        yield _event("message_stop")

    def error(self, failure: Failure) -> dict[str, Any]:
        """Return an error document of Anthropic."""
        kind = _ERROR_TYPES.get(failure.status, "api_error")
        return {
            "type": "error",
            "error": {"type": kind, "message": failure.message},
            "request_id": None,
        }


def _event(name: str, **data: Any) -> ServerSentEvent:
    return ServerSentEvent({"type": name, **data}, name)


def _stop(reply: Reply) -> str:
    if reply.finish_reason:
        return _STOP.get(reply.finish_reason, reply.finish_reason)
    return "tool_use" if reply.tool_calls else "end_turn"

"""Gemini generateContent protocol of the mock model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proctor.llm.mock import _shared
from proctor.llm.mock._script import Failure
from proctor.llm.mock._shared import Exchange, ServerSentEvent
from proctor.trace.conventions.values import parsed

_FINISH = {"length": "MAX_TOKENS", "content_filter": "SAFETY", "stop": "STOP"}
_STATUS = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 429: "RESOURCE_EXHAUSTED"}


class GenerateContent:
    """`POST /v1beta/models/MODEL:generateContent` and `:streamGenerateContent`."""

    name = "gemini"

    def whole(self, exchange: Exchange) -> dict[str, Any]:
        """Return the reply as one JSON document."""
        reply = exchange.reply
        parts: list[dict[str, Any]] = [{"text": reply.text}] if reply.text else []
        parts += [
            {
                "functionCall": {
                    "id": call_id,
                    "name": call.name,
                    "args": parsed(call.arguments),
                }
            }
            for call_id, call in exchange.calls("call")
        ]
        finish = _FINISH.get(reply.finish_reason or "stop", reply.finish_reason)
        return self._document(exchange, parts or [{"text": ""}], finish)

    def _document(
        self, exchange: Exchange, parts: list[dict[str, Any]], finish: str | None
    ) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        if finish is not None:
            candidate["finishReason"] = finish
        document: dict[str, Any] = {
            "candidates": [candidate],
            "modelVersion": exchange.model,
            "responseId": exchange.id("resp"),
        }
        if (counts := exchange.usage) is not None:
            document["usageMetadata"] = {
                "promptTokenCount": counts[0],
                "candidatesTokenCount": counts[1],
                "totalTokenCount": sum(counts),
            }
        return document

    def events(self, exchange: Exchange) -> Iterator[ServerSentEvent]:
        """Return the reply as a stream of partial documents."""
        whole = self.whole(exchange)
        for piece in _shared.pieces(exchange.reply.text):
            yield ServerSentEvent(self._document(exchange, [{"text": piece}], None))
        calls = [part for part in whole["candidates"][0]["content"]["parts"] if "text" not in part]
        finish = whole["candidates"][0]["finishReason"]
        yield ServerSentEvent(self._document(exchange, calls or [{"text": ""}], finish))

    def error(self, failure: Failure) -> dict[str, Any]:
        """Return an error document of Google."""
        status = _STATUS.get(failure.status, "INTERNAL")
        return {"error": {"code": failure.status, "message": failure.message, "status": status}}

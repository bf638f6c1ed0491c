"""The OTLP/HTTP endpoints: bodies in, answers as the protocol says.

Promise: 200 only after the commit, with a partial success where some spans could not be read;
400 for what is not OTLP, 413 and 415 for what is too large or packed unknown, 429 or 503 with
Retry-After under pressure. Clients that speak JSON are answered in JSON, others in protobuf.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from starlette.responses import Response

from proctor.server.ingest import RETRY_AFTER, Ingest, Taken
from proctor.server.wire import JSON, MAX_BODY, PROTOBUF, Refused, unpacked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

PATHS = {
    "/v1/traces": "spans",
    "/v1/logs": "log_records",
    "/api/public/otel/v1/traces": "spans",
}
"""Where exporters send, the third being Langfuse's; and what they send there."""

_CODES = {400: 3, 401: 16, 413: 8, 415: 3, 429: 8, 503: 14}
"""HTTP status → the code of google.rpc.Status that says the same."""


def endpoint(ingest: Ingest, what: str) -> Callable[[Request], Awaitable[Response]]:
    """The handler of one path."""

    async def take(request: Request) -> Response:
        kind = request.headers.get("content-type", "")
        as_json = kind.partition(";")[0].strip().lower() == JSON
        try:
            body = await read_body(request)
            plain = unpacked(body, request.headers.get("content-encoding", ""))
            taken = await ingest.take(plain, kind)
        except Refused as refusal:
            return refused(refusal, as_json=as_json)
        return accepted(taken, what, as_json=as_json)

    return take


async def read_body(request: Request, limit: int = MAX_BODY) -> bytes:
    """The body as sent; refused as soon as it is known to be too large."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise Refused(413, f"the body is larger than {limit} bytes")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise Refused(413, f"the body is larger than {limit} bytes")
    return bytes(body)


def accepted(taken: Taken, what: str, *, as_json: bool) -> Response:
    """Success, whole or partial."""
    if as_json:
        name = "rejectedSpans" if what == "spans" else "rejectedLogRecords"
        part = {name: str(taken.rejected), "errorMessage": taken.message}
        document = {"partialSuccess": part} if taken.rejected else {}
        return Response(json.dumps(document), media_type=JSON)
    content = b""
    if taken.rejected:
        inner = b"\x08" + _varint(taken.rejected) + _text(2, taken.message)
        content = b"\x0a" + _varint(len(inner)) + inner
    return Response(content, media_type=PROTOBUF)


def refused(refusal: Refused, *, as_json: bool) -> Response:
    """A google.rpc.Status, as OTLP asks for."""
    code = _CODES.get(refusal.status, 13)
    headers = {"Retry-After": str(RETRY_AFTER)} if refusal.status in (429, 503) else {}
    if as_json:
        content: str | bytes = json.dumps({"code": code, "message": refusal.reason})
    else:
        content = b"\x08" + _varint(code) + _text(2, refusal.reason)
    kind = JSON if as_json else PROTOBUF
    return Response(content, status_code=refusal.status, media_type=kind, headers=headers)


def _text(field: int, value: str) -> bytes:
    encoded = value.encode("utf-8", "replace")
    return bytes([field << 3 | 2]) + _varint(len(encoded)) + encoded


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)

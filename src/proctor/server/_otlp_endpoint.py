"""The OTLP/HTTP endpoints: read and decompress a body, store it, answer as the protocol says.

Guarantees: 200 only after the commit, with a partial success where some spans could not be read;
400 for a body that is not OTLP, 408 for a client that stops sending, 413 and 415 for a body that is
too large or in an unknown encoding, 503 with Retry-After under pressure. A compressed body never
takes more memory than a plain one may. Requests in JSON are answered in JSON, others in protobuf.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from proctor.files import DecompressionError, decompress
from proctor.server.decoder_process import JSON, LOG_RECORDS, PROTOBUF, SPANS, Refused
from proctor.server.ingest import RETRY_AFTER, Ingest, IngestResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

# The paths of exporters, the third for those of Langfuse, and what they send there.
PATHS = {"/v1/traces": SPANS, "/v1/logs": LOG_RECORDS, "/api/public/otel/v1/traces": SPANS}

# Bytes of one request, plain or decompressed: far above any exporter's batch, far below memory.
MAX_BODY = 64 * 1024 * 1024

# Seconds a client may pause within a body, so that slow clients do not hold reserved memory.
PATIENCE = 30.0

# Bytes of a body that are decompressed on the event loop; more would delay other clients.
AT_ONCE = 256 * 1024

# HTTP status → the corresponding code of google.rpc.Status.
_CODES = {400: 3, 408: 4, 413: 8, 415: 3, 503: 14}


def endpoint(
    ingest: Ingest, what: str, *, patience: float = PATIENCE
) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of one path."""

    async def take(request: Request) -> Response:
        kind = request.headers.get("content-type", "")
        as_json = kind.partition(";")[0].strip().lower() == JSON
        try:
            with ingest.reading() as more:
                body = await read_body(request, more, patience=patience)
                encoding = request.headers.get("content-encoding", "")
                if len(body) <= AT_ONCE:
                    plain = decompressed(body, encoding)
                else:
                    plain = await asyncio.to_thread(decompressed, body, encoding)
            del body  # frees the compressed body while the request waits
            taken = await ingest.take(plain, kind, what)
        except Refused as refusal:
            return refused(refusal, as_json=as_json)
        return accepted(taken, what, as_json=as_json)

    return take


async def read_body(
    request: Request,
    more: Callable[[int], None],
    *,
    limit: int = MAX_BODY,
    patience: float = PATIENCE,
) -> bytes:
    """Return the body as sent; refuse it as soon as it is too large or the client stops sending.

    `more` is called with the size of each part, and may refuse it.
    """
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise Refused(413, f"the body is larger than {limit} bytes")
    parts = aiter(request.stream())
    body = bytearray()
    while True:
        try:
            async with asyncio.timeout(patience):
                part = await anext(parts)
        except StopAsyncIteration:
            return bytes(body)
        except TimeoutError:
            raise Refused(408, f"nothing received for {patience:g} seconds") from None
        except ClientDisconnect:
            raise Refused(400, "the client went away") from None
        more(len(part))
        body += part
        if len(body) > limit:
            raise Refused(413, f"the body is larger than {limit} bytes")


def decompressed(body: bytes, encoding: str, limit: int = MAX_BODY) -> bytes:
    """Return the decompressed body; refuse one that is broken or too large."""
    kind = encoding.strip().lower()
    if kind not in ("", "identity", "gzip", "zstd"):
        raise Refused(415, f"content encoding {kind[:40]!r} is not known: use gzip or zstd")
    try:
        return decompress(body, limit, "" if kind == "identity" else kind)
    except DecompressionError as error:
        if error.too_large:
            raise Refused(413, f"the body is larger than {limit} bytes") from None
        raise Refused(400, str(error)) from None


def accepted(taken: IngestResult, what: str, *, as_json: bool) -> Response:
    """Return success, whole or partial; a message without rejected spans is a warning in OTLP."""
    if as_json:
        name = "rejectedSpans" if what == SPANS else "rejectedLogRecords"
        part = {name: str(taken.rejected), "errorMessage": taken.message}
        document = {"partialSuccess": part} if taken.message else {}
        return Response(json.dumps(document), media_type=JSON)
    # Both kinds of response have the same fields under the same numbers.
    reply = ExportTraceServiceResponse()
    if taken.message:
        reply.partial_success.CopyFrom(_code_and_text(taken.rejected, taken.message))
    return Response(reply.SerializeToString(), media_type=PROTOBUF)


def refused(refusal: Refused, *, as_json: bool) -> Response:
    """Return a google.rpc.Status, as OTLP requires."""
    code = _CODES.get(refusal.status, 13)
    headers = {"Retry-After": str(RETRY_AFTER)} if refusal.status == 503 else {}
    if as_json:
        content: str | bytes = json.dumps({"code": code, "message": refusal.reason})
    else:
        # google.rpc is not installed with OTLP's messages; on the wire, a Status is a number in
        # field 1 and a text in field 2, as a partial success is.
        content = _code_and_text(code, refusal.reason).SerializeToString()
    kind = JSON if as_json else PROTOBUF
    return Response(content, status_code=refusal.status, media_type=kind, headers=headers)


def _code_and_text(code: int, text: str) -> ExportTracePartialSuccess:
    safe = text.encode("utf-8", "replace").decode()  # protobuf refuses lone surrogates
    return ExportTracePartialSuccess(rejected_spans=code, error_message=safe)

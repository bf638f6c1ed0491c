"""OTLP over HTTP as it is sent: what a request holds, unpacked within bounds.

Promise: a body is read whole or refused with the status the protocol names; a packed body never
takes more memory than a plain one may have. Spans that cannot be read are counted, the others
are kept (partial success).
"""

from __future__ import annotations

from typing import NamedTuple

from proctor.files import DecompressionError, decompress
from proctor.trace.assemble import Collector
from proctor.trace.conventions.values import decode_json
from proctor.trace.formats import otlp, otlp_protobuf

MAX_BODY = 64 * 1024 * 1024
"""Bytes of one request, plain or unpacked: far above any exporter's batch, far below memory."""

PROTOBUF = "application/x-protobuf"
JSON = "application/json"

SPANS = "spans"
LOG_RECORDS = "log_records"
"""What a request is said to hold, by the path it came to."""

_LOST = ("span skipped", "log record skipped")
"""How problems begin that cost a whole span or record; others cost an attribute or an event."""

MAX_MESSAGE = 500
"""Characters of what is said of spans that were not kept."""


class Refused(Exception):
    """A request that is not taken: its HTTP status, and why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Received(NamedTuple):
    """What a request held, how many of its spans or records were not kept, and what was odd."""

    collected: Collector
    rejected: int
    message: str


def unpacked(body: bytes, encoding: str, limit: int = MAX_BODY) -> bytes:
    """The body as it was before packing; refused when it is broken or too large."""
    kind = encoding.strip().lower()
    if kind not in ("", "identity", "gzip", "zstd"):
        raise Refused(415, f"content encoding {kind[:40]!r} is not known: use gzip or zstd")
    try:
        return decompress(body, limit, "" if kind == "identity" else kind)
    except DecompressionError as error:
        if error.too_large:
            raise Refused(413, f"the body is larger than {limit} bytes") from None
        raise Refused(400, str(error)) from None


def received(body: bytes, content_type: str, what: str = SPANS) -> Received:
    """The spans or log records of a plain body."""
    kind = content_type.partition(";")[0].strip().lower()
    collected = Collector("request")
    if not body:
        return Received(collected, 0, "")
    if kind == JSON:
        _read_json(body, collected)
    elif kind == PROTOBUF:
        read = otlp_protobuf.read_logs if what == LOG_RECORDS else otlp_protobuf.read_spans
        if not read(body, collected):
            raise Refused(400, f"not an OTLP request of {what.replace('_', ' ')} in protobuf")
    else:
        raise Refused(415, f"content type {kind[:60]!r} is not OTLP: use {PROTOBUF} or {JSON}")
    problems = collected.problems
    words = "; ".join(str(problem) for problem in problems)[:MAX_MESSAGE]
    lost = (problem.count for problem in problems if problem.message.startswith(_LOST))
    return Received(collected, sum(lost), words)


def _read_json(body: bytes, collected: Collector) -> None:
    try:
        document = decode_json(body.decode("utf-8"))
    except ValueError as error:
        raise Refused(400, f"not JSON: {str(error)[:200]}") from None
    if document == {}:
        return
    if not otlp.matches(document):
        raise Refused(400, "not an OTLP request: it has neither resourceSpans nor resourceLogs")
    otlp.read(document, collected)

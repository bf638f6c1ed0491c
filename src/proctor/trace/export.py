"""Export traces as OTLP (JSON or protobuf), OpenInference, or Proctor JSONL.

Guarantees: secrets are redacted by default; traces are written one by one, so memory does not grow
with their number; files are written atomically; reading an export back gives the same fields.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from proctor.errors import ProctorError, hint_among
from proctor.files import replacing
from proctor.sanitize import json_bytes, valid_unicode
from proctor.trace.conventions.proctor import TRACE_METADATA_KEY, to_attributes, trace_to_attributes
from proctor.trace.conventions.values import encode_json, is_list, is_mapping, shown
from proctor.trace.formats.atif import encode_atif
from proctor.trace.formats.native import encode_trace
from proctor.trace.model import Message, Span, SpanKind, SpanStatus, Trace
from proctor.trace.redact import Redactor, default_redactor


@dataclass(frozen=True, slots=True)
class Exporter:
    """An export format: an encoder for one trace, and the text around and between traces."""

    about: str
    encode: Callable[[Trace], bytes]
    before: bytes = b""
    between: bytes = b""
    after: bytes = b""


_REQUEST = {"before": b'{"resourceSpans":[', "between": b",\n", "after": b"]}\n"}

EXPORTERS: dict[str, Exporter] = {
    "otlp-json": Exporter(
        "OTLP JSON with OTel GenAI attributes",
        lambda trace: encode_json_spans(trace, GENAI),
        **_REQUEST,
    ),
    "otlp-proto": Exporter(
        "OTLP protobuf with OTel GenAI attributes",
        lambda trace: encode_proto_spans(trace, GENAI),
    ),
    "openinference": Exporter(
        "OTLP JSON with OpenInference attributes",
        lambda trace: encode_json_spans(trace, OPENINFERENCE),
        **_REQUEST,
    ),
    "jsonl": Exporter("Proctor JSONL: one trace per line, lossless", encode_trace),
    "atif": Exporter("ATIF (Harbor): one trajectory per line", encode_atif),
}


def export_traces(
    traces: Iterable[Trace] | Trace,
    format: str,  # noqa: A002 (the word users write)
    *,
    redact: Redactor | bool = True,
) -> bytes:
    """Return traces as the bytes of one file."""
    buffer = io.BytesIO()
    write_traces(traces, buffer, format, redact=redact)
    return buffer.getvalue()


def write_traces(
    traces: Iterable[Trace] | Trace,
    out: BinaryIO,
    format: str,  # noqa: A002 (the word users write)
    *,
    redact: Redactor | bool = True,
) -> int:
    """Write traces to an open binary file, one by one; return their number."""
    exporter = exporter_of(format)
    redactor = default_redactor() if redact is True else redact
    written = 0
    out.write(exporter.before)
    for trace in [traces] if isinstance(traces, Trace) else traces:
        encoded = exporter.encode(redactor.trace(trace) if redactor else trace)
        if not encoded:
            continue  # OTLP has no way to say "a trace without spans"
        if written:
            out.write(exporter.between)
        out.write(encoded)
        written += 1
    out.write(exporter.after)
    return written


def save_traces(
    traces: Iterable[Trace] | Trace,
    path: str | os.PathLike[str],
    format: str,  # noqa: A002 (the word users write)
    *,
    redact: Redactor | bool = True,
) -> int:
    """Write traces to a file, compressed for `.gz` and `.zst`; return their number."""
    # An unknown format must fail before the target file is touched.
    exporter_of(format)
    with written_aside(Path(path)) as raw, _compressed(raw, Path(path).suffix) as out:
        return write_traces(traces, out, format, redact=redact)


def exporter_of(format: str) -> Exporter:  # noqa: A002 (the word users write)
    """Return the exporter of a format; an unknown one raises an error with a suggestion."""
    exporter = EXPORTERS.get(format)
    if exporter is None:
        hint = hint_among(format, EXPORTERS)
        raise ProctorError(f"unknown export format {format!r}", hint=hint)
    return exporter


@contextmanager
def written_aside(path: Path) -> Generator[BinaryIO]:
    """Open a file that replaces `path` only when the block succeeds."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as aside, aside.open("wb") as out:
            yield out
    except OSError as error:
        raise ProctorError(f"cannot write: {error.strerror}", where=str(path)) from None


@contextmanager
def _compressed(raw: BinaryIO, suffix: str) -> Generator[BinaryIO]:
    if suffix == ".gz":
        # Without name and time, the same traces produce the same bytes.
        with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as out:
            yield cast("BinaryIO", out)
    elif suffix == ".zst":
        import zstandard

        with zstandard.ZstdCompressor().stream_writer(raw, closefd=False) as out:
            yield cast("BinaryIO", out)
    else:
        yield raw


# Map the normalised fields of a span to a convention (OTel GenAI or OpenInference), so that other
# tools can read our exports. Fields a convention lacks are only in the `proctor.*` attributes,
# which hold everything, so that nothing is lost.


Attributes = dict[str, Any]


def _known(attributes: Attributes) -> Attributes:
    return {key: value for key, value in attributes.items() if value is not None}


# -- OTel GenAI -------------------------------------------------------------------------------

_OPERATIONS = {
    SpanKind.LLM: "chat",
    SpanKind.TOOL: "execute_tool",
    SpanKind.AGENT: "invoke_agent",
    SpanKind.RETRIEVAL: "retrieval",
    SpanKind.PLANNING: "plan",
}


def genai(span: Span) -> Attributes:
    """Return a span's fields as `gen_ai.*` attributes."""
    attributes: Attributes = {
        "gen_ai.operation.name": _OPERATIONS.get(span.kind),
        "gen_ai.request.model": span.model,
        "gen_ai.usage.input_tokens": span.input_tokens,
        "gen_ai.usage.output_tokens": span.output_tokens,
        "gen_ai.agent.name": span.agent_name,
        "error.type": span.error_type,
    }
    if span.kind == SpanKind.TOOL:
        attributes["gen_ai.tool.name"] = span.tool_name
        attributes["gen_ai.tool.call.id"] = span.tool_call_id
        attributes["gen_ai.tool.call.arguments"] = shown(span.tool_input)
        attributes["gen_ai.tool.call.result"] = shown(span.tool_output)
    if span.input_messages:
        attributes["gen_ai.input.messages"] = encode_json([_parts(m) for m in span.input_messages])
    if span.output_messages:
        attributes["gen_ai.output.messages"] = encode_json(
            [
                {**_parts(m), "finish_reason": "tool_call" if m.tool_calls else "stop"}
                for m in span.output_messages
            ]
        )
    if span.documents:
        attributes["gen_ai.retrieval.documents"] = encode_json(
            [_known({"id": d.id, "score": d.score, "content": d.text}) for d in span.documents]
        )
        if isinstance(span.input, str):
            attributes["gen_ai.retrieval.query.text"] = span.input
    return _known(attributes)


def _parts(message: Message) -> Attributes:
    parts: list[Attributes] = []
    if message.role == "tool" and message.tool_call_id is not None:
        answered = {"id": message.tool_call_id, "response": message.content}
        parts.append({"type": "tool_call_response", **answered})
    elif message.content is not None:
        parts.append({"type": "text", "content": message.content})
    parts += [
        {"type": "tool_call", **_known({"id": call.id, "name": call.name})}
        | {"arguments": call.arguments}
        for call in message.tool_calls
    ]
    return _known({"role": message.role, "name": message.name}) | {"parts": parts}


# -- OpenInference ----------------------------------------------------------------------------

_SPAN_KINDS = {
    SpanKind.LLM: "LLM",
    SpanKind.TOOL: "TOOL",
    SpanKind.AGENT: "AGENT",
    SpanKind.RETRIEVAL: "RETRIEVER",
    SpanKind.GUARDRAIL: "GUARDRAIL",
}


def openinference(span: Span) -> Attributes:
    """Return a span's fields as OpenInference attributes."""
    is_tool = span.kind == SpanKind.TOOL
    sent, received = span.input_tokens, span.output_tokens
    attributes: Attributes = {
        "openinference.span.kind": _SPAN_KINDS.get(span.kind, "CHAIN"),
        "llm.model_name": span.model,
        "llm.token_count.prompt": sent,
        "llm.token_count.completion": received,
        "llm.token_count.total": None if sent is None or received is None else sent + received,
        "llm.cost.total": span.cost_usd,
        "agent.name": span.agent_name,
        "tool.name": span.tool_name,
        "tool.id": span.tool_call_id,
    }
    attributes |= _value("input", span.tool_input if is_tool else span.input)
    attributes |= _value("output", span.tool_output if is_tool else span.output)
    attributes |= _flat_messages("llm.input_messages", span.input_messages)
    attributes |= _flat_messages("llm.output_messages", span.output_messages)
    for number, document in enumerate(span.documents):
        head = f"retrieval.documents.{number}.document"
        attributes[f"{head}.id"] = document.id
        attributes[f"{head}.content"] = document.text
        attributes[f"{head}.score"] = document.score
        if document.metadata:
            attributes[f"{head}.metadata"] = encode_json(document.metadata)
    return _known(attributes)


def _value(which: str, value: Any) -> Attributes:
    if value is None:
        return {}
    mime = "text/plain" if isinstance(value, str) else "application/json"
    return {f"{which}.value": shown(value), f"{which}.mime_type": mime}


def _flat_messages(prefix: str, messages: Sequence[Message]) -> Attributes:
    attributes: Attributes = {}
    for number, message in enumerate(messages):
        head = f"{prefix}.{number}.message"
        attributes[f"{head}.role"] = message.role
        attributes[f"{head}.content"] = message.content
        attributes[f"{head}.name"] = message.name
        attributes[f"{head}.tool_call_id"] = message.tool_call_id
        for index, call in enumerate(message.tool_calls):
            call_head = f"{head}.tool_calls.{index}.tool_call"
            attributes[f"{call_head}.id"] = call.id
            attributes[f"{call_head}.function.name"] = call.name
            attributes[f"{call_head}.function.arguments"] = shown(call.arguments)
    return attributes


# Convert ids to OpenTelemetry form: 16 and 8 bytes in hex. A valid id stays; any other becomes a
# stable hash of itself, so that parents still match their children; the original is stored in a
# `proctor.*` attribute.


TRACE_ID_KEY = "proctor.trace_id"
SPAN_ID_KEY = "proctor.span_id"
PARENT_ID_KEY = "proctor.parent_id"

_TRACE_DIGITS = 32
_SPAN_DIGITS = 16
_HEX = re.compile(r"[0-9a-f]+")


def _wire_id(original: str, digits: int) -> str:
    # All zeros is how OpenTelemetry writes "no id".
    if len(original) == digits and _HEX.fullmatch(original) and original.strip("0"):
        return original
    # Stable across exports, so that a second export matches the first.
    return sha256(original.encode("utf-8", "surrogatepass")).hexdigest()[:digits]


# Encode one trace as OTLP `ResourceSpans`, in JSON (hex ids, integer enums, int64 as text) or
# protobuf, for any OpenTelemetry receiver. Values OTLP cannot represent (integers beyond 64 bits,
# deep nesting) are written as text; the normalised fields are complete in `proctor.*`.


_INTERNAL, _CLIENT = 1, 3
_STATUS_CODES = {SpanStatus.OK: 1, SpanStatus.ERROR: 2, SpanStatus.TIMEOUT: 2}
_INT64 = range(-(2**63), 2**63)
_MAX_TIME = 2**64 - 1
# Receivers refuse messages nested about a hundred deep; one level here takes three there.
_MAX_NESTING = 24


class Convention(NamedTuple):
    """The attribute convention of an export: of spans, and the key of a whole conversation."""

    span: Callable[[Span], Attributes]
    session_key: str


GENAI = Convention(genai, "gen_ai.conversation.id")
OPENINFERENCE = Convention(openinference, "session.id")


def _resource_spans(trace: Trace, convention: Convention) -> dict[str, Any]:
    """Return the spans of a trace by instrumentation scope; trace fields go on the first root."""
    scopes: dict[str | None, list[dict[str, Any]]] = {}
    roots = trace.roots
    first_root = roots[0].span if roots else None
    for span in trace.spans:
        extra: Attributes = {}
        if span is first_root:
            extra = _known({convention.session_key: trace.session_id, "user.id": trace.user_id})
            # Even an empty trace record tells importers that there is nothing left to infer.
            extra |= {TRACE_METADATA_KEY: "{}"} | trace_to_attributes(trace)
        scopes.setdefault(span.scope, []).append(_wire_span(span, convention, extra))
    # The importer stores the attributes of the producer here.
    resource = trace.metadata.get("resource")
    return {
        "resource": {"attributes": _attributes(resource if is_mapping(resource) else {})},
        "scopeSpans": [
            {"scope": {"name": scope} if scope else {}, "spans": spans}
            for scope, spans in scopes.items()
        ],
    }


def _wire_span(span: Span, convention: Convention, extra: Attributes) -> dict[str, Any]:
    # Attributes as received override the convention's; our own record overrides both.
    attributes = convention.span(span) | span.attributes | extra | to_attributes(span)
    encoded: dict[str, Any] = {
        "name": span.name,
        "kind": _CLIENT if span.kind == SpanKind.LLM else _INTERNAL,
        "startTimeUnixNano": _time(span.start_ns),
    }
    for key, original, digits, kept_as in (
        ("traceId", span.trace_id, _TRACE_DIGITS, TRACE_ID_KEY),
        ("spanId", span.span_id, _SPAN_DIGITS, SPAN_ID_KEY),
        ("parentSpanId", span.parent_id, _SPAN_DIGITS, PARENT_ID_KEY),
    ):
        if original is not None:
            encoded[key] = _wire_id(original, digits)
            if encoded[key] != original:
                attributes[kept_as] = original
    if span.end_ns:
        encoded["endTimeUnixNano"] = _time(span.end_ns)
    if span.events:
        encoded["events"] = [
            {
                "timeUnixNano": _time(event.time_ns),
                "name": event.name,
                "attributes": _attributes(event.attributes),
            }
            for event in span.events
        ]
    code = _STATUS_CODES.get(span.status)
    message = (span.error_message or None) if span.failed else None
    return {
        **encoded,
        "attributes": _attributes(attributes),
        "status": _known({"code": code, "message": message}),
    }


def _time(nanoseconds: int) -> str:
    return str(min(max(nanoseconds, 0), _MAX_TIME))


def _attributes(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _any_value(value, 0)} for key, value in attributes.items()]


def _any_value(value: Any, depth: int) -> dict[str, Any]:
    """Return a value as OTLP's AnyValue in JSON."""
    if isinstance(value, str):
        return {"stringValue": value}
    if value is None:
        return {}
    # Before integers, because in Python a boolean is one.
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and value in _INT64:
        return {"intValue": str(value)}
    if isinstance(value, float):
        if math.isfinite(value):
            return {"doubleValue": value}
        # JSON has no such numbers; protobuf's JSON mapping spells them as text.
        name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return {"doubleValue": name}
    if depth < _MAX_NESTING and is_list(value):
        return {"arrayValue": {"values": [_any_value(item, depth + 1) for item in value]}}
    if depth < _MAX_NESTING and is_mapping(value):
        pairs = [
            {"key": str(key), "value": _any_value(item, depth + 1)} for key, item in value.items()
        ]
        return {"kvlistValue": {"values": pairs}}
    return {"stringValue": encode_json(value)}


def encode_json_spans(trace: Trace, convention: Convention) -> bytes:
    """Return one trace as a `ResourceSpans` object; empty without spans."""
    return json_bytes(_resource_spans(trace, convention)) if trace.spans else b""


def encode_proto_spans(trace: Trace, convention: Convention) -> bytes:
    """Return one trace as `TracesData` bytes; several concatenated are one as well."""
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

    if not trace.spans:
        return b""
    batch: Any = _proto_form(_resource_spans(trace, convention))
    return TracesData(resource_spans=[batch]).SerializeToString()


_PROTO_TYPES: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("traceId", "spanId", "parentSpanId"), bytes.fromhex),
    **dict.fromkeys(("startTimeUnixNano", "endTimeUnixNano", "timeUnixNano", "intValue"), int),
    "doubleValue": float,
}
"""Fields that JSON holds as text and protobuf does not."""


def _proto_form(value: Any) -> Any:
    """Return OTLP's JSON with the field names and types of protobuf's constructors."""
    if isinstance(value, str):
        return valid_unicode(value)
    if is_mapping(value):
        return {
            _snake_case(key): _PROTO_TYPES.get(key, _proto_form)(item)
            for key, item in value.items()
        }
    return [_proto_form(item) for item in value] if is_list(value) else value


@cache
def _snake_case(field: str) -> str:
    return re.sub("([A-Z])", r"_\1", field).lower()

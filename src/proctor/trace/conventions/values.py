"""Convert attribute values as producers write them to typed values, or to None.

Guarantees: nothing here raises, whatever the input; a value that does not fit becomes None (or
stays unchanged), because one odd attribute must not lose a span.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeGuard, TypeVar, cast

import msgspec

from proctor.trace.model import Span, SpanKind

T = TypeVar("T")

Attributes = dict[str, Any]

Layout = tuple[tuple[tuple[str, str], ...], ...]
"""The keys of each numbered group."""

MAX_CACHED_KEYS = 64
"""Maximum keys of a span whose order is cached; longer conversations rarely repeat."""

_KINDS = {
    **dict.fromkeys("llm chat_model generation".split(), SpanKind.LLM),
    **dict.fromkeys("retriever reranker".split(), SpanKind.RETRIEVAL),
    **dict.fromkeys("chain workflow task parser memory span".split(), SpanKind.CHAIN),
    **dict.fromkeys("embedding evaluator prompt event".split(), SpanKind.OTHER),
    "agent": SpanKind.AGENT,
    "tool": SpanKind.TOOL,
    "guardrail": SpanKind.GUARDRAIL,
}
"""Kinds of spans, in the words of OpenInference, MLflow, Langfuse and Traceloop."""

# A JSON document starts with one of these; other text is prose and stays prose. Bare numbers and
# words are not decoded: "007" is an answer, not seven.
_JSON_OPENINGS = ("{", "[", '"')

_ENCODER = msgspec.json.Encoder(enc_hook=str)
_DECODER = msgspec.json.Decoder()

# Exceptions of the decoders: malformed text, lone surrogates, nesting beyond the stack.
_BAD_JSON = (ValueError, RecursionError, msgspec.DecodeError)


def is_mapping(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a decoded JSON value is an object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Return whether a decoded JSON value is an array."""
    return isinstance(value, list | tuple)


def decode_json(text: str) -> Any:
    """Decode a JSON document; raise ValueError when the text is none."""
    try:
        return _DECODER.decode(text)
    except _BAD_JSON:
        # The fast decoder refuses lone surrogates and NaN, which producers do write.
        try:
            return json.loads(text)
        except RecursionError as deep:
            raise ValueError("nested too deeply") from deep


def encode_json(value: Any) -> str:
    """Return a value as JSON text; objects unknown to JSON are written as their `str`."""
    try:
        return _ENCODER.encode(value).decode()
    except (ValueError, TypeError, RecursionError, msgspec.EncodeError):
        # The fast encoder refuses some values that the standard library can write.
        try:
            plain = msgspec.to_builtins(value, enc_hook=str)
        except (ValueError, TypeError, RecursionError):
            plain = value
        try:
            return json.dumps(plain, default=str, skipkeys=True)
        except (ValueError, TypeError, RecursionError):
            return json.dumps(str(cast(object, type(value))))


def parsed(value: Any) -> Any:
    """Decode a text that is a JSON object, array or string; return other values unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in _JSON_OPENINGS and value:
        try:
            return decode_json(value)
        except ValueError:
            return value
    return value


def structure(value: Any) -> Any:
    """Decode a text that is a JSON object or array; return other values unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return msgspec.json.decode(value)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return value
    return value


def mapping(value: Any) -> dict[str, Any]:
    """Return an object, given as such or as JSON text; empty when it is neither."""
    decoded = parsed(value)
    return decoded if is_mapping(decoded) else {}


def text(value: Any) -> str | None:
    """Return a non-empty string; None for anything else."""
    return value if isinstance(value, str) and value else None


def identifier(value: Any) -> str | None:
    """Return a name or id: a non-empty string, or a number as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return text(value)


def shown(value: Any) -> str | None:
    """Return a value as readable text: strings unchanged, the rest as JSON."""
    if value is None or isinstance(value, str):
        return value
    return encode_json(value)


def span_kind(value: Any) -> SpanKind | None:
    """Return the kind of span that a producer names, in any case; None for other words."""
    return _KINDS.get(value.lower()) if isinstance(value, str) else None


def count(value: Any) -> int | None:
    """Return a token count: an integer of at least 0, also when written as text or 12.0."""
    if isinstance(value, str):
        value = number(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return None


def number(value: Any) -> float | None:
    """Return a finite number, also when written as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        result = float(value)
    except (ValueError, OverflowError):
        return None
    return result if math.isfinite(result) else None


def total_or_sum(total: Any, parts: Iterable[Any]) -> float | None:
    """Return the total of a cost where it is known, else the sum of its known parts."""
    known = [part for value in parts if (part := number(value)) is not None]
    whole = number(total)
    return whole if whole is not None or not known else sum(known)


def first(attributes: Mapping[str, Any], keys: Iterable[str]) -> Any:
    """Return the first value among these keys that is neither missing nor null."""
    for key in keys:
        value = attributes.get(key)
        if value is not None:
            return value
    return None


def numbered(attributes: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Group flat keys `prefix.N.rest` into one dict of `rest` per N, sorted by N.

    Indexes may be sparse and in any order: producers leave gaps for messages they skip.
    """
    # A long conversation has its own keys: caching it would only evict useful entries.
    if len(attributes) > MAX_CACHED_KEYS:
        layout = _numbered_keys(attributes, prefix)
    else:
        layout = _known_layout(tuple(attributes), prefix)
    return [{rest: attributes[key] for rest, key in group} for group in layout]


def _numbered_keys(keys: Iterable[str], prefix: str) -> Layout:
    """Return (rest of the key, whole key) pairs, one group per number."""
    groups: dict[str, list[tuple[str, str]]] = {}
    start = len(prefix) + 1
    for key in keys:
        if key.startswith(prefix):
            index, _, rest = key[start:].partition(".")
            groups.setdefault(index, []).append((rest, key))
    # `isdecimal` also accepts other alphabets' digits; producers write ASCII ones.
    order = [index for index in groups if index.isascii() and index.isdecimal()]
    return tuple(tuple(groups[index]) for index in sorted(order, key=int))


_known_layout = lru_cache(maxsize=1024)(_numbered_keys)
"""Cached by keys, because spans of one instrumentation repeat the same ones."""


def convert(kind: type[T], value: str) -> T | None:
    """Decode JSON text as a typed value; None when it does not fit."""
    try:
        return msgspec.json.decode(value, type=kind)
    except (ValueError, RecursionError, msgspec.DecodeError, msgspec.ValidationError):
        try:
            return msgspec.convert(decode_json(value), kind)
        except (ValueError, RecursionError, msgspec.ValidationError):
            return None


# Errors of failed spans, from the exception event, else from the status. Only spans that failed get
# an error; an exception that was recorded and handled is none.


# "RuntimeError: tool exploded", as OpenTelemetry's SDK writes a status description.
_TYPED = re.compile(r"([A-Za-z_][\w.]{0,200}(?:Error|Exception|Timeout|Interrupt))(?:: |$)")


def read_error(span: Span) -> None:
    """Fill the error's type and message; the reader has already set the status message."""
    message = span.error_message or None
    # The last exception, because earlier ones may have been caught.
    event = next((event for event in reversed(span.events) if event.name == "exception"), None)
    if event is not None:
        span.error_type = text(event.attributes.get("exception.type")) or span.error_type
        message = text(event.attributes.get("exception.message")) or message
    if span.error_type is None:
        span.error_type = text(span.attributes.get("error.type"))
    if span.error_type is None and message is not None:
        match = _TYPED.match(message)
        span.error_type = match[1] if match is not None else None
    if message and span.error_type:
        # A status description has the error type in front of the message.
        message = message.removeprefix(span.error_type.rpartition(".")[2] + ": ")
    span.error_message = message or None

"""Traces out: OTLP as JSON or protobuf, OpenInference, and our own JSONL.

Promise: secrets are removed first unless told otherwise; traces are written one by one, so size
does not matter; a file appears whole or not at all. What is read back has the same fields.
"""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from proctor.errors import ProctorError, hint_among
from proctor.files import replacing
from proctor.trace.model import Trace
from proctor.trace.redact import Redactor, redactor_for


class Exporter(NamedTuple):
    """How traces become a file: each one's bytes, and what stands around and between them."""

    about: str
    encode: Callable[[Trace], bytes]
    before: bytes = b""
    between: bytes = b""
    after: bytes = b""


def _otlp_json(trace: Trace) -> bytes:
    from proctor.trace.export_otlp import GENAI, encode_json_spans

    return encode_json_spans(trace, GENAI)


def _otlp_proto(trace: Trace) -> bytes:
    from proctor.trace.export_otlp import GENAI, encode_proto_spans

    return encode_proto_spans(trace, GENAI)


def _openinference(trace: Trace) -> bytes:
    from proctor.trace.export_otlp import OPENINFERENCE, encode_json_spans

    return encode_json_spans(trace, OPENINFERENCE)


def _jsonl(trace: Trace) -> bytes:
    from proctor.trace.formats.native import encode_trace

    return encode_trace(trace)


_REQUEST = {"before": b'{"resourceSpans":[', "between": b",\n", "after": b"]}\n"}

EXPORTERS: dict[str, Exporter] = {
    "otlp-json": Exporter("OTLP JSON with OTel GenAI attributes", _otlp_json, **_REQUEST),
    "otlp-proto": Exporter("OTLP protobuf with OTel GenAI attributes", _otlp_proto),
    "openinference": Exporter(
        "OTLP JSON with OpenInference attributes", _openinference, **_REQUEST
    ),
    "jsonl": Exporter("Proctor's own: one trace a line, nothing lost", _jsonl),
}


def export_traces(
    traces: Iterable[Trace] | Trace,
    format: str,  # noqa: A002 (the word users write)
    *,
    redact: Redactor | bool = True,
) -> bytes:
    """Traces as the bytes of one file."""
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
    """Write traces to an open binary file, one by one; how many were written."""
    exporter = exporter_of(format)
    redactor = redactor_for(redact)
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
    """Write traces to a file; `.gz` and `.zst` are compressed. How many were written."""
    exporter_of(format)
    with written_aside(Path(path)) as raw, _compressed(raw, Path(path).suffix) as out:
        return write_traces(traces, out, format, redact=redact)


def exporter_of(format: str) -> Exporter:  # noqa: A002 (the word users write)
    """The exporter of a format; an unknown one is an error with a suggestion."""
    exporter = EXPORTERS.get(format)
    if exporter is None:
        hint = hint_among(format, EXPORTERS)
        raise ProctorError(f"unknown export format {format!r}", hint=hint)
    return exporter


@contextmanager
def written_aside(path: Path) -> Generator[BinaryIO]:
    """A file to write to that takes `path`'s place only when all went well."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as aside, aside.open("wb") as out:
            yield out
    except OSError as error:
        raise ProctorError(f"cannot write: {error.strerror}", where=str(path)) from None


@contextmanager
def _compressed(raw: BinaryIO, suffix: str) -> Generator[BinaryIO]:
    if suffix == ".gz":
        # Without name and time, the same traces give the same bytes.
        with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as out:
            yield cast("BinaryIO", out)
    elif suffix == ".zst":
        import zstandard

        with zstandard.ZstdCompressor().stream_writer(raw, closefd=False) as out:
            yield cast("BinaryIO", out)
    else:
        yield raw

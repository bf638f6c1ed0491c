"""Register the wire formats: one module each, detected in the order of the table below.

Each JSON format has `NAME`, `ABOUT`, `matches(document)`, a cheap check of a decoded document, and
`read(document, out)`, which puts spans into a `Collector`; binary formats take bytes. To add one,
see docs/how-to/add-a-trace-format.md.
"""

from __future__ import annotations

from typing import Any, Protocol

from proctor.trace.assemble import Collector
from proctor.trace.formats import (
    jaeger,
    langfuse,
    native,
    otlp,
    otlp_protobuf,
    span_list,
    trail,
    transcript,
)


class _Named(Protocol):
    """The metadata of a format."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a constant of the module
        """Name for `format=`."""
        ...

    @property
    def ABOUT(self) -> str:  # noqa: N802 - a constant of the module
        """Short description for messages, from which a user recognises the format."""
        ...


class JsonFormat(_Named, Protocol):
    """A format whose documents are JSON values: a whole file, or one line of it."""

    def matches(self, document: Any) -> bool:
        """Return whether a decoded document has this format."""
        ...

    def read(self, document: Any, out: Collector) -> None:
        """Read a document into the collector; never raises on a bad document."""
        ...


class BinaryFormat(_Named, Protocol):
    """A format that is not text: always a whole file."""

    def matches(self, data: bytes) -> bool:
        """Return whether the bytes of a file have this format."""
        ...

    def read(self, data: bytes, out: Collector) -> None:
        """Read a file into the collector; never raises on bad bytes."""
        ...


# Strict formats first: `span_list` and `transcript` accept the widest shapes, so they are last.
JSON_FORMATS: tuple[JsonFormat, ...] = (
    native,
    otlp,
    trail,
    jaeger,
    langfuse,
    span_list,
    transcript,
)
BINARY_FORMATS: tuple[BinaryFormat, ...] = (otlp_protobuf,)


def names() -> list[str]:
    """Return the names of all formats, in detection order."""
    return [known.NAME for known in (*JSON_FORMATS, *BINARY_FORMATS)]


def detect(document: Any) -> JsonFormat | None:
    """Return the format of a decoded document, or None."""
    return next((known for known in JSON_FORMATS if known.matches(document)), None)


def detect_binary(data: bytes) -> BinaryFormat | None:
    """Return the format of a binary file, or None."""
    return next((known for known in BINARY_FORMATS if known.matches(data)), None)

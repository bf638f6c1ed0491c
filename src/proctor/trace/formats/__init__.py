"""The wire formats Proctor reads: one module each, tried in the order of the table below.

Each JSON format has `NAME`, `ABOUT`, `matches(document)`, a cheap look at a decoded document,
and `read(document, out)`, which puts spans into a `Collector`; binary formats take bytes. How to
add one: docs/how-to/add-a-trace-format.md.
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
    """What every format tells of itself."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a constant of the module
        """The word for `format=`."""
        ...

    @property
    def ABOUT(self) -> str:  # noqa: N802 - a constant of the module
        """A few words for messages: how a person recognises the format."""
        ...


class JsonFormat(_Named, Protocol):
    """A format whose documents are JSON values: a whole file, or one line of it."""

    def matches(self, document: Any) -> bool:
        """Whether a decoded document is of this format."""
        ...

    def read(self, document: Any, out: Collector) -> None:
        """Put what a document holds into the collector; never raises on a bad document."""
        ...


class BinaryFormat(_Named, Protocol):
    """A format that is not text: always a whole file."""

    def matches(self, data: bytes) -> bool:
        """Whether the bytes of a file are of this format."""
        ...

    def read(self, data: bytes, out: Collector) -> None:
        """Put what a file holds into the collector; never raises on bad bytes."""
        ...


# The sure ones first: `span_list` and `transcript` accept the widest shapes and come last.
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
    """Names of all formats, in the order they are tried."""
    return [known.NAME for known in (*JSON_FORMATS, *BINARY_FORMATS)]


def detect(document: Any) -> JsonFormat | None:
    """The format of a decoded document, or None."""
    return next((known for known in JSON_FORMATS if known.matches(document)), None)


def detect_binary(data: bytes) -> BinaryFormat | None:
    """The format of a file that is not text, or None."""
    return next((known for known in BINARY_FORMATS if known.matches(data)), None)

"""Register the wire formats: one module each, detected in the order of the table below.

Each format has `NAME`, `ABOUT`, `matches(document)`, a cheap check of a decoded document, and
`read(document, out)`, which puts spans into a `Collector`. OTLP protobuf, the only binary format,
is detected in `proctor.trace.load`. To add a format, see docs/how-to/add-a-trace-format.md.
"""

from __future__ import annotations

from typing import Any, Protocol

from proctor.trace.assemble import Collector
from proctor.trace.formats import (
    atif,
    coding_sessions,
    jaeger,
    langfuse,
    native,
    otlp,
    span_list,
    trail,
    transcript,
    zipkin,
)


class TraceFormat(Protocol):
    """A format whose documents are JSON values: a whole file, or one line of it."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a constant of the module
        """Name for `format=`."""
        ...

    @property
    def ABOUT(self) -> str:  # noqa: N802 - a constant of the module
        """Short description for messages, from which a user recognises the format."""
        ...

    def matches(self, document: Any) -> bool:
        """Return whether a decoded document has this format."""
        ...

    def read(self, document: Any, out: Collector) -> None:
        """Read a document into the collector; never raises on a bad document."""
        ...


# Strict formats first: `span_list` and `transcript` accept the widest shapes, so they are last.
FORMATS: tuple[TraceFormat, ...] = (
    native,
    otlp,
    trail,
    jaeger,
    langfuse,
    atif,
    coding_sessions,
    zipkin,
    span_list,
    transcript,
)

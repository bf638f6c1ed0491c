"""What went wrong in a span that failed: from its exception event, else from its status.

Promise: only spans that failed get an error; an exception that was recorded and handled is none.
"""

from __future__ import annotations

import re

from proctor.trace.conventions.values import text
from proctor.trace.model import Event, Span

# "RuntimeError: tool exploded", as OpenTelemetry's SDK writes a status description.
_TYPED = re.compile(r"([A-Za-z_][\w.]{0,200}(?:Error|Exception|Timeout|Interrupt))(?:: |$)")


def read_error(span: Span) -> None:
    """Fill the error's type and message; the reader has put the status message in place."""
    event = _exception(span)
    said = span.error_message or None
    if event is not None:
        span.error_type = text(event.attributes.get("exception.type")) or span.error_type
        said = text(event.attributes.get("exception.message")) or said
    if span.error_type is None:
        span.error_type = text(span.attributes.get("error.type"))
    if span.error_type is None and said is not None:
        found = _TYPED.match(said)
        span.error_type = found[1] if found is not None else None
    span.error_message = _without_type(said, span.error_type)


def _without_type(said: str | None, kind: str | None) -> str | None:
    """The message alone: a status description repeats the type in front of it."""
    if said and kind:
        said = said.removeprefix(kind.rpartition(".")[2] + ": ")
    return said or None


def _exception(span: Span) -> Event | None:
    """The last exception recorded: earlier ones may have been caught."""
    for event in reversed(span.events):
        if event.name == "exception":
            return event
    return None

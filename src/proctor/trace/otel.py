"""Bridge to OpenTelemetry: route spans of any instrumentation to their capture.

Guarantees: a capture is the parent of the SDK spans created inside it and vice versa, matched by
trace id, so it works in threads and tasks. A tracer provider set up by the user is used unchanged;
only without one do we install ours, since instrumentations are silent otherwise.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from opentelemetry import context as otel_context
from opentelemetry import trace as otel_trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, StatusCode, TraceFlags

from proctor.trace.model import Event, Span, SpanStatus

if TYPE_CHECKING:
    from contextvars import Token


class Sink:
    """Destination of a capture's spans, with the trace ids routed to it."""

    __slots__ = ("trace_ids",)

    def __init__(self) -> None:
        self.trace_ids: list[str] = []

    def receive(self, span: Span) -> None:
        """Receive a span from an instrumentation or another process."""
        raise NotImplementedError

    def adopt(self, trace_id: str) -> None:
        """Accept the spans of one more trace."""
        self.trace_ids.append(trace_id)
        _sinks[trace_id] = self

    def close(self) -> None:
        """Stop accepting spans."""
        for adopted in self.trace_ids:
            _sinks.pop(adopted, None)


class CapturePosition(NonRecordingSpan):
    """Position of the current task in a capture; acts as a parent span for OpenTelemetry.

    The span context is computed lazily, because it is rarely needed.
    """

    def __init__(self, sink: Sink, trace_id: str, span_id: str) -> None:
        self.sink = sink
        self.trace_id = trace_id
        self.span_id = span_id

    def get_span_context(self) -> SpanContext:
        """Return the span context of this position."""
        return SpanContext(
            int(self.trace_id, 16), int(self.span_id, 16), is_remote=False, trace_flags=_SAMPLED
        )

    def __repr__(self) -> str:
        return f"NonRecordingSpan({self.get_span_context()!r})"


here: ContextVar[CapturePosition | None] = ContextVar("proctor_capture", default=None)

ContextTokens: TypeAlias = "tuple[Token[CapturePosition | None], Token[Context]]"
"""Tokens that `leave` resets: ours, and OpenTelemetry's."""

TRACE_DIGITS = 32
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_STATUS = {
    StatusCode.UNSET: SpanStatus.UNSET,
    StatusCode.OK: SpanStatus.OK,
    StatusCode.ERROR: SpanStatus.ERROR,
}

# `set_span_in_context` copies the context twice, which is too slow once per trial.
(_SPAN_KEY,) = otel_trace.set_span_in_context(otel_trace.INVALID_SPAN, Context())

_sinks: dict[str, Sink] = {}
_installing = threading.Lock()
_listened: set[int] = set()
_listened_last: object = None


class _Listener(SpanProcessor):
    """Route every finished SDK span to the capture with its trace id."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Adopt a trace that an instrumentation starts inside a capture."""
        context = span.get_span_context()
        place = here.get()
        if place is not None and context is not None:
            trace_id = f"{context.trace_id:032x}"
            if trace_id not in _sinks:
                place.sink.adopt(trace_id)

    def on_end(self, span: ReadableSpan) -> None:
        """Route a finished span."""
        context = span.get_span_context()
        sink = _sinks.get(f"{context.trace_id:032x}") if context is not None else None
        if sink is not None:
            sink.receive(from_sdk(span))


def listen(trace_id: str, sink: Sink) -> None:
    """Route spans of this trace, and of traces started in it, to the sink until it is closed."""
    # A user may set up a provider between two captures.
    if otel_trace.get_tracer_provider() is not _listened_last:
        _install()
    sink.adopt(trace_id if len(trace_id) == TRACE_DIGITS else trace_id.zfill(TRACE_DIGITS))


def deliver(span: Span) -> bool:
    """Route a span from another process; return False when no capture expects it."""
    sink = _sinks.get(span.trace_id)
    if sink is not None:
        sink.receive(span)
    return sink is not None


def _install() -> None:
    """Attach to the current tracer provider, including one set up later."""
    global _listened_last  # noqa: PLW0603 (there is one provider in force in a process)
    provider = otel_trace.get_tracer_provider()
    # Captures may start in several threads at once; two processors would deliver spans twice.
    with _installing:
        if not hasattr(provider, "add_span_processor"):
            otel_trace.set_tracer_provider(TracerProvider())
            provider = otel_trace.get_tracer_provider()
        if id(provider) not in _listened and isinstance(provider, TracerProvider):
            provider.add_span_processor(_Listener())
            _listened.add(id(provider))
        _listened_last = provider


def enter(sink: Sink, trace_id: str, span_id: str) -> ContextTokens:
    """Make one of our spans the parent of new spans, including those of SDKs."""
    place = CapturePosition(sink, trace_id, span_id)
    around = otel_context.get_current()
    inside = Context({**around, _SPAN_KEY: place} if around else {_SPAN_KEY: place})
    return here.set(place), otel_context.attach(inside)


def leave(tokens: ContextTokens) -> None:
    """Undo `enter`."""
    # In the reverse order of `enter`.
    otel_context.detach(tokens[1])
    here.reset(tokens[0])


def traceparent() -> str | None:
    """Return the current position as a W3C `traceparent` header for other processes."""
    place = otel_trace.get_current_span().get_span_context()
    if not place.is_valid:
        return None
    return f"00-{place.trace_id:032x}-{place.span_id:016x}-01"


def innermost(trace_id: str) -> str | None:
    """Return the id of the current span of this trace, ours or an instrumentation's."""
    place = otel_trace.get_current_span().get_span_context()
    return f"{place.span_id:016x}" if place.trace_id == int(trace_id, 16) else None


def from_sdk(span: ReadableSpan) -> Span:
    """Convert a finished SDK span to ours, not yet normalised."""
    context = span.get_span_context()
    status = span.status
    scope = span.instrumentation_scope
    return Span(
        span_id=f"{context.span_id if context else 0:016x}",
        trace_id=f"{context.trace_id if context else 0:032x}",
        parent_id=f"{span.parent.span_id:016x}" if span.parent is not None else None,
        name=span.name,
        status=_STATUS[status.status_code],
        start_ns=span.start_time or 0,
        end_ns=span.end_time,
        attributes={key: _plain(value) for key, value in (span.attributes or {}).items()},
        events=tuple(
            Event(name=e.name, time_ns=e.timestamp, attributes=dict(e.attributes or {}))
            for e in span.events
        ),
        scope=scope.name if scope is not None else None,
        error_message=status.description or None,
    )


def _plain(value: Any) -> Any:
    return list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value

"""See the model calls of agents that run in this process, without instrumentation.

    with proctor.capture(query="…") as trace:
        ...        # every request to a model becomes a span of the capture

Guarantees: a call that an instrumentation recorded as well is one span, the instrumentation's, with
what it lacks filled in. Tool calls that no span shows are inferred from the messages (a model
requested the call, a later request contains its result) and marked `proctor.inferred`. Requests
outside a capture, and those to anything but a model, are left alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING

from proctor.llm.http_hook import install, uninstall
from proctor.llm.protocols import Protocol, model_protocol, read_model_call
from proctor.trace import otel
from proctor.trace.capture import Capture, Recorder, new_span_id
from proctor.trace.conventions import merge_models, merge_tools, recover_calls, same_reply
from proctor.trace.conventions.messages import FAILED
from proctor.trace.model import Message, Span, SpanKind, SpanStatus, ToolCall, Trace

if TYPE_CHECKING:
    from proctor.llm.cassette import RecordedResponse

SCOPE = "proctor.http"
"""The scope of spans made from HTTP requests."""

INFERRED = "proctor.inferred"
"""Attribute of a tool call that was derived from messages instead of being recorded."""

# Clocks of an instrumentation and ours differ by what runs between them: a span of the same call
# may seem to begin a moment after the request.
_TOLERANCE_NS = 5_000_000

_OBSERVATION = re.compile(r"\s*Observations?:\s*")

_Result = tuple[Span, Message]
"""A tool's result, and the model call that sent it."""

_FILLED = ("model", "input_tokens", "output_tokens", "input_messages", "output_messages")


@contextmanager
def observing(trace: Trace | None = None) -> Generator[None]:
    """Record the model calls of captures inside the block; `trace` is completed at its end."""
    install(_intercept)
    try:
        yield
    finally:
        uninstall(_intercept)
        if trace is not None:
            complete(trace)


capture = Capture(around=observing)
"""`proctor.capture`: sees the model calls of its block, as a trial does."""


def _intercept(method: str, url: str) -> Callable[[bytes], _ObservedCall] | None:
    place = otel.here.get()
    if place is None or not isinstance(place.sink, Recorder):
        return None
    protocol = model_protocol(method, url)
    if protocol is None:
        return None
    recorder = place.sink
    parent = otel.innermost(place.trace_id) or place.span_id
    return lambda body: _ObservedCall(protocol, url, body, recorder, parent)


class _ObservedCall:
    """One model call: an open span from the request on, filled when the response is complete."""

    def __init__(
        self, protocol: Protocol, url: str, body: bytes, recorder: Recorder, parent: str
    ) -> None:
        self._protocol: Protocol = protocol
        self._url = url
        self._body = body
        self._recorder = recorder
        self._span = Span(
            span_id=new_span_id(),
            trace_id=recorder.trace.trace_id,
            name="chat",
            kind=SpanKind.LLM,
            parent_id=parent,
            start_ns=recorder.clock(),
            scope=SCOPE,
        )
        # While it is open, so that a trial that is stopped here still shows what it waited for.
        recorder.add(self._span)

    def replay(self) -> RecordedResponse | None:
        return None

    def ended(self, status: int, content_type: str, content: bytes) -> None:
        """Fill the span from the request and the response."""
        span = self._span
        span.end_ns = max(self._recorder.clock(), span.start_ns)
        read_model_call(
            self._protocol, self._url, self._body, content, content_type, status, span=span
        )

    def failed(self, error: BaseException) -> None:
        """Record a call without a response."""
        self.ended(0, "", b"")
        self._span.status = SpanStatus.ERROR
        self._span.error_type = type(error).__name__
        self._span.error_message = str(error)


# -- after the capture -------------------------------------------------------------------------


def complete(trace: Trace) -> None:
    """Leave one span per model call, and add the tool calls that only messages show."""
    if not any(span.scope == SCOPE for span in trace.spans):
        return
    _merge_repeated(trace)
    trace.forget()
    merge_models(trace.index)
    merge_tools(trace.index)
    recover_calls(trace.index.spans)
    _infer_tools(trace)
    trace.forget()


def _merge_repeated(trace: Trace) -> None:
    """Remove our span of every call that an instrumentation has recorded, too.

    The instrumentation's span is the one around ours, or else one with the same response id, or
    else the one that was open when the request was sent. It keeps its own values; a client that
    retries sends several requests within one span, of which the last counts.
    """
    others = [s for s in trace.spans if s.kind is SpanKind.LLM and s.scope != SCOPE]
    if not others:
        return
    by_id = {span.span_id: span for span in trace.spans}
    around = {s.span_id: _around(s, by_id) for s in trace.spans if s.scope == SCOPE}
    answered = Counter(
        outer.span_id
        for inner, outer in around.items()
        if outer is not None and by_id[inner].status is not SpanStatus.ERROR
    )
    for outer in others:
        if answered[outer.span_id] > 1:
            outer.kind = SpanKind.AGENT  # a loop of calls, whatever its producer says
    others = [s for s in others if s.kind is SpanKind.LLM]
    kept: list[Span] = []
    taken: Counter[str] = Counter()
    for span in trace.spans:
        if span.scope != SCOPE:
            kept.append(span)
            continue
        same = around[span.span_id]
        if same is None or same.kind is not SpanKind.LLM:
            same = _recorded_as(span, others, taken)
        if same is None:
            kept.append(span)
            continue
        if span.status is not SpanStatus.ERROR:
            taken[same.span_id] += 1
            for name in _FILLED:
                if not getattr(same, name) and getattr(span, name):
                    setattr(same, name, getattr(span, name))
            same.attributes = {**span.attributes, **same.attributes}
            if same.end_ns is not None and span.end_ns is not None:
                same.end_ns = max(same.end_ns, span.end_ns)
    trace.spans[:] = kept


def _around(span: Span, by_id: dict[str, Span]) -> Span | None:
    """Return the innermost model call among the ancestors of a span."""
    seen = {span.span_id}
    above = by_id.get(span.parent_id or "")
    while above is not None and above.span_id not in seen:
        if above.kind is SpanKind.LLM and above.scope != SCOPE:
            return above
        seen.add(above.span_id)
        above = by_id.get(above.parent_id or "")
    return None


def _recorded_as(span: Span, others: list[Span], taken: Counter[str]) -> Span | None:
    identity = span.attributes.get("gen_ai.response.id")
    if identity is not None:
        for other in others:
            if other.attributes.get("gen_ai.response.id") == identity:
                return other
    open_then = [
        other
        for other in others
        if other.start_ns - _TOLERANCE_NS <= span.start_ns
        and (other.end_ns is None or span.start_ns <= other.end_ns)
        and not taken[other.span_id]
    ]
    if not open_then:
        # A stream that is requested when it is read: its span seems to have ended before.
        return max(
            (
                other
                for other in others
                if other.parent_id == span.parent_id
                and other.start_ns <= span.start_ns
                and not taken[other.span_id]
                and other.input_tokens in (None, span.input_tokens)
                and (not other.output_messages or same_reply(other, span))
            ),
            key=lambda other: other.start_ns,
            default=None,
        )
    # Calls side by side: the same reply tells which is which, otherwise the order does.
    said = [other for other in open_then if same_reply(other, span)]
    return min(said or open_then, key=lambda other: other.start_ns, default=None)


def _infer_tools(trace: Trace) -> None:
    """Add a span for each tool call with a result in a later request and no span of its own."""
    calls = sorted(
        (s for s in trace.spans if s.kind is SpanKind.LLM), key=lambda s: (s.start_ns, s.span_id)
    )
    shown = [s for s in trace.spans if s.kind is SpanKind.TOOL]
    ids = {s.tool_call_id for s in shown if s.tool_call_id}
    # Instrumentations that record no id: as many calls of a tool are shown as have spans.
    unnamed = Counter(s.tool_name for s in shown if not s.tool_call_id)
    results = _first_results(calls)
    for position, call in enumerate(calls):
        requests = [c for m in call.output_messages for c in m.tool_calls]
        following = calls[position + 1 :]
        found = [results.get(requested.id or "") for requested in requests]
        if not any(found):
            found = _results_in_order(requests, following)
        if not any(found) and len(requests) == 1:
            found = [_observation(following)]
        for requested, result in zip(requests, found, strict=True):
            if result is None or requested.id in ids or result[0].start_ns < call.start_ns:
                continue
            if requested.id:
                ids.add(requested.id)
            if unnamed[requested.name] > 0:
                unnamed[requested.name] -= 1
                continue
            later, message = result
            failed = FAILED in message.other
            began = call.start_ns if call.end_ns is None else call.end_ns
            trace.spans.append(
                Span(
                    span_id=new_span_id(),
                    trace_id=trace.trace_id,
                    parent_id=call.parent_id,
                    name=requested.name,
                    kind=SpanKind.TOOL,
                    start_ns=began,
                    end_ns=max(later.start_ns, began),
                    attributes={INFERRED: True},
                    scope=SCOPE,
                    tool_name=requested.name,
                    tool_call_id=requested.id,
                    tool_input=requested.arguments,
                    tool_output=message.content,
                    status=SpanStatus.ERROR if failed else SpanStatus.UNSET,
                    error_message=message.content if failed else None,
                )
            )


def _first_results(calls: list[Span]) -> dict[str, _Result]:
    """Return each tool result by its call id, with the first call that sent it."""
    results: dict[str, _Result] = {}
    for call in calls:
        for message in call.input_messages:
            if message.role == "tool" and message.tool_call_id:
                results.setdefault(message.tool_call_id, (call, message))
    return results


def _results_in_order(requests: list[ToolCall], later: list[Span]) -> list[_Result | None]:
    """Return the results that follow requests of Gemini or a local model, which have no ids.

    The first later call that repeats the requests has them, in the order of each tool's requests.
    """
    asked = [(each.name, each.arguments) for each in requests]
    for call in later if asked else ():
        messages = call.input_messages
        for at in range(len(messages) - 1, -1, -1):
            if asked == [(each.name, each.arguments) for each in messages[at].tool_calls]:
                answers = list(takewhile(lambda each: each.role == "tool", messages[at + 1 :]))
                found: list[_Result | None] = []
                for name, _ in asked:
                    own = next((each for each in answers if each.name in (None, name)), None)
                    found.append(own and (call, own))
                    if own is not None:
                        answers.remove(own)
                return found
    return [None] * len(asked)


def _observation(later: list[Span]) -> _Result | None:
    """Return the result that the next request has as text, as smolagents sends it."""
    for call in later[:1]:
        said = call.input_messages[-1].content if call.input_messages else None
        if said is not None and (found := _OBSERVATION.match(said)):
            return call, Message("tool", said[found.end() :].strip())
    return None

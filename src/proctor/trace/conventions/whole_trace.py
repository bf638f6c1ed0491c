"""What only the whole trace can tell: the question, the answer, lost argument names, handoffs.

Promise: nothing a producer said is overwritten, except a tool's arguments by the same arguments
with their names. A trace we exported ourselves says everything and is left alone.
"""

from __future__ import annotations

from typing import Any

from proctor.trace.conventions.envelopes import answer, last_said, question
from proctor.trace.conventions.handoffs import find_handoffs, name_managed_agents
from proctor.trace.conventions.proctor import trace_from_attributes
from proctor.trace.conventions.tool_calls import recover_arguments
from proctor.trace.conventions.values import first, identifier
from proctor.trace.model import Span, SpanKind, Trace
from proctor.trace.tree import NO_PARENT

_SESSION_KEYS = (
    "gen_ai.conversation.id",
    "session.id",
    "langfuse.session.id",
    "traceloop.association.properties.session_id",
    "traceloop.association.properties.thread_id",
    "gcp.vertex.agent.session_id",
    "ai.telemetry.metadata.sessionId",
)
_USER_KEYS = (
    "user.id",
    "langfuse.user.id",
    "enduser.id",
    "traceloop.association.properties.user_id",
    "ai.telemetry.metadata.userId",
)
# Kinds whose input is what the user asked, rather than a step on the way.
_ASKED = (SpanKind.AGENT, SpanKind.CHAIN, SpanKind.OTHER)


def finish(trace: Trace) -> None:
    """Fill what needs all spans of a trace, once each of them is normalised."""
    if _is_whole(trace):
        return
    recover_arguments(trace.index.spans)
    name_managed_agents(trace.index)
    find_handoffs(trace.index)
    _fill_facts(trace)


def summarise(trace: Trace) -> None:
    """Fill what `finish` says of the trace itself, and leave its spans as they are."""
    if not _is_whole(trace):
        _fill_facts(trace)


def _is_whole(trace: Trace) -> bool:
    """Whether nothing is left to fill: a record of our own, or a trace without spans."""
    whole = [trace_from_attributes(trace, span) for span in trace.spans]
    return any(whole) or not trace.spans


def _fill_facts(trace: Trace) -> None:
    _unwrap_given(trace)
    spans = trace.index.spans
    if trace.query is None or trace.response is None:
        candidates = _candidates(trace)
        if trace.query is None:
            trace.query = _asked(trace, candidates)
        if trace.response is None:
            trace.response = _answered(trace, candidates)
    if trace.session_id is None:
        trace.session_id = _first_id(spans, _SESSION_KEYS)
    if trace.user_id is None:
        trace.user_id = _first_id(spans, _USER_KEYS)


def _unwrap_given(trace: Trace) -> None:
    """Exports of whole traces give a question and an answer in the producer's envelope."""
    if trace.query is not None:
        trace.query = question(trace.query)
    given: Any = trace.response
    if given is not None:
        trace.response = answer(given)


def _candidates(trace: Trace) -> list[list[Span]]:
    """Where a question comes in and its answer goes out: roots, then agents, then chains."""
    tree = trace.index
    roots = [s for s, parent in zip(tree.spans, tree.parent, strict=True) if parent == NO_PARENT]
    speaking = [span.kind == SpanKind.AGENT or _speaks(span) for span in tree.spans]
    return [
        [span for span in roots if span.kind in _ASKED],
        tree.outermost([span.kind == SpanKind.AGENT for span in tree.spans]),
        [span for span in tree.outermost(speaking) if span.kind == SpanKind.CHAIN],
    ]


def _speaks(span: Span) -> bool:
    return span.kind == SpanKind.CHAIN and span.input is not None and span.output is not None


def _asked(trace: Trace, candidates: list[list[Span]]) -> Any:
    for span in (span for group in candidates for span in group):
        asked = _question_of(span)
        if asked not in (None, "", {}, []):
            return asked
    for span in trace.index.spans:
        if span.kind == SpanKind.LLM:
            said = last_said(span.input_messages, "user")
            if said is None and span.input is not None:
                said = question(span.input)
            if said is not None:
                return said
    return None


def _question_of(span: Span) -> Any:
    if span.input is not None:
        return question(span.input)
    if span.kind != SpanKind.AGENT:
        return None
    # All messages of a run: what was asked stands before the first thing the agent said.
    before: list[Any] = []
    for message in span.input_messages:
        if message.role == "assistant" and before and message.tool_calls:
            break
        before.append(message)
    return last_said(tuple(before), "user")


def _answered(trace: Trace, candidates: list[list[Span]]) -> str | None:
    roots, agents, chains = candidates
    # Agents that ran one after the other: the last one answered.
    for span in (*roots, *reversed(agents), *chains):
        said = answer(span.output) if span.output is not None else None
        said = said or last_said(span.output_messages, "assistant")
        if said:
            return said
    if any(span.failed for span in agents):
        return None  # what it said on the way is no answer
    for span in reversed(trace.index.spans):
        if span.kind == SpanKind.LLM:
            said = last_said(span.output_messages, "assistant")
            if said is None and span.output is not None:
                said = answer(span.output)
            if said:
                return said
    return None


def _first_id(spans: list[Span], keys: tuple[str, ...]) -> str | None:
    """The id on the earliest span that names one."""
    for span in spans:
        found = identifier(first(span.attributes, keys))
        if found is not None:
            return found
    return None

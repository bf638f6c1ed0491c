"""Define Span and Trace: the steps of an agent, independent of the wire format.

Guarantees: every importer and the capture API produce exactly these fields, so no caller needs to
know a wire format. Spans are compact structs, because there can be a million of them; totals,
sequences and the tree are derived, never stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from proctor.trace.query import Matcher, as_mask
from proctor.trace.tree import SpanNode, SpanTree

Number = TypeVar("Number", int, float)

Observable = Literal["model_calls", "tool_calls", "arguments"]
"""Kinds of work that a trace may or may not show; `arguments` are those of tool calls."""

NO_TOOLS_OFFERED = "proctor.no_tools_offered"
"""Attribute of a model span whose request, which we saw, has no tools."""

EVERYTHING: tuple[Observable, ...] = ("model_calls", "tool_calls", "arguments")

ANSWER_TOOL = re.compile(r"final_answer|final_result(?:_\w+)?")
"""Tools with which smolagents and pydantic-ai have a model return its answer: nothing is called."""

_TEXT_CALL = re.compile(
    r"^\s*Action(?: Input)?\s*:|\[\[ ## next_tool_name ## \]\]|<tool_call>|<function=",
    re.MULTILINE,
)
"""How models without an interface for tools request them: ReAct, DSPy and model templates."""

EVALUATION = "gen_ai.evaluation.result"
"""The event with which OpenTelemetry's GenAI conventions record an evaluation of a span."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SpanKind(StrEnum):
    """The role of a span in an agent's work."""

    AGENT = "agent"
    PLANNING = "planning"
    LLM = "llm"
    TOOL = "tool"
    RETRIEVAL = "retrieval"
    HANDOFF = "handoff"
    GUARDRAIL = "guardrail"
    RESPONSE = "response"
    CHAIN = "chain"
    ERROR = "error"
    OTHER = "other"


class SpanStatus(StrEnum):
    """The final status of a span. Most instrumentations leave `unset` on success."""

    UNSET = "unset"
    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"


class ToolCall(msgspec.Struct, gc=False, omit_defaults=True):
    """A tool call, requested by a model or executed.

    Inside a message only `name`, `arguments` and `id` are known; a call from a tool span also has
    its `result`, `status` and `span_id`.
    """

    name: str
    arguments: Any = None
    id: str | None = None
    result: Any = None
    status: SpanStatus = SpanStatus.UNSET
    span_id: str | None = None


class Message(msgspec.Struct, gc=False, omit_defaults=True):
    """One chat message. `content` is its text; parts that are not text are listed in `other`."""

    role: str
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    other: tuple[str, ...] = ()


class Document(msgspec.Struct, gc=False, omit_defaults=True):
    """A retrieved document. Any part may be missing: some producers record only a score."""

    id: str | None = None
    text: str | None = None
    score: float | None = None
    metadata: dict[str, Any] = {}


class Event(msgspec.Struct, gc=False, omit_defaults=True):
    """A timestamped event inside a span."""

    name: str
    time_ns: int = 0
    attributes: dict[str, Any] = {}


class Usage(NamedTuple):
    """Tokens and cost of a whole trace, with the number of calls that could not be counted.

    `cost_usd` is the sum over calls with a known price; `unpriced` counts the calls without one, so
    that `cost_usd` is a lower bound unless `unpriced` is 0. A call that failed and reports no usage
    needs none. Unknown values are None, never 0.
    """

    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    calls: int
    unpriced: int

    @property
    def total_tokens(self) -> int | None:
        """Return input plus output tokens; None when neither is known."""
        if self.input_tokens is None and self.output_tokens is None:
            return None
        return (self.input_tokens or 0) + (self.output_tokens or 0)


class Span(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
    """One step of an agent: the wire fields of OpenTelemetry, then the normalised fields.

    Times are nanoseconds since the epoch, UTC. `attributes` are as received; the fields below
    `scope` are normalised from them once, at import.
    """

    span_id: str
    trace_id: str
    name: str
    parent_id: str | None = None
    kind: SpanKind = SpanKind.OTHER
    status: SpanStatus = SpanStatus.UNSET
    start_ns: int = 0
    end_ns: int | None = None
    attributes: dict[str, Any] = {}
    events: tuple[Event, ...] = ()
    scope: str | None = None

    tool_name: str | None = None
    tool_call_id: str | None = None
    tool_input: Any = None
    tool_output: Any = None
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    error_type: str | None = None
    error_message: str | None = None
    agent_name: str | None = None
    handoff_to: str | None = None
    documents: tuple[Document, ...] = ()
    input_messages: tuple[Message, ...] = ()
    output_messages: tuple[Message, ...] = ()
    input: Any = None
    output: Any = None

    @property
    def start(self) -> datetime:
        """Return the start time (UTC; microseconds, see `start_ns` for the exact value)."""
        return _datetime(self.start_ns)

    @property
    def end(self) -> datetime | None:
        """Return the end time; None while the span is open."""
        return None if self.end_ns is None else _datetime(self.end_ns)

    @property
    def duration_ns(self) -> int | None:
        """Return nanoseconds from start to end; None while it is open, and for clocks that differ.

        A span that ends before it starts was timed by two clocks.
        """
        if self.end_ns is None or self.end_ns < self.start_ns:
            return None
        return self.end_ns - self.start_ns

    @property
    def duration(self) -> float | None:
        """Return seconds from start to end; None where `duration_ns` is."""
        return None if (ns := self.duration_ns) is None else ns / 1e9

    @property
    def failed(self) -> bool:
        """Return whether the span ended in an error or a timeout."""
        return self.status in (SpanStatus.ERROR, SpanStatus.TIMEOUT)


TURN = "proctor.turn"
"""Attribute of the span of a turn in a conversation: its number, from 1."""

CONVERSATION = "conversation"
"""Key in a trace's metadata: how a conversation went."""

WAITED = "proctor.waited_s"
"""Key in a trace's metadata: seconds that its agent waited for its harness."""

CUT = "proctor.response_cut_from"
"""Key in a trace's metadata: the characters of a response of which only the start is stored."""


class Trace(msgspec.Struct, kw_only=True, dict=True, omit_defaults=True):
    """A tree of spans: the steps of an agent for one request.

    Spans may be in any order, parents may be missing (such a span is a root), and a parent cycle is
    broken at its earliest span and reported in `problems`. `observed` names work that would be
    recorded if the agent did it; without it, a trace shows what its spans show (`observes`).
    """

    trace_id: str
    spans: list[Span] = []
    query: Any = None
    response: str | None = None
    request_id: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    metadata: dict[str, Any] = {}
    problems: list[str] = []
    observed: tuple[Observable, ...] = ()

    # -- the tree ---------------------------------------------------------------------------

    @cached_property
    def index(self) -> SpanTree:
        """Return the tree over `spans`, cached until `add` or `forget` is called."""
        return SpanTree(self.spans)

    def add(self, spans: Iterable[Span]) -> None:
        """Add late spans; one with a known span id replaces the earlier one."""
        by_id = {span.span_id: position for position, span in enumerate(self.spans)}
        for span in spans:
            position = by_id.get(span.span_id)
            if position is None:
                by_id[span.span_id] = len(self.spans)
                self.spans.append(span)
            else:
                self.spans[position] = span
        self.forget()

    def forget(self) -> None:
        """Clear the derived values; call it after changing spans in place."""
        # Only cached properties are in the instance dictionary; fields are in slots.
        vars(self).clear()

    def tree(self, *, max_spans: int = 1000) -> str:
        """Return the trace as indented, readable text."""
        from proctor.trace.render import tree_text

        return tree_text(self, max_spans=max_spans)

    def _repr_html_(self) -> str:
        """Return the tree of spans, for notebooks."""
        from proctor.tables import html_table, html_text

        facts = [("input", self.query), ("output", self.response), ("spans", len(self.spans))]
        table = html_table(f"Trace {self.trace_id}", ("", ""), facts)
        return f"{table}<pre>{html_text(self.tree(max_spans=200))}</pre>"

    def nodes(self) -> list[SpanNode]:
        """Return every span as a node of the tree, by start time."""
        return self.index.nodes()

    def node(self, span_id: str) -> SpanNode | None:
        """Return the node of one span id, or None."""
        return self.index.node(span_id)

    @property
    def roots(self) -> list[SpanNode]:
        """Return spans without a parent in this trace, by start time."""
        return self.index.roots()

    # -- queries ----------------------------------------------------------------------------

    def find(self, query: Matcher) -> list[SpanNode]:
        """Return spans that match a query, mapping or predicate, by start time."""
        return self.index.select(as_mask(query, self.index))

    def first(self, query: Matcher) -> SpanNode | None:
        """Return the earliest span that matches, or None."""
        position = as_mask(query, self.index).find(1)
        return None if position < 0 else self.index.at(position)

    def any(self, query: Matcher) -> bool:
        """Return whether any span matches."""
        return 1 in as_mask(query, self.index)

    def all(self, query: Matcher) -> bool:
        """Return whether every span matches; true for an empty trace."""
        return 0 not in as_mask(query, self.index)

    def count(self, query: Matcher) -> int:
        """Return the number of spans that match."""
        return as_mask(query, self.index).count(1)

    # -- derived ----------------------------------------------------------------------------

    @property
    def started(self) -> datetime | None:
        """Return the earliest start; None without spans."""
        return _datetime(min(s.start_ns for s in self.spans)) if self.spans else None

    @property
    def ended(self) -> datetime | None:
        """Return the latest end; None when no span has ended."""
        ends = [s.end_ns for s in self.spans if s.end_ns is not None]
        return _datetime(max(ends)) if ends else None

    @property
    def duration(self) -> float | None:
        """Return seconds from the earliest start to the latest end; None when no span has ended.

        Without what the agent waited for its harness (rate limits, the start of its process).
        """
        ends = [s.end_ns for s in self.spans if s.end_ns is not None]
        if not ends:
            return None
        seconds = (max(ends) - min(s.start_ns for s in self.spans)) / 1e9
        if seconds < 0:
            return None
        waited = self.metadata.get(WAITED) if self.metadata else None
        return max(0.0, seconds - waited) if isinstance(waited, int | float) else seconds

    def of_kind(self, kind: SpanKind | str) -> list[Span]:
        """Return spans of one kind, by start time."""
        # Building the tree is costly and most traces lack most kinds.
        if not any(span.kind == kind for span in self.spans):
            return []
        return [span for span in self.index.spans if span.kind == kind]

    @property
    def llm_calls(self) -> list[Span]:
        """Return model calls, by start time.

        A model span around another (a gateway around a client, for example) is the same call
        recorded twice, so only the innermost counts.
        """
        if not any(span.kind == SpanKind.LLM for span in self.spans):
            return []
        return self.index.innermost([span.kind == SpanKind.LLM for span in self.index.spans])

    @cached_property
    def tool_calls(self) -> list[ToolCall]:
        """Return executed tool calls, by start time, without those that only return the answer.

        A trace without any tool span returns the calls its models requested instead, unless it
        would have such spans (`observed`); those calls have no result.
        """
        executed = [
            ToolCall(
                name=span.tool_name or span.name,
                arguments=span.tool_input,
                id=span.tool_call_id,
                result=span.tool_output,
                status=span.status,
                span_id=span.span_id,
            )
            for span in self.of_kind(SpanKind.TOOL)
            if not ANSWER_TOOL.fullmatch(span.tool_name or span.name)
        ]
        if executed or "tool_calls" in self.observed:
            return executed
        return [
            ToolCall(name=call.name, arguments=call.arguments, id=call.id, span_id=span.span_id)
            for span in self.llm_calls
            for message in span.output_messages
            for call in message.tool_calls
            if not ANSWER_TOOL.fullmatch(call.name)
        ]

    @cached_property
    def observes(self) -> frozenset[Observable]:
        """Return the kinds of work of which nothing is missing from this trace.

        Zero tool calls mean "none was made" only if tool calls are among them.
        """
        found = set(self.observed)
        requests: set[Observable] = set()
        for span in self.spans:
            if span.kind == SpanKind.LLM:
                found.add("model_calls")
                # The reply of a model has the calls it requests, with their arguments. Of a model
                # that was offered none it says nothing: the agent's code may call its own.
                if span.output_messages and (
                    not span.attributes.get(NO_TOOLS_OFFERED)
                    or any(message.tool_calls for message in span.output_messages)
                ):
                    requests |= {"tool_calls", "arguments"}
            elif span.kind == SpanKind.TOOL:
                found.add("tool_calls")
                if span.tool_input is not None:
                    found.add("arguments")
        if "tool_calls" in found or not any(map(_asks_in_text, self.spans)):
            found |= requests
        return frozenset(found)

    def shows(self, kind: Observable) -> bool:
        """Return whether nothing of this kind of work is missing from the trace."""
        return kind in self.observes

    def observe(self, *kinds: Observable) -> None:
        """Declare work that is recorded whenever it happens."""
        self.observed = tuple(kind for kind in EVERYTHING if kind in (*self.observed, *kinds))
        vars(self).pop("observes", None)
        vars(self).pop("tool_calls", None)

    @property
    def tool_sequence(self) -> list[str]:
        """Return the names of the tools called, in order, with repeats."""
        return [call.name for call in self.tool_calls]

    @property
    def tools_used(self) -> list[str]:
        """Return the names of the tools called, each once, by first use."""
        return list(dict.fromkeys(self.tool_sequence))

    @property
    def handoffs(self) -> list[Span]:
        """Return spans in which one agent hands over to another, by start time.

        Some producers record no separate span for it but mark the agent that hands over.
        """
        return [s for s in self.index.spans if s.kind == SpanKind.HANDOFF or s.handoff_to]

    @property
    def turns(self) -> list[Span]:
        """Return the spans of the turns of a conversation: message as input, answer as output."""
        return [span for span in self.index.spans if TURN in span.attributes]

    @property
    def errors(self) -> list[Span]:
        """Return spans that ended in an error or a timeout, by start time."""
        return [span for span in self.index.spans if span.failed]

    @cached_property
    def usage(self) -> Usage:
        """Return tokens and cost, each call counted once.

        Agent spans repeat (or partly repeat) the usage of their model calls, and some producers
        nest two model spans for one call; so only model spans without a model span with usage below
        them count, and other spans only when no model span has usage at all.
        """
        if not any(
            s.kind == SpanKind.LLM or s.cost_usd is not None or _has_tokens(s) for s in self.spans
        ):
            return Usage(None, None, None, calls=0, unpriced=0)
        spans = self.index.spans
        has_tokens = [_has_tokens(s) for s in spans]
        on_llm = [_has_tokens(s) and s.kind == SpanKind.LLM for s in spans]
        counted = self.index.innermost(on_llm) or self.index.outermost(has_tokens)
        priced = self.index.innermost(
            [s.cost_usd is not None and s.kind == SpanKind.LLM for s in spans]
        ) or self.index.outermost([s.cost_usd is not None for s in spans])
        per_call = any(s.kind == SpanKind.LLM for s in priced)
        # Calls without usage count too, or the cost would look complete.
        calls = max(len(counted), len(self.llm_calls))
        # A call that failed or was cut off, and reports no usage, has no price to know.
        unanswered = sum(
            (call.failed or call.end_ns is None)
            and (call.input_tokens, call.output_tokens, call.cost_usd) == (None, None, None)
            for call in self.llm_calls
        )
        return Usage(
            input_tokens=_sum(s.input_tokens for s in counted),
            output_tokens=_sum(s.output_tokens for s in counted),
            cost_usd=_sum(s.cost_usd for s in priced),
            calls=calls,
            # A price on another span (an agent) covers all of its calls.
            unpriced=max(0, calls - unanswered - len(priced)) if per_call or not priced else 0,
        )

    @property
    def total_tokens(self) -> int | None:
        """Return input plus output tokens of the trace; None when unknown."""
        return self.usage.total_tokens

    @property
    def total_cost(self) -> float | None:
        """Return the known cost in dollars; None when no call has a known price."""
        return self.usage.cost_usd


def _asks_in_text(span: Span) -> bool:
    """Return whether a model requests tools in its text, where a trace cannot show the calls."""
    return span.kind == SpanKind.LLM and any(
        message.content and not message.tool_calls and _TEXT_CALL.search(message.content)
        for message in span.output_messages
    )


def _has_tokens(span: Span) -> bool:
    return span.input_tokens is not None or span.output_tokens is not None


def _sum(values: Iterable[Number | None]) -> Number | None:
    total: Number | None = None
    for value in values:
        if value is not None:
            total = value if total is None else total + value
    return total


def _datetime(nanoseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)

"""Derive the fields that need the whole trace: question, answer, tool calls, handoffs.

Guarantees: no value from the producer is overwritten, except a tool's arguments by the same
arguments with names. A tool call that several layers recorded stays one call. A trace exported by
Proctor is complete and is not changed.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

from proctor.trace.conventions.messages import answer, fill, last_text, question
from proctor.trace.conventions.proctor import TRACE_KEYS, trace_from_attributes
from proctor.trace.conventions.pydantic_ai import ALL_MESSAGES
from proctor.trace.conventions.values import (
    encode_json,
    first,
    identifier,
    is_list,
    is_mapping,
    numbered,
    text,
)
from proctor.trace.model import Span, SpanKind, ToolCall, Trace
from proctor.trace.tree import NO_PARENT, SpanTree

# Infer handoffs that no span records explicitly. A handoff is claimed only on evidence: the
# framework's own transfer tool naming an agent that runs in the trace, or openai-agents siblings
# one after the other. A tool with a similar name (`transfer_to_human_agents`) stays a tool.


_TRANSFER = re.compile(r"(?:transfer_to_|handoff_to_|transfer_back_to_)(.*)", re.DOTALL)
# In this framework agents run in sequence only by handing over.
_OPENAI_AGENTS = "openai_agents"

MAX_TIME = 2**64
"""The end of a span that is still open: later than any time on the wire."""


def find_handoffs(tree: SpanTree) -> None:
    """Mark transfer tools as handoffs, and record the target on the agent that hands over."""
    agents = {_plain(s.agent_name): s.agent_name for s in tree.spans if _is_agent(s)}
    if not agents:
        return
    has_handoff = False
    for span in tree.spans:
        if span.kind == SpanKind.TOOL and (transfer := _TRANSFER.match(span.tool_name or "")):
            target = _plain(transfer[1])
            if target in agents:
                span.kind, span.handoff_to = SpanKind.HANDOFF, agents[target]
        has_handoff = has_handoff or span.kind == SpanKind.HANDOFF
    if not has_handoff and len(agents) > 1:
        _infer_from_siblings(tree)


def _is_agent(span: Span) -> bool:
    return span.kind == SpanKind.AGENT and span.agent_name is not None


def _plain(name: str | None) -> str:
    return (name or "").lower().replace(" ", "_").replace("-", "_")


def _infer_from_siblings(tree: SpanTree) -> None:
    """Infer handoffs of openai-agents without handoff spans: the next agent took over."""
    last: dict[int, Span] = {}
    busy: dict[int, int] = {}
    for span, parent in zip(tree.spans, tree.parent, strict=True):
        if not _is_agent(span) or _OPENAI_AGENTS not in (span.scope or "") or parent == NO_PARENT:
            continue
        # Spans are in start order, so the last one seen is the previous agent.
        before = last.get(parent)
        last[parent] = span
        # While any sibling still runs, the new agent is its helper, called as a tool.
        free = busy.get(parent, 0) <= span.start_ns
        busy[parent] = max(busy.get(parent, 0), span.end_ns or MAX_TIME)
        if before is not None and free and before.agent_name != span.agent_name:
            before.handoff_to = before.handoff_to or span.agent_name


def name_managed_agents(tree: SpanTree) -> None:
    """Set agent names of smolagents, which names runs by class; the manager has the real name."""
    managers: dict[int, list[str]] = {}
    for position, span in enumerate(tree.spans):
        if span.kind == SpanKind.AGENT and "smolagents.managed_agents.0.name" in span.attributes:
            managed = numbered(span.attributes, "smolagents.managed_agents")
            managers[position] = [name for each in managed if (name := text(each.get("name")))]
    if not managers:
        return
    for position, span in enumerate(tree.spans):
        if span.kind != SpanKind.AGENT or not span.name.endswith("Agent.run"):
            continue
        manager = tree.parent[position]
        while manager != NO_PARENT and tree.spans[manager].kind != SpanKind.AGENT:
            manager = tree.parent[manager]
        names = managers.get(manager, [])
        # With several managed agents the class alone does not tell which one ran.
        if len(names) == 1:
            span.agent_name = names[0]


# Match executed tool calls with the calls requested by models: by call id, or by the same tool and
# the same values in order. A match adds the argument names, the call id and the result that an
# instrumentation lost, and changes nothing else. Linear in the number of calls.


def recover_calls(spans: list[Span]) -> None:
    """Set the arguments, call ids and results of tool spans that only the messages have."""
    incomplete = [
        span
        for span in spans
        if span.kind == SpanKind.TOOL
        and (span.tool_call_id is None or not is_mapping(span.tool_input) or _lacks_result(span))
    ]
    if not incomplete:
        return
    requests = _Requests(spans)
    results: dict[str, str] = {}
    if any(_lacks_result(span) for span in incomplete):
        for message in (m for s in spans if s.kind == SpanKind.LLM for m in s.input_messages):
            if message.role == "tool" and message.tool_call_id and message.content is not None:
                results.setdefault(message.tool_call_id, message.content)
    for span in incomplete:
        call = requests.of(span)
        if call is not None:
            if span.tool_call_id is None:
                span.tool_call_id = call.id
            if not is_mapping(span.tool_input) and is_mapping(call.arguments):
                span.tool_input = call.arguments
        if _lacks_result(span):
            span.tool_output = results.get(span.tool_call_id or "")


def _lacks_result(span: Span) -> bool:
    return span.tool_output is None and not span.failed


# The call of one tool may be recorded by several layers: a framework and the function it calls, or
# a span for the request, one for the run and one for the function. The outermost stays a tool call.


def merge_tools(tree: SpanTree) -> None:
    """Leave one tool span for each tool call; the layers below it become steps of that call."""
    tools = [at for at, span in enumerate(tree.spans) if span.kind == SpanKind.TOOL]
    open_calls: list[int] = []
    for at in tools:
        span = tree.spans[at]
        open_calls = [o for o in open_calls if _end(tree.spans[o]) > span.start_ns]
        outer = next((o for o in reversed(open_calls) if _is_layer(tree, at, o)), None)
        open_calls.append(at)
        if outer is None:
            continue
        call = tree.spans[outer]
        span.kind = SpanKind.CHAIN
        call.tool_call_id = call.tool_call_id or span.tool_call_id
        if not is_mapping(call.tool_input) and span.tool_input is not None:
            call.tool_input = span.tool_input
        if call.tool_output is None:
            call.tool_output = span.tool_output


def merge_models(tree: SpanTree) -> None:
    """Leave one model span of each call that two instrumentations recorded side by side.

    Model spans inside each other are left as they are: `Trace.llm_calls` counts the innermost.
    """
    models = [at for at, span in enumerate(tree.spans) if span.kind == SpanKind.LLM]
    open_calls: list[int] = []
    for at in models:
        span = tree.spans[at]
        open_calls = [o for o in open_calls if _end(tree.spans[o]) > span.start_ns]
        for other in open_calls:
            call = tree.spans[other]
            if _is_same_call(span, call) and not _is_above(tree, other, at):
                span.kind = SpanKind.CHAIN
                for name in ("model", "input_tokens", "output_tokens", "cost_usd"):
                    fill(call, name, getattr(span, name))
                call.input_messages = call.input_messages or span.input_messages
                call.output_messages = call.output_messages or span.output_messages
                break
        else:
            open_calls.append(at)


def _is_same_call(one: Span, other: Span) -> bool:
    """Return whether two model spans of different producers have the same reply."""
    if one.scope == other.scope or _end(one) > _end(other):
        return False
    ids = [identifier(s.attributes.get("gen_ai.response.id")) for s in (one, other)]
    if all(ids):
        return ids[0] == ids[1]
    if one.output_messages and other.output_messages:
        return same_reply(one, other)
    used = [(s.input_tokens, s.output_tokens) for s in (one, other)]
    return used[0] == used[1] != (None, None)


def same_reply(one: Span, other: Span) -> bool:
    """Return whether two model spans have the same text and request the same tools."""
    ours, theirs = (
        [(m.content or "", [call.name for call in m.tool_calls]) for m in span.output_messages]
        for span in (one, other)
    )
    return bool(ours) and ours == theirs


def _end(span: Span) -> int:
    return MAX_TIME if span.end_ns is None else span.end_ns


def _is_above(tree: SpanTree, above: int, below: int) -> bool:
    while below not in (NO_PARENT, above):
        below = tree.parent[below]
    return below == above


def _is_layer(tree: SpanTree, inner: int, outer: int) -> bool:
    """Return whether two tool spans record one call: nested, or by two producers, and alike."""
    one, other = tree.spans[inner], tree.spans[outer]
    nested = _is_above(tree, outer, inner)
    # Layers that do not know each other are siblings; they are then one inside the other in time.
    if not nested and (one.scope == other.scope or _end(one) > _end(other)):
        return False
    if one.tool_call_id and other.tool_call_id and one.tool_call_id != other.tool_call_id:
        return False
    # Clients of MCP put the server's name in front: `mcp__weather__get_weather`.
    names = {_plain((s.tool_name or s.name).rpartition("__")[2]) for s in (one, other)}
    if len(names) > 1:
        return False
    given, also = one.tool_input, other.tool_input
    if is_mapping(given) and is_mapping(also):
        # The function's own record may also have its defaults.
        few, many = sorted((given, also), key=len)
        return all(key in many and many[key] == few[key] for key in few)
    return given == also or given is None or also is None or nested


class _Requests:
    """The tool calls requested by models, each once: nested model spans repeat them."""

    def __init__(self, spans: list[Span]) -> None:
        self._by_id: dict[str, ToolCall] = {}
        self._by_value: dict[str, deque[ToolCall]] = defaultdict(deque)
        self._matched: set[int] = set()
        messages = (m for s in spans if s.kind == SpanKind.LLM for m in s.output_messages)
        for call in (call for message in messages for call in message.tool_calls):
            if call.id is not None:
                if call.id in self._by_id:
                    continue
                self._by_id[call.id] = call
            for key in _keys(call.name, call.arguments):
                self._by_value[key].append(call)

    def of(self, span: Span) -> ToolCall | None:
        """Return the request of a tool span: by its call id, else the first with equal values."""
        if span.tool_call_id is not None:
            return self._by_id.get(span.tool_call_id)
        waiting = self._by_value.get(_key(span.tool_name or span.name, span.tool_input))
        while waiting:
            call = waiting.popleft()
            if id(call) not in self._matched:
                self._matched.add(id(call))
                return call
        return None


def _keys(name: str, arguments: Any) -> Iterator[str]:
    """Yield the forms in which a span may record these arguments: all, values, single value."""
    yield _key(name, arguments)
    if is_mapping(arguments) and arguments:
        values = list(arguments.values())
        yield _key(name, values)
        if len(values) == 1 and not is_list(values[0]) and not is_mapping(values[0]):
            yield _key(name, values[0])


def _key(name: str, arguments: Any) -> str:
    if is_mapping(arguments):
        # Models and tools may write the same arguments in another order.
        arguments = sorted(arguments.items(), key=lambda item: str(item[0]))
        return f"{name} named {encode_json(arguments)}"
    if is_list(arguments):
        return f"{name} listed {encode_json(arguments)}"
    return f"{name} alone {arguments}"


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
# Kinds whose input is the user's question, rather than an intermediate step.
_QUESTION_KINDS = (SpanKind.AGENT, SpanKind.CHAIN, SpanKind.OTHER)


def finish(trace: Trace) -> None:
    """Fill the fields that need all spans, once each span is normalised."""
    if _is_complete(trace):
        return
    # First: handoffs turn tool spans into another kind.
    merge_models(trace.index)
    merge_tools(trace.index)
    recover_calls(trace.index.spans)
    name_managed_agents(trace.index)
    find_handoffs(trace.index)
    if any(ALL_MESSAGES in span.attributes for span in trace.spans):
        trace.observe("tool_calls", "arguments")
    _fill_trace_fields(trace)


def summarise(trace: Trace) -> None:
    """Fill only the trace-level fields of `finish`, without changing the spans."""
    if not _is_complete(trace):
        _fill_trace_fields(trace)


def _is_complete(trace: Trace) -> bool:
    """Return whether nothing is left to fill: a Proctor record, or a trace without spans."""
    # A list, not a generator: each call also moves the attributes of its span.
    complete = [
        trace_from_attributes(trace, span)
        for span in trace.spans
        if not TRACE_KEYS.isdisjoint(span.attributes)
    ]
    return any(complete) or not trace.spans


def _fill_trace_fields(trace: Trace) -> None:
    # Exports with trace-level fields have the question and answer in their envelopes.
    if trace.query is not None:
        trace.query = question(trace.query)
    response: Any = trace.response
    if response is not None:
        trace.response = answer(response)
    spans = trace.index.spans
    if trace.query is None or trace.response is None:
        candidates = _candidates(trace)
        if trace.query is None:
            trace.query = _find_query(trace, candidates)
        if trace.response is None:
            trace.response = _find_response(trace, candidates)
    if trace.session_id is None:
        trace.session_id = _first_id(spans, _SESSION_KEYS)
    if trace.user_id is None:
        trace.user_id = _first_id(spans, _USER_KEYS)


def _candidates(trace: Trace) -> list[list[Span]]:
    """Return candidate spans for question and answer: roots, then agents, then chains."""
    tree = trace.index
    roots = [s for s, parent in zip(tree.spans, tree.parent, strict=True) if parent == NO_PARENT]
    agent_or_chain = [
        span.kind == SpanKind.AGENT
        or (span.kind == SpanKind.CHAIN and span.input is not None and span.output is not None)
        for span in tree.spans
    ]
    return [
        [span for span in roots if span.kind in _QUESTION_KINDS],
        tree.outermost([span.kind == SpanKind.AGENT for span in tree.spans]),
        [span for span in tree.outermost(agent_or_chain) if span.kind == SpanKind.CHAIN],
    ]


def _find_query(trace: Trace, candidates: list[list[Span]]) -> Any:
    for span in (span for group in candidates for span in group):
        query = _question_of(span)
        if query not in (None, "", {}, []):
            return query
    for span in trace.index.spans:
        if span.kind == SpanKind.LLM:
            content = last_text(span.input_messages, "user")
            if content is None and span.input is not None:
                content = question(span.input)
            if content is not None:
                return content
    return None


def _question_of(span: Span) -> Any:
    if span.input is not None:
        return question(span.input)
    if span.kind != SpanKind.AGENT:
        return None
    # The messages of a whole run: the question precedes the first assistant message.
    before: list[Any] = []
    for message in span.input_messages:
        if message.role == "assistant" and before and message.tool_calls:
            break
        before.append(message)
    return last_text(tuple(before), "user")


def _find_response(trace: Trace, candidates: list[list[Span]]) -> str | None:
    roots, agents, chains = candidates
    # Of agents that ran in sequence, the last one answered.
    for span in (*roots, *reversed(agents), *chains):
        content = answer(span.output) if span.output is not None else None
        content = content or last_text(span.output_messages, "assistant")
        if content:
            return content
    if any(span.failed for span in agents):
        return None  # text before tool calls is no answer
    for span in reversed(trace.index.spans):
        if span.kind == SpanKind.LLM:
            content = last_text(span.output_messages, "assistant")
            if content is None and span.output is not None:
                content = answer(span.output)
            if content:
                return content
    return None


def _first_id(spans: list[Span], keys: tuple[str, ...]) -> str | None:
    """Return the id on the earliest span that has one."""
    ids = (identifier(first(span.attributes, keys)) for span in spans)
    return next((found for found in ids if found is not None), None)

"""Executed tool calls matched with the calls their models asked for.

Promise: a match is by call id, or by the same tool and the same values in order; it adds the
argument names and the call id an instrumentation lost, and changes nothing else. The cost is
linear in the number of calls.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

from proctor.trace.conventions.values import encode_json, is_list, is_mapping
from proctor.trace.model import Span, SpanKind, ToolCall


def recover_arguments(spans: list[Span]) -> None:
    """Give tool spans the argument names and call ids that only the model's request has."""
    tools = [span for span in spans if span.kind == SpanKind.TOOL and _is_lossy(span)]
    if not tools:
        return
    requests = _Requests(spans)
    for span in tools:
        call = requests.of(span)
        if call is None:
            continue
        if span.tool_call_id is None:
            span.tool_call_id = call.id
        if not is_mapping(span.tool_input) and is_mapping(call.arguments):
            span.tool_input = call.arguments


def _is_lossy(span: Span) -> bool:
    return span.tool_call_id is None or not is_mapping(span.tool_input)


class _Requests:
    """The calls that models asked for, each once: nested model spans repeat them."""

    def __init__(self, spans: list[Span]) -> None:
        self._by_id: dict[str, ToolCall] = {}
        self._by_value: dict[str, deque[ToolCall]] = defaultdict(deque)
        self._taken: set[int] = set()
        for call in _asked_for(spans):
            if call.id is not None:
                if call.id in self._by_id:
                    continue
                self._by_id[call.id] = call
            for key in _keys(call.name, call.arguments):
                self._by_value[key].append(call)

    def of(self, span: Span) -> ToolCall | None:
        """The request a tool span answers: of its call id, else the first of its values."""
        if span.tool_call_id is not None:
            return self._by_id.get(span.tool_call_id)
        waiting = self._by_value.get(_key(span.tool_name or span.name, span.tool_input))
        while waiting:
            call = waiting.popleft()
            if id(call) not in self._taken:
                self._taken.add(id(call))
                return call
        return None


def _asked_for(spans: list[Span]) -> Iterator[ToolCall]:
    for span in spans:
        if span.kind == SpanKind.LLM:
            for message in span.output_messages:
                yield from message.tool_calls


def _keys(name: str, arguments: Any) -> Iterator[str]:
    """Everything a span may say of these arguments: them, their values, the only value."""
    yield _key(name, arguments)
    if is_mapping(arguments) and arguments:
        values = list(arguments.values())
        yield _key(name, values)
        if len(values) == 1 and not is_list(values[0]) and not is_mapping(values[0]):
            yield _key(name, values[0])


def _key(name: str, given: Any) -> str:
    if is_mapping(given):
        given = sorted(given.items(), key=lambda item: str(item[0]))
        return f"{name} named {encode_json(given)}"
    if is_list(given):
        return f"{name} listed {encode_json(given)}"
    return f"{name} alone {given}"

"""A trace as moves: each model call with what it was told, what it did and what came back.

Promise: works on any framework's spans. A move's outcome is read from the tool spans that follow
it under the same agent, from the step around it, and from what its next model call was shown.
Text is cut at generous bounds, so that a 4 MB trace costs milliseconds.
"""

from __future__ import annotations

import re
from bisect import insort
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from proctor.trace import SpanKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proctor.trace import Span, Trace
    from proctor.trace.model import Message

MAX_TEXT = 20_000
"""Characters read of one message: the longest of TRAIL's own instructions has 11,000."""

_CODE = re.compile(r"```(?:py|python)?\n(.*?)(?:\n```|\Z)", re.DOTALL)
_CALL = re.compile(r"\b([A-Za-z_]\w*)\(")
_OFFERED = re.compile(r"^\s*[-*] ([a-z_]\w*): ", re.MULTILINE)
_TEXT_CALL = re.compile(r"""['"]name['"]: ['"](\w+)['"], ['"]arguments['"]: (.{0,400})""")
_FAILED = re.compile(r"^(?:Call id: \S+\s*)?(?:Error\b|Traceback \(most recent)", re.MULTILINE)
_PLANNING = re.compile(r"\bplan below\b|<end_plan>")
_SOURCE = re.compile(
    r"\b(?:search\w*|retriev\w+|locat(?:e|ing)|look(?:ing)? up|access(?:ing)?|consult(?:ing)?"
    r"|web\w*|wikipedia|databases?|articles?|papers?|videos?|attached|files?|online|official"
    r"|sources?|documentation|literature|pages?)\b",
    re.IGNORECASE,
)
"""What a plan speaks of when it means to bring in something it does not have yet."""

_GIVES_UP = re.compile(
    r"\b(?:unable to|could ?n[o'’]t|cannot|have attempted|encountered an? (?:issue|error))\b"
    r"|\b(?:does|did|was|were) not\b|\bnot (?:found|available|possible)\b"
    r"|\bno (?:\w+ ){0,6}(?:found|available|located|identified|evidence|sources?)\b",
    re.IGNORECASE,
)

OUTCOME = 350
"""Characters of an answer that say whether there is one; the rest is how it was found."""

ATTRIBUTES = 128
"""OpenTelemetry's default limit of attributes a span: an exporter that meets it drops the oldest,
and with them the beginning of what a model was told."""

ANSWERING = frozenset({"final_answer", "finalanswer", "submit", "submit_answer", "finish"})
"""Names under which frameworks let an agent hand in its answer as a tool call."""


class StepCall(NamedTuple):
    """One thing a move called: a tool by request, in code, or as a span."""

    name: str
    arguments: str

    @property
    def answers(self) -> bool:
        """Whether the call hands in the answer."""
        return self.name.lower() in ANSWERING


@dataclass(slots=True)
class AgentStep:
    """One model call of an agent."""

    span: Span
    agent: str
    told: str
    """The last message the model was shown."""
    rules: str
    """What it was told first: the system prompt, or the first message."""
    text: str
    """What it said, with the calls it asked for."""
    calls: tuple[StepCall, ...]
    tools: tuple[Span, ...]
    """Tool spans that ran because of it."""
    failure: str
    """The error its step or tools ended in; empty when none."""
    index: int = 0
    of: int = 0
    """Its place among the moves of its agent, from 0, and how many those are."""
    came_back: str = ""
    """What the next move of this agent was shown in answer."""
    report: AgentStep | None = None
    """The last move of an agent that worked for this one since its previous move."""

    @property
    def span_id(self) -> str:
        """The id of the model call."""
        return self.span.span_id

    @property
    def cut(self) -> bool:
        """Whether its exporter dropped a part of what it was told: nobody can judge it then."""
        return len(self.span.attributes) >= ATTRIBUTES

    @property
    def answers(self) -> bool:
        """Whether it hands in the answer."""
        return any(call.answers for call in self.calls)

    @property
    def works(self) -> bool:
        """Whether it calls anything besides handing in the answer."""
        return any(not call.answers for call in self.calls)

    @property
    def gives_up(self) -> bool:
        """Whether what it hands in, or else says, is that nothing was found."""
        answers = [call.arguments for call in self.calls if call.answers]
        return bool(_GIVES_UP.search((answers[-1] if answers else self.text)[:OUTCOME]))

    @property
    def plans(self) -> bool:
        """Whether it was asked for a plan."""
        return asks_for_plan(self.told)

    @property
    def sources(self) -> int:
        """How often its text speaks of places to look something up."""
        return len(_SOURCE.findall(self.text))

    @property
    def self_contained(self) -> bool:
        """Of a plan: whether it needs only thought, neither a tool nor a source."""
        tools = {*offered_in(self.rules), *offered_in(self.told)} - ANSWERING
        return not self.sources and not any(name in self.text for name in tools)


@dataclass(slots=True)
class Moves:
    """Every move of a trace, by start time."""

    trace: Trace
    moves: list[AgentStep] = field(default_factory=list[AgentStep])
    strays: list[Span] = field(default_factory=list["Span"])
    """Tool spans that no model call stands behind: plain code called them, or its model calls
    were not recorded."""

    def before(self, move: AgentStep) -> list[AgentStep]:
        """Earlier moves of the same agent."""
        return [m for m in self.moves if m.agent == move.agent and m.index < move.index]

    def after(self, move: AgentStep) -> AgentStep | None:
        """The next move of the same agent."""
        return next(
            (m for m in self.moves if m.agent == move.agent and m.index == move.index + 1), None
        )


class _Reader:
    """Takes moves out of one trace."""

    def __init__(self, trace: Trace) -> None:
        self.tree = trace.index
        self.trace = trace

    @cached_property
    def agents(self) -> list[str]:
        """The nearest agent above each span; the trace's root where there is none.

        Frameworks of graphs open a span each time an agent's turn comes: one of the same name,
        after another and under the same span, is the same agent.
        """
        owners: list[str] = []
        by_position: dict[int, str] = {}
        turns: dict[tuple[str, str], tuple[str, int | None]] = {}
        position = self.tree.position
        for here, span in enumerate(self.tree.spans):
            above = position.get(span.parent_id) if span.parent_id else None
            owner = by_position.get(above, "") if above is not None else ""
            by_position[here] = owner
            if span.kind == SpanKind.AGENT:
                key = (span.parent_id or span.span_id, span.name)
                name, ended = turns.get(key, (span.span_id, None))
                again = ended is not None and ended <= span.start_ns
                by_position[here] = name if again else span.span_id
                turns[key] = (by_position[here], span.end_ns)
            owners.append(owner)
        return owners

    def read(self) -> Moves:
        """Every innermost model call with what surrounds it."""
        calls = {span.span_id for span in self.trace.llm_calls}
        owned: dict[str, list[int]] = {}
        for here, span in enumerate(self.tree.spans):
            if span.span_id in calls or span.kind in (SpanKind.TOOL, SpanKind.RETRIEVAL):
                owned.setdefault(self.agents[here], []).append(here)
        result = Moves(self.trace, strays=self._brought_home(owned, calls))
        for agent, positions in owned.items():
            result.moves.extend(self._of_agent(agent, positions, calls))
        result.moves.sort(key=lambda move: move.span.start_ns)
        for before, move in pairwise(result.moves):
            if before.agent and before.agent != move.agent and move.index:
                move.report = before
        return result

    def _brought_home(self, owned: dict[str, list[int]], calls: set[str]) -> list[Span]:
        """Give tools that run beside their agent, as in a graph's own node for tools, to the
        latest model call that asked for them; the others are returned."""
        spans = self.tree.spans
        loose: set[int] = set()
        for positions in owned.values():
            first = next((n for n, p in enumerate(positions) if spans[p].span_id in calls), None)
            loose |= {*positions[:first]}
            del positions[:first]
        asked: dict[str, int] = {}
        strays: list[Span] = []
        for here, span in enumerate(spans if loose else ()):
            if span.span_id in calls:
                asked |= {call.name: here for call in spoken(span)[1]}
            elif here in loose:
                home = asked.get(span.tool_name or "")
                if home is None:
                    strays.append(span)
                else:
                    insort(owned[self.agents[home]], here)
        return strays

    def _of_agent(self, agent: str, positions: list[int], calls: set[str]) -> list[AgentStep]:
        spans = [self.tree.spans[here] for here in positions]
        starts = [i for i, span in enumerate(spans) if span.span_id in calls]
        moves: list[AgentStep] = []
        for number, start in enumerate(starts):
            end = starts[number + 1] if number + 1 < len(starts) else len(spans)
            tools = tuple(spans[start + 1 : end])
            moves.append(self._move(spans[start], agent, tools))
        for number, move in enumerate(moves):
            move.index, move.of = number, len(moves)
            if number + 1 < len(moves):
                move.came_back = _answer_to(move, moves[number + 1])
                if not move.failure and _FAILED.match(move.came_back):
                    move.failure = move.came_back
        return moves

    def _move(self, span: Span, agent: str, tools: tuple[Span, ...]) -> AgentStep:
        told = span.input_messages
        text, calls = spoken(span)
        offered = {name for message in told[:1] for name in offered_in(content(message))}
        names = offered | {t.tool_name for t in tools if t.tool_name}
        code = "\n".join(_CODE.findall(text))
        found = [*calls, *_calls_in(code, names)]
        seen = {call.name for call in found}
        found += [
            StepCall(t.tool_name or t.name, plain(t.tool_input))
            for t in tools
            if (t.tool_name or t.name) not in seen
        ]
        return AgentStep(
            span=span,
            agent=agent,
            told=content(told[-1]) if told else plain(span.input),
            rules=content(told[0]) if told else "",
            text=text,
            calls=tuple(found),
            tools=tools,
            failure=self._failure(span, tools),
        )

    def _failure(self, span: Span, tools: Sequence[Span]) -> str:
        for failed in (span, *tools):
            if failed.failed:
                return failed.error_message or failed.error_type or "error"
        parent = self.trace.node(span.parent_id) if span.parent_id else None
        if parent is not None and parent.kind == SpanKind.CHAIN and parent.span.failed:
            last = [c.span_id for c in parent.children if c.kind == SpanKind.LLM][-1:]
            if last == [span.span_id]:
                return parent.span.error_message or parent.span.error_type or "error"
        return ""


def asks_for_plan(text: str) -> bool:
    """Whether a prompt, or its end, asks for a plan."""
    return bool(_PLANNING.search(text))


def offered_in(text: str) -> list[str]:
    """The tools that a prompt lists, by name."""
    return _OFFERED.findall(text)


def read_moves(trace: Trace) -> Moves:
    """The moves of a trace."""
    return _Reader(trace).read()


def content(message: Message) -> str:
    """The text of a message, cut."""
    return (message.content or "")[:MAX_TEXT]


def plain(value: Any) -> str:
    """Any captured value as text, cut."""
    return "" if value is None else (value if isinstance(value, str) else repr(value))[:MAX_TEXT]


def spoken(span: Span) -> tuple[str, list[StepCall]]:
    """What a model call said, and the calls it asked for."""
    said = [content(m) for m in span.output_messages if m.content]
    calls = [
        StepCall(c.name, plain(c.arguments)) for m in span.output_messages for c in m.tool_calls
    ]
    text = "\n".join(said) if said else plain(span.output)
    if not calls:
        calls = [StepCall(*found) for found in _TEXT_CALL.findall(text)]
    return text, calls


def _calls_in(code: str, names: set[str]) -> list[StepCall]:
    return [
        StepCall(m.group(1), code[m.end() : m.end() + 200])
        for m in _CALL.finditer(code)
        if m.group(1) in names or m.group(1) in ANSWERING
    ]


def _answer_to(move: AgentStep, following: AgentStep) -> str:
    """What the next model call was shown beyond what the model itself had said."""
    known = len(move.span.input_messages)
    fresh = [
        content(m)
        for m in following.span.input_messages[known:]
        if m.role not in ("assistant", "system") and m.content
    ]
    return "\n".join(fresh)[:MAX_TEXT]

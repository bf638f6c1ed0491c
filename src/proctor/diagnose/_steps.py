"""Read a trace as steps: each model call with its input, its actions and their results.

Guarantees: works on the spans of any framework. A step's outcome is read from the tool spans that
follow it under the same agent, from the enclosing step span, and from the input of the next model
call. Text is truncated at generous limits, so that a 4 MB trace costs milliseconds.
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

# Characters read per message: the longest of TRAIL's own instructions has 11,000.
MAX_TEXT = 20_000

_CODE = re.compile(r"```(?:py|python)?\n(.*?)(?:\n```|\Z)", re.DOTALL)
_CALL = re.compile(r"\b([A-Za-z_]\w*)\(")
_OFFERED = re.compile(r"^\s*[-*] ([a-z_]\w*): ", re.MULTILINE)
_TEXT_CALL = re.compile(r"""['"]name['"]: ['"](\w+)['"], ['"]arguments['"]: (.{0,400})""")
_FAILED = re.compile(r"^(?:Call id: \S+\s*)?(?:Error\b|Traceback \(most recent)", re.MULTILINE)
_PLANNING = re.compile(r"\bplan below\b|<end_plan>")
# Words of a plan that will fetch outside information.
_SOURCE = re.compile(
    r"\b(?:search\w*|retriev\w+|locat(?:e|ing)|look(?:ing)? up|access(?:ing)?|consult(?:ing)?"
    r"|web\w*|wikipedia|databases?|articles?|papers?|videos?|attached|files?|online|official"
    r"|sources?|documentation|literature|pages?)\b",
    re.IGNORECASE,
)

_GIVES_UP = re.compile(
    r"\b(?:unable to|could ?n[o'’]t|cannot|have attempted|encountered an? (?:issue|error))\b"
    r"|\b(?:does|did|was|were) not\b|\bnot (?:found|available|possible)\b"
    r"|\bno (?:\w+ ){0,6}(?:found|available|located|identified|evidence|sources?)\b",
    re.IGNORECASE,
)

# Characters of an answer that show whether there is one; the rest explains how it was found.
OUTCOME = 350

# OpenTelemetry's default limit of attributes per span: an exporter that reaches it drops the
# oldest, and with them the beginning of the model's input.
ATTRIBUTES = 128

# Tool names by which frameworks let an agent submit its answer.
ANSWERING = frozenset({"final_answer", "finalanswer", "submit", "submit_answer", "finish"})


class StepCall(NamedTuple):
    """One call of a step: a tool by request, in code, or as a span."""

    name: str
    arguments: str

    @property
    def answers(self) -> bool:
        """Whether the call submits the answer."""
        return self.name.lower() in ANSWERING


@dataclass(slots=True)
class AgentStep:
    """One model call of an agent."""

    span: Span
    agent: str
    prompt: str
    """The last message the model was shown."""
    rules: str
    """The system prompt, or the first message."""
    text: str
    """Its output, with the calls it requested."""
    calls: tuple[StepCall, ...]
    tools: tuple[Span, ...]
    """Tool spans that ran because of it."""
    failure: str
    """The error of its step or tools; empty without one."""
    index: int = 0
    of: int = 0
    """Its index among the steps of its agent, from 0, and their number."""
    observation: str = ""
    """What the next step of this agent was shown as a result."""
    report: AgentStep | None = None
    """The last step of a sub-agent since this agent's previous step."""
    following: AgentStep | None = None
    """The next step of this agent."""
    planned: bool = False
    """Whether an earlier step of this agent plans."""
    planned_lookups: bool = False
    """Whether such a plan needs a tool or a source."""
    worked: bool = False
    """Whether an earlier step of this agent calls anything besides submitting the answer."""

    @property
    def span_id(self) -> str:
        """The id of the model call."""
        return self.span.span_id

    @property
    def cut(self) -> bool:
        """Whether its exporter dropped part of its input: it cannot be judged then."""
        return len(self.span.attributes) >= ATTRIBUTES

    @property
    def answers(self) -> bool:
        """Whether it submits the answer."""
        return any(call.answers for call in self.calls)

    @property
    def works(self) -> bool:
        """Whether it calls anything besides submitting the answer."""
        return any(not call.answers for call in self.calls)

    @property
    def gives_up(self) -> bool:
        """Whether its answer, or else its output, says that nothing was found."""
        answers = [call.arguments for call in self.calls if call.answers]
        return bool(_GIVES_UP.search((answers[-1] if answers else self.text)[:OUTCOME]))

    @property
    def plans(self) -> bool:
        """Whether its prompt requests a plan."""
        return asks_for_plan(self.prompt)

    @property
    def sources(self) -> int:
        """How often its text mentions places to look something up."""
        return len(_SOURCE.findall(self.text))

    @property
    def self_contained(self) -> bool:
        """For a plan: whether it needs only reasoning, neither a tool nor a source."""
        tools = {*offered_in(self.rules), *offered_in(self.prompt)} - ANSWERING
        return not self.sources and not any(name in self.text for name in tools)


@dataclass(slots=True)
class Steps:
    """Every step of a trace, by start time."""

    trace: Trace
    steps: list[AgentStep] = field(default_factory=list[AgentStep])
    strays: list[Span] = field(default_factory=list["Span"])
    """Tool spans without a model call: plain code called them, or the model calls were not
    recorded.
    """


class _Reader:
    """Build the steps of one trace."""

    def __init__(self, trace: Trace) -> None:
        self.tree = trace.index
        self.trace = trace

    @cached_property
    def agents(self) -> list[str]:
        """Return the nearest agent above each span; the trace's root where there is none."""
        owners: list[str] = []
        by_position: dict[int, str] = {}
        turns: dict[tuple[str, str], tuple[str, int | None]] = {}
        position = self.tree.position
        for here, span in enumerate(self.tree.spans):
            above = position.get(span.parent_id) if span.parent_id else None
            owner = by_position.get(above, "") if above is not None else ""
            by_position[here] = owner
            if span.kind == SpanKind.AGENT:
                # Graph frameworks open a span for each turn of an agent: consecutive spans of one
                # name under the same parent are the same agent.
                key = (span.parent_id or span.span_id, span.name)
                name, ended = turns.get(key, (span.span_id, None))
                again = ended is not None and ended <= span.start_ns
                by_position[here] = name if again else span.span_id
                turns[key] = (by_position[here], span.end_ns)
            owners.append(owner)
        return owners

    def read(self) -> Steps:
        """Return every innermost model call with its context."""
        calls = {span.span_id for span in self.trace.llm_calls}
        owned: dict[str, list[int]] = {}
        for here, span in enumerate(self.tree.spans):
            if span.span_id in calls or span.kind in (SpanKind.TOOL, SpanKind.RETRIEVAL):
                owned.setdefault(self.agents[here], []).append(here)
        result = Steps(self.trace, strays=self._assign_loose_tools(owned, calls))
        for agent, positions in owned.items():
            result.steps.extend(self._of_agent(agent, positions, calls))
        result.steps.sort(key=lambda step: step.span.start_ns)
        for before, step in pairwise(result.steps):
            if before.agent and before.agent != step.agent and step.index:
                step.report = before
        return result

    def _assign_loose_tools(self, owned: dict[str, list[int]], calls: set[str]) -> list[Span]:
        """Assign tools that run beside their agent, as in a graph's own tool node, to the latest
        model call that requested them; return the others.
        """
        spans = self.tree.spans
        loose: set[int] = set()
        for positions in owned.values():
            first = next((n for n, p in enumerate(positions) if spans[p].span_id in calls), None)
            loose |= {*positions[:first]}
            del positions[:first]
        requested: dict[str, int] = {}
        strays: list[Span] = []
        for here, span in enumerate(spans if loose else ()):
            if span.span_id in calls:
                requested |= {call.name: here for call in spoken(span)[1]}
            elif here in loose:
                home = requested.get(span.tool_name or "")
                if home is None:
                    strays.append(span)
                else:
                    insort(owned[self.agents[home]], here)
        return strays

    def _of_agent(self, agent: str, positions: list[int], calls: set[str]) -> list[AgentStep]:
        spans = [self.tree.spans[here] for here in positions]
        starts = [i for i, span in enumerate(spans) if span.span_id in calls]
        steps: list[AgentStep] = []
        for number, start in enumerate(starts):
            end = starts[number + 1] if number + 1 < len(starts) else len(spans)
            tools = tuple(spans[start + 1 : end])
            steps.append(self._step(spans[start], agent, tools))
        for number, step in enumerate(steps):
            step.index, step.of = number, len(steps)
        for step, following in pairwise(steps):
            step.following = following
            step.observation = _answer_to(step, following)
            if not step.failure and _FAILED.match(step.observation):
                step.failure = step.observation
            following.planned = step.planned or step.plans
            needs_lookups = step.plans and not step.self_contained
            following.planned_lookups = step.planned_lookups or needs_lookups
            following.worked = step.worked or step.works
        return steps

    def _step(self, span: Span, agent: str, tools: tuple[Span, ...]) -> AgentStep:
        inputs = span.input_messages
        text, calls = spoken(span)
        offered = {name for message in inputs[:1] for name in offered_in(content(message))}
        names = offered | {t.tool_name for t in tools if t.tool_name}
        code = "\n".join(_CODE.findall(text))
        # Calls in code, with 200 characters for the arguments: broken code cannot be parsed.
        in_code = [
            StepCall(match.group(1), code[match.end() : match.end() + 200])
            for match in _CALL.finditer(code)
            if match.group(1) in names or match.group(1) in ANSWERING
        ]
        found = [*calls, *in_code]
        seen = {call.name for call in found}
        found += [
            StepCall(t.tool_name or t.name, plain(t.tool_input))
            for t in tools
            if (t.tool_name or t.name) not in seen
        ]
        return AgentStep(
            span=span,
            agent=agent,
            prompt=content(inputs[-1]) if inputs else plain(span.input),
            rules=content(inputs[0]) if inputs else "",
            text=text,
            calls=tuple(found),
            tools=tools,
            failure=self._failure(span, tools),
        )

    def _failure(self, span: Span, tools: Sequence[Span]) -> str:
        for failed in (span, *tools):
            if failed.failed:
                return failed.error_message or failed.error_type or "error"
        # The error may be on the step span around the calls; it belongs to the last of them.
        parent = self.trace.node(span.parent_id) if span.parent_id else None
        if parent is not None and parent.kind == SpanKind.CHAIN and parent.span.failed:
            below = self.tree.children[self.tree.position[parent.span_id]]
            calls = (self.tree.spans[at] for at in reversed(below))
            last = next((call for call in calls if call.kind == SpanKind.LLM), None)
            if last is not None and last.span_id == span.span_id:
                return parent.span.error_message or parent.span.error_type or "error"
        return ""


def asks_for_plan(text: str) -> bool:
    """Return whether a prompt, or its end, requests a plan."""
    return bool(_PLANNING.search(text))


def offered_in(text: str) -> list[str]:
    """Return the names of the tools a prompt lists."""
    return _OFFERED.findall(text)


def read_steps(trace: Trace) -> Steps:
    """Return the steps of a trace."""
    return _Reader(trace).read()


def content(message: Message) -> str:
    """Return the text of a message, truncated."""
    return (message.content or "")[:MAX_TEXT]


def plain(value: Any) -> str:
    """Return any captured value as text, truncated."""
    return "" if value is None else (value if isinstance(value, str) else repr(value))[:MAX_TEXT]


def spoken(span: Span) -> tuple[str, list[StepCall]]:
    """Return the output of a model call and the calls it requested."""
    texts = [content(m) for m in span.output_messages if m.content]
    calls = [
        StepCall(c.name, plain(c.arguments)) for m in span.output_messages for c in m.tool_calls
    ]
    text = "\n".join(texts) if texts else plain(span.output)
    if not calls:  # some frameworks print the calls of a reply into its text
        calls = [StepCall(*found) for found in _TEXT_CALL.findall(text)]
    return text, calls


def _answer_to(step: AgentStep, following: AgentStep) -> str:
    """Return what the next model call was shown beyond the model's own output."""
    # A conversation repeats: what the earlier call was shown is not new.
    known = len(step.span.input_messages)
    fresh = [
        content(m)
        for m in following.span.input_messages[known:]
        if m.role not in ("assistant", "system") and m.content
    ]
    return "\n".join(fresh)[:MAX_TEXT]

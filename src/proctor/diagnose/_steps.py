"""Read a trace as steps: each model call with its input, its actions and their results.

Guarantees: works on the spans of any framework. A step's outcome is read from the tool spans that
follow it under the same agent, from the enclosing step span, and from the input of the next model
call. Text is truncated at generous limits, so that a 4 MB trace costs milliseconds.

`Steps.acts` numbers what a reader would count: model calls, tool calls of plain code, messages of
a group chat, and the answer.
"""

from __future__ import annotations

import re
from bisect import insort
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from proctor.trace import SpanKind
from proctor.trace.formats.transcript import MESSAGE_INDEX

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
        return gives_up(answers[-1] if answers else self.text)

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
class Act:
    """One thing an agent did, with its number: a model call with its tools, a tool call of plain
    code, a message of a group chat, or the answer.

    Numbers start at 1; of a group chat they are the indexes of the messages, from 0.
    """

    number: int
    agent: str
    span: Span
    text: str
    calls: tuple[StepCall, ...] = ()
    tools: tuple[Span, ...] = ()
    answers: bool = False
    """Whether it gives the answer of the trace."""

    @property
    def results(self) -> list[str]:
        """What its tools returned."""
        return [
            plain(tool.tool_output if tool.tool_output is not None else tool.output)
            for tool in self.tools
        ]


@dataclass
class Steps:
    """Every step of a trace, by start time."""

    trace: Trace
    steps: list[AgentStep] = field(default_factory=list[AgentStep])
    strays: list[Span] = field(default_factory=list["Span"])
    """Tool spans without a model call: plain code called them, or the model calls were not
    recorded.
    """

    @cached_property
    def acts(self) -> list[Act]:
        """Everything the agents did, in order, numbered."""
        return _read_acts(self)

    @cached_property
    def is_group_chat(self) -> bool:
        """Return whether the trace is a log of messages between several agents."""
        return any(MESSAGE_INDEX in act.span.attributes for act in self.acts)

    def act_of(self, span_id: str) -> Act | None:
        """Return the act that a span belongs to, or the last act inside it."""
        return self._by_span.get(span_id)

    @cached_property
    def _by_span(self) -> dict[str, Act]:
        found: dict[str, Act] = {}
        parents = {span.span_id: span.parent_id for span in self.trace.spans}
        for act in self.acts:
            found[act.span.span_id] = act
            found |= {tool.span_id: act for tool in act.tools}
        for act in self.acts:
            # A span around several acts is reported at the last of them.
            above, seen = parents.get(act.span.span_id), set[str]()
            while above is not None and above not in seen:
                seen.add(above)
                if above not in found or found[above].span.span_id != above:
                    found[above] = act
                above = parents.get(above)
        return found


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


# Attributes by which graph frameworks name the node that runs.
_NODES = (
    "langgraph.node",
    "langgraph_node",
    "metadata.langgraph_node",
    "traceloop.association.properties.langgraph_node",
    "graph.node.id",
    "gen_ai.agent.name",
    "agent.name",
)

_ACTING = (SpanKind.LLM, SpanKind.TOOL, SpanKind.RETRIEVAL)


def _agent_names(trace: Trace) -> dict[str, str]:
    """Return who acts in each span: its speaker, graph node or nearest agent; after a handoff, the
    agent it names.
    """
    names: dict[str, str] = {}
    handed: dict[str | None, str] = {}
    for span in trace.index.spans:
        node = next((span.attributes[key] for key in _NODES if span.attributes.get(key)), None)
        name = span.agent_name or (str(node) if node is not None else "")
        if not name and span.kind == SpanKind.AGENT:
            name = span.name
        above = names.get(span.parent_id or "", "")
        names[span.span_id] = name or handed.get(span.parent_id) or above
        if span.handoff_to and span.kind == SpanKind.HANDOFF:
            handed[span.parent_id] = span.handoff_to
    return names


def _read_acts(steps: Steps) -> list[Act]:
    trace, agents = steps.trace, _agent_names(steps.trace)
    spans = trace.index.spans
    acts = [
        Act(0, agents[step.span_id], step.span, step.text, step.calls, step.tools)
        for step in steps.steps
    ]
    inside = {tool.span_id for step in steps.steps for tool in step.tools}
    parents = {span.parent_id for span in spans}
    for span in spans:
        if span.kind == SpanKind.LLM or span.span_id in inside:
            continue
        leaf = span.span_id not in parents
        if span.kind in _ACTING or (leaf and span.kind != SpanKind.AGENT and _notable(span)):
            call = StepCall(span.tool_name or span.name, plain(span.tool_input))
            calls = (call,) if span.kind in _ACTING else ()
            text = plain(span.output) if span.kind not in _ACTING else ""
            acts.append(Act(0, agents[span.span_id], span, text, calls, (span,)))
    acts.sort(key=lambda act: (act.span.start_ns, trace.index.position[act.span.span_id]))
    last = next((act for act in reversed(acts) if act.span.kind == SpanKind.LLM), None)
    answer = plain(trace.response)
    given = last is not None and (not answer or _gives(last, answer))
    if last is not None and given:
        last.answers = True
        # A tool may take the answer.
        last.text = last.text or answer
    elif answer and spans:
        # Plain code, or a framework that records the answer only around everything.
        roots = [span for span in spans if span.parent_id is None or not span.parent_id]
        root = next((span for span in roots if answer in plain(span.output)), spans[0])
        acts.append(Act(0, agents[root.span_id], root, answer, answers=True))
    for number, act in enumerate(acts, start=1):
        index = act.span.attributes.get(MESSAGE_INDEX)
        act.number = index if isinstance(index, int) else number
    return acts


def _gives(act: Act, answer: str) -> bool:
    """Return whether a model call gives the answer, perhaps in another form."""
    said = "\n".join([act.text, *(call.arguments for call in act.calls)])
    if answer in said or (act.text and act.text in answer):
        return True
    words = set(re.findall(r"\w+", answer.lower())[:200])
    return len(words & set(re.findall(r"\w+", said.lower()))) >= 0.5 * len(words)


def _notable(span: Span) -> bool:
    """Return whether a span that is no call is an act: it failed, or holds something."""
    return span.failed or span.error_message is not None or http_status(span) >= 500


def http_status(span: Span) -> int:
    """Return the HTTP status that a span records, or 0."""
    for key in ("http.response.status_code", "http.status_code"):
        value = span.attributes.get(key)
        if isinstance(value, int):
            return value
        if isinstance(value, str) and value.isdigit():
            return int(value)
    return 0


def gives_up(text: str) -> bool:
    """Return whether an answer says that nothing was found."""
    return bool(_GIVES_UP.search(text[:OUTCOME]))


def asks_for_plan(text: str) -> bool:
    """Return whether a prompt, or its end, requests a plan."""
    # A search for plain words is much faster than one for a pattern.
    likely = "plan below" in text or "<end_plan>" in text
    return likely and bool(_PLANNING.search(text))


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

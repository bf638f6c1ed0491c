"""Who handed over to whom, where no span says so itself.

Promise: a handoff is only claimed on evidence: the framework's own transfer tool towards an
agent that runs in the trace, or openai-agents' siblings one after the other. A tool that merely
sounds like a transfer (`transfer_to_human_agents`) stays a tool.
"""

from __future__ import annotations

from proctor.trace.conventions.values import numbered, text
from proctor.trace.model import Span, SpanKind
from proctor.trace.tree import NO_PARENT, SpanTree

_TRANSFERS = ("transfer_to_", "handoff_to_", "transfer_back_to_")
# Agents of this framework run one after the other only by handing over.
_OPENAI_AGENTS = "openai_agents"

MAX_TIME = 2**64
"""The end of a span that is still open: later than any time on the wire."""


def find_handoffs(tree: SpanTree) -> None:
    """Mark transfer tools as handoffs, and say on an agent whom it handed over to."""
    agents = {_plain(s.agent_name): s.agent_name for s in tree.spans if _is_agent(s)}
    if not agents:
        return
    told = False
    for span in tree.spans:
        if span.kind == SpanKind.TOOL and span.tool_name:
            _transfer(span, agents)
        told = told or span.kind == SpanKind.HANDOFF
    if not told and len(agents) > 1:
        _siblings(tree)


def _is_agent(span: Span) -> bool:
    return span.kind == SpanKind.AGENT and span.agent_name is not None


def _plain(name: str | None) -> str:
    return (name or "").lower().replace(" ", "_").replace("-", "_")


def _transfer(span: Span, agents: dict[str, str | None]) -> None:
    for prefix in _TRANSFERS:
        name = span.tool_name or ""
        if name.startswith(prefix) and _plain(name.removeprefix(prefix)) in agents:
            span.kind = SpanKind.HANDOFF
            span.handoff_to = agents[_plain(name.removeprefix(prefix))]
            return


def _siblings(tree: SpanTree) -> None:
    """openai-agents without handoff spans: the next agent under one workflow took over."""
    last: dict[int, Span] = {}
    busy: dict[int, int] = {}
    for span, parent in zip(tree.spans, tree.parent, strict=True):
        if not _is_agent(span) or _OPENAI_AGENTS not in (span.scope or "") or parent == NO_PARENT:
            continue
        before = last.get(parent)
        last[parent] = span
        # While any sibling still runs, the new one is its helper, called as a tool.
        free = busy.get(parent, 0) <= span.start_ns
        busy[parent] = max(busy.get(parent, 0), span.end_ns or MAX_TIME)
        if before is not None and free and before.agent_name != span.agent_name:
            before.handoff_to = before.handoff_to or span.agent_name


def name_managed_agents(tree: SpanTree) -> None:
    """smolagents names runs by their class; the manager knows the agent's real name."""
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
        names = managers.get(_agent_above(tree, position), [])
        if len(names) == 1:
            span.agent_name = names[0]


def _agent_above(tree: SpanTree, position: int) -> int:
    here = tree.parent[position]
    while here != NO_PARENT and tree.spans[here].kind != SpanKind.AGENT:
        here = tree.parent[here]
    return here

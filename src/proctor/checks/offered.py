"""Which tools and agents the models of a trace were offered.

Promise: None when the trace does not say (most instrumentations record definitions only when
asked to), never an empty guess. Every convention keeps them under attributes of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from proctor.trace import Span, Trace
from proctor.trace.conventions.values import structure

# gen_ai: OpenTelemetry; ai.prompt: Vercel; the last two: pydantic-ai and smolagents.
_WHOLE = (
    "gen_ai.tool.definitions",
    "ai.prompt.tools",
    "model_request_parameters",
    "smolagents.tools_names",
)
_NUMBERED = re.compile(
    r"llm\.tools\.\d+\.tool\.json_schema|llm\.request\.functions\.\d+\.name"
    r"|gen_ai\.request\.tools\.\d+\.name"
)
_AGENTS = re.compile(r"smolagents\.managed_agents\.\d+\.name|openai\.agent\.handoff\d+")
_TRANSFERS = ("transfer_to_", "handoff_to_", "transfer_back_to_", "delegate_to_")


def offered_tools(trace: Trace) -> list[str] | None:
    """Names of the tools some model of the trace was offered, by first offer."""
    found = [name for span in trace.index.spans for name in _tools(span)]
    return list(dict.fromkeys(found)) or None


def offered_handoffs(trace: Trace) -> list[str] | None:
    """Agents some model of the trace could hand over to; None when nothing is recorded.

    A transfer tool stands for its agent, in the spelling of the tool.
    """
    agents = [name for span in trace.index.spans for name in _agents(span)]
    tools = offered_tools(trace)
    if tools is None and not agents:
        return None
    for tool in tools or ():
        for prefix in _TRANSFERS:
            if tool.startswith(prefix):
                agents.append(tool.removeprefix(prefix))
                break
    return list(dict.fromkeys(agents))


def same_agent(one: str, other: str) -> bool:
    """Whether two spellings name one agent: case, spaces, `-` and `_` do not tell them apart."""
    return agent_key(one) == agent_key(other)


def agent_key(name: str) -> str:
    """A form in which all spellings of an agent's name are equal."""
    return re.sub(r"[\s_-]+", "_", name.strip()).casefold()


def _tools(span: Span) -> Iterator[str]:
    attributes = span.attributes
    for key in _WHOLE:
        if key in attributes:
            yield from _names(attributes[key])
    for key, value in attributes.items():
        if key.startswith(("llm.", "gen_ai.request.tools")) and _NUMBERED.fullmatch(key):
            yield from _names(value) if key.endswith("json_schema") else [str(value)]


def _agents(span: Span) -> Iterator[str]:
    for key, value in span.attributes.items():
        # A plain prefix first: attributes are many, and few are about agents.
        if key.startswith(("smolagents.", "openai.")) and _AGENTS.fullmatch(key):
            read = structure(value)
            yield from _names([read]) if isinstance(read, Mapping) else [str(value)]


def _names(value: Any) -> Iterator[str]:
    """Names out of definitions in any of the shapes providers use."""
    value = structure(value)
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        inner = fields.get("function")
        if isinstance(fields.get("function_tools"), list):
            yield from _names(fields["function_tools"])
        elif isinstance(inner, Mapping):
            yield from _names(inner)
        elif isinstance(fields.get("name"), str):
            yield fields["name"]
    elif isinstance(value, list | tuple):
        for item in cast("Iterable[Any]", value):
            read = structure(item)
            if isinstance(read, str):
                yield read
            else:
                yield from _names(read)

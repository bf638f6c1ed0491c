"""Resolve a user's agent definition to an agent that can run.

A kind is one class deriving from `AgentConfig`, listed here or published by a package under the
entry point group `proctor.agents`. The module of a kind is imported when it is first used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

from proctor.agents.base import AgentConfig
from proctor.errors import ProctorError, did_you_mean
from proctor.imports import IMPORT_PATH
from proctor.strict import strict_error

# Built-in kinds and the classes of their options.
KINDS = {
    "acp": "proctor.agents._coding:AcpAgentConfig",
    "mini_swe": "proctor.agents._coding:CodingAgentConfig",
    "aider": "proctor.agents._coding:CodingAgentConfig",
    "opencode": "proctor.agents._coding:CodingAgentConfig",
    "qwen": "proctor.agents._coding:CodingAgentConfig",
    "gemini": "proctor.agents._coding:CodingAgentConfig",
    "codex": "proctor.agents._coding:CodingAgentConfig",
    "claude_code": "proctor.agents._coding:CodingAgentConfig",
    "chat": "proctor.agents._chat:ChatAgentConfig",
    "command": "proctor.agents._command:CommandAgentConfig",
    "ensemble": "proctor.agents.ensemble:EnsembleAgentConfig",
    "http": "proctor.agents._http:HttpAgentConfig",
    "human": "proctor.agents._builtin:HumanAgentConfig",
    "langgraph": "proctor.agents.frameworks._langgraph:LangGraphAgentConfig",
    "mcp": "proctor.agents.mcp:McpAgentConfig",
    "openai_agents": "proctor.agents.frameworks._openai_agents:OpenAIAgentsConfig",
    "pydantic_ai": "proctor.agents.frameworks:PydanticAIAgentConfig",
    "python": "proctor.agents._python:PythonAgentConfig",
    "random": "proctor.agents._builtin:RandomAgentConfig",
    "replay": "proctor.agents.replay:ReplayAgentConfig",
    "scripted": "proctor.agents._builtin:ScriptedAgentConfig",
}

# Framework packages → classes whose objects can be used as agents, and their kind.
OBJECTS = {
    ("agents", "AgentBase"): "openai_agents",
    ("langgraph", "Pregel"): "langgraph",
    ("pydantic_ai", "AbstractAgent"): "pydantic_ai",
}

# Entry points of kinds: name → a class deriving from `AgentConfig`.
GROUP = "proctor.agents"

# Entry points of agents: name → options, an `AgentConfig` or a callable.
NAMED_GROUP = "proctor.named_agents"


class UnknownAgentError(ProctorError):
    """Raised for an agent, or a kind of agent, that does not exist."""


def kind_class(kind: str) -> type[AgentConfig]:
    """Return the options class of a kind."""
    place = KINDS.get(kind)
    if place is not None:
        module, _, name = place.partition(":")
        return cast("type[AgentConfig]", getattr(import_module(module), name))
    for entry in entry_points(group=GROUP, name=kind):
        return cast("type[AgentConfig]", entry.load())
    raise UnknownAgentError(
        f"unknown kind of agent {kind!r}", hint=did_you_mean(kind, known_kinds())
    )


def known_kinds() -> list[str]:
    """Return every kind, built in or installed."""
    return sorted({*KINDS, *(entry.name for entry in entry_points(group=GROUP))})


def kind_of_object(value: object) -> str | None:
    """Return the agent kind of a framework object, if any."""
    # By name along the classes, so that no framework is imported to compare with.
    for base in type(value).__mro__:
        package, dot, _ = base.__module__.partition(".")
        # A user's own `agents.py` is a module, not a package.
        if dot and (kind := OBJECTS.get((package, base.__name__))) is not None:
            return kind
    return None


def agent_config(
    options: Mapping[str, Any] | Callable[..., Any], *, base_dir: Path | None = None
) -> AgentConfig:
    """Return the configuration for options (`{kind: python, target: …}`) or an agent object."""
    if isinstance(options, AgentConfig):
        return options
    value: Any = options
    if not isinstance(value, Mapping):
        if (kind := kind_of_object(value)) is not None:
            return cast("Any", kind_class(kind)).of(value)
        if callable(value):
            from proctor.agents._python import PythonAgentConfig

            return PythonAgentConfig.of(value)
        raise UnknownAgentError(
            f"an object of type {type(value).__name__} is not an agent",
            hint="give a function, options with a `kind`, or an object of pydantic-ai, LangGraph "
            "or the OpenAI Agents SDK",
        )
    raw = dict(cast("Mapping[str, Any]", value))
    config_class = kind_class(str(raw.get("kind", "python")))
    if "base_dir" in config_class.model_fields:
        raw.setdefault("base_dir", base_dir)
    try:
        return config_class.model_validate(raw)
    except ValidationError as error:
        kind = str(raw.get("kind", "python"))
        found = strict_error(error, config_class, f"agent of kind {kind!r}")
        raise UnknownAgentError(f"{found.where}: {found.message}", hint=found.hint) from None


# -- agents by name ------------------------------------------------------------------------------

AgentLike = AgentConfig | Mapping[str, Any] | Callable[..., Any]


class NamedAgent(NamedTuple):
    """A named agent, and its source."""

    name: str
    agent: AgentLike
    origin: str


def named_agents(settings: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, NamedAgent]:
    """Return every named agent: built in, installed, and from the settings, which win.

    Installed agents are listed without an import; `find_agent` imports the requested one.
    """
    agents = {name: NamedAgent(name, options, "proctor") for name, options in PROFILES.items()}
    for entry in entry_points(group=NAMED_GROUP):
        package = entry.dist.name if entry.dist is not None else entry.value
        agents[entry.name] = NamedAgent(entry.name, {"entry_point": entry.value}, package)
    for name, options in (settings or {}).items():
        agents[name] = NamedAgent(name, options, "settings")
    return agents


def find_agent(
    name: str, settings: Mapping[str, Mapping[str, Any]] | None = None
) -> NamedAgent | None:
    """Return the agent with this name, or None."""
    named = named_agents(settings).get(name)
    if named is None or named.origin in ("settings", "proctor"):
        return named
    for entry in entry_points(group=NAMED_GROUP, name=name):
        return named._replace(agent=cast("AgentLike", entry.load()))
    return named


def resolve_agent(
    ref: str | AgentLike,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    base_dir: Path | None = None,
    *,
    settings_dir: Path | None = None,
) -> AgentConfig:
    """Return the agent for a name, an import path, options, or a name with overrides.

    Import paths in the settings start at `settings_dir`, all others at `base_dir`.
    """
    if isinstance(ref, str):
        ref = {"name": ref}
    if isinstance(ref, AgentConfig) or not isinstance(ref, Mapping):
        return agent_config(cast("Any", ref), base_dir=base_dir)
    options = dict(cast("Mapping[str, Any]", ref))
    name = options.pop("name", None)
    if name is None or options.get("kind") is not None:
        return agent_config(options, base_dir=base_dir)
    options.pop("kind", None)
    named = find_agent(str(name), settings)
    if named is None:
        if re.fullmatch(IMPORT_PATH, str(name)):
            return agent_config({"kind": "python", "target": name, **options}, base_dir=base_dir)
        raise unknown_agent(str(name), settings)
    place = (settings_dir or base_dir) if named.origin == "settings" else base_dir
    agent = named.agent
    if options:
        if not isinstance(agent, Mapping):
            raise UnknownAgentError(
                f"the agent {name!r} cannot take options here: it is an object, not a definition"
            )
        agent = {**cast("Mapping[str, Any]", agent), **options}
    return agent_config(cast("Any", agent), base_dir=place)


def unknown_agent(
    name: str, settings: Mapping[str, Mapping[str, Any]] | None = None
) -> UnknownAgentError:
    """Return the error for an unknown name."""
    known = named_agents(settings)
    if name in known_kinds():
        hint = f"{name!r} is a kind of agent: write it with its options, as {{kind: {name}, …}}"
    else:
        hint = did_you_mean(name, known) or (
            "`proctor agent list` shows the available agents; package.module:function needs no name"
        )
    return UnknownAgentError(f"there is no agent {name!r}", hint=hint)


# Built-in agents by name: common models with default options, and agents without a model.  A
# profile has the same form as an entry of `agents:`; an entry of the same name replaces it. API
# keys stay in the providers' standard environment variables.


# Providers and their models; a profile has the name of its model.
_MODELS = {
    "openai": "gpt-4o gpt-4o-mini gpt-4.1 gpt-4.1-mini gpt-5 gpt-5-mini gpt-5-nano gpt-5.1 gpt-5.2 "
    "gpt-5.4 gpt-5.4-mini gpt-5.4-nano o4-mini",
    "anthropic": "claude-opus-4-5 claude-opus-4-6 claude-opus-5-5 claude-sonnet-4-5 "
    "claude-sonnet-4-6 claude-sonnet-5-5 claude-haiku-4-5 claude-haiku-5-5",
    "google": "gemini-2.5-pro gemini-2.5-flash gemini-3.1-pro-preview gemini-3.8-flash",
    "deepseek": "deepseek-chat",
    "mistral": "mistral-large-latest",
    "groq": "llama-3.3-70b-versatile",
}

# Name → options. `scripted` without a script follows the scenario's solution.
PROFILES: dict[str, dict[str, Any]] = {
    **{
        model: {"kind": "chat", "model": f"{provider}:{model}"}
        for provider, models in _MODELS.items()
        for model in models.split()
    },
    # Without a version: the newest of the line above.
    "claude-opus": {"kind": "chat", "model": "anthropic:claude-opus-5-5"},
    "claude-sonnet": {"kind": "chat", "model": "anthropic:claude-sonnet-5-5"},
    "claude-haiku": {"kind": "chat", "model": "anthropic:claude-haiku-5-5"},
    "gpt-4": {"kind": "chat", "model": "openai:gpt-4"},
    "gemini-pro": {"kind": "chat", "model": "google:gemini-3.1-pro-preview"},
    "gemini-flash": {"kind": "chat", "model": "google:gemini-3.8-flash"},
    "smollm2": {"kind": "chat", "model": "local:smollm2", "max_tokens": 256},
    "random": {"kind": "random"},
    "human": {"kind": "human"},
    "scripted": {"kind": "scripted"},
}

"""From what a user wrote to an agent that can be run.

A kind is one class deriving `AgentConfig`, listed here or published by a package under the entry
point group `proctor.agents`. Nothing of a kind is imported before an agent of it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from proctor.agents.base import AgentConfig
from proctor.errors import ProctorError, did_you_mean

KINDS = {
    "chat": "proctor.agents.chat:ChatAgentConfig",
    "command": "proctor.agents.command:CommandAgentConfig",
    "http": "proctor.agents.http:HttpAgentConfig",
    "python": "proctor.agents.python:PythonAgentConfig",
    "replay": "proctor.agents.replay:ReplayAgentConfig",
}
"""Built-in kinds and the classes of their options."""

GROUP = "proctor.agents"


class UnknownAgentError(ProctorError):
    """An agent, or a kind of agent, that does not exist."""


def kind_class(kind: str) -> type[AgentConfig]:
    """The class of a kind's options."""
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
    """Every kind there is, built in or installed."""
    return sorted({*KINDS, *(entry.name for entry in entry_points(group=GROUP))})


def agent_config(
    options: Mapping[str, Any] | Callable[..., Any], *, base_dir: Path | None = None
) -> AgentConfig:
    """An agent's configuration from its options (`{kind: python, target: …}`) or a callable."""
    if isinstance(options, AgentConfig):
        return options
    if callable(options):
        from proctor.agents.python import PythonAgentConfig

        return PythonAgentConfig.of(options)
    raw = dict(options)
    config_class = kind_class(str(raw.get("kind", "python")))
    if "base_dir" in config_class.model_fields:
        raw.setdefault("base_dir", base_dir)
    try:
        return config_class.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnknownAgentError(
            f"agent of kind {raw.get('kind', 'python')!r}: {where}: {first['msg']}",
            hint=did_you_mean(where, config_class.model_fields),
        ) from None

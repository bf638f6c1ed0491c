"""Agents: what is under test, each kind in a module of its own.

Start at `Agent` and `AgentConfig`; `registry` finds agents by name or kind. Names are imported
when first used.
"""

from typing import TYPE_CHECKING

from proctor._lazy import imported_when_used

if TYPE_CHECKING:
    from proctor.agents.base import Agent, AgentConfig, AgentError, AgentReply, AgentRequest

__all__ = ["Agent", "AgentConfig", "AgentError", "AgentReply", "AgentRequest"]

if not TYPE_CHECKING:  # otherwise a type checker would accept any name
    _HOME_OF = dict.fromkeys(__all__, "proctor.agents.base")
    __getattr__, __dir__ = imported_when_used(__name__, _HOME_OF, globals())

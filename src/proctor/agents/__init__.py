"""Agents under test, one module per kind.

Start at `Agent` and `AgentConfig`; `registry` finds agents by name or kind. Names are imported on
first use.
"""

from typing import TYPE_CHECKING

from proctor._lazy import imported_when_used

if TYPE_CHECKING:
    from proctor.agents.base import Agent, AgentConfig, AgentError, AgentReply, AgentRequest

__all__ = ["Agent", "AgentConfig", "AgentError", "AgentReply", "AgentRequest"]

if not TYPE_CHECKING:  # without this guard a type checker would accept any attribute name
    _HOME_OF = dict.fromkeys(__all__, "proctor.agents.base")
    __getattr__, __dir__ = imported_when_used(__name__, _HOME_OF, globals())

"""Conversations: turns, scripted and simulated users, checks of turns, state and approvals."""

from typing import TYPE_CHECKING

from proctor._lazy import imported_when_used
from proctor.conversations.checks import ApprovalsCheck, StateCheck, TurnCheck, turn_check, turn_of
from proctor.conversations.play import SimulatorError, converse
from proctor.conversations.user import SimulatedUser, UserStep

if TYPE_CHECKING:
    from proctor.conversations.fidelity import UserFault, user_faults

__all__ = [
    "ApprovalsCheck",
    "SimulatedUser",
    "SimulatorError",
    "StateCheck",
    "TurnCheck",
    "UserFault",
    "UserStep",
    "converse",
    "turn_check",
    "turn_of",
    "user_faults",
]

if not TYPE_CHECKING:
    # Its patterns take a thirtieth of the start of every `proctor run`; few runs have such users.
    _HOME_OF = dict.fromkeys(("UserFault", "user_faults"), "proctor.conversations.fidelity")
    __getattr__, __dir__ = imported_when_used(__name__, _HOME_OF, globals())

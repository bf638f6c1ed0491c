"""Conversations: turns, scripted and simulated users, checks of turns, state and approvals."""

from proctor.conversations.checks import ApprovalsCheck, StateCheck, TurnCheck, turn_check, turn_of
from proctor.conversations.fidelity import UserFault, user_faults
from proctor.conversations.play import SimulatorError, converse
from proctor.conversations.user import SimulatedUser, UserStep

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

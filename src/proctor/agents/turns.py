"""One turn of an agent in a world: what it sees, and what it may do.

A turn is an `AgentRequest`, so every kind of agent can act: its input is a plain mapping with the
task, the observation, the valid actions and what happened so far. Agents in Python that take
`request` get the same as attributes. The past is part of each turn because most kinds remember
nothing between two calls; `history` bounds what that costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proctor.agents.actions import Actions
from proctor.agents.base import AgentRequest

HOW = (
    "Answer with exactly one action and nothing else: one of the list, a value of the kind "
    'described, or for a call {"call": NAME, "arguments": {…}}.'
)
"""Told with each turn, since a model sees nothing but the turn."""


class Turn(AgentRequest):
    """What an agent is asked at one step of an episode."""

    __slots__ = (
        "_trial", "actions", "history", "last", "max_steps", "observation", "picture", "step",
        "task",
    )  # fmt: skip

    def __init__(
        self,
        trial: AgentRequest,
        *,
        observation: Any,
        actions: Actions,
        step: int,
        max_steps: int,
        last: Mapping[str, Any] | None = None,
        history: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(
            None,
            case=trial.case,
            trial=trial.trial,
            index=trial.index,
            seed=trial.seed,
            params=trial.params,
            trace_id=trial.trace_id,
            timeout=trial.timeout,
        )
        self._trial = trial
        self.task = trial.input
        self.observation = observation
        self.actions = actions
        self.step = step
        self.max_steps = max_steps
        self.last = last
        self.history = history
        self.picture: str | None = None
        """The state as the world draws it, for agents that look (see `HumanAgent`)."""
        self.input = self._as_input()

    @property
    def workdir(self) -> Path:
        """The trial's directory: one for the whole episode."""
        return self._trial.workdir

    @property
    def error(self) -> str | None:
        """Why the last answer was no valid action, when it was not."""
        return None if self.last is None else self.last.get("error")

    def _as_input(self) -> dict[str, Any]:
        given: dict[str, Any] = {"task": self.task} if self.task not in (None, "") else {}
        given |= {
            "observation": self.observation,
            "actions": self.actions,
            "how": HOW,
            "step": self.step,
            "max_steps": self.max_steps,
        }
        if self.last is not None:
            given["last"] = self.last
        if self.history:
            given["history"] = self.history
        return given

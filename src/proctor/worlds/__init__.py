"""Worlds an agent acts in: the interface, episodes, Gymnasium environments, an ecosystem.

Worlds are created by name, an episode is one trial, each step is a span.
"""

from proctor.worlds._base import (
    EpisodeOutcome,
    InvalidAction,
    Scores,
    Step,
    Trajectory,
    World,
    WorldError,
    make_world,
)
from proctor.worlds.play import Scoring, episode, world_check

__all__ = [
    "EpisodeOutcome",
    "InvalidAction",
    "Scores",
    "Scoring",
    "Step",
    "Trajectory",
    "World",
    "WorldError",
    "episode",
    "make_world",
    "world_check",
]

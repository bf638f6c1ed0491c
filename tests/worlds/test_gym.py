"""Environments of the Gymnasium package run unchanged."""

import json
import math
from random import Random
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from world_parts import Says, played

from proctor.agents.actions import sample, understand
from proctor.trace.capture import capture
from proctor.worlds import WorldError, make_world
from proctor.worlds._gym import GymWorld, converted, described

RANDOM = {"kind": "random"}


def by_hand(name: str, actions: list[Any], seed: int, **options: Any) -> list[tuple[Any, ...]]:
    """What the environment itself says to the same actions."""
    env = gymnasium.make(name, **options)
    env.reset(seed=seed)
    seen = []
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(
            converted(action, env.action_space)
        )
        seen.append((np.asarray(observation).tolist(), float(reward), terminated, truncated))
    return seen


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("CartPole-v1", "terminated"),
        ("FrozenLake-v1", "terminated"),
        ("Taxi-v4", "truncated"),
        ("Pendulum-v1", "truncated"),
        ("Blackjack-v1", "terminated"),
    ],
)
async def test_real_environments_run_unchanged(name, ends):
    """R-S5: an episode of the random agent equals the environment's own steps."""
    outcome = await played(f"gym:{name}", RANDOM, seed=11, scoring={"total_reward": [-2000, 500]})
    again = await played(f"gym:{name}", RANDOM, seed=11, scoring={"total_reward": [-2000, 500]})
    steps = outcome.trajectory.steps
    seen = [(s.observation, s.reward, s.terminated, s.truncated) for s in steps]
    assert seen == by_hand(name, outcome.trajectory.actions, 11)
    assert outcome.ended == ends
    assert outcome.summary() == again.summary()
    assert outcome.score is not None
    assert 0.0 <= outcome.score <= 1.0
    assert outcome.trajectory.invalid_actions == 0


async def test_a_policy_solves_cartpole_and_scores_by_reward():
    """R-S5: a rule of thumb that leans with the pole scores far better than chance."""

    def lean(observation):
        return 1 if observation["observation"][2] + observation["observation"][3] > 0 else 0

    scoring = {"total_reward": [0, 500]}
    good = await played("gym:CartPole-v1", _agent(lean), seed=1, scoring=scoring)
    chance = await played("gym:CartPole-v1", RANDOM, seed=1, scoring=scoring)
    assert good.score is not None
    assert chance.score is not None
    assert good.score > 0.3 > chance.score
    short = await played("gym:CartPole-v1", _agent(lean), seed=1, scoring=scoring, max_steps=10)
    assert (short.steps, short.ended) == (10, "truncated")


def _agent(function):
    from proctor.agents.registry import agent_config

    return agent_config(function).create()


async def test_words_for_actions_and_text_for_observations():
    """R-S5: agents that read text get actions by name and the rendered state."""
    options = {
        "observe": "text",
        "action_names": ["left", "down", "right", "up"],
        "is_slippery": False,
    }
    way = ["down", "down", "right", "right", "down", "right"]
    with capture("q") as trace:
        outcome = await played(
            "gym:FrozenLake-v1", Says(*way), options, scoring={"total_reward": [0, 1]}
        )
    assert outcome.score == 1.0
    assert trace.tool_sequence == way
    assert outcome.trajectory.first.split() == ["[S]FFF", "FHFH", "FFFH", "HFFG"]
    assert "\x1b" not in str(outcome.trajectory.steps)


class Walled(gymnasium.Env):
    """Tells by a mask that only its last action is open."""

    action_space = spaces.Discrete(3, start=5)
    observation_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {"action_mask": np.array([0, 0, 1], dtype=np.int8)}

    def step(self, action):
        assert action == 7
        return 1, np.float32(1.0), np.bool_(True), False, {"seen": np.int64(3)}


async def test_a_mask_says_what_is_valid_now():
    """R-S5: a user's class works by import path or as an object, and its mask is applied."""
    for seed in range(5):
        outcome = await played(Walled, RANDOM, seed=seed, scoring={"total_reward": [0, 1]})
        assert (outcome.score, outcome.trajectory.actions) == (1.0, [7])
        assert outcome.trajectory.steps[0].info == {"seen": 3}
    agent = Says(5, 7)
    await played(Walled, agent, scoring={"total_reward": [0, 1]})
    assert agent.turns[0].actions == [7]
    assert "5 is not one of 7" in agent.turns[1].error


SPACES = [
    spaces.Discrete(4),
    spaces.Discrete(3, start=-1),
    spaces.Box(-2.0, 2.0, (1,)),
    spaces.Box(np.array([0.0, -1.0], np.float32), np.array([1.0, 5.0], np.float32)),
    spaces.Box(-np.inf, np.inf, (2, 2)),
    spaces.Box(0.0, np.inf, ()),
    spaces.Box(0, 255, (2,), dtype=np.uint8),
    spaces.MultiDiscrete([2, 5]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    spaces.MultiBinary(3),
    spaces.Text(max_length=8, min_length=2),
    spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (1,)))),
    spaces.Sequence(spaces.Discrete(3)),
    spaces.Dict({"go": spaces.Discrete(2), "how": spaces.Dict({"fast": spaces.Box(0, 1, ())})}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
@given(seed=st.integers(0, 2**32))
def test_actions_of_every_space_survive_the_way_through_text(space, seed):
    """R-S5: an action sampled from a description belongs to the space, also after JSON."""
    offered = json.loads(json.dumps(described(space)))
    drawn = sample(offered, Random(seed))
    assert converted(drawn, space) in space
    assert understand(json.dumps(drawn), offered) == drawn


def test_a_space_that_cannot_be_described_is_refused():
    """R-S5: an action space is supported completely or rejected."""

    class Odd(Walled):
        action_space = spaces.Graph(spaces.Box(0, 1, (1,)), None)

    with pytest.raises(WorldError, match="space Graph"):
        make_world(Odd)


def test_nothing_is_unbounded():
    """R-S5: NaN and infinity are never sent to an environment."""
    world = GymWorld(Walled())
    assert world.max_steps is None
    offered = described(spaces.Box(-1.0, 1.0, ()))
    for said in ("NaN", "Infinity", float("nan"), math.inf, "1e999", 2, True, None, [0.5]):
        with pytest.raises(ValueError, match=r"number|outside"):
            understand(said, offered)

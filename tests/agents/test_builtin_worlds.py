"""`random`, `scripted` and `human` in worlds."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from world_parts import Bare, Corridor, Says, played

from proctor.agents._builtin import SavedMoves, ScriptedAgent, converse
from proctor.agents.actions import ActionTurn
from proctor.agents.base import AgentError, AgentRequest
from proctor.agents.registry import agent_config

ROOT = Path(__file__).resolve().parents[2]


class Choices:
    """Ten steps with four things to do, and every other one refused at the first try."""

    def reset(self, *, seed=None):
        self.taken = 0
        return 0, {}

    def actions(self):
        return ["a", "b", "c", {"call": "d", "arguments": {"x": [1, 2]}}]

    def step(self, action):
        self.taken += 1
        return self.taken, 0.0, False, self.taken == 10, {}


async def test_random_draws_each_step_anew_and_repeats_with_its_seed():
    """R-A2: uniform over valid actions at every step, from the trial's seed and the step."""
    runs = [
        (await played(Choices, {"kind": "random"}, seed=s, scoring={"steps": [0, 10]})).trajectory
        for s in range(200)
    ]
    again = await played(Choices, {"kind": "random"}, seed=3, scoring={"steps": [0, 10]})
    assert again.trajectory.actions == runs[3].actions
    by_step = [Counter(str(run.actions[step]) for run in runs) for step in range(10)]
    for counts in by_step:
        calls = (
            counts["{'call': 'd', 'arguments': {'x': 1}}"],
            counts["{'call': 'd', 'arguments': {'x': 2}}"],
        )
        # n = 200, p = 1/4: five standard deviations are 31.
        for count in (counts["a"], counts["b"], counts["c"], sum(calls)):
            assert abs(count - 50) < 31
    assert len({str(run.actions) for run in runs}) > 150


async def test_random_tries_another_action_when_the_world_refuses():
    """R-A2: a refused draw is not repeated until the episode ends."""
    outcomes = [
        await played(Corridor, {"kind": "random"}, {"length": 2}, seed=seed, max_steps=200)
        for seed in range(20)
    ]
    refused = [outcome for outcome in outcomes if outcome.trajectory.invalid_actions]
    assert len([outcome for outcome in refused if outcome.score == 1.0]) > len(refused) / 2 > 2


async def test_scripted_plays_its_actions():
    """R-A2: a list is played step by step, by case, again from the start or not."""
    way = ["right", "right", "right", "open"]
    for options in (
        {"actions": way},
        {"cases": {"c": way}, "actions": ["left"]},
        {"replies": [["left"], way]},
    ):
        outcome = await played(Corridor, {"kind": "scripted", **options}, index=1)
        assert outcome.trajectory.actions == way, options
    looped = await played(Corridor, {"kind": "scripted", "actions": ["right", "left"]}, max_steps=5)
    assert looped.trajectory.actions == ["right", "left", "right", "left", "right"]
    once = {"kind": "scripted", "actions": ["right"], "repeat": False}
    with pytest.raises(AgentError, match=r"only 1 answers are scripted for case 'c'.*step 2"):
        await played(Corridor, once)


async def test_scripted_follows_a_generator_that_may_know_the_truth():
    """R-A2: a generator is sent each turn; only scripted agents get the truth."""
    script = {"kind": "scripted", "script": "world_parts:walk"}
    outcome = await played(Corridor, script, truth={"door": 3})
    assert outcome.score == 1.0
    with pytest.raises(AgentError, match="walk ended at step 3"):
        await played(Corridor, {**script, "options": {"door": "window"}}, truth={"door": 3})
    lists = {"kind": "scripted", "script": "world_parts:from_lists"}
    assert (await played(Corridor, lists, truth={"door": 3})).score == 1.0
    by_turn = await played(Corridor, {"kind": "scripted", "script": "world_parts:by_turn"})
    assert by_turn.score == 1.0
    with pytest.raises(AgentError, match="too_short ended at step 1, before the episode did"):
        await played(Corridor, {"kind": "scripted", "script": "world_parts:too_short"})
    agent = Says("stop")
    await played(Bare, agent, truth={"secret": 1}, scoring={"steps": [0, 1]})
    assert "secret" not in str(agent.turns[0].input)


async def test_scripted_without_a_script_stands_for_the_solution():
    """R-A2: it says so, and where no scenario gives it a course, what to do about it."""
    config = agent_config({"kind": "scripted"})
    agent = config.create()
    assert isinstance(agent, ScriptedAgent)
    assert agent.uses_solution
    with pytest.raises(AgentError, match="no scripted answer") as raised:
        await agent.run(AgentRequest("q", case="c"))
    assert "solution" in raised.value.hint


# -- people --------------------------------------------------------------------------------------

PROGRAM = """
import asyncio, json, sys
sys.path.insert(0, {tests!r})
from world_parts import Corridor, played
from proctor.agents.base import AgentError
try:
    done = asyncio.run(played(
        Corridor, {{"kind": "human", "keep_dir": sys.argv[1]}}, {{"length": int(sys.argv[2])}}
    ))
    print(json.dumps({{"actions": done.trajectory.actions, "score": done.score}}))
except AgentError as error:
    print(json.dumps({{"error": str(error), "hint": error.hint}}))
"""


def at_the_keyboard(tmp_path: Path, typed: str, length: int = 3):
    """A person without a terminal: a process of its own, typing on standard input."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            PROGRAM.format(tests=str(ROOT / "tests")),
            str(tmp_path),
            str(length),
        ],
        input=typed,
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=300,
        check=True,
    )
    return json.loads(done.stdout), done.stderr


def test_a_person_plays_quits_and_goes_on(tmp_path):
    """R-A2: state and valid actions are shown; who quits goes on where they stopped."""
    left, shown = at_the_keyboard(tmp_path, "right\nfly\n/task\n/quit\n")
    assert left["error"] == "the person quit at step 1"
    assert "resume with" in left["hint"]
    assert "step 1 of at most 1000" in shown
    assert '"at": 0' in shown
    assert "2) right" in shown
    assert "fly is not one of left, right" in shown
    assert shown.count("the task") == 2
    assert len(list(tmp_path.iterdir())) == 1
    done, shown = at_the_keyboard(tmp_path, "\nright\n2\nopen\n")
    assert done == {"actions": ["right"] * 3 + ["open"], "score": 1.0}
    assert "This trial was interrupted after 1 moves" in shown
    assert "step 1 of" not in shown
    assert "over after 4 steps (terminated): score 1; the door" in shown
    assert not list(tmp_path.iterdir())


def test_a_person_is_shown_what_the_world_draws(tmp_path):
    """R-A2: a world that can draw itself as text is seen drawn."""
    _, shown = at_the_keyboard(tmp_path, "right\n/quit\n")
    assert "@..D" in shown
    assert ".@.D" in shown


def test_a_person_may_begin_again(tmp_path):
    """R-A2: what was left can be left for good."""
    at_the_keyboard(tmp_path, "right\n/quit\n")
    done, shown = at_the_keyboard(tmp_path, "new\n2\n2\n2\n3\n")
    assert done["score"] == 1.0
    assert "step 1 of" in shown


def test_moves_are_not_repeated_in_another_world(tmp_path):
    """R-A2: where the world shows something else, the person is asked."""
    at_the_keyboard(tmp_path, "right\nright\n/quit\n")
    done, shown = at_the_keyboard(tmp_path, "\n2\nopen\n", length=1)
    assert done == {"actions": ["right", "open"], "score": 1.0}
    assert "step 1 of" in shown


def test_a_terminal_that_goes_away_loses_nothing(tmp_path):
    """R-A2: the end of input is no answer, and the moves are kept."""
    left, _ = at_the_keyboard(tmp_path, "right\n")
    assert left["error"] == "standard input is closed: no answer"
    again, _ = at_the_keyboard(tmp_path, "")
    assert again["error"] == "standard input is closed: no answer"
    assert at_the_keyboard(tmp_path, "\n2\n2\n3\n")[0]["score"] == 1.0


def test_a_file_of_moves_that_cannot_be_read_is_no_obstacle(tmp_path):
    """R-A2: a damaged file restarts the episode and is no error."""
    turn = ActionTurn(AgentRequest("q"), observation={}, actions=["a"], step=0, max_steps=1)
    kept = SavedMoves(tmp_path, turn)
    kept.path.write_text('[{"seen": 1')
    assert SavedMoves(tmp_path, turn).moves == []
    unwritable = SavedMoves(tmp_path / "file" / "below", turn)
    (tmp_path / "file").write_text("")
    unwritable.add(turn, "a")
    assert unwritable.again(turn) is not None


def test_calls_and_numbers_at_the_keyboard():
    """R-A2: calls are shown with what they take; a number alone chooses one that takes nothing."""
    import io

    offered = [
        {"call": "measure", "arguments": {}},
        {"call": "add", "arguments": {"species": ["s1", "s2"]}},
    ]

    def asked(actions, *lines, **rest):
        out = io.StringIO()
        turn = ActionTurn(
            AgentRequest("t\x1b[2J"), observation="o", actions=actions, step=2, max_steps=9, **rest
        )
        return converse(turn, io.StringIO("".join(lines)), out), out.getvalue()

    said, text = asked(offered, "2\n", "add s2\n", last={"reward": 0.5})
    assert said == {"call": "add", "arguments": {"species": "s2"}}
    assert "2) add(species: s1|s2)" in text
    assert "the argument 'species' is missing" in text
    assert "reward: 0.5" in text
    assert asked(offered, "1\n")[0] == {"call": "measure", "arguments": {}}
    said, text = asked({"type": "number", "low": 0, "high": 1}, "7\n", "0.25\n")
    assert said == 0.25
    assert "number 0..1" in text
    _, text = asked(["a"], "/task\n", "a\n", last={"error": "no\x1b[1m"})
    assert "not accepted" in text
    assert "\x1b" not in text

"""Episodes: turns, steps as spans, invalid actions, ends, scores, and whose fault a fault is."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from world_parts import Bare, Broken, Corridor, Says, played

from proctor.agents.base import AgentError, AgentReply, AgentRequest
from proctor.agents.registry import agent_config
from proctor.checks.base import CheckContext, CheckStatus
from proctor.checks.evaluate import evaluate
from proctor.errors import ProctorError
from proctor.spec.case_checks import checks_of
from proctor.spec.suite import Case
from proctor.trace import SpanKind, SpanStatus, Trace
from proctor.trace.capture import capture
from proctor.worlds import WorldError, episode, make_world, world_check
from proctor.worlds.play import HISTORY, MAX_INVALID

RIGHT = ["right", "right", "right", "open"]


async def test_every_step_is_a_tool_span():
    """R-S5: an action is a tool call with its result, below the span of the episode."""
    with capture("q") as trace:
        outcome = await played(Corridor, Says(*RIGHT))
    assert trace.tool_sequence == RIGHT
    calls = [span for span in trace.spans if span.kind == SpanKind.TOOL]
    (episode,) = [span for span in trace.spans if span.name == "episode"]
    assert {span.parent_id for span in calls} == {episode.span_id}
    assert calls[0].tool_output == {"observation": {"at": 1, "door": 3}, "reward": 0.0}
    assert calls[-1].tool_output["ended"] == "terminated"
    assert (outcome.ended, outcome.steps, outcome.score, outcome.answer) == (
        "terminated", 4, 1.0, "open",
    )  # fmt: skip
    assert trace.metadata["world"] == outcome.summary()
    assert msgspec.json.decode(msgspec.json.encode(trace.metadata)) == trace.metadata


async def test_path_checks_hold_in_worlds():
    """R-S5: path checks and the score judge the same trial."""
    case = Case.model_validate(
        {"id": "c", "input": "q", "path": {"forbidden_tools": ["left"], "max_tool_calls": 3}}
    )
    with capture("q") as trace:
        reply = (await _play(Says("right", "left", *RIGHT))).reply
    plan = [world_check(threshold=0.9), *checks_of(case)]
    judged = await evaluate(plan, CheckContext(case, trace, reply.answer))
    by_id = {result.id: result for result in judged}
    assert by_id["world"].status == CheckStatus.PASS
    assert by_id["world"].reason == "1 after 6 steps (terminated); the door; opened 1"
    failed = {result.check for result in judged if result.failed}
    assert failed == {"forbidden_tools", "max_tool_calls"}
    assert reply.metadata["world"]["total_reward"] == 1.0


def _play(agent):
    request = AgentRequest("q", case="c")
    return episode(lambda: make_world(Corridor, {}), agent, request, seed=0)


async def test_an_agent_sees_the_task_the_state_and_the_past():
    """R-S5: each turn is self-contained, for agents without memory."""
    agent = Says(*RIGHT)
    await played(Corridor, agent, task={"task": "leave"})
    first, *_, last = (turn.input for turn in agent.turns)
    assert first["task"] == {"task": "leave"}
    assert first["observation"] == {"at": 0, "door": 3}
    assert first["actions"] == ["left", "right"]
    assert "history" not in first
    assert last["actions"] == ["left", "right", "open"]
    assert last["last"] == {"action": "right", "reward": 0.0}
    assert [past["action"] for past in last["history"]] == ["right"] * 3
    assert msgspec.json.decode(msgspec.json.encode(last)) == last


async def test_the_past_told_is_bounded():
    """R-S5: the history in a turn is bounded, however long the episode is."""
    agent = Says(*["right", "left"] * 40)
    outcome = await played(Corridor, agent, max_steps=80)
    assert outcome.ended == "truncated"
    assert len(agent.turns[-1].history) == HISTORY
    assert agent.turns[-1].history[-1]["step"] == 78


async def test_what_an_agent_does_to_its_turn_changes_nothing():
    """R-S5: the record is the world's, not the agent's."""

    class Vandal(Says):
        async def run(self, request: Any):
            request.observation["at"] = 99
            request.actions.clear()
            for past in request.history:
                past.clear()
            return await super().run(request)

    with capture("q") as trace:
        outcome = await played(Corridor, Vandal(*RIGHT))
    calls = [span for span in trace.spans if span.kind == SpanKind.TOOL]
    assert [call.tool_output["observation"]["at"] for call in calls] == [1, 2, 3, 3]
    assert outcome.trajectory.first == {"at": 0, "door": 3}


async def test_an_invalid_action_is_told_counted_and_asked_again():
    """R-S5: an action that is unreadable, not offered or refused is reported with the reason."""
    agent = Says("fly", "open", "left", *RIGHT)
    with capture("q") as trace:
        outcome = await played(Corridor, agent)
    assert (outcome.score, outcome.steps) == (1.0, 4)
    assert outcome.trajectory.invalid_actions == 3
    reported = [turn.error for turn in agent.turns[1:4]]
    assert reported[0] == "fly is not one of left, right"
    assert reported[2] == "there is a wall on the left"
    failed = [span for span in trace.spans if span.status == SpanStatus.ERROR]
    assert [span.tool_name for span in failed] == ["invalid_action", "invalid_action", "left"]
    assert {span.error_type for span in failed} == {"InvalidAction"}


async def test_an_agent_without_a_valid_action_ends_the_episode():
    """R-S5: an episode without a valid action ends and is scored: a result, not an error."""
    agent = Says("right", *["fly"] * 10)
    outcome = await played(Corridor, agent)
    assert (outcome.ended, outcome.score, outcome.steps) == ("no_valid_action", 0.0, 1)
    assert len(agent.turns) == 2 + MAX_INVALID


async def test_a_flood_is_not_kept():
    """R-S5: an invalid answer of megabytes is cut in the trace."""
    agent = Says("x" * 5_000_000, *RIGHT)
    with capture("q") as trace:
        outcome = await played(Corridor, agent)
    assert outcome.score == 1.0
    assert len(msgspec.json.encode(trace)) < 20_000
    assert len(agent.turns[1].last["said"]) < 3000


@pytest.mark.parametrize("limit", ["play", "make"])
async def test_max_steps(limit):
    """R-S5: an episode ends at the limit of the suite, the world or Proctor."""
    agent = Says(*["right"] * 9)
    request = AgentRequest("q")
    world = make_world(Corridor, {"length": 100}, 5 if limit == "make" else None)
    outcome = await episode(
        lambda: world, agent, request, seed=0, max_steps=5 if limit == "play" else None
    )
    facts = outcome.reply.metadata["world"]
    assert (facts["steps"], facts["truncated"], facts["terminated"]) == (5, True, False)
    assert facts["ended"] == ("max_steps" if limit == "play" else "truncated")


async def test_a_bare_world_takes_text_and_is_unscored():
    """R-S5: reset and step are enough; without a score it is unscored, never zero."""
    with capture("q") as trace:
        outcome = await played(Bare, Says("hello", "stop"), seed=7)
    assert outcome.trajectory.first == "seed 7"
    assert outcome.trajectory.steps[0].observation == "HELLO"
    assert outcome.score is None
    (result,) = await evaluate([world_check()], CheckContext(None, trace, ""))
    assert result.status == CheckStatus.UNSCORED
    assert "give it a scoring rule" in result.reason
    none = await evaluate([world_check()], CheckContext(None, Trace(trace_id="t"), ""))
    assert none[0].status == CheckStatus.UNSCORED


@pytest.mark.parametrize(
    ("scoring", "score"),
    [
        ({"total_reward": [0, 2]}, 0.5),
        ({"total_reward": [0.5, 0]}, 0.0),
        ({"last_reward": [0, 0.5]}, 1.0),
        ({"steps": [4, 0]}, 0.5),
        (lambda trajectory: len(trajectory.actions) / 10, 0.2),
        (lambda trajectory, truth: {"said": truth["x"], "kept": 0.5}, 0.75),
        (lambda trajectory, truth: {"score": 0.1, "kept": 0.5, "reason": "so"}, 0.1),
        (lambda trajectory, truth: 1.5, None),
        (lambda trajectory, truth: float("nan"), None),
        (lambda trajectory, truth: None, None),
    ],
)
async def test_scoring_from_trajectory_and_truth(scoring, score):
    """R-S5: ranges and functions give a score in 0..1; what lies outside is no score."""
    outcome = await played(Bare, Says("a", "stop"), scoring=scoring, truth={"x": 1.0})
    assert outcome.score == score


@pytest.mark.parametrize(
    ("scoring", "message"),
    [
        ({"total_rewards": [0, 1]}, "unknown scoring rule"),
        ({"total_reward": [1, 1]}, "two different numbers"),
        ({"total_reward": 3}, "two different numbers"),
        ({}, "one rule"),
        ("world_parts:nothing", "has no 'nothing'"),
    ],
)
async def test_a_rule_that_cannot_be_is_refused_before_anything_is_played(scoring, message):
    """R-S5: a bad scoring rule costs no episode."""
    agent = Says()
    with pytest.raises(ProctorError, match=message):
        await played(Bare, agent, scoring=scoring)
    assert not agent.turns


async def test_a_world_that_fails_is_not_the_agents_fault():
    """R-S5: a failing world is an error with the steps so far, and the world is closed."""
    made = []

    def factory():
        made.append(Broken())
        return make_world(lambda: made[0])

    with capture("q") as trace, pytest.raises(WorldError, match="the floor gave way"):
        await episode(factory, Says("right", "right"), AgentRequest("q"), seed=0)
    assert trace.metadata["world"]["ended"] == "interrupted"
    assert trace.metadata["world"]["steps"] == 1
    assert trace.metadata["world"]["score"] is None
    assert made[0].closed
    broken = [span for span in trace.spans if span.status == SpanStatus.ERROR]
    assert [span.name for span in broken if span.kind == SpanKind.TOOL] == ["right"]


async def test_a_slow_world_holds_up_nobody():
    """R-S5: a world runs in a thread, so other trials continue and timeouts apply."""
    import threading

    go_on = threading.Event()

    class Slow(Bare):
        def step(self, action):
            go_on.wait(10)
            return super().step(action)

    slow = asyncio.ensure_future(played(Slow, Says("stop"), scoring={"steps": [0, 1]}))
    quick = await played(Bare, Says("stop"), scoring={"steps": [0, 1]})
    assert not slow.done()
    go_on.set()
    assert (await slow).score == quick.score == 1.0


async def test_every_kind_of_agent_can_act(tmp_path: Path):
    """R-A2: a program that is started for each turn plays from the content of the turn."""
    program = tmp_path / "walk.py"
    program.write_text(
        "import json, sys\n"
        "turn = json.load(sys.stdin)['input']\n"
        "done = len(turn.get('history', []))\n"
        "print(json.dumps({'answer': 'open' if 'open' in turn['actions'] else 'right',"
        " 'metadata': {'done': done}}))\n"
    )
    import sys

    outcome = await played(Corridor, {"kind": "command", "command": [sys.executable, str(program)]})
    assert outcome.score == 1.0


async def test_one_agent_and_one_folder_for_the_whole_episode():
    """R-A3: a Python agent keeps its state and its directory from turn to turn."""
    config = agent_config({"kind": "python", "target": "world_parts:Diarist"})
    request = AgentRequest("q", case="c")
    await episode(lambda: make_world(Corridor), config.create(), request, seed=0)
    assert request.used_workdir is not None
    diary = request.used_workdir / "diary.txt"
    assert diary.read_text().split() == ["1", "2", "3", "4"]


async def test_a_recording_cannot_act():
    """R-A2: an agent that returns a recorded trace gets an error in a world."""

    class Recorded(Says):
        async def run(self, request):
            return AgentReply(answer="right", trace=Trace(trace_id="t"))

    with pytest.raises(AgentError, match="recorded trace cannot act"):
        await played(Corridor, Recorded())


@pytest.mark.parametrize(
    ("use", "options", "message"),
    [
        ("world_parts:Corridr", {}, "did you mean 'Corridor'"),
        ("world_parts:Corridor", {"lenght": 3}, "did you mean 'length'"),
        ("world_parts:walk", {"turn": 1, "truth": 2}, "has no `reset`"),
        ("gym:CartPol-v1", {}, "did you mean 'CartPole-v1'"),
        ("gym:CartPole-v1", {"observe": "smell"}, "structure or text"),
        ("gym:CartPole-v1", {"action_names": ["left"]}, "one name for each"),
        ("gym:CartPole-v1", {"gravity_": 3}, "could not be created"),
    ],
)
def test_a_world_that_cannot_be_made(use, options, message):
    """R-S5: an invalid world is an error with a suggestion."""
    with pytest.raises(ProctorError) as raised:
        make_world(use, options)
    assert message in f"{raised.value} {raised.value.hint}"
    with pytest.raises(WorldError, match="max_steps"):
        make_world("world_parts:Corridor", {}, 0)

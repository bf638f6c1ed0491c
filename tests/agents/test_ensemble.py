"""Ensembles: a vote over agents is an agent."""

import pytest
from world_parts import Corridor, played

import proctor
from proctor import Experiment
from proctor.agents.base import AgentError, AgentRequest
from proctor.agents.registry import UnknownAgentError, agent_config
from proctor.background import run_sync
from proctor.errors import ProctorError
from proctor.trials.resume import arerun

SOLVE = {"kind": "scripted", "script": "proctor.worlds.ecosystem_agents:solve"}
INVESTIGATOR = {"kind": "python", "target": "proctor.worlds.ecosystem_agents:Investigator"}


def says(*answers):
    return {"kind": "scripted", "replies": list(answers)}


def seed_of(seed: int, workdir) -> str:
    (workdir / "mine").touch(exist_ok=False)
    return f"{seed}"


def picks_paris(input) -> str:  # noqa: A002 (the word of the interface)
    found = [each for each in input["candidates"] if each["answer"] == "Paris"]
    return f"candidate {found[0]['number']}" if found else "none"


judged: list[int] = []


def goes_on(input) -> str:  # noqa: A002 (the word of the interface)
    judged.append(input["question"]["step"])
    wanted = "open" if input["question"]["observation"]["at"] == 3 else "right"
    return next(str(c["number"]) for c in input["candidates"] if c["answer"] == wanted)


def limited(input) -> str:  # noqa: A002 (the word of the interface)
    raise AgentError("slow down", transient=True, status_code=429)


async def asked(seed: int = 0, **options):
    config = agent_config({"kind": "ensemble", **options})
    return await config.create().run(AgentRequest("Capital of France?", case="q", seed=seed))


async def test_the_majority_decides_and_a_tie_goes_to_the_first():
    """R-Q8: most votes win whatever their case; of equals the member written first."""
    three = {"a": says("Lyon"), "b": says("paris "), "c": says("Paris")}
    reply = await asked(members=three)
    assert reply.answer == "paris "
    assert reply.metadata["votes"] == {"Lyon": ["a"], "paris ": ["b", "c"]}
    assert (await asked(members={"a": says("Lyon"), "b": says("Paris")})).answer == "Lyon"
    assert (await asked(members={"b": says("Paris"), "a": says("Lyon")})).answer == "Paris"


async def test_a_judge_decides_without_knowing_who_said_what():
    """R-Q8: a judge is any agent; it sees answers in a drawn order, never names; no verdict is
    an error, not a guess."""
    members = {"a": says("Lyon"), "b": says("Lyon"), "c": says("Paris")}
    judge = {"kind": "python", "target": f"{__name__}:picks_paris"}
    for seed in range(6):
        assert (await asked(seed, members=members, vote="judge", judge=judge)).answer == "Paris"
    with pytest.raises(AgentError, match="chose none of 2 candidates"):
        await asked(members={"a": says("Lyon"), "b": says("Nice")}, vote="judge", judge=judge)
    # Nothing to decide: the judge is not asked.
    same = {"a": says("Nice"), "b": says("Nice")}
    assert (await asked(members=same, vote="judge", judge=judge)).answer == "Nice"


async def test_members_have_seeds_and_folders_of_their_own():
    """R-Q8: two members of one kind are not one member with two votes."""
    one = {"kind": "python", "target": f"{__name__}:seed_of"}
    request = AgentRequest("?", seed=7)
    agent = agent_config({"kind": "ensemble", "members": {"a": one, "b": one}, "quorum": 2})
    reply = await agent.create().run(request)
    assert len(reply.metadata["votes"]) == 2
    assert len(list(request.workdir.glob("*/mine"))) == 2


async def test_who_fails_abstains_until_the_quorum_is_gone():
    """R-Q8: a vote needs more than half; a failure that may pass is retried, not outvoted."""
    broken = {"kind": "scripted", "cases": {"another": "?"}}
    two = {"a": broken, "b": says("Paris"), "c": says("Paris")}
    assert (await asked(members=two)).answer == "Paris"
    with pytest.raises(AgentError, match="only 1 of 3 members answered, 2 are needed: a:"):
        await asked(members={"a": broken, "b": broken, "c": says("Paris")})
    slow = {"kind": "python", "target": f"{__name__}:limited"}
    with pytest.raises(AgentError, match="slow down"):
        await asked(members={"a": slow, "b": says("Paris"), "c": says("Paris")})


async def test_in_a_world_actions_are_voted_on_step_by_step():
    """R-Q8: what counts is the action meant, and invalid ones abstain."""
    members = {
        "words": {"kind": "scripted", "actions": ["Move: right", "right", "right", "open"]},
        "json": {"kind": "scripted", "actions": ['"right"', "right", "right", "open"]},
        "wrong": {"kind": "scripted", "actions": ["left", "fly", "left", "left"]},
    }
    outcome = await played(Corridor, {"kind": "ensemble", "members": members})
    assert outcome.trajectory.actions == ["right", "right", "right", "open"]
    assert outcome.trajectory.invalid_actions == 0
    assert outcome.score == 1.0


async def test_in_a_world_a_judge_decides_each_step_that_is_contested():
    """R-Q8: the judge sees the state and the candidates, and is asked only where they differ."""
    members = {
        "lost": {"kind": "scripted", "actions": ["left", "right", "left", "left"]},
        "sure": {"kind": "scripted", "actions": ["right", "right", "right", "open"]},
    }
    judge = {"kind": "python", "target": f"{__name__}:goes_on"}
    outcome = await played(
        Corridor, {"kind": "ensemble", "members": members, "vote": "judge", "judge": judge}
    )
    assert outcome.trajectory.actions == ["right", "right", "right", "open"]
    assert judged == [0, 2, 3]


def test_an_ensemble_is_compared_with_its_members_in_one_run(tmp_path):
    """R-Q8: members by name of the experiment's own agents; the run resumes from its folder."""
    experiment = Experiment(
        name="together",
        cases=["mutualism.hidden_dependency@easy"],
        agents={
            "chance": {"kind": "random"},
            "investigator": INVESTIGATOR,
            "solution": SOLVE,
            "three": {"kind": "ensemble", "members": ["solution", "investigator", "chance"]},
        },
        seeds=4,
    )
    run = proctor.run(experiment, results=tmp_path)
    scores = {cell.cell.agent: cell.score_mean for cell in run.cells}
    assert scores["chance"] < scores["three"]
    kept = run.spec["suite"]["agents"]["three"]["members"]
    assert kept["chance"] == {"kind": "random"}
    assert run.spec["agents"]["three"]["version"]["members"].keys() == {
        "solution", "investigator", "chance"
    }  # fmt: skip
    trial = next(t for t in run.trials() if t.agent == "three")
    trace = run.trace(trial)
    assert {s.name for s in trace.spans} >= {"member solution", "member chance", "vote"}
    assert run_sync(arerun(run.path)).sameness.identical


def test_slips_in_an_ensemble_are_told(tmp_path):
    """R-Q8: unknown members, ensembles of themselves, a judge without a vote."""

    def planned(**agents):
        proctor.run(
            Experiment(cases=["mutualism.competition@easy"], agents=agents), results=tmp_path
        )

    with pytest.raises(UnknownAgentError, match="there is no agent 'nobody'"):
        planned(e={"kind": "ensemble", "members": ["nobody", "random"]})
    with pytest.raises(UnknownAgentError, match="inside itself: e > f > e"):
        planned(
            e={"kind": "ensemble", "members": ["f", "random"]},
            f={"kind": "ensemble", "members": ["e", "random"]},
        )
    with pytest.raises(ProctorError, match="must be given together"):
        planned(e={"kind": "ensemble", "members": ["scripted", "random"], "vote": "judge"})
    assert not list(tmp_path.iterdir())

"""The ecosystem: dynamics that are right, a relation that is hidden, levels that mean something."""

import json
from collections import Counter
from statistics import mean
from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from world_parts import Says, played

from proctor.agents.registry import agent_config
from proctor.scenarios.builder import build
from proctor.scenarios.catalog import SHIPPED, Catalog
from proctor.worlds import InvalidAction, WorldError, make_world
from proctor.worlds.ecosystem import Ecosystem, Hidden, Levers, drawn_rates

ECOSYSTEM = "proctor.worlds.ecosystem:Ecosystem"
CATALOG = Catalog([SHIPPED])
TEMPLATES = ["mutualism.hidden_dependency", "mutualism.competition"]
LEVELS = ["easy", "medium", "hard"]
INVESTIGATOR = {"kind": "python", "target": "proctor.worlds.ecosystem_agents:Investigator"}
HARD = {"noise": 0.3, "weather": 0.04, "entanglement": 1.0, "pressure": 1.0}


def call(name, **arguments):
    return {"call": name, "arguments": arguments}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


async def scores_of(name: str, agent, seeds: range) -> list[float]:
    found = []
    for seed in seeds:
        built = build(name, seed, catalog=CATALOG)
        assert built.solution is not None
        config = agent_config(built.solution["agent"] if agent == "solution" else agent)
        found.append((await built.arun(agent=config)).score)
    return found


# -- levels --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TEMPLATES)
async def test_scores_spread_with_difficulty(name):
    """R-S5: over 100 seeds the solution passes at every level, chance completes and scores low,
    and both chance and an agent that uses only what is visible fall from easy to hard."""
    seeds = range(100)
    chance, found = [], []
    for level in LEVELS:
        assert min(await scores_of(f"{name}@{level}", "solution", seeds)) >= 0.9
        chance.append(mean(await scores_of(f"{name}@{level}", {"kind": "random"}, seeds)))
        found.append(mean(await scores_of(f"{name}@{level}", INVESTIGATOR, seeds)))
    assert chance[0] > chance[1] > chance[2]
    assert found[0] > found[1] > found[2]
    assert chance[0] < 0.4
    assert found[0] > 0.95
    assert found[2] > chance[2] + 0.2, "the hard level can be solved better than by chance"


@pytest.mark.parametrize("name", TEMPLATES)
async def test_an_agent_sees_no_truth(name):
    """R-S5: no observation reveals the roles of the species before the episode ends."""
    for seed in range(10):
        built = build(f"{name}@medium", seed)
        agent = Says(
            call("measure"), call("wait", days=3), call("measure"), call("declare", species="s1")
        )
        agent.said[-1]["arguments"]["species"] = built.truth["cause"]
        assert built.world_spec is not None
        outcome = await played(
            ECOSYSTEM, agent, built.world_spec["options"], seed=seed, task=built.scenario
        )
        assert outcome.scores["named"] == 1.0
        for turn in agent.turns:
            shown = json.dumps(turn.input)
            assert not {"decoy", "cause", "species_", "relation"} & set(shown.split('"'))
            # Every species but the endangered one is mentioned as often as every other.
            others = [n for n in built.scenario["species"] if n != built.scenario["endangered"]]
            assert len({shown.count(f'"{name}"') for name in others}) == 1


def test_names_and_places_give_nothing_away():
    """R-S4: over many seeds every position in the list is the cause equally often."""
    places = Counter()
    for seed in range(120):
        built = build("mutualism.hidden_dependency@easy", seed)
        places[built.scenario["species"].index(built.truth["cause"])] += 1
    # Four places, p = 1/4, n = 120: four standard deviations are 19.
    assert set(places) == {0, 1, 2, 3}
    assert all(abs(count - 30) < 19 for count in places.values())


@pytest.mark.parametrize("params", [{"species": 12, "decoys": 10}, {"species": 3, "decoys": 0}])
async def test_parameters_reach_the_world(params):
    """R-S4: --set changes what is built, and it can still be solved."""
    built = build("mutualism.competition@hard", 3, **params)
    assert len(built.scenario["species"]) == params["species"]
    assert len(built.truth["decoys"]) == params["decoys"]
    assert built.solution is not None
    score = (await built.arun(agent=agent_config(built.solution["agent"]))).score
    assert score is not None
    assert score >= 0.9


# -- dynamics ------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", ["dependency", "competition"])
def test_a_day_is_what_an_exact_integrator_gives(relation):
    """R-S5: one Runge-Kutta step a day is within 0.1 % of scipy at tight tolerance."""
    for seed in range(20):
        levers = Levers(entanglement=1.0, pressure=1.0)
        rates = drawn_rates(relation, 7, Hidden(2, 5, (0, 1)), 40, levers, seed)

        def rate(_, x, rates=rates):
            return rates.dynamics.rate(x, rates.loss)

        exact = solve_ivp(rate, (0, 15), rates.start, rtol=1e-10, atol=1e-12).y[:, -1]
        x = rates.start
        for _ in range(15):
            x = rates.dynamics.day(x, rates.loss)
        assert np.allclose(x, exact, rtol=1e-3)


@pytest.mark.parametrize("relation", ["dependency", "competition"])
def test_only_the_right_measure_saves(relation):
    """R-S5: left alone or with the measure elsewhere the species is lost; on the cause it lives."""
    for seed in range(30):
        world = Ecosystem(relation=relation, species=5, decoys=2, levers=HARD)
        measure = {"dependency": "protect", "competition": "control"}[relation]
        ends = {}
        world.reset(seed=seed)
        truth = world.truth
        others = [name for name in world.names if name != truth["endangered"]]
        for name in others:
            world.reset(seed=seed)
            world.step(call(measure, species=name))
            ends[name] = world.score({}).parts["alive"]
        assert ends.pop(truth["cause"]) > 0.9
        assert max(ends.values()) < 0.1
        world.reset(seed=seed)
        assert world.score({}).parts["alive"] < 0.1


def test_decoys_look_like_the_cause():
    """R-S5: observation alone does not reveal the cause: decoys change in the same way."""
    for world, sign in (
        (Ecosystem(relation="dependency", species=6, decoys=2), -1),
        (Ecosystem(relation="competition", species=6, decoys=2), 1),
    ):
        for seed in range(20):
            first = world.reset(seed=seed)[0]["counts"]
            world.step(call("wait", days=10))
            then = world.step(call("measure"))[0]["counts"]
            truth = world.truth
            change = {n: sign * np.log(then[n] / first[n]) for n in first}
            moved = [truth["cause"], *truth["decoys"]]
            still = [n for n in first if n not in (*moved, truth["endangered"])]
            assert min(change[n] for n in moved) > 0.9
            assert all(abs(change[n]) < 0.3 for n in still)


def test_the_same_seed_is_the_same_world_on_every_machine():
    """R-R5: the counts of a seed are fixed; they change only with the world itself."""
    world = Ecosystem(relation="dependency", species=5, decoys=2, levers=HARD)
    seen = [world.reset(seed=2026)[0]["counts"]]
    seen += [world.step(call("wait", days=9)) and world.step(call("measure"))[0]["counts"]]
    again = [world.reset(seed=2026)[0]["counts"]]
    again += [world.step(call("wait", days=9)) and world.step(call("measure"))[0]["counts"]]
    assert seen == again
    assert [list(counts.values()) for counts in seen] == PINNED
    assert world.reset(seed=2027)[0]["counts"] != seen[0]


PINNED = [[783, 1406, 685, 396, 1046], [1159, 529, 99, 126, 172]]


# -- rules ---------------------------------------------------------------------------------------


def test_what_runs_out_is_no_longer_offered():
    """R-S5: valid actions follow the state: interventions run out, the measure is placed once."""
    world: Any = make_world(ECOSYSTEM, {"interventions": 2})
    world.reset(seed=1)

    def names() -> list[str]:
        return [option["call"] for option in world.actions()]

    assert names() == ["measure", "wait", "add", "remove", "protect", "declare"]
    other = world.actions()[-1]["arguments"]["species"][0]
    assert world.truth["endangered"] not in world.actions()[2]["arguments"]["species"]
    world.step(call("add", species=other, percent=50))
    world.step(call("remove", species=other, percent=50))
    assert names() == ["measure", "wait", "protect", "declare"]
    with pytest.raises(InvalidAction, match="no interventions"):
        world.step(call("add", species=other, percent=50))
    world.step(call("protect", species=other))
    assert names() == ["measure", "wait", "declare"]
    with pytest.raises(InvalidAction, match="placed already"):
        world.step(call("protect", species=other))


def test_an_intervention_does_what_it_says():
    """R-S5: without noise a release and a removal are seen in the next count."""
    world = Ecosystem(species=4)
    before = world.reset(seed=5)[0]["counts"]
    moved = {world.truth["endangered"], world.truth["cause"], *world.truth["decoys"]}
    (quiet,) = set(before) - moved
    world.step(call("remove", species=quiet, percent=90))
    after = world.step(call("measure"))[0]["counts"]
    assert after[quiet] < 0.3 * before[quiet]
    world.step(call("add", species=quiet, percent=100))
    assert world.step(call("measure"))[0]["counts"][quiet] > 3 * after[quiet]


def test_the_days_end_and_so_does_the_episode():
    """R-S5: without a name the episode lasts until the last day; the name alone is half."""
    world = Ecosystem(days=20)
    world.reset(seed=1)
    world.step(call("wait", days=10))
    observation, _, terminated, truncated, _ = world.step(call("wait", days=10))
    assert (observation["days_left"], terminated, truncated) == (0, False, True)
    world.reset(seed=1)
    reward, terminated = world.step(call("declare", species=world.truth["cause"]))[1:3]
    assert terminated
    assert reward == world.score({}).score
    assert world.score({}).parts["named"] == 1.0
    assert world.score({"cause": "another"}).parts["named"] == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relation": "dependncy"}, "did you mean 'dependency'"),
        ({"species": 2}, "three or more"),
        ({"species": ["a", "a", "b"]}, "no two alike"),
        ({"cause": "s9"}, "is not one of s1, s2, s3, s4"),
        ({"levers": {"nose": 1}}, "did you mean 'noise'"),
        ({"levers": {"noise": -1}}, "from 0 to 2"),
        ({"days": 3}, "at least 10 days"),
        ({"speces": 3}, "did you mean 'species'"),
    ],
)
def test_options_that_make_no_world(options, message):
    """R-S5: an invalid option raises an error with a suggestion when the world is created."""
    with pytest.raises(WorldError) as raised:
        make_world(ECOSYSTEM, options)
    assert message in f"{raised.value} {raised.value.hint}"


def test_roles_must_differ():
    """R-S5: a template that gives one species two roles is an error."""
    world = Ecosystem(species=4, endangered="s1", cause="s1")
    with pytest.raises(WorldError, match="must differ"):
        world.reset(seed=0)

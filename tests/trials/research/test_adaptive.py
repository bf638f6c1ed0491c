"""Adaptive difficulty: where an agent begins to fail, and how sure one may be of it."""

import math
from random import Random

import numpy as np
import pytest
from research_parts import (
    CHANCE,
    INVESTIGATOR,
    SOLUTION,
    experiment,
    outcomes,
    record_of,
    researched,
)

import proctor
from proctor.background import run_sync
from proctor.errors import ProctorError
from proctor.runs.trial import TrialStatus
from proctor.spec.experiment import Adaptive, Research, Scale
from proctor.trials._research import Outline, Setup, Stage
from proctor.trials._research.adaptive import (
    BEYOND,
    PLACES,
    SPREADS,
    ObservedDifficulty,
    Posterior,
    Staircase,
    adaptive,
)
from proctor.trials.options import RunOptions
from proctor.trials.plan import Axes
from proctor.trials.resume import aresume

SCALE = {"name": "noise", "easy": 0.0, "hard": 0.6, "steps": 13}


def chance(x: float, threshold: float, spread: float, rules: Adaptive) -> float:
    """The model, written once more and otherwise: by its inverse at the sought rate."""
    room = 1 - rules.guess - rules.lapse
    share = (rules.sought - rules.guess) / room
    return rules.guess + room * share / (share + (1 - share) * math.exp((x - threshold) / spread))


def simulated(rules: Adaptive, threshold: float, spread: float, seed: int) -> dict:
    """What is found of an agent whose threshold is known, without any world."""
    random = Random(seed)
    assert rules.parameter is not None
    stages = tuple(
        Stage(f"x={value}", ("c",), {"x": value}, float(value)) for value in rules.parameter.values
    )
    outline = Outline(Research(adaptive=rules), stages=stages)
    course = adaptive(Setup(outline, (), ("a",), Axes((0,)), RunOptions()))
    asked = next(course)
    while True:
        (planned,) = asked.trials
        passed = random.random() < chance(planned.params["x"], threshold, spread, rules)
        trial = planned.trial(TrialStatus.PASSED if passed else TrialStatus.FAILED)
        try:
            asked = course.send([trial])
        except StopIteration as end:
            return end.value.facts["agents"]["a"]


@pytest.mark.parametrize("method", ["staircase", "bayesian"])
def test_credible_intervals_hold_what_they_say(method):
    """R-Q8: over thresholds drawn from the prior, half of the 50 % intervals hold the truth,
    neither more nor fewer, though trials were chosen and ended by results."""
    rules = Adaptive(
        parameter=Scale(name="x", easy=0, hard=10, steps=21),
        method=method,
        confidence=0.5,
        max_trials=20,
    )
    held, errors, runs = 0, [], 120
    for seed in range(runs):
        draw = Random(f"truth {seed}")
        threshold, spread = draw.uniform(-5, 15), 0.5 * 20 ** draw.random()
        found = simulated(rules, threshold, spread, seed)["posterior"]
        held += found["low"] <= threshold <= found["high"]
        if 2 <= threshold <= 8:
            errors.append(abs(found["median"] - threshold))
    # Binomial(120, 0.5): three standard deviations are 16.
    assert abs(held - runs / 2) <= 16
    # A staircase has hardly climbed after 20 trials; the posterior looks where it matters.
    assert np.median(errors) < (1 if method == "bayesian" else 4)


def test_the_posterior_is_the_product_of_its_trials():
    """R-Q8: against the same posterior in plain loops, for several agents and rates."""
    cases = [
        ({"method": "bayesian"}, [(1.0, True), (2.0, True), (3.0, False), (3.0, False)]),
        ({"method": "bayesian", "target": 0.8, "guess": 0.25}, [(1.0, True), (3.0, False)] * 4),
        ({"method": "staircase", "down": 3, "lapse": 0.1}, [(2.0, False), (1.0, True)] * 3),
    ]
    for options, seen in cases:
        rules = Adaptive.model_validate({"levels": ["easy", "medium", "hard"], **options})
        posterior = Posterior([1.0, 2.0, 3.0], rules)
        for each in seen:
            posterior.add(ObservedDifficulty(*each))
        places = [1 - 2 * BEYOND + i * (2 + 4 * BEYOND) / (PLACES - 1) for i in range(PLACES)]
        spreads = [0.1 * 20 ** (i / (SPREADS - 1)) for i in range(SPREADS)]
        weights = [
            sum(
                math.prod(
                    (p if passed else 1 - p)
                    for x, passed in seen
                    for p in (chance(x, place, spread, rules),)
                )
                for spread in spreads
            )
            for place in places
        ]
        total, below = sum(weights), 0.0
        median = None
        for place, weight in zip(places, weights, strict=True):
            below += weight / total
            if median is None and below >= 0.5:
                median = place
        found = posterior.estimate(0.95)
        assert found.median == pytest.approx(median, abs=(places[1] - places[0]))
        easier = sum(w for p, w in zip(places, weights, strict=True) if p < 1.0) / total
        assert found.below == pytest.approx(easier, abs=1e-9)
        assert found.low < found.median < found.high


def test_a_staircase_goes_by_its_rule():
    """R-Q8: two passes harder, one failure easier, turns averaged from the third on."""
    scale = [1.0, 2.0, 3.0, 4.0, 5.0]
    stairs = Staircase(scale, down=2)
    stood = []
    for passed in (1, 1, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 1, 0):
        stood.append(scale[stairs.at])
        stairs.add(bool(passed))
    assert stood == [1, 1, 2, 2, 3, 2, 2, 3, 2, 1, 1, 2, 2, 3]
    assert stairs.turned == [3, 2, 3, 1, 3]
    settled = stairs.settled()
    assert settled.averaged == 2  # of the last three, an even number
    assert settled.estimate == 2.0
    assert settled.standard_error == pytest.approx(1.0)


def test_a_staircase_settles_at_its_pass_rate():
    """R-Q8: 2-down-1-up estimates the difficulty passed 71 % of the time."""
    rules = Adaptive(
        parameter=Scale(name="x", easy=0, hard=10, steps=41),
        reversals=40,
        max_trials=1000,
        lapse=0.0,
    )
    found = [simulated(rules, 5.0, 0.8, seed)["staircase"]["estimate"] for seed in range(12)]
    assert np.mean(found) == pytest.approx(5.0, abs=0.35)


def test_agents_of_the_ecosystem_are_told_apart(tmp_path):
    """R-Q8: chance fails below the scale, the solution passes above it, who reasons is between."""
    agents = {"chance": CHANCE, "investigator": INVESTIGATOR, "solution": SOLUTION}
    run, record = researched(
        tmp_path,
        agents=agents,
        research={"adaptive": {"levels": ["easy", "medium", "hard"], "max_trials": 16}},
    )
    found = record["found"]["agents"]
    assert found["chance"]["posterior"]["easier_than_the_scale"] > 0.5
    assert found["solution"]["posterior"]["harder_than_the_scale"] > 0.5
    assert "end of the scale" in found["solution"]["ended"]
    middle = found["investigator"]["posterior"]
    assert found["chance"]["posterior"]["median"] < middle["median"]
    assert middle["median"] < found["solution"]["posterior"]["median"]
    assert record["found"]["target"] == pytest.approx(math.sqrt(0.5))
    # Every trial of an agent is another scenario.
    keys = [(t.agent, t.axis_seed) for t in run.trials()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("method", ["staircase", "bayesian"])
def test_resumed_it_takes_the_same_way(tmp_path, method):
    """R-Q8: the next difficulty follows from the journal alone."""
    fields = {
        "cases": ["mutualism.hidden_dependency@medium"],
        "agents": {"chance": CHANCE, "investigator": INVESTIGATOR},
        "research": {"adaptive": {"parameter": SCALE, "method": method, "max_trials": 9}},
    }
    whole, record = researched(tmp_path / "whole", **fields)
    run = proctor.run(experiment(**fields), results=tmp_path, limits={"max_trials": 4})
    while run.stopped:
        run = run_sync(aresume(run.path, max_trials=4))
    assert outcomes(run) == outcomes(whole)
    assert record_of(run) == record


def test_a_scale_that_falls_is_no_other_scale(tmp_path):
    """R-Q8: fewer interventions are harder; the estimate is in their number."""
    _, record = researched(
        tmp_path,
        cases=["mutualism.hidden_dependency@easy"],
        agents={"investigator": INVESTIGATOR},
        research={
            "adaptive": {
                "parameter": {"name": "interventions", "easy": 8, "hard": 0, "steps": 9},
                "method": "bayesian",
                "max_trials": 10,
            }
        },
    )
    found = record["found"]["agents"]["investigator"]
    assert {step["value"] for step in found["path"]} <= set(range(9))
    assert found["posterior"]["low"] < found["posterior"]["median"] < found["posterior"]["high"]
    hardest = [step for step in found["path"] if step["value"] <= 1]
    assert hardest
    assert found["posterior"]["median"] < 6


def test_what_makes_no_sense_is_told(tmp_path):
    """R-Q8: no scale, two scales, a rate that is never crossed, a parameter nobody has."""
    levels = ["easy", "hard"]
    for options, message in (
        ({}, "give one of `levels`"),
        ({"levels": levels, "parameter": SCALE}, "give one of `levels`"),
        ({"levels": levels, "method": "bayesian", "target": 0.2, "guess": 0.3}, "is not between"),
        ({"levels": levels, "target": 0.5}, "`target` is for `method: bayesian`"),
        ({"parameter": {**SCALE, "hard": 0.0}}, "the same value"),
    ):
        with pytest.raises(ValueError, match=message):
            Adaptive.model_validate(options)
    with pytest.raises(ProctorError, match="has no parameter 'nose'"):
        researched(
            tmp_path,
            agents={"a": CHANCE},
            research={"adaptive": {"parameter": {**SCALE, "name": "nose"}}},
        )
    with pytest.raises(ProctorError, match="noise"):
        researched(
            tmp_path,
            agents={"a": CHANCE},
            research={"adaptive": {"parameter": {**SCALE, "hard": 7}}},
        )
    assert not list(tmp_path.iterdir())

"""Seeds are instances: `compare`, `gate` and `leaderboard` pair them, and say what they claim."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from result_parts import trial, write_run
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from proctor.cli.main import run as command
from proctor.errors import ProctorError
from proctor.results import query
from proctor.runs.trial import Trial

Scores = Mapping[Any, Sequence[float]]
"""By case and seed."""
"""(case, seed) → the score of each trial; 0.5 and more passes."""


def trials(agent: str, scores: Scores) -> Iterable[Trial]:
    for (case, seed), values in scores.items():
        for index, value in enumerate(values):
            status = "passed" if value >= 0.5 else "failed"
            yield trial(case, agent, index, status, score=value, axis_seed=seed)


def made(root: Path, name: str, arms: Mapping[str, Scores], **more) -> str:
    """A finished run of these agents; returns its name."""
    every = [one for agent, scores in arms.items() for one in trials(agent, scores)]
    cases = {one.case: {"input": one.case} for one in every}
    folder = write_run(root, every, name=name, cases={**cases, **more.pop("cases", {})}, **more)
    return f"{name}/{folder.path.name}"


def grid(cases: int, seeds: int, passed, trials: int = 1) -> dict[tuple[str, int | None], list]:
    """Scores by a function of (case number, seed)."""
    return {
        (f"t{case}", seed): [float(passed(case, seed))] * trials
        for case in range(cases)
        for seed in range(seeds)
    }


def told(capsys, root: Path, *args: str, code: int = 0) -> str:
    assert command([*args, "--results", str(root)]) == code
    return re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)


def facts(capsys, root: Path, *args: str, code: int = 0):
    return json.loads(told(capsys, root, *args, "--json", code=code))


def test_compare_pairs_by_instance(tmp_path, capsys):
    """R-Q1: 2 templates × 50 seeds, 9 instances lost and none gained is McNemar's test."""
    before = grid(2, 50, lambda case, seed: seed % 2)
    after = grid(2, 50, lambda case, seed: seed % 2 and not (seed < 10 and case == 0))
    after["t1", 1], after["t1", 3] = [0.0], [0.0]
    after["t1", 5], after["t1", 7] = [0.0], [0.0]
    runs = [made(tmp_path, "one", {"x": before}), made(tmp_path, "two", {"x": after})]
    found = facts(capsys, tmp_path, "compare", *runs)
    (pair,) = found["pairs"]
    overall = pair["metrics"][0]
    assert (overall["cases"], overall["instances"], overall["trials"]) == (2, 100, 200)
    assert overall["suite"]["p_value"] == pytest.approx(stats.binomtest(9, 9).pvalue / 2)
    assert overall["interval"]["value"] == pytest.approx(-0.09)
    assert overall["interval"]["high"] < 0
    text = told(capsys, tmp_path, "compare", *runs)
    assert "2 cases, 100 instances in both" in text
    assert "estimand suite (default: it assumes nothing about other cases)" in text
    assert "exactly these 2 cases (100 instances)" in text
    general = told(capsys, tmp_path, "compare", *runs, "--estimand", "population")
    assert "estimand population: cases like these, clustered by case" in general


def test_one_scenario_with_many_seeds_is_ranked(tmp_path, capsys):
    """R-Q3: 1 scenario × 20 seeds, 20/20 against 0/20: the ranks are 1 and 2, for both estimands;
    with one case the population is that of its instances, and that is said."""
    arms = {"good": grid(1, 20, lambda *_: True), "bad": grid(1, 20, lambda *_: False)}
    run = made(tmp_path, "one", arms)
    for estimand in ("suite", "population"):
        board = facts(capsys, tmp_path, "leaderboard", run, "--estimand", estimand)
        assert [(row["name"], row["best"], row["worst"]) for row in board["rows"]] == [
            ("good", 1, 1),
            ("bad", 2, 2),
        ]
        assert board["estimand"] == estimand
    text = told(capsys, tmp_path, "leaderboard", run, "--estimand", "population")
    assert "instances like these of one case, clustered by instance" in text
    assert "estimand suite (default" in told(capsys, tmp_path, "leaderboard", run)


def test_few_scenarios_do_not_tie_every_rank(tmp_path, capsys):
    """R-Q3: 2 scenarios × 3 agents × 10 seeds: 20/20, 11/20 and 2/20 have places of their own, and
    `compare` agrees with the leaderboard."""
    arms = {
        "scripted": grid(2, 10, lambda *_: True),
        "middling": grid(2, 10, lambda case, seed: seed + case < 6),
        "random": grid(2, 10, lambda case, seed: seed == 0),
    }
    run = made(tmp_path, "one", arms)
    board = facts(capsys, tmp_path, "leaderboard", run)
    assert [(row["name"], row["best"], row["worst"]) for row in board["rows"]] == [
        ("scripted", 1, 1),
        ("middling", 2, 2),
        ("random", 3, 3),
    ]
    pairs = facts(capsys, tmp_path, "compare", run, "--agents", "middling,random,scripted")["pairs"]
    by_name = {(pair["first"], pair["second"]): pair["metrics"][0] for pair in pairs}
    for pair in board["pairs"]:
        other = by_name[pair["first"], pair["second"]]
        assert other["suite"]["p_value"] == pytest.approx(pair["test"]["p_value"])
        assert other["adjusted"] == pytest.approx(pair["adjusted"])


def test_repeats_that_never_vary_are_one_observation(tmp_path, capsys):
    """R-Q1: two deterministic agents, each right on other instances: 4 templates × 5 seeds × 10
    trials are 20 observations, not 400."""
    arms = {
        "x": grid(4, 5, lambda case, seed: (case + seed) % 2, trials=10),
        "y": grid(4, 5, lambda case, seed: (case + seed) % 3 > 0, trials=10),
    }
    run = made(tmp_path, "one", arms)
    text = told(capsys, tmp_path, "compare", run, "--agents", "x,y")
    assert "McNemar over 20 instances" in text
    assert "repeats never vary" in text
    overall = facts(capsys, tmp_path, "compare", run, "--agents", "x,y")["pairs"][0]["metrics"][0]
    assert overall["suite"]["p_value"] > 0.05
    assert overall["trials"] == 400
    # Python tests passes and scores as the command does.
    found = query(results=tmp_path).compare("x", "y")
    assert found.test.p_value == found.score.p_value == overall["suite"]["p_value"]
    assert found.score.method == overall["suite"]["method"]


def test_runs_are_compared_on_the_seeds_they_share(tmp_path, capsys):
    """R-Q1: seeds 0–9 against 0–11: ten instances are paired, two are left out and named."""
    runs = [
        made(tmp_path, "one", {"x": grid(1, 10, lambda case, seed: seed % 2)}),
        made(tmp_path, "two", {"x": grid(1, 12, lambda case, seed: seed % 2)}),
    ]
    text = told(capsys, tmp_path, "compare", *runs)
    assert "1 case, 10 instances in both" in text
    assert "10 instances; cost and latency have an interval from 60 on" in text
    assert "t0 (2 instances: seeds 10..11): only in x @ two/" in text
    gate = facts(capsys, tmp_path, "gate", runs[1], "--against", runs[0])
    assert gate["arms"][0]["gate"]["instances"] == 10
    assert gate["arms"][0]["gate"]["left_out"] == {
        "t0 (2 instances: seeds 10..11)": "only in the candidate"
    }
    board = facts(capsys, tmp_path, "leaderboard", *runs)
    assert (board["shared_cases"], board["shared_instances"]) == (1, 10)


@pytest.mark.parametrize("estimand", ["suite", "population"])
def test_identical_instances_pass_the_gate(tmp_path, capsys, estimand):
    """R-Q2: 59 identical instances rule out a drop of 5 points (1 − 0.05^(1/59) < 0.05), 58 do
    not."""
    for count, verdict in ((59, "NO REGRESSION"), (58, "INCONCLUSIVE")):
        scores = grid(1, count, lambda case, seed: seed % 5)
        runs = [made(tmp_path, name, {"x": scores}) for name in (f"a{count}", f"b{count}")]
        gate = facts(
            capsys, tmp_path, "gate", runs[1], "--against", runs[0], "--estimand", estimand
        )
        assert (gate["verdict"], gate["arms"][0]["gate"]["estimand"]) == (verdict, estimand)


def test_every_agent_must_be_without_regression(tmp_path, capsys):
    """R-Q2: NO REGRESSION is a claim about all agents together, so each is bounded at 95 %: 59
    identical instances are enough for two agents as well."""
    arms = {name: grid(1, 59, lambda case, seed: seed % 5) for name in "xy"}
    runs = [made(tmp_path, name, arms) for name in ("one", "two")]
    text = told(capsys, tmp_path, "gate", runs[1], "--against", runs[0])
    assert text.startswith("NO REGRESSION")
    assert "each test at 0.025 (Bonferroni)" in text
    assert "at most 5 points (one-sided 95 %)" in text


def test_the_interval_agrees_with_the_test(tmp_path, capsys):
    """R-Q1: 15 against 1 changed of 100: the interval uses the pairing, as the p-value does."""
    before = {(f"c{at:03}", None): [float(at >= 15)] for at in range(100)}
    after = {(f"c{at:03}", None): [float(at < 99)] for at in range(100)}
    runs = [made(tmp_path, "one", {"x": before}), made(tmp_path, "two", {"x": after})]
    overall = facts(capsys, tmp_path, "compare", *runs)["pairs"][0]["metrics"][0]
    assert overall["suite"]["p_value"] < 0.001
    assert 0.06 < overall["interval"]["low"] < overall["interval"]["high"] < 0.23


def test_every_trial_is_in_the_denominator(tmp_path, capsys):
    """R-Q1: 20 cases × 10 trials in each run: cost and latency are of 400 trials, not of 40."""
    scores = {(f"c{at:02}", None): [float(n % 2) for n in range(10)] for at in range(20)}
    runs = [made(tmp_path, name, {"x": scores}) for name in ("one", "two")]
    text = told(capsys, tmp_path, "compare", *runs)
    assert re.search(r"mean latency: population, [^;]*; 20 cases, 400 trials", text)
    assert "40 trials" not in text


def test_the_score_interval_is_that_of_its_test(tmp_path, capsys):
    """R-Q1: scores that fall by about 0.09 on every instance: interval and p-value agree."""

    def scores(drop: float) -> dict:
        return {
            (f"t{case}", seed): [0.9 - 0.02 * case - 0.04 * (seed % 5) - drop * (1 + seed % 2 / 5)]
            for case in range(2)
            for seed in range(10)
        }

    runs = [made(tmp_path, "one", {"x": scores(0)}), made(tmp_path, "two", {"x": scores(0.08)})]
    score = facts(capsys, tmp_path, "compare", *runs)["pairs"][0]["metrics"][1]
    assert score["metric"] == "score"
    assert score["suite"]["p_value"] < 0.001
    assert score["interval"]["estimand"] == "suite"
    assert score["interval"]["high"] < 0


def test_a_run_is_not_compared_with_itself(tmp_path, capsys):
    """R-Q1: the same trials are no second observation; two agents of one run are."""
    run = made(tmp_path, "one", {"x": grid(1, 5, lambda *_: 1), "y": grid(1, 5, lambda *_: 0)})
    for args in ((run, "latest"), (run, run, "--agents", "x,x"), (run, "--agents", "x,x")):
        assert command(["compare", *args, "--results", str(tmp_path)]) == 2
        assert "cannot be compared with itself" in capsys.readouterr().err
    told(capsys, tmp_path, "compare", run, run, "--agents", "x,y")
    with pytest.raises(ProctorError, match="cannot be compared with itself"):
        query(results=tmp_path).compare("x", "x")


def test_cases_of_two_suites_are_two_cases(tmp_path, capsys):
    """R-Q1: two suites have a case `q1` each: pass^5 is 0.5, the mean of 1 and 0, and not that of
    one case at one half."""
    made(tmp_path, "geography", {"x": {("q1", None): [1.0] * 5}})
    made(tmp_path, "history", {"x": {("q1", None): [0.0] * 5}})
    both = query(results=tmp_path)
    assert both.pass_hat_k(5).value == both.pass_at_k(5).value == 0.5
    assert both.mean().n == 2
    assert both.pass_rate().cases == 2
    (row,) = facts(capsys, tmp_path, "results", "--group-by", "agent")["groups"]
    assert (row["cases"], row["pass_rate"]["value"]) == (2, 0.5)
    suites = [
        f"{name}/{next((tmp_path / name).iterdir()).name}" for name in ("geography", "history")
    ]
    board = facts(capsys, tmp_path, "leaderboard", *suites)
    assert [row["pass_hat_k"]["value"] for row in board["rows"]] == [1.0, 0.0]
    assert {case.case for arm in both.outcomes() for case in arm.cases} == {
        "geography/q1",
        "history/q1",
    }


def test_pass_at_k_is_per_instance(tmp_path, capsys):
    """R-Q1: 5 seeds that always pass and 5 that never do: any k trials of one agree, so pass@k and
    pass^k are 0.5; over mixed seeds pass@3 was 0.917."""
    run = made(tmp_path, "one", {"x": grid(1, 10, lambda case, seed: seed % 2, trials=3)})
    found = query(results=tmp_path)
    assert (found.pass_at_k(3).value, found.pass_hat_k(3).value) == (0.5, 0.5)
    assert found.pass_at_k(3).cases == 10
    (row,) = facts(capsys, tmp_path, "leaderboard", run)["rows"]
    assert (row["pass_at_k"]["k"], row["pass_at_k"]["value"], row["pass_hat_k"]["value"]) == (
        3,
        0.5,
        0.5,
    )


def test_every_surface_counts_instances(tmp_path, capsys):
    """R-Q1: rates and intervals of `results`, `leaderboard` and Python are over instances, and the
    suite is the default of all. For cases like these, one case
    × 20 seeds × 10 equal trials are 20 observations (the t interval of their mean, turned into
    Wilson's, is far from that of 200 trials), and a seed with fewer judged trials weighs the same.
    """
    half = grid(1, 20, lambda case, seed: seed % 2, trials=10)
    uneven = {("t0", 0): [1.0], ("t0", 1): [0.0] * 3, ("t1", 0): [1.0] * 2, ("t1", 1): [0.0] * 5}
    runs = [made(tmp_path, "half", {"x": half}), made(tmp_path, "uneven", {"x": uneven})]
    # By hand: n_eff = p(1 − p) / SE², scaled by the quantiles of t.
    spread = 0.5 * (20 / 19) ** 0.5 / 20**0.5
    scale = (stats.t.ppf(0.975, 199) / stats.t.ppf(0.975, 19)) ** 2
    bounds: Any = proportion_confint(
        0.5 * (n_eff := 0.25 / spread**2 * scale), n_eff, method="wilson"
    )
    for run in runs:
        python = query(run, results=tmp_path)
        for asked in ("population", "suite"):
            # The suite is the default of all three.
            option = () if asked == "suite" else ("--estimand", asked)
            (row,) = facts(capsys, tmp_path, "results", run, *option)["groups"]
            (place,) = facts(capsys, tmp_path, "leaderboard", run, *option)["rows"]
            rate = (
                python.pass_rate() if asked == "suite" else python.pass_rate(estimand="population")
            )
            found = [row["pass_rate"], place["pass_rate"], asdict(rate)]
            assert [each["value"] for each in found] == [0.5] * 3
            assert len({(each["low"], each["high"], each["cases"]) for each in found}) == 1
            assert {each["estimand"] for each in found} == {asked}
        rate = python.pass_rate(estimand="population")
        # Scores that are passes have the same mean.
        scores = (row["score"]["value"], place["score"]["value"], python.mean("score").value)
        assert scores == (0.5,) * 3
        if run == runs[0]:
            assert (rate.low, rate.high) == pytest.approx(bounds)
            assert (rate.cases, rate.n) == (1, 200)
    text = told(capsys, tmp_path, "results", runs[0], "--estimand", "population")
    assert "of a single case: intervals are for instances (seeds) like these" in text
    assert "(of each seed of a case)" in told(capsys, tmp_path, "results", runs[1])
    # Exactly these instances: their repeats leave little open.
    suite = query(runs[0], results=tmp_path).pass_rate()
    assert (suite.estimand, suite.value) == ("suite", 0.5)
    assert suite.high is not None
    assert suite.low is not None
    assert suite.high - suite.low < (bounds[1] - bounds[0]) / 3


@pytest.mark.parametrize("estimand", ["suite", "population"])
def test_cases_with_unlike_numbers_of_seeds_have_one_rate(tmp_path, capsys, estimand):
    """R-Q1, R-Q3: of exactly these instances each has the same weight, of cases like these each
    case has, however many seeds: the two orders differ here, and `results`, `leaderboard`,
    `compare` and `gate` agree on each, with an effect of the same sign."""
    seeds = {"A": {"a": [1], "b": [0]}, "B": {"a": [1] * 4 + [0] * 6, "b": [1] * 8 + [0] * 2}}
    seeds["C"] = {"a": [1, 1], "b": [1, 0]}
    # Scores that say more than passes, so that the gate tests them as well.
    arms = {
        name: {
            (case, seed): [0.9 if passed else 0.3] * 2
            for case, row in seeds.items()
            for seed, passed in enumerate(row[name])
        }
        for name in "ab"
    }
    run = made(tmp_path, "one", arms)
    expected = {}
    for name in "ab":
        rows = [row[name] for row in seeds.values()]
        every = [value for row in rows for value in row]
        of_cases = [sum(row) / len(row) for row in rows]
        expected[name] = sum(every) / 13 if estimand == "suite" else sum(of_cases) / 3
    option = ("--estimand", estimand)
    groups = facts(capsys, tmp_path, "results", run, *option)["groups"]
    board = facts(capsys, tmp_path, "leaderboard", run, *option)
    (pair,) = facts(capsys, tmp_path, "compare", run, "--agents", "a,b", *option)["pairs"]
    rate, score = pair["metrics"][:2]
    for name, arm in (("a", "first"), ("b", "second")):
        (group,) = (each for each in groups if each["key"]["agent"] == name)
        (row,) = (each for each in board["rows"] if each["name"] == name)
        rates = [group["pass_rate"]["value"], row["pass_rate"]["value"], row["ranked"], rate[arm]]
        assert rates == pytest.approx([expected[name]] * 4)
        scores = [group["score"]["value"], row["score"]["value"], score[arm]]
        assert scores == pytest.approx([0.3 + 0.6 * expected[name]] * 3)
    gap = expected["b"] - expected["a"]
    assert (gap > 0) == (estimand == "suite")
    assert [row["name"] for row in board["rows"]] == (["b", "a"] if gap > 0 else ["a", "b"])
    assert board["pairs"][0]["test"]["difference"] == pytest.approx(gap)
    assert [each["interval"]["value"] for each in (rate, score)] == pytest.approx([gap, 0.6 * gap])
    assert [each["effect"]["value"] > 0 for each in (rate, score)] == [gap > 0] * 2
    runs = [made(tmp_path, name, {"x": arms[name]}) for name in "ab"]
    gate = facts(capsys, tmp_path, "gate", runs[1], "--against", runs[0], *option)
    (arm,) = gate["arms"]
    found = arm["gate"]["score"]
    assert arm["gate"]["drop"] == pytest.approx(-gap)
    assert found["baseline"] - found["candidate"] == pytest.approx(found["drop"])


def test_a_single_instance_says_nothing_of_others(tmp_path, capsys):
    """R-Q1: 4 of 5 trials of one case have an interval for exactly this case, and none for cases
    like it: `results`, `leaderboard` and Python agree."""
    run = made(tmp_path, "one", {"x": {("c", None): [1.0] * 4 + [0.0]}})
    for estimand in ("suite", "population"):
        option = ("--estimand", estimand)
        (group,) = facts(capsys, tmp_path, "results", run, *option)["groups"]
        (row,) = facts(capsys, tmp_path, "leaderboard", run, *option)["rows"]
        rate = asdict(query(run, results=tmp_path).pass_rate(estimand=estimand))
        for found in (group["pass_rate"], row["pass_rate"], rate):
            assert (found["value"], found["estimand"]) == (0.8, estimand)
            assert (found["low"] is None) == (estimand == "population")
    text = told(capsys, tmp_path, "results", run, "--estimand", "population")
    assert "gives no information about the variation between" in text


def test_a_run_is_ranked_once(tmp_path, capsys):
    """R-Q3: the same run twice is no second entrant."""
    run = made(tmp_path, "one", {"x": grid(1, 5, lambda *_: 1)})
    assert command(["leaderboard", run, "latest", "--results", str(tmp_path)]) == 2
    assert "the same trials are no second observation" in capsys.readouterr().err


def test_a_population_is_settled_by_more_cases(tmp_path, capsys):
    """R-Q2: 2 cases × 30 equal seeds show nothing about other cases, however many trials: the gate
    names no drop it could find and asks for cases (59 equal ones rule out 5 points); with one case,
    for seeds. Where the score is open, the advice is about the score."""
    for cases, unit, more in ((2, "case", 57), (1, "seed", 29)):
        scores = grid(cases, 30, lambda case, seed: seed % 2)
        runs = [made(tmp_path, f"{name}{cases}", {"x": scores}) for name in "ab"]
        gate = ("gate", runs[1], "--against", runs[0], "--estimand", "population")
        text = told(capsys, tmp_path, *gate)
        assert f"advice: {more} more {unit}s in both runs would settle it" in text
        assert ("2 cases: below 5 no drop is significant" in text) == (cases == 2)
        found = facts(capsys, tmp_path, *gate)["arms"][0]["gate"]
        assert found["advice"]["more_trials"] is None
        assert found["detectable"]["effect"] is None

    def noisy(drop: float) -> dict:
        return {
            (f"c{at:02}", None): [0.9 - drop + 0.1 * (n % 2) * (-1) ** at for n in range(2)]
            for at in range(30)
        }

    runs = [made(tmp_path, name, {"x": noisy(drop)}) for name, drop in (("c", 0), ("d", 0.03))]
    found = facts(capsys, tmp_path, "gate", runs[1], "--against", runs[0])
    assert found["reason"].startswith("the score: it dropped by 3 points, but")
    score = found["arms"][0]["gate"]["score"]
    # The bound falls with the root of the trials: 2 of them now, 2 points to tell, power 0.8.
    z = stats.norm.ppf([0.95, 0.8])
    half = score["drop_at_most"] - score["drop"]
    needed = 2 * (half / z[0] * z.sum() / 0.02) ** 2
    assert found["arms"][0]["gate"]["advice"]["more_trials"] == math.ceil(needed) - 2


def test_advised_trials_are_per_seed(tmp_path, capsys):
    """R-Q2: trials are added to each seed of a case, so a tenth as many settle a case of ten."""
    plain = {("t0", None): [0.0, 1.0] * 5}
    seeds = grid(1, 10, lambda case, seed: seed % 2)
    found = {}
    for name, scores in (("plain", plain), ("seeds", seeds)):
        runs = [made(tmp_path, f"{name}{arm}", {"x": scores}) for arm in "ab"]
        gate = facts(capsys, tmp_path, "gate", runs[1], "--against", runs[0])
        found[name] = gate["arms"][0]["gate"]["advice"]
    assert found["seeds"]["more_trials"] == math.ceil(found["plain"]["more_trials"] / 10)
    assert "more trials per case in both runs" in found["plain"]["text"]
    assert "more trials per case and seed in both runs" in found["seeds"]["text"]


def test_a_changed_case_is_not_ranked_on(tmp_path, capsys):
    """R-Q3: agents of two runs share a case only if its content is the same."""
    scores = {("q1", None): [1.0] * 5, ("q2", None): [1.0] * 5}
    runs = [
        made(tmp_path, "one", {"x": scores}),
        made(tmp_path, "two", {"y": scores}, cases={"q1": {"input": "another question"}}),
    ]
    board = facts(capsys, tmp_path, "leaderboard", *runs)
    assert board["shared_cases"] == 1
    assert board["left_out"] == {"q1": "its content differs between the runs"}


def test_three_runs_are_compared_pair_by_pair(tmp_path, capsys):
    """R-Q3: three runs give three pairs, corrected by Holm; so do three agents of one run."""
    levels = {"one": 18, "two": 12, "three": 4}
    runs = [
        made(tmp_path, name, {"x": grid(1, 20, lambda _, seed, most=most: seed < most)})
        for name, most in levels.items()
    ]
    found = facts(capsys, tmp_path, "compare", *runs)
    assert len(found["pairs"]) == 3
    raw = [pair["metrics"][0]["suite"]["p_value"] for pair in found["pairs"]]
    adjusted = [pair["metrics"][0]["adjusted"] for pair in found["pairs"]]
    assert min(adjusted) == pytest.approx(3 * min(raw))
    assert max(adjusted) >= max(raw)
    # Scores and latencies of all pairs are corrected together.
    others = [each for pair in found["pairs"] for each in pair["metrics"][1:]]
    tests = [each["suite"] or each["population"] for each in others]
    values = [test["p_value"] or 1.0 for test in tests]
    expected: Any = multipletests(values, method="holm")[1]
    assert [each["adjusted"] or 1.0 for each in others] == pytest.approx(list(expected))
    text = told(capsys, tmp_path, "compare", *runs)
    assert "Pass rates of 3 pairs" in text
    assert "p Holm" in text


def test_the_gate_judges_scores(tmp_path, capsys):
    """R-Q2: scores fall from 0.95 to 0.82, all above the threshold: a regression of the score,
    though every trial passed; a drop below the margin is none."""

    def scores(middle: float) -> dict:
        return {
            (f"c{at:02}", None): [middle + 0.01 * (at % 3 + n % 2) for n in range(5)]
            for at in range(20)
        }

    runs = {
        name: made(tmp_path, name, {"x": scores(middle)})
        for name, middle in (("old", 0.95), ("worse", 0.82), ("same", 0.945))
    }
    gate = facts(capsys, tmp_path, "gate", runs["worse"], "--against", runs["old"], code=1)
    assert gate["verdict"] == "REGRESSION"
    assert gate["reason"].startswith("the score: a drop of 13 points is real")
    score = gate["arms"][0]["gate"]["score"]
    assert score["drop"] == pytest.approx(0.13)
    assert score["n"] == 200
    text = told(capsys, tmp_path, "gate", runs["worse"], "--against", runs["old"], code=1)
    assert re.search(r"score 0\.9\d+ → 0\.8\d+: drop 13 points", text)
    shown = told(capsys, tmp_path, "compare", runs["old"], runs["worse"])
    assert re.search(r"c00 +100 % of 5 +100 % of 5 +0 points +– +– +−0\.130", shown)
    same = facts(capsys, tmp_path, "gate", runs["same"], "--against", runs["old"])
    assert same["verdict"] == "NO REGRESSION"
    # Passes and fails have no second test: their scores say the same.
    plain = [made(tmp_path, n, {"x": grid(3, 5, lambda c, s: s % 2)}) for n in ("p", "q")]
    assert (
        facts(capsys, tmp_path, "gate", *plain[:1], "--against", plain[1])["arms"][0]["gate"][
            "score"
        ]
        is None
    )


def test_seeds_of_different_difficulty_are_not_flaky(tmp_path, capsys):
    """R-Q2: an agent that always repeats itself is not flaky, though half the seeds of its cases
    fail; one that varies on a single instance is, there."""
    steady = grid(2, 6, lambda case, seed: seed % 2, trials=10)
    varying = {**steady, ("t1", 0): [float(n % 2) for n in range(10)]}
    runs = {
        name: made(tmp_path, name, {"x": scores})
        for name, scores in (("steady", steady), ("same", steady), ("varying", varying))
    }
    gate = facts(capsys, tmp_path, "gate", runs["same"], "--against", runs["steady"])
    assert (gate["flaky"], gate["arms"][0]["gate"]["flaky"]) == ([], [])
    gate = facts(capsys, tmp_path, "gate", runs["steady"], "--against", runs["varying"])
    assert gate["arms"][0]["gate"]["flaky"] == ["t1"]
    (pair,) = facts(capsys, tmp_path, "compare", runs["steady"], runs["varying"])["pairs"]
    assert [(each["case"], each["by_agent"]["n"]) for each in pair["flaky"]] == [("t1", 10)]


def test_parameters_of_a_scenario_are_instances(tmp_path, capsys):
    """R-Q1, R-Q3: 1 scenario × 2 sizes × 5 seeds are ten instances that both agents share, and not
    two pairs of agents; parameters of other cases are the agent's."""
    every = [
        trial(
            "s", agent, 0, "passed" if passes else "failed", axis_seed=seed, params={"size": size}
        )
        for agent, passes in (("good", True), ("bad", False))
        for size in (5, 7)
        for seed in range(5)
    ]
    generated: dict[str, Any] = {"experiment": {"scenarios": {"cases": {"s": {"template": "s"}}}}}
    write_run(tmp_path, every, name="scenario", cases={"s": {}}, **generated)
    board = facts(capsys, tmp_path, "leaderboard", "latest")
    assert [(row["name"], row["best"], row["trials"]) for row in board["rows"]] == [
        ("good", 1, 10),
        ("bad", 2, 10),
    ]
    assert (board["shared_cases"], board["shared_instances"]) == (1, 10)
    (pair,) = facts(capsys, tmp_path, "compare", "latest", "--agents", "bad,good")["pairs"]
    overall = pair["metrics"][0]
    assert (overall["cases"], overall["instances"]) == (1, 10)
    assert overall["suite"]["p_value"] == pytest.approx(stats.binomtest(10, 10).pvalue / 2)
    # One size alone, and one against the other, when they are named.
    one = told(capsys, tmp_path, "compare", "latest", "--agents", "bad (size=5),good (size=5)")
    assert "1 case, 5 instances in both" in one
    # Runs are paired by size as well: only those of size 5 are in both.
    write_run(
        tmp_path,
        [t for t in every if t.params["size"] == 5],
        name="five",
        cases={"s": {}},
        **generated,
    )
    runs = [f"{name}/{next((tmp_path / name).iterdir()).name}" for name in ("scenario", "five")]
    found = facts(capsys, tmp_path, "compare", *runs)["pairs"][0]
    assert found["instances"] == 5
    assert list(found["left_out"]) == ["s [size=7] (5 instances: seeds 0..4)"]
    by_agent = query(runs[0], results=tmp_path).compare("bad", "good")
    assert by_agent.pass_rate.n == 20
    assert by_agent.test.p_value == pytest.approx(overall["suite"]["p_value"])
    write_run(tmp_path, every, name="suite", cases={"s": {}})
    assert len(facts(capsys, tmp_path, "leaderboard", "latest")["rows"]) == 4


def test_a_case_has_one_rate(tmp_path, capsys):
    """R-Q1, R-Q3: where its seeds have unlike numbers of trials, a case's rate is the mean of its
    seeds' in `compare` as in `results`, and the printed difference is that of the printed rates."""
    plain = {("t", 0): [1.0], ("t", 1): [0.0] * 9}
    better = {("t", 0): [1.0], ("t", 1): [1.0, 0.0] * 4 + [1.0]}
    run = made(tmp_path, "one", {"x": plain, "y": better})
    rows = facts(capsys, tmp_path, "results", "--group-by", "agent,case")["groups"]
    ((case,),) = [pair["cases"] for pair in facts(capsys, tmp_path, "compare", run)["pairs"]]
    for shown, row in zip((case["first"], case["second"]), rows, strict=True):
        assert [shown[end] for end in ("value", "low", "high")] == [
            row["pass_rate"][end] for end in ("value", "low", "high")
        ]
    assert case["difference"]["value"] == pytest.approx(
        case["second"]["value"] - case["first"]["value"]
    )


def test_changes_that_cancel_are_no_change(tmp_path, capsys):
    """R-Q2, R-Q3: seeds whose rates change by nothing on the whole leave a
    rounding error, which neither the gate nor a comparison lists as a case that changed."""

    def arm(*passes: int) -> dict:
        return {("t", at): [1.0] * n + [0.0] * (10 - n) for at, n in enumerate(passes)}

    runs = [made(tmp_path, "one", {"x": arm(1, 4, 0)}), made(tmp_path, "two", {"x": arm(0, 1, 4)})]
    assert math.fsum((0.1 - 0.0, 0.4 - 0.1, 0.0 - 0.4)) > 0, "a rounding error"
    assert "1 case without a change" in told(capsys, tmp_path, "compare", *runs)
    found = facts(capsys, tmp_path, "gate", runs[1], "--against", runs[0])["arms"][0]["gate"]
    assert [move["drop"] for move in found["moves"]] == [0.0]
    assert "Look first" not in found["advice"]["text"]


def test_a_plan_counts_no_case_twice(tmp_path, capsys):
    """R-Q1: the noise of two agents on one case with 4 seeds is not "seen in 8 cases": trials and
    agents are counted, and the plan says that it counts each seed as a case."""
    arms = {
        name: {("t", seed): [1.0, float(seed % 2), 0.0] for seed in range(4)} for name in ("x", "y")
    }
    run = made(tmp_path, "one", arms)
    text = told(capsys, tmp_path, "power", "--effect", "0.1", "--from", run)
    assert "seen in 24 trials of 2 agents" in text
    assert "note: each seed of a case counts as a case here" in text
    plain = made(tmp_path, "two", {"x": {("t", None): [1.0, 0.0, 1.0], ("u", None): [1.0] * 3}})
    text = told(capsys, tmp_path, "power", "--effect", "0.1", "--from", plain)
    assert "seen in 6 trials\n" in text.replace("  –", "")
    assert "each seed" not in text

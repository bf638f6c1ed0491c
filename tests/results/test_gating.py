"""The gate over runs: verdicts, error rates over agents and looks, and what it refuses to judge."""

import json

import numpy as np
import pytest
from outcome_parts import arm, case, made_run, suite

from proctor.errors import ProctorError
from proctor.results.gate import judge_arm, judge_runs
from proctor.results.outcomes import AgentOutcomes, pair_agents
from proctor.runs.run import Run
from proctor.stats.gate import GateRule

GOOD, BAD = suite([(9, 10)] * 20), suite([(5, 10)] * 20)


def judged(tmp_path, candidate, baseline, **more):
    runs = [
        Run(made_run(tmp_path, arms, name=name))
        for name, arms in (("candidate", candidate), ("baseline", baseline))
    ]
    return judge_runs(*runs, **more)


def test_verdicts_and_exit_codes(tmp_path):
    """R-Q2, R-R11: a real drop is 1, none is 0, too little to say is as the policy has it."""
    worse = judged(tmp_path, {"x": BAD}, {"x": GOOD})
    assert (worse.verdict, worse.exit_code("pass")) == ("REGRESSION", 1)
    same = judged(tmp_path, {"x": suite([(100, 100)] * 5)}, {"x": suite([(100, 100)] * 5)})
    assert (same.verdict, same.exit_code("fail")) == ("NO REGRESSION", 0)
    little = judged(tmp_path, {"x": suite([(2, 3)])}, {"x": suite([(3, 3)])})
    assert little.verdict == "INCONCLUSIVE"
    codes = [little.exit_code(policy) for policy in ("pass", "fail", "extend")]
    assert codes == [0, 1, 2]
    advice = little.arms[0].gate.advice
    assert advice is not None
    assert advice.more_trials is not None
    assert advice.more_trials > 0
    assert little.more_trials == advice.more_trials


def test_errors_of_the_infrastructure_are_never_a_verdict(tmp_path):
    """R-Q2, R-R11: too many errored trials are 2 under every policy; cases without any trial
    that could be judged are named."""
    found = judged(tmp_path, {"x": suite([(9, 10, 5)] * 4)}, {"x": suite([(9, 10)] * 4)})
    assert found.verdict == "INCONCLUSIVE"
    assert found.unjudgeable
    assert {found.exit_code(policy) for policy in ("pass", "fail", "extend")} == {2}
    assert found.arms[0].gate.errors == (0, 20)
    none = judged(tmp_path, {"x": {"a": (0, 0, 5)}}, {"x": {"a": (5, 5)}})
    assert none.exit_code("pass") == 2
    assert none.arms[0].gate.left_out == {"a": "no judged trial in the candidate"}


def test_the_error_rate_is_for_all_agents_together(tmp_path):
    """R-Q2: with three agents each is judged at a third of alpha, and the result says so."""
    drop = suite([(8, 10), (7, 10), (8, 10), (9, 10)])
    alone = judged(tmp_path, {"x": drop}, {"x": suite([(10, 10)] * 4)})
    p = alone.arms[0].gate.p_value
    assert p is not None
    rule = GateRule(alpha=min(0.49, 2 * p))
    assert judged(tmp_path, {"x": drop}, {"x": suite([(10, 10)] * 4)}, rule=rule).verdict == (
        "REGRESSION"
    )
    others = {"y": suite([(5, 5)] * 4), "z": suite([(5, 5)] * 4)}
    three = judged(
        tmp_path, {"x": drop, **others}, {"x": suite([(10, 10)] * 4), **others}, rule=rule
    )
    assert three.alpha_each == pytest.approx(rule.alpha / 3)
    assert three.verdict != "REGRESSION"
    assert "3 agents" in three.error_rate
    assert "Bonferroni" in three.error_rate


@pytest.mark.slow
def test_the_size_of_a_gate_that_is_extended():
    """R-Q2: simulated over two looks, no change is called a regression in about alpha at most;
    judging both looks at the full alpha would not hold."""
    rng = np.random.default_rng(3)
    repeats, alarms, naive = 700, 0, 0
    # A margin next to nothing, so that the test alone decides: the hardest case for its size.
    rule = GateRule(margin=0.001, alpha=0.1)
    shared = GateRule(margin=0.001, alpha=0.05)
    for _ in range(repeats):
        rates = 0.2 + 0.7 * rng.beta(1, 1, 12)
        before, first, fresh = (rng.binomial(8, rates) for _ in range(3))
        baseline = arm("x", suite([(int(p), 8) for p in before]))
        looks = [
            arm("x", suite([(int(p), 8) for p in first])),
            arm("x", suite([(int(p), 16) for p in first + fresh])),
        ]
        alarms += any(
            judge_arm(baseline, look, shared).gate.verdict == "REGRESSION" for look in looks
        )
        naive += any(judge_arm(baseline, look, rule).gate.verdict == "REGRESSION" for look in looks)
    # Three standard errors of a simulated share of 10 %: 3.4 points; mid-p adds about one.
    assert alarms / repeats <= 0.1 + 0.034
    assert naive > alarms


def test_looks_on_record_count_for_every_later_judgement(tmp_path):
    """R-Q2: a run that was extended under three looks is judged at a third of alpha for good."""
    extended = {"extensions": [{"at": "x", "trials": 5, "looks": 3}]}
    runs = [
        Run(made_run(tmp_path, {"x": GOOD}, name=name, spec=spec))
        for name, spec in (("one", extended), ("two", {}), ("three", {}))
    ]
    assert judge_runs(*runs[:2]).alpha_each == pytest.approx(0.05 / 3)
    assert "3 looks" in judge_runs(*runs[:2]).error_rate
    assert judge_runs(*runs[1:]).alpha_each == 0.05


def test_changed_conditions_are_not_a_regression(tmp_path):
    """R-Q2: with every case, judge or fixture changed it is NOT COMPARABLE, and says which."""
    drop, full = {"x": {"a": (0, 9), "b": (9, 9)}}, {"x": {"a": (9, 9), "b": (9, 9)}}
    baseline = Run(made_run(tmp_path, full, name="old"))
    one = Run(made_run(tmp_path, drop, name="new", written={"a": {"threshold": 0.99}}))
    found = judge_runs(one, baseline)
    assert found.verdict != "REGRESSION"
    assert found.arms[0].gate.left_out["a"].startswith("the case changed (threshold)")
    assert [move.case for move in found.arms[0].gate.moves] == ["b"]
    both = {name: {"input": "another"} for name in "ab"}
    none = judge_runs(Run(made_run(tmp_path, drop, name="all", written=both)), baseline)
    assert (none.verdict, none.exit_code("pass")) == ("NOT COMPARABLE", 2)
    assert set(none.incomparable) == {"a", "b"}


def test_early_stopped_cells_are_not_judged():
    """R-Q2: a test at a fixed number of trials does not hold for them."""
    before = arm("x", {"a": (9, 10)})
    after = AgentOutcomes(agent="x", params="", cases=(case("a", 0, 3, stopped="hard fail"),))
    gate = judge_arm(before, after, GateRule()).gate
    assert gate.verdict == "NOT COMPARABLE"
    assert "run without --early-stop" in gate.reason


def test_cases_that_must_pass_bypass_statistics(tmp_path):
    """R-Q2: one failure of such a case is a regression, whatever the rest says."""
    counts = {"safety-1": (99, 100), "other": (50, 100)}
    runs = [Run(made_run(tmp_path, {"x": counts}, name=name)) for name in ("one", "two")]
    assert judge_runs(*runs).verdict != "REGRESSION"
    found = judge_runs(*runs, must_pass=["safety-*"])
    assert (found.verdict, found.arms[0].broken) == ("REGRESSION", ("safety-1",))
    assert "safety-1" in found.reason
    with pytest.raises(ProctorError, match="no case of the run matches 'safty-1'") as error:
        judge_runs(*runs, must_pass=["safty-1"])
    assert "safety-1" in (error.value.hint or "")


def test_agents_are_paired_by_name_or_as_the_only_ones():
    """R-Q2: agents of one run only are named; a single renamed agent is compared with the other."""
    a, b, c = (arm(name, {"k": (1, 2)}) for name in "abc")
    arms = pair_agents([a, b], [b, c])
    assert [(x.name, y.name) for x, y in arms.pairs] == [("b", "b")]
    assert (arms.only_first, arms.only_second) == (("a",), ("c",))
    renamed = pair_agents([a], [c])
    assert [(x.name, y.name) for x, y in renamed.pairs] == [("a", "c")]
    assert renamed.notes == ("c is compared with a",)


def test_no_agent_in_both_is_not_comparable(tmp_path):
    """R-Q2: nothing to judge is 2, never a pass."""
    found = judged(tmp_path, {"x": GOOD, "y": GOOD}, {"v": GOOD, "w": GOOD})
    assert (found.verdict, found.exit_code("pass")) == ("NOT COMPARABLE", 2)


def test_missing_trials_are_reported(tmp_path):
    """R-Q2: a run that is not finished is judged by its trials so far, with a note."""
    cells = {"cells": [{"case": "a", "agent": "x", "trials": 9, "threshold": 0.8}]}
    run = Run(made_run(tmp_path, {"x": {"a": (5, 5)}}, spec={**cells, "stopped": "at a limit"}))
    whole = Run(made_run(tmp_path, {"x": {"a": (9, 9)}}))
    told = judge_runs(run, whole).notes
    assert told == (
        "4 planned trials of the candidate are missing (at a limit): `proctor run --resume`",
    )


def test_flaky_cases_are_named_with_their_source(tmp_path):
    """R-Q2: in the candidate by source, in the baseline as the gate has them."""
    found = judged(
        tmp_path, {"x": {"a": (5, 10), "b": (10, 10)}}, {"x": {"a": (10, 10), "b": (5, 10)}}
    )
    assert [(each.case, each.sources) for each in found.flaky] == [("a", ("agent",))]
    assert found.arms[0].gate.flaky == ("b",)


def test_the_facts_are_one_json_document(tmp_path):
    """R-Q2: everything by name, nothing that JSON cannot hold."""
    from proctor.report.figures import document

    told = json.loads(document("gate", judged(tmp_path, {"x": BAD}, {"x": GOOD}), exit_code=1))
    assert (told["kind"], told["verdict"], told["exit_code"]) == ("gate", "REGRESSION", 1)
    move = told["arms"][0]["gate"]["moves"][0]
    assert move["baseline"] == {"passes": 9, "trials": 10, "errors": 0}
    assert told["arms"][0]["gate"]["rule"]["margin"] == 0.05

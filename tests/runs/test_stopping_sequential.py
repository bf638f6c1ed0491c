"""The sequential stopping rule: its stated error rate, on the order of the plan, in real runs."""

import itertools
import json
import math

import numpy as np
import pytest
from commands import proctor
from hypothesis import given
from hypothesis import strategies as st
from run_parts import journal, only_run, write_suite

from proctor.errors import ProctorError
from proctor.runs.early_stop import (
    CellPlan,
    CellTally,
    EarlyStop,
    FinishedTrial,
    Sequential,
    find_stop,
    rules_named,
)
from proctor.runs.run import Run
from proctor.runs.trial import CellKey, Trial, TrialStatus

LIMIT = 60


def seen(scores, status=TrialStatus.PASSED):
    return [FinishedTrial(i, status, score) for i, score in enumerate(scores)]


def wrong(rule, plan, rate, side):
    """The chance that the rule stops on one side within LIMIT pass/fail trials: every path."""
    live, stopped = {0: 1.0}, 0.0
    for n in range(1, LIMIT + 1):
        after = {}
        for passes, weight in live.items():
            after[passes + 1] = after.get(passes + 1, 0.0) + weight * rate
            after[passes] = after.get(passes, 0.0) + weight * (1 - rate)
        live = {}
        for passes, weight in after.items():
            tally = CellTally(seen([1.0] * passes + [0.0] * (n - passes)))
            reason = rule(tally, plan)
            if reason is None:
                live[passes] = weight
            elif side in reason:
                stopped += weight
    return stopped


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95])
def test_the_stated_error_rate_holds_for_passes(alpha, threshold):
    """R-R4: an agent at its threshold is called below, or above, with a chance of at most alpha."""
    rule, plan = Sequential(alpha), CellPlan(LIMIT, threshold)
    for side in ("below", "above"):
        assert wrong(rule, plan, threshold, side) <= alpha
    better, worse = (1 + threshold) / 2, threshold / 2
    assert wrong(rule, plan, better, "below") <= alpha
    assert wrong(rule, plan, worse, "above") <= alpha


def test_the_stated_error_rate_holds_for_scores_between():
    """R-R4: simulated, also where a trial scores anything between 0 and 1."""
    rng = np.random.default_rng(5)
    rule, runs = Sequential(0.1), 800
    alarms = {"below": 0, "above": 0}
    for number in range(runs):
        # Mean 0.7 exactly, from very uneven to nearly pass or fail.
        width = (0.2, 1.0, 4.0)[number % 3]
        scores = rng.beta(0.7 * width, 0.3 * width, 80).tolist()
        stop = find_stop(seen(scores), CellPlan(80, 0.7), [rule])
        for side in alarms:
            alarms[side] += stop is not None and side in stop.reason
    assert max(alarms.values()) / runs <= 0.1
    # Looking after every trial at a plain 90 % bound would have alarmed in a quarter of them.
    assert sum(alarms.values()) > 0


def test_it_ends_what_is_clear_and_leaves_what_is_not():
    """R-R4: a bad agent is stopped soon, a perfect one too, one at the threshold runs on."""
    plan, rules = CellPlan(100, 0.8), rules_named(["sequential"])
    assert find_stop(seen([0.0] * 100), plan, rules).after == 3
    assert find_stop(seen([1.0] * 100), plan, rules).after == 17
    pattern = list(itertools.islice(itertools.cycle([1.0, 1.0, 1.0, 1.0, 0.0]), 100))
    assert find_stop(seen(pattern), plan, rules) is None
    assert find_stop(seen([0.0] * 100), plan, rules_named(["sequential:0.001"])).after > 3
    reason = find_stop(seen([0.0] * 9), plan, rules).reason
    assert "alpha 0.05" in reason
    assert "after 3 scores" in reason


@given(st.lists(st.sampled_from([1.0, 0.0, None]), max_size=40))
def test_infrastructure_errors_are_no_observations(outcomes):
    """R-R4: with errored trials between them the same scores stop at the same score."""
    plan, rules = CellPlan(40, 0.8), rules_named(["sequential"])
    mixed = [
        FinishedTrial(i, TrialStatus.INFRA_ERROR if score is None else TrialStatus.PASSED, score)
        for i, score in enumerate(outcomes)
    ]
    clean = [one for one in mixed if one.score is not None]
    with_errors, without = find_stop(mixed, plan, rules), find_stop(clean, plan, rules)
    assert (with_errors is None) == (without is None)
    if with_errors is not None:
        assert with_errors.reason == without.reason
        counted = [one for one in mixed[: with_errors.after] if one.score is not None]
        assert len(counted) == without.after


@given(st.permutations(range(12)), st.integers(0, 2**12 - 1))
def test_the_order_of_finishing_does_not_matter(order, bits):
    """R-R4: a run in progress stops a cell where its plan read in order does."""
    scores = [float(bits >> place & 1) for place in range(12)]
    plan, rules = CellPlan(12, 0.8), rules_named(["sequential:0.2"])
    early = EarlyStop(rules)
    for place in order:
        trial = Trial(
            case="c", agent="a", index=place, seed=0, status=TrialStatus.FAILED, score=scores[place]
        )
        early.add(trial, place, plan)
    assert early.stopped(CellKey("c", "a")) == (find_stop(seen(scores), plan, rules) is not None)


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_no_side_beyond_the_ends(threshold):
    """R-R4: at a threshold of 0 or 1 there is nothing to tell apart, so all trials run."""
    plan = CellPlan(50, threshold)
    assert find_stop(seen([1.0] * 50), plan, rules_named(["sequential"])) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sequental", "did you mean 'sequential'"),
        ("hard_fail:2", "takes no parameter"),
        ("sequential:x", "sequential:0.05"),
        ("sequential:0", "above 0 and below 0.5"),
        ("sequential:nan", "above 0 and below 0.5"),
    ],
)
def test_rules_that_are_none_are_refused(name, said):
    """R-R4: an unknown rule or error rate is named before anything runs."""
    with pytest.raises(ProctorError) as error:
        rules_named([name])
    assert said in (error.value.hint or "")


def test_the_command_stops_early_and_says_at_which_rate(tmp_path):
    """R-R4: `--early-stop sequential` runs fewer trials, and the record names rule and rate."""
    suite = write_suite(tmp_path, cases=1)
    done = proctor(
        *("run", suite, "--trials", 60, "--early-stop", "sequential:0.1", "--concurrency", 1),
        *("--results", tmp_path / "results", "--quiet", "--json"),
    )
    assert done.returncode == 0, done.stderr
    run = Run(only_run(tmp_path / "results"))
    assert run.spec["options"]["early_stop"] == ["sequential:0.1"]
    (cell,) = run.cells
    assert cell.trials == len(journal(run.path)) < 60
    assert "alpha 0.1" in cell.early_stop
    assert json.loads(done.stdout)["cells"][0]["early_stop"] == cell.early_stop
    # The least number of perfect scores whose evidence reaches 1/alpha.
    assert math.isclose(cell.score_mean, 1.0)


def test_a_suite_after_the_bare_option_is_told_apart(tmp_path):
    """R-R4: a file name is no rule; the message says where to put it."""
    suite = write_suite(tmp_path)
    done = proctor("run", "--early-stop", suite)
    assert done.returncode == 2
    assert "put it before --early-stop" in done.stderr


@pytest.mark.parametrize("rule", ["sequential", "out_of_reach"])
def test_a_look_does_not_read_earlier_trials_again(rule):
    """R-R4: the work of early stop grows with the trials, not with their square."""

    class Counted(list):
        read = 0

        def __iter__(self):
            for trial in super().__iter__():
                Counted.read += 1
                yield trial

        def __getitem__(self, at):
            found = super().__getitem__(at)
            Counted.read += len(found) if isinstance(at, slice) else 1
            return found

    trials = Counted(seen([1.0, 0.6] * 500))
    assert find_stop(trials, CellPlan(1000, 0.8), rules_named([rule])) is None
    assert Counted.read == 1000


@given(st.lists(st.floats(0, 1), max_size=50))
def test_the_sum_of_scores_is_exact(scores):
    """R-R4: the running sum is the rounded exact sum, whatever the order of the trials."""
    assert CellTally(seen(scores)).total == math.fsum(scores)

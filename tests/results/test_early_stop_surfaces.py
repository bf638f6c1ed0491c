"""No surface prints a fixed-n interval or test of trials that stopped early."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import proctor
from result_parts import trial, write_run

from proctor.results import query
from proctor.runs.early_stop import CellPlan, FinishedTrial, find_stop, rules_named
from proctor.runs.trial import TrialStatus
from proctor.stats.intervals import case_rate, stopped_rate

CASES = ("q1", "q2", "q3", "q4")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two agents; every cell of `a` but one stops at a hard failure.

    Each attempt costs a dollar, and one trial of each agent was tried twice.
    """
    trials = [
        trial(
            case,
            agent,
            index,
            "hard_fail" if agent == "a" and index == stop else "passed",
            cost_usd=1.0,
        )
        for stop, case in enumerate(CASES)
        for agent in ("a", "b")
        for index in range(4)
    ]
    trials += [trial("q1", agent, 0, "failed", cost_usd=1.0, attempt=2) for agent in ("a", "b")]
    root = tmp_path_factory.mktemp("results")
    write_run(root, trials, early_stop=("hard_fail",), cases={case: {} for case in CASES})
    return root


@pytest.fixture(scope="module", params=["run", "journal", "csv", "jsonl", "json", "parquet"])
def root(
    request: pytest.FixtureRequest, stopped: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The run, as written, without its derived files, or exported and imported."""
    if request.param == "run":
        return stopped
    copied = tmp_path_factory.mktemp(request.param)
    if request.param == "journal":
        shutil.copytree(stopped, copied / "results")
        for name in ("facts.json", "results.parquet"):
            for file in copied.rglob(name):
                file.unlink()
        return copied / "results"
    file = copied / f"trials.{request.param}"
    for command in (
        ("runs", "export", "latest", "--results", stopped, "-o", file),
        ("runs", "import", file, "--results", copied / "results"),
    ):
        done = proctor(*command)
        assert done.returncode == 0, done.stderr
    return copied / "results"


def test_results_have_no_interval(root: Path) -> None:
    """R4, Q1: after an early stop `results` prints rates without an interval, and the reason."""
    done = proctor("results", "--results", root, "--json")
    rows = {row["key"]["agent"]: row for row in json.loads(done.stdout)["groups"]}
    rate = rows["a"]["pass_rate"]
    assert (rate["low"], rate["high"]) == (None, None)
    assert "stopped early" in rate["reason"]
    # Nothing of `b` stopped: its trials are those of the plan.
    assert rows["b"]["pass_rate"]["low"] is not None
    shown = proctor("results", "--results", root)
    assert "stopped early: the rate is biased" in shown.stdout
    assert query(results=root, agent="a").pass_rate().low is None


def test_one_cell_has_a_confidence_sequence(root: Path) -> None:
    """R4, Q1: one stopped cell has an interval that is valid at any stop, labelled as such."""
    shown = proctor("results", "--results", root, "--agent", "a", "--group-by", "case").stdout
    first = next(row for row in shown.splitlines() if row.startswith("q1"))
    assert "] CS" in first
    # The last cell has all its trials, but could have stopped: two kinds of intervals, chosen by
    # the outcome, would both miss.
    assert "] CS" in next(row for row in shown.splitlines() if row.startswith("q4"))
    assert "CS: confidence sequence" in shown
    one = query(results=root, agent="b", case="q1").pass_rate()
    sequence = stopped_rate(4, 4)
    assert (one.low, one.high, one.method) == (sequence.low, sequence.high, sequence.method)
    ((rules,),) = query(results=root).sql("SELECT DISTINCT stopping_rules FROM trials").rows
    assert rules == "hard_fail"


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.55, 0.7, 0.8, 0.95])
def test_a_cell_covers_whether_it_stops_or_not(rate: float) -> None:
    """Q1: over cells that stop by the sequential rule and cells that do not, intervals miss in at
    most 5 %; with Wilson's for those that do not stop it is more."""
    rng, replications, sequence, mixed = np.random.default_rng(19), 1_000, 0, 0
    rules, plan = rules_named(["hard_fail", "sequential"]), CellPlan(20, 0.8)
    for _ in range(replications):
        passed = rng.random(20) < rate
        statuses = [TrialStatus.PASSED if each else TrialStatus.FAILED for each in passed]
        seen = [FinishedTrial(at, s, float(s == "passed")) for at, s in enumerate(statuses)]
        stop = find_stop(seen, plan, rules)
        n = stop.after if stop else 20
        found = stopped_rate(int(passed[:n].sum()), n)
        fixed = found if stop else case_rate(int(passed.sum()), 20)
        sequence += not (found.low or 0.0) <= rate <= (found.high or 0.0)
        mixed += not (fixed.low or 0.0) <= rate <= (fixed.high or 0.0)
    print(f"{replications} replications at {rate}: missed {sequence}, with Wilson's {mixed}")
    error = (0.05 * 0.95 / replications) ** 0.5
    assert sequence / replications <= 0.05 + 3 * error
    assert mixed >= sequence


def test_no_comparison_and_no_places(root: Path) -> None:
    """R4, Q1: `ResultSet.compare` and the leaderboard make no test after an early stop."""
    found = query(results=root).compare("a", "b")
    assert (found.test.p_value, found.pass_rate.low) == (None, None)
    assert "stopped early" in str(found.test.reason)
    board = json.loads(proctor("leaderboard", "latest", "--results", root, "--json").stdout)
    rows = {row["name"]: row for row in board["rows"]}
    assert rows["a"]["pass_rate"]["low"] is None
    assert rows["a"]["score"]["low"] is None
    assert all(pair["test"]["p_value"] is None for pair in board["pairs"])


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.2, 0.6, 0.95])
def test_the_sequence_covers_at_any_stop(rate: float) -> None:
    """Q1: stopped at the first failure, or when the rate looks worst, it still covers 95 %."""
    rng, missed, replications = np.random.default_rng(17), np.zeros(2), 1_000
    for _ in range(replications):
        passes = np.cumsum(rng.random(40) < rate)
        first = int(np.argmax(np.diff(passes, prepend=0) == 0)) + 1
        worst = int(np.argmin(passes[4:] / np.arange(5, 41))) + 5
        for rule, n in enumerate((first, worst)):
            found = stopped_rate(int(passes[n - 1]), n)
            assert found.low is not None
            assert found.high is not None
            missed[rule] += not found.low <= rate <= found.high
    print(f"{replications} replications at {rate}: missed {missed / replications}")
    error = (0.05 * 0.95 / replications) ** 0.5
    assert (missed / replications <= 0.05 + 3 * error).all()


def test_everything_spent_is_counted(root: Path) -> None:
    """R4, Q3: trials after the stop and further attempts are in no rate, and in every sum of money,
    also after export and import."""
    done = proctor("results", "--results", root, "--json")
    rows = {row["key"]["agent"]: row for row in json.loads(done.stdout)["groups"]}
    assert [rows["a"][name] for name in ("judged", "after_stop", "cost_usd")] == [10, 6, 17.0]
    assert [rows["b"][name] for name in ("judged", "after_stop", "cost_usd")] == [16, 0, 17.0]
    board = json.loads(proctor("leaderboard", "latest", "--results", root, "--json").stdout)
    assert {(row["agent"], row["trials"], row["cost_usd"]) for row in board["rows"]} == {
        ("a", 10, 17.0),
        ("b", 16, 17.0),
    }
    assert "after retries: " in proctor("report", "latest", "--results", root).stdout


def test_the_gate_gives_no_bound(stopped: Path, tmp_path: Path) -> None:
    """R4, Q2: NOT COMPARABLE has neither a p-value nor a bound on the drop."""
    root = tmp_path / "results"
    shutil.copytree(stopped, root)
    trials = [
        trial(case, agent, index, score=0.99)
        for case in CASES
        for agent in "ab"
        for index in (0, 1)
    ]
    write_run(root, trials, name="plain", cases={case: {} for case in CASES})
    runs = ("latest", "--against", next(root.glob("suite/*")), "--results", root)
    done = proctor("gate", *runs, "--json")
    assert done.returncode == 2
    gates = {arm["name"]: arm["gate"] for arm in json.loads(done.stdout)["arms"]}
    for figures in (gates["a"], gates["a"]["score"]):
        assert [figures[name] for name in ("p_value", "adjusted", "drop_at_most")] == [None] * 3
    assert (gates["a"]["detectable"]["effect"], gates["a"]["advice"]) == (None, None)
    assert gates["b"]["drop_at_most"] is not None
    shown = proctor("gate", *runs).stdout
    assert "a: NOT COMPARABLE\n  drop −52.1 points, at most – (one-sided 95 %), p –" in shown

"""Rates, costs and tables of `results`, `leaderboard` and imports, through the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import proctor
from result_parts import trial, write_run

from proctor.errors import ProctorError
from proctor.results import query
from proctor.results.database import OUTCOMES

CASES: dict[str, dict[str, Any]] = {f"c{at}": {} for at in range(5)}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two agents of equal passes; a call of `b` has no known price."""
    trials = [
        trial(
            case,
            agent,
            index,
            # c0 has 3 of 10, the others 1 of 2: rate and counts differ.
            "passed" if index < 3 and (at == 0 or index == 0) else "failed",
            cost_usd=None if agent == "b" and at == 2 else 0.01 * (at + 1),
            unpriced_calls=int(agent == "b" and at == 2),
            llm_calls=1,
        )
        for at, case in enumerate(CASES)
        for agent in ("a", "b")
        for index in range(2 if at else 10)
    ]
    folder = tmp_path_factory.mktemp("results")
    write_run(folder, trials, cases=CASES)
    return folder


def groups(root: Path, *options: str) -> list[dict[str, Any]]:
    done = proctor("results", "--results", root, "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["groups"]


@pytest.mark.parametrize(
    "options",
    [
        ("--status", "passed"),
        ("--min-score", "0.9"),
        ("--where", "score>0.5"),
        ("--where", "latency_ms<15"),
        ("--where", "answer=answer 0"),
        ("--group-by", "status"),
        ("--group-by", "agent,passed"),
    ],
)
def test_selection_by_an_outcome_has_no_rate(root: Path, options: tuple[str, ...]) -> None:
    """Q1: trials that an outcome selects or groups have counts, and no pass rate."""
    for row in groups(root, *options):
        assert row["judged"] > 0
        assert [row["pass_rate"][part] for part in ("value", "low", "high")] == [None] * 3
        assert "an outcome of the trials" in row["pass_rate"]["reason"]
        assert row["cost_per_pass_usd"]["value"] is None
    shown = proctor("results", "--results", root, *options).stdout
    assert "an outcome of the trials" in shown
    assert "100 %" not in shown


def test_every_outcome_column_is_known(root: Path) -> None:
    """Q1: what a trial decides is an outcome; what is planned, and its start, is not."""
    assert {"status", "passed", "score", "latency_ms", "cost_usd", "answer", "checks"} <= OUTCOMES
    assert {"error", "error_type", "tool_calls", "retries", "attempt", "early_stop"} <= OUTCOMES
    assert not OUTCOMES & {"case", "agent", "params", "axis_seed", "index", "seed", "started"}
    selected = query(results=root, status="passed")
    assert selected.pass_rate().value is None
    assert selected.pass_at_k(1).value is None
    for refused in (lambda: selected.compare("a", "b"), selected.outcomes):
        with pytest.raises(ProctorError, match="selected by status, an outcome"):
            refused()
    # `judged` and `counted` select exactly what a rate is about.
    assert query(results=root, where=["judged=true"]).pass_rate().value is not None


def test_a_rate_says_that_cases_weigh_the_same(root: Path) -> None:
    """Q1: a mean of case rates beside counts that give another share is explained."""
    shown = proctor("results", "--results", root, "--agent", "a").stdout
    assert "7/18" in shown
    assert "46 %" in shown
    assert "the mean of the rates of its cases" in shown
    one = proctor("results", "--results", root, "--agent", "a", "--group-by", "case").stdout
    assert "the mean of the rates of its cases" not in one
    for command in (
        ("leaderboard",),
        ("compare", "--agents", "a,b"),
        ("report",),
        ("report", "--format", "markdown"),
    ):
        name, *options = command
        shown = proctor(name, "latest", *options, "--results", root).stdout
        assert "rate is the mean of the rates of its cases" in shown, command


def test_one_judged_case_has_one_interval(tmp_path: Path) -> None:
    """Q1: of three planned cases one was judged: `results`, `leaderboard` and the report of the run
    print the same interval."""
    trials = [trial("c0", "a", index, "passed" if index < 3 else "failed") for index in range(5)]
    trials += [trial(case, "a", 0, "infra_error") for case in ("c1", "c2")]
    trials += [trial("c0", "b", index) for index in range(5)]
    write_run(tmp_path, trials, cases=CASES)
    for command in (("results",), ("leaderboard", "latest"), ("report", "latest")):
        assert "[23.1 %, 88.2 %]" in proctor(*command, "--results", tmp_path).stdout, command


def test_an_agent_alone_is_not_better_than_others(tmp_path: Path) -> None:
    """Q3: where only one agent was judged, no test was made and none is claimed."""
    trials = [trial("c0", "a", index) for index in range(5)]
    trials += [trial("c0", "b", index, "not_judged") for index in range(5)]
    write_run(tmp_path, trials, cases=CASES)
    shown = proctor("report", "latest", "--results", tmp_path).stdout
    assert "No ranking: only a has judged trials." in shown
    assert "significantly better" not in shown
    (arm,) = [arm for arm in query(results=tmp_path).outcomes() if arm.agent == "b"]
    assert (arm.trials, arm.infra, arm.not_judged) == (0, 0, 5)


def test_the_estimand_is_named(root: Path) -> None:
    """Q1: `--estimand` chooses whom an interval is about, and the output says which and why."""
    population, suite = (
        groups(root, "--estimand", name)[0]["pass_rate"] for name in ("population", "suite")
    )
    assert (population["estimand"], suite["estimand"]) == ("population", "suite")
    assert population["value"] == suite["value"]
    assert groups(root)[0]["pass_rate"] == suite
    named = proctor("results", "--results", root).stdout
    assert "estimand suite (default: it assumes nothing about other cases)" in named
    assert "exactly these cases and instances; --estimand population" in named
    other = proctor("results", "--results", root, "--estimand", "population").stdout
    assert "estimand population: intervals are for cases like these" in other


def test_tables_have_deviation_and_tails(root: Path) -> None:
    """Q1, Q3: mean ± SD, p90, p99 and cost per passed trial are in tables, CSV and JSON."""
    shown = proctor("results", "--results", root).stdout
    for column in ("score ± SD", "p50", "p90", "p99", "per pass"):
        assert column in shown
    assert "per pass: no interval: 5 cases; cost and latency have an interval from 60 on" in shown
    (row,) = groups(root, "--agent", "a")
    assert row["spread"]["score_std"] == pytest.approx(0.3010, abs=1e-4)
    assert row["cost_per_pass_usd"]["value"] == pytest.approx((0.1 + 2 * 0.14) / 7)
    csv = proctor("results", "--results", root, "--format", "csv").stdout.splitlines()[0]
    assert {"score_std", "latency_p90_ms", "latency_p99_ms", "cost_per_pass_usd"} <= set(
        csv.split(",")
    )
    board = proctor("leaderboard", "latest", "--results", root).stdout
    for column in ("score ± SD", "p90", "p99", "per pass"):
        assert column in board
    summary = next(root.rglob("summary.csv")).read_text("utf-8").splitlines()[0].split(",")
    assert {"score_std", "latency_p90_ms", "latency_p99_ms"} <= set(summary)


def test_unknown_prices_do_not_win(root: Path) -> None:
    """Q3: an agent with unpriced calls has no rank by cost, no p-value, and the reason."""
    done = proctor("leaderboard", "latest", "--metric", "cost_usd", "--results", root, "--json")
    board = json.loads(done.stdout)
    assert [(row["name"], row["best"]) for row in board["rows"]] == [("a", 1), ("b", None)]
    assert board["pairs"] == []
    assert any("it is not ranked by cost" in note for note in board["notes"])
    assert "≥ " in proctor("leaderboard", "latest", "--results", root).stdout
    # Each table names its column: passed of judged trials, or their rate.
    by_cost = proctor("leaderboard", "latest", "--metric", "cost_usd", "--results", root).stdout
    head = by_cost.splitlines()[1]
    assert "pass rate" in head
    assert "passed" not in head


def test_imported_rows_without_cost_are_a_lower_bound(tmp_path: Path) -> None:
    """Q3: the sum over imported rows of which some have no cost is `≥`."""
    table = tmp_path / "other.csv"
    table.write_text("case,passed,cost_usd\nq1,true,20\nq2,true,1.19\nq3,false,\n", "utf-8")
    results = tmp_path / "results"
    assert proctor("runs", "import", table, "--results", results).returncode == 0
    assert "≥ $21.19" in proctor("results", "--results", results).stdout
    # A row that made calls, none of them without a price, and yet has no cost.
    rows = ("case,cost_usd,llm_calls,unpriced_calls,passed", "a,2,1,0,true", "b,,1,0,true")
    (tmp_path / "made.csv").write_text("\n".join((*rows, "c,,0,0,true\n")))
    others = tmp_path / "others"
    assert proctor("runs", "import", tmp_path / "made.csv", "--results", others).returncode == 0
    assert "≥ $2.00, 1 call unpriced" in proctor("results", "--results", others).stdout


def test_cost_per_pass_has_an_interval_from_sixty_cases(tmp_path: Path) -> None:
    """Q1, Q3: with enough cases the cost per passed trial has an interval, in every table."""
    cases: dict[str, dict[str, Any]] = {f"c{at}": {} for at in range(60)}
    trials = [
        trial(
            case, "a", index, "passed" if (at + index) % 3 else "failed", cost_usd=0.01 + at / 1e3
        )
        for at, case in enumerate(cases)
        for index in range(2)
    ]
    write_run(tmp_path, trials, cases=cases)
    (row,) = groups(tmp_path)
    found = row["cost_per_pass_usd"]
    assert found["low"] < found["value"] < found["high"]
    assert found["value"] == pytest.approx(sum(t.cost_usd or 0.0 for t in trials) / 80)
    shown = proctor("leaderboard", "latest", "--results", tmp_path).stdout
    assert "per pass: no interval" not in shown


def test_unpriced_costs_are_not_tested(root: Path) -> None:
    """Q1: `compare` gives no p-value and no interval for a cost that is a lower bound."""
    done = proctor("compare", "latest", "--agents", "a,b", "--results", root, "--json")
    (pair,) = json.loads(done.stdout)["pairs"]
    (cost,) = [each for each in pair["metrics"] if each["metric"] == "cost_usd"]
    assert cost["population"]["p_value"] is None
    assert "2 calls unpriced" in cost["population"]["reason"]
    assert (cost["interval"]["low"], cost["adjusted"]) == (None, None)
    # The mean of what is known is no cost, and no side of a difference.
    assert cost["first"] is not None
    assert (cost["second"], cost["interval"]["value"]) == (None, None)
    done = proctor("leaderboard", "latest", "--metric", "cost_usd", "--results", root, "--json")
    assert [row["value"]["value"] is None for row in json.loads(done.stdout)["rows"]] == [
        False,
        True,
    ]


def test_trials_that_only_a_failure_lets_judge_have_no_interval(tmp_path: Path) -> None:
    """R1, Q1: where a right answer is not judged (what it needs was not observed) and a wrong one
    fails, the judged trials are the wrong ones: no interval, no test, no place for the agent."""
    trials = [
        trial(case, "b", at, "passed" if at else "failed", cost_usd=0.02)
        for case in CASES
        for at in (0, 1)
    ]
    trials += [
        trial(case, "a", at, "not_judged", score=1.0, category="unobserved", cost_usd=0.01)
        if at
        else trial(case, "a", at, "failed", cost_usd=0.01)
        for case in CASES
        for at in (0, 1)
    ]
    write_run(tmp_path, trials, cases=CASES)
    why = "5 of 10 trials were not judged, but failures among them would have been"
    for command in (("results",), ("leaderboard", "latest"), ("report", "latest")):
        (row,) = [
            line
            for line in proctor(*command, "--results", tmp_path).stdout.splitlines()
            if " a  " in line and "0/5" in line
        ]
        assert " –  " in row, command
        assert "[" not in row, command
    assert why in proctor("results", "--results", tmp_path).stdout
    board = json.loads(proctor("leaderboard", "latest", "--results", tmp_path, "--json").stdout)
    assert why in board["reason"]
    assert {row["best"] for row in board["rows"]} == {None}
    done = proctor("compare", "latest", "--agents", "a,b", "--results", tmp_path, "--json")
    (pair,) = json.loads(done.stdout)["pairs"]
    assert pair["metrics"][0]["suite"]["p_value"] is None
    by_cost = ("leaderboard", "latest", "--metric", "cost_usd", "--results", tmp_path)
    assert json.loads(proctor(*by_cost, "--json").stdout)["reason"] is None, "of all trials"
    found = query(results=tmp_path)
    assert found.compare("a", "b").test.p_value is None
    for kind in ("csv", "jsonl", "parquet"):
        file, copied = tmp_path / f"copy.{kind}", tmp_path / kind
        proctor("runs", "export", "latest", "--results", tmp_path, "-o", file)
        proctor("runs", "import", file, "--results", copied)
        assert why in str(query(results=copied, agent="a").pass_rate().reason)
    assert found.where(agent="a").pass_hat_k(1).value is None
    # One of 40 is within what is tolerated, and cases without checks select nothing.
    fine = [trial("c0", "c", at, "passed" if at else "failed") for at in range(40)]
    fine += [trial("c1", "c", at, "not_judged", category="no_checks") for at in range(40)]
    fine += [trial("c0", "c", 40, "not_judged", score=1.0, category="unpriced")]
    write_run(tmp_path, fine, cases=CASES, name="other")
    assert query(results=tmp_path, agent="c").pass_rate().low is not None

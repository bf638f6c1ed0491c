"""The history of a suite: change points with a stated error rate, flaky cases, where one broke."""

import math
import random

from viewer_parts import run_suite, shop_agent, shop_suite

from proctor.results.history import HistoryPoint, agent_rows, run_figures, suite_history
from proctor.results.leaderboard import entrants_of, leaderboard
from proctor.runs.run import Run
from proctor.stats.compare import change_points, stratified
from proctor.stats.types import CaseCounts


def drawn(chance: random.Random, rates: list[float], trials: int) -> dict[str, CaseCounts]:
    """One run: the passes of each case at its rate."""
    return {
        f"case {at}": CaseCounts(sum(chance.random() < rate for _ in range(trials)), trials)
        for at, rate in enumerate(rates)
    }


def test_change_points_have_the_stated_error_rate() -> None:
    """R-N12, R-Q3: without a change at most 5 % of histories have one; a drop is found in place."""
    chance, rates, replications = random.Random(7), [0.3, 0.6, 0.8, 0.95], 300
    alarms = sum(
        bool(change_points([drawn(chance, rates, 5) for _ in range(8)]))
        for _ in range(replications)
    )
    bound = 0.05 + 3 * math.sqrt(0.05 * 0.95 / replications)
    assert alarms / replications <= bound, f"{alarms} of {replications}"
    worse = [rate - 0.25 for rate in rates]
    found = [
        change_points([drawn(chance, worse if at >= 5 else rates, 10) for at in range(10)])
        for _ in range(60)
    ]
    placed = [each for each in found if any(abs(change.at - 5) <= 1 for change in each)]
    assert len(placed) >= 54, f"{len(placed)} of 60"
    nearest = [min(each, key=lambda change: abs(change.at - 5)) for each in placed]
    assert all(change.after < change.before for change in nearest)


def test_change_points_of_short_and_changing_histories() -> None:
    """R-N12: two runs are one test of the gate; cases that are not in both are not compared."""
    good, bad = {"a": CaseCounts(9, 10)}, {"a": CaseCounts(1, 10)}
    (only,) = change_points([good, bad])
    assert only.at == 1
    assert only.p_value == stratified([good["a"]], [bad["a"]]).p_value
    assert (only.before, only.after) == (0.9, 0.1)
    assert change_points([]) == change_points([good]) == []
    assert change_points([good, {"b": CaseCounts(0, 10)}]) == []
    up_and_down = [good] * 3 + [bad] * 3 + [good] * 3
    assert [change.at for change in change_points(up_and_down)] == [3, 6]


def test_lists_have_the_verdict_of_the_run(tmp_path) -> None:
    """R-N12: a tolerated error of the infrastructure is no other verdict than on the run's page."""
    lost: list[int] = []

    def agent(question: str, seed: int) -> str:
        lost.append(seed)
        if seed == lost[0]:
            raise ConnectionError("the shop is closed")
        return shop_agent()(question)

    run = Run(run_suite(shop_suite("where", "back"), {"clerk": agent}, tmp_path, trials=10))
    assert (run.totals.unjudged, run.verdict.value) == (1, "INFRA_ERROR")
    assert (run.exit_code, run_figures(run).verdict) == (0, "passed")
    bad = Run(run_suite(shop_suite("where"), {"clerk": shop_agent(False)}, tmp_path))
    assert run_figures(bad).verdict == "failed"


def test_cases_that_broke_and_cases_that_are_flaky(tmp_path) -> None:
    """R-N12: the first run of those since a case fails; a flaky one is marked instead."""

    def flaky(question: str, seed: int) -> str:
        return shop_agent(random.Random(seed).random() < 0.6)(question)

    suite = shop_suite("where", "back")
    runs = [
        Run(run_suite(suite, {"hasty": shop_agent(number < 2), "flaky": flaky}, tmp_path, trials=6))
        for number in range(4)
    ]
    # A run of other cases says nothing about these.
    runs.append(Run(run_suite(shop_suite("other"), {"hasty": shop_agent()}, tmp_path)))
    history = suite_history([HistoryPoint(run_figures(run), agent_rows(run)) for run in runs])
    cases = {(each.case, each.agent): each for each in history.cases}
    broken = cases["where", "hasty"]
    assert broken.broke is not None
    assert broken.broke.path == runs[2].path
    assert not broken.flaky
    verdicts = [cell and cell.verdict.value for cell in broken.strip]
    assert verdicts == ["PASS", "PASS", "HARD FAIL", "HARD FAIL", None]
    assert cases["where", "flaky"].flaky
    assert cases["where", "flaky"].broke is None
    agents = {each.name: each for each in history.agents}
    assert [change.at for change in agents["hasty"].changes] == [2]
    assert agents["flaky"].changes == ()
    # The figures are those of the leaderboard.
    board = {row.name: row for row in leaderboard(entrants_of([runs[0]], by_params=True)).rows}
    assert agents["flaky"].figures("pass_rate")[0] == board["flaky"].pass_rate
    assert history.runs[0].rates["flaky"] == board["flaky"].pass_rate
    assert agents["flaky"].figures("cost_usd")[0] == board["flaky"].cost_mean_usd

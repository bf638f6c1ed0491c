"""What a cell's trials come to."""

from __future__ import annotations

import msgspec
import pytest

from proctor.checks.base import CheckResult, CheckStatus, Layer
from proctor.runs.early_stop import CellPlan, FinishedTrial, find_stop, hard_fail, out_of_reach
from proctor.runs.summary import CellSummary, Verdict, rank_failures, summarise_cell
from proctor.runs.trial import CellKey, Trial, TrialStatus

KEY = CellKey("c", "a")


def trial(index: int, status: TrialStatus, score: float | None = None, **more: object) -> Trial:
    return Trial(case="c", agent="a", index=index, seed=index, status=status, score=score, **more)  # type: ignore[arg-type]


def summary(*trials: Trial, **more: object) -> CellSummary:
    options = {"threshold": 0.8, "asked": len(trials), **more}
    return summarise_cell(KEY, trials, **options)  # type: ignore[arg-type]


P, F, H, INFRA, NOT, X = (
    TrialStatus.PASSED,
    TrialStatus.FAILED,
    TrialStatus.HARD_FAIL,
    TrialStatus.INFRA_ERROR,
    TrialStatus.NOT_JUDGED,
    TrialStatus.CANCELLED,
)


@pytest.mark.parametrize(
    ("statuses", "planned", "verdict"),
    [
        ([(P, 1.0), (P, 0.9)], 2, Verdict.PASS),
        ([(P, 1.0), (F, 0.1)], 2, Verdict.PARTIAL),
        ([(F, 0.5), (F, 0.1)], 2, Verdict.FAIL),
        ([(P, 1.0), (F, 0.7)], 2, Verdict.PASS),  # the mean decides
        ([(P, 0.7), (P, 0.7)], 2, Verdict.PASS),  # every trial passed
        ([(P, 1.0), (H, 0.9)], 2, Verdict.HARD_FAIL),
        ([(H, 0.0), (INFRA, None)], 2, Verdict.HARD_FAIL),  # certain, whatever is missing
        ([(F, 0.0), (INFRA, None)], 2, Verdict.INFRA_ERROR),
        ([(P, 1.0), (INFRA, None)], 2, Verdict.INFRA_ERROR),
        ([(P, 1.0)] * 19 + [(INFRA, None)], 20, Verdict.PASS),  # 5 % are tolerated
        ([(P, 1.0)] * 18 + [(INFRA, None), (NOT, None)], 20, Verdict.INFRA_ERROR),
        ([(P, 1.0)] * 18 + [(NOT, None)] * 2, 20, Verdict.NOT_JUDGED),
        ([(F, 0.0)] * 19 + [(INFRA, None)], 20, Verdict.FAIL),
        ([(INFRA, None)], 100, Verdict.INFRA_ERROR),  # nothing was judged
        ([(NOT, None)], 1, Verdict.NOT_JUDGED),
        ([(P, 1.0)] * 5, 20, Verdict.INCOMPLETE),
        ([(P, 1.0), (X, None)], 2, Verdict.INCOMPLETE),
        ([(F, 0.0), (X, None)], 2, Verdict.FAIL),
        ([], 1, Verdict.NOT_RUN),
        ([(X, None)], 1, Verdict.NOT_RUN),
        ([(X, None), (INFRA, None)], 2, Verdict.INFRA_ERROR),
    ],
)
def test_verdicts_follow_the_stated_order(
    statuses: list[tuple[TrialStatus, float | None]], planned: int, verdict: Verdict
) -> None:
    """R-R1: hard fail, then too little judged, then the mean, then trials that are missing."""
    trials = [trial(i, status, score) for i, (status, score) in enumerate(statuses)]
    assert summary(*trials, asked=planned).verdict == verdict


def test_a_summary_counts_each_kind_apart() -> None:
    """R-R13: counts, rates with their denominators, costs known and unknown, through JSON."""
    cell = summary(
        trial(0, P, 1.0, latency_ms=10.0, cost_usd=0.1, input_tokens=5, output_tokens=5),
        trial(1, F, 0.5, latency_ms=30.0, retries=2),
        trial(2, INFRA),
        trial(3, X),
        asked=6,
    )
    assert (cell.trials, cell.passed, cell.failed, cell.hard_fail) == (4, 1, 1, 0)
    assert (cell.infra_error, cell.cancelled, cell.asked) == (1, 1, 6)
    assert cell.pass_rate == 0.5, "of the two that were judged"
    assert (cell.score_mean, cell.score_min, cell.latency_p50_ms) == (0.75, 0.5, 20.0)
    assert (cell.cost_usd, cell.tokens, cell.retries, cell.trials_with_retries) == (0.1, 10, 2, 1)
    assert msgspec.json.decode(msgspec.json.encode(cell), type=CellSummary) == cell


def test_what_was_not_observed_is_none() -> None:
    """R-R13: no rate, score or cost is invented for a cell without judged trials."""
    cell = summary(trial(0, INFRA), asked=1)
    assert cell.pass_rate is cell.score_mean is cell.cost_usd is cell.tokens is None
    assert cell.latency_p95_ms is None


def failing(index: int, **scores: float) -> Trial:
    checks = tuple(
        CheckResult(
            id=name,
            check=name,
            layer=Layer.CORRECTNESS,
            status=CheckStatus.PASS if score == 1 else CheckStatus.WARN,
            reason=f"{name} {index}",
            score=score,
            weight=4.0 if name == "heavy" else 1.0,
        )
        for name, score in scores.items()
    )
    return trial(index, F, 0.5, checks=checks)


def test_failures_are_ranked_by_harm() -> None:
    """R-R10: count times average weight lost, at most three samples, rates with denominators."""
    trials = [failing(i, light=0.0, heavy=0.0 if i == 0 else 1.0, half=0.5) for i in range(5)]
    ranked = rank_failures(trials)
    assert [(f.check_id, f.count, f.of, f.weight_lost) for f in ranked] == [
        ("light", 5, 5, 5.0),
        ("heavy", 1, 5, 4.0),
        ("half", 5, 5, 2.5),
    ]
    assert ranked[1].rate == 0.2
    assert [s.reason for s in ranked[0].samples] == ["light 0", "light 1", "light 2"]


def test_early_stop_rules() -> None:
    """R-R4: a hard fail stops; so does a threshold out of reach; infra errors are not zeros."""
    plan = CellPlan(trials=4, threshold=0.8)
    assert find_stop(
        [FinishedTrial(0, P, 1.0), FinishedTrial(1, H, 0.0), FinishedTrial(2, P, 1.0)],
        plan,
        [hard_fail],
    ) == (
        2,
        "hard fail in trial 1",
    )
    low = [FinishedTrial(0, F, 0.0), FinishedTrial(1, P, 1.0)]
    stop = find_stop(low, plan, [out_of_reach])
    assert stop is not None
    assert stop.after == 1, "0 + 3 × 1 over 4 is below 0.8"
    infra = [FinishedTrial(0, INFRA, None), FinishedTrial(1, INFRA, None), FinishedTrial(2, P, 1.0)]
    assert find_stop(infra, plan, [out_of_reach]) is None


def test_trials_beyond_a_stop_are_not_counted() -> None:
    """R-R4: trials that were already running when a cell was decided are kept, not counted."""
    cell = summary(trial(0, P, 1.0), trial(1, H, 0.0), trial(2, P, 1.0), asked=9, rules=[hard_fail])
    assert (cell.trials, cell.asked, cell.early_stop) == (2, 9, "hard fail in trial 1")

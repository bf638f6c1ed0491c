"""What a report says as a whole: exit codes, sums, the one line why."""

import pytest
from report_parts import case, check, mixed, report


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["passed", "passed"], 0),
        (["passed", "failed"], 1),
        (["passed", "hard_fail"], 1),
        (["passed", "infra_error"], 2),
        (["passed", "cancelled"], 2),
        (["infra_error", "hard_fail"], 1),
        ([], 2),
    ],
)
def test_exit_code(statuses, code):
    """R-R11: 0 only when all passed, 1 when a gate failed, 2 when something was not judged."""
    assert report(*(case(str(i), status) for i, status in enumerate(statuses))).exit_code == code


def test_exit_code_of_what_was_left_out():
    """R-R11: planned cases that never began are not a pass; a signal has its own code."""
    assert report(case(), planned=2).exit_code == 2
    assert report(case(), planned=2).not_run == 1
    assert report(case(), planned=2, signal=2).exit_code == 130
    assert report(case("x", "failed"), planned=2, signal=15).exit_code == 143


def test_unknown_costs_are_not_zero():
    """R-A4: the cost is the sum of what is known, None when nothing is."""
    assert mixed().totals.cost_usd == 0.41
    assert mixed().totals.unpriced_calls == 3
    assert mixed().totals.judge_cost_usd == 0.01
    assert report(case()).totals.cost_usd is None


def test_reason_of_a_case():
    """R-C5: the first blocking failure, else what the score lost its points on."""
    assert mixed().trials[1].reason == "expected_in_answer: the answer lacks 'Paris'"
    weak = report(case("w", "failed", check("warn", "tone", reason="rude"), score=0.5)).trials[0]
    assert weak.reason == "score 0.50 is below 0.8: tone: rude"
    assert report(case()).trials[0].reason == ""

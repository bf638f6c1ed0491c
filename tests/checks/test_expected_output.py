"""Structured outputs, compared field by field."""

from typing import Any

import pytest

import proctor
from proctor.checks import CheckContext, ExpectedOutput
from proctor.trace import Trace

EXPECTED = {
    "total": 159.0,
    "currency": "EUR",
    "id": 17,
    "lines": [{"sku": "RUG", "n": 1}, {"sku": "LAMP", "n": 2}],
    "paid": True,
}


def judged(output: Any, answer: str = "", **options: Any) -> dict[str, Any]:
    context = CheckContext[Any](None, Trace(trace_id="t"), answer, value=output)
    found = ExpectedOutput(EXPECTED, **options).evaluate(context)
    return dict(found) if isinstance(found, dict) else {"": found}


def test_each_field_has_its_own_result() -> None:
    """R-N9: missing and wrong fields fail by their path; other fields are allowed."""
    output = {**EXPECTED, "currency": "eur", "total": 160.0, "paid": 1, "note": "x"}
    del output["id"]
    found = judged(output)
    assert {path: each.status for path, each in found.items()} == {
        "total": "fail",
        "currency": "pass",
        "id": "fail",
        "lines.0.sku": "pass",
        "lines.0.n": "pass",
        "lines.1.sku": "pass",
        "lines.1.n": "pass",
        "paid": "fail",  # true is not 1
    }
    assert found["total"].reason == "160.0 instead of 159.0"
    assert judged(output, exact=True)["note"].reason == "not expected"
    assert judged(output, case_sensitive=True)["currency"].failed


@pytest.mark.parametrize(
    ("tolerance", "passes"),
    [(0, False), (0.5, False), (1, True), ("1%", True), ("0.5%", False), ({"total": 1}, True),
     ({"lines.*.n": 9}, False)],
)  # fmt: skip
def test_numbers_have_a_tolerance(tolerance: Any, passes: bool) -> None:
    """R-N9: absolute or as a share, for all fields or by path."""
    assert judged({**EXPECTED, "total": 160.0}, tolerance=tolerance)["total"].passed is passes


def test_lists_may_be_unordered_and_fields_ignored() -> None:
    """R-N9: the score of an unordered list is the share of items that match."""
    lines = [{"sku": "LAMP", "n": 2.0}, {"sku": "RUG", "n": 1, "colour": "red"}]
    options: dict[str, Any] = {"unordered": "lines", "ignore": ["id"]}
    found = judged({**EXPECTED, "lines": lines, "id": 99}, **options)
    assert "id" not in found
    assert all(each.passed for each in found.values()), found
    assert not judged({**EXPECTED, "lines": lines})["lines.0.sku"].passed
    half = judged({**EXPECTED, "lines": [lines[0], {"sku": "X"}]}, **options)["lines"]
    assert (half.failed, half.score) == (True, 0.5)
    longer = judged({**EXPECTED, "lines": [*EXPECTED["lines"], {}]})
    assert longer["lines.length"].reason == "3 items instead of 2"


def test_the_answer_may_be_json_text(tmp_path: Any) -> None:
    """R-N9: with or without a code fence; a case passes or fails by its fields."""
    text = '```json\n{"total": 159, "currency": "EUR", "id": 17, "paid": true}\n```'
    assert judged(None, text)["total"].passed
    assert judged(None, "it is 159")[""].reason == "the answer is not JSON"
    case = {"input": "x", "correctness": {"expected_output": {"value": {"a": 1, "b": 2}}}}
    suite = proctor.Suite.model_validate({"cases": [case]})
    (trial,) = proctor.evaluate(suite, agent=lambda _: {"a": 1, "b": 3}).trials
    assert trial.status == "hard_fail"
    assert trial.score == 0.5
    assert [check.id for check in trial.checks] == ["expected_output.a", "expected_output.b"]

"""The JSON report: one document, everything whole."""

import json
import math

import pytest
from report_parts import ATTACK, case, check, hostile, mixed, report

from proctor.report.outputs import render


def document(of):
    text = render("json", of)
    assert text.endswith("}\n")
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_every_fact_is_there():
    """R-Q5: JSON has totals with their denominators and every check of every case."""
    found = document(mixed())
    assert found["schema_version"] == 1
    assert found["exit_code"] == 1
    assert found["started"] == "2023-11-14T22:13:20.000+00:00"
    totals = found["totals"]
    assert {k: totals[k] for k in ("planned", "cases", "passed", "failed", "hard_fail")} == {
        "planned": 7,
        "cases": 5,
        "passed": 1,
        "failed": 1,
        "hard_fail": 1,
    }
    assert (totals["infra_error"], totals["cancelled"], totals["not_run"]) == (1, 1, 2)
    assert totals["checks"] == {
        "pass": 2,
        "warn": 2,
        "fail": 1,
        "skip": 0,
        "not_judged": 0,
        "metric": 0,
        "unscored": 0,
    }
    assert (totals["cost_usd"], totals["unpriced_calls"]) == (0.41, 3)
    wrong = found["cases"][1]
    assert wrong["place"] == {"file": "suite.yaml", "line": 12, "column": 5}
    assert wrong["layers"] == {"correctness": "fail", "path": "skip", "cost": "skip"}
    (only,) = wrong["checks"]
    assert (only["expected"], only["actual"], only["span_ids"]) == (["Paris"], "Rome", ["s1", "s2"])
    assert found["cases"][3]["score"] is None
    assert found["cases"][3]["error"] == "RuntimeError: no connection"


def test_expected_and_actual_are_whole():
    """R-Q5: what people see shortened, JSON holds whole: 10 MB of it."""
    flood = "x" * 10_000_000
    found = document(report(case("big", "hard_fail", check(actual=flood))))
    assert found["cases"][0]["checks"][0]["actual"] == flood


def test_hostile_text_comes_back_as_it_was_but_for_surrogates():
    """R-Q5: only what UTF-8 cannot hold is replaced."""
    found = document(hostile())
    assert found["cases"][0]["answer"] == ATTACK.replace("\ud800", "\ufffd")


def test_values_no_json_has():
    """R-Q5: NaN is null, nesting has an end, what JSON does not know is text."""
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    odd = {"nan": math.nan, "set": {1}, "object": ValueError("x"), 3: "three", "deep": deep}
    found = document(report(case("odd", "hard_fail", check(actual=odd))))
    actual = found["cases"][0]["checks"][0]["actual"]
    assert actual["nan"] is None
    assert actual["set"] == [1]
    assert actual["object"] == "x"
    assert actual["3"] == "three"
    assert "nested too deeply" in json.dumps(actual["deep"])

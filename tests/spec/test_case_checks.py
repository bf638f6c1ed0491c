"""From a case to its checks: order, weights and what blocks, as documented."""

from pathlib import Path

import pytest

from proctor.checks import Check
from proctor.errors import ProctorError
from proctor.spec import Case, checks_of, load_suite

CASE = """\
agent: m:f
cases:
- input: x
  cost: {max_latency_ms: 5, max_cost_usd: 1}
  path: {max_tool_calls: 0, forbidden_tools: [rm], expected_tools: [a]}
  correctness: {llm_judge: r, expected_in_answer: y, hallucination_check: false}
  checks: [mine:polite, {check: mine:Short, params: {words: 3}, weight: 2, required: false, id: s}]
  assertions:
  - {type: tool_called, tool: a}
  - {type: tool_called, tool: a, required: true}
  - {type: judge, rule: r, weight: 3}
  - {type: output_contains, value: y}
"""

MINE = """\
def polite(context):
    return True

class Short:
    def __init__(self, words):
        self.words = words
    def __call__(self, context):
        return len(context.answer.split()) <= self.words
"""


def planned(folder: Path, more: str = "") -> dict[str, Check]:
    (folder / "mine.py").write_text(MINE)
    path = folder / "suite.yaml"
    path.write_text(CASE + more)
    (case,) = load_suite(path).cases
    return {check.id: check for check in checks_of(case)}


def test_order(tmp_path: Path) -> None:
    """R-C2 R-C10: what decides alone comes first, judges last in correctness, then path, cost."""
    checks = planned(tmp_path)
    names = list(checks)
    contains = next(name for name in names if name.startswith("output_contains"))
    judged = next(name for name in names if name.startswith("judge"))
    assert names == [
        *("expected_in_answer", "polite", "s", contains),
        *("llm_judge", judged),
        *("expected_tools", "forbidden_tools", "max_tool_calls"),
        *("tool_called:a", "tool_called:a#2"),
        *("max_cost_usd", "max_latency_ms"),
    ]
    assert [name for name in names if checks[name].judged] == ["llm_judge", judged]


def test_weights_and_blocking_by_default(tmp_path: Path) -> None:
    """R-C5 R-C6: correctness weighs 1 and blocks, path and cost warn, forbidden tools block."""
    found = {name: (c.weight, c.blocking) for name, c in planned(tmp_path).items()}
    assert found["expected_in_answer"] == (1.0, True)
    assert found["llm_judge"] == (1.0, True)
    assert found["polite"] == (1.0, True)
    assert found["s"] == (2.0, False)
    assert found["expected_tools"] == (0.0, False)
    assert found["max_tool_calls"] == (0.0, False)
    assert found["forbidden_tools"] == (1.0, True)
    assert found["max_cost_usd"] == (0.0, False)
    assert found["tool_called:a"] == (1.0, False)
    assert found["tool_called:a#2"] == (1.0, True)


def test_weights_and_required_of_the_case(tmp_path: Path) -> None:
    """R-C5: by layer or by check, the check wins; what is required blocks and weighs."""
    more = (
        "  weights: {path: 0.5, expected_tools: 4, llm_judge: 0, forbidden_tools: 0}\n"
        "  required: [max_latency_ms, s, 'tool_called:a']\n"
    )
    found = {name: (c.weight, c.blocking) for name, c in planned(tmp_path, more).items()}
    assert found["expected_tools"] == (4.0, False)
    assert found["max_tool_calls"] == (0.5, False)
    assert found["forbidden_tools"] == (0.0, True)
    assert found["llm_judge"] == (0.0, True)
    assert found["max_latency_ms"] == (1.0, True)
    assert found["max_cost_usd"] == (0.0, False)
    assert found["s"] == (2.0, True)
    assert found["tool_called:a"] == (0.5, True)


def test_layers_made_blocking_or_soft() -> None:
    """R-C5: any soft layer can be made blocking, and correctness soft."""
    case = Case.model_validate(
        {
            "input": "x",
            "correctness": {"expected_in_answer": "y", "blocking": False},
            "path": {"max_tool_calls": 1, "blocking": True},
            "cost": {"max_cost_usd": 1, "blocking": True},
        }
    )
    found = {check.id: (check.weight, check.blocking) for check in checks_of(case)}
    assert found == {
        "expected_in_answer": (1.0, False),
        "max_tool_calls": (1.0, True),
        "max_cost_usd": (1.0, True),
    }


def test_a_custom_check_that_cannot_be_used(tmp_path: Path) -> None:
    """R-C9: reading a suite runs none of the user's code; planning says what is missing, where."""
    path = tmp_path / "suite.yaml"
    path.write_text("agent: m:f\ncases:\n- {id: a, input: x, checks: [not_there:polite]}\n")
    (case,) = load_suite(path).cases
    with pytest.raises(ProctorError) as caught:
        checks_of(case)
    assert str(caught.value).startswith(f"{path}:3:3: the check 'polite' of case 'a'")


def test_a_function_is_a_check_in_python() -> None:
    """R-C9 R-S1: the Python API takes the function itself."""

    def polite(context: object) -> bool:
        return context is not None

    case = Case.model_validate({"input": "x", "checks": [polite]})
    (check,) = checks_of(case)
    assert check.id == "polite"

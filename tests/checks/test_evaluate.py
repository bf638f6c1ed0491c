"""How checks are run together: order, short-circuit, weights, and what breaks."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trial_parts import context_of, judge_at, judged, llm, trace_of, verdict

from proctor.checks.base import (
    Check,
    CheckResult,
    CheckStatus,
    Layer,
    failed,
    passed,
    skipped,
    unscored,
    worst,
)
from proctor.checks.evaluate import evaluate
from proctor.llm import MockLLM

PASS, WARN, FAIL, SKIP, UNSCORED = (
    CheckStatus.PASS,
    CheckStatus.WARN,
    CheckStatus.FAIL,
    CheckStatus.SKIP,
    CheckStatus.UNSCORED,
)


class Given(Check):
    """A check with a fixed answer."""

    answer: Any
    asks: bool

    @property
    def judged(self) -> bool:
        return self.asks

    def evaluate(self, ctx, /):
        return self.answer


async def test_a_judge_is_not_asked_once_a_deterministic_check_failed():
    """R-C2: no money is spent on an answer that is already wrong, and the result says why."""
    case = {
        "correctness": {"expected_in_answer": "Paris", "llm_judge": "Kind.", "safety_check": True}
    }
    with MockLLM([verdict(5), verdict(5)]) as server:
        judges = {"default": judge_at(server)}
        wrong = await judged(case, answer="Lyon", judges=judges)
        assert server.requests == []
        right = await judged(case, answer="Paris", judges=judges)
        assert len(server.requests) == 2
    assert [r.status for r in wrong] == [FAIL, SKIP, SKIP]
    assert wrong[1].reason == "not judged: expected_in_answer already failed"
    assert [r.status for r in right] == [PASS, PASS, PASS]


async def test_custom_checks_and_assertions_decide_before_a_judge():
    """R-C2: whatever needs no model is asked first, wherever it is written."""
    case = {
        "correctness": {"llm_judge": "Kind."},
        "assertions": [{"type": "output_contains", "value": "x", "required": True}],
        "checks": [lambda context: True],
    }
    with MockLLM([verdict(5)]) as server:
        outcome = await judged(case, answer="y", judges={"default": judge_at(server)})
        assert server.requests == []
    assert [r.check for r in outcome] == ["custom", "output_contains", "llm_judge"]


async def test_a_warning_does_not_keep_the_judge_away():
    """R-C2: only what blocks decides."""
    case = {"correctness": {"expected_in_answer": "Paris", "llm_judge": "Kind.", "blocking": False}}
    with MockLLM([verdict(5)]) as server:
        outcome = await judged(case, answer="Lyon", judges={"default": judge_at(server)})
    assert [r.status for r in outcome] == [WARN, PASS]


async def test_layers_in_order_and_their_status():
    """R-C5: correctness, path, cost, each with the worst status it holds."""
    outcome = await judged(
        {
            "cost": {"max_llm_calls": 0},
            "path": {"max_tool_calls": 5, "forbidden_tools": ["rm"]},
            "correctness": {"expected_in_answer": "x"},
        },
        trace_of("rm", llm()),
        "x",
    )
    assert [r.layer for r in outcome] == ["correctness", "path", "path", "cost"]
    by_layer = {layer: worst(r.status for r in outcome if r.layer == layer) for layer in Layer}
    assert by_layer == {Layer.CORRECTNESS: PASS, Layer.PATH: FAIL, Layer.COST: WARN}
    assert [r.id for r in outcome.with_status(FAIL)] == ["forbidden_tools"]


async def test_a_check_that_raises_is_unscored():
    """R-C5: a broken check is a result with its reason, never a crash and never a verdict."""

    def boom(context):
        raise KeyError("city")

    outcome = await judged({"checks": [boom]})
    assert outcome[0].status == UNSCORED
    message, _, place = outcome[0].reason.partition(" (at ")
    assert message == "the check itself failed: KeyError: 'city'"
    assert "test_evaluate.py:" in place
    assert outcome.with_status(UNSCORED) == [outcome[0]]


async def test_score_is_the_weighted_mean_of_what_was_judged():
    """R-C6: Σ score·weight / Σ weight; soft layers weigh nothing unless given weight."""
    case = {
        "correctness": {"expected_in_answer": ["a", "b"], "not_in_answer": "z", "blocking": False},
        "path": {"max_tool_calls": 0, "min_edit_similarity": 1},
        "weights": {"expected_in_answer": 3, "path": 0.5},
    }
    outcome = await judged(case, trace_of("t"), "a")
    scores = [(r.id, r.score, r.weight) for r in outcome]
    assert scores == [
        ("expected_in_answer", 0.5, 3),
        ("not_in_answer", 1.0, 1),
        ("max_tool_calls", 0.0, 0.5),
        ("min_edit_similarity", None, 0.5),
    ]
    assert outcome.score == pytest.approx((0.5 * 3 + 1) / 4.5)
    assert (await judged({"path": {"max_tool_calls": 0}}, trace_of("t"))).score is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    passed("y"),
                    failed("n"),
                    failed("part", score=0.3),
                    skipped("s"),
                    unscored("u"),
                    CheckResult(score=0.9, passed=True, reason="enough"),
                ]
            ),
            st.booleans(),
            st.booleans(),
            st.sampled_from([0.0, 0.5, 2.0]),
        ),
        max_size=6,
    )
)
async def test_every_plan_gives_every_result(plan):
    """R-C6: every check has a result, statuses follow from outcome and blocking alone."""
    planned = [
        Given(answer=outcome, asks=judge, id=f"c{n}", weight=weight, required=blocks)
        for n, (outcome, blocks, judge, weight) in enumerate(plan)
    ]
    outcome = await evaluate(planned, context_of())
    assert [r.id for r in outcome] == [p.id for p in planned]
    blocked = False
    for found, (given_outcome, blocks, judge, _) in zip(outcome, plan, strict=True):
        if judge and blocked:
            assert found.status == SKIP
            continue
        if given_outcome.score is None:
            assert found.status == given_outcome.status
        else:
            failed = FAIL if blocks else WARN
            assert found.status == (PASS if given_outcome.passed else failed)
        blocked = blocked or found.status == FAIL
    assert outcome.score is None or 0 <= outcome.score <= 1


async def test_results_survive_json():
    """R-C5: reason, expected, actual and span ids are whole after a round trip."""
    outcome = await judged(
        {"path": {"expected_tools": ["b"], "match_mode": "strict"}}, trace_of("a")
    )
    again = msgspec.json.decode(msgspec.json.encode(tuple(outcome)), type=tuple[CheckResult, ...])
    assert again == outcome
    assert isinstance(again[0], CheckResult)
    assert again[0].span_ids == ("s1",)

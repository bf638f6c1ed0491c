"""Flakiness by source: the agent, the judge and the infrastructure each by itself."""

import pytest
from outcome_parts import arm
from trial_parts import judge_at, judged, verdict

from proctor.llm import MockLLM
from proctor.results.gate import flakiness_of, votes_of
from proctor.runs.trial import CellKey, Trial, TrialStatus


def test_sources_stand_apart():
    """R-Q1: a case may be unsettled by its agent, by its machinery, or not known to be."""
    found = {
        each.case: each
        for each in flakiness_of(
            arm("x", {"agent": (5, 10), "infra": (10, 10, 10), "fine": (50, 50), "none": (0, 0)})
        )
    }
    assert found["agent"].sources == ("agent",)
    assert found["infra"].sources == ("infrastructure",)
    assert found["infra"].by_infrastructure.rate == 0.5
    assert found["infra"].by_infrastructure.n == 20
    assert not found["fine"].flaky
    none = found["none"]
    assert (none.by_agent.rate, none.by_agent.reason) == (None, "no judged trial")
    assert none.by_judge.reason == "no transcript was judged twice"
    assert not none.flaky


async def test_a_judge_that_contradicts_itself_is_found():
    """R-Q1: the votes of a real judge are stored with the result, and their flips are counted."""
    replies = [verdict(5), verdict(1), verdict(5)]
    with MockLLM(replies) as server:
        case = {"correctness": {"llm_judge": {"rule": "Polite.", "votes": 3}}}
        found = await judged(case, answer="hello", judges={"default": judge_at(server)})
    (result,) = found
    assert result.actual["votes_passed"] == [True, False, True]
    trial = Trial(
        case="a", agent="x", index=0, seed=0, status=TrialStatus.PASSED, checks=tuple(found)
    )
    votes = votes_of([trial])
    assert votes == {CellKey("a", "x"): [[True, False, True]]}
    (flaky,) = flakiness_of(arm("x", {"a": (1, 1)}), votes)
    assert flaky.by_judge.rate == pytest.approx(2 / 3)
    assert flaky.sources == ("judge",)

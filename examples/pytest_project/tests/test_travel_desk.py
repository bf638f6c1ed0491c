"""Tests of an agent in pytest: one trace, a whole trial, and an agent that is not steady."""

import pytest
from travel_desk import Desk

from proctor.pytest_plugin.fixture import Proctor


def test_looks_before_it_books(proctor: Proctor) -> None:
    """Capture whatever runs in the block, then hold it against checks of all three layers."""
    with proctor.capture(query="Book me a train from Bergen to Oslo") as trace:
        trace.response = Desk().answer("Book me a train from Bergen to Oslo")
    proctor.assert_passes(
        trace,
        correctness={"expected_in_answer": ["39 euros"]},
        path={
            "spans": [{"before": [{"tool_name": "find_trains"}, {"tool_name": "book"}]}],
            "max_tool_calls": 2,
            "blocking": True,
        },
        cost={"max_llm_calls": 1, "blocking": True},
    )


def test_one_trial(proctor: Proctor) -> None:
    """`run` makes a trial of it: status, score, answer, trace."""
    case = {"input": "Is there a train from Oslo to Paris?"}
    tried = proctor.run(Desk().answer, case, correctness={"expected_in_answer": ["no train"]})
    assert tried.trial.status == "passed"
    assert tried.trace.tools_used == ["find_trains"]


@pytest.mark.proctor(trials=20, threshold=0.8)
def test_a_desk_that_is_lazy_now_and_then(proctor: Proctor) -> None:
    """One green test says little of an agent that is not steady: here 16 of 20 trials must pass."""
    said = Desk(lazy=0.1).answer("Book me a train from Bergen to Oslo", seed=proctor.trial)
    assert "39 euros" in said

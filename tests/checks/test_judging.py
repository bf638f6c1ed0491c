"""Checks that ask a judge, against a real scripted model server."""

import pytest
from trial_parts import judge_at, judged, result, tool, trace_of, verdict

from proctor.checks.base import CheckStatus
from proctor.llm import MockLLM

PASS, FAIL, SKIP, UNSCORED = (
    CheckStatus.PASS,
    CheckStatus.FAIL,
    CheckStatus.SKIP,
    CheckStatus.UNSCORED,
)


async def asked(replies, correctness, answer="Hello Ada", trace=None):
    """The only result, and what the judge was asked."""
    with MockLLM(replies) as server:
        judges = {"default": judge_at(server)}
        only = await result({"correctness": correctness}, trace, answer, judges=judges)
        return only, server.requests


async def test_llm_judge():
    """R-C2: a rule as a text; the verdict's score, label and reason become the result."""
    passed, requests = await asked([verdict(5, "It greets.")], {"llm_judge": "Greets by name."})
    assert (passed.status, passed.score, passed.method) == (PASS, 1.0, "judge openai:judge")
    assert "Greets by name." in requests[0].text
    assert "Hello Ada" in requests[0].text
    failed, _ = await asked([verdict(2, "It is rude.")], {"llm_judge": "Greets by name."})
    assert (failed.status, failed.score) == (FAIL, 0.25)
    assert failed.reason == "fail, 0.25 against 0.75: It is rude."
    assert failed.expected == {"rule": "Greets by name.", "threshold": 0.75}


async def test_a_judge_with_options():
    """R-C7: threshold, votes and examples of the check go to the judge."""
    rule = {
        "rule": "Greets.",
        "threshold": 0.5,
        "votes": 3,
        "expected": "Hi",
        "examples": [{"answer": "Oi", "score": 2, "rationale": "Too rough."}],
    }
    found, requests = await asked([verdict(1), verdict(3), verdict(5)], {"llm_judge": rule})
    assert (found.status, found.score) == (PASS, 0.5)
    assert len(requests) == 3
    assert "Too rough." in requests[0].text


async def test_a_criterion_may_have_a_threshold_of_its_own():
    """R-C7: weighted criteria; one that misses its own threshold fails the whole."""
    rule = {
        "criteria": [
            {"name": "tone", "rule": "Kind.", "weight": 3},
            {"name": "facts", "rule": "True.", "threshold": 0.5},
        ]
    }
    found, _ = await asked([verdict({"tone": 5, "facts": 2})], {"llm_judge": rule})
    assert found.status == FAIL
    assert found.score == pytest.approx((3 * 1.0 + 0.25) / 4)
    assert found.reason.startswith("facts is 0.25, less than its 0.5; pass, 0.81 against 0.75")


async def test_several_rules_are_several_results():
    """R-C2: each rule has an id of its own."""
    with MockLLM([verdict(5), verdict(1)]) as server:
        rules = ["Kind.", {"rule": "Short.", "id": "short"}]
        outcome = await judged(
            {"correctness": {"llm_judge": rules}},
            answer="x",
            judges={"default": judge_at(server)},
        )
    assert [(r.id, r.status) for r in outcome] == [
        ("llm_judge.1", PASS),
        ("llm_judge.short", FAIL),
    ]


async def test_a_judge_that_fails_is_no_verdict():
    """R-C7: a broken judge leaves the check unscored, with the reason, and no number."""
    found, _ = await asked([{"error": 500, "times": "forever"}], {"llm_judge": "Kind."})
    assert (found.status, found.score) == (UNSCORED, None)
    assert found.reason.startswith("the judge gave no verdict: 1 of 1 judgements failed")


async def test_no_judge_is_said():
    """R-C7: without a judge the check is unscored and tells what to add to the suite."""
    found = await result({"correctness": {"llm_judge": "Kind."}}, answer="x")
    assert found.status == UNSCORED
    assert found.reason.startswith("no judge is configured (add `judge: {model: ")


async def test_a_judge_by_name():
    """R-C7: a check may name one of several judges; a slip gets a suggestion."""
    with MockLLM([verdict(5)]) as server:
        judges = {"strict": judge_at(server)}
        case = {"correctness": {"llm_judge": {"rule": "Kind.", "judge": "strict"}}}
        assert (await result(case, answer="x", judges=judges)).status == PASS
        case = {"correctness": {"llm_judge": {"rule": "Kind.", "judge": "strikt"}}}
        missing = await result(case, answer="x", judges=judges)
    assert missing.status == UNSCORED
    assert missing.reason == "there is no judge 'strikt' (did you mean 'strict'?)"


async def test_a_model_of_the_check_itself(monkeypatch):
    """R-C7: `model:` asks that model, even where the suite has no judge."""
    with MockLLM([verdict(4)]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "test")
        case = {"correctness": {"llm_judge": {"rule": "Kind.", "model": "openai:gpt-x"}}}
        found = await result(case, answer="x")
        assert [request.model for request in server.requests] == ["gpt-x"]
    assert (found.status, found.method) == (PASS, "judge openai:gpt-x")


async def test_safety_check():
    """R-C2: safety is judged by the built-in rubric, or by the policy given."""
    passed, requests = await asked([verdict(5)], {"safety_check": True})
    assert passed.status == PASS
    assert "does no harm" in requests[0].text
    failed, requests = await asked(
        [verdict(1, "It names a price.")], {"safety_check": {"policy": "No prices."}}
    )
    assert failed.status == FAIL
    assert failed.reason == "fail, 0.00 against 0.75: It names a price."
    assert "No prices." in requests[0].text


READ = trace_of(tool("lookup", {"q": "bridge"}, "The bridge opened in 1932. It is 1,149 m long."))


async def test_hallucination_check_by_a_judge():
    """R-C2: with a judge it decides, and is shown what the agent read."""
    found, requests = await asked([verdict(5)], {"hallucination_check": True}, "1932", READ)
    assert (found.status, found.method) == (PASS, "judge openai:judge")
    assert "opened in 1932" in requests[0].text


async def test_hallucination_check_without_a_judge():
    """R-C2: without a judge the claims are looked up, and the result says so."""
    good = await result(
        {"correctness": {"hallucination_check": True}}, READ, "The bridge opened in 1932."
    )
    assert good.status == PASS
    assert good.method == "grounding (words and numbers)"
    invented = await result(
        {"correctness": {"hallucination_check": True}},
        READ,
        "The bridge opened in 1847 and was designed by Otto Schmidt.",
    )
    assert invented.status == FAIL
    assert "unsupported" in invented.reason
    assert "1847" in invented.reason
    assert "judged without a model" in invented.reason
    assert "1847" in [claim["text"] for claim in invented.actual["unsupported"]]


async def test_hallucination_check_with_sources_and_method():
    """R-C2: sources count as evidence, and `method: grounding` asks no judge that is there."""
    options = {"method": "grounding", "sources": ["Otto Schmidt drew the plans."]}
    found, requests = await asked(
        [verdict(1)],
        {"hallucination_check": options},
        "Otto Schmidt drew the plans of the bridge, opened in 1932.",
        READ,
    )
    assert found.status == PASS
    assert requests == []


async def test_nothing_read_is_nothing_to_hold_against():
    """R-C2: no evidence is skipped with or without a judge, never passed."""
    alone = await result({"correctness": {"hallucination_check": True}}, answer="It is 7.")
    assert alone.status == SKIP
    found, requests = await asked([verdict(5)], {"hallucination_check": True}, "It is 7.")
    assert (found.status, requests) == (SKIP, [])
    assert "nothing to compare the answer with" in found.reason

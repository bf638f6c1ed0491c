"""The flat form: every type passing, failing, and failing with words a person can act on."""

import typing

import pytest
from pydantic import TypeAdapter, ValidationError
from trial_parts import judge_at, judged, llm, result, span, tool, trace_of, verdict

from proctor.checks import (
    Contains,
    CountHandoffs,
    CountToolCalls,
    Excludes,
    ExpectHandoffs,
    ExpectTools,
    ForbidTools,
    HandoffsAvailable,
    HasMatchingSpan,
    JMESPath,
    LLMJudge,
    MaxCost,
    MaxLatency,
)
from proctor.checks.base import CheckStatus
from proctor.checks.layers import Assertion
from proctor.llm import MockLLM
from proctor.spec import Case
from proctor.spec.case_checks import checks_of

PASS, WARN, FAIL, SKIP = CheckStatus.PASS, CheckStatus.WARN, CheckStatus.FAIL, CheckStatus.SKIP

TRACE = trace_of(
    tool("search", {"q": "Cats in Oslo", "filter": {"city": "Oslo"}, "tags": ["a"]}, ms=30),
    tool("search", '{"q": "dogs"}'),
    tool("book", {"id": 7}),
    llm(usd=0.02, attributes={"gen_ai.tool.definitions": '[{"name": "transfer_to_billing"}]'}),
    span("handoff", "h", agent_name="triage", handoff_to="billing"),
)

CASES = [
    # assertion, whether it holds, the reason
    ({"type": "tool_called", "tool": "book"}, True, None),
    ({"type": "tool_called", "tool": "book", "arguments": {"id": 7}}, True, None),
    (
        {"type": "tool_called", "tool": "pay"},
        False,
        "superset: 1 of 1 reference calls missing: pay (reference call 1)",
    ),
    ({"type": "tool_called", "tool": "search", "arguments": {"q": "dogs"}}, True, None),
    (
        {"type": "tool_called", "tool": "book", "arguments": {"id": 8}},
        False,
        "superset: 1 call with other arguments: book (call 3, span s3) id is 7, reference 8",
    ),
    ({"type": "tool_not_called", "tool": "pay"}, True, None),
    ({"type": "tool_not_called", "tool": "sea*"}, False, "forbidden: search (twice)"),
    ({"type": "tool_call_count", "tool": "search", "eq": 2}, True, None),
    ({"type": "tool_call_count", "min": 1, "max": 3}, True, None),
    (
        {"type": "tool_call_count", "tool": "book", "min": 2},
        False,
        "1 call of book, expected at least 2",
    ),
    (
        {"type": "tool_call_count", "tool": "search", "eq": 1},
        False,
        "2 calls of search, expected exactly 1",
    ),
    ({"type": "tool_sequence", "tools": ["search", "book"]}, True, None),
    ({"type": "tool_sequence", "tools": ["book", "search"], "mode": "any_order"}, True, None),
    (
        {"type": "tool_sequence", "tools": ["search", "search", "book"], "mode": "exact"},
        True,
        None,
    ),
    (
        {"type": "tool_sequence", "tools": ["book", "search"], "mode": "in_order"},
        False,
        "in_order: 1 call out of order: ",
    ),
    (
        {"type": "tool_sequence", "tools": ["search", "book"], "mode": "exact"},
        False,
        "strict: 1 call not in the reference: search",
    ),
    ({"type": "arg_equals", "tool": "search", "arg": "filter.city", "value": "Oslo"}, True, None),
    (
        {"type": "arg_equals", "tool": "book", "arg": "id", "value": "7"},
        False,
        'id of book equals "7" in none of 1 call: it is 7',
    ),
    (
        {"type": "arg_equals", "tool": "pay", "arg": "id", "value": 1},
        False,
        "pay was not called",
    ),
    ({"type": "arg_contains", "tool": "search", "arg": "q", "value": "OSLO"}, True, None),
    ({"type": "arg_contains", "tool": "search", "arg": "tags", "value": "a"}, True, None),
    (
        {
            "type": "arg_contains",
            "tool": "search",
            "arg": "q",
            "value": "OSLO",
            "case_sensitive": True,
        },
        False,
        'q of search contains "OSLO" in none of 2 calls: it is "Cats in Oslo", "dogs"',
    ),
    ({"type": "output_contains", "value": "BOOKED"}, True, None),
    (
        {"type": "output_contains", "value": ["booked", "paid"]},
        False,
        "the answer lacks 'paid' (1 of 2 found)",
    ),
    ({"type": "output_not_contains", "value": "error"}, True, None),
    (
        {"type": "output_not_contains", "value": "booked"},
        False,
        "the answer contains 'booked', which it must not",
    ),
    ({"type": "jmespath", "path": "length(tool_calls)", "eq": 3}, True, None),
    (
        {"type": "jmespath", "path": "tool_sequence[0]", "eq": "book"},
        False,
        'tool_sequence[0] is "search": does not equal "book"',
    ),
    ({"type": "cost_under", "usd": 0.02}, True, None),
    ({"type": "cost_under", "usd": 0.01}, False, "$0.02, at most $0.01 allowed"),
    ({"type": "latency_under", "ms": 70}, True, None),
    (
        {"type": "latency_under", "ms": 50},
        False,
        "70 ms, at most 50 ms allowed; slowest: search took 30 ms",
    ),
    ({"type": "steps_under", "steps": 3}, True, None),
    ({"type": "steps_under", "steps": 2}, False, "3 tool calls, at most 2 allowed"),
    ({"type": "handoff_target", "agent": "Billing"}, True, None),
    (
        {"type": "handoff_target", "agent": "sales"},
        False,
        "no handoff to sales: handoffs went to billing",
    ),
    ({"type": "handoff_targets_available", "agents": ["billing"]}, True, None),
    (
        {"type": "handoff_targets_available", "agents": ["sales"]},
        False,
        "not on offer: sales; on offer: billing",
    ),
    ({"type": "handoff_count", "max": 1}, True, None),
    ({"type": "handoff_count", "eq": 0}, False, "1 handoff, expected exactly 0"),
    ({"type": "span", "query": {"none": {"has_status": "error"}}}, True, None),
    ({"type": "span", "query": {"tool_name": "book"}}, True, None),
    (
        {"type": "span", "query": {"any": {"tool_name": "pay"}}},
        False,
        "0 of 5 spans match {tool_name: pay}",
    ),
]


@pytest.mark.parametrize(("assertion", "holds", "reason"), CASES)
async def test_assertions(assertion, holds, reason):
    """R-C10: each type holds or not, and says why not."""
    found = await result({"assertions": [assertion]}, TRACE, "Booked.")
    assert found.status == (PASS if holds else WARN), found.reason
    assert found.check == assertion["type"]
    if reason is not None:
        assert found.reason.startswith(reason)


def test_the_types_are_exactly_those_promised():
    """R-C10: the listed types, no fewer and no more, and each is tested above."""
    union = typing.get_args(typing.get_args(Assertion)[0])
    types = {typing.get_args(kind.model_fields["type"].annotation)[0] for kind in union}
    promised = (
        "tool_called tool_not_called tool_call_count tool_sequence arg_equals arg_contains "
        "output_contains output_not_contains jmespath cost_under latency_under steps_under "
        "handoff_target handoff_targets_available handoff_count judge span command files diff"
    ).split()
    assert types == set(promised)
    # Those of a workspace are tested where there is one (tests/sandbox/test_workspaces.py).
    elsewhere = {"judge", "command", "files", "diff"}
    assert {assertion["type"] for assertion, *_ in CASES} == types - elsewhere
    assert all({"weight", "required", "id"} <= set(kind.model_fields) for kind in union)


async def test_a_judge_by_weighted_criteria_and_votes():
    """R-C10: k votes, the median per criterion, the mean by weight."""
    assertion = {
        "type": "judge",
        "criteria": [{"name": "a", "rule": "A.", "weight": 3}, {"name": "b", "rule": "B."}],
        "votes": 3,
        "threshold": 0.7,
    }
    votes = [verdict({"a": 5, "b": 1}), verdict({"a": 4, "b": 3}), verdict({"a": 1, "b": 2})]
    with MockLLM(votes) as server:
        judges = {"default": judge_at(server)}
        found = await result({"assertions": [assertion]}, TRACE, "x", judges=judges)
        assert len(server.requests) == 3
    # Medians: a 4 → 0.75, b 2 → 0.25.
    assert found.score == pytest.approx((3 * 0.75 + 0.25) / 4)
    assert found.actual["criteria"] == {"a": 4.0, "b": 2.0}
    assert found.status == WARN
    assert found.reason.startswith("borderline, 0.62 against 0.7: ")


async def test_an_assertion_can_block_and_weigh():
    """R-C10: `required: true` makes a failure hard, `weight` counts in the score."""
    outcome = await judged(
        {
            "assertions": [
                {"type": "output_contains", "value": "x", "required": True, "weight": 3},
                {"type": "output_contains", "value": "y"},
            ]
        },
        answer="y",
    )
    assert [(r.status, r.weight) for r in outcome] == [(FAIL, 3), (PASS, 1)]
    assert outcome.score == 0.25


async def test_ids_tell_assertions_apart():
    """R-C10: an id of its own, else type and argument, made unique."""
    outcome = await judged(
        {
            "assertions": [
                {"type": "tool_called", "tool": "a"},
                {"type": "tool_called", "tool": "a", "arguments": {"x": 1}},
                {"type": "arg_equals", "tool": "a", "arg": "x", "value": 1},
                {"type": "tool_sequence", "tools": ["a", "b"]},
                {"type": "cost_under", "usd": 1},
                {"type": "span", "query": {"kind": "tool"}, "id": "some-tool"},
            ]
        }
    )
    assert [r.id for r in outcome] == [
        "tool_called:a",
        "tool_called:a#2",
        "arg_equals:a.x",
        "tool_sequence:a>b",
        "some-tool",
        "cost_under",
    ]


SPELLINGS = [
    # the flat spelling, the same in a layer, the object both build
    (
        {"type": "output_contains", "value": "Paris"},
        {"correctness": {"expected_in_answer": "Paris"}},
        Contains("Paris"),
    ),
    (
        {"type": "output_not_contains", "value": ["a", "b"], "case_sensitive": True},
        {"correctness": {"not_in_answer": ["a", "b"], "case_sensitive": True}},
        Excludes(["a", "b"], case_sensitive=True),
    ),
    (
        {"type": "jmespath", "path": "usage", "eq": None},
        {"correctness": {"jmespath": {"path": "usage", "eq": None}}},
        JMESPath("usage", eq=None),
    ),
    (
        {"type": "judge", "rule": "Kind.", "votes": 3},
        {"correctness": {"llm_judge": {"rule": "Kind.", "votes": 3}}},
        LLMJudge("Kind.", votes=3),
    ),
    (
        {"type": "tool_sequence", "tools": ["a", "b"]},
        {"path": {"expected_tools": ["a", "b"], "match_mode": "in_order"}},
        ExpectTools(["a", "b"], match="in_order"),
    ),
    (
        {"type": "tool_called", "tool": "a", "arguments": {"x": 1}},
        {"path": {"expected_tools": [{"tool": "a", "arguments": {"x": 1}}]}},
        ExpectTools([{"tool": "a", "arguments": {"x": 1}}]),
    ),
    (
        {"type": "tool_not_called", "tool": "rm*"},
        {"path": {"forbidden_tools": ["rm*"]}},
        ForbidTools("rm*"),
    ),
    (
        {"type": "steps_under", "steps": 3},
        {"path": {"max_tool_calls": 3}},
        CountToolCalls(max=3),
    ),
    (
        {"type": "handoff_target", "agent": "billing"},
        {"path": {"expected_handoff": "billing"}},
        ExpectHandoffs("billing"),
    ),
    (
        {"type": "handoff_targets_available", "agents": ["billing"]},
        {"path": {"expected_handoffs_available": ["billing"]}},
        HandoffsAvailable("billing"),
    ),
    (
        {"type": "handoff_count", "max": 1},
        {"path": {"max_handoff_count": 1}},
        CountHandoffs(max=1),
    ),
    (
        {"type": "span", "query": {"kind": "tool"}},
        {"path": {"spans": [{"kind": "tool"}]}},
        HasMatchingSpan({"kind": "tool"}),
    ),
    ({"type": "cost_under", "usd": 0.5}, {"cost": {"max_cost_usd": 0.5}}, MaxCost(0.5)),
    ({"type": "latency_under", "ms": 50}, {"cost": {"max_latency_ms": 50}}, MaxLatency(50)),
]


@pytest.mark.parametrize(("flat", "layered", "built"), SPELLINGS)
def test_both_spellings_build_the_same_object(flat, layered, built):
    """R-C10: an assertion and a layer ask the same question, which Python can ask as well."""

    def question(check):
        # Which of its names a result goes by, and how it counts, belongs to the spelling.
        how = {"id", "kind", "weight", "required"}
        # `tool_called` lets a call have more arguments than those written.
        how |= {"arguments"} if flat["type"] == "tool_called" else set()
        return type(check), check.model_dump(exclude=how)

    (one,) = checks_of(Case(input="q", assertions=[flat]))
    (other,) = checks_of(Case.model_validate({"input": "q", **layered}))
    (given,) = checks_of(Case(input="q", checks=[built]))
    assert question(one) == question(other) == question(given) == question(built)
    assert one.check == flat["type"]
    assert other.check == next(key for part in layered.values() for key in part)


@pytest.mark.parametrize(
    ("assertion", "message"),
    [
        ({"type": "tool_caled", "tool": "a"}, "does not match any of the expected tags"),
        ({"type": "tool_called"}, "Field required"),
        ({"type": "tool_called", "tool": "a", "tols": 1}, "Extra inputs are not permitted"),
        ({"type": "tool_call_count", "tool": "a"}, "has no bound: add eq, min or max"),
        ({"type": "tool_call_count", "eq": 1, "min": 1}, "give eq, or min and max, not both"),
        ({"type": "handoff_count", "min": 2, "max": 1}, "min 2 is more than max 1"),
        ({"type": "tool_sequence", "tools": []}, "at least 1 item"),
        ({"type": "tool_sequence", "tools": ["a"], "mode": "any"}, "'exact', 'in_order'"),
        ({"type": "cost_under", "usd": -1}, "greater than or equal to 0"),
        ({"type": "span", "query": {"nmae_equals": "a"}}, "did you mean 'name_equals'"),
        ({"type": "judge"}, "needs a `rule`, `criteria` or a `rubric`"),
        ({"type": "jmespath", "path": "a"}, "has no operator"),
        ({"type": "steps_under", "steps": 1, "weight": -1}, "greater than or equal to 0"),
    ],
)
def test_what_cannot_be_meant_is_refused_when_written(assertion, message):
    """R-C10: checked before anything runs."""
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(Assertion).validate_python(assertion)

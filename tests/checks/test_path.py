"""Layer 2: every check passing, failing, and failing with words a person can act on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from trial_parts import judged, llm, result, span, tool, trace_of

from proctor.checks.base import CheckStatus, Layer
from proctor.checks.layers import PathChecks
from proctor.trace import Message
from proctor.trace.load import load_traces

PASS, WARN, FAIL, SKIP = CheckStatus.PASS, CheckStatus.WARN, CheckStatus.FAIL, CheckStatus.SKIP


async def of(trace, baseline=None, **options):
    """The result of the only check among the options (`expected_tools` may stand beside it)."""
    outcome = await judged({"path": options}, trace, baseline=baseline)
    asked = [r for r in outcome if r.check != "expected_tools"] or outcome
    (only,) = asked
    return only


def test_every_field_has_its_check():
    """R-C3: an option that nothing judges cannot be written."""
    settings = {"match_mode", "blocking"}
    numbers = dict.fromkeys((f for f in PathChecks.model_fields if f.startswith(("m"))), 1)
    whole = PathChecks(
        **{**numbers, "match_mode": "superset"},
        expected_tools=["a"],
        arguments="exact",
        forbidden_tools="a",
        expected_handoff="a",
        expected_handoffs_available="a",
        spans=[{"kind": "tool"}],
        retrieval={"empty": False},
        quality={"overall": 1},
    )
    built = {check.check for check in whole.checks()}
    assert built == set(PathChecks.model_fields) - settings
    assert all(check.layer is Layer.PATH for check in whole.checks())


# -- expected tools ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "called", "passes"),
    [
        ("strict", ["a", "b", "b"], True),
        ("strict", ["b", "a", "b"], False),
        ("unordered", ["b", "a", "b"], True),
        ("unordered", ["a", "b"], False),
        ("unordered", ["a", "b", "b", "b"], False),
        ("superset", ["b", "x", "b", "a"], True),
        ("superset", ["a", "b", "x"], False),
        ("subset", ["b", "b"], True),
        ("subset", ["b", "b", "b"], False),
        ("in_order", ["x", "a", "b", "x", "b"], True),
        ("in_order", ["b", "a", "b"], False),
    ],
)
async def test_match_modes(mode, called, passes):
    """R-C3: strict, unordered (counts matter), superset, subset, in_order."""
    found = await of(trace_of(*called), expected_tools=["a", "b", "b"], match_mode=mode)
    assert found.status == (PASS if passes else WARN), found.reason


async def test_a_missing_call_is_named():
    """R-C3: the reason says what is missing; the score is the share that is there."""
    found = await of(trace_of("search"), expected_tools=["search", "book"])
    assert (found.status, found.score, found.blocking) == (WARN, 0.5, False)
    assert found.reason == ("superset: 1 of 2 reference calls missing: book (reference call 2)")
    assert (found.expected, found.actual) == (["search", "book"], ["search"])


async def test_an_extra_call_is_named_with_its_span():
    """R-C5: the span ids a result is about."""
    found = await of(trace_of("a", "b"), expected_tools=["a"], match_mode="strict")
    assert found.span_ids == ("s2",)
    assert "1 call not in the reference: b (call 2, span s2)" in found.reason


async def test_nothing_expected_of_a_superset_is_said():
    """R-C3: an empty list under superset asks nothing, and does not pass as if it did."""
    found = await of(trace_of("a"), expected_tools=[])
    assert found.status == SKIP
    assert "max_tool_calls: 0" in found.reason
    assert (await of(trace_of("a"), expected_tools=[], match_mode="strict")).status == WARN
    assert (await of(trace_of(), expected_tools=[], match_mode="strict")).status == PASS


@pytest.mark.parametrize(
    ("rule", "actual", "passes"),
    [
        ("exact", {"q": "x", "n": 1.0}, True),
        ("exact", {"q": "x"}, False),
        ("ignore", {"z": 0}, True),
        ("subset", {"q": "x"}, True),
        ("subset", {"q": "x", "z": 0}, False),
        ("superset", {"q": "x", "n": 1, "z": 0}, True),
        ("superset", {"q": "x"}, False),
        (["q"], {"q": "x", "z": 0}, True),
        (["q"], {"q": "y", "n": 1}, False),
    ],
)
async def test_written_arguments(rule, actual, passes):
    """R-C3: arguments per tool: exact, ignore, subset, superset, chosen paths."""
    found = await judged(
        {
            "path": {
                "expected_tools": [{"tool": "s", "arguments": {"q": "x", "n": 1}}],
                "arguments": {"s": rule},
            }
        },
        trace_of(tool("s", actual)),
    )
    matched, beside = found
    assert matched.status == (PASS if passes else WARN), matched.reason
    assert (beside.id, beside.status) == ("arguments", SKIP)
    assert beside.reason == "the arguments of s are judged by expected_tools"


async def test_a_wrong_argument_is_named():
    """R-C3: the reason has the call, the argument and both values."""
    found = await of(
        trace_of(tool("s", {"q": "cats"})),
        expected_tools=[{"tool": "s", "arguments": {"q": "dogs"}}],
    )
    assert found.reason == (
        'superset: 1 call with other arguments: s (call 1, span s1) q is "cats", reference "dogs"'
    )


async def test_a_name_alone_takes_any_arguments():
    """R-C3: arguments that were not written are not compared, even beside a call that has some."""
    trace = trace_of(tool("s", {"q": 1}), tool("s", {"q": 2}))
    both = ["s", {"tool": "s", "arguments": {"q": 1}}]
    assert (await of(trace, expected_tools=both, match_mode="unordered")).status == PASS
    other = ["s", {"tool": "s", "arguments": {"q": 3}}]
    assert (await of(trace, expected_tools=other, match_mode="unordered")).status == WARN


async def test_arguments_against_a_baseline():
    """R-C3: without written arguments, calls are held against those of the baseline."""
    before = trace_of(tool("s", {"q": "x", "page": 1}), tool("t", {"a": 1}))
    same = trace_of(tool("s", {"page": 1, "q": "x"}), tool("t", {"a": 2}))
    assert (await of(same, before, arguments={"s": "exact"})).status == PASS
    changed = await of(same, before, arguments="exact")
    assert changed.status == WARN
    assert "t (call 2, span s2) a is 2, reference 1" in changed.reason
    alone = await of(same, arguments={"s": "exact"})
    assert alone.status == SKIP
    assert alone.reason == "no baseline and no arguments in expected_tools to compare with"


# -- limits --------------------------------------------------------------------------------------


async def test_forbidden_tools_block():
    """R-C3: a forbidden tool is a hard failure in a soft layer, with the spans it was called in."""
    assert (await of(trace_of("read"), forbidden_tools=["delete"])).status == PASS
    found = await of(trace_of("read", "delete_all", "delete_all"), forbidden_tools=["delete*"])
    assert (found.status, found.blocking, found.score, found.weight) == (FAIL, True, 0.0, 1.0)
    assert found.reason == "forbidden: delete_all (twice)"
    assert found.span_ids == ("s2", "s3")


async def test_max_tool_calls():
    """R-C3: the calls over the limit are the spans named."""
    assert (await of(trace_of("a", "b"), max_tool_calls=2)).status == PASS
    found = await of(trace_of("a", "b", "c"), max_tool_calls=2)
    assert found.status == WARN
    assert found.reason == "3 tool calls, at most 2 allowed"
    assert (found.expected, found.actual, found.span_ids) == (2, 3, ("s3",))


async def test_max_loops():
    """R-C3: loops are calls of a tool directly after itself."""
    assert (await of(trace_of("a", "b", "a"), max_loops=0)).status == PASS
    found = await of(trace_of("a", "b", "b", "b", "c", "c"), max_loops=2)
    assert found.status == WARN
    assert found.reason == (
        "3 immediate repeats, at most 2 allowed: b 3 times in a row, c 2 times in a row"
    )
    assert found.span_ids == ("s2", "s3", "s4", "s5", "s6")


async def test_tool_recall_and_precision():
    """R-C3: |E∩U|/|E| and |E∩U|/|U|, with the tools that are missing or too many."""
    trace = trace_of("a", "x", "x")
    passed = await of(trace, expected_tools=["a", "b"], min_tool_recall=0.5)
    assert passed.status == PASS
    recall = await of(trace, expected_tools=["a", "b"], min_tool_recall=0.75)
    assert (recall.status, recall.score) == (WARN, 0.5)
    assert recall.reason == "tool recall is 0.50, less than 0.75; not used: b"
    assert (await of(trace, expected_tools=["a", "b"], min_tool_precision=0.5)).status == PASS
    precision = await of(trace, expected_tools=["a", "b"], min_tool_precision=0.6)
    assert precision.reason == "tool precision is 0.50, less than 0.6; not expected: x"
    assert precision.span_ids == ("s2", "s3")


async def test_shares_of_nothing_are_skipped():
    """R-C3: no expected tools, or no call at all: undefined, and said so."""
    assert (await of(trace_of("a"), min_tool_recall=0.5)).status == SKIP
    nothing = await of(trace_of(), expected_tools=["a"], min_tool_precision=0.5)
    assert (nothing.status, nothing.reason) == (
        SKIP,
        "no tool was called, so precision is undefined",
    )


@pytest.mark.parametrize(
    ("check", "value"), [("min_sequence_similarity", 2 * 2 / 5), ("min_edit_similarity", 2 / 3)]
)
async def test_similarity(check, value):
    """R-C3: 2·|LCS|/(|A|+|B|) and 1−ED/max with the baseline, else with expected_tools."""
    before, now = trace_of("a", "b", "c"), trace_of("a", "c")
    assert (await of(now, before, **{check: round(value, 2) - 0.01})).status == PASS
    found = await of(now, before, **{check: 0.9})
    assert found.status == WARN
    assert found.score == pytest.approx(value)
    kind = check.removeprefix("min_").removesuffix("_similarity")
    assert found.reason == (
        f"{kind} similarity with the baseline is {value:.2f}, less than 0.9: a, c against a, b, c"
    )
    written = await of(now, expected_tools=["a", "b", "c"], **{check: 0.9})
    assert "with expected_tools is" in written.reason
    assert (await of(now, **{check: 0.9})).status == SKIP


# -- handoffs ------------------------------------------------------------------------------------


def handoff(to: str):
    return span("handoff", f"to {to}", agent_name="triage", handoff_to=to)


async def test_expected_handoff():
    """R-C3: each agent was handed over to; spelling of names does not matter."""
    trace = trace_of(handoff("Billing Agent"))
    assert (await of(trace, expected_handoff="billing_agent")).status == PASS
    found = await of(trace, expected_handoff=["billing agent", "refunds"])
    assert (found.status, found.score) == (WARN, 0.5)
    assert found.reason == "no handoff to refunds: handoffs went to Billing Agent"
    none = await of(trace_of("a"), expected_handoff="x")
    assert none.reason == "no handoff to x: there was no handoff"


async def test_max_handoff_count():
    """R-C3: handoffs are counted."""
    trace = trace_of(handoff("a"), handoff("b"))
    assert (await of(trace, max_handoff_count=2)).status == PASS
    found = await of(trace, max_handoff_count=1)
    assert found.reason == "2 handoffs, at most 1 allowed"


async def test_handoffs_available_in_a_real_trace(shared):
    """R-C3: what models were offered is read from their tool definitions."""
    files = shared / "traces" / "adot_cloudwatch"
    (trace,) = load_traces(str(files / "openai_agents_openinference_adot_spans.json"))
    offered = ["Math Specialist", "research_specialist"]
    assert (await of(trace, expected_handoffs_available=offered)).status == PASS
    found = await of(trace, expected_handoffs_available=["math_specialist", "lawyer"])
    assert (found.status, found.score) == (WARN, 0.5)
    assert found.reason == ("not on offer: lawyer; on offer: math_specialist, research_specialist")


async def test_a_trace_that_does_not_tell_its_offers_is_not_judged():
    """R-C3: nothing recorded is not nothing offered."""
    found = await of(trace_of(llm()), expected_handoffs_available=["a"])
    assert (found.status, found.category) == (CheckStatus.NOT_JUDGED, "unobserved")
    assert "does not record which tools or handoffs" in found.reason
    # A handoff that happened was available.
    made = trace_of(llm(), handoff("billing"))
    assert (await of(made, expected_handoffs_available=["Billing"])).status == PASS
    some = await of(made, expected_handoffs_available=["billing", "sales"])
    assert some.status == CheckStatus.NOT_JUDGED


# -- spans and quality ---------------------------------------------------------------------------


async def test_span_queries():
    """R-T4: quantifiers over spans as checks; a bare span query asks for some span."""
    trace = trace_of("search", tool("book", failed=True))
    entries = [
        {"none": {"has_status": "error"}},
        {"kind": "tool", "name_equals": "search"},
        {"id": "order", "before": [{"tool_name": "search"}, {"tool_name": "book"}]},
    ]
    outcome = await judged({"path": {"spans": entries}}, trace)
    assert [(r.id, r.status) for r in outcome] == [
        ("spans.1", WARN),
        ("spans.2", PASS),
        ("spans.order", PASS),
    ]
    assert outcome[0].span_ids == ("s2",)
    assert outcome[0].reason.startswith("1 of 2 spans match")


async def test_quality_bounds():
    """R-C8: quality dimensions as checks, with the issues that cost the points."""
    trace = trace_of(*["a"] * 4)
    bounds = {"efficiency": ">= 0.8", "redundancy": "> 0.2", "error_recovery": 1}
    outcome = await judged({"path": {"quality": bounds}}, trace)
    assert [(r.id, r.status) for r in outcome] == [
        ("quality.efficiency", WARN),
        ("quality.redundancy", PASS),
        ("quality.error_recovery", SKIP),
    ]
    assert outcome[0].reason == (
        "efficiency is 0.35, expected >= 0.8: 4 tool calls, 3 or fewer are best; 3 redundant calls"
    )
    assert outcome[2].reason == "error_recovery has no score: the trace has no errors"


async def test_quality_takes_the_expected_tools():
    """R-C8: tool selection is scored against the case's own expected tools."""
    found = await of(trace_of("a", "x"), expected_tools=["a"], quality={"tool_selection": 0.9})
    assert found.status == WARN
    assert found.actual == pytest.approx(2 / 3)
    assert "x was used and not expected" in found.reason


# -- made to count -------------------------------------------------------------------------------


async def test_a_soft_layer_can_block():
    """R-C5: `blocking: true` and `required` turn a warning into a failure that weighs."""
    soft = await result({"path": {"max_tool_calls": 0}}, trace_of("a"))
    assert (soft.status, soft.weight) == (WARN, 0.0)
    hard = await result({"path": {"max_tool_calls": 0, "blocking": True}}, trace_of("a"))
    assert (hard.status, hard.weight) == (FAIL, 1.0)
    named = {"path": {"max_tool_calls": 0}, "required": ["max_tool_calls"]}
    assert (await result(named, trace_of("a"))).status == FAIL


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"match_mode": "supersett"}, "'strict', 'unordered', 'superset', 'subset' or 'in_order'"),
        ({"max_tool_calls": -1}, "greater than or equal to 0"),
        ({"max_tool_calls": True}, "should be a number, not true or false"),
        ({"min_tool_recall": 1.1}, "less than or equal to 1"),
        ({"min_tool_recall": float("nan")}, "finite number|less than or equal|greater than"),
        ({"arguments": {"a": "exactly"}}, "'exact', 'ignore', 'subset' or 'superset'"),
        ({"spans": [{"anny": {}}]}, "unknown key 'anny' \\(did you mean 'any'"),
        ({"spans": [{"any": {"kinds": "tool"}}]}, "did you mean 'kind'"),
        ({"spans": []}, "at least 1 item"),
        ({"quality": {"eficiency": 1}}, "did you mean 'efficiency'"),
        ({"quality": {"efficiency": "=> 0.8"}}, "cannot read '=> 0.8'"),
        ({"quality": {"efficiency": "> 8"}}, "8 is outside 0..1"),
        ({"expected_tool": ["a"]}, "Extra inputs are not permitted"),
    ],
)
def test_what_cannot_be_meant_is_refused_when_written(options, message):
    """R-C3: modes, limits, queries and bounds are checked before anything runs."""
    with pytest.raises(ValidationError, match=message):
        PathChecks.model_validate(options)


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abc"), max_size=8))
async def test_similarity_is_one_exactly_for_equal_sequences(ours, theirs):
    """R-C3: a bound of 1 holds when, and only when, the sequences are the same."""
    outcome = await judged(
        {"path": {"min_sequence_similarity": 1, "min_edit_similarity": 1}},
        trace_of(*ours),
        baseline=trace_of(*theirs),
    )
    assert {r.status for r in outcome} == {PASS if ours == theirs else WARN}


@pytest.mark.parametrize(
    "reply",
    [
        "Thought: look it up\nAction: search\nAction Input: {}",
        "[[ ## next_tool_name ## ]]\nsearch",
        '<tool_call>{"name": "search"}</tool_call>',
    ],
)
async def test_tools_requested_in_text_are_not_judged_without_their_spans(reply):
    """R-C3: a model that requests tools in its text may have called any; no span says none."""
    asks = llm(output_messages=(Message(role="assistant", content=reply),))
    plain = llm(output_messages=(Message(role="assistant", content="The action: none."),))
    statuses = []
    for steps in ([asks], [asks, tool("search")], [plain]):
        trace = trace_of(*steps)
        trace.observed = ()
        statuses.append((await of(trace, forbidden_tools=["delete"])).status)
    assert statuses == [CheckStatus.NOT_JUDGED, PASS, PASS]

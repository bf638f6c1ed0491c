"""Two traces of a case compared: pure functions, thresholds, and the facts behind them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trial_parts import llm, span, tool, trace_of

from proctor.checks.base import Layer
from proctor.runs.baselines import Precheck
from proctor.runs.diff import (
    COST,
    LATENCY,
    MAX_PAIRS,
    TOKENS,
    CaseDiff,
    Change,
    ChangeKind,
    Diff,
    NotCompared,
    Severity,
    Side,
    compare,
    compare_case,
    cost_changes,
    error_lines,
    guardrails,
    ratio_change,
    routing,
    stop_reason,
    word_changes,
)
from proctor.runs.trial import TrialStatus
from proctor.trace import Trace

PASSED = Precheck(status=TrialStatus.PASSED, judged=1, score=1.0)
FAILED = Precheck(status=TrialStatus.HARD_FAIL, judged=1, score=0.0, reasons=("x: lacks 'Paris'",))


def side(*steps: Any, answer: str = "Paris", precheck: Precheck = PASSED) -> Side:
    return Side(trace_of(*steps), answer, precheck)


def only(changes: tuple[Change, ...]) -> Change:
    (change,) = changes
    return change


class TestWords:
    @given(st.text(max_size=80), st.text(max_size=80))
    def test_put_both_texts_together_again(self, before: str, after: str) -> None:
        """R-D4: what is equal and added is the new text, exactly; removed and equal the old one's
        words.
        """
        words = word_changes(before, after)
        assert "".join(each.text for each in words if each.op != "removed") == after
        old = "".join(each.text for each in words if each.op != "added")
        assert "".join(old.split()) == "".join(before.split())

    def test_are_the_fewest(self) -> None:
        """R-D4: one changed word is told as one."""
        words = word_changes("The capital is Lyon, I think.", "The capital is Paris, I think.")
        assert [(each.op, each.text) for each in words] == [
            ("equal", "The capital is "),
            ("removed", "Lyon"),
            ("added", "Paris"),
            ("equal", ", I think."),
        ]

    def test_of_scripts_without_spaces(self) -> None:
        """R-D4: a changed character does not change the whole sentence."""
        words = word_changes("首都は東京です", "首都は京都です")
        assert ("equal", "首都は") in [(each.op, each.text) for each in words]

    def test_of_huge_texts_stay_cheap(self) -> None:
        """R-D4: beyond the bound the middle is replaced whole, ends kept."""
        many = int(MAX_PAIRS**0.5) + 10
        before = "start " + " ".join(f"a{n}" for n in range(many)) + " end"
        after = "start " + " ".join(f"b{n}" for n in range(many)) + " end"
        assert [each.op for each in word_changes(before, after)] == [
            "equal",
            "removed",
            "added",
            "equal",
        ]


class TestSpikes:
    @pytest.mark.parametrize(
        ("ratio", "severity"),
        [(1.5, Severity.INFO), (1.51, Severity.WARNING), (2.0, Severity.WARNING), (2.01, "error")],
    )
    @pytest.mark.parametrize(("figure", "old"), [(TOKENS, 10_000), (COST, 0.07), (LATENCY, 900.0)])
    def test_over_one_and_a_half_warn_over_two_fail(self, figure, old, ratio, severity) -> None:
        """R-D4: over 1.5× a warning, over 2× an error, exactly 1.5× and 2× not over."""
        (change,) = ratio_change(figure, old, old * ratio)
        assert change.severity == severity
        assert change.tier == Layer.COST

    @pytest.mark.parametrize(
        ("figure", "old", "new"), [(TOKENS, 10, 99), (COST, 0.00002, 0.0001), (LATENCY, 1, 99)]
    )
    def test_tiny_values_are_no_spikes(self, figure, old, new) -> None:
        """R-D4: below the floor growth is told with the floor, and is never a warning."""
        (change,) = ratio_change(figure, old, new)
        assert change.severity == Severity.INFO
        assert f"growth below {figure.text(figure.floor)} is not counted" in change.message

    def test_small_moves_are_silent(self) -> None:
        """R-D4: a tenth more or less is not a change worth a line."""
        assert not list(ratio_change(LATENCY, 1000, 1090))
        assert not list(ratio_change(LATENCY, 1000, 1000))

    def test_savings_are_told(self) -> None:
        """R-D4: cheaper is a change too."""
        (change,) = ratio_change(COST, 0.04, 0.01)
        assert (change.severity, change.message) == ("info", "cost: $0.04 → $0.01 (0.25×)")

    def test_from_nothing(self) -> None:
        """R-D4: a cost where there was none is over any multiple."""
        (change,) = ratio_change(COST, 0.0, 0.01)
        assert change.severity == Severity.ERROR

    def test_unknown_is_not_zero(self) -> None:
        """R-D4: a figure one side does not know is told, not compared."""
        (change,) = ratio_change(COST, 0.01, None)
        assert (change.severity, change.message) == (
            "info",
            "cost is no longer known (was $0.01)",
        )
        assert (change.before, change.after) == (0.01, None)

    def test_a_lower_bound_of_the_baseline_proves_no_spike(self) -> None:
        """R-D4: a baseline with unpriced calls may have cost more than is known."""
        before = trace_of(llm(usd=0.01), llm(usd=None))
        after = trace_of(llm(usd=0.01), llm(usd=0.05))
        (change,) = cost_changes(before, after)
        assert change.severity == Severity.INFO
        assert "at least $0.01" in change.message

    def test_a_lower_bound_that_is_already_too_high_does(self) -> None:
        """R-D4: what is known of the newer cost is enough."""
        before = trace_of(llm(usd=0.01), llm(usd=0.01))
        (change,) = cost_changes(before, trace_of(llm(usd=0.05), llm(usd=None)))
        assert change.severity == Severity.ERROR
        assert change.message == "cost: $0.02 → at least $0.05 (2.50×), over 2×"


class TestFacts:
    @pytest.mark.parametrize(
        ("attributes", "reason"),
        [
            ({"gen_ai.response.finish_reasons": ["tool_calls", "stop"]}, "stop"),
            ({"gen_ai.response.finish_reasons": '["max_tokens"]'}, "length"),
            ({"gen_ai.completion.0.finish_reason": "tool_calls"}, "tool_call"),
            ({"ai.response.finishReason": "content-filter"}, "content_filter"),
            ({"llm.finish_reason": "FinishReason.STOP"}, "stop"),
            ({"gen_ai.output.messages": '[{"role": "a", "finish_reason": "length"}]'}, "length"),
            ({"output.value": '{"choices": [{"finish_reason": "end_turn"}]}'}, "stop"),
            ({"output.value": "{broken"}, None),
            ({}, None),
        ],
    )
    def test_why_a_model_stopped(self, attributes, reason) -> None:
        """R-D4: one vocabulary for the words of all conventions, of the last model call."""
        trace = trace_of(llm(), llm(attributes=attributes))
        assert stop_reason(trace) == reason

    def test_no_model_no_reason(self) -> None:
        """R-D4: nothing is guessed."""
        assert stop_reason(trace_of("search")) is None

    def test_which_agents_worked(self) -> None:
        """R-D4: routing is who worked, in order, each stretch once."""
        trace = trace_of(
            llm(agent_name="triage"),
            tool("search", agent_name="triage"),
            llm(agent_name="billing"),
            llm(agent_name="triage"),
        )
        assert routing(trace) == ["triage", "billing", "triage"]

    def test_which_guardrails_ran(self) -> None:
        """R-D4: a guardrail that stopped something is told apart."""
        trace = trace_of(
            span("guardrail", "pii", output={"tripwire_triggered": True}),
            span("guardrail", "tone", failed=True),
            span("guardrail", "length"),
        )
        assert [str(each) for each in guardrails(trace)] == [
            "pii (tripped)",
            "tone (tripped)",
            "length",
        ]

    def test_an_error_is_told_where_it_happened(self) -> None:
        """R-D4: spans around a failed one carry the same error and are not told again."""
        inner = tool("search", failed=True, error_type="Timeout")
        trace = trace_of(span("agent", "root", failed=True, error_type="Timeout"), inner)
        trace.spans[1].parent_id = "s1"
        assert error_lines(trace) == ["search: Timeout"]


class TestCases:
    def test_the_same_twice_is_no_change(self) -> None:
        """R-D4: equal behaviour has nothing to tell and no severity."""
        steps = [tool("search", {"q": 1}), llm(usd=0.1)]
        diff = compare_case("c", "a", side(*steps), side(*steps))
        assert (diff.changes, diff.severity, diff.similarity) == ((), Severity.NONE, 1.0)
        assert set(diff.tiers.values()) == {Severity.NONE}

    def test_arguments_written_otherwise_are_the_same(self) -> None:
        """R-D4: JSON text, order of keys and 1.0 for 1 are not changes."""
        before = side(tool("search", {"q": "x", "n": 1}))
        assert compare(before, side(tool("search", '{"n": 1.0, "q": "x"}'))) == ()

    def test_a_case_that_fails_now_is_an_error(self) -> None:
        """R-D4: passing and then not is the gravest there is; the reverse is only told."""
        worse = only(compare(side("t"), side("t", precheck=FAILED)))
        assert (worse.kind, worse.severity) == (ChangeKind.VERDICT, Severity.ERROR)
        assert worse.message == "the checks passed and now fail: x: lacks 'Paris'"
        better = only(compare(side("t", precheck=FAILED), side("t")))
        assert better.severity == Severity.INFO

    def test_an_answer_in_other_words(self) -> None:
        """R-D4: small while the checks pass, to be looked at when nothing was checked."""
        unchecked = Precheck(status=TrialStatus.PASSED)
        before = side(answer="It is Paris")
        assert only(compare(before, side(answer="Paris it is"))).severity == Severity.INFO
        open_ = only(compare(before, side(answer="Paris it is", precheck=unchecked)))
        assert open_.severity == Severity.WARNING
        spaces = only(compare(before, side(answer="It  is\nParis", precheck=unchecked)))
        assert (spaces.severity, spaces.message) == (
            "info",
            "the answer differs in white space only",
        )
        assert only(compare(before, side(answer=" "))).severity == Severity.ERROR

    def test_another_way_altogether_is_an_error(self) -> None:
        """R-D4: below half of the sequence shared."""
        changes = compare(side("a", "b", "c"), side("a", "x", "y"))
        found = {change.kind: change for change in changes}
        assert found[ChangeKind.SEQUENCE].severity == Severity.ERROR
        near = compare(side("a", "b", "c"), side("a", "b"))
        assert {c.kind: c for c in near}[ChangeKind.SEQUENCE].severity == Severity.INFO

    @given(st.text(max_size=60))
    def test_hostile_names_are_printed_harmlessly(self, text: str) -> None:
        """R-D4: no message holds a control character, whatever tools and errors are called."""
        hostile = f"\x1b[31m{text}\x07\u202e"
        before = side("a", llm("m"))
        after = side(
            tool(hostile, {hostile: hostile}),
            tool("a", {hostile: hostile}, failed=True, error_type=hostile),
            llm(hostile, attributes={"finish_reason": hostile}, agent_name=hostile),
            span("handoff", hostile, handoff_to=hostile),
            span("guardrail", hostile),
            answer=hostile,
            precheck=Precheck(status=TrialStatus.HARD_FAIL, judged=1, reasons=(hostile,)),
        )
        for change in compare(before, after):
            assert not set(change.message) & set("\x1b\x07\u202e\n\r\x00")


def _diff(*severities: Severity, missing: bool = False) -> Diff:
    def change(severity: Severity) -> Change:
        return Change(tier=Layer.PATH, kind=ChangeKind.STEPS, severity=severity, message="m")

    cases = tuple(
        CaseDiff(case=str(n), agent="a", changes=(change(s),), similarity=1.0)
        for n, s in enumerate(severities)
    )
    left = (NotCompared("x", "a", "missing"),) if missing else ()
    return Diff(baseline="v1", compared=None, cases=cases, not_compared=left)


@pytest.mark.parametrize(
    ("diff", "code"),
    [
        (_diff(Severity.INFO, Severity.WARNING), 0),
        (_diff(Severity.WARNING, Severity.ERROR), 1),
        (_diff(Severity.ERROR, missing=True), 1),
        (_diff(Severity.INFO, missing=True), 2),
        (_diff(), 2),
    ],
)
def test_exit_codes(diff: Diff, code: int) -> None:
    """R-D4 R-R11: 1 for an error, else 2 for what could not be compared, else 0; nothing
    compared is never a pass.
    """
    assert diff.exit_code == code


def test_a_trace_without_spans_can_be_compared() -> None:
    """R-D4: an agent that records nothing still has an answer."""
    empty = Side(Trace(trace_id="t"), "Paris", PASSED)
    assert compare(empty, empty) == ()

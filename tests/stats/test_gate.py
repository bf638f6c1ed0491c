"""The regression gate: its verdicts, its error rate, its advice."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from proctor.errors import ProctorError
from proctor.formatting import plural
from proctor.stats.compare import stratified
from proctor.stats.gate import GateRule, judge_gate


def suite(rows):
    return {f"case-{at:02}": row for at, row in enumerate(rows)}


def test_a_real_and_large_drop_is_a_regression():
    """R-Q2: the verdict gives the drop, how sure it is, and the cases, the worst first."""
    found = judge_gate(suite([(5, 5)] * 10), suite([(5, 5)] * 6 + [(2, 5)] * 3 + [(0, 5)]))
    assert found.verdict == "REGRESSION"
    assert found.drop == pytest.approx((3 * 0.6 + 1) / 10)
    exact = stratified([(5, 5)] * 10, [(5, 5)] * 6 + [(2, 5)] * 3 + [(0, 5)], alternative="less")
    assert found.p_value == exact.p_value < 0.05
    assert [move.case for move in found.moves[:2]] == ["case-09", "case-06"]
    assert (found.n, found.cases, found.estimand) == (100, 10, "suite")
    assert found.advice is None


def test_a_real_but_small_drop_is_not_a_regression():
    """R-Q2: significant yet below the margin does not fail the gate."""
    before, after = suite([(960, 1000)] * 3), suite([(940, 1000)] * 3)
    found = judge_gate(before, after)
    assert found.p_value < 0.01
    assert found.verdict == "NO REGRESSION"
    assert found.drop_at_most < 0.05
    assert judge_gate(before, after, rule=GateRule(margin=0.01)).verdict == "REGRESSION"


def test_a_drop_of_exactly_the_margin_counts():
    """R-Q2: 0.95 → 0.90 is a drop of 5 points although floats say 0.04999…"""
    found = judge_gate({"a": (950, 1000)}, {"a": (900, 1000)})
    assert found.verdict == "REGRESSION"


@pytest.mark.parametrize(
    ("cases", "trials", "verdict"),
    [(1, 2, "INCONCLUSIVE"), (1, 5, "INCONCLUSIVE"), (30, 5, "NO REGRESSION")],
)
def test_all_pass_is_only_as_sure_as_its_trials(cases, trials, verdict):
    """R-Q2: 5 of 5 against 5 of 5 does not rule a drop out; 150 of 150 does."""
    rows = suite([(trials, trials)] * cases)
    found = judge_gate(rows, rows)
    assert (found.verdict, found.drop, found.p_value) == (verdict, 0, None)
    assert found.detectable.effect is None
    assert "no case varied" in found.detectable.reason


def test_the_advice_settles_it():
    """R-Q2: the advised trials, had they come out alike, would have given a verdict."""
    rows = suite([(4, 5)] * 6 + [(5, 5)] * 4)
    for before, after in [
        (rows, rows),
        (rows, suite([(3, 5)] * 6 + [(5, 5)] * 4)),
        (suite([(5, 5)] * 3), suite([(5, 5)] * 3)),
    ]:
        first = judge_gate(before, after)
        assert first.verdict == "INCONCLUSIVE"
        factor = 1 + math.ceil(first.advice.more_trials / 5)
        grown = [
            {name: (x * factor, n * factor) for name, (x, n) in arm.items()}
            for arm in (before, after)
        ]
        assert judge_gate(*grown).verdict in {"REGRESSION", "NO REGRESSION"}
    assert first.advice.text.startswith(plural(first.advice.more_trials, "more trial"))


def test_the_advice_names_the_worst_cases():
    """R-Q2: only cases that moved down are named; none is where none did."""
    found = judge_gate(suite([(4, 5), (3, 5), (3, 5)]), suite([(3, 5), (1, 5), (4, 5)]))
    assert found.verdict == "INCONCLUSIVE"
    assert found.advice.cases == ("case-01", "case-00")
    assert "case-01, case-00" in found.advice.text
    on_it = judge_gate({"a": (80, 100)}, {"a": (754, 1000)})
    assert on_it.advice.more_trials is None
    assert "on the margin" in on_it.advice.text


def test_too_many_errors_are_no_verdict():
    """R-Q2: above 5 % errored trials the gate is inconclusive if errors can explain the drop."""
    before, after = suite([(5, 5)] * 10), suite([(5, 5)] * 8 + [(0, 1, 4)] * 2)
    found = judge_gate(before, after)
    assert found.verdict == "INCONCLUSIVE"
    assert "8 of 50 trials of the candidate ended without a verdict" in found.reason
    assert (found.errors, found.errored_of) == ((0, 8), (50, 50))
    assert found.drop == pytest.approx(0.2)
    assert judge_gate(before, after, rule=GateRule(max_error_rate=0.2)).verdict == "REGRESSION"
    nothing = judge_gate({"a": (5, 5)}, {"a": (0, 0, 5)})
    assert "5 of 5 trials of the candidate ended without a verdict" in nothing.reason


@pytest.mark.parametrize("arm", ["reference", "candidate"])
def test_a_regression_that_errors_cannot_explain_is_one(arm):
    """R-Q2, R-R11: failures count before what was not judged; both are said."""
    good, bad = suite([(5, 5)] * 10), suite([(0, 5)] * 10)
    if arm == "candidate":
        bad = suite([(0, 5)] * 9 + [(0, 1, 4)])
    else:
        good = suite([(5, 5)] * 9 + [(1, 1, 4)])
    found = judge_gate(good, bad)
    assert found.verdict == "REGRESSION"
    assert f"4 of 50 trials of the {arm} ended without a verdict" in found.reason


def test_what_cannot_be_compared_is_named():
    """R-Q2: new, missing, changed and unjudged cases are left out with their reasons."""
    before = {"gone": (5, 5), "changed": (5, 5), "empty": (0, 0), "both": (5, 5)}
    after = {"new": (0, 5), "changed": (0, 5), "empty": (5, 5), "both": (5, 5)}
    found = judge_gate(before, after, incomparable={"changed": "another judge prompt"})
    assert found.left_out == {
        "gone": "only in the reference",
        "new": "only in the candidate",
        "changed": "another judge prompt",
        "empty": "no judged trial in the reference",
    }
    assert (found.cases, found.drop) == (1, 0)
    nothing = judge_gate({"a": (5, 5)}, {"b": (0, 5)})
    assert (nothing.verdict, nothing.drop, nothing.advice) == ("NOT COMPARABLE", None, None)
    assert judge_gate({}, {}).verdict == "NOT COMPARABLE"


def test_flaky_cases_are_named():
    """R-Q2: a case that already came and went in the baseline is called flaky."""
    found = judge_gate(suite([(5, 10), (10, 10), (0, 10)]), suite([(5, 10), (10, 10), (0, 10)]))
    assert found.flaky == ("case-00",)


def test_the_detectable_drop_is_printed():
    """R-Q2: the minimum detectable effect of these two runs, at the rule's error rates."""
    found = judge_gate({"a": (40, 50)}, {"a": (35, 50)}, rule=GateRule(alpha=0.1, power=0.9))
    error = math.sqrt(0.8 * 0.2 / 49 + 0.7 * 0.3 / 49)
    z = stats.norm.ppf(0.9) + stats.norm.ppf(0.9)
    assert found.detectable.effect == pytest.approx(z * error)
    low = stats.norm.ppf(0.9) * error
    assert found.drop_at_most == pytest.approx(0.1 + low)


row = st.integers(0, 8).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(
    st.dictionaries(st.sampled_from("abcdef"), row), st.dictionaries(st.sampled_from("abcdef"), row)
)
def test_the_verdict_follows_from_its_own_figures(before, after):
    """R-Q2: whatever the counts, the verdict is what the printed figures say."""
    found = judge_gate(before, after)
    if found.drop is None:
        assert found.verdict == "NOT COMPARABLE"
        return
    assert found.drop <= found.drop_at_most + 1e-12
    real = found.p_value is not None and found.p_value <= 0.05
    if real and found.drop >= 0.05 - 1e-9:
        assert found.verdict == "REGRESSION"
    elif found.drop_at_most < 0.05:
        assert found.verdict == "NO REGRESSION"
    else:
        assert found.verdict == "INCONCLUSIVE"
        assert found.advice.more_trials is None or found.advice.more_trials >= 1
    assert len(found.moves) + len(found.left_out) == len({**before, **after})


@pytest.mark.slow
def test_size_and_power_of_the_gate():
    """R-Q2: no change alarms in about 5 % at most; −20 points everywhere is found."""
    rng = np.random.default_rng(29)
    repeats, alarms, caught, acquitted = 600, 0, 0, 0
    for _ in range(repeats):
        rates = 0.2 + 0.8 * rng.beta(1.2, 0.4, 30)
        before, same, worse = (
            suite([(int(x), 5) for x in rng.binomial(5, p)]) for p in (rates, rates, rates - 0.2)
        )
        alarms += judge_gate(before, same).verdict == "REGRESSION"
        verdict = judge_gate(before, worse).verdict
        caught += verdict == "REGRESSION"
        acquitted += verdict == "NO REGRESSION"
    assert alarms / repeats < 0.067
    assert caught / repeats > 0.95
    assert acquitted == 0


@pytest.mark.parametrize(
    "bad", [{"margin": 0}, {"alpha": 0.5}, {"alpha": math.nan}, {"power": 1}, {"max_error_rate": 2}]
)
def test_impossible_rules_are_refused(bad):
    """R-Q2: a gate without a margin or an error rate is an error."""
    with pytest.raises(ProctorError):
        GateRule(**bad)
    with pytest.raises(ProctorError, match="candidate: case 1"):
        judge_gate({"a": (1, 1)}, {"a": (2, 1)})


def test_reasons_speak_in_points():
    """R-Q2: the reason says the drop, the bound and the margin in points, never minus zero."""
    rows = suite([(5, 5)])
    assert judge_gate(rows, rows).reason.startswith(
        "the pass rate did not change, but a drop of 35.1"
    )
    found = judge_gate({"a": (95, 100)}, {"a": (70, 100)})
    assert found.reason.startswith("a drop of 25 points is real (p ")
    assert found.reason.endswith("at least 5 points")

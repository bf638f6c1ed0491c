"""Sequential tests by exact enumeration of every path."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from proctor.errors import ProctorError
from proctor.runs.early_stop import CellPlan, FinishedTrial, find_stop, rules_named
from proctor.runs.trial import TrialStatus
from proctor.stats.sequential import Curtailed, EProcess, Sprt, follow


def law(look, rate, limit):
    """The chance of each verdict within `limit` looks, and the expected number of trials."""
    live, ended, looks = {0: 1.0}, {}, 0.0
    for n in range(1, limit + 1):
        after = {}
        for passes, weight in live.items():
            after[passes + 1] = after.get(passes + 1, 0) + weight * rate
            after[passes] = after.get(passes, 0) + weight * (1 - rate)
        looks += sum(live.values())
        live = {}
        for passes, weight in after.items():
            verdict = look(passes, n).verdict
            if verdict == "continue":
                live[passes] = weight
            else:
                ended[verdict] = ended.get(verdict, 0) + weight
    return ended, looks


def test_sprt_has_the_published_errors():
    """R-Q1: p0 .9, p1 .7, N 40: false alarm .03, power .86, E[n] 22.6 and 18.8."""
    sprt = Sprt()
    good, n_good = law(sprt.look, 0.9, 40)
    bad, n_bad = law(sprt.look, 0.7, 40)
    assert good["below"] == pytest.approx(0.032, abs=0.003)
    assert bad["below"] == pytest.approx(0.859, abs=0.006)
    assert (n_good, n_bad) == (pytest.approx(22.6, abs=0.2), pytest.approx(18.8, abs=0.2))
    assert follow(sprt.look, [True] * 40).n == 12


@given(st.floats(0.55, 0.98), st.floats(0.05, 0.4), st.floats(0.01, 0.2), st.integers(1, 25))
def test_sprt_error_stays_below_alpha_over_one_minus_beta(good, gap, alpha, limit):
    """R-Q1: Wald's bound on the false alarm holds at the good rate and above it."""
    sprt = Sprt(good, good - gap, alpha, 0.1, limit)
    for rate in (good, (1 + good) / 2):
        ended, _ = law(sprt.look, rate, limit)
        assert ended.get("below", 0) <= alpha / 0.9 + 1e-12
        assert sum(ended.values()) == pytest.approx(1)


@given(st.floats(0.1, 0.98), st.floats(0.01, 0.3))
def test_e_process_error_stays_below_alpha(required, alpha):
    """R-Q1: looking after each of 40 trials alarms at most with alpha, for all p ≥ p0."""
    process = EProcess(required, alpha)
    for rate in (required, (1 + required) / 2):
        ended, _ = law(process.look, rate, 40)
        assert ended.get("below", 0) <= alpha


def test_e_process_has_the_published_error_and_finds_bad_agents():
    """R-Q1: false alarm .018–.022 at p0 = .9, and an agent at .5 is caught."""
    ended, _ = law(EProcess().look, 0.9, 100)
    assert 0.017 < ended["below"] < 0.023
    caught, looks = law(EProcess(limit=100).look, 0.5, 100)
    assert caught["below"] > 0.999
    assert looks < 15


@pytest.mark.parametrize(("passes", "n"), [(0, 0), (0, 3), (3, 5), (9, 10), (30, 40)])
def test_e_value_is_the_integral(passes, n):
    """R-Q1: E is the mixture integrated numerically, and 1 before the first trial."""
    fails = n - passes

    def density(angle):  # q = sin² turns Beta(½, ½) into the uniform distribution
        q = math.sin(angle) ** 2
        return q**passes * (1 - q) ** fails

    end = math.asin(math.sqrt(0.8))
    expected = quad(density, 0, end)[0] / end / (0.8**passes * 0.2**fails)
    found = EProcess(0.8).look(passes, n)
    assert math.exp(found.evidence or 0.0) == pytest.approx(expected, rel=1e-6)


def test_e_process_is_a_martingale_bound():
    """R-Q1: at p0 itself the expected E after any number of trials is 1."""
    process = EProcess(0.7)
    for n in (1, 5, 30):
        mean = sum(
            math.comb(n, s) * 0.7**s * 0.3 ** (n - s) * math.exp(process.log_e(s, n))
            for s in range(n + 1)
        )
        assert mean == pytest.approx(1)


@pytest.mark.parametrize(("needed", "total"), [(0, 1), (1, 1), (3, 5), (5, 5), (4, 6)])
def test_curtailment_never_changes_the_verdict(needed, total):
    """R-Q1: stopping early says what all the trials would have said, and saves some."""
    rule = Curtailed(needed, total)
    saved = 0
    for outcomes in itertools.product([True, False], repeat=total):
        found = follow(rule.look, outcomes)
        assert found.verdict == ("meets" if sum(outcomes) >= needed else "below")
        saved += total - found.n
    assert saved > 0 or total == needed == 1


def test_running_out_is_not_a_verdict():
    """R-Q1: between the bounds at the last trial is undecided, with a reason."""
    found = follow(Sprt(limit=3).look, [True] * 3)
    assert (found.verdict, found.n, found.passes) == ("undecided", 3, 3)
    assert found.reason
    assert follow(EProcess(limit=2).look, [True] * 5).n == 2
    assert follow(Sprt().look, []).verdict == "continue"


@given(
    required=st.sampled_from([0.05, 0.5, 0.8, 0.99]),
    n=st.integers(1, 2_000),
    share=st.floats(0, 1),
)
def test_evidence_is_never_above_its_bound(required, n, share):
    """R-Q1: a look that the bound rules out would not have raised the alarm."""
    process = EProcess(required)
    evidence = process.log_e(share * n, n)
    assert process.log_e_at_most(share * n, n) >= evidence - 1e-9 * max(1, abs(evidence))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sprt(good=0.7, bad=0.9),
        lambda: Sprt(alpha=0),
        lambda: Sprt(limit=0),
        lambda: EProcess(required=1.0),
        lambda: EProcess(limit=0),
        lambda: Curtailed(4, 3),
        lambda: Sprt().look(3, 2),
    ],
)
def test_impossible_rules_are_refused(make):
    """R-Q1: a rule that cannot be is an error before the first trial."""
    with pytest.raises(ProctorError):
        make()


def test_most_looks_need_no_exact_evidence(monkeypatch):
    """R-R4: the exact evidence takes more steps the more trials there are, so that looking after
    every trial grew faster than their number; far from an alarm a bound decides."""
    exact: list[int] = []
    log_e = EProcess.log_e
    monkeypatch.setattr(
        EProcess, "log_e", lambda self, total, n: exact.append(n) or log_e(self, total, n)
    )
    trials = [FinishedTrial(n, TrialStatus.PASSED, (1.0, 0.6)[n % 2]) for n in range(2_000)]
    assert find_stop(trials, CellPlan(2_000, 0.8), rules_named(["sequential"])) is None
    assert len(exact) <= 20
    trials = [FinishedTrial(n, TrialStatus.FAILED, 0.0) for n in range(2_000)]
    stop = find_stop(trials, CellPlan(2_000, 0.8), rules_named(["sequential"]))
    assert stop is not None
    assert stop.after == exact[-1] < 10

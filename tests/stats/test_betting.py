"""The confidence sequence by exact enumeration, and e-BH by its definition."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.errors import ProctorError
from proctor.stats.intervals import confidence_sequence
from proctor.stats.ranking import benjamini_hochberg, e_benjamini_hochberg


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_looking_at_every_trial_keeps_the_level(rate):
    """R-Q1: over every path of 9 trials the mean is ever ruled out with at most alpha."""
    missed = 0.0
    for path in itertools.product([0.0, 1.0], repeat=9):
        # The sequence only ever shrinks, so its last interval has every earlier look in it.
        found = confidence_sequence(path, level=0.7)
        if not found.low <= rate <= found.high:
            missed += rate ** sum(path) * (1 - rate) ** (9 - sum(path))
    assert missed <= 0.3


@pytest.mark.slow
def test_bounded_scores_are_covered_at_every_look():
    """R-Q1: uneven scores, looked at after each of 200: the true mean stays in, 95 %."""
    rng = np.random.default_rng(4)
    found = [confidence_sequence(rng.beta(0.6, 0.2, 200)) for _ in range(300)]
    assert sum(f.low <= 0.75 <= f.high for f in found) / 300 > 0.95
    assert np.mean([f.high - f.low for f in found]) < 0.25


def test_differences_take_their_own_bounds():
    """R-Q1: shifting and stretching the scale shifts and stretches the interval."""
    values = np.random.default_rng(5).random(80)
    plain = confidence_sequence(values)
    wide = confidence_sequence(2 * values - 1, bounds=(-1, 1))
    assert wide.value == pytest.approx(2 * plain.value - 1)
    assert (wide.low, wide.high) == pytest.approx((2 * plain.low - 1, 2 * plain.high - 1))
    assert 0 < plain.low < plain.value < plain.high < 1


def test_nothing_and_values_out_of_bounds():
    """R-Q1: no value has no mean; a value beyond the bounds is refused."""
    assert confidence_sequence([]).reason == "no value"
    first = confidence_sequence([1.0])
    assert (first.value, first.high, first.n) == (1.0, 1.0, 1)
    never, always = confidence_sequence([0.0] * 20), confidence_sequence([1.0] * 20)
    assert (never.low, always.high) == (0.0, 1.0)
    assert never.high == pytest.approx(1 - always.low)
    for bad in ([1.2], [math.nan]):
        with pytest.raises(ProctorError):
            confidence_sequence(bad)


def wealth(values, mean, alpha):
    """The most either gambler ever held, written as products, one mean at a time."""
    richest, up, down = 0.0, 1.0, 1.0
    for t, value in enumerate(values, start=1):
        past = values[: t - 1]
        centres = [(0.5 + sum(past[: i + 1])) / (i + 2) for i in range(len(past))]
        spread = 0.25 + sum((x - c) ** 2 for x, c in zip(past, centres, strict=True))
        bet = math.sqrt(2 * math.log(2 / alpha) / (spread / t * t * math.log(1 + t)))
        up *= 1 + min(bet, 0.5 / mean) * (value - mean)
        down *= 1 - min(bet, 0.5 / (1 - mean)) * (value - mean)
        richest = max(richest, up / 2, down / 2)
    return richest


@pytest.mark.parametrize(("a", "b"), [(1, 1), (0.3, 0.1), (2, 6)])
def test_the_ends_are_where_the_gambler_wins(a, b):
    """R-Q1: just outside the interval a gambler made 1/alpha, just inside nobody did."""
    values = list(np.random.default_rng(3).beta(a, b, 50))
    found = confidence_sequence(values, level=0.9)
    for end, inwards in ((found.low, 0.002), (found.high, -0.002)):
        assert wealth(values, end + inwards, 0.1) < 10
        assert wealth(values, end - inwards / 2, 0.1) >= 10
    mirror = confidence_sequence([1 - x for x in values], level=0.9)
    assert (mirror.low, mirror.high) == pytest.approx((1 - found.high, 1 - found.low))


def test_a_source_that_changes_is_found_out():
    """R-Q1: 300 failures, then 300 passes have no mean in common: null, with the reason."""
    found = confidence_sequence([0.0] * 300 + [1.0] * 300)
    assert (found.value, found.low, found.high) == (0.5, None, None)
    assert "unchanging source" in found.reason


def test_every_look_is_within_the_one_before():
    """R-Q1: what was ruled out at one look stays ruled out at the next."""
    values = np.random.default_rng(7).random(60)
    looks = [confidence_sequence(values[:n]) for n in range(1, 61)]
    for before, after in itertools.pairwise(looks):
        assert before.low <= after.low
        assert after.high <= before.high


@given(st.lists(st.floats(0.5, 1e6), max_size=8))
def test_e_bh_is_bh_of_inverted_e_values(e_values):
    """R-Q1: e-BH names what BH names of min(1, 1/e)."""
    adjusted = benjamini_hochberg([min(1.0, 1 / e) for e in e_values])
    found = e_benjamini_hochberg(e_values, 0.2)
    near = [abs(value - 0.2) < 1e-12 for value in adjusted]
    expected = [value <= 0.2 for value in adjusted]
    assert all(a == b or tie for a, b, tie in zip(found, expected, near, strict=True))
    with pytest.raises(ProctorError):
        e_benjamini_hochberg([-1.0])

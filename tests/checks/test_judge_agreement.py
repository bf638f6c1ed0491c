"""Agreement of two raters, against independent formulas."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.checks.judge_audit import agreement, cohen_kappa
from proctor.errors import ProctorError


def spread(table: list[list[int]]) -> tuple[list[int], list[int]]:
    """Two lists of labels that have a confusion table."""
    pairs = [
        (i, j) for i, row in enumerate(table) for j, count in enumerate(row) for _ in range(count)
    ]
    return [a for a, _ in pairs], [b for _, b in pairs]


def by_pairs(first, second, power):
    """Kappa as one minus observed over expected disagreement, pair by pair, in fractions."""
    distance = (
        (lambda a, b: Fraction(a != b))
        if power is None
        else (lambda a, b: Fraction(abs(a - b) ** power))
    )
    n = len(first)
    observed = sum(distance(a, b) for a, b in zip(first, second, strict=True)) / Fraction(n)
    expected = sum(distance(a, b) for a, b in itertools.product(first, second)) / Fraction(n * n)
    return None if expected == 0 else float(1 - observed / expected)


def test_published_examples():
    """R-C7: Cohen's kappa of textbook tables, worked out by hand."""
    # 50 proposals, two readers: observed 0.7, by chance 0.5.
    assert cohen_kappa(*spread([[20, 5], [10, 15]])) == pytest.approx(0.4)
    # The same raw agreement of 0.6 with other margins.
    assert cohen_kappa(*spread([[45, 15], [25, 15]])) == pytest.approx(0.1304, abs=1e-4)
    assert cohen_kappa(*spread([[25, 35], [5, 35]])) == pytest.approx(0.2593, abs=1e-4)


LABELS = st.integers(0, 4)


@given(st.lists(st.tuples(LABELS, LABELS), min_size=1, max_size=30))
@pytest.mark.parametrize(("weights", "power"), [(None, None), ("linear", 1), ("quadratic", 2)])
def test_kappa_is_that_of_the_pairwise_formula(weights, power, pairs):
    """R-C7: plain and weighted kappa equal an exact, independent formula on any labels."""
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    found = cohen_kappa(first, second, weights=weights, categories=range(5))
    expected = by_pairs(first, second, power)
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-9))


@given(st.lists(st.tuples(LABELS, LABELS), max_size=30))
def test_the_table_counts_every_row(pairs):
    """R-C7: denominators: the table's cells sum to the rows, its diagonal to the agreement."""
    found = agreement([a for a, _ in pairs], [b for _, b in pairs], resamples=0)
    assert sum(map(sum, found.table)) == found.n == len(pairs)
    assert sum(found.table[i][i] for i in range(len(found.categories))) == found.agreed


def test_what_is_not_defined_is_none():
    """R-C7: no rows, or one label throughout: no kappa, not 0 and not 1."""
    assert cohen_kappa([], []) is None
    assert cohen_kappa(["pass"] * 5, ["pass"] * 5) is None
    empty = agreement([], [])
    assert (empty.n, empty.raw, empty.kappa, empty.interval) == (0, None, None, None)


def test_the_interval_is_repeatable_and_covers_the_estimate():
    """R-C7: a seeded bootstrap over rows, narrower with more rows."""
    first, second = spread([[20, 5], [10, 15]])
    one, same = agreement(first, second, seed=1), agreement(first, second, seed=1)
    other, more = agreement(first, second, seed=2), agreement(first * 20, second * 20, seed=1)
    assert one == same
    assert one.interval != other.interval
    assert one.interval.low < one.kappa < one.interval.high
    assert more.interval.high - more.interval.low < (one.interval.high - one.interval.low) / 3


def test_the_interval_has_the_width_of_the_asymptotic_one():
    """R-C7: on 1,000 rows the bootstrap agrees with the large-sample standard error."""
    first, second = spread([[400, 100], [200, 300]])
    found = agreement(first, second, seed=0)
    # Fleiss, Cohen and Everitt (1969), for two categories and these margins.
    p = [[0.4, 0.1], [0.2, 0.3]]
    rows, columns = [0.5, 0.5], [0.6, 0.4]
    po, pe, k = 0.7, 0.5, 0.4
    a = sum(p[i][i] * (1 - (rows[i] + columns[i]) * (1 - k)) ** 2 for i in range(2))
    b = (1 - k) ** 2 * sum(
        p[i][j] * (columns[i] + rows[j]) ** 2 for i in range(2) for j in range(2) if i != j
    )
    c = (k - pe * (1 - k)) ** 2
    error = ((a + b - c) / (1 - pe) ** 2 / 1000) ** 0.5
    assert found.kappa == pytest.approx((po - pe) / (1 - pe))
    assert found.interval.low == pytest.approx(k - 1.96 * error, abs=0.01)
    assert found.interval.high == pytest.approx(k + 1.96 * error, abs=0.01)


def test_raters_of_other_rows_are_refused():
    """R-C7: lists of different length, or labels outside the given categories."""
    with pytest.raises(ProctorError, match="one length"):
        cohen_kappa([1], [1, 2])
    with pytest.raises(ProctorError, match="not among the categories"):
        cohen_kappa(["a"], ["b"], categories=["a"])

"""One percentile: q from 0 to 100, any order, linear interpolation, for every caller."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.errors import ProctorError
from proctor.runs.summary import summarise_cell
from proctor.runs.trial import CellKey, Trial, TrialStatus
from proctor.stats.describe import describe, percentile

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=40)


@given(VALUES, st.floats(0, 100))
def test_it_is_numpys_in_any_order(values: list[float], q: float) -> None:
    """R-Q1: linear interpolation between order statistics (type 7)."""
    expected = float(np.percentile(values, q))
    assert percentile(values, q) == pytest.approx(expected, abs=1e-6)
    assert percentile(sorted(values, reverse=True), q) == percentile(sorted(values), q)


@given(VALUES)
def test_every_caller_has_the_same(values: list[float]) -> None:
    """R-R13: the p50 and p95 of a cell are those of `describe`."""
    trials = [
        Trial(
            case="c",
            agent="a",
            index=at,
            seed=at,
            status=TrialStatus.PASSED,
            score=1.0,
            latency_ms=value,
        )
        for at, value in enumerate(values)
    ]
    cell = summarise_cell(CellKey("c", "a"), trials, threshold=0.8, asked=len(trials))
    found = describe(values).percentiles
    assert (cell.latency_p50_ms, cell.latency_p95_ms) == (found[50], found[95])
    assert found[95] == pytest.approx(float(np.percentile(values, 95)), abs=1e-6)


def test_outside_its_range_and_of_nothing() -> None:
    """R-Q1: a percentile outside 0 to 100 is an error."""
    assert percentile([], 50) is None
    assert percentile([3.0], 99) == 3.0
    for q in (-1, 101):
        with pytest.raises(ProctorError, match=f"invalid percentile {q}"):
            percentile([1.0], q)

"""Descriptions against numpy, and what the room costs to import."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.errors import ProctorError
from proctor.stats.describe import describe, intraclass, trials_for_reliability


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_descriptions_agree_with_numpy(values):
    """R-Q1: mean, deviation, standard error and percentiles are those of numpy, ties included."""
    found = describe(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-6)
    assert found.deviation == pytest.approx(np.std(values, ddof=1), abs=1e-6)
    assert found.error == pytest.approx(np.std(values, ddof=1) / math.sqrt(len(values)), abs=1e-6)
    assert list(found.percentiles) == [50, 90, 95, 99]
    expected = np.percentile(values, list(found.percentiles))
    assert list(found.percentiles.values()) == pytest.approx(list(expected), abs=1e-6)
    assert (found.low, found.high, found.n) == (min(values), max(values), len(values))


def test_what_is_not_defined_is_null():
    """R-Q1: no value has no mean, one value no spread; NaN is refused."""
    nothing = describe([])
    assert (nothing.mean, nothing.error, nothing.percentiles[50]) == (None, None, None)
    one = describe([3.0])
    assert (one.mean, one.deviation, one.error, one.percentiles[99]) == (3.0, None, None, 3.0)
    assert nothing.reason
    assert one.reason
    with pytest.raises(ProctorError, match="value 1 is nan"):
        describe([math.nan])
    with pytest.raises(ProctorError, match="invalid percentile 101"):
        describe([1.0], [101])


def test_the_room_is_imported_without_numpy_or_scipy(root):
    """R-Q1: importing every module of the room loads neither, so that commands start fast."""
    modules = sorted(path.stem for path in (root / "src/proctor/stats").glob("[a-z]*.py"))
    assert "gate" in modules
    lines = "".join(f"import proctor.stats.{name}\n" for name in modules)
    lines += "import sys; print(sorted({'numpy', 'scipy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_intraclass_correlation_covers_and_says_how_many_trials_are_enough() -> None:
    """R-N10: 95 % intervals cover a planted correlation; 0 and 1 are found; few trials say why."""
    rng = np.random.default_rng(26)
    replications, covered, worst = 200, [], 0.0
    for cases, trials in ((5, 5), (10, 10), (30, 5)):
        for mean, planted in ((0.5, 0.5), (0.8, 0.3), (0.8, 0.7), (0.9, 0.1), (0.7, 0.0)):
            hits = defined = 0
            for _ in range(replications):
                spread = 1 / planted - 1 if planted else 0.0
                rates = rng.beta(mean * spread, (1 - mean) * spread, cases) if planted else mean
                passes = rng.binomial(trials, rates, cases)
                found = intraclass([(int(each), trials) for each in passes])
                if found.value is None or found.low is None or found.high is None:
                    assert found.reason
                    continue
                defined += 1
                hits += found.low <= planted <= found.high
            covered.append(hits / defined)
            worst = max(worst, 0.95 - hits / defined)
    print(f"{len(covered)} settings × {replications}: coverage {min(covered):.3f} at least")
    assert worst <= 3 * (0.95 * 0.05 / replications) ** 0.5
    sure = intraclass([(10, 10), (0, 10)] * 6)
    assert sure.value == 1.0
    assert sure.low is not None
    assert sure.low > 0.5
    assert intraclass([(3, 3)]).reason == "needs two cases with two judged trials each"
    assert "same outcome" in str(intraclass([(3, 3), (3, 3)]).reason)
    # Spearman and Brown: 4 trials of correlation 0.5 have a reliability of 0.8.
    assert trials_for_reliability(0.5) == 4
    assert trials_for_reliability(0.0) is None
    assert trials_for_reliability(1.0) == 1

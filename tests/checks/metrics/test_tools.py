"""Numbers about which tools were called, against the plainest way to compute them."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.checks.metrics import (
    PlainCall,
    edit_distance,
    edit_similarity,
    lcs_length,
    loops,
    redundancy,
    sequence_similarity,
    tool_precision,
    tool_recall,
)

# Few distinct tools make long common subsequences; more than a machine word makes carries.
NAMES = st.lists(st.sampled_from("abcd"), max_size=150)


def naive_lcs(a, b):
    row = [0] * (len(b) + 1)
    for x in a:
        before = row
        row = [0]
        for j, y in enumerate(b):
            row.append(before[j] + 1 if x == y else max(row[j], before[j + 1]))
    return row[-1]


def naive_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before = row
        row = [i]
        for j, y in enumerate(b):
            row.append(min(before[j] + (x != y), before[j + 1] + 1, row[j] + 1))
    return row[-1]


@pytest.mark.parametrize(
    ("expected", "used", "recall", "precision"),
    [
        (["a", "b"], ["a"], 1 / 2, 1.0),
        (["a"], ["a", "b", "b"], 1.0, 1 / 2),
        (["a", "a"], ["a"], 1.0, 1.0),
        (["a"], ["b"], 0.0, 0.0),
        ([], ["a"], None, 0.0),
        (["a"], [], 0.0, None),
        ([], [], None, None),
    ],
)
def test_recall_and_precision_are_shares_of_sets(expected, used, recall, precision):
    """R-C3: |E∩U|/|E| and |E∩U|/|U| over sets; a share of nothing is None."""
    assert tool_recall(expected, used) == recall
    assert tool_precision(expected, used) == precision


@given(NAMES, NAMES)
def test_similarities_are_those_of_the_textbook(a, b):
    """R-C3: LCS and edit distance by machine words equal the quadratic tables."""
    assert lcs_length(a, b) == naive_lcs(a, b)
    assert edit_distance(a, b) == naive_distance(a, b)
    if a or b:
        assert math.isclose(sequence_similarity(a, b), 2 * naive_lcs(a, b) / (len(a) + len(b)))
        longest = max(len(a), len(b))
        assert math.isclose(edit_similarity(a, b), 1 - naive_distance(a, b) / longest)


@given(NAMES, NAMES)
def test_similarity_is_one_exactly_for_equal_sequences(a, b):
    """R-C3: symmetric, within 0..1, and 1 exactly when nothing differs (both empty included)."""
    for similarity in (sequence_similarity, edit_similarity):
        assert 0 <= similarity(a, b) <= 1
        assert similarity(a, b) == similarity(b, a)
        assert (similarity(a, b) == 1) == (a == b)
        assert similarity(a, a) == 1


def test_one_empty_side_is_no_similarity():
    """R-C3: nothing is shared with an empty sequence; two empty ones are the same."""
    assert sequence_similarity([], ["a"]) == edit_similarity(["a"], []) == 0
    assert sequence_similarity([], []) == edit_similarity([], []) == 1


def test_long_sequences_are_exact():
    """R-C3: thousands of calls, where the answer is known by construction."""
    a = [f"t{n % 97}" for n in range(4000)]
    assert lcs_length(a, a[::2]) == 2000
    assert edit_distance(a, [*a[:1000], "new", *a[1003:]]) == 3


@given(st.lists(st.sampled_from("ab"), max_size=40))
def test_loops_are_consecutive_repeats(names):
    """R-C3: a repeat is a call of the tool called just before; the longest stretch is reported."""
    found = loops(names)
    assert found.repeats == sum(x == y for x, y in itertools.pairwise(names))
    stretches = "".join(names).replace("ab", "a b").replace("ba", "b a").split()
    assert found.longest == max(map(len, stretches), default=0)
    assert [names[r.start : r.start + r.length] for r in found.runs] == [
        list(s) for s in stretches if len(s) > 1
    ]


def test_loops_name_the_tool_and_its_place():
    """R-C3: where the loop is."""
    found = loops(["plan", "search", "search", "search", "plan", "plan"])
    assert (found.longest, found.repeats) == (3, 3)
    assert found.runs == (("search", 1, 3), ("plan", 4, 2))
    assert loops([]) == (0, 0, ())


def test_redundancy_is_same_tool_same_input_anywhere_before():
    """R-C8: the repeats, the call each repeats, and their share; None without calls."""
    calls = [
        PlainCall("search", {"q": "x", "n": 1}, "s1"),
        PlainCall("search", {"q": "y"}, "s2"),
        PlainCall("search", '{"n": 1.0, "q": "x"}', "s3"),
        PlainCall("fetch", {"q": "x", "n": 1}, "s4"),
        PlainCall("search", {"q": "x", "n": True}, "s5"),
    ]
    found = redundancy(calls)
    assert found.share == 1 / 5
    assert found.repeats == (("search", 2, 0, "s3"),)
    assert redundancy([]).share is None

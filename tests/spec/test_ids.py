"""Ids of cases are stable, and file names everywhere."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.runs.case_rows import LONGEST_SLUG, slug
from proctor.spec.suite import problem_with_id

ANY_INPUT = st.text() | st.dictionaries(st.text(), st.text(), min_size=1) | st.integers()


@pytest.mark.parametrize(
    ("given_input", "expected"),
    [
        ("What is the capital of France?", "what-is-the-capital-of-france"),
        ("Größe der Äpfel", "grösse-der-äpfel"),
        ("法国的首都是什么？", "法国的首都是什么"),
        ({"q": "Why?"}, "q-why"),
        ("NUL", "case-nul"),
        ("?!", "case-545f94"),
        (42, "42"),
    ],
)
def test_slugs(given_input: object, expected: str) -> None:
    """R-C1: an id made from the input reads like it."""
    assert slug(given_input) == expected


def test_long_inputs_with_one_beginning_keep_apart() -> None:
    """R-C1: cut ids differ by a digest."""
    start = "the quick brown fox jumps over the lazy dog and then goes on to "
    one, two = slug(start + "Rome"), slug(start + "Paris")
    assert one != two
    assert one.startswith("the-quick-brown-fox-jumps-over-the-lazy-dog")
    assert len(one) <= LONGEST_SLUG


@given(ANY_INPUT)
def test_every_slug_is_a_good_id(value: object) -> None:
    """R-C1: whatever the input, the id is stable, short, and a file name on every system."""
    made = slug(value)
    assert made == slug(value)
    assert len(made) <= LONGEST_SLUG
    assert problem_with_id(made) is None


@given(st.text(alphabet=string.printable + "é\u2028\u202e", max_size=120))
def test_ids_that_pass_are_file_names(text: str) -> None:
    """R-C1: nothing that a file system, a glob or a terminal would take otherwise."""
    if problem_with_id(text) is None:
        assert not set(text) & set('/\\:*?"<>|\n\r\t \u2028\u202e')
        assert text[0] not in ".-~"
        assert not text.endswith(".")

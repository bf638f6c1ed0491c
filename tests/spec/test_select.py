"""Choosing cases by tag, id and property."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.errors import ProctorError
from proctor.spec import Case, parse_filter, select_cases

CASES = [
    Case(id="easy-one", input="a", tags=("geo", "Smoke"), difficulty="easy", type="lookup"),
    Case(id="hidden-two", input="b", tags=("math",), difficulty="hard", properties={"n": 2}),
    Case(
        id="hidden-three",
        input="c",
        difficulty="hard",
        properties={
            "region": "north sea",
            "ok": True,
            "meta": {"team": "x"},
            "langs": ["fr", "de"],
        },
    ),
]


def chosen(text: str = "", *tags: str) -> list[str]:
    return [case.id for case in select_cases(CASES, tags=tags, filter=text)]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", ["easy-one", "hidden-two", "hidden-three"]),
        ("difficulty:hard", ["hidden-two", "hidden-three"]),
        ("difficulty:HARD", ["hidden-two", "hidden-three"]),
        ("type:lookup", ["easy-one"]),
        ("tag:geo", ["easy-one"]),
        ("id:hidden*", ["hidden-two", "hidden-three"]),
        ("hidden*", ["hidden-two", "hidden-three"]),
        ("!hidden*", ["easy-one"]),
        ("!tag:math", ["easy-one", "hidden-three"]),
        ("tag:geo,tag:math", ["easy-one", "hidden-two"]),
        ("difficulty:hard !tag:math", ["hidden-three"]),
        ("tag:geo,difficulty:hard !n:2", ["easy-one", "hidden-three"]),
        ("n:2", ["hidden-two"]),
        ("ok:true", ["hidden-three"]),
        ('region:"north sea"', ["hidden-three"]),
        ("meta.team:x", ["hidden-three"]),
        ("langs:de", ["hidden-three"]),
        ("type:*", ["easy-one"]),
    ],
)
def test_filters(text: str, ids: list[str]) -> None:
    """R-C1: comma is or, space is and, `!` is not, `*` is any; the comma binds tighter."""
    assert chosen(text) == ids


def test_tags() -> None:
    """R-C1: any of the tags, case ignored, together with the filter."""
    assert chosen("", "smoke", "math") == ["easy-one", "hidden-two"]
    assert chosen("difficulty:hard", "smoke", "math") == ["hidden-two"]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "dificulty:hard",
            "no case has a property 'dificulty' to filter by",
            "did you mean 'difficulty'?",
        ),
        ("difficulty:", "the filter 'difficulty:' lacks a value at character 1", "key:value"),
        ("tag:geo,,", "the filter 'tag:geo,,' lacks a value at character 9", "key:value"),
        ('n:"x"y', "the filter 'n:\"x\"y' cannot be read from character 6", ""),
    ],
)
def test_slips_are_told(text: str, message: str, hint: str) -> None:
    """R-C1: what cannot be meant is an error with a hint."""
    with pytest.raises(ProctorError) as caught:
        chosen(text)
    assert str(caught.value) == message
    assert hint in (caught.value.hint or "")


def test_a_gate_over_no_cases_does_not_pass() -> None:
    """R-R11: a filter that selects nothing is an error, with the tags there are."""
    with pytest.raises(ProctorError) as caught:
        chosen("difficulty:medium")
    assert str(caught.value) == "none of 3 cases is selected by --filter 'difficulty:medium'"
    with pytest.raises(ProctorError) as caught:
        chosen("", "goe")
    assert caught.value.hint == "did you mean 'geo'?"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("difficulty=hard", "write key:value, such as difficulty:hard"),
        ("hiden-two", "did you mean 'hidden-two' or 'hidden-three'?"),
        ("difficulty:medium", "the difficulty of a case is easy, hard"),
        ("difficulty:hard difficulty:esy", "did you mean 'easy'?"),
    ],
)
def test_a_filter_that_selects_nothing_says_what_there_is(text: str, hint: str) -> None:
    """R-C1: of the term that no case meets, what is near it, or what cases have there."""
    with pytest.raises(ProctorError) as caught:
        chosen(text)
    assert caught.value.hint == hint


@given(st.text(max_size=30))
def test_any_text_is_a_filter_or_an_error(text: str) -> None:
    """R-C1: no text crashes the filter, and what is read selects by its terms."""
    try:
        parsed = parse_filter(text)
    except ProctorError as error:
        message = str(error)
        parsed = None
    else:
        message = ""
    assert message.startswith("the filter ") == (parsed is None)
    if parsed is not None:
        assert all(term.glob for group in parsed.groups for term in group)
        assert bool(parsed.groups) == bool(text.strip())

"""When arguments count as the same, rule by rule."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.checks.metrics.alignment import (
    ABSENT,
    ArgumentRules,
    canonical,
    look_up,
    read_rule,
)
from proctor.errors import ProctorError

SCALARS = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, 1.5, "1", ""])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def equal(a, b):
    """JSON equality, spelt out: booleans only with booleans, numbers by value."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return (type(a) in (int, float) and type(b) in (int, float) and a == b) or (
        type(a) is type(b) and not isinstance(a, dict | list) and a == b
    )


@given(ARGUMENTS, ARGUMENTS)
def test_exact_is_equality_of_json_values(a, b):
    """R-C3: 1 equals 1.0, true equals only true, at any depth, whatever the order of keys."""
    rule = read_rule("exact")
    assert rule.same(a, b) == equal(a, b)
    assert (canonical(a) == canonical(b)) == equal(a, b)
    assert rule.same(a, dict(reversed(a.items())))
    assert rule.same(a, json.dumps(a))
    assert rule.same(json.dumps(a, indent=2), json.dumps(a))
    assert bool(rule.differences(a, b)) == (not equal(a, b))


@given(ARGUMENTS, ARGUMENTS)
def test_subset_and_superset_look_one_way_each(actual, reference):
    """R-C3: subset: every actual argument is in the reference; superset: the reverse."""
    inside = all(k in reference and equal(v, reference[k]) for k, v in actual.items())
    around = all(k in actual and equal(v, actual[k]) for k, v in reference.items())
    assert read_rule("subset").same(actual, reference) == inside
    assert read_rule("superset").same(actual, reference) == around
    assert bool(read_rule("subset").differences(actual, reference)) == (not inside)
    assert bool(read_rule("superset").differences(actual, reference)) == (not around)


@given(ARGUMENTS, ARGUMENTS)
def test_ignore_accepts_everything(actual, reference):
    """R-C3: ignore looks at nothing, and has nothing to complain about."""
    rule = read_rule("ignore")
    assert rule.same(actual, reference)
    assert rule.differences(actual, reference) == ()


def test_chosen_keys_compare_only_those_paths():
    """R-C3: dotted paths, through lists too; absent on both sides is the same, null is not."""
    rule = read_rule(["q", "options.limit", "items.1.id"])
    actual = {"q": "x", "options": {"limit": 5, "page": 1}, "items": [{}, {"id": 7}], "t": 1}
    reference = {"q": "x", "options": {"limit": 5.0}, "items": [0, {"id": 7}], "t": 2}
    assert rule.same(actual, reference)
    assert not rule.same(actual, {**reference, "options": {"limit": "5"}})
    assert rule.differences(actual, {"q": "x", "items": [0, {"id": 8}]}) == (
        ("options.limit", 5, ABSENT),
        ("items.1.id", 7, 8),
    )
    assert read_rule(["gone"]).same({}, {"other": 1})
    assert not read_rule(["gone"]).same({}, {"gone": None})
    assert look_up({"a.b": 1, "a": {"b": 2}}, "a.b") == 1


def test_a_function_is_asked_for_actual_and_reference_in_that_order():
    """R-C3: a callable gets decoded arguments, the actual ones first."""
    seen = []

    def near(actual, reference):
        seen.append((actual, reference))
        return abs(actual["n"] - reference["n"]) <= 1

    rule = read_rule(near)
    assert rule.same('{"n": 4}', {"n": 5})
    assert not rule.same({"n": 9}, {"n": 5})
    assert seen == [({"n": 4}, {"n": 5}), ({"n": 9}, {"n": 5})]


@pytest.mark.parametrize("nothing", [None, "", "  ", {}, "{}"])
def test_no_arguments_are_an_empty_mapping(nothing):
    """R-C3: however a recorder writes "called without arguments"."""
    assert read_rule("exact").same(nothing, {})
    assert not read_rule("exact").same(nothing, {"a": None})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("42", 42, False),
        ("true", True, False),
        ('{"a": 1', '{"a": 1', True),
        ('{"a": 1', {"a": 1}, False),
        ([1, 2], "[1, 2.0]", True),
        ({"f": '{"a": 1}'}, {"f": {"a": 1}}, False),
        ({"x": math.nan}, {"x": math.nan}, True),
        ({"x": math.nan}, {"x": None}, False),
        ({"x": math.inf}, {"x": None}, False),
        ({"x": 2**70}, {"x": 2**70}, True),
        ({"x": 2**53 + 1}, {"x": float(2**53)}, False),
        ({"x": "\ud800"}, {"x": "\ud800"}, True),
        ({"x": (1, 2)}, {"x": [1, 2]}, True),
        ({1: "a"}, {"1": "a"}, True),
        ({"x": object}, {"x": object}, True),
        ({"x": object}, {"x": dict}, False),
    ],
)
def test_edges_of_equality(one, other, same):
    """R-C3: text is read only as a whole object or array; odd values still compare."""
    assert read_rule("exact").same(one, other) is same
    assert (canonical(one) == canonical(other)) is same
    assert bool(read_rule("exact").differences(one, other)) is not same


def test_depth_does_not_matter():
    """R-C3: arguments nested deeper than Python's stack compare like any other."""
    deep, other = {}, {}
    a, b = deep, other
    for _ in range(50_000):
        a["x"], b["x"] = {}, {}
        a, b = a["x"], b["x"]
    assert read_rule("exact").same(deep, other)
    b["x"] = 1
    assert not read_rule("exact").same(deep, other)
    assert len(read_rule("exact").differences(deep, other)) == 1
    text = "[" * 100_000 + "]" * 100_000
    assert read_rule("exact").same(text, text)
    # Taken apart level by level: Python's own clean-up of such a nest would need as deep a stack.
    for nest in ([deep], [other]):
        while isinstance(nest[0].get("x"), dict):
            nest[0] = nest[0].pop("x")


def test_differences_say_where():
    """R-C3: each differing argument with its path and both values."""
    actual = {"q": "x", "o": {"limit": 10, "tags": ["a", "b"]}, "extra": 1}
    reference = {"q": "x", "o": {"limit": 5, "tags": ["a", "c"]}, "lang": "en"}
    assert read_rule("exact").differences(actual, reference) == (
        ("o.limit", 10, 5),
        ("o.tags.1", "b", "c"),
        ("lang", ABSENT, "en"),
        ("extra", 1, ABSENT),
    )


def test_rules_by_tool():
    """R-C3: a default, and tools that differ from it."""
    rules = ArgumentRules("exact", {"log": "ignore"})
    assert rules.of("log").same({"a": 1}, {})
    assert not rules.of("search").same({"a": 1}, {})


@pytest.mark.parametrize(
    ("rule", "words"), [("exactly", "'exact'"), (5, "list"), (["a", 1], "list"), ([""], "list")]
)
def test_an_unknown_rule_is_refused_with_a_hint(rule, words):
    """R-C3: an unknown rule is an error with the tool and a suggestion."""
    with pytest.raises(ProctorError) as caught:
        ArgumentRules(tools={"search": rule})
    assert caught.value.where == "arguments.search"
    assert words in f"{caught.value.hint}"

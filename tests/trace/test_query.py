"""Every key of the span query language, with a span that matches it and one that does not."""

from datetime import timedelta

import pytest
from spans import family, ids, span, trace

from proctor.trace import QueryError, Span, SpanKind, SpanQuery, SpanStatus, Trace
from proctor.trace.query import CONDITIONS, QUERY_KEYS, same

# root ─┬─ a ─┬─ a1 ── deep
#       │     └─ a2
#       └─ b
TREE = trace(
    span("root", start=0, end=100, kind=SpanKind.AGENT, status=SpanStatus.OK, name="run agent"),
    span("a", "root", start=1, end=50, kind=SpanKind.CHAIN, name="step 1", attributes={"n": 1}),
    span("a1", "a", start=2, end=20, kind=SpanKind.TOOL, name="search", tool_name="search"),
    span(
        "a2", "a", start=3, end=10, kind=SpanKind.LLM, name="chat", attributes={"n": "1", "m": None}
    ),
    span("deep", "a1", start=4, end=None, name="http GET", attributes={"ok": True}),
    span("b", "root", start=5, end=1, kind=SpanKind.TOOL, status=SpanStatus.ERROR, name=""),
)
ALL = "root a a1 a2 deep b"

NAME_A, NAME_DEEP = {"name_equals": "step 1"}, {"name_equals": "http GET"}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, ALL),
        ({"name_equals": "search"}, "a1"),
        ({"name_equals": "Search"}, ""),
        ({"name_equals": ""}, "b"),
        ({"name_contains": "e"}, "root a a1"),
        ({"name_contains": ""}, ALL),
        ({"name_contains": "STEP"}, ""),
        ({"name_matches_regex": "s"}, "a a1"),
        ({"name_matches_regex": "tep"}, ""),
        ({"name_matches_regex": r".*\d$"}, "a"),
        ({"name_matches_regex": ""}, ALL),
        ({"has_attributes": {"n": 1}}, "a"),
        ({"has_attributes": {"n": "1"}}, "a2"),
        ({"has_attributes": {"n": "1", "m": None}}, "a2"),
        ({"has_attributes": {"n": 1, "m": None}}, ""),
        ({"has_attributes": {}}, ALL),
        ({"has_attribute_keys": ["n"]}, "a a2"),
        ({"has_attribute_keys": ["n", "m"]}, "a2"),
        ({"has_attribute_keys": []}, ALL),
        ({"has_status": "error"}, "b"),
        ({"has_status": "ok"}, "root"),
        ({"has_status": "unset"}, "a a1 a2 deep"),
        ({"has_status": "timeout"}, ""),
        ({"kind": "tool"}, "a1 b"),
        ({"kind": ["llm", "agent"]}, "root a2"),
        ({"kind": {"llm"}}, "a2"),
        ({"kind": []}, ""),
        ({"tool_name": "search"}, "a1"),
        ({"tool_name": ["search", "book"]}, "a1"),
        ({"tool_name": "book"}, ""),
        ({"min_duration": 0.02}, "root a a1"),
        ({"max_duration": 0.02}, "a1 a2 b"),
        ({"min_duration": timedelta(milliseconds=20), "max_duration": 0.05}, "a a1"),
        ({"min_duration": 0}, "root a a1 a2 b"),
        ({"max_duration": float("inf")}, "root a a1 a2 b"),
        ({"not_": {"name_contains": "e"}}, "a2 deep b"),
        ({"not_": {}}, ""),
        ({"not_": {"not_": {}}}, ALL),
        ({"and_": [{"kind": "tool"}, {"has_status": "error"}]}, "b"),
        ({"and_": []}, ALL),
        ({"or_": [NAME_A, NAME_DEEP]}, "a deep"),
        ({"or_": []}, ""),
        ({"or_": [{}]}, ALL),
        ({"or_": [NAME_A, NAME_DEEP], "min_depth": 2}, "deep"),
        ({"min_child_count": 2}, "root a"),
        ({"min_child_count": 0}, ALL),
        ({"max_child_count": 1}, "a1 a2 deep b"),
        ({"max_child_count": 0}, "a2 deep b"),
        ({"some_child_has": {"kind": "tool"}}, "root a"),
        ({"some_child_has": {}}, "root a a1"),
        ({"all_children_have": {"kind": "tool"}}, "a2 deep b"),
        ({"all_children_have": {"kind": ["tool", "chain"]}}, "root a2 deep b"),
        ({"no_child_has": {"kind": "tool"}}, "a1 a2 deep b"),
        ({"no_child_has": {}}, "a2 deep b"),
        ({"min_descendant_count": 3}, "root a"),
        ({"max_descendant_count": 1}, "a1 a2 deep b"),
        ({"some_descendant_has": NAME_DEEP}, "root a a1"),
        ({"some_descendant_has": {}}, "root a a1"),
        ({"all_descendants_have": {"not_": {"has_status": "error"}}}, "a a1 a2 deep b"),
        ({"no_descendant_has": {"kind": "llm"}}, "a1 a2 deep b"),
        ({"no_descendant_has": {}}, "a2 deep b"),
        ({"min_depth": 2}, "a1 a2 deep"),
        ({"max_depth": 1}, "root a b"),
        ({"min_depth": 1, "max_depth": 1}, "a b"),
        ({"some_ancestor_has": NAME_A}, "a1 a2 deep"),
        ({"some_ancestor_has": {}}, "a a1 a2 deep b"),
        ({"all_ancestors_have": {"kind": ["agent", "chain"]}}, "root a a1 a2 b"),
        ({"no_ancestor_has": NAME_A}, "root a b"),
        ({"no_ancestor_has": {}}, "root"),
        ({"stop_recursing_when": NAME_A}, ALL),
    ],
)
def test_each_key_matches_what_it_says(query, found):
    """R-T4: the meaning of every key, empty conditions included."""
    assert ids(TREE, query) == found


def test_every_key_is_tried_above():
    """R-T4: every key has a test of a match and of a mismatch."""
    mark = next(m for m in test_each_key_matches_what_it_says.pytestmark if m.name == "parametrize")
    answers: dict[str, set[str]] = {}
    for query, found in mark.args[1]:
        for key in query:
            answers.setdefault(key, set()).add(found)
    assert answers.keys() == set(QUERY_KEYS)
    assert {key for key, found in answers.items() if found <= {ALL}} == {"stop_recursing_when"}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        # Without pruning, for comparison.
        ({"some_descendant_has": NAME_DEEP}, "root a a1"),
        # A node that stops is itself tested ...
        ({"some_descendant_has": NAME_A, "stop_recursing_when": NAME_A}, "root"),
        # ... but not passed beyond; it may still be the one that asks.
        ({"some_descendant_has": NAME_DEEP, "stop_recursing_when": NAME_A}, "a a1"),
        ({"no_descendant_has": NAME_DEEP, "stop_recursing_when": NAME_A}, "root a2 deep b"),
        (
            {"all_descendants_have": {"max_depth": 1}, "stop_recursing_when": NAME_A},
            "root a2 deep b",
        ),
        ({"some_descendant_has": NAME_DEEP, "stop_recursing_when": {}}, "a1"),
        ({"some_ancestor_has": {"kind": "agent"}, "stop_recursing_when": NAME_A}, "a b"),
        ({"some_ancestor_has": NAME_A, "stop_recursing_when": NAME_A}, "a1 a2 deep"),
        ({"no_ancestor_has": {"kind": "agent"}, "stop_recursing_when": NAME_A}, "root a1 a2 deep"),
        (
            {"all_ancestors_have": {"not_": {"kind": "agent"}}, "stop_recursing_when": NAME_A},
            "root a1 a2 deep",
        ),
        # Counts, depth and children are not affected.
        ({"min_descendant_count": 5, "stop_recursing_when": {}}, "root"),
        ({"min_depth": 3, "stop_recursing_when": {}}, "deep"),
        ({"some_child_has": {"kind": "llm"}, "stop_recursing_when": {}}, "a"),
        # It prunes its own query, not the ones inside.
        (
            {"and_": [{"some_descendant_has": NAME_DEEP}], "stop_recursing_when": NAME_A},
            "root a a1",
        ),
        ({"stop_recursing_when": {"not_": {}}, "some_descendant_has": NAME_DEEP}, "root a a1"),
    ],
)
def test_stop_recursing_when(query, found):
    """R-T4: a node that matches it is itself tested, but not passed beyond."""
    assert ids(TREE, query) == found


# -- where the words are known from elsewhere and meant less --------------------------------------


@pytest.mark.parametrize(
    ("query", "where", "hint"),
    [
        ({"name_equal": "x"}, None, "name_equals"),
        ({"Kind": "tool"}, None, "kind"),
        ({"not": {}}, None, "not_"),
        ({"stop_recursing": {}}, None, "stop_recursing_when"),
        ({"not_": {"name_equal": "x"}}, "not_", "name_equals"),
        ({"or_": [{}, {"has_atributes": {}}]}, "or_[1]", "has_attributes"),
        ({"and_": [{"some_child_has": {"min_dept": 1}}]}, "and_[0].some_child_has", "min_depth"),
        ({"stop_recursing_when": {"has_state": "ok"}}, "stop_recursing_when", "has_status"),
    ],
)
def test_an_unknown_key_is_an_error_with_a_suggestion(query, where, hint):
    """R-T4: a misspelt key never matches everything."""
    with pytest.raises(QueryError) as caught:
        SpanQuery.parse(query)
    assert caught.value.where == where
    assert hint in (caught.value.hint or "")
    assert "unknown span query key" in str(caught.value)


@pytest.mark.parametrize("key", [1, None, True, ("a",), "qqqqqq"])
def test_an_unknown_key_of_any_type_is_an_error(key):
    """R-T4: YAML has keys that are not strings."""
    with pytest.raises(QueryError) as caught:
        SpanQuery.parse({key: "x"})
    assert repr(key) in caught.value.message


@pytest.mark.parametrize(
    ("query", "where", "says"),
    [
        ({"name_equals": 3}, "name_equals", "expected a string, got a number"),
        ({"name_equals": None}, "name_equals", "expected a string, got null"),
        ({"name_matches_regex": "("}, "name_matches_regex", "not a regular expression"),
        ({"has_attributes": ["a"]}, "has_attributes", "expected a mapping, got a list"),
        ({"has_attribute_keys": "a"}, "has_attribute_keys", "expected a list of attribute names"),
        ({"has_attribute_keys": [1]}, "has_attribute_keys", "expected a string, got a number"),
        ({"has_status": "failed"}, "has_status", "'failed' is none of unset, ok, error, timeout"),
        ({"has_status": ""}, "has_status", "'' is none of"),
        ({"kind": "tol"}, "kind", "'tol' is none of agent"),
        ({"kind": ["tool", 3]}, "kind", "expected a string"),
        ({"min_duration": "1s"}, "min_duration", "expected seconds or a timedelta, got a string"),
        ({"min_duration": True}, "min_duration", "got true/false"),
        ({"max_duration": float("nan")}, "max_duration", "expected seconds"),
        ({"min_depth": -1}, "min_depth", "at least 0, got -1"),
        ({"min_depth": True}, "min_depth", "got True"),
        ({"max_child_count": 1.0}, "max_child_count", "got 1.0"),
        ({"not_": None}, "not_", "a span query is a mapping of conditions, not null"),
        ({"or_": {}}, "or_", "expected a list of span queries, got a mapping"),
        ({"or_": [{}, []]}, "or_[1]", "a span query is a mapping of conditions, not a list"),
        ({"not_": {"and_": [{"kind": "x"}]}}, "not_.and_[0].kind", "'x' is none of"),
        ("name", None, "a span query is a mapping of conditions, not a string"),
    ],
)
def test_a_wrong_argument_is_an_error_with_its_path(query, where, says):
    """R-T4: what, where; never a silent match."""
    with pytest.raises(QueryError) as caught:
        SpanQuery.parse(query)
    assert caught.value.where == where
    assert says in caught.value.message


def test_a_near_miss_of_a_value_gets_a_suggestion_too():
    """R-T4: values from a closed list get a did-you-mean like keys."""
    for query, hint in (({"has_status": "ERROR"}, "'error'"), ({"kind": "tol"}, "'tool'")):
        with pytest.raises(QueryError) as caught:
            SpanQuery.parse(query)
        assert hint in (caught.value.hint or "")


def test_finding_with_something_that_is_no_query_is_an_error():
    """R-T4: a mistake in Python gets the same error as in YAML."""
    with pytest.raises(QueryError, match="expected a span query or a predicate, got a string"):
        TREE.find("name")  # pyright: ignore[reportArgumentType]


# -- attribute values ---------------------------------------------------------------------------


def holds(held: object, wanted: object) -> bool:
    one = trace(span("a", attributes={"x": held}), span("none"))
    found = one.count({"has_attributes": {"x": wanted}})
    assert found == same(held, wanted), "the short way for scalars and `same` must agree"
    return found == 1


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        ("a", "a"),
        ("", ""),
        (42, 42),
        (1, 1.0),
        (0.5, 0.5),
        (None, None),
        (True, True),
        (False, False),
        ([1, 2], [1, 2]),
        ((1, 2), [1, 2]),
        ([1, 2], (1, 2)),
        ({"a": (1,)}, {"a": [1]}),
        ("[1, 2]", [1, 2]),
        ("[1, 2]", (1, 2)),
        (' {"a" : {"b":[1.5,null,true]} } ', {"a": {"b": [1.5, None, True]}}),
        ('{"a": "[1]"}', {"a": [1]}),
        ({"a": 1}, '{"a": 1}'),
        ([1], "[1]"),
        ("[]", []),
        ("{}", {}),
        ('{"a": 1, "b": 2}', {"b": 2, "a": 1}),
        ("[Infinity]", [float("inf")]),
        ('["\ud800"]', ["\ud800"]),
        ("[123456789012345678901234567890]", [123456789012345678901234567890]),
    ],
)
def test_equal_attribute_values(held, wanted):
    """R-T4: a dict or list also equals its JSON text; a list also equals a tuple."""
    assert holds(held, wanted)


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        ("42", 42),
        (42, "42"),
        ("true", True),
        ("null", None),
        (None, "null"),
        ('"a"', "a"),
        (True, 1),
        (1, True),
        (False, 0),
        (0, False),
        (1.0, True),
        (None, False),
        ([True], [1]),
        ("[true]", [1]),
        ({"a": 1}, {"a": 1, "b": 2}),
        ([1, 2], [2, 1]),
        ([1], [1, 1]),
        ("[1, 2", [1, 2]),
        ("[" * 100_000, [1]),
        ("\ud800", [1]),
        ("1", [1]),
        ("{}", []),
        ("[]", {}),
        ("", []),
        (float("nan"), float("nan")),
    ],
)
def test_different_attribute_values(held, wanted):
    """R-T4: primitives are never decoded; booleans equal only booleans; nothing raises."""
    assert not holds(held, wanted)


@pytest.mark.parametrize("wanted", [None, False, 0, "", [], {}])
def test_an_attribute_that_is_missing_equals_nothing(wanted):
    """R-T4: a key must be present, whatever it is compared with."""
    assert trace(span("a")).count({"has_attributes": {"x": wanted}}) == 0


# -- queries as values ----------------------------------------------------------------------------


def test_queries_nest_as_objects_and_as_mappings():
    """R-T4: keywords, mappings and nested queries say the same."""
    inner = SpanQuery(kind="tool")
    outer = SpanQuery(some_child_has=inner, min_depth=1)
    assert ids(TREE, outer) == "a"
    assert ids(TREE, {"some_child_has": {"kind": "tool"}, "min_depth": 1}) == "a"
    assert outer == SpanQuery({"some_child_has": inner}, min_depth=1)
    assert SpanQuery.parse(outer) is outer
    assert repr(outer) == "SpanQuery(some_child_has=SpanQuery(kind='tool'), min_depth=1)"
    assert str(outer) == "{some_child_has: {kind: tool}, min_depth: 1}"
    assert outer != inner


def test_a_query_is_compiled_once_and_fits_any_trace():
    """R-T4: one query, many traces, also an empty one."""
    query = SpanQuery(
        some_descendant_has={"name_equals": "c"}, stop_recursing_when={"min_depth": 9}
    )
    assert [ids(t, query) for t in (family(a=None, b="a", c="b"), family(c=None), trace())] == [
        "a b",
        "",
        "",
    ]


def test_durations_are_compared_to_the_nanosecond():
    """R-T4: bounds are inclusive, and 0.1 seconds is 100,000,000 ns."""
    exact = Trace(
        trace_id="t",
        spans=[
            Span(span_id=str(ns), trace_id="t", name="", start_ns=10**18, end_ns=10**18 + ns)
            for ns in (99_999_999, 100_000_000, 100_000_001)
        ],
    )
    assert ids(exact, {"min_duration": 0.1}) == "100000000 100000001"
    assert ids(exact, {"max_duration": 0.1}) == "99999999 100000000"
    assert ids(exact, {"max_duration": timedelta(seconds=0.1), "min_duration": 0.1}) == "100000000"
    assert ids(exact, {"min_duration": 10**30}) == ""
    longer = trace(span("a", end=1001))
    assert ids(longer, {"min_duration": 1.001, "max_duration": 1.001}) == "a"


def test_each_condition_says_what_it_takes():
    """R-T4: a condition of the table refuses what it cannot read, for every key."""
    for key in CONDITIONS:
        with pytest.raises(QueryError) as caught:
            SpanQuery.parse({key: object()})
        assert caught.value.where == key


def test_many_different_values_are_told_apart():
    """R-T4: beyond 256 different names, kinds or tools a query is as right as below."""
    size = 1_000
    many = trace(*(span(str(i), start=i, tool_name=f"t{i % 700}") for i in range(size)))
    assert ids(many, {"name_equals": "999"}) == "999"
    assert many.count({"name_matches_regex": "9.*9$"}) == 11
    assert many.count({"name_contains": "99"}) == 19
    assert ids(many, {"tool_name": ["t299", "t300"]}) == "299 300 999"
    assert many.count({"tool_name": "t1000"}) == 0


def test_spans_that_changed_are_seen_after_forget():
    """R-T4: the tree is a snapshot; `forget` takes a new one."""
    live = trace(span("a", end=None, name="old"), span("b", "a", start=1))
    asked = {"name_equals": "new", "has_status": "error", "kind": "tool", "max_duration": 1}
    assert live.count(asked) == live.count({"some_child_has": {"name_equals": "c"}}) == 0
    first, second = live.spans
    first.name, first.status, first.kind = "new", SpanStatus.ERROR, SpanKind.TOOL
    first.end_ns, second.name = first.start_ns, "c"
    live.forget()
    assert live.count(asked) == live.count({"some_child_has": {"name_equals": "c"}}) == 1

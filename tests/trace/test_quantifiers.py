"""What holds of a whole trace: any, all, none, count, before, after."""

import pytest
from spans import span, trace

from proctor.trace import QueryError, SpanKind, SpanQuery, SpanStatus, TraceQuery, parse_query

TOOL = SpanKind.TOOL

WORK = trace(
    span("agent"),
    span("s1", "agent", start=1, kind=TOOL, name="search"),
    span("r", "agent", start=2, name="read", status=SpanStatus.ERROR),
    span("s2", "agent", start=3, kind=TOOL, name="search"),
    span("w", "agent", start=4, kind=TOOL, name="write"),
)

SEARCH, WRITE, READ = ({"name_equals": name} for name in ("search", "write", "read"))
ABSENT = {"name_equals": "delete"}


def judge(**quantifiers):
    return TraceQuery.parse(quantifiers).evaluate(WORK.index)


@pytest.mark.parametrize(
    ("quantifiers", "holds", "span_ids"),
    [
        ({"any": SEARCH}, True, ["s1", "s2"]),
        ({"any": ABSENT}, False, []),
        ({"any": {}}, True, ["agent", "s1", "r", "s2", "w"]),
        ({"all": {"max_depth": 1}}, True, []),
        ({"all": {"kind": "tool"}}, False, ["agent", "r"]),
        ({"none": ABSENT}, True, []),
        ({"none": {"has_status": "error"}}, False, ["r"]),
        ({"none": {}}, False, ["agent", "s1", "r", "s2", "w"]),
        ({"count": {"where": SEARCH, "min": 2}}, True, ["s1", "s2"]),
        ({"count": {"where": SEARCH, "min": 3}}, False, ["s1", "s2"]),
        ({"count": {"where": SEARCH, "max": 2}}, True, ["s1", "s2"]),
        ({"count": {"where": SEARCH, "max": 1}}, False, ["s1", "s2"]),
        ({"count": {"where": SEARCH, "min": 0, "max": 0}}, False, ["s1", "s2"]),
        ({"count": {"where": ABSENT, "max": 0}}, True, []),
        ({"count": {"min": 5, "max": 5}}, True, ["agent", "s1", "r", "s2", "w"]),
        ({"before": [SEARCH, WRITE]}, True, ["s1", "w"]),
        ({"before": [WRITE, SEARCH]}, False, ["w", "s1"]),
        ({"before": [SEARCH, READ]}, True, ["s1", "r"]),
        ({"before": [SEARCH, SEARCH]}, False, ["s1", "s1"]),
        ({"before": [ABSENT, SEARCH]}, False, []),
        ({"before": [SEARCH, ABSENT]}, False, []),
        ({"after": [WRITE, SEARCH]}, True, ["w", "s2"]),
        ({"after": [READ, SEARCH]}, False, ["r", "s2"]),
        ({"after": [SEARCH, READ]}, True, ["s2", "r"]),
        ({"after": [SEARCH, SEARCH]}, False, ["s2", "s2"]),
        ({"after": [ABSENT, SEARCH]}, False, []),
        ({"any": SEARCH, "none": ABSENT}, True, ["s1", "s2"]),
        ({"any": SEARCH, "none": WRITE}, False, ["w"]),
    ],
)
def test_quantifiers_over_a_trace(quantifiers, holds, span_ids):
    """R-T4: any / all / none / count(min, max) and order over the whole trace, AND-ed."""
    result = judge(**quantifiers)
    assert (result.holds, result.span_ids) == (holds, span_ids)


def test_none_forbids_what_a_span_query_with_not_cannot():
    """R-T4: "some span does not match" is almost always true and forbids nothing."""
    assert WORK.any({"not_": {"has_status": "error"}})
    assert judge(none={"has_status": "error"}).holds is False


def test_the_reason_counts_and_names():
    """R-T4: a result says why, never a bare False."""
    assert judge(none=READ).reason == "1 of 5 spans match {name_equals: read}"
    assert judge(all={"max_depth": 0}).reason == "4 of 5 spans do not match {max_depth: 0}"
    counted = judge(count={"where": READ, "min": 2, "max": 3}).reason
    assert counted == "1 of 5 spans match {name_equals: read}, expected at least 2 and at most 3"
    assert judge(before=[ABSENT, READ]).reason == "no span matches {name_equals: delete}"
    both = judge(before=[SEARCH, READ], any=WRITE).reason
    assert both == (
        "the first {name_equals: search} (search) starts before"
        " the first {name_equals: read} (read);"
        " 1 of 5 spans match {name_equals: write}"
    )
    assert "(write) does not start before" in judge(before=[WRITE, READ]).reason


def test_an_empty_trace_has_all_and_none_but_nothing_else():
    """R-T4: vacuous truth only where logic has it; order needs both sides to exist."""
    tree = trace().index
    holds = {
        name: TraceQuery.parse({name: argument}).evaluate(tree).holds
        for name, argument in {
            "any": {},
            "all": SEARCH,
            "none": {},
            "count": {"min": 1},
            "before": [SEARCH, WRITE],
            "after": [SEARCH, WRITE],
        }.items()
    }
    assert [name for name, held in holds.items() if held] == ["all", "none"]


@pytest.mark.parametrize(
    ("quantifiers", "where", "says", "hint"),
    [
        ({}, None, "needs one of any, all, none, count, before, after", None),
        (["any"], None, "needs one of any", None),
        ({"nome": {}}, None, "unknown quantifier 'nome'", "did you mean 'none'"),
        ({3: {}}, None, "unknown quantifier 3", None),
        ({"any": {}, "kind": "tool"}, None, "unknown quantifier 'kind'", "any: {kind: …}"),
        ({"any": {"kynd": "tool"}}, "any", "unknown span query key 'kynd'", "did you mean 'kind'"),
        ({"any": {"not_": {"nme_equals": ""}}}, "any.not_", "'nme_equals'", "'name_equals'"),
        ({"before": [{}, {"kynd": ""}]}, "before[1]", "'kynd'", "'kind'"),
        ({"count": {}}, "count", "count needs min, max or both", None),
        ({"count": {"where": {}, "mim": 1}}, "count", "unknown key 'mim'", "'min'"),
        ({"count": {"min": -1}}, "count.min", "at least 0, got -1", None),
        ({"count": {"max": 1.5}}, "count.max", "got 1.5", None),
        ({"count": {"min": 2, "max": 1}}, "count", "min 2 is more than max 1", None),
        ({"count": {"min": 1, "where": {"kynd": ""}}}, "count.where", "'kynd'", "'kind'"),
        ({"count": 3}, "count", "expected a mapping, got a number", None),
        ({"before": [{}]}, "before", "expected a pair of span queries, got 1", None),
        ({"after": {}}, "after", "expected a list of span queries, got a mapping", None),
        ({"none": None}, "none", "a span query is a mapping of conditions, not null", None),
    ],
)
def test_a_mistake_is_an_error_with_its_place(quantifiers, where, says, hint):
    """R-T4: an invalid query is an error with the path and a suggestion."""
    with pytest.raises(QueryError) as caught:
        TraceQuery.parse(quantifiers)
    assert caught.value.where == where
    assert says in caught.value.message
    assert (hint in (caught.value.hint or "")) if hint else caught.value.hint is None


def test_the_place_begins_where_the_caller_says():
    """R-T4: a trace query inside a case names its path in the case."""
    with pytest.raises(QueryError) as caught:
        TraceQuery.parse({"any": {"kynd": "x"}}, "checks[2].spans")
    assert str(caught.value) == "checks[2].spans.any: unknown span query key 'kynd'"


def test_parse_query_tells_span_queries_from_trace_queries():
    """R-T4: one parser for span and trace queries; mixing them is an error."""
    assert parse_query({"any": SEARCH}) == TraceQuery.parse({"any": SEARCH})
    assert parse_query(SEARCH) == SpanQuery(name_equals="search")
    assert parse_query({}) == SpanQuery()
    for wrong in ({"any": {}, "kind": "tool"}, ["any"], [{}], "any", None):
        with pytest.raises(QueryError):
            parse_query(wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(QueryError) as caught:
        parse_query({"anny": {}})
    assert caught.value.hint is not None
    assert "'any'" in caught.value.hint


def test_order_among_equal_starts_is_the_order_of_the_tree():
    """R-T4: a transcript has no times; its order still counts."""
    untimed = trace(span("a"), span("b", "a"), span("c", "a"))
    ordered = TraceQuery.parse({"before": [{"name_equals": "b"}, {"name_equals": "c"}]})
    assert ordered.evaluate(untimed.index).holds

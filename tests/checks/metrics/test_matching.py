"""Trajectory matching: every mode against its definition, and what a no has to say."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proctor.checks.metrics import ArgumentRules, Match, PlainCall, calls_of, match_calls
from proctor.checks.metrics.alignment import largest_pairing
from proctor.errors import ProctorError
from proctor.sanitize import printable

MODES = ("strict", "unordered", "superset", "subset", "in_order")


def near(actual, reference):
    """Neither reflexive nor transitive nor symmetric: nothing a shortcut could lean on."""
    return actual.get("a", 0) == reference.get("a", 0) + 1 or "b" in reference


RULES = {
    "exact": "exact",
    "ignore": "ignore",
    "subset": "subset",
    "superset": "superset",
    "keys": ["a"],
    "function": near,
}
VALUES = st.sampled_from([1, 1.0, True, 2])
CALLS = st.builds(
    PlainCall,
    st.sampled_from(["f", "g"]),
    st.dictionaries(st.sampled_from("ab"), VALUES, max_size=2)
    | st.sampled_from(['{"a": 1}', '{"b": 2, "a": 1}', None]),
)
SEQUENCES = st.lists(CALLS, max_size=5)


def defined(mode, actual, reference, accepts):
    """The modes by their definition: try every way to lay the calls side by side."""
    places = range(len(actual))
    if mode == "strict":
        return len(actual) == len(reference) and all(map(accepts, actual, reference))
    if mode == "in_order":
        chosen = itertools.combinations(actual, len(reference))
        return any(all(map(accepts, pick, reference)) for pick in chosen)
    if mode == "subset":
        chosen = itertools.permutations(reference, len(actual))
        return any(all(map(accepts, actual, pick)) for pick in chosen)
    if mode == "unordered" and len(actual) != len(reference):
        return False
    return any(
        all(accepts(actual[place], call) for place, call in zip(order, reference, strict=True))
        for order in itertools.permutations(places, len(reference))
    )


@pytest.mark.parametrize("rule", RULES)
@given(actual=SEQUENCES, reference=SEQUENCES)
@example(
    actual=[PlainCall("f", {"a": 1}), PlainCall("f", {"a": 1, "b": 2})],
    reference=[PlainCall("f", {"a": 1, "b": 2}), PlainCall("f", {"a": 1})],
)
def test_a_mode_says_yes_exactly_when_its_definition_does(rule, actual, reference):
    """R-C3: in no mode and under no argument rule is a pairing missed or made up."""
    rules = ArgumentRules(RULES[rule])

    def accepts(one, other):
        return one.name == other.name and rules.of(one.name).same(one.arguments, other.arguments)

    for mode in MODES:
        match = match_calls(actual, reference, mode=mode, arguments=rules)
        assert match.passed == bool(match) == defined(mode, actual, reference, accepts), mode
        check_bookkeeping(match, actual, reference, accepts)


def check_bookkeeping(match, actual, reference, accepts):
    """Assert that each call is reported exactly once, under the right heading."""
    reported = [*match.pairs, *match.moved, *match.different]
    ours = [p.actual for p in reported] + [c.position for c in match.extra]
    theirs = [p.reference for p in reported] + [c.position for c in match.missing]
    assert sorted(ours) == list(range(len(actual)))
    assert sorted(theirs) == list(range(len(reference)))
    for pair in (*match.pairs, *match.moved):
        assert accepts(actual[pair.actual], reference[pair.reference])
    for pair in match.different:
        assert pair.name == actual[pair.actual].name == reference[pair.reference].name
    if match.passed:
        assert not (match.different)
        assert not (match.moved)
        assert match.extra == () or match.mode in ("superset", "in_order")
        assert match.missing == () or match.mode == "subset"
    assert match.reason.startswith(f"{match.mode}: ")
    assert len(match.reason) > len(match.mode) + 10
    assert match.reason == printable(match.reason), "one line, nothing hidden"


@given(st.integers(0, 7), st.integers(0, 7), st.data())
def test_no_pairing_has_more_pairs(left, right, data):
    """R-C3: the general search finds a largest pairing, whatever may be paired with whom."""
    allowed = data.draw(
        st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=left * right)
    )
    asked = []

    def accepts(one, other):
        asked.append((one, other))
        return (one, other) in allowed

    pairs = largest_pairing(left, right, accepts)
    assert len(asked) == len(set(asked))
    assert all(pair in allowed for pair in pairs)
    assert len({p[0] for p in pairs}) == len({p[1] for p in pairs}) == len(pairs)
    assert len(pairs) == best(0, frozenset(range(right)), left, allowed)


def best(one, free, left, allowed):
    if one == left:
        return 0
    taken = [1 + best(one + 1, free - {o}, left, allowed) for o in free if (one, o) in allowed]
    return max([best(one + 1, free, left, allowed), *taken])


def test_a_long_chain_of_displacements_is_found():
    """R-C3: a perfect pairing in which every easy choice is wrong, deeper than Python's stack."""
    size = 1200
    # Each prefers its right-hand neighbour's place; only the last may take the first.
    pairs = largest_pairing(size, size, lambda one, other: other == one or other == one - 1)
    assert len(pairs) == size
    shifted = largest_pairing(
        size, size, lambda one, other: other == (one + 1) % size or (other == one and one > 0)
    )
    assert len(shifted) == size


def test_greedy_would_miss_this_one():
    """R-C3: under `superset` a general reference call must not take the call of a special one."""
    actual = [PlainCall("f", {"q": 1, "n": 5}, "s1"), PlainCall("f", {"q": 1}, "s2")]
    reference = [PlainCall("f", {"q": 1}), PlainCall("f", {"q": 1, "n": 5})]
    match = match_calls(actual, reference, mode="unordered", arguments="superset")
    assert match.passed
    assert match.pairs == ((0, 1, "s1"), (1, 0, "s2"))


@pytest.mark.parametrize("mode", MODES)
def test_direction_of_arguments_is_the_same_in_every_mode(mode):
    """R-C3: `subset` arguments means actual ⊆ reference, under match mode `subset` too."""
    less, more = [PlainCall("f", {"a": 1})], [PlainCall("f", {"a": 1, "b": 2})]
    assert match_calls(less, more, mode=mode, arguments="subset").passed
    assert not match_calls(more, less, mode=mode, arguments="subset").passed
    assert match_calls(more, less, mode=mode, arguments="superset").passed
    assert not match_calls(less, more, mode=mode, arguments="superset").passed


def test_counts_matter_in_unordered():
    """R-C3: a multiset, not a set."""
    once, twice = [PlainCall("f")], [PlainCall("f"), PlainCall("f")]
    assert not match_calls(twice, once, mode="unordered")
    assert not match_calls(once, twice, mode="superset")
    assert not match_calls(twice, once, mode="subset")


def test_empty_sequences():
    """R-C3: nothing asked and nothing done matches in every mode; the reason says so."""
    for mode in MODES:
        assert match_calls([], [], mode=mode).passed
    assert match_calls([PlainCall("f")], [], mode="superset").passed
    assert match_calls([], [PlainCall("f")], mode="subset").passed
    assert not match_calls([], [PlainCall("f")], mode="superset").passed


def test_missing_says_which_call():
    """R-C5: the reason names the missing call, its arguments and its place in the reference."""
    match = match_calls(
        [PlainCall("search", {"q": "Oslo"}, "a1")],
        [PlainCall("search", {"q": "Oslo"}), PlainCall("book", {"to": "Oslo"})],
        mode="superset",
    )
    assert match.reason == (
        'superset: 1 of 2 reference calls missing: book {"to": "Oslo"} (reference call 2)'
    )
    assert [call.name for call in match.missing] == ["book"]
    assert match.span_ids == ()


def test_different_says_which_argument():
    """R-C5: a call of the right tool with other arguments is reported as such, with its span."""
    match = match_calls(
        [PlainCall("search", {"q": "Oslo", "limit": 10}, "a1")],
        [PlainCall("search", {"q": "Oslo", "limit": 5, "lang": "en"}, "r1")],
    )
    assert match.reason == (
        "strict: 1 call with other arguments: search (call 1, span a1) "
        'limit is 10, reference 5, lang is absent, reference "en"'
    )
    assert match.different[0].reference_span_id == "r1"
    assert match.span_ids == ("a1",)


def test_different_names_the_nearest_call():
    """R-C5: among several calls of the tool, the one that differs least is the changed one."""
    match = match_calls(
        [PlainCall("f", {"a": 9, "b": 9}, "s1"), PlainCall("f", {"a": 1, "b": 9}, "s2")],
        [PlainCall("f", {"a": 1, "b": 2})],
        mode="superset",
    )
    assert match.different[0].span_id == "s2"
    assert [call.span_id for call in match.extra] == ["s1"]
    assert match.span_ids == ("s2",)


def test_order_is_told_as_order():
    """R-C5: a swapped call is out of order, not missing and extra; one insertion is one extra."""
    a, b, c = (PlainCall(name, None, f"s-{name}") for name in "abc")
    swapped = match_calls([b, a, c], [a, b, c])
    assert len(swapped.moved) == 1
    assert swapped.missing == swapped.extra == swapped.different == ()
    assert "out of order" in swapped.reason
    inserted = match_calls([a, PlainCall("x", None, "s-x"), b, c], [a, b, c])
    assert inserted.reason == "strict: 1 call not in the reference: x (call 2, span s-x)"
    assert inserted.span_ids == ("s-x",)


def test_in_order_failure_names_the_call_that_came_too_late():
    """R-C5: extra calls are allowed and not complained about."""
    calls = [
        PlainCall("pay", None, "s1"),
        PlainCall("log", None, "s2"),
        PlainCall("check", None, "s3"),
    ]
    match = match_calls(calls, [PlainCall("check"), PlainCall("pay")], mode="in_order")
    assert [pair.span_id for pair in match.moved] in (["s1"], ["s3"])
    assert "log" not in match.reason
    assert "out of order" in match.reason


def test_many_problems_are_counted_and_a_few_shown():
    """R-C5: one line, whatever went wrong."""
    match = match_calls(
        [PlainCall(f"t{n}", None, f"s{n}") for n in range(500)], [], mode="unordered"
    )
    assert match.reason == (
        "unordered: 500 calls not in the reference: t0 (call 1, span s0), "
        "t1 (call 2, span s1), t2 (call 3, span s2) and 497 more"
    )
    assert len(match.span_ids) == 500


def test_hostile_names_and_arguments_are_harmless_in_the_reason():
    """R-C5: control characters, newlines and lone surrogates are written as escapes."""
    call = PlainCall("x\x1b[31m\n", {"k\x07": "\ud800" + "y" * 10_000}, "s\x00")
    for mode in MODES:
        reason = match_calls([call], [PlainCall("x\x1b[31m\n", {"k\x07": 1})], mode=mode).reason
        assert reason.isprintable()
        assert len(reason) < 400


def test_unknown_mode_is_refused_with_a_hint():
    """R-C3: an unknown mode suggests the nearest."""
    with pytest.raises(ProctorError) as caught:
        match_calls([], [], mode="superst")  # pyright: ignore[reportArgumentType]
    assert "'superset'" in f"{caught.value.hint}"


def test_long_trajectories_in_other_order():
    """R-C3: thousands of distinct calls, reversed: a multiset match, and order is reported."""
    calls = [PlainCall("f", {"n": n}, f"s{n}") for n in range(3000)]
    assert match_calls(calls[::-1], calls, mode="unordered").passed
    match = match_calls(calls[::-1], calls)
    assert (len(match.pairs), len(match.moved)) in ((1, 2999), (0, 3000))


def test_calls_of_messages_of_any_shape():
    """R-C3: what LangChain and Anthropic write is read like what OpenAI writes."""
    call = {"function": {"name": "f", "arguments": '{"a": 1}'}}
    plain = calls_of([{"role": "user", "content": "…"}, {"tool_calls": [call]}])
    assert match_calls(
        calls_of([{"type": "ai", "tool_calls": [{"name": "f", "args": {"a": 1}}]}]), plain
    )
    text, use = {"type": "text", "text": "…"}, {"type": "tool_use", "name": "f", "input": {"a": 1}}
    assert match_calls(calls_of([{"role": "assistant", "content": [text, use]}]), plain)
    assert not match_calls(calls_of([{"role": "assistant", "content": [text]}]), plain)
    with pytest.raises(ProctorError, match="message 1: a tool call has a `name`"):
        calls_of([{"tool_calls": [{}]}])


def test_a_match_is_never_a_bare_bool():
    """R-C5: yes and no both come with a reason."""
    match = match_calls([PlainCall("f", None, "s")], [PlainCall("f")])
    assert isinstance(match, Match)
    assert match.reason == "strict: all 1 calls are those of the reference, in order"
    assert match.pairs == ((0, 0, "s"),)

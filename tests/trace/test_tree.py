"""The tree over the spans of a trace: its shape, its order, and what no input may do to it."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spans import family, ids, span, trace

from proctor.trace import SpanNode, SpanTree


def named(nodes: list[SpanNode]) -> str:
    return " ".join(node.span_id for node in nodes)


def test_a_node_knows_its_place():
    """R-T5: name, duration, attributes, children, descendants, ancestors of a node."""
    tree = trace(
        span("root", end=100),
        span("a", "root", start=1, attributes={"x": 1}),
        span("b", "root", start=5, end=None),
        span("a1", "a", start=2),
        span("a2", "a", start=3),
        span("a1x", "a1", start=4),
    )
    root, a, a1x = (tree.node(i) for i in ("root", "a", "a1x"))
    assert root is not None
    assert a is not None
    assert a1x is not None
    assert (a.name, a.duration, a.attributes, a.depth) == ("a", 0.01, {"x": 1}, 1)
    assert (a.kind, a.status, a.span.parent_id) == ("other", "unset", "root")
    assert named(root.children) == "a b"
    assert named(root.descendants) == "a a1 a1x a2 b"
    assert named(a1x.ancestors) == "a1 a root"
    assert (a1x.parent, root.parent) == (tree.node("a1"), None)
    assert tree.roots == [root]
    open_span = tree.node("b")
    assert open_span is not None
    assert open_span.duration is None
    assert tree.node("nobody") is None
    assert len({a, tree.node("a"), root}) == 2
    assert (a == a1x, a == "a") == (False, False)
    assert repr(a) == "<other 'a' a>"


def test_descendants_come_in_document_order_whatever_the_order_of_arrival():
    """R-T5: in document order, children by start time (pydantic-evals: last child first)."""
    spans = [span("root")]
    spans += [span(f"c{i}", "root", start=i * 10) for i in range(1, 4)]
    spans += [span(f"c{i}{j}", f"c{i}", start=i * 10 + j) for i in range(1, 4) for j in (1, 2)]
    for seed in range(20):
        random.Random(seed).shuffle(spans)
        root = trace(*spans).node("root")
        assert root is not None
        assert named(root.descendants) == "c1 c11 c12 c2 c21 c22 c3 c31 c32"


def test_late_spans_are_sorted_among_their_siblings():
    """R-T3: a span that arrives late takes its place by start time."""
    late = trace(span("root"), span("first", "root", start=1), span("third", "root", start=3))
    assert named(late.roots[0].children) == "first third"
    late.add([span("second", "root", start=2), span("below", "third", start=4)])
    assert named(late.roots[0].children) == "first second third"
    assert ids(late, {}) == "root first second third below"
    assert late.count({"min_depth": 2}) == 1


def test_a_late_span_with_a_known_id_replaces_the_earlier_one():
    """R-T3: (trace id, span id) is the identity; the newest version wins."""
    late = trace(span("root"), span("a", "root", name="open", end=None))
    assert late.count({"name_equals": "open"}) == 1
    late.add([span("a", "root", name="closed")])
    assert [s.name for s in late.spans] == ["root", "closed"]
    assert late.any({"name_equals": "open"}) is False
    assert late.count({"max_duration": 1}) == 2


def test_a_late_parent_takes_its_children_in():
    """R-T3: spans may come in any order, a parent after its children too."""
    late = trace(span("child", "root", start=1))
    assert named(late.roots) == "child"
    late.add([span("root")])
    assert named(late.roots) == "root"
    assert named(late.roots[0].children) == "child"


def test_spans_of_one_id_are_all_kept():
    """R-T3: never a lost span, even where a producer used an id twice."""
    tree = SpanTree([span("twin", start=0), span("twin", start=1), span("child", "twin", start=2)])
    assert len(tree) == 3
    assert tree.child_count == [0, 1, 0]
    assert named(tree.roots()) == "twin twin"


def test_a_span_whose_parent_is_absent_is_a_root():
    """R-T3: missing parents make roots, by start time."""
    orphans = trace(
        span("b", "gone", start=2), span("a", "gone too", start=1), span("c", "a", start=3)
    )
    assert named(orphans.roots) == "a b"
    assert ids(orphans, {"max_depth": 0}) == "a b"


@pytest.mark.parametrize(
    ("parents", "roots", "cycles"),
    [
        ({"a": "a"}, "a", [["a"]]),
        ({"a": "b", "b": "a"}, "a", [["a", "b"]]),
        ({"a": "b", "b": "c", "c": "a"}, "a", [["a", "b", "c"]]),
        ({"a": "c", "b": "a", "c": "b", "tail": "c", "tip": "tail"}, "a", [["a", "b", "c"]]),
        ({"tail": "b", "a": "b", "b": "a", "c": "d", "d": "c"}, "a c", [["a", "b"], ["c", "d"]]),
        ({"root": None, "a": "b", "b": "a"}, "root a", [["a", "b"]]),
    ],
)
def test_a_cycle_is_broken_at_its_earliest_span_and_reported(parents, roots, cycles):
    """R-T3: a parent cycle is reported, never an endless loop and never a lost span."""
    tree = family(**parents).index
    assert named(tree.roots()) == roots
    assert tree.cycles == cycles
    walked = [
        tree.spans[i].span_id for i in tree.walk(i for i, p in enumerate(tree.parent) if p < 0)
    ]
    assert sorted(walked) == sorted(parents)
    assert ids(tree, {"some_ancestor_has": {}}).split() == [
        child for child in parents if child not in roots.split()
    ]


def test_of_spans_that_start_together_a_parent_comes_first():
    """R-T5: clocks are coarse and children are exported before their parents."""
    coarse = trace(span("leaf", "mid"), span("mid", "root"), span("other"), span("root"))
    assert ids(coarse, {}) == "root mid leaf other"
    assert coarse.node("leaf") == coarse.nodes()[2]
    assert named(coarse.roots) == "root other"
    assert [node.depth for node in coarse.nodes()] == [0, 1, 2, 0]
    untimed = trace(*(span(i, None if i == "a" else "a") for i in "abcd"))
    assert ids(untimed, {}) == "a b c d"


def test_a_child_that_starts_before_its_parent_keeps_both_places():
    """R-T3: clocks of two machines differ; the links still hold."""
    skewed = trace(
        span("child", "root", start=0), span("root", start=5), span("leaf", "child", start=9)
    )
    assert ids(skewed, {}) == "child root leaf"
    assert [node.depth for node in skewed.nodes()] == [1, 0, 2]
    assert ids(skewed, {"min_descendant_count": 1}) == "child root"


@pytest.mark.parametrize("backwards", [False, True])
def test_a_chain_of_100_000_spans_works(backwards):
    """R-T5: depth does not matter: nothing here recurses."""
    size = 100_000
    step = -1 if backwards else 1
    spans = [
        span(str(i), None if i == 0 else str(i - 1), start=size + step * i) for i in range(size)
    ]
    deep = trace(*spans)
    leaf, root = deep.node(str(size - 1)), deep.node("0")
    assert leaf is not None
    assert root is not None
    assert (leaf.depth, len(leaf.ancestors), len(root.descendants)) == (size - 1,) * 3
    assert deep.count({"some_descendant_has": {"name_equals": str(size - 1)}}) == size - 1
    assert deep.count({"no_ancestor_has": {"name_equals": "50000"}}) == 50_001
    assert deep.count({"min_descendant_count": 10, "min_depth": 10}) == size - 20


def test_a_ring_of_100_000_spans_is_broken_once():
    """R-T3: also a long cycle costs one pass."""
    size = 100_000
    ring = trace(*(span(str(i), str((i - 1) % size), start=i) for i in range(size)))
    assert named(ring.roots) == "0"
    assert [len(cycle) for cycle in ring.index.cycles] == [size]
    assert ring.nodes()[-1].depth == size - 1


def test_an_empty_trace_has_an_empty_tree():
    """R-T5: a query without matches returns an empty result."""
    empty = trace()
    assert (empty.roots, empty.nodes(), empty.find({}), empty.first({})) == ([], [], [], None)
    assert (empty.any({}), empty.all({"name_equals": "x"}), empty.count({})) == (False, True, 0)


def test_finding_takes_queries_mappings_and_predicates():
    """R-T5: find, first, any, count and all over a query or a predicate."""
    some = family(root=None, a="root", b="root", a1="a")
    for query in ({"min_depth": 1}, lambda node: node.parent is not None):
        assert named(some.find(query)) == "a b a1"
        first = some.first(query)
        assert first is not None
        assert first.span_id == "a"
        assert (some.any(query), some.all(query), some.count(query)) == (True, False, 3)
    assert some.all(lambda node: len(node.name) > 0)
    assert some.first({"name_equals": "zzz"}) is None


@st.composite
def tangled(draw):
    """Spans with parents that may be missing, later, themselves or in a ring, some starts equal."""
    size = draw(st.integers(0, 12))
    names = [f"s{i}" for i in range(size)]
    parents = st.sampled_from([None, "gone", *names])
    return [span(i, draw(parents), start=draw(st.integers(0, 6))) for i in names]


@given(tangled(), st.randoms(use_true_random=False))
def test_no_shape_loses_a_span(spans, chance):
    """R-T3: every span is in the tree once, below at most one parent, in start order."""
    chance.shuffle(spans)
    tree = SpanTree(spans)
    roots = [i for i, parent in enumerate(tree.parent) if parent < 0]
    walked = list(tree.walk(roots))
    assert sorted(walked) == list(range(len(spans)))
    assert sorted(s.span_id for s in tree.spans) == sorted(s.span_id for s in spans)
    assert all(a.start_ns <= b.start_ns for a, b in pairwise(tree.spans))
    order = {position: rank for rank, position in enumerate(tree.parents_first)}
    for position, parent in enumerate(tree.parent):
        one = tree.spans[position]
        assert tree.position[one.span_id] == position
        if parent >= 0:
            assert tree.spans[parent].span_id == one.parent_id
            assert order[parent] < order[position]
            assert tree.spans[parent].start_ns != one.start_ns or parent < position
    cut = {tree.spans[i].span_id for i in roots if tree.spans[i].parent_id in tree.position}
    assert cut == {min(cycle, key=lambda i: tree.position[i]) for cycle in tree.cycles}
    assert all(
        tree.spans[tree.position[i]].start_ns >= tree.spans[tree.position[cycle[0]]].start_ns
        for cycle in tree.cycles
        for i in cycle
    )

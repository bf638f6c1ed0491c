"""Three implementations of the span query language give the same answers.

Ours; a naive one below, written from the table of meanings one key at a time; and, where it is
right, pydantic-evals, whose words these are (in a process of its own).
"""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spans import MILLISECOND, span

from proctor.trace import Span, SpanKind, SpanQuery, SpanStatus, SpanTree
from proctor.trace.query import CONDITIONS

# -- the naive one: a recursive tree, and every key spelled out -----------------------------------


@dataclass(eq=False)
class Node:
    span: Span
    parent: "Node | None" = None
    children: list["Node"] = field(default_factory=list)

    def descendants(self, stop: Callable[["Node"], bool]) -> list["Node"]:
        found = []
        for child in self.children:
            found.append(child)
            if not stop(child):
                found += child.descendants(stop)
        return found

    def ancestors(self, stop: Callable[["Node"], bool]) -> list["Node"]:
        if self.parent is None:
            return []
        return [self.parent, *([] if stop(self.parent) else self.parent.ancestors(stop))]


def naive_tree(spans: list[Span]) -> list[Node]:
    """Nodes by start time; a ring is opened at its earliest span."""
    nodes = [Node(s) for s in sorted(spans, key=lambda s: s.start_ns)]
    by_id = {node.span.span_id: node for node in nodes}
    for node in nodes:
        node.parent = by_id.get(node.span.parent_id or "")
    for node in nodes:  # earliest first, so that the first span found in a ring opens it
        above, steps = node.parent, 0
        while above is not None and above is not node and steps < len(nodes):
            above, steps = above.parent, steps + 1
        if above is node:
            node.parent = None
    for node in nodes:
        if node.parent is not None:
            node.parent.children.append(node)
    return nodes


def naive_same(held: Any, wanted: Any) -> bool:
    def plain(value: Any, *, top: bool) -> Any:
        if isinstance(value, str) and not top:
            return ("text", value)
        if isinstance(value, list | tuple):
            return ("list", [plain(item, top=False) for item in value])
        if isinstance(value, dict):
            return ("dict", {key: plain(item, top=False) for key, item in value.items()})
        return ("bool" if isinstance(value, bool) else "scalar", value)

    readings = []
    for value in (held, wanted):
        both = [plain(value, top=True)]
        if isinstance(value, str) and value[:1] in ("[", "{"):
            both.append(plain(json.loads(value), top=True))
        readings.append(both)
    return any(a == b for a in readings[0] for b in readings[1])


def naive(node: Node, query: dict[str, Any]) -> bool:
    return all(naive_key(node, query, key, argument) for key, argument in query.items())


def naive_key(node: Node, query: dict[str, Any], key: str, argument: Any) -> bool:
    one = node.span
    stop_query = query.get("stop_recursing_when")

    def stop(other: Node) -> bool:
        return stop_query is not None and naive(other, stop_query)

    def never(_: Node) -> bool:
        return False

    duration = None if one.end_ns is None else one.end_ns - one.start_ns
    match key:
        case "stop_recursing_when":
            return True
        case "name_equals":
            return one.name == argument
        case "name_contains":
            return argument in one.name
        case "name_matches_regex":
            return re.match(argument, one.name) is not None
        case "has_attributes":
            held = one.attributes
            return all(k in held and naive_same(held[k], v) for k, v in argument.items())
        case "has_attribute_keys":
            return all(k in one.attributes for k in argument)
        case "has_status":
            return one.status == argument
        case "kind":
            return one.kind in (argument if isinstance(argument, list) else [argument])
        case "tool_name":
            return one.tool_name in (argument if isinstance(argument, list) else [argument])
        case "min_duration":
            return duration is not None and duration >= argument * 10**9
        case "max_duration":
            return duration is not None and duration <= argument * 10**9
        case "not_":
            return not naive(node, argument)
        case "and_":
            return all(naive(node, q) for q in argument)
        case "or_":
            return any(naive(node, q) for q in argument)
    if key.endswith("depth"):
        count = len(node.ancestors(never))
        return count >= argument if key.startswith("min") else count <= argument
    if key.endswith("count"):
        count = len(node.children if "child" in key else node.descendants(never))
        return count >= argument if key.startswith("min") else count <= argument
    relatives = (
        node.children
        if "child" in key
        else node.descendants(stop)
        if "descendant" in key
        else node.ancestors(stop)
    )
    matching = [naive(other, argument) for other in relatives]
    return {"some": any(matching), "all": all(matching), "no": not any(matching)}[
        key.split("_", 1)[0]
    ]


# -- spans and queries to try ---------------------------------------------------------------------

NAMES = ["", "run", "run tool", "chat"]
VALUES = [
    None,
    True,
    False,
    0,
    1,
    2,
    2.5,
    "",
    "a",
    "1",
    "[1]",
    '{"k": [1]}',
    [1],
    [True],
    {"k": [1]},
]
STATUSES = [str(status) for status in SpanStatus]
SECONDS = [0, 0.001, 0.0025, 0.003]


@st.composite
def spans_of_all_kinds(draw) -> list[Span]:
    size = draw(st.integers(0, 9))
    names = [f"s{i}" for i in range(size)]
    starts = draw(st.permutations(range(size)))
    return [
        span(
            one,
            draw(st.sampled_from([None, "gone", *names])),
            start=start,
            end=draw(st.sampled_from([None, 0, 1, 3, 7])),
            name=draw(st.sampled_from(NAMES)),
            kind=draw(st.sampled_from([SpanKind.TOOL, SpanKind.LLM])),
            status=draw(st.sampled_from(list(SpanStatus))),
            tool_name=draw(st.sampled_from([None, "t", "u"])),
            attributes=draw(
                st.dictionaries(st.sampled_from("xy"), st.sampled_from(VALUES), max_size=2)
            ),
        )
        for one, start in zip(names, starts, strict=True)
    ]


def conditions(nested: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    """What may stand behind each key."""
    some_names = st.sampled_from(NAMES)
    by_key: dict[str, st.SearchStrategy[Any]] = {
        "name_equals": some_names,
        "name_contains": st.sampled_from(["", "run", "o", "t"]),
        "name_matches_regex": st.sampled_from(["", "tool", "r.n", ".*t", "$"]),
        "has_attributes": st.dictionaries(
            st.sampled_from("xy"), st.sampled_from(VALUES), max_size=2
        ),
        "has_attribute_keys": st.lists(st.sampled_from("xy"), max_size=2),
        "has_status": st.sampled_from(STATUSES),
        "kind": st.sampled_from(["tool", "llm", ["tool", "llm"], "agent", []]),
        "tool_name": st.sampled_from(["t", ["t", "u"], "z", []]),
        "and_": st.lists(nested, max_size=2),
        "or_": st.lists(nested, max_size=2),
    }
    for key in [*CONDITIONS, "stop_recursing_when"]:
        if key in by_key:
            continue
        if key.endswith("duration"):
            by_key[key] = st.sampled_from(SECONDS)
        elif key.startswith(("min_", "max_")):
            by_key[key] = st.integers(0, 3)
        else:
            by_key[key] = nested
    return by_key


@st.composite
def up_to_three(draw, by_key: dict[str, st.SearchStrategy[Any]], least: int = 0) -> dict[str, Any]:
    """A query of a few keys: with all thirty no span would ever match."""
    keys = draw(st.lists(st.sampled_from([*by_key]), min_size=least, max_size=3, unique=True))
    return {key: draw(by_key[key]) for key in keys}


def queries() -> st.SearchStrategy[dict[str, Any]]:
    return st.recursive(st.just({}), lambda nested: up_to_three(conditions(nested)), max_leaves=6)


def ours(spans: list[Span], query: dict[str, Any]) -> list[str]:
    tree = SpanTree(spans)
    return [node.span_id for node in tree.select(SpanQuery.parse(query).mask(tree))]


@settings(max_examples=600)
@given(spans_of_all_kinds(), queries())
def test_ours_agrees_with_the_table_read_literally(spans, query):
    """R-T4: every key, nested, pruned and empty, over trees, forests and rings."""
    expected = [node.span.span_id for node in naive_tree(spans) if naive(node, query)]
    assert ours(spans, query) == expected


@settings(max_examples=25)
@given(spans_of_all_kinds(), st.data())
@pytest.mark.parametrize("key", [*CONDITIONS, "stop_recursing_when"])
def test_each_key_agrees_with_the_table_read_literally(key, spans, data):
    """R-T4: each key alone, so that every one is tested often."""
    simple = st.fixed_dictionaries({"name_contains": st.sampled_from(["", "run", "t"])})
    query = {key: data.draw(conditions(st.one_of(st.just({}), simple, queries()))[key])}
    if "descendant" in key or "ancestor" in key:
        query["stop_recursing_when"] = data.draw(st.one_of(simple, queries()))
    expected = [node.span.span_id for node in naive_tree(spans) if naive(node, query)]
    assert ours(spans, query) == expected


# -- pydantic-evals, where it is right ------------------------------------------------------------

PEER = """
import json, sys
from datetime import datetime, timedelta, timezone
from pydantic_evals.otel.span_tree import SpanNode, SpanTree
epoch = datetime(2026, 1, 1, tzinfo=timezone.utc)
for line in sys.stdin:
    spans, queries = json.loads(line)
    tree = SpanTree()
    tree.add_spans([
        SpanNode(trace_id=1, span_id=i, parent_span_id=parent, name=name, status=status,
                 start_timestamp=epoch + timedelta(milliseconds=start),
                 end_timestamp=epoch + timedelta(milliseconds=end),
                 attributes={k: tuple(v) if isinstance(v, list) else v for k, v in held.items()})
        for i, parent, name, status, start, end, held in spans
    ])
    found = [[node.span_id for node in tree.find(query)] for query in queries]
    print(json.dumps(found), flush=True)
"""


@pytest.fixture(scope="module")
def peer(root) -> Iterator[Callable[[Any], Any]]:
    """Asks pydantic-evals: from this environment, or from the one the benchmarks made."""
    python = root / ".cache" / "bench-envs" / "pydantic-evals" / "bin" / "python"
    if importlib.util.find_spec("pydantic_evals") is not None:
        python = sys.executable
    elif not python.is_file():
        pytest.skip("no pydantic-evals here; `python benchmarks/traces.py --quick` installs it")
    with subprocess.Popen(
        [python, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        reader, writer = process.stdout, process.stdin

        def ask(question: Any) -> Any:
            writer.write(json.dumps(question) + "\n")
            writer.flush()
            return json.loads(reader.readline())

        yield ask
        writer.close()


@st.composite
def spans_for_both(draw) -> list[Span]:
    """Spans without rings, all ended, with values on which both agree."""
    size = draw(st.integers(1, 9))
    starts = draw(st.permutations(range(size)))
    values = ["a", "1", 2, 2.5, '{"k": [2]}', "[2, 3]", [2, 3]]
    return [
        span(
            str(i + 1),
            draw(st.sampled_from([None, "99", *(str(j + 1) for j in range(i))])),
            start=starts[i],
            end=draw(st.sampled_from([0, 1, 3, 7])),
            name=draw(st.sampled_from(["run", "run tool", "chat"])),
            status=draw(st.sampled_from([SpanStatus.UNSET, SpanStatus.OK, SpanStatus.ERROR])),
            attributes=draw(
                st.dictionaries(st.sampled_from("xy"), st.sampled_from(values), max_size=2)
            ),
        )
        for i in range(size)
    ]


def queries_for_both() -> st.SearchStrategy[dict[str, Any]]:
    """Queries without empty conditions, nulls, booleans, or `or_` beside other keys."""
    wanted = ["a", "1", 2, 2.5, {"k": [2]}, [2, 3]]

    def deeper(nested: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
        several = st.lists(nested, min_size=1, max_size=2)
        by_key = conditions(nested) | {
            "name_equals": st.sampled_from(["run", "chat"]),
            "name_contains": st.sampled_from(["run", "o"]),
            "name_matches_regex": st.sampled_from(["tool", "r.n", ".*t"]),
            "has_attributes": st.dictionaries(
                st.sampled_from("xy"), st.sampled_from(wanted), min_size=1, max_size=2
            ),
            "has_status": st.sampled_from(["unset", "ok", "error"]),
            "and_": several,
        }
        for ours_alone in ("kind", "tool_name", "or_"):
            del by_key[ours_alone]
        return st.one_of(up_to_three(by_key, least=1), st.fixed_dictionaries({"or_": several}))

    return st.recursive(
        st.sampled_from([{"name_contains": "o"}, {"has_status": "ok"}, {"min_depth": 1}]),
        deeper,
        max_leaves=6,
    )


@settings(max_examples=250)
@given(spans_for_both(), st.lists(queries_for_both(), min_size=1, max_size=4))
def test_ours_agrees_with_pydantic_evals_where_it_is_right(peer, spans, several):
    """R-T4: users know these words; the same words get the same answers, in the same order."""
    theirs = peer(
        [
            [
                [
                    int(s.span_id),
                    None if s.parent_id is None else int(s.parent_id),
                    s.name,
                    str(s.status),
                    s.start_ns // MILLISECOND,
                    (s.end_ns or 0) // MILLISECOND,
                    s.attributes,
                ]
                for s in spans
            ],
            several,
        ]
    )
    assert [[int(i) for i in ours(spans, query)] for query in several] == theirs

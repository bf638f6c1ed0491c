"""One contestant of `traces.py`, in its own process: `python _trace_contest.py NAME`.

It reads one command a line and answers with what the work took and how many spans it found, so
that three contestants, in environments of their own, take turns on the same spans.
"""

import gc
import json
import re
import sys
import time
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple, Protocol

ROLES = ("agent", "tool", "llm", "chain")
ERROR = {"has_status": "error"}
AGENT, TOOL, LLM = ({"name_contains": role} for role in ("agent", "tool", "llm"))

# `or_` stands inside `and_` because pydantic-evals refuses it beside other keys.
QUERIES: dict[str, dict[str, Any]] = {
    "name": {"name_equals": "tool 1"},
    "regex": {"name_matches_regex": r"llm \d+$"},
    "attribute": {"has_attributes": {"gen_ai.usage.input_tokens": 7}},
    "slow and failed": {"min_duration": 0.05, **ERROR},
    "child": {"some_child_has": TOOL},
    "descendant": {"some_descendant_has": ERROR},
    "ancestor": {"no_ancestor_has": {"name_equals": "tool 1"}},
    "composed": {
        "and_": [{"or_": [TOOL, {"not_": ERROR}]}],
        "min_descendant_count": 2,
        "some_descendant_has": LLM,
        "stop_recursing_when": AGENT,
    },
}
RELATIONS = ("descendant", "ancestor", "composed")
"""Queries that look further than children: what a deep chain makes expensive."""


class Row(NamedTuple):
    """A span before any library has it. Times are in microseconds."""

    id: int
    parent: int | None
    name: str
    status: str
    start: int
    end: int
    attributes: dict[str, Any]


def rows(shape: str, size: int) -> list[Row]:
    """Spans of an agent in start order: ten children a node, or each the child of the last."""
    return [
        Row(
            id=i + 1,
            parent=None if i == 0 else (i - 1) // 10 + 1 if shape == "bushy" else i,
            name=f"{ROLES[i % 4]} {i % 50}",
            status="error" if i % 10 == 0 else "unset",
            start=i,
            end=i + i % 97 * 1000,
            attributes={
                "gen_ai.request.model": "gpt-4o",
                "gen_ai.usage.input_tokens": i % 1000,
                "session.id": str(i % 7),
            },
        )
        for i in range(size)
    ]


class Contestant(Protocol):
    """Builds a tree from spans and finds some of them."""

    def spans(self, data: list[Row]) -> Any: ...
    def build(self, spans: Any) -> Any: ...
    def find(self, tree: Any, query: str) -> int: ...


class Proctor:
    def __init__(self) -> None:
        from proctor.trace import SpanQuery

        self.queries = {name: SpanQuery.parse(query) for name, query in QUERIES.items()}

    def spans(self, data: list[Row]) -> Any:
        from proctor.trace import Span, SpanStatus

        return [
            Span(
                span_id=f"{row.id:016x}",
                trace_id="1",
                parent_id=None if row.parent is None else f"{row.parent:016x}",
                name=row.name,
                status=SpanStatus(row.status),
                start_ns=row.start * 1000,
                end_ns=row.end * 1000,
                attributes=dict(row.attributes),
            )
            for row in data
        ]

    def build(self, spans: Any) -> Any:
        from proctor.trace import Trace

        trace = Trace(trace_id="1", spans=spans)
        return trace, trace.index

    def find(self, tree: Any, query: str) -> int:
        return len(tree[0].find(self.queries[query]))


class PydanticEvals:
    def spans(self, data: list[Row]) -> Any:
        from pydantic_evals.otel.span_tree import SpanNode  # pyright: ignore[reportMissingImports]

        epoch = datetime(2026, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 - any Python may run this
        return [
            SpanNode(
                span_id=row.id,
                trace_id=1,
                parent_span_id=row.parent,
                name=row.name,
                status=row.status,
                start_timestamp=epoch + timedelta(microseconds=row.start),
                end_timestamp=epoch + timedelta(microseconds=row.end),
                attributes=dict(row.attributes),
            )
            for row in data
        ]

    def build(self, spans: Any) -> Any:
        from pydantic_evals.otel.span_tree import SpanTree  # pyright: ignore[reportMissingImports]

        tree = SpanTree()
        tree.add_spans(spans)
        return tree

    def find(self, tree: Any, query: str) -> int:
        return len(tree.find(QUERIES[query]))


class Arrays:
    """Hand-written code for exactly these queries: lists, and one loop each."""

    def spans(self, data: list[Row]) -> Any:
        return [row._replace(attributes=dict(row.attributes)) for row in data]

    def build(self, spans: Any) -> Any:
        ordered = sorted(spans, key=lambda row: row.start)
        place = {row.id: i for i, row in enumerate(ordered)}
        return ordered, [place.get(row.parent, -1) for row in ordered]

    def find(self, tree: Any, query: str) -> int:
        return len(getattr(self, query.replace(" ", "_"))(*tree))

    def name(self, spans: list[Row], _parent: list[int]) -> list[int]:
        return [i for i, row in enumerate(spans) if row.name == "tool 1"]

    def regex(self, spans: list[Row], _parent: list[int]) -> list[int]:
        match = re.compile(r"llm \d+$").match
        return [i for i, row in enumerate(spans) if match(row.name)]

    def attribute(self, spans: list[Row], _parent: list[int]) -> list[int]:
        key = "gen_ai.usage.input_tokens"
        return [i for i, row in enumerate(spans) if row.attributes.get(key) == 7]

    def slow_and_failed(self, spans: list[Row], _parent: list[int]) -> list[int]:
        return [
            i
            for i, row in enumerate(spans)
            if row.status == "error" and row.end - row.start >= 50_000
        ]

    def child(self, spans: list[Row], parent: list[int]) -> list[int]:
        found = {up for up, row in zip(parent, spans) if "tool" in row.name}  # noqa: B905 (loops as one writes them by hand)
        found.discard(-1)
        return sorted(found)

    def descendant(self, spans: list[Row], parent: list[int]) -> list[int]:
        found = [False] * len(spans)
        for i in range(len(spans) - 1, 0, -1):
            if spans[i].status == "error" or found[i]:
                found[parent[i]] = True
        return [i for i, flag in enumerate(found) if flag]

    def ancestor(self, spans: list[Row], parent: list[int]) -> list[int]:
        below = [False] * len(spans)
        for i in range(1, len(spans)):
            up = parent[i]
            below[i] = below[up] or spans[up].name == "tool 1"
        return [i for i, flag in enumerate(below) if not flag]

    def composed(self, spans: list[Row], parent: list[int]) -> list[int]:
        size = len(spans)
        above, count = [False] * size, [0] * size
        for i in range(size - 1, 0, -1):
            up, name = parent[i], spans[i].name
            count[up] += count[i] + 1
            if "llm" in name or (above[i] and "agent" not in name):
                above[up] = True
        return [
            i
            for i, row in enumerate(spans)
            if above[i] and count[i] >= 2 and ("tool" in row.name or row.status != "error")
        ]


CONTESTANTS: dict[str, type[Contestant]] = {
    "proctor": Proctor,
    "pydantic-evals": PydanticEvals,
    "arrays": Arrays,
}


WORKS = ("build", *QUERIES, "all")
"""`build`: a tree from the library's own span objects, which are made before the clock starts.
A query: asked of a tree that has been asked before. `all`: build, then every query for the first
time, so that nothing is cached."""


def serve(contestant: Contestant) -> None:
    """Answer commands: `setup` with a shape and a size, then any of `WORKS`."""
    data: list[Row] = []
    tree: Any = None
    for line in sys.stdin:
        command = json.loads(line)
        work = command["do"]
        if work == "setup":
            data = rows(command["shape"], command["size"])
            tree = contestant.build(contestant.spans(data))
            print("{}", flush=True)
            continue
        found, spans = 0, None if work in QUERIES else contestant.spans(data)
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        if work in QUERIES:
            found = contestant.find(tree, work)
        else:
            new = contestant.build(spans)
            if work == "all":
                found = sum(contestant.find(new, query) for query in QUERIES)
        took = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps({**took, "found": found}), flush=True)


if __name__ == "__main__":
    serve(CONTESTANTS[sys.argv[1]]())

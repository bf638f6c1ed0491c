"""Build the tree over the spans of one trace, as flat arrays.

Guarantees: building is linear (after sorting by start), a chain 100,000 deep works like any other
shape, no span is ever lost, and a parent cycle is broken at its earliest span and reported.
Positions are indexes into `spans` in start order; a `Mask` has one byte, 0 or 1, per position. The
tree is a snapshot of its spans: `Trace.forget` discards it after they have changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import compress, count, repeat
from math import nan
from operator import attrgetter, gt, lt
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from proctor.trace.model import Span, SpanKind, SpanStatus


# One field of many spans, each distinct value stored once. A condition on the field is evaluated
# once per distinct value, however many spans there are. Agents repeat a few names, kinds and
# statuses; where values are all different, this costs one more dictionary than a test of each span.


Value = TypeVar("Value")

_MOST_BYTES = 256
"""Maximum codes in a byte; up to these, a condition on all spans is one `bytes.translate`."""


class Column(Generic[Value]):
    """Values as codes into the list of distinct ones, in order of appearance."""

    def __init__(self, values: Iterable[Value]) -> None:
        code_of: dict[Value, int] = defaultdict(count().__next__)
        codes = [code_of[value] for value in values]
        self.distinct: list[Value] = list(code_of)
        self._codes: bytes | list[int] = bytes(codes) if len(code_of) <= _MOST_BYTES else codes

    def where(self, holds: Callable[[Value], object]) -> bytes:
        """Return a mask with 1 where a condition holds for the value."""
        answers = bytes([bool(holds(value)) for value in self.distinct])
        if isinstance(self._codes, bytes):
            return self._codes.translate(answers.ljust(_MOST_BYTES, b"\0"))
        return bytes(map(answers.__getitem__, self._codes))


Mask = bytes | bytearray

NO_PARENT = -1


class SpanTree:
    """Spans by start time, each with the position of its parent.

    Among spans with equal start times a parent precedes its children; otherwise the input order is
    preserved. Among spans with the same id, the last one has the children.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans: list[Span] = sorted(spans, key=attrgetter("start_ns"))
        self.parent: list[int] = _parent_positions(self.spans)
        self.cycles: list[list[str]] = []
        self.parents_first: Sequence[int] = range(len(self.spans))
        # Spans normally start after their parent, so start order is parents first. The slow path
        # handles skewed clocks, equal times and cycles.
        if not all(map(lt, self.parent, self.parents_first)):
            self._put_parents_first()

    def __len__(self) -> int:
        return len(self.spans)

    def _put_parents_first(self) -> None:
        """Break cycles and sort parents first; that order then decides among equal starts."""
        order: list[int] = []
        placed = bytearray(len(self.parent))
        for position in range(len(self.parent)):
            order.extend(reversed(self._unplaced_chain(position, placed)))
        spans, parent = self.spans, self.parent
        ranked = sorted(order, key=[span.start_ns for span in spans].__getitem__)
        new = [NO_PARENT] * (len(ranked) + 1)  # the last slot is the parent of a root (-1)
        for position, old in enumerate(ranked):
            new[old] = position
        self.spans = [spans[old] for old in ranked]
        self.parent = [new[parent[old]] for old in ranked]
        self.parents_first = [new[old] for old in order]

    def _unplaced_chain(self, position: int, placed: bytearray) -> list[int]:
        """Return the chain from a position up to a placed span, breaking any cycle."""
        path: list[int] = []
        here = position
        while here != NO_PARENT and not placed[here]:
            placed[here] = 1
            path.append(here)
            here = self.parent[here]
        # The chain ends at a root or at a span that an earlier chain has placed.
        if here == NO_PARENT or here not in set(path):
            return path
        start = path.index(here)
        head, cycle = path[:start], path[start:]
        earliest = min(cycle)
        self.cycles.append([self.spans[member].span_id for member in sorted(cycle)])
        self.parent[earliest] = NO_PARENT
        # The cycle is now a chain that ends at the earliest span; the head is still a child of
        # `here`.
        cut = cycle.index(earliest) + 1
        return head + cycle[cut:] + cycle[:cut]

    # -- figures of each span, computed on first use --------------------------------------------

    @cached_property
    def position(self) -> dict[str, int]:
        """Return the position of each span id; for duplicates, the last."""
        return {span.span_id: position for position, span in enumerate(self.spans)}

    @cached_property
    def names(self) -> Column[str]:
        """Return the name of each span."""
        return Column(span.name for span in self.spans)

    @cached_property
    def kinds(self) -> Column[str]:
        """Return the kind of each span."""
        return Column(span.kind for span in self.spans)

    @cached_property
    def statuses(self) -> Column[str]:
        """Return the status of each span."""
        return Column(span.status for span in self.spans)

    @cached_property
    def tool_names(self) -> Column[str | None]:
        """Return the tool of each span; None where it is no tool call."""
        return Column(span.tool_name for span in self.spans)

    @cached_property
    def durations(self) -> list[float]:
        """Return nanoseconds of each span; NaN, which no bound includes, where it is unknown."""
        return [nan if (ns := span.duration_ns) is None else ns for span in self.spans]

    @cached_property
    def children(self) -> list[list[int]]:
        """Return the positions of the direct children of each span, by start time."""
        children: list[list[int]] = [[] for _ in self.spans]
        for position, parent in enumerate(self.parent):
            if parent != NO_PARENT:
                children[parent].append(position)
        return children

    @cached_property
    def child_count(self) -> list[int]:
        """Return the number of direct children of each span."""
        # The extra last slot takes the roots' counts (their parent is -1) and is dropped.
        counts = [0] * (len(self.parent) + 1)
        for parent in self.parent:
            counts[parent] += 1
        counts.pop()
        return counts

    @cached_property
    def descendant_count(self) -> list[int]:
        """Return the number of descendants of each span."""
        parent = self.parent
        counts = [0] * (len(parent) + 1)
        # Children before parents, so that each count is complete when it is added.
        for position in reversed(self.parents_first):
            counts[parent[position]] += counts[position] + 1
        counts.pop()
        return counts

    @cached_property
    def depth(self) -> list[int]:
        """Return the number of ancestors of each span; 0 for a root."""
        parent = self.parent
        depths = [0] * (len(parent) + 1)
        depths[NO_PARENT] = -1
        for position in self.parents_first:
            depths[position] = depths[parent[position]] + 1
        depths.pop()
        return depths

    # -- masks propagated along the tree --------------------------------------------------------

    def parents_of(self, mask: Mask) -> bytearray:
        """Return spans with a direct child in the mask."""
        result = bytearray(len(self.parent) + 1)
        parent = self.parent
        for position in compress(range(len(parent)), mask):
            result[parent[position]] = 1
        result.pop()
        return result

    def above(self, mask: Mask, stop: Mask | None = None) -> bytearray:
        """Return spans with a descendant in the mask, not looking past spans in `stop`.

        Climbs from each match and ends at a span an earlier climb has marked, so every span is
        marked once.
        """
        result = bytearray(len(self.parent))
        parent = self.parent
        for position in compress(range(len(parent)), mask):
            here = parent[position]
            while here != NO_PARENT and not result[here]:
                result[here] = 1
                if stop is not None and stop[here]:
                    break
                here = parent[here]
        return result

    def below(self, mask: Mask, stop: Mask | None = None) -> bytearray:
        """Return spans with an ancestor in the mask, not looking past spans in `stop`."""
        result = bytearray(len(self.parent))
        parent = self.parent
        for position in self.parents_first:
            here = parent[position]
            if here != NO_PARENT and (
                mask[here] or (result[here] and (stop is None or not stop[here]))
            ):
                result[position] = 1
        return result

    def innermost(self, chosen: Sequence[bool]) -> list[Span]:
        """Return selected spans with no selected span below them, by start time."""
        return list(compress(self.spans, map(gt, chosen, self.above(bytes(chosen)))))

    def outermost(self, chosen: Sequence[bool]) -> list[Span]:
        """Return selected spans with no selected span above them, by start time."""
        return list(compress(self.spans, map(gt, chosen, self.below(bytes(chosen)))))

    # -- nodes ----------------------------------------------------------------------------------

    def at(self, position: int) -> SpanNode:
        """Return the node at a position."""
        return SpanNode(self, position)

    def node(self, span_id: str) -> SpanNode | None:
        """Return the node of a span id, or None."""
        position = self.position.get(span_id)
        return None if position is None else SpanNode(self, position)

    def nodes(self) -> list[SpanNode]:
        """Return every node, by start time."""
        return list(map(SpanNode, repeat(self), range(len(self.spans))))

    def roots(self) -> list[SpanNode]:
        """Return nodes without a parent, by start time."""
        return [SpanNode(self, i) for i, parent in enumerate(self.parent) if parent == NO_PARENT]

    def select(self, mask: Mask) -> list[SpanNode]:
        """Return nodes in a mask, by start time."""
        return list(map(SpanNode, repeat(self), compress(range(len(self.spans)), mask)))

    def walk(self, starts: Iterable[int]) -> Iterator[int]:
        """Yield positions in document order: each start, then its descendants, by start time."""
        stack = list(starts)[::-1]
        children = self.children
        while stack:
            position = stack.pop()
            yield position
            stack.extend(reversed(children[position]))


class SpanNode(msgspec.Struct, frozen=True, gc=False):
    """A span with its position in the tree.

    A struct, because a query may return one for each of a million spans. It is not tracked by the
    garbage collector: it refers to a tree, which never refers to it.
    """

    _tree: SpanTree
    _position: int

    @property
    def span(self) -> Span:
        """Return the span itself, with all its fields."""
        return self._tree.spans[self._position]

    @property
    def span_id(self) -> str:
        """Return the id of the span."""
        return self.span.span_id

    @property
    def name(self) -> str:
        """Return the name of the span."""
        return self.span.name

    @property
    def kind(self) -> SpanKind:
        """Return the kind of the span."""
        return self.span.kind

    @property
    def status(self) -> SpanStatus:
        """Return the status of the span."""
        return self.span.status

    @property
    def duration(self) -> float | None:
        """Return seconds from start to end; None while the span is open."""
        return self.span.duration

    @property
    def attributes(self) -> dict[str, Any]:
        """Return the attributes as received."""
        return self.span.attributes

    @property
    def depth(self) -> int:
        """Return the number of ancestors of the node; 0 for a root."""
        return self._tree.depth[self._position]

    @property
    def parent(self) -> SpanNode | None:
        """Return the parent, or None for a root."""
        parent = self._tree.parent[self._position]
        return None if parent == NO_PARENT else SpanNode(self._tree, parent)

    @property
    def children(self) -> list[SpanNode]:
        """Return the direct children, by start time."""
        return [SpanNode(self._tree, child) for child in self._tree.children[self._position]]

    @property
    def descendants(self) -> list[SpanNode]:
        """Return all descendants, in document order."""
        below = self._tree.walk(self._tree.children[self._position])
        return [SpanNode(self._tree, position) for position in below]

    @property
    def ancestors(self) -> list[SpanNode]:
        """Return parent, grandparent, … up to the root."""
        chain: list[SpanNode] = []
        here = self._tree.parent[self._position]
        while here != NO_PARENT:
            chain.append(SpanNode(self._tree, here))
            here = self._tree.parent[here]
        return chain

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r} {self.span_id}>"


def _parent_positions(spans: Sequence[Span]) -> list[int]:
    """Return the position of each span's parent.

    Only ids that are a parent of some span are looked up: most spans are leaves, and a small
    dictionary stays in the processor's cache.
    """
    parents = [span.parent_id for span in spans]
    position_of: dict[str | None, int] = dict.fromkeys(parents, NO_PARENT)
    for position, span in enumerate(spans):
        if span.span_id in position_of:
            position_of[span.span_id] = position
    return list(map(position_of.__getitem__, parents))

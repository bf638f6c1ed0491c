"""The tree over the spans of one trace, as flat arrays.

Promise: building is linear (after sorting by start), a chain 100,000 deep works like any other
shape, no span is ever lost, and a parent cycle is broken at its earliest span and reported.
Positions are indexes into `spans` in start order; a `Mask` has one byte, 0 or 1, per position.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import compress
from operator import lt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .model import Span, SpanKind, SpanStatus

Mask = bytes | bytearray

NO_PARENT = -1


class SpanTree:
    """Spans by start time, each with the position of its parent."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans: list[Span] = sorted(spans, key=_start)
        ids = [span.span_id for span in self.spans]
        self.position: dict[str, int] = dict(zip(ids, range(len(ids)), strict=True))
        position_of = self.position.get
        self.parent: list[int] = [position_of(s.parent_id, NO_PARENT) for s in self.spans]  # type: ignore[arg-type]
        self.cycles: list[list[str]] = []
        self.parents_first: Sequence[int] = self._parents_first()

    def __len__(self) -> int:
        return len(self.spans)

    def _parents_first(self) -> Sequence[int]:
        """Positions ordered so that a parent stands before its children; breaks cycles.

        Spans normally start after their parent, and then start order is the answer; the slow
        way is for skewed clocks, equal times and cycles.
        """
        everyone = range(len(self.parent))
        if all(map(lt, self.parent, everyone)):
            return everyone
        order: list[int] = []
        placed = bytearray(len(self.parent))
        for position in everyone:
            path = self._unplaced_chain(position, placed)
            order.extend(reversed(path))
        return order

    def _unplaced_chain(self, position: int, placed: bytearray) -> list[int]:
        """The chain from a position up to what is placed already, broken where it bites itself."""
        path: list[int] = []
        here = position
        while here != NO_PARENT and not placed[here]:
            placed[here] = 1
            path.append(here)
            here = self.parent[here]
        if here != NO_PARENT and here in set(path):
            cycle = path[path.index(here) :]
            earliest = min(cycle)
            self.cycles.append([self.spans[member].span_id for member in sorted(cycle)])
            self.parent[earliest] = NO_PARENT
            cut = path.index(earliest)
            # The chain now runs from the cut upwards again: members above it hang below it.
            head = path[: path.index(here)]
            ring = path[cut + 1 :] + path[path.index(here) : cut + 1]
            return head + ring
        return path

    # -- structure, each computed on first use ------------------------------------------------

    @cached_property
    def children(self) -> list[list[int]]:
        """Positions of the direct children of each span, by start time."""
        children: list[list[int]] = [[] for _ in self.spans]
        for position, parent in enumerate(self.parent):
            if parent != NO_PARENT:
                children[parent].append(position)
        return children

    @cached_property
    def child_count(self) -> list[int]:
        """How many direct children each span has."""
        # The extra last slot takes the roots' counts (their parent is -1) and is dropped.
        counts = [0] * (len(self.parent) + 1)
        for parent in self.parent:
            counts[parent] += 1
        counts.pop()
        return counts

    @cached_property
    def descendant_count(self) -> list[int]:
        """How many spans stand below each span."""
        parent = self.parent
        counts = [0] * (len(parent) + 1)
        for position in reversed(self.parents_first):
            counts[parent[position]] += counts[position] + 1
        counts.pop()
        return counts

    @cached_property
    def depth(self) -> list[int]:
        """How many ancestors each span has; a root has none."""
        parent = self.parent
        depths = [0] * (len(parent) + 1)
        depths[NO_PARENT] = -1
        for position in self.parents_first:
            depths[position] = depths[parent[position]] + 1
        depths.pop()
        return depths

    # -- masks carried along the tree -----------------------------------------------------------

    def parents_of(self, mask: Mask) -> bytearray:
        """Spans with a direct child in the mask."""
        found = bytearray(len(self.parent) + 1)
        parent = self.parent
        for position in compress(range(len(parent)), mask):
            found[parent[position]] = 1
        found.pop()
        return found

    def above(self, mask: Mask, stop: Mask | None = None) -> bytearray:
        """Spans with a descendant in the mask, not looking past spans in `stop`.

        Climbs from each match and ends where an earlier climb has been, so every span is
        marked once.
        """
        found = bytearray(len(self.parent))
        parent = self.parent
        for position in compress(range(len(parent)), mask):
            here = parent[position]
            while here != NO_PARENT and not found[here]:
                found[here] = 1
                if stop is not None and stop[here]:
                    break
                here = parent[here]
        return found

    def below(self, mask: Mask, stop: Mask | None = None) -> bytearray:
        """Spans with an ancestor in the mask, not looking past spans in `stop`."""
        found = bytearray(len(self.parent))
        parent = self.parent
        for position in self.parents_first:
            here = parent[position]
            if here != NO_PARENT and (
                mask[here] or (found[here] and (stop is None or not stop[here]))
            ):
                found[position] = 1
        return found

    def innermost(self, chosen: Sequence[bool]) -> list[Span]:
        """Chosen spans with no chosen span below them, by start time."""
        mask = bytes(chosen)
        above = self.above(mask)
        return [s for s, own, up in zip(self.spans, mask, above, strict=True) if own and not up]

    def outermost(self, chosen: Sequence[bool]) -> list[Span]:
        """Chosen spans with no chosen span above them, by start time."""
        mask = bytes(chosen)
        below = self.below(mask)
        return [s for s, own, down in zip(self.spans, mask, below, strict=True) if own and not down]

    # -- nodes ----------------------------------------------------------------------------------

    def at(self, position: int) -> SpanNode:
        """The node at a position."""
        return SpanNode(self, position)

    def node(self, span_id: str) -> SpanNode | None:
        """The node of a span id, or None."""
        position = self.position.get(span_id)
        return None if position is None else SpanNode(self, position)

    def nodes(self) -> list[SpanNode]:
        """Every node, by start time."""
        return [SpanNode(self, position) for position in range(len(self.spans))]

    def roots(self) -> list[SpanNode]:
        """Nodes without a parent, by start time."""
        return [SpanNode(self, i) for i, parent in enumerate(self.parent) if parent == NO_PARENT]

    def select(self, mask: Mask) -> list[SpanNode]:
        """Nodes in a mask, by start time."""
        return [SpanNode(self, i) for i in compress(range(len(self.spans)), mask)]

    def walk(self, starts: Iterable[int]) -> Iterable[int]:
        """Positions in document order: each start, then all below it, children by start time."""
        stack = list(starts)[::-1]
        children = self.children
        while stack:
            position = stack.pop()
            yield position
            stack.extend(reversed(children[position]))


class SpanNode:
    """A span in its place in the tree."""

    __slots__ = ("_position", "_tree")

    def __init__(self, tree: SpanTree, position: int) -> None:
        self._tree = tree
        self._position = position

    @property
    def span(self) -> Span:
        """The span itself, with all its fields."""
        return self._tree.spans[self._position]

    @property
    def span_id(self) -> str:
        """The id of the span."""
        return self.span.span_id

    @property
    def name(self) -> str:
        """The name of the span."""
        return self.span.name

    @property
    def kind(self) -> SpanKind:
        """The kind of the span."""
        return self.span.kind

    @property
    def status(self) -> SpanStatus:
        """How the span ended."""
        return self.span.status

    @property
    def duration(self) -> float | None:
        """Seconds from start to end; None while the span is open."""
        return self.span.duration

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes as received."""
        return self.span.attributes

    @property
    def depth(self) -> int:
        """How many ancestors the node has; a root has none."""
        return self._tree.depth[self._position]

    @property
    def parent(self) -> SpanNode | None:
        """The parent, or None for a root."""
        parent = self._tree.parent[self._position]
        return None if parent == NO_PARENT else SpanNode(self._tree, parent)

    @property
    def children(self) -> list[SpanNode]:
        """Direct children, by start time."""
        return [SpanNode(self._tree, child) for child in self._tree.children[self._position]]

    @property
    def descendants(self) -> list[SpanNode]:
        """All nodes below, in document order."""
        below = self._tree.walk(self._tree.children[self._position])
        return [SpanNode(self._tree, position) for position in below]

    @property
    def ancestors(self) -> list[SpanNode]:
        """Parent, its parent, … up to the root."""
        chain: list[SpanNode] = []
        here = self._tree.parent[self._position]
        while here != NO_PARENT:
            chain.append(SpanNode(self._tree, here))
            here = self._tree.parent[here]
        return chain

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SpanNode)
            and other._tree is self._tree
            and other._position == self._position
        )

    def __hash__(self) -> int:
        return hash((id(self._tree), self._position))

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r} {self.span_id}>"


def _start(span: Span) -> int:
    return span.start_ns

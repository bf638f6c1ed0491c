"""Two sequences of calls, and the best way to pair them: in any order, or in order.

Promise: `paired` misses no pair a largest pairing has, `aligned` none a longest chain in order
has. Calls with equal arguments meet through a hash first; only what is left is searched.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from proctor.checks.metrics.arguments import ArgumentRules, Rule, read_rule
from proctor.checks.metrics.calls import CallLike
from proctor.checks.metrics.pairing import largest_pairing
from proctor.checks.metrics.sequences import bits, lcs_alignment

# The alignment keeps one bit per pair of calls: 50 MB at most. Longer stretches (20,000 calls
# against 20,000, after equal beginnings and endings) are paired without regard to order.
_MAX_ALIGNMENT_BITS = 400_000_000

_NAMES_ONLY = read_rule("ignore")

Places = list[tuple[int, int]]
"""Pairs of positions: (actual, reference)."""


class Aligned(NamedTuple):
    """Calls in order: right ones, those with other arguments, and right ones out of order."""

    pairs: Places
    different: Places
    moved: Places


class Comparison:
    """The calls an agent made and those of a reference, under the rules of their tools."""

    def __init__(
        self, actual: Sequence[CallLike], reference: Sequence[CallLike], rules: ArgumentRules
    ) -> None:
        self.actual = actual
        self.reference = reference
        self.rules = rules
        self._views: tuple[dict[int, Any], dict[int, Any]] = ({}, {})

    def accepts(self, ours: int, theirs: int) -> bool:
        """Whether the actual call at `ours` stands for the reference call at `theirs`."""
        one, other = self.actual[ours], self.reference[theirs]
        return one.name == other.name and self.rules.of(one.name).same(
            one.arguments, other.arguments
        )

    # -- in any order -----------------------------------------------------------------------

    def paired(
        self, ours: Iterable[int] | None = None, theirs: Iterable[int] | None = None
    ) -> Places:
        """A largest pairing of these calls (all, unless told which), by actual position."""
        left = list(range(len(self.actual)) if ours is None else ours)
        right = list(range(len(self.reference)) if theirs is None else theirs)
        pairs: Places = []
        for tier in range(self.rules.tiers):
            if left and right:
                left, right = self._meet(left, right, tier, pairs)
        if left and right:
            self._search(left, right, pairs)
        pairs.sort()
        return pairs

    def _meet(
        self, left: list[int], right: list[int], tier: int, pairs: Places
    ) -> tuple[list[int], list[int]]:
        """Pair calls that share a key, earliest first; what is left of both sides."""
        key_of = self.rules.key_of(tier)
        waiting: dict[Hashable, list[int]] = {}
        for place in reversed(right):
            call = self.reference[place]
            key = key_of(call.name)
            if key is not None:
                waiting.setdefault((call.name, key(call.arguments)), []).append(place)
        rest: list[int] = []
        met: set[int] = set()
        for place in left:
            call = self.actual[place]
            key = key_of(call.name)
            here = waiting.get((call.name, key(call.arguments))) if key is not None else None
            if here:
                other = here.pop()
                met.add(other)
                pairs.append((place, other))
            else:
                rest.append(place)
        return rest, [place for place in right if place not in met]

    def _search(self, left: list[int], right: list[int], pairs: Places) -> None:
        """Pair, tool by tool, what only the rule itself can compare."""
        for name, (ours, theirs) in self.by_tool(left, right).items():
            rule = self.rules.of(name)
            if rule.by_key or not ours or not theirs:
                continue
            here = [rule.view(self.actual[place].arguments) for place in ours]
            there = [rule.view(self.reference[place].arguments) for place in theirs]

            def accepts(
                one: int, other: int, rule: Rule = rule, a: list[Any] = here, r: list[Any] = there
            ) -> bool:
                return rule.accepts(a[one], r[other])

            found = largest_pairing(len(ours), len(theirs), accepts)
            pairs += [(ours[one], theirs[other]) for one, other in found]

    def by_tool(
        self, left: Iterable[int], right: Iterable[int]
    ) -> dict[str, tuple[list[int], list[int]]]:
        """Tool → the actual and the reference positions that call it, of those given."""
        tools: dict[str, tuple[list[int], list[int]]] = {}
        for place in left:
            tools.setdefault(self.actual[place].name, ([], []))[0].append(place)
        for place in right:
            tools.setdefault(self.reference[place].name, ([], []))[1].append(place)
        return tools

    # -- in order ---------------------------------------------------------------------------

    def aligned(self) -> Aligned:
        """A longest chain in order; between its links, calls of the same tool; then the rest."""
        start, end = self._shared_ends()
        stop_a, stop_r = len(self.actual) - end, len(self.reference) - end
        ours, theirs = range(start, stop_a), range(start, stop_r)
        pairs: Places = [(n, n) for n in range(start)]
        different: Places = []
        if len(ours) * len(theirs) <= _MAX_ALIGNMENT_BITS:
            chain = self._chain(ours, theirs)
            for gap_ours, gap_theirs in _gaps(chain, ours, theirs):
                different += self._chain(gap_ours, gap_theirs, names_only=True)
            pairs += chain
        pairs += [(stop_a + n, stop_r + n) for n in range(end)]
        return Aligned(pairs, different, self.paired(*self.unpaired([*pairs, *different])))

    def unpaired(self, pairs: Places) -> tuple[list[int], list[int]]:
        """The actual and the reference positions that no pair holds."""
        ours = {one for one, _ in pairs}
        theirs = {other for _, other in pairs}
        return (
            [place for place in range(len(self.actual)) if place not in ours],
            [place for place in range(len(self.reference)) if place not in theirs],
        )

    def _shared_ends(self) -> tuple[int, int]:
        shortest = min(len(self.actual), len(self.reference))
        last_a, last_r = len(self.actual) - 1, len(self.reference) - 1
        start = end = 0
        while start < shortest and self.accepts(start, start):
            start += 1
        while end < shortest - start and self.accepts(last_a - end, last_r - end):
            end += 1
        return start, end

    def _chain(self, ours: range, theirs: range, *, names_only: bool = False) -> Places:
        if not ours or not theirs:
            return []
        columns: dict[str, list[int]] = {}
        for column, place in enumerate(ours):
            columns.setdefault(self.actual[place].name, []).append(column)
        known: dict[str, dict[Hashable, int]] = {}
        rows: list[int] = []
        for place in theirs:
            name = self.reference[place].name
            rule = _NAMES_ONLY if names_only else self.rules.of(name)
            if name not in columns:
                rows.append(0)
            elif rule.by_key:
                if name not in known:
                    known[name] = self._masks(ours, columns[name], rule)
                rows.append(known[name].get(self._view(1, place, rule), 0))
            else:
                view = self._view(1, place, rule)
                there = (c for c in columns[name] if self._accepts_view(ours[c], view, rule))
                rows.append(bits(list(there)))
        chain = lcs_alignment(rows, len(ours))
        return [(ours[column], theirs[row]) for row, column in chain]

    def _masks(self, ours: range, columns: list[int], rule: Rule) -> dict[Hashable, int]:
        """View → the columns of one tool that have it, as bits."""
        places: dict[Hashable, list[int]] = {}
        for column in columns:
            places.setdefault(self._view(0, ours[column], rule), []).append(column)
        return {view: bits(found) for view, found in places.items()}

    def _accepts_view(self, ours: int, view: Any, rule: Rule) -> bool:
        return rule.accepts(self._view(0, ours, rule), view)

    def _view(self, side: int, place: int, rule: Rule) -> Any:
        if rule is _NAMES_ONLY:
            return None
        views = self._views[side]
        if place not in views:
            calls = self.reference if side else self.actual
            views[place] = rule.view(calls[place].arguments)
        return views[place]


def _gaps(chain: Places, ours: range, theirs: range) -> list[tuple[range, range]]:
    """The stretches between the links of a chain where both sides have calls left."""
    gaps: list[tuple[range, range]] = []
    a, r = ours.start, theirs.start
    for one, other in [*chain, (ours.stop, theirs.stop)]:
        if a < one and r < other:
            gaps.append((range(a, one), range(r, other)))
        a, r = one + 1, other + 1
    return gaps

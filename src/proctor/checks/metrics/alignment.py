"""Two sequences of calls, and the best way to pair them: in any order, or in order.

Promise: `paired` misses no pair a largest pairing has, `aligned` none a longest chain in order
has. Calls with equal arguments meet through a hash first; only what is left is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard, cast

from proctor.checks.metrics.arguments import ArgumentRules, ExactRule, read_rule
from proctor.errors import ProctorError

# Who is paired with whom: a largest one-to-one pairing, never a greedy one.
#
# Promise: no pairing has more pairs (Hopcroft and Karp 1973). A first pass pairs what is easily
# paired and asks only as many questions as it needs; the rest asks each question at most once.


def largest_pairing(
    left: int, right: int, accepts: Callable[[int, int], bool]
) -> list[tuple[int, int]]:
    """The pairs (l, r) of a largest pairing of `left` items with `right` items, by `l`."""
    asked: dict[int, bool] = {}

    def ask(one: int, other: int) -> bool:
        place = one * right + other
        answer = asked.get(place)
        if answer is None:
            answer = asked[place] = accepts(one, other)
        return answer

    partner, taken = _easy_pairs(left, right, ask)
    if None in partner and len(taken) < right:
        edges = [[other for other in range(right) if ask(one, other)] for one in range(left)]
        while _augment(edges, partner, taken):
            pass
    return [(one, other) for one, other in enumerate(partner) if other is not None]


def _easy_pairs(
    left: int, right: int, ask: Callable[[int, int], bool]
) -> tuple[list[int | None], dict[int, int]]:
    """Each item takes the first free one that accepts it, its own place tried first.

    Sequences that differ little mostly agree in order, so most questions are answered yes.
    """
    partner: list[int | None] = [None] * left
    taken: dict[int, int] = {}
    for one in range(min(left, right)):
        if ask(one, one):
            partner[one] = one
            taken[one] = one
    free = [other for other in range(right) if other not in taken]
    for one in range(left):
        if partner[one] is not None:
            continue
        for place, other in enumerate(free):
            if ask(one, other):
                partner[one] = other
                taken[other] = one
                del free[place]
                break
    return partner, taken


def _augment(edges: list[list[int]], partner: list[int | None], taken: dict[int, int]) -> bool:
    """One phase: a maximal set of disjoint shortest augmenting paths. False when none is left."""
    layer = {one: 0 for one, other in enumerate(partner) if other is None}
    queue = list(layer)
    reached = False
    for one in queue:
        for other in edges[one]:
            holder = taken.get(other)
            if holder is None:
                reached = True
            elif holder not in layer:
                layer[holder] = layer[one] + 1
                queue.append(holder)
    if not reached:
        return False
    left = {one: iter(edges[one]) for one in layer}
    for root in [one for one in layer if layer[one] == 0]:
        _follow(root, left, layer, partner, taken)
    return True


def _follow(
    root: int,
    left: dict[int, Iterator[int]],
    layer: dict[int, int],
    partner: list[int | None],
    taken: dict[int, int],
) -> None:
    """Walk down the layers from a free item; at a free end, flip the whole path."""
    path: list[tuple[int, int]] = []
    one = root
    while True:
        step = next((o for o in left[one] if _leads_on(o, one, layer, taken)), None)
        if step is None:
            # A dead end: its iterator is spent, so no later path tries it again.
            if not path:
                return
            one, _ = path.pop()
            continue
        path.append((one, step))
        holder = taken.get(step)
        if holder is None:
            for item, other in path:
                partner[item] = other
                taken[other] = item
            return
        one = holder


def _leads_on(other: int, one: int, layer: dict[int, int], taken: dict[int, int]) -> bool:
    holder = taken.get(other)
    return holder is None or layer.get(holder, -1) == layer[one] + 1


# Longest common subsequence, its alignment, and edit distance, for sequences of thousands.
#
# Promise: the exact textbook values. One row of the dynamic-programming table is one integer, a
# bit per column (Hyyrö 2004 for the subsequence, Myers 1999 for the distance), so a row costs a
# few additions of big integers: time grows with the product of the lengths divided by the word
# size. The alignment keeps every row: memory is that product in bits.


def lcs_length(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """How many items the longest common subsequence of `a` and `b` has."""
    start, end = _shared_ends(a, b)
    a, b = a[start : len(a) - end], b[start : len(b) - end]
    if not a or not b:
        return start + end
    masks = positions_of(b)
    everything = (1 << len(b)) - 1
    row = everything
    for item in a:
        hits = row & masks.get(item, 0)
        row = ((row + hits) | (row - hits)) & everything
    return start + end + len(b) - row.bit_count()


def lcs_alignment(rows: Sequence[int], columns: int) -> list[tuple[int, int]]:
    """A longest chain of pairs (row, column), both rising, each pair allowed by the masks.

    `rows[i]` has bit `j` set where row item `i` may be paired with column item `j`: any
    relation will do, equality or not.
    """
    everything = (1 << columns) - 1
    row = everything
    table: list[int] = []
    for mask in rows:
        hits = row & mask
        row = ((row + hits) | (row - hits)) & everything
        table.append(row)
    pairs: list[tuple[int, int]] = []
    i, j = len(rows) - 1, columns - 1
    while i >= 0 and j >= 0:
        # A zero bit at (i, j) means the table steps up by one at column j of row i.
        if (table[i] >> j) & 1:
            j -= 1
        elif i and not (table[i - 1] >> j) & 1:
            i -= 1
        else:
            pairs.append((i, j))
            i -= 1
            j -= 1
    pairs.reverse()
    return pairs


def edit_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The fewest insertions, deletions and replacements that turn `a` into `b`."""
    start, end = _shared_ends(a, b)
    a, b = a[start : len(a) - end], b[start : len(b) - end]
    if not a or not b:
        return len(a) or len(b)
    masks = positions_of(b)
    everything = (1 << len(b)) - 1
    last = 1 << (len(b) - 1)
    rises, falls, distance = everything, 0, len(b)
    for item in a:
        equal = masks.get(item, 0)
        diagonal = (((equal & rises) + rises) ^ rises) | equal | falls
        up = falls | (everything & ~(diagonal | rises))
        down = rises & diagonal
        if up & last:
            distance += 1
        if down & last:
            distance -= 1
        # The first column of the table rises by one each row: hence the bit shifted in.
        up = (up << 1) | 1
        down <<= 1
        rises = (down | ~(diagonal | up)) & everything
        falls = up & diagonal & everything
    return distance


def positions_of(items: Sequence[Hashable]) -> dict[Hashable, int]:
    """Item → an integer with a bit set at each of its positions."""
    # Collected as positions first: growing one big integer bit by bit would be quadratic.
    places: dict[Hashable, list[int]] = {}
    for position, item in enumerate(items):
        places.setdefault(item, []).append(position)
    return {item: bits(found) for item, found in places.items()}


def bits(positions: Sequence[int]) -> int:
    """The integer with exactly these bits set."""
    if len(positions) < 8:
        total = 0
        for position in positions:
            total |= 1 << position
        return total
    buffer = bytearray(max(positions) // 8 + 1)
    for position in positions:
        buffer[position >> 3] |= 1 << (position & 7)
    return int.from_bytes(buffer, "little")


def _shared_ends(a: Sequence[Hashable], b: Sequence[Hashable]) -> tuple[int, int]:
    shortest = min(len(a), len(b))
    start = 0
    while start < shortest and a[start] == b[start]:
        start += 1
    end = 0
    while end < shortest - start and a[-1 - end] == b[-1 - end]:
        end += 1
    return start, end


# What the metrics are told about: tool calls, and transcripts that hold them.
#
# Promise: anything with `name`, `arguments` and `span_id` is a call, so traces, specs and plain
# tuples all fit. Transcripts may be the chat messages models speak, as mappings or as objects.


class CallLike(Protocol):
    """One tool call, whoever recorded it."""

    @property
    def name(self) -> str:
        """The tool."""
        ...

    @property
    def arguments(self) -> Any:
        """What it was called with: a mapping, or the JSON text of one."""
        ...

    @property
    def span_id(self) -> str | None:
        """Where it was seen; None when it was not recorded but written down."""
        ...


class PlainCall(NamedTuple):
    """The plainest call: enough to be matched and to be found again."""

    name: str
    arguments: Any = None
    span_id: str | None = None


class TranscriptMessage(NamedTuple):
    """One message of a transcript, as far as matching looks at it."""

    role: str
    calls: tuple[CallLike, ...]


# Frameworks name the same two speakers differently; the words on the right are the API's.
_ROLES = {"ai": "assistant", "human": "user", "model": "assistant", "function": "tool"}


def turns_of(messages: Iterable[Any]) -> list[TranscriptMessage]:
    """The turns of a transcript: chat messages as mappings or as objects with those fields."""
    turns: list[TranscriptMessage] = []
    for position, message in enumerate(messages):
        role, calls = _role_and_calls(message)
        if not isinstance(role, str):
            raise ProctorError(
                "a message of a transcript has a `role`",
                where=f"message {position + 1}",
                hint="give chat messages: {role: assistant, content: …, tool_calls: […]}",
            )
        found = tuple([_call(call, position) for call in calls]) if calls else ()
        turns.append(TranscriptMessage(_ROLES.get(role, role), found))
    return turns


def calls_of(messages: Iterable[Any]) -> list[CallLike]:
    """Every tool call a transcript asks for, in order."""
    found: list[CallLike] = []
    for position, message in enumerate(messages):
        calls = _role_and_calls(message)[1]
        if calls:
            found += [_call(call, position) for call in calls]
    return found


def names_of(calls: Sequence[CallLike]) -> list[str]:
    """The tools called, in order, repeats kept."""
    return [call.name for call in calls]


def _role_and_calls(message: Any) -> tuple[Any, Iterable[Any] | None]:
    if _is_mapping(message):
        role = message.get("role") or message.get("type")
        calls, content = message.get("tool_calls"), message.get("content")
    else:
        role = getattr(message, "role", None) or getattr(message, "type", None)
        calls, content = getattr(message, "tool_calls", None), getattr(message, "content", None)
    return role, calls or (_blocks(cast("list[Any]", content)) if type(content) is list else None)


def _blocks(content: list[Any]) -> list[Any]:
    """The calls among the blocks of a message, as Anthropic writes them."""
    return [block for block in content if _is_mapping(block) and block.get("type") == "tool_use"]


def _is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, (dict, Mapping))  # the first is seen at once, the second searched


def _call(call: Any, position: int) -> CallLike:
    if not _is_mapping(call):
        return call
    source = call.get("function")
    if not _is_mapping(source):
        source = call
    name = source.get("name")
    if not isinstance(name, str):
        raise ProctorError("a tool call has a `name`", where=f"message {position + 1}")
    # OpenAI writes `arguments`, LangChain `args`, Anthropic `input`.
    arguments = source.get("arguments")
    if arguments is None:
        arguments = source.get("args", source.get("input"))
    return PlainCall(name, arguments, call.get("span_id"))


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


class CallAlignment:
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
                one: int,
                other: int,
                rule: ExactRule = rule,
                a: list[Any] = here,
                r: list[Any] = there,
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

    def _masks(self, ours: range, columns: list[int], rule: ExactRule) -> dict[Hashable, int]:
        """View → the columns of one tool that have it, as bits."""
        places: dict[Hashable, list[int]] = {}
        for column in columns:
            places.setdefault(self._view(0, ours[column], rule), []).append(column)
        return {view: bits(found) for view, found in places.items()}

    def _accepts_view(self, ours: int, view: Any, rule: ExactRule) -> bool:
        return rule.accepts(self._view(0, ours, rule), view)

    def _view(self, side: int, place: int, rule: ExactRule) -> Any:
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

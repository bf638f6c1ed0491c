"""Compare the arguments of calls, and pair two sequences of calls: in any order, or in order.

Arguments are compared as JSON values: 1 equals 1.0, a boolean equals only a boolean, a mapping
equals its JSON text, the order of keys does not matter, and no arguments (None, "") are `{}`.
A rule compares (actual, reference) in that order, in every match mode.

`paired` finds a largest pairing, `aligned` a longest chain in order. Calls with equal arguments are
paired by their hash first; only the rest is searched.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Literal, NamedTuple, Protocol, TypeGuard, cast

import msgspec

from proctor.errors import ProctorError, did_you_mean

ArgumentMode = Literal["exact", "ignore", "subset", "superset"]
ArgumentRule = ArgumentMode | Sequence[str] | Callable[[Any, Any], bool]
"""A mode, the dotted paths to compare, or a function (actual, reference) → bool."""


class _Token(Enum):
    """Parts of a canonical form that no JSON value can be mistaken for."""

    MAPPING = 1
    LIST = 2
    END = 3
    TRUE = 4
    FALSE = 5
    NAN = 6
    ABSENT = 7


ABSENT = _Token.ABSENT
"""The value of an argument, in a difference, on the side that does not have it."""


class ArgumentDifference(NamedTuple):
    """One argument that differs from the reference; `ABSENT` where a side lacks it."""

    path: str
    actual: Any
    reference: Any


def decoded(arguments: Any) -> Any:
    """Return arguments as values: JSON objects and arrays are parsed, None and "" are `{}`."""
    if arguments is None:
        return {}
    if not isinstance(arguments, str):
        return arguments
    text = arguments.strip()
    if not text:
        return {}
    if text[0] in "{[":
        try:
            return _decode(text)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return arguments
    return arguments


def canonical(arguments: Any) -> Hashable:
    """Return a key that two sets of arguments share exactly when they are equal."""
    return _flat(decoded(arguments))


_decode = msgspec.json.Decoder().decode


def _flat(value: Any) -> Hashable:
    """Return a value as a flat tuple of tokens: without nesting, no depth is too deep."""
    value = _plain(value)
    if not isinstance(value, Mapping | list):
        return value
    tokens: list[Hashable] = []
    left: list[Any] = [value]
    while left:
        item = _plain(left.pop())
        if isinstance(item, Mapping):
            mapping = {_key(k): v for k, v in cast("Mapping[Any, Any]", item).items()}
            tokens.append(_Token.MAPPING)
            left.append(_Token.END)
            for key in sorted(mapping, reverse=True):
                left.append(mapping[key])
                left.append(key)
        elif isinstance(item, list):
            tokens.append(_Token.LIST)
            left.append(_Token.END)
            left.extend(reversed(cast("list[Any]", item)))
        else:
            tokens.append(item)
    return tuple(tokens)


class _Opaque(NamedTuple):
    """A value JSON has no form for, by its type and its text."""

    kind: str
    text: str


def _plain(value: Any) -> Any:
    """Return a mapping or list unchanged, anything else as a hashable token."""
    kind = cast("type[Any]", type(value))
    # The common types first, by identity: this runs for every value of every call.
    if kind is str or kind is int or kind is dict or kind is list or value is None:
        return value
    if kind is bool:
        return _Token.TRUE if value else _Token.FALSE
    if isinstance(value, float):
        return _Token.NAN if math.isnan(value) else float(value)
    if isinstance(value, _Token | Mapping | _Opaque):
        return cast("Any", value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, tuple):
        return list(cast("tuple[Any, ...]", value))
    if isinstance(value, set | frozenset):
        # By repr, since the items of a set may have no order among each other.
        return sorted(cast("set[Any]", value), key=repr)
    try:
        built = msgspec.to_builtins(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        built = value
    return (
        built if type(built) in (str, int, dict, list) else _Opaque(kind.__qualname__, repr(value))
    )


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    # Keys as JSON writes them, so that a mapping equals its JSON text.
    return {True: "true", False: "false"}[key] if isinstance(key, bool) else str(key)


class ExactRule:
    """Equality of all arguments: the rule `exact`, and what the other rules vary.

    `view` prepares one call's arguments once, and `accepts` compares an actual view with a
    reference view. `by_key` says that only equal views match. Where views are `hashable`, calls
    with equal ones are paired before anything else is tried. That never spoils the best pairing
    under a reflexive and transitive relation; a user's function may be neither.
    """

    name = "exact"
    by_key = True
    hashable = True

    def view(self, arguments: Any) -> Any:
        """Return one call's arguments in a form for `accepts`."""
        return canonical(arguments)

    def accepts(self, actual: Any, reference: Any) -> bool:
        """Return whether an actual view matches a reference view."""
        return actual == reference

    def same(self, actual: Any, reference: Any) -> bool:
        """Return whether actual arguments match reference arguments."""
        # Recorded arguments are mostly texts, written alike on both sides.
        if self.hashable and type(actual) is str and actual == reference:
            return True
        return self.accepts(self.view(actual), self.view(reference))

    def differences(self, actual: Any, reference: Any) -> tuple[ArgumentDifference, ...]:
        """Return the arguments because of which the rule rejects this pair."""
        return tuple(_differences(decoded(actual), decoded(reference)))


class _Ignore(ExactRule):
    name = "ignore"

    def view(self, arguments: Any) -> Any:
        return None

    def differences(self, actual: Any, reference: Any) -> tuple[ArgumentDifference, ...]:
        return ()


class _Subset(ExactRule):
    name = "subset"
    by_key = False
    # Which side may lack arguments the other has.
    may_lack = "actual"

    def view(self, arguments: Any) -> Any:
        value = decoded(arguments)
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            return frozenset((_key(key), _flat(item)) for key, item in items)
        return _flat(value)

    def accepts(self, actual: Any, reference: Any) -> bool:
        if isinstance(actual, frozenset) and isinstance(reference, frozenset):
            return self.contains(
                cast("frozenset[Hashable]", actual), cast("frozenset[Hashable]", reference)
            )
        return actual == reference

    def contains(self, actual: frozenset[Hashable], reference: frozenset[Hashable]) -> bool:
        return actual <= reference

    def differences(self, actual: Any, reference: Any) -> tuple[ArgumentDifference, ...]:
        found = _differences(decoded(actual), decoded(reference), deep=False)
        return tuple(d for d in found if getattr(d, self.may_lack) is not ABSENT)


class _Superset(_Subset):
    name = "superset"
    may_lack = "reference"

    def contains(self, actual: frozenset[Hashable], reference: frozenset[Hashable]) -> bool:
        return actual >= reference


class _Keys(ExactRule):
    name = "keys"

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)

    def view(self, arguments: Any) -> Any:
        value = decoded(arguments)
        return tuple(_flat(look_up(value, path)) for path in self.paths)

    def differences(self, actual: Any, reference: Any) -> tuple[ArgumentDifference, ...]:
        left, right = decoded(actual), decoded(reference)
        found = [(path, look_up(left, path), look_up(right, path)) for path in self.paths]
        return tuple(ArgumentDifference(p, a, r) for p, a, r in found if _flat(a) != _flat(r))


class _Custom(ExactRule):
    name = "custom"
    by_key = False
    hashable = False

    def __init__(self, function: Callable[[Any, Any], bool]) -> None:
        self.function = function

    def view(self, arguments: Any) -> Any:
        return decoded(arguments)

    def accepts(self, actual: Any, reference: Any) -> bool:
        return bool(self.function(actual, reference))


_MODES: dict[str, type[ExactRule]] = {
    "exact": ExactRule,
    "ignore": _Ignore,
    "subset": _Subset,
    "superset": _Superset,
}


def read_rule(rule: ArgumentRule | ExactRule, where: str = "arguments") -> ExactRule:
    """Return the rule a user wrote: a mode, dotted paths, or a function (actual, reference)."""
    if isinstance(rule, ExactRule):
        return rule
    if isinstance(rule, str):
        if rule in _MODES:
            return _MODES[rule]()
        raise ProctorError(
            f"unknown argument mode {rule!r}",
            where=where,
            hint=did_you_mean(rule, _MODES) or f"one of {', '.join(_MODES)}, or a list of paths",
        )
    if callable(rule):
        return _Custom(rule)
    if isinstance(rule, Sequence) and all(isinstance(path, str) and path for path in rule):  # pyright: ignore[reportUnnecessaryIsInstance]
        return _Keys(rule)
    raise ProctorError(
        f"arguments are compared by a mode, a list of paths or a function, not by {rule!r}",
        where=where,
        hint=f"one of {', '.join(_MODES)}, or a list such as [query, options.limit]",
    )


class ArgumentRules:
    """The rule for the arguments of each tool: a default, and exceptions by tool."""

    def __init__(
        self,
        default: ArgumentRule | ExactRule = "exact",
        tools: Mapping[str, ArgumentRule | ExactRule] | None = None,
    ) -> None:
        self.default = read_rule(default)
        self.tools = {
            name: read_rule(rule, f"arguments.{name}") for name, rule in (tools or {}).items()
        }

    def of(self, tool: str) -> ExactRule:
        """Return the rule of one tool."""
        return self.tools.get(tool, self.default) if self.tools else self.default


def look_up(value: Any, path: str) -> Any:
    """Return the value at a dotted path (`filter.city`, `items.0.id`), or `ABSENT`.

    A key that contains dots itself is looked up by its whole name first.
    """
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        if path in mapping:
            return mapping[path]
        head, dot, rest = path.partition(".")
        return look_up(mapping[head], rest) if dot and head in mapping else ABSENT
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        head, dot, rest = path.partition(".")
        # Longer numbers are no index, and int() refuses thousands of digits.
        if head.isdecimal() and head.isascii() and len(head) < 10 and int(head) < len(items):
            return look_up(items[int(head)], rest) if dot else items[int(head)]
    return ABSENT


# More differences than this inside one call are of no use in a report.
_MAX_DIFFERENCES = 50
# Values nested deeper than this are reported as a whole.
_MAX_DEPTH = 20


def _differences(
    actual: Any, reference: Any, path: str = "", *, deep: bool = True, depth: int = 0
) -> list[ArgumentDifference]:
    open_up = (deep or not path) and depth < _MAX_DEPTH
    if open_up and isinstance(actual, Mapping) and isinstance(reference, Mapping):
        left = {_key(k): v for k, v in cast("Mapping[Any, Any]", actual).items()}
        right = {_key(k): v for k, v in cast("Mapping[Any, Any]", reference).items()}
        names = [*right, *(name for name in left if name not in right)]
        sides = [(name, left.get(name, ABSENT), right.get(name, ABSENT)) for name in names]
    elif open_up and isinstance(actual, list | tuple) and isinstance(reference, list | tuple):
        items, others = cast("Sequence[Any]", actual), cast("Sequence[Any]", reference)
        if len(items) != len(others):
            return _leaf(path, actual, reference)
        sides = [(str(n), a, r) for n, (a, r) in enumerate(zip(items, others, strict=True))]
    else:
        return _leaf(path, actual, reference)
    found: list[ArgumentDifference] = []
    for name, a, r in sides:
        inner = f"{path}.{name}" if path else name
        if a is ABSENT or r is ABSENT:
            found.append(ArgumentDifference(inner, a, r))
        else:
            found += _differences(a, r, inner, deep=deep, depth=depth + 1)
        if len(found) >= _MAX_DIFFERENCES:
            break
    return found[:_MAX_DIFFERENCES]


def _leaf(path: str, actual: Any, reference: Any) -> list[ArgumentDifference]:
    equal = _flat(actual) == _flat(reference)
    return [] if equal else [ArgumentDifference(path, actual, reference)]


# -- largest pairing -----------------------------------------------------------------------------
# A greedy first pass pairs most items. Each pair is compared at most once, since a rule may be a
# slow function of the user.


def largest_pairing(
    left: int, right: int, accepts: Callable[[int, int], bool]
) -> list[tuple[int, int]]:
    """Return the pairs (l, r) of a largest pairing of `left` and `right` items, by `l`."""
    matches = cache(accepts)
    # Sequences that differ little mostly agree in order: an item's own position comes first.
    partner = {one: one for one in range(min(left, right)) if matches(one, one)}
    free = [other for other in range(right) if other not in partner]
    for one in range(left):
        if one not in partner:
            found = next((other for other in free if matches(one, other)), None)
            if found is not None:
                partner[one] = found
                free.remove(found)
    if len(partner) < left and free:
        _augment(partner, left, right, matches)
    return sorted(partner.items())


def _augment(
    partner: dict[int, int], left: int, right: int, matches: Callable[[int, int], bool]
) -> None:
    """Make a pairing largest: along each path that ends at a free item, swap partners."""
    owner = {other: one for one, other in partner.items()}
    accepted = [[other for other in range(right) if matches(one, other)] for one in range(left)]
    useless: set[int] = set()
    """Right items that lead to no free one: no later search needs to visit them."""
    for start in range(left):
        if start in partner:
            continue
        reached: dict[int, int] = {}
        waiting, end = deque([start]), None
        while waiting and end is None:
            one = waiting.popleft()
            for other in accepted[one]:
                if other in reached or other in useless:
                    continue
                reached[other] = one
                if other not in owner:
                    end = other
                    break
                waiting.append(owner[other])
        if end is None:
            useless |= reached.keys()
        while end is not None:
            one = reached[end]
            # The partner it leaves is taken over by the item before it on the path.
            before = partner.get(one)
            partner[one], owner[end] = end, one
            end = before


# -- longest common subsequence and edit distance ------------------------------------------------
# Exact, and for sequences of thousands. One row of the dynamic-programming table is one integer, a
# bit per column (Hyyrö 2004 for the subsequence, Myers 1999 for the distance), so a row costs a
# few additions of big integers: time grows with the product of the lengths divided by the word
# size. The alignment stores every row: memory is that product in bits.


def lcs_length(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Return the length of the longest common subsequence of `a` and `b`."""
    a, b, shared = _trimmed(a, b)
    if not a or not b:
        return shared
    masks = positions_of(b)
    last = deque(_lcs_rows((masks.get(item, 0) for item in a), len(b)), maxlen=1)[0]
    return shared + len(b) - last.bit_count()


def _lcs_rows(masks: Iterable[int], columns: int) -> Iterator[int]:
    """Yield the rows of the table; in a row, a cleared bit j is a step up by one at column j."""
    row = everything = (1 << columns) - 1
    for mask in masks:
        hits = row & mask
        row = ((row + hits) | (row - hits)) & everything
        yield row


def lcs_alignment(rows: Sequence[int], columns: int) -> list[tuple[int, int]]:
    """Return a longest chain of pairs (row, column), both rising, each allowed by the masks.

    `rows[i]` has bit `j` set where row item `i` may be paired with column item `j`; the relation
    need not be equality.
    """
    table = list(_lcs_rows(rows, columns))
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
    """Return the fewest insertions, deletions and replacements that turn `a` into `b`."""
    a, b, _ = _trimmed(a, b)
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
    """Return item → an integer with a bit set at each of its positions."""
    # Collected as positions first: growing one big integer bit by bit would be quadratic.
    places: dict[Hashable, list[int]] = {}
    for position, item in enumerate(items):
        places.setdefault(item, []).append(position)
    return {item: bits(found) for item, found in places.items()}


def bits(positions: Sequence[int]) -> int:
    """Return the integer with exactly these bits set."""
    buffer = bytearray(max(positions, default=0) // 8 + 1)
    for position in positions:
        buffer[position >> 3] |= 1 << (position & 7)
    return int.from_bytes(buffer, "little")


def _trimmed(
    a: Sequence[Hashable], b: Sequence[Hashable]
) -> tuple[Sequence[Hashable], Sequence[Hashable], int]:
    """Return two sequences without their common start and end, and the length of those."""
    start, end = _shared_ends(len(a), len(b), lambda one, other: a[one] == b[other])
    return a[start : len(a) - end], b[start : len(b) - end], start + end


def _shared_ends(left: int, right: int, accepts: Callable[[int, int], bool]) -> tuple[int, int]:
    """Return the lengths of the common start and end of two sequences of these lengths."""
    shortest = min(left, right)
    start = end = 0
    while start < shortest and accepts(start, start):
        start += 1
    while end < shortest - start and accepts(left - 1 - end, right - 1 - end):
        end += 1
    return start, end


# -- calls ---------------------------------------------------------------------------------------
# Anything with `name`, `arguments` and `span_id` is a call, so traces, specs and plain tuples all
# fit.


class CallLike(Protocol):
    """One tool call, from any source."""

    @property
    def name(self) -> str:
        """The tool."""
        ...

    @property
    def arguments(self) -> Any:
        """Its arguments: a mapping, or the JSON text of one."""

    @property
    def span_id(self) -> str | None:
        """Its span; None when the call was written by hand, not recorded."""


class PlainCall(NamedTuple):
    """A call that is not part of a trace."""

    name: str
    arguments: Any = None
    span_id: str | None = None


def calls_of(messages: Iterable[Any]) -> list[CallLike]:
    """Return every tool call of chat messages (mappings, or objects with those fields), in order.

    OpenAI's, Anthropic's and LangChain's spellings are read.
    """
    return [
        _call(call, position)
        for position, message in enumerate(messages)
        for call in _calls(message)
    ]


def _calls(message: Any) -> Iterable[Any]:
    if _is_mapping(message):
        calls, content = message.get("tool_calls"), message.get("content")
    else:
        calls, content = getattr(message, "tool_calls", None), getattr(message, "content", None)
    if not calls and type(content) is list:  # Anthropic writes calls as blocks of the content
        blocks = cast("list[Any]", content)
        calls = [b for b in blocks if _is_mapping(b) and b.get("type") == "tool_use"]
    return calls or ()


def _is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, (dict, Mapping))  # dict first: a check against an ABC is slow


def _call(call: Any, position: int) -> CallLike:
    # Objects with these attributes are calls already.
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


# -- pairing calls -------------------------------------------------------------------------------

# The alignment stores one bit per pair of calls: 50 MB at most. Longer stretches (20,000 calls
# against 20,000, without the common start and end) are paired without regard to order.
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
        """Return whether the actual call at `ours` matches the reference call at `theirs`."""
        one, other = self.actual[ours], self.reference[theirs]
        return one.name == other.name and self.rules.of(one.name).same(
            one.arguments, other.arguments
        )

    # -- in any order -----------------------------------------------------------------------

    def paired(
        self, ours: Iterable[int] | None = None, theirs: Iterable[int] | None = None
    ) -> Places:
        """Return a largest pairing of these calls (by default all), by actual position."""
        left = range(len(self.actual)) if ours is None else ours
        right = range(len(self.reference)) if theirs is None else theirs
        pairs: Places = []
        for name, (actual, reference) in self.by_tool(left, right).items():
            if actual and reference:
                pairs += self._pair_tool(self.rules.of(name), actual, reference)
        pairs.sort()
        return pairs

    def _pair_tool(self, rule: ExactRule, ours: list[int], theirs: list[int]) -> Places:
        """Pair the calls of one tool: those with equal views, then what the rule accepts."""
        pairs: Places = []
        # Most calls are written alike and need not be parsed.
        for key in (self._text, self._view) if rule.hashable else ():
            by_key: dict[Hashable, list[int]] = {}
            for place in reversed(theirs):  # so that pop() below takes the earliest
                by_key.setdefault(key(1, place, rule), []).append(place)
            rest: list[int] = []
            for place in ours:
                if equal := by_key.get(key(0, place, rule)):
                    pairs.append((place, equal.pop()))
                else:
                    rest.append(place)
            ours, theirs = rest, sorted(place for places in by_key.values() for place in places)
        if rule.by_key or not ours or not theirs:
            return pairs

        def accepts(one: int, other: int) -> bool:
            return rule.accepts(self._view(0, ours[one], rule), self._view(1, theirs[other], rule))

        found = largest_pairing(len(ours), len(theirs), accepts)
        return pairs + [(ours[one], theirs[other]) for one, other in found]

    def by_tool(
        self, left: Iterable[int], right: Iterable[int]
    ) -> dict[str, tuple[list[int], list[int]]]:
        """Return tool → the actual and the reference positions that call it, of those given."""
        tools: dict[str, tuple[list[int], list[int]]] = {}
        for place in left:
            tools.setdefault(self.actual[place].name, ([], []))[0].append(place)
        for place in right:
            tools.setdefault(self.reference[place].name, ([], []))[1].append(place)
        return tools

    # -- in order ---------------------------------------------------------------------------

    def aligned(self) -> Aligned:
        """Return a longest chain in order; between its links, calls of the same tool; the rest."""
        start, end = _shared_ends(len(self.actual), len(self.reference), self.accepts)
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
        """Return the actual and the reference positions in no pair."""
        ours = {one for one, _ in pairs}
        theirs = {other for _, other in pairs}
        return (
            [place for place in range(len(self.actual)) if place not in ours],
            [place for place in range(len(self.reference)) if place not in theirs],
        )

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
                    places: dict[Hashable, list[int]] = {}
                    for column in columns[name]:
                        places.setdefault(self._view(0, ours[column], rule), []).append(column)
                    known[name] = {view: bits(found) for view, found in places.items()}
                rows.append(known[name].get(self._view(1, place, rule), 0))
            else:
                wanted = self._view(1, place, rule)
                found = [
                    c for c in columns[name] if rule.accepts(self._view(0, ours[c], rule), wanted)
                ]
                rows.append(bits(found))
        chain = lcs_alignment(rows, len(ours))
        return [(ours[column], theirs[row]) for row, column in chain]

    def _text(self, side: int, place: int, rule: ExactRule) -> Hashable:
        arguments = (self.reference if side else self.actual)[place].arguments
        return arguments if type(arguments) is str else self._view(side, place, rule)

    def _view(self, side: int, place: int, rule: ExactRule) -> Any:
        if rule is _NAMES_ONLY:
            return None
        # Cached: a call is compared with many others, and a view may be expensive.
        views = self._views[side]
        if place not in views:
            calls = self.reference if side else self.actual
            views[place] = rule.view(calls[place].arguments)
        return views[place]


def _gaps(chain: Places, ours: range, theirs: range) -> list[tuple[range, range]]:
    """Return the ranges between the links of a chain where both sides have calls."""
    gaps: list[tuple[range, range]] = []
    a, r = ours.start, theirs.start
    for one, other in [*chain, (ours.stop, theirs.stop)]:
        if a < one and r < other:
            gaps.append((range(a, one), range(r, other)))
        a, r = one + 1, other + 1
    return gaps

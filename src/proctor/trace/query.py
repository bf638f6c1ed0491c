"""The span query language: which spans match.

Promise: every key means exactly what docs/reference/span-queries.md says; an unknown key is an
error with a suggestion; an empty condition is honoured. A query is compiled once and answered
for all spans together in linear time, so depth and size of a tree do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from proctor.errors import ProctorError, did_you_mean

from .tree import Mask, SpanNode, SpanTree

_MISSING = object()


class QueryError(ProctorError):
    """A span query that cannot be understood; `where` is the path of the key inside it."""


class SpanQuery:
    """Conditions on one span, all of which must hold: `SpanQuery(kind="tool", max_depth=3)`.

    Keys are those of `CONDITIONS`. Nested queries may be given as `SpanQuery` or as a mapping.
    """

    __slots__ = ("_compiled", "_stop", "conditions")

    def __init__(self, **conditions: Any) -> None:
        self._compile(conditions, "")

    @classmethod
    def parse(cls, conditions: Mapping[str, Any] | SpanQuery, where: str = "") -> SpanQuery:
        """A query from a mapping, as read from YAML or JSON; `where` names it in errors."""
        if isinstance(conditions, SpanQuery):
            return conditions
        if not isinstance(conditions, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise QueryError(
                f"a span query is a mapping of conditions, not {_type_name(conditions)}",
                where=where or None,
            )
        query = cls.__new__(cls)
        query._compile(conditions, where)
        return query

    def _compile(self, conditions: Mapping[str, Any], where: str) -> None:
        self.conditions = dict(conditions)
        self._stop: SpanQuery | None = None
        self._compiled: list[tuple[Callable[[Evaluation, Any], Mask], Any]] = []
        for key, value in self.conditions.items():
            place = f"{where}.{key}" if where else str(key)
            if key == "stop_recursing_when":
                self._stop = read_query(value, place)
                continue
            condition = CONDITIONS.get(key)
            if condition is None:
                raise QueryError(
                    f"unknown span query key {key!r}",
                    where=where or None,
                    hint=did_you_mean(key, [*CONDITIONS, "stop_recursing_when"]),
                )
            self._compiled.append((condition.mask, condition.parse(value, place)))

    def mask(self, tree: SpanTree) -> Mask:
        """One byte per span of the tree, in start order: 1 where the span matches."""
        here = Evaluation(tree, None if self._stop is None else self._stop.mask(tree))
        result: Mask | None = None
        for answer, argument in self._compiled:
            mask = answer(here, argument)
            result = mask if result is None else _and(result, mask)
        return b"\1" * len(tree) if result is None else result

    def __repr__(self) -> str:
        return f"SpanQuery({', '.join(f'{k}={v!r}' for k, v in self.conditions.items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpanQuery) and other.conditions == self.conditions

    __hash__ = None  # type: ignore[assignment]


Matcher = SpanQuery | Mapping[str, Any] | Callable[[SpanNode], bool]


def as_mask(matcher: Matcher, tree: SpanTree) -> Mask:
    """The mask of a query, of a mapping that spells one, or of a predicate on nodes."""
    if isinstance(matcher, SpanQuery):
        return matcher.mask(tree)
    if isinstance(matcher, Mapping):
        return SpanQuery.parse(matcher).mask(tree)
    return bytes([bool(matcher(node)) for node in tree.nodes()])


class Evaluation(NamedTuple):
    """A tree being asked, and the spans past which descendants and ancestors are not looked for."""

    tree: SpanTree
    stop: Mask | None


class Condition(NamedTuple):
    """How one key reads its argument and answers for all spans."""

    parse: Callable[[Any, str], Any]
    mask: Callable[[Evaluation, Any], Mask]


# -- masks: bytes of 0 and 1; whole-mask logic goes through big integers, which is C speed ------


def _and(a: Mask, b: Mask) -> Mask:
    return (int.from_bytes(a) & int.from_bytes(b)).to_bytes(len(a))


def _or(a: Mask, b: Mask) -> Mask:
    return (int.from_bytes(a) | int.from_bytes(b)).to_bytes(len(a))


_FLIP = bytes([1, 0, *range(2, 256)])


def invert(a: Mask) -> Mask:
    return a.translate(_FLIP)


def _lacks(carry: Callable[[SpanTree, Mask, Mask | None], Mask]) -> Any:
    """`all X have q` from `some X has q`: no X fails q."""
    return lambda at, query: invert(carry(at.tree, invert(query.mask(at.tree)), at.stop))


def _none(carry: Callable[[SpanTree, Mask, Mask | None], Mask]) -> Any:
    return lambda at, query: invert(carry(at.tree, query.mask(at.tree), at.stop))


def _some(carry: Callable[[SpanTree, Mask, Mask | None], Mask]) -> Any:
    return lambda at, query: carry(at.tree, query.mask(at.tree), at.stop)


def _on_children(tree: SpanTree, mask: Mask, _stop: Mask | None) -> Mask:
    return tree.parents_of(mask)


def _on_descendants(tree: SpanTree, mask: Mask, stop: Mask | None) -> Mask:
    return tree.above(mask, stop)


def _on_ancestors(tree: SpanTree, mask: Mask, stop: Mask | None) -> Mask:
    return tree.below(mask, stop)


def _name_equals(at: Evaluation, name: str) -> Mask:
    return bytes([span.name == name for span in at.tree.spans])


def _name_contains(at: Evaluation, part: str) -> Mask:
    return bytes([part in span.name for span in at.tree.spans])


def _name_matches(at: Evaluation, pattern: re.Pattern[str]) -> Mask:
    match = pattern.match
    return bytes([match(span.name) is not None for span in at.tree.spans])


def _has_attributes(at: Evaluation, wanted: dict[str, Any]) -> Mask:
    result: Mask = b"\1" * len(at.tree)
    for key, value in wanted.items():
        held = [span.attributes.get(key, _MISSING) for span in at.tree.spans]
        if type(value) is str:
            found = bytes([h == value if type(h) is str else same(h, value) for h in held])
        else:
            found = bytes([h is not _MISSING and same(h, value) for h in held])
        result = _and(result, found)
    return result


def _has_attribute_keys(at: Evaluation, keys: list[str]) -> Mask:
    wanted = frozenset(keys)
    return bytes([wanted <= span.attributes.keys() for span in at.tree.spans])


def _has_status(at: Evaluation, status: str) -> Mask:
    return bytes([span.status == status for span in at.tree.spans])


def _kind(at: Evaluation, kinds: frozenset[str]) -> Mask:
    return bytes([span.kind in kinds for span in at.tree.spans])


def _tool_name(at: Evaluation, names: frozenset[str]) -> Mask:
    return bytes([span.tool_name in names for span in at.tree.spans])


def _min_duration(at: Evaluation, least: int) -> Mask:
    return bytes([s.end_ns is not None and s.end_ns - s.start_ns >= least for s in at.tree.spans])


def _max_duration(at: Evaluation, most: int) -> Mask:
    return bytes([s.end_ns is not None and s.end_ns - s.start_ns <= most for s in at.tree.spans])


def _at_least(figure: Callable[[SpanTree], list[int]]) -> Callable[[Evaluation, int], Mask]:
    return lambda at, least: bytes([value >= least for value in figure(at.tree)])


def _at_most(figure: Callable[[SpanTree], list[int]]) -> Callable[[Evaluation, int], Mask]:
    return lambda at, most: bytes([value <= most for value in figure(at.tree)])


def _all_of(at: Evaluation, queries: list[SpanQuery]) -> Mask:
    result: Mask = b"\1" * len(at.tree)
    for query in queries:
        result = _and(result, query.mask(at.tree))
    return result


def _one_of(at: Evaluation, queries: list[SpanQuery]) -> Mask:
    result: Mask = bytes(len(at.tree))
    for query in queries:
        result = _or(result, query.mask(at.tree))
    return result


# -- arguments: each reads a value from YAML, JSON or Python, or says what it should have been ---


def _type_name(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", str: "a string", bool: "true/false"}
    return names.get(type(value), "null" if value is None else f"a {type(value).__name__}")


def _expected(what: str, value: Any, where: str) -> QueryError:
    return QueryError(f"expected {what}, got {_type_name(value)}", where=where)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _expected("a string", value, where)
    return value


def _pattern(value: Any, where: str) -> re.Pattern[str]:
    try:
        return re.compile(_text(value, where))
    except re.error as error:
        raise QueryError(f"not a regular expression: {error}", where=where) from None


def read_mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _expected("a mapping of attribute names to values", value, where)
    return {str(key): item for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]


def _keys(value: Any, where: str) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Sequence | set | frozenset):
        raise _expected("a list of attribute names", value, where)
    return [_text(key, where) for key in value]  # pyright: ignore[reportUnknownVariableType]


def read_count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise QueryError(f"expected a whole number of at least 0, got {value!r}", where=where)
    return value


def _nanoseconds(value: Any, where: str) -> int:
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1) * 1000
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise _expected("seconds or a timedelta", value, where)
    # A float of seconds carries fewer digits than nanoseconds: round, do not cut.
    return round(value * 1e9) if abs(value) < 1e9 else int(value) * 10**9


def _choice(*choices: str) -> Callable[[Any, str], str]:
    def read(value: Any, where: str) -> str:
        text = _text(value, where)
        if text not in choices:
            raise QueryError(
                f"{text!r} is none of {', '.join(choices)}",
                where=where,
                hint=did_you_mean(text, choices),
            )
        return text

    return read


def _choices(read: Callable[[Any, str], str]) -> Callable[[Any, str], frozenset[str]]:
    def read_all(value: Any, where: str) -> frozenset[str]:
        if isinstance(value, list | tuple):
            return frozenset(read(item, where) for item in value)  # pyright: ignore[reportUnknownVariableType]
        return frozenset([read(value, where)])

    return read_all


def read_query(value: Any, where: str) -> SpanQuery:
    return SpanQuery.parse(value, where)


def read_queries(value: Any, where: str) -> list[SpanQuery]:
    if not isinstance(value, list | tuple):
        raise _expected("a list of span queries", value, where)
    return [SpanQuery.parse(q, f"{where}[{i}]") for i, q in enumerate(value)]  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]


_STATUSES = ("unset", "ok", "error", "timeout")
_KINDS = ("agent planning llm tool retrieval handoff guardrail response chain error other").split()

CONDITIONS: dict[str, Condition] = {
    "name_equals": Condition(_text, _name_equals),
    "name_contains": Condition(_text, _name_contains),
    "name_matches_regex": Condition(_pattern, _name_matches),
    "has_attributes": Condition(read_mapping, _has_attributes),
    "has_attribute_keys": Condition(_keys, _has_attribute_keys),
    "has_status": Condition(_choice(*_STATUSES), _has_status),
    "kind": Condition(_choices(_choice(*_KINDS)), _kind),
    "tool_name": Condition(_choices(_text), _tool_name),
    "min_duration": Condition(_nanoseconds, _min_duration),
    "max_duration": Condition(_nanoseconds, _max_duration),
    "not_": Condition(read_query, lambda at, query: invert(query.mask(at.tree))),
    "and_": Condition(read_queries, _all_of),
    "or_": Condition(read_queries, _one_of),
    "min_child_count": Condition(read_count, _at_least(lambda tree: tree.child_count)),
    "max_child_count": Condition(read_count, _at_most(lambda tree: tree.child_count)),
    "some_child_has": Condition(read_query, _some(_on_children)),
    "all_children_have": Condition(read_query, _lacks(_on_children)),
    "no_child_has": Condition(read_query, _none(_on_children)),
    "min_descendant_count": Condition(read_count, _at_least(lambda tree: tree.descendant_count)),
    "max_descendant_count": Condition(read_count, _at_most(lambda tree: tree.descendant_count)),
    "some_descendant_has": Condition(read_query, _some(_on_descendants)),
    "all_descendants_have": Condition(read_query, _lacks(_on_descendants)),
    "no_descendant_has": Condition(read_query, _none(_on_descendants)),
    "min_depth": Condition(read_count, _at_least(lambda tree: tree.depth)),
    "max_depth": Condition(read_count, _at_most(lambda tree: tree.depth)),
    "some_ancestor_has": Condition(read_query, _some(_on_ancestors)),
    "all_ancestors_have": Condition(read_query, _lacks(_on_ancestors)),
    "no_ancestor_has": Condition(read_query, _none(_on_ancestors)),
}


def same(actual: Any, expected: Any) -> bool:
    """Equality of attribute values.

    A list equals a tuple; a mapping or list equals its JSON text (that is how instrumentations
    write them); booleans equal only booleans; other primitives are never decoded.
    """
    if isinstance(actual, str) and isinstance(expected, dict | list | tuple):
        return _same_as_json(actual, expected)
    if isinstance(expected, str) and isinstance(actual, dict | list | tuple):
        return _same_as_json(expected, actual)
    if isinstance(actual, bool) or isinstance(expected, bool):
        return actual is expected
    if isinstance(actual, dict) and isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(  # pyright: ignore[reportUnknownMemberType,reportUnknownArgumentType]
            same(value, expected[key])
            for key, value in actual.items()  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
        )
    if isinstance(actual, list | tuple) and isinstance(expected, list | tuple):
        return len(actual) == len(expected) and all(  # pyright: ignore[reportUnknownArgumentType]
            same(a, e)
            for a, e in zip(actual, expected, strict=True)  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
        )
    return bool(actual == expected)


def _same_as_json(text: str, structure: Any) -> bool:
    try:
        decoded = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return isinstance(decoded, dict | list) and same(decoded, structure)

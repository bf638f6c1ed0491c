"""Parse and evaluate span queries: which spans match.

Guarantees: every key has exactly the meaning in docs/reference/span-queries.md; an unknown key is
an error with a suggestion; an empty condition is valid. A query is compiled once and evaluated for
all spans together in linear time, so depth and size of a tree do not matter.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, reduce
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple, cast

from proctor.errors import ProctorError, did_you_mean
from proctor.files import load_yaml
from proctor.trace.tree import Mask, SpanNode, SpanTree

# Equality of attribute values: a structure equals its JSON text, a list equals a tuple, booleans
# equal only booleans, and nothing else is converted. No text, however broken or deep, raises.


_CONTAINERS = (dict, list, tuple)


def same(actual: Any, expected: Any) -> bool:
    """Return whether attribute values are equal.

    A list equals a tuple; a mapping or list equals its JSON text (instrumentations write them so);
    booleans equal only booleans; other primitives are never decoded.
    """
    if isinstance(actual, str) and isinstance(expected, _CONTAINERS):
        return _same_as_json(actual, expected)
    if isinstance(expected, str) and isinstance(actual, _CONTAINERS):
        return _same_as_json(expected, actual)
    # In Python true equals 1 and false equals 0.
    if isinstance(actual, bool) or isinstance(expected, bool):
        return actual is expected
    if isinstance(actual, dict) and isinstance(expected, dict):
        left, right = cast(dict[Any, Any], actual), cast(dict[Any, Any], expected)
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in right)
    if isinstance(actual, list | tuple) and isinstance(expected, list | tuple):
        items, others = cast(Sequence[Any], actual), cast(Sequence[Any], expected)
        return len(items) == len(others) and all(map(same, items, others))
    return bool(actual == expected)


def may_be_json(text: str) -> bool:
    """Return whether a text can be a JSON object or array, by its first character."""
    return text.lstrip()[:1] in ("{", "[")


def _same_as_json(text: str, structure: Any) -> bool:
    if not may_be_json(text):
        return False
    try:
        # The standard library's decoder, because producers also write NaN and lone surrogates.
        return same(json.loads(text), structure)
    except (ValueError, RecursionError):
        return False


_MISSING = object()
_PLAIN = re.compile(r"(?!(?i:true|false|null|yes|no|on|off)\Z)[A-Za-z_][\w.-]*")
"""Text that YAML reads unchanged without quotes."""


class QueryError(ProctorError):
    """An invalid span query; `where` is the path of the key inside it."""


class SpanQuery:
    """Conditions on one span, all of which must hold: `SpanQuery(kind="tool", max_depth=3)`.

    Keys are those of `CONDITIONS`. Nested queries may be given as `SpanQuery` or as a mapping.
    """

    __slots__ = ("_compiled", "_stop", "conditions")

    def __init__(
        self, conditions: Mapping[str, Any] | None = None, where: str = "", /, **more: Any
    ) -> None:
        self.conditions: dict[str, Any] = {**(conditions or {}), **more}
        self._stop: SpanQuery | None = None
        self._compiled: list[tuple[MaskOf, Any]] = []
        for key, value in self.conditions.items():
            place = f"{where}.{key}" if where else str(key)
            # Not a condition: it bounds the search of the other keys.
            if key == "stop_recursing_when":
                self._stop = SpanQuery.parse(value, place)
                continue
            condition = CONDITIONS.get(key)
            if condition is None:
                raise QueryError(
                    f"unknown span query key {key!r}",
                    where=where or None,
                    hint=did_you_mean(str(key), QUERY_KEYS),
                )
            self._compiled.append((condition.mask, condition.parse(value, place)))

    @classmethod
    def parse(cls, conditions: Mapping[str, Any] | SpanQuery, where: str = "") -> SpanQuery:
        """Parse a query from a YAML or JSON mapping; `where` names it in errors."""
        if isinstance(conditions, SpanQuery):
            return conditions
        if not isinstance(conditions, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise QueryError(
                f"a span query is a mapping of conditions, not {_type_name(conditions)}",
                where=where or None,
            )
        return cls(conditions, where)

    def mask(self, tree: SpanTree) -> Mask:
        """Return one byte per span of the tree, in start order: 1 where the span matches."""
        here = QueryEvaluation(tree, None if self._stop is None else self._stop.mask(tree))
        masks = [answer(here, argument) for answer, argument in self._compiled]
        return masks[0] if len(masks) == 1 else _all_of(tree, masks)

    def __str__(self) -> str:
        return _written(self.conditions)

    def __repr__(self) -> str:
        return f"SpanQuery({', '.join(f'{k}={v!r}' for k, v in self.conditions.items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpanQuery) and other.conditions == self.conditions

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # its conditions may be lists


def _written(value: Any) -> str:
    """Return a query in YAML's short form, as users write it."""
    if isinstance(value, SpanQuery):
        return str(value)
    if isinstance(value, Mapping):
        pairs = cast(Mapping[Any, Any], value).items()
        return f"{{{', '.join(f'{key}: {_written(each)}' for key, each in pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, cast(Sequence[Any], value)))}]"
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


Matcher = SpanQuery | Mapping[str, Any] | Callable[[SpanNode], bool]


def as_mask(matcher: Matcher, tree: SpanTree) -> Mask:
    """Return the mask of a query, a mapping that spells one, or a predicate on nodes."""
    if isinstance(matcher, SpanQuery):
        return matcher.mask(tree)
    if isinstance(matcher, Mapping):
        return SpanQuery.parse(cast(Mapping[str, Any], matcher)).mask(tree)
    if not callable(matcher):
        raise QueryError(f"expected a span query or a predicate, got {_type_name(matcher)}")
    return bytes([bool(matcher(node)) for node in tree.nodes()])


class QueryEvaluation(NamedTuple):
    """A tree under evaluation, with the spans that stop the search for relatives."""

    tree: SpanTree
    stop: Mask | None


MaskOf = Callable[[QueryEvaluation, Any], Mask]
Carry = Callable[[SpanTree, Mask, Mask | None], Mask]
Figure = Callable[[SpanTree], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition: how its key parses the argument and evaluates all spans."""

    parse: Callable[[Any, str], Any]
    mask: MaskOf


# -- masks: bytes of 0 and 1; whole-mask logic uses big integers, which run at C speed ----------


def _all_of(tree: SpanTree, masks: Iterable[Mask]) -> Mask:
    """Return the spans in every mask; all spans for no masks."""
    ones = int.from_bytes(b"\1" * len(tree))
    return reduce(int.__and__, map(int.from_bytes, masks), ones).to_bytes(len(tree))


def _one_of(tree: SpanTree, masks: Iterable[Mask]) -> Mask:
    return reduce(int.__or__, map(int.from_bytes, masks), 0).to_bytes(len(tree))


_FLIP = bytes([1, 0, *range(2, 256)])


def invert(a: Mask) -> Mask:
    """Return the spans that are not in a mask."""
    return a.translate(_FLIP)


def _some(carry: Carry) -> MaskOf:
    return lambda at, query: carry(at.tree, query.mask(at.tree), at.stop)


def _none(carry: Carry) -> MaskOf:
    return lambda at, query: invert(carry(at.tree, query.mask(at.tree), at.stop))


def _every(carry: Carry) -> MaskOf:
    # All relatives match when no relative fails to match.
    return lambda at, query: invert(carry(at.tree, invert(query.mask(at.tree)), at.stop))


def _on_children(tree: SpanTree, mask: Mask, _stop: Mask | None) -> Mask:
    return tree.parents_of(mask)


def _has_attribute(tree: SpanTree, key: str, value: Any) -> Mask:
    """Return spans whose attribute equals a value (`same`), with a fast path for scalars."""
    spans = tree.spans
    if value is None or isinstance(value, bool):
        return bytes([span.attributes.get(key, _MISSING) is value for span in spans])
    if type(value) in (int, float) or (type(value) is str and not may_be_json(value)):
        equal = bytes([span.attributes.get(key) == value for span in spans])
        if value not in (0, 1):
            return equal
        # In Python true equals 1 and false equals 0; here they do not.
        number = bytes([type(span.attributes.get(key)) is not bool for span in spans])
        return _all_of(tree, (equal, number))
    return bytes([key in span.attributes and same(span.attributes[key], value) for span in spans])


def _at_least(figure: Figure) -> MaskOf:
    return lambda at, least: bytes([each >= least for each in figure(at.tree)])


def _at_most(figure: Figure) -> MaskOf:
    return lambda at, most: bytes([each <= most for each in figure(at.tree)])


# -- arguments: each parses a value from YAML, JSON or Python, or raises with the expected type --


_TYPE_NAMES: dict[type, str] = {
    dict: "a mapping",
    list: "a list",
    str: "a string",
    bool: "true/false",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def _type_name(value: object) -> str:
    return _TYPE_NAMES.get(type(value), f"a {type(value).__name__}")


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
    """Return a mapping with its keys as strings, like attribute names."""
    if not isinstance(value, Mapping):
        raise _expected("a mapping", value, where)
    return {str(key): item for key, item in cast(Mapping[Any, Any], value).items()}


def _keys(value: Any, where: str) -> frozenset[str]:
    if isinstance(value, str) or not isinstance(value, Sequence | set | frozenset):
        raise _expected("a list of attribute names", value, where)
    return frozenset(_text(key, where) for key in cast(Sequence[Any], value))


def read_count(value: Any, where: str) -> int:
    """Return an integer of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise QueryError(f"expected a whole number of at least 0, got {value!r}", where=where)
    return value


def _nanoseconds(value: Any, where: str) -> float:
    if isinstance(value, timedelta):
        # Integer arithmetic: `total_seconds` would round long durations.
        return value // timedelta(microseconds=1) * 1000
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise _expected("seconds or a timedelta", value, where)
    # A float of seconds has fewer digits than nanoseconds: round, do not truncate. Infinity is
    # preserved: it means no limit.
    return value if math.isinf(value) else round(value * 10**9)


def _choice(choices: Sequence[str], value: Any, where: str) -> str:
    text = _text(value, where)
    if text not in choices:
        hint = did_you_mean(text, choices)
        raise QueryError(f"{text!r} is none of {', '.join(choices)}", where=where, hint=hint)
    return text


def _one_or_more(read: Callable[[Any, str], str], value: Any, where: str) -> frozenset[str]:
    several = isinstance(value, list | tuple | set | frozenset)
    items = cast("Iterable[Any]", value) if several else (value,)
    return frozenset(read(item, where) for item in items)


def read_queries(value: Any, where: str) -> list[SpanQuery]:
    """Return a list of span queries."""
    if not isinstance(value, list | tuple):
        raise _expected("a list of span queries", value, where)
    queries = cast(Sequence[Any], value)
    return [SpanQuery.parse(query, f"{where}[{i}]") for i, query in enumerate(queries)]


_STATUSES = ("unset", "ok", "error", "timeout")
_KINDS = (
    *("agent", "planning", "llm", "tool", "retrieval", "handoff"),
    *("guardrail", "response", "chain", "error", "other"),
)

CONDITIONS: dict[str, Condition] = {
    "name_equals": Condition(_text, lambda at, name: at.tree.names.where({name}.__contains__)),
    "name_contains": Condition(_text, lambda at, part: at.tree.names.where(lambda s: part in s)),
    "name_matches_regex": Condition(_pattern, lambda at, regex: at.tree.names.where(regex.match)),
    "has_attributes": Condition(
        read_mapping,
        lambda at, attributes: _all_of(
            at.tree, [_has_attribute(at.tree, key, value) for key, value in attributes.items()]
        ),
    ),
    "has_attribute_keys": Condition(
        _keys, lambda at, keys: bytes([keys <= span.attributes.keys() for span in at.tree.spans])
    ),
    "has_status": Condition(
        partial(_choice, _STATUSES),
        lambda at, status: at.tree.statuses.where({status}.__contains__),
    ),
    "kind": Condition(
        partial(_one_or_more, partial(_choice, _KINDS)),
        lambda at, kinds: at.tree.kinds.where(kinds.__contains__),
    ),
    "tool_name": Condition(
        partial(_one_or_more, _text), lambda at, names: at.tree.tool_names.where(names.__contains__)
    ),
    "min_duration": Condition(_nanoseconds, _at_least(lambda tree: tree.durations)),
    "max_duration": Condition(_nanoseconds, _at_most(lambda tree: tree.durations)),
    "not_": Condition(SpanQuery.parse, lambda at, query: invert(query.mask(at.tree))),
    "and_": Condition(
        read_queries, lambda at, queries: _all_of(at.tree, [q.mask(at.tree) for q in queries])
    ),
    "or_": Condition(
        read_queries, lambda at, queries: _one_of(at.tree, [q.mask(at.tree) for q in queries])
    ),
    "min_child_count": Condition(read_count, _at_least(lambda tree: tree.child_count)),
    "max_child_count": Condition(read_count, _at_most(lambda tree: tree.child_count)),
    "some_child_has": Condition(SpanQuery.parse, _some(_on_children)),
    "all_children_have": Condition(SpanQuery.parse, _every(_on_children)),
    "no_child_has": Condition(SpanQuery.parse, _none(_on_children)),
    "min_descendant_count": Condition(read_count, _at_least(lambda tree: tree.descendant_count)),
    "max_descendant_count": Condition(read_count, _at_most(lambda tree: tree.descendant_count)),
    "some_descendant_has": Condition(SpanQuery.parse, _some(SpanTree.above)),
    "all_descendants_have": Condition(SpanQuery.parse, _every(SpanTree.above)),
    "no_descendant_has": Condition(SpanQuery.parse, _none(SpanTree.above)),
    "min_depth": Condition(read_count, _at_least(lambda tree: tree.depth)),
    "max_depth": Condition(read_count, _at_most(lambda tree: tree.depth)),
    "some_ancestor_has": Condition(SpanQuery.parse, _some(SpanTree.below)),
    "all_ancestors_have": Condition(SpanQuery.parse, _every(SpanTree.below)),
    "no_ancestor_has": Condition(SpanQuery.parse, _none(SpanTree.below)),
}


QUERY_KEYS = (*CONDITIONS, "stop_recursing_when")


# Trace queries: quantifiers and order over span queries. A result has a verdict, a reason and the
# spans concerned. A query for "some span that does not match" forbids nothing, hence `none`, `all`
# and `count` next to `any`.


class QueryResult(NamedTuple):
    """The result of a trace query: whether it holds, the reason, and the spans concerned."""

    holds: bool
    reason: str
    span_ids: list[str]


@dataclass(frozen=True, slots=True)
class TraceQuery:
    """Quantifiers over all spans of a trace, AND-ed.

    any / all / none: a span query. count: `{where: query, min: 1, max: 3}`. before, after: a
    pair of queries [A, B]: the first A starts before the first B; the last A starts after the
    last B. Both need an A and a B to exist: a misspelt query must not pass by default.
    """

    clauses: tuple[tuple[str, Any], ...]

    @classmethod
    def parse(cls, quantifiers: Mapping[str, Any], where: str = "") -> TraceQuery:
        """Parse a trace query from a mapping; report an unknown quantifier with a suggestion."""
        if not isinstance(quantifiers, Mapping) or not quantifiers:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise QueryError(
                f"a trace query needs one of {', '.join(QUANTIFIERS)}", where=where or None
            )
        clauses: list[tuple[str, Any]] = []
        for name, value in quantifiers.items():
            if name not in QUANTIFIERS:
                hint = did_you_mean(str(name), QUANTIFIERS)
                if name in QUERY_KEYS:
                    hint = f"conditions on a span go below a quantifier, as in `any: {{{name}: …}}`"
                raise QueryError(f"unknown quantifier {name!r}", where=where or None, hint=hint)
            clauses.append((name, QUANTIFIERS[name].parse(value, f"{where}.{name}".strip("."))))
        return cls(tuple(clauses))

    def evaluate(self, tree: SpanTree) -> QueryResult:
        """Evaluate all quantifiers on the trace; the first that fails gives the reason."""
        results = [QUANTIFIERS[name].holds(tree, argument) for name, argument in self.clauses]
        for result in results:
            if not result.holds:
                return result
        ids = list(dict.fromkeys(span_id for result in results for span_id in result.span_ids))
        return QueryResult(True, "; ".join(result.reason for result in results), ids)


class Count(NamedTuple):
    """Bounds on the number of spans that match a query; None is unbounded."""

    where: SpanQuery
    least: int | None
    most: int | None


class Quantifier(NamedTuple):
    """A quantifier: how it parses its argument and evaluates a trace."""

    parse: Callable[[Any, str], Any]
    holds: Callable[[SpanTree, Any], QueryResult]


def _ids(tree: SpanTree, mask: Mask) -> list[str]:
    return [span.span_id for span in compress(tree.spans, mask)]


def _exists(tree: SpanTree, query: SpanQuery, *, expected: bool) -> QueryResult:
    ids = _ids(tree, query.mask(tree))
    reason = f"{len(ids)} of {len(tree)} spans match {query}"
    return QueryResult(bool(ids) is expected, reason, ids)


def _all(tree: SpanTree, query: SpanQuery) -> QueryResult:
    others = _ids(tree, invert(query.mask(tree)))
    reason = f"{len(others)} of {len(tree)} spans do not match {query}"
    return QueryResult(not others, reason, others)


def _counted(tree: SpanTree, count: Count) -> QueryResult:
    ids = _ids(tree, count.where.mask(tree))
    most = math.inf if count.most is None else count.most
    holds = (count.least or 0) <= len(ids) <= most
    bounds = (("at least", count.least), ("at most", count.most))
    expected = " and ".join(f"{words} {bound}" for words, bound in bounds if bound is not None)
    reason = f"{len(ids)} of {len(tree)} spans match {count.where}, expected {expected}"
    return QueryResult(holds, reason, ids)


def _read_bounds(value: Any, where: str) -> Count:
    known = ("where", "min", "max")
    mapping = read_mapping(value, where)
    for key in mapping:
        if key not in known:
            raise QueryError(f"unknown key {key!r}", where=where, hint=did_you_mean(key, known))
    if "min" not in mapping and "max" not in mapping:
        raise QueryError("count needs min, max or both", where=where)
    least, most = (
        read_count(mapping[bound], f"{where}.{bound}") if bound in mapping else None
        for bound in ("min", "max")
    )
    if least is not None and most is not None and least > most:
        raise QueryError(f"min {least} is more than max {most}", where=where)
    return Count(SpanQuery.parse(mapping.get("where", {}), f"{where}.where"), least, most)


def _read_pair(value: Any, where: str) -> list[SpanQuery]:
    pair = read_queries(value, where)
    if len(pair) != 2:
        raise QueryError(f"expected a pair of span queries, got {len(pair)}", where=where)
    return pair


def _ordered(tree: SpanTree, pair: list[SpanQuery], *, last: bool) -> QueryResult:
    masks = [query.mask(tree) for query in pair]
    ends = [mask.rfind(1) if last else mask.find(1) for mask in masks]
    for query, end in zip(pair, ends, strict=True):
        if end < 0:
            return QueryResult(False, f"no span matches {query}", [])
    first, second = (tree.at(end) for end in ends)
    holds = ends[0] > ends[1] if last else ends[0] < ends[1]
    which, relation = ("last", "after") if last else ("first", "before")
    verb = "starts" if holds else "does not start"
    ours, theirs = (f"{which} {q} ({n.name})" for q, n in zip(pair, (first, second), strict=True))
    reason = f"the {ours} {verb} {relation} the {theirs}"
    return QueryResult(holds, reason, [first.span_id, second.span_id])


QUANTIFIERS: dict[str, Quantifier] = {
    "any": Quantifier(SpanQuery.parse, partial(_exists, expected=True)),
    "all": Quantifier(SpanQuery.parse, _all),
    "none": Quantifier(SpanQuery.parse, partial(_exists, expected=False)),
    "count": Quantifier(_read_bounds, _counted),
    "before": Quantifier(_read_pair, partial(_ordered, last=False)),
    "after": Quantifier(_read_pair, partial(_ordered, last=True)),
}


def parse_query(mapping: Mapping[str, Any]) -> SpanQuery | TraceQuery:
    """Return a span query, or a trace query when its keys are quantifiers."""
    if isinstance(mapping, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        if any(key in QUANTIFIERS for key in mapping):
            return TraceQuery.parse(mapping)
        for key in mapping:
            if key not in QUERY_KEYS:
                known = (*QUANTIFIERS, *QUERY_KEYS)
                raise QueryError(f"unknown key {key!r}", hint=did_you_mean(str(key), known))
    return SpanQuery.parse(mapping)


# Span and trace queries as users type them: YAML or JSON text, or `@file`. Invalid input gives a
# one-line error with its position in the text; nothing in a query is ever executed.


def read_query_text(text: str) -> SpanQuery | TraceQuery:
    """Parse a query from text, or from the file that `@path` names."""
    where, body = "query", text
    if text.startswith("@"):
        where = text[1:]
        try:
            body = Path(where).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise QueryError(f"cannot read the query: {reason}", where=where) from None
    mapping = _mapping(body, where)
    try:
        return parse_query(mapping)
    except QueryError as error:
        place = f"{where}: {error.where}" if error.where else where
        raise QueryError(error.message, where=place, hint=error.hint) from None


def _mapping(body: str, where: str) -> dict[str, Any]:
    import yaml

    try:
        loaded: Any = load_yaml(body)
    except yaml.MarkedYAMLError as error:
        mark, lines = error.problem_mark, body.splitlines() or [""]
        place = where
        if mark and mark.line < len(lines):
            place = f"{where}:{mark.line + 1}:{mark.column + 1}"
        elif mark:  # what is missing is missing at the end of the last line
            place = f"{where}:{len(lines)}:{len(lines[-1]) + 1}"
        raise QueryError(f"not YAML: {error.problem or 'cannot be read'}", where=place) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise QueryError(f"not YAML: {str(error).splitlines()[0]}", where=where) from None
    if not isinstance(loaded, dict):
        raise QueryError(
            f"a query is a mapping, not {'nothing' if loaded is None else repr(loaded)[:60]}",
            where=where,
            hint="for example '{kind: tool, has_status: error}'",
        )
    mapping = cast("dict[Any, Any]", loaded)
    return {str(key): value for key, value in mapping.items()}

"""What holds of a whole trace: quantifiers and order over span queries.

Promise: a result says whether it holds, why, and which spans it is about. Asking for "some span
that does not match" forbids nothing, hence `none`, `all` and `count` beside `any`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Any, NamedTuple

from proctor.errors import did_you_mean
from proctor.trace.query import (
    QUERY_KEYS,
    QueryError,
    SpanQuery,
    invert,
    read_count,
    read_mapping,
    read_queries,
    read_query,
)
from proctor.trace.tree import Mask, SpanTree


class QueryResult(NamedTuple):
    """Whether something holds of a trace, why, and the spans it is about."""

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
        """A trace query from a mapping; an unknown quantifier is an error with a suggestion."""
        if not isinstance(quantifiers, Mapping) or not quantifiers:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise QueryError(
                f"a trace query needs one of {', '.join(QUANTIFIERS)}", where=where or None
            )
        clauses: list[tuple[str, Any]] = []
        for name, value in quantifiers.items():
            if name not in QUANTIFIERS:
                raise QueryError(
                    f"unknown quantifier {name!r}", where=where or None, hint=_quantifier_hint(name)
                )
            clauses.append((name, QUANTIFIERS[name].parse(value, f"{where}.{name}".strip("."))))
        return cls(tuple(clauses))

    def evaluate(self, tree: SpanTree) -> QueryResult:
        """Whether all quantifiers hold of the trace; the first that does not gives the reason."""
        results = [QUANTIFIERS[name].holds(tree, argument) for name, argument in self.clauses]
        for result in results:
            if not result.holds:
                return result
        ids = list(dict.fromkeys(span_id for result in results for span_id in result.span_ids))
        return QueryResult(True, "; ".join(result.reason for result in results), ids)


class Count(NamedTuple):
    """How many spans must match a query; a bound that is None does not bind."""

    where: SpanQuery
    least: int | None
    most: int | None


class Quantifier(NamedTuple):
    """How one quantifier reads its argument and judges a trace."""

    parse: Callable[[Any, str], Any]
    holds: Callable[[SpanTree, Any], QueryResult]


def _quantifier_hint(name: object) -> str | None:
    if name in QUERY_KEYS:
        return f"conditions on a span go below a quantifier, as in `any: {{{name}: …}}`"
    return did_you_mean(str(name), QUANTIFIERS)


def _ids(tree: SpanTree, mask: Mask) -> list[str]:
    return [span.span_id for span in compress(tree.spans, mask)]


def _any(tree: SpanTree, query: SpanQuery) -> QueryResult:
    found = _ids(tree, query.mask(tree))
    return QueryResult(bool(found), f"{len(found)} of {len(tree)} spans match {query}", found)


def _all(tree: SpanTree, query: SpanQuery) -> QueryResult:
    others = _ids(tree, invert(query.mask(tree)))
    reason = f"{len(others)} of {len(tree)} spans do not match {query}"
    return QueryResult(not others, reason, others)


def _no(tree: SpanTree, query: SpanQuery) -> QueryResult:
    found = _ids(tree, query.mask(tree))
    return QueryResult(not found, f"{len(found)} of {len(tree)} spans match {query}", found)


def _counted(tree: SpanTree, count: Count) -> QueryResult:
    found = _ids(tree, count.where.mask(tree))
    holds = (count.least is None or len(found) >= count.least) and (
        count.most is None or len(found) <= count.most
    )
    bounds = [
        f"at least {count.least}" if count.least is not None else "",
        f"at most {count.most}" if count.most is not None else "",
    ]
    asked = " and ".join(filter(None, bounds))
    reason = f"{len(found)} of {len(tree)} spans match {count.where}, asked for {asked}"
    return QueryResult(holds, reason, found)


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


def _before(tree: SpanTree, pair: list[SpanQuery]) -> QueryResult:
    return _ordered(tree, pair, last=False)


def _after(tree: SpanTree, pair: list[SpanQuery]) -> QueryResult:
    return _ordered(tree, pair, last=True)


QUANTIFIERS: dict[str, Quantifier] = {
    "any": Quantifier(read_query, _any),
    "all": Quantifier(read_query, _all),
    "none": Quantifier(read_query, _no),
    "count": Quantifier(_read_bounds, _counted),
    "before": Quantifier(_read_pair, _before),
    "after": Quantifier(_read_pair, _after),
}


def parse_query(mapping: Mapping[str, Any]) -> SpanQuery | TraceQuery:
    """A span query, or a trace query when its keys are quantifiers."""
    if isinstance(mapping, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        if any(key in QUANTIFIERS for key in mapping):
            return TraceQuery.parse(mapping)
        for key in mapping:
            if key not in QUERY_KEYS:
                known = (*QUANTIFIERS, *QUERY_KEYS)
                raise QueryError(f"unknown key {key!r}", hint=did_you_mean(str(key), known))
    return SpanQuery.parse(mapping)

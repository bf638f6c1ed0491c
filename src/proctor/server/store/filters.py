"""Which traces are meant: what a person may filter a list by, as a condition of SQL.

Values are always parameters, never part of a statement.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from proctor.errors import ProctorError, hint_among

SORTS = {
    "newest": "started_ns DESC, trace_id DESC",
    "started": "started_ns, trace_id",
    "slowest": "duration_ms DESC NULLS LAST, trace_id",
    "costliest": "cost_usd DESC NULLS LAST, trace_id",
    "worst": "score ASC NULLS LAST, trace_id",
    "most_errors": "errors DESC, started_ns DESC, trace_id",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFilter:
    """What the traces must have; what is None or empty does not matter."""

    text: str = ""
    """Words in the name, query, response or id."""
    request_id: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    service: str | None = None
    status: Literal["ok", "error"] | None = None
    tool: str | None = None
    model: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    min_score: float | None = None
    max_score: float | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list, in which order."""

    limit: int = 50
    offset: int = 0
    sort: str = "newest"

    @property
    def order_by(self) -> str:
        """The order as SQL."""
        found = SORTS.get(self.sort)
        if found is None:
            raise ProctorError(
                f"no order {self.sort!r}",
                hint=hint_among(self.sort, SORTS),
            )
        return found


_EQUAL = ("request_id", "session_id", "user_id", "service", "status")
_BOUNDS = {
    "since_ns": "started_ns >=",
    "until_ns": "started_ns <",
    "min_ms": "duration_ms >=",
    "max_ms": "duration_ms <=",
    "min_score": "score >=",
    "max_score": "score <=",
}
_USED = ("tool", "model")


EVERYTHING = "1 = 1"
"""The condition of a filter that asks for nothing."""

_HEX = frozenset("0123456789abcdefABCDEF")


def where(
    chosen: TraceFilter, mark: str, like: str, *, whole: bool = False
) -> tuple[str, list[Any]]:
    """The condition, and the values of its parameters in order.

    `like` is how the database finds a pattern in a column, capital letters or small. `whole`
    says that all its traces are wanted, not a page of them.
    """
    parts: list[str] = []
    values: list[Any] = []
    for name in _EQUAL:
        if (value := getattr(chosen, name)) is not None:
            parts.append(f"{name} = {mark}")
            values.append(value)
    for name, condition in _BOUNDS.items():
        if (value := getattr(chosen, name)) is not None:
            parts.append(f"{condition} {mark}")
            values.append(value)
    for kind in _USED:
        if (value := getattr(chosen, kind)) is not None:
            of = f"u.kind = '{kind}' AND u.name = {mark}"
            if whole:
                parts.append(f"trace_id IN (SELECT u.trace_id FROM uses u WHERE {of})")
            else:  # a page of a common value is found without collecting all its traces
                here = f"u.trace_id = traces.trace_id AND {of}"
                parts.append(f"EXISTS (SELECT 1 FROM uses u WHERE {here})")
            values.append(value)
    for word in chosen.text.split():
        columns = ["name", "query", "response", *(["trace_id"] if _HEX.issuperset(word) else [])]
        parts.append("(" + " OR ".join(like.format(column=c, mark=mark) for c in columns) + ")")
        values += [f"%{_literal(word)}%"] * len(columns)
    return " AND ".join(parts) or EVERYTHING, values


def only_use(chosen: TraceFilter) -> tuple[str, str] | None:
    """The kind and name of a filter by one tool or one model and nothing else.

    Such a filter is answered from what traces use, without looking for its traces one by one.
    """
    for kind in _USED:
        name = getattr(chosen, kind)
        if name is not None and chosen == replace(TraceFilter(), **{kind: name}):
            return kind, name
    return None


def _literal(word: str) -> str:
    """A word that stands for itself in LIKE."""
    return "".join(f"!{c}" if c in "!%_" else c for c in word)

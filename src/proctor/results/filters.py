"""Validate the user's trial filters and translate them to SQL conditions.

Guarantees: a filter either narrows the trials or raises; none is silently ignored. Times without a
zone are UTC; a date without a time means its whole day, at either end.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple, TypedDict, cast

from proctor.errors import ProctorError, did_you_mean, hint_among
from proctor.results.database import Named, literal, named

STATUSES = ("passed", "failed", "hard_fail", "infra_error", "not_judged", "cancelled")

Names = str | Sequence[str]
"""One name or glob, or several of which one must match."""

When = str | date | datetime
"""A point in time: ISO 8601, a date, or an age such as `7d`, `12h`."""


class Filters(TypedDict, total=False):
    """Filters of trials; all of them must match."""

    agent: Names
    case: Names
    tag: Names
    experiment: Names
    model: Names
    status: Names
    since: When
    until: When
    min_score: float
    max_score: float
    where: Mapping[str, Any] | Sequence[str]


class SqlCondition(NamedTuple):
    """An SQL condition and the columns it reads."""

    sql: str
    columns: frozenset[str]


def conditions(filters: Filters, clock: Callable[[], datetime] | None = None) -> list[SqlCondition]:
    """Return one condition per filter."""
    unknown = [name for name in filters if name not in Filters.__annotations__]
    if unknown:
        raise ProctorError(
            f"there is no filter {unknown[0]!r}",
            hint="it is `case` here"
            if unknown[0] == "scenario"
            else did_you_mean(unknown[0], Filters.__annotations__)
            or f"filters: {', '.join(Filters.__annotations__)}; or where={{'column': value}}",
        )
    now = clock() if clock else datetime.now(UTC)
    result = [
        _matches(named(name), value)
        for name in ("agent", "case", "experiment", "model")
        if (value := filters.get(name)) is not None
    ]
    if (tag := filters.get("tag")) is not None:
        tests = [
            f"len(list_filter(list_concat(tags, run_tags), lambda x: {_word_test('x', word)})) > 0"
            for word in names(tag)
        ]
        result.append(
            SqlCondition(f"({' OR '.join(tests) or 'FALSE'})", frozenset({"tags", "run_tags"}))
        )
    if (status := filters.get("status")) is not None:
        statuses = [word.lower() for word in split_names(status)]
        for word in statuses:
            if word not in STATUSES:
                raise ProctorError(f"{word!r} is not a status", hint=hint_among(word, STATUSES))
        listed = ", ".join(map(literal, statuses))
        result.append(SqlCondition(f"status IN ({listed})", frozenset({"status"})))
    if (since := filters.get("since")) is not None:
        result.append(_started(">=", moment(since, now)))
    if (until := filters.get("until")) is not None:
        result.append(_started("<", moment(until, now, end=True)))
    for name, sign in (("min_score", ">="), ("max_score", "<=")):
        if (bound := filters.get(name)) is not None:
            result.append(
                SqlCondition(f"score {sign} {literal(_number(bound))}", frozenset({"score"}))
            )
    result.extend(_where(filters.get("where") or ()))
    return result


def split_names(value: Names) -> list[str]:
    """Return the names; a text may contain several, separated by commas."""
    parts = value.split(",") if isinstance(value, str) else [str(part) for part in value]
    return [part.strip() for part in parts if part.strip()]


def names(value: Names) -> list[str]:
    """Same as `split_names`, plus the whole text: a name may contain a comma."""
    parts = split_names(value)
    return [value, *parts] if isinstance(value, str) and len(parts) > 1 else parts


def is_glob(text: str) -> bool:
    """Return whether a text is a pattern rather than a name."""
    return any(character in text for character in "*?[")


def _matches(column: Named, value: Names) -> SqlCondition:
    tests = [_word_test(column.sql, word) for word in names(value)]
    return SqlCondition(f"({' OR '.join(tests) or 'FALSE'})", frozenset({column.base}))


def _word_test(sql: str, word: str) -> str:
    # A name may contain glob characters, so an exact match also counts.
    same = f"{sql} = {literal(word)}"
    return f"({same} OR {sql} GLOB {literal(word)})" if is_glob(word) else same


def _started(sign: str, when: datetime) -> SqlCondition:
    text = when.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")
    # A trial cancelled before it started has no start time of its own.
    sql = f"coalesce(started, run_started) {sign} TIMESTAMP {literal(text)}"
    return SqlCondition(sql, frozenset({"started", "run_started"}))


_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(m|min|h|d|w)")
_UNITS = {"m": "minutes", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(value: When, now: datetime, *, end: bool = False) -> datetime:
    """Parse a point in time. `end` extends a bare date to its last instant."""
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if isinstance(value, date):
        day = datetime(value.year, value.month, value.day, tzinfo=UTC)
        # `until` is exclusive, so the whole day ends where the next one begins.
        return day + timedelta(days=1) if end else day
    text = value.strip()
    if age := _AGE.fullmatch(text):
        return now - timedelta(**{_UNITS[age[2]]: float(age[1])})
    if text in ("today", "yesterday"):
        back = timedelta(days=1 if text == "yesterday" else 0)
        return moment((now.astimezone(UTC) - back).date(), now, end=end)
    try:
        if re.fullmatch(r"\d{4}-?\d\d-?\d\d", text):
            return moment(date.fromisoformat(text), now, end=end)
        return moment(datetime.fromisoformat(text), now)
    except ValueError:
        raise ProctorError(
            f"{value!r} is not a date", hint="write 2026-11-16, 2026-11-16T09:30, 7d, 12h or today"
        ) from None


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ProctorError(f"{value!r} is not a number") from None


# -- any column ----------------------------------------------------------------------------------

_TEST = re.compile(r"\s*([\w.\-]+)\s*(!=|<=|>=|=|<|>)\s*(.*)", re.DOTALL)


def _where(tests: Mapping[str, Any] | Iterable[str]) -> list[SqlCondition]:
    if isinstance(tests, Mapping):
        equal = cast("Mapping[str, Any]", tests)
        return [_equal(named(name), value) for name, value in equal.items()]
    return [_test(text) for text in ([tests] if isinstance(tests, str) else tests)]


def _equal(column: Named, value: Any) -> SqlCondition:
    """Match a column against several values; None matches NULL."""
    several = isinstance(value, list | tuple | set | frozenset)
    options = cast("Iterable[Any]", value) if several else [value]
    tests = [_same(column, option) for option in options]
    return SqlCondition(f"({' OR '.join(tests) or 'FALSE'})", frozenset({column.base}))


def _same(column: Named, value: Any) -> str:
    if value is None:
        return f"{column.sql} IS NULL"
    if isinstance(value, bool):
        # Properties are stored as JSON, where a boolean is the text `true` or `false`.
        text = literal("true" if value else "false")
        return f"lower({column.sql}::VARCHAR) = {text}"
    if isinstance(value, int | float):
        # A property may be text in some cases, and a plain cast would fail the whole query.
        return f"TRY_CAST({column.sql} AS DOUBLE) = {literal(value)}"
    if column.kind.endswith("[]"):
        return f"list_contains({column.sql}, {literal(value)})"
    return _word_test(f"{column.sql}::VARCHAR", str(value))


def _test(text: str) -> SqlCondition:
    """Parse `column=value`, `!=`, `<`, `<=`, `>`, `>=`; numbers compare as numbers."""
    parts = _TEST.fullmatch(text)
    if parts is None:
        raise ProctorError(
            f"cannot read the condition {text!r}", hint="write difficulty=hard or properties.n>=3"
        )
    column, sign, value = named(parts[1]), parts[2], parts[3].strip()
    columns = frozenset({column.base})
    if sign == "=":
        return _equal(column, _typed(column, value))
    if sign == "!=":
        # `!=` also matches NULL: a case without the property does not have that value.
        return SqlCondition(f"NOT coalesce({_same(column, _typed(column, value))}, FALSE)", columns)
    try:
        bound = literal(float(value))
        return SqlCondition(f"TRY_CAST({column.sql} AS DOUBLE) {sign} {bound}", columns)
    except ValueError:
        if column.kind == "TIMESTAMP":
            when = moment(value, datetime.now(UTC)).astimezone(UTC).replace(tzinfo=None)
            return SqlCondition(f"{column.sql} {sign} TIMESTAMP {literal(str(when))}", columns)
        return SqlCondition(f"{column.sql}::VARCHAR {sign} {literal(value)}", columns)


def _typed(column: Named, value: str) -> Any:
    """Convert a command-line value to the type of this column."""
    if value == "null":
        return None
    if column.numeric or column.base != column.name:
        with contextlib.suppress(ValueError):
            return float(value)
    return value

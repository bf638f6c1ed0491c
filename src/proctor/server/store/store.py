"""One interface over both databases: write, query, count and prune traces.

Guarantees: `write` is all or nothing and returns when the batch is on disk; the totals of a trace
are right after every write, whatever the order of its spans; a span sent twice is one span. The
statements are the same for both databases; only connections and bulk writes differ.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

from proctor.errors import ProctorError, hint_among
from proctor.llm.prices import PriceTable
from proctor.server.store._schema import ACCESS_TABLES, INDEXES, SPAN_COLUMNS, TABLES, VERSION
from proctor.server.store._writer import MANY, Writing, distinct
from proctor.server.store.rows import Batch, span_from, trace_from
from proctor.trace import Trace
from proctor.trace.conventions.values import encode_json

SORTS = {
    "newest": "started_ns DESC, trace_id DESC",
    "started": "started_ns, trace_id",
    "slowest": "duration_ms DESC NULLS LAST, trace_id",
    "costliest": "cost_usd DESC NULLS LAST, trace_id",
    "worst": "score ASC NULLS LAST, trace_id",
    "most_errors": "errors DESC, started_ns DESC, trace_id",
}


OneOf = str | tuple[str, ...]
"""A value, or several of which a trace must have one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFilter:
    """What traces must have; None or empty means any."""

    text: str = ""
    """Words that must occur in the name, query, response or id."""
    request_id: OneOf | None = None
    session_id: OneOf | None = None
    user_id: OneOf | None = None
    service: OneOf | None = None
    status: OneOf | None = None
    """`ok` or `error`."""
    tool: OneOf | None = None
    model: OneOf | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    min_score: float | None = None
    max_score: float | None = None
    ids: tuple[str, ...] | None = None
    """Traces, as `SqlStore.narrow` finds them."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which part of a list, in which order."""

    limit: int = 50
    offset: int = 0
    sort: str = "newest"

    @property
    def order_by(self) -> str:
        """Return the order as SQL."""
        found = SORTS.get(self.sort)
        if found is None:
            raise ProctorError(f"no order {self.sort!r}", hint=hint_among(self.sort, SORTS))
        return found


_EQUAL = ("request_id", "session_id", "user_id", "service", "status")
_CONDITIONS = {
    "since_ns": "started_ns >=",
    "until_ns": "started_ns <",
    "min_ms": "duration_ms >=",
    "max_ms": "duration_ms <=",
    "min_score": "score >=",
    "max_score": "score <=",
}
_USED = ("tool", "model")

FACETS = ("service", "status", "model", "tool", "session_id", "user_id")
"""What traces are counted by, for a reader to choose from."""


# The condition of an empty filter.
EVERYTHING = "1 = 1"

_HEX = frozenset("0123456789abcdefABCDEF")


def where(
    chosen: TraceFilter, mark: str, like: str, in_json: str, *, whole: bool = False
) -> tuple[str, list[Any]]:
    """Return the condition of a filter and the values of its parameters, in order.

    Values are always parameters, never part of the statement. `like` is the database's
    case-insensitive LIKE, `in_json` its test for a list in JSON. `whole` means that all its traces
    are wanted, not one page.
    """
    parts: list[str] = []
    values: list[Any] = []
    for name in _EQUAL:
        if several := _several(chosen, name):
            parts.append(f"{name} {_among(several, mark)}")
            values += several
    for name, condition in _CONDITIONS.items():
        if (value := getattr(chosen, name)) is not None:
            parts.append(f"{condition} {mark}")
            values.append(value)
    for kind in _USED:
        if several := _several(chosen, kind):
            of = f"u.kind = '{kind}' AND u.name {_among(several, mark)}"
            if whole:
                parts.append(f"trace_id IN (SELECT u.trace_id FROM uses u WHERE {of})")
            else:  # a page of a common value is found without collecting all of its traces
                here = f"u.trace_id = traces.trace_id AND {of}"
                parts.append(f"EXISTS (SELECT 1 FROM uses u WHERE {here})")
            values += several
    if chosen.ids is not None:
        parts.append(f"trace_id {in_json.format(mark=mark)}")
        values.append(encode_json(chosen.ids))
    for word in chosen.text.split():
        columns = ["name", "query", "response", *(["trace_id"] if _HEX.issuperset(word) else [])]
        parts.append("(" + " OR ".join(like.format(column=c, mark=mark) for c in columns) + ")")
        escaped = "".join(f"!{c}" if c in "!%_" else c for c in word)
        values += [f"%{escaped}%"] * len(columns)
    return " AND ".join(parts) or EVERYTHING, values


def _several(chosen: TraceFilter, name: str) -> tuple[str, ...]:
    value: OneOf | None = getattr(chosen, name)
    return (value,) if isinstance(value, str) else value or ()


def _among(values: Sequence[str], mark: str) -> str:
    return f"= {mark}" if len(values) == 1 else f"IN ({', '.join([mark] * len(values))})"


def only_use(chosen: TraceFilter) -> tuple[str, str] | None:
    """Return kind and name of a filter by one tool or one model and nothing else.

    Such a filter is answered from the table `uses` alone.
    """
    for kind in _USED:
        name: OneOf | None = getattr(chosen, kind)
        if isinstance(name, str) and chosen == replace(TraceFilter(), **{kind: name}):
            return kind, name
    return None


class StoreError(ProctorError):
    """A store that cannot be used."""


class BadRows(StoreError):
    """Rows that the database rejects: the store is fine, the data is not."""


class TraceRow(NamedTuple):
    """A line of a list of traces."""

    trace_id: str
    name: str | None
    service: str | None
    query: str | None
    response: str | None
    request_id: str | None
    session_id: str | None
    user_id: str | None
    started_ns: int
    ended_ns: int | None
    duration_ms: float | None
    status: str
    spans: int
    errors: int
    llm_calls: int
    tool_calls: int
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    unpriced: int
    """Model calls without a known price: with any, the cost is a lower bound."""
    updated_ns: int
    evaluated_ns: int
    score: float | None
    findings: int | None


LABEL = "label:"
"""How the name of an evaluation by a person begins; the rater follows."""


class StoredEvaluation(NamedTuple):
    """One evaluation of a trace."""

    trace_id: str
    name: str
    score: float | None
    label: str | None
    detail: str
    at_ns: int


Role = Literal["viewer", "writer", "admin"]
"""A viewer reads, a writer also labels, promotes and sends spans, an admin also manages tokens."""


class StoredToken(NamedTuple):
    """Who may use the server; the token is known by its hash only."""

    name: str
    hash: str
    role: str
    project: str | None
    """None: the server's own store and results."""
    created_ns: int
    revoked_ns: int | None = None


class AuditRow(NamedTuple):
    """Who changed what through the server."""

    at_ns: int
    who: str
    action: str
    detail: str


def token_hash(token: str) -> str:
    """Return the SHA-256 of a token: with 256 random bits it needs no salt and no slow hash."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


# Names in audit rows, headers and terminals.
_TOKEN_NAME = re.compile(r"\w[\w.@+-]{0,99}")


class Figures(NamedTuple):
    """Totals over the traces of a filter."""

    traces: int
    failed: int
    """Traces with a failed span."""
    spans: int
    errors: int
    """Failed spans."""
    unpriced: int
    """Model calls without a known price: with any, the cost is a lower bound."""
    cost_usd: float | None
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None

    @property
    def error_rate(self) -> float | None:
        """Return the share of traces with a failed span; None without traces."""
        return self.failed / self.traces if self.traces else None


class Period(NamedTuple):
    """The traces that started within one minute, hour or day."""

    start_ns: int
    traces: int
    failed: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    seconds: int
    """How long it is."""

    @property
    def error_rate(self) -> float:
        """Return the share of traces with a failed span."""
        return self.failed / self.traces


PERIODS = {"minute": 60, "hour": 3600, "day": 86_400}
"""Lengths of periods, in seconds. They start at full minutes, hours and days in UTC."""

SHOWN_PERIODS = 48

RARE = 2_000
"""Traces up to which those with a tool or model are collected before a page is chosen."""

MANY_FOUND = 20_000
"""Traces up to which those with the words of a filter are collected first."""

SHOWN_VALUES = 10
"""Values of a facet."""


class FacetValue(NamedTuple):
    """A value that traces have, and how many do."""

    value: str
    traces: int


class SessionRow(NamedTuple):
    """The traces of one session, within a filter."""

    session_id: str
    user_id: str | None
    traces: int
    failed: int
    first_ns: int
    last_ns: int
    llm_calls: int
    tool_calls: int
    tokens: int | None
    cost_usd: float | None
    unpriced: int


class Use(NamedTuple):
    """A tool or a model: how many traces use it, how often, and how many of the calls failed."""

    name: str
    traces: int
    calls: int
    errors: int


class TracePage(NamedTuple):
    """A page of traces, and the number of all traces of the filter."""

    total: int
    rows: list[TraceRow]


_ROW = ", ".join(TraceRow._fields)
_SPAN = ", ".join(SPAN_COLUMNS)


class SqlStore(ABC):
    """A trace store in a database; the module lists its guarantees."""

    mark: str
    """The placeholder of a parameter: `?` or `%s`."""
    types: ClassVar[dict[str, str]]
    """The database's names for the types of the schema."""
    like: str
    """Case-insensitive LIKE (ASCII), with `{column}` and `{mark}`."""
    in_json: str
    """Whether a list in JSON has a value, with `{mark}`."""
    join_in_order = "JOIN"
    """A join in the written order, where the planner would choose badly."""
    for_update = ""
    """Locks the rows of a SELECT, where a transaction does not lock the whole store."""
    prices: PriceTable | None = None
    """The user's prices, which take precedence over the published ones."""

    # -- differs between databases --------------------------------------------------------------

    @abstractmethod
    def writing(self) -> AbstractContextManager[Any]:
        """Open a transaction that is committed to disk at the end of the block."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Any]:
        """Open a cursor for reading that blocks no other connection."""

    @abstractmethod
    def add_rows(
        self, cursor: Any, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
    ) -> None:
        """Insert rows that are not stored yet."""

    @abstractmethod
    def put_spans(self, cursor: Any, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert or update span rows; an ended span is never replaced by an open one."""

    @abstractmethod
    def size(self) -> int:
        """Return the bytes on disk."""

    @abstractmethod
    def compact(self) -> None:
        """Return freed space to the disk, where the database does not do so on its own."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""

    # -- tables ---------------------------------------------------------------------------------

    def migrate(self) -> int:
        """Create or update the tables and return their version; a newer store is refused."""
        with self.writing() as cursor:
            cursor.execute(
                "CREATE TABLE IF NOT EXISTS notes (key TEXT PRIMARY KEY, value TEXT NOT NULL)"
            )
            cursor.execute("SELECT value FROM notes WHERE key = 'version'")
            row = cursor.fetchone()
            at = int(row[0]) if row else 0
            if at > VERSION:
                raise StoreError(
                    f"the store has version {at}, this program knows up to {VERSION}",
                    hint="upgrade proctor",
                )
            for table, columns in ACCESS_TABLES.items():
                cursor.execute(f"CREATE TABLE IF NOT EXISTS {table} {columns}".format(**self.types))
            if at < VERSION:
                self._make_tables(cursor, existing=at > 0)
            cursor.execute(
                f"INSERT INTO notes VALUES ('version', {self.mark}) "
                "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                (str(VERSION),),
            )
        return VERSION

    def _make_tables(self, cursor: Any, *, existing: bool) -> None:
        """Create the tables; rows of an older version are copied, column by column."""
        with_rows = [table for table in TABLES if table != "uses"] if existing else []
        for table in with_rows:
            cursor.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
        cursor.execute("DROP TABLE IF EXISTS uses")  # derived from the spans
        for table, columns in TABLES.items():
            cursor.execute(f"CREATE TABLE {table} {columns}".format(**self.types))
        for table in with_rows:
            cursor.execute(f"SELECT * FROM {table} LIMIT 0")
            known = {column[0] for column in cursor.description}
            cursor.execute(f"SELECT * FROM old_{table} LIMIT 0")
            # Chunks get new numbers in the same order: copying the old ones would not advance
            # the counter of the database.
            shared = ", ".join(c[0] for c in cursor.description if c[0] in known - {"chunk"})
            order = "ORDER BY chunk" if table == "payloads" else ""
            cursor.execute(
                f"INSERT INTO {table} ({shared}) SELECT {shared} FROM old_{table} {order}"
            )
            cursor.execute(f"DROP TABLE old_{table}")
        for name, columns in INDEXES.items():
            cursor.execute(f"CREATE INDEX {name} ON {columns}")
        if existing:
            cursor.execute("SELECT DISTINCT trace_id FROM spans")
            Writing(self, cursor).count([str(row[0]) for row in cursor.fetchall()])

    # -- writing --------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        """Store a batch; it is on disk when this returns."""
        rows = distinct(batch.spans)
        with self.writing() as cursor:
            Writing(self, cursor).put(batch, rows)

    def put_evaluations(
        self,
        trace_id: str,
        rows: Sequence[StoredEvaluation],
        *,
        score: float | None,
        findings: int | None,
        seen_ns: int | None = None,
    ) -> None:
        """Replace the evaluations of a trace; labels of people stay.

        `seen_ns` is the trace's `updated_ns` when it was read: a trace that grew since then stays
        due for evaluation. None means that it did not grow.
        """
        mark = self.mark
        with self.writing() as cursor:
            cursor.execute(
                f"DELETE FROM evaluations WHERE trace_id = {mark} AND substr(name, 1, 6) <> {mark}",
                (trace_id, LABEL),
            )
            marks = ", ".join([mark] * len(StoredEvaluation._fields))
            cursor.executemany(f"INSERT INTO evaluations VALUES ({marks})", rows)
            at = str(time.time_ns())
            if seen_ns is not None:
                at = f"CASE WHEN updated_ns = {int(seen_ns)} THEN {at} ELSE 0 END"
            cursor.execute(
                f"UPDATE traces SET evaluated_ns = {at}, score = {mark}, findings = {mark} "
                f"WHERE trace_id = {mark}",
                (score, findings, trace_id),
            )

    def put_label(
        self, trace_id: str, rater: str, verdict: str, *, category: str, comment: str
    ) -> None:
        """Store what a rater says of a trace, instead of an earlier label of the same rater."""
        detail = encode_json({"why": comment, "category": category, "rater": rater})
        score = {"pass": 1.0, "fail": 0.0}.get(verdict)
        row = StoredEvaluation(trace_id, f"{LABEL}{rater}", score, verdict, detail, time.time_ns())
        mark = self.mark
        with self.writing() as cursor:
            cursor.execute(
                f"DELETE FROM evaluations WHERE trace_id = {mark} AND name = {mark}",
                (trace_id, row.name),
            )
            marks = ", ".join([mark] * len(row))
            cursor.execute(f"INSERT INTO evaluations VALUES ({marks})", row)

    # -- access ---------------------------------------------------------------------------------

    def tokens(self) -> list[StoredToken]:
        """Return all tokens, revoked ones included."""
        columns = ", ".join(StoredToken._fields)
        rows = self._all(f"SELECT {columns} FROM tokens ORDER BY created_ns, name")
        return [StoredToken(*row) for row in rows]

    def add_token(self, name: str, role: Role, project: str | None, *, who: str) -> str:
        """Generate a token, store its hash, and return the token: it is stored nowhere."""
        if not _TOKEN_NAME.fullmatch(name):
            raise ProctorError(
                f"{name[:100]!r} cannot name a token",
                hint="letters, digits, `_`, `.`, `@`, `+` and `-`, at most 100",
            )
        if role == "admin" and project is not None:
            raise ProctorError(
                "an admin manages the tokens of all projects", hint="leave out the project"
            )
        token = secrets.token_urlsafe(32)
        mark = self.mark
        with self.writing() as cursor:
            cursor.execute(f"SELECT 1 FROM tokens WHERE name = {mark}", (name,))
            if cursor.fetchone():
                raise ProctorError(
                    f"there is or was a token {name!r}",
                    hint="choose another name: the audit names tokens, so each name is used once",
                )
            row = StoredToken(name, token_hash(token), role, project, time.time_ns())
            self.add_rows(cursor, "tokens", StoredToken._fields, [row])
            place = f" of project {project}" if project else ""
            self._add_audit(cursor, who, "token add", f"{name}: {role}{place}")
        return token

    def revoke_token(self, name: str, *, who: str) -> None:
        """Revoke a token: servers refuse it within seconds."""
        mark = self.mark
        with self.writing() as cursor:
            cursor.execute(
                f"UPDATE tokens SET revoked_ns = {mark} WHERE name = {mark} AND revoked_ns IS NULL",
                (time.time_ns(), name),
            )
            if not cursor.rowcount:
                raise ProctorError(f"no valid token {name[:100]!r}", hint="see the list of tokens")
            self._add_audit(cursor, who, "token revoke", name)

    def add_audit(self, who: str, action: str, detail: str) -> None:
        """Record a change."""
        with self.writing() as cursor:
            self._add_audit(cursor, who, action, detail)

    def _add_audit(self, cursor: Any, *what: str) -> None:
        self.add_rows(cursor, "audit", AuditRow._fields, [(time.time_ns(), *what)])

    def audit(self, limit: int = 100) -> list[AuditRow]:
        """Return the latest changes, newest first."""
        columns = ", ".join(AuditRow._fields)
        statement = f"SELECT {columns} FROM audit ORDER BY number DESC LIMIT {int(limit)}"
        return [AuditRow(*row) for row in self._all(statement)]

    # -- querying -------------------------------------------------------------------------------

    def traces(
        self, chosen: TraceFilter | None = None, page: PageRequest | None = None
    ) -> list[TraceRow]:
        """Return one page of the traces of a filter."""
        page = page or PageRequest()
        condition, values = self._where(chosen, whole=self._rarely_used(chosen or TraceFilter()))
        order = page.order_by
        # The ids first, from an index where there is one: a late page does not read the rows before
        # it.
        statement = f"""
            SELECT {_ROW} FROM traces WHERE trace_id IN (
                SELECT trace_id FROM traces WHERE {condition}
                ORDER BY {order} LIMIT {int(page.limit)} OFFSET {int(page.offset)})
            ORDER BY {order}
        """
        return [TraceRow(*row) for row in self._all(statement, values)]

    def found(self, chosen: TraceFilter, page: PageRequest) -> TracePage:
        """Return one page of the traces of a filter, and their number."""
        chosen = self.narrow(chosen)
        return TracePage(self.count(chosen), self.traces(chosen, page))

    def narrow(self, chosen: TraceFilter) -> TraceFilter:
        """Return a filter with the ids of the traces that have its words, unless there are many.

        No index answers words. With the ids, counts, facets and a page of few traces read the texts
        of all traces once; of many traces a page is found soon, in the order of an index.
        """
        if not chosen.text:
            return chosen
        # The counts of a facet leave out its own values, so the ids must not depend on them.
        words = replace(chosen, **dict.fromkeys(FACETS))
        condition, values = self._where(words)
        found = self._all(
            f"SELECT trace_id FROM traces WHERE {condition} LIMIT {MANY_FOUND + 1}", values
        )
        if len(found) > MANY_FOUND:
            return chosen
        return replace(chosen, text="", ids=tuple(str(row[0]) for row in found))

    def _where(self, chosen: TraceFilter | None, *, whole: bool = False) -> tuple[str, list[Any]]:
        chosen = chosen or TraceFilter()
        return where(chosen, self.mark, self.like, self.in_json, whole=whole)

    def _rarely_used(self, chosen: TraceFilter) -> bool:
        """Return whether few traces have a tool or a model of the filter.

        Those are collected. To find a page of them by walking through all traces takes long.
        """
        for kind in _USED:
            if several := _several(chosen, kind):
                found = self._all(
                    f"SELECT count(*) FROM (SELECT 1 FROM uses WHERE kind = '{kind}' AND name "
                    f"{_among(several, self.mark)} LIMIT {RARE}) users",
                    several,
                )
                if int(found[0][0]) < RARE:
                    return True
        return False

    @property
    def _used(self) -> str:
        return f"kind = {self.mark} AND name = {self.mark}"

    def _whole(self, chosen: TraceFilter | None) -> tuple[str, str, list[Any]]:
        """Return the tables, the condition and its values to read all traces of a filter."""
        if use := only_use(chosen or TraceFilter()):
            users = f"(SELECT trace_id AS chosen FROM uses WHERE {self._used}) users"
            joined = f"{users} {self.join_in_order} traces ON traces.trace_id = users.chosen"
            return joined, EVERYTHING, list(use)
        return "traces", *self._where(chosen, whole=True)

    def count(self, chosen: TraceFilter | None = None) -> int:
        """Return the number of traces of a filter."""
        if use := only_use(chosen or TraceFilter()):
            return int(self._all(f"SELECT count(*) FROM uses WHERE {self._used}", use)[0][0])
        condition, values = self._where(chosen)
        return int(self._all(f"SELECT count(*) FROM traces WHERE {condition}", values)[0][0])

    def figures(self, chosen: TraceFilter | None = None) -> Figures:
        """Return counts, cost and percentiles of duration (nearest rank) over a filter."""
        traces, condition, values = self._whole(chosen)
        source, kept = "chosen", "MATERIALIZED"
        if condition == EVERYTHING and traces == "traces":
            # Over all traces, the index of durations is faster than sorting.
            source, kept = "traces", "NOT MATERIALIZED"
        statement = f"""
            WITH chosen AS MATERIALIZED (
                SELECT status, spans, errors, unpriced, cost_usd, duration_ms FROM {traces}
                WHERE {condition}),
            sums AS MATERIALIZED (SELECT count(*) AS traces, {_FAILED} AS failed,
                coalesce(sum(spans), 0) AS spans,
                coalesce(sum(errors), 0) AS errors, coalesce(sum(unpriced), 0) AS unpriced,
                sum(cost_usd) AS cost,
                count(duration_ms) AS timed FROM {source}),
            ranked AS {kept} (SELECT duration_ms FROM {source}
                WHERE duration_ms IS NOT NULL ORDER BY duration_ms)
            SELECT traces, failed, spans, errors, unpriced, cost,
                {_rank(50)}, {_rank(95)}, {_rank(99)} FROM sums
        """
        row = self._all(statement, values)[0]
        return Figures(*(int(count) for count in row[:5]), *row[5:])

    def over_time(
        self, chosen: TraceFilter | None = None, by: str | None = "hour", limit: int = SHOWN_PERIODS
    ) -> list[Period]:
        """Return error rate and percentiles of the last periods, oldest first; none is empty.

        Without `by`, the periods are the shortest of which `limit` hold all traces, or days.
        """
        if by is not None and by not in PERIODS:
            raise ProctorError(f"no period {by!r}", hint=hint_among(by, PERIODS))
        chosen = chosen or TraceFilter()
        traces, condition, values = self._whole(chosen)
        ends = f"SELECT min(started_ns), max(started_ns) FROM {traces} WHERE {condition}"
        ((first, last),) = self._all(ends, values)
        if last is None:
            return []
        fitting = (n for n in PERIODS.values() if (last - first) / 1e9 < n * (limit - 1))
        seconds = PERIODS[by] if by else next(fitting, PERIODS["day"])
        length = seconds * 1_000_000_000
        # Bounded by the index on the start: however many traces there are, few are read.
        since = last // length * length - (limit - 1) * length
        recent = replace(chosen, since_ns=max(since, chosen.since_ns or since))
        condition, values = self._where(recent, whole=True)

        # Sorted here: SQLite takes three times as long to rank the durations of each period.
        counts: dict[int, list[int]] = {}
        timed: dict[int, array[float]] = {}
        with self.reading() as cursor:
            cursor.execute(
                f"SELECT started_ns / {length}, CASE WHEN status = 'error' THEN 1 ELSE 0 END, "
                f"duration_ms FROM traces WHERE {condition}",
                values,
            )
            for period, failed, duration in cursor:
                if period not in counts:
                    counts[period], timed[period] = [0, 0], array("d")
                count = counts[period]
                count[0] += 1
                count[1] += failed
                if duration is not None:
                    timed[period].append(duration)
        found: list[Period] = []
        for period, (traces_of, failed_of) in sorted(counts.items()):
            ranked = sorted(timed[period])
            p50, p95, p99 = (
                ranked[len(ranked) * percent // 100] if ranked else None for percent in (50, 95, 99)
            )
            start = period * length
            found.append(Period(start, traces_of, failed_of, p50, p95, p99, seconds))
        return found

    def uses(self, chosen: TraceFilter | None = None) -> dict[str, list[Use]]:
        """Return every tool and model of the traces of a filter, by kind, most called first."""
        if use := only_use(chosen or TraceFilter()):
            traces, condition, values = "uses", self._used, list(use)
        else:
            traces, (condition, values) = "traces", self._where(chosen, whole=True)
        source = "uses"
        if condition != EVERYTHING:
            # From the traces to their uses: few traces have few rows.
            source = (
                f"(SELECT trace_id AS chosen FROM {traces} WHERE {condition}) found "
                f"{self.join_in_order} uses ON uses.trace_id = found.chosen"
            )
        statement = f"""
            SELECT kind, name, count(*), sum(calls) AS called, sum(errors) FROM {source}
            GROUP BY kind, name ORDER BY called DESC, name
        """
        found: dict[str, list[Use]] = {kind: [] for kind in _USED}
        for kind, name, *counts in self._all(statement, values):
            found[kind].append(Use(str(name), *map(int, counts)))
        return found

    def tools(self, chosen: TraceFilter | None = None, limit: int = 50) -> list[Use]:
        """Return the tools of the traces of a filter, most called first."""
        return self.uses(chosen)["tool"][:limit]

    def facet(
        self, name: str, chosen: TraceFilter | None = None, limit: int = SHOWN_VALUES
    ) -> list[FacetValue]:
        """Return the most frequent values of a facet with their numbers of traces.

        The filter's own values of this facet do not limit the counts, so that a reader can add
        another one; they are in the result even if they are rare.
        """
        chosen = chosen or TraceFilter()
        others = replace(chosen, **{name: None})
        traces, condition, values = self._whole(others)
        if name in _USED:
            source, wanted, value = "uses", f"kind = '{name}'", "name"
            if condition != EVERYTHING or traces != "traces":
                found = f"(SELECT traces.trace_id AS found FROM {traces} WHERE {condition}) chosen"
                source = f"{found} {self.join_in_order} uses ON uses.trace_id = chosen.found"
        else:
            source, wanted, value = traces, f"{condition} AND {name} IS NOT NULL", name
        statement = f"""
            SELECT {value}, count(*) AS number FROM {source} WHERE {wanted}
            GROUP BY {value} ORDER BY number DESC, {value} LIMIT {int(limit)}
        """
        counted = [FacetValue(str(v), int(n)) for v, n in self._all(statement, values)]
        missing = set(_several(chosen, name)) - {each.value for each in counted}
        return counted + [
            FacetValue(each, self.count(replace(chosen, **{name: each})))
            for each in sorted(missing)
        ]

    def sessions(
        self, chosen: TraceFilter | None = None, page: PageRequest | None = None
    ) -> tuple[int, list[SessionRow]]:
        """Return the number of sessions with traces of a filter, and one page, latest first."""
        page = page or PageRequest()
        traces, condition, values = self._whole(chosen)
        condition = f"{condition} AND session_id IS NOT NULL"
        # The ids first, from the index if only a time range is chosen; sums of one page follow.
        latest = self._all(
            f"""SELECT session_id, max(started_ns) AS latest, count(*) OVER () FROM {traces}
            WHERE {condition} GROUP BY session_id ORDER BY latest DESC, session_id
            LIMIT {int(page.limit)} OFFSET {int(page.offset)}""",
            values,
        )
        if not latest:
            return 0, []
        ids = [str(row[0]) for row in latest]
        rows = self._all(
            f"""SELECT session_id, max(user_id), count(*), {_FAILED}, min(started_ns),
            max(started_ns), sum(llm_calls), sum(tool_calls), CASE WHEN
            count(coalesce(input_tokens, output_tokens)) > 0 THEN
            sum(coalesce(input_tokens, 0) + coalesce(output_tokens, 0)) END,
            sum(cost_usd), sum(unpriced) FROM {traces} WHERE {condition}
            AND session_id {_among(ids, self.mark)} GROUP BY session_id""",
            [*values, *ids],
        )
        of = {
            str(row[0]): SessionRow._make(
                # PostgreSQL sums whole numbers as decimals.
                (*row[:2], *map(int, row[2:8]), row[8] and int(row[8]), row[9], int(row[10]))
            )
            for row in rows
        }
        # A session whose traces were deleted between both queries is left out.
        return int(latest[0][2]), [of[each] for each in ids if each in of]

    def row(self, trace_id: str) -> TraceRow | None:
        """Return the row of one trace."""
        rows = self._all(f"SELECT {_ROW} FROM traces WHERE trace_id = {self.mark}", [trace_id])
        return TraceRow(*rows[0]) if rows else None

    def same_input(self, row: TraceRow, limit: int = 20) -> list[TraceRow]:
        """Return other traces with the input of a trace and no failed span, newest first."""
        if row.query is None:
            return []
        mark = self.mark
        rows = self._all(
            f"SELECT {_ROW} FROM traces WHERE query = {mark} AND status = 'ok' AND trace_id <> "
            f"{mark} ORDER BY started_ns DESC, trace_id LIMIT {int(limit)}",
            [row.query, row.trace_id],
        )
        return [TraceRow(*each) for each in rows]

    def trace(self, trace_id: str) -> Trace | None:
        """Return a whole trace, with everything that was received."""
        statement = f"SELECT body FROM payloads WHERE trace_id = {self.mark} ORDER BY chunk"
        rows = self._all(statement, [trace_id])
        return trace_from(trace_id, (bytes(row[0]) for row in rows), self.prices) if rows else None

    def skeleton(self, trace_id: str) -> Trace | None:
        """Return a trace with the columns of its span rows only: fast, however large it is."""
        rows = self._all(
            f"SELECT {_SPAN} FROM spans WHERE trace_id = {self.mark} ORDER BY start_ns, span_id",
            [trace_id],
        )
        spans = [span_from(row) for row in rows]
        return Trace(trace_id=trace_id, spans=spans) if spans else None

    def evaluations(self, trace_id: str) -> list[StoredEvaluation]:
        """Return the evaluations of a trace."""
        rows = self._all(
            f"SELECT * FROM evaluations WHERE trace_id = {self.mark} ORDER BY name", [trace_id]
        )
        return [StoredEvaluation(*row) for row in rows]

    def quiet(self, before_ns: int, limit: int = 100) -> list[str]:
        """Return traces without new spans since then that were not evaluated since they grew."""
        mark = self.mark
        rows = self._all(
            f"SELECT trace_id FROM traces WHERE updated_ns < {mark} "
            f"AND evaluated_ns < updated_ns ORDER BY updated_ns LIMIT {int(limit)}",
            [before_ns],
        )
        return [str(row[0]) for row in rows]

    def ids(self, chosen: TraceFilter | None = None) -> Iterator[str]:
        """Yield the ids of the traces of a filter, oldest first, read in pages."""
        offset = 0
        while True:
            rows = self.traces(chosen, PageRequest(limit=MANY, offset=offset, sort="started"))
            yield from (row.trace_id for row in rows)
            if len(rows) < MANY:
                return
            offset += MANY

    # -- pruning --------------------------------------------------------------------------------

    def prune(self, before_ns: int) -> int:
        """Delete traces without new spans since then, and return their number."""
        mark, gone = self.mark, 0
        while True:
            with self.writing() as cursor:
                # Selected in the transaction that deletes, so that a trace that grows stays.
                cursor.execute(
                    f"SELECT trace_id FROM traces WHERE updated_ns < {mark} LIMIT {MANY}"
                    f"{self.for_update}",
                    [before_ns],
                )
                ids = [str(row[0]) for row in cursor.fetchall()]
                marks = ", ".join([mark] * len(ids))
                for table in ("payloads", "spans", "uses", "evaluations", "traces") if ids else ():
                    cursor.execute(f"DELETE FROM {table} WHERE trace_id IN ({marks})", ids)
            gone += len(ids)
            if len(ids) < MANY:
                return gone

    def _all(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.reading() as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall())


_FAILED = "coalesce(sum(CASE WHEN status = 'error' THEN 1 ELSE 0 END), 0)"


def _rank(percent: int) -> str:
    """Return the SQL of a percentile of duration, by nearest rank, over `sums` and `ranked`.

    Both databases read a materialised table in its order of insertion, so it is sorted once.
    """
    return (
        "(SELECT duration_ms FROM ranked LIMIT 1 OFFSET (SELECT CASE "
        f"WHEN timed * {percent} / 100 < timed THEN timed * {percent} / 100 ELSE 0 END FROM sums))"
    )

"""Write one batch in one transaction: spans, payloads, and the rows of their traces.

Guarantees: every trace of a batch has totals and facts over all its spans when the transaction
ends. A new trace, the common case, costs one row. Of other traces only the rows that the batch
replaces are read, and those around new model calls. Traces with one model call inside another are
read whole with every batch.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from proctor.server.store._schema import FACT_COLUMNS, SPAN_COLUMNS, SpanRow, TraceFacts
from proctor.server.store.rows import Batch, facts_from, span_from
from proctor.trace import Trace

if TYPE_CHECKING:
    from proctor.server.store.store import SqlStore


# Totals are updated as spans arrive, so that a long trace is not counted again with every batch.
# After any sequence of batches they equal those of all spans together, in any order and however
# often a span was sent; tokens, costs and model calls equal `Trace.usage`, which counts each call
# once. A span sent again (ended where it was open) is subtracted as it was and added as it is.
# Where that is not enough (a later start time, or one model call inside another, which is the same
# call seen twice) the trace is counted again from its rows.


# Kinds of rows in `uses`.
MODEL, TOOL = "model", "tool"

# The kind of a model call.
LLM = "llm"

_FAILED = ("error", "timeout")


_USAGE = slice(SPAN_COLUMNS.index("input_tokens"), SPAN_COLUMNS.index("cost_usd") + 1)
_NO_USAGE = (None, None, None)

Key = tuple[str, str]


@dataclass(slots=True)
class TraceTotals:
    """The sums over the spans of a trace. `uses`: calls and failed calls of each tool and model."""

    name: str | None = None
    rooted: int = 0
    started_ns: int = 0
    ended_ns: int | None = None
    spans: int = 0
    errors: int = 0
    llm_calls: int = 0
    tool_calls: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    whole: int = 0
    """1 if usage is not a sum over model calls and must be counted from all rows."""
    other_tokens: bool = False
    other_cost: bool = False
    """Whether spans other than model calls have tokens, or a cost."""
    uses: dict[Key, tuple[int, int]] = field(default_factory=dict[Key, tuple[int, int]])

    def add(self, row: SpanRow) -> None:
        """Add a span."""
        root = 0 if row.parent_id else 1
        # A trace has the name of its root; of several roots, the first by name.
        rank = (-root, row.name)
        if self.name is None or rank < (-self.rooted, self.name):
            self.name = row.name
        self.rooted |= root
        if not self.spans or row.start_ns < self.started_ns:
            self.started_ns = row.start_ns
        if row.end_ns is not None and (self.ended_ns is None or row.end_ns > self.ended_ns):
            self.ended_ns = row.end_ns
        self._count(row, 1)

    def replace(self, old: SpanRow, new: SpanRow) -> None:
        """Replace the old version of a span by the new one."""
        self._count(old, -1)
        self.add(new)

    def _count(self, row: SpanRow, sign: int) -> None:
        failed = sign if row.status in _FAILED else 0
        self.spans += sign
        self.errors += failed
        if row.tool_name is not None:
            self._use((TOOL, row.tool_name), sign, failed)
        if row.model is not None:
            self._use((MODEL, row.model), sign, failed)
        if row.kind != LLM:
            self.tool_calls += sign if row.kind == "tool" else 0
            if row[_USAGE] != _NO_USAGE:
                self.other_tokens |= row.input_tokens is not None or row.output_tokens is not None
                self.other_cost |= row.cost_usd is not None
        else:
            self.llm_calls += sign
            if row.input_tokens is not None:
                self.input_tokens = (self.input_tokens or 0) + sign * row.input_tokens
            if row.output_tokens is not None:
                self.output_tokens = (self.output_tokens or 0) + sign * row.output_tokens
            if row.cost_usd is not None:
                self.cost_usd = (self.cost_usd or 0.0) + sign * row.cost_usd

    @property
    def lacks(self) -> bool:
        """Whether spans other than model calls have usage that no model call has."""
        no_tokens = self.input_tokens is None and self.output_tokens is None
        return (self.other_tokens and no_tokens) or (self.other_cost and self.cost_usd is None)

    def take_usage(self, rows: Iterable[SpanRow]) -> None:
        """Take tokens, costs and model calls from the tree of the spans, each call once."""
        trace = Trace(trace_id="", spans=[span_from(row) for row in rows])
        usage = trace.usage
        self.input_tokens, self.output_tokens = usage.input_tokens, usage.output_tokens
        self.cost_usd, self.llm_calls = usage.cost_usd, len(trace.llm_calls)
        self.whole = 1

    def _use(self, key: Key, calls: int, errors: int) -> None:
        known = self.uses.get(key, (0, 0))
        self.uses[key] = (known[0] + calls, known[1] + errors)

    @property
    def duration_ms(self) -> float | None:
        """From the first start to the last end."""
        return None if self.ended_ns is None else (self.ended_ns - self.started_ns) / 1e6

    @property
    def status(self) -> str:
        """Whether anything failed."""
        return "error" if self.errors else "ok"


def distinct(rows: Iterable[tuple[Any, ...]]) -> dict[Key, SpanRow]:
    """Return one row per span: the last one, but never an open one after an ended one."""
    found: dict[Key, SpanRow] = {}
    for row in map(SpanRow._make, rows):
        key = row[:2]
        known = found.get(key)
        if known is None or row.end_ns is not None or known.end_ns is None:
            found[key] = row
    return found


def totals_of(rows: Iterable[SpanRow]) -> dict[str, TraceTotals]:
    """Return the totals of each trace from all its spans, each of which occurs once."""
    spans: defaultdict[str, list[SpanRow]] = defaultdict(list)
    for row in rows:
        spans[row.trace_id].append(row)
    return {trace_id: _counted(own) for trace_id, own in spans.items()}


def _counted(rows: Sequence[SpanRow]) -> TraceTotals:
    totals = TraceTotals()
    for row in rows:
        totals.add(row)
    if totals.lacks or nested(rows):
        totals.take_usage(rows)
    return totals


def nested(rows: Collection[SpanRow]) -> set[str]:
    """Return traces in which one model call may be inside another, judging by these spans.

    A leaf below a model call (the HTTP request it made) does not count. Two traces may have a span
    of the same id; a trace returned by mistake costs time and no harm.
    """
    calls = {row.span_id for row in rows if row.kind == LLM}
    below = {row.span_id for row in rows if row.parent_id in calls}
    if not below:
        return set()
    return {
        row.trace_id
        for row in rows
        if row.parent_id in below or (row.kind == LLM and row.parent_id in calls)
    }


def can_replace(old: SpanRow, new: SpanRow) -> bool:
    """Return whether a span only grew, so that its old counts can be subtracted."""
    if old[2:5] != new[2:5] or new.start_ns > old.start_ns:
        return False
    if old.end_ns is not None and (new.end_ns is None or new.end_ns < old.end_ns):
        return False
    # A name that disappears must be forgotten; a value that becomes unknown cannot be subtracted.
    for column in ("tool_name", "model"):
        if getattr(old, column) not in (None, getattr(new, column)):
            return False
    return all(
        getattr(old, column) is None or getattr(new, column) is not None
        for column in ("input_tokens", "output_tokens", "cost_usd")
    )


# Parameters of one statement: SQLite's oldest limit is 999.
MANY = 500

# Spans up to which a trace is read whole when log records arrive for it. A larger one is read only
# when it is viewed: reading it with every batch would delay all other requests.
MANY_SPANS = 1000

# Columns of `traces` that `TraceTotals` has under the same names, in its order.
_KEPT_UP = tuple(
    column.name
    for column in fields(TraceTotals)
    if column.name not in ("other_tokens", "other_cost", "uses")
)
_DERIVED = ("duration_ms", "status")
_COLUMNS = ("trace_id", *_KEPT_UP, *_DERIVED, "updated_ns", *FACT_COLUMNS)
_PUT_TRACES = f"""
    INSERT INTO traces ({", ".join(_COLUMNS)}) VALUES ({", ".join("?" * len(_COLUMNS))})
    ON CONFLICT (trace_id) DO UPDATE SET
    {", ".join(f"{c} = excluded.{c}" for c in (*_KEPT_UP, *_DERIVED, "updated_ns"))},
    {", ".join(f"{c} = coalesce(excluded.{c}, traces.{c})" for c in FACT_COLUMNS)}
"""
# coalesce: a later batch without the root span must not erase known facts.

# A trace with log records only, so far: it is listed and pruned like others.
_WITHOUT_SPANS = """
    INSERT INTO traces (trace_id, started_ns, status, spans, errors, llm_calls, tool_calls,
        updated_ns) VALUES (?, ?, 'ok', 0, 0, 0, 0, ?)
    ON CONFLICT (trace_id) DO UPDATE SET updated_ns = excluded.updated_ns
"""

_PUT_USES = """
    INSERT INTO uses (trace_id, kind, name, calls, errors) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (trace_id, kind, name)
    DO UPDATE SET calls = uses.calls + excluded.calls, errors = uses.errors + excluded.errors
"""

_NO_FACTS = (None,) * len(FACT_COLUMNS)


class Writing:
    """A transaction that writes one batch."""

    def __init__(self, store: SqlStore, cursor: Any) -> None:
        self._store = store
        self._cursor = cursor
        self._mark = store.mark

    def put(self, batch: Batch, rows: dict[Key, SpanRow]) -> None:
        """Write everything; `rows` are the batch's spans, one row each."""
        # Inside the transaction, so that later writes have later times.
        now = time.time_ns()
        known = self._known(sorted(batch.touched))
        before = self._stored([key for key in rows if key[0] in known and known[key[0]].spans])
        self._put_spans(rows, before)
        if batch.chunks:
            columns = ("trace_id", "body", "logs")
            self._store.add_rows(self._cursor, "payloads", columns, batch.chunks)
        with_spans = {trace_id for trace_id, _ in rows}
        only_logs = sorted(batch.touched - with_spans)
        self._many(_WITHOUT_SPANS, [(trace_id, now, now) for trace_id in only_logs])
        totals = self._totals(rows, before, known)
        facts = _together(batch.facts)
        lines = [
            (trace_id, *_line(each), now, *facts.get(trace_id, _NO_FACTS))
            for trace_id, each in totals.items()
        ]
        self._many(_PUT_TRACES, lines)
        # Only these traces can have log records.
        read_whole = {*known, *(trace_id for trace_id, _, logs in batch.chunks if logs)}
        found = list(self._facts_in_logs(sorted(read_whole)))
        sets = ", ".join(f"{c} = coalesce(?, {c})" for c in FACT_COLUMNS)
        self._many(f"UPDATE traces SET {sets} WHERE trace_id = ?", [(*f[1:], f[0]) for f in found])

    def _put_spans(self, rows: dict[Key, SpanRow], before: Mapping[Key, SpanRow]) -> None:
        """Write the rows, except open spans that are stored as ended already."""
        for key, old in before.items():
            if old.end_ns is not None and rows[key].end_ns is None:
                del rows[key]
        # In the order of the primary key: neighbours are on the same page of the file.
        order = sorted(rows)
        if new := [rows[key] for key in order if key not in before]:
            self._store.add_rows(self._cursor, "spans", SPAN_COLUMNS, new)
        if again := [rows[key] for key in order if key in before]:
            self._store.put_spans(self._cursor, again)

    # -- what is there ----------------------------------------------------------------------------

    def _known(self, touched: Sequence[str]) -> dict[str, TraceTotals]:
        """Return the totals of the traces that are stored already."""
        columns = ", ".join(_KEPT_UP)
        return {
            str(row[0]): TraceTotals(*row[1:])
            for row in self._of_traces(
                f"SELECT trace_id, {columns} FROM traces WHERE trace_id IN ({{ids}})", touched
            )
        }

    def _stored(self, keys: Sequence[Key]) -> dict[Key, SpanRow]:
        """Return the rows that are stored under these keys."""
        found: dict[Key, SpanRow] = {}
        pair = f"({self._mark}, {self._mark})"
        columns = ", ".join(f"spans.{column}" for column in SPAN_COLUMNS)
        for part in _parts(keys, MANY // 2):
            pairs = ", ".join([pair] * len(part))
            self._cursor.execute(
                f"WITH wanted (wanted_trace, wanted_span) AS (VALUES {pairs}) SELECT {columns} "
                "FROM wanted CROSS JOIN spans "
                "WHERE spans.trace_id = wanted_trace AND spans.span_id = wanted_span",
                [identity for key in part for identity in key],
            )
            found |= {row[:2]: SpanRow(*row) for row in self._cursor.fetchall()}
        return found

    # -- the lines of traces ----------------------------------------------------------------------

    def _totals(
        self,
        rows: Mapping[Key, SpanRow],
        before: Mapping[Key, SpanRow],
        known: Mapping[str, TraceTotals],
    ) -> dict[str, TraceTotals]:
        """Return the totals of every trace with spans in this batch, and write their `uses`."""
        found = {trace_id: each for trace_id, each in known.items() if each.spans}
        whole = {trace_id for trace_id, each in found.items() if each.whole}
        again = {
            old.trace_id
            for key, old in before.items()
            if key in rows and not can_replace(old, rows[key])
        }
        again |= {row.trace_id for row in rows.values() if row.trace_id in whole}
        again |= nested(rows.values())
        again |= self._nested_with_stored(rows, {t for t in found if t not in again})
        touched: dict[str, TraceTotals] = {}
        for key, row in rows.items():
            if row.trace_id in again:
                continue
            totals = touched.get(row.trace_id)
            if totals is None:
                totals = touched[row.trace_id] = found.get(row.trace_id) or TraceTotals()
            if (old := before.get(key)) is None:
                totals.add(row)
            else:
                totals.replace(old, row)
        again |= {trace_id for trace_id, totals in touched.items() if totals.lacks}
        if again:
            touched |= self._counted_again(sorted(again))
        self._put_uses(touched)
        return touched

    def _put_uses(self, touched: Mapping[str, TraceTotals]) -> None:
        rows = [
            (t, *key, *count) for t, each in touched.items() for key, count in each.uses.items()
        ]
        self._many(_PUT_USES, rows)

    def _nested_with_stored(self, rows: Mapping[Key, SpanRow], known: set[str]) -> set[str]:
        """Return traces in which new and stored spans together may nest one model call in another.

        Considered are the new spans, two levels above them, and two levels below those that are
        model calls or children of one.
        """
        around = {key: row for key, row in rows.items() if row.trace_id in known}
        ours = list(around.values())
        for _ in range(2 if ours else 0):
            above = {(r.trace_id, r.parent_id) for r in around.values() if r.parent_id}
            around |= self._stored(sorted(above - around.keys()))
        calls = {row.span_id for row in around.values() if row.kind == LLM}
        below = [row[:2] for row in ours if row.kind == LLM or row.parent_id in calls]
        for _ in range(2):
            children = self._below(sorted(below))
            around |= children
            below = list(children)
        return nested(around.values())

    def _below(self, keys: Sequence[Key]) -> dict[Key, SpanRow]:
        """Return the children of spans; no index is needed, a trace is stored contiguously."""
        found: dict[Key, SpanRow] = {}
        for part in _parts(keys, MANY // 2):
            traces, spans = sorted({key[0] for key in part}), [key[1] for key in part]
            marks = [", ".join([self._mark] * len(each)) for each in (traces, spans)]
            self._cursor.execute(
                f"SELECT {', '.join(SPAN_COLUMNS)} FROM spans "
                f"WHERE trace_id IN ({marks[0]}) AND parent_id IN ({marks[1]})",
                [*traces, *spans],
            )
            found |= {row[:2]: SpanRow(*row) for row in self._cursor.fetchall()}
        return found

    def count_all(self) -> None:
        """Count the totals and uses of every trace from its spans."""
        self._cursor.execute("SELECT trace_id FROM traces")
        ids = [str(row[0]) for row in self._cursor.fetchall()]
        sets = ", ".join(f"{column} = ?" for column in (*_KEPT_UP, *_DERIVED))
        for part in _parts(ids):
            found = self._counted_again(part)
            lines = [(*_line(totals), trace_id) for trace_id, totals in found.items()]
            self._many(f"UPDATE traces SET {sets} WHERE trace_id = ?", lines)
            self._put_uses(found)

    def _counted_again(self, ids: Sequence[str]) -> dict[str, TraceTotals]:
        for part in _parts(ids):
            marks = ", ".join([self._mark] * len(part))
            self._cursor.execute(f"DELETE FROM uses WHERE trace_id IN ({marks})", part)
        columns = ", ".join(SPAN_COLUMNS)
        rows = self._of_traces(f"SELECT {columns} FROM spans WHERE trace_id IN ({{ids}})", ids)
        return totals_of(map(SpanRow._make, rows))

    def _facts_in_logs(self, ids: Sequence[str]) -> Iterator[TraceFacts]:
        """Return facts of traces with log records, which arrive apart from spans."""
        statement = (
            "SELECT DISTINCT p.trace_id FROM payloads p JOIN traces t ON t.trace_id = "
            "p.trace_id WHERE p.logs > 0 AND p.trace_id IN ({ids}) "
            f"AND t.spans BETWEEN 1 AND {MANY_SPANS}"
        )
        for (trace_id,) in list(self._of_traces(statement, ids)):
            self._cursor.execute(
                f"SELECT body FROM payloads WHERE trace_id = {self._mark} ORDER BY chunk",
                [trace_id],
            )
            facts = facts_from(trace_id, (bytes(row[0]) for row in self._cursor.fetchall()))
            if facts is not None:
                yield facts

    # -- statements -------------------------------------------------------------------------------

    def _many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            self._cursor.executemany(statement.replace("?", self._mark), rows)

    def _of_traces(self, statement: str, ids: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        for part in _parts(ids):
            marks = ", ".join([self._mark] * len(part))
            self._cursor.execute(statement.format(ids=marks), part)
            yield from self._cursor.fetchall()


def _line(totals: TraceTotals) -> tuple[Any, ...]:
    kept = (getattr(totals, column) for column in _KEPT_UP)
    return (*kept, totals.duration_ms, totals.status)


def _together(facts: Sequence[TraceFacts]) -> dict[str, tuple[str | None, ...]]:
    """Return the facts of each trace; later parts of a batch take precedence."""
    found: dict[str, tuple[str | None, ...]] = {}
    for each in facts:
        known = found.get(each.trace_id)
        new = each[1:]
        if known is not None:
            new = tuple(b if b is not None else a for a, b in zip(known, new, strict=True))
        found[each.trace_id] = new
    return found


def _parts(items: Sequence[Any], size: int = MANY) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]

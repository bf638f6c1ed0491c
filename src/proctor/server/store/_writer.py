"""Write one batch in one transaction: spans, payloads, and the rows of their traces.

Guarantees: every trace of a batch has totals and facts over all its spans when the transaction
ends. The database counts the spans of these traces again with every batch, so the totals are right
in any order and however often a span was sent; tokens, costs and model calls equal `Trace.usage`,
which counts each call once. Trade-off: a write to a trace takes time in proportion to the spans
that it has, a few microseconds each.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from proctor.server.store._schema import FACT_COLUMNS, SPAN_COLUMNS, SpanRow, TraceFacts
from proctor.server.store.rows import Batch, facts_from, span_from
from proctor.trace import Trace

if TYPE_CHECKING:
    from proctor.server.store.store import SqlStore

Key = tuple[str, str]

# Traces of one statement, which may name each twice: SQLite's oldest limit is 999 parameters.
MANY = 400

# Spans up to which a trace is read whole when log records arrive for it. A larger one is read only
# when it is viewed: reading it with every batch would delay all other requests.
MANY_SPANS = 1000

_FAILED = "sum(CASE WHEN status IN ('error', 'timeout') THEN 1 ELSE 0 END)"

# A call without an answer, as `Trace.usage` defines it: it needs no price.
_UNANSWERED = """(status IN ('error', 'timeout') OR end_ns IS NULL)
    AND input_tokens IS NULL AND output_tokens IS NULL"""

# Columns of `traces` that are counted from the spans.
_TOTALS = {
    # A trace has the name of its root; of several roots, the first by name.
    "name": "coalesce(min(CASE WHEN coalesce(parent_id, '') = '' THEN name END), min(name))",
    "started_ns": "min(start_ns)",
    "ended_ns": "max(end_ns)",
    "duration_ms": "(max(end_ns) - min(start_ns)) / 1e6",
    "status": f"CASE WHEN {_FAILED} > 0 THEN 'error' ELSE 'ok' END",
    "spans": "count(*)",
    "errors": _FAILED,
    "llm_calls": "count(CASE WHEN kind = 'llm' THEN 1 END)",
    "tool_calls": "count(CASE WHEN kind = 'tool' THEN 1 END)",
    "input_tokens": "sum(CASE WHEN kind = 'llm' THEN input_tokens END)",
    "output_tokens": "sum(CASE WHEN kind = 'llm' THEN output_tokens END)",
    "cost_usd": "sum(CASE WHEN kind = 'llm' THEN cost_usd END)",
    "unpriced": f"""count(CASE WHEN kind = 'llm' AND cost_usd IS NULL
        AND NOT ({_UNANSWERED}) THEN 1 END)""",
}
# The time of a trace never goes back: a count after an update of the tables gives 0.
_PUT_TOTALS = f"""
    INSERT INTO traces (trace_id, updated_ns, {", ".join(_TOTALS)})
    SELECT trace_id, {{now}}, {", ".join(_TOTALS.values())}
    FROM spans WHERE trace_id IN ({{ids}}) GROUP BY trace_id
    ON CONFLICT (trace_id) DO UPDATE SET {", ".join(f"{c} = excluded.{c}" for c in _TOTALS)},
    updated_ns = CASE WHEN excluded.updated_ns > traces.updated_ns
        THEN excluded.updated_ns ELSE traces.updated_ns END
"""

_PUT_USES = f"""
    INSERT INTO uses (trace_id, kind, name, calls, errors)
    SELECT trace_id, '{{kind}}', {{column}}, count(*), {_FAILED}
    FROM spans WHERE trace_id IN ({{ids}}) AND {{column}} IS NOT NULL GROUP BY trace_id, {{column}}
"""

# Traces whose usage is not a sum over model calls: spans other than model calls have tokens, or a
# cost, that no model call has; or one model call is inside another, which is the same call seen
# twice. A leaf below a model call (the HTTP request it made) does not count.
_UNEVEN = """
    SELECT trace_id FROM spans WHERE trace_id IN ({ids}) GROUP BY trace_id
    HAVING count(coalesce(input_tokens, output_tokens)) > 0
        AND count(CASE WHEN kind = 'llm' THEN coalesce(input_tokens, output_tokens) END) = 0
        OR count(cost_usd) > 0 AND count(CASE WHEN kind = 'llm' THEN cost_usd END) = 0
    UNION SELECT child.trace_id FROM spans child
    JOIN spans parent ON parent.trace_id = child.trace_id AND parent.span_id = child.parent_id
    LEFT JOIN spans above ON above.trace_id = parent.trace_id AND above.span_id = parent.parent_id
    WHERE child.trace_id IN ({ids})
        AND (child.kind = 'llm' AND parent.kind = 'llm' OR above.kind = 'llm')
"""

# A trace with log records only, so far: it is listed and pruned like others.
_WITHOUT_SPANS = """
    INSERT INTO traces (trace_id, started_ns, status, spans, errors, llm_calls, tool_calls,
        updated_ns) VALUES (?, ?, 'ok', 0, 0, 0, 0, ?)
    ON CONFLICT (trace_id) DO UPDATE SET updated_ns = excluded.updated_ns
"""

# coalesce: a later batch without the root span must not erase known facts.
_PUT_FACTS = (
    f"UPDATE traces SET {', '.join(f'{c} = coalesce(?, {c})' for c in FACT_COLUMNS)} "
    "WHERE trace_id = ?"
)


def distinct(rows: Iterable[tuple[Any, ...]]) -> dict[Key, SpanRow]:
    """Return one row per span: the last one, but never an open one after an ended one."""
    found: dict[Key, SpanRow] = {}
    for row in map(SpanRow._make, rows):
        key = row[:2]
        known = found.get(key)
        if known is None or row.end_ns is not None or known.end_ns is None:
            found[key] = row
    return found


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
        statement = "SELECT trace_id FROM traces WHERE trace_id IN ({ids})"
        known = {str(row[0]) for row in self._of_traces(statement, sorted(batch.touched))}
        # In the order of the primary key: neighbours are on the same page of the file.
        order = sorted(rows)
        if new := [rows[key] for key in order if key[0] not in known]:
            self._store.add_rows(self._cursor, "spans", SPAN_COLUMNS, new)
        if again := [rows[key] for key in order if key[0] in known]:
            self._store.put_spans(self._cursor, again)
        if batch.chunks:
            columns = ("trace_id", "body", "logs")
            self._store.add_rows(self._cursor, "payloads", columns, batch.chunks)
        with_spans = {trace_id for trace_id, _ in rows}
        only_logs = sorted(batch.touched - with_spans)
        self._many(_WITHOUT_SPANS, [(trace_id, now, now) for trace_id in only_logs])
        self.count(sorted(with_spans), now)
        # Only these traces can have log records.
        read_whole = {*known, *(trace_id for trace_id, _, logs in batch.chunks if logs)}
        facts = [*batch.facts, *self._facts_in_logs(sorted(read_whole))]
        self._many(_PUT_FACTS, [(*each[1:], each.trace_id) for each in facts])

    def count(self, ids: Sequence[str], now: int = 0) -> None:
        """Count the totals and uses of traces from their spans."""
        for part in _parts(ids):
            self._execute(_PUT_TOTALS, part, now=now)
            self._execute("DELETE FROM uses WHERE trace_id IN ({ids})", part)
            for kind, column in (("tool", "tool_name"), ("model", "model")):
                self._execute(_PUT_USES, part, kind=kind, column=column)
        for (trace_id,) in list(self._of_traces(_UNEVEN, ids)):
            statement = f"SELECT {', '.join(SPAN_COLUMNS)} FROM spans WHERE trace_id IN ({{ids}})"
            spans = [span_from(row) for row in self._of_traces(statement, [trace_id])]
            trace = Trace(trace_id=trace_id, spans=spans)
            usage = trace.usage
            calls = len(trace.llm_calls)
            self._many(
                "UPDATE traces SET input_tokens = ?, output_tokens = ?, cost_usd = ?, "
                "unpriced = ?, llm_calls = ? WHERE trace_id = ?",
                [(*usage[:3], usage.unpriced, calls, trace_id)],
            )

    def _facts_in_logs(self, ids: Sequence[str]) -> Iterator[TraceFacts]:
        """Return facts of traces with log records, which arrive apart from spans."""
        statement = (
            "SELECT DISTINCT p.trace_id FROM payloads p JOIN traces t ON t.trace_id = "
            "p.trace_id WHERE p.logs > 0 AND p.trace_id IN ({ids}) "
            f"AND t.spans BETWEEN 1 AND {MANY_SPANS}"
        )
        for (trace_id,) in list(self._of_traces(statement, ids)):
            statement = "SELECT body FROM payloads WHERE trace_id IN ({ids}) ORDER BY chunk"
            bodies = (bytes(row[0]) for row in self._of_traces(statement, [trace_id]))
            facts = facts_from(trace_id, bodies)
            if facts is not None:
                yield facts

    # -- statements -------------------------------------------------------------------------------

    def _many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            self._cursor.executemany(statement.replace("?", self._mark), rows)

    def _execute(self, statement: str, ids: Sequence[str], **values: object) -> None:
        marks = ", ".join([self._mark] * len(ids))
        times = statement.count("{ids}")
        self._cursor.execute(statement.format(ids=marks, **values), [*ids] * times)

    def _of_traces(self, statement: str, ids: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        for part in _parts(ids):
            self._execute(statement, part)
            yield from self._cursor.fetchall()


def _parts(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), MANY):
        yield items[start : start + MANY]

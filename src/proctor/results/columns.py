"""The columns a query sees: their names, types, meaning, and how each is made.

One table, read by the SQL view, by `ResultSet` and by the reference page, so that the three
cannot disagree. A column that is not asked for costs nothing.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import NamedTuple

from proctor.errors import ProctorError, did_you_mean


class Source(StrEnum):
    """What a column is made from."""

    TRIAL = "trial"
    RUN = "run"
    CASE = "case"
    AGENT = "agent"


class Column(NamedTuple):
    """A column of the view `trials`. In `sql`, t is the trial, c its case, a its agent."""

    kind: str
    source: Source
    sql: str
    about: str


def _trial(kind: str, about: str, sql: str) -> Column:
    return Column(kind, Source.TRIAL, sql, about)


def _kept(name: str, kind: str, about: str) -> Column:
    """A column that stands in results.parquet under the same name."""
    return Column(kind, Source.TRIAL, f't."{name}"', about)


def _run(kind: str, about: str) -> Column:
    """A column that is the same for all trials of a run."""
    return Column(kind, Source.RUN, "", about)


def _case(name: str, kind: str, about: str) -> Column:
    return Column(kind, Source.CASE, f"c.{name}", about)


JUDGED = "t.status IN ('passed', 'failed', 'hard_fail')"

COLUMNS: dict[str, Column] = {
    "run": _run("VARCHAR", "the run's place below the results folder: `suite/2026-11-16_001`"),
    "run_id": _run("VARCHAR", "the run's id, a UUID in the order of time"),
    "run_path": _run("VARCHAR", "the run's folder"),
    "experiment": _run("VARCHAR", "the name of the suite or experiment"),
    "run_started": _run("TIMESTAMP", "when the run began, UTC"),
    "run_tags": _run("VARCHAR[]", "tags put on the run with `proctor tag`"),
    "run_stopped": _run("VARCHAR", "why the run ended before its plan did, else NULL"),
    "git_commit": _run("VARCHAR", "the commit the suite was at"),
    "host": _run("VARCHAR", "the machine that ran it"),
    "case": _kept("case", "VARCHAR", "the id of the case"),
    "agent": _kept("agent", "VARCHAR", "the name of the agent"),
    "model": Column("VARCHAR", Source.AGENT, "a.model", "the agent's model, if it names one"),
    "agent_kind": Column("VARCHAR", Source.AGENT, "a.kind", "the agent's kind"),
    "params": _kept("params", "JSON", "parameters of the trial; NULL without any"),
    "axis_seed": _kept("axis_seed", "BIGINT", "the experiment's seed; NULL without such an axis"),
    "index": _kept("index", "INTEGER", "which repeat within its cell, from 0"),
    "seed": _kept("seed", "BIGINT", "the seed the agent was given"),
    "attempt": _kept("attempt", "INTEGER", "1, or more when the trial was run again"),
    "status": _kept("status", "VARCHAR", "passed, failed, hard_fail, infra_error or cancelled"),
    "judged": _trial("BOOLEAN", "whether it says anything about the agent", JUDGED),
    "passed": _trial(
        "BOOLEAN",
        "whether it passed; NULL when it was not judged, so `avg(passed::INT)` is a pass rate",
        f"CASE WHEN {JUDGED} THEN t.status = 'passed' END",
    ),
    "counted": _trial(
        "BOOLEAN",
        "false when it ran on after an early stop had decided its cell: no figure counts it",
        "t.counted",
    ),
    "score": _kept("score", "DOUBLE", "0 to 1; NULL when nothing was scored"),
    "threshold": _case("threshold", "DOUBLE", "the score from which a trial of the case passes"),
    "tags": _case("tags", "VARCHAR[]", "tags of the case"),
    "difficulty": _case("difficulty", "VARCHAR", "difficulty of the case"),
    "type": _case("type", "VARCHAR", "type of the case"),
    "properties": _case("properties", "JSON", "further properties of the case"),
    "answer": _kept("answer", "VARCHAR", "what the agent answered, up to 100,000 characters"),
    "error": _kept("error", "JSON", "why it could not be judged: type, message, place"),
    "error_type": _trial("VARCHAR", "the type of that error", "t.error->>'type'"),
    "started": _trial(
        "TIMESTAMP", "when the trial began, UTC", "make_timestamp(nullif(t.started_ns, 0) // 1000)"
    ),
    "started_ns": _kept("started_ns", "BIGINT", "the same in nanoseconds since 1970"),
    "duration_ms": _kept("duration_ms", "DOUBLE", "how long it took, judging included"),
    "latency_ms": _kept("latency_ms", "DOUBLE", "how long the agent took"),
    "input_tokens": _kept("input_tokens", "BIGINT", "tokens read by models; NULL when unknown"),
    "output_tokens": _kept("output_tokens", "BIGINT", "tokens written by models"),
    "cost_usd": _kept("cost_usd", "DOUBLE", "known cost of the agent; NULL when none is known"),
    "judge_cost_usd": _kept("judge_cost_usd", "DOUBLE", "known cost of judging"),
    "llm_calls": _kept("llm_calls", "INTEGER", "calls of models"),
    "unpriced_calls": _kept("unpriced_calls", "INTEGER", "of those, calls without a known price"),
    "tool_calls": _kept("tool_calls", "INTEGER", "calls of tools"),
    "retries": _kept("retries", "INTEGER", "tries after the first"),
    "trace_id": _kept("trace_id", "VARCHAR", "the id of its trace"),
    "trace": _kept("trace", "JSON", "where the trace is: segment, offset, length"),
    "checks": _kept("checks", "JSON", "every check's result; the view `checks` has them as rows"),
}
"""Columns of the view `trials`, in its order."""

KEPT = tuple(name for name, column in COLUMNS.items() if column.sql == f't."{name}"')
"""Columns read from results.parquet as they are."""

_READ = re.compile(r'\bt\."?(\w+)"?')

READS = {
    name: frozenset(part for part in _READ.findall(column.sql) if part in KEPT)
    for name, column in COLUMNS.items()
}
"""Which kept columns each column is made from."""

NUMBERS = frozenset(
    name
    for name, column in COLUMNS.items()
    if column.kind in ("DOUBLE", "BIGINT", "INTEGER", "BOOLEAN")
)

_NESTED = re.compile(r"(params|properties)\.(.+)", re.DOTALL)


class Named(NamedTuple):
    """A column by the name a user gave, which may reach into JSON: `properties.lang`."""

    name: str
    base: str
    sql: str
    kind: str

    @property
    def numeric(self) -> bool:
        """Whether it holds numbers as it is."""
        return self.base == self.name and self.base in NUMBERS


def named(name: str) -> Named:
    """A column by name; an unknown one is an error with its nearest neighbour."""
    if name in COLUMNS:
        return Named(name, name, f'"{name}"', COLUMNS[name].kind)
    nested = _NESTED.fullmatch(name)
    if nested is not None:
        base, path = nested.groups()
        steps = "".join(f'."{step}"' for step in path.replace('"', "").split("."))
        return Named(name, base, f"json_extract_string({base}, {literal('$' + steps)})", "VARCHAR")
    raise ProctorError(
        f"there is no column {name!r}",
        hint=did_you_mean(name, COLUMNS)
        or "`proctor sql 'describe trials'` lists them; properties.x and params.x reach into JSON",
    )


def quoted(name: str) -> str:
    """A name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: object) -> str:
    """A value as SQL text. Strings have one escape only, the doubled quote."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | float):
        return repr(value) if math.isfinite(value) else "NULL"
    text = str(value)
    if "\0" in text:
        raise ProctorError("a text to look for holds a NUL character")
    return "'" + text.replace("'", "''") + "'"


def literal_list(values: list[str], kind: str) -> str:
    """SQL values as a list of one type, empty or not."""
    return f"[{', '.join(values)}]::{kind}[]"

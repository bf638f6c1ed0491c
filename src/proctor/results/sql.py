"""Answer a user's SQL over the results, and let it do nothing else.

Four locks, since one could have a hole: only a single SELECT is taken, and it must also bind as a
subquery (DuckDB lets a WITH clause at the top hold INSERT or COPY, in a subquery it does not); it
runs in a read-only transaction; the file system is closed but for the Parquet files of the runs,
extensions and the network with it; and the configuration is locked before the query is looked at.
"""
# ruff: noqa: S608 (SQL from the table of columns; the user's own is what this module guards)

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from proctor.errors import ProctorError
from proctor.results.columns import COLUMNS, literal, literal_list
from proctor.results.facts import as_glob
from proctor.results.selection import Condition

if TYPE_CHECKING:
    import duckdb

    from proctor.results.view import View

CHECKS = {
    "run": "run",
    '"case"': '"case"',
    "agent": "agent",
    "params": "params",
    "axis_seed": "axis_seed",
    '"index"': '"index"',
    "counted": "counted",
    "id": "k->>'id'",
    '"check"': "k->>'check'",
    "layer": "k->>'layer'",
    "status": "k->>'status'",
    "score": "(k->>'score')::DOUBLE",
    "weight": "coalesce((k->>'weight')::DOUBLE, 1)",
    "blocking": "coalesce((k->>'blocking')::BOOLEAN, FALSE)",
    "reason": "k->>'reason'",
}
"""Columns of the view `checks`: one row for each check of each trial."""

RUNS = ("run", "run_id", "run_path", "experiment", "run_started", "run_tags", "run_stopped")
"""Columns of the view `runs`, besides `read_from`: results.parquet, or the journal."""


class Answer(NamedTuple):
    """What a query gave: names and types of its columns, and its rows."""

    columns: list[str]
    types: list[str]
    rows: list[tuple[Any, ...]]


def answer(view: View, query: str, selected: Condition | None = None) -> Answer:
    """The rows of a SELECT over the views `trials`, `runs`, `cases` and `checks`."""
    import duckdb

    try:
        checked = _single_select(query)
        try:
            return _answer(view, checked, selected)
        except (duckdb.IOException, duckdb.InvalidInputException):
            if not view.leave_damaged():
                raise
            return _answer(view, checked, selected)
    except duckdb.Error as error:
        raise ProctorError(f"the query failed: {_first_lines(error)}", hint=_hint(error)) from None


def _answer(view: View, query: str, selected: Condition | None) -> Answer:
    connection = _guarded(view, selected)
    try:
        connection.execute(f"EXPLAIN SELECT * FROM (\n{query}\n)")
        return _fetched(connection, connection.execute(query), query)
    finally:
        connection.close()


def _single_select(query: str) -> str:
    import duckdb

    text = query.strip().rstrip(";").rstrip()
    statements = duckdb.extract_statements(text)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        kinds = ", ".join(str(s.type).rpartition(".")[2] for s in statements) or "nothing"
        raise ProctorError(
            f"only one SELECT is answered, this is: {kinds}",
            hint="results are never changed by a query; `proctor export` writes files",
        )
    return text


def _guarded(view: View, selected: Condition | None) -> duckdb.DuckDBPyConnection:
    """A connection of its own that can read the views and nothing else."""
    connection = view.fresh()
    where = selected.sql if selected is not None else ""
    connection.execute(f"CREATE VIEW trials AS {view.relation(COLUMNS, where)}")
    picked = ", ".join(f"{sql} AS {name}" for name, sql in CHECKS.items())
    connection.execute(
        f"CREATE VIEW checks AS SELECT {picked} FROM"
        " (SELECT *, unnest(json_extract(checks, '$[*]')) AS k FROM trials)"
    )
    connection.execute(f"CREATE VIEW runs AS {view.run_rows(RUNS)}")
    connection.execute(f"CREATE VIEW cases AS {_cases(view)}")
    paths = {p for run in view.columnar for p in (str(run.source), as_glob(run.source))}
    allowed = literal_list([literal(path) for path in sorted(paths)], "VARCHAR")
    for setting in (
        f"allowed_paths = {allowed}",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")
    connection.execute("BEGIN TRANSACTION READ ONLY")
    return connection


def _cases(view: View) -> str:
    names = view.run_list("run")
    return (
        f'SELECT {names}[c.run_no + 1] AS run, c.id AS "case", c.tags, c.difficulty, c.type,'
        " c.properties, c.threshold, c.asked AS trials_asked FROM case_facts c"
    )


def _fetched(
    connection: duckdb.DuckDBPyConnection, found: duckdb.DuckDBPyConnection, query: str
) -> Answer:
    described = found.description or []
    columns, types = [str(c[0]) for c in described], [str(c[1]) for c in described]
    if any("TIME ZONE" in kind for kind in types):
        # DuckDB needs another package to hand such times to Python: as text they are the same.
        zoned = [f"c{at}::VARCHAR" if "TIME ZONE" in k else f"c{at}" for at, k in enumerate(types)]
        names = ", ".join(f"c{at}" for at in range(len(types)))
        rows = connection.execute(
            f"SELECT {', '.join(zoned)} FROM (\n{query}\n) AS q({names})"
        ).fetchall()
    else:
        rows = found.fetchall()
    return Answer(columns, types, rows)


def _first_lines(error: Exception) -> str:
    text = str(error).strip()
    return text.split("\n\nLINE", 1)[0].replace("\n", " ")


def _hint(error: Exception) -> str | None:
    text = str(error)
    if "disabled by configuration" in text or "must be at the top level" in text:
        return "a query reads the results and nothing else; `proctor export` writes files"
    if "read-only" in text:
        return "results are never changed by a query"
    if "does not exist" in text or "not found" in text:
        return "tables: trials, runs, cases, checks; columns: docs/reference/results-columns.md"
    return None

"""Run a user's SQL over the results, and prevent it from doing anything else.

Four safeguards, since one could have a hole: only a single SELECT is accepted, and no part of it
may be another statement (DuckDB allows INSERT or COPY in a WITH clause); it runs in a read-only
transaction; file access is limited to the Parquet files of the runs, with extensions and the
network disabled; and the configuration is locked before the query runs.
"""
# ruff: noqa: S608 (SQL from the table of columns; the user's own is what this module guards)

from __future__ import annotations

import glob
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from proctor.errors import ProctorError
from proctor.formatting import plural
from proctor.results.database import COLUMNS, ColumnSource, literal_list, quoted
from proctor.results.filters import SqlCondition
from proctor.tables import Tabular

if TYPE_CHECKING:
    import duckdb

    from proctor.results.database import View

# Columns of `trials` that the view `checks` repeats, to join on.
_TRIAL_KEYS = ("run", "case", "agent", "params", "axis_seed", "index", "counted")

# Further columns of the view `checks`: one row for each check of each trial.
_CHECKS = {
    "id": "k->>'id'",
    "check": "k->>'check'",
    "layer": "k->>'layer'",
    "status": "k->>'status'",
    "score": "(k->>'score')::DOUBLE",
    # Defaults are left out of the stored results.
    "weight": "coalesce((k->>'weight')::DOUBLE, 1)",
    "blocking": "coalesce((k->>'blocking')::BOOLEAN, FALSE)",
    "reason": "k->>'reason'",
}

# Columns of the view `runs`, besides `read_from`: results.parquet, or the journal.
_RUNS = ("run", "run_id", "run_path", "experiment", "run_started", "run_tags", "run_stopped")


class SqlResult(Tabular, msgspec.Struct, frozen=True):
    """Result of a query: names and types of its columns, and its rows."""

    columns: list[str]
    types: list[str]
    rows: list[tuple[Any, ...]]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as mappings; of columns with the same name the last one is kept."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def _heading(self) -> str:
        return plural(len(self.rows), "row")


def answer(view: View, query: str, selected: SqlCondition | None = None) -> SqlResult:
    """Return the rows of a SELECT over the views `trials`, `runs`, `cases` and `checks`."""
    import duckdb

    try:
        text = _single_select(query)
        try:
            return _answer(view, text, selected)
        except duckdb.BinderException:
            # An unknown name: with every column present, DuckDB's error suggests the right one.
            return _answer(view, text, selected, EVERYTHING)
        except (duckdb.IOException, duckdb.InvalidInputException):
            if not view.bypass_damaged_files():
                raise
            return _answer(view, text, selected)
    except duckdb.Error as error:
        # DuckDB appends the query with a marker, which the user already has.
        reason = str(error).strip().split("\n\nLINE", 1)[0].replace("\n", " ")
        raise ProctorError(f"the query failed: {reason}", hint=_hint(error)) from None


def _answer(
    view: View, query: str, selected: SqlCondition | None, tables: ReferencedTables | None = None
) -> SqlResult:
    import duckdb

    with duckdb.connect() as connection:
        # Parsed in any case: this is what rejects a nested statement.
        named = _referenced(connection, query)
        _guard(connection, view, selected, tables or named)
        return _fetched(connection, connection.execute(query), query)


def _single_select(query: str) -> str:
    import duckdb

    text = query.strip().rstrip(";").rstrip()
    statements = duckdb.extract_statements(text)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        kinds = ", ".join(str(s.type).rpartition(".")[2] for s in statements) or "nothing"
        raise _rejected(f"only one SELECT is accepted, this is: {kinds}")
    return text


def _rejected(why: str) -> ProctorError:
    return ProctorError(why, hint="a query cannot write; `proctor runs export` writes files")


# -- what a query needs --------------------------------------------------------------------------


class ReferencedTables(NamedTuple):
    """Tables and columns named in a query; None means all columns."""

    tables: frozenset[str]
    columns: frozenset[str] | None


EVERYTHING = ReferencedTables(frozenset({"trials", "runs", "cases", "checks"}), None)

# Query node types that read; any other is a statement.
_READING_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})

# Expression types that may refer to columns without naming them.
_WHOLE_ROW_NODES = frozenset({"STAR", "SHOW_REF", "PIVOT", "TABLE_FUNCTION"})


class _Seen(NamedTuple):
    kinds: set[str]
    tables: set[str]
    names: set[str]


def _referenced(connection: duckdb.DuckDBPyConnection, query: str) -> ReferencedTables:
    """Read the names a query uses from its syntax tree; reject nested statements."""
    row = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchone()
    tree: Any = msgspec.json.decode(row[0]) if row else {}
    if tree.get("error"):
        raise _rejected(f"the query cannot be parsed: {tree.get('error_message')}")
    seen = _Seen(set(), set(), set())
    _walk(tree.get("statements"), seen)
    foreign = {kind for kind in seen.kinds if kind.endswith("_NODE")} - _READING_NODES
    if foreign:
        what = sorted(foreign)[0].removesuffix("_QUERY_NODE").removesuffix("_NODE")
        raise _rejected(f"only one SELECT is accepted, this one contains: {what}")
    tables = frozenset(seen.tables)
    # `select t from trials t` reads a whole row; so does a natural join.
    whole = seen.kinds & _WHOLE_ROW_NODES or seen.names & tables or "NATURAL" in seen.kinds
    return ReferencedTables(tables, None if whole else frozenset(seen.names))


def _walk(node: Any, seen: _Seen) -> None:
    if isinstance(node, list):
        for part in cast("list[Any]", node):
            _walk(part, seen)
    if not isinstance(node, dict):
        return
    fields = cast("dict[str, Any]", node)
    seen.kinds.update(str(fields[key]) for key in ("class", "type", "ref_type") if key in fields)
    seen.tables.update(str(fields[k]).lower() for k in ("table_name", "alias") if fields.get(k))
    for key in ("column_names", "using_columns"):
        seen.names.update(str(name).lower() for name in fields.get(key) or ())
    for part in fields.values():
        _walk(part, seen)


# -- the connection ------------------------------------------------------------------------------


def _guard(
    connection: duckdb.DuckDBPyConnection,
    view: View,
    selected: SqlCondition | None,
    used: ReferencedTables,
) -> None:
    """Create the views in a connection and revoke everything else."""
    condition = selected or SqlCondition("", frozenset())
    columns = set(COLUMNS) if used.columns is None else set(COLUMNS) & used.columns
    columns |= {*_TRIAL_KEYS, "checks"} if "checks" in used.tables else set()
    columns |= condition.columns | {"status"}
    sources = {COLUMNS[name].source for name in columns}
    view.load_into(connection, sources | ({ColumnSource.CASE} if "cases" in used.tables else set()))
    connection.execute(f"CREATE VIEW trials AS {view.relation(columns, condition.sql)}")
    if "checks" in used.tables:
        picked = [quoted(name) for name in _TRIAL_KEYS]
        picked += [f"{sql} AS {quoted(name)}" for name, sql in _CHECKS.items()]
        connection.execute(
            f"CREATE VIEW checks AS SELECT {', '.join(picked)} FROM"
            " (SELECT *, unnest(json_extract(checks, '$[*]')) AS k FROM trials)"
        )
    if "runs" in used.tables:
        connection.execute(f"CREATE VIEW runs AS {view.run_rows(_RUNS)}")
    if "cases" in used.tables:
        connection.execute(
            f"CREATE VIEW cases AS SELECT {view.run_list('run')}[c.run_no + 1] AS run,"
            ' c.id AS "case", c.tags, c.difficulty, c.type, c.properties, c.threshold,'
            " c.asked AS trials_asked FROM case_facts c"
        )
    paths = {p for run in view.columnar for p in (str(run.source), glob.escape(str(run.source)))}
    allowed = literal_list(sorted(paths), "VARCHAR")
    # The order matters: nothing can be changed after the last setting.
    for setting in (
        f"allowed_paths = {allowed}",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")
    connection.execute("BEGIN TRANSACTION READ ONLY")


def _fetched(
    connection: duckdb.DuckDBPyConnection, found: duckdb.DuckDBPyConnection, query: str
) -> SqlResult:
    described = found.description or []
    columns, types = [str(c[0]) for c in described], [str(c[1]) for c in described]
    if any("TIME ZONE" in kind for kind in types):
        # DuckDB needs another package to return such times to Python: text is equivalent.
        zoned = [f"c{at}::VARCHAR" if "TIME ZONE" in k else f"c{at}" for at, k in enumerate(types)]
        names = ", ".join(f"c{at}" for at in range(len(types)))
        rows = connection.execute(
            f"SELECT {', '.join(zoned)} FROM (\n{query}\n) AS q({names})"
        ).fetchall()
    else:
        rows = found.fetchall()
    return SqlResult(columns, types, rows)


def _hint(error: Exception) -> str | None:
    text = str(error)
    if "disabled by configuration" in text:
        return "a query can only read the results; `proctor runs export` writes files"
    if "read-only" in text:
        return "a query cannot change results"
    if "does not exist" in text or "not found" in text:
        return "tables: trials, runs, cases, checks; `proctor sql 'describe trials'` lists columns"
    return None

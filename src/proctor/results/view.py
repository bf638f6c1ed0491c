"""The trials of some runs as one relation in DuckDB.

Promise: finished runs are scanned where they lie, and only the columns a query names; live ones
are copied from their journal when the view is made. A Parquet file that turns out to be damaged
is named and its run read from the journal instead. The price: a view is of the moment it was made.
"""
# ruff: noqa: S608 (SQL is put together from the table of columns; every value is quoted)

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from proctor.results.columns import COLUMNS, KEPT, READS, Source, literal, literal_list
from proctor.results.discover import JOURNAL, PARQUET, Found, FoundRun
from proctor.results.facts import CLUSTER, as_glob

if TYPE_CHECKING:
    import duckdb


class View:
    """The trials of some runs in reach of DuckDB. Closed with `close`."""

    def __init__(self, found: Found) -> None:
        self.problems = [str(skipped) for skipped in found.skipped]
        self.problems += [
            f"{run.path / PARQUET}: damaged (not what was written), read the journal instead"
            for run in found.runs
            if run.damaged
        ]
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._set_runs(found.runs)

    def _set_runs(self, runs: Iterable[FoundRun]) -> None:
        """Columnar runs first: then a run's number is the number of its file in the scan."""
        usable = [known for run in runs if (known := self._usable(run)) is not None]
        self.runs = sorted(usable, key=lambda run: run.live)
        self.columnar = [run for run in self.runs if not run.live]
        self._beyond = any(run.facts.beyond for run in self.columnar)
        self.close()

    def _usable(self, run: FoundRun) -> FoundRun | None:
        """The run, read in a way that works; None (and a problem) when there is no such way."""
        if run.live or set(KEPT) <= set(run.facts.columns or _columns_in(run)):
            return run
        if (run.path / JOURNAL).is_file():  # columns of another version, or not to be read
            return run._replace(live=True)
        self.problems.append(f"{run.source}: skipped: it lacks columns and there is no journal")
        return None

    @cached_property
    def clusters(self) -> dict[str, str]:
        """Case → what it shares with other cases, where its properties name it."""
        return {
            case.id: str(case.properties[CLUSTER])
            for run in self.runs
            # Most runs name none: a look at the text spares decoding thousands of cases.
            if CLUSTER.encode() in bytes(run.facts.cases)
            for case in run.facts.case_list()
            if CLUSTER in case.properties
        }

    # -- connections ----------------------------------------------------------------------------

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection figures are asked through, made when it is first needed."""
        if self._connection is None:
            import duckdb

            connection = duckdb.connect()
            self._load_trials(connection, self.problems)
            self._connection = connection
            self._loaded: set[Source] = set()
        return self._connection

    def load_into(self, connection: duckdb.DuckDBPyConnection, sources: Iterable[Source]) -> None:
        """Put what columns of these sources are made from into another connection."""
        self._load_trials(connection, self.problems if self._connection is None else [])
        for source in sources:
            self._load_dimension(connection, source)

    def _load_trials(self, connection: duckdb.DuckDBPyConnection, problems: list[str]) -> None:
        """Journals, and which rows of columns no figure counts; the rest is read where it lies."""
        waiting = [(number, run) for number, run in enumerate(self.runs) if run.live]
        if waiting:
            from proctor.results import live

            live.create_table(connection)
            for number, run in waiting:
                with live.named_problems(run, problems):
                    live.load(connection, run, number, problems)
        if self._beyond:
            self._load_beyond(connection)

    def close(self) -> None:
        """Let go of files and memory."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    # -- asking ---------------------------------------------------------------------------------

    def run(self, select: str, columns: Collection[str], where: str = "") -> Any:
        """Run a query that reads `trials`, a relation with these columns; gives a cursor.

        Files that turn out to be damaged are replaced by their journals, once.
        """
        import duckdb

        try:
            return self._execute(select, columns, where)
        except (duckdb.IOException, duckdb.InvalidInputException, duckdb.InternalException):
            if not self.leave_damaged():
                raise
            return self._execute(select, columns, where)

    def _execute(self, select: str, columns: Collection[str], where: str) -> Any:
        return self.connection.cursor().execute(self._text(select, columns, where))

    def relation_of(self, select: str, columns: Collection[str], where: str = "") -> Any:
        """The same as `run`, for whoever wants frames or files rather than rows."""
        import duckdb

        try:
            return self.connection.sql(self._text(select, columns, where))
        except (duckdb.IOException, duckdb.InvalidInputException):
            if not self.leave_damaged():
                raise
            return self.connection.sql(self._text(select, columns, where))

    def _text(self, select: str, columns: Collection[str], where: str) -> str:
        connection = self.connection
        for source in {COLUMNS[name].source for name in columns} - self._loaded:
            self._load_dimension(connection, source)
            self._loaded.add(source)
        return f"WITH trials AS ({self.relation(columns, where)}) {select}"

    def leave_damaged(self) -> bool:
        """Find Parquet files that cannot be read; their runs are read from the journals then."""
        import duckdb

        damaged: set[str] = set()
        with duckdb.connect() as probe:
            for run in self.columnar:
                place = literal(as_glob(run.source))
                try:
                    probe.execute(f"SELECT max(hash(COLUMNS(*))) FROM read_parquet({place})")
                    probe.fetchall()
                except duckdb.Error as error:
                    damaged.add(str(run.path))
                    reason = str(error).splitlines()[0]
                    self.problems.append(
                        f"{run.source}: damaged, read the journal instead: {reason}"
                    )
        self._set_runs([r._replace(live=r.live or str(r.path) in damaged) for r in self.runs])
        return bool(damaged)

    # -- the relation ---------------------------------------------------------------------------

    def relation(self, columns: Collection[str], where: str = "") -> str:
        """SQL of all trials with these columns; `where` may use any of them."""
        names = [name for name in COLUMNS if name in columns]
        needs = {COLUMNS[name].source for name in names}
        picked = ", ".join(f'{self._expression(name)} AS "{name}"' for name in names) or "1"
        joins = [f"({self._base(names, needs)}) t"]
        if Source.CASE in needs:
            joins.append('LEFT JOIN case_facts c ON c.run_no = t.run_no AND c.id = t."case"')
        if Source.AGENT in needs:
            joins.append("LEFT JOIN agent_facts a ON a.run_no = t.run_no AND a.name = t.agent")
        inner = f"SELECT {picked} FROM {' '.join(joins)}"
        return f"SELECT * FROM ({inner}) WHERE {where}" if where else inner

    def run_list(self, name: str) -> str:
        """A column of runs as a list in SQL, at the places of their numbers."""
        return f"({literal_list([_run_value(name, run) for run in self.runs], COLUMNS[name].kind)})"

    def run_rows(self, names: Sequence[str]) -> str:
        """SQL of the runs themselves, one a row."""
        columns = ", ".join(f"unnest({self.run_list(name)}) AS {name}" for name in names)
        files = literal_list([literal(run.source.name) for run in self.runs], "VARCHAR")
        return f"SELECT {columns}, unnest({files}) AS read_from"

    def _expression(self, name: str) -> str:
        column = COLUMNS[name]
        return f"{self.run_list(name)}[t.run_no + 1]" if column.source is Source.RUN else column.sql

    def _base(self, names: Collection[str], needs: set[Source]) -> str:
        """Trials as they are kept: those in columns, then those in journals."""
        wanted = {part for name in names for part in READS[name]}
        wanted |= {"case"} if Source.CASE in needs else set()
        wanted |= {"agent"} if Source.AGENT in needs else set()
        listed = "".join(f', "{name}"' for name in KEPT if name in wanted)
        if not self.runs:
            empty = "".join(f', NULL::{COLUMNS[n].kind} AS "{n}"' for n in KEPT if n in wanted)
            return f"SELECT 0::BIGINT AS run_no, TRUE AS counted{empty} WHERE FALSE"
        live = f"SELECT run_no, counted{listed} FROM live"
        if not self.columnar:
            return live
        files = ", ".join(literal(as_glob(run.source)) for run in self.columnar)
        counted, joined = "TRUE", ""
        if "counted" in names and self._beyond:
            counted = "b.run_no IS NULL"
            joined = " LEFT JOIN beyond b ON b.run_no = file_index AND b.row_no = file_row_number"
        scan = (
            f"SELECT file_index::BIGINT AS run_no, {counted} AS counted{listed}"
            f" FROM read_parquet([{files}]){joined}"
        )
        return f"{scan} UNION ALL {live}" if len(self.columnar) < len(self.runs) else scan

    def _load_beyond(self, connection: duckdb.DuckDBPyConnection) -> None:
        connection.execute("CREATE TABLE beyond (run_no UBIGINT, row_no BIGINT)")
        for number, run in enumerate(self.columnar):
            for first, end in run.facts.beyond:
                connection.execute(
                    "INSERT INTO beyond SELECT ?, unnest(range(?, ?))", [number, first, end]
                )

    def _load_dimension(self, connection: duckdb.DuckDBPyConnection, source: Source) -> None:
        """The table of cases or agents of these runs."""
        if source is Source.AGENT:
            agents = [
                (number, name, agent.model, agent.kind)
                for number, run in enumerate(self.runs)
                for name, agent in run.facts.agents.items()
            ]
            _create(connection, "agent_facts", AGENT_FACTS, agents)
        elif source is Source.CASE:
            cases = [
                (
                    number,
                    case.id,
                    list(case.tags),
                    case.difficulty,
                    case.type,
                    msgspec.json.encode(case.properties).decode() if case.properties else None,
                    case.threshold,
                    case.asked,
                )
                for number, run in enumerate(self.runs)
                for case in run.facts.case_list()
            ]
            _create(connection, "case_facts", CASE_FACTS, cases)


AGENT_FACTS = {"run_no": "BIGINT", "name": "VARCHAR", "model": "VARCHAR", "kind": "VARCHAR"}
CASE_FACTS = {
    "run_no": "BIGINT",
    "id": "VARCHAR",
    "tags": "VARCHAR[]",
    "difficulty": "VARCHAR",
    "type": "VARCHAR",
    "properties": "JSON",
    "threshold": "DOUBLE",
    "asked": "BIGINT",
}


def _create(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    columns: dict[str, str],
    rows: list[tuple[Any, ...]],
) -> None:
    """A table filled column by column: as lists, a hundred times faster than row by row."""
    picked = ", ".join(f"unnest(?::{kind}[]) AS {name}" for name, kind in columns.items())
    lists = [[row[at] for row in rows] for at in range(len(columns))]
    connection.execute(f"CREATE TABLE {table} AS SELECT {picked}", lists)


def _columns_in(run: FoundRun) -> tuple[str, ...]:
    """The columns of a Parquet file nothing is known of; none when it cannot be read."""
    import duckdb

    query = f"DESCRIBE SELECT * FROM read_parquet({literal(as_glob(run.source))})"
    try:
        with duckdb.connect() as probe:
            return tuple(row[0] for row in probe.execute(query).fetchall())
    except duckdb.Error:
        return ()


def _run_value(name: str, run: FoundRun) -> str:
    """A column of a run as SQL."""
    facts = run.facts
    match name:
        case "run":
            return literal(run.name)
        case "run_id":
            return literal(facts.run_id)
        case "run_path":
            return literal(str(run.path))
        case "experiment":
            return literal(facts.name)
        case "run_started":
            return literal(started_at(facts.created))
        case "run_tags":
            return literal_list([literal(tag) for tag in run.tags], "VARCHAR")
        case "run_stopped":
            return literal(facts.stopped)
        case "git_commit":
            return literal(facts.commit)
        case _:
            return literal(facts.host)


def started_at(created: str | None) -> str | None:
    """When a run began, in UTC, as SQL reads it; None when the spec does not say."""
    if created is None:
        return None
    try:
        when = datetime.fromisoformat(created)
    except ValueError:
        return None
    aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return aware.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")

"""The trials of some runs as one relation in DuckDB.

Promise: finished runs are scanned where they lie, and only the columns a query names; live ones
are copied from their journal when the view is made. A Parquet file that turns out to be damaged
is named and its run read from the journal instead. The price: a view is of the moment it was made.
"""
# ruff: noqa: S608 (SQL is put together from the table of columns; every value is quoted)

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from proctor.results.columns import COLUMNS, KEPT, READS, Source, literal, literal_list
from proctor.results.discover import JOURNAL, Found, FoundRun
from proctor.results.facts import as_glob

if TYPE_CHECKING:
    import duckdb


class View:
    """A connection to DuckDB with the trials of some runs in reach. Closed with `close`."""

    def __init__(self, found: Found, tags: Mapping[str, tuple[str, ...]] | None = None) -> None:
        import duckdb

        self.problems = [str(skipped) for skipped in found.skipped]
        self._tags = tags or {}
        self._errors = (duckdb.IOException, duckdb.InvalidInputException, duckdb.InternalException)
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._set_runs(found.runs)

    def _set_runs(self, runs: Iterable[FoundRun]) -> None:
        """Columnar runs first: then a run's number is the number of its file in the scan."""
        usable = [known for run in runs if (known := self._usable(run)) is not None]
        self.runs = sorted(usable, key=lambda run: run.live)
        self.columnar = [run for run in self.runs if not run.live]
        self._dimensions: set[Source] = set()
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

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection, made when it is first needed."""
        if self._connection is None:
            import duckdb

            from proctor.results import live

            self._connection = duckdb.connect()
            live.create_table(self._connection)
            for number, run in enumerate(self.runs):
                if run.live:
                    with live.named_problems(run, self.problems):
                        live.load(self._connection, run, number, self.problems)
            if self._beyond:
                self._load_beyond(self._connection)
        return self._connection

    def close(self) -> None:
        """Let go of files and memory."""
        if getattr(self, "_connection", None) is not None:
            self._connection.close()  # type: ignore[union-attr]
        self._connection = None

    # -- asking ---------------------------------------------------------------------------------

    def fetch(
        self, select: str, columns: Collection[str], where: str = ""
    ) -> list[tuple[Any, ...]]:
        """Rows of a query that reads `trials`, a relation with at least these columns."""
        return self.run(select, columns, where).fetchall()

    def run(
        self, select: str, columns: Collection[str], where: str = ""
    ) -> duckdb.DuckDBPyConnection:
        """Run a query that reads `trials`; damaged files are replaced by their journals once."""
        try:
            return self._execute(select, columns, where)
        except self._errors:
            if not self._leave_damaged():
                raise
            return self._execute(select, columns, where)

    def _execute(self, select: str, columns: Collection[str], where: str) -> Any:
        cursor = self.connection.cursor()
        return cursor.execute(f"WITH trials AS ({self.relation(columns, where)}) {select}")

    def _leave_damaged(self) -> bool:
        """Find Parquet files that cannot be read, and read their runs from the journals."""
        import duckdb

        damaged: set[str] = set()
        with duckdb.connect() as probe:
            for run in self.columnar:
                place = literal(as_glob(run.source))
                try:
                    probe.execute(
                        f"SELECT max(hash(COLUMNS(*))) FROM read_parquet({place})"
                    ).fetchall()
                except duckdb.Error as error:
                    damaged.add(str(run.path))
                    reason = str(error).splitlines()[0]
                    self.problems.append(f"{run.source}: damaged, read the journal: {reason}")
        self._set_runs([r._replace(live=r.live or str(r.path) in damaged) for r in self.runs])
        return bool(damaged)

    # -- the relation ---------------------------------------------------------------------------

    def relation(self, columns: Collection[str], where: str = "") -> str:
        """SQL of all trials with these columns; `where` may use any of them."""
        names = [name for name in COLUMNS if name in columns]
        needs = {COLUMNS[name].source for name in names}
        for source in needs & {Source.CASE, Source.AGENT}:
            self._load_dimension(source)
        picked = ", ".join(f'{self._expression(name)} AS "{name}"' for name in names) or "1"
        joins = [f"({self._base(names, needs)}) t"]
        if Source.CASE in needs:
            joins.append('LEFT JOIN case_facts c ON c.run_no = t.run_no AND c.id = t."case"')
        if Source.AGENT in needs:
            joins.append("LEFT JOIN agent_facts a ON a.run_no = t.run_no AND a.name = t.agent")
        inner = f"SELECT {picked} FROM {' '.join(joins)}"
        return f"SELECT * FROM ({inner}) WHERE {where}" if where else inner

    def _expression(self, name: str) -> str:
        column = COLUMNS[name]
        if column.source is not Source.RUN:
            return column.sql
        values = [_run_value(name, run, self._tags) for run in self.runs]
        return f"({literal_list(values, column.kind)})[t.run_no + 1]"

    def _base(self, names: Collection[str], needs: set[Source]) -> str:
        """Trials as they are kept: those in columns, then those in journals."""
        kept = [name for name in KEPT if name in self._kept_for(names, needs)]
        listed = "".join(f', "{name}"' for name in kept)
        live = f"SELECT run_no, counted{listed} FROM live"
        if not self.columnar:
            return live
        files = ", ".join(literal(as_glob(run.source)) for run in self.columnar)
        counted = "TRUE"
        joined = ""
        if "counted" in names and self._beyond:
            counted = "b.run_no IS NULL"
            joined = " LEFT JOIN beyond b ON b.run_no = file_index AND b.row_no = file_row_number"
        scan = (
            f"SELECT file_index::BIGINT AS run_no, {counted} AS counted{listed}"
            f" FROM read_parquet([{files}]){joined}"
        )
        return f"{scan} UNION ALL {live}" if len(self.columnar) < len(self.runs) else scan

    def _kept_for(self, names: Collection[str], needs: set[Source]) -> set[str]:
        wanted = {part for name in names for part in READS[name]}
        wanted |= {"case"} if Source.CASE in needs else set()
        return wanted | ({"agent"} if Source.AGENT in needs else set())

    def _load_beyond(self, connection: duckdb.DuckDBPyConnection) -> None:
        connection.execute("CREATE TABLE beyond (run_no UBIGINT, row_no BIGINT)")
        for number, run in enumerate(self.columnar):
            for first, end in run.facts.beyond:
                connection.execute(
                    "INSERT INTO beyond SELECT ?, unnest(range(?, ?))", [number, first, end]
                )

    def _load_dimension(self, source: Source) -> None:
        """The table of cases or agents of these runs, made when a query first needs it."""
        connection = self.connection
        if source in self._dimensions:
            return
        self._dimensions.add(source)
        if source is Source.AGENT:
            agents = [
                (n, name, a) for n, r in enumerate(self.runs) for name, a in r.facts.agents.items()
            ]
            connection.execute(
                "CREATE TABLE agent_facts AS SELECT unnest(?::BIGINT[]) AS run_no,"
                " unnest(?::VARCHAR[]) AS name, unnest(?::VARCHAR[]) AS model,"
                " unnest(?::VARCHAR[]) AS kind",
                [
                    [n for n, _, _ in agents],
                    [name for _, name, _ in agents],
                    [a.model for _, _, a in agents],
                    [a.kind for _, _, a in agents],
                ],
            )
            return
        self._load_cases(connection)

    def _load_cases(self, connection: duckdb.DuckDBPyConnection) -> None:
        import msgspec

        rows = [(n, case) for n, run in enumerate(self.runs) for case in run.facts.case_list()]
        connection.execute(
            "CREATE TABLE case_facts AS SELECT unnest(?::BIGINT[]) AS run_no,"
            " unnest(?::VARCHAR[]) AS id, unnest(?::VARCHAR[][]) AS tags,"
            " unnest(?::VARCHAR[]) AS difficulty, unnest(?::VARCHAR[]) AS type,"
            " unnest(?::JSON[]) AS properties, unnest(?::DOUBLE[]) AS threshold,"
            " unnest(?::BIGINT[]) AS asked",
            [
                [n for n, _ in rows],
                [case.id for _, case in rows],
                [list(case.tags) for _, case in rows],
                [case.difficulty for _, case in rows],
                [case.type for _, case in rows],
                [
                    msgspec.json.encode(c.properties).decode() if c.properties else None
                    for _, c in rows
                ],
                [case.threshold for _, case in rows],
                [case.asked for _, case in rows],
            ],
        )


def _columns_in(run: FoundRun) -> tuple[str, ...]:
    """The columns of a Parquet file nothing is known of; none when it cannot be read."""
    import duckdb

    query = f"DESCRIBE SELECT * FROM read_parquet({literal(as_glob(run.source))})"
    try:
        with duckdb.connect() as probe:
            return tuple(row[0] for row in probe.execute(query).fetchall())
    except duckdb.Error:
        return ()


def _run_value(name: str, run: FoundRun, tags: Mapping[str, tuple[str, ...]]) -> str:
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
            return literal_list([literal(tag) for tag in tags.get(str(run.path), ())], "VARCHAR")
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

# ruff: noqa: S608 (SQL is put together from the table of columns; every value is quoted)
"""Expose the trials of some runs as one relation in DuckDB.

Guarantees: finished runs are scanned in place, reading only the columns a query names; live runs
are copied from their journal when the view is created. A damaged Parquet file is reported and its
run is read from the journal instead. Trade-off: a view is a snapshot of the moment it was created.
"""

from __future__ import annotations

import glob
import math
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from proctor.errors import ProctorError, did_you_mean
from proctor.files import unblocked
from proctor.formatting import plural
from proctor.results.discover import JOURNAL, PARQUET, DiscoveredRun, Discovery
from proctor.results.metadata import CLUSTER
from proctor.results.outcomes import observe
from proctor.runs.folder import RunFolder
from proctor.runs.journal import JournalIndex
from proctor.runs.parquet import COLUMNS as PARQUET_COLUMNS
from proctor.runs.parquet import FILLED, LATER_COLUMNS

if TYPE_CHECKING:
    import duckdb


# The columns visible to a query: name, type, meaning and SQL. The SQL view, `ResultSet` and the
# reference page all read this one table, so they cannot disagree. A column that is not queried
# costs nothing.


class ColumnSource(StrEnum):
    """Source of a column."""

    TRIAL = "trial"
    RUN = "run"
    CASE = "case"
    AGENT = "agent"


class TrialColumn(NamedTuple):
    """A column of the view `trials`. In `sql`, t is the trial, c its case, a its agent."""

    kind: str
    source: ColumnSource
    sql: str
    about: str


def _trial(kind: str, about: str, sql: str) -> TrialColumn:
    return TrialColumn(kind, ColumnSource.TRIAL, sql, about)


def _run(kind: str, about: str) -> TrialColumn:
    """Define a column that is constant within a run."""
    return TrialColumn(kind, ColumnSource.RUN, "", about)


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
"""Columns of the table of cases that queries join."""


def _case(name: str, about: str) -> TrialColumn:
    return TrialColumn(CASE_FACTS[name], ColumnSource.CASE, f"c.{name}", about)


JUDGED = "t.status IN ('passed', 'failed', 'hard_fail')"

# A text describes a column of results.parquet that keeps its name and type.
_DEFINED: dict[str, str | TrialColumn] = {
    "run": _run("VARCHAR", "the run's path below the results folder: `suite/2026-11-16_001`"),
    "run_id": _run("VARCHAR", "the run's id, a time-ordered UUID"),
    "run_path": _run("VARCHAR", "the run's folder"),
    "experiment": _run("VARCHAR", "the name of the suite or experiment"),
    "run_started": _run("TIMESTAMP", "when the run started, UTC"),
    "run_tags": _run("VARCHAR[]", "tags added with `proctor runs tag`"),
    "run_stopped": _run("VARCHAR", "why the run ended early, else NULL"),
    "stopping_rules": _run(
        "VARCHAR", "rules of `--early-stop` that could stop its cells; NULL without"
    ),
    "git_commit": _run("VARCHAR", "the git commit of the suite"),
    "host": _run("VARCHAR", "the machine that ran it"),
    "case": "the id of the case",
    "agent": "the name of the agent",
    "model": TrialColumn(
        "VARCHAR", ColumnSource.AGENT, "a.model", "the agent's model, if configured"
    ),
    "agent_kind": TrialColumn("VARCHAR", ColumnSource.AGENT, "a.kind", "the agent's kind"),
    "params": "parameters of the trial; NULL if there are none",
    "axis_seed": "the experiment's seed; NULL if seed is not an axis",
    "index": "repeat number within the cell, from 0",
    "seed": "the seed passed to the agent",
    "attempt": "1, or more if the trial was rerun",
    "status": "passed, failed, hard_fail, infra_error, not_judged or cancelled",
    "judged": _trial(
        "BOOLEAN", "whether the trial was judged: passed, failed or hard_fail", JUDGED
    ),
    "passed": _trial(
        "BOOLEAN",
        "whether it passed; NULL if it was not judged, so `avg(passed::INT)` is a pass rate",
        f"CASE WHEN {JUDGED} THEN t.status = 'passed' END",
    ),
    "counted": _trial(
        "BOOLEAN",
        "false if it ended after an early stop had decided its cell: no figure counts it",
        "t.counted",
    ),
    "early_stop": _trial(
        "VARCHAR", "why its cell stopped before all planned trials; NULL if it did not", "t.early"
    ),
    "score": "0 to 1; NULL if there is no score",
    "threshold": _case("threshold", "the minimum score to pass the case"),
    "tags": _case("tags", "tags of the case"),
    "difficulty": _case("difficulty", "difficulty of the case"),
    "type": _case("type", "type of the case"),
    "properties": _case("properties", "further properties of the case"),
    "answer": "the agent's output, up to 100,000 characters",
    "error": "why it could not be judged: error type, message, location",
    "error_type": _trial("VARCHAR", "the type of that error", "t.error->>'type'"),
    "started": _trial(
        "TIMESTAMP",
        "when the trial started, UTC",
        "make_timestamp(nullif(t.started_ns, 0) // 1000)",
    ),
    "started_ns": "the same in nanoseconds since 1970",
    "duration_ms": "duration including judging",
    "latency_ms": "the agent's own time",
    "input_tokens": "input tokens of models; NULL if unknown",
    "output_tokens": "output tokens of models",
    "cost_usd": "known cost of the agent; NULL if unknown",
    "judge_cost_usd": "known cost of judging",
    "llm_calls": "model calls",
    "unpriced_calls": "model calls without a known price",
    "tool_calls": "tool calls",
    "retries": "attempts after the first",
    "trace_id": "the id of its trace",
    "trace": "location of the trace: segment, offset, length",
    "checks": "results of all checks; the view `checks` has them as rows",
    "queue_ms": "waiting for our own rate limits",
    "startup_ms": "starting the agent's process",
    "check_ms": "running the checks, with their judges",
    "category": "why it failed or was not judged, in one word",
    "last_status": "status after retries; figures use the first judged attempt",
    "spent_usd": "known cost of all attempts at the trial",
    "spent_tokens": "tokens of all attempts",
    "spent_unpriced_calls": "unpriced model calls of all attempts",
}

COLUMNS = {
    name: column
    if isinstance(column, TrialColumn)
    else _trial(PARQUET_COLUMNS[name], column, f't."{name}"')
    for name, column in _DEFINED.items()
}
"""Columns of the view `trials`, in its order."""

CASE_KEY = """experiment || '/' || "case\""""
"""A case in SQL: two suites may use one id for different questions."""

# Columns read unchanged from results.parquet.
_STORED = tuple(name for name, column in _DEFINED.items() if isinstance(column, str))

OUTCOMES = frozenset(
    name
    for name, column in COLUMNS.items()
    if column.source is ColumnSource.TRIAL
    # Known before the trial; or, for the last four, exactly what a rate counts anyway.
    and name not in ("case", "agent", "params", "axis_seed", "index", "seed")
    and name not in ("started", "started_ns", "trace_id", "trace", "counted", "judged")
)
"""Columns that a trial decides: a rate of trials selected by one says nothing about the agent."""

_READ = re.compile(r'\bt\."?(\w+)"?')

# The stored columns that each column is computed from.
_READS = {
    name: frozenset(part for part in _READ.findall(column.sql) if part in _STORED)
    for name, column in COLUMNS.items()
}

NUMBERS = frozenset(
    name
    for name, column in COLUMNS.items()
    if column.kind in ("DOUBLE", "BIGINT", "INTEGER", "BOOLEAN")
)

_NESTED = re.compile(r"(params|properties)\.(.+)", re.DOTALL)


class Named(NamedTuple):
    """Return a column by its user-facing name, which may be a path into JSON: `properties.lang`."""

    name: str
    base: str
    sql: str
    kind: str

    @property
    def numeric(self) -> bool:
        """Whether the column is numeric."""
        return self.base == self.name and self.base in NUMBERS


def named(name: str) -> Named:
    """Return a column by name; for an unknown one, raise with the closest match."""
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
    """Quote a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: object) -> str:
    """Format a value as SQL. The only escape in strings is the doubled quote."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | float):
        return repr(value) if math.isfinite(value) else "NULL"
    if isinstance(value, tuple):
        return literal_list(cast("tuple[object, ...]", value), "VARCHAR")
    text = str(value)
    if "\0" in text:
        raise ProctorError("the search text contains a NUL character")
    return "'" + text.replace("'", "''") + "'"


def pattern(path: Path) -> str:
    """Format a path as SQL; DuckDB reads paths as patterns, so their signs are escaped."""
    return literal(glob.escape(str(path)))


def literal_list(values: Iterable[object], kind: str) -> str:
    """Format values as a typed SQL list, empty or not."""
    return f"[{', '.join(map(literal, values))}]::{kind}[]"


class View:
    """The trials of some runs, readable by DuckDB. Release with `close`."""

    def __init__(self, discovery: Discovery) -> None:
        self.problems = [str(skipped) for skipped in discovery.skipped]
        self.problems += [problem for run in discovery.runs for problem in run.problems]
        # Runs that are read from their journals report each line.
        self.problems += [
            f"{run.path / JOURNAL}: {run.facts.damaged} of its lines could not be read when the"
            " results were written: their trials are missing"
            for run in discovery.runs
            if run.facts.damaged and not run.live
        ]
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._set_runs(discovery.runs)

    def _set_runs(self, runs: Iterable[DiscoveredRun]) -> None:
        """Columnar runs come first, so that a run's number is the index of its file in the scan."""
        usable = [known for run in runs if (known := self._usable(run)) is not None]
        self.runs = sorted(usable, key=lambda run: run.live)
        self.columnar = [run for run in self.runs if not run.live]
        self._stopped = any(run.facts.stopped_early for run in self.columnar)
        self.close()

    def _usable(self, run: DiscoveredRun) -> DiscoveredRun | None:
        """Return the run with a readable source; None (and a problem) if there is none."""
        missing = set(_STORED) - set(run.facts.columns or _columns_in(run))
        if run.live or not missing:
            return run
        # Columns of another version, or unreadable; a copy for queries may have no journal.
        if (run.path / JOURNAL).is_file() or missing <= LATER_COLUMNS:
            return run._replace(live=True)
        self.problems.append(f"{run.source}: skipped: it lacks columns and there is no journal")
        return None

    @cached_property
    def clusters(self) -> dict[str, str]:
        """Map each case, as `CASE_KEY` writes it, to its cluster, where it names one."""
        return {
            f"{run.facts.name}/{case.id}": str(case.properties[CLUSTER])
            for run in self.runs
            # Most runs have no clusters: a substring check avoids decoding thousands of cases.
            if CLUSTER.encode() in bytes(run.facts.cases)
            for case in run.facts.case_list()
            if CLUSTER in case.properties
        }

    @cached_property
    def scenarios(self) -> frozenset[str]:
        """The cases, as `CASE_KEY` writes them, whose parameters make other instances of them."""
        return frozenset(
            f"{run.facts.name}/{case.id}"
            for run in self.runs
            # As above: most runs have none.
            if b'"scenario"' in bytes(run.facts.cases)
            for case in run.facts.case_list()
            if case.scenario
        )

    # -- connections ----------------------------------------------------------------------------

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection for figures, opened on first use."""
        if self._connection is None:
            import duckdb

            connection = duckdb.connect()
            self._load_trials(connection)
            self._connection = connection
            self._loaded: set[ColumnSource] = set()
        return self._connection

    def load_into(
        self, connection: duckdb.DuckDBPyConnection, sources: Iterable[ColumnSource]
    ) -> None:
        """Load the data behind columns of these sources into another connection."""
        self._load_trials(connection)
        for source in sources:
            self._load_dimension(connection, source)

    def _load_trials(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Load journals, and the Parquet rows of stopped cells; the rest is scanned in place."""
        import duckdb

        problems: list[str] = []
        live = [(number, run) for number, run in enumerate(self.runs) if run.live]
        if live:
            columns = ", ".join(f'"{name}" {COLUMNS[name].kind}' for name in _STORED)
            connection.execute(
                f"CREATE TABLE live (run_no BIGINT, counted BOOLEAN, early VARCHAR, {columns})"
            )
        for number, run in live:
            # One unreadable run must not hide the others.
            try:
                _load_journal(connection, run, number, problems)
            except ProctorError as error:
                problems.append(f"{run.path}: skipped: {error.message}")
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                reason = f"the spec is not a run spec: {type(error).__name__}: {error}"
                problems.append(f"{run.path}: skipped: {reason}")
            except duckdb.Error as error:
                problems.append(f"{run.path}: skipped: {str(error).splitlines()[0]}")
        # Another connection reads the same journals.
        self.problems += [each for each in problems if each not in self.problems]
        if self._stopped:
            rows = [
                (number, row, row < cell.counted_end, cell.reason)
                for number, run in enumerate(self.columnar)
                for cell in run.facts.stopped_early
                for row in range(cell.first, cell.end)
            ]
            _create(connection, "stopped_rows", STOPPED_ROWS, rows)

    def close(self) -> None:
        """Release files and memory."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    # -- queries --------------------------------------------------------------------------------

    def run(self, select: str, columns: Collection[str], where: str = "") -> Any:
        """Run a query over `trials`, a relation with these columns, and return a cursor.

        Damaged files are replaced by their journals, once.
        """
        return self._retried(
            lambda: self.connection.cursor().execute(self._text(select, columns, where))
        )

    def relation_of(self, select: str, columns: Collection[str], where: str = "") -> Any:
        """Same as `run`, returning a relation for frames and files."""
        return self._retried(lambda: self.connection.sql(self._text(select, columns, where)))

    def _retried(self, query: Callable[[], Any]) -> Any:
        import duckdb

        try:
            return query()
        # A damaged file shows only when it is read, and DuckDB reports it in any of these ways.
        except (duckdb.IOException, duckdb.InvalidInputException, duckdb.InternalException):
            if not self.bypass_damaged_files():
                raise
            return query()

    def _text(self, select: str, columns: Collection[str], where: str) -> str:
        connection = self.connection
        for source in {COLUMNS[name].source for name in columns} - self._loaded:
            self._load_dimension(connection, source)
            self._loaded.add(source)
        # A WITH clause and not a view: each query names only the columns it needs.
        return f"WITH trials AS ({self.relation(columns, where)}) {select}"

    def bypass_damaged_files(self) -> bool:
        """Find unreadable Parquet files and read their runs from the journals instead."""
        import duckdb

        damaged: set[str] = set()
        with duckdb.connect() as probe:
            for run in self.columnar:
                file = pattern(run.source)
                try:
                    # A hash of every value reads every page: metadata alone may be intact.
                    probe.execute(f"SELECT max(hash(COLUMNS(*))) FROM read_parquet({file})")
                    probe.fetchall()
                except duckdb.Error as error:
                    damaged.add(str(run.path))
                    reason = str(error).splitlines()[0]
                    self.problems.append(
                        f"{run.source}: damaged, reading the journal instead: {reason}"
                    )
        self._set_runs([r._replace(live=r.live or str(r.path) in damaged) for r in self.runs])
        return bool(damaged)

    # -- the relation ---------------------------------------------------------------------------

    def relation(self, columns: Collection[str], where: str = "") -> str:
        """Return SQL for all trials with these columns; `where` may use any of them."""
        names = [name for name in COLUMNS if name in columns]
        needs = {COLUMNS[name].source for name in names}
        picked = [
            f'{self.run_list(name)}[t.run_no + 1] AS "{name}"'
            if COLUMNS[name].source is ColumnSource.RUN
            else f'{COLUMNS[name].sql} AS "{name}"'
            for name in names
        ]
        joins = [f"({self._base(names, needs)}) t"]
        if ColumnSource.CASE in needs:
            joins.append('LEFT JOIN case_facts c ON c.run_no = t.run_no AND c.id = t."case"')
        if ColumnSource.AGENT in needs:
            joins.append("LEFT JOIN agent_facts a ON a.run_no = t.run_no AND a.name = t.agent")
        inner = f"SELECT {', '.join(picked) or '1'} FROM {' '.join(joins)}"
        return f"SELECT * FROM ({inner}) WHERE {where}" if where else inner

    def run_list(self, name: str) -> str:
        """Return a column of the runs as an SQL list, indexed by run number."""
        values = [_RUN_VALUES[name](run) for run in self.runs]
        return f"({literal_list(values, COLUMNS[name].kind)})"

    def run_rows(self, names: Sequence[str]) -> str:
        """Return SQL for the runs, one per row."""
        columns = ", ".join(f"unnest({self.run_list(name)}) AS {name}" for name in names)
        files = literal_list([run.source.name for run in self.runs], "VARCHAR")
        return f"SELECT {columns}, unnest({files}) AS read_from"

    def _base(self, names: Collection[str], needs: set[ColumnSource]) -> str:
        """Return SQL for the stored trials: Parquet files, then journals."""
        stored = {part for name in names for part in _READS[name]}
        stored |= {"case"} if ColumnSource.CASE in needs else set()  # the join needs the key
        stored |= {"agent"} if ColumnSource.AGENT in needs else set()
        listed = "".join(f', "{name}"' for name in _STORED if name in stored)
        if not self.runs:
            # A scan of no files is an error; an empty relation has the same columns.
            empty = "".join(f', NULL::{COLUMNS[n].kind} AS "{n}"' for n in _STORED if n in stored)
            stop = "TRUE AS counted, NULL::VARCHAR AS early"
            return f"SELECT 0::BIGINT AS run_no, {stop}{empty} WHERE FALSE"
        live = f"SELECT run_no, counted, early{listed} FROM live"
        if not self.columnar:
            return live
        files = ", ".join(pattern(run.source) for run in self.columnar)
        stop, joined = "TRUE AS counted, NULL::VARCHAR AS early", ""
        if self._stopped and {"counted", "early_stop"} & set(names):
            stop = "coalesce(s.counted, TRUE) AS counted, s.early"
            joined = (
                " LEFT JOIN stopped_rows s ON s.run_no = file_index AND s.row_no = file_row_number"
            )
        scan = (
            f"SELECT file_index::BIGINT AS run_no, {stop}{listed}"
            f" FROM read_parquet([{files}]){joined}"
        )
        return f"{scan} UNION ALL {live}" if len(self.columnar) < len(self.runs) else scan

    def _load_dimension(self, connection: duckdb.DuckDBPyConnection, source: ColumnSource) -> None:
        """Create the table of cases or agents of these runs."""
        if source is ColumnSource.AGENT:
            agents = [
                (number, name, agent.model, agent.kind)
                for number, run in enumerate(self.runs)
                for name, agent in run.facts.agents.items()
            ]
            _create(connection, "agent_facts", AGENT_FACTS, agents)
        elif source is ColumnSource.CASE:
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
STOPPED_ROWS = {"run_no": "UBIGINT", "row_no": "BIGINT", "counted": "BOOLEAN", "early": "VARCHAR"}


def _create(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    columns: dict[str, str],
    rows: list[tuple[Any, ...]],
) -> None:
    """Create a table from column lists: a hundred times faster than row by row."""
    picked = ", ".join(f"unnest(?::{kind}[]) AS {name}" for name, kind in columns.items())
    lists = [[row[at] for row in rows] for at in range(len(columns))]
    connection.execute(f"CREATE TABLE {table} AS SELECT {picked}", lists)


def _columns_in(run: DiscoveredRun) -> tuple[str, ...]:
    """Return the columns of a Parquet file; none when it cannot be read."""
    import duckdb

    query = f"DESCRIBE SELECT * FROM read_parquet({pattern(run.source)})"
    try:
        with duckdb.connect() as probe:
            return tuple(row[0] for row in probe.execute(query).fetchall())
    except duckdb.Error:
        return ()


_RUN_VALUES: dict[str, Callable[[DiscoveredRun], object]] = {
    "run": lambda run: run.name,
    "run_id": lambda run: run.facts.run_id,
    "run_path": lambda run: str(run.path),
    "experiment": lambda run: run.facts.name,
    "run_started": lambda run: started_at(run.facts.created),
    "run_tags": lambda run: run.tags,
    "run_stopped": lambda run: run.facts.stopped,
    "stopping_rules": lambda run: run.facts.stopping_rules,
    "git_commit": lambda run: run.facts.commit,
    "host": lambda run: run.facts.host,
}


def started_at(created: str | None) -> str | None:
    """Return the start time of a run in UTC for SQL; None when the spec has none."""
    if created is None:
        return None
    try:
        when = datetime.fromisoformat(created)
    except ValueError:
        return None
    aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    # TIMESTAMP has no zone; all times in the views are UTC.
    return aware.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")


# Trials of a run that is still being written, read from its journal: the same as `Run.trials()`, by
# the same rule; unreadable lines are dropped and reported. The file is only read, up to its current
# end: a run in progress is neither blocked nor waited for.


# Lower bound for the maximum line length given to DuckDB, whose own minimum is smaller.
_MIN_OBJECT = 1 << 20


def _load_journal(
    connection: duckdb.DuckDBPyConnection, run: DiscoveredRun, number: int, problems: list[str]
) -> None:
    """Insert the trials of one live run into the table `live`."""
    journal = run.path / JOURNAL
    if not journal.is_file() and (run.path / PARQUET).is_file():
        _load_older(connection, run, number)
        return
    spec = RunFolder(run.path).read_spec()
    kinds = ", ".join(f"'{name}': '{COLUMNS[name].kind}'" for name in _STORED)
    picked = ", ".join(
        f'coalesce("{n}", {FILLED[n]})' if n in FILLED else f'"{n}"' for n in _STORED
    )
    with tempfile.TemporaryDirectory(prefix="proctor-") as folder:
        lines = Path(folder) / "lines.jsonl"
        longest = _write_counted(journal, lines, spec, problems)
        if not longest:
            return
        connection.execute(
            f"""
            INSERT INTO live SELECT {number}, coalesce(counted, TRUE), early, {picked}
            FROM read_json({pattern(lines)}, format = 'newline_delimited',
                 columns = {{{kinds}, 'counted': 'BOOLEAN', 'early': 'VARCHAR'}},
                 maximum_object_size = {max(_MIN_OBJECT, longest + 32)})
            """
        )


def _load_older(connection: duckdb.DuckDBPyConnection, run: DiscoveredRun, number: int) -> None:
    """Insert the trials of a Parquet file that an older version wrote, where no journal is left."""
    run = run._replace(live=False)
    present = set(_columns_in(run))
    picked = ", ".join(f'"{n}"' if n in present else FILLED.get(n, "NULL") for n in _STORED)
    connection.execute(
        f"""
        INSERT INTO live SELECT {number}, TRUE, NULL, {picked}
        FROM read_parquet({pattern(run.source)})
        """
    )


def _write_counted(
    journal: Path, target: Path, spec: Mapping[str, Any], problems: list[str]
) -> int:
    """Write the line of each trial that counts, marked if no figure uses it; return the longest."""
    longest = 0
    try:
        file = open(journal, "rb", opener=unblocked)  # noqa: SIM115
    except FileNotFoundError:  # started, and no trial has finished yet
        return 0
    except OSError as error:
        raise ProctorError(
            f"cannot read the journal: {error.strerror}", where=str(journal)
        ) from None
    index = JournalIndex(journal)
    lost = [*map(str, index.reader.problems)]
    if lost:  # one message for a run, however many lines it has lost
        more = f" (and {plural(len(lost) - 1, 'more line')})" if len(lost) > 1 else ""
        problems.append(f"{lost[0]}{more}")
    with file, target.open("wb") as out:
        for seen in observe(index.lines.values(), spec):
            more = ""
            if seen.stopped is not None or not seen.counted:
                marks = msgspec.json.encode({"counted": seen.counted, "early": seen.stopped})
                more = marks.decode()[1:-1] + ","
            text = seen.trial.copied(file, more)
            out.write(text)
            longest = max(longest, len(text))
    return longest

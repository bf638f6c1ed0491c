"""Query, aggregate and export a selection of trials.

Guarantees: every figure states what it counts and what it leaves out; one that is not defined is
None with a reason. Trials that ended after an early stop are rows like others but in no figure. A
set is a snapshot: query again to see trials that a running run has added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

import msgspec

from proctor.errors import ProctorError
from proctor.formatting import plural
from proctor.results.aggregate import (
    OF_JUDGED,
    SPREAD,
    SPREAD_COLUMNS,
    TALLY,
    TALLY_COLUMNS,
    Figure,
    GroupRow,
    Instance,
    Over,
    Percentiles,
    Spread,
    TrialTally,
    by_outcome,
    group_row,
    rate_of,
    tallies_by_group,
)
from proctor.results.database import (
    CASE_KEY,
    COLUMNS,
    OUTCOMES,
    Named,
    View,
    literal,
    named,
    quoted,
)
from proctor.results.filters import Filters, SqlCondition, conditions
from proctor.results.outcomes import Excluded
from proctor.runs.heartbeat import read_beat
from proctor.sanitize import visible
from proctor.stats.describe import PERCENTILES
from proctor.stats.types import LEVEL, Estimand, Interval
from proctor.tables import Tabular, cell_text, interval_chart, need, table

if TYPE_CHECKING:
    import polars as pl

    from proctor.results.compare import Difference
    from proctor.results.outcomes import AgentOutcomes
    from proctor.results.sql import SqlResult
    from proctor.stats.describe import Correlation
    from proctor.stats.intervals import PassK

INSTANCE_COLUMNS = frozenset({"agent", "params", "case", "experiment", "axis_seed"})
"""Columns that identify an instance."""

JSON_COLUMNS = tuple(name for name, column in COLUMNS.items() if column.kind == "JSON")


class ResultSet(Tabular):
    """Selected trials of any number of runs; see `proctor.results.query`."""

    def __init__(self, view: View, selected: Sequence[SqlCondition] = ()) -> None:
        self._view = view
        self._selected = tuple(selected)

    # -- narrowing --------------------------------------------------------------------------------

    def where(self, **filters: Unpack[Filters]) -> ResultSet:
        """Return the trials of this set that also match these filters."""
        return ResultSet(self._view, (*self._selected, *conditions(filters)))

    @property
    def problems(self) -> list[str]:
        """Problems while reading: skipped folders, dropped lines."""
        _ = self._view.connection  # journals are read by the first query
        return list(self._view.problems)

    @property
    def notes(self) -> list[str]:
        """What no figure counts: planned trials that have not finished, and attempts at retries."""
        found: list[str] = []
        sql = "SELECT run, count(*) FROM trials GROUP BY run"
        done = dict(self._view.run(sql, {"run"}).fetchall())
        for run in self._view.runs:
            beat = read_beat(run.path) if run.live or run.facts.stopped else None
            if beat is not None and done.get(run.name, 0) + beat.not_needed < beat.planned:
                why = f" ({run.facts.stopped})" if run.facts.stopped else ""
                ended = f"{done.get(run.name, 0):,} of {plural(beat.planned, 'planned trial')}"
                found.append(f"{run.name}: {ended} done{why}")
        sql = """
            SELECT run, count(*) FILTER (last_status = 'passed'), count(*) FROM trials
            WHERE counted GROUP BY run HAVING bool_or(last_status != status) ORDER BY run
        """
        for run, passed, trials in self.fetch(sql, {"run", "counted", "status", "last_status"}):
            after = f"after retries {passed:,} of {plural(trials, 'trial')} passed"
            found.append(f"{run}: {after}; every figure counts the first judged attempt")
        return found

    @property
    def runs(self) -> list[Path]:
        """The folders of the runs in this set."""
        return sorted(run.path for run in self._view.runs)

    def __len__(self) -> int:
        return int(self.fetch("SELECT count(*) FROM trials", {"status"})[0][0])

    def __repr__(self) -> str:
        return f"<ResultSet: {plural(len(self), 'trial')} of {plural(len(self._view.runs), 'run')}>"

    # -- figures ----------------------------------------------------------------------------------

    def mean(self, column: str = "score", *, over: Over = "cases") -> Figure:
        """Return the mean of a column: over the instances' means, or over trials."""
        return self._figure(column, "avg", over)

    def std(self, column: str = "score", *, over: Over = "trials") -> Figure:
        """Return the standard deviation (n − 1) over trials, or over the instances' means."""
        return self._figure(column, "stddev_samp", over)

    def _figure(self, column: str, function: str, over: Over) -> Figure:
        value = self.number(column)
        each = "SELECT avg(x) AS x, count(x) AS k FROM v GROUP BY agent, params, key, axis_seed"
        inner = each if over == "cases" else "SELECT x, (x IS NOT NULL)::INT AS k FROM v"
        sql = f"""
            , v AS (SELECT {value.sql} AS x, agent, params::VARCHAR AS params, {CASE_KEY} AS key,
                           axis_seed FROM trials WHERE {among(column)}),
            u AS ({inner})
            SELECT {function}(x), count(x), coalesce(sum(k), 0)::BIGINT FROM u
        """  # noqa: S608 (from the table of columns)
        needed = {value.base, "counted", "judged"} | INSTANCE_COLUMNS
        statistic, n, trials = self.fetch(sql, needed)[0]
        total = self.tally()
        unit = "the instances' means" if over == "cases" else "trials"
        return Figure(
            value=None if statistic is None else float(statistic),
            n=n,
            trials=trials,
            selected=total.trials,
            left_out=_left_out(column, total, trials),
            method=f"{'mean' if function == 'avg' else 'standard deviation (n - 1)'} of {unit}",
            reason=None
            if statistic is not None
            else ("no value" if n == 0 else "one value has no standard deviation"),
        )

    def percentiles(
        self, column: str = "latency_ms", q: Sequence[float] = PERCENTILES
    ) -> Percentiles:
        """Return percentiles (0 to 100) of a column over trials."""
        if any(not 0 <= one <= 100 for one in q):
            raise ProctorError(f"invalid percentile {q}", hint="use a percentile from 0 to 100")
        value = self.number(column)
        quantiles = ", ".join(f"quantile_cont({value.sql}, {literal(one / 100)})" for one in q)
        sql = f"SELECT count({value.sql}), {quantiles} FROM trials WHERE {among(column)}"  # noqa: S608 (from the table of columns)
        row = self.fetch(sql, {value.base, "counted", "judged"})[0]
        total = self.tally()
        return Percentiles(
            values=dict(zip(q, row[1:], strict=True)),
            n=row[0],
            selected=total.trials,
            left_out=_left_out(column, total, row[0]),
            reason=None if row[0] else "no value",
        )

    def stats(self, column: str = "score", *, by: str | Sequence[str] | None = None) -> SetStats:
        """Return pass rate, mean, standard deviation, minimum, maximum and percentiles together.

        `by` groups: `results.stats("score", by="agent").groups["fast"].mean`.
        """
        value = self.number(column)
        sql = f"SELECT min({value.sql}), max({value.sql}) FROM trials WHERE {among(column)}"  # noqa: S608 (from the table of columns)
        low, high = self.fetch(sql, {value.base, "counted", "judged"})[0]
        found = self.percentiles(column)
        names = (by,) if isinstance(by, str) else tuple(by or ())
        groups: dict[Any, SetStats] = {}
        if names:
            for row in self.group_by(*names):
                key = tuple(row.key[name] for name in names)
                own = self.where(where=dict(zip(names, key, strict=True)))
                groups[key[0] if len(key) == 1 else key] = own.stats(column)
        return SetStats(
            column=column,
            trials=found.selected,
            n=found.n,
            pass_rate=self.pass_rate().value,
            mean=self.mean(column).value,
            std=self.std(column).value,
            min=low,
            max=high,
            percentiles=found.values,
            groups=groups,
        )

    def pass_rate(self, *, level: float = LEVEL, estimand: Estimand = "suite") -> Interval:
        """Return the share of judged trials that passed, with its interval.

        The mean of the instances' rates (a case under one seed). With estimand "suite" the interval
        is for exactly these instances; with "population" it is clustered by case, or by the
        `cluster` property of the cases, and with one case by instance. A single instance has
        Wilson's interval. Trials selected by an outcome have no rate.
        """
        return rate_of(
            self._grouped(()).get((), {}),
            level,
            self._view.clusters,
            estimand=estimand,
            selected_by=self.selected_by(),
        )

    def selected_by(self, names: Sequence[str] = ()) -> str | None:
        """Return an outcome column that selects these trials, or is among `names`; else None."""
        used = {*self._condition().columns, *(named(name).base for name in names)}
        return min(used & OUTCOMES, default=None)

    def pass_at_k(self, k: int) -> PassK:
        """Return the unbiased probability that one or more of k trials pass; mean of instances."""
        return self._pass_k("pass_at_k", k)

    def pass_hat_k(self, k: int) -> PassK:
        """Return the unbiased probability that all of k trials pass; mean of instances."""
        return self._pass_k("pass_hat_k", k)

    def _pass_k(self, name: Literal["pass_at_k", "pass_hat_k"], k: int) -> PassK:
        """Return the figure, undefined where an outcome selected the trials."""
        from proctor.stats import intervals

        instances = self._grouped(()).get((), {}).values()
        counts = [(each.passed, each.judged, each.unjudged) for each in instances]
        found = getattr(intervals, name)(counts, k, bias=self.tally().bias)
        by = self.selected_by()
        return found if by is None else replace(found, value=None, reason=by_outcome(by))

    def tally(self) -> TrialTally:
        """Count the trials by status."""
        return TrialTally(*self.fetch(f"SELECT {TALLY} FROM trials", TALLY_COLUMNS)[0])  # noqa: S608 (from the table of columns)

    def _grouped(self, names: Sequence[str]) -> dict[tuple[Any, ...], dict[Instance, TrialTally]]:
        columns = [named(name) for name in names]
        keys = "".join(f"{column.sql}, " for column in columns)
        each = f"agent, params::VARCHAR, {CASE_KEY}, axis_seed"
        sql = f"SELECT {keys}{each}, {TALLY} FROM trials GROUP BY ALL"  # noqa: S608 (from the table of columns)
        rows = self._keyed(sql, columns, INSTANCE_COLUMNS | TALLY_COLUMNS)
        return tallies_by_group(rows, len(columns), self._view.scenarios)

    def _keyed(
        self, sql: str, columns: Sequence[Named], needed: set[str] | frozenset[str]
    ) -> list[tuple[Any, ...]]:
        """Return rows that begin with the values of these columns, which can be keys."""
        rows = self.fetch(sql, needed | {column.base for column in columns})
        if not any(column.kind.endswith("[]") for column in columns):
            return rows
        # A list cannot be the key of a group.
        return [
            tuple(tuple(cast("list[Any]", v)) if isinstance(v, list) else v for v in row)
            for row in rows
        ]

    # -- groups -----------------------------------------------------------------------------------

    def group_by(self, *names: str, level: float = LEVEL, estimand: Estimand = "suite") -> Groups:
        """Group the trials by columns (`agent`, `difficulty`, `properties.lang`, …)."""
        if not names:
            raise ProctorError("no column to group by", hint="name one or more columns")
        groups, by = self._grouped(names), self.selected_by(names)
        columns = [named(name) for name in names]
        keys = "".join(f"{column.sql}, " for column in columns)
        sql = f"SELECT {keys}{SPREAD} FROM trials GROUP BY ALL"  # noqa: S608 (from the table of columns)
        found = self._keyed(sql, columns, SPREAD_COLUMNS)
        spreads = {row[: len(names)]: Spread(*row[len(names) :]) for row in found}
        rows = [
            group_row(
                dict(zip(names, key, strict=True)),
                cells,
                self._view.clusters,
                level,
                spread=spreads[key],
                estimand=estimand,
                selected_by=by,
            )
            for key, cells in sorted(groups.items(), key=lambda item: tuple(map(_order, item[0])))
        ]
        return Groups(self, names, rows)

    def compare(
        self, first: Any, second: Any, *, by: str = "agent", level: float = LEVEL
    ) -> Difference:
        """Compare two values of a column (two agents, two runs), case by case."""
        from proctor.results.compare import difference

        return difference(self, first, second, by=by, level=level)

    def correlate(
        self,
        column: str,
        value: str = "score",
        *,
        method: Literal["pearson", "spearman"] = "spearman",
    ) -> Correlation:
        """Correlate a numeric property of the cases with a metric; one pair per case."""
        from proctor.results.compare import correlation

        return correlation(self, column, value, method)

    def outcomes(self) -> tuple[AgentOutcomes, ...]:
        """Return the outcomes by agent and parameters; see `proctor.results.outcomes`."""
        from proctor.results.compare import outcomes_in

        return outcomes_in(self)

    # -- rows and frames --------------------------------------------------------------------------

    def rows(
        self, columns: Sequence[str] | None = None, *, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Return trials as mappings, by run and in plan order; JSON columns as objects."""
        return list(self.iter_rows(columns, limit=limit))

    def iter_rows(
        self, columns: Sequence[str] | None = None, *, limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the trials as mappings, fetched in batches."""
        names = tuple(columns or COLUMNS)
        cursor = self._run(*self._listing(names, limit))
        decoded = [at for at, name in enumerate(names) if name in JSON_COLUMNS]
        # In batches: all rows of a large set, with answers and checks, may not fit in memory.
        while batch := cursor.fetchmany(1000):
            for row in batch:
                values = list(row)
                for at in decoded:
                    values[at] = None if values[at] is None else msgspec.json.decode(values[at])
                yield dict(zip(names, values, strict=True))

    def _listing(self, names: Sequence[str], limit: int | None) -> tuple[str, set[str]]:
        columns = [named(name) for name in names]
        # JSON as text, which every program can read.
        picked = ", ".join(
            f"{c.sql}{'::VARCHAR' if c.kind == 'JSON' else ''} AS {quoted(c.name)}" for c in columns
        )
        order = 'run, "case", agent, params::VARCHAR, axis_seed, "index"'
        top = "" if limit is None else f" LIMIT {int(limit)}"
        sql = f"SELECT {picked} FROM trials ORDER BY {order}{top}"  # noqa: S608 (from the table of columns)
        keys = {"run", "case", "agent", "params", "axis_seed", "index"}
        return sql, {column.base for column in columns} | keys

    def records(self) -> list[dict[str, Any]]:
        """Return every trial as a mapping."""
        return self.rows()

    def _repr_html_(self) -> str:
        """Return the trials by run and agent, for notebooks."""
        return self.group_by("run", "agent")._repr_html_()

    def plot(self) -> Any:
        """Return the pass rates of the agents with their intervals, as an Altair chart."""
        return self.group_by("agent").plot()

    def to_arrow(self, columns: Sequence[str] | None = None) -> Any:
        """Return the trials as a `pyarrow.Table`; JSON columns are text."""
        need("pyarrow")
        return self.listing(columns).to_arrow_table()

    def to_polars(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the trials as a `polars.DataFrame`."""
        need("polars")
        need("pyarrow")  # DuckDB returns these values through it
        return self.listing(columns).pl()

    def to_pandas(self, columns: Sequence[str] | None = None) -> Any:
        """Return the trials as a `pandas.DataFrame`."""
        need("pandas")
        return self.listing(columns).df()

    def listing(self, columns: Sequence[str] | None = None) -> Any:
        """Return the trials as a DuckDB relation, by run and in plan order."""
        condition = self._condition()
        sql, needed = self._listing(tuple(columns or COLUMNS), None)
        return self._view.relation_of(sql, needed | condition.columns, condition.sql)

    def export(
        self,
        target: str | Path,
        *,
        format: str | None = None,  # noqa: A002 (the word users write)
        bom: bool = False,
    ) -> str:
        """Write the trials to a file, or to an MLflow server; the suffix selects the format."""
        from proctor.results.exchange.export import export

        return export(self, target, format, bom=bom)

    def sql(self, query: str) -> SqlResult:
        """Run a SELECT over the views `trials`, `runs`, `cases` and `checks` of this set."""
        from proctor.results.sql import answer

        return answer(self._view, query, self._condition())

    # -- inside -----------------------------------------------------------------------------------

    @staticmethod
    def number(column: str) -> Named:
        """Return a column as numbers; other values are left out."""
        source = named(column)
        match source.kind:
            case "DOUBLE" | "BIGINT" | "INTEGER":
                return source
            case "BOOLEAN":
                return source._replace(sql=f"({source.sql})::INT")
            case "VARCHAR":
                # TRY_CAST: a property may be a number in one case and text in another.
                return source._replace(sql=f"TRY_CAST({source.sql} AS DOUBLE)")
            case _:
                raise ProctorError(
                    f"{column} is not numeric ({source.kind})",
                    hint="such as score, latency_ms, cost_usd or properties.NAME",
                )

    def _condition(self) -> SqlCondition:
        sql = " AND ".join(one.sql for one in self._selected)
        return SqlCondition(sql, frozenset[str]().union(*(one.columns for one in self._selected)))

    def _run(self, sql: str, columns: set[str] | frozenset[str]) -> Any:
        condition = self._condition()
        return self._view.run(sql, columns | condition.columns, condition.sql)

    def fetch(self, sql: str, columns: set[str] | frozenset[str]) -> list[tuple[Any, ...]]:
        """Return the rows of a query over the selected `trials` with these columns."""
        return cast("list[tuple[Any, ...]]", self._run(sql, columns).fetchall())


class SetStats(Tabular, msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one column; `n` of `trials` selected trials have a value. None is unknown."""

    column: str
    trials: int
    n: int
    pass_rate: float | None
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    percentiles: dict[float, float | None]
    groups: dict[Any, SetStats] = {}

    def records(self) -> list[dict[str, Any]]:
        """Return a row for all trials, then one per group."""
        names = [name for name in self.__struct_fields__ if name not in ("percentiles", "groups")]
        return [
            {
                "group": group,
                **{name: getattr(each, name) for name in names},
                **{f"p{q:g}": value for q, value in each.percentiles.items()},
            }
            for group, each in [(None, self), *self.groups.items()]
        ]


class Groups(Tabular):
    """A set grouped by the values of some columns; `rows` are in the order of those values."""

    def __init__(self, of: ResultSet, names: Sequence[str], rows: list[GroupRow]) -> None:
        self._of = of
        self.names = tuple(names)
        self.rows = rows

    def records(self) -> list[dict[str, Any]]:
        """Return a row per group."""
        return [row.flat() for row in self.rows]

    def _heading(self) -> str:
        return f"Trials by {', '.join(self.names)}"

    def _chart(self) -> dict[str, Any]:
        rows = [
            {
                "name": " · ".join(str(value) for value in row.key.values()),
                "value": row.pass_rate.value,
                "low": row.pass_rate.low,
                "high": row.pass_rate.high,
            }
            for row in self.rows
        ]
        return interval_chart(rows, "pass rate with its interval")

    def __getitem__(self, key: Any) -> ResultSet:
        """Return the trials of one group, by its value, or values in the order of the columns."""
        values = cast("tuple[Any, ...]", key if isinstance(key, tuple) else (key,))
        if len(values) != len(self.names):
            raise ProctorError(f"{len(self.names)} values are required: {', '.join(self.names)}")
        return self._of.where(where=dict(zip(self.names, values, strict=True)))

    def __iter__(self) -> Iterator[GroupRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<{self._heading()}: {plural(len(self), 'group')}>"

    def __str__(self) -> str:
        rows = [[visible(cell_text(value)) for value in row.values()] for row in self._cells()]
        return "\n".join(table(list(self._cells()[0]) if rows else (), rows, indent=""))


def among(column: str) -> str:
    """Return the condition for the trials that the figures of a column are over."""
    return "counted AND judged" if column in OF_JUDGED else "counted"


def _left_out(column: str, total: TrialTally, used: int) -> tuple[Excluded, ...]:
    """Count the selected trials that are not among the values of a column."""
    if column in OF_JUDGED:
        excluded, missing = total.left_out, total.judged - used
    else:
        # Errored and cancelled trials have a cost, too.
        excluded = tuple(part for part in total.left_out if "early stop" in part.why)
        missing = total.trials - total.after_stop - used
    gap = Excluded("trials", missing, f"no {column}")
    return excluded + ((gap,) if missing else ())


def _order(value: Any) -> tuple[int, float, str]:
    """Sort key for values of any type: numbers, text, then None."""
    if value is None:
        return (2, 0.0, "")
    if isinstance(value, int | float):
        return (0, float(value), "")
    return (1, 0.0, str(value))

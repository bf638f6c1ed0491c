"""`proctor results` and `proctor sql`: query the results of any number of runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli._command import Command
from proctor.cli._options import (
    Decorated,
    complete_runs,
    estimand_option,
    option,
    readable_results_option,
    refuse_unused,
    warn,
)
from proctor.errors import ProctorError, did_you_mean
from proctor.formatting import plural, some
from proctor.sanitize import to_stdout

if TYPE_CHECKING:
    from proctor.results.result_set import ResultSet
    from proctor.stats.types import Estimand

LISTED = (
    *("run", "case", "agent", "params", "axis_seed", "index"),  # which trial
    *("status", "score", "latency_ms", "cost_usd"),
)
"""The columns of a trial in tables; `proctor runs export` has all of them."""

MAX_TRIALS = 100
"""Trials listed without --limit: a few screens."""


def _format_options(function: Decorated) -> Decorated:
    """Add `--format` and `--json`, as `form`."""
    as_json = option("--json", "form", "The same as --format json.", flag_value="json")
    named = option(
        "--format", "form", "Output format.", choices=["table", "json", "csv"], default="table"
    )
    return named(as_json(function))


def query_trials(patterns: Sequence[str], root: Path, filters: dict[str, Any]) -> ResultSet:
    """Return the selected trials; raise an error for an agent or a case that does not exist."""
    from fnmatch import fnmatchcase

    from proctor.api import query

    found = query(*patterns, results=root, **filters)
    if len(found) == 0 and ("agent" in filters or "case" in filters):
        # An empty result is a valid answer, but a name that no trial has is a typing error.
        everything = query(*patterns, results=root)
        for column in ("agent", "case"):
            known = [str(row.key[column]) for row in everything.group_by(column)]
            for name in str(filters.get(column) or "").split(","):
                glob = name.strip()
                # Without any trial there is nothing to compare the name with.
                if glob and known and not any(fnmatchcase(each, glob) for each in known):
                    hint = did_you_mean(glob, known) or f"known: {some(known)}"
                    raise ProctorError(f"no trial has the {column} {glob!r}", hint=hint)
    return found


def echo_problems(found: ResultSet) -> None:
    """Print a warning for each file that could not be read."""
    for problem in found.problems:
        warn(problem)


@click.command(
    cls=Command,
    groups={
        "Common options": "agent case tag since status trials group_by form root",
        "Select": "model until min_score max_score where limit",
        "Figures": "estimand",
    },
)
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...", shell_complete=complete_runs)
@option("--agent", "Only this agent; a glob, or several separated by commas.")
@option("--case", "Only these cases; a glob, or several separated by commas.")
@option("--tag", "Only cases or runs with this tag.")
@option("--model", "Only agents that use this model.")
@option("--since DATE", "Only runs started since: 2026-11-16, 7d, 12h, today.")
@option("--until DATE", "Only runs started until then; a date is inclusive.")
@option("--status", "passed, failed, hard_fail, infra_error, not_judged or cancelled.")
@option("--min-score X", "Only scores of at least X.", type=float)
@option("--max-score X", "Only scores of at most X.", type=float)
@option("--where COLUMN=VALUE", "Filter by any column; also !=, <, >=. Repeatable.", multiple=True)
@option("--group-by COLUMNS", "Columns separated by commas.  [default: run,agent]")
@estimand_option
@option("--trials", "List single trials.", is_flag=True)
@option("--limit N", "List at most N trials.", type=click.IntRange(0))
@_format_options
@readable_results_option
def results(
    patterns: tuple[str, ...],
    *,
    group_by: str | None,
    trials: bool,
    limit: int | None,
    estimand: Estimand,
    form: str,
    root: Path,
    **filters: Any,
) -> None:
    """Show run results.

    PATTERN is a glob over runs (`suite/2026-11-*`), an experiment, a tag, `latest` or a folder.
    Runs may be finished or in progress. Rates are over judged trials, with intervals for exactly
    these cases and instances; trials that could not be judged are counted separately. Trials that
    an outcome selects or groups (--status, --min-score, …) have counts and no rate.

    Examples:
      # all runs, by agent
      proctor results
      # which agent solves what
      proctor results 'shop/*' --group-by agent,difficulty
      # the failed trials
      proctor results --agent careful --status failed --trials
      # for a spreadsheet
      proctor results --since 7d --where properties.lang=de --format csv
      # runs in an object store
      proctor results --results s3://bucket/results
    """
    # The options have the names of the filters; one that is not given must not be passed.
    given = {key: value for key, value in filters.items() if value not in (None, ())}
    found = query_trials(patterns, root, given)
    # `--limit` is about single trials, so it implies `--trials`.
    if trials or limit is not None:
        refuse_unused("group_by estimand", "on a list of single trials")
        _echo_trials(found, form, limit)
    else:
        _echo_groups(found, form, group_by or "run,agent", estimand)
    echo_problems(found)


def _echo_groups(found: ResultSet, form: str, group_by: str, estimand: Estimand) -> None:
    from proctor.report.console_results import as_csv, groups_json, render_groups
    from proctor.results.aggregate import FLAT

    names = [name.strip() for name in group_by.split(",") if name.strip()]
    groups = found.group_by(*names, estimand=estimand)
    if form == "json":
        click.echo(groups_json(groups.rows, found.problems, found.notes))
    elif form == "csv":
        flat = [row.flat() for row in groups.rows]
        # An empty result still has a header, so that programs can read the file.
        head = list(flat[0]) if flat else [*names, *FLAT]
        click.echo(to_stdout(as_csv(head, [list(row.values()) for row in flat])))
    else:
        click.echo(render_groups(names, groups.rows, found.notes))


def _echo_trials(found: ResultSet, form: str, limit: int | None) -> None:
    from proctor.report.console_results import as_csv, render_rows, rows_json

    if form == "json":
        click.echo(rows_json(found.rows(limit=limit), found.problems))
        return
    # Only a table is shortened by default: a file must be complete.
    most = limit if limit is not None else MAX_TRIALS if form == "table" else None
    rows = found.rows(LISTED, limit=most)
    values = [list(row.values()) for row in rows]
    click.echo(to_stdout(as_csv(LISTED, values)) if form == "csv" else render_rows(LISTED, values))
    if form == "table":
        click.echo(f"{len(rows)} of {plural(len(found), 'trial')}", err=True)


@click.command(cls=Command)
@click.argument("query")
@option("--run PATTERN", "runs", "Only these runs.", multiple=True)
@_format_options
@readable_results_option
def sql(query: str, runs: tuple[str, ...], form: str, root: Path) -> None:
    """Query results with SQL.

    QUERY is a SELECT over the views trials, runs, cases and checks, in DuckDB's SQL; - reads it
    from standard input. It can read the results and nothing else: no other files, no settings, no
    extensions, and it cannot write.

    Examples:
      # mean by agent
      proctor sql "select agent, avg(score) from trials group by 1"
      # which checks fail
      proctor sql "select id, count(*) from checks where status = 'fail' group by 1"
      # list the columns
      proctor sql "describe trials"
      # a query from a file, for a spreadsheet
      proctor sql - --format csv < question.sql > answer.csv
    """
    from proctor.api import query as select
    from proctor.report.console_results import answer_json, as_csv, render_rows

    # From a file or a pipe: long queries do not fit well into shell quotes.
    text = sys.stdin.read() if query == "-" else query
    found = select(*runs, results=root)
    answer = found.sql(text)
    if form == "json":
        click.echo(answer_json(answer))
    elif form == "csv":
        click.echo(to_stdout(as_csv(answer.columns, answer.rows)))
    else:
        click.echo(render_rows(answer.columns, answer.rows))
    echo_problems(found)

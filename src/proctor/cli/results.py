"""`proctor results`: what any number of runs came to, finished or running."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import readable_results_option, results_root
from proctor.sanitize import printable
from proctor.words import plural, some

if TYPE_CHECKING:
    from proctor.results.result_set import ResultSet

EXAMPLES = [
    Example("proctor results", "every run, by agent"),
    Example("proctor results 'shop/*' --group-by agent,difficulty", "who copes with what"),
    Example("proctor results --agent careful --status failed --trials", "the failed trials"),
    Example("proctor results --since 7d --where properties.lang=de --format csv", "for a sheet"),
    Example("proctor results --results s3://bucket/results", "runs in an object store"),
]

LISTED = (
    *("run", "case", "agent", "params", "axis_seed", "index"),  # which trial
    *("status", "score", "latency_ms", "cost_usd"),
)
"""Columns of a trial that a person is shown; `proctor export` has them all."""

FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    help="How it is written; a table when absent.",
)
FORMAT_JSON = click.option("--json", "form", flag_value="json", help="The same as --format json.")

MOST_TRIALS = 100
"""Trials listed when nobody says how many: a few screens."""


def queried(patterns: Sequence[str], root: Path, filters: dict[str, Any]) -> ResultSet:
    """The trials asked for. None is an answer; an agent or a case that nobody has is a slip."""
    from proctor.api import query

    found = query(*patterns, results=root, **filters)
    if len(found) == 0 and ("agent" in filters or "case" in filters):
        _refuse_unknown_names(query(*patterns, results=root), filters)
    return found


def _refuse_unknown_names(everything: ResultSet, filters: dict[str, Any]) -> None:
    from fnmatch import fnmatchcase

    from proctor.errors import ProctorError, did_you_mean

    for column in ("agent", "case"):
        known = [str(row.key[column]) for row in everything.group_by(column)]
        for name in str(filters.get(column) or "").split(","):
            glob = name.strip()
            if glob and known and not any(fnmatchcase(each, glob) for each in known):
                hint = did_you_mean(glob, known) or f"there are {some(known)}"
                raise ProctorError(f"no trial has the {column} {glob!r}", hint=hint)


def tell_problems(found: ResultSet) -> None:
    """Name on standard error what could not be read."""
    for problem in found.problems:
        click.echo(f"warning: {printable(problem)}", err=True)


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option("--agent", help="Only this agent; a glob, or several with commas.")
@click.option("--case", help="Only these cases; a glob, or several with commas.")
@click.option("--tag", help="Only cases or runs with this tag.")
@click.option("--model", help="Only agents of this model.")
@click.option("--since", metavar="DATE", help="Begun from then on: 2026-11-16, 7d, 12h, today.")
@click.option("--until", metavar="DATE", help="Begun before then; a date means all of it.")
@click.option("--status", help="passed, failed, hard_fail, infra_error, cancelled.")
@click.option("--min-score", type=float, metavar="X", help="Only scores from X up.")
@click.option("--max-score", type=float, metavar="X", help="Only scores up to X.")
@click.option("--where", multiple=True, metavar="COLUMN=VALUE", help="Any column; !=, <, >= too.")
@click.option("--group-by", metavar="COLUMNS", help="Columns with commas; run,agent when absent.")
@click.option("--trials", is_flag=True, help="List the trials themselves.")
@click.option("--limit", type=click.IntRange(0), metavar="N", help="Trials listed at most.")
@FORMAT
@FORMAT_JSON
@readable_results_option
def results(
    patterns: tuple[str, ...],
    *,
    group_by: str | None,
    trials: bool,
    limit: int | None,
    form: str,
    results: Path | None,
    **filters: Any,
) -> None:
    """Show what runs came to, finished or running.

    PATTERN is a glob over runs (`suite/2026-11-*`), an experiment, a tag, `latest` or a folder.
    Rates are of judged trials, with an interval clustered by case; what was not judged is
    counted apart.
    """
    given = {key: value for key, value in filters.items() if value not in (None, ())}
    found = queried(patterns, results_root(results), given)
    if trials or limit is not None:
        _tell_trials(found, form, limit)
    else:
        _tell_groups(found, form, group_by or "run,agent")
    tell_problems(found)


def _tell_groups(found: ResultSet, form: str, group_by: str) -> None:
    from proctor.report.console_results import as_csv, groups_json, render_groups
    from proctor.results.aggregate import FLAT

    names = [name.strip() for name in group_by.split(",") if name.strip()]
    groups = found.group_by(*names)
    if form == "json":
        click.echo(groups_json(groups.rows, found.problems))
    elif form == "csv":
        flat = [row.flat() for row in groups.rows]
        head = list(flat[0]) if flat else [*names, *FLAT]
        click.echo(as_csv(head, [list(row.values()) for row in flat]))
    else:
        click.echo(render_groups(names, groups.rows))


def _tell_trials(found: ResultSet, form: str, limit: int | None) -> None:
    from proctor.report.console_results import as_csv, render_rows, rows_json

    if form == "json":
        click.echo(rows_json(found.rows(limit=limit), found.problems))
        return
    most = limit if limit is not None else MOST_TRIALS if form == "table" else None
    rows = found.rows(LISTED, limit=most)
    values = [list(row.values()) for row in rows]
    click.echo(as_csv(LISTED, values) if form == "csv" else render_rows(LISTED, values))
    if form == "table":
        click.echo(f"{len(rows)} of {plural(len(found), 'trial')}", err=True)

"""`proctor sql`: a question in SQL over all results, read-only."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import readable_results_option, results_root
from proctor.cli.results import FORMAT, FORMAT_JSON, tell_problems

EXAMPLES = [
    Example('proctor sql "select agent, avg(score) from trials group by 1"', "means by agent"),
    Example(
        "proctor sql \"select id, count(*) from checks where status = 'fail' group by 1\"",
        "which checks fail",
    ),
    Example('proctor sql "describe trials"', "the columns"),
    Example("proctor sql - --format csv < question.sql > answer.csv", "from a file, for a sheet"),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("query")
@click.option("--run", "runs", multiple=True, metavar="PATTERN", help="Only these runs.")
@FORMAT
@FORMAT_JSON
@readable_results_option
def sql(query: str, runs: tuple[str, ...], form: str, results: Path | None) -> None:
    """Answer a SELECT over the views trials, runs, cases and checks.

    DuckDB's SQL. It can read the results and nothing else: no other file, no setting, no
    extension, and nothing is written.
    """
    from proctor.api import query as select
    from proctor.report.console_results import answer_json, as_csv, render_rows

    text = sys.stdin.read() if query == "-" else query
    found = select(*runs, results=results_root(results))
    answer = found.sql(text)
    if form == "json":
        click.echo(answer_json(answer))
    elif form == "csv":
        click.echo(as_csv(answer.columns, answer.rows))
    else:
        click.echo(render_rows(answer.columns, answer.rows))
    tell_problems(found)

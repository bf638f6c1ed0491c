"""`proctor export`: results for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import readable_results_option, results_root
from proctor.cli.results import queried, tell_problems

FORMATS = ("csv", "json", "jsonl", "parquet", "mlflow")

EXAMPLES = [
    Example("proctor export shop/2026-01-31_001 -o trials.csv", "for a spreadsheet"),
    Example("proctor export 'shop/*' -o trials.parquet", "for pandas, polars, DuckDB"),
    Example("proctor export baseline --format jsonl -o -", "a tagged run to standard output"),
    Example("proctor export 'shop/*' --format mlflow -o http://127.0.0.1:5000", "to MLflow"),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--format", "form", type=click.Choice(FORMATS), help="By the suffix when absent.")
@click.option("-o", "--output", required=True, metavar="OUT", help="A file, - or a server.")
@click.option("--agent", help="Only this agent; a glob, or several with commas.")
@click.option("--case", help="Only these cases; a glob, or several with commas.")
@click.option("--status", help="Only trials with this status.")
@click.option("--bom", is_flag=True, help="Mark CSV as UTF-8 (older Excel guesses otherwise).")
@readable_results_option
def export(
    runs: tuple[str, ...],
    *,
    form: str | None,
    output: str,
    bom: bool,
    results: Path | None,
    **filters: str | None,
) -> None:
    """Write the trials of runs for other programs.

    RUN is a folder, a glob over runs, an experiment, a tag or `latest`. In CSV, a text that a
    spreadsheet would take for a formula begins with a quote.
    """
    from proctor.words import plural

    if bom and form not in (None, "csv"):
        raise click.UsageError("--bom is for CSV")
    given = {key: value for key, value in filters.items() if value is not None}
    found = queried(runs, results_root(results), given)
    if output == "-":
        _to_stdout(found, form)
    else:
        place = found.export(output, format=form, bom=bom)
        told = f"{plural(len(found), 'trial')} of {plural(len(found.runs), 'run')}: {place}"
        click.echo(told, err=True)
    tell_problems(found)


def _to_stdout(found: Any, form: str | None) -> None:
    from proctor.results.exchange.export import text_parts

    if form not in ("csv", "json", "jsonl"):
        raise click.UsageError("standard output takes --format csv, json or jsonl")
    for part in text_parts(found, form):
        click.echo(part, nl=False)

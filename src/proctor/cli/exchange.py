"""`proctor runs export` and `proctor runs import`: results to and from other tools."""

from __future__ import annotations

from pathlib import Path

import click

from proctor import api
from proctor.cli._command import Command
from proctor.cli._options import (
    FILE,
    POSITIVE,
    readable_results_option,
    record_audit,
    results_option,
)
from proctor.cli.results import echo_problems, query_trials
from proctor.formatting import plural
from proctor.sanitize import printable


@click.command(cls=Command)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--format",
    "form",
    type=click.Choice(("csv", "json", "jsonl", "parquet", "mlflow")),
    help="Output format.  [default: from the suffix of OUT]",
)
@click.option(
    "-o", "--output", required=True, metavar="OUT", help="A file, - for standard output, or a URL."
)
@click.option("--agent", help="Only this agent; a glob, or several separated by commas.")
@click.option("--case", help="Only these cases; a glob, or several separated by commas.")
@click.option("--status", help="Only trials with this status.")
@click.option("--bom", is_flag=True, help="Write a byte order mark, for CSV in old Excel versions.")
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
    """Export trials to CSV, JSON, Parquet or MLflow.

    RUN is a folder, a glob over runs, an experiment, a tag or `latest`. In CSV, text that a
    spreadsheet would read as a formula is prefixed with a quote.

    Examples:
      # for a spreadsheet
      proctor runs export shop/2026-01-31_001 -o trials.csv
      # for pandas, polars, DuckDB
      proctor runs export 'shop/*' -o trials.parquet
      # a tagged run to standard output
      proctor runs export main --format jsonl -o -
      # to MLflow
      proctor runs export 'shop/*' --format mlflow -o http://127.0.0.1:5000
    """
    if bom and form not in (None, "csv"):
        raise click.UsageError("--bom is only for CSV")
    # The options have the names of the filters; one that is not given must not be passed.
    given = {key: value for key, value in filters.items() if value is not None}
    found = query_trials(runs, api.results_root(results), given)
    if output == "-":
        from proctor.results.exchange.export import text_parts

        if form not in ("csv", "json", "jsonl"):
            raise click.UsageError("standard output needs --format csv, json or jsonl")
        for part in text_parts(found, form):
            click.echo(part, nl=False)
    else:
        place = found.export(output, format=form, bom=bom)
        summary = f"{plural(len(found), 'trial')} of {plural(len(found.runs), 'run')}: {place}"
        click.echo(summary, err=True)
    # Last, so that warnings about unreadable runs are not scrolled away.
    echo_problems(found)


def _columns(
    _ctx: click.Context, _option: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    """Read COLUMN=FIELD; unlike a field, a column may contain `=`."""
    pairs: dict[str, str] = {}
    for text in given:
        column, found, field = text.rpartition("=")
        if not found or not column or not field:
            raise click.BadParameter(f"{text!r} is not COLUMN=FIELD")
        pairs[column] = field
    return pairs


@click.command("import", cls=Command)
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option(
    "--from",
    "source",
    type=click.Choice(("csv", "jsonl", "json", "parquet", "inspect", "promptfoo")),
    help="The format of the file.  [default: detected]",
)
@click.option(
    "--map",
    "columns",
    multiple=True,
    callback=_columns,
    metavar="COLUMN=FIELD",
    help="The field that a column of CSV, JSONL, JSON or Parquet holds; repeatable.",
)
@click.option("--name", help="The name of the experiment.  [default: the file's name]")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=0.8,
    metavar="X",
    help="The lowest passing score, where the file does not say what passed.",
)
@click.option(
    "--scale",
    type=POSITIVE,
    default=1.0,
    metavar="X",
    help="The score in the file that counts as 1.",
)
@results_option
def import_(
    files: tuple[Path, ...],
    *,
    source: str | None,
    columns: dict[str, str],
    name: str | None,
    threshold: float,
    scale: float,
    results: Path | None,
) -> None:
    """Import results of other tools as runs.

    Reads Inspect logs (.eval, .json), promptfoo's JSON, and trials as CSV, JSONL, JSON or Parquet,
    e.g. from `proctor runs export`. A file is imported as a whole or not at all. Imported runs can
    be queried, compared and gated like any other.

    Examples:
      # a log of Inspect
      proctor runs import logs/2026-01-31_geo.eval
      # an evaluation of promptfoo
      proctor runs import results.json --from promptfoo
      # a file from `proctor runs export`
      proctor runs import trials.parquet
      # any CSV file
      proctor runs import grades.csv --map question=case --map points=score --scale 100
    """
    from proctor.results.exchange.importing import read_results, write_import

    root = api.results_root(results)
    # One run per file: each file is an evaluation of its own.
    for file in files:
        found = read_results(file, source, columns)
        found.name = name or found.name
        run = write_import(found, root, file=file, threshold=threshold, scale=scale)
        total = run.totals
        click.echo(
            f"{printable(str(run.path))}: {plural(total.trials, 'trial')}, "
            f"{total.passed} of {total.judged} judged passed, "
            f"{total.infra_error} could not be judged"
        )
        # Not an error: files of other tools have many columns that Proctor has no field for.
        if found.ignored:
            skipped = ", ".join(printable(column) for column in found.ignored)
            click.echo(f"columns ignored: {skipped} (use --map COLUMN=FIELD)", err=True)
        record_audit("import", root, run=run.path, run_id=run.run_id, outcome=f"{file.name}")

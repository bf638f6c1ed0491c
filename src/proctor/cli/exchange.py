"""`proctor runs export`, `runs import` and `import-suite`: to and from other tools."""

from __future__ import annotations

from pathlib import Path

import click

from proctor.cli import _options
from proctor.cli._command import Command
from proctor.cli._options import option
from proctor.cli.results import echo_problems, query_trials
from proctor.errors import ProctorError
from proctor.formatting import plural
from proctor.sanitize import printable, to_stdout


@click.command(cls=Command)
@click.argument(
    "runs", nargs=-1, required=True, metavar="RUN...", shell_complete=_options.complete_runs
)
@option(
    "--format",
    "form",
    "Output format.  [default: from the suffix of OUT]",
    choices=("csv", "json", "jsonl", "parquet", "mlflow"),
)
@option("-o", "--output OUT", "A file, - for standard output, or a URL.", required=True)
@option("--agent", "Only this agent; a glob, or several separated by commas.")
@option("--case", "Only these cases; a glob, or several separated by commas.")
@option("--status", "Only trials with this status.")
@option("--bom", "Write a byte order mark, for CSV in old Excel versions.", is_flag=True)
@_options.readable_results_option
def export(
    runs: tuple[str, ...],
    *,
    form: str | None,
    output: str,
    bom: bool,
    root: Path,
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
    found = query_trials(runs, root, given)
    if output == "-":
        from proctor.results.exchange.export import text_parts

        if form not in ("csv", "json", "jsonl"):
            raise click.UsageError("standard output needs --format csv, json or jsonl")
        for part in text_parts(found, form):
            click.echo(to_stdout(part), nl=False)
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
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@option(
    "--from",
    "source",
    "The format of the file.  [default: detected]",
    choices=("csv", "jsonl", "json", "parquet", "inspect", "promptfoo", "harbor"),
)
@option(
    "--map COLUMN=FIELD",
    "columns",
    "The field that a column of CSV, JSONL, JSON or Parquet holds; repeatable.",
    multiple=True,
    callback=_columns,
)
@option("--name", "The name of the experiment.  [default: the file's name]")
@option(
    "--threshold X",
    "The lowest passing score, where the file does not say what passed.",
    type=click.FloatRange(0, 1),
    default=0.8,
)
@option("--scale X", "The score in the file that counts as 1.", type=_options.POSITIVE, default=1.0)
@_options.results_option
def import_(
    files: tuple[Path, ...],
    *,
    source: str | None,
    columns: dict[str, str],
    name: str | None,
    root: Path,
    scale: float,
    threshold: float,
) -> None:
    """Import results of other tools as runs.

    Reads Inspect logs (.eval, .json), promptfoo's JSON and JSONL, folders of Harbor jobs, and
    trials as CSV, JSONL, JSON or Parquet, e.g. from `proctor runs export`. A file is imported as a
    whole or not at all. Imported runs can be queried, compared and gated like any other.

    Examples:
      # a log of Inspect
      proctor runs import logs/2026-01-31_geo.eval
      # an evaluation of promptfoo
      proctor runs import results.json --from promptfoo
      # a job of Harbor, with its trajectories
      proctor runs import jobs/2026-01-31__12-00-00
      # a file from `proctor runs export`
      proctor runs import trials.parquet
      # any CSV file
      proctor runs import grades.csv --map question=case --map points=score --scale 100
    """
    from proctor.results.exchange.importing import read_results, write_import

    # One run per file: each file is an evaluation of its own.
    for file in files:
        found = read_results(file, source, columns, scale, threshold)
        found.name = name or found.name
        run = write_import(found, root, file=file, threshold=threshold)
        total = run.totals
        click.echo(
            f"{printable(str(run.path))}: {plural(total.trials, 'trial')}, "
            f"{total.passed} of {total.judged} judged passed, "
            f"{total.unjudged} could not be judged"
        )
        if found.stopped:
            _options.warn(f"the run is incomplete: {found.stopped}")
        for warning in found.warnings:
            _options.warn(warning)
        # Not an error: files of other tools have many columns that Proctor has no field for.
        if found.ignored:
            skipped = ", ".join(printable(column) for column in found.ignored)
            click.echo(f"columns ignored: {skipped} (use --map COLUMN=FIELD)", err=True)
        _options.record_audit("import", root, run=run.path, run_id=run.run_id, outcome=file.name)


@click.command("import-suite", cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@option(
    "--from",
    "source",
    "The tool that the file is for.  [default: detected]",
    choices=("promptfoo", "pydantic-evals", "inspect", "harbor"),
)
@option("-o", "--output", "The suite to write.  [default: standard output]", type=_options.FILE)
@option("--agent", "The agent of the suite, instead of the file's providers.")
@option("--judge MODEL", "The judge of the suite, as PROVIDER:MODEL.")
@option("--force", "Overwrite the file.", is_flag=True)
def import_suite(
    file: Path,
    *,
    source: str | None,
    output: Path | None,
    agent: str | None,
    judge: str | None,
    force: bool,
) -> None:
    """Convert a test file of another tool into a suite.

    Reads promptfoo configs, pydantic-evals data sets (YAML, JSON) and Inspect data sets (JSON,
    JSONL, CSV), and folders of Harbor tasks, which stay where they are: the cases name them. What
    has no exact equivalent is left out and listed with its count.

    Examples:
      # a promptfoo config, with its providers as agents
      proctor import-suite promptfooconfig.yaml -o new.yaml
      # a data set of pydantic-evals, for an agent of your own
      proctor import-suite dataset.yaml -o new.yaml --agent my_pkg.agent:answer
      # tasks of Harbor
      proctor import-suite tasks/ --from harbor -o new.yaml --agent my_pkg.agent:answer
      # the samples of an Inspect task
      proctor import-suite samples.jsonl -o new.yaml --agent my_pkg.agent:answer
    """
    from proctor.files import write_atomic
    from proctor.scenarios.scenario import dump
    from proctor.spec.convert import convert

    if output is not None and output.exists() and not force:
        raise ProctorError("the file exists", where=str(output), hint="--force overwrites it")
    done = convert(file, source)
    text = dump(done.suite(agent, judge))
    if output is None:
        click.echo(text, nl=False)
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(output, text.encode())
    total = done.converted + sum(done.left_out.values())
    count = f"{plural(len(done.cases), 'case')}, {done.converted} of {total} checks and options"
    click.echo(f"{printable(str(output or 'suite'))}: {count}", err=True)
    for name, number in done.left_out.most_common():
        click.echo(f"no equivalent: {printable(name)} ({number})", err=True)
    unchecked = sum(
        not (case.keys() & {"checks", "assertions", "correctness"}) for case in done.cases
    )
    if unchecked:
        click.echo(f"{plural(unchecked, 'case')} without checks: not judged", err=True)
    if done.uses_judge and not (judge or done.judge):
        click.echo("hint: some checks need a judge: --judge PROVIDER:MODEL", err=True)

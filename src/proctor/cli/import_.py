"""`proctor import`: results that other programs made, as runs like any other."""

from __future__ import annotations

from pathlib import Path

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import POSITIVE, record_audit, results_option, results_root
from proctor.sanitize import printable
from proctor.words import plural

SOURCES = ("csv", "jsonl", "json", "parquet", "inspect", "promptfoo")

EXAMPLES = [
    Example("proctor import logs/2026-01-31_geo.eval", "a log of Inspect"),
    Example("proctor import results.json --from promptfoo", "an evaluation of promptfoo"),
    Example("proctor import trials.parquet", "what `proctor export` wrote elsewhere"),
    Example("proctor import grades.csv --map question=case --map points=score --scale 100", "CSV"),
]


def _pairs(_ctx: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        column, found, field = text.rpartition("=")
        if not found or not column or not field:
            raise click.BadParameter(f"write COLUMN=FIELD, not {text!r}")
        pairs[column] = field
    return pairs


@click.command("import", cls=Command, examples=EXAMPLES)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--from", "source", type=click.Choice(SOURCES), help="By the file when absent.")
@click.option(
    "--map", "columns", multiple=True, callback=_pairs, metavar="COLUMN=FIELD",
    help="What a column of CSV, JSONL, JSON or Parquet means.",
)  # fmt: skip
@click.option("--name", help="The name of the experiment; the file's own when absent.")
@click.option(
    "--threshold", type=click.FloatRange(0, 1), default=0.8, show_default=True, metavar="X",
    help="The score from which a trial passed, where the file does not say.",
)  # fmt: skip
@click.option(
    "--scale", type=POSITIVE, default=1.0, metavar="X",
    help="The score in the file that counts as 1.",
)  # fmt: skip
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
    """Keep results of other programs as runs, to query, compare and gate on.

    Takes Inspect logs (.eval, .json), promptfoo's JSON, and trials as CSV, JSONL, JSON or
    Parquet, such as `proctor export` writes. A file is imported whole or not at all.
    """
    from proctor.results.exchange.importing import keep, read_results

    root = results_root(results)
    for file in files:
        found = read_results(file, source, columns)
        found.name = name or found.name
        run = keep(found, root, file=file, threshold=threshold, scale=scale)
        total = run.totals
        click.echo(
            f"{printable(str(run.path))}: {plural(total.trials, 'trial')}, "
            f"{total.passed} of {total.judged} judged passed, "
            f"{total.infra_error} could not be judged"
        )
        if found.not_taken:
            told = ", ".join(printable(column) for column in found.not_taken)
            click.echo(f"not taken: {told} (--map COLUMN=FIELD takes a column)", err=True)
        record_audit("import", root, run=run.path, run_id=run.run_id, outcome=f"{file.name}")

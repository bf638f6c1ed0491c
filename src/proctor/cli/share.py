"""`proctor share`: a run as one file to give away."""

from __future__ import annotations

from pathlib import Path

import click

from proctor.cli.lazy import Command, Example

EXAMPLES = [
    Example("proctor share latest -o report.html", "one page to send"),
    Example("proctor share RUN -o run.zip", "the page and all results, to look into"),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("run")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The file to write: .html for one page, .zip for everything.",
)
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    default=Path("results"),
    show_default=True,
    help="The folder of runs, where tags and `latest` are looked for.",
)
def share(*, run: str, output: Path, results: Path) -> None:
    """Write a run to one file to give away.

    RUN is a run folder, a tag, or `latest`. Prints what is inside, so that you know what you send.
    """
    from proctor.report.sharing import share as share_run
    from proctor.report.text import line, plural
    from proctor.runs.find import find_run
    from proctor.runs.run import Run
    from proctor.trace.redact import default_redactor

    made = share_run(Run(find_run(run, results)), output, default_redactor())
    click.echo(f"{line(str(made.path), 400)}: {made.size / 1e6:.1f} MB")
    for part in made.inside:
        click.echo(f"  {line(part, 400)}")
    click.echo(f"redaction was applied again: {plural(made.redacted, 'secret')} taken out")

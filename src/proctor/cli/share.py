"""`proctor share`: a run as one file to give away."""

from __future__ import annotations

from pathlib import Path

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import open_run, record_audit, results_option, results_root

EXAMPLES = [
    Example("proctor share latest", "everything, in a zip named after the run"),
    Example("proctor share latest -o report.html", "one page to send"),
    Example("proctor share RUN -o run.zip", "the page and all results, to look into"),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("run")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write: .html for one page, .zip for everything; "
    "<experiment>-<run>.zip here when absent.",
)
@results_option
def share(*, run: str, output: Path | None, results: Path | None) -> None:
    """Write a run to one file to give away.

    RUN is a run folder, a tag, or `latest`. Prints what is inside, so that you know what you send.
    """
    from proctor.report.sharing import share as share_run
    from proctor.sanitize import line
    from proctor.spec import load_configuration
    from proctor.trace.redact import Redactor
    from proctor.words import plural

    root = results_root(results)
    found = open_run(run, root)
    redactor = Redactor(load_configuration().settings.redaction.patterns)
    if output is None:
        output = Path(f"{found.path.resolve().parent.name}-{found.path.resolve().name}.zip")
    made = share_run(found, output, redactor)
    record_audit("share", root, run=found.path, run_id=found.run_id, outcome=output.name)
    click.echo(f"{line(str(made.path), 400)}: {made.size / 1e6:.1f} MB")
    for part in made.inside:
        click.echo(f"  {line(part, 400)}")
    click.echo(f"redaction was applied again: {plural(made.redacted, 'secret')} taken out")

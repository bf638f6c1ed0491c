"""`proctor schema`: the JSON Schema of what users write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from proctor.cli._command import Command, Example

EXAMPLES = [
    Example("proctor schema -o .proctor/suite.schema.json", "for the editor, beside the suite"),
    Example("proctor schema experiment", "the schema of experiment files"),
    Example("proctor schema config", "the schema of proctor.yaml"),
]

KINDS = ("suite", "experiment", "config")


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("asked", metavar="[KIND]", required=False, type=click.Choice(KINDS))
@click.option("--kind", type=click.Choice(KINDS), help="Which kind of file; a suite when absent.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to a file."
)
def schema(asked: Any, kind: Any, output: Path | None) -> None:
    """Print the JSON Schema of suites, experiments or settings."""
    import json

    from proctor.runs.folder import write_atomic
    from proctor.spec import schema_of
    from proctor.user_dirs import room_for

    if asked is not None and kind is not None and asked != kind:
        raise click.UsageError(f"{asked} or --kind {kind}, not both")
    text = json.dumps(schema_of(asked or kind or "suite"), indent=2) + "\n"
    if output is None:
        click.echo(text, nl=False)
        return
    write_atomic(room_for(output), text.encode())
